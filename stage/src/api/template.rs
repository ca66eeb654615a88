//! Chat templates: Jinja as `transformers` runs it, from messages to the prompt's text.
//!
//! Differences from Python that templates in use could meet are levelled here: block trimming, Python's methods of
//! strings and mappings, `tojson` with Python's separators, `raise_exception`, `strftime_now`, `generation` blocks.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Value};
use minijinja_contrib::pycompat::unknown_method_callback;
use serde_json::{Map, Value as Json};

use super::clock;

/// What a model without a template of its own gets.
pub(super) const CHATML: &str = "{% for message in messages %}\
    {{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}\
    {% endfor %}\
    {% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/// Why a template gives no prompt.
#[derive(Debug, thiserror::Error)]
pub(super) enum TemplateError {
    /// it isn't Jinja
    #[error("the chat template can't be read: {detail} (line {line}); set another one")]
    Syntax {
        /// what is wrong
        detail: String,
        /// where
        line: usize,
        /// the engine's own error
        #[source]
        source: Error,
    },
    /// it refuses these messages, or fails on them
    #[error("the chat template refuses these messages: {detail}")]
    Render {
        /// the template's own words, or what failed
        detail: String,
        /// the engine's own error
        #[source]
        source: Error,
    },
}

/// A template, compiled once.
#[derive(Debug)]
pub(super) struct ChatTemplate {
    environment: Environment<'static>,
    bos_token: String,
    eos_token: String,
    takes_tools: bool,
    takes_developer: bool,
    writes_json_calls: bool,
}

/// What a template is filled with.
#[derive(Debug, Default)]
pub(super) struct Conversation {
    /// turns, contents as text
    pub(super) messages: Vec<Json>,
    /// functions that the model may call
    pub(super) tools: Option<Vec<Json>>,
    /// documents for retrieval, where a template takes them
    pub(super) documents: Option<Vec<Json>>,
    /// further variables that the client sets
    pub(super) variables: Map<String, Json>,
}

const NAME: &str = "chat";

impl ChatTemplate {
    pub(super) fn compile(source: &str, bos_token: String, eos_token: String) -> Result<ChatTemplate, TemplateError> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(syntax_error)?);
        environment.set_unknown_method_callback(unknown_method_callback);
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", |format: String| {
            clock::strftime(&format, clock::unix_seconds())
        });
        environment.add_filter("tojson", to_json);
        let takes_developer = source.contains("developer");
        let writes_json_calls = source.contains("<tool_call>") && !source.contains("<function=");
        environment
            .add_template_owned(NAME, without_generation_tags(source))
            .map_err(syntax_error)?;
        let takes_tools = environment
            .get_template(NAME)
            .is_ok_and(|template| template.undeclared_variables(false).contains("tools"));
        Ok(ChatTemplate {
            environment,
            bos_token,
            eos_token,
            takes_tools,
            takes_developer,
            writes_json_calls,
        })
    }

    /// Whether the template shows tools to the model.
    pub(super) fn takes_tools(&self) -> bool {
        self.takes_tools
    }

    /// Whether the template knows the role `developer`.
    pub(super) fn takes_developer(&self) -> bool {
        self.takes_developer
    }

    /// Whether the template asks for calls as JSON between `<tool_call>` tags.
    pub(super) fn writes_json_calls(&self) -> bool {
        self.writes_json_calls
    }

    /// The prompt's text, up to where the assistant speaks.
    pub(super) fn render(&self, conversation: &Conversation) -> Result<String, TemplateError> {
        let list = |list: &Vec<Json>| list.iter().map(value).collect::<Value>();
        let own = [
            ("messages", list(&conversation.messages)),
            ("tools", conversation.tools.as_ref().map_or(Value::from(()), list)),
            (
                "documents",
                conversation.documents.as_ref().map_or(Value::from(()), list),
            ),
            ("add_generation_prompt", Value::from(true)),
            ("bos_token", Value::from(&self.bos_token)),
            ("eos_token", Value::from(&self.eos_token)),
        ];
        let extra = conversation
            .variables
            .iter()
            .map(|(name, json)| (name.as_str(), value(json)));
        let context = Value::from_pairs(extra.chain(own));
        self.environment
            .get_template(NAME)
            .and_then(|template| template.render(context))
            .map_err(|source| TemplateError::Render {
                detail: said(&source),
                source,
            })
    }
}

fn syntax_error(source: Error) -> TemplateError {
    TemplateError::Syntax {
        detail: said(&source),
        line: source.line().unwrap_or(0),
        source,
    }
}

