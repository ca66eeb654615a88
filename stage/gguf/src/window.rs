//! Cuts a window of layers out of a model: the description of a mini-GGUF that stock llama.cpp loads as a small model
//! of the same architecture. Pure: it says which bytes go where, and moves none.
//!
//! Every window takes hidden states in, rank 0's too, by `llama_batch.embd` or over the node that `kvasir.window.input`
//! names, and gives out the residual stream of its last layer (`l_out-<kvasir.window.layers − 1>`) or, for the last rank,
//! logits. Tokens are embedded by rank 0 out of a file of its own, the vocabulary file.
//!
//! MTP (nextn) blocks are never part of a window: `nextn_predict_layers` becomes 0 and the blocks are left out, so that
//! the trunk's output is that of a file without them. They ride with the last rank in a file of their own.

mod by_layers;
mod estimate;
mod keys;
mod tensors;

use std::ops::Range;

use crate::arch::{self, Architecture, LayerKind};
use crate::header::Header;
use crate::model::{self, Model, ModelIdentity};
use crate::tensor::TensorType;
use by_layers::Measures;
use tensors::Unplaced;

pub use estimate::TensorBytes;

const EMBEDDING: &str = "token_embd.weight";
const HEAD: &str = "output.weight";

/// Key: first layer of the window, in the whole model.
pub const KEY_START: &str = "kvasir.window.start";
/// Key: one past the last layer of the window, in the whole model.
pub const KEY_END: &str = "kvasir.window.end";
/// Key: layers that are computed. Padding layers come behind them, so `block_count` may be more.
pub const KEY_LAYERS: &str = "kvasir.window.layers";
/// Key: name of the graph's node that the hidden states are to be written over, in place of being passed in.
pub const KEY_INPUT: &str = "kvasir.window.input";
/// Key: 1 where the file has holes, which llama.cpp must not read into memory.
pub const KEY_SPARSE: &str = "kvasir.window.sparse";
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
    /// a hybrid model without one of the kinds
    #[error("the model has no {missing} layer, and llama.cpp runs this architecture only with layers of both kinds")]
    OneKind {
        /// the kind that is missing
        missing: &'static str,
    },
    /// llama.cpp reads a constant off the number of layers
    #[error(
        "{name} with {layers} layers can't be cut to {start}..{end}: llama.cpp knows it by its number of layers and {what}"
    )]
    KnownByLayers {
        /// architecture
        name: String,
        /// layers of the model
        layers: u32,
        /// first layer asked for
        start: u32,
        /// one past the last layer asked for
        end: u32,
        /// what llama.cpp does
        what: &'static str,
    },
    /// a number that differs from layer to layer where llama.cpp takes layer 0's for all
    #[error(
        "metadata key {key} differs from layer to layer, and llama.cpp takes the first layer's value for all of them"
    )]
    Varies {
        /// which
        key: String,
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
            Error::OneKind { .. }
            | Error::KnownByLayers { .. }
            | Error::Varies { .. }
            | Error::UnknownArray { .. }
            | Error::NamesTensors { .. } => "UnsupportedArchitecture",
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
    /// the number that each of its blocks has in the model
    pub blocks: Vec<u32>,
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
    cut(model, role, role.last)
}

/// All layers of the trunk and the head as one window, without the tokenizer: what is tried before any rank fetches its
/// own window, so that a fault in one of them stops them all.
pub fn trunk(model: &Model) -> Result<MiniGguf, Error> {
    let layers = 0..model.layers();
    cut(model, &WindowRole { layers, last: true }, false)
}

fn cut(model: &Model, role: &WindowRole, tokenizer: bool) -> Result<MiniGguf, Error> {
    let plan = plan(model, role)?;
    let header = keys::of_window(model, role, &plan, tokenizer)?;
    let mut tensors = tensors::made_up(model, plan.architecture, role);
    tensors.extend(tensors::of_window(model, plan.architecture, role)?);
    for (new, layer) in plan.layers.iter().enumerate().skip(role.layers.len()) {
        tensors.extend(tensors::of_padding(model, *layer, new)?);
    }
    Ok(place(model, header, tensors, plan.layers))
}

