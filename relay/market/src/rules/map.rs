//! The coverage and demand map: what is offered to a node, and how the ring stands.

use kvasir_plan::LayerRange;
use kvasir_wire::trust::PublicKey;

use super::{Millis, RingState, epochs::Waiting, reward, ring::Lease};
use crate::types::{ClaimStatus, Offer, OfferedWindow, RingStatus, WindowState};

impl RingState {
    /// The ring as it is offered to `node`; none while it is off the market. [`RingState::settle`] before.
    pub fn offer(&self, now: Millis, node: PublicKey) -> Option<Offer> {
        (!self.withdrawn).then(|| Offer {
            ring: self.ring().to_owned(),
            owner: self.owner,
            model: self.demand.template.model.clone(),
            source: self.demand.source.clone(),
            template: self.demand.template.clone(),
            windows: self.windows(now, Some(node)),
            limit: self.window_limit(now, node),
        })
    }

    /// The ring as it stands. [`RingState::settle`] before.
    pub fn status(&self, now: Millis, relays: &[String]) -> RingStatus {
        let live = |lease: &&Lease| !self.expired(lease, now);
        let covered = |window: u32| {
            let mut leases = self.leases.values().filter(live);
            leases.any(|lease| lease.ready() && lease.windows.holds(window))
        };
        let uncovered = (0..self.count()).filter(|window| !covered(*window));
        let uncovered = joined(uncovered.map(|window| self.demand.template.ranks[window as usize].layers));
        let mut claims: Vec<ClaimStatus> = self
            .leases
            .iter()
            .map(|(id, lease)| self.claim_status(now, *id, lease))
            .collect();
        claims.sort_by_key(|claim| (claim.windows.start, claim.replaces.is_some(), claim.id));
        RingStatus {
            ring: self.ring().to_owned(),
            owner: self.owner,
            epoch: self.published.as_ref().map(|published| published.manifest.epoch),
            proposed: self.proposed.as_ref().map(|proposed| proposed.proposal.manifest.epoch),
            ready: uncovered.is_empty() && self.stands(relays),
            waiting: self.waiting(relays).map(|waiting| say(&waiting, &uncovered)),
            uncovered,
            windows: self.windows(now, None),
            claims,
        }
    }

    /// Windows that `node` could claim now.
    pub(super) fn open(&self, now: Millis, node: PublicKey) -> Vec<OfferedWindow> {
        let mut windows = self.windows(now, Some(node));
        windows.retain(|window| window.state == WindowState::Open);
        windows
    }

    /// µcredit per million tokens for who claims the window now.
    pub(super) fn rate_now(&self, now: Millis, window: u32) -> u64 {
        let template = &self.demand.template;
        let since = self.uncovered_since.get(window as usize).copied().flatten();
        let uncovered_for = since.map_or(0, |since| now.saturating_sub(since));
        template.ranks.get(window as usize).map_or(0, |rank| {
            reward::rate(rank, template.model.embedding_length, uncovered_for, self.queued(now))
        })
    }

    fn windows(&self, now: Millis, node: Option<PublicKey>) -> Vec<OfferedWindow> {
        let offered = |window: u32| {
            let rank = self.demand.template.ranks.get(window as usize)?;
            Some(OfferedWindow {
                index: window,
                layers: rank.layers,
                bytes: rank.bytes,
                memory: rank.memory,
                state: self.state_of(window, node),
                rate: self.rate_now(now, window),
                uncovered_since: self.uncovered_since.get(window as usize).copied().flatten(),
            })
        };
        (0..self.count()).filter_map(offered).collect()
    }

    fn state_of(&self, window: u32, node: Option<PublicKey>) -> WindowState {
        match self.serving(window) {
            Some(_) if self.covered(window) => WindowState::Ready,
            Some(_) => WindowState::Claimed,
            None => match self.demand.reserved.get(&window) {
                Some(kept_for) if Some(*kept_for) != node => WindowState::Reserved,
                _ => WindowState::Open,
            },
        }
    }

    fn claim_status(&self, now: Millis, id: u64, lease: &Lease) -> ClaimStatus {
        ClaimStatus {
            id,
            generation: id,
            node: lease.node,
            instance: lease.instance.clone(),
            windows: lease.windows,
            layers: self.layers(lease.windows),
            rate: lease.rate(),
            replaces: lease.replaces.first().copied(),
            report: lease.report.clone(),
            expired: self.expired(lease, now),
        }
    }
}

fn say(waiting: &Waiting, uncovered: &[LayerRange]) -> String {
    match waiting {
        Waiting::Cover => {
            let layers: Vec<String> = uncovered.iter().map(ToString::to_string).collect();
            format!("nobody serves layers {}", layers.join(", "))
        }
        Waiting::Relay { rank } => {
            format!(
                "rank {rank} can't be dialled by the rank before it, and no relay is there: start one with a public URL"
            )
        }
        Waiting::Delegation { node } => format!("the owner has not delegated to node {node}, which holds rank 0"),
    }
}

/// Neighbouring ranges joined.
fn joined(ranges: impl Iterator<Item = LayerRange>) -> Vec<LayerRange> {
    let mut joined: Vec<LayerRange> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => joined.push(range),
        }
    }
    joined
}
