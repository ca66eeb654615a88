//! Parameters that chat and completions share: how long, when to stop, how to sample. Each is checked by name.
//!
//! Beyond OpenAI's own, these of llama.cpp and vLLM are honoured: `top_k`, `min_p`, `repeat_penalty` (also
//! `repetition_penalty`), `repeat_last_n`, `grammar` (GBNF), `ignore_eos`. Parameters that would change the answer and
//! can't be honoured ([`UNSUPPORTED`]) are refused when set to anything but their default; unknown ones are ignored.

use kvasir_wire::frame::{Grammar, Sampling};
use serde_json::Value;
use uuid::Uuid;

use super::errors::ApiError;
use super::fields::{Fields, kind};
use super::tokenizer::Tokenizer;

/// Stop strings of a request, as OpenAI allows.
const MAX_STOPS: usize = 4;
/// Bytes of a stop string: each is compared with every token, so their length costs time.
const MAX_STOP_BYTES: usize = 1024;
/// Likeliest tokens that can be reported.
pub(super) const MAX_TOP_LOGPROBS: i64 = 20;

/// What both endpoints ask of an answer.
#[derive(Clone, Debug)]
pub(super) struct Parameters {
    /// send the answer as it comes
    pub(super) stream: bool,
    /// with `stream`: one more chunk with the usage
    pub(super) include_usage: bool,
    /// tokens at most; none: the server's default
    pub(super) max_tokens: Option<u32>,
    /// texts that end the answer
    pub(super) stops: Vec<String>,
    /// go on past tokens that end a text
    pub(super) ignore_eos: bool,
    /// the field that a grammar came from
    pub(super) constraint: Option<&'static str>,
    /// the rest; `top_logprobs` is left to the endpoint
    pub(super) sampling: Sampling,
}

impl Parameters {
    /// Refuses a grammar that the last rank could not use: there it would cost the answer.
    pub(super) fn check(&self, tokenizer: &dyn Tokenizer) -> Result<(), ApiError> {
        let Some(grammar) = &self.sampling.grammar else {
            return Ok(());
        };
        tokenizer.check_grammar(grammar).map_err(|detail| {
            let param = self.constraint.unwrap_or("grammar");
            ApiError::invalid(param, format!("'{param}' can't be used: {detail}"))
        })
    }

    /// The field to blame when no token may follow.
    pub(super) fn restriction(&self) -> Option<&'static str> {
        let biased = !self.sampling.logit_bias.is_empty();
        self.constraint.or(biased.then_some("logit_bias"))
    }
}

/// Fields that are refused unless their value is one of these (JSON) or `null`.
const UNSUPPORTED: &[(&str, &[&str])] = &[
    // OpenAI's
    ("n", &["1"]),
    ("best_of", &["1"]),
    ("echo", &["false"]),
    ("suffix", &["\"\""]),
    ("audio", &[]),
    ("modalities", &["[\"text\"]"]),
    ("functions", &["[]"]),
    ("function_call", &["\"none\"", "\"auto\""]),
    ("prediction", &[]),
    ("web_search_options", &[]),
    ("store", &["false"]),
    ("verbosity", &["\"medium\""]),
    // llama.cpp's
    ("mirostat", &["0"]),
    ("typical_p", &["1"]),
    ("dry_multiplier", &["0"]),
    ("xtc_probability", &["0"]),
    ("dynatemp_range", &["0"]),
    ("samplers", &[]),
    ("json_schema", &[]),
    ("n_probs", &["0"]),
    ("lora", &["[]"]),
    // vLLM's
    ("use_beam_search", &["false"]),
    ("length_penalty", &["1"]),
    ("min_tokens", &["0"]),
    ("stop_token_ids", &["[]"]),
    ("include_stop_str_in_output", &["false"]),
    ("prompt_logprobs", &[]),
    ("prompt_embeds", &[]),
    ("guided_json", &[]),
    ("guided_regex", &[]),
    ("guided_choice", &[]),
    ("guided_grammar", &[]),
    ("structured_outputs", &[]),
    ("continue_final_message", &["false"]),
    ("add_generation_prompt", &["true"]),
];

/// Reads and checks what both endpoints share. `token_count` bounds ids in `logit_bias`.
pub(super) fn parse(fields: &Fields, token_count: usize) -> Result<Parameters, ApiError> {
    refuse_unsupported(fields)?;
    let stream = fields.bool("stream")?.unwrap_or(false);
    let sampling = sampling(fields, token_count)?;
    Ok(Parameters {
        stream,
        include_usage: include_usage(fields, stream)?,
        max_tokens: max_tokens(fields)?,
        stops: stops(fields)?,
        ignore_eos: fields.bool("ignore_eos")?.unwrap_or(false),
        constraint: ["grammar", "response_format"]
            .into_iter()
            .find(|name| fields.get(name).is_some())
            .filter(|_| sampling.grammar.is_some()),
        sampling,
    })
}

