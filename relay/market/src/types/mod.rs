//! What owners, nodes and the market tell each other: demand, claims, reports, proposals, status.
//!
//! JSON, camelCase. Unknown fields are passed over, so that a newer stage can talk to an older market.

mod calls;
mod claims;
mod demand;
mod status;

use kvasir_plan::{Holder, LayerRange, RankManifest};
use kvasir_wire::trust::Delegation;
use serde::{Deserialize, Serialize};

pub use calls::{
    Committed, EdgeRole, Enrolled, Enrolment, InviteRequest, Ledger, LedgerRow, Positions, TicketRequest, Time,
};
pub use claims::{Claim, ClaimRequest, Renewed, Run, TakenRefusal};
pub use demand::{Demand, Offer, OfferedWindow, Source, WindowState};
pub use status::{ClaimStatus, RingStatus};

/// What a stage says of itself, again and again: who it is, which window it has, and how far it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StageReport {
    /// the process and its keys; the market chooses the link of a claim from `reach`
    pub holder: Holder,
    /// how its predecessor could reach it
    #[serde(default)]
    pub reach: Reach,
    /// its window, in layers of the whole model
    pub layers: LayerRange,
    /// identity of the model that the window was cut from, text form
    pub identity: String,
    /// how far it is
    pub state: StageState,
    /// newest epoch that this process knows of; 0 before the first
    #[serde(default)]
    pub epoch: u64,
    /// epoch of which this stage lost a link, if it did
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost_epoch: Option<u64>,
    /// why the link was lost
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost_reason: Option<String>,
    /// edge of `lost_epoch` that never came up for this stage, if that was it: from this rank to the next
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost_edge: Option<u32>,
    /// which end of `lost_edge` never came to the relay that it goes over, if that was it
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost_end: Option<LostEnd>,
}

/// The end of a relayed edge that never came, as a stage at the edge sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum LostEnd {
    /// the stage's own: it did not reach the relay
    Own,
    /// its neighbour's: the stage waited for it at the relay
    Other,
}

/// How a stage can be reached: dialled directly by who names the same network, else over a relay.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Reach {
    /// name of the network that its address is good in; none when it can't dial or be dialled
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    /// `host:port` where it accepts its predecessor; none when nobody can dial it
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
}

/// How far a stage is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "phase", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum StageState {
    /// its window is on the way
    Fetching {
        /// bytes fetched so far
        done: u64,
        /// bytes to fetch
        total: u64,
    },
    /// its window is complete and being loaded
    Loading,
    /// its window is loaded: it can join
    Ready {
        /// bytes that it fetched, over all its attempts
        fetched_bytes: u64,
        /// resident memory of the process, in bytes
        resident_bytes: u64,
        /// backend that really runs the window
        backend: String,
    },
    /// it will go once what it has is passed on
    Leaving,
}

/// The market's next manifest, for rank 0 to sign.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Proposal {
    /// next epoch, every holder filled in
    pub manifest: RankManifest,
    /// the owner's word that rank 0's node key may sign manifests of this ring
    pub delegation: Delegation,
}

/// Body of every refusal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Refusal {
    /// stable `PascalCase` word
    pub reason: String,
    /// what is wrong and what to do
    pub message: String,
}
