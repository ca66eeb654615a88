//! Frames cut into pieces, so that urgent frames overtake bulky ones in the middle.
//!
//! A piece is a header and at most [`MAX_PIECE_BYTES`] of a frame. The header is one byte (bits 0–1 the class, bit 2
//! "first", bit 3 "last", the others zero) and, in a first piece, the frame's whole length as a little-endian u32.
//! Within a class frames go one after the other, so at most one frame of each class is under way, its class names it,
//! and a reader never holds more than three unfinished frames.
//!
//! A more urgent class goes first, with one exception: a frame never overtakes one that names the same sequence, it
//! queues up behind it. So what the ring says about a sequence arrives in the order in which it was said.

use std::{cmp::min, collections::VecDeque};

use bytes::Bytes;

use crate::{
    codec::{self, Encoded, FrameError},
    frame::{Frame, Kind, LapKind},
    limits::Limits,
};

/// Bytes of a frame in one piece at most: small enough that an urgent frame doesn't wait long behind one.
pub const MAX_PIECE_BYTES: usize = 32 * 1024;
/// Bytes of a piece at most, its header included.
pub const MAX_PIECE: usize = MAX_PIECE_BYTES + 5;

const CLASS_BITS: u8 = 0b0011;
const FIRST: u8 = 0b0100;
const LAST: u8 = 0b1000;

/// How urgent a frame is, the most urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// all that isn't a lap or comes home from one
    Control = 0,
    /// decode laps, hello laps, sampled tokens
    Decode = 1,
    /// prefill laps
    Prefill = 2,
}

impl Class {
    const COUNT: usize = 3;

    /// How urgent `frame` is.
    pub fn of(frame: &Frame) -> Class {
        match frame {
            Frame::Lap(lap) if lap.kind == LapKind::Prefill => Class::Prefill,
            Frame::Lap(_) | Frame::Tokens(_) => Class::Decode,
            _ => Class::Control,
        }
    }
}

/// Why a piece is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PieceError {
    /// no header, or one with unknown bits
    #[error("a piece has a malformed header")]
    Header,
    /// more than [`MAX_PIECE_BYTES`], or nothing
    #[error("a piece carries {bytes} bytes, not 1 to {MAX_PIECE_BYTES}")]
    Size {
        /// bytes it carries
        bytes: usize,
    },
    /// a frame begins in the middle of another, or goes on without having begun
    #[error("a piece of class {class} is out of order")]
    Order {
        /// its class
        class: u8,
    },
    /// the pieces aren't as long as the first one said
    #[error("a frame of {announced} bytes has {received} when it {}", if *.received > *.announced { "goes on" } else { "ends" })]
    Length {
        /// what the first piece said
        announced: usize,
        /// what came
        received: usize,
    },
    /// the frame itself is refused
    #[error(transparent)]
    Frame(#[from] FrameError),
}

impl PieceError {
    /// Stable `PascalCase` word for metrics, events and conditions.
    pub fn reason(&self) -> &'static str {
        match self {
            PieceError::Frame(error) => error.reason(),
            _ => "MalformedPiece",
        }
    }
}

/// A frame that is ready to be cut.
#[derive(Debug)]
pub struct Outgoing {
    encoded: Encoded,
    class: Class,
    sequences: Vec<u64>,
    sent: usize,
}

impl Outgoing {
    /// Encodes `frame`; a lap's hidden states are shared, not copied.
    ///
    /// # Errors
    /// [`FrameError`] when it breaks the limits.
    pub fn new(frame: &Frame, limits: &Limits) -> Result<Outgoing, FrameError> {
        let sequences = match frame {
            Frame::Lap(lap) => lap.spans.iter().map(|span| span.sequence).collect(),
            Frame::Tokens(tokens) => tokens.sampled.iter().map(|sampled| sampled.sequence).collect(),
            Frame::Close { sequence } | Frame::Truncate { sequence, .. } => vec![*sequence],
            Frame::Fork { parent, child, .. } => vec![*parent, *child],
            _ => Vec::new(),
        };
        Ok(Outgoing {
            encoded: codec::encode(frame, limits)?,
            class: Class::of(frame),
            sequences,
            sent: 0,
        })
    }

    /// What the frame is.
    pub fn kind(&self) -> Kind {
        self.encoded.kind
    }

    fn names_one_of(&self, sequences: &[u64]) -> bool {
        self.sequences.iter().any(|sequence| sequences.contains(sequence))
    }

    /// Appends the next at most `most` bytes of the frame.
    fn take(&mut self, most: usize, out: &mut Vec<u8>) {
        let (head, body) = (&self.encoded.head, &self.encoded.body);
        let end = min(self.sent + most, head.len() + body.len());
        out.extend_from_slice(&head[min(self.sent, head.len())..min(end, head.len())]);
        out.extend_from_slice(&body[self.sent.saturating_sub(head.len())..end.saturating_sub(head.len())]);
        self.sent = end;
    }
}

