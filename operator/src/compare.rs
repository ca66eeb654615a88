//! Is what should be there there already? What was applied carries a hash of itself, and every field in it still has the
//! value that it was given; what the API server or others added counts for nothing.

use serde_json::{Map, Value};

use crate::{labels, names};

/// Decimal places to which quantities are compared: Kubernetes' smallest unit is a billionth.
const PLACES: i32 = 9;

/// A map of which every member narrows what it means.
const SELECTOR: &str = "spec.selector";

/// An object with the hash of itself among its annotations.
pub fn stamped(mut object: Value) -> Value {
    let hash = names::digest(object.to_string().as_bytes());
    if let Some(metadata) = object["metadata"].as_object_mut() {
        let annotations = metadata
            .entry("annotations")
            .or_insert_with(|| Value::Object(Map::new()));
        annotations[labels::APPLIED] = Value::String(hash);
    }
    object
}

/// The first field of `wanted` that `live` has not, or has with another value, as a path; none when nothing is to do.
///
/// `wanted` is stamped, so that a field that is not wanted any more is a difference too.
pub fn difference(wanted: &Value, live: &Value) -> Option<String> {
    let mut fields = Vec::new();
    differences(wanted, live, "", &mut fields);
    // the stamp differs whenever anything does, and says least
    let stamp = |field: &String| field.ends_with(labels::APPLIED);
    let telling = fields.iter().find(|field| !stamp(field));
    telling.or(fields.first()).cloned()
}

fn differences(wanted: &Value, live: &Value, path: &str, fields: &mut Vec<String>) {
    match (wanted, live) {
        (Value::Object(wanted), Value::Object(live)) => {
            if path == SELECTOR && !strangers(wanted, live).is_empty() {
                fields.push(path.to_owned());
            }
            for (name, wanted) in wanted {
                // members of a list don't say what they are
                if path.is_empty() && ["apiVersion", "kind"].contains(&name.as_str()) {
                    continue;
                }
                let path = if path.is_empty() {
                    name.clone()
                } else {
                    format!("{path}.{name}")
                };
                match live.get(name) {
                    Some(live) => differences(wanted, live, &path, fields),
                    None if is_nothing(wanted) => {}
                    None => fields.push(path),
                }
            }
        }
        (Value::Array(wanted), Value::Array(live)) => {
            // owners and finalizers are added by others
            let shared = path.ends_with("ownerReferences") || path.ends_with("finalizers");
            if shared {
                if !wanted.iter().all(|wanted| live.iter().any(|live| covers(wanted, live))) {
                    fields.push(path.to_owned());
                }
            } else if wanted.len() == live.len() {
                for (at, (wanted, live)) in wanted.iter().zip(live).enumerate() {
                    differences(wanted, live, &format!("{path}[{at}]"), fields);
                }
            } else {
                fields.push(path.to_owned());
            }
        }
        (Value::String(a), Value::String(b)) if a != b && is_quantity(path) && same_quantity(a, b) => {}
        (wanted, live) if wanted == live => {}
        _ => fields.push(path.to_owned()),
    }
}

/// Keys that others added to an object's selector: it fits nothing then, and applying leaves them there.
pub fn strangers_in_selector(wanted: &Value, live: &Value) -> Vec<String> {
    let selector = |object: &Value| object.pointer("/spec/selector").and_then(Value::as_object).cloned();
    match (selector(wanted), selector(live)) {
        (Some(wanted), Some(live)) => strangers(&wanted, &live),
        _ => Vec::new(),
    }
}

fn strangers(wanted: &Map<String, Value>, live: &Map<String, Value>) -> Vec<String> {
    let others = live.keys().filter(|key| !wanted.contains_key(*key));
    others.cloned().collect()
}

fn covers(wanted: &Value, live: &Value) -> bool {
    let mut fields = Vec::new();
    differences(wanted, live, "", &mut fields);
    fields.is_empty()
}

/// What the API server leaves out.
fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(set) => !set,
        Value::Number(number) => number.as_i64() == Some(0),
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(members) => members.is_empty(),
    }
}

/// The API server writes quantities in a form of its own: `1024Mi` comes back as `1Gi`.
pub fn is_quantity(path: &str) -> bool {
    let parts = [".requests.", ".limits.", ".overhead."];
    parts.iter().any(|part| path.contains(part)) || [".sizeLimit", ".divisor"].iter().any(|end| path.ends_with(end))
}

