//! Who may ask: nodes and what they enrolled with, invites, and the nonces of signed requests.

use kvasir_wire::trust::PublicKey;
use sqlx::{AnyConnection, Row};

use super::{
    Store, StoreError,
    rings::{owner_of, unknown},
    signed, unsigned,
};
use crate::{
    auth::{AuthError, Credentials, InviteToken, NONCE_KEPT, StoredInvite},
    types::{Enrolment, InviteRequest},
};

/// Whom a call is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need<'a> {
    /// the owner of a ring
    Owner(&'a str),
    /// the owner of a ring, or whoever makes it
    OwnerToBe(&'a str),
    /// a node that may hold windows of a ring
    Member(&'a str),
    /// such a node, or the ring's owner
    MemberOrOwner(&'a str),
    /// a node of any ring, or an owner of one
    Known,
}

impl Store {
    /// Lets a signed request through, once: its signer is whom the call is for, and its nonce was never seen. The
    /// signature and the clock were checked before.
    ///
    /// # Errors
    /// [`StoreError::Auth`], [`StoreError::UnknownRing`], or what went wrong with the database.
    pub async fn admit(&self, credentials: &Credentials, need: Need<'_>) -> Result<(), StoreError> {
        let mut transaction = self.begin().await?;
        may(&mut transaction, credentials.key, need).await?;
        self.spend_nonce(&mut transaction, credentials).await?;
        transaction.commit().await?;
        Ok(())
    }

    /// Makes an invite to a ring.
    ///
    /// # Errors
    /// [`StoreError::Full`], or what went wrong with the database.
    pub async fn invite(&self, token: &InviteToken, request: &InviteRequest) -> Result<(), StoreError> {
        let mut transaction = self.begin().await?;
        let now = signed(self.now(&mut transaction).await?, "the time")?;
        let row = sqlx::query("SELECT COUNT(*) AS invites FROM invites WHERE ring = $1 AND expires >= $2 AND uses > 0")
            .bind(&*request.ring)
            .bind(now)
            .fetch_one(&mut *transaction)
            .await?;
        if row.try_get::<i64, _>("invites")? >= i64::from(self.limits.invites) {
            return Err(StoreError::Full {
                what: "invites to one ring",
                limit: self.limits.invites,
            });
        }
        let StoredInvite { id, hash } = token.stored();
        sqlx::query("INSERT INTO invites (id, hash, ring, uses, expires) VALUES ($1, $2, $3, $4, $5)")
            .bind(id)
            .bind(hash)
            .bind(&*request.ring)
            .bind(i64::from(request.uses))
            .bind(now + i64::from(request.expires_in_s) * 1000)
            .execute(&mut *transaction)
            .await?;
        transaction.commit().await?;
        Ok(())
    }

    /// Enrols the signer of a request with an invite. A node that is enrolled already stays so, and uses nothing up.
    ///
    /// # Errors
    /// [`StoreError::Auth`], [`StoreError::Full`], or what went wrong with the database.
    pub async fn enrol(
        &self,
        credentials: &Credentials,
        token: &InviteToken,
        enrolment: &Enrolment,
    ) -> Result<(), StoreError> {
        let mut transaction = self.begin().await?;
        let now = signed(self.now(&mut transaction).await?, "the time")?;
        // Locks the invite, so that its last use is one node's.
        let invite = sqlx::query("UPDATE invites SET uses = uses WHERE id = $1 RETURNING hash, ring, uses, expires")
            .bind(token.id())
            .fetch_optional(&mut *transaction)
            .await?;
        let invite = invite.ok_or(AuthError::UnknownInvite)?;
        let stored = StoredInvite {
            id: token.id().to_owned(),
            hash: invite.try_get("hash")?,
        };
        if !token.matches(&stored) {
            return Err(AuthError::UnknownInvite.into());
        }
        self.spend_nonce(&mut transaction, credentials).await?;
        let (ring, node): (String, String) = (invite.try_get("ring")?, credentials.key.to_string());
        if !self.member(&mut transaction, &node, &ring).await? {
            let (uses, expires): (i64, i64) = (invite.try_get("uses")?, invite.try_get("expires")?);
            if uses <= 0 || expires < now {
                return Err(AuthError::InviteSpent.into());
            }
            sqlx::query("UPDATE invites SET uses = uses - 1 WHERE id = $1")
                .bind(token.id())
                .execute(&mut *transaction)
                .await?;
            sqlx::query(
                "INSERT INTO members (node, ring, reserved) VALUES ($1, $2, 0)
                 ON CONFLICT (node, ring) DO UPDATE SET reserved = 0",
            )
            .bind(&*node)
            .bind(&*ring)
            .execute(&mut *transaction)
            .await?;
        }
        // More memory than a column holds is as much as any.
        let memory = i64::try_from(enrolment.memory).unwrap_or(i64::MAX);
        sqlx::query(
            "INSERT INTO nodes (node, name, platform, memory, enrolled) VALUES ($1, $2, $3, $4, $5)
             ON CONFLICT (node) DO UPDATE SET name = excluded.name, platform = excluded.platform,
                memory = excluded.memory",
        )
        .bind(&*node)
        .bind(enrolment.name.as_deref().unwrap_or_default())
        .bind(&*enrolment.platform)
        .bind(memory)
        .bind(now)
        .execute(&mut *transaction)
        .await?;
        let row = sqlx::query("SELECT COUNT(*) AS nodes FROM nodes")
            .fetch_one(&mut *transaction)
            .await?;
        if row.try_get::<i64, _>("nodes")? > i64::from(self.limits.nodes) {
            return Err(StoreError::Full {
                what: "nodes",
                limit: self.limits.nodes,
            });
        }
        transaction.commit().await?;
        Ok(())
    }

    /// Bytes of memory that a node lends, as it said; none when it never enrolled.
    pub(super) async fn memory_of(&self, node: PublicKey) -> Result<Option<u64>, StoreError> {
        let row = sqlx::query("SELECT memory FROM nodes WHERE node = $1")
            .bind(node.to_string())
            .fetch_optional(&self.pool)
            .await?;
        row.map(|row| unsigned(row.try_get("memory")?, "a node's memory"))
            .transpose()
    }

    /// Enrolled by an invite, not only for a window that is kept for it.
    async fn member(&self, connection: &mut AnyConnection, node: &str, ring: &str) -> Result<bool, StoreError> {
        let row = sqlx::query("SELECT node FROM members WHERE node = $1 AND ring = $2 AND reserved = 0")
            .bind(node)
            .bind(ring)
            .fetch_optional(connection)
            .await?;
        Ok(row.is_some())
    }

    async fn spend_nonce(&self, connection: &mut AnyConnection, credentials: &Credentials) -> Result<(), StoreError> {
        let now = self.now(connection).await?;
        let spent = sqlx::query(
            "INSERT INTO nonces (signer, nonce, expires) VALUES ($1, $2, $3) ON CONFLICT (signer, nonce) DO NOTHING",
        )
        .bind(credentials.key.to_string())
        .bind(credentials.nonce_text())
        .bind(signed(now, "the time")? + NONCE_KEPT.as_millis() as i64)
        .execute(connection)
        .await?;
        if spent.rows_affected() == 0 {
            return Err(AuthError::Replayed.into());
        }
        Ok(())
    }
}

async fn may(connection: &mut AnyConnection, key: PublicKey, need: Need<'_>) -> Result<(), StoreError> {
    let name = key.to_string();
    let foreign = |ring: &str| AuthError::NotOwner { ring: ring.to_owned() };
    let stranger = |ring: &str| AuthError::NotEnrolled {
        node: key,
        ring: ring.to_owned(),
    };
    let ring = match need {
        Need::Owner(ring) | Need::OwnerToBe(ring) => {
            return match owner_of(connection, ring).await? {
                Some(owner) if owner == name => Ok(()),
                Some(_) => Err(foreign(ring).into()),
                None if matches!(need, Need::OwnerToBe(_)) => Ok(()),
                None => Err(unknown(ring)),
            };
        }
        Need::Known => {
            let row = sqlx::query(
                "SELECT node AS signer FROM members WHERE node = $1 UNION SELECT owner AS signer FROM rings WHERE owner = $1",
            )
            .bind(name)
            .fetch_optional(connection)
            .await?;
            return row.map(drop).ok_or_else(|| AuthError::Stranger { key }.into());
        }
        Need::Member(ring) | Need::MemberOrOwner(ring) => ring,
    };
    let row = sqlx::query("SELECT node FROM members WHERE node = $1 AND ring = $2")
        .bind(&*name)
        .bind(ring)
        .fetch_optional(&mut *connection)
        .await?;
    if row.is_some() {
        return Ok(());
    }
    match owner_of(connection, ring).await? {
        None => Err(unknown(ring)),
        Some(owner) if owner == name && matches!(need, Need::MemberOrOwner(_)) => Ok(()),
        Some(_) => Err(stranger(ring).into()),
    }
}
