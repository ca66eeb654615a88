//! Forming: this rank's two links of one epoch, dialled to the successor and accepted from the predecessor, or both
//! dialled to a relay where the manifest says so.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use kvasir_plan::{Link, RankManifest};
use kvasir_wire::Limits;
use kvasir_wire::edge::{self, EdgeConfig, EdgeError, EdgeReceiver, EdgeSender, LegError, Role, Timings};
use kvasir_wire::frame::{Hello, VERSION};
use kvasir_wire::trust::{KeyError, NodeKeys, noise_key};
use tokio::net::TcpListener;
use tokio::time::Instant;

use super::relays::Relays;

/// Pauses between two attempts to dial a successor that isn't listening yet.
const REDIAL: Duration = Duration::from_millis(100);
/// Handshakes tried side by side on the listener: a stranger that says nothing doesn't keep the predecessor out.
const STRANGERS: usize = 16;

/// One end of an edge.
pub(crate) type End = (EdgeSender, EdgeReceiver);

/// Both links of a rank. In a ring of one they are the two ends of the same edge.
pub(crate) struct Links {
    pub(crate) predecessor: End,
    pub(crate) successor: End,
}

/// Why the links of an epoch did not come up.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// the manifest names nobody for a neighbouring rank, or no way to reach it
    #[error("the manifest gives no way to reach rank {rank}")]
    NoAddress {
        /// the neighbour
        rank: usize,
    },
    /// a key in the manifest isn't one
    #[error("the manifest's key of rank {rank} can't be used")]
    BadKey {
        /// the neighbour
        rank: usize,
        /// what is wrong with it
        #[source]
        source: KeyError,
    },
    /// the time to form ran out
    #[error("rank {rank} was not reached within {within:?}; check that it runs and that its address is open")]
    Deadline {
        /// the neighbour
        rank: usize,
        /// the bound
        within: Duration,
        /// the last attempt's error
        #[source]
        last: Option<EdgeError>,
    },
    /// the relay between the two won't have the edge
    #[error("rank {rank} can't be reached by way of the relay")]
    Relay {
        /// the neighbour
        rank: usize,
        /// why
        #[source]
        source: EdgeError,
    },
    /// the listener broke
    #[error("cannot accept connections")]
    Accept(#[source] std::io::Error),
}

impl LinkError {
    /// Stable `PascalCase` word for metrics, events and conditions.
    pub fn reason(&self) -> &'static str {
        match self {
            LinkError::NoAddress { .. } | LinkError::BadKey { .. } => "InvalidManifest",
            LinkError::Deadline { .. } => "NeighbourUnreachable",
            LinkError::Relay { source, .. } => source.reason(),
            LinkError::Accept(_) => "ListenerFailed",
        }
    }
}

/// What forming needs besides the manifest.
pub(crate) struct Forming<'a> {
    pub(crate) manifest: &'a RankManifest,
    pub(crate) rank: usize,
    pub(crate) keys: &'a Arc<NodeKeys>,
    pub(crate) listener: &'a TcpListener,
    /// none for a stage that takes direct edges only
    pub(crate) relays: Option<&'a Relays>,
    pub(crate) timings: Timings,
    pub(crate) within: Duration,
}

