//! `exact: true`: a request gives the same tokens whatever else is in its laps. A process of its own, since the mode
//! is the process's.
#![allow(clippy::unwrap_used, missing_docs, unreachable_pub, dead_code)]

#[path = "../ring/circle.rs"]
mod circle;
#[path = "../ring/real.rs"]
mod real;

use std::path::Path;

use kvasir_engine::{Backend, Mode};
use kvasir_stage::ring::handle::{Generate, Ring};
use kvasir_tests::random_model::{Architecture, RandomModel, Vocabulary};
use kvasir_wire::frame::Sampling;

use circle::{LIMIT, collect, request};
use real::Real;

const ANSWER: u32 = 24;

/// Four greedy and four seeded requests with prompts of different lengths.
fn requests(vocabulary: u32) -> Vec<Generate> {
    (0..8u64)
        .map(|i| {
            let prompt = (0..3 + 11 * i)
                .map(|k| ((i * 7919 + k * 104_729) % u64::from(vocabulary)) as i32)
                .collect();
            let sampling = Sampling {
                temperature: if i % 2 == 0 { 0.0 } else { 0.9 },
                top_k: 40,
                top_p: 0.95,
                seed: 1000 + i,
                repetition_penalty: 1.1,
                ..Sampling::default()
            };
            Generate {
                sampling,
                ..request(prompt, ANSWER)
            }
        })
        .collect()
}

async fn eight_at_once_answer_as_alone(path: &Path, stages: u32) {
    let backend = Backend::init(Mode::Exact).unwrap();
    let mut real = Real::new(backend, path, stages);
    real.plan.exact = true;
    real.plan.sequences = 8;
    real.plan.max_laps = 3;
    real.plan.max_lap_tokens = 32;
    real.plan.context_length = 256;
    real.threads = 1;
    let ring = real.ring().await;
    let requests = requests(real.plan.model.vocabulary);
    let mut alone = vec![];
    for request in &requests {
        alone.push(tokens(ring.answer(request.clone()).await.unwrap().0));
    }
    // Each starts when the one before it has shown its first sign of life, so that they meet in ever other ways.
    let mut together = vec![];
    for request in &requests {
        let mut stream = ring.head.submit(request.clone()).await.unwrap();
        tokio::time::timeout(LIMIT, stream.recv()).await.unwrap().unwrap();
        together.push(tokio::spawn(collect(stream)));
    }
    for (i, answer) in together.into_iter().enumerate() {
        let got = tokens(answer.await.unwrap().unwrap().0);
        // The first event may have been the first token.
        let want = &alone[i][alone[i].len() - got.len()..];
        assert!(got.len() as u32 + 1 >= ANSWER);
        assert_eq!(got, want, "{}: request {i} of 8", path.display());
    }
    ring.stop().await;
}

fn tokens(answer: Vec<kvasir_wire::frame::Sampled>) -> Vec<i32> {
    answer.into_iter().map(|t| t.token).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn gemma_gives_eight_requests_at_once_the_tokens_that_each_gets_alone() {
    eight_at_once_answer_as_alone(&kvasir_tests::models::gemma3(), 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn smollm2_gives_eight_requests_at_once_the_tokens_that_each_gets_alone() {
    eight_at_once_answer_as_alone(&kvasir_tests::models::smollm2(), 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_random_qwen35moe_gives_eight_requests_at_once_the_tokens_that_each_gets_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("qwen35moe.gguf");
    RandomModel::new(Architecture::Qwen35Moe)
        .layers(8)
        .vocabulary(Vocabulary::Bytes)
        .write(&path)
        .unwrap();
    eight_at_once_answer_as_alone(&path, 2).await;
}
