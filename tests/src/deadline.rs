//! Waiting for a condition with a deadline, in place of sleeping for a guessed time.

use std::thread;
use std::time::{Duration, Instant};

/// How often a condition is looked at again.
const PAUSE: Duration = Duration::from_millis(10);

/// Looks at `condition` until it gives a value, and panics with `what` once `limit` is over.
pub fn wait_for<T>(what: &str, limit: Duration, mut condition: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(start.elapsed() < limit, "{what}: not within {limit:?}");
        thread::sleep(PAUSE);
    }
}

/// [`wait_for`] a plain yes.
pub fn wait_until(what: &str, limit: Duration, mut condition: impl FnMut() -> bool) {
    wait_for(what, limit, || condition().then_some(()));
}