impl Forming<'_> {
    /// Brings both links up, or says which neighbour is missing.
    pub(crate) async fn links(&self) -> Result<Links, LinkError> {
        let deadline = Instant::now() + self.within;
        let (predecessor, successor) = tokio::try_join!(self.predecessor(deadline), self.successor(deadline))?;
        Ok(Links { predecessor, successor })
    }

    async fn predecessor(&self, deadline: Instant) -> Result<End, LinkError> {
        let n = self.manifest.ranks.len();
        let rank = (self.rank + n - 1) % n;
        let config = self.config(rank, Role::Successor, rank)?;
        match self.link(self.rank)? {
            Link::Direct { .. } => self.accept(rank, config, deadline).await,
            Link::Relayed { url } => self.relayed(rank, url, config, deadline).await,
        }
    }

    async fn successor(&self, deadline: Instant) -> Result<End, LinkError> {
        let rank = (self.rank + 1) % self.manifest.ranks.len();
        let config = self.config(self.rank, Role::Predecessor, rank)?;
        match self.link(rank)? {
            Link::Direct { address } => self.dial(rank, address, config, deadline).await,
            Link::Relayed { url } => self.relayed(rank, url, config, deadline).await,
        }
    }

    /// How the edge into `rank` is reached.
    fn link(&self, rank: usize) -> Result<&Link, LinkError> {
        let holder = self.manifest.ranks[rank].holder.as_ref();
        holder.map(|holder| &holder.link).ok_or(LinkError::NoAddress { rank })
    }

    async fn relayed(&self, rank: usize, url: &str, config: EdgeConfig, deadline: Instant) -> Result<End, LinkError> {
        let Some(relays) = self.relays else {
            let source = LegError::NoRelays.into();
            return Err(LinkError::Relay { rank, source });
        };
        relays.open(url, &config, deadline).await.map_err(|last| match last {
            Some(source @ EdgeError::Leg(_)) if Instant::now() < deadline => LinkError::Relay { rank, source },
            last => LinkError::Deadline {
                rank,
                within: self.within,
                last,
            },
        })
    }

    fn config(&self, edge: usize, role: Role, peer: usize) -> Result<EdgeConfig, LinkError> {
        let m = self.manifest;
        let holder = m.ranks[peer]
            .holder
            .as_ref()
            .ok_or(LinkError::NoAddress { rank: peer })?;
        let peer_noise_key = noise_key(holder).map_err(|source| LinkError::BadKey { rank: peer, source })?;
        let hello = Hello {
            version: VERSION,
            ring: m.ring.clone(),
            epoch: m.epoch,
            rank: self.rank as u32,
            identity: m.model.identity.clone(),
            embedding_length: m.model.embedding_length,
            boundary_type: m.boundary_type,
        };
        Ok(EdgeConfig {
            ring: m.ring.clone(),
            epoch: m.epoch,
            edge: edge as u32,
            identity: m.model.identity.clone(),
            role,
            own: self.keys.clone(),
            peer_noise_key,
            hello,
            expect_rank: peer as u32,
            limits: Limits::of(m),
            max_laps: m.max_laps,
            timings: self.timings,
        })
    }

    async fn dial(&self, rank: usize, address: &str, config: EdgeConfig, deadline: Instant) -> Result<End, LinkError> {
        let mut last = None;
        while Instant::now() < deadline {
            let attempt = async {
                let stream = edge::dial(address, deadline - Instant::now()).await?;
                edge::open(stream, config.clone()).await
            };
            match tokio::time::timeout_at(deadline, attempt).await {
                Ok(Ok(end)) => return Ok(end),
                Ok(Err(e)) => {
                    tracing::debug!(rank, address, error = %e, "successor not reached yet");
                    last = Some(e);
                }
                Err(_) => break,
            }
            tokio::time::sleep(REDIAL).await;
        }
        Err(LinkError::Deadline {
            rank,
            within: self.within,
            last,
        })
    }

    async fn accept(&self, rank: usize, config: EdgeConfig, deadline: Instant) -> Result<End, LinkError> {
        let mut handshakes = FuturesUnordered::new();
        let mut last = None;
        loop {
            tokio::select! {
                accepted = edge::accept(self.listener), if handshakes.len() < STRANGERS => {
                    let (stream, from) = accepted.map_err(LinkError::Accept)?;
                    let opening = edge::open(stream, config.clone());
                    handshakes.push(async move {
                        opening.await.inspect_err(|e| {
                            tracing::debug!(%from, error = %e, "refused a connection that is not the predecessor's");
                        })
                    });
                }
                Some(done) = handshakes.next() => match done {
                    Ok(end) => return Ok(end),
                    Err(e) => last = Some(e),
                },
                () = tokio::time::sleep_until(deadline) => {
                    return Err(LinkError::Deadline { rank, within: self.within, last });
                }
            }
        }
    }
}
