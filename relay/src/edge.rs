//! Two legs that are paired: bytes of each go to the other, until one of them or the relay ends it.
//!
//! One task serves both. A leg is read only while the other has taken all that came before, so an edge holds at most one
//! chunk each way ([`MAX_HELD`]) beside what the kernel keeps for its sockets, and a leg that never reads slows its own
//! peer and nobody else.

use std::{
    future::poll_fn,
    task::{Context, Poll},
    time::Duration,
};

use kvasir_wire::leg::Close;
use prometheus_client::metrics::counter::Counter;
use tokio::time::{Instant, interval_at};

use crate::{
    frames::{HEADROOM, MAX_CHUNK},
    leg::{Gone, Leg, Passing},
};

/// Bytes that the process holds for one edge at most, without sockets and TLS: a chunk each way, its header, and what a
/// leg sent before its peer was there.
pub const MAX_HELD: usize = 2 * (MAX_CHUNK + HEADROOM + 16 * 1024);

/// How long a pair waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pulse {
    /// between two pings of each leg
    pub(crate) ping_every: Duration,
    /// before a leg that takes nothing is given up
    pub(crate) slow_after: Duration,
}

/// How a pair ended: what becomes of each leg.
pub(crate) type Ends = [Gone; 2];

/// Two legs and what passed between them.
#[derive(Debug)]
pub(crate) struct Edge {
    legs: [Leg; 2],
    /// counts bytes read, frames' headers included
    passed: Counter,
    /// legs that were read from since the last beat
    listened: [bool; 2],
}

impl Edge {
    pub(crate) fn new(mut legs: [Leg; 2], passed: Counter) -> Edge {
        let [first, second] = &mut legs;
        first.pass_early(second);
        second.pass_early(first);
        Edge {
            legs,
            passed,
            listened: [false; 2],
        }
    }

    /// Passes bytes on until one of the legs is gone.
    pub(crate) async fn run(&mut self, pulse: Pulse) -> Ends {
        let mut beats = interval_at(Instant::now() + pulse.ping_every, pulse.ping_every);
        loop {
            tokio::select! {
                biased;
                ends = poll_fn(|cx| self.poll(cx)) => return ends,
                _ = beats.tick() => {
                    let listened = std::mem::take(&mut self.listened);
                    for (which, listened) in listened.into_iter().enumerate() {
                        if let Err(close) = self.legs[which].beat(listened, pulse.slow_after) {
                            return ends(which, Gone::Closed(close));
                        }
                    }
                }
            }
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Ends> {
        loop {
            let mut moved = false;
            for number in 0..2 {
                let [first, second] = &mut self.legs;
                let (from, to) = if number == 0 { (first, second) } else { (second, first) };
                match to.poll_flush(cx) {
                    Poll::Ready(Ok(())) => {}
                    Poll::Ready(Err(gone)) => return Poll::Ready(ends(1 - number, gone)),
                    Poll::Pending => continue,
                }
                self.listened[number] = true;
                match from.poll_pass(cx, to) {
                    Poll::Ready(Ok(read)) => {
                        self.passed.inc_by(read as u64);
                        moved = true;
                    }
                    Poll::Ready(Err(Passing::From(gone))) => return Poll::Ready(ends(number, gone)),
                    Poll::Ready(Err(Passing::To(gone))) => return Poll::Ready(ends(1 - number, gone)),
                    Poll::Pending => {}
                }
            }
            if !moved {
                return Poll::Pending;
            }
        }
    }

    /// Ends both legs, each with its word.
    pub(crate) async fn finish(self, ends: Ends) {
        let [first, second] = self.legs;
        tokio::join!(first.finish(ends[0]), second.finish(ends[1]));
    }
}

/// Leg `which` is gone, and so its peer's is.
fn ends(which: usize, gone: Gone) -> Ends {
    let mut ends = [Gone::Closed(Close::PeerGone); 2];
    ends[which] = gone;
    ends
}
