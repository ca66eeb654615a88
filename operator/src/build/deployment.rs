//! One Deployment of one pod for each window: a stage on a lost node is replaced at once, and claims fence the old one.

use k8s_openapi::{
    api::apps::v1::{Deployment, DeploymentSpec, DeploymentStrategy, RollingUpdateDeployment},
    apimachinery::pkg::{apis::meta::v1::LabelSelector, util::intstr::IntOrString},
};
use kvasir_api::UpdateStrategy;

use super::{Error, Slot, pod};

/// Port on which a stage accepts its predecessor.
pub const EDGE_PORT: i32 = 7000;
/// Port on which rank 0 serves the API.
pub const API_PORT: i32 = 8080;
/// Port on which a stage says whether its window is loaded.
pub const HEALTH_PORT: i32 = 9090;

/// Name of the API's port.
pub(super) const API: &str = "api";
/// Name of the health's port.
pub(super) const HEALTH: &str = "health";

/// Versions of a pod template that are kept for `kubectl rollout`.
const HISTORY: i32 = 2;

pub(super) fn stage(slot: &Slot<'_>) -> Result<Deployment, Error> {
    let spec = slot.spec;
    let strategy = spec
        .pool(slot.pool)
        .map_or(UpdateStrategy::Rolling, |pool| spec.strategy(pool));
    Ok(Deployment {
        metadata: slot.meta(),
        spec: DeploymentSpec {
            replicas: Some(i32::from(!spec.ring.suspend)),
            selector: LabelSelector {
                match_labels: Some(slot.selector()),
                ..LabelSelector::default()
            },
            strategy: Some(update(strategy)),
            progress_deadline_seconds: Some(spec.ring.progress_deadline_seconds),
            revision_history_limit: Some(HISTORY),
            template: pod::template(slot)?,
            ..DeploymentSpec::default()
        },
        ..Deployment::default()
    })
}

fn update(strategy: UpdateStrategy) -> DeploymentStrategy {
    match strategy {
        UpdateStrategy::Rolling => DeploymentStrategy {
            type_: Some("RollingUpdate".to_owned()),
            // the next pod has its window before the old one goes
            rolling_update: Some(RollingUpdateDeployment {
                max_surge: Some(IntOrString::Int(1)),
                max_unavailable: Some(IntOrString::Int(0)),
            }),
        },
        UpdateStrategy::Recreate => DeploymentStrategy {
            type_: Some("Recreate".to_owned()),
            rolling_update: None,
        },
    }
}
