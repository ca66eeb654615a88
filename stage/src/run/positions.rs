//! Rank 0's account of what came home: a counter for each epoch, told to the market from the epoch's first lap on, until it
//! says that it has it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kvasir_market::client::{Backoff, RingClient};
use kvasir_market::types::Positions;
use kvasir_process::chain;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::ring::head::{HeadHandle, Phase};

/// The counter of the running epoch is told this often while it grows.
const TELL_EVERY: Duration = Duration::from_secs(2);
/// Epochs that ended and that the market has not taken yet: the oldest are given up beyond that.
const KEPT: usize = 256;

/// Counters by epoch, and what the market has of them. Pure: totals and the queue are arguments.
#[derive(Debug, Default)]
struct Counters {
    /// the running epoch, and the total at its beginning
    running: Option<(u64, u64)>,
    /// counters of epochs that are over and not taken yet
    ended: BTreeMap<u64, u64>,
    /// what the market has of the running epoch
    told: Option<Positions>,
}

impl Counters {
    fn begin(&mut self, epoch: u64, total: u64) {
        self.end(total);
        self.running = Some((epoch, total));
    }

    fn end(&mut self, total: u64) {
        if let Some((epoch, base)) = self.running.take() {
            let committed = total - base;
            let known = self.told.take().map_or(0, |told| told.committed);
            if committed > known {
                self.ended.insert(epoch, committed);
            }
            if self.ended.len() > KEPT {
                self.ended.pop_first();
            }
        }
    }

    /// What the market has to be told: epochs that are over first, and of the running one nothing before a lap of it went
    /// round.
    fn due(&self, total: u64, queued: u32, closed: bool) -> Option<Positions> {
        let over = self.ended.iter().next().map(|(epoch, committed)| Positions {
            epoch: *epoch,
            committed: *committed,
            queued,
        });
        let running = self.running.filter(|_| closed).map(|(epoch, base)| Positions {
            epoch,
            committed: total - base,
            queued,
        });
        // The first lap carries no positions, and is news all the same.
        over.or(running.filter(|now| self.told != Some(*now)))
    }

    /// The market has it, or will never take it.
    fn settled(&mut self, positions: Positions) {
        if self.running.is_some_and(|(epoch, _)| epoch == positions.epoch) {
            self.told = Some(positions);
        } else if self.ended.get(&positions.epoch) == Some(&positions.committed) {
            self.ended.remove(&positions.epoch);
        }
    }
}

/// Tells the market, in a task of its own.
#[derive(Debug)]
pub(super) struct Meter {
    head: HeadHandle,
    counters: Arc<Mutex<Counters>>,
    /// something is to be told before its time
    now: Arc<Notify>,
    /// something was told
    told: Arc<Notify>,
    task: JoinHandle<()>,
}

impl Meter {
    pub(super) fn start(market: RingClient, head: HeadHandle) -> Self {
        let counters = Arc::new(Mutex::new(Counters::default()));
        let (now, told) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let task = tokio::spawn(tell(market, head.clone(), counters.clone(), now.clone(), told.clone()));
        Meter {
            head,
            counters,
            now,
            told,
            task,
        }
    }

    /// An epoch's laps begin.
    pub(super) fn begin(&self, epoch: u64) {
        lock(&self.counters).begin(epoch, self.head.counts().0);
    }

    /// Nothing of the epoch comes home any more.
    pub(super) fn end(&self) {
        lock(&self.counters).end(self.head.counts().0);
        self.now.notify_one();
    }

