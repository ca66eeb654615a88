//! Weights that are damaged are told by rank and file, and never served for long.
#![allow(clippy::unwrap_used, reason = "tests end at the first surprise")]

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use kvasir_tests::client::question;
use kvasir_tests::deadline::{wait_for, wait_until};
use kvasir_tests::models;
use kvasir_tests::process;
use kvasir_tests::ring::{Ring, Up, example, file_source};

/// Exit code of `kvasir up` when a stage was lost.
const STAGE_LOST: i32 = 3;
/// Time for a ring to form again, or to end.
const SOON: Duration = Duration::from_secs(60);

/// A copy of a model in which one tensor of f32 values is not a number.
fn damaged(model: &Path, tensor: &str, copy: &Path) {
    fs::copy(model, copy).unwrap();
    let model = kvasir_gguf::Model::open(copy).unwrap();
    let prefix = &model.parts()[0].prefix;
    let found = prefix.tensors.iter().find(|found| found.name == tensor).unwrap();
    let bytes = vec![0xff; found.ty.bytes(&found.dims).unwrap() as usize];
    let file = OpenOptions::new().write(true).open(copy).unwrap();
    file.write_all_at(&bytes, prefix.data_offset + found.offset).unwrap();
}

#[test]
fn a_window_that_computes_no_numbers_is_told_and_ends_the_ring() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model.gguf");
    damaged(&models::smollm2(), "blk.12.attn_norm.weight", &model);
    let mut ring = Ring::up(&example("smollm2-135m.yaml", file_source(&model)));
    let stages = ring.stages();
    let mut failures = 0;
    // between two failures the ring is formed again, and says so
    while failures < 3 {
        let answer = ring.client().send(
            "POST",
            "/v1/chat/completions",
            Some(&question("What is the capital of France?", 8)),
        );
        let Ok(answer) = answer else { break };
        let status = answer.status;
        let body = answer.json();
        assert_eq!(status, 503, "{body}");
        assert!(!body.to_string().contains(".gguf"), "no client's business: {body}");
        match body["error"]["code"].as_str() {
            Some("engine_failed") => {
                failures += 1;
                if failures == 1 {
                    wait_until("the first failure is told while the ring is up", SOON, || {
                        let stderr = ring.up.stderr();
                        stderr
                            .lines()
                            .any(|line| line.starts_with("rank 1:") && line.contains("not finite"))
                    });
                }
                let message = body["error"]["message"].as_str().unwrap();
                assert!(
                    message.contains("rank 1") && message.contains("not finite"),
                    "{message}"
                );
            }
            Some("ring_not_ready" | "server_draining") => {}
            _ => panic!("{body}"),
        }
    }
    let status = ring.up.wait(SOON);
    let stderr = ring.up.stderr();
    assert_eq!(status.code(), Some(STAGE_LOST), "{stderr}");
    let told = stderr
        .lines()
        .find(|line| line.starts_with("error:"))
        .unwrap_or_else(|| panic!("{stderr}"));
    assert!(
        told.contains("rank 1 (layers 10..20)") && told.contains("not finite") && told.contains("delete it"),
        "{told}"
    );
    assert!(!stages.into_iter().any(process::is_alive));
    let log = fs::read_to_string(ring.up.dir().join("rank-1.log")).unwrap();
    assert!(
        log.contains("rank 1 (layers 10..20)") && log.contains("not finite"),
        "{log}"
    );
}

#[test]
fn a_window_whose_bytes_changed_is_fetched_again() {
    let manifest = example("smollm2-135m.yaml", file_source(&models::smollm2()));
    let mut ring = Ring::up(&manifest);
    let capital = question("What is the capital of France?", 24);
    let before = ring.client().ask(&capital);
    assert!(ring.up.interrupt().success());

    let windows = fs::read_dir(ring.up.dir().join("windows")).unwrap();
    let window = windows
        .map(|entry| entry.unwrap().path())
        .find(|path| path.to_str().unwrap().ends_with("-10-20"))
        .unwrap()
        .join("window.gguf");
    let file = OpenOptions::new().read(true).write(true).open(&window).unwrap();
    let middle = file.metadata().unwrap().len() / 2;
    let mut byte = [0];
    file.read_exact_at(&mut byte, middle).unwrap();
    file.write_all_at(&[byte[0] ^ 0x40], middle).unwrap();

    let dir = ring.up.dir();
    let ready = dir.with_file_name("second.json");
    let arguments = ["--dir", dir.to_str().unwrap(), "--ready-file", ready.to_str().unwrap()];
    let mut second = Up::start(&manifest, &arguments);
    let endpoint = wait_for("the ring is ready again", SOON, || {
        let text = fs::read(&ready).ok()?;
        let told: serde_json::Value = serde_json::from_slice(&text).unwrap();
        Some(
            told["endpoint"]
                .as_str()
                .unwrap()
                .trim_start_matches("http://")
                .to_owned(),
        )
    });
    let stderr = second.stderr();
    assert!(stderr.contains("rank 0 (layers 0..10): window was there"), "{stderr}");
    assert!(stderr.contains("rank 1 (layers 10..20): window is there, "), "{stderr}");
    let client = kvasir_tests::client::Client::new(endpoint.parse().unwrap());
    let after = client.ask(&capital);
    assert_eq!(
        after["choices"][0]["message"]["content"],
        before["choices"][0]["message"]["content"]
    );
    assert!(second.interrupt().success());
    wait_until("the ready file is gone", SOON, || !ready.exists());
}
