//! Finds the highest logits of a row without sorting it.

use super::SamplerError;
use std::cmp::Ordering;

/// A token that may be sampled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Candidate {
    pub(crate) token: i32,
    pub(crate) logit: f32,
}

/// Higher logits first, and of equal ones the lower id.
#[allow(clippy::trivially_copy_pass_by_ref, reason = "as sorting wants it")]
pub(crate) fn descending(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.total_cmp(&a.logit).then(a.token.cmp(&b.token))
}

/// The highest logit, and of equal ones that of the lowest id, in one pass.
///
/// # Errors
/// When a logit is not a number or +∞, or all are −∞.
pub(crate) fn highest(logits: &[f32]) -> Result<Candidate, SamplerError> {
    /// Long enough for the inner loop to be vectorised, short enough to find the place again in cache.
    const CHUNK: usize = 1024;
    let mut best = Candidate {
        token: 0,
        logit: f32::NEG_INFINITY,
    };
    for (index, chunk) in logits.chunks(CHUNK).enumerate() {
        let (highest, numbers) = chunk
            .iter()
            .fold((f32::NEG_INFINITY, true), |(highest, numbers), &logit| {
                (if logit > highest { logit } else { highest }, numbers & !logit.is_nan())
            });
        if !numbers || highest == f32::INFINITY {
            return Err(SamplerError::NotFinite);
        }
        if highest > best.logit {
            let place = chunk.iter().position(|&logit| logit >= highest).unwrap_or(0);
            best = Candidate {
                token: (index * CHUNK + place) as i32,
                logit: highest,
            };
        }
    }
    if best.logit == f32::NEG_INFINITY {
        Err(SamplerError::NoToken)
    } else {
        Ok(best)
    }
}

/// The `count` best candidates, best first, without those at −∞, in one pass over the row.
pub(crate) fn best(logits: &[f32], count: usize, candidates: &mut Vec<Candidate>) {
    candidates.clear();
    if count == 0 {
        return;
    }
    // Ids rise along the row, so a logit that only equals the worst one kept has lost the tie.
    let mut worst = f32::NEG_INFINITY;
    for (token, &logit) in logits.iter().enumerate() {
        if logit > worst {
            candidates.push(Candidate {
                token: token as i32,
                logit,
            });
            if candidates.len() == count.saturating_mul(2).max(64) {
                let (_, last, _) = candidates.select_nth_unstable_by(count - 1, descending);
                worst = last.logit;
                candidates.truncate(count);
            }
        }
    }
    candidates.sort_unstable_by(descending);
    candidates.truncate(count);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Few distinct values, so that ties are common.
    fn row() -> impl Strategy<Value = Vec<f32>> {
        prop::collection::vec(
            prop_oneof![4 => (-8_i8..8).prop_map(f32::from), 1 => Just(f32::NEG_INFINITY)],
            1..3000,
        )
    }

    fn sorted(logits: &[f32]) -> Vec<Candidate> {
        let mut candidates: Vec<Candidate> = (0..)
            .zip(logits)
            .map(|(token, &logit)| Candidate { token, logit })
            .filter(|c| c.logit > f32::NEG_INFINITY)
            .collect();
        candidates.sort_by(descending);
        candidates
    }

    proptest! {
        #[test]
        fn the_best_are_those_of_a_full_sort(logits in row(), count in 0_usize..200) {
            let mut candidates = Vec::new();
            best(&logits, count, &mut candidates);
            let mut expected = sorted(&logits);
            expected.truncate(count);
            prop_assert_eq!(candidates, expected);
        }

        #[test]
        fn the_highest_is_the_first_of_a_full_sort(logits in row()) {
            prop_assert_eq!(highest(&logits).ok(), sorted(&logits).first().copied());
        }
    }

    #[test]
    fn a_row_that_is_not_finite_is_refused() {
        for bad in [f32::NAN, f32::INFINITY] {
            let mut logits = vec![0.0; 5000];
            logits[4097] = bad;
            assert!(matches!(highest(&logits), Err(SamplerError::NotFinite)));
        }
        assert!(matches!(highest(&[f32::NEG_INFINITY; 3]), Err(SamplerError::NoToken)));
    }
}
