//! The reference of a Ring's fields, as Markdown, out of the very schema that the API server checks by.

use std::fmt::Write as _;

use schemars::{JsonSchema, schema_for};
use serde_json::Value;

use crate::{Backend, BoundaryType, CacheType, UpdateStrategy, quantity, schema::root};

const HEAD: &str = "\
<!-- Written by `cargo run -p kvasir-api --example crd` from the types: change those. -->
# The fields of a Ring

`apiVersion: kvasir.dev/v1alpha1`, `kind: Ring`. `kubectl explain ring.spec` says the same in a cluster. What stands here is checked
by the API server, and by `kvasir plan` and `kvasir up`: an unknown field is refused. What the conditions mean is in
[conditions.md](conditions.md), what is made of a Ring in [operator.md](operator.md).

A *quantity* is a number with a unit, in bytes: `512Mi`, `2Gi`, `1.5G`, or without one. Layers are counted from 0, in the whole
model; the end of a range isn't in it.
";

const STATUS: &str = "
# What the operator answers

Nothing of it is set by a user.
";

/// Fields whose types are Kubernetes' own, and their names there.
const THEIRS: [(&str, &str); 6] = [
    ("affinity", "`Affinity`"),
    ("conditions", "list of `Condition`"),
    ("imagePullSecrets", "list of `LocalObjectReference`"),
    ("resources", "`ResourceRequirements`"),
    ("tolerations", "list of `Toleration`"),
    ("topologySpreadConstraints", "list of `TopologySpreadConstraint`"),
];

/// What holds where a field is left out and the schema has no default.
const WITHOUT: [(&str, &str); 8] = [
    ("spec.boundaryType", "`F32` if `exact`, else `Bf16`"),
    ("spec.image", "the operator's"),
    ("spec.imagePullPolicy", "the operator's"),
    ("spec.market", "as if empty"),
    ("spec.model.chatTemplate", "the model's"),
    ("spec.pools[].storage.storageClassName", "the cluster's"),
    ("spec.pools[].updateStrategy", "`spec.updateStrategy`"),
    ("spec.relay", "the operator's"),
];

/// The reference, with a Ring in YAML that has every field.
pub fn reference(example: &str) -> String {
    let mut text = HEAD.to_owned();
    let properties = &root()["properties"];
    let rules: Vec<String> = messages(root()).collect();
    object("spec", &properties["spec"], &mut text);
    if !rules.is_empty() {
        text.push_str("\n## metadata\n");
        list(&rules, &mut text);
    }
    text.push_str("\n## Words\n\n| field | word | means |\n| --- | --- | --- |\n");
    words::<BoundaryType>("boundaryType", &mut text);
    words::<CacheType>("cacheType", &mut text);
    words::<Backend>("backend", &mut text);
    words::<UpdateStrategy>("updateStrategy", &mut text);
    let _ = write!(text, "\n## All at once\n\n```yaml\n{}\n```\n", example.trim_end());
    text.push_str(STATUS);
    object("status", &properties["status"], &mut text);
    text
}

/// A section: the fields of an object, its rules, and the objects in it.
fn object(path: &str, schema: &Value, text: &mut String) {
    let _ = write!(text, "\n## {path}\n\n{}\n", description(schema));
    let is_spec = path.starts_with("spec");
    let more = if is_spec {
        (" default | limits |", " --- | --- |")
    } else {
        ("", "")
    };
    let _ = write!(text, "\n| field | type |{} |\n| --- | --- |{} --- |\n", more.0, more.1);
    let mut inner = Vec::new();
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let place = format!("{path}.{name}");
        let items = &field["items"];
        let section = if has_fields(items) {
            Some((format!("{place}[]"), items))
        } else {
            has_fields(field).then(|| (place.clone(), field))
        };
        let section = section.filter(|_| theirs(name).is_none());
        let shown = match &section {
            Some((heading, _)) => format!("[`{name}`](#{})", anchor(heading)),
            None => format!("`{name}`"),
        };
        let mut cells = vec![shown, kind(name, field)];
        if is_spec {
            let limits = if has_fields(field) {
                String::new()
            } else {
                limits(field)
            };
            cells.extend([default(&place, name, field, schema), limits]);
        }
        cells.push(description(field));
        let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
        let _ = writeln!(text, "| {} |", cells.join(" | "));
        inner.extend(section);
    }
    list(&messages(schema).collect::<Vec<_>>(), text);
    for (heading, schema) in inner {
        object(&heading, schema, text);
    }
}

fn has_fields(schema: &Value) -> bool {
    schema["properties"].is_object()
}

fn theirs(name: &str) -> Option<&'static str> {
    THEIRS.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind)
}

