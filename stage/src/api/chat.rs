//! `/v1/chat/completions`: messages to a prompt by the model's template, and the answer as an assistant's message.

use axum::extract::State;
use axum::response::Response;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::time::Instant;
use uuid::Uuid;

use super::answer::{FinishReason, Piece};
use super::errors::ApiError;
use super::fields::Fields;
use super::parameters::{self, MAX_TOP_LOGPROBS, Parameters};
use super::reply::{Shape, chat_logprobs};
use super::template::{ChatTemplate, Conversation, TemplateError};
use super::tools::{self, Part, ToolCall, Tools};
use super::{Api, Prepared, messages};
use kvasir_wire::frame::Grammar;

pub(super) async fn create(State(api): State<Arc<Api>>, fields: Fields) -> Result<Response, ApiError> {
    let arrived = Instant::now();
    let prepared = api.clone().prepare(move |api| prepare(api, &fields)).await?;
    let shape = Chat {
        logprobs: prepared.parameters.sampling.top_logprobs.is_some(),
        calls: 0,
    };
    let id = format!("chatcmpl-{}", Uuid::new_v4().simple());
    api.answer(id, arrived, prepared, shape).await
}

fn prepare(api: &Api, fields: &Fields) -> Result<Prepared, ApiError> {
    api.check_model(fields.string("model")?)?;
    let mut parameters = parameters::parse(fields, api.tokenizer.token_count())?;
    parameters.sampling.top_logprobs = top_logprobs(fields)?;
    let template = api.template.as_ref().map_err(template_error)?;
    let tools = tools::parse(fields, template)?;
    if let Some(gbnf) = tools.as_ref().and_then(Tools::grammar) {
        force(&mut parameters, gbnf)?;
    }
    parameters.check(&*api.tokenizer)?;
    let conversation = conversation(fields, template, tools.as_ref())?;
    let text = template.render(&conversation).map_err(|error| template_error(&error))?;
    let prompt = api.tokenize("messages", &text)?;
    Ok(Prepared {
        param: "messages",
        prompt,
        parameters,
        tools,
    })
}

fn top_logprobs(fields: &Fields) -> Result<Option<u8>, ApiError> {
    let wanted = fields.bool("logprobs")?.unwrap_or(false);
    let top = fields.integer("top_logprobs", 0..=MAX_TOP_LOGPROBS)?;
    match (wanted, top) {
        (true, top) => Ok(Some(top.unwrap_or(0) as u8)),
        (false, None | Some(0)) => Ok(None),
        (false, Some(_)) => Err(ApiError::invalid(
            "top_logprobs",
            "'top_logprobs' needs 'logprobs' to be true",
        )),
    }
}

fn force(parameters: &mut Parameters, gbnf: String) -> Result<(), ApiError> {
    if let Some(param) = parameters.constraint.filter(|_| parameters.sampling.grammar.is_some()) {
        let message = format!("'tool_choice' forces a call, which can't be combined with '{param}'");
        return Err(ApiError::invalid("tool_choice", message));
    }
    parameters.sampling.grammar = Some(Grammar::Gbnf(gbnf));
    parameters.constraint = Some("tool_choice");
    Ok(())
}

fn conversation(fields: &Fields, template: &ChatTemplate, tools: Option<&Tools>) -> Result<Conversation, ApiError> {
    let sent = fields
        .array("messages")?
        .ok_or_else(|| ApiError::invalid("messages", "'messages' is missing"))?;
    let mut variables = fields.object("chat_template_kwargs")?.cloned().unwrap_or_default();
    if let Some(effort) = fields.string("reasoning_effort")? {
        variables.insert("reasoning_effort".into(), effort.into());
    }
    Ok(Conversation {
        messages: messages::normalise(sent, template.takes_developer())?,
        tools: tools.map(|tools| tools.list.clone()),
        documents: fields.array("documents")?.cloned(),
        variables,
    })
}

fn template_error(error: &TemplateError) -> ApiError {
    match error {
        TemplateError::Syntax { .. } => ApiError::internal("chat_template_invalid", error.to_string()),
        TemplateError::Render { .. } => ApiError::invalid("messages", error.to_string()),
    }
}

/// The shape of chat completions.
struct Chat {
    logprobs: bool,
    /// calls sent so far
    calls: usize,
}

impl Chat {
    fn choice(&self, delta: &Value, piece: &mut Piece, finish: Option<FinishReason>) -> Value {
        let logprobs = match std::mem::take(&mut piece.logprobs) {
            logprobs if self.logprobs && !logprobs.is_empty() => chat_logprobs(&logprobs),
            _ => Value::Null,
        };
        json!({
            "index": 0,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": finish.map(FinishReason::as_str),
        })
    }
}

fn call(call: &ToolCall) -> Value {
    json!({
        "id": format!("call_{}", Uuid::new_v4().simple()),
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    })
}

impl Shape for Chat {
    const OBJECT: &'static str = "chat.completion";
    const CHUNK: &'static str = "chat.completion.chunk";

    fn opening(&self) -> Option<Value> {
        Some(self.choice(
            &json!({"role": "assistant", "content": ""}),
            &mut Piece::default(),
            None,
        ))
    }

    fn chunks(&mut self, mut piece: Piece) -> Vec<Value> {
        let mut chunks = Vec::new();
        for part in std::mem::take(&mut piece.parts) {
            let delta = match part {
                Part::Text(text) => json!({"content": text}),
                Part::Call(written) => {
                    let mut call = call(&written);
                    call["index"] = self.calls.into();
                    self.calls += 1;
                    json!({"tool_calls": [call]})
                }
            };
            chunks.push(self.choice(&delta, &mut piece, None));
        }
        let finish = piece.finish;
        if finish.is_some() || !piece.logprobs.is_empty() {
            chunks.push(self.choice(&json!({}), &mut piece, finish));
        }
        chunks
    }

    fn whole(&self, piece: Piece) -> Value {
        let mut content = String::new();
        let mut calls = Vec::new();
        for part in &piece.parts {
            match part {
                Part::Text(text) => content.push_str(text),
                Part::Call(written) => calls.push(call(written)),
            }
        }
        let mut message = Map::new();
        message.insert("role".into(), "assistant".into());
        let nothing = content.is_empty() && !calls.is_empty();
        message.insert("content".into(), if nothing { Value::Null } else { content.into() });
        message.insert("refusal".into(), Value::Null);
        if !calls.is_empty() {
            message.insert("tool_calls".into(), calls.into());
        }
        json!({
            "index": 0,
            "message": message,
            "logprobs": if self.logprobs { chat_logprobs(&piece.logprobs) } else { Value::Null },
            "finish_reason": piece.finish.map(FinishReason::as_str),
        })
    }
}
