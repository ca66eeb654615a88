//! What each architecture's file holds: metadata keys and tensors, as llama.cpp's loader (`src/models/*.cpp`) wants them.

use super::EMBEDDING as E;
use super::VOCABULARY as V;
use super::weights::Values::{self, Decay, Matrix, Norm, Plain, RopeFactors};
use crate::gguf::Value;

/// Attention heads, heads of keys and values, width of a head.
const HEADS: u64 = 4;
const KV_HEADS: u64 = 2;
const HEAD: u64 = 64;
/// Width of the feed-forward part.
const FF: u64 = 512;
/// Experts, how many of them a token uses, their width.
const EXPERTS: u64 = 8;
const EXPERTS_USED: u64 = 2;
const EXPERT_FF: u64 = 256;
/// Linear attention: convolution, state (width of a head), heads of keys, heads of values.
const CONVOLUTION: u64 = 4;
const STATE: u64 = 64;
const KEY_GROUPS: u64 = 2;
const VALUE_HEADS: u64 = 4;
/// Every fourth layer of a hybrid model is full attention.
const FULL_ATTENTION_INTERVAL: u32 = 4;
/// Positions that a sliding window sees: few, so that a short prompt leaves it.
const SLIDING_WINDOW: u32 = 16;
const CONTEXT: u32 = 4096;
const ROPE_BASE: f32 = 1e6;

/// An architecture that a random model can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "each is named as in GGUF")]
pub enum Architecture {
    Llama,
    Qwen2,
    Qwen3,
    Qwen3Moe,
    Qwen3Next,
    Qwen35,
    Qwen35Moe,
    Gemma2,
    Gemma3,
    Phi3,
}

use Architecture::{Gemma2, Gemma3, Llama, Phi3, Qwen2, Qwen3, Qwen3Moe, Qwen3Next, Qwen35, Qwen35Moe};

/// Name, shape in GGUF order (row length first), and how the values are spread.
type Spec = (String, Vec<u64>, Values);

