//! Sampled text follows its grammar, and a grammar that can't work is an error.
#![allow(clippy::unwrap_used, reason = "tests end at the first surprise")]

mod support;

use kvasir_engine::sampler::{Sampler, SamplerError, uniform};
use kvasir_engine::{Backend, Mode, Vocabulary};
use kvasir_tests::models::smollm2;
use kvasir_wire::frame::{Grammar, Sampling};

fn vocabulary() -> Vocabulary {
    Vocabulary::load(Backend::init(Mode::Fast).unwrap(), &smollm2()).unwrap()
}

/// Logits that know nothing of the grammar, with end tokens likely, so that texts end.
fn noise(vocabulary: &Vocabulary, seed: u64, position: u32) -> Vec<f32> {
    let start = seed.wrapping_mul(1_000_003).wrapping_add(u64::from(position));
    (0..vocabulary.len() as u32)
        .map(|token| {
            let short = if vocabulary.piece(token as i32, true).len() <= 2 {
                4.0
            } else {
                0.0
            };
            let end = if vocabulary.is_end(token as i32) { 12.0 } else { 0.0 };
            uniform(start, token) as f32 * 8.0 + short + end
        })
        .collect()
}

/// Samples until the text ends; none when it does not within 300 tokens.
fn text(vocabulary: &Vocabulary, sampling: &Sampling) -> Option<String> {
    let mut sampler = Sampler::new(sampling, &[], vocabulary).unwrap();
    let mut bytes = Vec::new();
    for position in 0..300 {
        let choice = sampler
            .sample(&mut noise(vocabulary, sampling.seed, position), position)
            .unwrap();
        if vocabulary.is_end(choice.token) {
            return Some(String::from_utf8(bytes).unwrap());
        }
        bytes.extend(vocabulary.piece(choice.token, true));
    }
    None
}

fn fault(grammar: Grammar) -> SamplerError {
    let sampling = Sampling {
        grammar: Some(grammar),
        ..Sampling::default()
    };
    Sampler::new(&sampling, &[], &vocabulary()).err().unwrap()
}

#[test]
fn a_schema_gives_json_that_fits_it() {
    let schema = r#"{
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 8},
            "age": {"type": "integer", "minimum": 0, "maximum": 130},
            "kind": {"enum": ["cat", "dog"]}
        },
        "required": ["name", "age", "kind"],
        "additionalProperties": false
    }"#;
    let vocabulary = vocabulary();
    for (seed, temperature, top_k, top_p) in [(1, 0.0, 0, 1.0), (2, 1.0, 40, 0.95), (3, 1.0, 0, 0.9), (4, 1.5, 0, 1.0)]
    {
        let sampling = Sampling {
            temperature,
            top_k,
            top_p,
            seed,
            grammar: Some(Grammar::JsonSchema(schema.to_owned())),
            ..Sampling::default()
        };
        let text = text(&vocabulary, &sampling).expect("the text ends");
        let value: serde_json::Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert!(value["name"].as_str().unwrap().chars().count() <= 8, "{text}");
        assert!(value["age"].as_u64().unwrap() <= 130, "{text}");
        assert!(["cat", "dog"].contains(&value["kind"].as_str().unwrap()), "{text}");
        assert_eq!(value.as_object().unwrap().len(), 3, "{text}");
    }
}

#[test]
fn a_grammar_that_is_complete_allows_only_end_tokens() {
    let vocabulary = vocabulary();
    let sampling = Sampling {
        grammar: Some(Grammar::Gbnf("root ::= \"yes\"".to_owned())),
        ..Sampling::default()
    };
    for temperature in [0.0, 1.0] {
        let mut sampler = Sampler::new(
            &Sampling {
                temperature,
                ..sampling.clone()
            },
            &[],
            &vocabulary,
        )
        .unwrap();
        vocabulary
            .tokenize("yes", false, false)
            .iter()
            .for_each(|&token| sampler.accept(token).unwrap());
        // end tokens are the least likely of all
        let mut logits: Vec<f32> = (0..vocabulary.len() as i32)
            .map(|t| if vocabulary.is_end(t) { -50.0 } else { 5.0 })
            .collect();
        for position in 3..6 {
            let choice = sampler.sample(&mut logits, position).unwrap();
            assert!(vocabulary.is_end(choice.token));
        }
    }
}

