//! The whole shape of it: a cluster holds the ends, and a device behind a router the middle.

use std::process::Command;
use std::time::Duration;

use kvasir_tests::cluster::{Outside, SEEN_AS, Site, eventually};
use kvasir_tests::process::Background;
use kvasir_tests::ring::program;
use serde_json::json;

use super::{answer, answer_of_kvasir_up, fixture, name};

/// For the cluster's windows to be loaded and offered.
const OFFERED: Duration = Duration::from_secs(120);
/// Where the relay is dialled, on every node.
const NODE_PORT: u16 = 30_443;

#[test]
fn a_device_behind_nat_serves_the_window_that_the_cluster_leaves_open() {
    let Some(cluster) = fixture() else { return };
    let site = Site::new(cluster, "kvasir-mission");
    let relay = format!("http://{}:{NODE_PORT}", cluster.node_address());
    site.install(&[
        "relay.service.type=NodePort",
        &format!("relay.service.nodePort={NODE_PORT}"),
        &format!("relay.publicUrls={{{relay}}}"),
    ]);
    let closed = site.ring();
    let mut ring = closed.clone();
    let ring_name = name(&ring).to_owned();
    let middle = &mut ring["spec"]["windows"][1];
    let layers = middle["layers"]["end"].as_u64().unwrap() - middle["layers"]["start"].as_u64().unwrap();
    middle.as_object_mut().unwrap().remove("pool");
    middle["open"] = json!(true);
    ring["spec"]["market"] = json!({ "maxLayers": layers });
    ring["spec"]["relay"] = json!({ "url": relay });
    site.apply(&ring).unwrap();

    let waiting = site.wait_condition(&ring_name, "Covered", OFFERED, |c| c.reason == "AwaitingClaims");
    // it names the layers, however it joins their numbers
    for end in ["start", "end"] {
        let layer = ring["spec"]["windows"][1]["layers"][end].to_string();
        assert!(waiting.message.contains(&layer), "{waiting:?} and layer {layer}");
    }
    assert_eq!(site.stages(&ring_name).len(), 2);

    let secret = format!("{ring_name}-0-invite");
    let link = eventually(OFFERED, || {
        let text = "--output=go-template={{.data.link | base64decode}}";
        site.kubectl(&["get", "secret", &secret, text]).ok()
    });
    let device = Outside::new().unwrap_or_else(|error| panic!("the device: {error}"));
    let mut join: Command = device.command(program("kvasir"));
    join.env("KVASIR_THREADS", "1")
        .args(["join", &link.expect("an invite"), "--memory", "4G", "--dir"])
        .arg(site.path("device"));
    let log = site.path("join.log");
    let _join = Background::start(&mut join, &log);
    site.wait_ready(&ring_name);

    let told = site.kubectl(&["get", "ring", &ring_name, "--no-headers"]).unwrap();
    let columns: Vec<&str> = told.split_whitespace().collect();
    assert_eq!(columns[2..6], ["1/1", "3/3", "30/30", "True"], "{told}");
    let stages = site.get(&["ring", &ring_name]).unwrap()["status"]["rings"][0]["stages"].clone();
    assert_eq!(stages[1]["placement"], "Claimed");
    assert!(
        site.sent().contains_key(SEEN_AS),
        "the device came by its router: {:?}",
        site.sent()
    );
    assert_eq!(answer(site.client(&ring_name)), answer_of_kvasir_up(&closed));
}