/// Whether there can be such a window, as far as its layers go; [`window`] also looks at all keys and tensors.
pub fn check(model: &Model, role: &WindowRole) -> Result<(), Error> {
    plan(model, role).map(drop)
}

/// What is decided about a window before anything is written.
struct Plan {
    architecture: &'static Architecture,
    /// kind of each layer of the model
    kinds: Vec<LayerKind>,
    /// old numbers of the new layers; what goes beyond the window's length is padding
    layers: Vec<u32>,
    measures: Measures,
    /// the file has a hole
    sparse: bool,
}

fn plan(model: &Model, role: &WindowRole) -> Result<Plan, Error> {
    let architecture = arch::of(model)?;
    check_role(model, role)?;
    model.check_blocks()?;
    model.check_numbers()?;
    model.check_types()?;
    check_experts(model)?;
    let kinds = arch::layer_kinds(model)?;
    let measures = by_layers::measures(model, architecture, role)?;
    let padding = padding_layer(architecture, &kinds, role)?;
    let layers: Vec<u32> = role
        .layers
        .clone()
        .chain(padding)
        .chain(measures.padding.iter().copied())
        .collect();
    let sparse = layers.len() > role.layers.len() || tensors::has_hole(architecture, role);
    Ok(Plan {
        architecture,
        kinds,
        layers,
        measures,
        sparse,
    })
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
    Ok(place(model, keys::of_vocabulary(model), tensors, Vec::new()))
}

/// The MTP blocks as a model of their own, which llama.cpp loads with `load_mtp`: for the last rank, which has what they
/// read, the sampled token and the trunk's normalised hidden state. None where the model has no such block, or no test has
/// shown that those of its architecture load that way.
pub fn mtp(model: &Model) -> Result<Option<MiniGguf>, Error> {
    let architecture = arch::of(model)?;
    if model.mtp_layers() == 0 || !architecture.mtp {
        return Ok(None);
    }
    let header = keys::of_mtp(model)?;
    let blocks = (model.layers()..model.block_count()).collect();
    Ok(Some(place(
        model,
        header,
        tensors::of_mtp(model, architecture)?,
        blocks,
    )))
}

/// The head is tied to the embedding: the model has no `output.weight`.
pub fn is_tied(model: &Model) -> bool {
    model.tensor(HEAD).is_none()
}

fn check_role(model: &Model, role: &WindowRole) -> Result<(), Error> {
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
    Ok(())
}

/// No architecture of the table reads how many experts each layer uses, only how many the first one does.
fn check_experts(model: &Model) -> Result<(), Error> {
    let key = "expert_used_count";
    let used = model.per_layer(key)?.unwrap_or_default();
    let alike = used.windows(2).all(|pair| pair[0] == pair[1]);
    if alike {
        Ok(())
    } else {
        Err(Error::Varies {
            key: model.full_key(key),
        })
    }
}

/// The layer whose shapes fill in for a kind that llama.cpp needs and the window hasn't.
fn padding_layer(architecture: &Architecture, kinds: &[LayerKind], role: &WindowRole) -> Result<Option<u32>, Error> {
    if !architecture.kinds.is_hybrid() {
        return Ok(None);
    }
    let window = &kinds[role.layers.start as usize..role.layers.end as usize];
    for (kind, missing) in [(LayerKind::Full, "full-attention"), (LayerKind::Recurrent, "recurrent")] {
        let Some(padding) = kinds.iter().position(|found| *found == kind) else {
            return Err(Error::OneKind { missing });
        };
        if window.contains(&kind) {
            continue;
        }
        if role.last {
            let Range { start, end } = role.layers;
            return Err(Error::LastNeedsBothKinds { start, end, missing });
        }
        return Ok(Some(padding as u32));
    }
    Ok(None)
}

/// Gives each tensor its place: one after the other, each at a multiple of the alignment, as llama.cpp demands.
fn place(model: &Model, header: Header, tensors: Vec<Unplaced>, blocks: Vec<u32>) -> MiniGguf {
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
        blocks,
    }
}
