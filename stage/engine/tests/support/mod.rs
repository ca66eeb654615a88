//! Models from the cache, windows cut out of them, and chains of windows to compare with the whole.
#![allow(clippy::unwrap_used, reason = "tests end at the first surprise")]
#![allow(dead_code, unreachable_pub, reason = "each test file uses its part of this one")]

use kvasir_engine::{Backend, Embedder, Output, Span, Vocabulary, Whole, Window, WindowOptions};
use kvasir_gguf::{Model, WindowRole};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A model cut at `cuts` into windows, run as one after the other.
pub struct Chain {
    pub embedder: Embedder,
    pub windows: Vec<Window>,
    _folder: TempDir,
}

/// Cuts one window into `folder`.
pub fn cut(model: &Path, start: u32, end: u32, last: bool, folder: &Path) -> PathBuf {
    let parsed = Model::open(model).unwrap();
    let mini = kvasir_gguf::window::window(
        &parsed,
        &WindowRole {
            layers: start..end,
            last,
        },
    )
    .unwrap();
    let path = folder.join(format!("{start}-{end}.gguf"));
    kvasir_gguf::copy::write_from_file(model, &mini, &path).unwrap();
    path
}

/// The vocabulary file of rank 0.
pub fn vocabulary_file(model: &Path, folder: &Path) -> PathBuf {
    let parsed = Model::open(model).unwrap();
    let mini = kvasir_gguf::window::vocabulary(&parsed, true).unwrap();
    let path = folder.join("vocabulary.gguf");
    kvasir_gguf::copy::write_from_file(model, &mini, &path).unwrap();
    path
}

impl Chain {
    pub fn load(backend: &Backend, path: &Path, cuts: &[u32], options: &WindowOptions) -> Chain {
        let folder = TempDir::new().unwrap();
        let parsed = Model::open(path).unwrap();
        let scale = kvasir_gguf::arch::input_scale(&parsed).unwrap();
        let embedder = Embedder::open(&vocabulary_file(path, folder.path()), scale).unwrap();
        let bounds: Vec<u32> = [0].iter().chain(cuts).copied().chain([parsed.layers()]).collect();
        let windows = bounds
            .windows(2)
            .map(|pair| {
                let last = pair[1] == parsed.layers();
                let file = cut(path, pair[0], pair[1], last, folder.path());
                let output = if last { options.output } else { Output::Hidden };
                Window::load(
                    backend,
                    &file,
                    &WindowOptions {
                        output,
                        ..options.clone()
                    },
                )
                .unwrap()
            })
            .collect();
        Chain {
            embedder,
            windows,
            _folder: folder,
        }
    }

    pub fn logits(&mut self, spans: &[Span], tokens: &[i32], want: &[u32]) -> Vec<f32> {
        let (mut hidden, mut next) = (Vec::new(), Vec::new());
        self.embedder.rows(tokens, &mut hidden).unwrap();
        let (last, before) = self.windows.split_last_mut().unwrap();
        for window in before {
            window.run(spans, &hidden, &mut next).unwrap();
            std::mem::swap(&mut hidden, &mut next);
        }
        last.run_logits(spans, &hidden, want, &mut next).unwrap();
        next
    }
}

/// Logits of the whole model.
pub fn logits(whole: &mut Whole, spans: &[Span], tokens: &[i32], want: &[u32]) -> Vec<f32> {
    let mut out = Vec::new();
    whole.run(spans, tokens, want, &mut out).unwrap();
    out
}

pub fn span(slot: u32, position: u32, count: u32) -> Span {
    Span { slot, position, count }
}

/// Ordinary text, as many tokens as asked for.
pub fn tokens(vocabulary: &Vocabulary, count: usize) -> Vec<i32> {
    let text = include_str!("text.txt");
    let tokens = vocabulary.tokenize(text, true, false);
    assert!(tokens.len() >= count, "the text has only {} tokens", tokens.len());
    tokens[..count].to_vec()
}

/// Bits, so that a comparison is exact and a failure names the first difference.
pub fn assert_same_bits(left: &[f32], right: &[f32], what: &str) {
    assert_eq!(left.len(), right.len(), "{what}");
    let differ = left.iter().zip(right).position(|(a, b)| a.to_bits() != b.to_bits());
    if let Some(at) = differ {
        panic!(
            "{what}: value {at} of {} differs: {} and {}",
            left.len(),
            left[at],
            right[at]
        );
    }
}
