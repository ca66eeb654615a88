//! `/v1/completions`: a prompt as text or tokens, and the text that follows it.

use axum::extract::State;
use axum::response::Response;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Instant;
use uuid::Uuid;

use super::answer::{FinishReason, Piece, TokenLogprob};
use super::errors::ApiError;
use super::fields::{Fields, whole};
use super::parameters::{self, MAX_TOP_LOGPROBS};
use super::reply::{Shape, completion_logprobs};
use super::tools::Part;
use super::{Api, Prepared};

pub(super) async fn create(State(api): State<Arc<Api>>, fields: Fields) -> Result<Response, ApiError> {
    let arrived = Instant::now();
    let prepared = api.clone().prepare(move |api| prepare(api, &fields)).await?;
    let shape = Completion {
        logprobs: prepared.parameters.sampling.top_logprobs.is_some(),
    };
    let id = format!("cmpl-{}", Uuid::new_v4().simple());
    api.answer(id, arrived, prepared, shape).await
}

fn prepare(api: &Api, fields: &Fields) -> Result<Prepared, ApiError> {
    api.check_model(fields.string("model")?)?;
    let mut parameters = parameters::parse(fields, api.tokenizer.token_count())?;
    parameters.sampling.top_logprobs = fields.integer("logprobs", 0..=MAX_TOP_LOGPROBS)?.map(|top| top as u8);
    parameters.check(&*api.tokenizer)?;
    let sent = fields
        .get("prompt")
        .ok_or_else(|| ApiError::invalid("prompt", "'prompt' is missing"))?;
    let prompt = prompt(api, sent)?;
    Ok(Prepared {
        param: "prompt",
        prompt,
        parameters,
        tools: None,
    })
}

/// A string, an array of tokens, or an array that holds just one of these.
fn prompt(api: &Api, sent: &Value) -> Result<Vec<i32>, ApiError> {
    match sent {
        Value::String(text) => api.tokenize("prompt", text),
        Value::Array(items) => match items.as_slice() {
            [one @ (Value::String(_) | Value::Array(_))] => prompt(api, one),
            [Value::String(_) | Value::Array(_), ..] => {
                let message = format!(
                    "'prompt' holds {} prompts: this server takes one a request",
                    items.len()
                );
                Err(ApiError::invalid("prompt", message))
            }
            tokens => tokens.iter().map(|token| token_id(api, token)).collect(),
        },
        _ => Err(ApiError::invalid(
            "prompt",
            "'prompt' must be a string or an array of tokens",
        )),
    }
}

fn token_id(api: &Api, token: &Value) -> Result<i32, ApiError> {
    let count = api.tokenizer.token_count();
    let id = whole(token)
        .and_then(|id| i32::try_from(id).ok())
        .filter(|&id| id >= 0 && (id as usize) < count);
    id.ok_or_else(|| {
        let message = format!(
            "'prompt' holds {token}, which is no token: ids go from 0 to {}",
            count.saturating_sub(1)
        );
        ApiError::invalid("prompt", message)
    })
}

/// The shape of completions.
struct Completion {
    logprobs: bool,
}

impl Completion {
    fn choice(&self, text: &str, logprobs: &[TokenLogprob], finish: Option<FinishReason>) -> Value {
        json!({
            "index": 0,
            "text": text,
            "logprobs": if self.logprobs { completion_logprobs(logprobs) } else { Value::Null },
            "finish_reason": finish.map(FinishReason::as_str),
        })
    }
}

/// Completions have no tools, so that every part is text.
fn text(piece: &Piece) -> String {
    let texts = piece.parts.iter().map(|part| match part {
        Part::Text(text) => text.as_str(),
        Part::Call(_) => "",
    });
    texts.collect()
}

impl Shape for Completion {
    const OBJECT: &'static str = "text_completion";
    const CHUNK: &'static str = "text_completion";

    fn opening(&self) -> Option<Value> {
        None
    }

    fn chunks(&mut self, piece: Piece) -> Vec<Value> {
        let empty = piece.parts.is_empty() && piece.logprobs.is_empty() && piece.finish.is_none();
        if empty {
            Vec::new()
        } else {
            vec![self.choice(&text(&piece), &piece.logprobs, piece.finish)]
        }
    }

    fn whole(&self, piece: Piece) -> Value {
        self.choice(&text(&piece), &piece.logprobs, piece.finish)
    }
}
