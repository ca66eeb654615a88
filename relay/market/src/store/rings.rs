//! Rings: each a row that is locked, changed by the rules and written back, and read from a copy.

use std::{
    collections::HashMap,
    sync::{Arc, MutexGuard, PoisonError},
};

use kvasir_wire::trust::PublicKey;
use sqlx::{AnyConnection, Row, Transaction, any::Any};
use tokio::sync::watch;

use super::{Millis, Store, StoreError, signed};
use crate::{
    rules::{Claimant, RingState, RuleError},
    types::{Demand, Offer},
};

/// Offers of so many rings at most: a node is enrolled for a few.
const MAX_OFFERS: i64 = 200;

/// A ring as it stands.
#[derive(Clone, Debug)]
pub struct View {
    /// the rules' own
    pub state: Arc<RingState>,
    /// when this was true
    pub now: Millis,
}

/// What this process remembers of a ring: its newest state, and who waits for a newer one.
#[derive(Debug)]
pub(super) struct Kept {
    version: i64,
    state: Option<Arc<RingState>>,
    changed: watch::Sender<()>,
}

impl Kept {
    fn new() -> Self {
        Kept {
            version: -1,
            state: None,
            changed: watch::Sender::new(()),
        }
    }
}

/// A ring's row while its transaction runs.
pub(super) struct Locked {
    ring: String,
    version: i64,
    /// what is stored; empty for a ring that is just being made
    text: String,
}

impl Locked {
    pub(super) fn state(&self) -> Result<RingState, StoreError> {
        parse(&self.ring, &self.text)
    }
}

impl Store {
    /// Runs a command of the rules on a ring, whole or not at all: its time, its state, the relays that are there. What
    /// it changes is stored even where it refuses, since time may have changed the ring.
    ///
    /// # Errors
    /// [`StoreError::UnknownRing`], [`StoreError::Rule`], or what went wrong with the database.
    pub async fn change<T>(
        &self,
        ring: &str,
        command: impl FnOnce(&mut RingState, Millis, &[String]) -> Result<T, RuleError>,
    ) -> Result<T, StoreError> {
        let mut transaction = self.begin().await?;
        let locked = self.lock(&mut transaction, ring).await?;
        let mut state = locked.state()?;
        let now = self.now(&mut transaction).await?;
        let relays = self.live_relays(&mut transaction, now).await?;
        let result = command(&mut state, now, &relays);
        self.finish(transaction, locked, state).await?;
        Ok(result?)
    }

    /// Takes the owner's demand; the first owner of a ring's name stays it.
    ///
    /// # Errors
    /// [`StoreError::Full`], [`StoreError::Rule`], or what went wrong with the database.
    pub async fn demand(&self, ring: &str, owner: PublicKey, demand: Demand) -> Result<(), StoreError> {
        let mut transaction = self.begin().await?;
        let made = sqlx::query(
            "INSERT INTO rings (ring, owner, version, state) VALUES ($1, $2, 0, '') ON CONFLICT (ring) DO NOTHING",
        )
        .bind(ring)
        .bind(owner.to_string())
        .execute(&mut *transaction)
        .await?;
        if made.rows_affected() > 0 {
            let row = sqlx::query("SELECT COUNT(*) AS rings FROM rings")
                .fetch_one(&mut *transaction)
                .await?;
            if row.try_get::<i64, _>("rings")? > i64::from(self.limits.rings) {
                return Err(StoreError::Full {
                    what: "rings",
                    limit: self.limits.rings,
                });
            }
        }
        let locked = self.lock(&mut transaction, ring).await?;
        let now = self.now(&mut transaction).await?;
        let reserved: Vec<PublicKey> = demand.reserved.values().copied().collect();
        let state = if locked.text.is_empty() {
            RingState::new(now, owner, demand)?
        } else {
            let mut state = locked.state()?;
            let relays = self.live_relays(&mut transaction, now).await?;
            state.demand(now, &relays, owner, demand)?;
            state
        };
        sqlx::query("DELETE FROM members WHERE ring = $1 AND reserved = 1")
            .bind(ring)
            .execute(&mut *transaction)
            .await?;
        for node in reserved {
            sqlx::query(
                "INSERT INTO members (node, ring, reserved) VALUES ($1, $2, 1) ON CONFLICT (node, ring) DO NOTHING",
            )
            .bind(node.to_string())
            .bind(ring)
            .execute(&mut *transaction)
            .await?;
        }
        self.finish(transaction, locked, state).await
    }

