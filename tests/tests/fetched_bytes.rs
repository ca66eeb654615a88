//! A stage fetches its own window and little else: at most 1.02 × the bytes of the window's tensors, and the prefix.
//!
//! The web server's own log is the judge.
#![allow(clippy::unwrap_used, reason = "tests end at the first surprise")]

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use kvasir_gguf::Model;
use kvasir_gguf::tensor::layer_of;
use kvasir_tests::deadline::wait_until;
use kvasir_tests::models;
use kvasir_tests::nginx::{Nginx, Request};
use kvasir_tests::ring::{Rank, Ring, example, http_source, program};
use serde_json::Value;

/// Bytes of the tensors that a window of layers `start..end` needs, by their names alone.
fn window_bytes(model: &Model, start: u32, end: u32) -> u64 {
    let first = start == 0;
    let last = end == model.layers();
    let tied = model.tensor("output.weight").is_none();
    let needed = |name: &str| match (layer_of(name), name) {
        (Some((layer, _)), _) => (start..end).contains(&layer),
        (None, "token_embd.weight") => first || (last && tied),
        (None, "output.weight" | "output_norm.weight") => last,
        (None, _) => true,
    };
    model
        .tensors()
        .iter()
        .filter(|tensor| needed(&tensor.name))
        .map(|tensor| tensor.bytes().unwrap())
        .sum()
}

/// The most that a stage may fetch.
fn allowed(model: &Model, rank: &Rank) -> u64 {
    let window = window_bytes(model, rank.layers.start, rank.layers.end);
    window + window / 50 + model.prefix_bytes().iter().sum::<u64>()
}

fn total(requests: &[Request]) -> u64 {
    requests.iter().map(|request| request.bytes).sum()
}

/// Runs `kvasir-stage fetch` for one rank, against a web server of its own.
fn fetch_alone(model: &Path, plan: &Path, rank: usize) -> Vec<Request> {
    let nginx = Nginx::serve(model.parent().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let source = http_source(&nginx.url(model.file_name().unwrap().to_str().unwrap()));
    let output = Command::new(program("kvasir-stage"))
        .args([
            "fetch",
            "--rank",
            &rank.to_string(),
            "--source",
            &source.to_string(),
            "--progress",
            "json",
        ])
        .arg("--plan")
        .arg(plan)
        .arg("--dir")
        .arg(folder.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let done = String::from_utf8(output.stdout).unwrap();
    let done: Value = serde_json::from_str(done.lines().last().unwrap()).unwrap();
    let told = done["bytesFetched"].as_u64().unwrap_or_else(|| panic!("{done}"));
    wait_until(
        "the log holds all that the stage received",
        Duration::from_secs(5),
        || total(&nginx.requests()) >= told,
    );
    nginx.requests()
}

#[test]
fn a_stage_fetches_its_window_and_the_prefix() {
    for (file, path) in [
        ("smollm2-135m.yaml", models::smollm2()),
        ("gemma-3-270m.yaml", models::gemma3()),
    ] {
        let model = Model::open(&path).unwrap();
        let nginx = Nginx::serve(path.parent().unwrap());
        let url = nginx.url(path.file_name().unwrap().to_str().unwrap());
        let ring = Ring::up(&example(file, http_source(&url)));
        let plan = ring.up.dir().join("plan.json");

        for (number, rank) in ring.ready.ranks.iter().enumerate() {
            let allowed = allowed(&model, rank);
            let requests = fetch_alone(&path, &plan, number);
            let sent = total(&requests);
            assert!(
                sent <= allowed,
                "{file} rank {number}: {sent} bytes sent, {allowed} allowed"
            );
            assert!(
                rank.fetched_bytes <= allowed,
                "{file} rank {number} in the ring: {}",
                rank.fetched_bytes
            );
            let partial = |request: &Request| request.method != "GET" || request.status == 206;
            assert!(requests.iter().all(partial), "{file} rank {number}: {requests:?}");
        }

        // in the ring, the planner reads the prefix once more
        let allowed = ring.ready.ranks.iter().map(|rank| allowed(&model, rank)).sum::<u64>()
            + model.prefix_bytes().iter().sum::<u64>();
        let sent = total(&nginx.requests());
        assert!(
            sent <= allowed,
            "{file}: {sent} bytes sent to the ring, {allowed} allowed"
        );
    }
}
