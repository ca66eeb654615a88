//! What the API server refuses, and what it says.

use std::time::Instant;

use kvasir_tests::cluster::Site;
use serde_json::json;

use super::{cluster, name, suspended};

#[test]
fn e1_a_typo_in_a_field_is_refused_by_its_name() {
    let Some(cluster) = cluster() else { return };
    let site = Site::new(cluster, "kvasir-typos");
    site.install_definition();
    let good = suspended(site.ring(), "typos");

    let mut typo = good.clone();
    typo["spec"]["stagse"] = json!(3);
    let told = site.apply(&typo).unwrap_err();
    assert!(told.contains("unknown field \"spec.stagse\""), "{told}");
    // Without validation it is dropped with a warning, and nothing starts on its default.
    let arguments = ["--namespace", site.namespace(), "--validate=false"];
    let told = cluster.apply(&typo, &arguments).unwrap();
    assert!(told.contains("ring.kvasir.dev/typos created"), "{told}");
    let stored = site.get(&["ring", "typos"]).unwrap();
    assert!(stored["spec"].get("stagse").is_none(), "{stored}");

    let mut wrong_word = good.clone();
    wrong_word["spec"]["pools"][0]["resource"] = json!({ "requests": { "cpu": 1 } });
    let told = site.apply(&wrong_word).unwrap_err();
    assert!(told.contains("unknown field \"spec.pools[0].resource\""), "{told}");

    let mut wrong_level = good.clone();
    wrong_level["spec"]["maxLayers"] = json!(3);
    let told = site.apply(&wrong_level).unwrap_err();
    assert!(told.contains("unknown field \"spec.maxLayers\""), "{told}");

    let mut without_model = suspended(good, "without-model");
    let model = without_model["spec"].as_object_mut().unwrap().remove("model").unwrap();
    without_model["spec"]["modle"] = model;
    let told = cluster.apply(&without_model, &arguments).unwrap_err();
    assert!(told.contains("spec.model: Required value"), "{told}");
}

#[test]
fn e2_names_too_long_for_pods_are_refused_with_the_true_limit() {
    let Some(cluster) = cluster() else { return };
    let site = Site::new(cluster, "kvasir-names");
    site.install_definition();
    let named = |name: &str| site.apply(&suspended(site.ring(), name));
    for length in [30, 40] {
        named(&"a".repeat(length)).unwrap();
    }
    for length in [42, 52, 53, 63, 253] {
        let told = named(&"a".repeat(length)).unwrap_err();
        assert!(
            told.contains("metadata.name must be 40 characters or fewer"),
            "{length}: {told}"
        );
    }
    let told = named("a.ring").unwrap_err();
    assert!(told.contains("lower-case letters, digits and '-' only"), "{told}");
}

#[test]
fn e2_two_long_names_with_the_same_beginning_do_not_share_a_child() {
    let Some(cluster) = cluster() else { return };
    let site = Site::new(cluster, "kvasir-long-names");
    site.install(&[]);
    let names = ["x", "y"].map(|end| format!("{}{end}", "a".repeat(39)));
    for name in &names {
        site.apply(&suspended(site.ring(), name)).unwrap();
    }
    for ring in &names {
        site.wait_condition(ring, "Accepted", super::SOON, |c| c.status == "True");
        let selector = format!("--selector=kvasir.dev/ring={ring}");
        let made = kvasir_tests::cluster::eventually(super::SOON, || {
            let children = site.list(&["deployments", &selector]);
            (children.len() == 3).then_some(children)
        });
        for child in made.expect("three Deployments") {
            assert!(name(&child).len() <= 63, "{}", name(&child));
            let owner = &child["metadata"]["ownerReferences"][0];
            assert_eq!(owner["name"], ring.as_str(), "{}", name(&child));
        }
    }
    let services = site.list(&["services", "--selector=app.kubernetes.io/component=endpoint"]);
    let mut found: Vec<&str> = services.iter().map(name).collect();
    found.sort_unstable();
    assert_eq!(found, names);
}

#[test]
fn s12_an_immutable_field_is_refused_with_the_reason() {
    let Some(cluster) = cluster() else { return };
    let site = Site::new(cluster, "kvasir-immutable");
    site.install_definition();
    let mut ring = suspended(site.ring(), "fixed");
    site.apply(&ring).unwrap();
    ring["spec"]["model"]["source"]["http"]["url"] = json!("http://elsewhere.example/model.gguf");
    let told = site.apply(&ring).unwrap_err();
    assert!(
        told.contains("spec.model.source") && told.contains("immutable"),
        "{told}"
    );
}

#[test]
fn a_quantity_that_takes_hours_to_compute_is_refused_at_once() {
    let Some(cluster) = cluster() else { return };
    let site = Site::new(cluster, "kvasir-quantities");
    site.install_definition();
    let mut ring = suspended(site.ring(), "huge");
    ring["spec"]["pools"][0]["memory"] = json!("1e999999999");
    let asked = Instant::now();
    let told = site.apply(&ring).unwrap_err();
    assert!(told.contains("spec.pools[0].memory: Invalid value"), "{told}");
    assert!(asked.elapsed() < super::SOON / 4, "{:?}", asked.elapsed());
}