/// What [`PieceWriter::next_piece`] wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// class that it went in
    pub class: Class,
    /// what frame it is of
    pub kind: Kind,
    /// whether that frame is out with it
    pub last: bool,
}

/// Queues of frames on their way out, one for each class.
#[derive(Debug, Default)]
pub struct PieceWriter {
    queues: [VecDeque<Outgoing>; Class::COUNT],
}

impl PieceWriter {
    /// Queues a frame behind those of its class, and behind whatever names one of its sequences.
    pub fn queue(&mut self, frame: Outgoing) {
        let own = frame.class as usize;
        let behind = (own + 1..Class::COUNT).rev().find(|class| {
            self.queues[*class]
                .iter()
                .any(|queued| queued.names_one_of(&frame.sequences))
        });
        self.queues[behind.unwrap_or(own)].push_back(frame);
    }

    /// Appends the most urgent piece, with at most `most` bytes of a frame (and never more than [`MAX_PIECE_BYTES`]),
    /// to `out`; none when nothing is queued.
    pub fn next_piece(&mut self, most: usize, out: &mut Vec<u8>) -> Option<Piece> {
        let classes = [Class::Control, Class::Decode, Class::Prefill];
        let (class, queue) = classes
            .into_iter()
            .zip(&mut self.queues)
            .find(|(_, queue)| !queue.is_empty())?;
        let frame = queue.front_mut()?;
        let header = out.len();
        out.push(class as u8);
        if frame.sent == 0 {
            out[header] |= FIRST;
            out.extend((frame.encoded.len() as u32).to_le_bytes());
        }
        frame.take(most.clamp(1, MAX_PIECE_BYTES), out);
        let piece = Piece {
            class,
            kind: frame.kind(),
            last: frame.sent == frame.encoded.len(),
        };
        if piece.last {
            out[header] |= LAST;
            queue.pop_front();
        }
        Some(piece)
    }

    /// Whether nothing is queued.
    pub fn is_empty(&self) -> bool {
        self.queues.iter().all(VecDeque::is_empty)
    }
}

/// Puts frames together again.
#[derive(Debug)]
pub struct PieceReader {
    limits: Limits,
    open: [Option<Partial>; Class::COUNT],
}

#[derive(Debug)]
struct Partial {
    announced: usize,
    bytes: Vec<u8>,
}

impl PieceReader {
    /// A reader that refuses what breaks `limits`.
    pub fn new(limits: Limits) -> PieceReader {
        PieceReader {
            limits,
            open: [None, None, None],
        }
    }

    /// Takes one whole piece; the frame, if it was the last of one.
    ///
    /// A frame's buffer is allocated when its first piece comes, after its kind and length were checked.
    ///
    /// # Errors
    /// [`PieceError`]; the stream means nothing from there on.
    pub fn feed(&mut self, piece: &[u8]) -> Result<Option<Frame>, PieceError> {
        let (&header, rest) = piece.split_first().ok_or(PieceError::Header)?;
        let class = header & CLASS_BITS;
        let slot = self.open.get_mut(class as usize).ok_or(PieceError::Header)?;
        if header & !(CLASS_BITS | FIRST | LAST) != 0 {
            return Err(PieceError::Header);
        }
        let payload = if header & FIRST == 0 {
            rest
        } else {
            let (announced, payload) = rest.split_first_chunk::<4>().ok_or(PieceError::Header)?;
            if slot.is_some() {
                return Err(PieceError::Order { class });
            }
            let announced = u32::from_le_bytes(*announced) as usize;
            let limit = self.limits.frame_bytes(codec::kind_of(payload)?);
            if announced > limit {
                let (value, limit) = (announced as u64, limit as u64);
                return Err(FrameError::Limit {
                    what: "frame bytes",
                    value,
                    limit,
                }
                .into());
            }
            *slot = Some(Partial {
                announced,
                bytes: Vec::with_capacity(announced),
            });
            payload
        };
        if payload.is_empty() || payload.len() > MAX_PIECE_BYTES {
            return Err(PieceError::Size { bytes: payload.len() });
        }
        let partial = slot.as_mut().ok_or(PieceError::Order { class })?;
        let received = partial.bytes.len() + payload.len();
        let last = header & LAST != 0;
        if received > partial.announced || last && received < partial.announced {
            return Err(PieceError::Length {
                announced: partial.announced,
                received,
            });
        }
        partial.bytes.extend_from_slice(payload);
        if !last {
            return Ok(None);
        }
        let bytes = slot
            .take()
            .map(|partial| Bytes::from(partial.bytes))
            .unwrap_or_default();
        Ok(Some(codec::decode(bytes, &self.limits)?))
    }

    /// Bytes allocated for frames that aren't whole yet.
    pub fn buffered(&self) -> usize {
        self.open.iter().flatten().map(|partial| partial.bytes.capacity()).sum()
    }
}
