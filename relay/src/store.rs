//! Where the market of this relay keeps its rings.

use std::{path::PathBuf, str::FromStr};

use anyhow::Context as _;
use kvasir_market::{Limits, Store};
use secrecy::SecretString;

/// Environment variable with the address of a PostgreSQL that several relays may share; it holds a password, so it is no
/// argument.
const DATABASE_URL: &str = "DATABASE_URL";

/// A database that is a file, or memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Database {
    Memory,
    File(PathBuf),
}

impl FromStr for Database {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            ":memory:" => Database::Memory,
            path => Database::File(path.into()),
        })
    }
}

impl Database {
    /// Opens PostgreSQL where `DATABASE_URL` names it, else this.
    pub(crate) async fn open(&self) -> anyhow::Result<Store> {
        let limits = Limits::default();
        let postgres = std::env::var(DATABASE_URL).ok().filter(|url| !url.is_empty());
        let store = match (postgres, self) {
            (Some(url), _) => Store::postgres(&SecretString::from(url), limits).await,
            (None, Database::Memory) => Store::memory(limits).await,
            (None, Database::File(path)) => Store::file(path, limits).await,
        };
        store.context("the market's database can't be used")
    }
}
