//! What a window's file holds, and that it is refused where nobody has shown that it would be right.
#![allow(clippy::unwrap_used, reason = "tests end at the first surprise")]

mod support;

use kvasir_gguf::arch::{self, LayerKind};
use kvasir_gguf::metadata::Value as Read;
use kvasir_gguf::model::{Error as ModelError, Model};
use kvasir_gguf::prefix::Prefix;
use kvasir_gguf::tensor::TensorType;
use kvasir_gguf::window::{Error, Source, TensorBytes, is_tied, mtp, vocabulary, window};
use kvasir_gguf::{MiniGguf, WindowRole};
use kvasir_tests::gguf::{File, Value};
use kvasir_tests::random_model::{Architecture, RandomModel, Vocabulary};
use support::{add, expected, filled, head, parse, toy};

fn role(start: u32, end: u32, last: bool) -> WindowRole {
    WindowRole {
        layers: start..end,
        last,
    }
}

fn tensor_names(mini: &MiniGguf) -> Vec<&str> {
    mini.tensors.iter().map(|tensor| tensor.name.as_str()).collect()
}

fn flags(prefix: &Prefix, key: &str) -> Vec<bool> {
    prefix
        .metadata
        .get(key)
        .unwrap()
        .as_array()
        .unwrap()
        .iter()
        .map(|value| value == Read::Bool(true))
        .collect()
}

/// Four blocks, a tied head, and these tensors besides.
fn tied(globals: &[&str]) -> File {
    let mut file = toy(4);
    add(&mut file, "token_embd.weight", &[8, 16]);
    for block in 0..4 {
        add(&mut file, &format!("blk.{block}.attn_norm.weight"), &[8]);
    }
    add(&mut file, "output_norm.weight", &[8]);
    for name in globals {
        add(&mut file, name, &[4]);
    }
    file
}

#[test]
fn a1_rope_tensors_go_everywhere_and_a_tied_head_to_the_last_rank() {
    for rope in [
        &["rope_freqs.weight"][..],
        &["rope_factors_long.weight", "rope_factors_short.weight"],
    ] {
        let model = parse(&tied(rope));
        assert!(is_tied(&model));
        for (start, end) in [(0, 2), (2, 3), (3, 4)] {
            let last = end == 4;
            let mini = window(&model, &role(start, end, last)).unwrap();
            let mut names = tensor_names(&mini);
            names.sort_unstable();
            let blocks: Vec<String> = (0..end - start)
                .map(|block| format!("blk.{block}.attn_norm.weight"))
                .collect();
            let mut wanted: Vec<&str> = blocks.iter().map(String::as_str).collect();
            wanted.extend(["output_norm.weight", "token_embd.weight"]);
            wanted.extend(rope);
            wanted.sort_unstable();
            assert_eq!(names, wanted);
            head(&mini);
            let embedding = mini
                .tensors
                .iter()
                .find(|tensor| tensor.name == "token_embd.weight")
                .unwrap();
            assert_eq!(embedding.dims, if last { [8, 16] } else { [8, 1] });
            assert_eq!(matches!(embedding.source, Source::Range { .. }), last);
        }
    }
}

#[test]
fn a1_the_estimate_counts_a_tied_embedding_at_both_ends() {
    let model = parse(&tied(&["rope_freqs.weight"]));
    let bytes = TensorBytes::of(&model).unwrap();
    let (embedding, norm, layer, rope) = (8 * 16 * 4, 8 * 4, 8 * 4, 4 * 4);
    assert_eq!(bytes.rank(0..2, true, false), embedding + 2 * layer + rope);
    assert_eq!(bytes.rank(2..3, false, false), layer + rope);
    assert_eq!(bytes.rank(3..4, false, true), embedding + norm + layer + rope);
    // one rank for all: once
    assert_eq!(bytes.rank(0..4, true, true), embedding + norm + 4 * layer + rope);
    for (start, end) in [(0, 2), (2, 3), (3, 4)] {
        let mini = window(&model, &role(start, end, end == 4)).unwrap();
        assert_eq!(mini.fetched_bytes(), bytes.rank(start..end, false, end == 4));
    }
    assert_eq!(vocabulary(&model, true).unwrap().fetched_bytes(), embedding);
    assert_eq!(vocabulary(&model, false).unwrap().tensors, []);
}

#[test]
fn a1_a_tensor_of_unknown_use_is_refused_by_name() {
    let error = window(&parse(&tied(&["mystery.weight"])), &role(0, 2, false)).unwrap_err();
    assert_eq!(error.reason(), "UnsupportedArchitecture");
    assert!(error.to_string().contains("mystery.weight"), "{error}");
}

