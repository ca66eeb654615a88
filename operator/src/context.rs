//! What all visits share.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use kube::Client;
use tokio::sync::watch;

use crate::{
    events::Events, holder::Told, market::Markets, metrics::Metrics, model::Models, newest::Newest, settings::Settings,
};

/// A visit that failed is tried again after this long, and each time after twice as long.
const FIRST_PAUSE: Duration = Duration::from_secs(2);
/// No pause is longer.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// What all visits share.
pub struct Context {
    /// the API server
    pub client: Client,
    /// how the operator was installed
    pub settings: Settings,
    /// what is counted
    pub metrics: Metrics,
    /// where events go
    pub events: Events,
    /// models that were read
    pub models: Models,
    /// markets that were spoken to
    pub markets: Markets,
    /// pauses of Rings whose visits fail
    pub pauses: Pauses,
    /// Rings as they were seen last
    pub newest: Newest,
    /// Rings that other operators serve
    pub others: Told,
    /// what the served definition of Ring lacks, in words
    pub definition: watch::Receiver<Option<String>>,
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

/// By Ring's uid: how often its visit has failed since one succeeded.
#[derive(Debug, Default)]
pub struct Pauses(Mutex<HashMap<String, u32>>);

impl Pauses {
    /// The visit failed: how long to wait for the next one.
    pub fn failed(&self, uid: &str) -> Duration {
        let mut failures = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = failures.entry(uid.to_owned()).or_default();
        let pause = FIRST_PAUSE.saturating_mul(1 << (*count).min(10)).min(LONGEST_PAUSE);
        *count += 1;
        pause
    }

    /// The visit succeeded, or the Ring is gone.
    pub fn forget(&self, uid: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_minute_and_begin_anew_after_a_success() {
        let pauses = Pauses::default();
        let seconds: Vec<u64> = (0..7).map(|_| pauses.failed("a").as_secs()).collect();
        assert_eq!(seconds, [2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(pauses.failed("b"), FIRST_PAUSE);
        pauses.forget("a");
        assert_eq!(pauses.failed("a"), FIRST_PAUSE);
    }
}
