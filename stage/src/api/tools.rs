//! Tools: what a request offers to the model, and the calls found in what the model wrote.
//!
//! Calls are read in the form that Hermes and Qwen models use: `<tool_call>` … `</tool_call>` around either a JSON
//! object (`name`, `arguments`) or Qwen's tags (`<function=name>`, `<parameter=name>`). What can't be read as a call
//! stays text. The reader is a pure state machine: the same text gives the same calls however it was cut.

use serde_json::{Map, Value};
use std::fmt::Write;

use super::errors::ApiError;
use super::fields::Fields;
use super::stop::begun;
use super::template::ChatTemplate;

/// Begins a call.
pub(super) const OPEN: &str = "<tool_call>";
/// Ends a call.
pub(super) const CLOSE: &str = "</tool_call>";

/// Tools of a request.
#[derive(Clone, Debug)]
pub(super) struct Tools {
    /// as sent, for the template
    pub(super) list: Vec<Value>,
    /// more than one call in an answer
    pub(super) parallel: bool,
    /// names of which one must be called; empty where the model may also just talk
    required: Vec<String>,
}

/// Reads `tools`, `tool_choice` and `parallel_tool_calls`. None: the model gets no tools.
pub(super) fn parse(fields: &Fields, template: &ChatTemplate) -> Result<Option<Tools>, ApiError> {
    let list = fields.array("tools")?.cloned().unwrap_or_default();
    let names = list
        .iter()
        .enumerate()
        .map(|(index, tool)| name(tool, index))
        .collect::<Result<Vec<_>, _>>()?;
    let parallel = fields.bool("parallel_tool_calls")?.unwrap_or(true);
    let choice = fields.get("tool_choice");
    let required = match (choice, choice.and_then(Value::as_str)) {
        (_, Some("none")) => return Ok(None),
        (None, _) | (_, Some("auto")) => Vec::new(),
        (_, Some("required")) => names,
        (Some(choice), _) => {
            let wanted = choice
                .get("function")
                .and_then(|function| function.get("name"))
                .and_then(Value::as_str);
            let Some(wanted) = wanted.filter(|wanted| names.iter().any(|name| name == wanted)) else {
                let message = "'tool_choice' must be none, auto, required, or name one of 'tools'";
                return Err(ApiError::invalid("tool_choice", message));
            };
            vec![wanted.to_string()]
        }
    };
    if list.is_empty() {
        return match choice.and_then(Value::as_str) {
            None | Some("auto") => Ok(None),
            Some(_) => Err(ApiError::invalid("tool_choice", "'tool_choice' needs 'tools'")),
        };
    }
    if !template.takes_tools() {
        return Err(ApiError::unsupported(
            "tools",
            "this model's chat template takes no tools",
        ));
    }
    if !required.is_empty() && !template.writes_json_calls() {
        let message = "a call can't be forced with this model's chat template: use 'auto' or 'none'";
        return Err(ApiError::unsupported("tool_choice", message));
    }
    Ok(Some(Tools {
        list,
        parallel,
        required,
    }))
}

fn name(tool: &Value, index: usize) -> Result<String, ApiError> {
    let at = format!("tools[{index}]");
    if tool.get("type").and_then(Value::as_str) != Some("function") {
        return Err(ApiError::invalid(
            format!("{at}.type"),
            format!("'{at}.type' must be function"),
        ));
    }
    let name = tool
        .get("function")
        .and_then(|function| function.get("name"))
        .and_then(Value::as_str);
    let plain = |character: char| character.is_ascii_alphanumeric() || matches!(character, '_' | '-' | '.');
    match name {
        Some(name) if (1..=64).contains(&name.len()) && name.chars().all(plain) => Ok(name.to_string()),
        _ => {
            let param = format!("{at}.function.name");
            let message = format!("'{param}' must have from 1 to 64 letters, digits, '_', '-' or '.'");
            Err(ApiError::invalid(param, message))
        }
    }
}

/// Any JSON object, in GBNF.
const JSON_OBJECT: &str = r#"
object ::= "{" space ( member ( "," space member )* )? "}" space
member ::= string ":" space value
array ::= "[" space ( value ( "," space value )* )? "]" space
value ::= object | array | string | number | ( "true" | "false" | "null" ) space
string ::= "\"" ( [^"\\\x00-\x1F] | "\\" ( ["\\/bfnrt] | "u" [0-9a-fA-F]{4} ) )* "\"" space
number ::= "-"? ( "0" | [1-9] [0-9]* ) ( "." [0-9]+ )? ( [eE] [-+]? [0-9]+ )? space
space ::= [ \n]{0,20}
"#;

impl Tools {
    /// Tools that the model may call or not.
    #[cfg(test)]
    pub(super) fn offered(list: Vec<Value>, parallel: bool) -> Tools {
        Tools {
            list,
            parallel,
            required: Vec::new(),
        }
    }