fn refuse_unsupported(fields: &Fields) -> Result<(), ApiError> {
    for (name, defaults) in UNSUPPORTED {
        let Some(value) = fields.get(name) else { continue };
        if !defaults.iter().any(|default| is(value, default)) {
            let only = match defaults {
                [] => "leave it out".to_string(),
                defaults => format!("leave it out or send {}", defaults.join(" or ")),
            };
            return Err(ApiError::unsupported(
                *name,
                format!("'{name}' is not supported here: {only}"),
            ));
        }
    }
    Ok(())
}

fn is(value: &Value, json: &str) -> bool {
    serde_json::from_str::<Value>(json).is_ok_and(|wanted| match (value.as_f64(), wanted.as_f64()) {
        (Some(value), Some(wanted)) => value.total_cmp(&wanted).is_eq(),
        _ => *value == wanted,
    })
}

fn include_usage(fields: &Fields, stream: bool) -> Result<bool, ApiError> {
    let Some(options) = fields.object("stream_options")? else {
        return Ok(false);
    };
    if !stream {
        return Err(ApiError::invalid(
            "stream_options",
            "'stream_options' is only allowed when 'stream' is true",
        ));
    }
    match options.get("include_usage") {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(wanted)) => Ok(*wanted),
        Some(other) => {
            let param = "stream_options.include_usage";
            Err(ApiError::invalid(
                param,
                format!("'{param}' must be a boolean, not {}", kind(other)),
            ))
        }
    }
}

/// `max_completion_tokens` wins over the older `max_tokens`; both are checked.
fn max_tokens(fields: &Fields) -> Result<Option<u32>, ApiError> {
    let range = 1..=i64::from(u32::MAX);
    let older = fields.integer("max_tokens", range.clone())?;
    let newer = fields.integer("max_completion_tokens", range)?;
    Ok(newer.or(older).map(|tokens| tokens as u32))
}

fn stops(fields: &Fields) -> Result<Vec<String>, ApiError> {
    let bad = |message: &str| Err(ApiError::invalid("stop", message));
    let stops = match fields.get("stop") {
        None => Vec::new(),
        Some(Value::String(stop)) => vec![stop.clone()],
        Some(Value::Array(stops)) if stops.len() > MAX_STOPS => {
            return bad(&format!(
                "'stop' must hold at most {MAX_STOPS} strings, not {}",
                stops.len()
            ));
        }
        Some(Value::Array(stops)) => match stops.iter().map(|stop| stop.as_str().map(String::from)).collect() {
            Some(stops) => stops,
            None => return bad("'stop' must hold strings only"),
        },
        Some(other) => {
            return bad(&format!(
                "'stop' must be a string or an array of strings, not {}",
                kind(other)
            ));
        }
    };
    if stops.iter().any(|stop| stop.is_empty() || stop.len() > MAX_STOP_BYTES) {
        return bad(&format!(
            "each string in 'stop' must have from 1 to {MAX_STOP_BYTES} bytes"
        ));
    }
    Ok(stops)
}

fn sampling(fields: &Fields, token_count: usize) -> Result<Sampling, ApiError> {
    let plain = Sampling::default();
    let repetition = match fields.number("repetition_penalty", 0.01..=10.0)? {
        Some(penalty) => Some(penalty),
        None => fields.number("repeat_penalty", 0.01..=10.0)?,
    };
    // -1 switches `top_k` off in vLLM, and makes `seed` random in llama.cpp and vLLM.
    let top_k = fields.integer("top_k", -1..=i64::from(i32::MAX))?.unwrap_or(0).max(0);
    let seed = match fields.get("seed") {
        None => None,
        Some(Value::Number(seed)) if seed.is_u64() => seed.as_u64(),
        Some(_) => fields
            .integer("seed", i64::MIN..=i64::MAX)?
            .filter(|&seed| seed != -1)
            .map(|seed| seed as u64),
    };
    Ok(Sampling {
        temperature: fields.number("temperature", 0.0..=2.0)?.unwrap_or(plain.temperature),
        top_k: top_k as u32,
        top_p: fields.number("top_p", 0.0..=1.0)?.unwrap_or(plain.top_p),
        min_p: fields.number("min_p", 0.0..=1.0)?.unwrap_or(plain.min_p),
        repetition_penalty: repetition.unwrap_or(plain.repetition_penalty),
        presence_penalty: fields
            .number("presence_penalty", -2.0..=2.0)?
            .unwrap_or(plain.presence_penalty),
        frequency_penalty: fields
            .number("frequency_penalty", -2.0..=2.0)?
            .unwrap_or(plain.frequency_penalty),
        penalty_last: match fields.integer("repeat_last_n", 0..=i64::from(i32::MAX))? {
            Some(tokens) => tokens as u32,
            None => plain.penalty_last,
        },
        seed: seed.unwrap_or_else(random_seed),
        logit_bias: logit_bias(fields, token_count)?,
        grammar: grammar(fields)?,
        ..plain
    })
}

