//! An answer as it grows: tokens in, text, calls and log-probabilities out, the same however the tokens came.

use kvasir_wire::frame::Sampled;
use std::collections::VecDeque;
use std::sync::Arc;

use super::detokenize::Decoder;
use super::stop::StopMatcher;
use super::tokenizer::Tokenizer;
use super::tools::{CLOSE, CallReader, OPEN, Part, Tools};
use crate::ring::handle::Finish;

/// Why an answer ended, in OpenAI's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FinishReason {
    Stop,
    Length,
    ToolCalls,
}

impl FinishReason {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::ToolCalls => "tool_calls",
        }
    }
}

/// One token and how likely it was.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Likely {
    /// the token's bytes
    pub(super) bytes: Vec<u8>,
    /// natural logarithm of its probability
    pub(super) logprob: f32,
}

/// A token of the answer with the likeliest ones at its place.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TokenLogprob {
    /// the token itself
    pub(super) token: Likely,
    /// likeliest tokens, best first
    pub(super) top: Vec<Likely>,
    /// characters of the answer before it
    pub(super) text_offset: usize,
}

/// What a token added.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Piece {
    /// text and calls, in order
    pub(super) parts: Vec<Part>,
    /// of tokens whose text is out
    pub(super) logprobs: Vec<TokenLogprob>,
    /// set once, by the last piece
    pub(super) finish: Option<FinishReason>,
}

/// A log-probability that waits until its token's text is out.
struct Waiting {
    start: usize,
    end: usize,
    logprob: TokenLogprob,
}

/// The state of one answer.
pub(super) struct Answer {
    tokenizer: Arc<dyn Tokenizer>,
    decoder: Decoder,
    stops: StopMatcher,
    calls: Option<CallReader>,
    one_call: bool,
    called: bool,
    with_logprobs: bool,
    waiting: VecDeque<Waiting>,
    /// bytes of text decoded and bytes past the stop strings
    decoded: usize,
    emitted: usize,
    /// characters decoded
    characters: usize,
}

impl Answer {
    pub(super) fn new(
        tokenizer: Arc<dyn Tokenizer>,
        stops: Vec<String>,
        tools: Option<&Tools>,
        with_logprobs: bool,
    ) -> Answer {
        Answer {
            tokenizer,
            decoder: Decoder::default(),
            stops: StopMatcher::new(stops),
            calls: tools.map(|tools| CallReader::new(tools.list.clone())),
            one_call: tools.is_some_and(|tools| !tools.parallel),
            called: false,
            with_logprobs,
            waiting: VecDeque::new(),
            decoded: 0,
            emitted: 0,
            characters: 0,
        }
    }

    /// Takes the next token. A finish reason in the piece means that no further token is wanted.
    pub(super) fn token(&mut self, sampled: &Sampled) -> Piece {
        let (start, text_offset) = (self.decoded, self.characters);
        let is_end = self.tokenizer.is_end(sampled.token);
        let bytes = if is_end {
            Vec::new()
        } else {
            self.visible(sampled.token)
        };
        let text = self.decode(&bytes);
        if self.with_logprobs && !is_end {
            // A token whose character isn't whole is out when the rest of the character is.
            let end = self.decoded + usize::from(self.decoder.is_pending());
            let logprob = self.logprob(sampled, text_offset);
            self.waiting.push_back(Waiting { start, end, logprob });
        }
        let piece = self.emit(&text);
        if piece.finish.is_none() && self.one_call && self.called {
            return Piece {
                finish: Some(FinishReason::ToolCalls),
                ..piece
            };
        }
        piece
    }