fn said(error: &Error) -> String {
    error
        .detail()
        .map_or_else(|| error.kind().to_string(), ToString::to_string)
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

/// `{% generation %}` marks for training where the assistant speaks and prints nothing; to the engine it is unknown.
fn without_generation_tags(source: &str) -> String {
    let mut text = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(open) = rest.find("{%") {
        let Some(length) = rest[open..].find("%}") else { break };
        let tag = &rest[open + 2..open + length];
        let written = match tag.trim_matches(['-', '+', ' ', '\t', '\n']) {
            "generation" => tag.replace("generation", "if true"),
            "endgeneration" => tag.replace("endgeneration", "endif"),
            _ => tag.to_string(),
        };
        text.push_str(&rest[..open + 2]);
        text.push_str(&written);
        text.push_str("%}");
        rest = &rest[open + length + 2..];
    }
    text + rest
}

fn value(json: &Json) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(truth) => Value::from(*truth),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => Value::from(number),
            (None, Some(number)) => Value::from(number),
            (None, None) => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::from(text),
        Json::Array(list) => list.iter().map(value).collect(),
        Json::Object(map) => Value::from_pairs(map.iter().map(|(key, json)| (key.as_str(), value(json)))),
    }
}

/// How `tojson` writes.
struct JsonStyle {
    indent: Option<usize>,
    comma: String,
    colon: String,
    sorted: bool,
}

/// `tojson` as `transformers` defines it, by Python's `json.dumps`: `tojson(value, ensure_ascii=False, indent=None,
/// separators=None, sort_keys=False)`, no HTML escapes. Text is never escaped to ASCII.
#[allow(clippy::needless_pass_by_value)] // the signature of a filter
fn to_json(subject: &Value, options: Kwargs) -> Result<String, Error> {
    let result = write_styled(subject, &options);
    options.assert_all_used()?;
    result
}

fn write_styled(subject: &Value, options: &Kwargs) -> Result<String, Error> {
    options.get::<Option<bool>>("ensure_ascii")?;
    let indent = options.get::<Option<usize>>("indent")?;
    let sorted = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    let separators = match options.get::<Option<Value>>("separators")? {
        Some(separators) if !separators.is_none() => separators.try_iter()?.map(|text| text.to_string()).collect(),
        _ => Vec::new(),
    };
    let mut separators = separators.into_iter();
    let comma = if indent.is_some() { "," } else { ", " };
    let style = JsonStyle {
        indent,
        comma: separators.next().unwrap_or_else(|| comma.to_string()),
        colon: separators.next().unwrap_or_else(|| ": ".to_string()),
        sorted,
    };
    let mut text = String::new();
    style.write(subject, 0, &mut text)?;
    Ok(text)
}

impl JsonStyle {
    fn write(&self, subject: &Value, depth: usize, text: &mut String) -> Result<(), Error> {
        match subject.kind() {
            ValueKind::None => text.push_str("null"),
            ValueKind::Bool => text.push_str(if subject.is_true() { "true" } else { "false" }),
            ValueKind::Number => text.push_str(&subject.to_string()),
            ValueKind::String => write_string(subject, text),
            ValueKind::Seq | ValueKind::Iterable => {
                self.write_items('[', ']', subject.try_iter()?, depth, text, |item, text| {
                    self.write(&item, depth + 1, text)
                })?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = subject.try_iter()?.collect();
                if self.sorted {
                    keys.sort();
                }
                self.write_items('{', '}', keys.into_iter(), depth, text, |key, text| {
                    write_string(&key, text);
                    text.push_str(&self.colon);
                    self.write(&subject.get_item(&key)?, depth + 1, text)
                })?;
            }
            other => {
                return Err(Error::new(
                    ErrorKind::InvalidOperation,
                    format!("a value of kind {other} is not JSON"),
                ));
            }
        }
        Ok(())
    }

    fn write_items(
        &self,
        open: char,
        close: char,
        items: impl Iterator<Item = Value>,
        depth: usize,
        text: &mut String,
        write: impl Fn(Value, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        text.push(open);
        let mut empty = true;
        for item in items {
            if !std::mem::take(&mut empty) {
                text.push_str(&self.comma);
            }
            self.new_line(depth + 1, text);
            write(item, text)?;
        }
        if !empty {
            self.new_line(depth, text);
        }
        text.push(close);
        Ok(())
    }

    fn new_line(&self, depth: usize, text: &mut String) {
        if let Some(width) = self.indent {
            text.push('\n');
            text.extend(std::iter::repeat_n(' ', width * depth));
        }
    }
}

fn write_string(subject: &Value, text: &mut String) {
    text.push_str(&Json::String(subject.to_string()).to_string());
}

#[cfg(test)]
mod tests;
