//! What a user asks for: [`RingSpec`], and the root object [`Ring`] that kube derives from it.

use k8s_openapi::api::core::v1::LocalObjectReference;
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use crate::{Endpoint, ImagePullPolicy, Market, Model, Pool, Relay, RingStatus, UpdateStrategy, Window};

/// Longest name of a Ring: its children have 23 characters left to the 63 of a label value and a Service name.
pub const MAX_NAME: usize = 40;

/// What a user asks for: one model, served by `replicas` rings.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "kvasir.dev",
    version = "v1alpha1",
    kind = "Ring",
    plural = "rings",
    namespaced,
    status = "RingStatus",
    derive = "PartialEq",
    cel,
    category = "kvasir",
    doc = "One model served by ranks joined in a circle, each of which holds only a window of its layers.",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn(name = "Model", type_ = "string", json_path = ".spec.model.name"),
    printcolumn(
        name = "Rings",
        type_ = "string",
        json_path = ".status.readyRings",
        description = "rings that serve, of all rings"
    ),
    printcolumn(
        name = "Stages",
        type_ = "string",
        json_path = ".status.stages",
        description = "ready stages of all stages"
    ),
    printcolumn(
        name = "Covered",
        type_ = "string",
        json_path = ".status.covered",
        description = "covered layers of all layers, in the least covered ring"
    ),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].status"#,
        description = "whether all rings serve"
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].reason"#,
        priority = 1
    ),
    printcolumn(
        name = "Endpoint",
        type_ = "string",
        json_path = ".status.endpoint",
        priority = 1
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new("self.metadata.name.size() <= 40")
        .message("metadata.name must be 40 characters or fewer, so that the names of its pods and Services fit in 63"),
    validation = Rule::new("self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')")
        .message("metadata.name must start with a letter and hold lower-case letters, digits and '-' only, since it names a Service")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new(
        "!has(self.market) || self.market.maxLayers == 0 || (!has(self.model.credentialsSecretRef) && (has(self.model.source.huggingFace) || has(self.model.source.http)))"
    )
    .message("market.maxLayers above 0 needs a huggingFace or http source without credentials: outsiders fetch their windows themselves")
    .field_path(".market"),
    validation = Rule::new("!self.exact || !has(self.boundaryType) || self.boundaryType == 'F32'")
        .message("exact: true needs boundaryType F32, or none")
        .field_path(".boundaryType"),
    validation = Rule::new(
        "!has(self.windows) || self.windows.all(w, !has(w.pool) || (has(self.pools) && self.pools.exists(p, p.name == w.pool)))"
    )
    .message("every window's pool must be one of spec.pools")
    .field_path(".windows"),
    validation = Rule::new(
        "!has(self.windows) || !has(self.pools) || self.pools.size() == 0 || self.windows.all(w, has(w.pool) || w.open)"
    )
    .message("with pools, every window names its pool or is open")
    .field_path(".windows"),
    validation = Rule::new(
        "!has(self.windows) || !self.windows.exists(w, w.open) || (has(self.market) && self.market.maxLayers > 0)"
    )
    .message("an open window needs market.maxLayers above 0")
    .field_path(".windows"),
    validation = Rule::new(
        "!has(self.windows) || self.windows.size() == 0 || (has(self.market) && !self.market.trustedEnds) || !(self.windows[0].open || self.windows[self.windows.size() - 1].open)"
    )
    .message("the first and the last window can't be open unless market.trustedEnds is false: they see the text")
    .field_path(".windows")
)]
pub struct RingSpec {
    /// The model and where its file is.
    pub model: Model,
    /// Positions that one sequence may hold, prompt and answer together.
    #[serde(default = "default_context_length")]
    #[schemars(range(min = 1, max = 16_777_216))]
    pub context_length: i32,
    /// Sequences served at once; each takes cache for a whole context.
    #[serde(default = "default_sequences")]
    #[schemars(range(min = 1, max = 1024))]
    pub sequences: i32,
    /// Type of the cache of keys and values.
    #[serde(default)]
    pub cache_type: CacheType,
    /// Copies of the whole ring.
    #[serde(default = "default_replicas")]
    #[schemars(range(min = 0, max = 64))]
    pub replicas: i32,
    /// Stops all stages and releases all claims; the Ring stays.
    #[serde(default)]
    pub suspend: bool,
    /// Sets of cluster nodes on which stages may be placed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub pools: Vec<Pool>,
    /// Windows by hand, in ring order; without them the planner decides.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub windows: Vec<Window>,
    /// What may be left to volunteers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub market: Option<Market>,
    /// The relay that bridges edges and hosts the market; without it the one that the operator was installed with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relay: Option<Relay>,
    /// How a stage is replaced by a new version of itself; a pool may say otherwise.
    #[serde(default)]
    pub update_strategy: UpdateStrategy,
    /// Batch-invariant kernels and F32 boundaries: the same request gives the same text whatever else is served. Slower
    /// for prompts.
    #[serde(default)]
    pub exact: bool,
    /// How hidden states travel between stages; `Bf16` unless `exact`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boundary_type: Option<BoundaryType>,
    /// The OpenAI-compatible Service.
    #[serde(default)]
    pub endpoint: Endpoint,
    /// Seconds that a Ring may take to become ready before `Progressing` turns false.
    #[serde(default = "default_progress_deadline")]
    #[schemars(range(min = 1, max = 86_400))]
    pub progress_deadline_seconds: i32,
    /// Image of the stages; without it the operator's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub image: Option<String>,
    /// When the kubelet pulls the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_pull_policy: Option<ImagePullPolicy>,
    /// Secrets to pull the image with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub image_pull_secrets: Vec<LocalObjectReference>,
}

impl RingSpec {
    /// How hidden states travel: the choice, or else `F32` when exact and `Bf16` when not.
    pub fn boundary_type(&self) -> BoundaryType {
        self.boundary_type.unwrap_or(if self.exact {
            BoundaryType::F32
        } else {
            BoundaryType::Bf16
        })
    }

    /// The market's terms; those of a Ring that leaves it nothing when it says none.
    pub fn market(&self) -> Market {
        self.market.clone().unwrap_or_default()
    }
}

/// How hidden states travel between stages.
#[derive(Serialize, Deserialize, schemars::JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BoundaryType {
    /// 2 bytes a value
    #[default]
    Bf16,
    /// 4 bytes a value, exact
    F32,
    /// blocks of 32 values, 34 bytes each
    #[serde(rename = "Q8_0")]
    Q8_0,
}

/// Type of the cache of keys and values.
#[derive(Serialize, Deserialize, schemars::JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheType {
    /// 2 bytes a value
    #[default]
    F16,
    /// blocks of 32 values, 34 bytes each
    #[serde(rename = "Q8_0")]
    Q8_0,
}

fn default_context_length() -> i32 {
    4096
}

fn default_sequences() -> i32 {
    4
}

fn default_replicas() -> i32 {
    1
}

fn default_progress_deadline() -> i32 {
    600
}
