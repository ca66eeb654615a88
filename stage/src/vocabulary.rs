//! The API's tokenizer is the engine's vocabulary.

use kvasir_engine::{Vocabulary, sampler};
use kvasir_wire::frame::Grammar;

use crate::api::Tokenizer;

impl Tokenizer for Vocabulary {
    fn tokenize(&self, text: &str, add_special: bool, parse_special: bool) -> Vec<i32> {
        Vocabulary::tokenize(self, text, add_special, parse_special)
    }

    fn piece(&self, token: i32) -> Vec<u8> {
        Vocabulary::piece(self, token, false)
    }

    fn special_piece(&self, token: i32) -> Vec<u8> {
        Vocabulary::piece(self, token, true)
    }

    fn is_end(&self, token: i32) -> bool {
        Vocabulary::is_end(self, token)
    }

    fn end_tokens(&self) -> Vec<i32> {
        Vocabulary::end_tokens(self)
    }

    fn token_count(&self) -> usize {
        self.len()
    }

    fn bos_token(&self) -> String {
        self.bos().and_then(|t| self.token_text(t)).unwrap_or_default()
    }

    fn eos_token(&self) -> String {
        self.eos().and_then(|t| self.token_text(t)).unwrap_or_default()
    }

    fn chat_template(&self) -> Option<String> {
        Vocabulary::chat_template(self)
    }

    fn check_grammar(&self, grammar: &Grammar) -> Result<(), String> {
        sampler::check_grammar(grammar, self).map_err(|e| kvasir_process::chain(&e))
    }
}