    /// Ends the answer: what was held back comes out.
    pub(super) fn finish(&mut self, finish: Finish) -> Piece {
        let tail = self.decoder.finish();
        self.count(&tail);
        let mut piece = self.emit(&tail);
        if piece.finish.is_some() {
            return piece;
        }
        let held = self.stops.finish();
        let parts = self.parts(&held, true);
        piece.parts.extend(parts);
        piece
            .logprobs
            .extend(self.waiting.drain(..).map(|waiting| waiting.logprob));
        piece.finish = Some(match finish {
            Finish::Length => FinishReason::Length,
            Finish::Stop => self.stop_reason(),
        });
        piece
    }

    fn decode(&mut self, bytes: &[u8]) -> String {
        let text = self.decoder.push(bytes);
        self.count(&text);
        text
    }

    fn count(&mut self, text: &str) {
        self.decoded += text.len();
        self.characters += text.chars().count();
    }

    /// Sends decoded text past the stop strings and the reader of calls.
    fn emit(&mut self, text: &str) -> Piece {
        let matched = self.stops.push(text);
        self.emitted += matched.text.len();
        let parts = self.parts(&matched.text, matched.stopped);
        let (emitted, stopped) = (self.emitted, matched.stopped);
        let out = |waiting: &Waiting| {
            if stopped {
                waiting.start < emitted
            } else {
                waiting.end <= emitted
            }
        };
        let count = self.waiting.iter().take_while(|waiting| out(waiting)).count();
        let logprobs = self.waiting.drain(..count).map(|waiting| waiting.logprob).collect();
        Piece {
            parts,
            logprobs,
            finish: stopped.then(|| self.stop_reason()),
        }
    }

    fn stop_reason(&self) -> FinishReason {
        if self.called {
            FinishReason::ToolCalls
        } else {
            FinishReason::Stop
        }
    }

    fn parts(&mut self, text: &str, last: bool) -> Vec<Part> {
        let mut parts = match &mut self.calls {
            None if text.is_empty() => Vec::new(),
            None => vec![Part::Text(text.to_string())],
            Some(reader) => {
                let mut parts = reader.push(text);
                if last {
                    parts.extend(reader.finish());
                }
                parts
            }
        };
        if self.one_call {
            let first = parts.iter().position(|part| matches!(part, Part::Call(_)));
            let kept = if self.called {
                0
            } else {
                first.map_or(parts.len(), |at| at + 1)
            };
            parts.truncate(kept);
        }
        self.called |= parts.iter().any(|part| matches!(part, Part::Call(_)));
        parts
    }

    /// Special tokens are no text, but the tags around a call are looked for even where a vocabulary calls them special.
    fn visible(&self, token: i32) -> Vec<u8> {
        let piece = self.tokenizer.piece(token);
        if piece.is_empty() && self.calls.is_some() {
            let special = self.tokenizer.special_piece(token);
            if special == OPEN.as_bytes() || special == CLOSE.as_bytes() {
                return special;
            }
        }
        piece
    }

