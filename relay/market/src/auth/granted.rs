//! Answers that carry a secret: their `Debug` leaves it out.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Answer to `POST /v1/invites`: the token is shown this once.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InviteGranted {
    /// what a node presents to enrol
    pub token: String,
}

/// Answer to `POST /v1/rings/{ring}/tickets`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TicketGranted {
    /// public URL of the one relay that serves the edge
    pub url: String,
    /// what that relay wants as a bearer token
    pub ticket: String,
    /// seconds that it is good for
    pub expires_in_s: u32,
}

impl fmt::Debug for InviteGranted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InviteGranted").finish_non_exhaustive()
    }
}

impl fmt::Debug for TicketGranted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TicketGranted")
            .field("url", &self.url)
            .field("expires_in_s", &self.expires_in_s)
            .finish_non_exhaustive()
    }
}
