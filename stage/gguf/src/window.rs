//! Cuts a window of layers out of a model: the description of a mini-GGUF that stock llama.cpp loads as a small model
//! of the same architecture. Pure: it says which bytes go where, and moves none.
//!
//! Every window takes hidden states in (`llama_batch.embd`), rank 0's too, and gives out the residual stream of its last
//! layer (`l_out-<kvasir.window.layers − 1>`) or, for the last rank, logits. Tokens are embedded by rank 0 out of a file
//! of its own, the vocabulary file.
//!
//! MTP (nextn) blocks are never part of a window: `nextn_predict_layers` becomes 0 and the blocks are left out, so that
//! the trunk's output is that of a file without them. They ride with the last rank in a file of their own.

mod estimate;
mod keys;
mod tensors;

use std::ops::Range;

use crate::arch::{self, Architecture, Kinds, LayerKind};
use crate::header::Header;
use crate::metadata::Value;
use crate::model::{self, Model, ModelIdentity};
use crate::tensor::TensorType;
use tensors::Unplaced;

pub use estimate::TensorBytes;

const EMBEDDING: &str = "token_embd.weight";
const HEAD: &str = "output.weight";
const HEAD_NORM: &str = "output_norm.weight";

/// Key: first layer of the window, in the whole model.
pub const KEY_START: &str = "kvasir.window.start";
/// Key: one past the last layer of the window, in the whole model.
pub const KEY_END: &str = "kvasir.window.end";
/// Key: layers that are computed. A padding layer comes behind them, so `block_count` may be one more.
pub const KEY_LAYERS: &str = "kvasir.window.layers";
/// Key: layers of the whole model's trunk.
pub const KEY_MODEL_LAYERS: &str = "kvasir.model.layers";
/// Key: the whole model's identity, as text.
pub const KEY_IDENTITY: &str = "kvasir.model.identity";

/// What a file is to hold of its model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WindowRole {
    /// layers of the trunk, `[start, end)`
    pub layers: Range<u32>,
    /// the rank that holds the output head and samples
    pub last: bool,
}

/// Why a window can't be cut.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// the architecture isn't cut
    #[error(transparent)]
    Architecture(#[from] arch::Error),
    /// the model is not sound
    #[error(transparent)]
    Model(#[from] model::Error),
    /// layers that aren't there
    #[error("layers {start}..{end} are not within the model's {layers} layers")]
    NoSuchLayers {
        /// first layer asked for
        start: u32,
        /// one past the last layer asked for
        end: u32,
        /// layers of the trunk
        layers: u32,
    },
    /// the head belongs to the window that ends with the last layer, and to no other
    #[error("the last rank's window must end at layer {layers}, and no other window may: {start}..{end} was asked for")]
    NotLast {
        /// first layer asked for
        start: u32,
        /// one past the last layer asked for
        end: u32,
        /// layers of the trunk
        layers: u32,
    },
    /// a last window of a hybrid model without one of the kinds
    #[error("the last window {start}..{end} has no {missing} layer, which llama.cpp needs there: start it earlier")]
    LastNeedsBothKinds {
        /// first layer asked for
        start: u32,
        /// one past the last layer asked for
        end: u32,
        /// the kind that is missing
        missing: &'static str,
    },
    /// llama.cpp reads a constant off the number of layers
    #[error("{name} with {layers} layers can't be cut: llama.cpp knows it by that number and scales its queries by it")]
    KnownByLayers {
        /// architecture
        name: String,
        /// layers of the model
        layers: u32,
    },
    /// an array as long as there are blocks, of unknown meaning
    #[error("metadata key {key} has one value for each block, and it is not known whether windows must cut it")]
    UnknownArray {
        /// which
        key: String,
    },
    /// a list of tensors by name, whose blocks have other numbers in a window
    #[error("metadata key {key} names tensors of blocks, which windows would number anew: not supported yet")]
    NamesTensors {
        /// which
        key: &'static str,
    },
    /// a tensor that every model has is missing
    #[error("the model has no tensor {name}")]
    NoTensor {
        /// which
        name: &'static str,
    },
    /// the file is a window already
    #[error("the file is a window itself ({KEY_START} is set): cut windows from the whole model")]
    AlreadyWindow,
}

impl Error {
    /// Stable `PascalCase` word for metrics, events and conditions.
    pub fn reason(&self) -> &'static str {
        match self {
            Error::Architecture(error) => error.reason(),
            Error::Model(error) => error.reason(),
            Error::NoSuchLayers { .. }
            | Error::NotLast { .. }
            | Error::LastNeedsBothKinds { .. }
            | Error::AlreadyWindow => "InvalidPlan",
            Error::KnownByLayers { .. } | Error::UnknownArray { .. } | Error::NamesTensors { .. } => {
                "UnsupportedArchitecture"
            }
            Error::NoTensor { .. } => "MalformedFile",
        }
    }
}

