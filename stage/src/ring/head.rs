//! Rank 0's head: the task between the API and the ring. It owns the scheduler and carries out its actions.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use kvasir_wire::edge::EdgeSender;
use kvasir_wire::frame::{Frame, Lap, LapKind, Tokens};
use tokio::sync::{mpsc, oneshot, watch};

use super::handle::{Event, Generate, Limits, Ring, RingError};
use super::schedule::{Action, Scheduler, Shape};
use super::worker::Job;

/// Number of the lap that proves that the ring is closed; the scheduler's laps count from 1.
const HELLO_LAP: u64 = 0;
/// Laps whose times are kept.
const LAPS_KEPT: usize = 4096;

/// Where the ring stands, as clients are told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// with what is missing
    Forming(String),
    Ready,
    Draining,
}

/// How long one lap took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LapTime {
    /// what it carried
    pub kind: LapKind,
    /// rows in it
    pub rows: u32,
    /// from the hand-over to rank 0's engine to the sampled tokens' return, in microseconds
    pub total_us: u32,
    /// of which engines and sampler worked, in microseconds
    pub compute_us: u32,
}

enum Command {
    Submit(Generate, oneshot::Sender<Result<mpsc::Receiver<Event>, RingError>>),
    /// links are up; frames to the last rank go backwards over this edge
    Up(EdgeSender),
    /// the epoch is lost, and this is what running requests are told; answered once nothing of it comes home any more
    Down(RingError, oneshot::Sender<()>),
}

/// The API's handle, and the stage's own to say when links come and go.
#[derive(Clone)]
pub struct HeadHandle {
    commands: mpsc::Sender<Command>,
    home: mpsc::Sender<Tokens>,
    phase: watch::Sender<Phase>,
    /// what the ring lacks in its market's words, while it forms
    missing: watch::Sender<Option<String>>,
    limits: Limits,
    laps: Arc<Mutex<VecDeque<LapTime>>>,
    /// positions that came home, and requests that wait
    counts: watch::Sender<(u64, u32)>,
}

impl std::fmt::Debug for HeadHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HeadHandle")
            .field("phase", &*self.phase.borrow())
            .finish_non_exhaustive()
    }
}

impl HeadHandle {
    /// Times of the last laps, oldest first.
    pub fn lap_times(&self) -> Vec<LapTime> {
        self.laps
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
            .copied()
            .collect()
    }

    /// Returns once a lap has gone round.
    pub async fn wait_ready(&self) {
        let mut phase = self.phase.subscribe();
        // The sender lives in self: the wait can't fail.
        let _ = phase.wait_for(|p| *p == Phase::Ready).await;
    }

    /// A lap came home; false when more came than were sent.
    pub(crate) fn came_home(&self, tokens: Tokens) -> bool {
        self.home.try_send(tokens).is_ok()
    }

    /// Positions that came home since the start, over all epochs, and requests that wait.
    pub(crate) fn counts(&self) -> (u64, u32) {
        *self.counts.borrow()
    }

    /// Where the ring stands, now and after every change.
    pub(crate) fn phase(&self) -> watch::Receiver<Phase> {
        self.phase.subscribe()
    }

    pub(crate) fn say(&self, phase: Phase) {
        self.phase.send_replace(phase);
    }

    /// Says which layers the ring waits for, if it waits for any: clients are told that rather than how a link broke.
    pub(crate) fn say_missing(&self, missing: Option<String>) {
        self.missing.send_replace(missing);
    }

    pub(crate) async fn up(&self, closing_edge: EdgeSender) {
        // The head ends only with the process.
        let _ = self.commands.send(Command::Up(closing_edge)).await;
    }

    pub(crate) async fn down(&self, detail: String, told: RingError) {
        self.say(Phase::Forming(detail));
        let (done, fallen) = oneshot::channel();
        let _ = self.commands.send(Command::Down(told, done)).await;
        let _ = fallen.await;
    }
}

#[async_trait::async_trait]
impl Ring for HeadHandle {
    async fn submit(&self, request: Generate) -> Result<mpsc::Receiver<Event>, RingError> {
        self.ready()?;
        let (reply, answer) = oneshot::channel();
        self.commands
            .send(Command::Submit(request, reply))
            .await
            .map_err(|_| RingError::Draining)?;
        answer.await.map_err(|_| RingError::Draining)?
    }

    fn ready(&self) -> Result<(), RingError> {
        match &*self.phase.borrow() {
            Phase::Ready => Ok(()),
            Phase::Forming(detail) => Err(RingError::NotReady {
                detail: self.missing.borrow().clone().unwrap_or_else(|| detail.clone()),
            }),
            Phase::Draining => Err(RingError::Draining),
        }
    }

    fn limits(&self) -> Limits {
        self.limits
    }
}

struct Head {
    scheduler: Scheduler,
    shape: Shape,
    jobs: mpsc::Sender<Job>,
    handle: HeadHandle,
    closing_edge: Option<EdgeSender>,
    clients: HashMap<u64, mpsc::Sender<Event>>,
    started: HashMap<u64, (Instant, LapKind, u32)>,
}

/// Starts the head's task. It ends when the last handle is gone.
pub(crate) fn start(shape: Shape, jobs: mpsc::Sender<Job>) -> HeadHandle {
    let (commands, inbox) = mpsc::channel(64);
    // Every lap in flight may come home at once, and the hello lap too.
    let (home, homing) = mpsc::channel(shape.max_laps + 1);
    let (phase, _) = watch::channel(Phase::Forming("the window is loading".into()));
    let limits = Limits {
        context_length: shape.context_length,
        sequences: shape.sequences as u32,
    };
    let handle = HeadHandle {
        commands,
        home,
        phase,
        missing: watch::Sender::new(None),
        limits,
        laps: Arc::default(),
        counts: watch::Sender::new((0, 0)),
    };
    let head = Head {
        scheduler: Scheduler::new(shape),
        shape,
        jobs,
        handle: handle.clone(),
        closing_edge: None,
        clients: HashMap::new(),
        started: HashMap::new(),
    };
    tokio::spawn(head.run(inbox, homing));
    handle
}

