//! Does the cluster serve the definition of Ring that this operator needs? `helm upgrade` leaves definitions as they are, and
//! the API server drops fields that it doesn't know.

use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, Client, CustomResourceExt};
use kvasir_api::{Ring, VERSION};
use serde_json::Value;
use tokio::sync::watch;

use kvasir_process::chain;

/// While the definition isn't the one needed, it is looked at this often.
const AGAIN: Duration = Duration::from_secs(5);
/// Fields that are named; more help nobody.
const NAMED: usize = 5;

/// Compares the served definition with the one needed, and again until they fit; tells what is missing through `told`.
pub async fn watch(client: Client, told: watch::Sender<Option<String>>) {
    let api: Api<CustomResourceDefinition> = Api::all(client);
    let needed = Ring::crd();
    let name = needed.metadata.name.clone().unwrap_or_default();
    loop {
        let lacks = match api.get_opt(&name).await {
            Ok(Some(served)) => in_words(&missing(&served, &needed)),
            Ok(None) => Some(format!(
                "the cluster has no definition {name}: install the chart kvasir-crds"
            )),
            Err(error) => {
                tracing::warn!(
                    error = chain(&error),
                    "can't compare the served definition of Ring with the one needed"
                );
                None
            }
        };
        let fits = lacks.is_none();
        told.send_if_modified(|before| {
            let changed = *before != lacks;
            if let Some(lacks) = lacks.as_ref().filter(|_| changed) {
                tracing::error!(reason = "OutdatedDefinition", "{lacks}");
            }
            *before = lacks;
            changed
        });
        if fits || told.is_closed() {
            return;
        }
        tokio::time::sleep(AGAIN).await;
    }
}

fn in_words(missing: &[String]) -> Option<String> {
    if missing.is_empty() {
        return None;
    }
    let named = missing
        .iter()
        .take(NAMED)
        .map(String::as_str)
        .collect::<Vec<_>>()
        .join(", ");
    let rest = match missing.len().saturating_sub(NAMED) {
        0 => String::new(),
        rest => format!(" and {rest} more"),
    };
    Some(format!(
        "the cluster's definition of Ring is of another version and lacks {named}{rest}: upgrade the chart kvasir-crds"
    ))
}

/// What this operator reads or writes and the served definition doesn't hold: paths of fields, values of enumerations,
/// subresources. Pure.
pub fn missing(served: &CustomResourceDefinition, needed: &CustomResourceDefinition) -> Vec<String> {
    let version = |definition: &CustomResourceDefinition| {
        let mut versions = definition.spec.versions.iter();
        versions
            .find(|version| version.name == VERSION && version.served)
            .cloned()
    };
    let Some(needed) = version(needed) else {
        return Vec::new();
    };
    let Some(served) = version(served) else {
        return vec![format!("version {VERSION}")];
    };
    let mut missing = Vec::new();
    let subresources = served.subresources.unwrap_or_default();
    if subresources.status.is_none() {
        missing.push("the subresource status".to_owned());
    }
    if subresources.scale.is_none() {
        missing.push("the subresource scale".to_owned());
    }
    let schema = |version: Option<_>| serde_json::to_value(version).unwrap_or_default();
    let needed = schema(needed.schema.and_then(|schema| schema.open_api_v3_schema));
    let served = schema(served.schema.and_then(|schema| schema.open_api_v3_schema));
    compare(&needed, &served, "", &mut missing);
    missing
}

fn compare(needed: &Value, served: &Value, path: &str, missing: &mut Vec<String>) {
    if served["x-kubernetes-preserve-unknown-fields"] == true {
        return;
    }
    for (name, needed) in needed["properties"].as_object().into_iter().flatten() {
        let path = if path.is_empty() {
            name.clone()
        } else {
            format!("{path}.{name}")
        };
        match served["properties"].get(name) {
            Some(served) => compare(needed, served, &path, missing),
            None => missing.push(path),
        }
    }
    for inner in ["items", "additionalProperties"] {
        if needed[inner].is_object() && served[inner].is_object() {
            compare(&needed[inner], &served[inner], &format!("{path}[]"), missing);
        }
    }
    let values = served["enum"].as_array();
    for value in needed["enum"].as_array().into_iter().flatten() {
        if values.is_some_and(|values| !values.contains(value)) {
            missing.push(format!("{path}: {value}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(change: impl FnOnce(&mut Value)) -> CustomResourceDefinition {
        let mut definition = serde_json::to_value(Ring::crd()).unwrap();
        change(&mut definition["spec"]["versions"][0]);
        serde_json::from_value(definition).unwrap()
    }

    #[test]
    fn s11_the_definition_of_this_version_lacks_nothing() {
        assert_eq!(missing(&Ring::crd(), &Ring::crd()), Vec::<String>::new());
        assert_eq!(in_words(&[]), None);
    }

    #[test]
    fn s11_what_an_older_definition_lacks_is_named() {
        let older = changed(|version| {
            let spec = &mut version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
            spec.as_object_mut().unwrap().remove("exact");
            let pool = &mut spec["pools"]["items"]["properties"];
            pool.as_object_mut().unwrap().remove("podOverrides");
            pool["backend"]["enum"]
                .as_array_mut()
                .unwrap()
                .retain(|value| value != "Hexagon");
        });
        let mut found = missing(&older, &Ring::crd());
        found.sort();
        assert_eq!(
            found,
            [
                "spec.exact",
                "spec.pools[].backend: \"Hexagon\"",
                "spec.pools[].podOverrides"
            ]
        );
        assert_eq!(
            in_words(&found[..1]).unwrap(),
            "the cluster's definition of Ring is of another version and lacks spec.exact: upgrade the chart kvasir-crds"
        );
        let without_status = changed(|version| {
            version.as_object_mut().unwrap().remove("subresources");
        });
        assert_eq!(
            missing(&without_status, &Ring::crd()),
            ["the subresource status", "the subresource scale"]
        );
        let other_version = changed(|version| version["name"] = Value::from("v1"));
        assert_eq!(missing(&other_version, &Ring::crd()), ["version v1alpha1"]);
    }
}
