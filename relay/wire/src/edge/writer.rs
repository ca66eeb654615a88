//! Writing: outbox → pieces → stream.
//!
//! Whoever sends writes what the stream takes at once, so that a lap goes on without a thread having to wake up first.
//! The writer task does the rest: what the stream didn't take, pings, and the end.

use std::{
    future::poll_fn,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::Ordering::Relaxed},
    task::{Context, Poll, Waker, ready},
};

use tokio::{
    io::AsyncWrite,
    time::{Instant, sleep, timeout, timeout_at},
};

use super::{CLOSE_GRACE, EdgeError, Link, STALL_FACTOR};
use crate::{
    codec::FrameError,
    frame::{Frame, Kind},
    noise::{Sealer, TAG_BYTES},
    piece::{MAX_PIECE, MAX_PIECE_BYTES, Outgoing},
};

/// Less room than this isn't worth a piece of its own.
const LEAST_PIECE_BYTES: usize = 1024;

/// Writes what the stream takes at once; false when there is more for the writer task to do.
pub(super) trait Push: Send + Sync {
    fn push(&self) -> bool;
}

/// Writes that a sender does by itself at most: a decode lap and the look that finds no more. What is longer is left to
/// the writer task, so that an engine goes on computing.
const OWN_WRITES: usize = 2;

/// What the writer task and senders write with, one at a time. Nothing is in it once the edge has ended.
pub(super) struct Pen<W>(Mutex<Option<Writer<W>>>);

impl<W: AsyncWrite + Unpin> Pen<W> {
    pub(super) fn new(stream: W, sealer: Sealer, link: Arc<Link>) -> Pen<W> {
        Pen(Mutex::new(Some(Writer {
            stream,
            sealer,
            next_ping: Instant::now() + link.timings.ping_every,
            pings: 0,
            plain: Vec::with_capacity(MAX_PIECE),
            sealed: Vec::with_capacity(2 + MAX_PIECE + TAG_BYTES),
            written: 0,
            finished: Vec::new(),
            link,
        })))
    }

    /// Nobody panics with the pen in hand, and a message that was cut off would only end the edge.
    fn lock(&self) -> MutexGuard<'_, Option<Writer<W>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn step(&self) -> Result<Step, EdgeError> {
        poll_fn(|context| match &mut *self.lock() {
            Some(writer) => writer.poll_step(context),
            None => Poll::Ready(Err(EdgeError::Closed)),
        })
        .await
    }

    async fn shutdown(&self) {
        // The peer sees the end either way.
        let _ = poll_fn(|context| match &mut *self.lock() {
            Some(writer) => Pin::new(&mut writer.stream).poll_shutdown(context),
            None => Poll::Ready(Ok(())),
        })
        .await;
    }

    fn next_ping(&self) -> Instant {
        self.lock()
            .as_ref()
            .map_or_else(Instant::now, |writer| writer.next_ping)
    }
}

impl<W: AsyncWrite + Unpin + Send> Push for Pen<W> {
    fn push(&self) -> bool {
        // Whoever has the pen may have looked at the outbox already.
        let Ok(mut pen) = self.0.try_lock() else { return false };
        // A message is half out: the writer task waits for the stream, and its waker must stay there.
        let Some(writer) = pen.as_mut().filter(|writer| !writer.pending()) else {
            return false;
        };
        let mut context = Context::from_waker(Waker::noop());
        // An error stays in the stream, where the writer task meets it.
        (0..OWN_WRITES)
            .map_while(|_| match writer.poll_step(&mut context) {
                Poll::Ready(Ok(step)) => Some(step),
                _ => None,
            })
            .any(|step| matches!(step, Step::Idle))
    }
}

/// The writer task: runs until the edge ends.
pub(super) async fn run<W: AsyncWrite + Unpin>(pen: Arc<Pen<W>>, link: Arc<Link>) {
    let out_of_grace = async {
        link.closing.cancelled().await;
        sleep(CLOSE_GRACE).await;
    };
    let cause = tokio::select! {
        biased;
        () = link.ended.cancelled() => None,
        cause = write(&pen, &link) => Some(cause),
        () = out_of_grace => Some(EdgeError::Closed),
    };
    // Senders may live on; the stream must not.
    drop(pen.lock().take());
    if let Some(cause) = cause {
        link.end(cause);
    }
}

