//! Published epochs, the positions that they carried home, and what that earned.

use kvasir_wire::trust::{PublicKey, SignedManifest};
use sqlx::{Row, any::AnyRow};

use super::{Store, StoreError, rings::epoch_number, signed, unsigned};
use crate::{
    rules::{EpochAccount, RuleError},
    types::{Committed, Ledger, LedgerRow, Positions},
};

/// Rows of one answer; the sums count all there are.
const MAX_ROWS: i64 = 1000;

impl Store {
    /// Publishes what rank 0 signed, and opens the epoch's account.
    ///
    /// # Errors
    /// [`StoreError::UnknownRing`], [`StoreError::Rule`], or what went wrong with the database.
    pub async fn publish(&self, ring: &str, manifest: SignedManifest) -> Result<(), StoreError> {
        let mut transaction = self.begin().await?;
        let locked = self.lock(&mut transaction, ring).await?;
        let mut state = locked.state()?;
        let now = self.now(&mut transaction).await?;
        let relays = self.live_relays(&mut transaction, now).await?;
        let result = state.publish(now, &relays, manifest);
        if let Ok(Some(account)) = &result {
            sqlx::query("INSERT INTO epochs (ring, epoch, account) VALUES ($1, $2, $3)")
                .bind(ring)
                .bind(epoch_number(account.epoch)?)
                .bind(written(account)?)
                .execute(&mut *transaction)
                .await?;
        }
        self.finish(transaction, locked, state).await?;
        result?;
        Ok(())
    }

    /// Takes rank 0's counter of an epoch and credits what it grew by, once.
    ///
    /// # Errors
    /// [`StoreError::UnknownRing`], [`StoreError::Rule`], or what went wrong with the database.
    pub async fn positions(&self, ring: &str, node: PublicKey, positions: Positions) -> Result<Committed, StoreError> {
        let mut transaction = self.begin().await?;
        let locked = self.lock(&mut transaction, ring).await?;
        let mut state = locked.state()?;
        let now = self.now(&mut transaction).await?;
        let epoch = positions.epoch;
        // A number that no column holds is no epoch that was ever published.
        let unknown = || RuleError::UnknownEpoch { epoch };
        let number = epoch_number(epoch).map_err(|_| unknown())?;
        let row = sqlx::query("SELECT account FROM epochs WHERE ring = $1 AND epoch = $2")
            .bind(ring)
            .bind(number)
            .fetch_optional(&mut *transaction)
            .await?;
        let mut account = parse(ring, &row.ok_or_else(unknown)?)?;
        let credits = state.positions(now, node, &mut account, positions)?;
        sqlx::query("UPDATE epochs SET account = $3 WHERE ring = $1 AND epoch = $2")
            .bind(ring)
            .bind(number)
            .bind(written(&account)?)
            .execute(&mut *transaction)
            .await?;
        for credit in credits {
            sqlx::query(
                "INSERT INTO ledger (ring, epoch, claim, node, rate, committed, earned, changed)
                 VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
                 ON CONFLICT (ring, epoch, claim) DO UPDATE SET committed = excluded.committed,
                    earned = ledger.earned + excluded.earned, changed = excluded.changed",
            )
            .bind(ring)
            .bind(number)
            .bind(signed(credit.claim, "the claim")?)
            .bind(credit.node.to_string())
            .bind(signed(credit.rate, "the rate")?)
            .bind(signed(credit.to, "the counter")?)
            .bind(signed(credit.amount, "the credit")?)
            .bind(signed(now, "the time")?)
            .execute(&mut *transaction)
            .await?;
        }
        let committed = account.committed;
        // Also of claims that the last positions didn't bring another whole µcredit.
        sqlx::query("UPDATE ledger SET committed = $3 WHERE ring = $1 AND epoch = $2")
            .bind(ring)
            .bind(number)
            .bind(signed(committed, "the counter")?)
            .execute(&mut *transaction)
            .await?;
        self.finish(transaction, locked, state).await?;
        Ok(Committed { committed })
    }

    /// What a node has earned in a ring, µcredit.
    ///
    /// # Errors
    /// What went wrong with the database.
    pub async fn earned(&self, ring: &str, node: PublicKey) -> Result<u64, StoreError> {
        let row = sqlx::query(
            "SELECT CAST(COALESCE(SUM(earned), 0) AS BIGINT) AS earned FROM ledger WHERE node = $1 AND ring = $2",
        )
        .bind(node.to_string())
        .bind(ring)
        .fetch_one(&self.pool)
        .await?;
        unsigned(row.try_get("earned")?, "what was earned")
    }

    /// The rows of a node, and of the rings of an owner.
    ///
    /// # Errors
    /// What went wrong with the database.
    pub async fn ledger(&self, key: PublicKey) -> Result<Ledger, StoreError> {
        let mut transaction = self.begin().await?;
        let rows = sqlx::query(
            "SELECT ring, epoch, claim, node, rate, committed, earned FROM ledger
             WHERE node = $1 OR ring IN (SELECT ring FROM rings WHERE owner = $1)
             ORDER BY changed DESC, epoch DESC, ring, claim LIMIT $2",
        )
        .bind(key.to_string())
        .bind(MAX_ROWS)
        .fetch_all(&mut *transaction)
        .await?;
        let sum = sqlx::query(
            "SELECT CAST(COALESCE(SUM(earned), 0) AS BIGINT) AS earned FROM ledger
             WHERE node = $1 OR ring IN (SELECT ring FROM rings WHERE owner = $1)",
        )
        .bind(key.to_string())
        .fetch_one(&mut *transaction)
        .await?;
        transaction.commit().await?;
        Ok(Ledger {
            rows: rows.iter().map(row).collect::<Result<_, _>>()?,
            earned: unsigned(sum.try_get("earned")?, "what was earned")?,
        })
    }
}

fn row(row: &AnyRow) -> Result<LedgerRow, StoreError> {
    let number = |column: &'static str| unsigned(row.try_get(column)?, column);
    let (ring, node): (String, String) = (row.try_get("ring")?, row.try_get("node")?);
    Ok(LedgerRow {
        epoch: number("epoch")?,
        claim: number("claim")?,
        node: node
            .parse()
            .map_err(|error: kvasir_wire::trust::KeyError| stored(&ring, error.into()))?,
        rate: number("rate")?,
        committed: number("committed")?,
        earned: number("earned")?,
        ring,
    })
}

fn parse(ring: &str, row: &AnyRow) -> Result<EpochAccount, StoreError> {
    let text: String = row.try_get("account")?;
    serde_json::from_str(&text).map_err(|error| stored(ring, error.into()))
}

fn written(account: &EpochAccount) -> Result<String, StoreError> {
    serde_json::to_string(account).map_err(|error| stored("", error.into()))
}

fn stored(ring: &str, source: Box<dyn std::error::Error + Send + Sync>) -> StoreError {
    StoreError::Stored {
        what: format!("the ledger of ring {ring:?}"),
        source,
    }
}
