//! Files and options that can't work are refused by name; nothing aborts.
#![allow(clippy::unwrap_used, reason = "tests end at the first surprise")]

mod support;

use kvasir_engine::{Backend, Embedder, EngineError, Mode, Output, Vocabulary, Whole, Window, WindowOptions};
use kvasir_tests::models::smollm2;
use kvasir_tests::random_model::{Architecture, RandomModel};
use std::path::{Path, PathBuf};
use support::{cut, vocabulary_file};
use tempfile::TempDir;

fn backend() -> &'static Backend {
    Backend::init(Mode::Fast).unwrap()
}

fn load(path: &Path) -> EngineError {
    Window::load(
        backend(),
        path,
        &WindowOptions {
            context_length: 256,
            max_rows: 8,
            ..WindowOptions::default()
        },
    )
    .unwrap_err()
}

fn write(folder: &TempDir, name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn files_that_are_no_models_are_refused() {
    let folder = TempDir::new().unwrap();
    assert!(matches!(
        load(&folder.path().join("missing.gguf")),
        EngineError::Read { .. }
    ));
    assert!(matches!(load(folder.path()), EngineError::NotGguf { .. }));
    assert!(matches!(
        load(&write(&folder, "empty", b"")),
        EngineError::NotGguf { .. }
    ));
    assert!(matches!(
        load(&write(&folder, "text", b"not a model at all")),
        EngineError::NotGguf { .. }
    ));
    assert!(matches!(
        load(&write(&folder, "magic", b"GGUF")),
        EngineError::NotGguf { .. }
    ));
    assert!(matches!(
        load(&write(
            &folder,
            "huge",
            b"GGUF\x03\0\0\0\xff\xff\xff\xff\xff\xff\xff\x7f\xff\xff\xff\xff\xff\xff\xff\x7f"
        )),
        EngineError::NotGguf { .. }
    ));
    assert!(matches!(
        load(Path::new("a\0b")),
        EngineError::Read { .. } | EngineError::Path { .. }
    ));
}

#[test]
fn a_window_cut_short_anywhere_is_refused() {
    let folder = TempDir::new().unwrap();
    let whole = std::fs::read(cut(&smollm2(), 4, 6, false, folder.path())).unwrap();
    for length in [5, 24, 100, 1000, whole.len() / 3, whole.len() / 2, whole.len() - 1] {
        let error = load(&write(&folder, "short.gguf", &whole[..length]));
        assert!(
            matches!(error, EngineError::NotGguf { .. } | EngineError::Load { .. }),
            "{length} bytes: {error}"
        );
        assert!(
            !error.to_string().contains("did not say why"),
            "{length} bytes: {error}"
        );
    }
}

#[test]
fn damaged_metadata_is_refused_or_harmless() {
    let folder = TempDir::new().unwrap();
    let whole = std::fs::read(cut(&smollm2(), 4, 6, false, folder.path())).unwrap();
    // the number of tensors, of keys, and then every 97th byte of the first keys
    for at in (8..24).chain((24..1200).step_by(97)) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x5a;
        let path = write(&folder, "damaged.gguf", &bytes);
        let options = WindowOptions {
            context_length: 256,
            max_rows: 8,
            ..WindowOptions::default()
        };
        if let Err(error) = Window::load(backend(), &path, &options) {
            assert!(
                matches!(
                    error,
                    EngineError::NotGguf { .. } | EngineError::Load { .. } | EngineError::Context { .. }
                ),
                "byte {at}: {error}"
            );
        }
    }
}

#[test]
fn a_node_to_write_over_that_never_comes_is_named() {
    let folder = TempDir::new().unwrap();
    let whole = folder.path().join("whole.gguf");
    RandomModel::new(Architecture::Gemma2).write(&whole).unwrap();
    for (start, end) in [(2, 4), (6, 8)] {
        let last = end == 8;
        let mut bytes = std::fs::read(cut(&whole, start, end, last, folder.path())).unwrap();
        let node = b"inp_scaled";
        let at = bytes.windows(node.len()).position(|found| found == node).unwrap();
        bytes[at..at + node.len()].copy_from_slice(b"inp_nobody");
        let options = WindowOptions {
            context_length: 256,
            max_rows: 8,
            output: if last {
                Output::Logits { max_rows: 1 }
            } else {
                Output::Hidden
            },
            ..WindowOptions::default()
        };
        let mut window = Window::load(backend(), &write(&folder, "renamed.gguf", &bytes), &options).unwrap();
        let hidden = vec![0.5; window.embedding_length()];
        let (spans, mut out) = ([support::span(0, 0, 1)], Vec::new());
        let error = if last {
            window.run_logits(&spans, &hidden, &[0], &mut out).unwrap_err()
        } else {
            window.run(&spans, &hidden, &mut out).unwrap_err()
        };
        assert!(
            matches!(&error, EngineError::NoInput { tensor, got: 0, .. } if tensor == "inp_nobody"),
            "{error}"
        );
        assert_eq!((error.reason(), window.held(0)), ("UnsupportedArchitecture", 0));
    }
}

