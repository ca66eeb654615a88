//! Which parts each architecture is put together from: one table.

use super::experts::{EXPERTS_ALONE, Experts, FeedForward, Gating, Shared, Width};
use super::hybrid::{Places, Recurrent};
use super::{Architecture, CONTEXT, HEAD, Keys, mla};
use crate::gguf::Value;

/// Width of the feed-forward part.
const FF: u64 = 512;
/// Width of an expert, and of one in a model whose layers are many.
const EXPERT_FF: u64 = 256;
const SMALL_EXPERT_FF: u64 = 64;
/// Positions that a sliding window sees: few, so that a short prompt leaves it.
const SLIDING_WINDOW: u64 = 16;
/// Positions after which attention is made sharper, and from which on positions are stretched: few, for the same reason.
const STRETCHED_FROM: u64 = 16;

/// What sets an architecture apart.
pub(super) struct Recipe {
    /// GGUF's `general.architecture`
    pub(super) name: &'static str,
    /// trunk layers unless others are asked for
    pub(super) layers: u32,
    pub(super) attention: Attention,
    /// values of a head that carry the position
    pub(super) rotated: u64,
    /// what stands in for attention, and where
    pub(super) recurrent: Option<(Recurrent, Places)>,
    pub(super) feed_forward: FeedForward,
    pub(super) ff: u64,
    /// norms of each layer
    pub(super) norms: &'static [&'static str],
    /// the norm before the head
    pub(super) output_norm: &'static str,
    /// the embedding is always the head
    pub(super) tied: bool,
    /// layers see a sliding window, or all positions
    pub(super) sliding: bool,
    /// there may be MTP layers
    pub(super) mtp: bool,
    /// keys that only this architecture has
    pub(super) keys: fn(&mut Keys),
}

/// How a layer attends.
#[derive(Clone, Copy)]
pub(super) enum Attention {
    /// queries, keys and values by a matrix each
    Separate(&'static [Extra]),
    /// by one matrix
    Fused,
    /// by way of compressed rows
    Latent { compressed_queries: bool },
}

/// What attention has beside its matrices.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Extra {
    /// of queries, keys and values
    Biases,
    OutputBias,
    /// of queries and keys, head by head
    Norms,
    /// of the output: twice the rows of queries
    Gate,
    /// a logit for attending to nothing
    Sinks,
}

const PLAIN: Recipe = Recipe {
    name: "llama",
    layers: 8,
    attention: Attention::Separate(&[]),
    rotated: HEAD,
    recurrent: None,
    feed_forward: FeedForward::Dense,
    ff: FF,
    norms: &["attn_norm", "ffn_norm"],
    output_norm: "output_norm",
    tied: false,
    sliding: false,
    mtp: false,
    keys: no_keys,
};

/// Gated delta net, and every fourth layer full attention.
const DELTA_NET: Recipe = Recipe {
    name: "qwen35",
    attention: Attention::Separate(&[Extra::Gate, Extra::Norms]),
    rotated: HEAD / 2,
    recurrent: Some((Recurrent::DeltaNet { fused: false }, Places::AllButEvery(INTERVAL))),
    norms: &["attn_norm", "post_attention_norm"],
    mtp: true,
    keys: interval_and_sections,
    ..PLAIN
};
const INTERVAL: u32 = 4;

const GEMMA: Recipe = Recipe {
    name: "gemma2",
    norms: &["attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"],
    tied: true,
    sliding: true,
    keys: sliding_window,
    ..PLAIN
};

const LATENT: Recipe = Recipe {
    name: "deepseek2",
    attention: Attention::Latent {
        compressed_queries: true,
    },
    rotated: mla::ROTATED,
    feed_forward: FeedForward::Experts(Experts {
        width: Width::Own(SMALL_EXPERT_FF),
        leading_dense: 2,
        shared: Shared::Counted,
        gating: Gating::Sigmoid { groups: true },
        ..EXPERTS_ALONE
    }),
    ..PLAIN
};

const GRANITE_HYBRID: Recipe = Recipe {
    name: "granitehybrid",
    recurrent: Some((Recurrent::Mamba2, Places::AllBut(&[3, 7]))),
    keys: granite_scales,
    ..PLAIN
};

const GATED_SHARED: FeedForward = FeedForward::Experts(Experts {
    shared: Shared::Gated(EXPERT_FF),
    ..EXPERTS_ALONE
});

