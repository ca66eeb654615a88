//! What llama.cpp does differently from architecture to architecture, as far as cutting windows goes: one table.
//!
//! Checked against `src/models/` and `src/llama-model.cpp` of llama-cpp-sys-2 0.1.160; check again at every upgrade.
//! An architecture that isn't in the table isn't cut: mixed-up layers run without an error and give wrong text.

use crate::metadata::Value;
use crate::model::{self, Model};

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
    /// period, of which the last layer is full (the first, where `dense_first`). A window of full layers only goes
    /// without both keys (`is_swa_any` is asserted).
    Sliding {
        period: u64,
        dense_first: bool,
    },
    /// `attention.recurrent_layers`, one flag for each block; else every `full_attention_interval`th layer is full.
    /// Both kinds must be there (their graph inputs have no buffer otherwise, which is asserted).
    Hybrid {
        interval: u64,
    },
}

/// What the embedder multiplies a row of `token_embd` by before it enters layer 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum InputScale {
    One,
    /// √embedding length; llama.cpp applies it to tokens only (`tok_scale` of `build_inp_embd`)
    SqrtEmbedding,
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
    pub(crate) kinds: Kinds,
    input_scale: InputScale,
    /// tensors of the head that llama.cpp reads besides `output_norm.weight` and `output.weight`
    head: &'static [&'static str],
    /// number of layers at which llama.cpp takes the model for one that scales queries by 1/√(embedding length / heads)
    /// instead of 1/√(key length)
    pub(crate) scaled_at: Option<u32>,
}

const PLAIN: Architecture = Architecture {
    name: "",
    kinds: Kinds::Full,
    input_scale: InputScale::One,
    head: &[],
    scaled_at: None,
};

const KNOWN: &[Architecture] = &[
    Architecture { name: "llama", ..PLAIN },
    Architecture {
        name: "qwen2",
        head: &["output.bias"],
        ..PLAIN
    },
    Architecture { name: "qwen3", ..PLAIN },
    Architecture {
        name: "qwen3moe",
        ..PLAIN
    },
    Architecture {
        name: "qwen3next",
        kinds: Kinds::Hybrid { interval: 4 },
        ..PLAIN
    },
    Architecture {
        name: "qwen35",
        kinds: Kinds::Hybrid { interval: 4 },
        ..PLAIN
    },
    Architecture {
        name: "qwen35moe",
        kinds: Kinds::Hybrid { interval: 4 },
        ..PLAIN
    },
    Architecture {
        name: "gemma3",
        kinds: Kinds::Sliding {
            period: 6,
            dense_first: false,
        },
        input_scale: InputScale::SqrtEmbedding,
        scaled_at: Some(62),
        ..PLAIN
    },
    // sliding_window is read and switched off: all layers are full
    Architecture { name: "phi3", ..PLAIN },
];

/// Architectures known not to work as windows, and why.
const REFUSED: &[(&str, &str)] = &[
    (
        "bloom",
        "llama.cpp normalises the input of every window, not only the embeddings",
    ),
    (
        "deepseek4",
        "several residual streams cross a layer boundary (hyper-connections)",
    ),
    (
        "gemma",
        "llama.cpp scales the input of every window by the root of its length, not only the embeddings",
    ),
    (
        "gemma2",
        "llama.cpp scales the input of every window by the root of its length, not only the embeddings",
    ),
    (
        "gemma3n",
        "layers read per-layer token embeddings and share keys and values across windows",
    ),
    (
        "gemma4",
        "layers read per-layer token embeddings and share keys and values across windows",
    ),
    (
        "gpt2",
        "llama.cpp adds position embeddings to the input of every window",
    ),
    (
        "qwen4exp",
        "several residual streams cross a layer boundary (hyper-connections)",
    ),
    ("t5", "it is an encoder-decoder"),
];

/// Arrays under the architecture's prefix that hold one value for each block.
pub(crate) const PER_LAYER: &[&str] = &[
    "attention.head_count",
    "attention.head_count_kv",
    "attention.recurrent_layers",
    "attention.sliding_window_pattern",
    "expert_feed_forward_length",
    "expert_used_count",
    "feed_forward_length",
    "swiglu_clamp_exp",
    "swiglu_clamp_shexp",
];

/// Arrays under the architecture's prefix that don't, however long they are.
pub(crate) const WHOLE: &[&str] = &["rope.dimension_sections"];

