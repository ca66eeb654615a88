//! Feed-forward parts made of experts.

use super::{E, Keys, Layer};
use crate::gguf::Value;
use crate::random_model::weights::Values::Plain;

/// Experts, and how many of them a token uses.
const EXPERTS: u64 = 8;
const EXPERTS_USED: u64 = 2;
/// Groups of experts, and how many of them a token chooses among.
const GROUPS: u64 = 4;
const GROUPS_USED: u64 = 2;
/// llama.cpp's number for gating by a sigmoid.
const SIGMOID: u64 = 2;

/// What comes after attention in a layer.
pub(super) enum FeedForward {
    Dense,
    /// gate and up projection in one matrix
    Fused,
    Experts(Experts),
}

/// How wide an expert is.
pub(super) enum Width {
    /// `expert_feed_forward_length`
    Own(u64),
    /// `feed_forward_length`, which no dense layer needs
    FeedForward,
}

/// The expert that every token uses.
pub(super) enum Shared {
    None,
    /// as wide as the others, told by `expert_shared_count`
    Counted,
    /// of a width of its own
    Wide(u64),
    /// of a width of its own, behind a gate
    Gated(u64),
}

/// How the experts of a token are chosen.
pub(super) enum Gating {
    Softmax,
    /// each for itself, with a bias that decides the choice alone; weights brought to a sum of 1 and scaled
    Sigmoid {
        groups: bool,
    },
}

pub(super) struct Experts {
    pub(super) width: Width,
    /// layers at the start that are dense
    pub(super) leading_dense: u32,
    pub(super) shared: Shared,
    pub(super) gating: Gating,
    pub(super) biases: bool,
}

/// Experts and nothing beside them.
pub(super) const EXPERTS_ALONE: Experts = Experts {
    width: Width::Own(256),
    leading_dense: 0,
    shared: Shared::None,
    gating: Gating::Softmax,
    biases: false,
};

impl Experts {
    pub(super) fn keys(&self, out: &mut Keys) {
        out.u32("expert_count", EXPERTS);
        out.u32("expert_used_count", EXPERTS_USED);
        if let Width::Own(width) = self.width {
            out.u32("expert_feed_forward_length", width);
        }
        match self.shared {
            Shared::None => {}
            Shared::Counted => out.u32("expert_shared_count", 1),
            Shared::Wide(width) | Shared::Gated(width) => out.u32("expert_shared_feed_forward_length", width),
        }
        if self.leading_dense > 0 {
            out.u32("leading_dense_block_count", u64::from(self.leading_dense));
        }
        if let Gating::Sigmoid { groups } = self.gating {
            out.u32("expert_gating_func", SIGMOID);
            out.set("expert_weights_norm", Value::Bool(true));
            out.f32("expert_weights_scale", 1.5);
            if groups {
                out.u32("expert_group_count", GROUPS);
                out.u32("expert_group_used_count", GROUPS_USED);
            }
        }
    }

    /// The tensors of a layer whose experts are `width` wide.
    pub(super) fn tensors(&self, layer: &mut Layer<'_>, width: u64) {
        layer.add("ffn_gate_inp.weight", &[E, EXPERTS], Plain);
        layer.matrix("ffn_gate_exps", &[E, width, EXPERTS]);
        layer.matrix("ffn_up_exps", &[E, width, EXPERTS]);
        layer.matrix("ffn_down_exps", &[width, E, EXPERTS]);
        if matches!(self.gating, Gating::Sigmoid { .. }) {
            layer.add("exp_probs_b.bias", &[EXPERTS], Plain);
        }
        if self.biases {
            layer.add("ffn_gate_inp.bias", &[EXPERTS], Plain);
            layer.add("ffn_gate_exps.bias", &[width, EXPERTS], Plain);
            layer.add("ffn_up_exps.bias", &[width, EXPERTS], Plain);
            layer.add("ffn_down_exps.bias", &[E, EXPERTS], Plain);
        }
        let shared = match self.shared {
            Shared::None => return,
            Shared::Counted => width,
            Shared::Wide(shared) => shared,
            Shared::Gated(shared) => {
                layer.add("ffn_gate_inp_shexp.weight", &[E], Plain);
                shared
            }
        };
        layer.matrix("ffn_gate_shexp", &[E, shared]);
        layer.matrix("ffn_up_shexp", &[E, shared]);
        layer.matrix("ffn_down_shexp", &[shared, E]);
    }
}
