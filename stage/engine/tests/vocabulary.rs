//! Text to tokens and back.
#![allow(clippy::unwrap_used, reason = "tests end at the first surprise")]

mod support;

use kvasir_engine::{Backend, Mode, Vocabulary};
use kvasir_tests::models::{gemma3, smollm2};
use std::path::Path;
use support::vocabulary_file;

fn vocabulary(path: &Path) -> Vocabulary {
    Vocabulary::load(Backend::init(Mode::Fast).unwrap(), path).unwrap()
}

#[test]
fn any_text_comes_back_from_its_tokens() {
    for path in [smollm2(), gemma3()] {
        let vocabulary = vocabulary(&path);
        let long = "na ".repeat(20_000);
        for text in [
            "",
            "Hello",
            " two  spaces\n\n",
            "naïve Größe 日本語 🙂 \u{200d}",
            "a\0b",
            long.as_str(),
        ] {
            let tokens = vocabulary.tokenize(text, false, false);
            let bytes: Vec<u8> = tokens.iter().flat_map(|&token| vocabulary.piece(token, true)).collect();
            assert_eq!(String::from_utf8(bytes).unwrap(), text, "{}", path.display());
        }
    }
}

#[test]
fn control_tokens_are_read_only_when_asked_and_written_only_when_asked() {
    let vocabulary = vocabulary(&smollm2());
    let [control] = vocabulary.tokenize("<|im_end|>", false, true)[..] else {
        panic!("not one token")
    };
    assert!(vocabulary.tokenize("<|im_end|>", false, false).len() > 1);
    assert_eq!(vocabulary.piece(control, true), b"<|im_end|>");
    assert_eq!(vocabulary.piece(control, false), b"");
    assert_eq!(vocabulary.token_text(control).as_deref(), Some("<|im_end|>"));
    assert!(vocabulary.is_end(control) && vocabulary.end_tokens().contains(&control));
}

#[test]
fn the_beginning_of_a_sequence_is_added_where_the_model_wants_it() {
    let gemma = vocabulary(&gemma3());
    assert!(gemma.adds_bos());
    assert_eq!(gemma.tokenize("a", true, false).first().copied(), gemma.bos());
    assert!(gemma.eos().is_some_and(|eos| gemma.is_end(eos)));
    assert!(!vocabulary(&smollm2()).adds_bos());
}

#[test]
fn the_file_of_rank_0_carries_all_of_it() {
    let folder = tempfile::TempDir::new().unwrap();
    let file = vocabulary_file(&smollm2(), folder.path());
    let cut = Vocabulary::load(Backend::init(Mode::Fast).unwrap(), &file).unwrap();
    let whole = vocabulary(&smollm2());
    assert_eq!(
        (cut.len(), cut.end_tokens(), cut.bos()),
        (whole.len(), whole.end_tokens(), whole.bos())
    );
    assert_eq!(cut.chat_template(), whole.chat_template());
    assert!(cut.chat_template().unwrap().contains("im_start"));
    assert_eq!(cut.metadata("general.architecture").as_deref(), Some("llama"));
    assert_eq!(cut.metadata("no.such.key"), None);
    let text = include_str!("support/text.txt");
    assert_eq!(cut.tokenize(text, true, true), whole.tokenize(text, true, true));
}
