//! The writer task: outbox → pieces → stream.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use tokio::{
    io::{AsyncWrite, AsyncWriteExt as _},
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

/// Runs until the edge ends.
pub(super) async fn run<W: AsyncWrite + Unpin>(stream: W, sealer: Sealer, link: Arc<Link>) {
    let writer = Writer {
        stream,
        sealer,
        next_ping: Instant::now() + link.timings.ping_every,
        pings: 0,
        plain: Vec::with_capacity(MAX_PIECE),
        sealed: Vec::with_capacity(2 + MAX_PIECE + TAG_BYTES),
        link: Arc::clone(&link),
    };
    let out_of_grace = async {
        link.closing.cancelled().await;
        sleep(CLOSE_GRACE).await;
    };
    let cause = tokio::select! {
        biased;
        () = link.ended.cancelled() => return,
        cause = writer.write() => cause,
        () = out_of_grace => EdgeError::Closed,
    };
    link.end(cause);
}

struct Writer<W> {
    stream: W,
    sealer: Sealer,
    next_ping: Instant,
    pings: u64,
    plain: Vec<u8>,
    sealed: Vec<u8>,
    link: Arc<Link>,
}

impl<W: AsyncWrite + Unpin> Writer<W> {
    /// Writes until the edge ends, and says why.
    async fn write(mut self) -> EdgeError {
        loop {
            // Before the outbox is looked at: what was sent before the edge closed is in it then.
            let closing = self.link.closing.is_cancelled();
            let finished = match self.fill() {
                Ok(finished) => finished,
                Err(cause) => return cause,
            };
            if self.sealed.is_empty() {
                if closing {
                    // The peer sees the end either way.
                    let _ = self.stream.shutdown().await;
                    return EdgeError::Closed;
                }
                // Time for a ping when it runs out.
                let _ = timeout_at(self.next_ping, self.link.work.notified()).await;
                continue;
            }
            if let Err(cause) = self.flush().await {
                return cause;
            }
            self.link.counters.sent_frames.fetch_add(finished.len() as u64, Relaxed);
            for kind in finished.into_iter().filter(|kind| *kind != Kind::Ping) {
                self.link.outbox_room.of(kind).add_permits(1);
            }
        }
    }

    /// Seals what goes out in one write: small pieces together, up to the size of a big one, so that what becomes urgent
    /// meanwhile waits for no more than that. Returns the frames that are out with it.
    fn fill(&mut self) -> Result<Vec<Kind>, EdgeError> {
        self.sealed.clear();
        self.queue_pings().map_err(EdgeError::Invalid)?;
        let mut finished = Vec::new();
        let mut room = MAX_PIECE_BYTES;
        while room >= LEAST_PIECE_BYTES {
            self.plain.clear();
            let piece = self.link.outbox().pieces.next_piece(room, &mut self.plain);
            let Some(piece) = piece else { break };
            self.sealer.seal(&self.plain, &mut self.sealed)?;
            room = room.saturating_sub(self.plain.len());
            if piece.last {
                finished.push(piece.kind);
            }
        }
        Ok(finished)
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

    /// Writes `sealed`; any progress counts against a stall.
    async fn flush(&mut self) -> Result<(), EdgeError> {
        let stalled = self.link.timings.silent_after * STALL_FACTOR;
        let silent = |_| EdgeError::Silent { after: stalled };
        let mut rest = self.sealed.as_slice();
        while !rest.is_empty() {
            let written = timeout(stalled, self.stream.write(rest)).await.map_err(silent)??;
            if written == 0 {
                return Err(EdgeError::Closed);
            }
            self.link.counters.sent_bytes.fetch_add(written as u64, Relaxed);
            rest = &rest[written..];
        }
        timeout(stalled, self.stream.flush())
            .await
            .map_err(silent)?
            .map_err(EdgeError::from)
    }
}
