//! What the API needs of a vocabulary: text to tokens, tokens to bytes, and the model's chat template.

use kvasir_wire::frame::Grammar;

/// A model's vocabulary at rank 0.
pub trait Tokenizer: Send + Sync + 'static {
    /// Tokens of `text`. `add_special` adds what the model wants around a text (beginning of sequence, say);
    /// `parse_special` reads special tokens written out in the text as such.
    fn tokenize(&self, text: &str, add_special: bool, parse_special: bool) -> Vec<i32>;
    /// Bytes that `token` adds to a text; none for special tokens and for ids outside the vocabulary.
    fn piece(&self, token: i32) -> Vec<u8>;
    /// Bytes of `token`, special tokens written out.
    fn special_piece(&self, token: i32) -> Vec<u8>;
    /// Whether `token` ends a text.
    fn is_end(&self, token: i32) -> bool;
    /// All tokens that end a text.
    fn end_tokens(&self) -> Vec<i32>;
    /// How many tokens there are: ids are `0..token_count`.
    fn token_count(&self) -> usize;
    /// Text of the token that begins a sequence; empty where the model has none.
    fn bos_token(&self) -> String;
    /// Text of the token that ends a sequence; empty where the model has none.
    fn eos_token(&self) -> String;
    /// The model's own chat template.
    fn chat_template(&self) -> Option<String>;
    /// Bytes of the longest token, special ones written out: no text of more bytes is one token.
    fn longest_token(&self) -> usize {
        let tokens = 0..self.token_count() as i32;
        tokens.map(|token| self.special_piece(token).len()).max().unwrap_or(0)
    }
    /// Whether texts can be held to `grammar`; the text says what is wrong with it.
    fn check_grammar(&self, grammar: &Grammar) -> Result<(), String>;
}

/// Tokens of a rendered prompt, with one beginning-of-sequence token at most: a template often writes its own.
pub(super) fn tokenize_prompt(tokenizer: &dyn Tokenizer, text: &str) -> Vec<i32> {
    let bos = tokenizer.bos_token();
    let add_special = bos.is_empty() || !text.starts_with(&bos);
    tokenizer.tokenize(text, add_special, true)
}
