//! An edge over a byte stream: handshake, hello, and then frames both ways. The tokio shell around the sans-IO parts.
//!
//! Two tasks serve an edge. The reader takes pieces off the stream, answers pings and puts whole frames in an inbox that
//! holds `max_laps` laps (and as many lots of tokens among them) and [`CONTROL_RESERVE`] other frames. The writer takes
//! the most urgent piece of an outbox of the same size; a sender that finds the stream free writes by itself. Neither
//! task waits for the other: an answer to a ping is a note for the writer, not a place in a queue. So with at most `max_laps` laps in the ring no [`EdgeSender::send`] waits unless
//! the peer is slow.
//!
//! Each side pings every `ping_every`, and takes any bytes from the peer as a sign of life. A peer that says nothing for
//! `silent_after`, or takes nothing for [`STALL_FACTOR`] times as long, is [`EdgeError::Silent`].

mod opening;
mod reader;
mod tcp;
pub mod websocket;
mod writer;

use std::{
    io,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

pub use crate::noise::{HandshakeError, Role};
pub use opening::check_hello;
pub use tcp::{accept, dial, tune};
pub use websocket::{CA_FILE_VARIABLE, LegError, LegStream, RelayDialer};

use crate::{
    codec::FrameError,
    frame::{Frame, Hello, Kind},
    limits::Limits,
    noise::Tampered,
    piece::{Outgoing, PieceError, PieceWriter},
    trust::NodeKeys,
};

/// Frames beside laps and tokens that an outbox and an inbox hold each. A ring says a few for each sequence's whole
/// life, so this is far more than are ever under way.
pub const CONTROL_RESERVE: usize = 256;
/// A peer that is alive but takes nothing is given up after this many times `silent_after`: long enough for a slow
/// device with a full inbox to compute a lap.
pub const STALL_FACTOR: u32 = 10;
/// What is queued when an edge closes is still written if the peer takes it within this time.
pub const CLOSE_GRACE: Duration = Duration::from_secs(1);

/// How long an edge waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timings {
    /// for handshake and hello together
    pub handshake: Duration,
    /// between two pings
    pub ping_every: Duration,
    /// before a peer that says nothing is given up
    pub silent_after: Duration,
}

impl Default for Timings {
    fn default() -> Self {
        Timings {
            handshake: Duration::from_secs(10),
            ping_every: Duration::from_secs(5),
            silent_after: Duration::from_secs(15),
        }
    }
}

/// One end of an edge, as the manifest describes it.
#[derive(Clone, Debug)]
pub struct EdgeConfig {
    /// ring's name
    pub ring: String,
    /// membership's generation
    pub epoch: u64,
    /// the edge's index: the rank of its predecessor
    pub edge: u32,
    /// model identity, text form
    pub identity: String,
    /// which end this is
    pub role: Role,
    /// this node's keys
    pub own: Arc<NodeKeys>,
    /// the X25519 key that the manifest lists for the peer
    pub peer_noise_key: [u8; 32],
    /// this side's first frame
    pub hello: Hello,
    /// rank that the peer's hello must say
    pub expect_rank: u32,
    /// the ring's dimensions
    pub limits: Limits,
    /// laps in flight at most
    pub max_laps: u16,
    /// how long to wait
    pub timings: Timings,
}