    /// GBNF that admits only a call of a required tool; none where the model may also just talk.
    pub(super) fn grammar(&self) -> Option<String> {
        let (first, rest) = self.required.split_first()?;
        let mut names = format!("\"{first}\"");
        for name in rest {
            // Writing to a string can't fail.
            let _ = write!(names, " | \"{name}\"");
        }
        let more = if self.parallel { " ( \"\\n\" call )*" } else { "" };
        let call = r#""<tool_call>\n{\"name\": \"" name "\", \"arguments\": " object "}\n</tool_call>""#;
        Some(format!(
            "root ::= call{more}\ncall ::= {call}\nname ::= {names}{JSON_OBJECT}"
        ))
    }
}

/// A call that the model wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ToolCall {
    /// function
    pub(super) name: String,
    /// JSON text
    pub(super) arguments: String,
}

/// A part of the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// text, not empty
    Text(String),
    /// a whole call
    Call(ToolCall),
}

/// Finds calls in a stream of text. White space around a call belongs to it.
#[derive(Debug)]
pub(super) struct CallReader {
    tools: Vec<Value>,
    /// outside a call: what may be the beginning of one; inside: what came since it began
    held: String,
    /// white space before the call that `held` may be
    space: String,
    inside: bool,
    after_call: bool,
}

impl CallReader {
    /// `tools` as sent; Qwen's tags say no types, so that parameters are read by the tools' schemas.
    pub(super) fn new(tools: Vec<Value>) -> CallReader {
        CallReader {
            tools,
            held: String::new(),
            space: String::new(),
            inside: false,
            after_call: false,
        }
    }

    /// Takes the next piece of text.
    pub(super) fn push(&mut self, text: &str) -> Vec<Part> {
        self.held.push_str(text);
        let mut parts = Vec::new();
        loop {
            let marker = if self.inside { CLOSE } else { OPEN };
            let Some(at) = self.held.find(marker) else { break };
            let rest = self.held.split_off(at + marker.len());
            let mut before = std::mem::replace(&mut self.held, rest);
            before.truncate(at);
            if self.inside {
                self.call(&before, CLOSE, &mut parts);
            } else {
                let text = before.trim_end();
                self.space = before[text.len()..].to_string();
                self.text(text, &mut parts);
            }
            self.inside = !self.inside;
        }
        if !self.inside {
            let certain = self.held.len() - begun(&self.held, OPEN);
            let certain = self.held[..certain].trim_end().len();
            let kept = self.held.split_off(certain);
            let certain = std::mem::replace(&mut self.held, kept);
            self.text(&certain, &mut parts);
        }
        parts
    }

    /// Ends the text. A call that lacks only its closing tag counts.
    pub(super) fn finish(&mut self) -> Vec<Part> {
        let mut parts = Vec::new();
        let held = std::mem::take(&mut self.held);
        if std::mem::take(&mut self.inside) {
            self.call(&held, "", &mut parts);
        } else if !(self.after_call && held.trim().is_empty()) {
            self.text(&held, &mut parts);
        }
        parts
    }

    fn text(&mut self, text: &str, parts: &mut Vec<Part>) {
        let text = if self.after_call { text.trim_start() } else { text };
        if !text.is_empty() {
            self.after_call = false;
            parts.push(Part::Text(text.to_string()));
        }
    }

    fn call(&mut self, body: &str, close: &str, parts: &mut Vec<Part>) {
        if let Some(call) = json_call(body).or_else(|| tagged_call(body, &self.tools)) {
            self.after_call = true;
            parts.push(Part::Call(call));
        } else {
            self.text(&format!("{}{OPEN}{body}{close}", self.space), parts);
        }
    }
}

fn json_call(body: &str) -> Option<ToolCall> {
    let object: Map<String, Value> = serde_json::from_str(body.trim()).ok()?;
    let name = object.get("name")?.as_str()?.to_string();
    let arguments = match object.get("arguments").or_else(|| object.get("parameters")) {
        None | Some(Value::Null) => "{}".to_string(),
        Some(Value::String(text)) => serde_json::from_str::<Map<String, Value>>(text)
            .ok()
            .map(|_| text.clone())?,
        Some(arguments @ Value::Object(_)) => arguments.to_string(),
        Some(_) => return None,
    };
    Some(ToolCall { name, arguments })
}

