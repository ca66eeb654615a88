//! What each architecture's file holds: metadata keys and tensors, as llama.cpp's loader (`src/models/*.cpp`) wants them.
//!
//! An architecture is a recipe, put together from parts that several share; each part knows its keys and tensors.

mod dense;
mod experts;
mod hybrid;
mod mla;
mod recipe;

use super::EMBEDDING as E;
use super::VOCABULARY as V;
use super::weights::Values::{self, Matrix, Norm, RopeFactors};
use crate::gguf::Value;
use experts::{FeedForward, Width};
use recipe::Attention;

/// Attention heads, heads of keys and values, width of a head.
const HEADS: u64 = 4;
const KV_HEADS: u64 = 2;
const HEAD: u64 = 64;
const CONTEXT: u32 = 4096;
const ROPE_BASE: f32 = 1e6;

/// An architecture that a random model can have, or a variant of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "each is named as in GGUF")]
pub enum Architecture {
    Llama,
    /// llama with experts, as Mixtral has them
    LlamaMoe,
    Qwen2,
    Qwen3,
    Qwen3Moe,
    Qwen3Next,
    Qwen35,
    Qwen35Moe,
    Gemma,
    Gemma2,
    Gemma3,
    Phi3,
    Glm4Moe,
    Deepseek2,
    /// deepseek2 without compressed queries; llama.cpp knows it by its number of layers, so it has 27
    Deepseek2Lite,
    GptOss,
    GraniteHybrid,
    /// granitehybrid with experts
    GraniteHybridMoe,
    Lfm2,
    Mistral3,
    Mistral4,
}

use Architecture::{
    Deepseek2, Deepseek2Lite, Gemma, Gemma2, Gemma3, Glm4Moe, GptOss, GraniteHybrid, GraniteHybridMoe, Lfm2, Llama,
    LlamaMoe, Mistral3, Mistral4, Phi3, Qwen2, Qwen3, Qwen3Moe, Qwen3Next, Qwen35, Qwen35Moe,
};

/// Name, shape in GGUF order (row length first), and how the values are spread.
type Spec = (String, Vec<u64>, Values);

impl Architecture {
    /// All of them.
    pub const ALL: [Self; 21] = [
        Llama,
        LlamaMoe,
        Qwen2,
        Qwen3,
        Qwen3Moe,
        Qwen3Next,
        Qwen35,
        Qwen35Moe,
        Gemma,
        Gemma2,
        Gemma3,
        Phi3,
        Glm4Moe,
        Deepseek2,
        Deepseek2Lite,
        GptOss,
        GraniteHybrid,
        GraniteHybridMoe,
        Lfm2,
        Mistral3,
        Mistral4,
    ];

