//! A ring of three stages answers as one model.
#![allow(clippy::unwrap_used, reason = "tests end at the first surprise")]

use kvasir_tests::models;
use kvasir_tests::process;
use kvasir_tests::ring::{Ring, example, file_source};

const QUESTION: &str = "What is the capital of France?";

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
    assert_eq!(process::children(ring.up.id()), {
        let mut stages = ring.stages();
        stages.sort_unstable();
        stages
    });

    let answer = ring.client().ask(QUESTION, 24);
    let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(text.contains("Paris"), "{text}");
    assert_eq!(answer["model"], "SmolLM2-135M-Instruct");

    // the likeliest tokens are the same ones, word by word
    assert_eq!(ring.client().stream(QUESTION, 24).unwrap().text(), text);

    let stages = ring.stages();
    assert!(ring.up.interrupt().success(), "{}", ring.up.stderr());
    assert!(!stages.into_iter().any(process::is_alive), "a stage outlived its ring");
}