#[test]
fn a2_a_key_may_be_one_number_or_one_for_each_layer() {
    let counts = [8, 8, 8, 8, 8, 1];
    let mut file = filled(toy(6), 6);
    file.set("llama.attention.head_count_kv", Value::I32s(counts.to_vec()));
    file.set(
        "llama.feed_forward_length",
        Value::I32s((0..6).map(|layer| 100 + layer).collect()),
    );
    let model = parse(&file);
    assert_eq!(
        model.per_layer("attention.head_count_kv").unwrap().unwrap(),
        [8, 8, 8, 8, 8, 1]
    );
    assert_eq!(model.per_layer("attention.head_count").unwrap().unwrap(), [2; 6]);
    assert_eq!(model.per_layer("attention.no_such_key").unwrap(), None);

    // in the window's file the array goes with the blocks
    let prefix = head(&window(&model, &role(3, 5, false)).unwrap());
    let array = |key: &str| {
        let array = prefix.metadata.get(key).unwrap().as_array().unwrap();
        array.iter().map(|value| value.as_u64().unwrap()).collect::<Vec<u64>>()
    };
    assert_eq!(array("llama.attention.head_count_kv"), [8, 8]);
    assert_eq!(array("llama.feed_forward_length"), [103, 104]);
    assert_eq!(prefix.metadata.get("llama.attention.head_count"), Some(Read::U32(2)));
    assert_eq!(prefix.metadata.get("llama.block_count"), Some(Read::U32(2)));
}

#[test]
fn a2_an_array_of_another_length_is_an_error_that_names_the_key() {
    for length in [5, 7] {
        let mut file = toy(6);
        file.set("llama.attention.head_count_kv", Value::I32s(vec![8; length]));
        let model = parse(&file);
        let error = model.per_layer("attention.head_count_kv").unwrap_err();
        assert!(matches!(&error, ModelError::ArrayLength { found, blocks: 6, .. } if *found == length));
        assert!(error.to_string().contains("llama.attention.head_count_kv"), "{error}");
        assert!(window(&model, &role(0, 2, false)).is_err());
    }
}

#[test]
fn a2_an_array_of_unknown_meaning_is_refused_and_others_are_kept_whole() {
    let mut file = filled(toy(6), 6);
    file.set("llama.novel", Value::I32s(vec![1; 6]));
    let error = window(&parse(&file), &role(0, 2, false)).unwrap_err();
    assert!(
        matches!(&error, Error::UnknownArray { key } if key == "llama.novel"),
        "{error}"
    );

    let mut file = filled(toy(4), 4);
    file.set("llama.rope.dimension_sections", Value::I32s(vec![6, 5, 5, 0]));
    let prefix = head(&window(&parse(&file), &role(0, 2, false)).unwrap());
    assert_eq!(
        prefix
            .metadata
            .get("llama.rope.dimension_sections")
            .unwrap()
            .as_array()
            .unwrap()
            .len(),
        4
    );
}

#[test]
fn a2_head_lengths_are_written_where_the_windows_first_layer_would_give_others() {
    let mut file = filled(toy(4), 4);
    file.set("llama.attention.head_count", Value::I32s(vec![2, 4, 4, 4]));
    let prefix = head(&window(&parse(&file), &role(1, 3, false)).unwrap());
    for key in ["llama.attention.key_length", "llama.attention.value_length"] {
        assert_eq!(
            prefix.metadata.get(key),
            Some(Read::U32(4)),
            "8 wide, 2 heads in the model's first layer"
        );
    }
}

#[test]
fn a3_the_mtp_block_is_no_layer() {
    let mut file = toy(41);
    file.set("llama.nextn_predict_layers", Value::U32(1));
    add(&mut file, "token_embd.weight", &[8, 16]);
    for block in 0..40 {
        add(&mut file, &format!("blk.{block}.attn_norm.weight"), &[8]);
    }
    for name in ["eh_proj", "enorm", "hnorm", "shared_head_norm"] {
        add(&mut file, &format!("blk.40.nextn.{name}.weight"), &[8]);
    }
    add(&mut file, "output_norm.weight", &[8]);
    let model = parse(&file);
    assert_eq!((model.layers(), model.mtp_layers(), model.block_count()), (40, 1, 41));
    let error = window(&model, &role(39, 41, true)).unwrap_err();
    assert!(matches!(error, Error::NoSuchLayers { layers: 40, .. }), "{error}");

    // the last window is that of a file without the block, the key aside
    let mini = window(&model, &role(38, 40, true)).unwrap();
    assert!(mini.tensors.iter().all(|tensor| !tensor.name.contains("nextn")));
    assert_eq!(
        head(&mini).metadata.get("llama.nextn_predict_layers"),
        Some(Read::U32(0))
    );
    let bytes = TensorBytes::of(&model).unwrap();
    assert_eq!((bytes.layers.len(), bytes.mtp), (40, 4 * 32));
}

