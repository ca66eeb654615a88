//! The definition of the resource, and the check of a document against its schema.
//!
//! The API server checks types and limits before it runs CEL; [`check`] does the same here, so that a Ring read from a
//! file is refused for what the cluster would refuse, and every fault is named at once.

use std::collections::VecDeque;
use std::sync::OnceLock;

use kube::CustomResourceExt;
use serde_json::{Map, Value};

use crate::{Error, Fault, Ring, quantity};

/// The custom resource definition as YAML, as `crds/` holds it.
pub fn crd_yaml() -> Result<String, Error> {
    let crd = serde_yaml::to_string(&Ring::crd()).map_err(Error::Write)?;
    Ok(format!(
        "# Written by `cargo run -p kvasir-api --example crd`; change the types instead.\n{crd}"
    ))
}

/// Schema of a Ring.
pub(crate) fn root() -> &'static Value {
    static ROOT: OnceLock<Value> = OnceLock::new();
    ROOT.get_or_init(|| {
        let schema = Ring::crd().spec.versions.into_iter().next().and_then(|v| v.schema);
        serde_json::to_value(schema.and_then(|s| s.open_api_v3_schema)).unwrap_or_default()
    })
}

/// Adds every fault of `value` under `schema` to `faults`; `path` names the value.
pub(crate) fn check(schema: &Value, value: &Value, path: &str, faults: &mut Vec<Fault>) {
    if value.is_null() && schema["nullable"] == true {
        return;
    }
    let mut fault = |problem: String| {
        faults.push(Fault {
            path: path.into(),
            problem,
        });
    };
    if schema["x-kubernetes-int-or-string"] == true {
        if !value.is_string() && !value.is_i64() {
            return fault(format!("expected a text or an integer, found {}", kind(value)));
        }
        // only quantities of this project have one: Kubernetes' own are limits and requests of containers
        if schema["pattern"].is_string() {
            if let Some(problem) = quantity::fault(value) {
                fault(problem.to_owned());
            }
            return;
        }
    } else if let Some(expected) = schema["type"].as_str() {
        let fits = match expected {
            "integer" => value.is_i64() || value.is_u64(),
            "number" => value.is_number(),
            "string" => value.is_string(),
            "boolean" => value.is_boolean(),
            "array" => value.is_array(),
            _ => value.is_object(),
        };
        if !fits {
            return fault(format!("expected {}, found {}", article(expected), kind(value)));
        }
    }
    if let Some(choices) = schema["enum"].as_array()
        && !choices.contains(value)
    {
        let choices: Vec<_> = choices.iter().filter_map(Value::as_str).collect();
        let near = value.as_str().and_then(|v| nearest(v, choices.iter().copied()));
        let hint = near.map(|n| format!("; did you mean `{n}`?")).unwrap_or_default();
        return fault(format!("{value} is not one of {}{hint}", choices.join(", ")));
    }
    match value {
        Value::Number(_) => check_number(schema, value, &mut fault),
        Value::String(text) => check_length(
            schema,
            text.chars().count(),
            ["minLength", "maxLength"],
            "characters",
            fault,
        ),
        Value::Array(items) => {
            check_length(schema, items.len(), ["minItems", "maxItems"], "items", fault);
            for (i, item) in items.iter().enumerate() {
                check(&schema["items"], item, &format!("{path}[{i}]"), faults);
            }
            check_keys(schema, items, path, faults);
        }
        Value::Object(members) => check_members(schema, members, path, faults),
        Value::Null | Value::Bool(_) => {}
    }
}

fn check_number(schema: &Value, value: &Value, fault: &mut impl FnMut(String)) {
    let (mut low, mut high) = match (schema["type"].as_str(), schema["format"].as_str()) {
        (Some("integer"), Some("int32")) => (f64::from(i32::MIN), f64::from(i32::MAX)),
        _ => (f64::NEG_INFINITY, f64::INFINITY),
    };
    low = schema["minimum"].as_f64().unwrap_or(low);
    high = schema["maximum"].as_f64().unwrap_or(high);
    let number = value.as_f64().unwrap_or(f64::NAN);
    if !(low..=high).contains(&number) {
        let bounds = match (low.is_finite(), high.is_finite()) {
            (true, true) => format!("between {low} and {high}"),
            (true, false) => format!("{low} or more"),
            _ => format!("{high} or less"),
        };
        fault(format!("must be {bounds}, is {value}"));
    } else if schema["type"] == "integer" && !value.is_i64() {
        fault(format!("{value} is too large"));
    }
}

