//! What can go wrong between this crate and llama.cpp, in words for the person who runs the stage.

use std::path::PathBuf;

/// Why a model could not be loaded or run.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// the build needs instructions that this CPU lacks
    #[error("this CPU lacks {missing}, which this build needs: run it on a newer machine or build for this one")]
    UnsupportedCpu {
        /// the instruction sets, comma-separated
        missing: String,
    },
    /// exact windows need a process that was started for them
    #[error("exact windows need a backend in exact mode, and this process has initialised it in fast mode")]
    NotExact,
    /// a field of [`crate::WindowOptions`] can't be honoured
    #[error("{field} is {value}: {rule}")]
    Option {
        /// field
        field: &'static str,
        /// what it was
        value: u64,
        /// what it has to be
        rule: &'static str,
    },
    /// exact windows keep their cache unquantised
    #[error("an exact window needs cacheType F16: a quantised cache needs flash attention, which is not exact")]
    ExactCache,
    /// the file can't be opened or read
    #[error("cannot read {}", path.display())]
    Read {
        /// file
        path: PathBuf,
        /// cause
        #[source]
        source: std::io::Error,
    },
    /// the path can't be handed to llama.cpp
    #[error("the path {} holds a zero byte", path.display())]
    Path {
        /// file
        path: PathBuf,
    },
    /// not a GGUF file, or a damaged one
    #[error("{} is not a whole GGUF file: {detail}", path.display())]
    NotGguf {
        /// file
        path: PathBuf,
        /// what is wrong with it
        detail: String,
    },
    /// llama.cpp refuses the file
    #[error("cannot load {}: {detail}", path.display())]
    Load {
        /// file
        path: PathBuf,
        /// llama.cpp's last words
        detail: String,
    },
    /// llama.cpp can't make room to run the file
    #[error("cannot make a context for {}: {detail}", path.display())]
    Context {
        /// file
        path: PathBuf,
        /// llama.cpp's last words
        detail: String,
    },
    /// the file holds no vocabulary
    #[error("{} holds no vocabulary", path.display())]
    NoVocabulary {
        /// file
        path: PathBuf,
    },
    /// rows were asked of a window that gives logits, or the other way round
    #[error("this window was loaded to give {gives}")]
    Output {
        /// what it gives
        gives: &'static str,
    },
    /// slots are numbered from 0
    #[error("slot {slot} is out of range: this window has {sequences}")]
    Slot {
        /// asked for
        slot: u32,
        /// how many there are
        sequences: u32,
    },
    /// a slot stands at most once in a batch
    #[error("slot {slot} stands twice in one batch")]
    DuplicateSlot {
        /// slot
        slot: u32,
    },
    /// a span without rows
    #[error("the span of slot {slot} has no rows")]
    EmptySpan {
        /// slot
        slot: u32,
    },
    /// positions must go on where the slot ended
    #[error("slot {slot} holds {held} positions, so it can't go on at {position}")]
    Position {
        /// slot
        slot: u32,
        /// positions held
        held: u32,
        /// position asked for
        position: u32,
    },
    /// the sequence is longer than the context
    #[error("slot {slot} would grow to {length} positions, and its context holds {context_length}")]
    ContextFull {
        /// slot
        slot: u32,
        /// positions it would hold
        length: u64,
        /// positions that fit
        context_length: u32,
    },
    /// the batch is bigger than the window was loaded for
    #[error("{rows} rows in one batch: this window takes {limit}")]
    TooManyRows {
        /// rows
        rows: u64,
        /// limit
        limit: u32,
    },
    /// input and spans don't match
    #[error("{got} values came in, {expected} expected")]
    InputLength {
        /// values
        got: usize,
        /// values expected
        expected: usize,
    },
    /// a token id that the model does not have
    #[error("token {token} is out of range: the vocabulary has {vocabulary}")]
    Token {
        /// id
        token: i32,
        /// how many there are
        vocabulary: usize,
    },
    /// a wanted row that the batch does not have
    #[error("row {row} is wanted, and the batch has {rows}")]
    WantedRow {
        /// row
        row: u32,
        /// rows of the batch
        rows: usize,
    },
    /// infinity or not-a-number in the hidden states that came in
    #[error("the hidden state of row {row} is not finite")]
    InputNotFinite {
        /// row of the batch
        row: usize,
    },
    /// infinity or not-a-number in what was computed
    #[error("the computed row {row} is not finite: the weights are damaged, or the hidden states were")]
    OutputNotFinite {
        /// row of the batch
        row: usize,
    },
    /// this architecture does not name the residual of its last layer
    #[error(
        "architecture {architecture} gave {got} values at {tensor}, {expected} expected: it can't be run in windows"
    )]
    NoBoundary {
        /// architecture
        architecture: String,
        /// tensor that holds the boundary
        tensor: String,
        /// values captured
        got: usize,
        /// values expected
        expected: usize,
    },
    /// the node that the hidden states are to be written over did not come, or is of another shape
    #[error("architecture {architecture} took {got} of {expected} values at {tensor}: it can't be run in windows")]
    NoInput {
        /// architecture
        architecture: String,
        /// the node
        tensor: String,
        /// values taken
        got: usize,
        /// values there
        expected: usize,
    },
    /// llama.cpp could not compute the batch; what the slots in it held from the batch's positions on is gone
    #[error("llama.cpp could not compute the batch (code {code}): {detail}")]
    Decode {
        /// llama.cpp's code
        code: i32,
        /// llama.cpp's last words
        detail: String,
    },
    /// a cache can't forget just its last positions
    #[error("slot {slot} can't be cut from {held} to {length} positions: {why}")]
    Truncate {
        /// slot
        slot: u32,
        /// positions held
        held: u32,
        /// positions to keep
        length: u32,
        /// why
        why: &'static str,
    },
    /// more positions than the slot holds
    #[error("slot {slot} holds {held} positions, {length} can't be kept")]
    Length {
        /// slot
        slot: u32,
        /// positions held
        held: u32,
        /// positions to keep
        length: u32,
    },
}

impl EngineError {
    /// Stable `PascalCase` word for metrics, events and conditions.
    pub fn reason(&self) -> &'static str {
        match self {
            EngineError::UnsupportedCpu { .. } => "UnsupportedCpu",
            EngineError::NotExact => "NotExact",
            EngineError::Option { .. } | EngineError::ExactCache => "InvalidOption",
            EngineError::Read { .. } | EngineError::Path { .. } => "Unreadable",
            EngineError::NotGguf { .. } => "NotGguf",
            EngineError::Load { .. } => "LoadFailed",
            EngineError::Context { .. } => "ContextFailed",
            EngineError::NoVocabulary { .. } => "NoVocabulary",
            EngineError::Output { .. } => "WrongOutput",
            EngineError::Slot { .. } | EngineError::DuplicateSlot { .. } | EngineError::EmptySpan { .. } => {
                "InvalidSpan"
            }
            EngineError::Position { .. } | EngineError::Length { .. } => "PositionMismatch",
            EngineError::ContextFull { .. } => "ContextFull",
            EngineError::TooManyRows { .. } => "TooManyRows",
            EngineError::InputLength { .. } | EngineError::Token { .. } | EngineError::WantedRow { .. } => {
                "InvalidInput"
            }
            EngineError::InputNotFinite { .. } | EngineError::OutputNotFinite { .. } => "NotFinite",
            EngineError::NoBoundary { .. } | EngineError::NoInput { .. } => "UnsupportedArchitecture",
            EngineError::Decode { .. } => "DecodeFailed",
            EngineError::Truncate { .. } => "CannotTruncate",
        }
    }
}
