//! Frames to bytes and back, within the ring's [`Limits`].
//!
//! A frame is its kind byte ([`Kind`]) and a body. Integers and floats are little-endian; `text` is a u32 length and
//! UTF-8; `list` is a u32 count and its items.
//!
//! | kind | body |
//! | --- | --- |
//! | hello | version u16, ring text, epoch u64, rank u32, identity text, embedding length u32, boundary type u8 (0 `F32`, 1 `Bf16`, 2 `Q8_0`) |
//! | lap | lap kind u8 (0 hello, 1 prefill, 2 decode), id u64, compute µs u32, list of spans (sequence u64, position u32, count u32), hidden states to the end |
//! | tokens | lap u64, compute µs u32, list of sampled (sequence u64, position u32, token i32, logprob f32, list of top (token i32, logprob f32), u32 length and logits, error text) |
//! | open | sequence u64, list of prompt i32, temperature f32, top k u32, top p f32, min p f32, repetition, presence and frequency penalty f32, penalty last u32, seed u64, top logprobs (u8 0; or 1 and u8), logits u8, list of bias (token i32, f32), grammar (u8 0; 1 and GBNF text; 2 and JSON schema text) |
//! | close | sequence u64 |
//! | fork | parent u64, child u64, length u32 |
//! | truncate | sequence u64, length u32 |
//! | report | list of (sequence u64, positions u32) |
//! | replay | sequence u64, position u32 |
//! | drain | nothing |
//! | ping | nonce u64, reply u8 |
//!
//! Both ways check the same limits, so that a frame which was encoded is never refused. Nothing may follow a body.

use bytes::{Buf, Bytes};
use kvasir_plan::BoundaryType;

use crate::{
    boundary::BoundaryError,
    frame::{Frame, Grammar, Hello, Kind, Lap, LapKind, Open, Sampled, Sampling, Span, Tokens, VERSION},
    limits::{Limits, MAX_ERROR_BYTES, MAX_GRAMMAR_BYTES, MAX_LOGIT_BIASES, MAX_NAME_BYTES, MAX_TOP},
};

/// Why a frame is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// the peer speaks another version
    #[error("the peer speaks version {theirs} of the protocol and this stage {ours}: upgrade the older of the two")]
    Version {
        /// version in its hello
        theirs: u16,
        /// [`VERSION`]
        ours: u16,
    },
    /// a kind that this version doesn't know
    #[error("unknown frame kind {number}: the peer is newer than this stage, upgrade it")]
    UnknownKind {
        /// kind byte
        number: u8,
    },
    /// a choice that this version doesn't know
    #[error("unknown {what} {number}")]
    UnknownChoice {
        /// which field
        what: &'static str,
        /// its value
        number: u8,
    },
    /// the body ended early
    #[error("a {kind:?} frame is cut short in its {what}")]
    Short {
        /// kind of the frame
        kind: Kind,
        /// field that is missing bytes
        what: &'static str,
    },
    /// the body goes on where it should end
    #[error("a {kind:?} frame has {bytes} bytes too many")]
    Trailing {
        /// kind of the frame
        kind: Kind,
        /// bytes left over
        bytes: usize,
    },
    /// a length past the ring's limits
    #[error("{what}: {value} where the ring's manifest allows {limit}")]
    Limit {
        /// which length
        what: &'static str,
        /// its value
        value: u64,
        /// the most that is allowed
        limit: u64,
    },
    /// a lap whose parts don't fit together
    #[error("lap {id} is malformed: {what}")]
    Lap {
        /// the lap's number
        id: u64,
        /// what is wrong
        what: &'static str,
    },
    /// a lap whose hidden states aren't its rows
    #[error("lap {id} has {rows} rows, which take {expected} bytes, and carries {bytes}")]
    Hidden {
        /// the lap's number
        id: u64,
        /// rows of its spans
        rows: u64,
        /// bytes that they take
        expected: u64,
        /// bytes it carries
        bytes: usize,
    },
    /// text that isn't UTF-8
    #[error("{what} is not UTF-8")]
    Utf8 {
        /// which text
        what: &'static str,
    },
    /// the ring's boundary type and embedding length don't fit together
    #[error("the ring's boundary can't travel")]
    Boundary(#[from] BoundaryError),
}

