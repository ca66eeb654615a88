//! One leg: its socket, what it has yet to take, and whether it is alive.
//!
//! Nothing is held for a leg that is idle. Chunks are read into one buffer of the thread and written from there; only what
//! the other leg's socket doesn't take at once is kept, at most one chunk, and while it is kept nothing more is read.

use std::{
    cell::RefCell,
    future::poll_fn,
    io::{self, IoSlice},
    ops::Range,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use kvasir_market::Ticket;
use kvasir_wire::leg::{Close, MAX_MESSAGE, role_byte};
use tokio::{
    io::{AsyncRead as _, AsyncReadExt as _, AsyncWrite as _, AsyncWriteExt as _, ReadBuf},
    time::{Instant, timeout},
};

use crate::{
    frames::{self, Decoder, Ended, HEADROOM, MAX_CHUNK, MAX_STRETCHES},
    pairs::EdgeKey,
    places::Place,
    socket::Socket,
};

/// Bytes that a leg may send before its peer is there: an edge's handshake is some hundred.
const MAX_EARLY: usize = 16 * 1024;
/// A leg that is told the end has this long to take it.
const FAREWELL: Duration = Duration::from_secs(2);
/// Pings without an answer before a leg counts as dead.
const MISSED: u8 = 2;

thread_local! {
    static CHUNK: RefCell<Chunk> = RefCell::new(Chunk {
        bytes: vec![0; HEADROOM + MAX_CHUNK].into_boxed_slice(),
        stretches: Vec::with_capacity(MAX_STRETCHES),
    });
}

/// What was read, and where in it the frames for the other leg are.
struct Chunk {
    bytes: Box<[u8]>,
    stretches: Vec<Range<usize>>,
}

/// Why a leg is of no more use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gone {
    /// it closed, or its connection ended or failed
    Left,
    /// it must be told why
    Closed(Close),
}

/// Which of two legs an end is due to.
#[derive(Debug)]
pub(crate) enum Passing {
    /// the one that was read from
    From(Gone),
    /// the one that was written to
    To(Gone),
}

/// One end of an edge.
#[derive(Debug)]
pub(crate) struct Leg {
    pub(crate) ticket: Ticket,
    pub(crate) key: EdgeKey,
    socket: Socket,
    decoder: Decoder,
    /// frames that the socket didn't take yet, whole ones but for the first
    out: Vec<u8>,
    written: usize,
    /// what it said before its peer was there
    early: Vec<u8>,
    ping_due: bool,
    /// something came since the last beat
    heard: bool,
    missed: u8,
    /// since when it takes nothing, if there is something to take
    stalled: Option<Instant>,
    _place: Place,
}

impl Leg {
    /// A leg over `socket`; `read` is what came behind the upgrade's header.
    pub(crate) fn new(ticket: Ticket, socket: Socket, mut read: Vec<u8>, place: Place) -> Leg {
        let mut decoder = Decoder::new(MAX_MESSAGE);
        let mut early = Vec::new();
        decoder.collect(&mut read, &mut early);
        let key = EdgeKey {
            ring: ticket.ring.as_str().into(),
            epoch: ticket.epoch,
            edge: ticket.edge,
        };
        Leg {
            ticket,
            key,
            socket,
            decoder,
            out: Vec::new(),
            written: 0,
            early,
            ping_due: false,
            heard: true,
            missed: 0,
            stalled: None,
            _place: place,
        }
    }

    /// Whether there is room for more of what it says before its peer is there.
    pub(crate) fn listens(&self) -> bool {
        self.early.len() < MAX_EARLY
    }

    /// Writes what is left, and then the answer to a ping and a ping of this side, if they are due. Ready once all is out.
    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Gone>> {
        loop {
            while let Some(rest) = self.out.get(self.written..).filter(|rest| !rest.is_empty()) {
                let Ok(taken @ 1..) = ready!(Pin::new(&mut self.socket).poll_write(cx, rest)) else {
                    return Poll::Ready(Err(Gone::Left));
                };
                self.written += taken;
                self.stalled = Some(Instant::now());
            }
            // Gives the memory back.
            self.out = Vec::new();
            self.written = 0;
            self.stalled = None;
            if let Some(ping) = self.decoder.take_ping() {
                frames::put_pong(&ping, &mut self.out);
            }
            if std::mem::take(&mut self.ping_due) {
                frames::put_ping(&mut self.out);
            }
            if self.out.is_empty() {
                return Pin::new(&mut self.socket).poll_flush(cx).map_err(|_| Gone::Left);
            }
        }
    }

    /// Takes the `stretches` of `chunk`, whole frames, when nothing else is left to write.
    fn send(&mut self, cx: &mut Context<'_>, chunk: &[u8], stretches: &[Range<usize>]) -> Result<(), Gone> {
        let mut slices = [IoSlice::new(&[]); MAX_STRETCHES];
        for (slice, stretch) in slices.iter_mut().zip(stretches) {
            *slice = IoSlice::new(&chunk[stretch.clone()]);
        }
        let mut slices = &mut slices[..stretches.len()];
        while !slices.is_empty() {
            match Pin::new(&mut self.socket).poll_write_vectored(cx, slices) {
                Poll::Ready(Ok(taken @ 1..)) => IoSlice::advance_slices(&mut slices, taken),
                Poll::Ready(Ok(0) | Err(_)) => return Err(Gone::Left),
                Poll::Pending => {
                    for slice in &*slices {
                        self.out.extend_from_slice(slice);
                    }
                    self.stalled = Some(Instant::now());
                    break;
                }
            }
        }
        Ok(())
    }

