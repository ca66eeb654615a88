//! A model's vocabulary: text to tokens and back, and what the file says beside it.

use crate::backend::Backend;
use crate::error::EngineError;
use crate::model::{Model, Weights};
use llama_cpp_sys_2 as sys;
use std::ffi::CStr;
use std::path::Path;
use std::sync::Arc;

/// A vocabulary. Cheap to clone; it keeps the model that it belongs to in memory.
#[derive(Clone, Debug)]
pub struct Vocabulary {
    model: Arc<Model>,
}

impl Vocabulary {
    /// Reads the vocabulary of a GGUF file, without its weights.
    ///
    /// # Errors
    /// [`EngineError::NoVocabulary`] for the files of middle windows, and every fault in the file.
    pub fn load(_backend: &Backend, path: &Path) -> Result<Vocabulary, EngineError> {
        let model = Model::load(path, Weights::VocabularyOnly)?;
        Vocabulary::of(model).ok_or_else(|| EngineError::NoVocabulary { path: path.to_owned() })
    }

    pub(crate) fn of(model: Arc<Model>) -> Option<Vocabulary> {
        model.has_vocabulary().then_some(Vocabulary { model })
    }

    pub(crate) fn as_ptr(&self) -> *const sys::llama_vocab {
        self.model.vocab()
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.model.vocabulary_length()
    }

    /// Whether there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn has(&self, token: i32) -> bool {
        usize::try_from(token).is_ok_and(|token| token < self.len())
    }

    /// Tokens of a text. `add_special` puts those around it that the model wants (beginning of sequence…),
    /// `parse_special` reads the text of control tokens as those tokens. Of a text of more than 2 GiB only the first
    /// 2 GiB are looked at: no context holds more.
    pub fn tokenize(&self, text: &str, add_special: bool, parse_special: bool) -> Vec<i32> {
        let text = first_bytes(text, i32::MAX as usize);
        let mut tokens = vec![0; text.len() / 3 + 8];
        loop {
            // SAFETY: text and buffer are as long as said.
            let count = unsafe {
                sys::llama_tokenize(
                    self.as_ptr(),
                    text.as_ptr().cast(),
                    text.len() as i32,
                    tokens.as_mut_ptr(),
                    tokens.len() as i32,
                    add_special,
                    parse_special,
                )
            };
            match usize::try_from(count) {
                Ok(count) => {
                    tokens.truncate(count);
                    return tokens;
                }
                // minus the number of tokens that there are
                Err(_) => tokens.resize(count.unsigned_abs() as usize, 0),
            }
        }
    }

    /// Bytes of a token, which may be a part of a character; none for ids out of range, and unless `special` is set,
    /// for control tokens.
    pub fn piece(&self, token: i32, special: bool) -> Vec<u8> {
        if !self.has(token) {
            return Vec::new();
        }
        let mut piece = vec![0; 32];
        loop {
            // SAFETY: the token is in range and the buffer as long as said.
            let length = unsafe {
                sys::llama_token_to_piece(
                    self.as_ptr(),
                    token,
                    piece.as_mut_ptr().cast(),
                    piece.len() as i32,
                    0,
                    special,
                )
            };
            match usize::try_from(length) {
                Ok(length) => {
                    piece.truncate(length);
                    return piece;
                }
                // minus the length that is needed
                Err(_) => piece.resize(length.unsigned_abs() as usize, 0),
            }
        }
    }

    /// Text of a token as the file has it, with its markers for spaces and bytes; none for ids out of range.
    pub fn token_text(&self, token: i32) -> Option<String> {
        self.has(token).then(|| {
            // SAFETY: the token is in range; the string lives as long as the model.
            let text = unsafe { CStr::from_ptr(sys::llama_vocab_get_text(self.as_ptr(), token)) };
            text.to_string_lossy().into_owned()
        })
    }

    /// Whether a token ends the text.
    pub fn is_end(&self, token: i32) -> bool {
        // SAFETY: the token is in range.
        self.has(token) && unsafe { sys::llama_vocab_is_eog(self.as_ptr(), token) }
    }

    /// All tokens that end the text, in order.
    pub fn end_tokens(&self) -> Vec<i32> {
        (0..self.len() as i32).filter(|&token| self.is_end(token)).collect()
    }

    /// Token that begins a sequence.
    pub fn bos(&self) -> Option<i32> {
        // SAFETY: the vocabulary is live.
        Some(unsafe { sys::llama_vocab_bos(self.as_ptr()) }).filter(|&token| self.has(token))
    }

    /// Token that ends a sequence.
    pub fn eos(&self) -> Option<i32> {
        // SAFETY: the vocabulary is live.
        Some(unsafe { sys::llama_vocab_eos(self.as_ptr()) }).filter(|&token| self.has(token))
    }

    /// Whether the model wants [`Vocabulary::bos`] at the beginning.
    pub fn adds_bos(&self) -> bool {
        // SAFETY: the vocabulary is live.
        unsafe { sys::llama_vocab_get_add_bos(self.as_ptr()) }
    }

    /// Tokens that the model's makers want never to be sampled.
    pub fn suppressed(&self) -> &[i32] {
        let mut count = 0;
        // SAFETY: the array lives as long as the model and has `count` items.
        unsafe {
            let tokens = sys::llama_vocab_get_suppress_tokens(self.as_ptr(), &raw mut count);
            if tokens.is_null() || count <= 0 {
                &[]
            } else {
                std::slice::from_raw_parts(tokens, count as usize)
            }
        }
    }

    /// The chat template, in Jinja, if the file has one.
    pub fn chat_template(&self) -> Option<String> {
        self.metadata("tokenizer.chat_template")
    }

    /// A value of the file's metadata, as text.
    pub fn metadata(&self, key: &str) -> Option<String> {
        self.model.metadata(key)
    }
}

/// The longest beginning of a text that takes at most `limit` bytes.
fn first_bytes(text: &str, limit: usize) -> &str {
    let mut end = limit.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
