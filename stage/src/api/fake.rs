//! A vocabulary of bytes and a ring that plays a script, for the API's own tests.

use bytes::Bytes as Raw;
use kvasir_wire::frame::{Grammar, Sampled};
use std::sync::Mutex;
use std::time::Duration;
use tokio::sync::{mpsc, watch};

use super::tokenizer::Tokenizer;
use crate::ring::handle::{Event, Finish, Generate, Limits, Ring, RingError};

/// One token per byte, and five special ones.
#[derive(Debug, Default)]
pub(super) struct Bytes {
    pub(super) chat_template: Option<String>,
}

impl Bytes {
    pub(super) const BEGIN: i32 = 256;
    pub(super) const END: i32 = 257;
    /// special tokens and their texts, ids from 256 on
    const SPECIAL: [&'static str; 5] = ["<s>", "</s>", "<tool_call>", "</tool_call>", "<|im_end|>"];
}

impl Tokenizer for Bytes {
    fn tokenize(&self, text: &str, add_special: bool, parse_special: bool) -> Vec<i32> {
        let mut tokens = if add_special { vec![Bytes::BEGIN] } else { Vec::new() };
        let mut rest = text;
        while let Some(character) = rest.chars().next() {
            let special = Bytes::SPECIAL
                .iter()
                .position(|special| parse_special && rest.starts_with(special));
            let length = if let Some(index) = special {
                tokens.push(256 + index as i32);
                Bytes::SPECIAL[index].len()
            } else {
                let length = character.len_utf8();
                tokens.extend(rest.as_bytes()[..length].iter().map(|&byte| i32::from(byte)));
                length
            };
            rest = &rest[length..];
        }
        tokens
    }

    fn piece(&self, token: i32) -> Vec<u8> {
        u8::try_from(token).map(|byte| vec![byte]).unwrap_or_default()
    }

    fn special_piece(&self, token: i32) -> Vec<u8> {
        let special = usize::try_from(token - 256)
            .ok()
            .and_then(|index| Bytes::SPECIAL.get(index));
        special.map_or_else(|| self.piece(token), |special| special.as_bytes().to_vec())
    }

    fn is_end(&self, token: i32) -> bool {
        token == Bytes::END
    }

    fn end_tokens(&self) -> Vec<i32> {
        vec![Bytes::END]
    }

    fn token_count(&self) -> usize {
        256 + Bytes::SPECIAL.len()
    }

    fn bos_token(&self) -> String {
        "<s>".into()
    }

    fn eos_token(&self) -> String {
        "</s>".into()
    }

    fn chat_template(&self) -> Option<String> {
        self.chat_template.clone()
    }

    fn check_grammar(&self, grammar: &Grammar) -> Result<(), String> {
        match grammar {
            Grammar::Gbnf(text) | Grammar::JsonSchema(text) if text.contains("impossible") => {
                Err("it is impossible".into())
            }
            _ => Ok(()),
        }
    }
}

/// A token as the last rank would report it.
pub(super) fn sampled(token: i32) -> Sampled {
    Sampled {
        sequence: 1,
        position: 0,
        token,
        logprob: -0.5,
        top: Vec::new(),
        logits: Raw::new(),
        error: String::new(),
    }
}

/// What the ring does with a prompt.
#[derive(Clone, Debug)]
pub(super) enum Script {
    /// refuses it
    Refuse(RingError),
    /// computes the prompt, says these bytes and ends with the token that ends a text
    Say(Vec<u8>),
    /// as `Say`, with tokens as they are, and no end of its own: `Finish::Length` at `max_tokens`
    Tokens(Vec<i32>),
    /// says these bytes, then fails
    Fail(Vec<u8>, RingError),
    /// says these bytes, then nothing more until the stream is dropped
    Stall(Vec<u8>),
    /// computes the prompt for this long before it says these bytes
    Slow(Duration, Vec<u8>),
    /// says the same token for ever
    Endless,
    /// repeats the prompt's last bytes, shifted by the seed when the temperature isn't 0
    Echo,
}

/// A ring that plays one script for every prompt and remembers what it was asked.
#[derive(Debug)]
pub(super) struct Scripted {
    pub(super) script: Script,
    pub(super) ready: Mutex<Result<(), RingError>>,
    pub(super) context_length: u32,
    pub(super) asked: Mutex<Vec<Generate>>,
    /// streams that someone still holds
    pub(super) open: watch::Sender<usize>,
    /// prompts taken so far
    pub(super) begun: watch::Sender<usize>,
}

impl Scripted {
    pub(super) fn new(script: Script) -> Scripted {
        Scripted {
            script,
            ready: Mutex::new(Ok(())),
            context_length: 512,
            asked: Mutex::default(),
            open: watch::Sender::new(0),
            begun: watch::Sender::new(0),
        }
    }

