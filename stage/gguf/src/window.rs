//! Cuts a window of layers out of a model: the description of a mini-GGUF that stock llama.cpp loads as a small model
//! of the same architecture. Pure: it says which bytes go where, and moves none.
//!
//! Every window takes hidden states in (`llama_batch.embd`), rank 0's too, and gives out the residual stream of its last
//! layer (`l_out-<kvasir.window.layers − 1>`) or, for the last rank, logits. Tokens are embedded by rank 0 out of a file
//! of its own, the vocabulary file.
//!
//! MTP (nextn) blocks are never part of a window: `nextn_predict_layers` becomes 0 and the blocks are left out, so that
//! the trunk's output is that of a file without them.

use std::ops::Range;

use crate::arch::{self, Architecture, GlobalRole, Kinds, LayerKind, PER_LAYER, WHOLE};
use crate::header::Header;
use crate::metadata::{Value, ValueType};
use crate::model::{self, Model, ModelIdentity, Tensor};
use crate::tensor::{TensorType, layer_of};

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
    /// Stable PascalCase word for metrics, events and conditions.
    pub fn reason(&self) -> &'static str {
        match self {
            Error::Architecture(error) => error.reason(),
            Error::Model(error) => error.reason(),
            Error::NoSuchLayers { .. } | Error::NotLast { .. } | Error::LastNeedsBothKinds { .. } => "InvalidPlan",
            Error::KnownByLayers { .. } | Error::UnknownArray { .. } => "UnsupportedArchitecture",
            Error::NoTensor { .. } => "MalformedFile",
            Error::AlreadyWindow => "InvalidPlan",
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

    let mut header = Header::default();
    write_metadata(&mut header, model, architecture, role, &kinds, &layers)?;

    let mut tensors = edge_tensors(model, role)?;
    tensors.extend(model_tensors(model, architecture, role)?);
    if let Some(padding) = padding {
        tensors.extend(padding_tensors(model, padding, role.layers.len())?);
    }
    Ok(place(model, header, tensors))
}

/// The vocabulary file of rank 0: all metadata, which llama.cpp loads with `vocab_only`, and `token_embd.weight`.
///
/// `with_embedding` is false where rank 0 is also the last rank of a model whose head is tied to its embedding: the
/// window's file holds the tensor already, and the embedder reads it there.
pub fn vocabulary(model: &Model, with_embedding: bool) -> Result<MiniGguf, Error> {
    arch::of(model)?;
    let mut header = Header::default();
    for (key, entry, _) in model.metadata().raw() {
        if !key.starts_with("split.") {
            header.raw(entry);
        }
    }
    header.u32(KEY_MODEL_LAYERS, model.layers());
    header.text(KEY_IDENTITY, &model.identity().to_string());
    let embedding = if with_embedding {
        vec![carried(tensor(model, EMBEDDING)?, EMBEDDING.into())?]
    } else {
        vec![]
    };
    Ok(place(model, header, embedding))
}

/// The head is tied to the embedding: the model has no `output.weight`.
pub fn is_tied(model: &Model) -> bool {
    model.tensor(HEAD).is_none()
}

/// Bytes of a model's tensors by who needs them, for planning without cutting anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorBytes {
    /// each layer of the trunk
    pub layers: Vec<u64>,
    /// all MTP blocks
    pub mtp: u64,
    /// what every window carries
    pub every: u64,
    /// `token_embd.weight`, which rank 0 reads
    pub embedding: u64,
    /// output norm and head, which the last rank holds; a tied head counts here as well
    pub head: u64,
    /// the head is the embedding
    pub tied: bool,
}

impl TensorBytes {
    /// Adds up the tensor table.
    pub fn of(model: &Model) -> Result<TensorBytes, Error> {
        let architecture = arch::of(model)?;
        let mut blocks = vec![0; model.block_count() as usize];
        let (mut every, mut embedding, mut head) = (0, 0, 0);
        for tensor in model.tensors() {
            let bytes = tensor.bytes()?;
            match layer_of(&tensor.name) {
                Some((layer, _)) => blocks[layer as usize] += bytes,
                None => match architecture.global(&tensor.name)? {
                    GlobalRole::Embedding => embedding += bytes,
                    GlobalRole::Head => head += bytes,
                    GlobalRole::Every => every += bytes,
                },
            }
        }
        let tied = is_tied(model);
        let mtp = blocks.split_off(model.layers() as usize).iter().sum();
        Ok(TensorBytes {
            layers: blocks,
            mtp,
            every,
            embedding,
            head: if tied { head + embedding } else { head },
            tied,
        })
    }

