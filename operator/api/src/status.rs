//! What the operator observed: [`RingStatus`]. Figures that change by the second (tokens per second, workers) are not
//! here but in metrics and at the relay.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Layers;

/// What the operator observed.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct RingStatus {
    /// Generation of the spec that this status answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// See the condition types of this API.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
    /// Namespace of the operator that serves the Ring.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operator: Option<String>,
    /// Rings that exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// Rings in which a lap went round.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i32>,
    /// `readyReplicas/replicas`, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_rings: Option<String>,
    /// Label selector of the pods of rank 0, for the scale subresource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// Hash of the plan that is being run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan_hash: Option<String>,
    /// Address of the API inside the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// Layers of the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layers: Option<i32>,
    /// Layers of the least covered ring that a ready stage holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub covered_layers: Option<i32>,
    /// `coveredLayers/layers`, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub covered: Option<String>,
    /// Stages of all rings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage_count: Option<i32>,
    /// Stages that are ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_stages: Option<i32>,
    /// `readyStages/stageCount`, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stages: Option<String>,
    /// What the model's prefix says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelStatus>,
    /// The rings, by ordinal.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["ordinal".into()]))]
    pub rings: Vec<RingInstance>,
}

/// What the model's prefix says.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ModelStatus {
    /// GGUF `general.architecture`.
    pub architecture: String,
    /// Layers of the trunk.
    pub trunk_layers: i32,
    /// MTP layers, which ride with the last rank.
    pub mtp_layers: i32,
    /// Width of a hidden state, in values.
    pub embedding_length: i32,
    /// Quantisation that most tensors have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_type: Option<String>,
    /// Bytes of all parts.
    pub size_bytes: i64,
    /// Hash of prefix, size and revision.
    pub identity: String,
}

/// One ring of the Ring's replicas.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct RingInstance {
    /// 0…replicas−1.
    pub ordinal: i32,
    /// Generation of its membership.
    pub epoch: i64,
    /// Whether a lap went round.
    pub ready: bool,
    /// Stages in ring order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<StageStatus>,
}

/// One stage of a ring.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct StageStatus {
    /// Its layers.
    pub layers: Layers,
    /// Whether the cluster or a volunteer holds it.
    pub placement: Placement,
    /// Pool that it runs on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// Pod that runs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_name: Option<String>,
    /// Node key of the volunteer that claimed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_id: Option<String>,
    /// Whether its window is loaded.
    pub ready: bool,
    /// Bytes of its window that it holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loaded_bytes: Option<i64>,
    /// Restarts of its containers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restarts: Option<i32>,
    /// Why it isn't ready, `PascalCase`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Who holds a stage.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// a pod of this cluster
    Cluster,
    /// a volunteer, or nobody yet
    Claimed,
}