    fn sampled(request: &Generate, token: i32) -> Sampled {
        let top = request.sampling.top_logprobs.unwrap_or(0);
        let others = (0..i32::from(top)).map(|rank| (token + rank, if rank == 0 { -0.5 } else { f32::NEG_INFINITY }));
        Sampled {
            top: others.collect(),
            ..sampled(token)
        }
    }
}

async fn play(request: &Generate, script: Script, events: &mpsc::Sender<Event>) -> Option<()> {
    let total = request.prompt.len() as u32;
    events.send(Event::Prefilled { done: total, total }).await.ok()?;
    let say = |bytes: &[u8]| bytes.iter().map(|&byte| i32::from(byte)).collect::<Vec<_>>();
    let (tokens, end) = match script {
        Script::Refuse(error) => (Vec::new(), Some(Event::Failed(error))),
        Script::Say(bytes) => (
            [say(&bytes), vec![Bytes::END]].concat(),
            Some(Event::Done(Finish::Length)),
        ),
        Script::Tokens(tokens) => (tokens, Some(Event::Done(Finish::Length))),
        Script::Fail(bytes, error) => (say(&bytes), Some(Event::Failed(error))),
        Script::Stall(bytes) => (say(&bytes), None),
        Script::Slow(pause, bytes) => {
            tokio::time::sleep(pause).await;
            (
                [say(&bytes), vec![Bytes::END]].concat(),
                Some(Event::Done(Finish::Length)),
            )
        }
        Script::Endless => (vec![i32::from(b'x'); 100_000], Some(Event::Done(Finish::Length))),
        Script::Echo => (echo(request), Some(Event::Done(Finish::Length))),
    };
    for (index, &token) in tokens.iter().enumerate() {
        if index as u32 == request.max_tokens {
            events.send(Event::Done(Finish::Length)).await.ok()?;
            return Some(());
        }
        events
            .send(Event::Token(Scripted::sampled(request, token)))
            .await
            .ok()?;
        if request.stop_tokens.contains(&token) {
            events.send(Event::Done(Finish::Stop)).await.ok()?;
            return Some(());
        }
    }
    let Some(end) = end else {
        events.closed().await;
        return Some(());
    };
    events.send(end).await.ok()
}

fn echo(request: &Generate) -> Vec<i32> {
    let shift = if request.sampling.temperature == 0.0 {
        0
    } else {
        request.sampling.seed % 26
    };
    let letters: Vec<u64> = request
        .prompt
        .iter()
        .map(|&token| token.unsigned_abs().into())
        .collect();
    (0..64)
        .map(|at| i32::from(b'a') + ((letters[at % letters.len()] + shift + at as u64) % 26) as i32)
        .collect()
}

#[async_trait::async_trait]
impl Ring for Scripted {
    async fn submit(&self, request: Generate) -> Result<mpsc::Receiver<Event>, RingError> {
        if let Script::Refuse(error) = &self.script {
            return Err(error.clone());
        }
        self.asked.lock().unwrap().push(request.clone());
        let (events, stream) = mpsc::channel(4);
        let (script, open) = (self.script.clone(), self.open.clone());
        open.send_modify(|open| *open += 1);
        self.begun.send_modify(|begun| *begun += 1);
        tokio::spawn(async move {
            tokio::select! {
                _ = play(&request, script, &events) => {}
                () = events.closed() => {}
            }
            open.send_modify(|open| *open -= 1);
        });
        Ok(stream)
    }

    fn ready(&self) -> Result<(), RingError> {
        self.ready.lock().unwrap().clone()
    }

    fn limits(&self) -> Limits {
        Limits {
            context_length: self.context_length,
            sequences: 4,
        }
    }
}