#[test]
fn a3_the_mtp_block_rides_in_a_file_of_its_own() {
    let model = parse(&RandomModel::new(Architecture::Qwen35Moe).mtp_layers(1).file());
    let mini = mtp(&model).unwrap().unwrap();
    let prefix = head(&mini);
    for (key, value) in [("block_count", 1), ("nextn_predict_layers", 1)] {
        assert_eq!(prefix.metadata.get(&format!("qwen35moe.{key}")), Some(Read::U32(value)));
    }
    assert_eq!(prefix.metadata.str("tokenizer.ggml.model"), Some("no_vocab"));
    let names = tensor_names(&mini);
    for name in [
        "blk.0.nextn.eh_proj.weight",
        "token_embd.weight",
        "output.weight",
        "output_norm.weight",
    ] {
        assert!(names.contains(&name), "{name}");
    }
    assert!(
        names
            .iter()
            .all(|name| !name.starts_with("blk.") || name.starts_with("blk.0."))
    );
    assert!(mtp(&parse(&tied(&[]))).unwrap().is_none());
}

#[test]
fn a_list_of_tensor_names_is_refused_for_windows_number_them_anew() {
    let mut file = tied(&[]);
    file.set(
        "general.tensor_extra.name",
        Value::Strings(vec!["blk.2.attn_norm.weight".into()]),
    );
    let error = window(&parse(&file), &role(0, 2, false)).unwrap_err();
    assert!(error.to_string().contains("general.tensor_extra.name"), "{error}");
}

#[test]
fn a7_tensors_past_the_file_or_of_no_block_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    let bytes = tied(&[]).to_bytes();
    std::fs::write(&path, &bytes[..bytes.len() - 32]).unwrap();
    let error = Model::open(&path).unwrap_err();
    assert!(matches!(&error, ModelError::Incomplete { part: 1, what, .. } if what == "tensor output_norm.weight"));

    std::fs::write(&path, &bytes[..100]).unwrap();
    assert!(matches!(
        Model::open(&path).unwrap_err(),
        ModelError::Incomplete { size: 100, .. }
    ));

    let mut file = tied(&[]);
    add(&mut file, "blk.4.attn_norm.weight", &[8]);
    std::fs::write(&path, file.to_bytes()).unwrap();
    assert!(matches!(
        Model::open(&path).unwrap_err(),
        ModelError::NoSuchBlock {
            layer: 4,
            blocks: 4,
            ..
        }
    ));
}

#[test]
fn a_middle_window_carries_no_vocabulary_and_the_last_one_does() {
    let model = RandomModel::new(Architecture::Llama).vocabulary(Vocabulary::Bytes);
    let model = parse(&model.file());
    let middle = head(&window(&model, &role(2, 5, false)).unwrap());
    let tokenizer: Vec<&str> = middle
        .metadata
        .iter()
        .map(|(key, _)| key)
        .filter(|key| key.starts_with("tokenizer"))
        .collect();
    assert_eq!(tokenizer, ["tokenizer.ggml.model"]);
    assert_eq!(middle.metadata.str("tokenizer.ggml.model"), Some("no_vocab"));
    assert_eq!(middle.metadata.get("llama.vocab_size"), Some(Read::U32(1)));
    let last = head(&window(&model, &role(5, 8, true)).unwrap());
    let vocabulary = head(&vocabulary(&model, true).unwrap());
    for prefix in [&last, &vocabulary] {
        for (key, value) in model.metadata().iter().filter(|(key, _)| key.starts_with("tokenizer")) {
            assert_eq!(prefix.metadata.get(key), Some(value), "{key}");
        }
        assert_eq!(
            prefix.metadata.str("kvasir.model.identity"),
            Some(model.identity().to_string().as_str())
        );
        assert_eq!(prefix.metadata.get("kvasir.model.layers"), Some(Read::U32(8)));
    }
    let number = |key: &str| last.metadata.get(key).unwrap().as_u64().unwrap();
    assert_eq!(
        ["start", "end", "layers"].map(|key| number(&format!("kvasir.window.{key}"))),
        [5, 8, 3]
    );
    assert_eq!(vocabulary.tensors.len(), 1);
}

