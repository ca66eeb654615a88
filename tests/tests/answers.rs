//! A ring of three stages answers as one model, and ends without a trace.
#![allow(clippy::unwrap_used, reason = "tests end at the first surprise")]

use kvasir_tests::client::question;
use kvasir_tests::models;
use kvasir_tests::process;
use kvasir_tests::ring::{Ring, example, file_source};

#[test]
fn three_stages_answer_a_question() {
    let mut ring = Ring::up(&example("smollm2-135m.yaml", file_source(&models::smollm2())));
    let windows: Vec<_> = ring
        .ready
        .ranks
        .iter()
        .map(|rank| (rank.layers.start, rank.layers.end))
        .collect();
    assert_eq!(windows, [(0, 10), (10, 20), (20, 30)]);
    let mut stages = ring.stages();
    stages.sort_unstable();
    assert_eq!(
        process::children(ring.up.id()),
        stages,
        "a process for each window, and no other"
    );

    let capital = question("What is the capital of France?", 24);
    let answer = ring.client().ask(&capital);
    let choice = &answer["choices"][0];
    assert_eq!(choice["message"]["content"], "The capital of France is Paris.");
    assert_eq!(choice["finish_reason"], "stop");
    assert_eq!(answer["model"], "SmolLM2-135M-Instruct");
    assert_eq!(
        ring.client().stream(&capital).unwrap().text(),
        "The capital of France is Paris."
    );

    let stdout = ring.up.stdout();
    let rows: Vec<&str> = stdout.lines().filter(|line| line.contains("..")).collect();
    assert_eq!(rows.len(), 3, "a row for each rank in {stdout}");
    assert!(stdout.contains(&ring.ready.endpoint), "{stdout}");

    assert!(ring.up.interrupt().success(), "{}", ring.up.stderr());
    assert!(!stages.into_iter().any(process::is_alive), "a stage outlived its ring");
}

#[test]
fn a_base_model_with_sliding_windows_continues_text() {
    let ring = Ring::up(&example("gemma-3-270m.yaml", file_source(&models::gemma3())));
    let body = serde_json::json!({ "prompt": "one two three four five", "max_tokens": 4, "temperature": 0 });
    let answer = ring
        .client()
        .send("POST", "/v1/completions", Some(&body))
        .unwrap()
        .json();
    let text = answer["choices"][0]["text"]
        .as_str()
        .unwrap_or_else(|| panic!("{answer}"));
    assert!(text.starts_with(" six"), "{text:?}");
}