    fn logprob(&self, sampled: &Sampled, text_offset: usize) -> TokenLogprob {
        let likely = |token: i32, logprob: f32| Likely {
            bytes: self.tokenizer.special_piece(token),
            logprob,
        };
        TokenLogprob {
            token: likely(sampled.token, sampled.logprob),
            top: sampled
                .top
                .iter()
                .map(|&(token, logprob)| likely(token, logprob))
                .collect(),
            text_offset,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake::{Bytes, sampled};
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn answer(stops: &[&str], tools: Option<&Tools>) -> Answer {
        Answer::new(
            Arc::new(Bytes::default()),
            stops.iter().map(ToString::to_string).collect(),
            tools,
            true,
        )
    }

    /// Pieces of `bytes`, one token each, then the end.
    fn run(answer: &mut Answer, bytes: &[u8], finish: Finish) -> Vec<Piece> {
        let mut pieces = Vec::new();
        for &byte in bytes {
            pieces.push(answer.token(&sampled(i32::from(byte))));
            if pieces.last().unwrap().finish.is_some() {
                return pieces;
            }
        }
        pieces.push(answer.finish(finish));
        pieces
    }

    fn text(pieces: &[Piece]) -> String {
        let parts = pieces.iter().flat_map(|piece| &piece.parts);
        parts
            .map(|part| if let Part::Text(text) = part { text.as_str() } else { "" })
            .collect()
    }

    fn logprobs(pieces: &[Piece]) -> Vec<u8> {
        pieces
            .iter()
            .flat_map(|piece| &piece.logprobs)
            .flat_map(|logprob| logprob.token.bytes.clone())
            .collect()
    }

    #[test]
    fn s10_log_probabilities_come_with_the_text_they_belong_to() {
        let pieces = run(&mut answer(&["END"], None), "a👍 EN, END no".as_bytes(), Finish::Length);
        assert_eq!(text(&pieces), "a👍 EN, ");
        assert_eq!(logprobs(&pieces), "a👍 EN, ".as_bytes());
        assert_eq!(pieces.last().unwrap().finish, Some(FinishReason::Stop));
        let offsets: Vec<usize> = pieces
            .iter()
            .flat_map(|piece| &piece.logprobs)
            .map(|logprob| logprob.text_offset)
            .collect();
        assert_eq!(offsets, [0, 1, 1, 1, 1, 2, 3, 4, 5, 6]);
        for piece in &pieces[1..4] {
            assert_eq!(
                (piece.parts.len(), piece.logprobs.len()),
                (0, 0),
                "a cut character holds its tokens back"
            );
        }
    }

    #[test]
    fn d5_a_cut_character_at_the_end_is_one_replacement() {
        let pieces = run(&mut answer(&[], None), b"ok\xf0\x9f", Finish::Length);
        assert_eq!(text(&pieces), "ok\u{fffd}");
        assert_eq!(logprobs(&pieces), b"ok\xf0\x9f");
        assert_eq!(pieces.last().unwrap().finish, Some(FinishReason::Length));
    }

    #[test]
    fn a_token_that_ends_the_text_is_no_text() {
        let mut answer = answer(&[], None);
        let piece = answer.token(&sampled(Bytes::END));
        assert_eq!(piece, Piece::default());
        assert_eq!(answer.finish(Finish::Stop).finish, Some(FinishReason::Stop));
    }

    #[test]
    fn without_parallel_calls_the_first_call_ends_the_answer() {
        let tools = |parallel| Tools::offered(vec![json!({})], parallel);
        let written = b"<tool_call>{\"name\":\"a\"}</tool_call><tool_call>{\"name\":\"b\"}</tool_call>";
        let count = |pieces: &[Piece]| pieces.iter().map(|piece| piece.parts.len()).sum::<usize>();
        let pieces = run(&mut answer(&[], Some(&tools(false))), written, Finish::Stop);
        assert_eq!(
            (count(&pieces), pieces.last().unwrap().finish),
            (1, Some(FinishReason::ToolCalls))
        );
        let pieces = run(&mut answer(&[], Some(&tools(true))), written, Finish::Stop);
        assert_eq!(
            (count(&pieces), pieces.last().unwrap().finish),
            (2, Some(FinishReason::ToolCalls))
        );
    }

    proptest! {
        #[test]
        fn d5_streamed_text_is_the_lossy_text_up_to_the_stop(
            bytes in proptest::collection::vec(prop_oneof![Just(b'a'), Just(b'b'), Just(0xf0u8), Just(0x9fu8), Just(0x91u8), Just(0x8du8), any::<u8>()], 0..40),
            stop in proptest::option::of("[ab]{1,3}"),
        ) {
            let stops: Vec<&str> = stop.iter().map(String::as_str).collect();
            let pieces = run(&mut answer(&stops, None), &bytes, Finish::Length);
            let whole = String::from_utf8_lossy(&bytes).into_owned();
            let expected = stop.as_ref().and_then(|stop| whole.find(stop.as_str())).map_or(whole.as_str(), |at| &whole[..at]);
            prop_assert_eq!(text(&pieces), expected);
        }
    }
}