#[test]
fn an_untied_head_travels_as_the_embedding() {
    let model = parse(&RandomModel::new(Architecture::Qwen2).file());
    assert!(!is_tied(&model));
    let mini = window(&model, &role(5, 8, true)).unwrap();
    let named = |name: &str| {
        mini.tensors
            .iter()
            .filter(|tensor| tensor.name == name)
            .collect::<Vec<_>>()
    };
    assert!(named("output.weight").is_empty());
    let head = model.tensor("output.weight").unwrap();
    let source = Source::Range {
        part: 0,
        offset: head.start,
        len: head.bytes().unwrap(),
    };
    assert_eq!(
        named("token_embd.weight")
            .iter()
            .map(|tensor| &tensor.source)
            .collect::<Vec<_>>(),
        [&source]
    );
}

#[test]
fn layer_kinds_are_written_out_and_not_left_to_a_period() {
    let model = parse(&RandomModel::new(Architecture::Gemma3).layers(12).file());
    let kinds = arch::layer_kinds(&model).unwrap();
    let full: Vec<usize> = (0..12).filter(|layer| kinds[*layer] == LayerKind::Full).collect();
    assert_eq!(full, [5, 11]);
    let mini = window(&model, &role(4, 7, false)).unwrap();
    assert_eq!(
        flags(&head(&mini), "gemma3.attention.sliding_window_pattern"),
        [true, false, true]
    );

    let model = parse(&RandomModel::new(Architecture::Qwen35).file());
    let kinds = arch::layer_kinds(&model).unwrap();
    let full: Vec<usize> = (0..8).filter(|layer| kinds[*layer] == LayerKind::Full).collect();
    assert_eq!(full, [3, 7]);
    let mini = window(&model, &role(2, 5, false)).unwrap();
    assert_eq!(
        flags(&head(&mini), "qwen35.attention.recurrent_layers"),
        [true, false, true]
    );
    assert_eq!(head(&mini).metadata.get("qwen35.full_attention_interval"), None);
}

#[test]
fn a_window_of_full_layers_only_has_no_sliding_window() {
    let model = parse(&RandomModel::new(Architecture::Gemma3).layers(12).file());
    let prefix = head(&window(&model, &role(5, 6, false)).unwrap());
    assert!(
        prefix
            .metadata
            .iter()
            .all(|(key, _)| !key.starts_with("gemma3.attention.sliding_window"))
    );
    assert_eq!(arch::input_scale(&model).unwrap().to_bits(), 16f32.to_bits(), "√256");
}

#[test]
fn a_hybrid_window_of_one_kind_is_padded_with_a_hole() {
    let model = parse(&RandomModel::new(Architecture::Qwen35Moe).file());
    for (start, end, padding) in [(0, 1, 3), (3, 4, 0), (0, 3, 3)] {
        let mini = window(&model, &role(start, end, false)).unwrap();
        let prefix = head(&mini);
        let real = end - start;
        assert_eq!(prefix.metadata.get("qwen35moe.block_count"), Some(Read::U32(real + 1)));
        assert_eq!(prefix.metadata.get("kvasir.window.layers"), Some(Read::U32(real)));
        let mut recurrent = vec![start != 3; real as usize];
        recurrent.push(start == 3);
        assert_eq!(flags(&prefix, "qwen35moe.attention.recurrent_layers"), recurrent);

        let prefix = format!("blk.{real}.");
        let padded: Vec<_> = mini
            .tensors
            .iter()
            .filter(|tensor| tensor.name.starts_with(&prefix))
            .collect();
        assert_eq!(padded.len(), model.tensors_of_layer(padding).count());
        for tensor in padded {
            let Source::Hole { len } = tensor.source else {
                panic!("{} is no hole", tensor.name)
            };
            assert_eq!(Some(len), tensor.ty.bytes(&tensor.dims));
            let quantised = tensor.dims.len() > 1 && tensor.dims[0] % 256 == 0 && !tensor.name.contains("gate_inp");
            assert_eq!(
                tensor.ty,
                if quantised { TensorType::IQ1_S } else { TensorType::F32 },
                "{}",
                tensor.name
            );
        }
        let layers: u64 = (start..end)
            .flat_map(|layer| model.tensors_of_layer(layer))
            .map(|t| t.bytes().unwrap())
            .sum();
        assert_eq!(mini.fetched_bytes(), layers, "padding costs no transfer");
    }
    // both kinds: nothing to pad
    let mini = window(&model, &role(2, 4, false)).unwrap();
    assert!(
        mini.tensors
            .iter()
            .all(|tensor| !matches!(tensor.source, Source::Hole { .. }))
    );
}

