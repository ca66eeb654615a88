//! A stage that stands still for a while delays its ring, and no more: nothing is lost and nothing hangs for good.
#![allow(clippy::unwrap_used, reason = "tests end at the first surprise")]

use std::thread;
use std::time::Duration;

use kvasir_tests::client::{Event, question};
use kvasir_tests::models;
use kvasir_tests::process::{self, Signal};
use kvasir_tests::ring::{Ring, example, file_source};

const CLIENTS: usize = 8;
const TOKENS: u32 = 48;

#[test]
fn eight_streams_outlive_a_stage_that_stops_for_three_seconds() {
    let mut manifest = example("smollm2-135m.yaml", file_source(&models::smollm2()));
    manifest["spec"]["sequences"] = CLIENTS.into();
    let ring = Ring::up(&manifest);
    let mut answers: Vec<_> = (0..CLIENTS)
        .map(|_| {
            ring.client()
                .stream(&question("Tell me a story about the sea.", TOKENS))
                .unwrap()
        })
        .collect();
    for answer in &mut answers {
        answer.next_text().expect("the answer begins");
    }

    let [first, stopped, last] = ring.stages()[..] else {
        panic!("three stages")
    };
    assert!(process::signal(stopped, Signal::STOP));
    let before = [first, last].map(|stage| process::processor_time(stage).unwrap());
    // what is tested is a stop of three seconds
    thread::sleep(Duration::from_secs(3));
    let after = [first, last].map(|stage| process::processor_time(stage).unwrap());
    assert!(process::signal(stopped, Signal::CONT));
    for (after, before) in after.iter().zip(before) {
        let spent = after.saturating_sub(before);
        assert!(
            spent < Duration::from_millis(1500),
            "a stage used {spent:?} of three seconds with nothing to do"
        );
    }

    for mut answer in answers {
        let mut finish = None;
        loop {
            match answer.next_event() {
                Event::Chunk(chunk) => {
                    assert!(chunk.get("error").is_none(), "{chunk}");
                    if let Some(reason) = chunk["choices"][0]["finish_reason"].as_str() {
                        finish = Some(reason.to_owned());
                    }
                }
                Event::Done => break,
                Event::BrokenOff => panic!("an answer broke off"),
            }
        }
        assert!(
            finish.as_deref().is_some_and(|f| f == "length" || f == "stop"),
            "{finish:?}"
        );
    }
}
