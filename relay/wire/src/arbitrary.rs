//! Limits and frames within them, for property tests.

use bytes::Bytes;
use kvasir_plan::BoundaryType;
use proptest::{collection::vec, option, prelude::*};

use crate::{
    frame::{Frame, Grammar, Hello, Lap, LapKind, Open, Sampled, Sampling, Span, Tokens, VERSION},
    limits::Limits,
};

/// A small ring, in which a chunk of prompt takes many pieces.
pub(crate) fn limits() -> Limits {
    Limits {
        embedding_length: 64,
        boundary_type: BoundaryType::F32,
        max_lap_tokens: 1024,
        sequences: 8,
        vocabulary: 100,
        max_prompt: 2048,
    }
}

pub(crate) fn any_limits() -> impl Strategy<Value = Limits> {
    let boundary_type = prop_oneof![
        Just(BoundaryType::F32),
        Just(BoundaryType::Bf16),
        Just(BoundaryType::Q8_0)
    ];
    (1_u32..4, boundary_type, 1_u32..64, 1_u32..8, 1_u32..100, 1_u32..200).prop_map(
        |(blocks, boundary_type, max_lap_tokens, sequences, vocabulary, max_prompt)| Limits {
            embedding_length: blocks * 32,
            boundary_type,
            max_lap_tokens,
            sequences,
            vocabulary,
            max_prompt,
        },
    )
}

/// Any frame that `limits` allow.
pub(crate) fn frames(limits: Limits) -> BoxedStrategy<Frame> {
    let most = limits.max_prompt;
    prop_oneof![
        hello().prop_map(Frame::Hello),
        laps(limits).prop_map(Frame::Lap),
        tokens(limits).prop_map(Frame::Tokens),
        opens(limits).prop_map(Frame::Open),
        any::<u64>().prop_map(|sequence| Frame::Close { sequence }),
        (any::<u64>(), any::<u64>(), 0..=most).prop_map(|(parent, child, length)| Frame::Fork {
            parent,
            child,
            length
        }),
        (any::<u64>(), 0..=most).prop_map(|(sequence, length)| Frame::Truncate { sequence, length }),
        vec((any::<u64>(), any::<u32>()), 0..=limits.max_report()).prop_map(|computed| Frame::Report { computed }),
        (any::<u64>(), any::<u32>()).prop_map(|(sequence, position)| Frame::Replay { sequence, position }),
        Just(Frame::Drain),
        (any::<u64>(), any::<bool>()).prop_map(|(nonce, reply)| Frame::Ping { nonce, reply }),
        (any::<u32>(), ".{0,40}").prop_map(|(rank, detail)| Frame::Failed { rank, detail }),
    ]
    .boxed()
}

fn hello() -> impl Strategy<Value = Hello> {
    (".{0,40}", any::<u64>(), any::<u32>(), ".{0,40}", any::<u32>()).prop_map(
        |(ring, epoch, rank, identity, embedding_length)| Hello {
            version: VERSION,
            ring,
            epoch,
            rank,
            identity,
            embedding_length,
            boundary_type: BoundaryType::Bf16,
        },
    )
}

fn laps(limits: Limits) -> impl Strategy<Value = Lap> {
    let kinds = prop_oneof![Just(LapKind::Hello), Just(LapKind::Prefill), Just(LapKind::Decode)];
    let most_rows = limits.max_lap_tokens.min(limits.max_prompt);
    (
        kinds,
        any::<u64>(),
        any::<u32>(),
        1..=limits.max_spans() as u32,
        1..=most_rows,
        any::<u8>(),
    )
        .prop_map(move |(kind, id, compute_us, sequences, rows, filler)| {
            let (spans, count) = match kind {
                LapKind::Hello => (0, 0),
                LapKind::Prefill => (1, rows),
                LapKind::Decode => (sequences, rows.min(limits.max_lap_tokens / sequences)),
            };
            let position = limits.max_prompt - count;
            let spans: Vec<Span> = (0..spans)
                .map(|span| Span {
                    sequence: u64::from(span),
                    position,
                    count,
                })
                .collect();
            let bytes = spans.len() * count as usize * limits.row_bytes().unwrap();
            Lap {
                id,
                kind,
                compute_us,
                spans,
                hidden: vec![filler; bytes].into(),
            }
        })
}

fn tokens(limits: Limits) -> impl Strategy<Value = Tokens> {
    let scored = (any::<i32>(), -100.0_f32..0.0);
    let logits = prop_oneof![Just(0), Just(limits.logits_bytes())];
    let sampled = (
        any::<u64>(),
        any::<u32>(),
        scored.clone(),
        vec(scored, 0..4),
        logits,
        ".{0,20}",
    )
        .prop_map(|(sequence, position, (token, logprob), top, logits, error)| Sampled {
            sequence,
            position,
            token,
            logprob,
            top,
            logits: Bytes::from(vec![7; logits]),
            error,
        });
    (any::<u64>(), any::<u32>(), vec(sampled, 0..=limits.sequences as usize)).prop_map(|(lap, compute_us, sampled)| {
        Tokens {
            lap,
            compute_us,
            sampled,
        }
    })
}

fn opens(limits: Limits) -> impl Strategy<Value = Open> {
    let prompt = vec(any::<i32>(), 0..=limits.max_prompt as usize);
    let floats = proptest::array::uniform6(-2.0_f32..2.0);
    let integers = (
        any::<u32>(),
        any::<u32>(),
        any::<u64>(),
        option::of(any::<u8>()),
        any::<bool>(),
    );
    let bias = vec((any::<i32>(), -100.0_f32..100.0), 0..4);
    let grammar = option::of(prop_oneof![
        ".{0,60}".prop_map(Grammar::Gbnf),
        ".{0,60}".prop_map(Grammar::JsonSchema)
    ]);
    (any::<u64>(), prompt, floats, integers, bias, grammar).prop_map(
        |(sequence, prompt, floats, (top_k, penalty_last, seed, top_logprobs, logits), logit_bias, grammar)| {
            let [
                temperature,
                top_p,
                min_p,
                repetition_penalty,
                presence_penalty,
                frequency_penalty,
            ] = floats;
            let sampling = Sampling {
                temperature,
                top_k,
                top_p,
                min_p,
                repetition_penalty,
                presence_penalty,
                frequency_penalty,
                penalty_last,
                seed,
                top_logprobs,
                logits,
                logit_bias,
                grammar,
            };
            Open {
                sequence,
                prompt,
                sampling,
            }
        },
    )
}

/// A chunk of `rows` rows of a sequence's prompt in the ring of [`limits`].
pub(crate) fn prefill(id: u64, sequence: u64, rows: u32) -> Frame {
    let hidden = vec![id as u8; rows as usize * 256].into();
    Frame::Lap(Lap {
        id,
        kind: LapKind::Prefill,
        compute_us: 0,
        spans: vec![Span {
            sequence,
            position: 0,
            count: rows,
        }],
        hidden,
    })
}

/// One row of a sequence in the ring of [`limits`].
pub(crate) fn decode(id: u64, sequence: u64) -> Frame {
    let spans = vec![Span {
        sequence,
        position: 9,
        count: 1,
    }];
    Frame::Lap(Lap {
        id,
        kind: LapKind::Decode,
        compute_us: 0,
        spans,
        hidden: vec![id as u8; 256].into(),
    })
}
