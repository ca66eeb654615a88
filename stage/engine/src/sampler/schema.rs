//! Says what is wrong with a JSON schema that llama.cpp can't turn into a grammar; llama.cpp itself does not tell.

use serde_json::Value;

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
            return fault_at(
                path,
                format!("$ref {reference} is not supported: only references into the same schema are"),
            );
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

#[cfg(test)]
mod tests {
    use super::*;

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
