//! A toy vocabulary in the manner of GPT-2: a token for each byte, a few merges, three specials.

use super::Vocabulary;
use crate::gguf::Value;

/// Tokens of every random model, with a vocabulary or without.
pub const VOCABULARY: u64 = 288;
/// The token that ends a turn, and with it an answer.
pub const END_OF_TURN: u32 = 258;
/// Chat template of [`Vocabulary::Bytes`].
pub const CHAT_TEMPLATE: &str = "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n\
     {% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

const SPECIALS: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];
/// What a merge joins: two tokens that come before it. `Ġ` is GPT-2's space.
const MERGES: [(&str, &str); 29] = [
    ("Ġ", "t"),
    ("Ġ", "a"),
    ("h", "e"),
    ("i", "n"),
    ("r", "e"),
    ("o", "n"),
    ("Ġt", "he"),
    ("e", "r"),
    ("Ġ", "s"),
    ("a", "t"),
    ("Ġ", "w"),
    ("Ġ", "o"),
    ("e", "n"),
    ("Ġ", "c"),
    ("i", "t"),
    ("i", "s"),
    ("a", "n"),
    ("o", "r"),
    ("e", "s"),
    ("Ġ", "b"),
    ("e", "d"),
    ("Ġ", "f"),
    ("in", "g"),
    ("Ġ", "p"),
    ("o", "u"),
    ("Ġa", "n"),
    ("a", "l"),
    ("a", "r"),
    ("Ġo", "f"),
];

// llama.cpp's token types
const NORMAL: i32 = 1;
const CONTROL: i32 = 3;

/// The vocabulary's metadata; `architecture` prefixes `vocab_size`.
pub(super) fn metadata(vocabulary: Vocabulary, architecture: &str) -> Vec<(String, Value)> {
    let size = (format!("{architecture}.vocab_size"), Value::U32(VOCABULARY as u32));
    let key = |name: &str| format!("tokenizer.{name}");
    match vocabulary {
        Vocabulary::None => vec![size, (key("ggml.model"), Value::String("no_vocab".to_owned()))],
        Vocabulary::Bytes => vec![
            size,
            (key("ggml.model"), Value::String("gpt2".to_owned())),
            (key("ggml.pre"), Value::String("gpt-2".to_owned())),
            (key("ggml.tokens"), Value::Strings(tokens())),
            (key("ggml.token_type"), Value::I32s(token_types())),
            (
                key("ggml.merges"),
                Value::Strings(MERGES.iter().map(|(a, b)| format!("{a} {b}")).collect()),
            ),
            (key("ggml.bos_token_id"), Value::U32(256)),
            (key("ggml.eos_token_id"), Value::U32(END_OF_TURN)),
            (key("ggml.add_bos_token"), Value::Bool(false)),
            (key("chat_template"), Value::String(CHAT_TEMPLATE.to_owned())),
        ],
    }
}

fn tokens() -> Vec<String> {
    let bytes = (0..=255).map(|byte| printable(byte).to_string());
    let specials = SPECIALS.iter().map(|&token| token.to_owned());
    let merges = MERGES.iter().map(|(a, b)| format!("{a}{b}"));
    bytes.chain(specials).chain(merges).collect()
}

fn token_types() -> Vec<i32> {
    let mut types = vec![NORMAL; VOCABULARY as usize];
    types[256..256 + SPECIALS.len()].fill(CONTROL);
    types
}

/// GPT-2's `bytes_to_unicode`: bytes that print stand for themselves, the others for U+0100 upwards in their order.
fn printable(byte: u8) -> char {
    let prints = |b: u8| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    if prints(byte) {
        return char::from(byte);
    }
    let rank = (0..byte).filter(|&b| !prints(b)).count() as u32;
    char::from_u32(0x100 + rank).expect("at most 0x100 + 255, which is a letter")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_tokens_differ_and_every_merge_joins_two_of_them() {
        let tokens = tokens();
        assert_eq!(tokens.len() as u64, VOCABULARY);
        let distinct: std::collections::HashSet<_> = tokens.iter().collect();
        assert_eq!(distinct.len(), tokens.len());
        for (a, b) in MERGES {
            assert!(
                tokens.iter().any(|t| t == a) && tokens.iter().any(|t| t == b),
                "{a} {b}"
            );
        }
        assert_eq!(tokens[END_OF_TURN as usize], "<|im_end|>");
    }

    #[test]
    fn a_space_is_written_as_in_gpt_2() {
        assert_eq!(printable(b' '), 'Ġ');
        assert_eq!(printable(b'\n'), 'Ċ');
        assert_eq!(printable(b'a'), 'a');
        assert_eq!(printable(0xad), 'Ń');
    }
}
