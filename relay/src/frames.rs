//! The relay's half of the WebSocket protocol, sans-IO: a leg's masked frames become frames for the other leg, in place.
//!
//! A chunk of what a leg sent is turned into what the other leg gets within the very same memory: the new frames are
//! unmasked and have shorter headers, so they never catch up with what is still to be read. Payload goes on as it comes,
//! without waiting for its frame's end: each chunk is a message of its own. So a leg needs no memory but for a header or a
//! control frame that was cut, and a frame's announced length costs nothing. A long payload stays where it lies, since
//! moving it would cost as much as unmasking it: what goes on is then several stretches of the memory.

use std::ops::Range;

use kvasir_wire::leg::Close;

/// Bytes that a chunk leaves free in front, for the header of a payload that was begun in an earlier chunk.
pub(crate) const HEADROOM: usize = 10;
/// Bytes that are read at a time: fewer turns for a fast edge, and still little for one that is stuck.
pub(crate) const MAX_CHUNK: usize = 256 * 1024;

/// A payload of this many bytes begins a stretch of its own; a shorter one is moved up to the frame before it.
const LONG: usize = 4096;
/// Stretches that a chunk is turned into at most.
pub(crate) const MAX_STRETCHES: usize = MAX_CHUNK / LONG + 1;

/// Bytes of a control frame's payload at most.
const MAX_CONTROL: usize = 125;
/// Header of a control frame: two bytes and the mask.
const CONTROL_HEADER: usize = 6;

const FINAL: u8 = 0x80;
const MASKED: u8 = 0x80;
const CONTINUATION: u8 = 0x0;
const BINARY: u8 = 0x2;
const CLOSE: u8 = 0x8;
const PING: u8 = 0x9;
const PONG: u8 = 0xA;

/// How a leg's stream of frames ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// it sent a close frame
    Closed,
    /// it broke the rules
    Broken(Close),
}

/// Reads one leg's frames.
#[derive(Debug)]
pub(crate) struct Decoder {
    /// bytes of the payload under way that are still to come
    left: u64,
    /// its mask, turned so that the next byte meets the first one
    mask: [u8; 4],
    /// bytes of the message so far, none between two messages
    message: Option<u64>,
    /// the frame under way is its message's last
    last: bool,
    /// a header or a control frame that didn't come whole
    held: Vec<u8>,
    limit: u64,
    ping: Option<Vec<u8>>,
    ended: Option<Ended>,
}

impl Decoder {
    /// Reads messages of at most `limit` bytes.
    pub(crate) fn new(limit: usize) -> Decoder {
        Decoder {
            left: 0,
            mask: [0; 4],
            message: None,
            last: true,
            held: Vec::new(),
            limit: limit as u64,
            ping: None,
            ended: None,
        }
    }

    /// The payload of the latest ping that wasn't answered yet.
    pub(crate) fn take_ping(&mut self) -> Option<Vec<u8>> {
        self.ping.take()
    }

    /// How the stream ended, once it has.
    pub(crate) fn ended(&self) -> Option<Ended> {
        self.ended
    }

    /// Turns the bytes of `buffer` in `filled`, which begins at [`HEADROOM`] or later, into frames for the other leg, and
    /// says where in `buffer` they are: in these stretches, one after the other, at most [`MAX_STRETCHES`].
    pub(crate) fn forward(&mut self, buffer: &mut [u8], filled: Range<usize>, stretches: &mut Vec<Range<usize>>) {
        stretches.clear();
        self.each_payload(buffer, filled, |buffer, payload| {
            let mut header = [0; HEADROOM];
            let header = data_header(payload.len(), &mut header);
            if let Some(frames) = stretches.last_mut()
                && payload.len() < LONG
            {
                let start = frames.end + header.len();
                buffer.copy_within(payload.clone(), start);
                buffer[frames.end..start].copy_from_slice(header);
                frames.end = start + payload.len();
            } else {
                // In front of it lies its old header, which was longer, or the headroom.
                let start = payload.start - header.len();
                buffer[start..payload.start].copy_from_slice(header);
                stretches.push(start..payload.end);
            }
        });
    }

    /// Appends the payload of the frames in `buffer` to `payloads`, without frames around it.
    pub(crate) fn collect(&mut self, buffer: &mut [u8], payloads: &mut Vec<u8>) {
        let filled = 0..buffer.len();
        self.each_payload(buffer, filled, |buffer, payload| {
            payloads.extend_from_slice(&buffer[payload]);
        });
    }

    /// Unmasks what is payload in `buffer[filled]`, and shows each stretch of it.
    fn each_payload(&mut self, buffer: &mut [u8], filled: Range<usize>, mut show: impl FnMut(&mut [u8], Range<usize>)) {
        let mut at = filled.start;
        while at < filled.end && self.ended.is_none() {
            if self.left > 0 {
                let here = (filled.end - at).min(usize::try_from(self.left).unwrap_or(usize::MAX));
                unmask(&mut buffer[at..at + here], self.mask);
                self.mask.rotate_left(here % 4);
                self.left -= here as u64;
                self.end_of_frame();
                show(buffer, at..at + here);
                at += here;
            } else {
                at += self.head(&buffer[at..filled.end]);
            }
        }
    }

