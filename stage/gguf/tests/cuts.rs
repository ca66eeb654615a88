//! What a window's file says where llama.cpp would otherwise compute its layers in another way than the whole model's.
#![allow(clippy::unwrap_used, reason = "tests end at the first surprise")]

mod support;

use kvasir_gguf::arch::{self, LayerKind};
use kvasir_gguf::metadata::Value as Read;
use kvasir_gguf::prefix::Prefix;
use kvasir_gguf::tensor::TensorType;
use kvasir_gguf::window::{Error, Source, check, window};
use kvasir_gguf::{MiniGguf, Model, WindowRole};
use kvasir_tests::gguf::{File, Value};
use support::{add, parse};

fn role(start: u32, end: u32, last: bool) -> WindowRole {
    WindowRole {
        layers: start..end,
        last,
    }
}

/// A model of this architecture, 256 wide, with one norm in each layer.
fn file(architecture: &str, layers: u32, keys: &[(&str, Value)]) -> File {
    let mut file = File::default();
    file.set("general.architecture", Value::String(architecture.into()));
    for (key, value) in [
        ("block_count", layers),
        ("embedding_length", 256),
        ("attention.head_count", 4),
    ] {
        file.set(format!("{architecture}.{key}"), Value::U32(value));
    }
    for (key, value) in keys {
        file.set(format!("{architecture}.{key}"), value.clone());
    }
    add(&mut file, "token_embd.weight", &[256, 16]);
    for layer in 0..layers {
        add(&mut file, &format!("blk.{layer}.attn_norm.weight"), &[256]);
    }
    file
}

fn model(architecture: &str, layers: u32, keys: &[(&str, Value)]) -> Model {
    parse(&file(architecture, layers, keys))
}

fn head(mini: &MiniGguf) -> Prefix {
    Prefix::parse(&mini.header).unwrap().unwrap()
}

/// A key of the architecture in a window's file: one number, or the numbers of an array.
fn number(prefix: &Prefix, key: &str) -> Option<u64> {
    let architecture = prefix.metadata.str("general.architecture").unwrap();
    prefix.metadata.get(&format!("{architecture}.{key}"))?.as_u64()
}

fn numbers(prefix: &Prefix, key: &str) -> Vec<u64> {
    let architecture = prefix.metadata.str("general.architecture").unwrap();
    let array = prefix
        .metadata
        .get(&format!("{architecture}.{key}"))
        .unwrap()
        .as_array();
    array.unwrap().iter().map(|value| value.as_u64().unwrap()).collect()
}

fn granite() -> Model {
    model(
        "granitehybrid",
        8,
        &[
            ("attention.head_count_kv", Value::I32s(vec![0, 0, 0, 2, 0, 0, 0, 2])),
            ("embedding_scale", Value::F32(12.0)),
        ],
    )
}

#[test]
fn a_layer_without_heads_of_keys_is_recurrent_and_its_windows_are_padded_with_one_that_has_them() {
    let model = granite();
    let kinds = arch::layer_kinds(&model).unwrap();
    let full: Vec<usize> = (0..8).filter(|layer| kinds[*layer] == LayerKind::Full).collect();
    assert_eq!(full, [3, 7]);
    for (start, end, heads) in [(4, 6, vec![0, 0, 2]), (3, 4, vec![2, 0]), (2, 4, vec![0, 2])] {
        let mini = window(&model, &role(start, end, false)).unwrap();
        let prefix = head(&mini);
        assert_eq!(numbers(&prefix, "attention.head_count_kv"), heads);
        let padded = heads.len() > (end - start) as usize;
        let sparse = prefix.metadata.get("kvasir.window.sparse");
        assert_eq!(sparse, padded.then_some(Read::U32(1)), "{start}..{end}");
    }
    let error = check(&model, &role(7, 8, true)).unwrap_err();
    assert!(matches!(error, Error::LastNeedsBothKinds { .. }), "{error}");
    assert!(check(&model, &role(6, 8, true)).is_ok());
}

#[test]
fn a_scale_that_llama_cpp_applies_to_every_input_is_applied_by_rank_0_alone() {
    let model = granite();
    assert_eq!(arch::input_scale(&model).unwrap().to_bits(), 12f32.to_bits());
    for (start, end) in [(0, 4), (4, 6)] {
        let prefix = head(&window(&model, &role(start, end, false)).unwrap());
        assert_eq!(prefix.metadata.get("granitehybrid.embedding_scale"), None);
    }
}

