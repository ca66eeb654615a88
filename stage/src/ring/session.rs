//! One epoch as this rank lives it: frames from both links become jobs, until a link breaks or the engine gives up.
//!
//! Reader, engine and writer are separate tasks. A reader never waits: what it hands on has room by the ring's
//! admission rule, and a neighbour that sends more than that breaks the protocol.

use kvasir_wire::edge::{CLOSE_GRACE, EdgeError, EdgeReceiver};
use kvasir_wire::frame::Frame;
use kvasir_wire::limits::MAX_ERROR_BYTES;
use tokio::sync::mpsc;

use super::head::HeadHandle;
use super::link::Links;
use super::worker::{Epoch, Fault, Job};

/// Why an epoch ended for this rank.
#[derive(Debug, thiserror::Error)]
pub enum Lost {
    /// a link broke
    #[error("the link to the {neighbour} broke")]
    Link {
        /// predecessor or successor
        neighbour: &'static str,
        /// how
        #[source]
        source: EdgeError,
    },
    /// this stage's engine gave up
    #[error("this stage gave up")]
    Fault(#[from] Fault),
    /// a neighbour sent what it may not
    #[error("the {neighbour} sent {what}, which it may not")]
    Protocol {
        /// predecessor or successor
        neighbour: &'static str,
        /// frame
        what: &'static str,
    },
    /// a neighbour sent more than the manifest admits
    #[error("the {neighbour} sent more laps than the manifest admits")]
    Overrun {
        /// predecessor or successor
        neighbour: &'static str,
    },
    /// the engine thread ended
    #[error("the engine thread ended")]
    Engine,
    /// another stage's engine gave up, as it told all
    #[error("rank {rank}'s engine failed: {detail}")]
    Elsewhere {
        /// which
        rank: u32,
        /// why
        detail: String,
    },
}

impl Lost {
    /// Stable `PascalCase` word for metrics, events and conditions.
    pub fn reason(&self) -> &'static str {
        match self {
            Lost::Link { source, .. } => source.reason(),
            Lost::Fault(f) => f.reason(),
            Lost::Protocol { .. } => "ProtocolViolated",
            Lost::Overrun { .. } => "TooManyLaps",
            Lost::Engine | Lost::Elsewhere { .. } => "EngineFailed",
        }
    }

    /// The rank whose engine gave up, and why, if that ended the epoch; `own` is this stage's rank.
    pub(crate) fn engine_failure(&self, own: u32) -> Option<(u32, String)> {
        match self {
            Lost::Fault(Fault::Engine(error)) => Some((own, root_cause(error))),
            Lost::Elsewhere { rank, detail } => Some((*rank, detail.clone())),
            _ => None,
        }
    }
}

/// What it comes down to; what stands around it names files of this stage, which are nobody else's business.
fn root_cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    let text = cause.to_string();
    let fits = text.char_indices().map(|(at, character)| at + character.len_utf8());
    let end = fits.take_while(|end| *end <= MAX_ERROR_BYTES).last().unwrap_or(0);
    text[..end].to_owned()
}

/// Sees every frame that arrives, before it is acted on: for tests that look at what a stage learns.
pub type Tap = std::sync::Arc<dyn Fn(&Frame) + Send + Sync>;

/// What a rank does with what arrives.
pub(crate) struct Session {
    pub(crate) rank: u32,
    pub(crate) last: bool,
    pub(crate) boundary_type: kvasir_plan::BoundaryType,
    pub(crate) sequences: u32,
    /// to the engine thread
    pub(crate) jobs: mpsc::Sender<Job>,
    /// rank 0's head
    pub(crate) head: Option<HeadHandle>,
    pub(crate) tap: Option<Tap>,
}

