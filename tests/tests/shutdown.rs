//! The end of a ring by request: its clients are told, its exit says that all is well, and nothing is left.
#![allow(clippy::unwrap_used, reason = "tests end at the first surprise")]

use std::thread;

use kvasir_tests::client::{Event, question};
use kvasir_tests::models;
use kvasir_tests::process::{self, Signal};
use kvasir_tests::ring::{Ring, Up, example, file_source};
use serde_json::Value;
use std::time::Duration;

/// The ring has ten seconds for each stage, and needs about two.
const END: Duration = Duration::from_secs(20);
/// What a shell says of a program that was interrupted.
const INTERRUPTED: i32 = 130;

fn smollm2() -> Value {
    example("smollm2-135m.yaml", file_source(&models::smollm2()))
}

#[test]
fn clients_of_a_ring_that_ends_are_told_once_and_by_name() {
    for signal in [Signal::INT, Signal::TERM] {
        let mut ring = Ring::up(&smollm2());
        let stages = ring.stages();
        let mut story = question("Tell me a long story about the sea.", 1900);
        // SmolLM2's two ends of text: on a quick machine the story would be over in the time that is left
        story["logit_bias"] = serde_json::json!({"0": -100, "2": -100});
        let mut answers = [(); 2].map(|()| ring.client().stream(&story).unwrap());
        for answer in &mut answers {
            answer.next_text().expect("the answer begins");
        }
        let client = ring.client();
        let whole = thread::spawn({
            let story = story.clone();
            move || client.send("POST", "/v1/chat/completions", Some(&story))
        });
        // a short answer is done in the time that is left
        let mut short = ring
            .client()
            .stream(&question("What is the capital of France?", 8))
            .unwrap();
        short.next_text().expect("the answer begins");

        assert!(process::signal(ring.up.id(), signal));
        assert!(!short.text().is_empty());
        for mut answer in answers {
            let last = loop {
                match answer.next_event() {
                    Event::Chunk(chunk) if chunk.get("error").is_none() => {}
                    other => break other,
                }
            };
            let Event::Chunk(last) = last else {
                panic!("{signal:?}: an event tells of the end, not {last:?}")
            };
            assert_eq!(last["error"]["message"], "the server is shutting down");
            assert_eq!(last["error"]["code"], "server_draining");
            assert_eq!(answer.next_event(), Event::BrokenOff, "no [DONE] after half an answer");
        }
        let whole = whole.join().unwrap().unwrap();
        assert_eq!(whole.status, 503);
        assert_eq!(whole.json()["error"]["code"], "server_draining");

        let status = ring.up.wait(END);
        assert_eq!(status.code(), Some(0), "{signal:?}: {}", ring.up.stderr());
        assert!(!stages.into_iter().any(process::is_alive));
        assert!(!ring.up.ready_file().exists(), "the ready file outlived the ring");
    }
}

#[test]
fn a_signal_before_the_ring_is_up_is_an_interruption() {
    for signal in [Signal::INT, Signal::TERM] {
        let mut up = Up::start(&smollm2(), &[]);
        kvasir_tests::deadline::wait_until("the windows are being fetched", END, || {
            up.dir().join("plan.json").exists()
        });
        assert!(process::signal(up.id(), signal));
        let status = up.wait(END);
        assert_eq!(status.code(), Some(INTERRUPTED), "{signal:?}: {}", up.stderr());
    }
}
