//! The stages of all rings, as pods and markets tell of them.

use k8s_openapi::{api::apps::v1::Deployment, jiff::Timestamp};
use kube::ResourceExt;
use kvasir_api::{Layers, Placement, RingInstance, StageStatus};
use kvasir_market::types::{RingStatus, StageState};
use kvasir_plan::{LayerRange, Rank};

use super::pods::{self, Slot, Trouble};
use crate::{dereference::Live, market::View, names, validate::Validated};

/// A stage and what is wrong with it.
#[derive(Clone, Debug)]
pub struct Stage {
    /// which
    pub slot: Slot,
    /// for the Ring's status
    pub told: StageStatus,
    /// what is wrong; none when it is ready
    pub trouble: Option<Trouble>,
    /// the scheduler's message and since when its pod has no node
    pub unscheduled: Option<(String, Option<Timestamp>)>,
}

impl Stage {
    /// How it is called in messages.
    pub fn name(&self) -> String {
        let Slot { ordinal, layers } = self.slot;
        match &self.told.pod_name {
            Some(pod) => format!("stage of layers {layers} of ring {ordinal} (pod {pod})"),
            None => format!("stage of layers {layers} of ring {ordinal}"),
        }
    }

    /// Whether the cluster runs it.
    pub fn is_ours(&self) -> bool {
        self.told.placement == Placement::Cluster
    }
}

/// Every stage of every ring, by ordinal and in ring order. What a market that doesn't answer said of its stages
/// `before` stands.
pub fn stages(validated: &Validated, views: &[View], live: &Live, before: &[RingInstance]) -> Vec<Vec<Stage>> {
    views
        .iter()
        .enumerate()
        .map(|(ordinal, view)| {
            let ranks = validated.manifest.ranks.iter();
            ranks
                .map(|rank| {
                    let slot = Slot {
                        ordinal: ordinal as u32,
                        layers: rank.layers,
                    };
                    match (&rank.placement, view) {
                        (Some(pool), _) => ours(validated, slot, rank, pool, live),
                        (None, View::Unreachable(_)) => {
                            as_before(slot, before).unwrap_or_else(|| theirs(slot, rank, None))
                        }
                        (None, _) => theirs(slot, rank, view.status()),
                    }
                })
                .collect()
        })
        .collect()
}

/// The rings as the Ring's status tells of them. What a market that doesn't answer said last stands: a ring that is up goes
/// on without it. While the plan before `holds`, its stages count, of which the market knows.
pub fn instances(stages: &[Vec<Stage>], views: &[View], before: &[RingInstance], holds: bool) -> Vec<RingInstance> {
    let rings = stages.iter().zip(views).enumerate();
    rings
        .map(|(ordinal, (stages, view))| {
            let ordinal = ordinal as i32;
            let before = before.iter().find(|ring| ring.ordinal == ordinal);
            let (epoch, ready) = match (view, before) {
                (View::Seen(status), _) => (
                    i64::try_from(status.epoch.unwrap_or(0)).unwrap_or(i64::MAX),
                    status.ready,
                ),
                (View::Unreachable(_), Some(before)) => (before.epoch, before.ready),
                _ => (0, false),
            };
            RingInstance {
                ordinal,
                epoch,
                // a pod that is gone is seen here before its neighbours have told the market, and a window that was
                // opened while no market answers is nobody's
                ready: ready && (holds || stages.iter().all(|stage| stage.told.ready)),
                stages: stages.iter().map(|stage| stage.told.clone()).collect(),
            }
        })
        .collect()
}