impl FrameError {
    /// Stable `PascalCase` word for metrics, events and conditions.
    pub fn reason(&self) -> &'static str {
        match self {
            FrameError::Version { .. } => "UnsupportedVersion",
            FrameError::UnknownKind { .. } => "UnknownFrame",
            FrameError::Limit { .. } => "FrameTooLarge",
            FrameError::UnknownChoice { .. }
            | FrameError::Short { .. }
            | FrameError::Trailing { .. }
            | FrameError::Lap { .. }
            | FrameError::Hidden { .. }
            | FrameError::Utf8 { .. } => "MalformedFrame",
            FrameError::Boundary(error) => error.reason(),
        }
    }
}

/// A frame's bytes: `head` and then `body`, which a lap shares with its hidden states instead of copying them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoded {
    /// what the frame is
    pub kind: Kind,
    /// kind byte and fields
    pub head: Bytes,
    /// a lap's hidden states; empty otherwise
    pub body: Bytes,
}

impl Encoded {
    /// Bytes of the whole frame.
    pub fn len(&self) -> usize {
        self.head.len() + self.body.len()
    }

    /// Never: a frame has a kind byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The whole frame in one buffer.
    pub fn to_bytes(&self) -> Bytes {
        if self.body.is_empty() {
            self.head.clone()
        } else {
            [&self.head[..], &self.body[..]].concat().into()
        }
    }
}

/// The frame as bytes.
///
/// # Errors
/// [`FrameError`] when it breaks the limits, which the peer would refuse.
pub fn encode(frame: &Frame, limits: &Limits) -> Result<Encoded, FrameError> {
    check(frame, limits)?;
    let kind = frame.kind();
    let mut out = Writer(vec![kind as u8]);
    let mut body = Bytes::new();
    match frame {
        Frame::Hello(hello) => {
            out.u16(hello.version);
            out.text(&hello.ring);
            out.u64(hello.epoch);
            out.u32(hello.rank);
            out.text(&hello.identity);
            out.u32(hello.embedding_length);
            out.u8(boundary_number(hello.boundary_type));
        }
        Frame::Lap(lap) => {
            out.u8(lap_number(lap.kind));
            out.u64(lap.id);
            out.u32(lap.compute_us);
            out.list(&lap.spans, |out, span| {
                out.u64(span.sequence);
                out.u32(span.position);
                out.u32(span.count);
            });
            body = lap.hidden.clone();
        }
        Frame::Tokens(tokens) => {
            out.u64(tokens.lap);
            out.u32(tokens.compute_us);
            out.list(&tokens.sampled, Writer::sampled);
        }
        Frame::Open(open) => {
            out.u64(open.sequence);
            out.list(&open.prompt, |out, token| out.i32(*token));
            out.sampling(&open.sampling);
        }
        Frame::Close { sequence } => out.u64(*sequence),
        Frame::Fork { parent, child, length } => {
            out.u64(*parent);
            out.u64(*child);
            out.u32(*length);
        }
        Frame::Truncate {
            sequence,
            length: position,
        }
        | Frame::Replay { sequence, position } => {
            out.u64(*sequence);
            out.u32(*position);
        }
        Frame::Report { computed } => out.list(computed, |out, (sequence, positions)| {
            out.u64(*sequence);
            out.u32(*positions);
        }),
        Frame::Drain => {}
        Frame::Ping { nonce, reply } => {
            out.u64(*nonce);
            out.u8(u8::from(*reply));
        }
    }
    Ok(Encoded {
        kind,
        head: out.0.into(),
        body,
    })
}