    /// GGUF's `general.architecture`.
    pub fn name(self) -> &'static str {
        recipe::of(self).name
    }

    /// What tells it from the others: its name, and for a variant what is different.
    pub fn label(self) -> &'static str {
        match self {
            LlamaMoe => "llama, experts",
            Deepseek2Lite => "deepseek2, lite",
            GraniteHybridMoe => "granitehybrid, experts",
            _ => self.name(),
        }
    }

    /// Layers that its trunk has unless others are asked for.
    pub fn default_layers(self) -> u32 {
        recipe::of(self).layers
    }

    /// Whether some layers keep a state of fixed size in place of keys and values.
    pub fn is_hybrid(self) -> bool {
        recipe::of(self).recurrent.is_some()
    }

    /// Whether layers see all positions or a sliding window of them.
    pub fn is_sliding(self) -> bool {
        recipe::of(self).sliding
    }

    /// Whether the feed-forward part is made of experts.
    pub fn is_moe(self) -> bool {
        matches!(recipe::of(self).feed_forward, FeedForward::Experts(_))
    }

    /// Whether there may be MTP layers behind the trunk.
    pub fn has_mtp(self) -> bool {
        recipe::of(self).mtp
    }

    /// Whether the file never holds an output head.
    pub(super) fn always_tied(self) -> bool {
        recipe::of(self).tied
    }

    /// Keys `<architecture>.*`.
    pub(super) fn metadata(self, layers: u32, mtp_layers: u32) -> Vec<(String, Value)> {
        let recipe = recipe::of(self);
        let blocks = layers + mtp_layers;
        let mut out = Keys {
            prefix: recipe.name,
            entries: Vec::new(),
        };
        out.u32("block_count", u64::from(blocks));
        out.u32("context_length", u64::from(CONTEXT));
        out.u32("embedding_length", E);
        out.u32("feed_forward_length", recipe.ff);
        match recipe.attention {
            Attention::Latent { compressed_queries } => mla::keys(&mut out, compressed_queries),
            _ => dense::keys(&mut out, &recipe, layers, blocks),
        }
        out.set("attention.layer_norm_rms_epsilon", Value::F32(1e-6));
        out.set("rope.freq_base", Value::F32(ROPE_BASE));
        out.u32("rope.dimension_count", recipe.rotated);
        if let FeedForward::Experts(experts) = &recipe.feed_forward {
            experts.keys(&mut out);
        }
        if let Some((recurrent, _)) = &recipe.recurrent {
            recurrent.keys(&mut out);
        }
        (recipe.keys)(&mut out);
        if mtp_layers > 0 {
            out.u32("nextn_predict_layers", u64::from(mtp_layers));
        }
        out.entries
    }

    /// All tensors: global ones first, then layer by layer.
    pub(super) fn tensors(self, layers: u32, mtp_layers: u32) -> Vec<Spec> {
        let recipe = recipe::of(self);
        let mut all = vec![
            ("token_embd.weight".to_owned(), vec![E, V], Matrix),
            (format!("{}.weight", recipe.output_norm), vec![E], Norm),
            ("output.weight".to_owned(), vec![E, V], Matrix),
        ];
        if self == Phi3 {
            for which in ["long", "short"] {
                all.push((format!("rope_factors_{which}.weight"), vec![HEAD / 2], RopeFactors));
            }
        }
        for index in 0..layers + mtp_layers {
            let is_mtp = index >= layers;
            let mut layer = Layer {
                prefix: format!("blk.{index}."),
                tensors: &mut all,
            };
            match &recipe.recurrent {
                Some((recurrent, places)) if !is_mtp && places.is_recurrent(index) => recurrent.tensors(&mut layer),
                _ => recipe.attention.tensors(&mut layer),
            }
            for name in recipe.norms {
                layer.norm(name, E);
            }
            recipe.feed_forward.tensors(&mut layer, index, recipe.ff);
            if is_mtp {
                mtp(&mut layer);
            }
        }
        all
    }
}

/// What an MTP layer has beside a full-attention layer's tensors.
fn mtp(layer: &mut Layer<'_>) {
    layer.matrix("nextn.eh_proj", &[2 * E, E]);
    layer.norm("nextn.enorm", E);
    layer.norm("nextn.hnorm", E);
    layer.norm("nextn.shared_head_norm", E);
}

struct Keys {
    prefix: &'static str,
    entries: Vec<(String, Value)>,
}

impl Keys {
    fn set(&mut self, key: &str, value: Value) {
        self.entries.push((format!("{}.{key}", self.prefix), value));
    }

    fn u32(&mut self, key: &str, value: u64) {
        self.set(key, Value::U32(value as u32));
    }

    fn f32(&mut self, key: &str, value: f32) {
        self.set(key, Value::F32(value));
    }
}

struct Layer<'a> {
    prefix: String,
    tensors: &'a mut Vec<Spec>,
}

impl Layer<'_> {
    fn add(&mut self, name: &str, shape: &[u64], values: Values) {
        self.tensors
            .push((format!("{}{name}", self.prefix), shape.to_vec(), values));
    }

    fn matrix(&mut self, name: &str, shape: &[u64]) {
        self.add(&format!("{name}.weight"), shape, Matrix);
    }

    fn norm(&mut self, name: &str, width: u64) {
        self.add(&format!("{name}.weight"), &[width], Norm);
    }
}

impl FeedForward {
    /// The feed-forward part of layer `index`, `ff` wide where it is dense.
    fn tensors(&self, layer: &mut Layer<'_>, index: u32, ff: u64) {
        match self {
            FeedForward::Experts(experts) if index >= experts.leading_dense => {
                let width = match experts.width {
                    Width::Own(width) => width,
                    Width::FeedForward => ff,
                };
                experts.tensors(layer, width);
            }
            FeedForward::Dense | FeedForward::Experts(_) => dense::feed_forward(layer, ff),
            FeedForward::Fused => dense::fused_feed_forward(layer, ff),
        }
    }
}
