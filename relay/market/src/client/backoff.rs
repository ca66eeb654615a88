//! Pauses between tries: they grow, and chance spreads them, so that clients don't come back all at once.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};

/// The first pause is at most this long.
const FIRST: Duration = Duration::from_millis(250);
/// No pause is longer.
const LONGEST: Duration = Duration::from_secs(15);

/// Pauses with full jitter: each is anything between nothing and a bound that doubles.
#[derive(Debug)]
pub struct Backoff {
    bounds: ExponentialBackoff,
}

impl Default for Backoff {
    fn default() -> Self {
        let bounds = ExponentialBuilder::new()
            .with_min_delay(FIRST)
            .with_max_delay(LONGEST)
            .without_max_times();
        Backoff { bounds: bounds.build() }
    }
}

impl Backoff {
    /// The next pause.
    pub fn pause(&mut self) -> Duration {
        let bound = self.bounds.next().unwrap_or(LONGEST);
        let mut random = [0; 4];
        // Without randomness the bound itself is as good a pause as any.
        match getrandom::fill(&mut random) {
            Ok(()) => bound.mul_f64(f64::from(u32::from_le_bytes(random)) / f64::from(u32::MAX)),
            Err(_) => bound,
        }
    }

    /// A try succeeded: the next pause is a short one again.
    pub fn reset(&mut self) {
        *self = Backoff::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_spread_over_a_bound_that_doubles_up_to_a_limit() {
        let longest = |number: usize| {
            let pauses = (0..200).map(|_| {
                let mut backoff = Backoff::default();
                (0..=number).map(|_| backoff.pause()).last().unwrap()
            });
            let (mut least, mut most) = (Duration::MAX, Duration::ZERO);
            pauses.for_each(|pause| (least, most) = (least.min(pause), most.max(pause)));
            (least, most)
        };
        for (number, bound) in [(0, FIRST), (1, 2 * FIRST), (3, 8 * FIRST), (20, LONGEST)] {
            let (least, most) = longest(number);
            assert!(
                most <= bound && most > bound.mul_f64(0.8),
                "{number}: {most:?} of {bound:?}"
            );
            assert!(least < bound.mul_f64(0.2), "{number}: {least:?} of {bound:?}");
        }
    }
}