impl Head {
    async fn run(mut self, mut inbox: mpsc::Receiver<Command>, mut homing: mpsc::Receiver<Tokens>) {
        loop {
            tokio::select! {
                biased;
                Some(tokens) = homing.recv() => self.came_home(&tokens),
                Some(command) = inbox.recv() => self.obey(command).await,
                else => return,
            }
            self.act().await;
            let counts = (self.scheduler.committed(), self.scheduler.load().1 as u32);
            self.handle.counts.send_replace(counts);
        }
    }

    async fn obey(&mut self, command: Command) {
        match command {
            Command::Submit(request, reply) => {
                let _ = reply.send(self.submit(request));
            }
            Command::Up(edge) => {
                self.closing_edge = Some(edge);
                let hello = Lap {
                    id: HELLO_LAP,
                    kind: LapKind::Hello,
                    compute_us: 0,
                    spans: Vec::new(),
                    hidden: bytes::Bytes::new(),
                };
                let _ = self.jobs.send(Job::Lap(hello)).await;
            }
            Command::Down(told, done) => {
                self.fall(&told);
                let counts = (self.scheduler.committed(), 0);
                self.handle.counts.send_replace(counts);
                let _ = done.send(());
            }
        }
    }

    fn submit(&mut self, request: Generate) -> Result<mpsc::Receiver<Event>, RingError> {
        if self.closing_edge.is_none() {
            return Err(RingError::NotReady {
                detail: "the ring is being formed".into(),
            });
        }
        let gone: Vec<u64> = self
            .clients
            .iter()
            .filter(|(_, c)| c.is_closed())
            .map(|(id, _)| *id)
            .collect();
        for id in gone {
            self.cancel(id);
        }
        // Room for all that a sequence can ever say: the head never waits for a client.
        let answer = request.max_tokens.min(self.shape.context_length + 1);
        let chunks = (request.prompt.len() as u32).div_ceil(self.shape.max_lap_tokens.max(1));
        let (events, stream) = mpsc::channel((answer + chunks) as usize + 2);
        let id = self.scheduler.submit(request)?;
        self.clients.insert(id, events);
        Ok(stream)
    }

    fn came_home(&mut self, tokens: &Tokens) {
        if tokens.lap == HELLO_LAP {
            if self.closing_edge.is_some() {
                self.handle.say(Phase::Ready);
            }
            return;
        }
        if let Some((start, kind, rows)) = self.started.remove(&tokens.lap) {
            let total_us = u32::try_from(start.elapsed().as_micros()).unwrap_or(u32::MAX);
            let mut laps = self.handle.laps.lock().unwrap_or_else(PoisonError::into_inner);
            if laps.len() == LAPS_KEPT {
                laps.pop_front();
            }
            laps.push_back(LapTime {
                kind,
                rows,
                total_us,
                compute_us: tokens.compute_us,
            });
        }
        if let Err(e) = self.scheduler.home(tokens) {
            // The last rank is trusted; what it sends by mistake must not take the process down.
            tracing::error!(error = %e, "the last rank sent what can't be");
            if let Some(edge) = &self.closing_edge {
                edge.close();
            }
        }
    }

    /// The epoch is lost: every client hears it.
    fn fall(&mut self, told: &RingError) {
        self.closing_edge = None;
        self.started.clear();
        for id in self.scheduler.reset() {
            if let Some(client) = self.clients.remove(&id) {
                let _ = client.try_send(Event::Failed(told.clone()));
            }
        }
        self.clients.clear();
    }

    fn cancel(&mut self, id: u64) {
        self.clients.remove(&id);
        self.scheduler.cancel(id);
    }

    /// Carries out what the scheduler decided. Laps go before what clients are told: waking a client takes time, and the
    /// ring would stand still meanwhile.
    async fn act(&mut self) {
        if self.closing_edge.is_none() {
            return;
        }
        let mut told = Vec::new();
        loop {
            let Some(action) = self.scheduler.poll() else {
                if told.is_empty() {
                    return;
                }
                // Who is gone by now is cancelled, which asks for more.
                self.deliver(&mut told);
                continue;
            };
            match action {
                Action::Deliver { sequence, event } => told.push((sequence, event)),
                Action::Lap(lap) => {
                    self.started
                        .insert(lap.id, (Instant::now(), lap.kind, lap.tokens.len() as u32));
                    let _ = self.jobs.send(Job::Embed(lap)).await;
                }
                // It left while it waited: nothing is computed for it.
                Action::Open(open) if self.clients.get(&open.sequence).is_none_or(mpsc::Sender::is_closed) => {
                    self.clients.remove(&open.sequence);
                    self.scheduler.forget(open.sequence);
                }
                Action::Open(open) => {
                    if let Some(edge) = &self.closing_edge {
                        // A broken edge is the session's to report.
                        let _ = edge.send(Frame::Open(open)).await;
                    }
                }
                Action::Close { sequence } => {
                    self.deliver(&mut told);
                    self.clients.remove(&sequence);
                    let _ = self.jobs.send(Job::Close { sequence }).await;
                }
            }
        }
    }

    fn deliver(&mut self, told: &mut Vec<(u64, Event)>) {
        for (sequence, event) in told.drain(..) {
            let gone = self
                .clients
                .get(&sequence)
                .is_none_or(|client| client.try_send(event).is_err());
            if gone {
                self.cancel(sequence);
            }
        }
    }
}