fn tagged_call(body: &str, tools: &[Value]) -> Option<ToolCall> {
    let (name, mut rest) = body
        .trim()
        .strip_prefix("<function=")?
        .strip_suffix("</function>")?
        .split_once('>')?;
    let schema = tools
        .iter()
        .map(|tool| &tool["function"])
        .find(|function| function["name"] == name);
    let mut arguments = Map::new();
    while let Some((_, parameter)) = rest.split_once("<parameter=") {
        let (key, after) = parameter.split_once('>')?;
        let (text, after) = after.split_once("</parameter>")?;
        let text = text.strip_prefix('\n').unwrap_or(text);
        let text = text.strip_suffix('\n').unwrap_or(text);
        let declared = schema.and_then(|function| function["parameters"]["properties"][key]["type"].as_str());
        let value = match declared {
            None | Some("string") => text.into(),
            Some(_) => serde_json::from_str(text.trim()).unwrap_or_else(|_| text.into()),
        };
        arguments.insert(key.to_string(), value);
        rest = after;
    }
    Some(ToolCall {
        name: name.to_string(),
        arguments: Value::Object(arguments).to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn read(pieces: &[&str]) -> Vec<Part> {
        let tools = vec![
            json!({"type": "function", "function": {"name": "set", "parameters": {"properties": {
            "count": {"type": "integer"}, "text": {"type": "string"}}}}}),
        ];
        let mut reader = CallReader::new(tools);
        let mut parts: Vec<Part> = Vec::new();
        for part in pieces.iter().flat_map(|piece| reader.push(piece)).collect::<Vec<_>>() {
            join(&mut parts, part);
        }
        for part in reader.finish() {
            join(&mut parts, part);
        }
        parts
    }

    fn join(parts: &mut Vec<Part>, part: Part) {
        match (parts.last_mut(), part) {
            (Some(Part::Text(text)), Part::Text(more)) => text.push_str(&more),
            (_, part) => parts.push(part),
        }
    }

    fn text(text: &str) -> Part {
        Part::Text(text.into())
    }

    fn call(name: &str, arguments: &str) -> Part {
        Part::Call(ToolCall {
            name: name.into(),
            arguments: arguments.into(),
        })
    }

    #[test]
    fn a_call_cut_anywhere_is_found() {
        let pieces = [
            "Let me see.\n\n<to",
            "ol_call>\n{\"name\": \"now\", \"argu",
            "ments\": {\"zone\": \"UTC\"}}\n</tool",
            "_call>\n",
        ];
        assert_eq!(read(&pieces), [text("Let me see."), call("now", "{\"zone\":\"UTC\"}")]);
    }

    #[test]
    fn calls_follow_each_other_and_text_follows_calls() {
        let one = "<tool_call>{\"name\":\"a\"}</tool_call>";
        let two = "<tool_call>{\"name\":\"b\",\"arguments\":\"{\\\"x\\\": 1}\"}</tool_call>";
        assert_eq!(
            read(&[&format!("{one}\n{two}\nDone.")]),
            [call("a", "{}"), call("b", "{\"x\": 1}"), text("Done.")]
        );
    }

    #[test]
    fn qwens_tags_are_typed_by_the_schema() {
        let written = "<tool_call>\n<function=set>\n<parameter=count>\n3\n</parameter>\n<parameter=text>\n3\nlines\n\
                       </parameter>\n</function>\n</tool_call>";
        assert_eq!(read(&[written]), [call("set", "{\"count\":3,\"text\":\"3\\nlines\"}")]);
    }

    #[test]
    fn what_is_no_call_stays_text() {
        for written in [
            "<tool_call>not json</tool_call>",
            "a <tool_call>{\"name\": 3}</tool_call>",
            "5 <tool",
            "x \n",
        ] {
            assert_eq!(read(&[written]), [text(written)], "{written}");
        }
    }

    #[test]
    fn a_call_without_its_closing_tag_counts_at_the_end() {
        assert_eq!(
            read(&["<tool_call>\n{\"name\": \"a\", \"arguments\": {}}"]),
            [call("a", "{}")]
        );
        assert_eq!(
            read(&["<tool_call>\n{\"name\": \"a"]),
            [text("<tool_call>\n{\"name\": \"a")]
        );
    }

    #[test]
    fn a_required_call_is_a_grammar_of_its_names() {
        let tools = Tools {
            list: Vec::new(),
            parallel: false,
            required: vec!["a".into(), "b_c".into()],
        };
        let grammar = tools.grammar().unwrap();
        assert!(grammar.starts_with("root ::= call\ncall ::= "), "{grammar}");
        assert!(grammar.contains("\nname ::= \"a\" | \"b_c\"\n"), "{grammar}");
    }

    proptest! {
        #[test]
        fn any_cut_gives_the_same_parts(pieces in proptest::collection::vec(
            prop_oneof![
                Just("<tool_call>"), Just("</tool_call>"), Just("<tool"), Just("_call>"), Just("{\"name\":\"f\"}"),
                Just(" "), Just("\n"), Just("word"), Just("é"), Just("<"),
            ], 0..12)) {
            let whole = pieces.concat();
            let characters: Vec<String> = whole.chars().map(String::from).collect();
            let characters: Vec<&str> = characters.iter().map(String::as_str).collect();
            prop_assert_eq!(read(&pieces), read(&[&whole]));
            prop_assert_eq!(read(&characters), read(&[&whole]));
        }
    }
}
