//! The bridge: takes legs in, pairs them, and ends them all when the relay goes down.

use std::{
    future::poll_fn,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use kvasir_market::TicketKey;
use kvasir_wire::leg::Close;
use prometheus_client::registry::Registry;
use tokio::{
    sync::mpsc,
    time::{Instant, interval_at, sleep_until, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    edge::{Edge, Pulse},
    leg::{Gone, Leg},
    metrics::Metrics,
    pairs::{Arrival, Pairs},
    places::Places,
};

/// Legs dial again within this time after a relay went down, each at its own moment.
const REDIAL_WITHIN: Duration = Duration::from_secs(3);

/// What a bridge is told.
#[derive(Clone, Debug)]
pub struct BridgeConfig {
    /// the relay's address as tickets and manifests name it
    pub public_url: String,
    /// the key that tickets are made with
    pub tickets: TicketKey,
    /// legs in all, two for an edge
    pub max_legs: usize,
    /// legs of one node
    pub max_legs_per_node: usize,
    /// how long it waits
    pub timings: BridgeTimings,
}

/// How long a bridge waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BridgeTimings {
    /// for the role byte
    pub role_within: Duration,
    /// for the other end
    pub peer_within: Duration,
    /// between two pings of each leg; one that misses two is closed
    pub ping_every: Duration,
    /// before a leg that takes nothing is closed: longer than the stages' own bound, so that theirs decides
    pub slow_after: Duration,
}

impl Default for BridgeTimings {
    fn default() -> Self {
        BridgeTimings {
            role_within: Duration::from_secs(10),
            peer_within: Duration::from_secs(30),
            ping_every: Duration::from_secs(20),
            slow_after: Duration::from_secs(180),
        }
    }
}

/// What is said to the task that serves a leg.
#[derive(Debug)]
enum Word {
    /// the other end is there
    Peer(Box<Leg>),
    /// another leg took the edge
    Replaced,
}

/// Pairs legs.
#[derive(Debug)]
pub(crate) struct Bridge {
    pub(crate) config: BridgeConfig,
    pub(crate) places: Arc<Places>,
    pub(crate) metrics: Metrics,
    pairs: Mutex<Pairs<mpsc::UnboundedSender<Word>>>,
    /// no new legs
    leaving: AtomicBool,
    /// all legs end
    closing: CancellationToken,
    legs: TaskTracker,
}

impl Bridge {
    pub(crate) fn new(config: BridgeConfig, registry: &mut Registry) -> Arc<Bridge> {
        Arc::new(Bridge {
            places: Places::new(config.max_legs, config.max_legs_per_node),
            metrics: Metrics::register(registry),
            pairs: Mutex::new(Pairs::new()),
            leaving: AtomicBool::new(false),
            closing: CancellationToken::new(),
            legs: TaskTracker::new(),
            config,
        })
    }

    /// Serves a task of this bridge's, which its end waits for.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.legs.spawn(task);
    }

    /// Whether new legs are refused.
    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving.load(Relaxed)
    }

    /// From now on new legs are refused.
    pub(crate) fn leave(&self) {
        self.leaving.store(true, Relaxed);
    }

    /// Ends all legs with a hint when to dial again, and returns once they are told.
    pub(crate) async fn close(&self) {
        self.closing.cancel();
        self.legs.close();
        self.legs.wait().await;
    }

    /// The life of a leg, from its role byte on.
    pub(crate) async fn serve(self: Arc<Self>, mut leg: Leg) {
        let role = tokio::select! {
            role = timeout(self.config.timings.role_within, leg.role()) => {
                role.unwrap_or(Err(Gone::Closed(Close::RoleMismatch)))
            }
            () = self.closing.cancelled() => Err(Gone::Closed(draining())),
        };
        if let Err(gone) = role {
            return self.finish(leg, gone).await;
        }
        let (server, mut words) = mpsc::unbounded_channel();
        let number = {
            let mut pairs = self.pairs();
            match pairs.arrive(leg.key.clone(), leg.ticket.role, server) {
                Arrival::Waits { number, replaced } => {
                    if let Some(old) = replaced {
                        // A task that has ended in between needs no word.
                        let _ = old.send(Word::Replaced);
                    }
                    number
                }
                Arrival::Meets(server) => {
                    // Said while the slot is locked: the task that waits can't give it up in between.
                    let _ = server.send(Word::Peer(Box::new(leg)));
                    return;
                }
            }
        };
        let key = leg.key.clone();
        self.metrics.waiting.inc();
        let peer = self.wait(&mut leg, number, &mut words).await;
        self.metrics.waiting.dec();
        match peer {
            Ok(peer) => {
                self.metrics.edges.inc();
                self.metrics.paired.inc();
                self.pipe([leg, *peer], &mut words).await;
                self.metrics.edges.dec();
            }
            Err(gone) => self.finish(leg, gone).await,
        }
        self.pairs().leave(&key, number);
    }

    /// Waits for the other end.
    async fn wait(
        &self,
        leg: &mut Leg,
        number: u64,
        words: &mut mpsc::UnboundedReceiver<Word>,
    ) -> Result<Box<Leg>, Gone> {
        let timings = self.config.timings;
        let give_up = sleep_until(Instant::now() + timings.peer_within);
        tokio::pin!(give_up);
        let mut beats = interval_at(Instant::now() + timings.ping_every, timings.ping_every);
        let gone = loop {
            tokio::select! {
                biased;
                word = words.recv() => return peer(word),
                () = self.closing.cancelled() => break Gone::Closed(draining()),
                gone = poll_fn(|cx| leg.poll_early(cx, |_| false)) => {
                    // It is never done, so this is its end.
                    break gone.err().unwrap_or(Gone::Left);
                }
                _ = beats.tick() => if let Err(close) = leg.beat(leg.listens(), timings.slow_after) {
                    break Gone::Closed(close);
                },
                () = &mut give_up => break Gone::Closed(Close::PeerTimeout),
            }
        };
        if self.pairs().give_up(&leg.key, number) {
            return Err(gone);
        }
        // Somebody came in the very moment: the peer finds out how this leg ends as it would have later.
        peer(words.recv().await)
    }

    /// Serves a pair until its end.
    async fn pipe(&self, legs: [Leg; 2], words: &mut mpsc::UnboundedReceiver<Word>) {
        let timings = self.config.timings;
        let pulse = Pulse {
            ping_every: timings.ping_every,
            slow_after: timings.slow_after,
        };
        let mut edge = Edge::new(legs, self.metrics.bytes.clone());
        let ends = tokio::select! {
            biased;
            ends = edge.run(pulse) => ends,
            // The slot is another's now: the only word that a pair hears.
            _ = words.recv() => [Gone::Closed(Close::Replaced); 2],
            () = self.closing.cancelled() => [Gone::Closed(draining()), Gone::Closed(draining())],
        };
        ends.into_iter().for_each(|gone| self.count(gone));
        edge.finish(ends).await;
    }

    async fn finish(&self, leg: Leg, gone: Gone) {
        self.count(gone);
        leg.finish(gone).await;
    }

    fn count(&self, gone: Gone) {
        self.metrics.closed(match gone {
            Gone::Left => "Left",
            Gone::Closed(close) => close.reason(),
        });
    }

    /// A slot is whole after every step, so a lock that a panic poisoned still guards sound ones.
    fn pairs(&self) -> MutexGuard<'_, Pairs<mpsc::UnboundedSender<Word>>> {
        self.pairs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn peer(word: Option<Word>) -> Result<Box<Leg>, Gone> {
    match word {
        Some(Word::Peer(leg)) => Ok(leg),
        Some(Word::Replaced) | None => Err(Gone::Closed(Close::Replaced)),
    }
}

/// Another moment for each leg, so that they don't all come at once.
fn draining() -> Close {
    let mut random = [0; 2];
    // Without randomness they do come at once.
    let _ = getrandom::fill(&mut random);
    let share = f64::from(u16::from_le_bytes(random)) / f64::from(u16::MAX);
    Close::Draining {
        after: REDIAL_WITHIN.mul_f64(share),
    }
}