    /// A ring as it stands now: what is due by now has happened.
    ///
    /// # Errors
    /// [`StoreError::UnknownRing`], or what went wrong with the database.
    pub async fn look(&self, ring: &str) -> Result<View, StoreError> {
        let view = self.view(ring).await?;
        if view.state.next_deadline().is_none_or(|due| due > view.now) {
            return Ok(view);
        }
        self.change(ring, |state, now, relays| {
            state.settle(now, relays);
            Ok(())
        })
        .await?;
        self.view(ring).await
    }

    /// Wakes whenever this process changed the ring.
    pub fn subscribe(&self, ring: &str) -> watch::Receiver<()> {
        let mut copies = self.copies();
        let copy = copies.entry(ring.to_owned()).or_insert_with(Kept::new);
        copy.changed.subscribe()
    }

    /// The rings that a node is enrolled for, or that are an owner's, as the node sees them.
    ///
    /// # Errors
    /// What went wrong with the database.
    pub async fn offers(&self, node: PublicKey) -> Result<Vec<Offer>, StoreError> {
        let mut offers = Vec::new();
        for ring in self.rings_of(node).await? {
            let view = self.look(&ring).await?;
            offers.extend(view.state.offer(view.now, node));
        }
        Ok(offers)
    }

    /// A node that claims windows of `ring`: the memory it lends and what it holds of that in other rings.
    ///
    /// # Errors
    /// What went wrong with the database.
    pub async fn claimant(&self, node: PublicKey, ring: &str) -> Result<Claimant, StoreError> {
        let mut claimant = Claimant {
            node,
            // Nodes that the owner reserves windows for need not say.
            memory: self.memory_of(node).await?.unwrap_or(u64::MAX),
            unready_elsewhere: 0,
        };
        for other in self.rings_of(node).await?.iter().filter(|other| *other != ring) {
            let view = self.look(other).await?;
            let status = view.state.status(view.now, &[]);
            let held = status
                .claims
                .iter()
                .filter(|claim| claim.node == node && !claim.expired);
            for claim in held {
                let windows = status.windows.iter().filter(|window| claim.windows.holds(window.index));
                let memory = windows.map(|window| window.memory).fold(0, u64::saturating_add);
                claimant.memory = claimant.memory.saturating_sub(memory);
                claimant.unready_elsewhere += u32::from(!claim.ready());
            }
        }
        Ok(claimant)
    }

    async fn rings_of(&self, key: PublicKey) -> Result<Vec<String>, StoreError> {
        let rows = sqlx::query(
            "SELECT ring FROM members WHERE node = $1 UNION SELECT ring FROM rings WHERE owner = $1 ORDER BY ring LIMIT $2",
        )
        .bind(key.to_string())
        .bind(MAX_OFFERS)
        .fetch_all(&self.pool)
        .await?;
        let mut rings = Vec::with_capacity(rows.len());
        for row in rows {
            let ring: String = row.try_get("ring")?;
            rings.push(ring);
        }
        Ok(rings)
    }

    async fn view(&self, ring: &str) -> Result<View, StoreError> {
        let mut connection = self.pool.acquire().await?;
        let row = sqlx::query("SELECT version FROM rings WHERE ring = $1")
            .bind(ring)
            .fetch_optional(&mut *connection)
            .await?;
        let row = row.ok_or_else(|| unknown(ring))?;
        let version: i64 = row.try_get("version")?;
        let now = self.now(&mut connection).await?;
        if let Some(state) = self.copy_of(ring, version) {
            return Ok(View { state, now });
        }
        let row = sqlx::query("SELECT version, state FROM rings WHERE ring = $1")
            .bind(ring)
            .fetch_one(&mut *connection)
            .await?;
        let (version, text): (i64, String) = (row.try_get("version")?, row.try_get("state")?);
        let state = Arc::new(parse(ring, &text)?);
        self.keep(ring, version, &state);
        Ok(View { state, now })
    }

