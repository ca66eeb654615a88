//! What a profile says of a model is what the model's tensor table and metadata say.

#![allow(clippy::unwrap_used)]

use kvasir_gguf::Model;
use kvasir_plan::{LayerKind, LayerRange, ModelProfile, Needs, Request};
use kvasir_tests::gguf::{File, Tensor, TensorType, Value};
use kvasir_tests::models;
use kvasir_tests::random_model::{Architecture, EMBEDDING, RandomModel};

fn model(random: &RandomModel) -> Model {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    random.write(&path).unwrap();
    Model::open(&path).unwrap()
}

fn profile(random: &RandomModel) -> ModelProfile {
    ModelProfile::of(&model(random)).unwrap()
}

/// A model of this architecture with one norm in each layer.
fn toy(architecture: &str, layers: u32, keys: &[(&str, Value)]) -> Model {
    let mut file = File::default();
    file.set("general.architecture", Value::String(architecture.into()));
    for (key, value) in [
        ("block_count", layers),
        ("embedding_length", 8),
        ("attention.head_count", 2),
    ] {
        file.set(format!("{architecture}.{key}"), Value::U32(value));
    }
    for (key, value) in keys {
        file.set(format!("{architecture}.{key}"), value.clone());
    }
    let mut add = |name: String, shape: &[u64]| {
        file.tensors.push(Tensor {
            name,
            shape: shape.into(),
            kind: TensorType::F32,
            data: vec![0; 4 * shape.iter().product::<u64>() as usize],
        });
    };
    add("token_embd.weight".into(), &[8, 16]);
    (0..layers).for_each(|layer| add(format!("blk.{layer}.attn_norm.weight"), &[8]));
    add("output_norm.weight".into(), &[8]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, file.to_bytes()).unwrap();
    Model::open(&path).unwrap()
}

fn needs(profile: &ModelProfile) -> Needs {
    Needs::new(profile, &Request::default()).unwrap()
}

fn window(start: u32, end: u32) -> LayerRange {
    LayerRange { start, end }
}

#[test]
fn a_llama_is_described_by_its_layers() {
    let profile = ModelProfile::of(&Model::open(&models::smollm2()).unwrap()).unwrap();
    assert_eq!((profile.layer_count(), profile.embedding_length), (30, 576));
    assert_eq!(
        (profile.heads, profile.feed_forward, profile.vocabulary),
        (9, 1536, 49_152)
    );
    assert!(profile.tied && profile.indivisible.is_none());
    assert_eq!(profile.file_type, "Q4_1");
    assert_eq!(profile.last_start, 29);
    let layer = profile.layers[29];
    // three heads of keys and values, 64 values each
    assert_eq!(
        (layer.kind, layer.key_values, layer.value_values),
        (LayerKind::Full, 192, 192)
    );
    assert_eq!(layer.bytes, layer.active_bytes, "a dense layer is read whole");
    // attention 2 × 576² + 2 × 576 × 192, feed-forward 3 × 576 × 1536, in 20 bytes for 32 weights, and two norms
    let weights = 2 * 576 * 576 + 2 * 576 * 192 + 3 * 576 * 1536;
    assert_eq!(layer.bytes, weights / 32 * 20 + 2 * 576 * 4);
}

#[test]
fn a_gemma_slides_in_five_layers_of_six() {
    let profile = ModelProfile::of(&Model::open(&models::gemma3()).unwrap()).unwrap();
    let full: Vec<usize> = (0..18).filter(|&l| profile.layers[l].kind == LayerKind::Full).collect();
    assert_eq!(full, [5, 11, 17]);
    assert_eq!(profile.layers[0].kind, LayerKind::Sliding { window: 512 });
    // one head of keys and values of 256, whatever the embedding length over the heads gives
    assert_eq!(
        (profile.layers[0].key_values, profile.layers[0].value_values),
        (256, 256)
    );
    let request = Request {
        context_length: 8192,
        sequences: 1,
        ..Request::default()
    };
    let needs = Needs::new(&profile, &request).unwrap();
    assert_eq!(needs.rank(window(5, 6)).cache, 2 * 256 * 2 * 8192);
    assert_eq!(needs.rank(window(4, 5)).cache, 2 * 256 * 2 * 768);
}

