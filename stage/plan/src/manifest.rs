//! The rank manifest: the planner's placement of one ring, in ring order, and, once claimed, who holds each rank.
//!
//! JSON, camelCase, unknown fields refused. Rank 0 signs the exact bytes (see `kvasir-wire::trust`).

use serde::{Deserialize, Serialize};

/// Half-open range of layers `[start, end)`, counted in the whole model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerRange {
    /// first layer
    pub start: u32,
    /// one past the last layer
    pub end: u32,
}

impl LayerRange {
    /// Number of layers; 0 when the range is the wrong way round.
    pub fn len(self) -> u32 {
        self.end.saturating_sub(self.start)
    }

    /// Whether there is no layer in it.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }
}

impl std::fmt::Display for LayerRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}..{}", self.start, self.end)
    }
}

/// How hidden states travel on an edge. bf16 by default: plain f16 overflows (residuals reach 90,685 in Gemma 3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum BoundaryType {
    /// 4 bytes a value, exact
    F32,
    /// 2 bytes a value
    #[default]
    Bf16,
    /// blocks of 32 values: an f16 scale and 32 signed bytes, 34 bytes a block (ggml's `Q8_0`)
    #[serde(rename = "Q8_0")]
    Q8_0,
}

impl BoundaryType {
    /// Bytes of one hidden state of so many values.
    pub fn row_bytes(self, embedding_length: u32) -> u64 {
        let values = u64::from(embedding_length);
        match self {
            BoundaryType::F32 => values * 4,
            BoundaryType::Bf16 => values * 2,
            BoundaryType::Q8_0 => values.div_ceil(32) * 34,
        }
    }
}

/// How many laps a ring keeps in flight and how large one may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LapShape {
    /// laps in flight at most; every stage's inbox holds as many
    pub max_laps: u16,
    /// rows in one lap at most
    pub max_lap_tokens: u32,
}

impl Default for LapShape {
    /// Eight laps keep a ring of three to six stages busy; 256 rows are a prompt chunk that delays a decode lap by less
    /// than a second on a CPU.
    fn default() -> Self {
        Self {
            max_laps: 8,
            max_lap_tokens: 256,
        }
    }
}

/// What a stage checks before it joins: mixed weights run without an error, so two stages must mean one model.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ModelRef {
    /// name that the API serves it under
    pub name: String,
    /// GGUF `general.architecture`
    pub architecture: String,
    /// hash of prefix, size and revision: `kvasir_gguf::ModelIdentity` in its text form
    pub identity: String,
    /// width of a hidden state, in values
    pub embedding_length: u32,
    /// trunk layers (MTP layers not counted)
    pub layers: u32,
    /// tokens in the vocabulary
    pub vocabulary: u32,
    /// bytes of the prefix of each part, so that a stage can fetch it in one request; a hint, never trusted
    #[serde(default)]
    pub prefix_bytes: Vec<u64>,
}

/// Where the holder of a rank accepts its predecessor.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Link {
    /// the predecessor dials this `host:port` over TCP
    Direct {
        /// `host:port`
        address: String,
    },
    /// both ends dial this relay
    Relayed {
        /// the relay's public URL, without secrets
        url: String,
    },
}

/// The process that holds a rank. Keys are lower-case hex of 32 bytes, signatures of 64.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Holder {
    /// Ed25519 public key: the node's name
    pub node: String,
    /// X25519 public key of the Noise handshake
    pub noise_key: String,
    /// the node key's signature over `"kvasir noise key\0" ‖ noise_key`
    pub noise_key_signature: String,
    /// identity of the process, so that a copied key doesn't take turns
    pub instance: String,
    /// how the edge into this rank is reached
    pub link: Link,
}

/// One rank: a window, what it needs, and who holds it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rank {
    /// layers of the window
    pub layers: LayerRange,
    /// bytes of the tensors that this rank fetches
    pub bytes: u64,
    /// bytes of memory that this rank needs: weights, cache, buffers
    pub memory: u64,
    /// name of the pool or device that the planner chose; none for an open window
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<String>,
    /// who holds it; none until claimed
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<Holder>,
}

/// One ring: model, dimensions and ranks in ring order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RankManifest {
    /// the ring's name
    pub ring: String,
    /// generation of the membership; grows with every change
    pub epoch: u64,
    /// the model
    pub model: ModelRef,
    /// how hidden states travel
    pub boundary_type: BoundaryType,
    /// batch-invariant kernels: the same request gives the same text whatever shares its laps
    pub exact: bool,
    /// positions that one sequence may hold
    pub context_length: u32,
    /// sequences served at once
    pub sequences: u32,
    /// laps in flight at most; every stage's inbox holds as many
    pub max_laps: u16,
    /// rows in one lap at most
    pub max_lap_tokens: u32,
    /// ranks 0…n−1
    pub ranks: Vec<Rank>,
}

impl RankManifest {
    /// Hash of what the planner decided, as 16 hex digits: the same for every epoch and whoever holds the ranks.
    pub fn plan_hash(&self) -> String {
        let mut plan = self.clone();
        plan.epoch = 0;
        plan.ranks.iter_mut().for_each(|rank| rank.holder = None);
        // strings, numbers and lists: nothing that JSON can't hold
        let json = serde_json::to_vec(&plan).unwrap_or_default();
        blake3::hash(&json).to_hex()[..16].to_owned()
    }
}
