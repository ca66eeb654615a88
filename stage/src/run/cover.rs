//! Which layers rank 0 waits for while the ring isn't whole, as its market tells: what clients are told in the meantime.

use std::time::Duration;

use kvasir_market::client::RingClient;
use kvasir_market::types::{RingStatus, WindowState};
use kvasir_plan::LayerRange;

use crate::ring::head::{HeadHandle, Phase};

/// Pause between two looks at a ring that isn't whole.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Keeps the head's word about missing layers true, for as long as it is polled.
pub(super) async fn watch(market: RingClient, head: HeadHandle) {
    let mut phase = head.phase();
    let forming = |phase: &Phase| matches!(phase, Phase::Forming(_));
    // The head holds the sender: only the end of the process ends this.
    while phase.wait_for(forming).await.is_ok() {
        // A market that doesn't answer may have lost the ring: how it stood is no word on how it stands.
        let missing = market.status().await.ok().and_then(|status| missing(&status));
        head.say_missing(missing);
        let whole = phase.wait_for(|phase| !forming(phase));
        if tokio::time::timeout(LOOK_EVERY, whole).await.is_ok() {
            head.say_missing(None);
        }
    }
}

/// The layers that nobody serves, by whether somebody is about to; none when all are served.
fn missing(status: &RingStatus) -> Option<String> {
    let of = |is_one: &dyn Fn(WindowState) -> bool| -> Vec<LayerRange> {
        let windows = status.windows.iter().filter(|window| is_one(window.state));
        let mut ranges: Vec<LayerRange> = Vec::new();
        for layers in windows.map(|window| window.layers) {
            match ranges.last_mut() {
                Some(last) if last.end == layers.start => last.end = layers.end,
                _ => ranges.push(layers),
            }
        }
        ranges
    };
    let open = of(&|state| matches!(state, WindowState::Open | WindowState::Reserved));
    let loading = of(&|state| state == WindowState::Claimed);
    let say = |ranges: &[LayerRange], what: &str| {
        let texts: Vec<String> = ranges.iter().map(ToString::to_string).collect();
        (!texts.is_empty()).then(|| format!("layers {} {what}", texts.join(", ")))
    };
    let parts = [
        say(&open, "are not held by any stage"),
        say(&loading, "are being loaded"),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

#[cfg(test)]
mod tests {
    use kvasir_market::types::OfferedWindow;
    use kvasir_wire::trust::PublicKey;

    use super::*;

    fn told(states: &[WindowState]) -> Option<String> {
        let window = |(index, state): (usize, &WindowState)| OfferedWindow {
            index: index as u32,
            layers: LayerRange {
                start: 4 * index as u32,
                end: 4 * index as u32 + 4,
            },
            bytes: 1,
            memory: 1,
            state: *state,
            rate: 1,
            uncovered_since: None,
        };
        missing(&RingStatus {
            ring: "tea".to_owned(),
            owner: PublicKey([1; 32]),
            epoch: None,
            proposed: None,
            ready: false,
            uncovered: Vec::new(),
            waiting: None,
            windows: states.iter().enumerate().map(window).collect(),
            claims: Vec::new(),
        })
    }

    #[test]
    fn the_layers_that_nobody_holds_are_named_and_neighbours_are_joined() {
        use WindowState::{Claimed, Open, Ready, Reserved};
        assert_eq!(told(&[Ready, Ready]), None);
        assert_eq!(
            told(&[Ready, Open, Reserved, Ready]).as_deref(),
            Some("layers 4..12 are not held by any stage")
        );
        assert_eq!(
            told(&[Open, Ready, Open, Claimed]).as_deref(),
            Some("layers 0..4, 8..12 are not held by any stage, layers 12..16 are being loaded")
        );
    }
}