#[test]
fn a1_every_rank_carries_the_rope_tensors_and_a_tied_embedding_is_fetched_twice() {
    let tied = model(&RandomModel::new(Architecture::Llama).layers(4).tied());
    let profile = ModelProfile::of(&tied).unwrap();
    let needs = needs(&profile);
    let bytes = |name: &str| tied.tensor(name).unwrap().bytes().unwrap();
    let embedding = bytes("token_embd.weight");
    let rope: u64 = tied
        .global_tensors()
        .filter(|t| t.name.starts_with("rope"))
        .map(|t| t.bytes().unwrap())
        .sum();
    assert_eq!(profile.every_bytes, rope);

    let total: u64 = tied.tensors().iter().map(|t| t.bytes().unwrap()).sum();
    let fetched: u64 = [(0, 1), (1, 2), (2, 4)]
        .map(|(s, e)| needs.rank(window(s, e)).fetch)
        .iter()
        .sum();
    assert_eq!(fetched, total + embedding + 2 * rope);
    assert_eq!(needs.rank(window(0, 4)).fetch, total, "a ring of one fetches it once");
}

#[test]
fn rank_0_reads_its_embedding_from_the_file() {
    let profile = profile(&RandomModel::new(Architecture::Qwen3).layers(4));
    assert!(!profile.tied && profile.embedding_bytes > 0 && profile.head_bytes > 0);
    let needs = needs(&profile);
    let (first, last) = (needs.rank(window(0, 1)), needs.rank(window(3, 4)));
    assert_eq!(first.fetch, first.weights + profile.embedding_bytes);
    assert_eq!(last.fetch, last.weights);
    assert_eq!(last.weights - profile.head_bytes, needs.rank(window(2, 3)).weights);
}

#[test]
fn a2_each_layer_counts_its_own_heads_in_either_form() {
    let plain = RandomModel::new(Architecture::Llama).layers(4);
    let scalar = profile(&plain);
    let heads = Value::I32s(vec![2, 2, 1, 2]);
    let array = profile(&plain.clone().metadata("llama.attention.head_count_kv", heads));
    let keys = |profile: &ModelProfile| profile.layers.iter().map(|l| l.key_values).collect::<Vec<_>>();
    assert_eq!(keys(&scalar), [128, 128, 128, 128]);
    assert_eq!(keys(&array), [128, 128, 64, 128]);
    let cache = |start, end| needs(&array).rank(window(start, end)).cache;
    assert_eq!(cache(2, 3) * 2, cache(3, 4));

    let short = Value::I32s(vec![2, 2, 1]);
    let refused = ModelProfile::of(&model(&plain.metadata("llama.attention.head_count_kv", short))).unwrap_err();
    assert!(
        refused.to_string().contains("llama.attention.head_count_kv"),
        "{refused}"
    );
}

#[test]
fn a2_the_widest_feed_forward_is_that_of_any_layer() {
    let widths = Value::I32s(vec![512, 512, 2048, 512]);
    let random = RandomModel::new(Architecture::Llama)
        .layers(4)
        .metadata("llama.feed_forward_length", widths);
    assert_eq!(profile(&random).feed_forward, 2048);
}

#[test]
fn a3_mtp_layers_are_in_no_window() {
    let plain = profile(&RandomModel::new(Architecture::Qwen35).layers(8));
    let with = profile(&RandomModel::new(Architecture::Qwen35).layers(8).mtp_layers(1));
    assert_eq!((with.layer_count(), with.mtp_layers), (8, 1));
    assert!(with.mtp_bytes > 0 && plain.mtp_bytes == 0);
    assert_eq!(with.layers, plain.layers);
    assert_eq!(needs(&with).rank(window(4, 8)), needs(&plain).rank(window(4, 8)));
}

#[test]
fn the_last_window_of_a_hybrid_model_has_both_kinds() {
    for (layers, last_start) in [(8, 6), (6, 3), (5, 3)] {
        let profile = profile(&RandomModel::new(Architecture::Qwen35Moe).layers(layers));
        let full: Vec<u32> = (0..layers)
            .filter(|&l| profile.layers[l as usize].kind == LayerKind::Full)
            .collect();
        assert!(full.iter().all(|l| l % 4 == 3), "{full:?}");
        assert_eq!(profile.last_start, last_start, "{layers} layers");
    }
}

#[test]
fn a_recurrent_layer_has_a_state_and_no_cache() {
    let profile = profile(&RandomModel::new(Architecture::Qwen3Next).layers(8));
    let recurrent = profile.layers[0];
    assert_eq!((recurrent.kind, recurrent.key_values), (LayerKind::Recurrent, 0));
    // state 64 × 256 (four heads of 64); convolution of 4 over 256 + 2 × 2 × 64 channels; f32
    assert_eq!(recurrent.state_bytes, (64 * 256 + 3 * (256 + 2 * 2 * 64)) * 4);
    let full = profile.layers[3];
    assert_eq!((full.kind, full.state_bytes), (LayerKind::Full, 0));
    assert!(full.key_values > 0);
    let needs = needs(&profile);
    // four sequences of 4096 positions, two bytes a value
    let cache = recurrent.state_bytes * 4 + (full.key_values + full.value_values) * 2 * 4096 * 4;
    for one_of_each in [window(2, 4), window(0, 1), window(3, 4)] {
        assert_eq!(
            needs.rank(one_of_each).cache,
            cache,
            "a padding layer has a cache like any other"
        );
    }
    // the padding layer of the other kind, in the smallest type, is less than the layer itself
    let padded = needs.rank(window(0, 1)).weights - recurrent.bytes;
    assert!(padded > 0 && padded < full.bytes, "{padded} of {}", full.bytes);
    assert_eq!(needs.rank(window(2, 4)).weights, profile.layers[2].bytes + full.bytes);
}

