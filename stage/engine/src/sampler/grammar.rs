//! Grammars: which tokens may follow the text so far.

use super::SamplerError;
use super::ranking::Candidate;
use super::{gbnf, schema};
use crate::{Vocabulary, log};
use kvasir_wire::frame::Grammar;
use llama_cpp_sys_2 as sys;
use std::ffi::CString;
use std::ptr::NonNull;

/// Root symbol of every grammar.
const ROOT: &std::ffi::CStr = c"root";

/// Something that forbids tokens, depending on the text so far.
pub(crate) trait Constraint: std::fmt::Debug + Send {
    /// Keeps the candidates that may come next, in their order.
    fn retain(&mut self, candidates: &mut Vec<Candidate>);

    /// Puts a token into the text.
    fn accept(&mut self, token: i32) -> Result<(), SamplerError>;
}

/// A grammar in llama.cpp.
#[derive(Debug)]
pub(crate) struct TokenGrammar {
    pointer: NonNull<sys::llama_sampler>,
    /// keeps the model in memory that the grammar points into
    _vocabulary: Vocabulary,
    data: Vec<sys::llama_token_data>,
}

// SAFETY: the grammar is used by one thread at a time (`&mut self`), and its vocabulary is never changed.
unsafe impl Send for TokenGrammar {}

impl TokenGrammar {
    pub(crate) fn new(grammar: &Grammar, vocabulary: &Vocabulary) -> Result<TokenGrammar, SamplerError> {
        on_big_stack(|| match grammar {
            Grammar::Gbnf(text) => TokenGrammar::of_text(text, vocabulary),
            Grammar::JsonSchema(schema) => {
                TokenGrammar::of_text(&of_schema(schema)?, vocabulary).map_err(|error| SamplerError::Schema {
                    detail: error.to_string(),
                })
            }
        })
    }

    fn of_text(text: &str, vocabulary: &Vocabulary) -> Result<TokenGrammar, SamplerError> {
        let malformed = |detail: String| SamplerError::Grammar { detail };
        gbnf::check(text, &|token| vocabulary.tokenize(token, false, true).len() == 1).map_err(malformed)?;
        let text = CString::new(text).map_err(|_| malformed("it holds a zero byte".to_owned()))?;
        // SAFETY: both strings are zero-terminated, and the wrapper catches llama.cpp's exceptions.
        let (pointer, said) = log::listen(|| unsafe {
            sys::llama_rs_sampler_init_grammar(vocabulary.as_ptr(), text.as_ptr(), ROOT.as_ptr())
        });
        let pointer = NonNull::new(pointer).ok_or_else(|| malformed(said.why()))?;
        Ok(TokenGrammar {
            pointer,
            _vocabulary: vocabulary.clone(),
            data: Vec::new(),
        })
    }
}

/// The grammar of a JSON schema.
fn of_schema(schema: &str) -> Result<String, SamplerError> {
    let malformed = |detail: String| SamplerError::Schema { detail };
    // serde_json also bounds the nesting, along which llama.cpp recurses
    let mut parsed: serde_json::Value = serde_json::from_str(schema).map_err(|error| malformed(error.to_string()))?;
    let fault = schema::fault(&parsed);
    if let Some(unmet) = schema::unmet(&parsed) {
        return Err(malformed(unmet));
    }
    schema::translate_patterns(&mut parsed);
    llama_cpp_2::json_schema_to_grammar(&parsed.to_string()).map_err(|_| {
        let other = "it asks for something that no grammar can express";
        malformed(fault.unwrap_or_else(|| other.to_owned()))
    })
}

/// Runs `make` with room for llama.cpp's recursion along the rules of a grammar, which callers' threads don't have.
fn on_big_stack<T: Send>(make: impl FnOnce() -> Result<T, SamplerError> + Send) -> Result<T, SamplerError> {
    const STACK: usize = 64 << 20;
    let failed = |detail: &str| SamplerError::Grammar {
        detail: detail.to_owned(),
    };
    std::thread::scope(|scope| {
        std::thread::Builder::new()
            .stack_size(STACK)
            .spawn_scoped(scope, make)
            .map_err(|error| failed(&format!("no thread to read it: {error}")))?
            .join()
            .unwrap_or_else(|_| Err(failed("reading it failed")))
    })
}

impl Constraint for TokenGrammar {
    fn retain(&mut self, candidates: &mut Vec<Candidate>) {
        self.data.clear();
        self.data.extend(candidates.iter().map(|c| sys::llama_token_data {
            id: c.token,
            logit: c.logit,
            p: 0.0,
        }));
        let mut array = sys::llama_token_data_array {
            data: self.data.as_mut_ptr(),
            size: self.data.len(),
            selected: -1,
            sorted: false,
        };
        // SAFETY: the array describes `data`; the grammar sampler changes logits in place and nothing else.
        unsafe { sys::llama_sampler_apply(self.pointer.as_ptr(), &raw mut array) };
        let mut allowed = self.data.iter().map(|data| data.logit > f32::NEG_INFINITY);
        candidates.retain(|_| allowed.next().unwrap_or(false));
    }

    fn accept(&mut self, token: i32) -> Result<(), SamplerError> {
        // llama.cpp aborts on an end token that the grammar forbids, and is of no more use after any other such token
        let mut next = vec![Candidate { token, logit: 0.0 }];
        self.retain(&mut next);
        // SAFETY: the token is in range; the wrapper catches llama.cpp's exceptions.
        let accept = || unsafe { sys::llama_rs_sampler_accept(self.pointer.as_ptr(), token) };
        if next.is_empty() || accept() != sys::LLAMA_RS_STATUS_OK {
            return Err(SamplerError::OffGrammar { token });
        }
        Ok(())
    }
}

impl Drop for TokenGrammar {
    fn drop(&mut self) {
        // SAFETY: made in `new` and freed once, before the vocabulary it points into.
        unsafe { sys::llama_sampler_free(self.pointer.as_ptr()) }
    }
}