/// The recipe of an architecture.
pub(super) fn of(architecture: Architecture) -> Recipe {
    match architecture {
        Architecture::Llama => PLAIN,
        Architecture::LlamaMoe => Recipe {
            feed_forward: FeedForward::Experts(Experts {
                width: Width::FeedForward,
                ..EXPERTS_ALONE
            }),
            ff: EXPERT_FF,
            ..PLAIN
        },
        Architecture::Qwen2 => Recipe {
            name: "qwen2",
            attention: Attention::Separate(&[Extra::Biases]),
            ..PLAIN
        },
        Architecture::Qwen3 => Recipe {
            name: "qwen3",
            attention: Attention::Separate(&[Extra::Norms]),
            ..PLAIN
        },
        Architecture::Qwen3Moe => Recipe {
            name: "qwen3moe",
            attention: Attention::Separate(&[Extra::Norms]),
            feed_forward: FeedForward::Experts(EXPERTS_ALONE),
            ..PLAIN
        },
        Architecture::Qwen3Next => Recipe {
            name: "qwen3next",
            recurrent: Some((Recurrent::DeltaNet { fused: true }, Places::AllButEvery(INTERVAL))),
            feed_forward: GATED_SHARED,
            keys: interval,
            ..DELTA_NET
        },
        Architecture::Qwen35 => DELTA_NET,
        Architecture::Qwen35Moe => Recipe {
            name: "qwen35moe",
            feed_forward: GATED_SHARED,
            ..DELTA_NET
        },
        Architecture::Gemma => Recipe {
            name: "gemma",
            tied: true,
            ..PLAIN
        },
        Architecture::Gemma2 => GEMMA,
        Architecture::Gemma3 => Recipe {
            name: "gemma3",
            attention: Attention::Separate(&[Extra::Norms]),
            ..GEMMA
        },
        Architecture::Phi3 => Recipe {
            name: "phi3",
            attention: Attention::Fused,
            feed_forward: FeedForward::Fused,
            keys: |out| out.u32("rope.scaling.original_context_length", u64::from(CONTEXT)),
            ..PLAIN
        },
        Architecture::Glm4Moe => Recipe {
            name: "glm4moe",
            attention: Attention::Separate(&[Extra::Biases, Extra::Norms]),
            rotated: HEAD / 2,
            feed_forward: FeedForward::Experts(Experts {
                width: Width::Own(SMALL_EXPERT_FF),
                leading_dense: 1,
                shared: Shared::Counted,
                gating: Gating::Sigmoid { groups: false },
                ..EXPERTS_ALONE
            }),
            norms: &["attn_norm", "post_attention_norm"],
            mtp: true,
            ..PLAIN
        },
        Architecture::Deepseek2 => Recipe { mtp: true, ..LATENT },
        Architecture::Deepseek2Lite => Recipe {
            layers: 27,
            attention: Attention::Latent {
                compressed_queries: false,
            },
            feed_forward: FeedForward::Experts(Experts {
                width: Width::Own(SMALL_EXPERT_FF),
                leading_dense: 1,
                shared: Shared::Counted,
                ..EXPERTS_ALONE
            }),
            ..LATENT
        },
        Architecture::GptOss => Recipe {
            name: "gpt-oss",
            attention: Attention::Separate(&[Extra::Biases, Extra::OutputBias, Extra::Sinks]),
            feed_forward: FeedForward::Experts(Experts {
                biases: true,
                width: Width::Own(SMALL_EXPERT_FF),
                ..EXPERTS_ALONE
            }),
            norms: &["attn_norm", "post_attention_norm"],
            sliding: true,
            keys: sliding_window,
            ..PLAIN
        },
        Architecture::GraniteHybrid => GRANITE_HYBRID,
        Architecture::GraniteHybridMoe => Recipe {
            feed_forward: FeedForward::Experts(Experts {
                width: Width::FeedForward,
                shared: Shared::Wide(2 * SMALL_EXPERT_FF),
                ..EXPERTS_ALONE
            }),
            ff: SMALL_EXPERT_FF,
            ..GRANITE_HYBRID
        },
        Architecture::Lfm2 => Recipe {
            name: "lfm2",
            attention: Attention::Separate(&[Extra::Norms]),
            // at no regular distance, as in the real models
            recurrent: Some((Recurrent::ShortConvolution, Places::AllBut(&[1, 2, 6]))),
            output_norm: "token_embd_norm",
            ..PLAIN
        },
        Architecture::Mistral3 => Recipe {
            name: "mistral3",
            keys: |out| {
                stretched(out);
                out.f32("attention.temperature_scale", 0.1);
            },
            ..PLAIN
        },
        Architecture::Mistral4 => Recipe {
            name: "mistral4",
            keys: |out| {
                stretched(out);
                out.f32("attention.temperature_scale", 0.1);
                out.u32("attention.temperature_length", STRETCHED_FROM);
            },
            ..LATENT
        },
    }
}

fn no_keys(_: &mut Keys) {}

fn interval(out: &mut Keys) {
    out.u32("full_attention_interval", u64::from(INTERVAL));
}

fn interval_and_sections(out: &mut Keys) {
    interval(out);
    out.set("rope.dimension_sections", Value::I32s(vec![6, 5, 5, 0]));
}

fn sliding_window(out: &mut Keys) {
    out.u32("attention.sliding_window", SLIDING_WINDOW);
}

/// Longer contexts by `YaRN`.
fn stretched(out: &mut Keys) {
    out.set("rope.scaling.type", Value::String("yarn".to_owned()));
    out.f32("rope.scaling.factor", 4.0);
    out.u32("rope.scaling.original_context_length", STRETCHED_FROM);
    out.f32("rope.scaling.yarn_log_multiplier", 0.1);
    out.f32("rope.scaling.yarn_beta_fast", 32.0);
    out.f32("rope.scaling.yarn_beta_slow", 1.0);
}

fn granite_scales(out: &mut Keys) {
    out.f32("embedding_scale", 12.0);
    out.f32("residual_scale", 0.25);
    out.f32("attention.scale", 0.1);
    out.f32("logit_scale", 2.0);
}