    /// Ends; what the market has not been told within `within` it will not hear.
    pub(super) async fn finish(self, within: Duration) {
        self.end();
        let all = async {
            while !lock(&self.counters).ended.is_empty() {
                self.told.notified().await;
            }
        };
        let _ = tokio::time::timeout(within, all).await;
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn tell(
    market: RingClient,
    head: HeadHandle,
    counters: Arc<Mutex<Counters>>,
    now: Arc<Notify>,
    told: Arc<Notify>,
) {
    let mut backoff = Backoff::default();
    let mut phase = head.phase();
    loop {
        let (total, queued) = head.counts();
        let due = {
            // An epoch begins here after the head has heard that it is being formed: under the lock, readiness is that of
            // the running epoch.
            let counters = lock(&counters);
            let closed = *phase.borrow_and_update() == Phase::Ready;
            counters.due(total, queued, closed)
        };
        let mut pause = TELL_EVERY;
        if let Some(positions) = due {
            match market.positions(&positions).await {
                Ok(_) => {
                    lock(&counters).settled(positions);
                    backoff.reset();
                }
                Err(e) if e.retryable() => {
                    tracing::debug!(error = %chain(&e), "the market was not told what came home");
                    pause = backoff.pause();
                }
                Err(e) => {
                    let Positions { epoch, committed, .. } = positions;
                    tracing::warn!(epoch, committed, reason = e.reason(), error = %chain(&e), "the market credits nothing");
                    lock(&counters).settled(positions);
                }
            }
            told.notify_one();
            if pause == TELL_EVERY && !lock(&counters).ended.is_empty() {
                continue;
            }
        }
        // The first lap and the end of an epoch are told at once.
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = now.notified() => {}
            Ok(()) = phase.changed() => {}
        }
    }
}

/// Counters are whole after every step, so a lock that a panic poisoned still guards sound ones.
fn lock(counters: &Mutex<Counters>) -> MutexGuard<'_, Counters> {
    counters.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn positions(epoch: u64, committed: u64, queued: u32) -> Positions {
        Positions {
            epoch,
            committed,
            queued,
        }
    }

    #[test]
    fn each_epoch_counts_from_its_own_beginning_and_is_told_until_it_is_taken() {
        let mut counters = Counters::default();
        assert_eq!(counters.due(5, 0, true), None, "nothing runs");
        counters.begin(3, 5);
        assert_eq!(counters.due(5, 0, false), None, "nothing came home");
        assert_eq!(counters.due(5, 0, true), Some(positions(3, 0, 0)), "the first lap");
        counters.settled(positions(3, 0, 0));
        assert_eq!(counters.due(5, 0, true), None, "it is told once");
        assert_eq!(counters.due(7, 1, true), Some(positions(3, 2, 1)));
        counters.settled(positions(3, 2, 1));
        assert_eq!(counters.due(7, 1, true), None);
        counters.end(9);
        counters.begin(4, 9);
        assert_eq!(
            counters.due(9, 0, true),
            Some(positions(3, 4, 0)),
            "what is over goes first"
        );
        assert_eq!(
            counters.due(9, 0, true),
            Some(positions(3, 4, 0)),
            "again, until it is taken"
        );
        counters.settled(positions(3, 4, 0));
        assert_eq!(counters.due(12, 0, true), Some(positions(4, 3, 0)));
    }

    #[test]
    fn an_epoch_that_brought_nothing_new_is_not_told_of() {
        let mut counters = Counters::default();
        counters.begin(1, 0);
        counters.settled(positions(1, 8, 0));
        counters.end(8);
        assert_eq!(counters.due(8, 0, true), None);
        counters.begin(2, 8);
        counters.end(8);
        assert_eq!(counters.due(8, 0, true), None);
    }

    #[test]
    fn an_answer_that_comes_after_the_end_settles_only_what_it_is_about() {
        let mut counters = Counters::default();
        counters.begin(1, 0);
        counters.end(8);
        counters.settled(positions(1, 5, 0));
        assert_eq!(counters.due(8, 0, true), Some(positions(1, 8, 0)));
    }

    #[test]
    fn what_a_market_never_takes_is_bounded() {
        let mut counters = Counters::default();
        for epoch in 0..1000 {
            counters.begin(epoch, epoch);
        }
        counters.end(1000);
        assert_eq!(counters.ended.len(), KEPT);
        assert_eq!(counters.due(1000, 0, true), Some(positions(744, 1, 0)));
    }
}
