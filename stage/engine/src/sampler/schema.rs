//! Says what is wrong with a JSON schema that llama.cpp can't turn into a grammar; llama.cpp itself does not tell.

use super::pattern;
use serde_json::{Map, Value};

/// The first fault, by the rules of llama.cpp's `common_chat_schema_builder`; none when it is of another kind (a
/// pattern that no grammar can express, say).
pub(crate) fn fault(schema: &Value) -> Option<String> {
    Finder {
        root: schema,
        followed: Vec::new(),
    }
    .node(schema, "#")
    .err()
}

struct Finder<'a> {
    root: &'a Value,
    /// references that were looked into, so that a circle ends
    followed: Vec<&'a str>,
}

type Found = Result<(), String>;

fn fault_at(path: &str, what: impl std::fmt::Display) -> Found {
    Err(format!("at {path}: {what}"))
}

impl<'a> Finder<'a> {
    fn node(&mut self, schema: &'a Value, path: &str) -> Found {
        let Some(fields) = schema.as_object() else {
            return fault_at(path, "a schema must be an object");
        };
        if let Some(reference) = fields.get("$ref") {
            return self.reference(reference, path);
        }
        for key in ["oneOf", "anyOf", "allOf"] {
            if let Some(alternatives) = fields.get(key) {
                self.alternatives(alternatives, &format!("{path}/{key}"))?;
            }
        }
        if let Some(values) = fields.get("enum")
            && values.as_array().is_none_or(Vec::is_empty)
        {
            return fault_at(path, "enum must be an array with at least one value");
        }
        if let Some(kind) = fields.get("type") {
            check_type(kind, path)?;
        }
        for key in ["minItems", "maxItems", "minLength", "maxLength"] {
            if fields
                .get(key)
                .is_some_and(|count| count.as_u64().is_none_or(|count| count > i32::MAX as u64))
            {
                return fault_at(path, format!("{key} must be a whole number, 0 or more"));
            }
        }
        for key in ["pattern", "format"] {
            if fields.get(key).is_some_and(|text| !text.is_string()) {
                return fault_at(path, format!("{key} must be a text"));
            }
        }
        for key in ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"] {
            if fields.get(key).is_some_and(|bound| !bound.is_number()) {
                return fault_at(path, format!("{key} must be a number"));
            }
        }
        if let Some(properties) = fields.get("properties") {
            let Some(properties) = properties.as_object() else {
                return fault_at(path, "properties must be an object");
            };
            for (name, property) in properties {
                self.node(property, &format!("{path}/properties/{name}"))?;
            }
        }
        match fields.get("additionalProperties") {
            None | Some(Value::Bool(_)) => {}
            Some(other) => self.node(other, &format!("{path}/additionalProperties"))?,
        }
        match fields.get("items").or_else(|| fields.get("prefixItems")) {
            None => Ok(()),
            Some(Value::Array(items)) => items
                .iter()
                .enumerate()
                .try_for_each(|(index, item)| self.node(item, &format!("{path}/items/{index}"))),
            Some(item) => self.node(item, &format!("{path}/items")),
        }
    }

    fn alternatives(&mut self, alternatives: &'a Value, path: &str) -> Found {
        match alternatives.as_array() {
            None => fault_at(path, "it must be an array of schemas"),
            Some(schemas) if schemas.is_empty() => fault_at(path, "it must not be empty"),
            Some(schemas) => schemas
                .iter()
                .enumerate()
                .try_for_each(|(index, schema)| self.node(schema, &format!("{path}/{index}"))),
        }
    }

    fn reference(&mut self, reference: &'a Value, path: &str) -> Found {
        let Some(reference) = reference.as_str() else {
            return fault_at(path, "$ref must be a text");
        };
        let Some(target) = reference.strip_prefix('#').filter(|target| target.starts_with('/')) else {
            let why = if reference == "#" {
                "the schema can't hold itself as a whole: put it into $defs and refer to it there"
            } else if reference.starts_with('#') {
                "references by name (anchors) are not supported: write the path, as in #/$defs/name"
            } else {
                "only references into the same schema are"
            };
            return fault_at(path, format!("$ref {reference} is not supported: {why}"));
        };
        if self.followed.contains(&reference) {
            return Ok(());
        }
        self.followed.push(reference);
        // llama.cpp does not unescape ~0 and ~1, so neither does this
        let mut schema = self.root;
        for part in target[1..].split('/') {
            let next = match schema {
                Value::Object(fields) => fields.get(part),
                Value::Array(items) => part.parse::<usize>().ok().and_then(|index| items.get(index)),
                _ => None,
            };
            match next {
                Some(next) => schema = next,
                None => return fault_at(path, format!("$ref {reference} leads nowhere: there is no {part}")),
            }
        }
        self.node(schema, reference)
    }
}

