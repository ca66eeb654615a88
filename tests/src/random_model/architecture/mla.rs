//! Latent attention: what is cached of a token is one compressed row, from which each head's key and value are unfolded.

use super::{E, HEADS, Keys, Layer};

/// Width of a query before it is unfolded, and of a key and value.
const QUERY_RANK: u64 = 128;
const RANK: u64 = 64;
/// The part of a head that carries the position, and the part that doesn't.
pub(super) const ROTATED: u64 = 32;
const PLAIN: u64 = 32;
/// Width of a head's values.
const VALUE: u64 = 64;

pub(super) fn keys(out: &mut Keys, compressed_queries: bool) {
    out.u32("attention.head_count", HEADS);
    out.u32("attention.head_count_kv", 1);
    out.u32("attention.key_length", RANK + ROTATED);
    out.u32("attention.value_length", RANK);
    out.u32("attention.key_length_mla", PLAIN + ROTATED);
    out.u32("attention.value_length_mla", VALUE);
    if compressed_queries {
        out.u32("attention.q_lora_rank", QUERY_RANK);
    }
    out.u32("attention.kv_lora_rank", RANK);
}

pub(super) fn tensors(layer: &mut Layer<'_>, compressed_queries: bool) {
    let queries = HEADS * (PLAIN + ROTATED);
    if compressed_queries {
        layer.matrix("attn_q_a", &[E, QUERY_RANK]);
        layer.norm("attn_q_a_norm", QUERY_RANK);
        layer.matrix("attn_q_b", &[QUERY_RANK, queries]);
    } else {
        layer.matrix("attn_q", &[E, queries]);
    }
    layer.matrix("attn_kv_a_mqa", &[E, RANK + ROTATED]);
    layer.norm("attn_kv_a_norm", RANK);
    layer.matrix("attn_k_b", &[PLAIN, RANK, HEADS]);
    layer.matrix("attn_v_b", &[RANK, VALUE, HEADS]);
    layer.matrix("attn_output", &[HEADS * VALUE, E]);
}
