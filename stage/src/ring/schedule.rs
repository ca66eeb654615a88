//! Rank 0's scheduler: which lap goes next. Pure: the head feeds it events and carries out its actions.
//!
//! At most `max_laps` laps are on their way at once, and every stage's inbox holds as many, so no send in the ring
//! ever waits for a full queue. Decode laps carry every sequence that has a token to go on with; prompts go in
//! chunks, and while both wait the two kinds alternate, so that a long prompt doesn't silence running answers.

use std::collections::{BTreeMap, HashMap, VecDeque};

use kvasir_wire::frame::{LapKind, Open, Span, Tokens};

use super::handle::{Event, Finish, Generate, RingError};

/// The numbers of the manifest that scheduling respects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// laps in flight at most
    pub max_laps: usize,
    /// rows in one lap at most
    pub max_lap_tokens: u32,
    /// sequences at once
    pub sequences: usize,
    /// positions of one sequence
    pub context_length: u32,
    /// requests that may wait for a sequence
    pub queue: usize,
}

/// A lap that rank 0 is to embed, run and send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// the lap's number
    pub id: u64,
    /// prompt chunk or answers
    pub kind: LapKind,
    /// which rows
    pub spans: Vec<Span>,
    /// one token a row
    pub tokens: Vec<i32>,
}

/// What the head is to do next, in this order.
#[derive(Clone, Debug)]
pub enum Action {
    /// send backwards to the last rank
    Open(Open),
    /// run rank 0's window on it and send it on
    Lap(Outgoing),
    /// free the sequence on every stage
    Close {
        /// which
        sequence: u64,
    },
    /// hand to the client
    Deliver {
        /// which
        sequence: u64,
        /// what
        event: Event,
    },
}

/// What the last rank sent that can't be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// a lap came home that isn't on its way
    #[error("lap {0} came home, but it was not on its way")]
    UnknownLap(u64),
    /// a token for a sequence that its lap didn't carry
    #[error("lap {lap} brought a token for sequence {sequence} at position {position}, which it did not carry")]
    ForeignToken {
        /// lap
        lap: u64,
        /// sequence named
        sequence: u64,
        /// position named
        position: u32,
    },
}

#[derive(Debug)]
struct Sequence {
    request: Generate,
    /// prompt positions sent so far
    sent: u32,
    /// the sampled token that was not sent yet, and the position it takes
    next: Option<(i32, u32)>,
    generated: u32,
    in_flight: u32,
    /// no more laps; closed once none is in flight
    ending: bool,
}

impl Sequence {
    fn prompt_left(&self) -> u32 {
        self.request.prompt.len() as u32 - self.sent
    }
}

/// Sequences, laps in flight and what is to be done about them.
#[derive(Debug)]
pub struct Scheduler {
    shape: Shape,
    /// by id, which is also the order of admission
    active: BTreeMap<u64, Sequence>,
    waiting: VecDeque<(u64, Generate)>,
    in_flight: HashMap<u64, (LapKind, Vec<Span>)>,
    actions: VecDeque<Action>,
    next_sequence: u64,
    next_lap: u64,
    last_kind: LapKind,
    /// positions that came home since the start, over all epochs
    committed: u64,
}

impl Scheduler {
    /// An idle ring of this shape.
    pub fn new(shape: Shape) -> Self {
        Scheduler {
            shape,
            active: BTreeMap::new(),
            waiting: VecDeque::new(),
            in_flight: HashMap::new(),
            actions: VecDeque::new(),
            next_sequence: 1,
            next_lap: 1,
            last_kind: LapKind::Prefill,
            committed: 0,
        }
    }

    /// Queues a prompt and gives it its sequence id.
    pub fn submit(&mut self, request: Generate) -> Result<u64, RingError> {
        if self.waiting.len() >= self.shape.queue {
            return Err(RingError::Busy {
                waiting: self.waiting.len(),
            });
        }
        let id = self.next_sequence;
        self.next_sequence += 1;
        self.waiting.push_back((id, request));
        Ok(id)
    }

    /// The client went away: no more laps for this sequence, and its slots are freed.
    pub fn cancel(&mut self, sequence: u64) {
        self.waiting.retain(|(id, _)| *id != sequence);
        if let Some(s) = self.active.get_mut(&sequence) {
            s.ending = true;
        }
    }

    /// Forgets a sequence whose [`Action::Open`] was not carried out: no stage knows it, and none is told of its end.
    pub fn forget(&mut self, sequence: u64) {
        self.active.remove(&sequence);
    }

    /// Forgets everything, because the ring is no more. The ids of all sequences that were promised an answer.
    pub fn reset(&mut self) -> Vec<u64> {
        let ids = self.active.iter().filter(|(_, s)| !s.ending).map(|(id, _)| *id);
        let ids = ids.chain(self.waiting.iter().map(|(id, _)| *id)).collect();
        self.active.clear();
        self.waiting.clear();
        self.in_flight.clear();
        self.actions.clear();
        ids
    }

    /// Laps on their way.
    pub fn laps_in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Sequences that run and requests that wait.
    pub fn load(&self) -> (usize, usize) {
        (self.active.len(), self.waiting.len())
    }

    /// Positions that came home since the start, over all epochs: those of prompts, and each generated token's.
    pub fn committed(&self) -> u64 {
        self.committed
    }

