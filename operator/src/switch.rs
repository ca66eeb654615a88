//! From one plan to the next: the windows that are new are loaded before those that they replace go.
//!
//! While that lasts, the market and the Service keep the plan that serves. It does not last where it could not end: in
//! pools that have no room for one more pod, or when the Ring's patience is over. Pure.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kvasir_api::UpdateStrategy;
use kvasir_market::types::RingStatus;
use kvasir_plan::LayerRange;

use crate::{
    dereference::Live,
    labels,
    market::View,
    names,
    status::pods::{self, Slot},
    validate::Validated,
};

/// What to do about the plan that serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Switch {
    /// the plan of this visit is in its place, or takes it at once
    Go,
    /// the next windows are loaded: the market is told, and those that serve stay until a lap went round the next ones
    Over,
    /// the next windows are being loaded
    Hold {
        /// those that aren't yet
        waiting: Vec<LayerRange>,
    },
}

/// Whether the rings that serve now have to go on for a while. `views` are by ordinal.
pub fn switch(validated: &Validated, views: &[View], live: &Live, now: Timestamp) -> Switch {
    if validated.spec.ring.suspend {
        return Switch::Go;
    }
    let (mut waiting, mut over) = (Vec::new(), false);
    for (ordinal, view) in views.iter().enumerate() {
        let ordinal = ordinal as u32;
        match view.status() {
            Some(told) if is_planned(validated, told) => {
                let planned: Vec<LayerRange> = validated.cluster_ranks().map(|(_, rank)| rank.layers).collect();
                over |= !told.ready
                    && has_left_over(validated, ordinal, live)
                    && !is_late(validated, ordinal, &planned, live, now);
            }
            Some(serving) if serving.ready => {
                let Some(unloaded) = unloaded(validated, ordinal, serving, live) else {
                    return Switch::Go;
                };
                if is_late(validated, ordinal, &unloaded, live, now) {
                    return Switch::Go;
                }
                // an old stage whose window is gone would claim an open one in its place
                over |= unloaded.is_empty() && !validated.has_open_windows();
                waiting.extend(unloaded);
            }
            _ => {}
        }
    }
    waiting.sort_unstable();
    waiting.dedup();
    match (waiting.is_empty(), over) {
        (false, _) => Switch::Hold { waiting },
        (true, true) => Switch::Over,
        (true, false) => Switch::Go,
    }
}

/// Windows of a ring that don't serve yet and aren't loaded; none when there is no use in waiting for them.
fn unloaded(validated: &Validated, ordinal: u32, serving: &RingStatus, live: &Live) -> Option<Vec<LayerRange>> {
    let spec = &validated.spec;
    let mut unloaded = Vec::new();
    for (_, rank) in validated.cluster_ranks() {
        let layers = rank.layers;
        let pods = pods::of(&spec.name, Slot { ordinal, layers }, &live.pods);
        let serves = serving.windows.iter().any(|window| window.layers == layers);
        if serves || pods.iter().any(|pod| pods::is_ready(pod)) {
            continue;
        }
        let pool = rank.placement.as_deref().and_then(|pool| spec.pool(pool));
        let recreates = pool.is_some_and(|pool| spec.strategy(pool) == UpdateStrategy::Recreate);
        if recreates || pods.iter().any(|pod| pods::unschedulable(pod).is_some()) {
            return None;
        }
        unloaded.push(layers);
    }
    Some(unloaded)
}

/// Whether pods of windows that aren't planned any more still serve.
fn has_left_over(validated: &Validated, ordinal: u32, live: &Live) -> bool {
    let planned: Vec<String> = validated
        .manifest
        .ranks
        .iter()
        .map(|rank| labels::range(rank.layers))
        .collect();
    live.pods.iter().any(|pod| {
        let carried = pod.labels();
        carried.get(labels::ORDINAL) == Some(&ordinal.to_string())
            && carried
                .get(labels::LAYERS)
                .is_some_and(|layers| !planned.contains(layers))
            && pods::is_ready(pod)
    })
}

fn is_planned(validated: &Validated, serving: &RingStatus) -> bool {
    let planned = validated.manifest.ranks.iter().map(|rank| rank.layers);
    planned.eq(serving.windows.iter().map(|window| window.layers))
}

/// Whether the newest of these stages of a ring has had the time that the Ring gives it. One that isn't there yet has it
/// before it, and none has had none.
fn is_late(validated: &Validated, ordinal: u32, windows: &[LayerRange], live: &Live, now: Timestamp) -> bool {
    let spec = &validated.spec;
    let patience = Duration::from_secs(spec.ring.progress_deadline_seconds.max(0).unsigned_abs().into());
    let had = |layers: &LayerRange| {
        let made = live.deployment(&names::stage(&spec.name, ordinal, *layers))?;
        Some(pods::since(made.metadata.creation_timestamp?.0, now) > patience)
    };
    !windows.is_empty() && windows.iter().all(|layers| had(layers) == Some(true))
}
