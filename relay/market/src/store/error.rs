//! Why the store refuses or fails.

use crate::{auth::AuthError, rules::RuleError};

/// Why a call to the store gives nothing.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// the database can't be opened, or its tables not be made
    #[error("can't open the market's database")]
    Open(#[source] sqlx::Error),
    /// its tables are of another version
    #[error("can't bring the market's database up to date")]
    Migrate(#[source] sqlx::migrate::MigrateError),
    /// a query failed
    #[error("the market's database fails")]
    Query(#[from] sqlx::Error),
    /// what is stored can't be read
    #[error("what the market's database holds of {what} can't be read: it may be a newer version's")]
    Stored {
        /// of what
        what: String,
        /// what is wrong with it
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// a number that doesn't fit
    #[error("{what} is beyond 64 bits")]
    TooBig {
        /// which
        what: &'static str,
    },
    /// no ring of that name
    #[error("the market keeps no ring named {ring:?}")]
    UnknownRing {
        /// the name
        ring: String,
    },
    /// no room for another
    #[error("the market has room for {limit} {what}, and all is taken: ask whoever runs it")]
    Full {
        /// rings, nodes or invites
        what: &'static str,
        /// how many there may be
        limit: u32,
    },
    /// who asks is not who may
    #[error(transparent)]
    Auth(#[from] AuthError),
    /// the rules refuse
    #[error(transparent)]
    Rule(#[from] RuleError),
}

impl StoreError {
    /// Stable `PascalCase` word for metrics, events and answers.
    pub fn reason(&self) -> &'static str {
        match self {
            StoreError::Open(_) | StoreError::Migrate(_) => "DatabaseUnusable",
            StoreError::Query(_) => "DatabaseFailed",
            StoreError::Stored { .. } => "StoredStateUnreadable",
            StoreError::TooBig { .. } => "NumberTooBig",
            StoreError::UnknownRing { .. } => "UnknownRing",
            StoreError::Full { .. } => "Full",
            StoreError::Auth(error) => error.reason(),
            StoreError::Rule(error) => error.reason(),
        }
    }
}