/// Reads one whole frame; a lap's hidden states and a token's logits share `bytes`.
///
/// # Errors
/// [`FrameError`] when the bytes aren't exactly one frame within the limits. No count is allocated for before it was
/// checked against the limits and against the bytes that are there.
pub fn decode(bytes: Bytes, limits: &Limits) -> Result<Frame, FrameError> {
    let kind = kind_of(&bytes)?;
    limit("frame bytes", bytes.len(), limits.frame_bytes(kind))?;
    let mut from = Reader { kind, bytes };
    from.bytes.advance(1);
    let frame = match kind {
        Kind::Hello => Frame::Hello(from.hello()?),
        Kind::Lap => Frame::Lap(from.lap(limits)?),
        Kind::Tokens => Frame::Tokens(from.tokens(limits)?),
        Kind::Open => Frame::Open(from.open(limits)?),
        Kind::Close => Frame::Close {
            sequence: from.u64("sequence")?,
        },
        Kind::Fork => Frame::Fork {
            parent: from.u64("parent")?,
            child: from.u64("child")?,
            length: from.u32("length")?,
        },
        Kind::Truncate => Frame::Truncate {
            sequence: from.u64("sequence")?,
            length: from.u32("length")?,
        },
        Kind::Report => Frame::Report {
            computed: from.list("report", limits.max_report(), 12, |from| {
                Ok((from.u64("sequence")?, from.u32("positions")?))
            })?,
        },
        Kind::Replay => Frame::Replay {
            sequence: from.u64("sequence")?,
            position: from.u32("position")?,
        },
        Kind::Drain => Frame::Drain,
        Kind::Ping => Frame::Ping {
            nonce: from.u64("nonce")?,
            reply: from.flag("reply")?,
        },
    };
    if from.bytes.has_remaining() {
        return Err(FrameError::Trailing {
            kind,
            bytes: from.bytes.len(),
        });
    }
    check(&frame, limits)?;
    Ok(frame)
}

/// The kind of the frame that begins with these bytes.
///
/// # Errors
/// [`FrameError::UnknownKind`] with its number; an empty slice counts as kind 0, which there never is.
pub fn kind_of(bytes: &[u8]) -> Result<Kind, FrameError> {
    let number = bytes.first().copied().unwrap_or(0);
    Kind::from_number(number).ok_or(FrameError::UnknownKind { number })
}

fn limit(what: &'static str, value: usize, limit: usize) -> Result<(), FrameError> {
    if value <= limit {
        Ok(())
    } else {
        Err(FrameError::Limit {
            what,
            value: value as u64,
            limit: limit as u64,
        })
    }
}

/// What holds for a frame on either side of the wire.
fn check(frame: &Frame, limits: &Limits) -> Result<(), FrameError> {
    match frame {
        Frame::Hello(hello) => {
            if hello.version != VERSION {
                return Err(FrameError::Version {
                    theirs: hello.version,
                    ours: VERSION,
                });
            }
            limit("bytes of the ring's name", hello.ring.len(), MAX_NAME_BYTES)?;
            limit("bytes of the model's identity", hello.identity.len(), MAX_NAME_BYTES)
        }
        Frame::Lap(lap) => check_lap(lap, limits),
        Frame::Tokens(tokens) => {
            limit("sampled tokens", tokens.sampled.len(), limits.sequences as usize)?;
            for sampled in &tokens.sampled {
                limit("likeliest tokens", sampled.top.len(), MAX_TOP)?;
                limit("bytes of a sampler's error", sampled.error.len(), MAX_ERROR_BYTES)?;
                limit("bytes of logits", sampled.logits.len(), limits.logits_bytes())?;
            }
            Ok(())
        }
        Frame::Open(open) => {
            limit("prompt tokens", open.prompt.len(), limits.max_prompt as usize)?;
            limit("biased tokens", open.sampling.logit_bias.len(), MAX_LOGIT_BIASES)?;
            match &open.sampling.grammar {
                Some(Grammar::Gbnf(text) | Grammar::JsonSchema(text)) => {
                    limit("bytes of a grammar", text.len(), MAX_GRAMMAR_BYTES)
                }
                None => Ok(()),
            }
        }
        Frame::Report { computed } => limit("report", computed.len(), limits.max_report()),
        Frame::Close { .. }
        | Frame::Fork { .. }
        | Frame::Truncate { .. }
        | Frame::Replay { .. }
        | Frame::Drain
        | Frame::Ping { .. } => Ok(()),
    }
}

