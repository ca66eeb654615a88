//! What llama.cpp does differently from architecture to architecture, as far as cutting windows goes: one table.
//!
//! Checked against `src/models/`, `src/llama-model.cpp` and `src/llama-graph.cpp` of llama-cpp-sys-2 0.1.160, and
//! `tests/upstream.rs` fails where another version knows an architecture or a per-layer key that the table doesn't.
//! An architecture is in the table once a test has shown that its windows equal the whole model; all others are refused
//! by name: mixed-up layers run without an error and give wrong text.

mod kinds;
mod refused;
mod table;

use crate::metadata::Value;
use crate::model::{self, Model};

pub use kinds::{layer_kinds, sliding_window};
pub use table::{PER_LAYER, WHOLE};

/// How a layer remembers earlier tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LayerKind {
    /// attention to all earlier tokens
    Full,
    /// attention to the last tokens only
    Sliding,
    /// a state of fixed size
    Recurrent,
}

/// How llama.cpp tells the kinds of an architecture's layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kinds {
    Full,
    /// Where `attention.sliding_window` is above 0: `attention.sliding_window_pattern`, one flag for each block, or a
    /// period, of which the last layer is full (the first, where `dense_first`). At least one layer of a window must
    /// slide as long as the sliding window is on (`is_swa_any` is asserted).
    Sliding {
        period: u64,
        dense_first: bool,
        switch: Switch,
    },
    /// `attention.recurrent_layers`, one flag for each block; else every `interval`th layer is full, where
    /// `full_attention_interval` doesn't say otherwise. Both kinds must be there (their graph inputs have no buffer
    /// otherwise, which is asserted).
    Hybrid {
        interval: u64,
    },
    /// As `Hybrid`, and a layer is recurrent where its `attention.head_count_kv` is 0.
    HybridByHeads,
}

/// When sliding windows are on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Switch {
    /// with the key `attention.sliding_window`; without it the layers are full, and rotated as full ones
    ByKey,
    /// always, with this width where the key doesn't say otherwise. A window of full layers has to call them sliding
    /// ones that see all positions, which they then are, rotation included.
    Always { width: Option<u64> },
}

/// What llama.cpp makes of the hidden states that a window takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Input {
    /// `llama_batch.embd` is the input of the first layer, as it is
    Embeddings,
    /// Not that: it would be scaled again, or is refused. The engine passes tokens instead, and overwrites what llama.cpp
    /// made of them, the node of this name, which is the input of the first layer.
    Overwritten(&'static str),
}

/// What the embedder multiplies a row of `token_embd` by before it enters layer 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InputScale {
    One,
    /// √embedding length
    SqrtEmbedding,
    /// the value of this key, where it isn't 0. llama.cpp applies it to hidden states as well, so windows go without it
    Key(&'static str),
}

/// What llama.cpp reads off the number of layers of the model that it loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ByLayers {
    Nothing,
    /// With so many, queries are scaled by 1/√(embedding length / heads) instead of 1/√(key length).
    QueryScale(u32),
    /// Light models of `deepseek2`: see `window::by_layers`.
    LightAttention,
}

/// The output head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    /// the norm in front of it
    pub(crate) norm: &'static str,
    /// `output.weight` is asked for by that name. Elsewhere an untied head can pose as a tied one, so that the embedding,
    /// which llama.cpp wants in any case, needn't be there.
    pub(crate) own: bool,
    /// tensors that llama.cpp reads besides
    more: &'static [&'static str],
}

/// Which ranks need a tensor that belongs to no block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GlobalRole {
    /// rank 0, and the last rank where the head is tied to it
    Embedding,
    /// the last rank
    Head,
    /// every rank
    Every,
}

/// One architecture that windows can be cut from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Architecture {
    name: &'static str,
    /// where llama.cpp builds it, under `src/`
    source: &'static str,
    pub(crate) kinds: Kinds,
    pub(crate) input: Input,
    pub(crate) scale: InputScale,
    pub(crate) head: Head,
    pub(crate) by_layers: ByLayers,
    /// its MTP blocks were shown to load as a model of their own
    pub(crate) mtp: bool,
    /// keys with which no test has covered it
    without: &'static [&'static str],
    /// what its windows have to mind, in words
    minds: &'static str,
}

/// What is known about one architecture, in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Described {
    /// `general.architecture`
    pub name: &'static str,
    /// how the kinds of its layers are told; empty where it isn't cut
    pub kinds: &'static str,
    /// what happens to the input of its first layer; empty where it isn't cut
    pub input: &'static str,
    /// what windows of it have to mind, or why there are none
    pub cut: Result<&'static str, &'static str>,
}

/// Every architecture that llama.cpp knows: those that are cut, then those that aren't, each by name.
pub fn known() -> impl Iterator<Item = Described> {
    let cut = table::KNOWN.iter().map(|known| Described {
        name: known.name,
        kinds: known.kinds.words(),
        input: input_words(known.input, known.scale),
        cut: Ok(known.minds),
    });
    let refused = refused::REFUSED.iter().map(|&(name, why)| Described {
        name,
        kinds: "",
        input: "",
        cut: Err(why),
    });
    cut.chain(refused)
}

