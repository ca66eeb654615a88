//! What a ring wants, as its owner says it, and what the market makes of that: offers.

use std::collections::BTreeMap;

use kvasir_plan::{LayerRange, ModelRef, RankManifest};
use kvasir_wire::trust::{Delegation, PublicKey};
use serde::{Deserialize, Serialize};

/// Where a stage reads the model from. Servers that outsiders can read, without credentials, where windows are open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Source {
    /// a file of a Hugging Face repository
    #[serde(rename_all = "camelCase")]
    HuggingFace {
        /// `owner/name`
        repo: String,
        /// path of the file, of any part of a split model
        file: String,
        /// branch, tag or commit; `main` when absent
        #[serde(default, skip_serializing_if = "Option::is_none")]
        revision: Option<String>,
    },
    /// a file on any server that honours Range
    Http {
        /// http or https
        url: String,
    },
    /// a volume of the owner's cluster: no open window can be fetched from it
    #[serde(rename_all = "camelCase")]
    PersistentVolumeClaim {
        /// name of the claim
        claim_name: String,
        /// path in the volume
        path: String,
    },
    /// a path that the ring's own stages have: no open window can be fetched from it
    File {
        /// path on the stages' machines
        path: String,
    },
}

/// `PUT /v1/rings/{ring}`, signed by the owner: the windows that have to be held, and by whom they may be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Demand {
    /// the plan: its ranks are the windows, in ring order; no holders
    pub template: RankManifest,
    /// where stages read the model from
    pub source: Source,
    /// the nodes that may sign as rank 0
    #[serde(default)]
    pub delegations: Vec<Delegation>,
    /// windows that only one node may claim, by index
    #[serde(default)]
    pub reserved: BTreeMap<u32, PublicKey>,
    /// the first and the last window are held by the owner's nodes; without that the ring earns nothing
    pub trusted_ends: bool,
    /// requests that wait, when the owner knows
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queued: Option<u32>,
    /// seconds that a claim lasts without a report; 15 when absent
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_s: Option<u32>,
}

/// One ring of `GET /v1/rings`, as the node that asks sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Offer {
    /// the ring's name
    pub ring: String,
    /// the ring's owner: compare its fingerprint with the invite's
    pub owner: PublicKey,
    /// the model
    pub model: ModelRef,
    /// where its windows are read from
    pub source: Source,
    /// the plan, epoch 0, no holders: the dimensions that a window is loaded for
    pub template: RankManifest,
    /// every window in ring order
    pub windows: Vec<OfferedWindow>,
    /// windows that the node may claim at a time after claims of its that came to nothing; none when it had none such
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// One window of the coverage and demand map.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OfferedWindow {
    /// place in ring order
    pub index: u32,
    /// its layers
    pub layers: LayerRange,
    /// bytes to fetch
    pub bytes: u64,
    /// bytes of memory it takes
    pub memory: u64,
    /// whether it can be claimed
    pub state: WindowState,
    /// µcredit per million tokens, for who claims it now
    pub rate: u64,
    /// market time in ms since which nobody serves it; none while somebody does
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uncovered_since: Option<u64>,
}

/// Whether a window can be claimed by the node that asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum WindowState {
    /// it can be claimed, also when it is reserved for the node that asks
    Open,
    /// somebody fetches or loads it
    Claimed,
    /// somebody holds it, loaded
    Ready,
    /// nobody has it, and it is kept for another node
    Reserved,
}