fn check_type(kind: &Value, path: &str) -> Found {
    const TYPES: [&str; 7] = ["object", "string", "array", "integer", "number", "boolean", "null"];
    match kind {
        Value::Array(kinds) if kinds.is_empty() => fault_at(path, "type must not be empty"),
        Value::Array(kinds) => kinds.iter().try_for_each(|kind| check_type(kind, path)),
        Value::String(name) if TYPES.contains(&name.as_str()) => Ok(()),
        Value::String(name) => fault_at(path, format!("there is no type {name}")),
        _ => fault_at(path, "type must be a text or an array of texts"),
    }
}

/// The first promise of the schema that llama.cpp would make a grammar of without keeping it: a pattern that it takes for
/// any text, or bounds that nothing lies between.
pub(crate) fn unmet(schema: &Value) -> Option<String> {
    let mut found = None;
    let mut look = |fields: &Map<String, Value>, path: &str| {
        if found.is_none() {
            found = bounds(fields)
                .or_else(|| pattern_fault(fields))
                .map(|what| format!("at {path}: {what}"));
        }
    };
    walk(schema, "#", &mut look);
    found
}

/// Writes patterns with what llama.cpp knows of regular expressions; those of [`unmet`] stay.
pub(crate) fn translate_patterns(schema: &mut Value) {
    let Some(fields) = schema.as_object_mut() else { return };
    if let Some(Value::String(text)) = fields.get_mut("pattern")
        && let Ok(translated) = pattern::translate(text)
    {
        *text = translated;
    }
    for (key, value) in fields {
        match (holds(key), value) {
            (Some(Holds::Schemas), Value::Array(items)) => items.iter_mut().for_each(translate_patterns),
            (Some(Holds::Schemas), schema) => translate_patterns(schema),
            (Some(Holds::Named), Value::Object(named)) => named.values_mut().for_each(translate_patterns),
            _ => {}
        }
    }
}

/// What a keyword of a schema holds further schemas in.
enum Holds {
    /// a schema, or an array of them
    Schemas,
    /// schemas by name
    Named,
}

fn holds(key: &str) -> Option<Holds> {
    match key {
        "oneOf" | "anyOf" | "allOf" | "items" | "prefixItems" | "additionalProperties" => Some(Holds::Schemas),
        "properties" | "$defs" | "definitions" => Some(Holds::Named),
        _ => None,
    }
}

/// Shows every schema within a schema.
fn walk(schema: &Value, path: &str, look: &mut dyn FnMut(&Map<String, Value>, &str)) {
    let Some(fields) = schema.as_object() else { return };
    look(fields, path);
    for (key, value) in fields {
        let path = format!("{path}/{key}");
        match (holds(key), value) {
            (Some(Holds::Schemas), Value::Array(items)) => {
                for (index, item) in items.iter().enumerate() {
                    walk(item, &format!("{path}/{index}"), look);
                }
            }
            (Some(Holds::Schemas), schema) => walk(schema, &path, look),
            (Some(Holds::Named), Value::Object(named)) => {
                for (name, schema) in named {
                    walk(schema, &format!("{path}/{name}"), look);
                }
            }
            _ => {}
        }
    }
}

/// Bounds that nothing lies between.
fn bounds(fields: &Map<String, Value>) -> Option<String> {
    let number = |key: &str| fields.get(key).and_then(Value::as_f64);
    for (least, most) in [
        ("minLength", "maxLength"),
        ("minItems", "maxItems"),
        ("minProperties", "maxProperties"),
    ] {
        if let (Some(low), Some(high)) = (number(least), number(most))
            && low > high
        {
            return Some(format!("{least} {low} is above {most} {high}: nothing satisfies that"));
        }
    }
    let whole = fields.get("type").and_then(Value::as_str) == Some("integer");
    // the innermost bound of each side, and whether it may be reached
    let side = |reached: &str, excluded: &str, outer: fn(f64, f64) -> bool| match (number(reached), number(excluded)) {
        (Some(reached), Some(excluded)) if outer(reached, excluded) => Some((excluded, false)),
        (Some(reached), _) => Some((reached, true)),
        (None, excluded) => excluded.map(|bound| (bound, false)),
    };
    let low = side("minimum", "exclusiveMinimum", |reached, excluded| reached <= excluded);
    let high = side("maximum", "exclusiveMaximum", |reached, excluded| reached >= excluded);
    let (Some((low, low_in)), Some((high, high_in))) = (low, high) else {
        return None;
    };
    let (first, last) = if whole {
        let first = if low_in { low.ceil() } else { low.floor() + 1.0 };
        let last = if high_in { high.floor() } else { high.ceil() - 1.0 };
        (first, last)
    } else {
        (low, high)
    };
    let none = first > last || (!whole && low >= high && !(low_in && high_in));
    none.then(|| {
        let kind = if whole { "whole number" } else { "number" };
        format!("no {kind} lies between {low} and {high}: nothing satisfies that")
    })
}

