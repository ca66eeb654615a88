//! Stock llama.cpp loads what is cut, and the window of all layers is the model to the bit.
#![allow(clippy::unwrap_used, reason = "tests end at the first surprise")]

mod support;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use kvasir_gguf::copy::write_from_file;
use kvasir_gguf::window::{mtp, vocabulary, window};
use kvasir_gguf::{Model, WindowRole};
use kvasir_tests::models;
use kvasir_tests::random_model::{Architecture, RandomModel};
use llama_cpp_2::context::params::{LlamaContextParams, LlamaContextType};
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

fn load(path: &Path, vocab_only: bool) -> LlamaModel {
    let params = LlamaModelParams::default().with_vocab_only(vocab_only);
    LlamaModel::load_from_file(backend(), path, &params).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn context() -> LlamaContextParams {
    LlamaContextParams::default().with_n_threads(1).with_n_threads_batch(1)
}

fn cut(model: &Path, folder: &Path, start: u32, end: u32) -> PathBuf {
    let parsed = Model::open(model).unwrap();
    let mini = window(
        &parsed,
        &WindowRole {
            layers: start..end,
            last: end == parsed.layers(),
        },
    )
    .unwrap();
    let path = folder.join(format!("{start}-{end}.gguf"));
    write_from_file(model, &mini, &path).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().len(), mini.len);
    path
}

fn logits(path: &Path, tokens: &[i32]) -> Vec<f32> {
    let model = load(path, false);
    let mut context = model.new_context(backend(), context()).unwrap();
    let mut batch = LlamaBatch::new(tokens.len(), 1);
    for (position, token) in tokens.iter().enumerate() {
        batch
            .add(LlamaToken(*token), position as i32, &[0], position + 1 == tokens.len())
            .unwrap();
    }
    context.decode(&mut batch).unwrap();
    context.get_logits().to_vec()
}

#[test]
fn llama_cpp_makes_a_context_of_every_window() {
    let folder = tempfile::tempdir().unwrap();
    let whole = folder.path().join("whole.gguf");
    for architecture in Architecture::ALL {
        RandomModel::new(architecture).write(&whole).unwrap();
        for (start, end) in [(0, 1), (0, 3), (1, 4), (3, 4), (2, 7), (6, 8), (0, 8)] {
            let path = cut(&whole, folder.path(), start, end);
            let model = load(&path, false);
            assert_eq!(
                model.meta_val_str("kvasir.window.layers").unwrap(),
                (end - start).to_string()
            );
            model.new_context(backend(), context()).unwrap();
        }
    }
}

#[test]
fn llama_cpp_makes_an_mtp_context_of_the_mtp_file() {
    let folder = tempfile::tempdir().unwrap();
    let whole = folder.path().join("whole.gguf");
    for architecture in [Architecture::Qwen3Next, Architecture::Qwen35, Architecture::Qwen35Moe] {
        RandomModel::new(architecture).mtp_layers(1).write(&whole).unwrap();
        let path = folder.path().join("mtp.gguf");
        write_from_file(&whole, &mtp(&Model::open(&whole).unwrap()).unwrap().unwrap(), &path).unwrap();
        let params = LlamaModelParams::default().with_load_mtp(true);
        let model = LlamaModel::load_from_file(backend(), &path, &params).unwrap();
        let draft = context().with_context_type(LlamaContextType::Mtp);
        model.new_context(backend(), draft).unwrap();
        // and the trunk's windows are cut as if the block weren't there
        let last = load(&cut(&whole, folder.path(), 6, 8), false);
        last.new_context(backend(), context()).unwrap();
    }
}

#[test]
fn the_window_of_all_layers_is_the_model() {
    let folder = tempfile::tempdir().unwrap();
    for model in [models::smollm2(), models::gemma3()] {
        let layers = Model::open(&model).unwrap().layers();
        let path = cut(&model, folder.path(), 0, layers);
        let tokens = [1, 504, 3575, 282, 28, 1043, 260, 42];
        assert_eq!(logits(&path, &tokens), logits(&model, &tokens), "{}", model.display());
    }
}

#[test]
fn windows_of_the_real_models_load() {
    let folder = tempfile::tempdir().unwrap();
    for (model, windows) in [
        (models::smollm2(), [(0, 1), (7, 19)]),
        (models::gemma3(), [(3, 7), (5, 6)]),
    ] {
        for (start, end) in windows {
            let path = cut(&model, folder.path(), start, end);
            let loaded = load(&path, false);
            assert_eq!(loaded.n_layer(), end - start);
            assert_eq!(loaded.n_vocab(), 1);
            loaded.new_context(backend(), context()).unwrap();
        }
    }
}

#[test]
fn the_vocabulary_file_tokenises_like_the_model() {
    let folder = tempfile::tempdir().unwrap();
    for model in [models::smollm2(), models::gemma3()] {
        let parsed = Model::open(&model).unwrap();
        let whole = load(&model, true);
        for with_embedding in [true, false] {
            let path = folder.path().join("vocab.gguf");
            write_from_file(&model, &vocabulary(&parsed, with_embedding).unwrap(), &path).unwrap();
            let loaded = load(&path, true);
            assert_eq!(loaded.n_vocab(), whole.n_vocab());
            let text = "Odin gave an eye for it: 日本 🙂\n";
            let tokens = |model: &LlamaModel| model.vocab().tokenize(text.as_bytes(), true, true);
            assert_eq!(format!("{:?}", tokens(&loaded)), format!("{:?}", tokens(&whole)));
        }
    }
}
