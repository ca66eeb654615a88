//! The table: architectures whose windows were shown to equal the whole model, and keys with a value for each layer.

use super::{Architecture, ByLayers, Head, Input, InputScale, Kinds, Switch};

const HEAD: Head = Head {
    norm: "output_norm.weight",
    own: false,
    more: &[],
};

const PLAIN: Architecture = Architecture {
    name: "",
    source: "",
    kinds: Kinds::Full,
    input: Input::Embeddings,
    scale: InputScale::One,
    head: HEAD,
    by_layers: ByLayers::Nothing,
    mtp: false,
    without: &[],
    minds: "any cut",
};

const HYBRID: Architecture = Architecture {
    kinds: Kinds::Hybrid { interval: 4 },
    mtp: true,
    minds: "a window without one of the kinds gets a padding layer of it, which is never computed; the last window can't \
            have one, so it has both kinds",
    ..PLAIN
};

const HYBRID_BY_HEADS: Architecture = Architecture {
    kinds: Kinds::HybridByHeads,
    mtp: false,
    ..HYBRID
};

/// Shapes of sliding layers that differ from those of the full ones.
const SHAPES: &[&str] = &[
    "attention.key_length_swa",
    "attention.value_length_swa",
    "rope.dimension_count_swa",
];

pub(super) const KNOWN: &[Architecture] = &[
    Architecture {
        name: "llama",
        source: "models/llama.cpp",
        minds: "any cut; with experts as well (Mixtral)",
        ..PLAIN
    },
    Architecture {
        name: "qwen2",
        source: "models/qwen2.cpp",
        head: Head {
            more: &["output.bias"],
            ..HEAD
        },
        ..PLAIN
    },
    Architecture {
        name: "qwen3",
        source: "models/qwen3.cpp",
        ..PLAIN
    },
    Architecture {
        name: "qwen3moe",
        source: "models/qwen3moe.cpp",
        ..PLAIN
    },
    Architecture {
        name: "qwen3next",
        source: "models/qwen3next.cpp",
        ..HYBRID
    },
    Architecture {
        name: "qwen35",
        source: "models/qwen35.cpp",
        ..HYBRID
    },
    Architecture {
        name: "qwen35moe",
        source: "models/qwen35moe.cpp",
        ..HYBRID
    },
    Architecture {
        name: "gemma",
        source: "models/gemma.cpp",
        input: Input::Overwritten("inp_scaled"),
        scale: InputScale::SqrtEmbedding,
        ..PLAIN
    },
    Architecture {
        name: "gemma2",
        source: "models/gemma2.cpp",
        kinds: Kinds::Sliding {
            period: 2,
            dense_first: false,
            switch: Switch::Always { width: Some(4096) },
        },
        input: Input::Overwritten("inp_scaled"),
        scale: InputScale::SqrtEmbedding,
        by_layers: ByLayers::QueryScale(46),
        without: SHAPES,
        minds: "layer kinds are written out; full layers alone are called sliding ones that see everything; 46 layers make \
                it the 27B, which scales its queries otherwise and so isn't cut where that makes a difference",
        ..PLAIN
    },
    Architecture {
        name: "gemma3",
        source: "models/gemma3.cpp",
        kinds: Kinds::Sliding {
            period: 6,
            dense_first: false,
            switch: Switch::ByKey,
        },
        scale: InputScale::SqrtEmbedding,
        by_layers: ByLayers::QueryScale(62),
        without: SHAPES,
        minds: "layer kinds are written out; full layers alone go without a sliding window; 62 layers make it the 27B, \
                which scales its queries otherwise and so isn't cut where that makes a difference",
        ..PLAIN
    },
    // its graph reads a sliding window and switches it off: all layers are full
    Architecture {
        name: "phi3",
        source: "models/phi3.cpp",
        minds: "any cut; llama.cpp ignores its sliding window",
        ..PLAIN
    },
    // its graph ends the process where hidden states come in and the file has no M-RoPE sections
    Architecture {
        name: "glm4moe",
        source: "models/glm4-moe.cpp",
        input: Input::Overwritten("embd"),
        minds: "leading_dense_block_count is counted from the window's start",
        ..PLAIN
    },
    Architecture {
        name: "deepseek2",
        source: "models/deepseek2.cpp",
        by_layers: ByLayers::LightAttention,
        minds: "leading_dense_block_count is counted from the window's start; 26 and 27 layers make it a light model, which \
                is undone by padding layers, and in the last window refused",
        ..PLAIN
    },
    Architecture {
        name: "gpt-oss",
        source: "models/openai-moe.cpp",
        kinds: Kinds::Sliding {
            period: 2,
            dense_first: false,
            switch: Switch::Always { width: None },
        },
        head: Head { own: true, ..HEAD },
        without: SHAPES,
        minds: "layer kinds are written out; full layers alone are called sliding ones that see everything; the last window \
                has a hole in place of the embedding",
        ..PLAIN
    },
    Architecture {
        name: "granitehybrid",
        source: "models/granite-hybrid.cpp",
        scale: InputScale::Key("embedding_scale"),
        ..HYBRID_BY_HEADS
    },
    Architecture {
        name: "lfm2",
        source: "models/lfm2.cpp",
        head: Head {
            norm: "token_embd_norm.weight",
            ..HEAD
        },
        without: &["attention.sliding_window"],
        ..HYBRID_BY_HEADS
    },
    Architecture {
        name: "mistral3",
        source: "models/mistral3.cpp",
        ..PLAIN
    },
    // loaded and computed as deepseek2
    Architecture {
        name: "mistral4",
        source: "models/deepseek2.cpp",
        by_layers: ByLayers::LightAttention,
        minds: "as deepseek2",
        ..PLAIN
    },
];

/// Arrays under the architecture's prefix that hold one value for each block.
pub const PER_LAYER: &[&str] = &[
    "attention.compress_ratios",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.indexer.types",
    "attention.recurrent_layers",
    "attention.rope_pattern",
    "attention.sliding_window_pattern",
    "deepstack_mapping",
    "expert_feed_forward_length",
    "expert_used_count",
    "feed_forward_length",
    "swiglu_clamp_exp",
    "swiglu_clamp_shexp",
];

/// Arrays under the architecture's prefix that don't, however long they are.
pub const WHOLE: &[&str] = &["rope.dimension_sections"];
