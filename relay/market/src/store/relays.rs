//! Relays that share the database, each with the public URL under which stages reach it.

use std::time::Duration;

use sqlx::{AnyConnection, Row};

use super::{Millis, Store, StoreError, signed};

/// A relay that has not renewed its row for so long gets no more edges.
pub const RELAY_SILENT_AFTER: Duration = Duration::from_secs(15);

impl Store {
    /// Says that the relay at `url` is there; said again and again while it is.
    ///
    /// # Errors
    /// [`StoreError::Query`].
    pub async fn announce(&self, url: &str) -> Result<(), StoreError> {
        let mut transaction = self.begin().await?;
        let now = self.now(&mut transaction).await?;
        sqlx::query(
            "INSERT INTO relays (url, seen) VALUES ($1, $2) ON CONFLICT (url) DO UPDATE SET seen = excluded.seen",
        )
        .bind(url)
        .bind(signed(now, "the time")?)
        .execute(&mut *transaction)
        .await?;
        transaction.commit().await?;
        Ok(())
    }

    /// Says that the relay at `url` takes no more edges.
    ///
    /// # Errors
    /// [`StoreError::Query`].
    pub async fn retire(&self, url: &str) -> Result<(), StoreError> {
        sqlx::query("DELETE FROM relays WHERE url = $1")
            .bind(url)
            .execute(&self.pool)
            .await?;
        Ok(())
    }

    /// Public URLs of the relays that are there.
    ///
    /// # Errors
    /// [`StoreError::Query`].
    pub async fn relays(&self) -> Result<Vec<String>, StoreError> {
        let mut connection = self.pool.acquire().await?;
        let now = self.now(&mut connection).await?;
        self.live_relays(&mut connection, now).await
    }

    pub(super) async fn live_relays(
        &self,
        connection: &mut AnyConnection,
        now: Millis,
    ) -> Result<Vec<String>, StoreError> {
        let since = now.saturating_sub(RELAY_SILENT_AFTER.as_millis() as u64);
        let rows = sqlx::query("SELECT url FROM relays WHERE seen >= $1 ORDER BY url")
            .bind(signed(since, "the time")?)
            .fetch_all(connection)
            .await?;
        rows.iter().map(|row| Ok(row.try_get("url")?)).collect()
    }
}