/// Why an edge ended, or never came about.
#[derive(Clone, Debug, thiserror::Error)]
pub enum EdgeError {
    /// one of the two ends closed it
    #[error("the edge is closed")]
    Closed,
    /// the peer is gone without a word
    #[error("nothing passed between the peer and this stage for {} s", after.as_secs_f64())]
    Silent {
        /// how long
        after: Duration,
    },
    /// the peer broke the protocol, or somebody between the two did
    #[error("the peer broke the protocol")]
    Protocol(#[source] ProtocolError),
    /// this side's frame breaks the ring's limits; it wasn't sent, and the edge stays open
    #[error("a frame of this stage's breaks the ring's limits and wasn't sent")]
    Invalid(#[source] FrameError),
    /// the stream failed
    #[error("the connection failed")]
    Io(#[source] Arc<io::Error>),
    /// nothing listens there
    #[error("can't reach {address}")]
    Unreachable {
        /// `host:port`
        address: String,
        /// why
        #[source]
        source: Arc<io::Error>,
    },
    /// the two ends didn't come together
    #[error("the handshake failed")]
    Handshake(#[source] HandshakeError),
    /// the relay between the two ends won't have it
    #[error("no edge by way of the relay")]
    Leg(#[source] LegError),
}

/// What broke the protocol.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// a piece or its frame is malformed or too large
    #[error(transparent)]
    Piece(#[from] PieceError),
    /// a message isn't the one that the peer sealed
    #[error(transparent)]
    Tampered(#[from] Tampered),
}

impl EdgeError {
    /// Stable `PascalCase` word for metrics, events and conditions.
    pub fn reason(&self) -> &'static str {
        match self {
            EdgeError::Closed => "Closed",
            EdgeError::Silent { .. } => "Silent",
            EdgeError::Protocol(ProtocolError::Piece(error)) => error.reason(),
            EdgeError::Protocol(ProtocolError::Tampered(_)) => "Tampered",
            EdgeError::Invalid(error) => error.reason(),
            EdgeError::Io(_) => "ConnectionFailed",
            EdgeError::Unreachable { .. } => "Unreachable",
            EdgeError::Handshake(error) => error.reason(),
            EdgeError::Leg(error) => error.reason(),
        }
    }
}

impl From<io::Error> for EdgeError {
    fn from(error: io::Error) -> Self {
        match error.get_ref().and_then(|inner| inner.downcast_ref::<LegError>()) {
            Some(leg) => EdgeError::Leg(leg.clone()),
            None => EdgeError::Io(Arc::new(error)),
        }
    }
}

impl From<HandshakeError> for EdgeError {
    fn from(error: HandshakeError) -> Self {
        EdgeError::Handshake(error)
    }
}

/// What an edge has carried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EdgeStats {
    /// sealed bytes written
    pub sent_bytes: u64,
    /// sealed bytes read
    pub received_bytes: u64,
    /// frames written to the end, pings included
    pub sent_frames: u64,
    /// frames read to the end, pings included
    pub received_frames: u64,
    /// time from the last ping to its answer, once there was one
    pub round_trip: Option<Duration>,
}

/// Opens an edge over `stream`: handshake, then the exchange and check of hellos.
///
/// # Errors
/// [`EdgeError::Handshake`] names what the two ends don't agree on; [`EdgeError::Io`] when the stream fails.
pub async fn open<S>(stream: S, config: EdgeConfig) -> Result<(EdgeSender, EdgeReceiver), EdgeError>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let mut stream = stream;
    let opened = tokio::time::timeout(config.timings.handshake, opening::shake_hands(&mut stream, &config)).await;
    let (sealer, opener) = opened.map_err(|_| HandshakeError::TimedOut)??;
    let link = Arc::new(Link::new(&config));
    let (inbox, frames) = mpsc::unbounded_channel();
    let (read_half, write_half) = tokio::io::split(stream);
    tokio::spawn(reader::run(read_half, opener, Arc::clone(&link), inbox));
    let pen = Arc::new(writer::Pen::new(write_half, sealer, Arc::clone(&link)));
    tokio::spawn(writer::run(Arc::clone(&pen), Arc::clone(&link)));
    Ok((
        EdgeSender {
            link: Arc::clone(&link),
            pen,
        },
        EdgeReceiver { link, frames },
    ))
}

/// Sends frames. Clones send on the same edge.
#[derive(Clone)]
pub struct EdgeSender {
    link: Arc<Link>,
    pen: Arc<dyn writer::Push>,
}

impl std::fmt::Debug for EdgeSender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EdgeSender")
            .field("link", &self.link)
            .finish_non_exhaustive()
    }
}

impl EdgeSender {
    /// Queues a frame. Waits only while as many laps (or, for other frames, as many of those) are queued as the outbox
    /// holds, which means that the peer is slow. Dropping the future before it is done sends nothing.
    ///
    /// # Errors
    /// [`EdgeError::Invalid`] for a frame that breaks the limits; otherwise why the edge ended.
    pub async fn send(&self, frame: Frame) -> Result<(), EdgeError> {
        let outgoing = Outgoing::new(&frame, &self.link.limits).map_err(EdgeError::Invalid)?;
        let room = self
            .link
            .outbox_room
            .of(outgoing.kind())
            .acquire()
            .await
            .map_err(|_| self.link.cause())?;
        // The writer gives the place back once the frame is out.
        room.forget();
        self.link.outbox().pieces.queue(outgoing);
        if !self.pen.push() {
            self.link.work.notify_one();
        }
        Ok(())
    }

    /// Closes the edge. What is queued is still written if the peer takes it within [`CLOSE_GRACE`].
    pub fn close(&self) {
        self.link.close();
    }

    /// What the edge has carried so far.
    pub fn stats(&self) -> EdgeStats {
        self.link.stats()
    }

