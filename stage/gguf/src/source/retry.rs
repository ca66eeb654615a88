//! How long to go on asking a server that doesn't answer well.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};

/// Limits of trying again. Each request for a range has its own count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// requests for one range before giving up
    pub tries: u32,
    /// pause after the first failure; it doubles each time, with jitter
    pub first_pause: Duration,
    /// no pause is longer, whatever `Retry-After` says
    pub longest_pause: Duration,
}

impl Default for Patience {
    fn default() -> Patience {
        Patience {
            tries: 6,
            first_pause: Duration::from_millis(500),
            longest_pause: Duration::from_secs(300),
        }
    }
}

/// The tries of one range.
#[derive(Debug)]
pub(super) struct Tries {
    patience: Patience,
    made: u32,
    pauses: ExponentialBackoff,
}

impl Tries {
    pub(super) fn new(patience: Patience) -> Tries {
        Tries {
            patience,
            made: 0,
            pauses: pauses(patience),
        }
    }

    /// Requests that failed.
    pub(super) fn made(&self) -> u32 {
        self.made
    }

    /// Counts a failed request. The pause before the next one: as long as the server told, or longer each time; none
    /// when no try is left.
    pub(super) fn failed(&mut self, told: Option<Duration>) -> Option<Duration> {
        self.made += 1;
        if self.made >= self.patience.tries {
            return None;
        }
        let jittered = self.pauses.next().unwrap_or(self.patience.longest_pause);
        // a crowd that was told the same time must not come back at once
        let pause = told.map_or(jittered, |told| told.saturating_add(jittered / 2));
        Some(pause.min(self.patience.longest_pause))
    }

    /// The last request failed, but brought much: it doesn't count.
    pub(super) fn forgive(&mut self) {
        *self = Tries::new(self.patience);
    }
}

fn pauses(patience: Patience) -> ExponentialBackoff {
    ExponentialBuilder::new()
        .with_jitter()
        .with_min_delay(patience.first_pause)
        .with_max_delay(patience.longest_pause)
        .without_max_times()
        .build()
}

/// The pause that a `Retry-After` header tells (RFC 9110, 10.2.3): seconds or a date.
pub(super) fn retry_after(header: &str, now: jiff::Timestamp) -> Option<Duration> {
    if let Ok(seconds) = header.trim().parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = jiff::fmt::rfc2822::parse(header.trim()).ok()?.timestamp();
    Some(Duration::try_from(date.duration_since(now)).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b7_retry_after_is_seconds_or_a_date() {
        let now: jiff::Timestamp = "1994-11-06T08:47:37Z".parse().unwrap();
        assert_eq!(retry_after("120", now), Some(Duration::from_secs(120)));
        assert_eq!(
            retry_after("Sun, 06 Nov 1994 08:49:37 GMT", now),
            Some(Duration::from_secs(120))
        );
        assert_eq!(retry_after("Sun, 06 Nov 1994 08:40:00 GMT", now), Some(Duration::ZERO));
        assert_eq!(retry_after("soon", now), None);
    }

    #[test]
    fn b7_pauses_follow_the_server_up_to_a_bound() {
        let mut tries = Tries::new(Patience::default());
        let told = tries.failed(Some(Duration::from_secs(120))).unwrap();
        assert!((120..122).contains(&told.as_secs()), "{told:?}");
        assert_eq!(
            tries.failed(Some(Duration::from_secs(86_400))),
            Some(Duration::from_secs(300))
        );
    }

    #[test]
    fn b7_pauses_grow_and_tries_end() {
        let mut tries = Tries::new(Patience::default());
        let pauses: Vec<Duration> = std::iter::from_fn(|| tries.failed(None)).collect();
        assert_eq!(pauses.len() as u32 + 1, Patience::default().tries);
        assert!(
            pauses
                .iter()
                .zip([500, 1000, 2000, 4000, 8000])
                .all(|(pause, least)| pause.as_millis() >= least)
        );
    }
}
