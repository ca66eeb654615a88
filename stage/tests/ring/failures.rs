//! What a ring does when an engine fails, and when clients leave before their turn.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use kvasir_plan::RankManifest;
use kvasir_stage::ring::compute::{Compute, ComputeError, Sample, SlotSpan};
use kvasir_stage::ring::handle::{Ring, RingError};
use kvasir_stage::ring::session::Tap;
use kvasir_stage::run::RunError;
use kvasir_wire::edge::Timings;
use kvasir_wire::frame::{Frame, Sampling};

use crate::circle::{Circle, LIMIT, plan, request};
use crate::toy::{Gate, Toy, VOCABULARY, WIDTH, expected};

const LAYERS: u32 = 8;

#[derive(Debug, thiserror::Error)]
#[error("{path} could not be computed")]
struct Outer {
    path: &'static str,
    #[source]
    cause: Damaged,
}

#[derive(Debug, thiserror::Error)]
#[error("the computed row 0 is not finite")]
struct Damaged;

/// A toy whose weights are damaged while a switch is on.
struct Fragile {
    toy: Toy,
    damaged: Arc<AtomicBool>,
}

impl Fragile {
    fn check(&self) -> Result<(), ComputeError> {
        if self.damaged.load(Ordering::SeqCst) {
            let (path, cause) = ("/secret/place/window.gguf", Damaged);
            return Err(ComputeError(Box::new(Outer { path, cause })));
        }
        Ok(())
    }
}

impl Compute for Fragile {
    fn embedding_length(&self) -> usize {
        self.toy.embedding_length()
    }
    fn embed(&mut self, tokens: &[i32], out: &mut Vec<f32>) -> Result<(), ComputeError> {
        self.toy.embed(tokens, out)
    }
    fn run(&mut self, spans: &[SlotSpan], hidden: &[f32], out: &mut Vec<f32>) -> Result<(), ComputeError> {
        self.check()?;
        self.toy.run(spans, hidden, out)
    }
    fn run_logits(
        &mut self,
        spans: &[SlotSpan],
        hidden: &[f32],
        want: &[u32],
        out: &mut Vec<f32>,
    ) -> Result<(), ComputeError> {
        self.check()?;
        self.toy.run_logits(spans, hidden, want, out)
    }
    fn sampler(&mut self, sampling: &Sampling, prompt: &[i32]) -> Result<Box<dyn Sample>, String> {
        self.toy.sampler(sampling, prompt)
    }
    fn clear(&mut self, slot: u32) {
        self.toy.clear(slot);
    }
    fn copy(&mut self, from: u32, to: u32, length: u32) -> Result<(), ComputeError> {
        self.toy.copy(from, to, length)
    }
    fn truncate(&mut self, slot: u32, length: u32) -> Result<(), ComputeError> {
        self.toy.truncate(slot, length)
    }
}

fn toy_plan(stages: u32) -> RankManifest {
    plan(LAYERS, stages, WIDTH as u32, VOCABULARY as u32)
}

/// Engines of a ring whose rank `fragile` is damaged while the switch is on.
fn engines(plan: &RankManifest, fragile: usize, damaged: &Arc<AtomicBool>) -> impl Fn(usize) -> Fragile + use<> {
    let (plan, damaged) = (plan.clone(), damaged.clone());
    move |rank| {
        let layers = plan.ranks[rank].layers;
        Fragile {
            toy: Toy::new(layers.start..layers.end, plan.sequences),
            damaged: if rank == fragile {
                damaged.clone()
            } else {
                Arc::default()
            },
        }
    }
}

fn tokens(answer: &[kvasir_wire::frame::Sampled]) -> Vec<i32> {
    answer.iter().map(|sampled| sampled.token).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_fails_is_told_by_its_rank_and_the_next_epoch_serves() {
    for stages in [1, 2, 4] {
        for rank in 0..stages as usize {
            let (plan, damaged) = (toy_plan(stages), Arc::new(AtomicBool::new(false)));
            let ring = Circle::ready(plan.clone(), engines(&plan, rank, &damaged)).await;
            damaged.store(true, Ordering::SeqCst);
            match ring.answer(request(vec![1, 2, 3], 5)).await {
                Err(RingError::EngineFailed { detail }) => {
                    assert_eq!(detail, format!("rank {rank}: the computed row 0 is not finite"));
                }
                other => panic!("rank {rank} of {stages}: expected EngineFailed, got {other:?}"),
            }
            damaged.store(false, Ordering::SeqCst);
            ring.wait_ready().await;
            let (got, _) = ring.answer(request(vec![1, 2, 3], 5)).await.unwrap();
            assert_eq!(tokens(&got), expected(LAYERS, &[1, 2, 3], 5));
            ring.stop().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stage_whose_engine_fails_again_and_again_ends() {
    for rank in [0, 1, 2] {
        let (plan, damaged) = (toy_plan(3), Arc::new(AtomicBool::new(false)));
        let mut ring = Circle::ready(plan.clone(), engines(&plan, rank, &damaged)).await;
        damaged.store(true, Ordering::SeqCst);
        for _ in 0..3 {
            ring.wait_ready().await;
            let refused = ring.answer(request(vec![4, 5], 5)).await;
            assert!(matches!(refused, Err(RingError::EngineFailed { .. })), "{refused:?}");
        }
        match ring.ended(rank).await {
            Err(RunError::GaveUp { rank: told, detail, .. }) => {
                assert_eq!((told, detail.as_str()), (rank, "the computed row 0 is not finite"));
            }
            other => panic!("rank {rank} should have given up: {other:?}"),
        }
        ring.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_whose_client_left_while_it_waited_is_never_begun() {
    let mut plan = toy_plan(2);
    plan.sequences = 1;
    let opened = Arc::new(Mutex::new(Vec::new()));
    let tap: Tap = {
        let opened = opened.clone();
        Arc::new(move |frame: &Frame| {
            if let Frame::Open(open) = frame {
                opened.lock().unwrap().push(open.prompt.clone());
            }
        })
    };
    let gate = Arc::new(Gate::default());
    let make = {
        let (plan, gate) = (plan.clone(), gate.clone());
        move |rank: usize| {
            let layers = plan.ranks[rank].layers;
            let mut toy = Toy::new(layers.start..layers.end, 1);
            toy.gate = Some(gate.clone());
            toy
        }
    };
    let ring = Circle::start(plan, vec![None, Some(tap)], Timings::default(), make).await;
    ring.wait_ready().await;
    gate.close();
    let first = ring.head.submit(request(vec![1], 3)).await.unwrap();
    let left = ring.head.submit(request(vec![2], 3)).await.unwrap();
    drop(left);
    gate.open();
    crate::circle::collect(first).await.unwrap();
    let third = tokio::time::timeout(LIMIT, ring.answer(request(vec![3], 3)))
        .await
        .unwrap();
    assert_eq!(tokens(&third.unwrap().0), expected(LAYERS, &[3], 3));
    assert_eq!(*opened.lock().unwrap(), [vec![1], vec![3]]);
    ring.stop().await;
}
