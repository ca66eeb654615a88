//! A stage holds what the plan says that it needs, and no stage holds the model.
#![allow(clippy::unwrap_used, reason = "tests end at the first surprise")]

use std::fs;

use kvasir_plan::RankManifest;
use kvasir_tests::client::question;
use kvasir_tests::models;
use kvasir_tests::process::resident_bytes;
use kvasir_tests::ring::{Ring, example, file_source};

#[test]
fn a_stage_takes_no_more_memory_than_planned() {
    for (file, model) in [
        ("smollm2-135m.yaml", models::smollm2()),
        ("gemma-3-270m.yaml", models::gemma3()),
    ] {
        let ring = Ring::up(&example(file, file_source(&model)));
        let plan = fs::read(ring.up.dir().join("plan.json")).unwrap();
        let plan: RankManifest = serde_json::from_slice(&plan).unwrap();
        if file == "smollm2-135m.yaml" {
            // a prompt that fills several laps, so that all buffers are in use
            ring.client().ask(&question(&"The sea is wide. ".repeat(200), 16));
        }
        for (rank, planned) in plan.ranks.iter().enumerate() {
            let resident = resident_bytes(ring.ready.ranks[rank].pid).unwrap();
            assert!(
                resident <= planned.memory,
                "{file} rank {rank}: {resident} bytes, {} planned",
                planned.memory
            );
        }
    }
}