#[test]
fn a_token_off_the_grammar_is_refused_and_the_text_goes_on() {
    let vocabulary = vocabulary();
    let sampling = Sampling {
        grammar: Some(Grammar::Gbnf("root ::= [a-c]{3}".to_owned())),
        ..Sampling::default()
    };
    let mut sampler = Sampler::new(&sampling, &[], &vocabulary).unwrap();
    let token = |text: &str| vocabulary.tokenize(text, false, false)[0];
    let end = vocabulary.end_tokens()[0];
    for refused in [token("x"), end] {
        assert!(matches!(sampler.accept(refused), Err(SamplerError::OffGrammar { .. })));
    }
    for letter in ["a", "b", "c"] {
        sampler.accept(token(letter)).unwrap();
    }
    sampler.accept(end).unwrap();
}

#[test]
fn faults_are_told_in_words() {
    let gbnf = |text: &str| fault(Grammar::Gbnf(text.to_owned()));
    assert_eq!(
        gbnf("root ::= (").to_string(),
        "the grammar is malformed: line 1, column 11: ) is expected"
    );
    assert_eq!(gbnf("root ::= \"a\0\"").reason(), "InvalidGrammar");
    assert!(
        gbnf("root ::= root \"a\" | \"a\"")
            .to_string()
            .contains("left recursion")
    );
    assert_eq!(gbnf("root ::= \"a\"{9,1}").reason(), "InvalidGrammar");
    let schema = |text: &str| fault(Grammar::JsonSchema(text.to_owned())).to_string();
    assert!(schema("{").starts_with("the JSON schema can't be turned into a grammar: EOF while parsing"));
    assert!(schema(r#"{"type": "int"}"#).ends_with("at #: there is no type int"));
    assert!(schema(&"[".repeat(100_000)).contains("recursion limit"));
    assert!(
        schema(r#"{"type": "array", "minItems": 9, "maxItems": 3}"#).starts_with("the JSON schema can't be turned")
    );
}

/// What passes the check must not be refused by llama.cpp's parser, which tells standard error only.
#[test]
fn llama_cpp_agrees_with_the_check() {
    const SEEDS: [&str; 3] = [
        "root ::= item (\",\" item){0,3} ws\nitem ::= [a-z]+ | \"\\x41\\n\" | \"(\" item \")\" # note\nws ::= | \" \" ws\n",
        "root ::= (\n  \"a\"? |\n  [^b-d\\]]{2,4}\n)* .\n",
        "root ::= a b\na ::= \"\\u00e9\"{2,}\nb ::= !<[3]> <|im_end|> a*\n",
    ];
    const PIECES: [&str; 18] = [
        "(", ")", "|", "*", "+", "?", "{1,2}", "{", "}", "\"", "[", "]", "\\", "::=", "\n", "a", "-", "<",
    ];
    let vocabulary = vocabulary();
    let (mut passed, mut refused) = (0, 0);
    for round in 0..600_u32 {
        let mut grammar = SEEDS[round as usize % SEEDS.len()].to_owned();
        for edit in 0..=round % 2 {
            let place = |range: usize, salt: u32| (uniform(u64::from(round * 8 + edit), salt) * range as f64) as usize;
            let at = place(grammar.len(), 0);
            if !grammar.is_char_boundary(at) || !grammar.is_char_boundary(at + 1) {
                continue;
            }
            match place(2, 1) {
                0 => grammar.insert_str(at, PIECES[place(PIECES.len(), 2)]),
                _ => grammar.replace_range(at..=at, ""),
            }
        }
        let sampling = Sampling {
            grammar: Some(Grammar::Gbnf(grammar.clone())),
            ..Sampling::default()
        };
        match Sampler::new(&sampling, &[], &vocabulary) {
            Ok(_) => passed += 1,
            Err(error) => {
                refused += 1;
                let text = error.to_string();
                assert!(
                    text.contains("line ") || text.contains("no rule root") || text.contains("left recursion"),
                    "{grammar}\n{text}"
                );
            }
        }
    }
    assert!(passed > 50 && refused > 50, "{passed} passed, {refused} were refused");
}

fn schema_fault(schema: &str) -> Option<String> {
    let grammar = Grammar::JsonSchema(schema.to_owned());
    let refused = kvasir_engine::sampler::check_grammar(&grammar, &vocabulary());
    // what is checked beforehand is what a sampler would say
    let sampler = Sampler::new(
        &Sampling {
            grammar: Some(grammar),
            ..Sampling::default()
        },
        &[],
        &vocabulary(),
    );
    assert_eq!(refused.is_ok(), sampler.is_ok());
    refused.err().map(|error| error.to_string())
}

#[test]
fn schemas_that_would_not_be_kept_are_refused_with_the_reason() {
    for (schema, told) in [
        (r#"{"type": "string", "pattern": "["}"#, "a [ is not closed"),
        (r#"{"type": "string", "pattern": "^(a$"}"#, "a ( is not closed"),
        (
            r#"{"type": "string", "pattern": "abc"}"#,
            "it must begin with ^ and end with $",
        ),
        (
            r#"{"type": "string", "minLength": 3, "maxLength": 2}"#,
            "minLength 3 is above maxLength 2",
        ),
        (
            r#"{"type": "array", "items": {}, "minItems": 3, "maxItems": 2}"#,
            "minItems 3 is above maxItems 2",
        ),
        (
            r#"{"type": "integer", "minimum": 3, "maximum": 2}"#,
            "no whole number lies between 3 and 2",
        ),
        (r#"{"enum": []}"#, "enum must be an array with at least one value"),
        (r#"{"type": "text"}"#, "there is no type text"),
        (
            r##"{"properties": {"a": {"$ref": "#"}}}"##,
            "the schema can't hold itself as a whole",
        ),
    ] {
        let fault = schema_fault(schema).unwrap_or_else(|| panic!("{schema} is taken"));
        assert!(fault.contains(told), "{schema}: {fault}");
    }
    for schema in [
        "{}",
        r#"{"type": "object"}"#,
        r#"{"type": "string", "pattern": "^[A-Z]{2}-\\d+(\\.\\w*)?$"}"#,
        r#"{"type": "string", "format": "date"}"#,
        r#"{"type": "integer", "minimum": 2, "maximum": 2}"#,
        r##"{"$ref": "#/$defs/a", "$defs": {"a": {"properties": {"next": {"$ref": "#/$defs/a"}}}}}"##,
    ] {
        assert_eq!(schema_fault(schema), None, "{schema}");
    }
}

#[test]
fn a_pattern_is_kept_with_classes_that_llama_cpp_does_not_know() {
    let vocabulary = vocabulary();
    for seed in 0..4 {
        let sampling = Sampling {
            temperature: 1.0,
            seed,
            grammar: Some(Grammar::JsonSchema(
                r#"{"type": "string", "pattern": "^\\d{3}-\\w.[^a]$"}"#.to_owned(),
            )),
            ..Sampling::default()
        };
        let text = text(&vocabulary, &sampling).expect("the text ends");
        let value: String = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
        let characters: Vec<char> = value.chars().collect();
        assert_eq!(characters.len(), 7, "{value}");
        assert!(characters[..3].iter().all(char::is_ascii_digit), "{value}");
        assert_eq!(characters[3], '-');
        assert!(characters[4].is_ascii_alphanumeric() || characters[4] == '_', "{value}");
        assert_ne!(characters[6], 'a', "{value}");
    }
}
