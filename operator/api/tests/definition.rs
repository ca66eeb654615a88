//! The definition in `crds/` and the reference in `docs/` are what the types say, and an API server takes the former.

#![allow(clippy::unwrap_used)]

use kube::CustomResourceExt;
use kube::core::cel::{ScopeContext, WarningKind, analyze_rule, compile_schema};
use kvasir_api::Ring;
use serde_json::Value;

const COMMITTED: &str = include_str!("../../../crds/rings.kvasir.dev.yaml");
const REFERENCE: &str = include_str!("../../../docs/ring.md");

fn schema() -> Value {
    let crd = serde_json::to_value(Ring::crd()).unwrap();
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone()
}

/// Calls `visit` with the path and schema of every node.
fn walk(path: &str, schema: &Value, visit: &mut impl FnMut(&str, &Value)) {
    visit(path, schema);
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        walk(&format!("{path}.{name}"), property, visit);
    }
    for inner in ["items", "additionalProperties"] {
        if schema[inner].is_object() {
            walk(&format!("{path}[]"), &schema[inner], visit);
        }
    }
}

#[test]
fn the_committed_definition_is_the_generated_one() {
    let generated = kvasir_api::crd_yaml().unwrap();
    assert!(
        COMMITTED == generated,
        "run `cargo run -p kvasir-api --example crd` and commit crds/"
    );
}

#[test]
fn the_committed_reference_is_the_generated_one() {
    let generated = kvasir_api::reference(include_str!("good/cluster.yaml"));
    assert!(
        REFERENCE == generated,
        "run `cargo run -p kvasir-api --example crd` and commit docs/ring.md"
    );
}

#[test]
fn e1_the_schema_is_structural_and_preserves_nothing_unknown() {
    walk("", &schema(), &mut |path, node| {
        let preserved = node["x-kubernetes-preserve-unknown-fields"] == true;
        assert_eq!(preserved, path.ends_with(".podOverrides"), "{path}");
        assert!(
            node["type"].is_string() || node["x-kubernetes-int-or-string"] == true,
            "{path} has no type"
        );
        assert!(
            node.get("additionalProperties").is_none() || node.get("properties").is_none(),
            "{path}"
        );
        for junctor in ["oneOf", "anyOf", "allOf", "not", "$ref", "definitions", "uniqueItems"] {
            assert!(node.get(junctor).is_none(), "{path} has {junctor}");
        }
    });
}

#[test]
fn every_list_and_text_that_a_user_writes_has_a_limit() {
    // what Kubernetes' own types hold is walked by no rule of ours
    const THEIRS: [&str; 6] = [
        "resources",
        "nodeSelector",
        "tolerations",
        "affinity",
        "topologySpreadConstraints",
        "imagePullSecrets",
    ];
    walk("spec", &schema()["properties"]["spec"], &mut |path, node| {
        if path.split(['.', '[']).any(|part| THEIRS.contains(&part)) || node.get("enum").is_some() {
            return;
        }
        match node["type"].as_str() {
            Some("array") => assert!(node["maxItems"].is_u64(), "{path} has no maxItems"),
            Some("string") => assert!(node["maxLength"].is_u64(), "{path} has no maxLength"),
            Some("integer") => assert!(node["maximum"].is_number() && node["minimum"].is_number(), "{path}"),
            _ => {}
        }
    });
}

#[test]
fn every_rule_compiles_within_the_cost_budget() {
    let mut rules = 0;
    walk("", &schema(), &mut |path, node| {
        let compiled = compile_schema(node);
        for rule in node["x-kubernetes-validations"].as_array().into_iter().flatten() {
            let text = rule["rule"].as_str().unwrap();
            assert!(rule["message"].is_string(), "{path}: {text} has no message");
            let mut warnings = analyze_rule(text, &compiled, ScopeContext::CrdValidation);
            // the analysis takes the variable of a comprehension for a global one
            warnings.retain(|w| w.kind != WarningKind::WrongScope);
            assert!(warnings.is_empty(), "{path}: {text}: {warnings:?}");
            rules += 1;
        }
    });
    assert!(rules > 15, "found {rules} rules");
}

