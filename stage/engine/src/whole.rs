//! The whole model by token input, as llama.cpp runs it: what windows are compared with.

use crate::arrays::Input;
use crate::backend::Backend;
use crate::context::Context;
use crate::error::EngineError;
use crate::vocabulary::Vocabulary;
use crate::window::{Output, Span, WindowOptions, load_context};
use std::path::Path;

/// A whole model. Its batches are split exactly as those of [`crate::Window`], so that results compare to the bit.
#[derive(Debug)]
pub struct Whole {
    context: Context,
}

impl Whole {
    /// Loads a model; `options.output` must be [`Output::Logits`].
    ///
    /// # Errors
    /// Every fault in the file or the options, named.
    pub fn load(backend: &Backend, path: &Path, options: &WindowOptions) -> Result<Whole, EngineError> {
        if options.output == Output::Hidden {
            return Err(EngineError::Output { gives: "hidden states" });
        }
        Ok(Whole {
            context: load_context(backend, path, options)?,
        })
    }

    /// Runs a batch of tokens (spans one after the other): the logits of the wanted rows come out.
    ///
    /// # Errors
    /// As for [`crate::Window::run_logits`].
    pub fn run(&mut self, spans: &[Span], tokens: &[i32], want: &[u32], out: &mut Vec<f32>) -> Result<(), EngineError> {
        self.context.run_logits(spans, Input::Tokens(tokens), want, out)
    }

    /// The model's vocabulary.
    pub fn vocabulary(&self) -> Option<Vocabulary> {
        Vocabulary::of(self.context.model().clone())
    }

    /// Forgets all that a slot holds.
    pub fn clear(&mut self, slot: u32) {
        self.context.clear(slot);
    }
}
