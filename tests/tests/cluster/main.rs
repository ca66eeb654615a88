//! The operator, its charts and its images on a real cluster, as a platform engineer uses them.
//!
//! The cluster is the one that `KUBECONFIG` names, or that of `tests/cluster/`, brought up once for all tests of this file.
//! Each test has a namespace of its own, and an operator and a relay in it.
#![allow(clippy::unwrap_used, reason = "tests end at the first surprise")]

mod charts;
mod definition;
mod faults;
mod losses;
mod mission;
mod quiet;
mod refusals;
mod rivals;
mod scaling;
mod serving;
mod uninstalling;
mod volumes;

use std::time::Duration;

use kvasir_tests::client::{Answer, Client, question};
use kvasir_tests::cluster::{Cluster, Site, eventually};
use kvasir_tests::ring::Ring;
use kvasir_tests::skip;
use serde_json::{Value, json};

/// For what takes a moment on a machine that is busy with other things.
const SOON: Duration = Duration::from_secs(60);

const CHAT: &str = "/v1/chat/completions";

/// The cluster; without one the test is skipped.
fn cluster() -> Option<&'static Cluster> {
    Cluster::shared().map_err(skip).ok()
}

/// The cluster of `tests/cluster/`, for what takes more than an API: nodes that die, a log of writes, a network.
fn fixture() -> Option<&'static Cluster> {
    let cluster = cluster()?;
    if cluster.own().is_none() {
        skip("this takes the cluster of tests/cluster/, and KUBECONFIG names another");
        return None;
    }
    Some(cluster)
}

fn asked() -> Value {
    question("Why is the sky blue?", 24)
}

fn answer(client: Client) -> String {
    let answer = reached(|| client.send("POST", CHAT, Some(&asked())));
    let status = answer.status;
    let body = answer.json();
    assert_eq!(status, 200, "{body}");
    let content = &body["choices"][0]["message"]["content"];
    content.as_str().unwrap_or_else(|| panic!("{body}")).to_owned()
}

/// An answer of a Ring that is ready, word by word.
fn streamed(site: &Site, ring: &str, chat: &Value) -> Answer {
    let client = site.client(ring);
    reached(|| client.stream(chat))
}

/// The first answer to a request that is taken at all: a node learns where a Service leads a moment after the pods' being
/// ready has been told. What the answer says is another matter.
fn reached(mut send: impl FnMut() -> std::io::Result<Answer>) -> Answer {
    let mut last = None;
    let answer = eventually(SOON, || send().map_err(|error| last = Some(error)).ok());
    answer.unwrap_or_else(|| panic!("the Service takes no request: {last:?}"))
}

/// What the same Ring answers as processes of this machine.
fn answer_of_kvasir_up(ring: &Value) -> String {
    let ring = Ring::up(ring);
    answer(ring.client())
}

/// A Ring that stops nothing and starts nothing: what is asked is what the API server and the operator make of it.
fn suspended(mut ring: Value, name: &str) -> Value {
    ring["metadata"]["name"] = json!(name);
    ring["spec"]["suspend"] = json!(true);
    ring
}

/// Name of an object.
fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap()
}

/// Uid of an object: another one means that it was made again.
fn uid(object: &Value) -> &str {
    object["metadata"]["uid"].as_str().unwrap()
}

/// How often the containers of a pod have started again.
fn restarts(pod: &Value) -> u64 {
    let containers = pod["status"]["containerStatuses"].as_array().into_iter().flatten();
    containers.map(|c| c["restartCount"].as_u64().unwrap_or_default()).sum()
}