    /// A lap came home with what was sampled from it.
    pub fn home(&mut self, tokens: &Tokens) -> Result<(), ScheduleError> {
        let (kind, spans) = self
            .in_flight
            .remove(&tokens.lap)
            .ok_or(ScheduleError::UnknownLap(tokens.lap))?;
        for span in &spans {
            if kind == LapKind::Prefill {
                self.committed += u64::from(span.count);
            }
            if let Some(s) = self.active.get_mut(&span.sequence) {
                s.in_flight -= 1;
                if kind == LapKind::Prefill && !s.ending {
                    let (done, total) = (span.position + span.count, s.request.prompt.len() as u32);
                    let event = Event::Prefilled { done, total };
                    self.actions.push_back(Action::Deliver {
                        sequence: span.sequence,
                        event,
                    });
                }
            }
        }
        for sampled in &tokens.sampled {
            let carried = spans
                .iter()
                .any(|s| s.sequence == sampled.sequence && s.position + s.count == sampled.position);
            if !carried {
                let (sequence, position) = (sampled.sequence, sampled.position);
                return Err(ScheduleError::ForeignToken {
                    lap: tokens.lap,
                    sequence,
                    position,
                });
            }
            let Some(s) = self.active.get_mut(&sampled.sequence) else {
                continue;
            };
            if s.ending {
                continue;
            }
            let sequence = sampled.sequence;
            let mut deliver = |event| self.actions.push_back(Action::Deliver { sequence, event });
            if !sampled.error.is_empty() {
                s.ending = true;
                deliver(Event::Failed(RingError::Sampling {
                    detail: sampled.error.clone(),
                }));
                continue;
            }
            s.generated += 1;
            self.committed += 1;
            deliver(Event::Token(sampled.clone()));
            if s.request.stop_tokens.contains(&sampled.token) {
                s.ending = true;
                deliver(Event::Done(Finish::Stop));
            } else if s.generated >= s.request.max_tokens || sampled.position >= self.shape.context_length {
                s.ending = true;
                deliver(Event::Done(Finish::Length));
            } else {
                s.next = Some((sampled.token, sampled.position));
            }
        }
        Ok(())
    }

    /// The next thing to do; `None` until something else happens.
    pub fn poll(&mut self) -> Option<Action> {
        if let Some(action) = self.actions.pop_front() {
            return Some(action);
        }
        let ended = self
            .active
            .iter()
            .find(|(_, s)| s.ending && s.in_flight == 0)
            .map(|(id, _)| *id);
        if let Some(sequence) = ended {
            self.active.remove(&sequence);
            return Some(Action::Close { sequence });
        }
        if self.in_flight.len() >= self.shape.max_laps {
            return None;
        }
        // Not before there is room for its lap: a sequence that is closed without one costs the stages a frame for nothing,
        // and their inboxes are as large as the laps on their way let them be.
        if self.active.len() < self.shape.sequences
            && let Some((sequence, request)) = self.waiting.pop_front()
        {
            let open = Open {
                sequence,
                prompt: request.prompt.clone(),
                sampling: request.sampling.clone(),
            };
            let fresh = Sequence {
                request,
                sent: 0,
                next: None,
                generated: 0,
                in_flight: 0,
                ending: false,
            };
            self.active.insert(sequence, fresh);
            return Some(Action::Open(open));
        }
        let lap = if self.last_kind == LapKind::Prefill {
            self.decode_lap().or_else(|| self.prefill_lap())
        } else {
            self.prefill_lap().or_else(|| self.decode_lap())
        }?;
        self.last_kind = lap.kind;
        self.in_flight.insert(lap.id, (lap.kind, lap.spans.clone()));
        Some(Action::Lap(lap))
    }

    fn decode_lap(&mut self) -> Option<Outgoing> {
        let (mut spans, mut tokens) = (Vec::new(), Vec::new());
        for (&sequence, s) in self.active.iter_mut().filter(|(_, s)| !s.ending) {
            if tokens.len() as u32 == self.shape.max_lap_tokens {
                break;
            }
            if let Some((token, position)) = s.next.take() {
                spans.push(Span {
                    sequence,
                    position,
                    count: 1,
                });
                tokens.push(token);
                s.in_flight += 1;
            }
        }
        (!spans.is_empty()).then(|| self.number(LapKind::Decode, spans, tokens))
    }

    fn prefill_lap(&mut self) -> Option<Outgoing> {
        let (&sequence, s) = self.active.iter_mut().find(|(_, s)| !s.ending && s.prompt_left() > 0)?;
        let (position, count) = (s.sent, s.prompt_left().min(self.shape.max_lap_tokens));
        s.sent += count;
        s.in_flight += 1;
        let tokens = s.request.prompt[position as usize..][..count as usize].to_vec();
        Some(self.number(
            LapKind::Prefill,
            vec![Span {
                sequence,
                position,
                count,
            }],
            tokens,
        ))
    }

    fn number(&mut self, kind: LapKind, spans: Vec<Span>, tokens: Vec<i32>) -> Outgoing {
        let id = self.next_lap;
        self.next_lap += 1;
        Outgoing {
            id,
            kind,
            spans,
            tokens,
        }
    }
}