fn same_quantity(a: &str, b: &str) -> bool {
    billionths(a).is_some_and(|a| billionths(b) == Some(a))
}

/// A quantity in billionths; none when it isn't one, or too large for this.
fn billionths(text: &str) -> Option<i128> {
    let (negative, text) = match text.strip_prefix('-') {
        Some(text) => (true, text),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let unit_at = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits: i128 = format!("{whole}{fraction}").parse().ok()?;
    let (binary, decimal) = match unit {
        "" => (0, 0),
        "n" => (0, -9),
        "u" => (0, -6),
        "m" => (0, -3),
        "k" => (0, 3),
        "M" => (0, 6),
        "G" => (0, 9),
        "T" => (0, 12),
        "P" => (0, 15),
        "E" => (0, 18),
        "Ki" => (1, 0),
        "Mi" => (2, 0),
        "Gi" => (3, 0),
        "Ti" => (4, 0),
        "Pi" => (5, 0),
        "Ei" => (6, 0),
        exponent => (0, exponent.strip_prefix(['e', 'E'])?.parse::<i32>().ok()?),
    };
    let power = PLACES
        .checked_add(decimal)?
        .checked_sub(i32::try_from(fraction.len()).ok()?)?;
    let scaled = digits.checked_mul(1024i128.checked_pow(binary)?)?;
    let factor = 10i128.checked_pow(power.unsigned_abs())?;
    let value = if power >= 0 {
        scaled.checked_mul(factor)?
    } else {
        (scaled % factor == 0).then_some(scaled / factor)?
    };
    Some(if negative { -value } else { value })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn quantities_are_the_same_however_they_are_written() {
        for (a, b) in [
            ("1024Mi", "1Gi"),
            ("1000m", "1"),
            ("1e3", "1k"),
            ("0.5", "500m"),
            ("1.5Gi", "1536Mi"),
            ("1E", "1000P"),
        ] {
            assert!(same_quantity(a, b), "{a} {b}");
        }
        for (a, b) in [("1400m", "1500m"), ("1Gi", "1G"), ("x", "x"), ("1", "1x")] {
            assert!(!same_quantity(a, b), "{a} {b}");
        }
    }

    #[test]
    fn what_the_server_adds_is_no_difference() {
        let wanted = stamped(json!({
            "metadata": {"name": "a", "labels": {"x": "1"}},
            "spec": {"containers": [{"name": "c", "resources": {"requests": {"memory": "1024Mi"}}}]}
        }));
        let mut live = wanted.clone();
        live["metadata"]["uid"] = json!("u");
        live["metadata"]["labels"]["other"] = json!("2");
        live["spec"]["containers"][0]["terminationMessagePath"] = json!("/dev/termination-log");
        live["spec"]["containers"][0]["resources"]["requests"]["memory"] = json!("1Gi");
        live["status"] = json!({"replicas": 1});
        assert_eq!(difference(&wanted, &live), None);
    }

    #[test]
    fn a_field_that_is_other_or_gone_is_named() {
        let wanted = stamped(json!({"metadata": {}, "spec": {"a": [1, 2], "b": {"c": "x"}}}));
        let changed = |change: fn(&mut Value)| {
            let mut live = wanted.clone();
            change(&mut live);
            difference(&wanted, &live)
        };
        assert_eq!(
            changed(|live| live["spec"]["b"]["c"] = json!("y")).as_deref(),
            Some("spec.b.c")
        );
        assert_eq!(
            changed(|live| live["spec"]["a"] = json!([1])).as_deref(),
            Some("spec.a")
        );
        assert_eq!(
            changed(|live| live["spec"]["a"][1] = json!(3)).as_deref(),
            Some("spec.a[1]")
        );
        assert_eq!(
            changed(|live| {
                live["spec"].as_object_mut().unwrap().remove("b");
            })
            .as_deref(),
            Some("spec.b")
        );
    }

    #[test]
    fn a_field_that_is_not_wanted_any_more_is_a_difference() {
        let live = stamped(json!({"metadata": {}, "spec": {"a": 1, "b": 2}}));
        let wanted = stamped(json!({"metadata": {}, "spec": {"a": 1}}));
        assert_eq!(
            difference(&wanted, &live).as_deref(),
            Some("metadata.annotations.kvasir.dev/applied")
        );
    }
}
