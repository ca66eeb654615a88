//! The model profile: what planning needs to know of a model, and nothing else of it.

use kvasir_gguf::tensor::{TensorType, layer_of};
use kvasir_gguf::window::{self, TensorBytes, WindowRole};
use kvasir_gguf::{Model, arch, model};
use serde::{Deserialize, Serialize};

/// How a layer remembers earlier tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum LayerKind {
    /// attention to all earlier tokens
    Full,
    /// attention to the last tokens only
    Sliding {
        /// how many
        window: u64,
    },
    /// a state of fixed size
    Recurrent,
}

/// One layer of the trunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Layer {
    /// how it remembers
    pub kind: LayerKind,
    /// bytes of its tensors
    pub bytes: u64,
    /// bytes read to compute one token: of the experts only those that a token uses
    pub active_bytes: u64,
    /// values that the cache keeps of one token's keys
    pub key_values: u64,
    /// values that the cache keeps of one token's values
    pub value_values: u64,
    /// bytes of the state of one sequence
    pub state_bytes: u64,
}

/// What planning needs to know of a model. Layers are those of the trunk; MTP layers are part of no window.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ModelProfile {
    /// GGUF `general.architecture`
    pub architecture: String,
    /// identity in its text form
    pub identity: String,
    /// bytes of all parts
    pub size: u64,
    /// name of the type that most bytes of the layers have
    pub file_type: String,
    /// bytes of each part's prefix
    pub prefix_bytes: Vec<u64>,
    /// width of a hidden state, in values
    pub embedding_length: u32,
    /// tokens of the vocabulary
    pub vocabulary: u32,
    /// attention heads of the layer that has most
    pub heads: u64,
    /// width of the feed-forward part that one token goes through, in the layer where it is widest
    pub feed_forward: u64,
    /// the trunk
    pub layers: Vec<Layer>,
    /// MTP layers behind the trunk
    pub mtp_layers: u32,
    /// bytes of the MTP layers
    pub mtp_bytes: u64,
    /// bytes that every window carries (rope factors)
    pub every_bytes: u64,
    /// bytes of the embedding, which rank 0 fetches and reads from its file
    pub embedding_bytes: u64,
    /// bytes of the output norm and head, which the last rank holds; a tied head counts here as well
    pub head_bytes: u64,
    /// the head is the embedding
    pub tied: bool,
    /// the last window starts at this layer or before it: llama.cpp needs both kinds of a hybrid model there
    pub last_start: u32,
    /// layers before that at which it can't start all the same: llama.cpp takes as many layers for another model
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused_last_starts: Vec<u32>,
    /// bytes of a padding layer: of full attention for a window that has none, of a recurrent one likewise; 0 where no
    /// window needs one
    pub padding: Padding,
    /// why only the whole model may be a window, if so
    pub indivisible: Option<String>,
}

/// Bytes of a padding layer by the kind that it stands in for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Padding {
    /// full attention
    pub full: u64,
    /// recurrent
    pub recurrent: u64,
}