fn random_seed() -> u64 {
    // A UUID has six fixed bits; folding its halves covers them with random ones.
    let (high, low) = Uuid::new_v4().as_u64_pair();
    high ^ low
}

fn logit_bias(fields: &Fields, token_count: usize) -> Result<Vec<(i32, f32)>, ApiError> {
    let Some(biases) = fields.object("logit_bias")? else {
        return Ok(Vec::new());
    };
    biases
        .iter()
        .map(|(token, bias)| {
            let id = token
                .parse::<i32>()
                .ok()
                .filter(|&id| id >= 0 && (id as usize) < token_count);
            let bias = bias.as_f64().filter(|bias| (-100.0..=100.0).contains(bias));
            match (id, bias) {
                (Some(id), Some(bias)) => Ok((id, bias as f32)),
                (None, _) => Err(ApiError::invalid(
                    "logit_bias",
                    format!(
                        "'logit_bias' names token '{token}': ids go from 0 to {}",
                        token_count.saturating_sub(1)
                    ),
                )),
                (_, None) => Err(ApiError::invalid(
                    "logit_bias",
                    format!("the bias of token {token} in 'logit_bias' must be a number from -100 to 100"),
                )),
            }
        })
        .collect()
}

fn grammar(fields: &Fields) -> Result<Option<Grammar>, ApiError> {
    let gbnf = fields.string("grammar")?.map(|text| Grammar::Gbnf(text.to_string()));
    let format = response_format(fields)?;
    if gbnf.is_some() && format.is_some() {
        return Err(ApiError::invalid(
            "grammar",
            "'grammar' and 'response_format' can't be used together",
        ));
    }
    Ok(gbnf.or(format))
}

