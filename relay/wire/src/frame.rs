//! Frames of version 1: what two neighbouring ranks say to each other.
//!
//! Forward (rank r → r+1): hello, lap, close, fork, truncate, drain, ping, report, replay; on the closing edge
//! (last rank → rank 0) also tokens. Backward on the closing edge (rank 0 → last rank): open. Middle ranks see
//! sequence ids, positions and hidden states, nothing else.

use bytes::Bytes;
use kvasir_plan::BoundaryType;
use serde::{Deserialize, Serialize};

/// Protocol version that the first frame says.
pub const VERSION: u16 = 1;

/// First frame in each direction on an edge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// protocol version, [`VERSION`]
    pub version: u16,
    /// ring's name
    pub ring: String,
    /// membership's generation
    pub epoch: u64,
    /// rank of the sender
    pub rank: u32,
    /// model identity, text form
    pub identity: String,
    /// width of a hidden state
    pub embedding_length: u32,
    /// how hidden states travel
    pub boundary_type: BoundaryType,
}

/// A run of rows of one sequence within a lap: positions `position..position+count`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// opaque sequence id, unique for the life of the epoch
    pub sequence: u64,
    /// first position
    pub position: u32,
    /// rows, ≥ 1
    pub count: u32,
}

/// What a lap carries; decode laps overtake prefill laps between pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum LapKind {
    /// no rows: it proves that the ring is closed
    Hello,
    /// a chunk of one sequence's prompt: one span
    Prefill,
    /// the same number of rows of each of several sequences
    Decode,
}

/// One microbatch on its way round the ring.
#[derive(Clone, Debug, PartialEq)]
pub struct Lap {
    /// number that rank 0 gave it, unique for the life of the epoch
    pub id: u64,
    /// what it carries
    pub kind: LapKind,
    /// time that engines have spent on it so far, in microseconds
    pub compute_us: u32,
    /// which rows, in order of `hidden`
    pub spans: Vec<Span>,
    /// rows × embedding length values in the ring's boundary type, row-major, little-endian
    pub hidden: Bytes,
}

/// One sampled token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sampled {
    /// sequence
    pub sequence: u64,
    /// position that the token takes
    pub position: u32,
    /// token id
    pub token: i32,
    /// its log-probability under the model's own distribution (temperature 1, before any filter); 0 unless asked for
    pub logprob: f32,
    /// most likely tokens and their log-probabilities, best first; empty unless asked for
    pub top: Vec<(i32, f32)>,
    /// the whole row of logits, f32 little-endian; empty unless asked for
    pub logits: Bytes,
    /// why the sampler gave no token (a grammar that no token can satisfy, say); empty when it did
    pub error: String,
}

/// A lap that came home: what the last rank sampled from it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tokens {
    /// lap's number
    pub lap: u64,
    /// time that engines and sampler spent on it, in microseconds
    pub compute_us: u32,
    /// tokens, one for each sequence whose last row was in the lap
    pub sampled: Vec<Sampled>,
}

/// A grammar that the sampled text must follow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Grammar {
    /// GBNF, root symbol `root`
    Gbnf(String),
    /// a JSON schema, as JSON text
    JsonSchema(String),
}

/// How the last rank picks a token. Defaults sample from the model's plain distribution.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// 0 is greedy
    pub temperature: f32,
    /// keep the k likeliest; 0 keeps all
    pub top_k: u32,
    /// keep the likeliest whose probabilities sum to p; 1 keeps all
    pub top_p: f32,
    /// keep what is at least this share of the likeliest; 0 keeps all
    pub min_p: f32,
    /// divides (positive) or multiplies (negative) logits of tokens in the window of the last `penalty_last` tokens; 1 is off
    pub repetition_penalty: f32,
    /// subtracted once from tokens seen in the answer so far; 0 is off
    pub presence_penalty: f32,
    /// subtracted for each time a token was seen in the answer so far; 0 is off
    pub frequency_penalty: f32,
    /// tokens that `repetition_penalty` looks back at
    pub penalty_last: u32,
    /// with the position, the only source of chance
    pub seed: u64,
    /// likeliest tokens to report; none: no log-probabilities at all
    pub top_logprobs: Option<u8>,
    /// report whole rows of logits (tests, benches)
    pub logits: bool,
    /// added to single tokens' logits
    pub logit_bias: Vec<(i32, f32)>,
    /// constrains the text
    pub grammar: Option<Grammar>,
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            penalty_last: 64,
            seed: 0,
            top_logprobs: None,
            logits: false,
            logit_bias: Vec::new(),
            grammar: None,
        }
    }
}