#[test]
fn options_out_of_range_are_named() {
    let folder = TempDir::new().unwrap();
    let path = cut(&smollm2(), 0, 1, false, folder.path());
    let fault = |options: WindowOptions| Window::load(backend(), &path, &options).unwrap_err().to_string();
    let plain = || WindowOptions {
        max_rows: 8,
        ..WindowOptions::default()
    };
    assert_eq!(
        fault(WindowOptions {
            context_length: 0,
            ..plain()
        }),
        "contextLength is 0: it must be between 1 and 268435456"
    );
    assert_eq!(
        fault(WindowOptions {
            sequences: 0,
            ..plain()
        }),
        "sequences is 0: it must be between 1 and 256"
    );
    assert_eq!(
        fault(WindowOptions {
            sequences: 257,
            ..plain()
        }),
        "sequences is 257: it must be between 1 and 256"
    );
    assert_eq!(
        fault(WindowOptions { max_rows: 0, ..plain() }),
        "maxRows is 0: it must be between 1 and 1048576"
    );
    assert!(
        fault(WindowOptions {
            context_length: 1 << 28,
            sequences: 8,
            ..plain()
        })
        .starts_with("contextLength × sequences is")
    );
    assert!(matches!(
        Window::load(backend(), &path, &WindowOptions { exact: true, ..plain() }),
        Err(EngineError::NotExact)
    ));
    assert!(matches!(Backend::init(Mode::Exact), Err(EngineError::NotExact)));
}

#[test]
fn middle_windows_have_no_vocabulary_and_no_embedding_to_speak_of() {
    let folder = TempDir::new().unwrap();
    let path = cut(&smollm2(), 2, 3, false, folder.path());
    assert!(matches!(
        Vocabulary::load(backend(), &path),
        Err(EngineError::NoVocabulary { .. })
    ));
    let window = Window::load(
        backend(),
        &path,
        &WindowOptions {
            context_length: 256,
            max_rows: 8,
            ..WindowOptions::default()
        },
    )
    .unwrap();
    assert!(window.vocabulary().is_none());
    assert_eq!(
        (window.layers(), window.embedding_length(), window.backend_name()),
        (1, 576, "CPU")
    );
    // one layer of 3 heads of 64, keys and values, 2 bytes each; llama.cpp tells it in hundredths of a MiB
    assert!(
        window.cache_bytes().abs_diff(256 * 2 * 3 * 64 * 2) < 6000,
        "{}",
        window.cache_bytes()
    );
}

#[test]
fn tokens_out_of_range_are_refused_everywhere() {
    let folder = TempDir::new().unwrap();
    let embedder = Embedder::open(&vocabulary_file(&smollm2(), folder.path()), 1.0).unwrap();
    let vocabulary = Vocabulary::load(backend(), &smollm2()).unwrap();
    let count = vocabulary.len() as i32;
    assert_eq!(embedder.len(), vocabulary.len());
    let options = WindowOptions {
        context_length: 256,
        max_rows: 8,
        output: Output::Logits { max_rows: 1 },
        ..WindowOptions::default()
    };
    let mut whole = Whole::load(backend(), &smollm2(), &options).unwrap();
    for token in [-1, count, i32::MAX, i32::MIN] {
        assert!(matches!(
            embedder.rows(&[0, token], &mut Vec::new()),
            Err(EngineError::Token { .. })
        ));
        let refused = whole.run(&[support::span(0, 0, 1)], &[token], &[], &mut Vec::new());
        assert!(matches!(refused, Err(EngineError::Token { .. })));
        assert_eq!(
            (
                vocabulary.piece(token, true),
                vocabulary.token_text(token),
                vocabulary.is_end(token)
            ),
            (vec![], None, false)
        );
    }
}

#[test]
fn the_embedder_names_what_is_wrong_with_its_file() {
    let folder = TempDir::new().unwrap();
    let bytes = std::fs::read(vocabulary_file(&smollm2(), folder.path())).unwrap();
    assert!(matches!(
        Embedder::open(&folder.path().join("missing"), 1.0),
        Err(EngineError::Read { .. })
    ));
    assert!(matches!(
        Embedder::open(&write(&folder, "text", b"GGUF no"), 1.0),
        Err(EngineError::NotGguf { .. })
    ));
    let short = Embedder::open(&write(&folder, "short", &bytes[..bytes.len() - 1]), 1.0).unwrap_err();
    assert!(matches!(short, EngineError::NotGguf { .. }), "{short}");
}
