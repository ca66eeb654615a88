//! The text so far, as penalties see it.

use kvasir_wire::frame::Sampling;
use std::collections::{HashMap, VecDeque};

/// Tokens of prompt and answer that a penalty looks at.
#[derive(Debug)]
pub(crate) struct History {
    /// the last `penalty_last` tokens of prompt and answer; empty when nothing looks at them
    recent: VecDeque<i32>,
    reach: usize,
    /// how often each token stands in the answer; empty when nothing looks at it
    answer: HashMap<i32, u32>,
    counts: bool,
}

impl History {
    pub(crate) fn new(sampling: &Sampling, prompt: &[i32]) -> History {
        let repetition = (sampling.repetition_penalty - 1.0).abs() > 0.0;
        let reach = if repetition { sampling.penalty_last as usize } else { 0 };
        let counts = sampling.presence_penalty != 0.0 || sampling.frequency_penalty != 0.0;
        let start = prompt.len().saturating_sub(reach);
        History {
            recent: prompt[start..].iter().copied().collect(),
            reach,
            answer: HashMap::new(),
            counts,
        }
    }

    pub(crate) fn push(&mut self, token: i32) {
        if self.reach > 0 {
            self.recent.push_back(token);
            if self.recent.len() > self.reach {
                self.recent.pop_front();
            }
        }
        if self.counts {
            *self.answer.entry(token).or_default() += 1;
        }
    }

    /// Applies the penalties to a row; `before` takes the logits that were changed, as they were.
    pub(crate) fn penalize(&self, sampling: &Sampling, logits: &mut [f32], before: &mut Vec<(usize, f32)>) {
        let mut once = std::collections::HashSet::with_capacity(self.recent.len());
        for &token in self.recent.iter().filter(|&&token| once.insert(token)) {
            let Some(logit) = logits.get_mut(token as usize) else {
                continue;
            };
            before.push((token as usize, *logit));
            *logit = if *logit > 0.0 {
                *logit / sampling.repetition_penalty
            } else {
                *logit * sampling.repetition_penalty
            };
        }
        for (&token, &count) in &self.answer {
            let Some(logit) = logits.get_mut(token as usize) else {
                continue;
            };
            before.push((token as usize, *logit));
            *logit -= sampling.presence_penalty + sampling.frequency_penalty * count as f32;
        }
    }
}
