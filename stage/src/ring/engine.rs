//! The real engine of a rank: a window on llama.cpp, at rank 0 the embedding's rows, at the last rank the samplers.

use std::path::{Path, PathBuf};

use kvasir_engine::sampler::Sampler;
use kvasir_engine::{Backend, Embedder, EngineError, Vocabulary, Window, WindowOptions};
use kvasir_wire::frame::{Sampled, Sampling};

use super::compute::{Compute, ComputeError, Sample, SlotSpan};
use super::worker::failed;

/// A loaded window and what its place in the ring adds.
#[derive(Debug)]
pub struct Loaded {
    window: Window,
    embedder: Option<Embedder>,
    vocabulary: Option<Vocabulary>,
    path: PathBuf,
}

/// Rank 0's embedding: the file that holds `token_embd.weight`, and what its rows are multiplied by.
#[derive(Clone, Copy, Debug)]
pub struct Embedding<'a> {
    /// vocabulary file, or the window itself in a ring of one
    pub file: &'a Path,
    /// Gemma multiplies by √embedding length
    pub scale: f32,
}

impl Loaded {
    /// Loads a window, and at rank 0 opens the embedding.
    pub fn load(
        backend: &Backend,
        window: &Path,
        options: &WindowOptions,
        embedding: Option<Embedding<'_>>,
    ) -> Result<Self, EngineError> {
        let embedder = embedding.map(|e| Embedder::open(e.file, e.scale)).transpose()?;
        let path = window.to_owned();
        let window = Window::load(backend, window, options)?;
        let vocabulary = window.vocabulary();
        Ok(Loaded {
            window,
            embedder,
            vocabulary,
            path,
        })
    }

    fn failed(&self, source: EngineError) -> ComputeError {
        let path = self.path.clone();
        ComputeError(Box::new(WindowFailed { path, source }))
    }

    /// Name of the device that computes.
    pub fn backend_name(&self) -> &'static str {
        self.window.backend_name()
    }
}

impl From<EngineError> for ComputeError {
    fn from(error: EngineError) -> Self {
        ComputeError(Box::new(error))
    }
}

/// The window that could not be run.
#[derive(Debug, thiserror::Error)]
#[error("{} could not be computed", path.display())]
struct WindowFailed {
    path: PathBuf,
    #[source]
    source: EngineError,
}

/// An engine was asked for what its place in the ring doesn't have.
#[derive(Debug, thiserror::Error)]
#[error("this rank has no embedding: only rank 0 embeds")]
struct NoEmbedding;

impl Compute for Loaded {
    fn embedding_length(&self) -> usize {
        self.window.embedding_length()
    }

    fn embed(&mut self, tokens: &[i32], out: &mut Vec<f32>) -> Result<(), ComputeError> {
        let embedder = self
            .embedder
            .as_ref()
            .ok_or_else(|| ComputeError(Box::new(NoEmbedding)))?;
        Ok(embedder.rows(tokens, out)?)
    }

    fn run(&mut self, spans: &[SlotSpan], hidden: &[f32], out: &mut Vec<f32>) -> Result<(), ComputeError> {
        self.window.run(spans, hidden, out).map_err(|error| self.failed(error))
    }

    fn run_logits(
        &mut self,
        spans: &[SlotSpan],
        hidden: &[f32],
        want: &[u32],
        out: &mut Vec<f32>,
    ) -> Result<(), ComputeError> {
        self.window
            .run_logits(spans, hidden, want, out)
            .map_err(|error| self.failed(error))
    }

    fn sampler(&mut self, sampling: &Sampling, prompt: &[i32]) -> Result<Box<dyn Sample>, String> {
        let vocabulary = self
            .vocabulary
            .as_ref()
            .ok_or("this rank has no vocabulary: only the last rank samples")?;
        let sampler = Sampler::new(sampling, prompt, vocabulary).map_err(|e| kvasir_process::chain(&e))?;
        Ok(Box::new(OneSequence(sampler)))
    }

    fn clear(&mut self, slot: u32) {
        self.window.clear(slot);
    }

    fn copy(&mut self, from: u32, to: u32, length: u32) -> Result<(), ComputeError> {
        Ok(self.window.copy(from, to, length)?)
    }

    fn truncate(&mut self, slot: u32, length: u32) -> Result<(), ComputeError> {
        Ok(self.window.truncate(slot, length)?)
    }
}

/// One sequence's sampler.
struct OneSequence(Sampler);

impl Sample for OneSequence {
    fn sample(&mut self, logits: &mut [f32], position: u32) -> Sampled {
        match self.0.sample(logits, position) {
            Ok(picked) => Sampled {
                sequence: 0,
                position,
                token: picked.token,
                logprob: picked.logprob,
                top: picked.top,
                logits: bytes::Bytes::new(),
                error: String::new(),
            },
            Err(e) => failed(position, kvasir_process::chain(&e)),
        }
    }
}