    /// Takes as much of `bytes` as belongs to one header, or to one whole control frame; says how much that was.
    fn head(&mut self, bytes: &[u8]) -> usize {
        if self.held.is_empty() {
            match self.frame(bytes) {
                Some(length) => return length,
                None => self.held.extend_from_slice(bytes),
            }
            return bytes.len();
        }
        // A header that was cut: byte by byte until it is whole.
        let mut held = std::mem::take(&mut self.held);
        for (taken, byte) in bytes.iter().enumerate() {
            held.push(*byte);
            if self.frame(&held).is_some() {
                return taken + 1;
            }
        }
        self.held = held;
        bytes.len()
    }

    /// Reads a data frame's header or a whole control frame off the front of `bytes`; says how long it is, or none when
    /// more must come.
    fn frame(&mut self, bytes: &[u8]) -> Option<usize> {
        let [first, second, ..] = *bytes else { return None };
        let (opcode, last) = (first & 0x0F, first & FINAL != 0);
        if first & 0x70 != 0 || second & MASKED == 0 {
            return Some(self.broken(Close::Malformed));
        }
        let short = usize::from(second & 0x7F);
        if opcode & 0x8 != 0 {
            if !last || short > MAX_CONTROL || !matches!(opcode, CLOSE | PING | PONG) {
                return Some(self.broken(Close::Malformed));
            }
            let whole = bytes.get(..CONTROL_HEADER + short)?;
            match opcode {
                CLOSE => self.ended = Some(Ended::Closed),
                PING => {
                    let mut payload = whole[CONTROL_HEADER..].to_vec();
                    unmask(&mut payload, [whole[2], whole[3], whole[4], whole[5]]);
                    self.ping = Some(payload);
                }
                _ => {}
            }
            return Some(whole.len());
        }
        let (length, header) = match short {
            126 => (u64::from(u16::from_be_bytes(bytes.get(2..4)?.try_into().ok()?)), 4),
            127 => (u64::from_be_bytes(bytes.get(2..10)?.try_into().ok()?), 10),
            _ => (short as u64, 2),
        };
        let before = match (opcode, self.message) {
            (BINARY, None) => 0,
            (CONTINUATION, Some(before)) => before,
            _ => return Some(self.broken(Close::Malformed)),
        };
        let size = before.saturating_add(length);
        if size > self.limit {
            let limit = self.limit;
            return Some(self.broken(Close::TooLarge { size, limit }));
        }
        self.mask = bytes.get(header..header + 4)?.try_into().ok()?;
        self.message = Some(size);
        self.left = length;
        self.last = last;
        self.end_of_frame();
        Some(header + 4)
    }

    fn end_of_frame(&mut self) {
        if self.left == 0 && self.last {
            self.message = None;
        }
    }

    fn broken(&mut self, close: Close) -> usize {
        self.ended = Some(Ended::Broken(close));
        0
    }
}

/// XORs the mask over `bytes`, eight at a time.
fn unmask(bytes: &mut [u8], mask: [u8; 4]) {
    let [a, b, c, d] = mask;
    let wide = u64::from_ne_bytes([a, b, c, d, a, b, c, d]);
    let (words, rest) = bytes.as_chunks_mut::<8>();
    for word in words {
        *word = (u64::from_ne_bytes(*word) ^ wide).to_ne_bytes();
    }
    for (byte, mask) in rest.iter_mut().zip(mask.into_iter().cycle()) {
        *byte ^= mask;
    }
}

/// Header of a binary message of `length` bytes, without a mask: never longer than that of a masked one less four.
fn data_header(length: usize, header: &mut [u8; HEADROOM]) -> &[u8] {
    header[0] = FINAL | BINARY;
    match length {
        0..126 => {
            header[1] = length as u8;
            &header[..2]
        }
        126..0x1_0000 => {
            header[1] = 126;
            header[2..4].copy_from_slice(&(length as u16).to_be_bytes());
            &header[..4]
        }
        _ => {
            header[1] = 127;
            header[2..].copy_from_slice(&(length as u64).to_be_bytes());
            header
        }
    }
}

/// Appends `payload`, in messages of at most [`MAX_CHUNK`].
pub(crate) fn put_data(payload: &[u8], out: &mut Vec<u8>) {
    for part in payload.chunks(MAX_CHUNK) {
        out.extend_from_slice(data_header(part.len(), &mut [0; HEADROOM]));
        out.extend_from_slice(part);
    }
}

/// Appends a ping without payload.
pub(crate) fn put_ping(out: &mut Vec<u8>) {
    out.extend([FINAL | PING, 0]);
}

/// Appends the answer to a ping with `payload`.
pub(crate) fn put_pong(payload: &[u8], out: &mut Vec<u8>) {
    out.extend([FINAL | PONG, payload.len() as u8]);
    out.extend_from_slice(payload);
}

/// Appends a close frame.
pub(crate) fn put_close(close: Close, out: &mut Vec<u8>) {
    let text = close.text();
    out.extend([FINAL | CLOSE, 2 + text.len() as u8]);
    out.extend(close.code().to_be_bytes());
    out.extend(text.as_bytes());
}

/// Appends a close frame that answers a close.
pub(crate) fn put_goodbye(out: &mut Vec<u8>) {
    out.extend([FINAL | CLOSE, 0]);
}

#[cfg(test)]
#[path = "frames_tests.rs"]
mod tests;
