//! The loss of a stage is told at once and by name, and leaves nothing behind.
#![allow(clippy::unwrap_used, reason = "tests end at the first surprise")]

use std::thread;
use std::time::{Duration, Instant};

use kvasir_tests::client::{Event, question};
use kvasir_tests::deadline::wait_until;
use kvasir_tests::models;
use kvasir_tests::process::{self, Signal};
use kvasir_tests::ring::{Ring, example, file_source};

/// Within this time a client knows that its answer won't go on.
const TOLD: Duration = Duration::from_secs(5);

/// Exit code of `kvasir up` when a stage was lost.
const STAGE_LOST: i32 = 3;

fn smollm2() -> Ring {
    Ring::up(&example("smollm2-135m.yaml", file_source(&models::smollm2())))
}

#[test]
fn a_killed_stage_ends_the_answer_and_the_ring() {
    for (rank, window) in [(0, "0..10"), (1, "10..20"), (2, "20..30")] {
        let mut ring = smollm2();
        let stages = ring.stages();
        let mut answer = ring.client().stream(&question("Tell me about the sea.", 1500)).unwrap();
        answer.next_text().expect("the answer begins");

        assert!(process::signal(stages[rank], Signal::KILL));
        let killed = Instant::now();
        let client = thread::spawn(move || {
            loop {
                match answer.next_event() {
                    Event::Chunk(chunk) if chunk.get("error").is_none() => {}
                    other => return (other, Instant::now()),
                }
            }
        });

        let status = ring.up.wait(TOLD);
        let (last, told) = client.join().unwrap();
        let after = told - killed;
        assert!(after < TOLD, "rank {rank}: the client was told after {after:?}");
        assert_ne!(last, Event::Done, "rank {rank}: half an answer must not look whole");
        assert_eq!(status.code(), Some(STAGE_LOST), "{}", ring.up.stderr());
        let stderr = ring.up.stderr();
        let named = format!("rank {rank} (layers {window})");
        assert!(
            stderr
                .lines()
                .any(|line| line.starts_with("error:") && line.contains(&named)),
            "{stderr}"
        );
        assert!(
            !stages.into_iter().any(process::is_alive),
            "rank {rank}: a stage outlived its ring"
        );
    }
}

#[test]
fn stages_end_with_a_killed_parent() {
    let ring = smollm2();
    let stages = ring.stages();
    assert!(process::signal(ring.up.id(), Signal::KILL));
    wait_until("the stages end", Duration::from_secs(10), || {
        !stages.iter().any(|&stage| process::is_alive(stage))
    });
}

#[test]
fn an_idle_ring_uses_no_processor() {
    let ring = smollm2();
    ring.client().ask(&question("What is the capital of France?", 8));
    let used = || {
        ring.stages()
            .iter()
            .map(|&stage| process::processor_time(stage).unwrap())
            .sum::<Duration>()
    };
    let before = used();
    // what is measured is a second of doing nothing
    thread::sleep(Duration::from_secs(1));
    let spent = used().checked_sub(before).unwrap();
    assert!(
        spent < Duration::from_millis(100),
        "three idle stages used {spent:?} in a second"
    );
}
