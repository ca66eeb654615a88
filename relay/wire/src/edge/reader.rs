//! The reader task: stream → pieces → frames → inbox.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use bytes::{Buf as _, BytesMut};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _},
    sync::{OwnedSemaphorePermit, mpsc},
    time::{Instant, sleep_until},
};

use super::{EdgeError, Link, ProtocolError};
use crate::{frame::Frame, noise::Opener, piece::PieceReader};

/// Free space that a read is offered; a sealed piece fits twice.
const READ_BYTES: usize = 96 * 1024;

type Inbox = mpsc::UnboundedSender<(Frame, OwnedSemaphorePermit)>;

/// Runs until the edge ends.
pub(super) async fn run<R: AsyncRead + Unpin>(stream: R, opener: Opener, link: Arc<Link>, inbox: Inbox) {
    let reader = Reader {
        stream,
        opener,
        pieces: PieceReader::new(link.limits),
        inbox,
        link: Arc::clone(&link),
    };
    let cause = tokio::select! {
        biased;
        () = link.ended.cancelled() => return,
        cause = reader.read() => cause,
    };
    link.end(cause);
}

struct Reader<R> {
    stream: R,
    opener: Opener,
    pieces: PieceReader,
    inbox: Inbox,
    link: Arc<Link>,
}

impl<R: AsyncRead + Unpin> Reader<R> {
    /// Reads until the edge ends, and says why.
    async fn read(mut self) -> EdgeError {
        let silent_after = self.link.timings.silent_after;
        let mut buffer = BytesMut::with_capacity(READ_BYTES);
        let mut piece = Vec::new();
        let mut heard = Instant::now();
        let silence = sleep_until(heard + silent_after);
        tokio::pin!(silence);
        loop {
            buffer.reserve(READ_BYTES);
            tokio::select! {
                biased;
                read = self.stream.read_buf(&mut buffer) => match read {
                    Ok(0) => return EdgeError::Closed,
                    Ok(bytes) => {
                        self.link.counters.received_bytes.fetch_add(bytes as u64, Relaxed);
                    }
                    Err(error) => return error.into(),
                },
                () = &mut silence => {
                    // Set lazily: most often something was heard since.
                    if heard.elapsed() >= silent_after {
                        return EdgeError::Silent { after: silent_after };
                    }
                    silence.as_mut().reset(heard + silent_after);
                    continue;
                }
            }
            while let Some((length, rest)) = buffer.split_first_chunk::<2>() {
                let length = usize::from(u16::from_le_bytes(*length));
                let Some(message) = rest.get(..length) else { break };
                if let Err(error) = self.opener.open(message, &mut piece) {
                    return EdgeError::Protocol(error.into());
                }
                buffer.advance(2 + length);
                match self.pieces.feed(&piece) {
                    Ok(Some(frame)) => {
                        self.link.counters.received_frames.fetch_add(1, Relaxed);
                        self.take(frame).await;
                    }
                    Ok(None) => {}
                    Err(error) => return EdgeError::Protocol(ProtocolError::Piece(error)),
                }
            }
            // Also after a wait for the inbox, during which nothing could be heard.
            heard = Instant::now();
        }
    }

    async fn take(&mut self, frame: Frame) {
        match frame {
            Frame::Ping { nonce, reply: false } => {
                self.link.outbox().pong = Some(nonce);
                self.link.work.notify_one();
            }
            Frame::Ping { nonce, reply: true } => self.answered(nonce),
            frame => {
                let room = Arc::clone(self.link.inbox_room.of(frame.kind())).acquire_owned().await;
                // The room never closes; and a receiver that is gone has closed the edge already.
                if let Ok(room) = room {
                    let _ = self.inbox.send((frame, room));
                }
            }
        }
    }

    fn answered(&self, nonce: u64) {
        let mut outbox = self.link.outbox();
        if let Some((_, sent)) = outbox.ping.take_if(|(number, _)| *number == nonce) {
            let round_trip = sent.elapsed().max(Duration::from_nanos(1));
            self.link
                .counters
                .round_trip
                .store(round_trip.as_nanos() as u64, Relaxed);
        }
    }
}
