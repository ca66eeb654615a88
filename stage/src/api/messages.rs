//! Messages of a chat request, brought to the one shape that templates expect: a role and a text.
//!
//! Text parts are joined by a line feed, as vLLM and llama.cpp do. A content that is `null` or absent is an empty text
//! (assistant turns only); arguments of tool calls become objects; fields that are `null` are left out, since
//! templates ask whether a field is defined.

use serde_json::{Map, Value};

use super::errors::ApiError;
use super::fields::kind;

/// Messages of a conversation at most: templates take time for each, and a context holds few thousand at best.
const MAX_MESSAGES: usize = 2048;

/// Checks `messages` and normalises them. `developer` becomes `system` unless the template knows it.
pub(super) fn normalise(messages: &[Value], takes_developer: bool) -> Result<Vec<Value>, ApiError> {
    if messages.len() > MAX_MESSAGES {
        return Err(ApiError::invalid(
            "messages",
            format!(
                "'messages' holds {} messages, {MAX_MESSAGES} is the limit",
                messages.len()
            ),
        ));
    }
    if messages.is_empty() {
        return Err(ApiError::invalid(
            "messages",
            "'messages' must hold at least one message",
        ));
    }
    messages
        .iter()
        .enumerate()
        .map(|(index, message)| one(message, &format!("messages[{index}]"), takes_developer))
        .collect()
}

fn one(message: &Value, at: &str, takes_developer: bool) -> Result<Value, ApiError> {
    let Value::Object(sent) = message else {
        return Err(ApiError::invalid(
            at,
            format!("'{at}' must be an object, not {}", kind(message)),
        ));
    };
    let role = match sent.get("role").and_then(Value::as_str) {
        Some("developer") if !takes_developer => "system",
        Some(role @ ("system" | "developer" | "user" | "assistant" | "tool")) => role,
        _ => {
            let param = format!("{at}.role");
            let message = format!("'{param}' must be one of system, developer, user, assistant, tool");
            return Err(ApiError::invalid(param, message));
        }
    };
    if sent.get("function_call").is_some_and(|call| !call.is_null()) {
        let message = "'function_call' is not supported: use 'tool_calls'";
        return Err(ApiError::unsupported(format!("{at}.function_call"), message));
    }
    let content = text(sent.get("content"), role, &format!("{at}.content"))?;
    let mut turn = Map::new();
    turn.insert("role".into(), role.into());
    turn.insert("content".into(), content.into());
    for (name, value) in sent.iter().filter(|(_, value)| !value.is_null()) {
        match name.as_str() {
            "role" | "content" | "function_call" => {}
            "tool_calls" => {
                let calls = calls(value, &format!("{at}.tool_calls"))?;
                if !calls.is_empty() {
                    turn.insert(name.clone(), calls.into());
                }
            }
            _ => {
                turn.insert(name.clone(), value.clone());
            }
        }
    }
    Ok(Value::Object(turn))
}

fn text(content: Option<&Value>, role: &str, at: &str) -> Result<String, ApiError> {
    match content {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Array(parts)) => {
            let texts = parts
                .iter()
                .enumerate()
                .map(|(index, part)| part_text(part, &format!("{at}[{index}]")));
            Ok(texts.collect::<Result<Vec<_>, _>>()?.join("\n"))
        }
        None | Some(Value::Null) if role == "assistant" => Ok(String::new()),
        None | Some(Value::Null) => Err(ApiError::invalid(at, format!("'{at}' is missing"))),
        Some(other) => Err(ApiError::invalid(
            at,
            format!("'{at}' must be a string or an array of parts, not {}", kind(other)),
        )),
    }
}

fn part_text<'a>(part: &'a Value, at: &str) -> Result<&'a str, ApiError> {
    let field = match part.get("type").and_then(Value::as_str) {
        Some("text") => "text",
        Some("refusal") => "refusal",
        Some(other) => {
            return Err(ApiError::invalid(
                at,
                format!("'{at}' is of type '{other}': this model takes text only"),
            ));
        }
        None => return Err(ApiError::invalid(at, format!("'{at}' must be an object with a 'type'"))),
    };
    part.get(field)
        .and_then(Value::as_str)
        .ok_or_else(|| ApiError::invalid(format!("{at}.{field}"), format!("'{at}.{field}' must be a string")))
}

