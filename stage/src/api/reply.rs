//! How an answer is written down: whole as one JSON object, or as chunks of a stream; both in an envelope of id,
//! object, created and model.

use axum::Json;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use std::time::Duration;

use super::answer::{Likely, Piece, TokenLogprob};
use super::clock;
use super::errors::ApiError;
use super::generation::{Generation, Usage};
use super::stream;
use super::tools::Part;

/// What an endpoint puts into `choices`.
pub(super) trait Shape: Send + 'static {
    /// Value of `object` for a whole answer.
    const OBJECT: &'static str;
    /// Value of `object` for a chunk.
    const CHUNK: &'static str;
    /// The one choice of a chunk that opens the stream.
    fn opening(&self) -> Option<Value>;
    /// The one choice of each chunk that a piece makes.
    fn chunks(&mut self, piece: Piece) -> Vec<Value>;
    /// The one choice of a whole answer.
    fn whole(&self, piece: Piece) -> Value;
}

/// What every answer and every chunk of it carries.
#[derive(Clone, Debug)]
pub(super) struct Envelope {
    pub(super) id: String,
    pub(super) created: u64,
    pub(super) model: String,
}

impl Envelope {
    pub(super) fn new(id: String, model: &str) -> Envelope {
        Envelope {
            id,
            created: clock::unix_seconds(),
            model: model.to_string(),
        }
    }

    pub(super) fn wrap(&self, object: &str, choices: &[Value]) -> Value {
        json!({"id": self.id, "object": object, "created": self.created, "model": self.model, "choices": choices})
    }
}

pub(super) fn usage(usage: Usage) -> Value {
    json!({
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    })
}

/// How the client wants its answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Delivery {
    pub(super) stream: bool,
    pub(super) include_usage: bool,
    pub(super) keep_alive: Duration,
    pub(super) stalled_after: Duration,
}

/// Sends the answer, whole or as a stream.
pub(super) async fn send<S: Shape>(
    mut generation: Generation,
    envelope: Envelope,
    shape: S,
    delivery: Delivery,
) -> Result<Response, ApiError> {
    if delivery.stream {
        return stream::send(generation, envelope, shape, delivery).await;
    }
    let mut all = Piece::default();
    while let Some(piece) = generation.next().await? {
        append(&mut all, piece);
    }
    let mut body = envelope.wrap(S::OBJECT, &[shape.whole(all)]);
    body["usage"] = usage(generation.usage());
    Ok(Json(body).into_response())
}

fn append(all: &mut Piece, piece: Piece) {
    for part in piece.parts {
        match (all.parts.last_mut(), part) {
            (Some(Part::Text(text)), Part::Text(more)) => text.push_str(&more),
            (_, part) => all.parts.push(part),
        }
    }
    all.logprobs.extend(piece.logprobs);
    all.finish = piece.finish;
}

/// Log-probability as JSON can say it: OpenAI's stand-in for "never".
pub(super) fn finite(logprob: f32) -> f32 {
    if logprob.is_finite() { logprob } else { -9999.0 }
}

/// Log-probabilities in the shape of chat completions.
pub(super) fn chat_logprobs(logprobs: &[TokenLogprob]) -> Value {
    let likely = |likely: &Likely| {
        json!({
            "token": String::from_utf8_lossy(&likely.bytes),
            "logprob": finite(likely.logprob),
            "bytes": likely.bytes,
        })
    };
    let content: Vec<Value> = logprobs
        .iter()
        .map(|logprob| {
            let mut entry = likely(&logprob.token);
            entry["top_logprobs"] = logprob.top.iter().map(likely).collect();
            entry
        })
        .collect();
    json!({"content": content, "refusal": null})
}

/// Log-probabilities in the older shape of completions, which keys tokens by their text: a token that is no text by
/// itself is written as its bytes.
pub(super) fn completion_logprobs(logprobs: &[TokenLogprob]) -> Value {
    let name = |likely: &Likely| match std::str::from_utf8(&likely.bytes) {
        Ok(text) => text.to_string(),
        Err(_) => likely
            .bytes
            .iter()
            .fold("bytes:".to_string(), |name, byte| name + &format!("\\x{byte:02x}")),
    };
    let top = |logprob: &TokenLogprob| -> Value {
        let entries = logprob.top.iter().chain([&logprob.token]);
        entries
            .map(|likely| (name(likely), Value::from(finite(likely.logprob))))
            .collect()
    };
    json!({
        "tokens": logprobs.iter().map(|logprob| name(&logprob.token)).collect::<Vec<_>>(),
        "token_logprobs": logprobs.iter().map(|logprob| finite(logprob.token.logprob)).collect::<Vec<_>>(),
        "top_logprobs": logprobs.iter().map(top).collect::<Vec<_>>(),
        "text_offset": logprobs.iter().map(|logprob| logprob.text_offset).collect::<Vec<_>>(),
    })
}
