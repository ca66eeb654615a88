//! The Ring's definition, old and new.

use std::fs;
use std::process::Command;

use kvasir_tests::cluster::{Cluster, Site, eventually, repository, run};
use kvasir_tests::deadline::wait_until;
use serde_json::json;

use super::{SOON, cluster, suspended};

/// A field that older definitions lack.
const NEW_FIELD: &str = "exact";

/// Installs the definition as it was before [`NEW_FIELD`], as a chart of its own version.
fn install_older(cluster: &Cluster, site: &Site) {
    let chart = site.path("older");
    let copied = Command::new("cp")
        .arg("-r")
        .arg(repository().join("charts/kvasir-crds"))
        .arg(&chart)
        .status();
    assert!(copied.unwrap().success());
    let file = chart.join("templates/rings.kvasir.dev.yaml");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, without_field(&text, NEW_FIELD)).unwrap();
    let mut command = cluster.helm(["upgrade", "--install", "--wait", "kvasir-crds"]);
    run(command
        .arg(chart)
        .args(["--namespace", "kvasir-definitions", "--create-namespace"]))
    .unwrap();
    // the API server goes over to another definition a moment after it was written
    wait_until("the older definition is served", SOON, || {
        let tried = site.try_apply(&suspended(site.ring(), "tried"));
        tried.is_err_and(|told| told.contains(NEW_FIELD))
    });
}

/// A definition without a field of the spec, and without the rules that speak of it.
fn without_field(text: &str, field: &str) -> String {
    let indent = |line: &str| line.len() - line.trim_start().len();
    let mut lines: Vec<&str> = text.lines().collect();
    // what begins at a line, and is indented below it
    let cut = |lines: &mut Vec<&str>, from: usize| {
        let below = lines[from + 1..]
            .iter()
            .take_while(|line| indent(line) > indent(lines[from]));
        let end = from + 1 + below.count();
        lines.drain(from..end);
    };
    let property = format!("{field}:");
    while let Some(at) = lines.iter().position(|line| line.trim() == property) {
        cut(&mut lines, at);
    }
    let said = format!("self.{field}");
    while let Some(at) = lines.iter().position(|line| line.contains(&said)) {
        // a rule is an item of a list
        let dash = |line: &&str| line.trim_start().starts_with("- ") && indent(line) <= indent(lines[at]);
        let start = lines[..=at].iter().rposition(dash).expect("a rule in a list");
        cut(&mut lines, start);
    }
    lines.join("\n") + "\n"
}

/// The definition of this version is back, however the test ends.
struct Renewed<'a>(&'a Site);

impl Drop for Renewed<'_> {
    fn drop(&mut self) {
        self.0.install_definition();
    }
}

#[test]
fn stored_rings_survive_an_upgrade_of_their_definition() {
    let Some(cluster) = cluster() else { return };
    let site = Site::new(cluster, "kvasir-upgraded");
    let _renewed = Renewed(&site);
    install_older(cluster, &site);
    let mut ring = suspended(site.ring(), "stored");
    ring["spec"].as_object_mut().unwrap().remove(NEW_FIELD);
    site.apply(&ring).unwrap();
    let before = site.get(&["ring", "stored"]).unwrap();
    assert!(before["spec"].get(NEW_FIELD).is_none(), "{before}");

    site.install_definition();
    let after = site.get(&["ring", "stored"]).unwrap();
    assert_eq!(super::uid(&after), super::uid(&before));
    let mut expected = before["spec"].clone();
    // what the new definition says of Rings that are silent about it
    expected[NEW_FIELD] = json!(false);
    assert_eq!(after["spec"], expected);
    ring["spec"][NEW_FIELD] = json!(true);
    site.apply(&ring).unwrap();
    assert_eq!(site.get(&["ring", "stored"]).unwrap()["spec"][NEW_FIELD], true);
}

#[test]
fn s11_an_operator_that_finds_an_older_definition_says_so() {
    let Some(cluster) = cluster() else { return };
    let site = Site::new(cluster, "kvasir-older-definition");
    let _renewed = Renewed(&site);
    install_older(cluster, &site);
    run(&mut site.helm_install("install", &[])).unwrap();
    let mut ring = suspended(site.ring(), "older");
    ring["spec"].as_object_mut().unwrap().remove(NEW_FIELD);
    site.apply(&ring).unwrap();
    let degraded = site.wait_condition("older", "Degraded", SOON, |c| c.reason == "OutdatedDefinition");
    assert_eq!(degraded.status, "True", "{degraded:?}");
    let log = eventually(SOON, || {
        let log = site.kubectl(&["logs", "deployment/kvasir-operator"]).ok()?;
        log.contains("kvasir-crds").then_some(log)
    });
    let log = log.expect("the operator's log says what to do");
    for told in [&degraded.message, &log] {
        assert!(told.contains("spec.exact"), "what is missing: {told}");
        assert!(told.contains("kvasir-crds"), "what to do: {told}");
    }
}
