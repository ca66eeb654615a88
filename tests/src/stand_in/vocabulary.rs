//! A vocabulary of the real one's size: a token for each byte, and merges of merges, so that the prefix is as long as that
//! of a real file.

use std::collections::HashSet;

use crate::gguf::Value;
use crate::random_model::CHAT_TEMPLATE;

/// Tokens.
pub(super) const TOKENS: u64 = 248_320;
const SPECIALS: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];
/// Tokens behind all others that no text has: the vocabulary is rounded up to whole blocks.
const UNUSED: usize = 240;
/// Merges that begin with one token.
const MERGES_EACH: usize = 12;
/// A merge ends with one of so many first tokens.
const ENDINGS: usize = 1024;

// llama.cpp's token types
const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const UNUSED_TYPE: i32 = 5;

pub(super) fn metadata() -> Vec<(String, Value)> {
    let merged = TOKENS as usize - SPECIALS.len() - UNUSED;
    let (mut tokens, merges) = grown(merged);
    let specials = SPECIALS.iter().map(|&special| special.to_owned());
    let unused = (0..UNUSED).map(|number| format!("[PAD{}]", merged + SPECIALS.len() + number));
    tokens.extend(specials.chain(unused));
    let mut types = vec![NORMAL; tokens.len()];
    types[merged..merged + SPECIALS.len()].fill(CONTROL);
    types[merged + SPECIALS.len()..].fill(UNUSED_TYPE);

    let key = |name: &str| format!("tokenizer.{name}");
    let id = |special: usize| Value::U32((merged + special) as u32);
    vec![
        (key("ggml.model"), Value::String("gpt2".to_owned())),
        (key("ggml.pre"), Value::String("qwen35".to_owned())),
        (key("ggml.tokens"), Value::Strings(tokens)),
        (key("ggml.token_type"), Value::I32s(types)),
        (key("ggml.merges"), Value::Strings(merges)),
        (key("ggml.padding_token_id"), id(0)),
        (key("ggml.eos_token_id"), id(2)),
        (key("ggml.add_bos_token"), Value::Bool(false)),
        (key("chat_template"), Value::String(CHAT_TEMPLATE.to_owned())),
    ]
}

/// So many tokens, and the merges that make all but the first 256 of them, each out of two that come before it.
fn grown(count: usize) -> (Vec<String>, Vec<String>) {
    // what GPT-2 writes for the 256 bytes
    let bytes = ('!'..='~')
        .chain('¡'..='¬')
        .chain('®'..='ÿ')
        .chain('\u{100}'..='\u{143}');
    let mut tokens: Vec<String> = bytes.map(String::from).collect();
    let mut known: HashSet<String> = tokens.iter().cloned().collect();
    let mut merges = Vec::new();
    let mut begin = 0;
    while tokens.len() < count {
        for each in 0..MERGES_EACH {
            // a multiplicative hash, so that endings are mixed and the same every time
            let mixed = ((begin * MERGES_EACH + each) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
            let end = mixed as usize % tokens.len().min(ENDINGS);
            let joined = format!("{}{}", tokens[begin], tokens[end]);
            if tokens.len() < count && known.insert(joined.clone()) {
                merges.push(format!("{} {}", tokens[begin], tokens[end]));
                tokens.push(joined);
            }
        }
        begin += 1;
    }
    (tokens, merges)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_merge_makes_one_token_out_of_two_before_it() {
        let (tokens, merges) = grown(20_000);
        assert_eq!(tokens.len(), 256 + merges.len());
        let mut known: HashSet<&str> = tokens[..256].iter().map(String::as_str).collect();
        assert_eq!(known.len(), 256);
        for (token, merge) in tokens[256..].iter().zip(&merges) {
            let (begin, end) = merge.split_once(' ').unwrap();
            assert!(known.contains(begin) && known.contains(end), "{merge}");
            assert_eq!(*token, format!("{begin}{end}"));
            assert!(known.insert(token), "{token} again");
        }
    }

    #[test]
    fn there_are_as_many_types_as_tokens() {
        let metadata = metadata();
        let length = |name: &str| match metadata.iter().find(|(key, _)| key == name) {
            Some((_, Value::Strings(all))) => all.len(),
            Some((_, Value::I32s(all))) => all.len(),
            other => panic!("{other:?}"),
        };
        assert_eq!(length("tokenizer.ggml.tokens") as u64, TOKENS);
        assert_eq!(length("tokenizer.ggml.token_type") as u64, TOKENS);
    }
}
