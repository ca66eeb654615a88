//! One window of a model: hidden states in, hidden states or logits out.

use crate::arrays::Input;
use crate::backend::{Backend, Mode};
use crate::context::Context;
use crate::error::EngineError;
use crate::model::{Model, Weights};
use crate::vocabulary::Vocabulary;
use std::path::Path;

/// Type of the cached keys and values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheType {
    /// 2 bytes a value
    #[default]
    F16,
    /// 34 bytes for 32 values
    Q8_0,
}

/// What a window gives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Output {
    /// the residual stream after its last layer, of every row
    #[default]
    Hidden,
    /// logits, of the rows that are wanted; the window holds the head
    Logits {
        /// rows that may be wanted of one batch
        max_rows: u32,
    },
}

/// How to load a window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WindowOptions {
    /// positions that one sequence may take
    pub context_length: u32,
    /// slots: sequences held at once
    pub sequences: u32,
    /// rows that one batch may have
    pub max_rows: u32,
    /// threads that compute; 0 takes one for each physical core
    pub threads: u32,
    /// type of the cached keys and values
    pub cache_type: CacheType,
    /// keep all positions also in sliding-window layers, which otherwise keep little more than their window: it costs
    /// memory, and lets [`Window::truncate`] and [`Window::copy`] go back to any position. Exact windows always do
    pub whole_cache: bool,
    /// what the window gives
    pub output: Output,
    /// a row's result does not depend on what else is in its batch, to the bit; the backend must be in
    /// [`Mode::Exact`]
    pub exact: bool,
}

impl Default for WindowOptions {
    fn default() -> Self {
        WindowOptions {
            context_length: 4096,
            sequences: 1,
            max_rows: 512,
            threads: 0,
            cache_type: CacheType::F16,
            whole_cache: false,
            output: Output::Hidden,
            exact: false,
        }
    }
}

/// Rows of one slot: positions `position..position + count`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// llama.cpp's sequence id, from 0
    pub slot: u32,
    /// first position: as many as the slot holds
    pub position: u32,
    /// rows, at least 1
    pub count: u32,
}

/// A contiguous range of a model's layers, loaded from a mini-GGUF, with the cache of its sequences.
///
/// Beside the window's own bytes and its cache it takes at most 64 MiB: intermediate results of a microbatch, whose
/// rows get fewer as the model gets wider, and in the last window the vocabulary and a row of logits per sequence. Each
/// position of each sequence takes another 52 bytes of bookkeeping. An exact window also writes down attention's scores
/// of all heads: 32 rows × heads × context length × 4 bytes at least.
#[derive(Debug)]
pub struct Window {
    context: Context,
}

impl Window {
    /// Loads a window.
    ///
    /// # Errors
    /// Every fault in the file or the options, named.
    pub fn load(backend: &Backend, path: &Path, options: &WindowOptions) -> Result<Window, EngineError> {
        Ok(Window {
            context: load_context(backend, path, options)?,
        })
    }

    /// Values of one row of hidden states.
    pub fn embedding_length(&self) -> usize {
        self.context.model().embedding_length()
    }

    /// Layers that it computes.
    pub fn layers(&self) -> u32 {
        self.context.model().layers()
    }

    /// The model's vocabulary; none in middle windows.
    pub fn vocabulary(&self) -> Option<Vocabulary> {
        Vocabulary::of(self.context.model().clone())
    }

    /// Runs a batch: rows × embedding length values in (row-major, spans one after the other), as many out.
    ///
    /// Spans of different lengths and in any order of slots are fine; those of one length run together. All ranks
    /// split a batch alike.
    ///
    /// # Errors
    /// Names the precondition that does not hold; nothing was computed then. After [`EngineError::Decode`] and
    /// [`EngineError::OutputNotFinite`] the batch's slots hold what they did before, or nothing: ask [`Window::held`].
    pub fn run(&mut self, spans: &[Span], hidden: &[f32], out: &mut Vec<f32>) -> Result<(), EngineError> {
        self.context.run_hidden(spans, Input::Hidden(hidden), out)
    }

    /// Runs a batch through the last window: the logits of the wanted rows come out, in the order of `want`, which
    /// lists rows of the batch.
    ///
    /// # Errors
    /// As for [`Window::run`].
    pub fn run_logits(
        &mut self,
        spans: &[Span],
        hidden: &[f32],
        want: &[u32],
        out: &mut Vec<f32>,
    ) -> Result<(), EngineError> {
        self.context.run_logits(spans, Input::Hidden(hidden), want, out)
    }

    /// Positions that a slot holds; 0 for slots out of range.
    pub fn held(&self, slot: u32) -> u32 {
        self.context.held(slot)
    }

    /// Forgets all that a slot holds.
    pub fn clear(&mut self, slot: u32) {
        self.context.clear(slot);
    }

    /// Makes slot `to` a copy of slot `from`'s first `length` positions; what `to` held is forgotten.
    ///
    /// # Errors
    /// As for [`Window::truncate`]; nothing was changed then.
    pub fn copy(&mut self, from: u32, to: u32, length: u32) -> Result<(), EngineError> {
        self.context.copy(from, to, length)
    }

    /// Keeps a slot's first `length` positions.
    ///
    /// # Errors
    /// [`EngineError::Truncate`] where a part of the cache can't go back: recurrent state to any length but 0, and
    /// sliding-window layers to before what they keep.
    pub fn truncate(&mut self, slot: u32, length: u32) -> Result<(), EngineError> {
        self.context.truncate(slot, length)
    }

    /// Bytes that the cache of all slots takes.
    pub fn cache_bytes(&self) -> u64 {
        self.context.footprint().cache
    }

    /// Bytes of weights, cache and buffers together.
    pub fn memory_bytes(&self) -> u64 {
        let footprint = self.context.footprint();
        self.context.model().weight_bytes() + footprint.cache + footprint.compute + footprint.output
    }

    /// Device that computes.
    pub fn backend_name(&self) -> &'static str {
        "CPU"
    }
}

pub(crate) fn load_context(backend: &Backend, path: &Path, options: &WindowOptions) -> Result<Context, EngineError> {
    if options.exact && backend.mode() == Mode::Fast {
        return Err(EngineError::NotExact);
    }
    let weights = if options.exact {
        Weights::Plain
    } else {
        Weights::Repacked
    };
    Context::new(Model::load(path, weights)?, options)
}
