//! The market's memory: SQLite, in a file or in memory, or PostgreSQL, with the same tables and queries.
//!
//! A ring is one row. To change it is one transaction: lock the row, let the rules work on the state, write it back, and
//! commit before anybody is answered. Reads come from a copy that is as new as the row's version says.
//!
//! - `rings`: demand, commands and reads of rings
//! - `ledger`: published epochs, positions, sums
//! - `members`: nodes, invites, nonces
//! - `relays`: relays that share the database
//!
//! With PostgreSQL the time of leases is the database's, so that several relays agree. With SQLite it is this process's
//! own, which no change of the system's clock moves, and leases start again at full length when the process starts.

mod error;
mod ledger;
mod members;
mod relays;
mod rings;

use std::{
    collections::HashMap,
    fmt,
    path::Path,
    sync::Mutex,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use reqwest::Url;
use secrecy::{ExposeSecret, SecretString};
use sqlx::{
    AnyConnection, AnyPool, Row, SqlSafeStr, Transaction,
    any::{Any, AnyPoolOptions, install_default_drivers},
    migrate::{Migration, MigrationType, Migrator},
};

pub use error::StoreError;
pub use members::Need;
pub use relays::RELAY_SILENT_AFTER;
pub use rings::View;

use crate::{rules::Millis, ticket::TicketKey};

/// Connections to PostgreSQL.
const CONNECTIONS: u32 = 16;
/// A call that gets no connection for so long fails.
const ACQUIRE_WITHIN: Duration = Duration::from_secs(8);

/// How much one market keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// rings, also withdrawn ones
    pub rings: u32,
    /// enrolled nodes
    pub nodes: u32,
    /// invites that are neither used up nor expired, for one ring
    pub invites: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            rings: 1000,
            nodes: 100_000,
            invites: 1000,
        }
    }
}

/// The market's database.
pub struct Store {
    pool: AnyPool,
    clock: Clock,
    limits: Limits,
    copies: Mutex<HashMap<String, rings::Kept>>,
}

/// Whose time it is.
#[derive(Clone, Copy, Debug)]
enum Clock {
    /// PostgreSQL's
    Database,
    /// this process's: the system's at its start, and what went by since
    Process { start: Millis, at: Instant },
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("clock", &self.clock)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

impl Store {
    /// A store that ends with this process.
    ///
    /// # Errors
    /// [`StoreError::Open`] or [`StoreError::Migrate`].
    pub async fn memory(limits: Limits) -> Result<Self, StoreError> {
        Store::open("sqlite::memory:", limits).await
    }

    /// A store in a file, made when it isn't there. One process uses it at a time.
    ///
    /// # Errors
    /// [`StoreError::Open`] or [`StoreError::Migrate`].
    pub async fn file(path: &Path, limits: Limits) -> Result<Self, StoreError> {
        let unusable = |error: std::io::Error| StoreError::Open(sqlx::Error::Io(error));
        let path = std::path::absolute(path).map_err(unusable)?;
        private(&path).map_err(unusable)?;
        let url = Url::from_file_path(&path).map_err(|()| unusable(std::io::ErrorKind::InvalidFilename.into()))?;
        let url = format!("sqlite://{}?mode=rwc", url.path());
        Store::open(&url, limits).await
    }

    /// A store in PostgreSQL, which several relays may share: `postgres://…`, usually from `DATABASE_URL`. It holds a
    /// password, as a rule, and is shown nowhere.
    ///
    /// # Errors
    /// [`StoreError::Open`] or [`StoreError::Migrate`].
    pub async fn postgres(url: &SecretString, limits: Limits) -> Result<Self, StoreError> {
        let url = url.expose_secret();
        if url.starts_with("postgres://") || url.starts_with("postgresql://") {
            Store::open(url, limits).await
        } else {
            let detail = "the database's address must begin with postgres://";
            Err(StoreError::Open(sqlx::Error::Configuration(detail.into())))
        }
    }

    async fn open(url: &str, limits: Limits) -> Result<Self, StoreError> {
        install_default_drivers();
        let sqlite = url.starts_with("sqlite:");
        let clock = if sqlite {
            Clock::Process {
                start: wall_clock(),
                at: Instant::now(),
            }
        } else {
            Clock::Database
        };
        let mut options = AnyPoolOptions::new().acquire_timeout(ACQUIRE_WITHIN);
        options = if sqlite {
            // SQLite takes one writer at a time anyway, and a database in memory lives as long as its connection.
            options
                .min_connections(1)
                .max_connections(1)
                .idle_timeout(None)
                .max_lifetime(None)
                .test_before_acquire(false)
                .after_connect(|connection, _| Box::pin(durable(connection)))
        } else {
            options.max_connections(CONNECTIONS)
        };
        let pool = options.connect(url).await.map_err(StoreError::Open)?;
        migrator().run(&pool).await.map_err(StoreError::Migrate)?;
        let store = Store {
            pool,
            clock,
            limits,
            copies: Mutex::default(),
        };
        if sqlite {
            store.restart().await?;
        }
        Ok(store)
    }