#[test]
fn a_last_hybrid_window_needs_both_kinds() {
    let model = parse(&RandomModel::new(Architecture::Qwen3Next).file());
    let error = window(&model, &role(7, 8, true)).unwrap_err();
    assert!(
        matches!(
            error,
            Error::LastNeedsBothKinds {
                start: 7,
                end: 8,
                missing: "recurrent"
            }
        ),
        "{error}"
    );
    assert!(window(&model, &role(6, 8, true)).is_ok());
}

#[test]
fn layers_that_are_not_there_and_ends_that_are_not_last_are_refused() {
    let model = parse(&tied(&[]));
    for (start, end) in [(2, 2), (3, 2), (0, 5)] {
        let error = window(&model, &role(start, end, false)).unwrap_err();
        assert!(matches!(error, Error::NoSuchLayers { .. }), "{error}");
    }
    for (end, last) in [(4, false), (3, true)] {
        let error = window(&model, &role(0, end, last)).unwrap_err();
        assert!(matches!(error, Error::NotLast { .. }), "{error}");
    }
}

#[test]
fn a7_dimensions_of_no_model_are_refused_by_key() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    for (key, value) in [
        ("block_count", 0),
        ("block_count", 513),
        ("embedding_length", u32::MAX),
        ("nextn_predict_layers", 4),
    ] {
        let mut file = tied(&[]);
        file.set(format!("llama.{key}"), Value::U32(value));
        std::fs::write(&path, file.to_bytes()).unwrap();
        let error = Model::open(&path).unwrap_err();
        assert!(
            matches!(&error, ModelError::Key { .. }) && error.to_string().contains(key),
            "{error}"
        );
    }
}

#[test]
fn architectures_that_are_not_proven_are_refused_by_name_with_the_reason() {
    for (name, why) in [
        ("bloom", "normalises the input"),
        ("gpt2", "position embeddings"),
        ("t5", "encoder"),
        ("brandnew", "no test has shown"),
    ] {
        let mut file = File::default();
        file.set("general.architecture", Value::String(name.into()));
        file.set(format!("{name}.block_count"), Value::U32(4));
        file.set(format!("{name}.embedding_length"), Value::U32(8));
        let error = window(&parse(&file), &role(0, 2, false)).unwrap_err();
        assert_eq!(error.reason(), "UnsupportedArchitecture");
        assert!(
            error.to_string().contains(name) && error.to_string().contains(why),
            "{error}"
        );
    }
}

#[test]
fn a_model_that_llama_cpp_knows_by_its_layers_is_not_cut() {
    let file = |layers: u32, key_length: u32| {
        let mut file = File::default();
        file.set("general.architecture", Value::String("gemma3".into()));
        for (key, value) in [
            ("block_count", layers),
            ("embedding_length", 24),
            ("attention.head_count", 2),
        ] {
            file.set(format!("gemma3.{key}"), Value::U32(value));
        }
        file.set("gemma3.attention.key_length", Value::U32(key_length));
        parse(&filled(file, layers))
    };
    let error = window(&file(62, 8), &role(0, 2, false)).unwrap_err();
    assert!(matches!(error, Error::KnownByLayers { layers: 62, .. }), "{error}");
    let error = window(&file(70, 8), &role(0, 62, false)).unwrap_err();
    assert!(matches!(error, Error::KnownByLayers { layers: 70, .. }), "{error}");
    // where both scales are one, the number doesn't matter
    assert!(window(&file(62, 12), &role(0, 2, false)).is_ok());
}

#[test]
fn a_window_is_not_cut_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, tied(&[]).to_bytes()).unwrap();
    let mini = window(&Model::open(&path).unwrap(), &role(0, 3, false)).unwrap();
    let cut = folder.path().join("window.gguf");
    std::fs::write(&cut, expected(&path, &mini)).unwrap();
    assert!(matches!(
        window(&Model::open(&cut).unwrap(), &role(0, 1, false)),
        Err(Error::AlreadyWindow)
    ));
}

#[test]
fn the_identity_is_that_of_prefix_size_and_revision() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let mut bytes = tied(&[]).to_bytes();
    let identity = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        Model::open(&path).unwrap().identity()
    };
    let one = identity(&bytes);
    assert_eq!(one, identity(&bytes));
    assert_eq!(one.to_string().parse(), Ok(one));
    assert_eq!(one.to_string().len(), 64);
    bytes.extend([0; 32]);
    assert_ne!(one, identity(&bytes), "another size");
    assert_ne!(
        one,
        identity(&tied(&["rope_freqs.weight"]).to_bytes()),
        "another prefix"
    );
    let parts = || Model::open(&path).unwrap().parts().to_vec();
    assert_ne!(
        Model::new(parts(), "a").unwrap().identity(),
        Model::new(parts(), "b").unwrap().identity()
    );
}