/// What the table says of llama.cpp's own source, for the test that compares the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Upstream {
    /// `general.architecture`
    pub name: &'static str,
    /// the file that builds its graph, under `src/`
    pub source: &'static str,
    /// hidden states that come in are the input of the first layer
    pub plain_input: bool,
    /// something is read off the number of layers
    pub by_layers: bool,
    /// `output.weight` is asked for by that name
    pub own_head: bool,
}

/// Each architecture that is cut, as the table has it.
pub fn upstream() -> impl Iterator<Item = Upstream> {
    table::KNOWN.iter().map(|known| Upstream {
        name: known.name,
        source: known.source,
        plain_input: known.input == Input::Embeddings,
        by_layers: known.by_layers != ByLayers::Nothing,
        own_head: known.head.own,
    })
}

fn input_words(input: Input, scale: InputScale) -> &'static str {
    match (input, scale) {
        (Input::Embeddings, InputScale::One) => "taken as it is",
        (Input::Embeddings, InputScale::SqrtEmbedding) => {
            "taken as it is; rank 0 scales embeddings by √embedding length"
        }
        (Input::Embeddings, InputScale::Key(_)) => "taken as it is; rank 0 scales embeddings by embedding_scale",
        (Input::Overwritten(_), InputScale::One) => "refused by llama.cpp, so it is written over what tokens give",
        (Input::Overwritten(_), _) => {
            "scaled again by llama.cpp, so it is written over the scaled one; rank 0 scales embeddings"
        }
    }
}

/// Why an architecture isn't cut.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// not in the table, or known not to work
    #[error("models of architecture {name} can't be served by windows: {why}")]
    Unsupported {
        /// `general.architecture`
        name: String,
        /// the reason
        why: &'static str,
    },
    /// a key with which no test has covered the architecture
    #[error(
        "models of architecture {name} with {key} can't be served by windows: {}",
        refused::UNTESTED
    )]
    UntestedKey {
        /// `general.architecture`
        name: &'static str,
        /// the key and, where it matters, its value
        key: &'static str,
    },
    /// a tensor outside all blocks whose use isn't known
    #[error("tensor {name} is not known for architecture {architecture}, so it isn't clear which windows need it")]
    UnknownTensor {
        /// which
        name: String,
        /// of which model
        architecture: &'static str,
    },
    /// a key of the model is wrong
    #[error("the layers' kinds can't be told")]
    Model(#[from] model::Error),
}

impl Error {
    /// Stable `PascalCase` word for metrics, events and conditions.
    pub fn reason(&self) -> &'static str {
        match self {
            Error::Unsupported { .. } | Error::UntestedKey { .. } | Error::UnknownTensor { .. } => {
                "UnsupportedArchitecture"
            }
            Error::Model(error) => error.reason(),
        }
    }
}

/// The table's entry of this name.
pub(crate) fn named(name: &str) -> Option<&'static Architecture> {
    table::KNOWN.iter().find(|known| known.name == name)
}

/// What is known about the model's architecture.
pub(crate) fn of(model: &Model) -> Result<&'static Architecture, Error> {
    let name = model.architecture();
    let known = named(name).ok_or_else(|| Error::Unsupported {
        name: name.into(),
        why: refused::why(name),
    })?;
    let set = |key: &&'static str| model.get(key).is_some_and(|value| value.as_u64() != Some(0));
    let untested = known.without.iter().copied().find(set);
    let bidirectional = model.get("attention.causal") == Some(Value::Bool(false));
    match untested.or(bidirectional.then_some("attention.causal = false")) {
        Some(key) => Err(Error::UntestedKey { name: known.name, key }),
        None => Ok(known),
    }
}

/// What the embedder multiplies a row of `token_embd` by before it enters layer 0; windows themselves scale nothing.
pub fn input_scale(model: &Model) -> Result<f32, Error> {
    Ok(match of(model)?.scale {
        InputScale::One => 1.0,
        InputScale::SqrtEmbedding => (model.embedding_length() as f32).sqrt(),
        InputScale::Key(key) => match model.get(key).map(Value::as_f32) {
            Some(Some(scale)) if scale.abs() > 0.0 => scale,
            // llama.cpp takes 0 for "don't scale"
            None | Some(Some(_)) => 1.0,
            Some(None) => {
                return Err(Error::Model(model::Error::key(
                    model.metadata(),
                    &model.full_key(key),
                    "a float",
                )));
            }
        },
    })
}

impl Architecture {
    /// Which ranks need this tensor, which belongs to no block.
    pub(crate) fn global(&self, name: &str) -> Result<GlobalRole, Error> {
        match name {
            "token_embd.weight" => Ok(GlobalRole::Embedding),
            "output.weight" => Ok(GlobalRole::Head),
            "rope_freqs.weight" | "rope_factors_long.weight" | "rope_factors_short.weight" => Ok(GlobalRole::Every),
            _ if self.head.norm == name || self.head.more.contains(&name) => Ok(GlobalRole::Head),
            _ => Err(Error::UnknownTensor {
                name: name.into(),
                architecture: self.name,
            }),
        }
    }
}