#[test]
fn a_hybrid_model_with_layers_of_one_kind_is_refused() {
    for (heads, missing) in [(0, "full-attention"), (2, "recurrent")] {
        let model = model(
            "granitehybrid",
            4,
            &[("attention.head_count_kv", Value::I32s(vec![heads; 4]))],
        );
        let error = check(&model, &role(0, 2, false)).unwrap_err();
        assert!(
            matches!(error, Error::OneKind { missing: found } if found == missing),
            "{error}"
        );
        assert_eq!(error.reason(), "UnsupportedArchitecture");
    }
}

#[test]
fn the_norm_in_front_of_the_head_has_the_architectures_own_name() {
    let heads = ("attention.head_count_kv", Value::I32s(vec![0, 2, 0, 2]));
    let mut file = file("lfm2", 4, std::slice::from_ref(&heads));
    add(&mut file, "token_embd_norm.weight", &[256]);
    let lfm2 = parse(&file);
    for (start, end) in [(0, 2), (2, 4)] {
        let mini = window(&lfm2, &role(start, end, end == 4)).unwrap();
        let norm = mini
            .tensors
            .iter()
            .find(|tensor| tensor.name == "token_embd_norm.weight");
        assert_eq!(matches!(norm.unwrap().source, Source::Range { .. }), end == 4);
        assert!(mini.tensors.iter().all(|tensor| tensor.name != "output_norm.weight"));
    }
    // and what no test has covered is refused
    let sliding = model("lfm2", 4, &[heads, ("attention.sliding_window", Value::U32(8))]);
    let error = check(&sliding, &role(0, 2, false)).unwrap_err();
    assert!(error.to_string().contains("attention.sliding_window"), "{error}");
}

#[test]
fn full_layers_that_cannot_be_alone_are_called_sliding_ones_that_see_everything() {
    for (name, width) in [("gemma2", None), ("gpt-oss", Some(128))] {
        let mut keys = vec![("rope.freq_base_swa", Value::F32(1e4))];
        keys.extend(width.map(|width| ("attention.sliding_window", Value::U32(width))));
        let model = model(name, 8, &keys);
        let kinds = arch::layer_kinds(&model).unwrap();
        let full: Vec<usize> = (0..8).filter(|layer| kinds[*layer] == LayerKind::Full).collect();
        assert_eq!(full, [1, 3, 5, 7], "{name}");
        assert_eq!(
            arch::sliding_window(&model).unwrap(),
            Some(width.map_or(4096, u64::from)),
            "{name}"
        );

        let mixed = head(&window(&model, &role(1, 4, false)).unwrap());
        assert_eq!(numbers(&mixed, "attention.sliding_window_pattern"), [0, 1, 0]);
        assert_eq!(number(&mixed, "attention.sliding_window"), width.map(u64::from));
        assert!(mixed.metadata.get(&format!("{name}.rope.freq_base_swa")).is_some());

        let alone = head(&window(&model, &role(3, 4, false)).unwrap());
        assert_eq!(numbers(&alone, "attention.sliding_window_pattern"), [1]);
        assert_eq!(number(&alone, "attention.sliding_window"), Some(1 << 26));
        assert_eq!(alone.metadata.get(&format!("{name}.rope.freq_base_swa")), None);
        assert_eq!(number(&alone, "block_count"), Some(1), "no padding");
    }
    let error = arch::layer_kinds(&model("gpt-oss", 8, &[])).unwrap_err();
    assert_eq!(error.reason(), "MalformedFile");
}

#[test]
fn a_windows_file_names_the_node_that_its_input_is_written_over() {
    for (name, node) in [
        ("gemma", Some("inp_scaled")),
        ("gemma2", Some("inp_scaled")),
        ("gemma3", None),
        ("glm4moe", Some("embd")),
        ("llama", None),
    ] {
        let prefix = head(&window(&model(name, 4, &[]), &role(0, 2, false)).unwrap());
        assert_eq!(prefix.metadata.str("kvasir.window.input"), node, "{name}");
    }
}