    /// Waits until the edge has ended, and says why.
    pub async fn ended(&self) -> EdgeError {
        self.link.ended.cancelled().await;
        self.link.cause()
    }
}

/// Receives frames. Dropping it closes the edge.
#[derive(Debug)]
pub struct EdgeReceiver {
    link: Arc<Link>,
    frames: mpsc::UnboundedReceiver<(Frame, OwnedSemaphorePermit)>,
}

impl EdgeReceiver {
    /// The next frame; pings are answered inside and never seen here. Cancel-safe.
    ///
    /// # Errors
    /// Why the edge ended, after the last frame that came whole.
    pub async fn recv(&mut self) -> Result<Frame, EdgeError> {
        match self.frames.recv().await {
            Some((frame, _room)) => Ok(frame),
            None => Err(self.link.cause()),
        }
    }

    /// What the edge has carried so far.
    pub fn stats(&self) -> EdgeStats {
        self.link.stats()
    }
}

impl Drop for EdgeReceiver {
    fn drop(&mut self) {
        self.link.close();
    }
}

/// Places for frames: bulky ones can't take those of others.
#[derive(Debug)]
struct Room {
    laps: Arc<Semaphore>,
    control: Arc<Semaphore>,
}

impl Room {
    fn new(max_laps: u16) -> Room {
        let laps = usize::from(max_laps.max(1));
        Room {
            laps: Arc::new(Semaphore::new(laps)),
            control: Arc::new(Semaphore::new(CONTROL_RESERVE)),
        }
    }

    fn of(&self, kind: Kind) -> &Arc<Semaphore> {
        match kind {
            Kind::Lap | Kind::Tokens => &self.laps,
            _ => &self.control,
        }
    }

    fn close(&self) {
        self.laps.close();
        self.control.close();
    }
}

/// What waits for the writer.
#[derive(Debug, Default)]
struct Outbox {
    pieces: PieceWriter,
    /// the peer's last ping, if it isn't answered yet
    pong: Option<u64>,
    /// this side's last ping, if the peer hasn't answered it yet
    ping: Option<(u64, Instant)>,
}

/// What sender, receiver, reader and writer share.
#[derive(Debug)]
struct Link {
    limits: Limits,
    timings: Timings,
    outbox: Mutex<Outbox>,
    outbox_room: Room,
    inbox_room: Room,
    /// something new in the outbox, or the edge is closing
    work: Notify,
    closing: CancellationToken,
    ended: CancellationToken,
    cause: OnceLock<EdgeError>,
    counters: Counters,
}

#[derive(Debug, Default)]
struct Counters {
    sent_bytes: AtomicU64,
    received_bytes: AtomicU64,
    sent_frames: AtomicU64,
    received_frames: AtomicU64,
    /// in nanoseconds; 0 before the first answer
    round_trip: AtomicU64,
}

impl Link {
    fn new(config: &EdgeConfig) -> Link {
        Link {
            limits: config.limits,
            timings: config.timings,
            outbox: Mutex::default(),
            outbox_room: Room::new(config.max_laps),
            inbox_room: Room::new(config.max_laps),
            work: Notify::new(),
            closing: CancellationToken::new(),
            ended: CancellationToken::new(),
            cause: OnceLock::new(),
            counters: Counters::default(),
        }
    }

    /// Nobody panics with the outbox in hand, and it would still be sound if somebody did.
    fn outbox(&self) -> MutexGuard<'_, Outbox> {
        self.outbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the writer to end the edge once the outbox is empty.
    fn close(&self) {
        self.outbox_room.close();
        self.closing.cancel();
        self.work.notify_one();
    }

    /// Ends the edge; the first cause stays.
    fn end(&self, cause: EdgeError) {
        let _ = self.cause.set(cause);
        self.outbox_room.close();
        self.ended.cancel();
    }

    fn cause(&self) -> EdgeError {
        self.cause.get().cloned().unwrap_or(EdgeError::Closed)
    }

    fn stats(&self) -> EdgeStats {
        let Counters {
            sent_bytes,
            received_bytes,
            sent_frames,
            received_frames,
            round_trip,
        } = &self.counters;
        EdgeStats {
            sent_bytes: sent_bytes.load(Relaxed),
            received_bytes: received_bytes.load(Relaxed),
            sent_frames: sent_frames.load(Relaxed),
            received_frames: received_frames.load(Relaxed),
            round_trip: Some(round_trip.load(Relaxed))
                .filter(|nanos| *nanos > 0)
                .map(Duration::from_nanos),
        }
    }
}
