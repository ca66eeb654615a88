//! The ring computes what the whole model computes: to the bit with an F32 boundary, within a band with bf16.

use kvasir_engine::{Backend, Mode};
use kvasir_plan::BoundaryType;
use kvasir_stage::ring::handle::Generate;
use kvasir_wire::frame::Sampling;
use std::path::Path;

use crate::circle::request;
use crate::real::{Real, floats, whole_logits};

const ANSWER: usize = 8;
const PROMPTS: [usize; 4] = [1, 7, 300, 1500];

const TEXT: &str = include_str!("text.txt");

fn prompts(real: &Real) -> Vec<Vec<i32>> {
    let whole = real.whole();
    let tokens = whole.vocabulary().unwrap().tokenize(TEXT, true, false);
    assert!(tokens.len() >= 1500, "the text has {} tokens", tokens.len());
    PROMPTS.iter().map(|&n| tokens[..n].to_vec()).collect()
}

fn greedy_with_logits(prompt: &[i32]) -> Generate {
    Generate {
        sampling: Sampling {
            temperature: 0.0,
            logits: true,
            ..Sampling::default()
        },
        ..request(prompt.to_vec(), ANSWER as u32)
    }
}

async fn ring_equals_whole(path: &Path, stages: &[u32]) {
    let backend = Backend::init(Mode::Fast).unwrap();
    let first = Real::new(backend, path, 1);
    let prompts = prompts(&first);
    let mut whole = first.whole();
    let mut truth: Vec<Vec<Vec<f32>>> = vec![];
    for &n in stages {
        let real = Real::new(backend, path, n);
        let ring = real.ring().await;
        for (i, prompt) in prompts.iter().enumerate() {
            let (answer, _) = ring.answer(greedy_with_logits(prompt)).await.unwrap();
            let tokens: Vec<i32> = answer.iter().map(|t| t.token).collect();
            if truth.len() == i {
                truth.push(whole_logits(
                    &mut whole,
                    real.plan.max_lap_tokens as usize,
                    prompt,
                    &tokens,
                ));
            }
            for (step, (token, want)) in answer.iter().zip(&truth[i]).enumerate() {
                let got = floats(&token.logits);
                let same = got.len() == want.len() && got.iter().zip(want).all(|(a, b)| a.to_bits() == b.to_bits());
                let far = got.iter().zip(want).fold(0f32, |m, (a, b)| m.max((a - b).abs()));
                assert!(
                    same,
                    "{n} stages, prompt of {}, step {step}: max |Δlogit| = {far:e}",
                    prompt.len()
                );
            }
        }
        ring.stop().await;
        println!("{}: {n} stages equal the whole model to the bit", path.display());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn gemma_in_1_2_3_6_and_18_stages_equals_the_whole_model_to_the_bit() {
    ring_equals_whole(&kvasir_tests::models::gemma3(), &[1, 2, 3, 6, 18]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn smollm2_in_1_2_3_7_and_30_stages_equals_the_whole_model_to_the_bit() {
    ring_equals_whole(&kvasir_tests::models::smollm2(), &[1, 2, 3, 7, 30]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_the_default_boundary_the_ring_stays_within_kl_0_01_of_the_whole_model() {
    let backend = Backend::init(Mode::Fast).unwrap();
    for path in [kvasir_tests::models::gemma3(), kvasir_tests::models::smollm2()] {
        let mut real = Real::new(backend, &path, 3);
        real.plan.boundary_type = BoundaryType::Bf16;
        let prompts = prompts(&real);
        let mut whole = real.whole();
        let ring = real.ring().await;
        let (mut sum, mut rows) = (0.0, 0);
        for prompt in &prompts {
            let (answer, _) = ring.answer(greedy_with_logits(prompt)).await.unwrap();
            let tokens: Vec<i32> = answer.iter().map(|t| t.token).collect();
            let truth = whole_logits(&mut whole, real.plan.max_lap_tokens as usize, prompt, &tokens);
            for (token, want) in answer.iter().zip(&truth) {
                sum += divergence(want, &floats(&token.logits));
                rows += 1;
            }
        }
        ring.stop().await;
        let mean = sum / f64::from(rows);
        println!("{}: mean KL {mean:.2e} over {rows} rows", path.display());
        assert!(mean <= 0.01, "KL {mean:e}");
    }
}

/// Kullback-Leibler divergence of softmax(got) from softmax(want), in nats.
fn divergence(want: &[f32], got: &[f32]) -> f64 {
    let norm = |v: &[f32]| {
        let top = v.iter().copied().fold(f32::MIN, f32::max);
        f64::from(top) + v.iter().map(|x| f64::from(x - top).exp()).sum::<f64>().ln()
    };
    let (a, b) = (norm(want), norm(got));
    want.iter()
        .zip(got)
        .map(|(&p, &q)| (f64::from(p) - a).exp() * ((f64::from(p) - a) - (f64::from(q) - b)))
        .sum()
}
