//! `kvasir bench`: what it needs, and a relay beside nginx.

use serde_json::{Value, json};

use crate::{Folder, fails, file, prints, text};

#[test]
fn a_bench_needs_a_pair_and_a_context_for_its_prompts() {
    let folder = Folder::new();
    let ring = folder.ring(&file(&folder.model()), &json!({}));
    let (code, error) = fails(&["bench", text(&ring), "--prompt-tokens", "200", "--tokens", "100"]);
    assert_eq!(
        error,
        "error: prompt and answer take 300 tokens and contextLength is 256: lower --prompt-tokens or --tokens\n"
    );
    assert_eq!(code, 2);
    assert_eq!(fails(&["bench", text(&ring), "--pairs", "0"]).0, 2);
}

#[test]
fn a_relay_is_measured_beside_nginx() {
    let small = [
        "--edges",
        "2",
        "--seconds",
        "1",
        "--turns",
        "1",
        "--bulk-mib",
        "8",
        "--idle-edges",
        "50",
    ];
    let printed = prints(&[&["bench", "relay", "-o", "json"], &small[..]].concat());
    let report: Value = serde_json::from_str(&printed).unwrap();
    for ratio in ["latency_ratio_p50", "latency_ratio_p99", "bulk_ratio"] {
        assert!(report[ratio].is_number(), "{ratio}: {report}");
    }
    let idle = report["bytes_per_idle_edge"].as_u64().unwrap();
    assert!(idle < 200_000, "{idle} bytes for an idle edge");
    assert!(report["files_for_20000_edges"].as_u64().unwrap() > 40_000);
}
