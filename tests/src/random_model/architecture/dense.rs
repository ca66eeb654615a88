//! Attention with a cache of keys and values, and feed-forward parts without experts.

use super::recipe::{Attention, Extra, Recipe};
use super::{E, HEAD, HEADS, KV_HEADS, Keys, Layer, mla};
use crate::gguf::Value;
use crate::random_model::weights::Values::Plain;

/// Keys of heads; one number of key heads for all layers, or 0 for those that have none.
pub(super) fn keys(out: &mut Keys, recipe: &Recipe, layers: u32, blocks: u32) {
    out.u32("attention.head_count", HEADS);
    match &recipe.recurrent {
        Some((recurrent, places)) if recurrent.is_told_by_heads() => {
            let heads = |index| {
                if index < layers && places.is_recurrent(index) {
                    0
                } else {
                    KV_HEADS as i32
                }
            };
            out.set("attention.head_count_kv", Value::I32s((0..blocks).map(heads).collect()));
        }
        _ => out.u32("attention.head_count_kv", KV_HEADS),
    }
    out.u32("attention.key_length", HEAD);
    out.u32("attention.value_length", HEAD);
}

impl Attention {
    pub(super) fn tensors(self, layer: &mut Layer<'_>) {
        match self {
            Attention::Separate(extras) => separate(layer, extras),
            Attention::Fused => {
                layer.matrix("attn_qkv", &[E, (HEADS + 2 * KV_HEADS) * HEAD]);
                layer.matrix("attn_output", &[HEADS * HEAD, E]);
            }
            Attention::Latent { compressed_queries } => mla::tensors(layer, compressed_queries),
        }
    }
}

fn separate(layer: &mut Layer<'_>, extras: &[Extra]) {
    let (queries, keys) = (HEADS * HEAD, KV_HEADS * HEAD);
    let has = |extra| extras.contains(&extra);
    layer.matrix("attn_q", &[E, if has(Extra::Gate) { 2 * queries } else { queries }]);
    layer.matrix("attn_k", &[E, keys]);
    layer.matrix("attn_v", &[E, keys]);
    layer.matrix("attn_output", &[queries, E]);
    if has(Extra::Biases) {
        layer.add("attn_q.bias", &[queries], Plain);
        layer.add("attn_k.bias", &[keys], Plain);
        layer.add("attn_v.bias", &[keys], Plain);
    }
    if has(Extra::Norms) {
        layer.norm("attn_q_norm", HEAD);
        layer.norm("attn_k_norm", HEAD);
    }
    if has(Extra::OutputBias) {
        layer.add("attn_output.bias", &[E], Plain);
    }
    if has(Extra::Sinks) {
        layer.add("attn_sinks.weight", &[HEADS], Plain);
    }
}

pub(super) fn feed_forward(layer: &mut Layer<'_>, ff: u64) {
    layer.matrix("ffn_gate", &[E, ff]);
    layer.matrix("ffn_up", &[E, ff]);
    layer.matrix("ffn_down", &[ff, E]);
}

/// Gate and up projection in one matrix.
pub(super) fn fused_feed_forward(layer: &mut Layer<'_>, ff: u64) {
    layer.matrix("ffn_up", &[E, 2 * ff]);
    layer.matrix("ffn_down", &[ff, E]);
}
