//! `kvasir plan`, and what every command that reads a Ring says of one that is wrong.

use std::path::Path;

use kvasir_tests::random_model::{Architecture, RandomModel, Vocabulary};
use serde_json::{Value, json};

use crate::{Folder, fails, file, prints, text};

#[test]
fn a_ring_file_that_is_missing_is_named() {
    let (code, error) = fails(&["plan", "no/such/ring.yaml"]);
    assert_eq!(code, 1);
    assert_eq!(
        error,
        "error: can't read the Ring no/such/ring.yaml\n  because: No such file or directory (os error 2)\n"
    );
}

#[test]
fn e1_a_typo_in_a_ring_is_named_by_its_path() {
    let folder = Folder::new();
    let ring = folder.ring(
        &file(&folder.path("model.gguf")),
        &json!({"stagse": 3, "contextLength": "long"}),
    );
    for command in ["plan", "up"] {
        let (code, error) = fails(&[command, text(&ring)]);
        assert_eq!(code, 2);
        let first = format!("error: {} is no Ring that can be used: correct it\n", ring.display());
        assert!(error.starts_with(&first), "{error}");
        assert!(error.contains("spec.stagse: unknown field"), "{error}");
        assert!(error.contains("spec.contextLength: "), "{error}");
    }
}

#[test]
fn a_model_that_is_missing_is_named() {
    let folder = Folder::new();
    let ring = folder.ring(&file(Path::new("/no/such/model.gguf")), &json!({}));
    let (code, error) = fails(&["plan", text(&ring)]);
    assert_eq!(code, 1);
    assert!(
        error.starts_with("error: /no/such/model.gguf can't be read\n"),
        "{error}"
    );
}

#[test]
fn a_volume_can_only_be_read_in_a_cluster() {
    let folder = Folder::new();
    let ring = folder.ring(
        &json!({"persistentVolumeClaim": {"claimName": "c", "path": "m.gguf"}}),
        &json!({}),
    );
    let (code, error) = fails(&["plan", text(&ring)]);
    assert_eq!(code, 2);
    assert!(error.contains("name it with source.file to run it here"), "{error}");
}

#[test]
fn a_plan_shows_windows_and_bytes() {
    let folder = Folder::new();
    let windows = json!({"windows": [{"layers": {"start": 0, "end": 3}}, {"layers": {"start": 3, "end": 8}}]});
    let ring = folder.ring(&file(&folder.model()), &windows);
    let shown: Value = serde_json::from_str(&prints(&["plan", text(&ring), "-o", "json"])).unwrap();
    assert_eq!(shown["ring"], "tiny");
    assert_eq!(shown["model"]["layers"], 8);
    let ranks = shown["ranks"].as_array().unwrap();
    let layers: Vec<_> = ranks.iter().map(|rank| rank["layers"].clone()).collect();
    assert_eq!(layers, [json!({"start": 0, "end": 3}), json!({"start": 3, "end": 8})]);
    for column in ["fetchBytes", "memoryBytes", "cacheBytes"] {
        let sum: u64 = ranks.iter().map(|rank| rank[column].as_u64().unwrap()).sum();
        assert_eq!(shown["total"][column], sum, "{column}");
        assert!(sum > 0);
    }

    let table = prints(&["plan", text(&ring)]);
    let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["RANK", "LAYERS", "PLACEMENT", "FETCH", "MEMORY", "CACHE"]);
    assert_eq!(lines[1][..3], ["0", "0..3", "local"]);
    assert_eq!(lines[2][..3], ["1", "3..8", "local"]);
    assert_eq!(lines[3][0], "total");
    assert_eq!(lines.len(), 4);
}

#[test]
fn a3_an_mtp_block_is_planned_at_the_last_rank_and_is_in_no_window() {
    let folder = Folder::new();
    let model = folder.path("model.gguf");
    let with_mtp = RandomModel::new(Architecture::Qwen35Moe)
        .vocabulary(Vocabulary::Bytes)
        .mtp_layers(1);
    with_mtp.write(&model).unwrap();
    let windows = json!({"windows": [{"layers": {"start": 0, "end": 3}}, {"layers": {"start": 3, "end": 8}}]});
    let ring = folder.ring(&file(&model), &windows);
    let shown: Value = serde_json::from_str(&prints(&["plan", text(&ring), "-o", "json"])).unwrap();
    assert_eq!(
        (&shown["model"]["layers"], &shown["model"]["mtpLayers"]),
        (&json!(8), &json!(1))
    );
    assert!(shown["ranks"][0].get("mtpLayers").is_none());
    assert_eq!(shown["ranks"][1]["mtpLayers"], 1);
    assert!(shown["ranks"][1]["mtpBytes"].as_u64() > Some(0));
    let table = prints(&["plan", text(&ring)]);
    assert!(table.contains("  3..8 + 1 MTP  "), "{table}");
}

#[test]
fn stages_can_be_counted_instead_of_cut_by_hand() {
    let folder = Folder::new();
    let ring = folder.ring(&file(&folder.model()), &json!({}));
    let windows = |stages: &str| {
        let shown: Value =
            serde_json::from_str(&prints(&["plan", text(&ring), "--stages", stages, "-o", "json"])).unwrap();
        let ranks = shown["ranks"].as_array().unwrap().clone();
        let ends = ranks.iter().map(|rank| rank["layers"]["end"].as_u64().unwrap());
        ends.collect::<Vec<_>>()
    };
    assert_eq!(windows("1"), [8]);
    assert_eq!(windows("4"), [2, 4, 6, 8]);
    let (code, error) = fails(&["plan", text(&ring), "--stages", "9"]);
    assert_eq!(code, 2);
    assert_eq!(
        error,
        "error: the model can be cut into 8 stages at most, not 9: lower --stages\n"
    );
}

#[test]
fn windows_that_leave_layers_out_are_refused_by_name() {
    let folder = Folder::new();
    let windows = json!({"windows": [{"layers": {"start": 0, "end": 3}}, {"layers": {"start": 4, "end": 8}}]});
    let ring = folder.ring(&file(&folder.model()), &windows);
    let (code, error) = fails(&["plan", text(&ring)]);
    assert_eq!(code, 2);
    assert_eq!(
        error,
        "error: the Ring can't be planned onto this machine\n  because: no window holds layers 3..4\n"
    );
}