fn check_lap(lap: &Lap, limits: &Limits) -> Result<(), FrameError> {
    let malformed = |what| Err(FrameError::Lap { id: lap.id, what });
    limit("spans of a lap", lap.spans.len(), limits.max_spans())?;
    let mut rows = 0_u64;
    for span in &lap.spans {
        if span.count == 0 {
            return malformed("a span without rows");
        }
        let end = u64::from(span.position) + u64::from(span.count);
        limit("positions of a sequence", end as usize, limits.max_prompt as usize)?;
        rows += u64::from(span.count);
    }
    limit("rows of a lap", rows as usize, limits.max_lap_tokens as usize)?;
    match (lap.kind, lap.spans.as_slice()) {
        (LapKind::Hello, []) | (LapKind::Prefill, [_]) => {}
        (LapKind::Hello, _) => return malformed("a hello lap with rows"),
        (LapKind::Prefill, _) => return malformed("a prefill lap is a chunk of exactly one sequence"),
        (LapKind::Decode, []) => return malformed("a decode lap without rows"),
        (LapKind::Decode, [first, rest @ ..]) => {
            if rest.iter().any(|span| span.count != first.count) {
                return malformed("a decode lap holds the same number of rows of each sequence");
            }
        }
    }
    let expected = rows * limits.row_bytes()? as u64;
    if lap.hidden.len() as u64 != expected {
        return Err(FrameError::Hidden {
            id: lap.id,
            rows,
            expected,
            bytes: lap.hidden.len(),
        });
    }
    Ok(())
}

fn boundary_number(boundary_type: BoundaryType) -> u8 {
    match boundary_type {
        BoundaryType::F32 => 0,
        BoundaryType::Bf16 => 1,
        BoundaryType::Q8_0 => 2,
    }
}

fn lap_number(kind: LapKind) -> u8 {
    match kind {
        LapKind::Hello => 0,
        LapKind::Prefill => 1,
        LapKind::Decode => 2,
    }
}

struct Writer(Vec<u8>);

impl Writer {
    fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    fn u16(&mut self, value: u16) {
        self.0.extend(value.to_le_bytes());
    }

    fn u32(&mut self, value: u32) {
        self.0.extend(value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.0.extend(value.to_le_bytes());
    }

    fn i32(&mut self, value: i32) {
        self.0.extend(value.to_le_bytes());
    }

    fn f32(&mut self, value: f32) {
        self.0.extend(value.to_le_bytes());
    }

    fn blob(&mut self, bytes: &[u8]) {
        self.u32(bytes.len() as u32);
        self.0.extend(bytes);
    }

    fn text(&mut self, text: &str) {
        self.blob(text.as_bytes());
    }

    fn list<T>(&mut self, items: &[T], mut write: impl FnMut(&mut Writer, &T)) {
        self.u32(items.len() as u32);
        for item in items {
            write(self, item);
        }
    }

    fn scored(&mut self, (token, value): &(i32, f32)) {
        self.i32(*token);
        self.f32(*value);
    }

    fn sampled(&mut self, sampled: &Sampled) {
        self.u64(sampled.sequence);
        self.u32(sampled.position);
        self.i32(sampled.token);
        self.f32(sampled.logprob);
        self.list(&sampled.top, Writer::scored);
        self.blob(&sampled.logits);
        self.text(&sampled.error);
    }

    fn sampling(&mut self, sampling: &Sampling) {
        self.f32(sampling.temperature);
        self.u32(sampling.top_k);
        self.f32(sampling.top_p);
        self.f32(sampling.min_p);
        self.f32(sampling.repetition_penalty);
        self.f32(sampling.presence_penalty);
        self.f32(sampling.frequency_penalty);
        self.u32(sampling.penalty_last);
        self.u64(sampling.seed);
        match sampling.top_logprobs {
            None => self.u8(0),
            Some(count) => {
                self.u8(1);
                self.u8(count);
            }
        }
        self.u8(u8::from(sampling.logits));
        self.list(&sampling.logit_bias, Writer::scored);
        match &sampling.grammar {
            None => self.u8(0),
            Some(Grammar::Gbnf(text)) => {
                self.u8(1);
                self.text(text);
            }
            Some(Grammar::JsonSchema(text)) => {
                self.u8(2);
                self.text(text);
            }
        }
    }
}

struct Reader {
    kind: Kind,
    bytes: Bytes,
}

impl Reader {
    fn take<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], FrameError> {
        let taken = *self
            .bytes
            .first_chunk::<N>()
            .ok_or(FrameError::Short { kind: self.kind, what })?;
        self.bytes.advance(N);
        Ok(taken)
    }

