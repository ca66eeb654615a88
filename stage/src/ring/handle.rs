//! What the API at rank 0 knows of the ring: submit a prompt, take its tokens, drop the stream to cancel.

use kvasir_wire::frame::{Sampled, Sampling};
use tokio::sync::mpsc;

/// A prompt to go on with. The caller has checked that it fits `Limits::context_length`.
#[derive(Clone, Debug)]
pub struct Generate {
    /// prompt tokens, at least one
    pub prompt: Vec<i32>,
    /// tokens to generate at most, at least one; the ring stops earlier when the context is full
    pub max_tokens: u32,
    /// how to sample
    pub sampling: Sampling,
    /// token ids that end the text (end of generation); the token itself is still delivered
    pub stop_tokens: Vec<i32>,
}

/// What a sequence's stream delivers, in order; nothing follows `Done` or `Failed`.
#[derive(Clone, Debug)]
pub enum Event {
    /// prompt positions computed so far, of the whole prompt
    Prefilled {
        /// positions computed
        done: u32,
        /// positions of the prompt
        total: u32,
    },
    /// the next token
    Token(Sampled),
    /// the last token was delivered
    Done(Finish),
    /// no more tokens will come
    Failed(RingError),
}

/// Why a text ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// a stop token
    Stop,
    /// `max_tokens`, or the context is full
    Length,
}

/// Why the ring can't serve; `reason` is the word used in metrics, events and conditions.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RingError {
    /// not formed yet, or being formed again
    #[error("the ring is not ready: {detail}")]
    NotReady {
        /// which layers or links are missing
        detail: String,
    },
    /// a stage or link was lost while the sequence ran
    #[error("the ring lost a stage: {detail}")]
    StageLost {
        /// which
        detail: String,
    },
    /// a stage's engine gave up while the sequence ran: damaged weights, a fault of the device
    #[error("a stage's engine failed: {detail}")]
    EngineFailed {
        /// which, and why
        detail: String,
    },
    /// the sampler could not go on
    #[error("sampling failed: {detail}")]
    Sampling {
        /// why
        detail: String,
    },
    /// as many requests wait as the queue holds
    #[error("the ring is busy: {waiting} requests wait already")]
    Busy {
        /// requests that wait
        waiting: usize,
    },
    /// the process is shutting down
    #[error("the server is shutting down")]
    Draining,
}

impl RingError {
    /// Stable `PascalCase` word for metrics, events and conditions.
    pub fn reason(&self) -> &'static str {
        match self {
            RingError::NotReady { .. } => "NotReady",
            RingError::StageLost { .. } => "StageLost",
            RingError::EngineFailed { .. } => "EngineFailed",
            RingError::Sampling { .. } => "SamplingFailed",
            RingError::Busy { .. } => "Busy",
            RingError::Draining => "Draining",
        }
    }
}

/// What the API must respect.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// positions of one sequence, prompt and answer together
    pub context_length: u32,
    /// sequences at once
    pub sequences: u32,
}

/// The API's door to the ring. The scheduler implements it; tests of the API script it.
#[async_trait::async_trait]
pub trait Ring: Send + Sync + 'static {
    /// Queues a prompt. The stream ends with `Done` or `Failed`; dropping it cancels and frees the sequence on every stage.
    async fn submit(&self, request: Generate) -> Result<mpsc::Receiver<Event>, RingError>;
    /// `Ok` when a lap has gone round and the ring serves.
    fn ready(&self) -> Result<(), RingError>;
    /// What requests must respect.
    fn limits(&self) -> Limits;
}