impl Session {
    /// Tells the engine thread of the epoch, then reads both links until something breaks.
    pub(crate) async fn run(&self, links: Links) -> Lost {
        let (fault, mut faults) = mpsc::channel(1);
        let epoch = Epoch {
            successor: links.successor.0.clone(),
            boundary_type: self.boundary_type,
            sequences: self.sequences,
            last: self.last,
            fault,
        };
        if self.jobs.send(Job::Begin(Box::new(epoch))).await.is_err() {
            return Lost::Engine;
        }
        if let Some(head) = &self.head {
            head.up(links.predecessor.0.clone()).await;
        }
        let (mut predecessor, mut successor) = (links.predecessor.1, links.successor.1);
        let lost = tokio::select! {
            // What a neighbour says comes before what its end did to this stage's own sends.
            biased;
            lost = self.read_predecessor(&mut predecessor) => lost,
            lost = self.read_successor(&mut successor) => lost,
            Some(fault) = faults.recv() => Lost::Fault(fault),
        };
        if let Some((rank, detail)) = lost.engine_failure(self.rank) {
            for edge in [&links.predecessor.0, &links.successor.0] {
                let (rank, detail) = (rank, detail.clone());
                // One of the two may be the way that the news came, and closed by now.
                let _ = tokio::time::timeout(CLOSE_GRACE, edge.send(Frame::Failed { rank, detail })).await;
            }
        }
        links.predecessor.0.close();
        links.successor.0.close();
        lost
    }

    async fn read_predecessor(&self, edge: &mut EdgeReceiver) -> Lost {
        const WHO: &str = "predecessor";
        loop {
            let frame = match edge.recv().await {
                Ok(frame) => frame,
                Err(source) => return Lost::Link { neighbour: WHO, source },
            };
            if let Some(tap) = &self.tap {
                tap(&frame);
            }
            if let Frame::Failed { rank, detail } = frame {
                return Lost::Elsewhere { rank, detail };
            }
            // Rank 0's predecessor is the last rank: tokens come that way, nothing else does.
            let job = match (frame, &self.head) {
                (Frame::Tokens(tokens), Some(head)) => {
                    if !head.came_home(tokens) {
                        return Lost::Overrun { neighbour: WHO };
                    }
                    continue;
                }
                (Frame::Lap(lap), None) => Job::Lap(lap),
                (Frame::Close { sequence }, None) => Job::Close { sequence },
                (Frame::Fork { parent, child, length }, None) => Job::Fork { parent, child, length },
                (Frame::Truncate { sequence, length }, None) => Job::Truncate { sequence, length },
                (Frame::Report { .. } | Frame::Replay { .. } | Frame::Drain, _) => continue,
                (frame, _) => {
                    return Lost::Protocol {
                        neighbour: WHO,
                        what: name(&frame),
                    };
                }
            };
            if let Err(lost) = self.hand_on(job, WHO) {
                return lost;
            }
        }
    }

    async fn read_successor(&self, edge: &mut EdgeReceiver) -> Lost {
        const WHO: &str = "successor";
        loop {
            let frame = match edge.recv().await {
                Ok(frame) => frame,
                Err(source) => return Lost::Link { neighbour: WHO, source },
            };
            if let Some(tap) = &self.tap {
                tap(&frame);
            }
            if let Frame::Failed { rank, detail } = frame {
                return Lost::Elsewhere { rank, detail };
            }
            // Only the closing edge carries frames backwards, and it ends at the last rank.
            let job = match frame {
                Frame::Open(open) if self.last => Job::Open(open),
                Frame::Report { .. } | Frame::Replay { .. } | Frame::Drain => continue,
                frame => {
                    return Lost::Protocol {
                        neighbour: WHO,
                        what: name(&frame),
                    };
                }
            };
            if let Err(lost) = self.hand_on(job, WHO) {
                return lost;
            }
        }
    }

    fn hand_on(&self, job: Job, neighbour: &'static str) -> Result<(), Lost> {
        self.jobs.try_send(job).map_err(|e| match e {
            mpsc::error::TrySendError::Full(_) => Lost::Overrun { neighbour },
            mpsc::error::TrySendError::Closed(_) => Lost::Engine,
        })
    }
}

fn name(frame: &Frame) -> &'static str {
    match frame {
        Frame::Hello(_) => "a second hello",
        Frame::Lap(_) => "a lap",
        Frame::Tokens(_) => "tokens",
        Frame::Open(_) => "an open",
        Frame::Close { .. } => "a close",
        Frame::Fork { .. } => "a fork",
        Frame::Truncate { .. } => "a truncate",
        Frame::Report { .. } => "a report",
        Frame::Replay { .. } => "a replay",
        Frame::Drain => "a drain",
        Frame::Ping { .. } => "a ping",
        Frame::Failed { .. } => "a failure",
    }
}