    /// Whether other relays may be changing it too.
    pub fn shared(&self) -> bool {
        matches!(self.clock, Clock::Database)
    }

    /// The key that edge tickets are made with, the same for all relays of this store.
    ///
    /// # Errors
    /// [`StoreError::Query`], [`StoreError::Stored`].
    pub async fn ticket_key(&self) -> Result<TicketKey, StoreError> {
        const NAME: &str = "ticket-key";
        let unreadable = |source: Box<dyn std::error::Error + Send + Sync>| StoreError::Stored {
            what: "the key of edge tickets".to_owned(),
            source,
        };
        let fresh = TicketKey::generate().map_err(|error| unreadable(error.into()))?;
        let mut transaction = self.begin().await?;
        sqlx::query("INSERT INTO settings (name, value) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING")
            .bind(NAME)
            .bind(blake3::Hash::from_bytes(fresh.to_bytes()).to_hex().to_string())
            .execute(&mut *transaction)
            .await?;
        let row = sqlx::query("SELECT value FROM settings WHERE name = $1")
            .bind(NAME)
            .fetch_one(&mut *transaction)
            .await?;
        transaction.commit().await?;
        let text: String = row.try_get("value")?;
        let bytes = blake3::Hash::from_hex(&text).map_err(|error| unreadable(error.into()))?;
        Ok(TicketKey::from_bytes(*bytes.as_bytes()))
    }

    /// Forgets what no longer counts: old nonces, spent invites, relays that are gone.
    ///
    /// # Errors
    /// [`StoreError::Query`].
    pub async fn sweep(&self) -> Result<(), StoreError> {
        let mut transaction = self.begin().await?;
        let now = self.now(&mut transaction).await?;
        let now = signed(now, "the time")?;
        for forget in [
            "DELETE FROM nonces WHERE expires < $1",
            "DELETE FROM invites WHERE expires < $1 OR uses = 0",
        ] {
            sqlx::query(forget).bind(now).execute(&mut *transaction).await?;
        }
        sqlx::query("DELETE FROM relays WHERE seen < $1")
            .bind(now - 10 * RELAY_SILENT_AFTER.as_millis() as i64)
            .execute(&mut *transaction)
            .await?;
        transaction.commit().await?;
        Ok(())
    }

    /// A transaction that may write from its first statement on.
    async fn begin(&self) -> Result<Transaction<'static, Any>, StoreError> {
        let begin = if self.shared() { "BEGIN" } else { "BEGIN IMMEDIATE" };
        Ok(self.pool.begin_with(begin).await?)
    }

    /// The time of leases.
    async fn now(&self, connection: &mut AnyConnection) -> Result<Millis, StoreError> {
        match self.clock {
            Clock::Process { start, at } => Ok(start + at.elapsed().as_millis() as u64),
            Clock::Database => {
                let row = sqlx::query("SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT) AS now")
                    .fetch_one(connection)
                    .await?;
                unsigned(row.try_get("now")?, "the time")
            }
        }
    }
}

/// Makes the file where there is none, for its owner's eyes: it holds the key of edge tickets. `SQLite`'s own files beside
/// it get the same permissions.
fn private(path: &Path) -> std::io::Result<()> {
    let mut options = std::fs::OpenOptions::new();
    options.create(true).append(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path).map(drop)
}

/// An answer that was given outlives a crash of the process and of the machine.
async fn durable(connection: &mut AnyConnection) -> Result<(), sqlx::Error> {
    sqlx::raw_sql("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA busy_timeout = 5000;")
        .execute(connection)
        .await
        .map(drop)
}

fn migrator() -> Migrator {
    let market = include_str!("../../migrations/0001_market.sql");
    Migrator::with_migrations(vec![Migration::new(
        1,
        "market".into(),
        MigrationType::Simple,
        market.into_sql_str(),
        false,
    )])
}

/// The system's clock, in milliseconds since 1970.
pub(crate) fn wall_clock() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_millis() as u64)
}

/// As the database has it.
fn signed(number: u64, what: &'static str) -> Result<i64, StoreError> {
    i64::try_from(number).map_err(|_| StoreError::TooBig { what })
}

/// As the rules have it.
fn unsigned(number: i64, what: &'static str) -> Result<u64, StoreError> {
    u64::try_from(number).map_err(|_| StoreError::TooBig { what })
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[tokio::test]
    async fn a_database_file_is_for_its_owners_eyes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("market.sqlite");
        let store = Store::file(&path, Limits::default()).await.unwrap();
        store.ticket_key().await.unwrap();
        for entry in std::fs::read_dir(folder.path()).unwrap() {
            let entry = entry.unwrap();
            let mode = entry.metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o077, 0, "{:?}", entry.file_name());
        }
    }
}
