//! Why the rules refuse.

use kvasir_plan::LayerRange;
use kvasir_wire::trust::{PublicKey, TrustError};

use super::absence::MISSES;
use crate::types::{OfferedWindow, Run};

/// Why a claim ended, or why a command is refused.
#[derive(Debug, thiserror::Error)]
pub enum RuleError {
    /// the owner took the ring off the market
    #[error("ring {ring:?} is off the market")]
    Withdrawn {
        /// the ring
        ring: String,
    },
    /// another owner's ring
    #[error("ring {ring:?} belongs to owner {owner}: choose another name")]
    ForeignOwner {
        /// the ring
        ring: String,
        /// whose it is
        owner: PublicKey,
    },
    /// the demand can't be
    #[error("the demand can't be served: {detail}")]
    BadDemand {
        /// what is wrong and what to do
        detail: String,
    },
    /// a delegation in the demand isn't the owner's
    #[error("a delegation in the demand doesn't hold")]
    BadDelegation {
        /// what is wrong with it
        #[source]
        source: TrustError,
    },
    /// there are no such windows
    #[error("there are no windows {windows}: the ring has {count}")]
    UnknownWindows {
        /// windows asked for
        windows: Run,
        /// windows there are
        count: u32,
    },
    /// somebody else has one of the windows, or it is kept for somebody else
    #[error("window {window} can't be had: choose among those that are open")]
    Taken {
        /// first of them
        window: u32,
        /// what the node could claim now
        open: Vec<OfferedWindow>,
    },
    /// more than the node has room for
    #[error("windows {windows} take {wanted} bytes of memory, the node lends {memory}")]
    TooLarge {
        /// windows asked for
        windows: Run,
        /// bytes that they take with what the node holds here
        wanted: u64,
        /// bytes that the node has for this ring
        memory: u64,
    },
    /// too much is claimed and not ready yet
    #[error(
        "{unready} claims are not ready yet and {failures} failed: this node may have {allowed} at a time, \
         wait until one is ready"
    )]
    Quota {
        /// claims, or windows after a failure, that the node is still fetching or loading
        unready: u32,
        /// failures since its last success
        failures: u32,
        /// how many it may have
        allowed: u32,
    },
    /// no such claim
    #[error("there is no claim {id}")]
    UnknownClaim {
        /// claim named
        id: u64,
    },
    /// the claim is another node's
    #[error("claim {id} is another node's")]
    ForeignClaim {
        /// claim named
        id: u64,
    },
    /// the lease ran out, the claim was left, or its window was withdrawn
    #[error("claim {id} is over: claim again")]
    Expired {
        /// claim named
        id: u64,
    },
    /// nothing moved for too long
    #[error("claim {id} was lost, its window made no progress for too long: claim again")]
    Stalled {
        /// claim named
        id: u64,
    },
    /// its stage never came to the relay
    #[error(
        "claim {id} was lost, its stage never came to the relay in {MISSES} epochs: see that this machine reaches the \
         relay, and then claim again"
    )]
    Absent {
        /// claim named
        id: u64,
    },
    /// the node lost a claim so, a while ago
    #[error(
        "this node never came to the relay and gets no window here for another {for_s} s: see that it reaches the relay"
    )]
    Paused {
        /// seconds left
        for_s: u64,
    },
    /// a newer process of the same node took over
    #[error("process {instance} was replaced by a newer one: stop it")]
    Fenced {
        /// the older process
        instance: String,
    },
    /// the window is another one
    #[error("the claim is layers {wanted}, not {reported}: fetch that window")]
    WrongWindow {
        /// layers of the claim
        wanted: LayerRange,
        /// layers that the stage reported
        reported: LayerRange,
    },
    /// the window was cut from another model
    #[error("the window was cut from model {reported}, the ring serves {wanted}: fetch it again")]
    WrongModel {
        /// identity that the ring serves
        wanted: String,
        /// identity that the stage reported
        reported: String,
    },
    /// the holder's keys don't belong together, or aren't the claim's
    #[error("the report's holder is not the node and process of the claim, or doesn't prove its Noise key")]
    BadHolder,
    /// an address that nobody can dial
    #[error("the report's address is not a host and port")]
    BadAddress,
    /// a text in the report or request is longer than any honest one
    #[error("{what} is longer than {limit} bytes")]
    TooLong {
        /// which text
        what: &'static str,
        /// bytes it may have
        limit: usize,
    },
    /// the manifest's signature or delegation doesn't hold
    #[error("the manifest is not signed by the ring's owner")]
    Unsigned {
        /// what is wrong with it
        #[source]
        source: TrustError,
    },
    /// what was signed is not what is proposed now
    #[error("the manifest of epoch {epoch} is not the one proposed: ask for the proposal again")]
    NotProposed {
        /// epoch of the refused manifest
        epoch: u64,
    },
    /// positions or a ticket for an epoch that is not
    #[error("epoch {epoch} is not the ring's: take the newest manifest")]
    UnknownEpoch {
        /// epoch named
        epoch: u64,
    },
    /// positions from somebody else than rank 0
    #[error("positions are reported by the node of rank 0 alone")]
    NotRank0,
    /// a counter that no ring reaches
    #[error("{committed} positions in one epoch can't be")]
    BadCounter {
        /// counter reported
        committed: u64,
    },
    /// the node isn't at that end of that edge
    #[error("the node is not at that end of edge {edge}")]
    NotAtEdge {
        /// edge named
        edge: u32,
    },
    /// the edge is dialled directly
    #[error("edge {edge} is direct: it needs no ticket")]
    NotRelayed {
        /// edge named
        edge: u32,
    },
}

impl RuleError {
    /// Stable `PascalCase` word for metrics, events and answers.
    pub fn reason(&self) -> &'static str {
        match self {
            RuleError::Withdrawn { .. } => "UnknownRing",
            RuleError::ForeignOwner { .. } => "ForeignOwner",
            RuleError::BadDemand { .. } => "BadDemand",
            RuleError::BadDelegation { .. } => "BadDelegation",
            RuleError::UnknownWindows { .. } => "UnknownWindows",
            RuleError::Taken { .. } => "Taken",
            RuleError::TooLarge { .. } => "TooLarge",
            RuleError::Quota { .. } => "Quota",
            RuleError::UnknownClaim { .. } => "UnknownClaim",
            RuleError::ForeignClaim { .. } => "ForeignClaim",
            RuleError::Expired { .. } => "Expired",
            RuleError::Stalled { .. } => "Stalled",
            RuleError::Absent { .. } => "Absent",
            RuleError::Paused { .. } => "Paused",
            RuleError::Fenced { .. } => "Fenced",
            RuleError::WrongWindow { .. } => "WrongWindow",
            RuleError::WrongModel { .. } => "WrongModel",
            RuleError::BadHolder => "BadHolder",
            RuleError::BadAddress => "BadAddress",
            RuleError::TooLong { .. } => "TooLong",
            RuleError::Unsigned { .. } => "Unsigned",
            RuleError::NotProposed { .. } => "NotProposed",
            RuleError::UnknownEpoch { .. } => "UnknownEpoch",
            RuleError::NotRank0 => "NotRank0",
            RuleError::BadCounter { .. } => "BadCounter",
            RuleError::NotAtEdge { .. } => "NotAtEdge",
            RuleError::NotRelayed { .. } => "NotRelayed",
        }
    }
}
