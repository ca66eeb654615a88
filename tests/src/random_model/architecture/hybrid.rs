//! Layers that keep a state of fixed size, and where they are.

use super::{E, Keys, Layer};
use crate::random_model::weights::Values::{Decay, Norm, Plain};

/// Gated delta net: convolution, width of a head, heads of keys, heads of values.
const CONVOLUTION: u64 = 4;
const STATE: u64 = 64;
const KEY_GROUPS: u64 = 2;
const VALUE_HEADS: u64 = 4;
/// Mamba-2: llama.cpp takes an inner width of twice the embedding only.
const INNER: u64 = 2 * E;
const INNER_STATE: u64 = 32;
const INNER_GROUPS: u64 = 2;
const INNER_HEADS: u64 = 8;
/// Positions that a short convolution sees.
const SHORT_CONVOLUTION: u64 = 3;

/// What stands in for attention in some layers.
pub(super) enum Recurrent {
    /// gated delta net; the projections of beta and alpha in one matrix, or in two
    DeltaNet {
        fused: bool,
    },
    Mamba2,
    ShortConvolution,
}

/// Which layers are recurrent.
pub(super) enum Places {
    /// all but every fourth, as `full_attention_interval` says
    AllButEvery(u32),
    /// all but these
    AllBut(&'static [u32]),
}

impl Places {
    pub(super) fn is_recurrent(&self, index: u32) -> bool {
        match self {
            Places::AllButEvery(interval) => !(index + 1).is_multiple_of(*interval),
            Places::AllBut(attention) => !attention.contains(&index),
        }
    }
}

impl Recurrent {
    /// Whether a layer is recurrent where it has no heads of keys.
    pub(super) fn is_told_by_heads(&self) -> bool {
        matches!(self, Recurrent::Mamba2 | Recurrent::ShortConvolution)
    }

    pub(super) fn keys(&self, out: &mut Keys) {
        match self {
            Recurrent::DeltaNet { .. } => {
                out.u32("ssm.conv_kernel", CONVOLUTION);
                out.u32("ssm.state_size", STATE);
                out.u32("ssm.group_count", KEY_GROUPS);
                out.u32("ssm.time_step_rank", VALUE_HEADS);
                out.u32("ssm.inner_size", VALUE_HEADS * STATE);
            }
            Recurrent::Mamba2 => {
                out.u32("ssm.conv_kernel", CONVOLUTION);
                out.u32("ssm.state_size", INNER_STATE);
                out.u32("ssm.group_count", INNER_GROUPS);
                out.u32("ssm.time_step_rank", INNER_HEADS);
                out.u32("ssm.inner_size", INNER);
            }
            Recurrent::ShortConvolution => out.u32("shortconv.l_cache", SHORT_CONVOLUTION),
        }
    }

    pub(super) fn tensors(&self, layer: &mut Layer<'_>) {
        match self {
            Recurrent::DeltaNet { fused } => delta_net(layer, *fused),
            Recurrent::Mamba2 => mamba2(layer),
            Recurrent::ShortConvolution => {
                layer.add("shortconv.conv.weight", &[SHORT_CONVOLUTION, E], Plain);
                layer.matrix("shortconv.in_proj", &[E, 3 * E]);
                layer.matrix("shortconv.out_proj", &[E, E]);
            }
        }
    }
}

fn delta_net(layer: &mut Layer<'_>, fused: bool) {
    let values = VALUE_HEADS * STATE;
    let convolved = 2 * KEY_GROUPS * STATE + values;
    layer.matrix("attn_qkv", &[E, convolved]);
    layer.matrix("attn_gate", &[E, values]);
    layer.add("ssm_conv1d.weight", &[CONVOLUTION, convolved], Plain);
    layer.add("ssm_dt.bias", &[VALUE_HEADS], Plain);
    layer.add("ssm_a", &[VALUE_HEADS], Decay);
    if fused {
        layer.matrix("ssm_ba", &[E, 2 * VALUE_HEADS]);
    } else {
        layer.matrix("ssm_beta", &[E, VALUE_HEADS]);
        layer.matrix("ssm_alpha", &[E, VALUE_HEADS]);
    }
    layer.norm("ssm_norm", STATE);
    layer.matrix("ssm_out", &[values, E]);
}

fn mamba2(layer: &mut Layer<'_>) {
    let convolved = INNER + 2 * INNER_GROUPS * INNER_STATE;
    layer.matrix("ssm_in", &[E, INNER + convolved + INNER_HEADS]);
    layer.add("ssm_conv1d.weight", &[CONVOLUTION, convolved], Plain);
    layer.add("ssm_conv1d.bias", &[convolved], Plain);
    layer.add("ssm_dt.bias", &[INNER_HEADS], Plain);
    layer.add("ssm_a", &[1, INNER_HEADS], Decay);
    layer.add("ssm_d", &[1, INNER_HEADS], Plain);
    layer.add("ssm_norm.weight", &[INNER / INNER_GROUPS, INNER_GROUPS], Norm);
    layer.matrix("ssm_out", &[INNER, E]);
}
