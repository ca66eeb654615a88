//! What a ring promises whatever model it runs.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::join_all;
use kvasir_plan::RankManifest;
use kvasir_stage::ring::handle::{Finish, Generate, Ring, RingError};
use kvasir_stage::ring::session::Tap;
use kvasir_wire::edge::Timings;
use kvasir_wire::frame::{Frame, Grammar, Sampling};
use kvasir_wire::{Limits, codec};

use crate::circle::{Circle, LIMIT, collect, eventually, plan, request};
use crate::toy::{Gate, Toy, VOCABULARY, WIDTH, expected};

const LAYERS: u32 = 10;

fn toy_plan(stages: u32) -> RankManifest {
    plan(LAYERS, stages, WIDTH as u32, VOCABULARY as u32)
}

fn toy(plan: &RankManifest) -> impl Fn(usize) -> Toy + use<> {
    let plan = plan.clone();
    move |rank| {
        let layers = plan.ranks[rank].layers;
        Toy::new(layers.start..layers.end, plan.sequences)
    }
}

fn prompt(seed: i32, length: usize) -> Vec<i32> {
    (0..length as i32)
        .map(|i| (seed * 31 + i * 7) % VOCABULARY as i32)
        .collect()
}

fn tokens(answer: &[kvasir_wire::frame::Sampled]) -> Vec<i32> {
    answer.iter().map(|s| s.token).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn rings_of_one_to_five_stages_answer_as_the_model_in_one_piece() {
    for stages in [1, 2, 3, 5] {
        let plan = toy_plan(stages);
        let ring = Circle::ready(plan.clone(), toy(&plan)).await;
        for length in [1, 7, 16, 17, 100] {
            let prompt = prompt(length as i32, length);
            let (got, finish) = ring.answer(request(prompt.clone(), 20)).await.unwrap();
            assert_eq!(
                tokens(&got),
                expected(LAYERS, &prompt, 20),
                "{stages} stages, prompt of {length}"
            );
            assert_eq!(finish, Finish::Length);
        }
        ring.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn forty_requests_at_once_share_eight_slots_and_each_gets_its_own_answer() {
    let plan = toy_plan(3);
    let ring = Circle::ready(plan.clone(), toy(&plan)).await;
    let answers = join_all((0..40).map(|i| ring.answer(request(prompt(i, 1 + i as usize * 3 % 50), 30)))).await;
    for (i, answer) in answers.into_iter().enumerate() {
        let prompt = prompt(i as i32, 1 + i * 3 % 50);
        assert_eq!(tokens(&answer.unwrap().0), expected(LAYERS, &prompt, 30), "request {i}");
    }
    ring.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_stream_frees_its_slot_on_every_stage() {
    let mut plan = toy_plan(3);
    plan.sequences = 1;
    let ring = Circle::ready(plan.clone(), toy(&plan)).await;
    for round in 0..10 {
        let mut stream = ring.head.submit(request(prompt(round, 20), 200)).await.unwrap();
        // wait for the first sign of life, then leave
        tokio::time::timeout(LIMIT, stream.recv()).await.unwrap().unwrap();
        drop(stream);
    }
    let prompt = prompt(99, 5);
    let (got, _) = ring.answer(request(prompt.clone(), 5)).await.unwrap();
    assert_eq!(tokens(&got), expected(LAYERS, &prompt, 5));
    ring.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn middle_stages_receive_no_text_token_id_stop_string_or_sampling_parameter() {
    let plan = toy_plan(4);
    let seen = Arc::new(Mutex::new(vec![]));
    let tap = |rank: usize| -> Tap {
        let seen = seen.clone();
        Arc::new(move |frame: &Frame| seen.lock().unwrap().push((rank, frame.clone())))
    };
    let taps = vec![None, Some(tap(1)), Some(tap(2)), Some(tap(3))];
    let ring = Circle::start(plan.clone(), taps, Timings::default(), toy(&plan)).await;
    ring.wait_ready().await;
    let secret = Generate {
        sampling: Sampling {
            temperature: 0.123_456_7,
            top_p: 0.765_432_1,
            seed: 0x5ec2_e75e_ed00_cafe,
            logit_bias: vec![(41, -77.25)],
            grammar: Some(Grammar::Gbnf("root ::= \"xyzzy\"".into())),
            ..Sampling::default()
        },
        stop_tokens: vec![0x7ead_beef],
        ..request(prompt(1, 40), 20)
    };
    let needles: Vec<(&str, Vec<u8>)> = vec![
        ("temperature", 0.123_456_7_f32.to_le_bytes().into()),
        ("top_p", 0.765_432_1_f32.to_le_bytes().into()),
        ("seed", 0x5ec2_e75e_ed00_cafe_u64.to_le_bytes().into()),
        ("bias", (-77.25_f32).to_le_bytes().into()),
        ("grammar", b"xyzzy".to_vec()),
        ("stop token", 0x7ead_beef_i32.to_le_bytes().into()),
        (
            "prompt",
            secret.prompt[..3].iter().flat_map(|t| t.to_le_bytes()).collect(),
        ),
    ];
    let (answer, _) = ring.answer(secret).await.unwrap();
    ring.stop().await;
    let limits = Limits::of(&plan);
    let answered: Vec<u8> = answer[..2].iter().flat_map(|t| t.token.to_le_bytes()).collect();
    let seen = seen.lock().unwrap();
    let holds = |rank: usize, needle: &[u8]| {
        seen.iter().filter(|(at, _)| *at == rank).any(|(_, frame)| {
            let frame = codec::encode(frame, &limits).unwrap();
            frame.to_bytes().windows(needle.len()).any(|w| w == needle)
        })
    };
    for (what, needle) in &needles {
        assert!(
            what == &"stop token" || holds(3, needle),
            "the last rank needs the {what}: is the test blind?"
        );
        for middle in [1, 2] {
            assert!(!holds(middle, needle), "rank {middle} received the {what}");
            assert!(!holds(middle, &answered), "rank {middle} received the answer");
        }
    }
    for (_, frame) in seen.iter().filter(|(rank, _)| *rank != 3) {
        assert!(matches!(frame, Frame::Lap(_) | Frame::Close { .. }), "{frame:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_stage_fails_running_answers_by_name_and_its_successor_brings_the_ring_back() {
    for lost in [1, 2] {
        let plan = toy_plan(3);
        let mut ring = Circle::ready(plan.clone(), toy(&plan)).await;
        let mut stream = ring.head.submit(request(prompt(3, 4), 200)).await.unwrap();
        tokio::time::timeout(LIMIT, stream.recv()).await.unwrap().unwrap();
        ring.kill(lost);
        match collect(stream).await {
            Err(RingError::StageLost { .. }) => {}
            other => panic!("expected StageLost, got {other:?}"),
        }
        assert!(matches!(ring.head.ready(), Err(RingError::NotReady { .. })));
        ring.replace(lost, toy(&plan)(lost)).await;
        ring.wait_ready().await;
        let prompt = prompt(5, 9);
        let (got, _) = ring.answer(request(prompt.clone(), 9)).await.unwrap();
        assert_eq!(tokens(&got), expected(LAYERS, &prompt, 9));
        ring.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_are_told_which_layers_are_missing_and_the_market_when_a_lap_went_round() {
    let plan = toy_plan(3);
    let mut ring = Circle::ready(plan.clone(), toy(&plan)).await;
    let ready = async |ring: &Circle| {
        eventually("the market hears of the first lap", async || {
            ring.status().await.ready.then_some(())
        })
        .await;
    };
    ready(&ring).await;
    // Its claim is given back: nobody is waited for.
    ring.leave(1).await;
    let layers = plan.ranks[1].layers;
    let told = format!("the ring is not ready: layers {layers} are not held by any stage");
    eventually("clients are told of the layers", async || {
        let refused = ring.head.submit(request(prompt(1, 2), 2)).await.map(drop);
        refused.is_err_and(|error| error.to_string() == told).then_some(())
    })
    .await;
    assert!(!ring.status().await.ready);
    ring.replace(1, toy(&plan)(1)).await;
    ring.wait_ready().await;
    ready(&ring).await;
    assert!(ring.head.ready().is_ok());
    ring.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stage_that_stands_still_holds_nobody_up_for_good() {
    let plan = toy_plan(3);
    let gate = Arc::new(Gate::default());
    let make = {
        let (toy, gate) = (toy(&plan), gate.clone());
        move |rank| {
            let mut stage = toy(rank);
            stage.gate = (rank == 1).then(|| gate.clone());
            stage
        }
    };
    let ring = Circle::ready(plan.clone(), make).await;
    let streams = join_all((0..8).map(|i| ring.head.submit(request(prompt(i, 30), 60)))).await;
    gate.close();
    let mut waiting: Vec<_> = streams.into_iter().map(|s| tokio::spawn(collect(s.unwrap()))).collect();
    let still = tokio::time::timeout(Duration::from_millis(300), join_all(waiting.iter_mut())).await;
    assert!(still.is_err(), "the gate was closed, yet all answers came");
    gate.open();
    for (i, answer) in waiting.into_iter().enumerate() {
        let answer = answer.await.unwrap().unwrap().0;
        assert_eq!(
            tokens(&answer),
            expected(LAYERS, &prompt(i as i32, 30), 60),
            "request {i}"
        );
    }
    ring.stop().await;
}
