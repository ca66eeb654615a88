//! What a Ring leaves to volunteers, and on which terms.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::quantity;

/// What may be left to volunteers.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Market {
    /// Layers that may be left to the market; 0 for none.
    #[serde(default)]
    #[schemars(range(min = 0, max = 4096))]
    pub max_layers: i32,
    /// Size of an open window at most, in bytes of its tensors; one layer is the floor.
    #[serde(default = "default_max_window_bytes")]
    #[schemars(schema_with = "quantity::schema")]
    pub max_window_bytes: Quantity,
    /// Keeps rank 0 and the last rank, which see the text, in the cluster. Without it the ring earns nobody credit.
    #[serde(default = "default_trusted_ends")]
    pub trusted_ends: bool,
    /// Seconds without a heartbeat after which a claim ends and its window is offered again.
    #[serde(default = "default_claim_timeout")]
    #[schemars(range(min = 5, max = 3600))]
    pub claim_timeout_seconds: i32,
    /// Pay, in micro-credits per GiB of the window and million tokens.
    #[serde(default = "default_rate")]
    #[schemars(range(min = 0, max = 1_000_000_000_000i64))]
    pub rate: i64,
}

impl Default for Market {
    fn default() -> Self {
        Self {
            max_layers: 0,
            max_window_bytes: default_max_window_bytes(),
            trusted_ends: default_trusted_ends(),
            claim_timeout_seconds: default_claim_timeout(),
            rate: default_rate(),
        }
    }
}

/// A phone with 4 GiB holds such a window beside its cache.
fn default_max_window_bytes() -> Quantity {
    Quantity("2Gi".into())
}

fn default_trusted_ends() -> bool {
    true
}

fn default_claim_timeout() -> i32 {
    60
}

fn default_rate() -> i64 {
    1_000_000
}