fn response_format(fields: &Fields) -> Result<Option<Grammar>, ApiError> {
    let Some(format) = fields.object("response_format")? else {
        return Ok(None);
    };
    match format.get("type").and_then(Value::as_str) {
        Some("text") => Ok(None),
        Some("json_object") => Ok(Some(Grammar::JsonSchema(r#"{"type":"object"}"#.to_string()))),
        Some("json_schema") => {
            let schema = format.get("json_schema").and_then(|schema| schema.get("schema"));
            let Some(schema) = schema.filter(|schema| schema.is_object()) else {
                let param = "response_format.json_schema.schema";
                return Err(ApiError::invalid(param, format!("'{param}' must be an object")));
            };
            Ok(Some(Grammar::JsonSchema(schema.to_string())))
        }
        _ => {
            let message = "'response_format.type' must be text, json_object or json_schema";
            Err(ApiError::invalid("response_format.type", message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fields::fields;
    use super::*;
    use serde_json::json;

    fn read(body: Value) -> Result<Parameters, ApiError> {
        parse(&fields(body), 100)
    }

    /// The field that the error names.
    fn refused(body: Value) -> String {
        read(body).unwrap_err().body()["error"]["param"]
            .as_str()
            .unwrap()
            .to_string()
    }

    #[test]
    fn every_parameter_reaches_the_sampler() {
        let parameters = read(json!({
            "temperature": 0.5, "top_k": 40, "top_p": 0.9, "min_p": 0.05, "repeat_penalty": 1.1, "repeat_last_n": 32,
            "presence_penalty": 0.25, "frequency_penalty": -0.5, "seed": 7, "logit_bias": {"5": -100, "6": 1.5},
            "stop": ["a", "b"], "max_tokens": 9, "ignore_eos": true, "grammar": "root ::= \"x\"", "stream": true,
            "stream_options": {"include_usage": true}
        }))
        .unwrap();
        let expected = Sampling {
            temperature: 0.5,
            top_k: 40,
            top_p: 0.9,
            min_p: 0.05,
            repetition_penalty: 1.1,
            presence_penalty: 0.25,
            frequency_penalty: -0.5,
            penalty_last: 32,
            seed: 7,
            top_logprobs: None,
            logits: false,
            logit_bias: vec![(5, -100.0), (6, 1.5)],
            grammar: Some(Grammar::Gbnf("root ::= \"x\"".into())),
        };
        assert_eq!(parameters.sampling, expected);
        assert_eq!(parameters.stops, ["a", "b"]);
        assert_eq!(parameters.max_tokens, Some(9));
        assert!(parameters.stream && parameters.include_usage && parameters.ignore_eos);
    }

    #[test]
    fn nothing_set_samples_from_the_plain_distribution_with_a_seed_of_its_own() {
        let (one, two) = (read(json!({})).unwrap(), read(json!({"seed": -1})).unwrap());
        assert_ne!(one.sampling.seed, two.sampling.seed);
        assert_eq!(
            Sampling {
                seed: 0,
                ..one.sampling
            },
            Sampling::default()
        );
        assert_eq!((one.max_tokens, one.stream, one.stops.len()), (None, false, 0));
    }

    #[test]
    fn seeds_of_64_bits_are_kept() {
        assert_eq!(read(json!({"seed": u64::MAX})).unwrap().sampling.seed, u64::MAX);
        assert_eq!(read(json!({"seed": -2})).unwrap().sampling.seed, (-2i64) as u64);
    }

    #[test]
    fn values_out_of_range_are_refused_by_name() {
        for (name, value) in [
            ("temperature", json!(2.1)),
            ("temperature", json!("warm")),
            ("top_p", json!(-0.1)),
            ("top_k", json!(1.5)),
            ("min_p", json!(2)),
            ("repeat_penalty", json!(0)),
            ("repetition_penalty", json!(-1)),
            ("presence_penalty", json!(3)),
            ("frequency_penalty", json!(-3)),
            ("max_tokens", json!(0)),
            ("max_tokens", json!(-1)),
            ("max_completion_tokens", json!(0)),
            ("seed", json!("x")),
            ("stop", json!(["1", "2", "3", "4", "5"])),
            ("stop", json!("")),
            ("stop", json!([1])),
            ("stop", json!("s".repeat(MAX_STOP_BYTES + 1))),
            ("logit_bias", json!({"100": 1})),
            ("logit_bias", json!({"-1": 1})),
            ("logit_bias", json!({"5": 101})),
            ("stream", json!("yes")),
        ] {
            assert_eq!(
                refused(Value::Object([(name.to_string(), value.clone())].into_iter().collect())),
                name,
                "{value}"
            );
        }
    }

    #[test]
    fn s10_more_than_one_answer_is_refused_by_name() {
        assert_eq!(refused(json!({"n": 2})), "n");
        assert_eq!(refused(json!({"best_of": 3})), "best_of");
        assert!(read(json!({"n": 1, "best_of": 1.0})).is_ok());
    }

    #[test]
    fn what_cannot_be_honoured_is_refused_and_its_default_is_not() {
        for (name, _) in UNSUPPORTED {
            let body = |value: Value| Value::Object([(name.to_string(), value)].into_iter().collect());
            assert_eq!(refused(body(json!({"something": "else"}))), *name);
            assert!(read(body(Value::Null)).is_ok(), "{name}");
        }
        for (name, default) in UNSUPPORTED
            .iter()
            .flat_map(|(name, defaults)| defaults.iter().map(move |d| (name, d)))
        {
            let body = [(name.to_string(), serde_json::from_str(default).unwrap())]
                .into_iter()
                .collect();
            assert!(read(Value::Object(body)).is_ok(), "{name} {default}");
        }
        assert!(read(json!({"user": "me", "metadata": {}, "never_heard_of": 1})).is_ok());
    }

    #[test]
    fn d4_the_newer_cap_wins() {
        assert_eq!(read(json!({"max_completion_tokens": 5})).unwrap().max_tokens, Some(5));
        assert_eq!(
            read(json!({"max_completion_tokens": 5, "max_tokens": 50}))
                .unwrap()
                .max_tokens,
            Some(5)
        );
        assert_eq!(
            read(json!({"max_completion_tokens": null, "max_tokens": 50}))
                .unwrap()
                .max_tokens,
            Some(50)
        );
    }

    #[test]
    fn d1_stream_options_need_a_stream() {
        assert_eq!(
            refused(json!({"stream_options": {"include_usage": true}})),
            "stream_options"
        );
        assert_eq!(
            refused(json!({"stream": true, "stream_options": {"include_usage": 1}})),
            "stream_options.include_usage"
        );
    }

    #[test]
    fn response_formats_become_grammars() {
        let grammar = |format: Value| read(json!({"response_format": format})).unwrap().sampling.grammar;
        assert_eq!(grammar(json!({"type": "text"})), None);
        assert_eq!(
            grammar(json!({"type": "json_object"})),
            Some(Grammar::JsonSchema("{\"type\":\"object\"}".into()))
        );
        let schema = json!({"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "array"}}});
        assert_eq!(
            grammar(schema),
            Some(Grammar::JsonSchema("{\"type\":\"array\"}".into()))
        );
        assert_eq!(
            refused(json!({"response_format": {"type": "xml"}})),
            "response_format.type"
        );
        assert_eq!(
            refused(json!({"response_format": {"type": "json_schema"}})),
            "response_format.json_schema.schema"
        );
        assert_eq!(
            refused(json!({"grammar": "g", "response_format": {"type": "json_object"}})),
            "grammar"
        );
    }
}
