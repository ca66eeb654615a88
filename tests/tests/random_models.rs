//! Stock llama.cpp loads every random model and computes sensible logits: the other tests may build on them.
#![allow(clippy::unwrap_used, reason = "tests end at the first surprise")]

use std::collections::BTreeSet;
use std::fs;
use std::sync::OnceLock;

use kvasir_tests::gguf::{File, Tensor, TensorType};
use kvasir_tests::random_model::{Architecture, CHAT_TEMPLATE, END_OF_TURN, RandomModel, VOCABULARY, Vocabulary};
use llama_cpp_2::context::params::LlamaContextParams;
use llama_cpp_2::llama_backend::LlamaBackend;
use llama_cpp_2::llama_batch::LlamaBatch;
use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::model::params::LlamaModelParams;
use llama_cpp_2::token::LlamaToken;

fn backend() -> &'static LlamaBackend {
    static BACKEND: OnceLock<LlamaBackend> = OnceLock::new();
    BACKEND.get_or_init(|| {
        let mut backend = LlamaBackend::init().unwrap();
        backend.void_logs();
        backend
    })
}

fn load(model: &RandomModel) -> LlamaModel {
    load_file(&model.file())
}

fn load_file(file: &File) -> LlamaModel {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    fs::write(&path, file.to_bytes()).unwrap();
    // with memory mapping, which outlives the deleted file
    LlamaModel::load_from_file(backend(), &path, &LlamaModelParams::default()).unwrap()
}

/// Logits of the last of `tokens`.
fn logits(model: &LlamaModel, tokens: &[i32]) -> Vec<f32> {
    let params = LlamaContextParams::default().with_n_threads(1).with_n_threads_batch(1);
    let mut context = model.new_context(backend(), params).unwrap();
    let mut batch = LlamaBatch::new(tokens.len(), 1);
    for (position, &token) in tokens.iter().enumerate() {
        let is_last = position + 1 == tokens.len();
        batch.add(LlamaToken(token), position as i32, &[0], is_last).unwrap();
    }
    context.decode(&mut batch).unwrap();
    context.get_logits().to_vec()
}

fn assert_sensible(logits: &[f32], what: &str) {
    assert_eq!(logits.len() as u64, VOCABULARY, "{what}");
    assert!(logits.iter().all(|l| l.is_finite()), "{what}");
    let mean = logits.iter().sum::<f32>() / logits.len() as f32;
    let spread = (logits.iter().map(|l| (l - mean).powi(2)).sum::<f32>() / logits.len() as f32).sqrt();
    assert!((0.3..10.0).contains(&spread), "{what}: logits spread by {spread}");
}

#[test]
fn llama_cpp_runs_every_architecture() {
    for architecture in Architecture::ALL {
        let model = load(&RandomModel::new(architecture));
        let one = logits(&model, &[1, 2, 3, 4, 5, 6, 7, 8]);
        assert_sensible(&one, architecture.label());
        // what came first matters: attention, recurrent state and positions are at work
        let other = logits(&model, &[9, 2, 3, 4, 5, 6, 7, 8]);
        assert_ne!(one, other, "{}", architecture.label());
    }
}

#[test]
fn llama_cpp_runs_every_weight_type() {
    for kind in [TensorType::F32, TensorType::F16, TensorType::Q8_0] {
        for architecture in [Architecture::Llama, Architecture::Qwen35Moe] {
            let model = load(&RandomModel::new(architecture).weights(kind));
            assert_sensible(
                &logits(&model, &[1, 2, 3]),
                &format!("{} {kind:?}", architecture.name()),
            );
        }
    }
}

#[test]
fn a_weight_type_changes_the_logits_by_its_rounding_only() {
    let of = |kind| logits(&load(&RandomModel::new(Architecture::Llama).weights(kind)), &[1, 2, 3]);
    let exact = of(TensorType::F32);
    let rounded = of(TensorType::Q8_0);
    let largest = exact
        .iter()
        .zip(&rounded)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f32::max);
    assert!((1e-4..0.3).contains(&largest), "largest difference {largest}");
}

#[test]
fn mtp_layers_leave_the_trunk_as_it_was() {
    for architecture in Architecture::ALL.into_iter().filter(|a| a.has_mtp()) {
        let plain = logits(&load(&RandomModel::new(architecture)), &[1, 2, 3]);
        let with_mtp = logits(&load(&RandomModel::new(architecture).mtp_layers(1)), &[1, 2, 3]);
        assert_eq!(plain, with_mtp, "{}", architecture.name());
    }
}

#[test]
fn tied_models_and_other_seeds_differ() {
    let untied = logits(&load(&RandomModel::new(Architecture::Qwen3)), &[1, 2, 3]);
    let tied = logits(&load(&RandomModel::new(Architecture::Qwen3).tied()), &[1, 2, 3]);
    let reseeded = logits(&load(&RandomModel::new(Architecture::Qwen3).seed(2)), &[1, 2, 3]);
    assert_sensible(&tied, "tied");
    assert_ne!(untied, tied);
    assert_ne!(untied, reseeded);
}

#[test]
fn the_byte_vocabulary_takes_any_text_and_gives_it_back() {
    let model = load(&RandomModel::new(Architecture::Llama).vocabulary(Vocabulary::Bytes));
    let text = "the rating of 👍 in Ελλάδα\n\t\u{0}\u{7f}";
    let tokens = model.vocab().tokenize(text.as_bytes(), false, true);
    assert!(tokens.len() < text.len(), "no merge was used");
    let bytes = model.vocab().detokenize(&tokens, false, false);
    assert_eq!(String::from_utf8(bytes).unwrap(), text);

    let turn = model.vocab().tokenize(b"<|im_end|>", false, true);
    assert_eq!(turn, [LlamaToken(END_OF_TURN as i32)]);
    assert!(model.vocab().is_eog(turn[0]));
    assert_eq!(model.chat_template(None).unwrap().to_string().unwrap(), CHAT_TEMPLATE);
}

#[test]
fn a_vocabulary_changes_no_logits() {
    let without = logits(&load(&RandomModel::new(Architecture::Gemma3)), &[1, 2, 3]);
    let with = logits(
        &load(&RandomModel::new(Architecture::Gemma3).vocabulary(Vocabulary::Bytes)),
        &[1, 2, 3],
    );
    assert_eq!(without, with);
}

/// A bias, a sink or a gate that made no difference would prove nothing where windows are compared with the whole.
#[test]
fn every_kind_of_tensor_makes_a_difference() {
    let tokens: Vec<i32> = (0..20).map(|i| i * 37 % 250).collect();
    for architecture in Architecture::ALL {
        let file = RandomModel::new(architecture).file();
        let plain = logits(&load_file(&file), &tokens);
        let kinds: BTreeSet<&str> = file.tensors.iter().filter_map(kind).collect();
        for of in kinds {
            let mut other = file.clone();
            for tensor in other.tensors.iter_mut().filter(|tensor| kind(tensor) == Some(of)) {
                tensor.data.fill(0);
            }
            let changed = logits(&load_file(&other), &tokens);
            assert_ne!(plain, changed, "{}: {of} is not used", architecture.label());
        }
    }
}

/// What a layer's tensor is called in every layer that has it.
fn kind(tensor: &Tensor) -> Option<&str> {
    let (_, kind) = tensor.name.strip_prefix("blk.")?.split_once('.')?;
    Some(kind)
}