    /// Locks a ring's row until the transaction ends.
    pub(super) async fn lock(
        &self,
        transaction: &mut Transaction<'static, Any>,
        ring: &str,
    ) -> Result<Locked, StoreError> {
        // SQLite has no SELECT … FOR UPDATE; an update that changes nothing locks with both.
        let row = sqlx::query("UPDATE rings SET version = version WHERE ring = $1 RETURNING version, state")
            .bind(ring)
            .fetch_optional(&mut **transaction)
            .await?;
        let row = row.ok_or_else(|| unknown(ring))?;
        Ok(Locked {
            ring: ring.to_owned(),
            version: row.try_get("version")?,
            text: row.try_get("state")?,
        })
    }

    /// Writes the state back if it changed, commits, and tells who waits.
    pub(super) async fn finish(
        &self,
        mut transaction: Transaction<'static, Any>,
        locked: Locked,
        state: RingState,
    ) -> Result<(), StoreError> {
        let text = written(&locked.ring, &state)?;
        let changed = text != locked.text;
        if changed {
            sqlx::query("UPDATE rings SET version = $2, state = $3 WHERE ring = $1")
                .bind(&*locked.ring)
                .bind(locked.version + 1)
                .bind(text)
                .execute(&mut *transaction)
                .await?;
        }
        transaction.commit().await?;
        if changed {
            self.keep(&locked.ring, locked.version + 1, &Arc::new(state));
        }
        Ok(())
    }

    /// Leases start again, since this process's clock does.
    pub(super) async fn restart(&self) -> Result<(), StoreError> {
        let rows = sqlx::query("SELECT ring FROM rings").fetch_all(&self.pool).await?;
        for row in rows {
            let ring: String = row.try_get("ring")?;
            self.change(&ring, |state, now, _| {
                state.restart(now);
                Ok(())
            })
            .await?;
        }
        Ok(())
    }

    fn copies(&self) -> MutexGuard<'_, HashMap<String, Kept>> {
        // The map is whole after every step, so a lock that a panic poisoned still guards a sound one.
        self.copies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn copy_of(&self, ring: &str, version: i64) -> Option<Arc<RingState>> {
        let copies = self.copies();
        let copy = copies.get(ring).filter(|copy| copy.version == version)?;
        copy.state.clone()
    }

    /// Remembers the state of a version, unless a newer one is there, and wakes who waits.
    fn keep(&self, ring: &str, version: i64, state: &Arc<RingState>) {
        let mut copies = self.copies();
        let copy = copies.entry(ring.to_owned()).or_insert_with(Kept::new);
        if copy.version < version {
            (copy.version, copy.state) = (version, Some(state.clone()));
            copy.changed.send_replace(());
        }
    }
}

/// Of a ring's owner, for who may do what.
pub(super) async fn owner_of(connection: &mut AnyConnection, ring: &str) -> Result<Option<String>, StoreError> {
    let row = sqlx::query("SELECT owner FROM rings WHERE ring = $1")
        .bind(ring)
        .fetch_optional(connection)
        .await?;
    row.map(|row| Ok(row.try_get("owner")?)).transpose()
}

pub(super) fn unknown(ring: &str) -> StoreError {
    StoreError::UnknownRing { ring: ring.to_owned() }
}

/// For `signed` epochs in queries.
pub(super) fn epoch_number(epoch: u64) -> Result<i64, StoreError> {
    signed(epoch, "the epoch")
}

fn parse(ring: &str, text: &str) -> Result<RingState, StoreError> {
    serde_json::from_str(text).map_err(|error| unreadable(ring, error))
}

fn written(ring: &str, state: &RingState) -> Result<String, StoreError> {
    serde_json::to_string(state).map_err(|error| unreadable(ring, error))
}

fn unreadable(ring: &str, error: serde_json::Error) -> StoreError {
    StoreError::Stored {
        what: format!("ring {ring:?}"),
        source: error.into(),
    }
}