/// The first paragraph of what a schema says of itself, on one line.
fn description(schema: &Value) -> String {
    schema["description"].as_str().unwrap_or_default().replace('\n', " ")
}

fn messages(schema: &Value) -> impl Iterator<Item = String> {
    let rules = schema["x-kubernetes-validations"].as_array().into_iter().flatten();
    rules.filter_map(|rule| rule["message"].as_str().map(str::to_owned))
}

fn list(rules: &[String], text: &mut String) {
    for (at, rule) in rules.iter().enumerate() {
        text.push_str(if at == 0 { "\n- " } else { "- " });
        text.push_str(rule);
        text.push('\n');
    }
}

fn kind(name: &str, field: &Value) -> String {
    if let Some(known) = theirs(name) {
        return known.to_owned();
    }
    if field["x-kubernetes-int-or-string"] == true {
        return "quantity".to_owned();
    }
    if field["x-kubernetes-preserve-unknown-fields"] == true {
        return "any object".to_owned();
    }
    if let Some(words) = field["enum"].as_array() {
        let words: Vec<String> = words
            .iter()
            .filter_map(|word| word.as_str().map(|word| format!("`{word}`")))
            .collect();
        return words.join(", ");
    }
    match field["type"].as_str() {
        Some("array") if has_fields(&field["items"]) => "list".to_owned(),
        Some("array") => format!("list of {}", kind(name, &field["items"])),
        Some("object") if field["additionalProperties"].is_object() => "map of texts".to_owned(),
        Some("boolean") => "`true`, `false`".to_owned(),
        Some("string") => "text".to_owned(),
        Some(other) => other.to_owned(),
        None => String::new(),
    }
}

fn default(place: &str, name: &str, field: &Value, parent: &Value) -> String {
    let required = parent["required"].as_array().into_iter().flatten();
    if required.into_iter().any(|required| required == name) {
        return "required".to_owned();
    }
    if let Some((_, words)) = WITHOUT.iter().find(|(known, _)| *known == place) {
        return (*words).to_owned();
    }
    match &field["default"] {
        Value::Null => "none".to_owned(),
        // its own fields have them
        Value::Object(_) => "as if empty".to_owned(),
        Value::String(text) => format!("`{text}`"),
        other => format!("`{other}`"),
    }
}

/// The range, the length, the rules of a field without fields of its own.
fn limits(field: &Value) -> String {
    let range = |least: &str, most: &str, unit: &str| match (number(&field[least]), number(&field[most])) {
        (Some(least), Some(most)) => Some(format!("{least} to {most}{unit}")),
        (None, Some(most)) => Some(format!("up to {most}{unit}")),
        (Some(least), None) => Some(format!("{least}{unit} or more")),
        (None, None) => None,
    };
    if field["x-kubernetes-int-or-string"] == true {
        return quantity::RULE.to_owned();
    }
    let of_values = [
        range("minimum", "maximum", ""),
        range("minLength", "maxLength", " characters"),
        range("minItems", "maxItems", ""),
    ];
    let all: Vec<String> = of_values.into_iter().flatten().chain(messages(field)).collect();
    all.join("; ")
}

/// A whole number with its thousands apart.
fn number(value: &Value) -> Option<String> {
    let digits = format!("{:.0}", value.as_f64()?);
    let mut apart = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            apart.push(',');
        }
        apart.push(digit);
    }
    Some(apart)
}

/// The words of a field that say more than their name.
fn words<T: JsonSchema>(field: &str, text: &mut String) {
    let schema = schema_for!(T).to_value();
    for word in schema["oneOf"].as_array().into_iter().flatten() {
        if let (Some(name), Some(means)) = (word["const"].as_str(), word["description"].as_str()) {
            let _ = writeln!(text, "| `{field}` | `{name}` | {} |", means.replace('\n', " "));
        }
    }
}

/// How a heading is linked to.
fn anchor(heading: &str) -> String {
    let kept = heading
        .chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, '-' | '_'));
    kept.flat_map(char::to_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_whose_absence_is_explained_are_there_and_have_no_default() {
        for (path, _) in WITHOUT {
            let pointer = format!(
                "/properties/{}",
                path.replace("[]", "/items").replace('.', "/properties/")
            );
            let field = root().pointer(&pointer);
            assert!(field.is_some_and(|field| field["default"].is_null()), "{path}");
        }
    }

    #[test]
    fn numbers_are_readable_and_headings_are_linked_to_as_they_are_rendered() {
        assert_eq!(number(&serde_json::json!(16_777_216.0)).as_deref(), Some("16,777,216"));
        assert_eq!(number(&serde_json::json!(0)).as_deref(), Some("0"));
        assert_eq!(anchor("spec.pools[].storage"), "specpoolsstorage");
    }
}
