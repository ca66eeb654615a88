//! How far this stage's legs have come in an epoch, and so which end of a relayed edge never came.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use kvasir_market::types::LostEnd;
use kvasir_wire::edge::LegError;

use crate::ring::relays::{EdgeTicket, Leg, Relays, Role, Tickets};

/// The farthest that each leg of the newest epoch came.
#[derive(Debug, Default)]
pub(super) struct Legs(Mutex<Farthest>);

#[derive(Debug, Default)]
struct Farthest {
    epoch: u64,
    /// by edge, and whether it is the edge's beginning: in a ring of one both ends are this stage's
    legs: BTreeMap<(u32, bool), Leg>,
}

impl Legs {
    fn heard(&self, epoch: u64, edge: u32, role: Role, leg: Leg) {
        let mut farthest = self.lock();
        if epoch > farthest.epoch {
            *farthest = Farthest {
                epoch,
                legs: BTreeMap::new(),
            };
        }
        if epoch == farthest.epoch {
            let known = farthest.legs.entry((edge, role == Role::Predecessor)).or_insert(leg);
            *known = leg.max(*known);
        }
    }

    /// The edge of an epoch that never came up, and which end of it never came to the relay. `direct` is the edge in the
    /// words of whoever waited for it: where it has no leg, it is that one, and no relay has to do with it.
    pub(super) fn lost(&self, epoch: u64, direct: Option<u32>) -> (Option<u32>, Option<LostEnd>) {
        let farthest = self.lock();
        let legs = || farthest.legs.iter().filter(|_| farthest.epoch == epoch);
        if direct.is_some_and(|edge| legs().all(|((other, _), _)| *other != edge)) {
            return (direct, None);
        }
        // Its own leg first: a stage that did not get there has nothing to say of its neighbours.
        let lost = legs().min_by_key(|(_, leg)| **leg).and_then(|((edge, _), leg)| {
            let end = match leg {
                Leg::Dialled => LostEnd::Own,
                Leg::There => LostEnd::Other,
                Leg::Open => return None,
            };
            Some((*edge, end))
        });
        match lost {
            Some((edge, end)) => (Some(edge), Some(end)),
            None => (direct, None),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Farthest> {
        // Whole after every step, so a lock that a panic poisoned still guards a sound one.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The same way to relays, with `legs` told how far each leg comes.
pub(super) fn watched(relays: Relays, legs: Arc<Legs>) -> Relays {
    Relays {
        dialer: relays.dialer,
        tickets: Arc::new(Watched {
            tickets: relays.tickets,
            legs,
        }),
    }
}

struct Watched {
    tickets: Arc<dyn Tickets>,
    legs: Arc<Legs>,
}

#[async_trait]
impl Tickets for Watched {
    async fn ticket(&self, epoch: u64, edge: u32, role: Role) -> Result<EdgeTicket, LegError> {
        self.tickets.ticket(epoch, edge, role).await
    }

    fn heard(&self, epoch: u64, edge: u32, role: Role, leg: Leg) {
        self.legs.heard(epoch, edge, role, leg);
        self.tickets.heard(epoch, edge, role, leg);
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime, UNIX_EPOCH};

    use kvasir_market::{Ticket, TicketKey};
    use kvasir_plan::BoundaryType;
    use kvasir_relay::{BridgeConfig, BridgeTimings, RelayConfig};
    use kvasir_wire::Limits;
    use kvasir_wire::edge::{EdgeConfig, RelayDialer, Timings};
    use kvasir_wire::frame::{Hello, VERSION};
    use kvasir_wire::trust::{NodeKeys, PublicKey};
    use tokio::net::TcpListener;
    use tokio::time::Instant;
    use tokio_util::sync::CancellationToken;

    use super::*;

    #[test]
    fn the_leg_that_came_least_far_says_which_end_is_missing() {
        let legs = Legs::default();
        assert_eq!(legs.lost(3, Some(1)), (Some(1), None), "no relay has to do with it");
        legs.heard(3, 0, Role::Successor, Leg::There);
        assert_eq!(legs.lost(3, None), (Some(0), Some(LostEnd::Other)));
        assert_eq!(legs.lost(3, Some(1)), (Some(1), None), "edge 1 is direct");
        legs.heard(3, 1, Role::Predecessor, Leg::Dialled);
        assert_eq!(legs.lost(3, Some(0)), (Some(1), Some(LostEnd::Own)));
        legs.heard(3, 1, Role::Predecessor, Leg::Open);
        legs.heard(3, 1, Role::Predecessor, Leg::Dialled);
        assert_eq!(
            legs.lost(3, None),
            (Some(0), Some(LostEnd::Other)),
            "once there is there"
        );
        legs.heard(3, 0, Role::Successor, Leg::Open);
        assert_eq!(legs.lost(3, None), (None, None));
    }

    #[test]
    fn each_epoch_is_told_of_alone() {
        let legs = Legs::default();
        legs.heard(3, 0, Role::Successor, Leg::Dialled);
        legs.heard(4, 1, Role::Predecessor, Leg::There);
        legs.heard(3, 0, Role::Successor, Leg::There);
        assert_eq!(legs.lost(4, None), (Some(1), Some(LostEnd::Other)));
        assert_eq!(legs.lost(3, None), (None, None));
    }

    struct Desk {
        url: String,
        key: TicketKey,
    }

    #[async_trait]
    impl Tickets for Desk {
        async fn ticket(&self, epoch: u64, edge: u32, role: Role) -> Result<EdgeTicket, LegError> {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
            let ticket = Ticket {
                ring: "tea".into(),
                epoch,
                edge,
                role,
                node: PublicKey([1; 32]),
                relay_url: self.url.clone(),
                expires_ms: now + 60_000,
            };
            Ok(EdgeTicket {
                url: self.url.clone(),
                ticket: self.key.sign(&ticket).into(),
            })
        }
    }

    /// One end of an edge whose other end nobody brings.
    fn alone() -> EdgeConfig {
        let own = Arc::new(NodeKeys::generate().unwrap());
        EdgeConfig {
            ring: "tea".into(),
            epoch: 1,
            edge: 2,
            identity: "1".into(),
            role: Role::Predecessor,
            peer_noise_key: own.noise_public(),
            own,
            hello: Hello {
                version: VERSION,
                ring: "tea".into(),
                epoch: 1,
                rank: 2,
                identity: "1".into(),
                embedding_length: 8,
                boundary_type: BoundaryType::F32,
            },
            expect_rank: 0,
            limits: Limits {
                embedding_length: 8,
                boundary_type: BoundaryType::F32,
                max_lap_tokens: 8,
                sequences: 1,
                vocabulary: 8,
                max_prompt: 8,
            },
            max_laps: 1,
            timings: Timings::default(),
        }
    }

    /// Which end is missing in the end, where the relay at `url` has `key`.
    async fn lost(url: String, key: TicketKey) -> (Option<u32>, Option<LostEnd>) {
        let legs = Arc::new(Legs::default());
        let desk = Desk { url: url.clone(), key };
        let relays = Relays {
            dialer: RelayDialer::new(None).unwrap(),
            tickets: Arc::new(desk),
        };
        let deadline = Instant::now() + Duration::from_millis(500);
        let opened = watched(relays, legs.clone()).open(&url, &alone(), deadline).await;
        assert!(opened.is_err(), "nobody brought the other end");
        legs.lost(1, None)
    }

    #[tokio::test]
    async fn a_leg_at_a_relay_tells_from_one_that_never_gets_there() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let key = TicketKey::generate().unwrap();
        let config = RelayConfig {
            bridge: BridgeConfig {
                public_url: url.clone(),
                tickets: key.clone(),
                max_legs: 4,
                max_legs_per_node: 4,
                timings: BridgeTimings::default(),
            },
            tls: None,
            drain_grace: Duration::ZERO,
        };
        let shutdown = CancellationToken::new();
        let serving = kvasir_relay::serve(listener, axum::Router::new(), config, shutdown.clone());
        let serving = tokio::spawn(serving);
        assert_eq!(lost(url.clone(), key.clone()).await, (Some(2), Some(LostEnd::Other)));
        shutdown.cancel();
        serving.await.unwrap().unwrap();
        assert_eq!(lost(url, key).await, (Some(2), Some(LostEnd::Own)), "the relay is gone");
    }
}
