//! Two operators that could serve the same Rings: one does.

use std::thread;
use std::time::Duration;

use kvasir_tests::cluster::{Audit, Site, Write, eventually};
use serde_json::Value;

use super::{SOON, fixture, suspended};

/// How long writes are counted: both operators look at a Ring several times.
const WATCHED: Duration = Duration::from_secs(90);
const RING: &str = "contested";

fn image(site: &Site) -> String {
    let selector = format!("--selector=kvasir.dev/ring={RING}");
    let stages = site.list(&["deployments", &selector]);
    let pod = stages.first().map(|stage| &stage["spec"]["template"]["spec"]);
    let image = pod.and_then(|pod| pod["containers"][0]["image"].as_str());
    image.unwrap_or_default().to_owned()
}

fn operator(site: &Site) -> Value {
    site.get(&["ring", RING]).unwrap()["status"]["operator"].clone()
}

/// What an operator has written but for its Lease and events.
fn writes(audit: &Audit, namespace: &str) -> Vec<Write> {
    let writes = audit.writes_of(namespace, "kvasir-operator").into_iter();
    writes
        .filter(|write| !["leases", "events"].contains(&write.resource.as_str()))
        .collect()
}

#[test]
fn of_two_operators_that_watch_a_namespace_one_serves_its_rings_and_neither_writes_on() {
    let Some(cluster) = fixture() else { return };
    let site = Site::new(cluster, "kvasir-rivals");
    site.install(&[]);
    site.apply(&suspended(site.ring(), RING)).unwrap();
    site.wait_condition(RING, "Ready", SOON, |c| c.reason == "Suspended");
    assert_eq!(operator(&site), site.namespace());
    let own = image(&site);

    // another release that watches everything, with settings of its own
    let other = Site::new(cluster, "kvasir-rivals-other");
    other.install(&["watchNamespaces=null", "stage.image.repository=elsewhere.example/stage"]);
    let told = eventually(SOON, || {
        let events = site.list(&["events.events.k8s.io"]);
        events.into_iter().find(|event| event["reason"] == "ManagedElsewhere")
    });
    let note = told.expect("what the second operator says")["note"].clone();
    let note = note.as_str().unwrap();
    assert!(
        note.contains(site.namespace()) && note.contains(other.namespace()),
        "{note}"
    );
    let audit = cluster.own().unwrap().audit();
    thread::sleep(WATCHED); // what is measured: a time without a change
    for operator in [site.namespace(), other.namespace()] {
        let writes = writes(&audit, operator);
        assert!(writes.is_empty(), "{operator}: {writes:?}");
    }
    assert_eq!(image(&site), own);

    for (operator_of, is_image) in [(&other, "elsewhere.example/stage"), (&site, own.as_str())] {
        let annotation = format!("kvasir.dev/operator={}", operator_of.namespace());
        site.kubectl(&["annotate", "--overwrite", "ring", RING, &annotation])
            .unwrap();
        let served = eventually(SOON, || {
            let is_served = image(&site).starts_with(is_image) && operator(&site) == operator_of.namespace();
            is_served.then_some(())
        });
        assert!(
            served.is_some(),
            "{annotation}: {} by {}",
            image(&site),
            operator(&site)
        );
    }
}
