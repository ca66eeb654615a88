//! A model that is only a profile.
#![allow(missing_docs, unreachable_pub, reason = "shared by tests")]

use kvasir_plan::profile::Padding;
use kvasir_plan::{Layer, LayerKind, ModelProfile};

pub const GB: u64 = 1_000_000_000;

/// A model of layers of 1 GB, small in everything else.
pub fn model(layers: usize) -> ModelProfile {
    ModelProfile {
        architecture: "llama".into(),
        identity: "ab".repeat(32),
        size: layers as u64 * GB,
        file_type: "Q4_K".into(),
        prefix_bytes: vec![1000],
        embedding_length: 64,
        vocabulary: 1000,
        heads: 2,
        feed_forward: 128,
        layers: vec![
            Layer {
                kind: LayerKind::Full,
                bytes: GB,
                active_bytes: GB,
                key_values: 2,
                value_values: 2,
                state_bytes: 0,
            };
            layers
        ],
        mtp_layers: 0,
        mtp_bytes: 0,
        every_bytes: 0,
        embedding_bytes: 1000,
        head_bytes: 1000,
        tied: false,
        last_start: layers.saturating_sub(1) as u32,
        refused_last_starts: Vec::new(),
        padding: Padding::default(),
        indivisible: None,
    }
}
