//! Bytes of tokens to text, piece by piece: valid UTF-8 at every step, and the same text however it was cut.

use std::str;

/// Decodes a stream of bytes. A character cut across tokens waits for its rest; bytes that can't be part of one
/// become U+FFFD, once for each dead sequence, exactly as [`String::from_utf8_lossy`] does for the whole.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    /// at most three bytes: the beginning of a character
    pending: Vec<u8>,
}

impl Decoder {
    /// Text that is certain once `bytes` have come.
    pub(super) fn push(&mut self, bytes: &[u8]) -> String {
        self.pending.extend_from_slice(bytes);
        let mut text = String::new();
        let mut rest = self.pending.as_slice();
        loop {
            match str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    rest = &[];
                    break;
                }
                Err(error) => {
                    let (valid, after) = rest.split_at(error.valid_up_to());
                    text.push_str(&String::from_utf8_lossy(valid));
                    let Some(dead) = error.error_len() else {
                        rest = after;
                        break;
                    };
                    text.push(char::REPLACEMENT_CHARACTER);
                    rest = &after[dead..];
                }
            }
        }
        self.pending = rest.to_vec();
        text
    }

    /// Whether the beginning of a character waits for its rest.
    pub(super) fn is_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Ends the text: a character that never came whole is U+FFFD.
    pub(super) fn finish(&mut self) -> String {
        if self.pending.is_empty() {
            return String::new();
        }
        self.pending.clear();
        char::REPLACEMENT_CHARACTER.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decode(pieces: &[&[u8]]) -> (Vec<String>, String) {
        let mut decoder = Decoder::default();
        let deltas = pieces.iter().map(|piece| decoder.push(piece)).collect();
        (deltas, decoder.finish())
    }

    #[test]
    fn d5_a_character_cut_across_tokens_comes_whole() {
        let (deltas, tail) = decode(&[b"\xf0\x9f", b"\x91", b"\x8d"]);
        assert_eq!(deltas, ["", "", "👍"]);
        assert_eq!(tail, "");
    }

    #[test]
    fn d5_a_stray_byte_is_replaced_once() {
        let (deltas, tail) = decode(&[b"a\xff", b"b"]);
        assert_eq!(deltas, ["a\u{fffd}", "b"]);
        assert_eq!(tail, "");
    }

    #[test]
    fn d5_the_tail_is_flushed_as_one_replacement() {
        let (deltas, tail) = decode(&[b"ok \xf0\x9f"]);
        assert_eq!(deltas, ["ok "]);
        assert_eq!(tail, "\u{fffd}");
    }

    #[test]
    fn d5_combined_emoji_right_to_left_and_nul_pass_byte_by_byte() {
        let text = "👩\u{200d}👩\u{200d}👧 שלום \0 é";
        let mut decoder = Decoder::default();
        let streamed: String = text.bytes().map(|byte| decoder.push(&[byte])).collect();
        assert_eq!(streamed + &decoder.finish(), text);
    }

    /// Bytes that are likely to be almost UTF-8.
    fn nearly_text() -> impl Strategy<Value = Vec<u8>> {
        let fragment = prop_oneof![
            ".{0,4}".prop_map(String::into_bytes),
            proptest::collection::vec(any::<u8>(), 0..4),
            Just(b"\xf0\x9f".to_vec()),
            Just(b"\xe2\x82".to_vec()),
        ];
        proptest::collection::vec(fragment, 0..8).prop_map(|parts| parts.concat())
    }

    proptest! {
        #[test]
        fn d5_deltas_of_any_cut_make_the_lossy_text(bytes in nearly_text(), cuts in proptest::collection::vec(1usize..5, 0..40)) {
            let mut decoder = Decoder::default();
            let mut text = String::new();
            let mut rest = bytes.as_slice();
            for cut in cuts {
                let (piece, after) = rest.split_at(cut.min(rest.len()));
                text += &decoder.push(piece);
                rest = after;
            }
            text += &decoder.push(rest);
            text += &decoder.finish();
            prop_assert_eq!(text, String::from_utf8_lossy(&bytes));
        }
    }
}