#[test]
fn a_head_that_is_asked_for_by_name_has_a_hole_beside_it() {
    let mut file = file("gpt-oss", 4, &[("attention.sliding_window", Value::U32(128))]);
    add(&mut file, "output_norm.weight", &[256]);
    add(&mut file, "output.weight", &[256, 16]);
    let model = parse(&file);
    let mini = window(&model, &role(3, 4, true)).unwrap();
    let named = |name: &str| mini.tensors.iter().find(|tensor| tensor.name == name).unwrap();
    assert!(matches!(named("output.weight").source, Source::Range { .. }));
    let hole = named("token_embd.weight");
    assert_eq!((hole.ty, &hole.dims[..]), (TensorType::IQ1_S, &[256, 16][..]));
    assert!(matches!(hole.source, Source::Hole { .. }));
    assert_eq!(head(&mini).metadata.get("kvasir.window.sparse"), Some(Read::U32(1)));
    assert_eq!(mini.fetched_bytes(), (256 + 256 + 256 * 16) * 4);
    let middle = head(&window(&model, &role(1, 3, false)).unwrap());
    assert_eq!(middle.metadata.get("kvasir.window.sparse"), None);
}

fn deepseek(layers: u32, keys: &[(&str, Value)]) -> Model {
    let mut file = file("deepseek2", layers, keys);
    add(&mut file, "output_norm.weight", &[256]);
    parse(&file)
}

#[test]
fn a_window_is_not_taken_for_a_light_model_for_its_length() {
    let model = deepseek(
        61,
        &[
            ("attention.q_lora_rank", Value::U32(1536)),
            ("leading_dense_block_count", Value::U32(3)),
        ],
    );
    for (start, end, blocks, dense) in [(1, 26, 25, 2), (0, 26, 28, 3), (2, 29, 28, 1), (3, 31, 28, 0)] {
        let prefix = head(&window(&model, &role(start, end, false)).unwrap());
        assert_eq!(number(&prefix, "block_count"), Some(blocks), "{start}..{end}");
        assert_eq!(
            number(&prefix, "leading_dense_block_count"),
            Some(dense),
            "{start}..{end}"
        );
        assert_eq!(number(&prefix, "attention.q_lora_rank"), Some(1536));
        assert_eq!(number(&prefix, "expert_gating_func"), Some(1), "softmax, written out");
        assert_eq!(
            prefix.metadata.get("kvasir.window.layers"),
            Some(Read::U32(end - start))
        );
    }
    for length in [26, 27] {
        let error = check(&model, &role(61 - length, 61, true)).unwrap_err();
        assert!(matches!(error, Error::KnownByLayers { layers: 61, .. }), "{error}");
        assert_eq!(error.reason(), "UnsupportedArchitecture");
    }
    assert!(check(&model, &role(33, 61, true)).is_ok());
}

#[test]
fn a_window_of_a_light_model_is_one_whatever_its_length() {
    let light = deepseek(27, &[("attention.q_lora_rank", Value::U32(1536))]);
    for (start, end) in [(0, 1), (1, 27)] {
        let prefix = head(&window(&light, &role(start, end, end == 27)).unwrap());
        assert_eq!(number(&prefix, "attention.q_lora_rank"), Some(0));
        assert_eq!(number(&prefix, "block_count"), Some((end - start).into()));
    }
}

#[test]
fn a_gating_function_that_the_number_of_layers_decides_is_written_out() {
    let gating = |layers: u32, keys: &[(&str, Value)]| {
        let mini = window(&deepseek(layers, keys), &role(0, 4, false)).unwrap();
        number(&head(&mini), "expert_gating_func")
    };
    let vocabulary = ("vocab_size", Value::U32(154_880));
    assert_eq!(gating(47, std::slice::from_ref(&vocabulary)), Some(2));
    assert_eq!(gating(46, std::slice::from_ref(&vocabulary)), Some(1));
    assert_eq!(gating(47, &[]), Some(1));
    assert_eq!(
        gating(47, &[vocabulary, ("expert_gating_func", Value::U32(1))]),
        Some(1)
    );
}

#[test]
fn dense_layers_are_counted_from_the_windows_start() {
    let model = model("glm4moe", 8, &[("leading_dense_block_count", Value::U32(3))]);
    for (start, end, dense) in [(0, 2, 2), (0, 5, 3), (2, 5, 1), (3, 5, 0)] {
        let prefix = head(&window(&model, &role(start, end, false)).unwrap());
        assert_eq!(number(&prefix, "leading_dense_block_count"), Some(dense));
    }
}

#[test]
fn what_llama_cpp_would_compute_otherwise_without_a_word_is_refused_by_key() {
    for (name, key, value) in [
        ("qwen3moe", "expert_used_count", Value::I32s(vec![2, 2, 4, 2])),
        ("gemma3", "attention.key_length_swa", Value::U32(32)),
    ] {
        let error = check(&model(name, 4, &[(key, value)]), &role(0, 2, false)).unwrap_err();
        assert!(error.to_string().contains(key), "{error}");
        assert_eq!(error.reason(), "UnsupportedArchitecture");
    }
}
