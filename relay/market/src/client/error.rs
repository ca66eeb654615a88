//! Why a call to the market failed.

use std::time::Duration;

use super::MAX_ANSWER;
use crate::types::OfferedWindow;

/// Why a call to the market failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// the file of further certificate authorities can't be used
    #[error("{} holds no certificate authorities in PEM", path.display())]
    Authorities {
        /// the file
        path: std::path::PathBuf,
        /// what is wrong with it
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// the address is no http or https URL
    #[error("the market's address {address:?} is not an http or https URL without credentials")]
    BadAddress {
        /// address as given, without what may be a secret in it
        address: String,
    },
    /// the HTTP client can't be set up
    #[error("can't set up an HTTP client for the market")]
    Setup(#[source] reqwest::Error),
    /// what is to be sent can't be written down or signed
    #[error("can't write the request to the market")]
    Request(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// no answer: worth another try
    #[error("the market at {market} does not answer")]
    Unreachable {
        /// scheme, host and port
        market: String,
        /// what failed
        #[source]
        source: reqwest::Error,
    },
    /// this machine's clock is off
    #[error("this machine's clock is {} s {} that of the market at {market}: set it",
        by.as_secs(), if *ahead { "ahead of" } else { "behind" })]
    ClockSkew {
        /// scheme, host and port
        market: String,
        /// by how much
        by: Duration,
        /// ahead or behind
        ahead: bool,
    },
    /// windows that somebody else has
    #[error("the market at {market} refuses ({reason}): {message}")]
    Taken {
        /// scheme, host and port
        market: String,
        /// the market's own word for it
        reason: String,
        /// the market's text
        message: String,
        /// what could be claimed instead
        open: Vec<OfferedWindow>,
    },
    /// the market says no
    #[error("the market at {market} refuses ({reason}): {message}")]
    Refused {
        /// scheme, host and port
        market: String,
        /// HTTP status
        status: u16,
        /// the market's own word for it
        reason: String,
        /// the market's text
        message: String,
        /// when the market wants to be called again, if it says so
        retry_after: Option<Duration>,
    },
    /// an answer longer than any real one
    #[error("the market at {market} answers with more than {MAX_ANSWER} bytes")]
    TooLong {
        /// scheme, host and port
        market: String,
    },
    /// the answer isn't what the call returns
    #[error("the market at {market} gives an answer that can't be read")]
    BadAnswer {
        /// scheme, host and port
        market: String,
        /// what is wrong with it
        #[source]
        source: serde_json::Error,
    },
}

impl ClientError {
    /// Stable `PascalCase` word for metrics, events and conditions; a refusal carries the market's own.
    pub fn reason(&self) -> &str {
        match self {
            ClientError::Authorities { .. } => "BadAuthorities",
            ClientError::BadAddress { .. } => "BadMarketAddress",
            ClientError::Setup(_) => "ClientSetupFailed",
            ClientError::Request(_) => "RequestNotWritten",
            ClientError::Unreachable { .. } => "MarketUnreachable",
            ClientError::ClockSkew { .. } => "ClockSkew",
            ClientError::Taken { reason, .. } | ClientError::Refused { reason, .. } => reason,
            ClientError::TooLong { .. } => "AnswerTooLong",
            ClientError::BadAnswer { .. } => "BadAnswer",
        }
    }

    /// Whether the same call may succeed later: the market was not reached, was busy or failed.
    pub fn retryable(&self) -> bool {
        match self {
            ClientError::Unreachable { .. } => true,
            ClientError::Refused { status, .. } => *status == 429 || *status >= 500,
            _ => false,
        }
    }
}
