//! A stand-in for Qwen3.5-122B-A10B: a file with its real size, its prefix and its tensor table, and holes for weights.
//!
//! The weights are too large for tests, and all that planning and fetching see of them are names, shapes and bytes. The
//! file takes the room of its prefix on disk; what is read of the holes are zeros, which llama.cpp computes with. The
//! types are chosen as in files of about 5.1 bits a weight: experts of `Q4_K` and `Q5_K`, the rest `Q8_0` and `Q6_K`.

mod vocabulary;

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use crate::gguf::{self, Entry, Value};

/// Layers of the trunk. One MTP block follows them.
pub const LAYERS: u32 = 48;

/// Width of a hidden state.
const E: u64 = 3072;
/// Query heads, heads of keys and values, width of a head.
const HEADS: u64 = 32;
const KV_HEADS: u64 = 2;
const HEAD: u64 = 256;
/// Experts, how many of them a token uses, width of one and of the shared one.
const EXPERTS: u64 = 256;
const EXPERTS_USED: u64 = 8;
const EXPERT_FF: u64 = 1024;
/// Linear attention: convolution, width of a head, heads of keys, heads of values.
const CONVOLUTION: u64 = 4;
const STATE: u64 = 128;
const KEY_GROUPS: u64 = 16;
const VALUE_HEADS: u64 = 64;
/// Every fourth layer is full attention.
const FULL_ATTENTION_INTERVAL: u32 = 4;
const ARCHITECTURE: &str = "qwen35moe";

/// A tensor type: ggml's number, weights in a block, bytes of a block.
type Type = (u32, u64, u64);
const F32: Type = (0, 1, 4);
const Q8_0: Type = (8, 32, 34);
const Q4_K: Type = (12, 256, 144);
const Q5_K: Type = (13, 256, 176);
const Q6_K: Type = (14, 256, 210);

/// Writes the stand-in to `path`.
pub fn write(path: &Path) -> io::Result<()> {
    let tensors = tensors();
    let (prefix, whole) = gguf::prefix(&metadata(), tensors.iter().map(Tensor::entry));
    let mut file = File::create(path)?;
    file.write_all(&prefix)?;
    file.set_len(whole)
}

struct Tensor {
    name: String,
    shape: Vec<u64>,
    ty: Type,
}

impl Tensor {
    fn entry(&self) -> Entry<'_> {
        let (kind, weights, bytes) = self.ty;
        Entry {
            name: &self.name,
            shape: &self.shape,
            kind,
            bytes: self.shape.iter().product::<u64>() / weights * bytes,
        }
    }
}

fn metadata() -> Vec<(String, Value)> {
    let text = |key: &str, value: &str| (key.to_owned(), Value::String(value.to_owned()));
    let number = |key: &str, value: u64| (format!("{ARCHITECTURE}.{key}"), Value::U32(value as u32));
    let mut out = vec![
        text("general.architecture", ARCHITECTURE),
        text("general.type", "model"),
        text("general.name", "Stand-in for Qwen3.5-122B-A10B"),
        text("general.size_label", "122B-A10B"),
        ("general.quantization_version".to_owned(), Value::U32(2)),
        number("block_count", u64::from(LAYERS) + 1),
        number("nextn_predict_layers", 1),
        number("context_length", 262_144),
        number("embedding_length", E),
        number("attention.head_count", HEADS),
        number("attention.head_count_kv", KV_HEADS),
        number("attention.key_length", HEAD),
        number("attention.value_length", HEAD),
        number("rope.dimension_count", HEAD / 4),
        number("expert_count", EXPERTS),
        number("expert_used_count", EXPERTS_USED),
        number("expert_feed_forward_length", EXPERT_FF),
        number("expert_shared_feed_forward_length", EXPERT_FF),
        number("ssm.conv_kernel", CONVOLUTION),
        number("ssm.state_size", STATE),
        number("ssm.group_count", KEY_GROUPS),
        number("ssm.time_step_rank", VALUE_HEADS),
        number("ssm.inner_size", VALUE_HEADS * STATE),
        number("full_attention_interval", FULL_ATTENTION_INTERVAL.into()),
    ];
    let key = |key: &str| format!("{ARCHITECTURE}.{key}");
    out.push((key("rope.freq_base"), Value::F32(1e7)));
    out.push((key("rope.dimension_sections"), Value::I32s(vec![11, 11, 10, 0])));
    out.push((key("attention.layer_norm_rms_epsilon"), Value::F32(1e-6)));
    out.extend(vocabulary::metadata());
    out
}

