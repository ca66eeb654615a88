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
        Ok(Some(codec::decode(&bytes, &self.limits)?))
    }

    /// Bytes allocated for frames that aren't whole yet.
    pub fn buffered(&self) -> usize {
        self.open.iter().flatten().map(|partial| partial.bytes.capacity()).sum()
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;
    use crate::arbitrary::{decode, frames, limits, prefill};

    const PING: Frame = Frame::Ping { nonce: 1, reply: false };

    fn queue(writer: &mut PieceWriter, frame: &Frame) {
        writer.queue(Outgoing::new(frame, &limits()).unwrap());
    }

    /// Takes `pieces` pieces at most, and the frames that are whole then.
    fn carry(writer: &mut PieceWriter, reader: &mut PieceReader, pieces: usize) -> Vec<Frame> {
        let mut piece = Vec::new();
        let mut arrived = Vec::new();
        for _ in 0..pieces {
            piece.clear();
            let Some(written) = writer.next_piece(MAX_PIECE_BYTES, &mut piece) else {
                break;
            };
            let frame = reader.feed(&piece).unwrap();
            assert_eq!(written.last, frame.is_some());
            arrived.extend(frame);
        }
        arrived
    }

    #[test]
    fn a_decode_lap_overtakes_a_prefill_lap_of_four_mebibytes() {
        let wide = Limits {
            max_lap_tokens: 16 * 1024,
            max_prompt: 16 * 1024,
            ..limits()
        };
        let (mut writer, mut reader) = (PieceWriter::default(), PieceReader::new(wide));
        let long = prefill(1, 1, 16 * 1024);
        writer.queue(Outgoing::new(&long, &wide).unwrap());
        assert_eq!(carry(&mut writer, &mut reader, 40), []);
        queue(&mut writer, &decode(2, 2));
        queue(&mut writer, &PING);
        // 40 pieces of the 129 are out; the next two are the urgent frames, whole.
        assert_eq!(carry(&mut writer, &mut reader, 2), [PING, decode(2, 2)]);
        assert_eq!(carry(&mut writer, &mut reader, 88), []);
        assert_eq!(carry(&mut writer, &mut reader, 1), [long]);
        assert!(writer.is_empty());
    }

    #[test]
    fn within_a_class_frames_keep_their_order() {
        let (mut writer, mut reader) = (PieceWriter::default(), PieceReader::new(limits()));
        let laps = [prefill(1, 1, 500), prefill(2, 2, 1), prefill(3, 3, 700)];
        for lap in &laps {
            queue(&mut writer, lap);
        }
        assert_eq!(carry(&mut writer, &mut reader, usize::MAX), laps);
    }

    #[test]
    fn a_frame_never_overtakes_one_of_its_sequence() {
        let (mut writer, mut reader) = (PieceWriter::default(), PieceReader::new(limits()));
        let fork = Frame::Fork {
            parent: 1,
            child: 7,
            length: 5,
        };
        let said = [
            prefill(1, 1, 500),
            decode(2, 2),
            fork,
            Frame::Close { sequence: 7 },
            Frame::Close { sequence: 2 },
        ];
        for frame in &said {
            queue(&mut writer, frame);
        }
        queue(&mut writer, &Frame::Close { sequence: 3 });
        let [long, short, fork, close_child, close_short] = said;
        let expected = [
            Frame::Close { sequence: 3 },
            short,
            close_short,
            long,
            fork,
            close_child,
        ];
        assert_eq!(carry(&mut writer, &mut reader, usize::MAX), expected);
    }

    #[test]
    fn a_piece_is_never_longer_than_asked_for() {
        let mut writer = PieceWriter::default();
        queue(&mut writer, &prefill(1, 1, 500));
        for (most, expected) in [(1024, 1024), (0, 1), (usize::MAX, MAX_PIECE_BYTES)] {
            let mut piece = Vec::new();
            let header = if most == 1024 { 5 } else { 1 };
            writer.next_piece(most, &mut piece).unwrap();
            assert_eq!(piece.len() - header, expected);
        }
    }

    proptest! {
        #[test]
        fn whatever_is_queued_whenever_arrives_whole(
            frames in vec((frames(limits()), 0_usize..20, 1_usize..40_000), 0..8)
        ) {
            let (mut writer, mut reader) = (PieceWriter::default(), PieceReader::new(limits()));
            let mut arrived = Vec::new();
            for (frame, pieces, _) in &frames {
                queue(&mut writer, frame);
                arrived.extend(carry(&mut writer, &mut reader, *pieces));
            }
            arrived.extend(carry(&mut writer, &mut reader, usize::MAX));
            prop_assert_eq!(arrived.len(), frames.len());
            prop_assert!(frames.iter().all(|(frame, ..)| arrived.contains(frame)));
            prop_assert_eq!(reader.buffered(), 0);
        }

        #[test]
        fn arbitrary_pieces_never_panic_and_never_hold_more_than_a_frame_of_each_class(
            pieces in vec((0_u8..16, 0_u32..2_000_000, 0_u8..13, vec(any::<u8>(), 0..64)), 0..40)
        ) {
            let limits = limits();
            let most = Kind::ALL.map(|kind| limits.frame_bytes(kind)).into_iter().max().unwrap();
            let mut reader = PieceReader::new(limits);
            for (header, announced, kind, rest) in pieces {
                let first = if header & FIRST == 0 { Vec::new() } else { announced.to_le_bytes().to_vec() };
                let _ = reader.feed(&[&[header][..], &first, &[kind], &rest].concat());
                prop_assert!(reader.buffered() <= Class::COUNT * most);
            }
        }
    }

    #[test]
    fn pieces_that_break_the_rules_are_refused_by_name() {
        let limits = limits();
        let feed = |pieces: &[&[u8]]| {
            let mut reader = PieceReader::new(limits);
            let (last, before) = pieces.split_last().unwrap();
            for piece in before {
                assert_eq!(reader.feed(piece), Ok(None));
            }
            reader.feed(last).unwrap_err()
        };
        let ping = Kind::Ping as u8;
        assert_eq!(feed(&[&[]]), PieceError::Header);
        assert_eq!(feed(&[&[3, 0]]), PieceError::Header);
        assert_eq!(feed(&[&[0x10, 0]]), PieceError::Header);
        assert_eq!(feed(&[&[FIRST, 9, 0, 0]]), PieceError::Header);
        assert_eq!(feed(&[&[LAST, 0]]), PieceError::Order { class: 0 });
        assert_eq!(
            feed(&[&[FIRST, 9, 0, 0, 0, ping], &[FIRST, 9, 0, 0, 0, ping]]),
            PieceError::Order { class: 0 }
        );
        assert_eq!(feed(&[&[FIRST, 9, 0, 0, 0, ping], &[0]]), PieceError::Size { bytes: 0 });
        assert_eq!(
            feed(&[&[FIRST | LAST, 9, 0, 0, 0, ping]]),
            PieceError::Length {
                announced: 9,
                received: 1
            }
        );
        assert_eq!(
            feed(&[&[FIRST, 1, 0, 0, 0, ping, 0]]),
            PieceError::Length {
                announced: 1,
                received: 2
            }
        );
        let unknown = FrameError::UnknownKind { number: 99 };
        assert_eq!(feed(&[&[FIRST, 255, 255, 255, 255, 99]]), PieceError::Frame(unknown));
        let large = vec![0; MAX_PIECE_BYTES + 1];
        let piece = [&[FIRST, 0, 0, 2, 0, Kind::Lap as u8][..], &large].concat();
        assert_eq!(
            feed(&[&piece]),
            PieceError::Size {
                bytes: MAX_PIECE_BYTES + 2
            }
        );
    }

    #[test]
    fn c3_a_frame_over_the_limit_is_refused_with_both_numbers_before_it_is_allocated() {
        let mut reader = PieceReader::new(limits());
        let announced = [FIRST, 0, 0, 0, 64, Kind::Lap as u8];
        let error = reader.feed(&announced).unwrap_err();
        let limit = limits().frame_bytes(Kind::Lap) as u64;
        assert_eq!(
            error,
            FrameError::Limit {
                what: "frame bytes",
                value: 64 << 24,
                limit
            }
            .into()
        );
        assert_eq!(
            error.to_string(),
            format!("frame bytes: 1073741824 where the ring's manifest allows {limit}")
        );
        assert_eq!(reader.buffered(), 0);
    }
}
