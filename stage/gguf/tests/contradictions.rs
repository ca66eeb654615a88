//! Prefixes that contradict themselves are refused before any weights are fetched: windows cut from them would compute
//! something, and not what the model is.
#![allow(clippy::unwrap_used, reason = "tests end at the first surprise")]

mod support;

use kvasir_gguf::model::Error;
use kvasir_gguf::window::TensorBytes;
use kvasir_gguf::{Model, arch};
use kvasir_tests::gguf::{File, Value};
use support::bytes::Bytes;
use support::{add, heavy};

fn open(bytes: &[u8]) -> Result<Model, Error> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, bytes).unwrap();
    Model::open(&path)
}

fn refusal(file: &File) -> Error {
    open(&file.to_bytes()).unwrap_err()
}

/// One block of two vectors of 32 bytes, the second one at `offset`.
fn two_vectors(offset: u64) -> Result<Model, Error> {
    let number = |bytes: Bytes, key: &str, value: u32| bytes.text(key).u32(4).u32(value);
    let mut bytes = Bytes::head(2, 3).entry("general.architecture", "llama");
    bytes = number(bytes, "llama.block_count", 1);
    bytes = number(bytes, "llama.embedding_length", 8);
    bytes = bytes.tensor("blk.0.attn_norm.weight", &[8], 0);
    let mut file = bytes.tensor("blk.0.ffn_norm.weight", &[8], offset).0;
    file.resize(file.len() + 256, 0);
    open(&file)
}

#[test]
fn tensors_lie_one_behind_the_other_and_nowhere_else() {
    two_vectors(32).unwrap();
    for offset in [0, 64] {
        let told = two_vectors(offset);
        let expected = matches!(&told, Err(Error::Misplaced { expected: 32, offset: found, .. }) if *found == offset);
        assert!(expected, "{offset}: {told:?}");
    }
}

#[test]
fn a_layer_is_no_mtp_block_because_a_key_says_so() {
    let mut file = heavy(4, 64);
    file.set("llama.nextn_predict_layers", Value::U32(1));
    let told = refusal(&file);
    assert!(matches!(told, Error::NoMtpBlock { block: 3 }), "{told:?}");
    add(&mut file, "blk.3.nextn.enorm.weight", &[8]);
    assert_eq!(open(&file.to_bytes()).unwrap().layers(), 3);
}

#[test]
fn a_block_without_tensors_is_named() {
    let mut file = heavy(4, 64);
    file.set("llama.block_count", Value::U32(5));
    let model = open(&file.to_bytes()).unwrap();
    let told = TensorBytes::of(&model).unwrap_err().to_string();
    assert!(told.contains("no tensor of block 4"), "{told}");
}

#[test]
fn rows_of_embedding_and_head_are_those_of_the_model() {
    let mut file = heavy(2, 64);
    add(&mut file, "output.weight", &[8, 20]);
    let told = refusal(&file);
    assert!(
        matches!(
            told,
            Error::Shape {
                name: "output.weight",
                ..
            }
        ),
        "{told:?}"
    );

    let mut file = heavy(2, 64);
    file.set("llama.embedding_length", Value::U32(16));
    let told = refusal(&file);
    assert!(
        matches!(
            told,
            Error::Shape {
                name: "token_embd.weight",
                ..
            }
        ),
        "{told:?}"
    );
}

#[test]
fn a_layers_number_has_one_spelling() {
    let mut file = heavy(2, 64);
    add(&mut file, "blk.01.attn_k.weight", &[8]);
    let told = TensorBytes::of(&open(&file.to_bytes()).unwrap())
        .unwrap_err()
        .to_string();
    assert!(told.contains("blk.01.attn_k.weight"), "{told}");
}

#[test]
fn a_key_of_another_type_is_not_taken_for_none() {
    for (key, value) in [
        ("sliding_window_pattern", Value::String("6".into())),
        ("sliding_window", Value::String("512".into())),
    ] {
        let mut file = heavy(2, 64);
        file.set("general.architecture", Value::String("gemma3".into()));
        file.set("gemma3.block_count", Value::U32(2));
        file.set("gemma3.embedding_length", Value::U32(8));
        file.set("gemma3.attention.sliding_window", Value::U32(512));
        file.set(format!("gemma3.attention.{key}"), value);
        let told = arch::layer_kinds(&open(&file.to_bytes()).unwrap());
        assert!(told.is_err(), "{key}: {told:?}");
    }
}

#[test]
fn an_architectures_name_is_a_word_that_a_terminal_can_show() {
    for name in ["\u{1b}[31mllama", "lla ma", &"l".repeat(65)] {
        let mut file = heavy(2, 64);
        file.set("general.architecture", Value::String(name.into()));
        let told = refusal(&file).to_string();
        assert!(
            told.contains("general.architecture") && !told.contains('\u{1b}'),
            "{told}"
        );
    }
}

#[test]
fn a_gguf_that_is_no_model_is_called_what_it_is() {
    for (key, value, what) in [
        ("general.type", "mmproj", "projector"),
        ("general.type", "adapter", "adapter"),
        ("general.type", "imatrix", "importance matrix"),
        ("general.architecture", "clip", "projector"),
        ("general.architecture", "controlvector", "control vector"),
    ] {
        let mut file = File::default();
        file.set(key, Value::String(value.into()));
        let told = refusal(&file);
        assert_eq!(told.reason(), "UnsupportedArchitecture", "{told}");
        let told = told.to_string();
        assert!(told.contains(what) && told.contains("point to"), "{told}");
    }
}

#[test]
fn a_wrong_key_is_told_with_its_value_and_a_missing_one_as_missing() {
    let mut file = heavy(2, 64);
    file.set("llama.block_count", Value::String("two".repeat(100)));
    let told = refusal(&file).to_string();
    assert!(
        told.contains("llama.block_count is the text \"twotwo") && told.contains("it should be 1 to 512"),
        "{told}"
    );
    assert!(told.len() < 200, "{told}");
    file.metadata.retain(|(key, _)| key != "llama.block_count");
    let told = refusal(&file).to_string();
    assert!(told.contains("llama.block_count is missing"), "{told}");
}

#[test]
fn the_embedding_has_a_row_for_each_token() {
    let mut file = heavy(2, 64);
    let tokens = |count: usize| Value::Strings(vec!["a".into(); count]);
    file.set("tokenizer.ggml.tokens", tokens(16));
    open(&file.to_bytes()).unwrap();
    file.set("tokenizer.ggml.tokens", tokens(15));
    let told = refusal(&file).to_string();
    assert!(told.contains("each of the 15 tokens"), "{told}");
}

#[test]
fn a_part_under_a_name_of_its_own_is_told_how_parts_are_named() {
    let mut file = heavy(2, 64);
    file.set("split.count", Value::U32(3));
    file.set("split.no", Value::U32(1));
    let told = refusal(&file).to_string();
    assert!(
        told.contains("part 2 of 3") && told.contains("-00001-of-00003.gguf"),
        "{told}"
    );
}