fn ours(validated: &Validated, slot: Slot, rank: &Rank, pool: &str, live: &Live) -> Stage {
    let spec = &validated.spec;
    let pods = pods::of(&spec.name, slot, &live.pods);
    let pod = pods.first().copied();
    let ready = pod.is_some_and(pods::is_ready);
    let trouble = match pod {
        _ if ready => None,
        Some(pod) => Some(pods::trouble(pod)),
        None => Some(unmade(
            live.deployment(&names::stage(&spec.name, slot.ordinal, slot.layers)),
            spec.ring.suspend,
        )),
    };
    Stage {
        slot,
        told: StageStatus {
            layers: layers(slot.layers),
            placement: Placement::Cluster,
            pool: Some(pool.to_owned()),
            pod_name: pod.map(ResourceExt::name_any),
            node_id: None,
            ready,
            loaded_bytes: ready.then(|| i64::try_from(rank.bytes).unwrap_or(i64::MAX)),
            restarts: pod.map(pods::restarts),
            reason: trouble.as_ref().map(|trouble| trouble.reason.clone()),
        },
        trouble,
        unscheduled: pod.filter(|_| !ready).and_then(pods::unschedulable),
    }
}

/// Why there is no pod.
fn unmade(deployment: Option<Deployment>, suspended: bool) -> Trouble {
    let trouble = |reason: &str, message: String, failing| Trouble {
        reason: reason.to_owned(),
        message,
        failing,
    };
    if suspended {
        return trouble("Suspended", String::new(), false);
    }
    let conditions = deployment
        .and_then(|deployment| deployment.status?.conditions)
        .unwrap_or_default();
    let refused = conditions.into_iter().find(|condition| {
        condition.type_.as_deref() == Some("ReplicaFailure") && condition.status.as_deref() == Some("True")
    });
    match refused {
        Some(refused) => trouble(
            refused.reason.as_deref().unwrap_or("FailedCreate"),
            refused.message.unwrap_or_default(),
            true,
        ),
        None => trouble("Starting", String::new(), false),
    }
}

/// A stage that the market found somebody for, or not yet.
fn theirs(slot: Slot, rank: &Rank, status: Option<&RingStatus>) -> Stage {
    let claims = status.map(|status| status.claims.as_slice()).unwrap_or_default();
    let holds = |layers: LayerRange| layers.start <= slot.layers.start && slot.layers.end <= layers.end;
    let mut holding: Vec<_> = claims
        .iter()
        .filter(|claim| !claim.expired && holds(claim.layers))
        .collect();
    holding.sort_by_key(|claim| !claim.ready());
    let claim = holding.first();
    let ready = claim.is_some_and(|claim| claim.ready());
    let reason = match claim.map(|claim| claim.report.as_ref().map(|report| &report.state)) {
        None => "Unclaimed",
        Some(None) => "Claimed",
        Some(Some(StageState::Fetching { .. })) => "Fetching",
        Some(Some(StageState::Loading)) => "Loading",
        Some(Some(StageState::Leaving)) => "Leaving",
        Some(Some(StageState::Ready { .. })) => "Ready",
    };
    let trouble = (!ready).then(|| Trouble {
        reason: reason.to_owned(),
        message: String::new(),
        failing: false,
    });
    Stage {
        slot,
        told: StageStatus {
            layers: layers(slot.layers),
            placement: Placement::Claimed,
            pool: None,
            pod_name: None,
            node_id: claim.map(|claim| claim.node.to_string()),
            ready,
            loaded_bytes: ready.then(|| i64::try_from(rank.bytes).unwrap_or(i64::MAX)),
            restarts: None,
            reason: trouble.as_ref().map(|trouble| trouble.reason.clone()),
        },
        trouble,
        unscheduled: None,
    }
}

/// A stage that the market had found somebody for when it was asked last.
fn as_before(slot: Slot, before: &[RingInstance]) -> Option<Stage> {
    let ring = before.iter().find(|ring| ring.ordinal == slot.ordinal as i32)?;
    let is_it = |told: &&StageStatus| told.placement == Placement::Claimed && told.layers == layers(slot.layers);
    let told = ring.stages.iter().find(is_it)?.clone();
    let trouble = told.reason.clone().map(|reason| Trouble {
        reason,
        message: String::new(),
        failing: false,
    });
    Some(Stage {
        slot,
        told,
        trouble,
        unscheduled: None,
    })
}

fn layers(range: LayerRange) -> Layers {
    Layers {
        start: range.start as i32,
        end: range.end as i32,
    }
}
