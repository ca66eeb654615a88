//! Draws a token from candidates: temperature, top-p, min-p.

use super::SamplerError;
use super::ranking::{self, Candidate};
use kvasir_wire::frame::Sampling;

/// Draws among the best candidates of a row (best first, top-k applied); `chance` is in [0, 1).
pub(crate) fn among(candidates: &mut Vec<Candidate>, sampling: &Sampling, chance: f64) -> Result<i32, SamplerError> {
    let first = *candidates.first().ok_or(SamplerError::NoToken)?;
    if sampling.temperature == 0.0 {
        return Ok(first.token);
    }
    let scale = Scale::new(first.logit, sampling.temperature);
    let mass = candidates.iter().map(|candidate| scale.weight(candidate.logit)).sum();
    nucleus(candidates, &scale, mass, sampling);
    draw(candidates, &scale, chance).ok_or(SamplerError::NoToken)
}

/// Draws from a whole row (no top-k). Candidates are taken in order of id unless top-p or min-p need them ranked.
pub(crate) fn of_row(
    row: &[f32],
    sampling: &Sampling,
    chance: f64,
    candidates: &mut Vec<Candidate>,
) -> Result<i32, SamplerError> {
    /// Likeliest tokens to rank at first; few rows need more for their top-p.
    const RANKED: usize = 256;
    let scale = Scale::new(ranking::highest(row)?.logit, sampling.temperature);
    if sampling.top_p >= 1.0 && sampling.min_p <= 0.0 {
        ranking::all(row, candidates);
        return draw(candidates, &scale, chance).ok_or(SamplerError::NoToken);
    }
    let mass = row.iter().map(|&logit| scale.weight(logit)).sum();
    let mut ranked = RANKED;
    loop {
        ranking::best(row, ranked, candidates);
        let tried = candidates.len();
        nucleus(candidates, &scale, mass, sampling);
        // a shorter list than was tried ends where top-p or min-p cut it, not where the ranking did
        if candidates.len() < tried || ranked >= row.len() {
            return draw(candidates, &scale, chance).ok_or(SamplerError::NoToken);
        }
        ranked = ranked.saturating_mul(8);
    }
}

/// Cuts ranked candidates by top-p of the `mass` of all, then by min-p; the first always stays.
fn nucleus(candidates: &mut Vec<Candidate>, scale: &Scale, mass: f64, sampling: &Sampling) {
    if sampling.top_p < 1.0 {
        let wanted = f64::from(sampling.top_p) * mass;
        let mut sum = 0.0;
        let enough = candidates.iter().position(|candidate| {
            sum += scale.weight(candidate.logit);
            sum >= wanted
        });
        candidates.truncate(enough.map_or(candidates.len(), |last| last + 1));
    }
    if sampling.min_p > 0.0 {
        let floor = f64::from(sampling.min_p);
        candidates.truncate(
            candidates
                .partition_point(|candidate| scale.weight(candidate.logit) >= floor)
                .max(1),
        );
    }
}

fn draw(candidates: &[Candidate], scale: &Scale, chance: f64) -> Option<i32> {
    let mass: f64 = candidates.iter().map(|candidate| scale.weight(candidate.logit)).sum();
    let mut left = chance * mass;
    let mut last = None;
    for candidate in candidates {
        let weight = scale.weight(candidate.logit);
        if weight > 0.0 {
            last = Some(candidate.token);
            left -= weight;
            if left < 0.0 {
                break;
            }
        }
    }
    last
}

/// Probabilities relative to the likeliest token's.
struct Scale {
    highest: f64,
    temperature: f64,
}

impl Scale {
    fn new(highest: f32, temperature: f32) -> Scale {
        Scale {
            highest: f64::from(highest),
            temperature: f64::from(temperature),
        }
    }

    fn weight(&self, logit: f32) -> f64 {
        ((f64::from(logit) - self.highest) / self.temperature).exp()
    }
}
