//! A toy model with a history: layer l adds to each row a number that depends on l and on the sum of all rows of the
//! sequence so far, so that a row lost, doubled, misplaced or given to another sequence changes every later token.

use kvasir_stage::ring::compute::{Compute, ComputeError, Sample, SlotSpan};
use kvasir_wire::frame::{Sampled, Sampling};

pub const WIDTH: usize = 32;
pub const VOCABULARY: usize = 64;

/// Layers `start..end` of the toy.
pub struct Toy {
    layers: std::ops::Range<u32>,
    /// by slot: what each layer has summed up, and the positions held
    slots: Vec<(Vec<f32>, u32)>,
    /// waits here before each batch (tests that stop a stage)
    pub gate: Option<std::sync::Arc<Gate>>,
}

/// A door that tests close to stop an engine.
#[derive(Default)]
pub struct Gate {
    closed: std::sync::Mutex<bool>,
    opened: std::sync::Condvar,
}

impl Gate {
    pub fn close(&self) {
        *self.closed.lock().unwrap() = true;
    }
    pub fn open(&self) {
        *self.closed.lock().unwrap() = false;
        self.opened.notify_all();
    }
    fn pass(&self) {
        let mut closed = self.closed.lock().unwrap();
        while *closed {
            closed = self.opened.wait(closed).unwrap();
        }
    }
}

#[derive(Debug, thiserror::Error)]
#[error("slot {0} holds {1} positions, not {2}")]
struct Gap(u32, u32, u32);

impl Toy {
    pub fn new(layers: std::ops::Range<u32>, sequences: u32) -> Toy {
        let empty = (vec![0.0; layers.len()], 0);
        Toy {
            layers,
            slots: vec![empty; sequences as usize],
            gate: None,
        }
    }

    fn layers(&mut self, spans: &[SlotSpan], hidden: &[f32]) -> Result<Vec<f32>, ComputeError> {
        if let Some(gate) = &self.gate {
            gate.pass();
        }
        assert_eq!(
            hidden.len(),
            spans.iter().map(|s| s.count as usize).sum::<usize>() * WIDTH
        );
        let mut rows = hidden.to_vec();
        let mut at = 0;
        for span in spans {
            let (sums, held) = &mut self.slots[span.slot as usize];
            if *held != span.position {
                return Err(ComputeError(Box::new(Gap(span.slot, *held, span.position))));
            }
            *held += span.count;
            for row in rows[at..at + span.count as usize * WIDTH].chunks_mut(WIDTH) {
                for (sum, layer) in sums.iter_mut().zip(self.layers.clone()) {
                    *sum = (*sum * 3.0 + row[0] + layer as f32) % 97.0;
                    row[0] = (row[0] + *sum) % 101.0;
                }
            }
            at += span.count as usize * WIDTH;
        }
        Ok(rows)
    }
}

/// Row of the token that the toy's embedding and head agree on.
fn embed(token: i32) -> Vec<f32> {
    let mut row = vec![0.0; WIDTH];
    row[0] = token as f32;
    row
}

fn logits(row: &[f32]) -> Vec<f32> {
    let best = row[0] as usize % VOCABULARY;
    (0..VOCABULARY).map(|t| if t == best { 1.0 } else { 0.0 }).collect()
}

/// What the toy of `layers` layers answers, alone and in one piece.
pub fn expected(layers: u32, prompt: &[i32], tokens: usize) -> Vec<i32> {
    let mut toy = Toy::new(0..layers, 1);
    let mut answer = vec![];
    let mut position = 0;
    let mut feed = prompt.to_vec();
    while answer.len() < tokens {
        let hidden: Vec<f32> = feed.iter().flat_map(|t| embed(*t)).collect();
        let span = SlotSpan {
            slot: 0,
            position,
            count: feed.len() as u32,
        };
        let rows = toy.layers(&[span], &hidden).unwrap();
        position += feed.len() as u32;
        let last = logits(&rows[rows.len() - WIDTH..]);
        let token = last.iter().position(|l| *l > 0.5).unwrap() as i32;
        answer.push(token);
        feed = vec![token];
    }
    answer
}

impl Compute for Toy {
    fn embedding_length(&self) -> usize {
        WIDTH
    }
    fn embed(&mut self, tokens: &[i32], out: &mut Vec<f32>) -> Result<(), ComputeError> {
        *out = tokens.iter().flat_map(|t| embed(*t)).collect();
        Ok(())
    }
    fn run(&mut self, spans: &[SlotSpan], hidden: &[f32], out: &mut Vec<f32>) -> Result<(), ComputeError> {
        *out = self.layers(spans, hidden)?;
        Ok(())
    }
    fn run_logits(
        &mut self,
        spans: &[SlotSpan],
        hidden: &[f32],
        want: &[u32],
        out: &mut Vec<f32>,
    ) -> Result<(), ComputeError> {
        let rows = self.layers(spans, hidden)?;
        *out = want
            .iter()
            .flat_map(|&w| logits(&rows[w as usize * WIDTH..][..WIDTH]))
            .collect();
        Ok(())
    }
    fn sampler(&mut self, _: &Sampling, _: &[i32]) -> Result<Box<dyn Sample>, String> {
        Ok(Box::new(Greedy))
    }
    fn clear(&mut self, slot: u32) {
        self.slots[slot as usize] = (vec![0.0; self.layers.len()], 0);
    }
    fn copy(&mut self, from: u32, to: u32, _: u32) -> Result<(), ComputeError> {
        self.slots[to as usize] = self.slots[from as usize].clone();
        Ok(())
    }
    fn truncate(&mut self, slot: u32, length: u32) -> Result<(), ComputeError> {
        self.slots[slot as usize].1 = length;
        Ok(())
    }
}

struct Greedy;

impl Sample for Greedy {
    fn sample(&mut self, logits: &mut [f32], position: u32) -> Sampled {
        let token = logits.iter().position(|l| *l > 0.5).unwrap() as i32;
        Sampled {
            sequence: 0,
            position,
            token,
            logprob: 0.0,
            top: vec![],
            logits: bytes::Bytes::new(),
            error: String::new(),
        }
    }
}