/// Writes until the edge ends, and says why.
async fn write<W: AsyncWrite + Unpin>(pen: &Pen<W>, link: &Link) -> EdgeError {
    let stalled = link.timings.silent_after * STALL_FACTOR;
    loop {
        // Before the outbox is looked at: what was sent before the edge closed is in it then.
        let closing = link.closing.is_cancelled();
        // Any progress counts against a stall.
        match timeout(stalled, pen.step()).await {
            Ok(Ok(Step::Wrote)) => {}
            Ok(Ok(Step::Idle)) if closing => {
                pen.shutdown().await;
                return EdgeError::Closed;
            }
            // Time for a ping when it runs out.
            Ok(Ok(Step::Idle)) => drop(timeout_at(pen.next_ping(), link.work.notified()).await),
            Ok(Err(cause)) => return cause,
            Err(_) => return EdgeError::Silent { after: stalled },
        }
    }
}

enum Step {
    /// bytes went out, and there may be more
    Wrote,
    /// nothing is left to write
    Idle,
}

struct Writer<W> {
    stream: W,
    sealer: Sealer,
    next_ping: Instant,
    pings: u64,
    plain: Vec<u8>,
    /// messages on their way into the stream
    sealed: Vec<u8>,
    /// bytes of `sealed` that the stream has taken
    written: usize,
    /// frames that are out with `sealed`
    finished: Vec<Kind>,
    link: Arc<Link>,
}

impl<W> Writer<W> {
    fn pending(&self) -> bool {
        !self.sealed.is_empty()
    }
}

impl<W: AsyncWrite + Unpin> Writer<W> {
    /// Writes once. Ready when the stream took something, or there is nothing to write.
    fn poll_step(&mut self, context: &mut Context<'_>) -> Poll<Result<Step, EdgeError>> {
        if !self.pending() {
            self.fill()?;
            if !self.pending() {
                return Poll::Ready(Ok(Step::Idle));
            }
        }
        if self.written < self.sealed.len() {
            let written = ready!(Pin::new(&mut self.stream).poll_write(context, &self.sealed[self.written..]))?;
            if written == 0 {
                return Poll::Ready(Err(EdgeError::Closed));
            }
            self.written += written;
            self.link.counters.sent_bytes.fetch_add(written as u64, Relaxed);
        }
        if self.written == self.sealed.len() {
            ready!(Pin::new(&mut self.stream).poll_flush(context))?;
            self.sealed.clear();
            self.written = 0;
            self.link
                .counters
                .sent_frames
                .fetch_add(self.finished.len() as u64, Relaxed);
            for kind in self.finished.drain(..).filter(|kind| *kind != Kind::Ping) {
                self.link.outbox_room.of(kind).add_permits(1);
            }
        }
        Poll::Ready(Ok(Step::Wrote))
    }

    /// Seals what goes out in one write: small pieces together, up to the size of a big one, so that what becomes urgent
    /// meanwhile waits for no more than that.
    fn fill(&mut self) -> Result<(), EdgeError> {
        self.queue_pings().map_err(EdgeError::Invalid)?;
        let mut room = MAX_PIECE_BYTES;
        while room >= LEAST_PIECE_BYTES {
            self.plain.clear();
            let piece = self.link.outbox().pieces.next_piece(room, &mut self.plain);
            let Some(piece) = piece else { break };
            self.sealer.seal(&self.plain, &mut self.sealed)?;
            room = room.saturating_sub(self.plain.len());
            if piece.last {
                self.finished.push(piece.kind);
            }
        }
        Ok(())
    }

    fn queue_pings(&mut self) -> Result<(), FrameError> {
        let mut outbox = self.link.outbox();
        if let Some(nonce) = outbox.pong.take() {
            outbox
                .pieces
                .queue(Outgoing::new(&Frame::Ping { nonce, reply: true }, &self.link.limits)?);
        }
        let now = Instant::now();
        if now >= self.next_ping {
            self.next_ping = now + self.link.timings.ping_every;
            self.pings += 1;
            outbox.ping = Some((self.pings, now));
            outbox.pieces.queue(Outgoing::new(
                &Frame::Ping {
                    nonce: self.pings,
                    reply: false,
                },
                &self.link.limits,
            )?);
        }
        Ok(())
    }
}
