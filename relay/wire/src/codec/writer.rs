//! Frames to bytes: everything but a lap's hidden states.

use bytes::Bytes;
use kvasir_plan::BoundaryType;

use crate::frame::{Frame, Grammar, LapKind, Sampled, Sampling};

/// The kind byte and the fields of a frame that was checked.
pub(super) fn head(frame: &Frame) -> Bytes {
    let mut out = Writer(vec![frame.kind() as u8]);
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
        Frame::Failed { rank, detail } => {
            out.u32(*rank);
            out.text(detail);
        }
    }
    out.0.into()
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

    fn scored(&mut self, list: &[(i32, f32)]) {
        self.list(list, |out, (token, value)| {
            out.i32(*token);
            out.f32(*value);
        });
    }

    fn sampled(&mut self, sampled: &Sampled) {
        self.u64(sampled.sequence);
        self.u32(sampled.position);
        self.i32(sampled.token);
        self.f32(sampled.logprob);
        self.scored(&sampled.top);
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
        self.scored(&sampling.logit_bias);
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
