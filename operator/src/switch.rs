//! From one plan to the next: the windows that are new are loaded before those that they replace go.
//!
//! While that lasts, the market and the Service keep the plan that serves. It does not last where it could not end: in
//! pools that have no room for one more pod, or when the Ring's patience is over. Pure.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use kvasir_api::UpdateStrategy;
use kvasir_market::types::RingStatus;
use kvasir_plan::LayerRange;

use crate::{
    dereference::Live,
    market::View,
    names,
    status::pods::{self, Slot},
    validate::Validated,
};

/// What to do about the plan that serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Switch {
    /// the plan of this visit takes its place, or has taken it
    Go,
    /// the next windows are being loaded
    Hold {
        /// those that aren't yet
        waiting: Vec<LayerRange>,
    },
}

/// Whether the rings that serve now have to go on for a while. `views` are by ordinal.
pub fn switch(validated: &Validated, views: &[View], live: &Live, now: Timestamp) -> Switch {
    let spec = &validated.spec;
    if spec.ring.suspend {
        return Switch::Go;
    }
    let mut waiting = Vec::new();
    for (ordinal, view) in views.iter().enumerate() {
        let Some(serving) = view.status().filter(|status| status.ready) else {
            continue;
        };
        if is_planned(validated, serving) {
            continue;
        }
        for (_, rank) in validated.cluster_ranks() {
            let kept = serving.windows.iter().any(|window| window.layers == rank.layers);
            let slot = Slot {
                ordinal: ordinal as u32,
                layers: rank.layers,
            };
            let pods = pods::of(&spec.name, slot, &live.pods);
            if kept || pods.iter().any(|pod| pods::is_ready(pod)) {
                continue;
            }
            let recreates = rank
                .placement
                .as_deref()
                .and_then(|pool| spec.pool(pool))
                .is_some_and(|pool| spec.strategy(pool) == UpdateStrategy::Recreate);
            let name = names::stage(&spec.name, slot.ordinal, slot.layers);
            if recreates
                || pods.iter().any(|pod| pods::unschedulable(pod).is_some())
                || is_late(validated, &name, live, now)
            {
                return Switch::Go;
            }
            if !waiting.contains(&rank.layers) {
                waiting.push(rank.layers);
            }
        }
    }
    if waiting.is_empty() {
        Switch::Go
    } else {
        Switch::Hold { waiting }
    }
}

fn is_planned(validated: &Validated, serving: &RingStatus) -> bool {
    let planned = validated.manifest.ranks.iter().map(|rank| rank.layers);
    planned.eq(serving.windows.iter().map(|window| window.layers))
}

/// Whether a stage has had the time that the Ring gives it.
fn is_late(validated: &Validated, name: &str, live: &Live, now: Timestamp) -> bool {
    let patience = Duration::from_secs(
        validated
            .spec
            .ring
            .progress_deadline_seconds
            .max(0)
            .unsigned_abs()
            .into(),
    );
    let made = live.deployment(name).and_then(|made| made.metadata.creation_timestamp);
    made.is_some_and(|made| pods::since(made.0, now) > patience)
}
