//! `kvasir inspect` as a user meets it: what a model's first bytes say, and what can't be cut, with the reason.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod support;

use std::path::Path;
use std::time::Duration;

use kvasir_tests::deadline::wait_for;
use kvasir_tests::gguf::Value as Metadata;
use kvasir_tests::models;
use kvasir_tests::nginx::Nginx;
use kvasir_tests::random_model::{Architecture, RandomModel};
use serde_json::{Value, json};

use support::{column, inspected, kvasir, prints, random};

fn in_folder(model: &RandomModel, test: impl FnOnce(&str)) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    model.write(&path).unwrap();
    test(path.to_str().unwrap());
}

fn sum(rows: &Value, name: &str) -> u64 {
    column(rows, name).iter().map(|value| value.as_u64().unwrap()).sum()
}

#[test]
fn a_dense_model_can_be_cut_before_any_layer() {
    in_folder(&random(Architecture::Llama), |model| {
        let shown = inspected(&[model]);
        assert_eq!(shown["architecture"], "llama");
        assert_eq!(column(&shown["layers"], "kind"), vec![json!("full"); 8]);
        assert_eq!(
            shown["cut"],
            json!({ "possible": true, "maxStages": 8, "lastStart": 7 })
        );
        assert_eq!(shown["kvBytesPerToken"], sum(&shown["layers"], "kvBytesPerToken"));
        assert_eq!(shown["stateBytes"], 0);
        let parts = sum(&shown["layers"], "bytes")
            + ["embeddingBytes", "headBytes", "everyWindowBytes", "prefixBytes"]
                .map(|part| shown[part].as_u64().unwrap())
                .iter()
                .sum::<u64>();
        let size = shown["sizeBytes"].as_u64().unwrap();
        assert!(
            parts <= size && size < parts + (1 << 16),
            "all but padding is counted: {parts} of {size}"
        );

        let table = prints(&["inspect", model]);
        assert!(
            table.contains("\ncut      before any layer; 8 stages at most\n"),
            "{table}"
        );
        let rows: Vec<&str> = table.lines().filter(|line| line.contains("..")).collect();
        assert_eq!(rows.len(), 1, "layers that are alike share a row: {table}");
        assert!(rows[0].starts_with("0..8 "), "{table}");
    });
}

#[test]
fn stages_are_cut_as_plan_cuts_them() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model.gguf");
    random(Architecture::Llama).write(&model).unwrap();
    let ring = folder.path().join("ring.yaml");
    let of_ring = json!({
        "apiVersion": "kvasir.dev/v1alpha1", "kind": "Ring", "metadata": { "name": "tiny" },
        "spec": {
            "model": { "name": "tiny", "source": { "file": { "path": model } } },
            "contextLength": 256, "sequences": 2,
        },
    });
    std::fs::write(&ring, of_ring.to_string()).unwrap();
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let (model, ring) = (text(&model), text(&ring));
    let shown = inspected(&[&model, "--stages", "3", "--context-length", "256", "--sequences", "2"]);
    let planned: Value = serde_json::from_str(&prints(&["plan", &ring, "--stages", "3", "-o", "json"])).unwrap();
    for name in ["layers", "fetchBytes", "cacheBytes"] {
        assert_eq!(
            column(&shown["stages"], name),
            column(&planned["ranks"], name),
            "{name}"
        );
    }
    let too_many = kvasir(&["inspect", &model, "--stages", "9"]);
    assert_eq!(too_many.status.code(), Some(2));
    assert_eq!(
        String::from_utf8(too_many.stderr).unwrap(),
        "error: the model can be cut into 8 stages at most, not 9: lower --stages\n"
    );
}

#[test]
fn a_hybrid_model_tells_its_kinds_and_keeps_both_in_the_last_window() {
    in_folder(&random(Architecture::Qwen35Moe).mtp_layers(1), |model| {
        let shown = inspected(&[model]);
        let kinds = column(&shown["layers"], "kind");
        let expected = ["recurrent", "recurrent", "recurrent", "full"].repeat(2);
        assert_eq!(kinds, expected);
        assert_eq!(shown["mtpLayers"], 1);
        assert_eq!(
            shown["cut"],
            json!({ "possible": true, "maxStages": 7, "lastStart": 6 })
        );
        assert!(shown["stateBytes"].as_u64().unwrap() > 0);
        for layer in shown["layers"].as_array().unwrap() {
            let recurrent = layer["kind"] == "recurrent";
            assert_eq!(layer["kvBytesPerToken"] == 0, recurrent, "{layer}");
            assert_eq!(layer["stateBytes"] == 0, !recurrent, "{layer}");
            assert!(
                layer["activeBytes"].as_u64() < layer["bytes"].as_u64(),
                "a token uses a few experts: {layer}"
            );
        }
        let table = prints(&["inspect", model]);
        assert!(table.contains("\nkinds    2 full, 6 recurrent\n"), "{table}");
        assert!(
            table.contains("before any layer up to 6, so that the last window has both kinds; 7 stages at most"),
            "{table}"
        );
    });
}

#[test]
fn an_architecture_that_cannot_be_cut_is_shown_with_the_reason() {
    let model = random(Architecture::Llama)
        .metadata("general.architecture", Metadata::String("gemma3n".to_owned()))
        .metadata("gemma3n.block_count", Metadata::U32(8))
        .metadata("gemma3n.embedding_length", Metadata::U32(256));
    in_folder(&model, |model| {
        let output = kvasir(&["inspect", "-o", "json", model]);
        assert_eq!(output.status.code(), Some(2), "it is shown, and no ring can serve it");
        let shown: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(shown["architecture"], "gemma3n");
        assert_eq!(shown["cut"]["maxStages"], 0);
        assert_eq!(shown["cut"]["possible"], false);
        let why = shown["cut"]["why"].as_str().unwrap();
        assert!(
            why.starts_with("models of architecture gemma3n can't be served by windows"),
            "{why}"
        );
        assert!(sum(&shown["layers"], "bytes") > 0);
        let table = kvasir(&["inspect", model]);
        assert_eq!(table.status.code(), Some(2));
        assert!(String::from_utf8(table.stdout).unwrap().contains(why));
        assert_eq!(
            String::from_utf8(table.stderr).unwrap(),
            format!("error: the model can't be served: {why}\n")
        );

        let split = kvasir(&["inspect", model, "--stages", "2"]);
        assert_eq!(split.status.code(), Some(2));
        assert!(split.stdout.is_empty());
        assert_eq!(String::from_utf8(split.stderr).unwrap(), format!("error: {why}\n"));
    });
}

#[test]
fn of_a_model_elsewhere_only_the_prefix_is_read() {
    let file = models::smollm2();
    let nginx = Nginx::serve(file.parent().unwrap());
    let url = nginx.url(file.file_name().unwrap().to_str().unwrap());
    let shown = inspected(&[&url]);
    assert_eq!(column(&shown["layers"], "kind").len(), 30);
    assert_eq!(
        shown["identity"],
        inspected(&[file.to_str().unwrap()])["identity"],
        "as the file itself"
    );
    let prefix = shown["prefixBytes"].as_u64().unwrap();
    let sent = wait_for("the requests are logged", Duration::from_secs(5), || {
        let sent: u64 = nginx.requests().iter().map(|request| request.bytes).sum();
        (sent >= prefix).then_some(sent)
    });
    assert!(
        sent <= 4 * prefix,
        "{sent} bytes for a prefix of {prefix}, of {} in all",
        shown["sizeBytes"]
    );
}