fn check_length(schema: &Value, length: usize, [min, max]: [&str; 2], unit: &str, mut fault: impl FnMut(String)) {
    let length = length as u64;
    if let Some(min) = schema[min].as_u64().filter(|&min| length < min) {
        fault(if min == 1 {
            "must not be empty".into()
        } else {
            format!("must have {min} {unit} or more, has {length}")
        });
    }
    if let Some(max) = schema[max].as_u64().filter(|&max| length > max) {
        fault(format!("must have {max} {unit} or fewer, has {length}"));
    }
}

/// The keys of a list that is a map may not repeat.
fn check_keys(schema: &Value, items: &[Value], path: &str, faults: &mut Vec<Fault>) {
    let Some(keys) = schema["x-kubernetes-list-map-keys"].as_array() else {
        return;
    };
    let keys_of = |item: &Value| {
        keys.iter()
            .filter_map(Value::as_str)
            .map(|k| item[k].clone())
            .collect::<Vec<_>>()
    };
    for (i, item) in items.iter().enumerate() {
        let key = keys_of(item);
        if items[..i].iter().any(|earlier| keys_of(earlier) == key) {
            let key = key.iter().map(Value::to_string).collect::<Vec<_>>().join(", ");
            faults.push(Fault {
                path: format!("{path}[{i}]"),
                problem: format!("{key} is there twice"),
            });
        }
    }
}

fn check_members(schema: &Value, members: &Map<String, Value>, path: &str, faults: &mut Vec<Fault>) {
    let empty = Map::new();
    let properties = schema["properties"].as_object().unwrap_or(&empty);
    let rest = &schema["additionalProperties"];
    for (name, value) in members {
        let member = join(path, name);
        if let Some(property) = properties.get(name) {
            check(property, value, &member, faults);
        } else if rest.is_object() {
            check(rest, value, &member, faults);
        } else if schema["x-kubernetes-preserve-unknown-fields"] != true {
            faults.push(unknown_field(&member, name, properties.keys().map(String::as_str)));
        }
    }
    for required in schema["required"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
    {
        if !members.contains_key(required) {
            faults.push(Fault {
                path: join(path, required),
                problem: "missing".into(),
            });
        }
    }
}

/// The fault of a field that isn't there, with the name that was meant where one is near, or the level where it belongs.
pub(crate) fn unknown_field<'a>(path: &str, name: &str, siblings: impl Iterator<Item = &'a str>) -> Fault {
    let hint = match (nearest(name, siblings), elsewhere(name)) {
        (Some(near), _) => format!("; did you mean `{near}`?"),
        (None, Some(place)) => format!("; `{name}` belongs at {place}"),
        (None, None) => String::new(),
    };
    Fault {
        path: path.into(),
        problem: format!("unknown field{hint}"),
    }
}

/// The candidate that differs from `name` by the fewest edits, if they are few for its length.
fn nearest<'a>(name: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let allowed = (name.chars().count() / 3).clamp(1, 3);
    let distance = |candidate: &&str| edits(&name.to_lowercase(), &candidate.to_lowercase());
    candidates
        .map(|c| (distance(&c), c))
        .filter(|(d, _)| *d <= allowed)
        .min_by_key(|(d, _)| *d)
        .map(|(_, c)| c)
}

/// Edits (insert, delete, replace, swap neighbours) from one text to the other: optimal string alignment.
fn edits(a: &str, b: &str) -> usize {
    // a field name is short; what isn't one needs no exact distance
    let [a, b] = [a, b].map(|s| s.chars().take(64).collect::<Vec<_>>());
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for (i, row) in rows.iter_mut().enumerate() {
        row[0] = i;
    }
    rows[0] = (0..=b.len()).collect();
    for i in 1..=a.len() {
        for j in 1..=b.len() {
            let replace = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = replace.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            rows[i][j] = best;
        }
    }
    rows[a.len()][b.len()]
}

/// The shallowest field of that name in a Ring's spec.
fn elsewhere(name: &str) -> Option<String> {
    let mut queue = VecDeque::from([(String::from("spec"), &root()["properties"]["spec"])]);
    while let Some((path, schema)) = queue.pop_front() {
        for (member, property) in schema["properties"].as_object().into_iter().flatten() {
            let member_path = join(&path, member);
            if member == name {
                return Some(member_path);
            }
            queue.push_back((member_path.clone(), property));
            queue.push_back((format!("{member_path}[]"), &property["items"]));
        }
    }
    None
}

pub(crate) fn join(path: &str, member: &str) -> String {
    if path.is_empty() {
        member.into()
    } else {
        format!("{path}.{member}")
    }
}

fn article(kind: &str) -> &'static str {
    match kind {
        "integer" => "an integer",
        "number" => "a number",
        "string" => "a text",
        "boolean" => "true or false",
        "array" => "a list",
        _ => "a map",
    }
}

pub(crate) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "nothing",
        Value::Bool(_) => "true or false",
        Value::Number(n) if n.is_f64() => "a fraction",
        Value::Number(_) => "an integer",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "a map",
    }
}
