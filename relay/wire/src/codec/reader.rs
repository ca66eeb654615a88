//! Bytes to frames. Counts are checked against the limits and against the bytes that are there before they are believed.

use bytes::{Buf as _, Bytes};
use kvasir_plan::BoundaryType;

use super::{FrameError, limit};
use crate::{
    frame::{Frame, Grammar, Hello, Kind, Lap, LapKind, Open, Sampled, Sampling, Span, Tokens, VERSION},
    limits::{Limits, MAX_ERROR_BYTES, MAX_GRAMMAR_BYTES, MAX_LOGIT_BIASES, MAX_NAME_BYTES, MAX_TOP},
};

/// Reads the fields of a frame of `kind`, which `bytes` hold to the last one.
pub(super) fn body(kind: Kind, bytes: Bytes, limits: &Limits) -> Result<Frame, FrameError> {
    let mut from = Reader { kind, bytes };
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
        Kind::Failed => Frame::Failed {
            rank: from.u32("rank")?,
            detail: from.text("a failure's detail", MAX_ERROR_BYTES)?,
        },
    };
    if from.bytes.has_remaining() {
        return Err(FrameError::Trailing {
            kind,
            bytes: from.bytes.len(),
        });
    }
    Ok(frame)
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
