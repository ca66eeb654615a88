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
//! | failed | rank u32, detail text |
//!
//! Both ways check the same limits, so that a frame which was encoded is never refused. Nothing may follow a body.

mod reader;
mod writer;

use bytes::Bytes;

use crate::{
    boundary::BoundaryError,
    frame::{Frame, Grammar, Kind, Lap, LapKind, VERSION},
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
    let body = match frame {
        Frame::Lap(lap) => lap.hidden.clone(),
        _ => Bytes::new(),
    };
    Ok(Encoded {
        kind,
        head: writer::head(frame),
        body,
    })
}

/// Reads one whole frame; a lap's hidden states and a token's logits share `bytes`.
///
/// # Errors
/// [`FrameError`] when the bytes aren't exactly one frame within the limits. No count is allocated for before it was
/// checked against the limits and against the bytes that are there.
pub fn decode(bytes: &Bytes, limits: &Limits) -> Result<Frame, FrameError> {
    let kind = kind_of(bytes)?;
    limit("frame bytes", bytes.len(), limits.frame_bytes(kind))?;
    let frame = reader::body(kind, bytes.slice(1..), limits)?;
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
        Frame::Failed { detail, .. } => limit("bytes of a failure's detail", detail.len(), MAX_ERROR_BYTES),
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

#[cfg(test)]
mod tests {
    use kvasir_plan::BoundaryType;
    use proptest::{collection::vec, prelude::*};

    use super::*;
    use crate::{
        arbitrary,
        frame::{Open, Sampled, Sampling, Span, Tokens},
    };

    fn round_trip(frame: &Frame, limits: &Limits) -> Result<Frame, FrameError> {
        decode(&encode(frame, limits)?.to_bytes(), limits)
    }

    proptest! {
        #[test]
        fn every_frame_comes_back((limits, frame) in arbitrary::any_limits()
            .prop_flat_map(|limits| (Just(limits), arbitrary::frames(limits))))
        {
            let encoded = encode(&frame, &limits).unwrap();
            prop_assert!(encoded.len() <= limits.frame_bytes(frame.kind()));
            prop_assert_eq!(decode(&encoded.to_bytes(), &limits).unwrap(), frame);
        }

        #[test]
        fn arbitrary_bytes_never_panic(kind in 0_u8..14, bytes in vec(any::<u8>(), 0..200)) {
            let bytes = [&[kind][..], &bytes].concat();
            if let Ok(frame) = decode(&bytes.clone().into(), &arbitrary::limits()) {
                // What is taken is canonical: it has one spelling.
                prop_assert_eq!(encode(&frame, &arbitrary::limits()).unwrap().to_bytes(), bytes);
            }
        }

        #[test]
        fn damaged_frames_never_panic(frame in arbitrary::frames(arbitrary::limits()), at: prop::sample::Index, to: u8) {
            let limits = arbitrary::limits();
            let whole = encode(&frame, &limits).unwrap().to_bytes();
            let mut damaged = whole.to_vec();
            damaged[at.index(whole.len())] = to;
            let _ = decode(&damaged.into(), &limits);
            prop_assert!(decode(&whole.slice(..at.index(whole.len())), &limits).is_err());
            let longer = [&whole[..], &[0]].concat();
            prop_assert!(decode(&longer.into(), &limits).is_err());
        }
    }

    #[test]
    fn unknown_kinds_are_refused_by_number() {
        assert_eq!(
            decode(&vec![13].into(), &arbitrary::limits()),
            Err(FrameError::UnknownKind { number: 13 })
        );
        assert_eq!(
            decode(&Bytes::new(), &arbitrary::limits()),
            Err(FrameError::UnknownKind { number: 0 })
        );
    }

    #[test]
    fn another_version_is_refused_by_number_whatever_follows() {
        let error = decode(&vec![Kind::Hello as u8, 7, 0, 255].into(), &arbitrary::limits()).unwrap_err();
        assert_eq!(
            error,
            FrameError::Version {
                theirs: 7,
                ours: VERSION
            }
        );
    }

    #[test]
    fn a_lap_lies_on_the_wire_as_documented() {
        let Frame::Lap(lap) = arbitrary::decode(5, 3) else {
            unreachable!()
        };
        let lap = Frame::Lap(Lap { compute_us: 258, ..lap });
        let encoded = encode(&lap, &arbitrary::limits()).unwrap();
        #[rustfmt::skip]
        assert_eq!(encoded.head[..], [
            2, 2, 5, 0, 0, 0, 0, 0, 0, 0, 2, 1, 0, 0,
            1, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 1, 0, 0, 0,
        ]);
        assert_eq!(encoded.body, [5; 256][..]);
    }

    #[test]
    fn lengths_past_the_manifest_are_refused_on_both_sides() {
        let limits = arbitrary::limits();
        let small = Limits {
            max_lap_tokens: 4,
            sequences: 2,
            max_prompt: 16,
            vocabulary: 2,
            ..limits
        };
        let sampled = || Sampled {
            sequence: 1,
            position: 0,
            token: 0,
            logprob: 0.0,
            top: Vec::new(),
            logits: Bytes::new(),
            error: String::new(),
        };
        let tokens = |sampled| {
            Frame::Tokens(Tokens {
                lap: 0,
                compute_us: 0,
                sampled,
            })
        };
        let frames = [
            (arbitrary::prefill(1, 1, 5), "rows of a lap", 5, 4),
            (
                Frame::Open(Open {
                    sequence: 1,
                    prompt: vec![0; 17],
                    sampling: Sampling::default(),
                }),
                "prompt tokens",
                17,
                16,
            ),
            (
                Frame::Report {
                    computed: vec![(0, 0); 5],
                },
                "report",
                5,
                4,
            ),
            (tokens(vec![sampled(), sampled(), sampled()]), "sampled tokens", 3, 2),
            (
                tokens(vec![Sampled {
                    logits: vec![0; 12].into(),
                    ..sampled()
                }]),
                "bytes of logits",
                12,
                8,
            ),
        ];
        for (frame, what, value, limit) in frames {
            let refused = FrameError::Limit { what, value, limit };
            assert_eq!(encode(&frame, &small), Err(refused.clone()));
            let bytes = encode(&frame, &limits).unwrap().to_bytes();
            match decode(&bytes, &small).unwrap_err() {
                FrameError::Limit {
                    what: "frame bytes", ..
                } => {}
                error => assert_eq!(error, refused),
            }
        }
    }

    #[test]
    fn laps_whose_parts_do_not_fit_together_are_refused_by_name() {
        let limits = arbitrary::limits();
        let lap = |kind, counts: &[u32], bytes: usize| {
            let spans = counts
                .iter()
                .map(|count| Span {
                    sequence: 1,
                    position: 0,
                    count: *count,
                })
                .collect();
            Frame::Lap(Lap {
                id: 4,
                kind,
                compute_us: 0,
                spans,
                hidden: vec![0; bytes].into(),
            })
        };
        let malformed = [
            (lap(LapKind::Hello, &[1], 256), "a hello lap with rows"),
            (
                lap(LapKind::Prefill, &[1, 1], 512),
                "a prefill lap is a chunk of exactly one sequence",
            ),
            (
                lap(LapKind::Prefill, &[], 0),
                "a prefill lap is a chunk of exactly one sequence",
            ),
            (lap(LapKind::Prefill, &[0], 0), "a span without rows"),
            (lap(LapKind::Decode, &[], 0), "a decode lap without rows"),
            (
                lap(LapKind::Decode, &[1, 2], 768),
                "a decode lap holds the same number of rows of each sequence",
            ),
        ];
        for (frame, what) in malformed {
            assert_eq!(round_trip(&frame, &limits), Err(FrameError::Lap { id: 4, what }));
        }
        let short = FrameError::Hidden {
            id: 4,
            rows: 2,
            expected: 512,
            bytes: 511,
        };
        assert_eq!(round_trip(&lap(LapKind::Decode, &[1, 1], 511), &limits), Err(short));
        let odd = Limits {
            boundary_type: BoundaryType::Q8_0,
            embedding_length: 40,
            ..limits
        };
        let refused = FrameError::Boundary(BoundaryError::Blocks { values: 40 });
        assert_eq!(round_trip(&lap(LapKind::Decode, &[1], 40), &odd), Err(refused));
    }

    #[test]
    fn a_span_past_the_context_is_refused() {
        let Frame::Lap(mut lap) = arbitrary::decode(5, 3) else {
            unreachable!()
        };
        lap.spans[0].position = u32::MAX;
        let refused = FrameError::Limit {
            what: "positions of a sequence",
            value: 1 << 32,
            limit: 2048,
        };
        assert_eq!(round_trip(&Frame::Lap(lap), &arbitrary::limits()), Err(refused));
    }
}