    fn u8(&mut self, what: &'static str) -> Result<u8, FrameError> {
        Ok(self.take::<1>(what)?[0])
    }

    fn u16(&mut self, what: &'static str) -> Result<u16, FrameError> {
        self.take(what).map(u16::from_le_bytes)
    }

    fn u32(&mut self, what: &'static str) -> Result<u32, FrameError> {
        self.take(what).map(u32::from_le_bytes)
    }

    fn u64(&mut self, what: &'static str) -> Result<u64, FrameError> {
        self.take(what).map(u64::from_le_bytes)
    }

    fn i32(&mut self, what: &'static str) -> Result<i32, FrameError> {
        self.take(what).map(i32::from_le_bytes)
    }

    fn f32(&mut self, what: &'static str) -> Result<f32, FrameError> {
        self.take(what).map(f32::from_le_bytes)
    }

    fn flag(&mut self, what: &'static str) -> Result<bool, FrameError> {
        match self.u8(what)? {
            0 => Ok(false),
            1 => Ok(true),
            number => Err(FrameError::UnknownChoice { what, number }),
        }
    }

    fn blob(&mut self, what: &'static str, most: usize) -> Result<Bytes, FrameError> {
        let length = self.u32(what)? as usize;
        limit(what, length, most)?;
        if length > self.bytes.len() {
            return Err(FrameError::Short { kind: self.kind, what });
        }
        Ok(self.bytes.split_to(length))
    }

    fn text(&mut self, what: &'static str, most: usize) -> Result<String, FrameError> {
        let bytes = self.blob(what, most)?;
        str::from_utf8(&bytes)
            .map(str::to_owned)
            .map_err(|_| FrameError::Utf8 { what })
    }

    /// At most `most` items of at least `least_bytes` each.
    fn list<T>(
        &mut self,
        what: &'static str,
        most: usize,
        least_bytes: usize,
        mut read: impl FnMut(&mut Reader) -> Result<T, FrameError>,
    ) -> Result<Vec<T>, FrameError> {
        let count = self.u32(what)? as usize;
        limit(what, count, most)?;
        if count > self.bytes.len() / least_bytes {
            return Err(FrameError::Short { kind: self.kind, what });
        }
        let mut items = Vec::with_capacity(count);
        for _ in 0..count {
            items.push(read(self)?);
        }
        Ok(items)
    }

    fn scored(&mut self) -> Result<(i32, f32), FrameError> {
        Ok((self.i32("token")?, self.f32("score")?))
    }