/// What is known about one architecture, in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Described {
    /// `general.architecture`
    pub name: &'static str,
    /// how the kinds of its layers are told
    pub kinds: &'static str,
    /// what happens to the input of its first layer
    pub input: &'static str,
    /// what windows of it have to mind, or why there are none
    pub cut: Result<&'static str, &'static str>,
}

/// Every architecture that llama.cpp knows: those that are cut, then those that aren't, each by name.
pub fn known() -> impl Iterator<Item = Described> {
    std::iter::empty()
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
            Error::Unsupported { .. } | Error::UnknownTensor { .. } => "UnsupportedArchitecture",
            Error::Model(error) => error.reason(),
        }
    }
}

/// What is known about the model's architecture.
pub(crate) fn of(model: &Model) -> Result<&'static Architecture, Error> {
    let name = model.architecture();
    KNOWN
        .iter()
        .find(|known| known.name == name)
        .ok_or_else(|| Error::Unsupported {
            name: name.into(),
            why: REFUSED
                .iter()
                .find(|refused| refused.0 == name)
                .map_or("no test has shown that its windows equal the whole model", |refused| {
                    refused.1
                }),
        })
}

/// The kind of each layer of the trunk.
pub fn layer_kinds(model: &Model) -> Result<Vec<LayerKind>, Error> {
    let layers = model.layers() as usize;
    let kinds = match of(model)?.kinds {
        Kinds::Full => vec![LayerKind::Full; layers],
        Kinds::Sliding { period, dense_first } => {
            if !slides(model) {
                return Ok(vec![LayerKind::Full; layers]);
            }
            let pattern = "attention.sliding_window_pattern";
            let flags = match model.get(pattern) {
                Some(value) if value.as_array().is_some() => model.per_layer(pattern)?.unwrap_or_default(),
                value => {
                    let period = value.and_then(Value::as_u64).unwrap_or(period);
                    // `llama_hparams::set_swa_pattern`
                    let slides = |layer: u64| match (period, dense_first) {
                        (0, _) => true,
                        (_, true) => !layer.is_multiple_of(period),
                        (_, false) => layer % period < period - 1,
                    };
                    (0..layers as u64).map(|layer| slides(layer).into()).collect()
                }
            };
            flags
                .iter()
                .map(|flag| {
                    if *flag != 0 {
                        LayerKind::Sliding
                    } else {
                        LayerKind::Full
                    }
                })
                .collect()
        }
        Kinds::Hybrid { interval } => {
            let flags = match model.per_layer("attention.recurrent_layers")? {
                Some(flags) => flags,
                None => {
                    let key = "full_attention_interval";
                    let interval = model.get(key).and_then(Value::as_u64).unwrap_or(interval);
                    if interval == 0 {
                        let key = model.full_key(key);
                        return Err(model::Error::Key {
                            key,
                            expected: "a number above 0",
                        }
                        .into());
                    }
                    (1..=layers as u64)
                        .map(|place| u64::from(place % interval != 0))
                        .collect()
                }
            };
            flags
                .iter()
                .map(|flag| {
                    if *flag != 0 {
                        LayerKind::Recurrent
                    } else {
                        LayerKind::Full
                    }
                })
                .collect()
        }
    };
    Ok(kinds.into_iter().take(layers).collect())
}

/// The sliding window is on.
pub(crate) fn slides(model: &Model) -> bool {
    model
        .get("attention.sliding_window")
        .and_then(Value::as_u64)
        .is_some_and(|window| window > 0)
}

/// What the embedder multiplies a row of `token_embd` by before it enters layer 0; windows themselves scale nothing.
pub fn input_scale(model: &Model) -> Result<f32, Error> {
    Ok(match of(model)?.input_scale {
        InputScale::One => 1.0,
        InputScale::SqrtEmbedding => (model.embedding_length() as f32).sqrt(),
    })
}

impl Architecture {
    /// Which ranks need this tensor, which belongs to no block.
    pub(crate) fn global(&self, name: &str) -> Result<GlobalRole, Error> {
        match name {
            "token_embd.weight" => Ok(GlobalRole::Embedding),
            "output_norm.weight" | "output.weight" => Ok(GlobalRole::Head),
            "rope_freqs.weight" | "rope_factors_long.weight" | "rope_factors_short.weight" => Ok(GlobalRole::Every),
            _ if self.head.contains(&name) => Ok(GlobalRole::Head),
            _ => Err(Error::UnknownTensor {
                name: name.into(),
                architecture: self.name,
            }),
        }
    }
}