#[test]
fn of_experts_only_the_used_share_is_read() {
    let random = RandomModel::new(Architecture::Qwen3Moe)
        .layers(2)
        .weights(TensorType::F16);
    let profile = profile(&random);
    let layer = profile.layers[0];
    let experts: u64 = model(&random)
        .tensors_of_layer(0)
        .filter(|tensor| tensor.name.contains("_exps."))
        .map(|tensor| tensor.bytes().unwrap())
        .sum();
    assert!(experts > 0);
    // two experts of eight
    assert_eq!(layer.active_bytes, layer.bytes - experts + experts / 4);
    assert_eq!(profile.feed_forward, 512, "two experts of 256");
}

#[test]
fn an_architecture_that_cannot_be_cut_is_refused_by_name() {
    let refused = ModelProfile::of(&toy("bloom", 4, &[])).unwrap_err();
    assert!(refused.to_string().contains("bloom"), "{refused}");
    assert_eq!(refused.reason(), "UnsupportedArchitecture");
}

#[test]
fn lengths_of_the_last_window_that_make_it_another_model_are_known() {
    let profile = ModelProfile::of(&toy("deepseek2", 61, &[("attention.q_lora_rank", Value::U32(4))])).unwrap();
    assert_eq!((profile.last_start, &profile.indivisible), (60, &None));
    assert_eq!(profile.refused_last_starts, [34, 35], "27 and 26 layers");
    let light = ModelProfile::of(&toy("deepseek2", 27, &[])).unwrap();
    assert!(light.refused_last_starts.is_empty());
    let plain = ModelProfile::of(&toy("deepseek2", 61, &[])).unwrap();
    assert!(
        plain.refused_last_starts.is_empty(),
        "without compressed queries nothing changes"
    );
}

#[test]
fn a_compressed_cache_has_no_values_beside_its_keys() {
    let keys = [
        ("attention.head_count_kv", Value::U32(1)),
        ("attention.key_length", Value::U32(576)),
        ("attention.value_length", Value::U32(512)),
        ("attention.key_length_mla", Value::U32(192)),
        ("attention.value_length_mla", Value::U32(128)),
    ];
    let layer = ModelProfile::of(&toy("deepseek2", 4, &keys)).unwrap().layers[0];
    assert_eq!((layer.key_values, layer.value_values), (576, 0));
}

#[test]
fn a_short_convolution_keeps_only_its_inputs() {
    let keys = [
        ("attention.head_count_kv", Value::I32s(vec![0, 0, 2, 0])),
        ("shortconv.l_cache", Value::U32(3)),
    ];
    let profile = ModelProfile::of(&toy("granitehybrid", 4, &keys)).unwrap();
    let states: Vec<u64> = profile.layers.iter().map(|layer| layer.state_bytes).collect();
    assert_eq!(states, [64, 64, 0, 64], "two inputs of eight values");
    assert_eq!(profile.last_start, 2);
}

#[test]
fn layers_slide_by_a_width_that_the_file_need_not_say() {
    let profile = ModelProfile::of(&toy("gemma2", 4, &[])).unwrap();
    let sliding = LayerKind::Sliding { window: 4096 };
    let kinds: Vec<LayerKind> = profile.layers.iter().map(|layer| layer.kind).collect();
    assert_eq!(kinds, [sliding, LayerKind::Full, sliding, LayerKind::Full]);
    assert_eq!(profile.last_start, 3, "a full layer may be alone");
}

#[test]
fn a_model_known_by_its_number_of_layers_is_indivisible() {
    // Gemma 3 27B: 62 layers, at which llama.cpp scales queries by the embedding length over the heads
    let random = RandomModel::new(Architecture::Gemma3).layers(62);
    let per_head = EMBEDDING / 4;
    let other = Value::U32(per_head as u32 * 2);
    let known = ModelProfile::of(&model(&random.clone().metadata("gemma3.attention.key_length", other))).unwrap();
    assert!(known.indivisible.is_some_and(|why| why.contains("62")));
    let same = Value::U32(per_head as u32);
    let free = profile(&random.metadata("gemma3.attention.key_length", same));
    assert_eq!(free.indivisible, None);
}
