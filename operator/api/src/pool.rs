//! Where stages run: pools of cluster nodes, and windows placed by hand.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Affinity, ResourceRequirements, Toleration, TopologySpreadConstraint};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::quantity;

/// A set of cluster nodes on which stages may be placed.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Pool {
    /// Name, a DNS label.
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')")
        .message("a pool's name must be a DNS label: lower-case letters, digits and '-'"))]
    pub name: String,
    /// What computes.
    #[serde(default)]
    pub backend: Backend,
    /// Stages placed on this pool at most, in each ring.
    #[schemars(range(min = 1, max = 256))]
    pub max_stages: i32,
    /// Memory that one stage may take for weights, cache and buffers.
    #[schemars(schema_with = "quantity::schema")]
    pub memory: Quantity,
    /// Requests and limits of the stage's container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
    /// Labels that the nodes carry.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Taints that the stages tolerate.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub tolerations: Vec<Toleration>,
    /// Affinity of the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Affinity>,
    /// How the pods spread.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub topology_spread_constraints: Vec<TopologySpreadConstraint>,
    /// `RuntimeClass` of the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub runtime_class_name: Option<String>,
    /// Volume for the stage's own window; an `emptyDir` without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<Storage>,
    /// How a stage of this pool is replaced by a new version of itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update_strategy: Option<UpdateStrategy>,
    /// Part of a `PodTemplateSpec`, merged over the operator's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "raw_object")]
    pub pod_overrides: Option<serde_json::Map<String, serde_json::Value>>,
}

/// What computes.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "names of backends")]
pub enum Backend {
    /// the best that the device has and that passes its self-test
    #[default]
    Auto,
    Cpu,
    Cuda,
    Rocm,
    Vulkan,
    Metal,
    OpenCl,
    Hexagon,
}

/// How a stage is replaced by a new version of itself.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UpdateStrategy {
    /// the new pod has its window before the old one goes
    #[default]
    Rolling,
    /// the old pod goes first: for pools without room for one more
    Recreate,
}

/// Volume for a stage's own window.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Storage {
    /// Size of the volume.
    #[schemars(schema_with = "quantity::schema")]
    pub size: Quantity,
    /// `StorageClass`; the cluster's default without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub storage_class_name: Option<String>,
}

/// A window placed by hand.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!(has(self.pool) && self.open)").message("a window has a pool or is open, not both"))]
pub struct Window {
    /// Its layers.
    pub layers: Layers,
    /// Pool that it runs on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub pool: Option<String>,
    /// Leaves it to the market.
    #[serde(default)]
    pub open: bool,
}

/// Half-open range of layers `[start, end)`, counted in the whole model.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.start < self.end").message("layers.start must be below layers.end, which is not in the window"))]
pub struct Layers {
    /// First layer.
    #[schemars(range(min = 0, max = 4095))]
    pub start: i32,
    /// One past the last layer.
    #[schemars(range(min = 1, max = 4096))]
    pub end: i32,
}

/// Any object: a whole `PodTemplateSpec` here would swell the definition past what `kubectl apply` can annotate.
fn raw_object(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": true,
    })
}
