//! Draws a token from logits: temperature, top-p, min-p.

use super::SamplerError;
use super::ranking::{self, Candidate};
use kvasir_wire::frame::Sampling;

/// Tokens to rank at first where top-p or a grammar needs them ranked; few rows need more.
pub(crate) const RANKED: usize = 256;
/// How many times more to rank when that was not enough: few steps, since each ranks and filters from the start.
pub(crate) const MORE: usize = 32;

/// Probabilities relative to that of a token with logit `highest`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    highest: f64,
    temperature: f64,
}

impl Scale {
    pub(crate) fn new(highest: f32, sampling: &Sampling) -> Scale {
        Scale {
            highest: f64::from(highest),
            temperature: f64::from(sampling.temperature),
        }
    }

    pub(crate) fn weight(&self, logit: f32) -> f64 {
        ((f64::from(logit) - self.highest) / self.temperature).exp()
    }

    pub(crate) fn sum(&self, candidates: &[Candidate]) -> f64 {
        candidates.iter().map(|candidate| self.weight(candidate.logit)).sum()
    }
}

/// Draws from a whole row of which nothing is cut, in order of ids; `chance` is in [0, 1).
pub(crate) fn plain(row: &[f32], sampling: &Sampling, chance: f64) -> Result<i32, SamplerError> {
    /// Sums are kept of runs this long, so that only the run that is drawn from is gone through again.
    const RUN: usize = 512;
    let scale = Scale::new(ranking::highest(row)?.logit, sampling);
    let weigh = |run: &[f32]| run.iter().map(|&logit| scale.weight(logit)).sum::<f64>();
    let sums: Vec<f64> = row.chunks(RUN).map(weigh).collect();
    let mut left = chance * sums.iter().sum::<f64>();
    let mut drawn = 0;
    for (index, &sum) in sums.iter().enumerate().filter(|&(_, &sum)| sum > 0.0) {
        drawn = index;
        if left < sum {
            break;
        }
        left -= sum;
    }
    let run = &row[drawn * RUN..row.len().min((drawn + 1) * RUN)];
    let token = walk(run.iter().map(|&logit| scale.weight(logit)), left);
    token
        .map(|(place, _)| (drawn * RUN + place) as i32)
        .ok_or(SamplerError::NoToken)
}

/// Draws from a whole row with top-p or min-p.
pub(crate) fn nucleus(
    row: &[f32],
    sampling: &Sampling,
    chance: f64,
    candidates: &mut Vec<Candidate>,
) -> Result<i32, SamplerError> {
    let scale = Scale::new(ranking::highest(row)?.logit, sampling);
    let mass = row.iter().map(|&logit| scale.weight(logit)).sum();
    let mut count = RANKED;
    loop {
        ranking::best(row, count, candidates);
        let all = count >= row.len();
        if let Some(token) = ranked(candidates, &scale, (mass, mass), all, sampling, chance) {
            return Ok(token);
        }
        if all {
            return Err(SamplerError::NoToken);
        }
        count *= MORE;
    }
}

/// Draws from candidates, best first, when it is known only between which bounds the mass of all lies: none when the
/// bounds leave it open, or when tokens that aren't listed (unless these are `all`) might be drawn.
pub(crate) fn ranked(
    candidates: &[Candidate],
    scale: &Scale,
    mass: (f64, f64),
    all: bool,
    sampling: &Sampling,
    chance: f64,
) -> Option<i32> {
    // What is kept grows with the mass, and so does the place that is drawn: if both bounds give one token, all between do.
    let low = of_mass(candidates, scale, mass.0, all, sampling, chance)?;
    let high = of_mass(candidates, scale, mass.1, all, sampling, chance)?;
    (low == high).then_some(low)
}

fn of_mass(
    candidates: &[Candidate],
    scale: &Scale,
    mass: f64,
    all: bool,
    sampling: &Sampling,
    chance: f64,
) -> Option<i32> {
    let mut end = None;
    if sampling.top_p < 1.0 {
        let wanted = f64::from(sampling.top_p) * mass;
        let mut sum = 0.0;
        let enough = candidates.iter().position(|candidate| {
            sum += scale.weight(candidate.logit);
            sum >= wanted
        });
        end = enough.map(|last| last + 1);
    }
    if sampling.min_p > 0.0 {
        let floor = f64::from(sampling.min_p) * scale.weight(candidates.first()?.logit);
        let above = candidates
            .partition_point(|candidate| scale.weight(candidate.logit) >= floor)
            .max(1);
        if above < candidates.len() {
            end = Some(end.map_or(above, |end| end.min(above)));
        }
    }
    // the list ends where it was cut, or else where it ends, if there is no more
    let kept = match end {
        Some(end) => &candidates[..end],
        None if all || (sampling.top_p >= 1.0 && sampling.min_p <= 0.0) => candidates,
        None => return None,
    };
    let mass = if end.is_some() { scale.sum(kept) } else { mass };
    let (place, ended) = walk(
        kept.iter().map(|candidate| scale.weight(candidate.logit)),
        chance * mass,
    )?;
    (ended || end.is_some() || all).then(|| kept[place].token)
}

/// Place of the weight in which a sum passes `left`, and true; or the last weight that isn't 0, and false.
fn walk(weights: impl Iterator<Item = f64>, mut left: f64) -> Option<(usize, bool)> {
    let mut last = None;
    for (place, weight) in weights.enumerate().filter(|(_, weight)| *weight > 0.0) {
        if left < weight {
            return Some((place, true));
        }
        left -= weight;
        last = Some((place, false));
    }
    last
}
