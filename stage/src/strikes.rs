//! Counts failures that come close together: pure, time is an argument.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The last failures.
#[derive(Debug)]
pub(crate) struct Strikes {
    allowed: usize,
    within: Duration,
    last: VecDeque<Instant>,
}

impl Strikes {
    /// `allowed` failures `within` a time are too many.
    pub(crate) fn new(allowed: usize, within: Duration) -> Self {
        Strikes {
            allowed,
            within,
            last: VecDeque::new(),
        }
    }

    /// A failure at `now`; true when that is one too many.
    pub(crate) fn again(&mut self, now: Instant) -> bool {
        self.last.push_back(now);
        while self
            .last
            .front()
            .is_some_and(|first| now.saturating_duration_since(*first) > self.within)
        {
            self.last.pop_front();
        }
        self.last.len() >= self.allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_count_while_they_come_close_together() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut strikes = Strikes::new(3, Duration::from_secs(60));
        assert!(!strikes.again(at(0)));
        assert!(!strikes.again(at(30)));
        assert!(!strikes.again(at(61)), "the first is forgotten");
        assert!(strikes.again(at(90)));
        assert!(!strikes.again(at(1000)), "all are forgotten");
    }
}
