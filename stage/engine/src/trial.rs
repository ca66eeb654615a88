//! Whether llama.cpp could run a file, asked while the file has no weights yet: its keys, its shapes and the graphs made of
//! them are all there without.

use crate::backend::Backend;
use crate::context::Context;
use crate::error::EngineError;
use crate::model::{Model, Weights};
use crate::vocabulary::Vocabulary;
use crate::window::{Output, WindowOptions};
use std::path::Path;

/// What a file is to give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gives {
    /// hidden states: the window of a rank that isn't the last one
    Hidden,
    /// logits: the last window, or a whole model
    Logits,
    /// tokens: the vocabulary of rank 0
    Tokens,
}

/// Loads the outline of a file, which is as long as the file and holds nothing behind its head, and builds the graphs that
/// it would run. Memory is taken for the head, and for none of the weights.
///
/// llama.cpp ends the process for some of what can be wrong with a file: call it where that does no harm.
///
/// # Errors
/// What llama.cpp says against the file.
pub fn try_outline(backend: &Backend, path: &Path, gives: Gives) -> Result<(), EngineError> {
    let output = match gives {
        Gives::Tokens => {
            exercise(&Vocabulary::load(backend, path)?);
            return Ok(());
        }
        Gives::Hidden => Output::Hidden,
        Gives::Logits => Output::Logits { max_rows: 1 },
    };
    let options = WindowOptions {
        context_length: 256,
        max_rows: 32,
        threads: 1,
        output,
        ..WindowOptions::default()
    };
    Context::new(Model::load(path, Weights::Outline)?, &options).map(drop)
}

/// Has a vocabulary read every kind of character and write every token. Of a vocabulary that lacks something llama.cpp
/// throws where no text needs it until somebody's does, and that would end a ring.
fn exercise(vocabulary: &Vocabulary) {
    let one_of_each = |all: std::ops::Range<u32>, step: usize| all.step_by(step).filter_map(char::from_u32);
    let text: String = one_of_each(0..0x800, 1)
        .chain(one_of_each(0x800..0x1_0000, 0x3f1))
        .chain(one_of_each(0x1_0000..0x11_0000, 0x3_f0f1))
        .collect();
    for text in [text.as_str(), "A few words, 12.5 of them.\n\tif x == 'y':\n"] {
        vocabulary.tokenize(text, true, true);
    }
    for token in 0..i32::try_from(vocabulary.len()).unwrap_or(i32::MAX) {
        vocabulary.piece(token, true);
    }
}
