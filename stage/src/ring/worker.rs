//! The engine thread of a stage: takes jobs in order, runs the window, hands the frame to the successor's edge.
//!
//! It never waits for anything but its inbox and, while the successor is slow, for that edge's queue, which holds as
//! many laps as the ring admits. A job that belongs to another epoch than the present one is dropped.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use bytes::Bytes;
use kvasir_plan::BoundaryType;
use kvasir_wire::boundary;
use kvasir_wire::edge::EdgeSender;
use kvasir_wire::frame::{Frame, Lap, LapKind, Open, Sampled, Span, Tokens};
use tokio::sync::mpsc;

use super::compute::{Compute, ComputeError, Sample, SlotSpan};
use super::schedule::Outgoing;
use super::slots::{NoFreeSlot, Slots};

/// What the engine thread is asked to do.
pub(crate) enum Job {
    /// a new epoch: forget all sequences, send there from now on
    Begin(Box<Epoch>),
    /// rank 0: embed, run, send
    Embed(Outgoing),
    /// run, send
    Lap(Lap),
    /// last rank: a sequence begins
    Open(Open),
    /// a sequence ended
    Close {
        /// which
        sequence: u64,
    },
    /// copy a sequence
    Fork {
        /// from
        parent: u64,
        /// to
        child: u64,
        /// positions
        length: u32,
    },
    /// cut a sequence's tail
    Truncate {
        /// which
        sequence: u64,
        /// positions kept
        length: u32,
    },
}

/// Where frames go in one epoch, and what this rank is in it.
pub(crate) struct Epoch {
    pub(crate) successor: EdgeSender,
    pub(crate) boundary_type: BoundaryType,
    pub(crate) sequences: u32,
    pub(crate) last: bool,
    /// told once when the epoch can't go on
    pub(crate) fault: mpsc::Sender<Fault>,
}