fn pattern_fault(fields: &Map<String, Value>) -> Option<String> {
    let text = fields.get("pattern")?.as_str()?;
    pattern::translate(text)
        .err()
        .map(|why| format!("pattern {text} can't be used: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nothing_satisfies_is_told_and_what_something_does_is_not() {
        let of = |schema: &str| unmet(&serde_json::from_str(schema).unwrap());
        for (schema, told) in [
            (
                r#"{"minLength": 3, "maxLength": 1}"#,
                "at #: minLength 3 is above maxLength 1: nothing satisfies that",
            ),
            (
                r#"{"properties": {"a": {"items": {"minItems": 2, "maxItems": 1}}}}"#,
                "at #/properties/a/items: minItems 2 is above maxItems 1: nothing satisfies that",
            ),
            (
                r#"{"anyOf": [{}, {"type": "number", "minimum": 2, "maximum": 1.5}]}"#,
                "at #/anyOf/1: no number lies between 2 and 1.5: nothing satisfies that",
            ),
            (
                r#"{"$defs": {"a": {"type": "integer", "minimum": 1.2, "maximum": 1.8}}}"#,
                "at #/$defs/a: no whole number lies between 1.2 and 1.8: nothing satisfies that",
            ),
            (
                r#"{"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 2}"#,
                "at #: no whole number lies between 1 and 2: nothing satisfies that",
            ),
            (
                r#"{"minimum": 1, "exclusiveMaximum": 1}"#,
                "at #: no number lies between 1 and 1: nothing satisfies that",
            ),
            (
                r#"{"pattern": "^(a$"}"#,
                "at #: pattern ^(a$ can't be used: a ( is not closed",
            ),
        ] {
            assert_eq!(of(schema).as_deref(), Some(told), "{schema}");
        }
        for schema in [
            r#"{"minLength": 1, "maxLength": 1, "minimum": 1, "maximum": 1, "type": "integer"}"#,
            r#"{"exclusiveMinimum": 0, "maximum": 0.5}"#,
            r#"{"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 2}"#,
            r#"{"properties": {"pattern": {"type": "string"}}, "enum": [{"pattern": "("}], "default": {"pattern": "("}}"#,
        ] {
            assert_eq!(of(schema), None, "{schema}");
        }
    }

    #[test]
    fn patterns_are_translated_where_they_are_patterns() {
        let mut schema = serde_json::json!({
            "properties": {"pattern": {"pattern": "^\\d$"}}, "enum": [{"pattern": "^\\d$"}],
            "anyOf": [{"pattern": "^\\d$"}],
        });
        translate_patterns(&mut schema);
        let expected = serde_json::json!({
            "properties": {"pattern": {"pattern": "^[0-9]$"}}, "enum": [{"pattern": "^\\d$"}],
            "anyOf": [{"pattern": "^[0-9]$"}],
        });
        assert_eq!(schema, expected);
    }

    #[test]
    fn faults_name_their_place() {
        let of = |schema: &str| fault(&serde_json::from_str(schema).unwrap());
        assert_eq!(
            of(r#"{"type": "object", "properties": {"a": {"type": "int"}}}"#).unwrap(),
            "at #/properties/a: there is no type int"
        );
        assert_eq!(
            of(r##"{"$ref": "#/$defs/a"}"##).unwrap(),
            "at #: $ref #/$defs/a leads nowhere: there is no $defs"
        );
        assert_eq!(
            of(r#"{"items": {"$ref": "https://example.org/a"}}"#).unwrap(),
            "at #/items: $ref https://example.org/a is not supported: only references into the same schema are"
        );
        assert_eq!(
            of(r##"{"properties": {"next": {"$ref": "#"}}}"##).unwrap(),
            "at #/properties/next: $ref # is not supported: the schema can't hold itself as a whole: put it into $defs and \
             refer to it there"
        );
        assert_eq!(of(r#"{"anyOf": []}"#).unwrap(), "at #/anyOf: it must not be empty");
        assert_eq!(
            of(r#"{"type": "array", "minItems": -1}"#).unwrap(),
            "at #: minItems must be a whole number, 0 or more"
        );
        assert_eq!(of("[]").unwrap(), "at #: a schema must be an object");
    }

    #[test]
    fn a_circle_of_references_is_no_fault() {
        let schema = r##"{"$ref": "#/$defs/a", "$defs": {"a": {"type": "object", "properties": {"next": {"$ref": "#/$defs/a"}}}}}"##;
        assert_eq!(fault(&serde_json::from_str(schema).unwrap()), None);
    }
}
