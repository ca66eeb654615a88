//! An operator with nothing to do does nothing, and many Rings cost it little.

use std::fs;
use std::thread;
use std::time::Duration;

use kvasir_tests::cluster::{Site, Write, eventually};
use kvasir_tests::process;
use serde_json::json;

use super::{fixture, name, restarts, suspended};

/// How long writes are counted.
const WATCHED: Duration = Duration::from_secs(180);
/// For 200 Rings to be looked at.
const CONVERGED: Duration = Duration::from_secs(120);
const MEMORY: u64 = 128 << 20;

#[test]
fn an_unchanged_ring_causes_no_writes() {
    let Some(cluster) = fixture() else { return };
    let site = Site::new(cluster, "kvasir-quiet");
    site.install(&[]);
    let ring = site.ring();
    site.apply(&ring).unwrap();
    let ring = name(&ring).to_owned();
    site.wait_ready(&ring);
    site.wait_condition(&ring, "Progressing", Duration::from_secs(60), |c| {
        c.reason == "Complete"
    });
    let generation = || site.get(&["ring", &ring]).unwrap()["metadata"]["resourceVersion"].clone();
    let (audit, before) = (cluster.own().unwrap().audit(), generation());
    thread::sleep(WATCHED); // what is measured: a time without a change
    let writes = audit.writes_of(site.namespace(), "kvasir-operator");
    let lease = |write: &&Write| write.resource == "leases";
    assert!(
        writes.iter().any(|write| lease(&write)),
        "the log has the Lease's renewals"
    );
    let others: Vec<&Write> = writes.iter().filter(|write| !lease(write)).collect();
    assert!(others.is_empty(), "{others:?}");
    assert_eq!(generation(), before);
}

#[test]
fn two_hundred_rings_converge_within_the_operators_memory() {
    let Some(cluster) = fixture() else { return };
    let site = Site::new(cluster, "kvasir-many");
    site.install(&[]);
    let rings: Vec<_> = (0..200).map(|n| suspended(site.ring(), &format!("ring-{n}"))).collect();
    site.apply(&json!({ "apiVersion": "v1", "kind": "List", "items": rings }))
        .unwrap();
    let looked_at = eventually(CONVERGED, || {
        let rings = site.list(&["rings"]);
        let current = rings
            .iter()
            .filter(|ring| ring["status"]["observedGeneration"] == ring["metadata"]["generation"]);
        (current.count() == 200).then_some(())
    });
    assert!(looked_at.is_some(), "200 Rings within {CONVERGED:?}");
    for ring in site.list(&["rings"]) {
        let conditions = ring["status"]["conditions"].as_array().unwrap();
        let ready = conditions.iter().find(|c| c["type"] == "Ready").unwrap();
        assert_eq!(
            (&ready["status"], &ready["reason"]),
            (&json!("False"), &json!("Suspended")),
            "{}",
            name(&ring)
        );
    }
    let operators = site.list(&["pods", "--selector=app.kubernetes.io/component=operator"]);
    assert_eq!(operators.iter().map(restarts).sum::<u64>(), 0);
    let uid = super::uid(&operators[0]).to_owned();
    let held = resident_of_pod(&uid).expect("the operator's process");
    println!(
        "200 Rings: the operator holds {:.1} MiB",
        held as f64 / f64::from(1 << 20)
    );
    assert!(held < MEMORY, "{held} bytes");
}

/// Memory of the operator in a pod: nodes of the fixture are processes of this machine.
fn resident_of_pod(uid: &str) -> Option<u64> {
    let folders = fs::read_dir("/proc").unwrap().flatten();
    let ids = folders.filter_map(|folder| folder.file_name().to_str()?.parse::<u32>().ok());
    let mut operators = ids.filter(|&id| {
        let program = process::arguments(id).into_iter().next().unwrap_or_default();
        let groups = fs::read_to_string(format!("/proc/{id}/cgroup")).unwrap_or_default();
        program.ends_with("kvasir-operator") && groups.contains(uid)
    });
    process::resident_bytes(operators.next()?)
}