#[test]
fn the_definition_fits_the_annotation_of_a_client_side_apply() {
    let json = serde_json::to_string(&Ring::crd()).unwrap();
    assert!(
        json.len() < 200_000,
        "{} bytes, of 262144 for all annotations",
        json.len()
    );
}

#[test]
fn names_columns_and_subresources_are_those_of_the_api() {
    let crd = Ring::crd();
    assert_eq!(crd.metadata.name.as_deref(), Some("rings.kvasir.dev"));
    let version = &crd.spec.versions[0];
    assert_eq!(
        (version.name.as_str(), version.served, version.storage),
        (kvasir_api::VERSION, true, true)
    );
    let columns: Vec<_> = version
        .additional_printer_columns
        .iter()
        .flatten()
        .map(|c| c.name.as_str())
        .collect();
    assert_eq!(
        columns,
        [
            "Model", "Rings", "Stages", "Covered", "Ready", "Reason", "Endpoint", "Age"
        ]
    );
    let subresources = version.subresources.as_ref().unwrap();
    assert!(subresources.status.is_some());
    let scale = subresources.scale.as_ref().unwrap();
    assert_eq!(scale.spec_replicas_path, ".spec.replicas");
    assert_eq!(scale.label_selector_path.as_deref(), Some(".status.selector"));
}

#[test]
fn lists_of_named_things_merge_by_name() {
    let schema = schema();
    for (path, key) in [
        ("/properties/spec/properties/pools", "name"),
        ("/properties/status/properties/conditions", "type"),
        ("/properties/status/properties/rings", "ordinal"),
    ] {
        let list = schema.pointer(path).unwrap();
        assert_eq!(list["x-kubernetes-list-type"], "map", "{path}");
        assert_eq!(list["x-kubernetes-list-map-keys"], serde_json::json!([key]), "{path}");
    }
}

#[test]
fn e1_the_status_that_the_operator_writes_fits_the_schema() {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
    use kvasir_api::{Layers, ModelStatus, Placement, RingInstance, RingStatus, StageStatus, conditions, from_yaml};
    let mut ring = from_yaml(include_str!("good/smallest.yaml")).unwrap();
    ring.status = Some(RingStatus {
        observed_generation: Some(3),
        operator: Some("kvasir-system".into()),
        conditions: conditions::ALL
            .iter()
            .map(|type_| Condition {
                type_: (*type_).into(),
                status: "Unknown".into(),
                reason: conditions::reasons::PENDING.into(),
                message: String::new(),
                observed_generation: Some(3),
                last_transition_time: Time(k8s_openapi::jiff::Timestamp::UNIX_EPOCH),
            })
            .collect(),
        replicas: Some(1),
        ready_replicas: Some(0),
        ready_rings: Some("0/1".into()),
        selector: Some("kvasir.dev/ring=gemma,kvasir.dev/rank=0".into()),
        plan_hash: Some("abc".into()),
        endpoint: Some("http://gemma.models.svc:8080/v1".into()),
        layers: Some(18),
        covered_layers: Some(6),
        covered: Some("6/18".into()),
        stage_count: Some(3),
        ready_stages: Some(1),
        stages: Some("1/3".into()),
        model: Some(ModelStatus {
            architecture: "gemma3".into(),
            size_bytes: i64::MAX,
            ..ModelStatus::default()
        }),
        rings: vec![RingInstance {
            ordinal: 0,
            epoch: i64::MAX,
            ready: false,
            stages: vec![StageStatus {
                layers: Layers { start: 0, end: 6 },
                placement: Placement::Claimed,
                pool: Some("cpu".into()),
                pod_name: Some("gemma-0-0".into()),
                node_id: Some("ab".into()),
                ready: true,
                loaded_bytes: Some(1 << 40),
                restarts: Some(2),
                reason: Some("Loading".into()),
            }],
        }],
    });
    // the strict reader refuses whatever the schema would prune
    let read = from_yaml(&serde_yaml::to_string(&ring).unwrap()).unwrap();
    assert_eq!(read, ring);
}
