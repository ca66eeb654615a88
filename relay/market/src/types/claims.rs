//! Claims: leases on runs of neighbouring windows.

use serde::{Deserialize, Serialize};

use super::OfferedWindow;

/// Half-open range of windows `[start, end)`, counted in ring order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Run {
    /// first window
    pub start: u32,
    /// one past the last window
    pub end: u32,
}

impl Run {
    /// Number of windows; 0 when the run is the wrong way round.
    pub fn len(self) -> u32 {
        self.end.saturating_sub(self.start)
    }

    /// Whether there is no window in it.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Whether `window` is in it.
    pub fn holds(self, window: u32) -> bool {
        (self.start..self.end).contains(&window)
    }

    /// Whether every window of `other` is in it.
    pub fn covers(self, other: Run) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    /// Whether the two share a window.
    pub fn overlaps(self, other: Run) -> bool {
        self.start < other.end && other.start < self.end
    }

    /// Its windows, in order.
    pub fn windows(self) -> std::ops::Range<u32> {
        self.start..self.end
    }
}

impl std::fmt::Display for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}..{}", self.start, self.end)
    }
}

/// `POST /v1/rings/{ring}/claims`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClaimRequest {
    /// windows wanted; next to the node's own claim they extend it, the very windows of an older process take it over
    pub windows: Run,
    /// identity of the process
    pub instance: String,
}

/// A node's lease on a run of windows, as the market grants it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Claim {
    /// its name in paths; a claim that is extended or taken over is a new claim
    pub id: u64,
    /// grows with every claim of the ring, and fences all that came before on these windows
    pub generation: u64,
    /// all its windows, those of the claim that it extends included
    pub windows: Run,
    /// µcredit per million tokens, frozen
    pub rate: u64,
    /// seconds that it lasts without a report
    pub lease_s: u32,
}

/// Answer to `PUT /v1/rings/{ring}/claims/{id}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Renewed {
    /// seconds from now that the claim lasts without another report
    pub lease_s: u32,
    /// what the node has earned in this ring so far, µcredit
    pub earned: u64,
}

/// Body of a 409 to a claim: a `Refusal` that also says what is still to be had.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TakenRefusal {
    /// stable `PascalCase` word
    pub reason: String,
    /// what is wrong and what to do
    pub message: String,
    /// windows that the node could claim now
    pub open: Vec<OfferedWindow>,
}
