//! The whole model in one process, as stock llama.cpp runs it.

use std::{path::Path, time::Instant};

use kvasir_engine::{Backend, EngineError, Span, Whole, WindowOptions};

use super::stats::Run;

/// The one slot that a bench uses.
const SLOT: u32 = 0;

/// A loaded whole model.
#[derive(Debug)]
pub(super) struct WholeModel {
    whole: Whole,
    max_rows: u32,
    logits: Vec<f32>,
}

impl WholeModel {
    /// Loads it; `options` are those of a last rank.
    pub(super) fn load(backend: &Backend, path: &Path, options: &WindowOptions) -> Result<Self, EngineError> {
        let whole = Whole::load(backend, path, options)?;
        Ok(WholeModel {
            whole,
            max_rows: options.max_rows,
            logits: Vec::new(),
        })
    }

    /// Text as tokens.
    pub(super) fn tokenize(&self, text: &str) -> Option<Vec<i32>> {
        self.whole
            .vocabulary()
            .map(|vocabulary| vocabulary.tokenize(text, true, false))
    }

    /// Computes the prompt and `tokens` likeliest tokens after it.
    pub(super) fn run(&mut self, prompt: &[i32], tokens: u32) -> Result<Run, EngineError> {
        self.whole.clear(SLOT);
        let begun = Instant::now();
        let mut position = 0;
        for chunk in prompt.chunks(self.max_rows as usize) {
            let last = position as usize + chunk.len() == prompt.len();
            let want = if last { &[chunk.len() as u32 - 1][..] } else { &[] };
            self.step(&mut position, chunk, want)?;
        }
        let mut token = likeliest(&self.logits);
        let prefilled = Instant::now();
        for _ in 1..tokens {
            self.step(&mut position, &[token], &[0])?;
            token = likeliest(&self.logits);
        }
        Ok(Run::new(prompt.len(), prefilled - begun, tokens, prefilled.elapsed()))
    }

    fn step(&mut self, position: &mut u32, tokens: &[i32], want: &[u32]) -> Result<(), EngineError> {
        let span = Span {
            slot: SLOT,
            position: *position,
            count: tokens.len() as u32,
        };
        *position += span.count;
        self.whole.run(&[span], tokens, want, &mut self.logits)
    }
}

fn likeliest(logits: &[f32]) -> i32 {
    let best = logits.iter().enumerate().max_by(|(_, a), (_, b)| a.total_cmp(b));
    best.map_or(0, |(token, _)| token as i32)
}
