//! Grammars: which tokens may follow the text so far.

use super::SamplerError;
use super::ranking::Candidate;
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
#[allow(unsafe_code)]
unsafe impl Send for TokenGrammar {}

#[allow(unsafe_code)]
impl TokenGrammar {
    pub(crate) fn new(grammar: &Grammar, vocabulary: &Vocabulary) -> Result<TokenGrammar, SamplerError> {
        let text = match grammar {
            Grammar::Gbnf(text) => text.clone(),
            Grammar::JsonSchema(schema) => {
                llama_cpp_2::json_schema_to_grammar(schema).map_err(|error| SamplerError::Schema {
                    detail: error.to_string(),
                })?
            }
        };
        let malformed = |detail: String| SamplerError::Grammar { detail };
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

#[allow(unsafe_code)]
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
        if next.is_empty()
            || unsafe { sys::llama_rs_sampler_accept(self.pointer.as_ptr(), token) } != sys::LLAMA_RS_STATUS_OK
        {
            return Err(SamplerError::OffGrammar { token });
        }
        Ok(())
    }
}

#[allow(unsafe_code)]
impl Drop for TokenGrammar {
    fn drop(&mut self) {
        // SAFETY: made in `new` and freed once, before the vocabulary it points into.
        unsafe { sys::llama_sampler_free(self.pointer.as_ptr()) }
    }
}
