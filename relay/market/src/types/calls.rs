//! Bodies of the smaller calls: time, nodes, invites, positions, tickets, the ledger.

use kvasir_wire::trust::PublicKey;
use serde::{Deserialize, Serialize};

/// Answer to `GET /v1/time`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Time {
    /// milliseconds since 1970, as the market counts
    pub now: u64,
}

/// `POST /v1/nodes`: a node enrols.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Enrolment {
    /// what people call it
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// operating system and processor, such as `linux-x86_64`
    pub platform: String,
    /// bytes of memory that it lends
    pub memory: u64,
}

/// Answer to [`Enrolment`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enrolled {
    /// the node's key: its name from now on
    pub node: PublicKey,
}

/// `POST /v1/invites`, signed by the owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InviteRequest {
    /// the ring it is for
    pub ring: String,
    /// nodes that may enrol with it
    pub uses: u32,
    /// seconds that it is good for
    pub expires_in_s: u32,
}

/// `POST /v1/rings/{ring}/positions`, by rank 0: how many positions came home in an epoch. It is sent from the moment that
/// the epoch's first lap went round, which carries no positions; the ring is ready from then on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Positions {
    /// which epoch's
    pub epoch: u64,
    /// positions committed since that epoch began: prompt and generated alike, no replays, no rejected drafts
    pub committed: u64,
    /// requests that wait at rank 0
    #[serde(default)]
    pub queued: u32,
}

/// Answer to [`Positions`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Committed {
    /// the epoch's counter, as the ledger has it now
    pub committed: u64,
}

/// Which end of an edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum EdgeRole {
    /// the rank that the edge leaves
    Predecessor,
    /// the rank that it enters
    Successor,
}

/// `POST /v1/rings/{ring}/tickets`, by a node of the manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TicketRequest {
    /// epoch of the manifest
    pub epoch: u64,
    /// edge from this rank to the next
    pub edge: u32,
    /// which end of it
    pub role: EdgeRole,
}

/// One line of `GET /v1/ledger`: what a claim earned in an epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LedgerRow {
    /// the ring
    pub ring: String,
    /// the epoch
    pub epoch: u64,
    /// the claim
    pub claim: u64,
    /// who is paid
    pub node: PublicKey,
    /// µcredit per million tokens
    pub rate: u64,
    /// the epoch's counter
    pub committed: u64,
    /// µcredit
    pub earned: u64,
}

/// Answer to `GET /v1/ledger`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ledger {
    /// newest first
    pub rows: Vec<LedgerRow>,
    /// sum of all rows there are, also of those not listed, µcredit
    pub earned: u64,
}
