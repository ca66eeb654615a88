//! Tiny models with random weights, one for each architecture, the same bytes from the same settings every time.
//!
//! The shapes are those of the real models shrunk, chosen so that every kernel that the real ones use is used here. A
//! tensor's values depend on the seed and its name alone: a model with more layers, another weight type or a
//! vocabulary keeps the values of all the tensors that it shares with the smaller one.

mod architecture;
mod vocabulary;
mod weights;

use std::path::Path;
use std::{fs, io};

use crate::gguf::{File, Tensor, TensorType, Value};
pub use architecture::Architecture;
pub use vocabulary::{CHAT_TEMPLATE, END_OF_TURN, VOCABULARY};
use weights::Values;

/// Width of a hidden state.
pub const EMBEDDING: u64 = 256;

/// Where the tokens come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Vocabulary {
    /// `tokenizer.ggml.model = "no_vocab"`: token ids only
    #[default]
    None,
    /// one token for each byte, a few merges and specials, and a chat template: text works
    Bytes,
}

/// The settings of a random-weight model.
#[derive(Clone, Debug)]
pub struct RandomModel {
    architecture: Architecture,
    layers: u32,
    mtp_layers: u32,
    weights: TensorType,
    vocabulary: Vocabulary,
    tied: bool,
    seed: u64,
    overrides: Vec<(String, Value)>,
}

impl RandomModel {
    /// Eight layers (more where llama.cpp knows the architecture by their number), no MTP layer, `Q8_0` weights, no vocabulary, an output head of its own where the architecture has
    /// one.
    pub fn new(architecture: Architecture) -> Self {
        Self {
            architecture,
            layers: architecture.default_layers(),
            mtp_layers: 0,
            weights: TensorType::default(),
            vocabulary: Vocabulary::default(),
            tied: architecture.always_tied(),
            seed: 1,
            overrides: Vec::new(),
        }
    }

    /// Trunk layers.
    #[must_use]
    pub fn layers(mut self, layers: u32) -> Self {
        self.layers = layers;
        self
    }

    /// MTP (nextn) layers after the trunk.
    #[must_use]
    pub fn mtp_layers(mut self, layers: u32) -> Self {
        assert!(
            layers == 0 || self.architecture.has_mtp(),
            "{} has no MTP layer",
            self.architecture.name()
        );
        self.mtp_layers = layers;
        self
    }

    /// How the matrices are stored; norms, biases and the router stay `F32`.
    #[must_use]
    pub fn weights(mut self, kind: TensorType) -> Self {
        self.weights = kind;
        self
    }

    /// Where the tokens come from.
    #[must_use]
    pub fn vocabulary(mut self, vocabulary: Vocabulary) -> Self {
        self.vocabulary = vocabulary;
        self
    }

    /// Leaves `output.weight` out: the embedding is the output head too.
    #[must_use]
    pub fn tied(mut self) -> Self {
        self.tied = true;
        self
    }

    /// Another seed: other weights in the same shapes.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Sets a metadata key after all others, in place of what the model would say.
    #[must_use]
    pub fn metadata(mut self, key: impl Into<String>, value: Value) -> Self {
        self.overrides.push((key.into(), value));
        self
    }

    /// The model as a GGUF in memory.
    pub fn file(&self) -> File {
        let mut file = File::default();
        file.set(
            "general.architecture",
            Value::String(self.architecture.name().to_owned()),
        );
        file.set(
            "general.name",
            Value::String(format!("random {}", self.architecture.name())),
        );
        file.metadata
            .extend(self.architecture.metadata(self.layers, self.mtp_layers));
        file.metadata
            .extend(vocabulary::metadata(self.vocabulary, self.architecture.name()));
        for (key, value) in &self.overrides {
            file.set(key.clone(), value.clone());
        }
        file.tensors = self
            .architecture
            .tensors(self.layers, self.mtp_layers)
            .into_iter()
            .filter(|(name, ..)| !(self.tied && name == "output.weight"))
            .map(|(name, shape, values)| self.tensor(name, shape, values))
            .collect();
        file
    }

    /// The model's bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.file().to_bytes()
    }

    /// Writes the model to `path`.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        fs::write(path, self.to_bytes())
    }

    fn tensor(&self, name: String, shape: Vec<u64>, values: Values) -> Tensor {
        let kind = if values == Values::Matrix {
            self.weights
        } else {
            TensorType::F32
        };
        let data = kind.encode(&values.draw(self.seed, &name, &shape));
        Tensor {
            name,
            shape,
            kind,
            data,
        }
    }
}