    fn hello(&mut self) -> Result<Hello, FrameError> {
        // Another version may lay out the rest differently, so it is refused before that is read.
        let version = self.u16("version")?;
        if version != VERSION {
            return Err(FrameError::Version {
                theirs: version,
                ours: VERSION,
            });
        }
        Ok(Hello {
            version,
            ring: self.text("ring", MAX_NAME_BYTES)?,
            epoch: self.u64("epoch")?,
            rank: self.u32("rank")?,
            identity: self.text("identity", MAX_NAME_BYTES)?,
            embedding_length: self.u32("embedding length")?,
            boundary_type: match self.u8("boundary type")? {
                0 => BoundaryType::F32,
                1 => BoundaryType::Bf16,
                2 => BoundaryType::Q8_0,
                number => {
                    return Err(FrameError::UnknownChoice {
                        what: "boundary type",
                        number,
                    });
                }
            },
        })
    }

    fn lap(&mut self, limits: &Limits) -> Result<Lap, FrameError> {
        let kind = match self.u8("lap kind")? {
            0 => LapKind::Hello,
            1 => LapKind::Prefill,
            2 => LapKind::Decode,
            number => {
                return Err(FrameError::UnknownChoice {
                    what: "lap kind",
                    number,
                });
            }
        };
        Ok(Lap {
            kind,
            id: self.u64("lap id")?,
            compute_us: self.u32("compute time")?,
            spans: self.list("spans of a lap", limits.max_spans(), 16, |from| {
                Ok(Span {
                    sequence: from.u64("span")?,
                    position: from.u32("span")?,
                    count: from.u32("span")?,
                })
            })?,
            hidden: self.bytes.split_off(0),
        })
    }

    fn tokens(&mut self, limits: &Limits) -> Result<Tokens, FrameError> {
        Ok(Tokens {
            lap: self.u64("lap id")?,
            compute_us: self.u32("compute time")?,
            sampled: self.list("sampled tokens", limits.sequences as usize, 32, |from| {
                Ok(Sampled {
                    sequence: from.u64("sequence")?,
                    position: from.u32("position")?,
                    token: from.i32("token")?,
                    logprob: from.f32("log-probability")?,
                    top: from.list("likeliest tokens", MAX_TOP, 8, Reader::scored)?,
                    logits: from.blob("bytes of logits", limits.logits_bytes())?,
                    error: from.text("bytes of a sampler's error", MAX_ERROR_BYTES)?,
                })
            })?,
        })
    }

    fn open(&mut self, limits: &Limits) -> Result<Open, FrameError> {
        Ok(Open {
            sequence: self.u64("sequence")?,
            prompt: self.list("prompt tokens", limits.max_prompt as usize, 4, |from| {
                from.i32("prompt tokens")
            })?,
            sampling: self.sampling()?,
        })
    }

    fn sampling(&mut self) -> Result<Sampling, FrameError> {
        Ok(Sampling {
            temperature: self.f32("temperature")?,
            top_k: self.u32("top k")?,
            top_p: self.f32("top p")?,
            min_p: self.f32("min p")?,
            repetition_penalty: self.f32("repetition penalty")?,
            presence_penalty: self.f32("presence penalty")?,
            frequency_penalty: self.f32("frequency penalty")?,
            penalty_last: self.u32("penalty last")?,
            seed: self.u64("seed")?,
            top_logprobs: if self.flag("top logprobs")? {
                Some(self.u8("top logprobs")?)
            } else {
                None
            },
            logits: self.flag("logits")?,
            logit_bias: self.list("biased tokens", MAX_LOGIT_BIASES, 8, Reader::scored)?,
            grammar: match self.u8("grammar")? {
                0 => None,
                1 => Some(Grammar::Gbnf(self.text("bytes of a grammar", MAX_GRAMMAR_BYTES)?)),
                2 => Some(Grammar::JsonSchema(self.text("bytes of a grammar", MAX_GRAMMAR_BYTES)?)),
                number => {
                    return Err(FrameError::UnknownChoice {
                        what: "grammar",
                        number,
                    });
                }
            },
        })
    }
}
