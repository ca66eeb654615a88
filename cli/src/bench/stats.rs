//! What is made of a bench's measurements: medians over interleaved pairs.

use std::time::Duration;

use serde::Serialize;

/// One measured run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Run {
    /// tokens decoded per second
    pub(super) decode: f64,
    /// prompt tokens computed per second
    pub(super) prefill: f64,
}

impl Run {
    /// A prompt that took `prefill` until its first token was there, and `tokens` tokens, of which those after the first
    /// took `decode`.
    pub(super) fn new(prompt: usize, prefill: Duration, tokens: u32, decode: Duration) -> Self {
        Run {
            decode: f64::from(tokens - 1) / decode.as_secs_f64(),
            prefill: prompt as f64 / prefill.as_secs_f64(),
        }
    }
}

/// The whole model in one process and the ring, one right after the other, so that what slows the machine down slows
/// both.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Pair {
    /// whole model, one process
    pub(super) whole: Run,
    /// the ring
    pub(super) ring: Run,
}

/// The outcome of a bench.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Summary {
    /// median over pairs of the ring's decode speed by the whole model's
    pub(super) decode_ratio: f64,
    /// median over pairs of the ring's prefill speed by the whole model's
    pub(super) prefill_ratio: f64,
    /// median time that one hop adds to a decode lap, in milliseconds; none when no lap was timed
    pub(super) hop_ms_median: Option<f64>,
    /// median speeds of the whole model
    pub(super) whole: Run,
    /// median speeds of the ring
    pub(super) ring: Run,
    /// all pairs, in the order measured
    pub(super) pairs: Vec<Pair>,
}

impl Summary {
    /// Sums up pairs and hop times (milliseconds); none without a pair.
    pub(super) fn new(pairs: Vec<Pair>, hops_ms: &[f64]) -> Option<Self> {
        let over = |value: fn(&Pair) -> f64| median(&pairs.iter().map(value).collect::<Vec<_>>());
        Some(Summary {
            decode_ratio: over(|pair| pair.ring.decode / pair.whole.decode)?,
            prefill_ratio: over(|pair| pair.ring.prefill / pair.whole.prefill)?,
            hop_ms_median: median(hops_ms),
            whole: Run {
                decode: over(|pair| pair.whole.decode)?,
                prefill: over(|pair| pair.whole.prefill)?,
            },
            ring: Run {
                decode: over(|pair| pair.ring.decode)?,
                prefill: over(|pair| pair.ring.prefill)?,
            },
            pairs,
        })
    }
}

/// The middle value, or the mean of the two middle ones; none of nothing.
pub(super) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    let lower = sorted[(sorted.len() - 1) / 2];
    Some(f64::midpoint(lower, upper))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(whole: f64, ring: f64) -> Pair {
        Pair {
            whole: Run {
                decode: whole,
                prefill: 10.0 * whole,
            },
            ring: Run {
                decode: ring,
                prefill: 5.0 * ring,
            },
        }
    }

    #[test]
    fn the_first_token_belongs_to_the_prompt() {
        let run = Run::new(100, Duration::from_millis(500), 11, Duration::from_secs(2));
        assert_eq!(
            run,
            Run {
                decode: 5.0,
                prefill: 200.0
            }
        );
    }

    #[test]
    fn medians_of_odd_even_and_no_counts() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[7.0]), Some(7.0));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn a_ratio_is_taken_within_a_pair_before_the_median() {
        // The machine slows down by half between pairs: the ratio of medians would say 0.5, each pair says 0.9 or more.
        let pairs = vec![pair(40.0, 36.0), pair(20.0, 20.0), pair(40.0, 36.0)];
        let summary = Summary::new(pairs, &[0.2, 0.1, 0.9]).unwrap();
        assert!((summary.decode_ratio - 0.9).abs() < 1e-12);
        assert!((summary.prefill_ratio - 0.45).abs() < 1e-12);
        assert_eq!(summary.hop_ms_median, Some(0.2));
        assert_eq!((summary.whole.decode, summary.ring.decode), (40.0, 36.0));
    }

    #[test]
    fn nothing_measured_is_no_summary() {
        assert_eq!(Summary::new(Vec::new(), &[1.0]), None);
    }
}