    /// What a rank fetches: its layers, for the first rank the embedding, for the last one the head. A rank that is both
    /// fetches a tied embedding once.
    pub fn rank(&self, layers: Range<u32>, first: bool, last: bool) -> u64 {
        let window: u64 = self
            .layers
            .iter()
            .take(layers.end as usize)
            .skip(layers.start as usize)
            .sum();
        let embedding = if first && !(last && self.tied) {
            self.embedding
        } else {
            0
        };
        window + self.every + embedding + if last { self.head } else { 0 }
    }
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

/// The model's metadata with what belongs to the window changed. `layers` are the old numbers of the new layers.
fn write_metadata(
    header: &mut Header,
    model: &Model,
    architecture: &Architecture,
    role: &WindowRole,
    kinds: &[LayerKind],
    layers: &[u32],
) -> Result<(), Error> {
    let (start, end) = (role.layers.start, role.layers.end);
    let kind = |layer: &u32| kinds[*layer as usize];
    let sliding = matches!(architecture.kinds, Kinds::Sliding { .. }) && arch::slides(model);
    let full_only = sliding && layers.iter().all(|layer| kind(layer) == LayerKind::Full);
    let hybrid = matches!(architecture.kinds, Kinds::Hybrid { .. });
    let prefix = model.full_key("");

    for (key, entry, place) in model.metadata().raw() {
        match key.strip_prefix(&prefix) {
            None if key.starts_with("split.") => {}
            None if key.starts_with("tokenizer.") && !role.last => {}
            Some("block_count" | "nextn_predict_layers" | "vocab_size" | "leading_dense_block_count") => {}
            Some("attention.recurrent_layers" | "full_attention_interval") if hybrid => {}
            Some("attention.sliding_window_pattern") if sliding => {}
            Some("attention.sliding_window") if full_only => {}
            Some(short) if place.ty == ValueType::Array && !WHOLE.contains(&short) => {
                write_array(header, model, key, short, entry, layers)?;
            }
            _ => header.raw(entry),
        }
    }

    header.u32(&model.full_key("block_count"), layers.len() as u32);
    if model.mtp_layers() > 0 {
        header.u32(&model.full_key("nextn_predict_layers"), 0);
    }
    if let Some(dense) = model.get("leading_dense_block_count").and_then(Value::as_u32) {
        header.u32(
            &model.full_key("leading_dense_block_count"),
            dense.saturating_sub(start).min(end - start),
        );
    }
    if hybrid {
        let recurrent: Vec<bool> = layers.iter().map(|layer| kind(layer) == LayerKind::Recurrent).collect();
        header.flags(&model.full_key("attention.recurrent_layers"), &recurrent);
    }
    if sliding && !full_only {
        let slides: Vec<bool> = layers.iter().map(|layer| kind(layer) == LayerKind::Sliding).collect();
        header.flags(&model.full_key("attention.sliding_window_pattern"), &slides);
    }
    write_head_lengths(header, model)?;
    header.u32(
        &model.full_key("vocab_size"),
        if role.last { model.vocabulary()? } else { 1 },
    );
    if !role.last {
        header.text("tokenizer.ggml.model", "no_vocab");
    }
    header.u32(KEY_START, start);
    header.u32(KEY_END, end);
    header.u32(KEY_LAYERS, end - start);
    header.u32(KEY_MODEL_LAYERS, model.layers());
    header.text(KEY_IDENTITY, &model.identity().to_string());
    Ok(())
}

/// An array under the architecture's prefix: cut to the window where it has one value for each block.
fn write_array(
    header: &mut Header,
    model: &Model,
    key: &str,
    short: &str,
    entry: &[u8],
    layers: &[u32],
) -> Result<(), Error> {
    let Some(array) = model.metadata().get(key).and_then(Value::as_array) else {
        return Ok(());
    };
    let blocks = model.block_count();
    if !PER_LAYER.contains(&short) {
        if array.len() == blocks as usize {
            return Err(Error::UnknownArray { key: key.into() });
        }
        header.raw(entry);
        return Ok(());
    }
    if array.len() != blocks as usize {
        return Err(model::Error::ArrayLength {
            key: key.into(),
            found: array.len(),
            blocks,
        }
        .into());
    }
    let values: Option<Vec<&[u8]>> = layers
        .iter()
        .map(|layer| array.element_bytes(*layer as usize))
        .collect();
    let values = values.ok_or_else(|| model::Error::Key {
        key: key.into(),
        expected: "an array of numbers",
    })?;
    header.array(key, array.element_type() as u32, values.into_iter());
    Ok(())
}

/// llama.cpp takes a missing key or value length from the heads of layer 0; with heads that differ from layer to layer
/// the window's layer 0 would give another one.
fn write_head_lengths(header: &mut Header, model: &Model) -> Result<(), Error> {
    let heads = "attention.head_count";
    if model.get(heads).and_then(Value::as_array).is_none() {
        return Ok(());
    }
    let first = model
        .per_layer(heads)?
        .and_then(|heads| heads.first().copied())
        .unwrap_or(0);
    let Some(length) = u64::from(model.embedding_length()).checked_div(first) else {
        return Ok(());
    };
    for key in ["attention.key_length", "attention.value_length"] {
        if model.get(key).is_none() {
            header.u32(&model.full_key(key), length as u32);
        }
    }
    Ok(())
}

/// A tensor that has no place yet.
struct Unplaced {
    name: String,
    dims: Vec<u64>,
    ty: TensorType,
    source: Source,
}

fn tensor<'a>(model: &'a Model, name: &'static str) -> Result<&'a Tensor, Error> {
    model.tensor(name).ok_or(Error::NoTensor { name })
}

fn carried(tensor: &Tensor, name: String) -> Result<Unplaced, Error> {
    let source = Source::Range {
        part: tensor.part,
        offset: tensor.start,
        len: tensor.bytes()?,
    };
    Ok(Unplaced {
        name,
        dims: tensor.dims.clone(),
        ty: tensor.ty,
        source,
    })
}

/// What llama.cpp asks of every model and only the last rank's window has: made up in the others.
fn edge_tensors(model: &Model, role: &WindowRole) -> Result<Vec<Unplaced>, Error> {
    if role.last {
        return Ok(Vec::new());
    }
    let width = model.embedding_length();
    let filled = |name: &str, dims: Vec<u64>, value: f32| Unplaced {
        name: name.into(),
        dims,
        ty: TensorType::F32,
        source: Source::Bytes(value.to_le_bytes().repeat(width as usize)),
    };
    Ok(vec![
        filled(EMBEDDING, vec![width.into(), 1], 0.0),
        filled(HEAD_NORM, vec![width.into()], 1.0),
    ])
}

/// The window's own tensors, in the order in which they lie in the model.
fn model_tensors(model: &Model, architecture: &Architecture, role: &WindowRole) -> Result<Vec<Unplaced>, Error> {
    if role.last {
        tensor(model, HEAD_NORM)?;
        tensor(model, EMBEDDING)?;
    }
    let tied = is_tied(model);
    let mut tensors: Vec<(usize, u64, Unplaced)> = Vec::new();
    for tensor in model.tensors() {
        let name = match layer_of(&tensor.name) {
            Some((layer, rest)) => role
                .layers
                .contains(&layer)
                .then(|| format!("blk.{}{rest}", layer - role.layers.start)),
            None => match architecture.global(&tensor.name)? {
                GlobalRole::Every => Some(tensor.name.clone()),
                GlobalRole::Embedding => (role.last && tied).then(|| tensor.name.clone()),
                // the embedding isn't needed, so the head poses as a tied one: llama.cpp wants a token_embd in any case
                GlobalRole::Head if tensor.name == HEAD => role.last.then(|| EMBEDDING.to_owned()),
                GlobalRole::Head => role.last.then(|| tensor.name.clone()),
            },
        };
        if let Some(name) = name {
            tensors.push((tensor.part, tensor.start, carried(tensor, name)?));
        }
    }
    tensors.sort_by_key(|(part, start, _)| (*part, *start));
    Ok(tensors.into_iter().map(|(_, _, tensor)| tensor).collect())
}

/// A layer of the missing kind, behind the window's own: never computed, and never read where the file is mapped.
fn padding_tensors(model: &Model, layer: u32, new: usize) -> Result<Vec<Unplaced>, Error> {
    let hole = |tensor: &Tensor| {
        let (_, rest) = layer_of(&tensor.name)?;
        // matrices take the smallest type that fits; vectors and convolutions keep theirs, which their kernels need
        let matrix = tensor.dims.len() > 1 && tensor.ty != TensorType::F32;
        let small = TensorType::IQ1_S.bytes(&tensor.dims).filter(|_| matrix);
        let ty = if small.is_some() { TensorType::IQ1_S } else { tensor.ty };
        Some((format!("blk.{new}{rest}"), ty, small))
    };
    let mut tensors = Vec::new();
    for tensor in model.tensors_of_layer(layer) {
        if let Some((name, ty, small)) = hole(tensor) {
            let len = small.map_or_else(|| tensor.bytes(), Ok)?;
            tensors.push(Unplaced {
                name,
                dims: tensor.dims.clone(),
                ty,
                source: Source::Hole { len },
            });
        }
    }
    Ok(tensors)
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
    placed.iter_mut().for_each(|tensor| tensor.start += data);
    MiniGguf {
        header,
        tensors: placed,
        len: data + offset,
        identity: model.identity(),
    }
}
