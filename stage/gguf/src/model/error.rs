//! Why prefixes make no model, in words for who has to find a better file.

use std::path::PathBuf;

use crate::metadata::Metadata;
use crate::prefix;
use crate::size::Bytes;
use crate::tensor::TensorType;

/// Why prefixes make no model.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// a prefix can't be read
    #[error("part {part} can't be read")]
    Prefix {
        /// part, from 1
        part: usize,
        /// what is wrong with it
        #[source]
        source: prefix::Error,
    },
    /// a file can't be read
    #[error("{path} can't be read")]
    Io {
        /// which
        path: PathBuf,
        /// why
        #[source]
        source: std::io::Error,
    },
    /// a file ends before its prefix or its tensors do
    #[error("part {part} has {} and needs {} ({what}): download it again", Bytes(*.size), Bytes(*.needed))]
    Incomplete {
        /// part, from 1
        part: usize,
        /// bytes there
        size: u64,
        /// bytes needed
        needed: u64,
        /// what ends there
        what: String,
    },
    /// a GGUF that goes beside a model, or is made of one
    #[error("it is {what} and no language model: point to {instead}")]
    NoModel {
        /// what it is
        what: &'static str,
        /// what to use in its place
        instead: &'static str,
    },
    /// a key is missing, or has another value than llama.cpp can use
    #[error("metadata key {key} is {}: it should be {expected}", .found.as_deref().unwrap_or("missing"))]
    Key {
        /// which
        key: String,
        /// what it has to be
        expected: &'static str,
        /// what it is, unless it isn't there
        found: Option<String>,
    },
    /// a per-layer array of another length than there are blocks
    #[error("metadata key {key} has {found} values for {blocks} blocks")]
    ArrayLength {
        /// which
        key: String,
        /// values there
        found: usize,
        /// blocks of the model
        blocks: u32,
    },
    /// a tensor name that an earlier part has too
    #[error("tensor {name} is in part {first} and again in part {second}")]
    Duplicate {
        /// which
        name: String,
        /// part, from 1
        first: usize,
        /// part, from 1
        second: usize,
    },
    /// parts that don't belong together
    #[error("part {part} doesn't fit the others: {problem}")]
    Parts {
        /// part, from 1
        part: usize,
        /// what doesn't fit
        problem: String,
    },
    /// a tensor of a block that isn't there
    #[error("tensor {name} belongs to block {layer}, and the model has {blocks}")]
    NoSuchBlock {
        /// which
        name: String,
        /// its block
        layer: u32,
        /// blocks of the model
        blocks: u32,
    },
    /// a tensor that doesn't lie behind the one before it
    #[error(
        "tensor {name} lies at byte {offset} of the data and should lie at {expected}, behind the one before it: the file is \
         damaged"
    )]
    Misplaced {
        /// which
        name: String,
        /// first byte in the data section
        offset: u64,
        /// where llama.cpp takes it to be
        expected: u64,
    },
    /// a block without tensors
    #[error("the model is said to have {blocks} blocks, and there is no tensor of block {block}")]
    EmptyBlock {
        /// which
        block: u32,
        /// blocks of the model
        blocks: u32,
    },
    /// a layer that is taken for an MTP block
    #[error("block {block} counts as an MTP block (nextn_predict_layers) and has no nextn tensor")]
    NoMtpBlock {
        /// which
        block: u32,
    },
    /// a tensor whose shape is not that of the model
    #[error("tensor {name} has the shape {found:?} and should have {expected}")]
    Shape {
        /// which
        name: &'static str,
        /// its dimensions, row length first
        found: Vec<u64>,
        /// what they have to be
        expected: String,
    },
    /// a tensor whose size can't be told
    #[error("tensor {name} has {ty}, whose size is not known here: a newer version may read it")]
    UnknownType {
        /// which
        name: String,
        /// its type
        ty: TensorType,
    },
    /// a tensor of a type that nothing is computed with in its place
    #[error("tensor {name} is of type {ty}, with which llama.cpp doesn't compute there: it should be {expected}")]
    WrongType {
        /// which
        name: String,
        /// its type
        ty: TensorType,
        /// what it has to be
        expected: &'static str,
    },
    /// no embedding, so that no text can come in
    #[error("the model has no tensor {name}: this is no complete language model")]
    NoTensor {
        /// which
        name: &'static str,
    },
}

impl Error {
    /// A key that is missing, or isn't what it should be.
    pub(crate) fn key(metadata: &Metadata, key: &str, expected: &'static str) -> Error {
        Error::Key {
            key: key.into(),
            expected,
            found: metadata.get(key).map(|value| value.to_string()),
        }
    }

    /// Stable `PascalCase` word for metrics, events and conditions.
    pub fn reason(&self) -> &'static str {
        match self {
            Error::Prefix { source, .. } => source.reason(),
            Error::Io { .. } => "SourceUnreachable",
            Error::Incomplete { .. } => "IncompleteFile",
            Error::UnknownType { .. } | Error::WrongType { .. } => "UnsupportedFormat",
            Error::NoModel { .. } => "UnsupportedArchitecture",
            Error::Key { .. }
            | Error::ArrayLength { .. }
            | Error::Duplicate { .. }
            | Error::Parts { .. }
            | Error::NoSuchBlock { .. }
            | Error::Misplaced { .. }
            | Error::EmptyBlock { .. }
            | Error::NoMtpBlock { .. }
            | Error::NoTensor { .. }
            | Error::Shape { .. } => "MalformedFile",
        }
    }
}