/// Why a model has no profile.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// the architecture can't be cut
    #[error(transparent)]
    Architecture(#[from] arch::Error),
    /// the model is not sound
    #[error(transparent)]
    Model(#[from] model::Error),
    /// its tensors can't be told apart
    #[error(transparent)]
    Window(#[from] window::Error),
    /// sizes that no computer can hold
    #[error("the model's {what} doesn't fit in 64 bits: its tensor table or metadata is wrong")]
    Overflow {
        /// what was added up
        what: &'static str,
    },
}

impl Error {
    /// Stable `PascalCase` word for metrics, events and conditions.
    pub fn reason(&self) -> &'static str {
        match self {
            Error::Architecture(error) => error.reason(),
            Error::Model(error) => error.reason(),
            Error::Window(error) => error.reason(),
            Error::Overflow { .. } => "MalformedFile",
        }
    }
}

impl ModelProfile {
    /// The profile of a model that windows can be cut from.
    pub fn of(model: &Model) -> Result<ModelProfile, Error> {
        let kinds = arch::layer_kinds(model)?;
        let mut total = 0u64;
        // from here on no sum over tensors can overflow, since all of them together don't
        for tensor in model.tensors() {
            total = total
                .checked_add(tensor.bytes()?)
                .ok_or(Error::Overflow { what: "size" })?;
        }
        let bytes = TensorBytes::of(model)?;
        // of what can't even be cut into one window there is nothing to plan
        window::trunk(model)?;
        let layers = layers(model, &kinds, &bytes.layers)?;
        let indivisible = indivisible(model);
        let hybrid = kinds.contains(&arch::LayerKind::Recurrent);
        Ok(ModelProfile {
            architecture: model.architecture().into(),
            identity: model.identity().to_string(),
            size: model.size(),
            file_type: file_type(model)?,
            prefix_bytes: model.prefix_bytes(),
            embedding_length: model.embedding_length(),
            vocabulary: model.vocabulary()?,
            heads: per_layer(model, "attention.head_count", 1)?
                .into_iter()
                .max()
                .unwrap_or(1),
            feed_forward: feed_forward(model)?,
            last_start: last_start(&layers),
            refused_last_starts: match &indivisible {
                Some(_) => Vec::new(),
                None => refused_last_starts(model, last_start(&layers)),
            },
            layers,
            mtp_layers: model.mtp_layers(),
            mtp_bytes: bytes.mtp,
            every_bytes: bytes.every,
            embedding_bytes: bytes.embedding,
            head_bytes: bytes.head,
            tied: bytes.tied,
            padding: if hybrid {
                padding(model, &kinds)?
            } else {
                Padding::default()
            },
            indivisible,
        })
    }

    /// Number of layers of the trunk.
    pub fn layer_count(&self) -> u32 {
        self.layers.len() as u32
    }
}

fn layers(model: &Model, kinds: &[arch::LayerKind], bytes: &[u64]) -> Result<Vec<Layer>, Error> {
    let width = u64::from(model.embedding_length());
    let heads = per_layer(model, "attention.head_count", 1)?;
    let kv_heads = model
        .per_layer("attention.head_count_kv")?
        .unwrap_or_else(|| heads.clone());
    let window = arch::sliding_window(model)?.unwrap_or(0);
    let compressed = has_compressed_cache(model);
    let state_bytes = state_bytes(model)?;
    let active = active_bytes(model)?;
    let length = |key: &str, heads: u64| number(model, key).or_else(|| width.checked_div(heads)).unwrap_or(0);
    kinds
        .iter()
        .enumerate()
        .map(|(layer, kind)| {
            let cached = |key| {
                let length = length(key, heads[layer]);
                kv_heads[layer]
                    .checked_mul(length)
                    .ok_or(Error::Overflow { what: "cache" })
            };
            let (key_values, value_values) = match kind {
                arch::LayerKind::Recurrent => (0, 0),
                // values are a part of the keys
                _ if compressed => (cached("attention.key_length")?, 0),
                _ => (cached("attention.key_length")?, cached("attention.value_length")?),
            };
            let recurrent = *kind == arch::LayerKind::Recurrent;
            Ok(Layer {
                kind: match kind {
                    arch::LayerKind::Full => LayerKind::Full,
                    arch::LayerKind::Sliding => LayerKind::Sliding { window },
                    arch::LayerKind::Recurrent => LayerKind::Recurrent,
                },
                bytes: bytes[layer],
                active_bytes: active[layer],
                key_values,
                value_values,
                state_bytes: if recurrent { state_bytes } else { 0 },
            })
        })
        .collect()
}

/// Keys and values are cached as one compressed row of each position (`llama_hparams::is_mla`).
fn has_compressed_cache(model: &Model) -> bool {
    let set = |key| number(model, key).is_some_and(|length| length > 0);
    set("attention.key_length_mla") && set("attention.value_length_mla")
}

/// Bytes of each block that one token reads: all of a tensor, or of a stack of experts the share that is used.
fn active_bytes(model: &Model) -> Result<Vec<u64>, Error> {
    let experts = number(model, "expert_count").unwrap_or(0);
    let used = per_layer(model, "expert_used_count", experts)?;
    let mut active = vec![0; model.block_count() as usize];
    for tensor in model.tensors() {
        let Some((layer, name)) = layer_of(&tensor.name) else {
            continue;
        };
        let bytes = u128::from(tensor.bytes()?);
        let share = match u128::from(experts) {
            0 => bytes,
            _ if !name.contains("_exps.") => bytes,
            experts => bytes * u128::from(used[layer as usize]).min(experts) / experts,
        };
        // a share of what was checked to fit
        active[layer as usize] += share as u64;
    }
    Ok(active)
}

/// Bytes of a recurrent layer's state for one sequence: the convolution's inputs and the state proper, both f32
/// (`llama_hparams::n_embd_r` and `n_embd_s`).
fn state_bytes(model: &Model) -> Result<u64, Error> {
    let of = |key: &str| number(model, key).unwrap_or(0);
    let (inner, state, groups) = (of("ssm.inner_size"), of("ssm.state_size"), of("ssm.group_count"));
    let bytes = || {
        // a short convolution has no state but its inputs
        if let Some(kernel) = number(model, "shortconv.l_cache") {
            let width = u64::from(model.embedding_length());
            return kernel.saturating_sub(1).checked_mul(width)?.checked_mul(4);
        }
        let channels = groups.checked_mul(state)?.checked_mul(2)?.checked_add(inner)?;
        let convolution = of("ssm.conv_kernel").saturating_sub(1).checked_mul(channels)?;
        state.checked_mul(inner)?.checked_add(convolution)?.checked_mul(4)
    };
    bytes().ok_or(Error::Overflow {
        what: "recurrent state",
    })
}

/// Width of the feed-forward part that a token goes through, in the widest layer: dense, or all its experts together.
fn feed_forward(model: &Model) -> Result<u64, Error> {
    let dense = per_layer(model, "feed_forward_length", 0)?
        .into_iter()
        .max()
        .unwrap_or(0);
    let expert = per_layer(model, "expert_feed_forward_length", 0)?
        .into_iter()
        .max()
        .unwrap_or(0);
    let used = per_layer(model, "expert_used_count", 0)?.into_iter().max().unwrap_or(0);
    let experts = expert.checked_mul(used).ok_or(Error::Overflow {
        what: "width of experts",
    })?;
    Ok(dense.max(experts))
}

fn last_start(layers: &[Layer]) -> u32 {
    let last_of = |recurrent: bool| {
        layers
            .iter()
            .rposition(|l| (l.kind == LayerKind::Recurrent) == recurrent)
    };
    let last = layers.len().saturating_sub(1);
    match (last_of(true), last_of(false)) {
        (Some(recurrent), Some(attention)) => recurrent.min(attention) as u32,
        _ => last as u32,
    }
}

/// Asks for every last window that could be.
fn refused_last_starts(model: &Model, last_start: u32) -> Vec<u32> {
    let layers = model.layers();
    let is_refused = |start: &u32| {
        let role = WindowRole {
            layers: *start..layers,
            last: true,
        };
        matches!(window::check(model, &role), Err(window::Error::KnownByLayers { .. }))
    };
    (1..=last_start).filter(is_refused).collect()
}

/// What a padding layer takes: shapes of the first layer of its kind, matrices in the smallest type.
fn padding(model: &Model, kinds: &[arch::LayerKind]) -> Result<Padding, Error> {
    let of = |kind: arch::LayerKind| {
        let Some(layer) = kinds.iter().position(|k| *k == kind) else {
            return Ok(0);
        };
        let mut sum = 0u64;
        for tensor in model.tensors_of_layer(layer as u32) {
            let matrix = tensor.dims.len() > 1 && tensor.ty != TensorType::F32;
            let small = TensorType::IQ1_S.bytes(&tensor.dims).filter(|_| matrix);
            let bytes = small.map_or_else(|| tensor.bytes(), Ok)?;
            sum = sum.checked_add(bytes).ok_or(Error::Overflow { what: "padding" })?;
        }
        Ok::<u64, Error>(sum)
    };
    Ok(Padding {
        full: of(arch::LayerKind::Full)?,
        recurrent: of(arch::LayerKind::Recurrent)?,
    })
}

/// Asks for a window of one layer; if that is refused, so is every cut.
fn indivisible(model: &Model) -> Option<String> {
    if model.layers() < 2 {
        return None;
    }
    let role = WindowRole {
        layers: 0..1,
        last: false,
    };
    window::window(model, &role).err().map(|refused| refused.to_string())
}

/// The type that most bytes of the layers have.
fn file_type(model: &Model) -> Result<String, Error> {
    let mut bytes: Vec<(TensorType, u64)> = Vec::new();
    for tensor in model.tensors().iter().filter(|tensor| layer_of(&tensor.name).is_some()) {
        match bytes.iter_mut().find(|(ty, _)| *ty == tensor.ty) {
            Some((_, sum)) => *sum += tensor.bytes()?,
            None => bytes.push((tensor.ty, tensor.bytes()?)),
        }
    }
    Ok(bytes
        .iter()
        .max_by_key(|(_, sum)| *sum)
        .map(|(ty, _)| ty.to_string())
        .unwrap_or_default())
}

fn number(model: &Model, key: &str) -> Option<u64> {
    model.get(key).and_then(kvasir_gguf::metadata::Value::as_u64)
}

/// One number for each block, or the default for all of them.
fn per_layer(model: &Model, key: &str, default: u64) -> Result<Vec<u64>, Error> {
    Ok(model
        .per_layer(key)?
        .unwrap_or_else(|| vec![default; model.block_count() as usize]))
}