fn calls(sent: &Value, at: &str) -> Result<Vec<Value>, ApiError> {
    let Value::Array(sent) = sent else {
        return Err(ApiError::invalid(
            at,
            format!("'{at}' must be an array, not {}", kind(sent)),
        ));
    };
    let mut calls = sent.clone();
    for (index, call) in calls.iter_mut().enumerate() {
        let at = format!("{at}[{index}].function");
        let Some(function) = call.get_mut("function").and_then(Value::as_object_mut) else {
            return Err(ApiError::invalid(
                &at,
                format!("'{at}' must be an object with 'name' and 'arguments'"),
            ));
        };
        if !function.get("name").is_some_and(Value::is_string) {
            return Err(ApiError::invalid(
                format!("{at}.name"),
                format!("'{at}.name' must be a string"),
            ));
        }
        let object = function
            .get("arguments")
            .and_then(Value::as_str)
            .and_then(|text| serde_json::from_str::<Map<String, Value>>(text).ok());
        if let Some(object) = object {
            function.insert("arguments".into(), object.into());
        }
    }
    Ok(calls)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn normal(message: Value) -> Value {
        normalise(&[message], false).unwrap().remove(0)
    }

    fn refused(message: Value) -> String {
        normalise(&[message], false).unwrap_err().body()["error"]["param"]
            .as_str()
            .unwrap()
            .to_string()
    }

    #[test]
    fn d2_parts_are_joined_by_a_line_feed() {
        let message =
            normal(json!({"role": "user", "content": [{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]}));
        assert_eq!(message, json!({"role": "user", "content": "A\nB"}));
    }

    #[test]
    fn d2_an_assistant_may_have_null_no_or_empty_content() {
        let calls = json!([{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}}]);
        let parsed = json!([{"id": "1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}]);
        for message in [
            json!({"role": "assistant", "content": null, "tool_calls": calls}),
            json!({"role": "assistant", "tool_calls": calls, "refusal": null}),
            json!({"role": "assistant", "content": "", "tool_calls": calls}),
        ] {
            assert_eq!(
                normal(message),
                json!({"role": "assistant", "content": "", "tool_calls": parsed})
            );
        }
        assert_eq!(
            normal(json!({"role": "assistant", "content": ""})),
            json!({"role": "assistant", "content": ""})
        );
    }

    #[test]
    fn d2_what_cannot_be_text_is_refused_by_place() {
        let image = json!({"role": "user", "content": [{"type": "text", "text": "A"}, {"type": "image_url", "image_url": {"url": "data:"}}]});
        assert_eq!(refused(image), "messages[0].content[1]");
        assert_eq!(refused(json!({"role": "user"})), "messages[0].content");
        assert_eq!(refused(json!({"role": "user", "content": 3})), "messages[0].content");
        assert_eq!(refused(json!({"role": "robot", "content": "x"})), "messages[0].role");
        assert_eq!(
            refused(json!({"role": "assistant", "tool_calls": [{}]})),
            "messages[0].tool_calls[0].function"
        );
        assert_eq!(refused(json!("x")), "messages[0]");
    }

    #[test]
    fn a_developer_is_the_system_where_the_template_knows_no_other() {
        let sent = [json!({"role": "developer", "content": "x"})];
        assert_eq!(normalise(&sent, false).unwrap()[0]["role"], "system");
        assert_eq!(normalise(&sent, true).unwrap()[0]["role"], "developer");
    }

    #[test]
    fn arguments_that_are_no_object_stay_text() {
        let message =
            json!({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "not json"}}]});
        assert_eq!(normal(message)["tool_calls"][0]["function"]["arguments"], "not json");
    }
}