/// Where the bytes of a tensor come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// bytes of the model's part `part` (from 0)
    Range {
        /// part, from 0
        part: usize,
        /// first byte in the part's file
        offset: u64,
        /// bytes
        len: u64,
    },
    /// bytes that no file has
    Bytes(Vec<u8>),
    /// nothing: a hole in the file, which reads as zeros
    Hole {
        /// bytes
        len: u64,
    },
}

impl Source {
    /// Length in bytes.
    pub fn bytes(&self) -> u64 {
        match self {
            Source::Range { len, .. } | Source::Hole { len } => *len,
            Source::Bytes(bytes) => bytes.len() as u64,
        }
    }
}

/// A tensor of a mini-GGUF.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedTensor {
    /// name in the mini-GGUF
    pub name: String,
    /// row length first
    pub dims: Vec<u64>,
    /// type of the weights
    pub ty: TensorType,
    /// first byte in the mini-GGUF
    pub start: u64,
    /// where its bytes come from
    pub source: Source,
}

/// A file to be written: its head, and where each tensor goes and comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MiniGguf {
    /// the file's first bytes, up to its data section
    pub header: Vec<u8>,
    /// tensors in the order of the file
    pub tensors: Vec<PlacedTensor>,
    /// bytes of the whole file, holes included
    pub len: u64,
    /// identity of the model it is cut from
    pub identity: ModelIdentity,
}

impl MiniGguf {
    /// Bytes of tensors that are read from the model.
    pub fn fetched_bytes(&self) -> u64 {
        let fetched = |tensor: &PlacedTensor| match tensor.source {
            Source::Range { len, .. } => len,
            Source::Bytes(_) | Source::Hole { .. } => 0,
        };
        self.tensors.iter().map(fetched).sum()
    }
}

/// The mini-GGUF of a rank's window.
pub fn window(model: &Model, role: &WindowRole) -> Result<MiniGguf, Error> {
    let architecture = arch::of(model)?;
    check_role(model, architecture, role)?;
    let kinds = arch::layer_kinds(model)?;
    let padding = padding_layer(architecture, &kinds, role)?;
    let layers: Vec<u32> = role.layers.clone().chain(padding).collect();

    let header = keys::of_window(model, architecture, role, &kinds, &layers)?;
    let mut tensors = tensors::made_up(model, role);
    tensors.extend(tensors::of_window(model, architecture, role)?);
    if let Some(padding) = padding {
        tensors.extend(tensors::of_padding(model, padding, role.layers.len())?);
    }
    Ok(place(model, header, tensors))
}

/// The vocabulary file of rank 0: all metadata, which llama.cpp loads with `vocab_only`, and `token_embd.weight`.
///
/// `with_embedding` is false where rank 0 is also the last rank of a model whose head is tied to its embedding: the
/// window's file holds the tensor already, and the embedder reads it there.
pub fn vocabulary(model: &Model, with_embedding: bool) -> Result<MiniGguf, Error> {
    arch::of(model)?;
    let tensors = if with_embedding {
        tensors::of_vocabulary(model)?
    } else {
        Vec::new()
    };
    Ok(place(model, keys::of_vocabulary(model), tensors))
}