/// Rank 0 → last rank, backwards over the closing edge: a sequence begins.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Open {
    /// sequence
    pub sequence: u64,
    /// the prompt's tokens: the first token is sampled at position `prompt.len()`, and penalties see them
    pub prompt: Vec<i32>,
    /// how to sample
    pub sampling: Sampling,
}

/// All frames of version 1.
#[derive(Clone, Debug, PartialEq)]
pub enum Frame {
    /// first in each direction
    Hello(Hello),
    /// hidden states
    Lap(Lap),
    /// sampled tokens, last rank → rank 0
    Tokens(Tokens),
    /// a sequence begins, rank 0 → last rank
    Open(Open),
    /// a sequence ended and none of its laps is in flight: free its slot, pass on
    Close {
        /// sequence
        sequence: u64,
    },
    /// `child` starts as a copy of `parent`'s first `length` positions; pass on
    Fork {
        /// sequence to copy
        parent: u64,
        /// new sequence
        child: u64,
        /// positions to keep
        length: u32,
    },
    /// forget positions from `length` on; pass on
    Truncate {
        /// sequence
        sequence: u64,
        /// positions to keep
        length: u32,
    },
    /// after an epoch change: positions that the sender has computed, by sequence
    Report {
        /// `(sequence, positions computed)`
        computed: Vec<(u64, u32)>,
    },
    /// the successor asks for boundaries from `position` on, out of the log
    Replay {
        /// sequence
        sequence: u64,
        /// first position wanted
        position: u32,
    },
    /// the sender leaves once what it has is passed on
    Drain,
    /// liveness; `reply` marks an answer
    Ping {
        /// echoed in the answer
        nonce: u64,
        /// true for an answer
        reply: bool,
    },
    /// the engine of a stage gave up, so that the epoch ends: each stage passes it on before it closes its edges
    Failed {
        /// rank of that stage
        rank: u32,
        /// why, in words for people
        detail: String,
    },
}

/// What a frame is; its number is the first byte of a frame on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// [`Frame::Hello`]
    Hello = 1,
    /// [`Frame::Lap`]
    Lap = 2,
    /// [`Frame::Tokens`]
    Tokens = 3,
    /// [`Frame::Open`]
    Open = 4,
    /// [`Frame::Close`]
    Close = 5,
    /// [`Frame::Fork`]
    Fork = 6,
    /// [`Frame::Truncate`]
    Truncate = 7,
    /// [`Frame::Report`]
    Report = 8,
    /// [`Frame::Replay`]
    Replay = 9,
    /// [`Frame::Drain`]
    Drain = 10,
    /// [`Frame::Ping`]
    Ping = 11,
    /// [`Frame::Failed`]
    Failed = 12,
}

impl Kind {
    /// All kinds of version 1, in the order of their numbers.
    pub const ALL: [Kind; 12] = [
        Kind::Hello,
        Kind::Lap,
        Kind::Tokens,
        Kind::Open,
        Kind::Close,
        Kind::Fork,
        Kind::Truncate,
        Kind::Report,
        Kind::Replay,
        Kind::Drain,
        Kind::Ping,
        Kind::Failed,
    ];

    /// The kind with this number, if version 1 knows it.
    pub fn from_number(number: u8) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| *kind as u8 == number)
    }
}

impl Frame {
    /// What this frame is.
    pub fn kind(&self) -> Kind {
        match self {
            Frame::Hello(_) => Kind::Hello,
            Frame::Lap(_) => Kind::Lap,
            Frame::Tokens(_) => Kind::Tokens,
            Frame::Open(_) => Kind::Open,
            Frame::Close { .. } => Kind::Close,
            Frame::Fork { .. } => Kind::Fork,
            Frame::Truncate { .. } => Kind::Truncate,
            Frame::Report { .. } => Kind::Report,
            Frame::Replay { .. } => Kind::Replay,
            Frame::Drain => Kind::Drain,
            Frame::Ping { .. } => Kind::Ping,
            Frame::Failed { .. } => Kind::Failed,
        }
    }
}
