//! Whether the relay knows this device: it enrols with its invite, again when the relay has forgotten it, and says what
//! to do when the invite is no longer good.

use kvasir_market::{MarketClient, client::Backoff, client::ClientError, types::Enrolment};
use secrecy::SecretString;

use super::tell;

/// What the market says to a key that it doesn't know.
const NOT_ENROLLED: &str = "NotEnrolled";

/// The relay doesn't know this device, and its invite is no help.
#[derive(Debug, thiserror::Error)]
#[error(
    "the relay {relay} doesn't know this device, and no invite that is good was given: ask who runs the ring for a new one \
     (`kvasir invite` prints it) and join with its link"
)]
pub(crate) struct NotKnown {
    relay: String,
    #[source]
    source: ClientError,
}

/// This device as a member of a market.
#[derive(Debug)]
pub(super) struct Membership<'a> {
    market: &'a MarketClient,
    /// of the invite; without one this device is a member already
    token: Option<SecretString>,
    enrolment: Enrolment,
}

/// Whether the market says that it doesn't know this device.
pub(super) fn is_unknown(error: &ClientError) -> bool {
    error.reason() == NOT_ENROLLED
}

impl<'a> Membership<'a> {
    pub(super) fn new(market: &'a MarketClient, token: Option<SecretString>, enrolment: Enrolment) -> Self {
        Membership {
            market,
            token,
            enrolment,
        }
    }

    /// Enrols with the invite, if there is one, as often as it takes to reach the market.
    pub(super) async fn begin(&self) -> anyhow::Result<()> {
        let Some(token) = &self.token else {
            return Ok(());
        };
        let mut backoff = Backoff::default();
        let mut told = String::new();
        loop {
            match self.market.enrol(token, &self.enrolment).await {
                Ok(_) => return Ok(()),
                Err(error) if error.retryable() => {
                    tell(&mut told, format!("the market was not reached, trying again: {error}"));
                    tokio::time::sleep(backoff.pause()).await;
                }
                // A device that is enrolled may come again with its old, spent invite.
                Err(error) => match self.market.offers().await {
                    Ok(_) => return Ok(()),
                    Err(_) => return Err(self.refused(error)),
                },
            }
        }
    }

    /// After the market said that it doesn't know this device: enrols again. A market that isn't reached now is asked the
    /// next time.
    ///
    /// # Errors
    /// [`NotKnown`] when there is no invite that is good, or another refusal.
    pub(super) async fn again(&self, unknown: ClientError) -> anyhow::Result<()> {
        let Some(token) = &self.token else {
            return Err(self.refused(unknown));
        };
        match self.market.enrol(token, &self.enrolment).await {
            Ok(_) => {
                eprintln!("the relay had forgotten this device, which has enrolled again with its invite");
                Ok(())
            }
            Err(error) if error.retryable() => Ok(()),
            Err(error) => Err(self.refused(error)),
        }
    }

    fn refused(&self, source: ClientError) -> anyhow::Error {
        if ![NOT_ENROLLED, "UnknownInvite", "InviteSpent"].contains(&source.reason()) {
            return source.into();
        }
        NotKnown {
            relay: self.market.address().to_owned(),
            source,
        }
        .into()
    }
}
