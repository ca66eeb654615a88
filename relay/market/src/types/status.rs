//! A ring as the market sees it.

use kvasir_plan::LayerRange;
use kvasir_wire::trust::PublicKey;
use serde::{Deserialize, Serialize};

use super::{OfferedWindow, Run, StageReport, StageState};

/// Answer to `GET /v1/rings/{ring}/status`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RingStatus {
    /// the ring's name
    pub ring: String,
    /// its owner
    pub owner: PublicKey,
    /// epoch of the published manifest, if there is one
    pub epoch: Option<u64>,
    /// epoch that rank 0 has yet to sign, if one is proposed
    pub proposed: Option<u64>,
    /// every layer is covered by the processes of the published manifest, none of them reports a lost link, and rank 0 has
    /// reported that a lap went round in that epoch
    pub ready: bool,
    /// layers that nobody serves, neighbours joined; empty when every layer is covered
    pub uncovered: Vec<LayerRange>,
    /// why no manifest is proposed though one is due, if so
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<String>,
    /// every window, in ring order
    pub windows: Vec<OfferedWindow>,
    /// every claim, in ring order; one that waits to replace another comes after it
    pub claims: Vec<ClaimStatus>,
}

/// One claim as the market sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClaimStatus {
    /// its name in paths
    pub id: u64,
    /// its generation
    pub generation: u64,
    /// who holds it
    pub node: PublicKey,
    /// the process
    pub instance: String,
    /// its windows
    pub windows: Run,
    /// their layers
    pub layers: LayerRange,
    /// µcredit per million tokens
    pub rate: u64,
    /// claim that goes on until this one is ready, if there is one
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaces: Option<u64>,
    /// latest report; none until the process has reported
    pub report: Option<StageReport>,
    /// its lease is over
    pub expired: bool,
}

impl ClaimStatus {
    /// Ready, and heard of lately.
    pub fn ready(&self) -> bool {
        !self.expired && matches!(&self.report, Some(report) if matches!(report.state, StageState::Ready { .. }))
    }
}