impl Architecture {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Llama, Qwen2, Qwen3, Qwen3Moe, Qwen3Next, Qwen35, Qwen35Moe, Gemma2, Gemma3, Phi3,
    ];

    /// GGUF's `general.architecture`.
    pub fn name(self) -> &'static str {
        match self {
            Llama => "llama",
            Qwen2 => "qwen2",
            Qwen3 => "qwen3",
            Qwen3Moe => "qwen3moe",
            Qwen3Next => "qwen3next",
            Qwen35 => "qwen35",
            Qwen35Moe => "qwen35moe",
            Gemma2 => "gemma2",
            Gemma3 => "gemma3",
            Phi3 => "phi3",
        }
    }

    /// Whether layers of full and of linear attention alternate. These architectures have MTP layers too.
    pub fn is_hybrid(self) -> bool {
        matches!(self, Qwen3Next | Qwen35 | Qwen35Moe)
    }

    /// Whether layers see all positions or a sliding window of them.
    pub fn is_sliding(self) -> bool {
        matches!(self, Gemma2 | Gemma3)
    }

    /// Whether the feed-forward part is made of experts.
    pub fn is_moe(self) -> bool {
        matches!(self, Qwen3Moe | Qwen3Next | Qwen35Moe)
    }

    /// Whether the file never holds an output head.
    pub(super) fn always_tied(self) -> bool {
        self.is_sliding()
    }

    /// Keys `<architecture>.*`.
    pub(super) fn metadata(self, layers: u32, mtp_layers: u32) -> Vec<(String, Value)> {
        let rope = if self.is_hybrid() { HEAD / 2 } else { HEAD };
        let mut out = Keys {
            prefix: self.name(),
            entries: Vec::new(),
        };
        out.u32("block_count", u64::from(layers + mtp_layers));
        out.u32("context_length", u64::from(CONTEXT));
        out.u32("embedding_length", E);
        out.u32("feed_forward_length", FF);
        out.u32("attention.head_count", HEADS);
        out.u32("attention.head_count_kv", KV_HEADS);
        out.u32("attention.key_length", HEAD);
        out.u32("attention.value_length", HEAD);
        out.set("attention.layer_norm_rms_epsilon", Value::F32(1e-6));
        out.set("rope.freq_base", Value::F32(ROPE_BASE));
        out.u32("rope.dimension_count", rope);
        if self.is_moe() {
            out.u32("expert_count", EXPERTS);
            out.u32("expert_used_count", EXPERTS_USED);
            out.u32("expert_feed_forward_length", EXPERT_FF);
        }
        if self.is_hybrid() {
            out.u32("ssm.conv_kernel", CONVOLUTION);
            out.u32("ssm.state_size", STATE);
            out.u32("ssm.group_count", KEY_GROUPS);
            out.u32("ssm.time_step_rank", VALUE_HEADS);
            out.u32("ssm.inner_size", VALUE_HEADS * STATE);
            out.u32("full_attention_interval", u64::from(FULL_ATTENTION_INTERVAL));
        }
        if self.is_hybrid() && self.is_moe() {
            out.u32("expert_shared_feed_forward_length", EXPERT_FF);
        }
        if matches!(self, Qwen35 | Qwen35Moe) {
            out.set("rope.dimension_sections", Value::I32s(vec![6, 5, 5, 0]));
        }
        if self.is_sliding() {
            out.u32("attention.sliding_window", u64::from(SLIDING_WINDOW));
        }
        if self == Phi3 {
            out.u32("rope.scaling.original_context_length", u64::from(CONTEXT));
        }
        if mtp_layers > 0 {
            out.u32("nextn_predict_layers", u64::from(mtp_layers));
        }
        out.entries
    }

    /// All tensors: global ones first, then layer by layer.
    pub(super) fn tensors(self, layers: u32, mtp_layers: u32) -> Vec<Spec> {
        let mut all = vec![
            ("token_embd.weight".to_owned(), vec![E, V], Matrix),
            ("output_norm.weight".to_owned(), vec![E], Norm),
            ("output.weight".to_owned(), vec![E, V], Matrix),
        ];
        if self == Phi3 {
            for which in ["long", "short"] {
                all.push((format!("rope_factors_{which}.weight"), vec![HEAD / 2], RopeFactors));
            }
        }
        for index in 0..layers + mtp_layers {
            let is_mtp = index >= layers;
            let is_linear = self.is_hybrid() && !is_mtp && !(index + 1).is_multiple_of(FULL_ATTENTION_INTERVAL);
            let mut layer = Layer {
                prefix: format!("blk.{index}."),
                tensors: &mut all,
            };
            if is_linear {
                self.linear_attention(&mut layer);
            } else {
                self.attention(&mut layer);
            }
            self.norms(&mut layer);
            if self.is_moe() {
                self.experts(&mut layer);
            } else {
                self.feed_forward(&mut layer);
            }
            if is_mtp {
                mtp(&mut layer);
            }
        }
        all
    }

    fn norms(self, layer: &mut Layer<'_>) {
        layer.norm("attn_norm", E);
        if self.is_hybrid() || self.is_sliding() {
            layer.norm("post_attention_norm", E);
        }
        if !self.is_hybrid() {
            layer.norm("ffn_norm", E);
        }
        if self.is_sliding() {
            layer.norm("post_ffw_norm", E);
        }
    }

    fn attention(self, layer: &mut Layer<'_>) {
        let (queries, keys) = (HEADS * HEAD, KV_HEADS * HEAD);
        if self == Phi3 {
            layer.matrix("attn_qkv", &[E, queries + 2 * keys]);
        } else {
            // a hybrid's full attention gates its output: twice the rows
            layer.matrix("attn_q", &[E, if self.is_hybrid() { 2 * queries } else { queries }]);
            layer.matrix("attn_k", &[E, keys]);
            layer.matrix("attn_v", &[E, keys]);
        }
        layer.matrix("attn_output", &[queries, E]);
        if self == Qwen2 {
            layer.add("attn_q.bias", &[queries], Plain);
            layer.add("attn_k.bias", &[keys], Plain);
            layer.add("attn_v.bias", &[keys], Plain);
        }
        if !matches!(self, Llama | Qwen2 | Gemma2 | Phi3) {
            layer.norm("attn_q_norm", HEAD);
            layer.norm("attn_k_norm", HEAD);
        }
    }

    /// Gated delta net.
    fn linear_attention(self, layer: &mut Layer<'_>) {
        let values = VALUE_HEADS * STATE;
        let convolved = 2 * KEY_GROUPS * STATE + values;
        layer.matrix("attn_qkv", &[E, convolved]);
        layer.matrix("attn_gate", &[E, values]);
        layer.add("ssm_conv1d.weight", &[CONVOLUTION, convolved], Plain);
        layer.add("ssm_dt.bias", &[VALUE_HEADS], Plain);
        layer.add("ssm_a", &[VALUE_HEADS], Decay);
        if self == Qwen3Next {
            layer.matrix("ssm_ba", &[E, 2 * VALUE_HEADS]);
        } else {
            layer.matrix("ssm_beta", &[E, VALUE_HEADS]);
            layer.matrix("ssm_alpha", &[E, VALUE_HEADS]);
        }
        layer.norm("ssm_norm", STATE);
        layer.matrix("ssm_out", &[values, E]);
    }

    fn feed_forward(self, layer: &mut Layer<'_>) {
        if self == Phi3 {
            layer.matrix("ffn_up", &[E, 2 * FF]);
        } else {
            layer.matrix("ffn_gate", &[E, FF]);
            layer.matrix("ffn_up", &[E, FF]);
        }
        layer.matrix("ffn_down", &[FF, E]);
    }

    fn experts(self, layer: &mut Layer<'_>) {
        layer.add("ffn_gate_inp.weight", &[E, EXPERTS], Plain);
        layer.matrix("ffn_gate_exps", &[E, EXPERT_FF, EXPERTS]);
        layer.matrix("ffn_up_exps", &[E, EXPERT_FF, EXPERTS]);
        layer.matrix("ffn_down_exps", &[EXPERT_FF, E, EXPERTS]);
        if self.is_hybrid() {
            layer.add("ffn_gate_inp_shexp.weight", &[E], Plain);
            layer.matrix("ffn_gate_shexp", &[E, EXPERT_FF]);
            layer.matrix("ffn_up_shexp", &[E, EXPERT_FF]);
            layer.matrix("ffn_down_shexp", &[EXPERT_FF, E]);
        }
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
