//! Relayed edges: a leg from this stage to the relay, with a ticket, until the other end is there too.
//!
//! Both ends dial, and a relay ends legs for good reasons: a newer leg, another end that is late, its own end. So a leg is
//! dialled again, after a pause that grows and is never the same for two stages, until the ring's time to form is over.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use backon::{BackoffBuilder, ExponentialBuilder};
use kvasir_wire::edge::{self, EdgeConfig, EdgeError, EdgeReceiver, EdgeSender, LegError, RelayDialer};
use kvasir_wire::leg::Close;
use secrecy::{ExposeSecret, SecretString};
use tokio::time::{Instant, timeout_at};

pub use kvasir_wire::edge::Role;

/// Pauses between two legs.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// A relay that goes down asks for a pause of at most this much.
const LONGEST_HINT: Duration = Duration::from_secs(10);
/// Time for a relay to take a leg.
const DIAL_WITHIN: Duration = Duration::from_secs(10);

/// The leave to bring one end of an edge to a relay.
#[derive(Clone, Debug)]
pub struct EdgeTicket {
    /// public URL of the relay that it is for
    pub url: String,
    /// what the relay is shown
    pub ticket: SecretString,
}

/// Where tickets come from: the market.
#[async_trait]
pub trait Tickets: Send + Sync {
    /// A ticket for one end of an edge of this node's ring.
    ///
    /// # Errors
    /// [`LegError::NoTicket`], with the market's own words.
    async fn ticket(&self, epoch: u64, edge: u32, role: Role) -> Result<EdgeTicket, LegError>;

    /// Hears how far the leg of a ticket has come. Who gives tickets needn't care.
    fn heard(&self, _epoch: u64, _edge: u32, _role: Role, _leg: Leg) {}
}

/// How far a leg has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Leg {
    /// it is being dialled
    Dialled,
    /// the relay has taken it, and the other end's is to come
    There,
    /// the edge is open
    Open,
}

/// What a stage needs for relayed edges.
#[derive(Clone)]
pub struct Relays {
    /// checks the relays' certificates
    pub dialer: RelayDialer,
    /// gives tickets
    pub tickets: Arc<dyn Tickets>,
}

impl std::fmt::Debug for Relays {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Relays").finish_non_exhaustive()
    }
}

impl Relays {
    /// Brings this stage's end of an edge to the relay at `url`, and opens the edge when the other end is there. Gives the
    /// last attempt's error when that is final, or when `deadline` is over.
    pub(crate) async fn open(
        &self,
        url: &str,
        config: &EdgeConfig,
        deadline: Instant,
    ) -> Result<(EdgeSender, EdgeReceiver), Option<EdgeError>> {
        let mut pauses = ExponentialBuilder::default()
            .with_min_delay(SHORTEST_PAUSE)
            .with_max_delay(LONGEST_PAUSE)
            .without_max_times()
            .with_jitter()
            .build();
        let mut last = None;
        loop {
            let error = match timeout_at(deadline, self.attempt(url, config, deadline)).await {
                Ok(Ok(edge)) => {
                    self.heard(config, Leg::Open);
                    return Ok(edge);
                }
                Ok(Err(error)) => error,
                Err(_) => return Err(last),
            };
            tracing::debug!(edge = config.edge, role = ?config.role, reason = error.reason(), %error, "no edge by way of the relay yet");
            let hint = match &error {
                EdgeError::Leg(leg) if !leg.retryable() => return Err(Some(error)),
                EdgeError::Leg(LegError::Closed(Close::Draining { after })) => *after,
                _ => Duration::ZERO,
            };
            let pause = pauses.next().unwrap_or(LONGEST_PAUSE) + hint.min(LONGEST_HINT);
            last = Some(error);
            if timeout_at(deadline, tokio::time::sleep(pause)).await.is_err() {
                return Err(last);
            }
        }
    }

    fn heard(&self, config: &EdgeConfig, leg: Leg) {
        self.tickets.heard(config.epoch, config.edge, config.role, leg);
    }

    async fn attempt(
        &self,
        url: &str,
        config: &EdgeConfig,
        deadline: Instant,
    ) -> Result<(EdgeSender, EdgeReceiver), EdgeError> {
        let ticket = self.tickets.ticket(config.epoch, config.edge, config.role).await?;
        // The manifest is signed, the market's answer isn't.
        if ticket.url.trim_end_matches('/') != url.trim_end_matches('/') {
            return Err(LegError::OtherRelay {
                named: url.to_owned(),
                offered: ticket.url,
            }
            .into());
        }
        let shown = ticket.ticket.expose_secret();
        self.heard(config, Leg::Dialled);
        let leg = self.dialer.dial(url, shown, config.role, DIAL_WITHIN).await?;
        self.heard(config, Leg::There);
        // The relay waits for the other end, and so does this one.
        let mut config = config.clone();
        config.timings.handshake = config.timings.handshake.max(deadline - Instant::now());
        edge::open(leg, config).await
    }
}