/// Why this stage gives an epoch up.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// the engine returned an error
    #[error(transparent)]
    Engine(#[from] ComputeError),
    /// more sequences than the manifest allows
    #[error(transparent)]
    Slots(#[from] NoFreeSlot),
    /// the boundary doesn't decode
    #[error("the boundary does not fit the ring's dimensions")]
    Boundary(#[from] boundary::BoundaryError),
    /// the edge to the successor is gone
    #[error("the link to the successor broke")]
    Edge(#[from] kvasir_wire::edge::EdgeError),
}

impl Fault {
    /// Stable `PascalCase` word for metrics, events and conditions.
    pub fn reason(&self) -> &'static str {
        match self {
            Fault::Engine(_) => "EngineFailed",
            Fault::Slots(_) => "TooManySequences",
            Fault::Boundary(e) => e.reason(),
            Fault::Edge(e) => e.reason(),
        }
    }
}

/// One sequence at the last rank.
struct Opened {
    prompt_len: u32,
    sampler: Result<Box<dyn Sample>, String>,
    all_logits: bool,
}

/// State of the engine thread.
pub(crate) struct Worker<C> {
    engine: C,
    runtime: tokio::runtime::Handle,
    epoch: Option<Epoch>,
    slots: Slots,
    opened: HashMap<u64, Opened>,
    /// laps at the last rank that came before their sequence's `Open`, which takes the other way round
    early: VecDeque<Job>,
    rows_in: Vec<f32>,
    rows_out: Vec<f32>,
}

impl<C: Compute> Worker<C> {
    pub(crate) fn new(engine: C, runtime: tokio::runtime::Handle) -> Self {
        Worker {
            engine,
            runtime,
            epoch: None,
            slots: Slots::new(0),
            opened: HashMap::new(),
            early: VecDeque::new(),
            rows_in: Vec::new(),
            rows_out: Vec::new(),
        }
    }

    /// Runs until every sender of jobs is gone.
    pub(crate) fn run(mut self, mut inbox: mpsc::Receiver<Job>) {
        while let Some(job) = inbox.blocking_recv() {
            if let Err(fault) = self.take(job)
                && let Some(epoch) = self.epoch.take()
            {
                // One fault ends the epoch; a second has nobody to tell and nothing to add.
                let _ = epoch.fault.try_send(fault);
            }
        }
    }

    fn take(&mut self, job: Job) -> Result<(), Fault> {
        if let Job::Begin(epoch) = job {
            for (_, slot) in self.slots.iter() {
                self.engine.clear(slot);
            }
            self.slots = Slots::new(epoch.sequences);
            self.opened.clear();
            self.early.clear();
            self.epoch = Some(*epoch);
            return Ok(());
        }
        let Some(last) = self.epoch.as_ref().map(|e| e.last) else {
            return Ok(());
        };
        let spans = match &job {
            Job::Embed(lap) => &lap.spans[..],
            Job::Lap(lap) => &lap.spans,
            _ => &[],
        };
        if last && !self.all_open(spans) {
            self.early.push_back(job);
            return Ok(());
        }
        match job {
            Job::Begin(_) => Ok(()),
            Job::Embed(lap) => self.embed(lap, last),
            Job::Lap(lap) => self.arrived(lap, last),
            Job::Open(open) => self.open(&open),
            Job::Close { sequence } => {
                if let Some(slot) = self.slots.close(sequence) {
                    self.engine.clear(slot);
                }
                self.opened.remove(&sequence);
                self.forward(Frame::Close { sequence }, last)
            }
            Job::Fork { parent, child, length } => {
                if let Some(from) = self.slots.get(parent) {
                    let (to, _) = self.slots.of(child)?;
                    self.engine.copy(from, to, length)?;
                }
                self.forward(Frame::Fork { parent, child, length }, last)
            }
            Job::Truncate { sequence, length } => {
                if let Some(slot) = self.slots.get(sequence) {
                    self.engine.truncate(slot, length)?;
                }
                self.forward(Frame::Truncate { sequence, length }, last)
            }
        }
    }

    /// Control frames stop at the last rank.
    fn forward(&mut self, frame: Frame, last: bool) -> Result<(), Fault> {
        if last { Ok(()) } else { self.send(frame) }
    }

    fn send(&self, frame: Frame) -> Result<(), Fault> {
        match &self.epoch {
            Some(epoch) => Ok(self.runtime.block_on(epoch.successor.send(frame))?),
            None => Ok(()),
        }
    }

    fn all_open(&self, spans: &[Span]) -> bool {
        spans.iter().all(|s| self.opened.contains_key(&s.sequence))
    }

    fn embed(&mut self, lap: Outgoing, last: bool) -> Result<(), Fault> {
        let start = Instant::now();
        self.engine.embed(&lap.tokens, &mut self.rows_in)?;
        let lap = Lap {
            id: lap.id,
            kind: lap.kind,
            compute_us: 0,
            spans: lap.spans,
            hidden: Bytes::new(),
        };
        self.compute(lap, last, start)
    }

    fn arrived(&mut self, lap: Lap, last: bool) -> Result<(), Fault> {
        match lap.kind {
            LapKind::Hello if last => self.send(Frame::Tokens(Tokens {
                lap: lap.id,
                compute_us: 0,
                sampled: Vec::new(),
            })),
            LapKind::Hello => self.send(Frame::Lap(lap)),
            LapKind::Prefill | LapKind::Decode => {
                let start = Instant::now();
                self.decode_rows(&lap)?;
                self.compute(lap, last, start)
            }
        }
    }

    /// The rows of `lap` lie in `rows_in`.
    fn compute(&mut self, lap: Lap, last: bool, start: Instant) -> Result<(), Fault> {
        if last {
            self.finish(&lap, start)
        } else {
            self.run_window(lap, start)
        }
    }

    fn run_window(&mut self, lap: Lap, start: Instant) -> Result<(), Fault> {
        let spans = self.slot_spans(&lap.spans)?;
        self.engine.run(&spans, &self.rows_in, &mut self.rows_out)?;
        let hidden = encode(self.boundary_type(), self.engine.embedding_length(), &self.rows_out)?;
        let compute_us = lap.compute_us.saturating_add(micros(start));
        self.send(Frame::Lap(Lap {
            compute_us,
            hidden,
            ..lap
        }))
    }

    fn open(&mut self, open: &Open) -> Result<(), Fault> {
        let opened = Opened {
            prompt_len: open.prompt.len() as u32,
            sampler: self.engine.sampler(&open.sampling, &open.prompt),
            all_logits: open.sampling.logits,
        };
        self.opened.insert(open.sequence, opened);
        for job in std::mem::take(&mut self.early) {
            self.take(job)?;
        }
        Ok(())
    }

    /// The last rank's part: window, head, one token for each sequence whose prompt is through.
    fn finish(&mut self, lap: &Lap, start: Instant) -> Result<(), Fault> {
        let spans = self.slot_spans(&lap.spans)?;
        let (mut want, mut wanted, mut row) = (Vec::new(), Vec::new(), 0);
        for span in &lap.spans {
            row += span.count;
            let prompt_len = self.opened.get(&span.sequence).map_or(0, |o| o.prompt_len);
            if span.position + span.count >= prompt_len {
                want.push(row - 1);
                wanted.push((span.sequence, span.position + span.count));
            }
        }
        self.engine
            .run_logits(&spans, &self.rows_in, &want, &mut self.rows_out)?;
        let mut sampled = Vec::with_capacity(wanted.len());
        let width = self.rows_out.len() / wanted.len().max(1);
        for ((sequence, position), logits) in wanted.into_iter().zip(self.rows_out.chunks_mut(width.max(1))) {
            let Some(opened) = self.opened.get_mut(&sequence) else {
                continue;
            };
            let raw = if opened.all_logits {
                encode(BoundaryType::F32, logits.len(), logits)?
            } else {
                Bytes::new()
            };
            let choice = match &mut opened.sampler {
                Ok(sampler) => sampler.sample(logits, position),
                Err(text) => failed(position, text.clone()),
            };
            sampled.push(Sampled {
                sequence,
                logits: raw,
                ..choice
            });
        }
        let compute_us = lap.compute_us.saturating_add(micros(start));
        self.send(Frame::Tokens(Tokens {
            lap: lap.id,
            compute_us,
            sampled,
        }))
    }

    fn decode_rows(&mut self, lap: &Lap) -> Result<(), Fault> {
        let rows: usize = lap.spans.iter().map(|s| s.count as usize).sum();
        self.rows_in.resize(rows * self.engine.embedding_length(), 0.0);
        Ok(boundary::decode(self.boundary_type(), &lap.hidden, &mut self.rows_in)?)
    }

    fn boundary_type(&self) -> BoundaryType {
        self.epoch.as_ref().map_or(BoundaryType::F32, |e| e.boundary_type)
    }

    fn slot_spans(&mut self, spans: &[Span]) -> Result<Vec<SlotSpan>, Fault> {
        let mut out = Vec::with_capacity(spans.len());
        for span in spans {
            let (slot, fresh) = self.slots.of(span.sequence)?;
            if fresh {
                self.engine.clear(slot);
            }
            out.push(SlotSpan {
                slot,
                position: span.position,
                count: span.count,
            });
        }
        Ok(out)
    }
}

fn encode(boundary_type: BoundaryType, width: usize, values: &[f32]) -> Result<Bytes, Fault> {
    let rows = values.len() / width.max(1);
    let mut bytes = vec![0; rows * boundary::row_bytes(boundary_type, width as u32)?];
    boundary::encode(boundary_type, values, &mut bytes)?;
    Ok(bytes.into())
}

/// What the last rank answers when a sequence has no token.
pub(crate) fn failed(position: u32, error: String) -> Sampled {
    Sampled {
        sequence: 0,
        position,
        token: -1,
        logprob: 0.0,
        top: Vec::new(),
        logits: Bytes::new(),
        error,
    }
}

fn micros(since: Instant) -> u32 {
    u32::try_from(since.elapsed().as_micros()).unwrap_or(u32::MAX)
}