    /// Reads one chunk and passes it on to `other`, which has nothing left to write. Gives the bytes read, and says whose
    /// end it is if it is one.
    pub(crate) fn poll_pass(&mut self, cx: &mut Context<'_>, other: &mut Leg) -> Poll<Result<usize, Passing>> {
        CHUNK.with_borrow_mut(|chunk| {
            let Chunk { bytes, stretches } = chunk;
            let read = ready!(self.poll_chunk(cx, &mut bytes[HEADROOM..])).map_err(Passing::From)?;
            self.decoder.forward(bytes, HEADROOM..HEADROOM + read, stretches);
            other.send(cx, bytes, stretches).map_err(Passing::To)?;
            self.decoded().map_err(Passing::From)?;
            Poll::Ready(Ok(read))
        })
    }

    /// Reads what comes before the peer is there, and keeps it, until `done` or the leg is gone. Past [`MAX_EARLY`] bytes
    /// nothing more is read.
    pub(crate) fn poll_early(&mut self, cx: &mut Context<'_>, done: impl Fn(&[u8]) -> bool) -> Poll<Result<(), Gone>> {
        loop {
            if done(&self.early) {
                return Poll::Ready(Ok(()));
            }
            if let Poll::Ready(Err(gone)) = self.poll_flush(cx) {
                return Poll::Ready(Err(gone));
            }
            let room = MAX_EARLY.saturating_sub(self.early.len());
            if room == 0 {
                return Poll::Pending;
            }
            let read = CHUNK.with_borrow_mut(|chunk| {
                let read = ready!(self.poll_chunk(cx, &mut chunk.bytes[..room]))?;
                self.decoder.collect(&mut chunk.bytes[..read], &mut self.early);
                Poll::Ready(self.decoded())
            });
            ready!(read)?;
        }
    }

    fn poll_chunk(&mut self, cx: &mut Context<'_>, chunk: &mut [u8]) -> Poll<Result<usize, Gone>> {
        let mut buf = ReadBuf::new(chunk);
        match ready!(Pin::new(&mut self.socket).poll_read(cx, &mut buf)) {
            Ok(()) if !buf.filled().is_empty() => {
                self.heard = true;
                Poll::Ready(Ok(buf.filled().len()))
            }
            Ok(()) | Err(_) => Poll::Ready(Err(Gone::Left)),
        }
    }

    fn decoded(&self) -> Result<(), Gone> {
        match self.decoder.ended() {
            None => Ok(()),
            Some(Ended::Closed) => Err(Gone::Left),
            Some(Ended::Broken(close)) => Err(Gone::Closed(close)),
        }
    }

    /// Waits for the first byte, which must be the ticket's role.
    pub(crate) async fn role(&mut self) -> Result<(), Gone> {
        poll_fn(|cx| self.poll_early(cx, |early| !early.is_empty())).await?;
        if self.early.remove(0) == role_byte(self.ticket.role) {
            Ok(())
        } else {
            Err(Gone::Closed(Close::RoleMismatch))
        }
    }

    /// What it said before `other` was there goes to `other`.
    pub(crate) fn pass_early(&mut self, other: &mut Leg) {
        frames::put_data(&std::mem::take(&mut self.early), &mut other.out);
        other.stalled = Some(Instant::now());
    }

    /// Time for a ping. `listened` says whether the leg was read from since the last one: one that nobody read from can't
    /// be blamed for silence.
    pub(crate) fn beat(&mut self, listened: bool, slow_after: Duration) -> Result<(), Close> {
        if std::mem::take(&mut self.heard) || !listened {
            self.missed = 0;
        } else {
            self.missed += 1;
        }
        self.ping_due = true;
        if self.missed >= MISSED {
            Err(Close::Silent)
        } else if self.stalled.is_some_and(|since| since.elapsed() >= slow_after) {
            Err(Close::Slow)
        } else {
            Ok(())
        }
    }

    /// Tells the leg why it ends, after what it has yet to take, and closes it. Takes [`FAREWELL`] at most.
    pub(crate) async fn finish(mut self, gone: Gone) {
        match gone {
            Gone::Left => frames::put_goodbye(&mut self.out),
            Gone::Closed(close) => {
                let (
                    Ticket {
                        ring,
                        epoch,
                        edge,
                        role,
                        node,
                        ..
                    },
                    reason,
                ) = (&self.ticket, close.reason());
                match close {
                    Close::TooLarge { size, limit } => {
                        tracing::warn!(ring, epoch, edge, ?role, %node, size, limit, reason, "closed a leg: {close}");
                    }
                    _ => tracing::info!(ring, epoch, edge, ?role, %node, reason, "closed a leg: {close}"),
                }
                frames::put_close(close, &mut self.out);
            }
        }
        let farewell = async {
            self.socket.write_all(&self.out[self.written..]).await?;
            self.socket.shutdown().await?;
            // What still comes is read and dropped: a socket that is closed with unread bytes takes back what was sent.
            let mut rest = vec![0; 4096];
            while self.socket.read(&mut rest).await? > 0 {}
            io::Result::Ok(())
        };
        // A leg that doesn't take it has lost nothing that could be saved.
        let _ = timeout(FAREWELL, farewell).await;
    }
}