/// The MTP blocks as a model of their own, which llama.cpp loads with `load_mtp`: for the last rank, which has what they
/// read, the sampled token and the trunk's normalised hidden state. None where the model has no such block.
pub fn mtp(model: &Model) -> Result<Option<MiniGguf>, Error> {
    let architecture = arch::of(model)?;
    if model.mtp_layers() == 0 {
        return Ok(None);
    }
    let header = keys::of_mtp(model)?;
    Ok(Some(place(model, header, tensors::of_mtp(model, architecture)?)))
}

/// The head is tied to the embedding: the model has no `output.weight`.
pub fn is_tied(model: &Model) -> bool {
    model.tensor(HEAD).is_none()
}

fn check_role(model: &Model, architecture: &Architecture, role: &WindowRole) -> Result<(), Error> {
    let (start, end, layers) = (role.layers.start, role.layers.end, model.layers());
    if model.metadata().get(KEY_START).is_some() {
        return Err(Error::AlreadyWindow);
    }
    if start >= end || end > layers {
        return Err(Error::NoSuchLayers { start, end, layers });
    }
    if role.last != (end == layers) {
        return Err(Error::NotLast { start, end, layers });
    }
    if let Some(scaled_at) = architecture.scaled_at {
        let heads = model
            .per_layer("attention.head_count")?
            .and_then(|heads| heads.first().copied())
            .unwrap_or(0);
        let by_heads = u64::from(model.embedding_length()).checked_div(heads).unwrap_or(0);
        let by_key = model
            .get("attention.key_length")
            .and_then(Value::as_u64)
            .unwrap_or(by_heads);
        let changes = (layers == scaled_at) != (end - start == scaled_at);
        if changes && by_heads != by_key {
            return Err(Error::KnownByLayers {
                name: model.architecture().into(),
                layers,
            });
        }
    }
    Ok(())
}

/// The layer whose shapes fill in for a kind that llama.cpp needs and the window hasn't.
fn padding_layer(architecture: &Architecture, kinds: &[LayerKind], role: &WindowRole) -> Result<Option<u32>, Error> {
    let Kinds::Hybrid { .. } = architecture.kinds else {
        return Ok(None);
    };
    let window = &kinds[role.layers.start as usize..role.layers.end as usize];
    for (kind, name) in [(LayerKind::Full, "full-attention"), (LayerKind::Recurrent, "recurrent")] {
        if window.contains(&kind) {
            continue;
        }
        if role.last {
            let Range { start, end } = role.layers;
            return Err(Error::LastNeedsBothKinds {
                start,
                end,
                missing: name,
            });
        }
        return Ok(kinds.iter().position(|found| *found == kind).map(|layer| layer as u32));
    }
    Ok(None)
}

/// Gives each tensor its place: one after the other, each at a multiple of the alignment, as llama.cpp demands.
fn place(model: &Model, header: Header, tensors: Vec<Unplaced>) -> MiniGguf {
    let alignment = model.parts()[0].prefix.alignment;
    let mut offset = 0;
    let mut placed: Vec<PlacedTensor> = Vec::with_capacity(tensors.len());
    for Unplaced { name, dims, ty, source } in tensors {
        let start = offset;
        offset = (offset + source.bytes()).next_multiple_of(alignment);
        placed.push(PlacedTensor {
            name,
            dims,
            ty,
            start,
            source,
        });
    }
    let table = placed
        .iter()
        .map(|tensor| (tensor.name.as_str(), &tensor.dims[..], tensor.ty, tensor.start));
    let header = header.finish(table, alignment);
    let data = header.len() as u64;
    for tensor in &mut placed {
        tensor.start += data;
    }
    MiniGguf {
        header,
        tensors: placed,
        len: data + offset,
        identity: model.identity(),
    }
}