fn tensors() -> Vec<Tensor> {
    let mut out = vec![
        tensor("token_embd.weight", &[E, vocabulary::TOKENS], Q4_K),
        tensor("output_norm.weight", &[E], F32),
        tensor("output.weight", &[E, vocabulary::TOKENS], Q6_K),
    ];
    for number in 0..=LAYERS {
        let mtp = number == LAYERS;
        let mut layer = attention(mtp || (number + 1).is_multiple_of(FULL_ATTENTION_INTERVAL));
        layer.extend(experts());
        if mtp {
            layer.extend(next_token());
        }
        out.extend(layer.into_iter().map(|tensor| Tensor {
            name: format!("blk.{number}.{}", tensor.name),
            ..tensor
        }));
    }
    out
}

fn tensor(name: &str, shape: &[u64], ty: Type) -> Tensor {
    Tensor {
        name: name.to_owned(),
        shape: shape.to_owned(),
        ty,
    }
}

fn attention(full: bool) -> Vec<Tensor> {
    let norms = [
        tensor("attn_norm.weight", &[E], F32),
        tensor("post_attention_norm.weight", &[E], F32),
    ];
    let keys = 2 * KEY_GROUPS * STATE;
    let values = VALUE_HEADS * STATE;
    let rest = if full {
        vec![
            // with a gate for each query
            tensor("attn_q.weight", &[E, 2 * HEADS * HEAD], Q8_0),
            tensor("attn_k.weight", &[E, KV_HEADS * HEAD], Q8_0),
            tensor("attn_v.weight", &[E, KV_HEADS * HEAD], Q8_0),
            tensor("attn_output.weight", &[HEADS * HEAD, E], Q8_0),
            tensor("attn_q_norm.weight", &[HEAD], F32),
            tensor("attn_k_norm.weight", &[HEAD], F32),
        ]
    } else {
        vec![
            tensor("attn_qkv.weight", &[E, keys + values], Q8_0),
            tensor("attn_gate.weight", &[E, values], Q8_0),
            tensor("ssm_conv1d.weight", &[CONVOLUTION, keys + values], F32),
            tensor("ssm_dt.bias", &[VALUE_HEADS], F32),
            tensor("ssm_a", &[VALUE_HEADS], F32),
            tensor("ssm_beta.weight", &[E, VALUE_HEADS], Q8_0),
            tensor("ssm_alpha.weight", &[E, VALUE_HEADS], Q8_0),
            tensor("ssm_norm.weight", &[STATE], F32),
            tensor("ssm_out.weight", &[values, E], Q8_0),
        ]
    };
    norms.into_iter().chain(rest).collect()
}

fn experts() -> Vec<Tensor> {
    vec![
        tensor("ffn_gate_inp.weight", &[E, EXPERTS], F32),
        tensor("ffn_gate_exps.weight", &[E, EXPERT_FF, EXPERTS], Q4_K),
        tensor("ffn_up_exps.weight", &[E, EXPERT_FF, EXPERTS], Q4_K),
        tensor("ffn_down_exps.weight", &[EXPERT_FF, E, EXPERTS], Q5_K),
        tensor("ffn_gate_inp_shexp.weight", &[E], F32),
        tensor("ffn_gate_shexp.weight", &[E, EXPERT_FF], Q8_0),
        tensor("ffn_up_shexp.weight", &[E, EXPERT_FF], Q8_0),
        tensor("ffn_down_shexp.weight", &[EXPERT_FF, E], Q8_0),
    ]
}

/// What the MTP block has beside a layer of full attention.
fn next_token() -> Vec<Tensor> {
    vec![
        tensor("nextn.eh_proj.weight", &[2 * E, E], Q8_0),
        tensor("nextn.enorm.weight", &[E], F32),
        tensor("nextn.hnorm.weight", &[E], F32),
        tensor("nextn.shared_head_norm.weight", &[E], F32),
    ]
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn the_file_is_as_large_as_the_model_and_takes_the_room_of_its_prefix() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        write(&path).unwrap();
        let file = path.metadata().unwrap();
        let whole = file.len() as f64 / 77.6e9;
        assert!((0.98..1.02).contains(&whole), "{} bytes", file.len());
        let on_disk = file.blocks() * 512;
        assert!((4 << 20..16 << 20).contains(&on_disk), "{on_disk} bytes on disk");
    }

    #[test]
    fn it_has_122_billion_weights() {
        let weights: u64 = tensors()
            .iter()
            .map(|tensor| tensor.shape.iter().product::<u64>())
            .sum();
        assert!((120..126).contains(&(weights / 1_000_000_000)), "{weights}");
    }
}
