//! A batch of several sequences gives each row its own result, whatever the order of slots and the gaps between them.
#![allow(clippy::unwrap_used, reason = "tests end at the first surprise")]

mod support;

use kvasir_engine::{Backend, EngineError, Mode, Output, Whole, Window, WindowOptions};
use kvasir_tests::models::{gemma3, smollm2};
use std::path::Path;
use support::{Chain, assert_same_bits, cut, logits, span, tokens};

fn options() -> WindowOptions {
    WindowOptions {
        context_length: 256,
        sequences: 5,
        max_rows: 64,
        threads: 1,
        output: Output::Logits { max_rows: 8 },
        ..WindowOptions::default()
    }
}

/// Batches with slots in odd order, gaps, one length and several, prompts among decodes.
const BATCHES: [&[(u32, u32)]; 6] = [
    &[(3, 7), (0, 7), (4, 7)],
    &[(1, 20)],
    &[(4, 1), (1, 1), (0, 1), (3, 1)],
    &[(3, 4), (2, 9), (0, 1)],
    &[(0, 2), (1, 2), (2, 2), (3, 2), (4, 2)],
    &[(2, 1), (4, 30), (0, 1)],
];

fn several_sequences_equal_the_whole_model(path: &Path, cuts: &[u32]) {
    let backend = Backend::init(Mode::Fast).unwrap();
    let mut whole = Whole::load(backend, path, &options()).unwrap();
    let mut chain = Chain::load(backend, path, cuts, &options());
    let text = tokens(&whole.vocabulary().unwrap(), 300);
    let mut held = [0_u32; 5];
    for (number, batch) in BATCHES.iter().enumerate() {
        let (mut spans, mut fed, mut want) = (Vec::new(), Vec::new(), Vec::new());
        for &(slot, count) in *batch {
            let start = held[slot as usize];
            spans.push(span(slot, start, count));
            let of_slot = slot as usize * 50 + start as usize;
            fed.extend_from_slice(&text[of_slot..of_slot + count as usize]);
            want.push(fed.len() as u32 - 1);
            held[slot as usize] += count;
        }
        // rows may be asked for in any order
        want.reverse();
        assert_same_bits(
            &logits(&mut whole, &spans, &fed, &want),
            &chain.logits(&spans, &fed, &want),
            &format!("batch {number}"),
        );
    }
    assert_eq!((0..5).map(|slot| chain.windows[0].held(slot)).collect::<Vec<_>>(), held);
}

#[test]
fn several_sequences_of_smollm2_equal_the_whole_model() {
    several_sequences_equal_the_whole_model(&smollm2(), &[10, 20]);
}

#[test]
fn several_sequences_of_gemma3_equal_the_whole_model() {
    several_sequences_equal_the_whole_model(&gemma3(), &[6, 12]);
}

/// A window of the first layers of `SmolLM2`.
fn window(options: &WindowOptions) -> (Window, tempfile::TempDir) {
    let backend = Backend::init(Mode::Fast).unwrap();
    let folder = tempfile::TempDir::new().unwrap();
    let file = cut(&smollm2(), 0, 3, false, folder.path());
    let options = WindowOptions {
        output: Output::Hidden,
        ..options.clone()
    };
    (Window::load(backend, &file, &options).unwrap(), folder)
}

/// Hidden states that differ from row to row.
fn rows(first: usize, count: usize, width: usize) -> Vec<f32> {
    (first * width..(first + count) * width)
        .map(|i| ((i * 37 % 101) as f32 - 50.0) / 25.0)
        .collect()
}

fn run(window: &mut Window, spans: &[kvasir_engine::Span], hidden: &[f32]) -> Vec<f32> {
    let mut out = Vec::new();
    window.run(spans, hidden, &mut out).unwrap();
    out
}

#[test]
fn each_row_comes_back_in_its_place() {
    let (mut window, _folder) = window(&options());
    let width = window.embedding_length();
    let alone: Vec<Vec<f32>> = (0..5)
        .map(|slot| {
            let out = run(&mut window, &[span(0, 0, 3)], &rows(slot * 3, 3, width));
            window.clear(0);
            out
        })
        .collect();
    let order = [4, 1, 3, 0];
    let spans: Vec<_> = order.iter().map(|&slot| span(slot, 0, 3)).collect();
    let hidden: Vec<f32> = order
        .iter()
        .flat_map(|&slot| rows(slot as usize * 3, 3, width))
        .collect();
    let together = run(&mut window, &spans, &hidden);
    for (part, &slot) in together.chunks(3 * width).zip(&order) {
        let expected = &alone[slot as usize];
        let distance = |other: &[f32]| part.iter().zip(other).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        let nearest = (0..5)
            .min_by(|&a, &b| distance(&alone[a]).total_cmp(&distance(&alone[b])))
            .unwrap();
        assert_eq!(nearest, slot as usize);
        assert!(
            distance(expected) < 0.05,
            "slot {slot} is off by {}",
            distance(expected)
        );
    }
}

#[test]
fn a_copy_goes_on_like_its_original() {
    let (mut window, _folder) = window(&options());
    let width = window.embedding_length();
    run(&mut window, &[span(0, 0, 12)], &rows(0, 12, width));
    let original = run(&mut window, &[span(0, 12, 1)], &rows(12, 1, width));
    run(&mut window, &[span(3, 0, 5)], &rows(50, 5, width));
    window.copy(0, 3, 12).unwrap();
    assert_eq!((window.held(0), window.held(3)), (13, 12));
    // the original may end before its copy goes on
    window.clear(0);
    assert_same_bits(
        &original,
        &run(&mut window, &[span(3, 12, 1)], &rows(12, 1, width)),
        "copy",
    );
}

#[test]
fn a_truncated_slot_goes_on_as_if_it_had_never_been_longer() {
    let (mut window, _folder) = window(&options());
    let width = window.embedding_length();
    run(&mut window, &[span(2, 0, 10)], &rows(0, 10, width));
    let straight = run(&mut window, &[span(2, 10, 1)], &rows(10, 1, width));
    run(&mut window, &[span(2, 11, 6)], &rows(30, 6, width));
    window.truncate(2, 10).unwrap();
    assert_same_bits(
        &straight,
        &run(&mut window, &[span(2, 10, 1)], &rows(10, 1, width)),
        "truncated",
    );
    window.truncate(2, 0).unwrap();
    assert_eq!(window.held(2), 0);
}

#[test]
fn preconditions_are_named_and_change_nothing() {
    let (mut window, _folder) = window(&options());
    let width = window.embedding_length();
    run(&mut window, &[span(1, 0, 4)], &rows(0, 4, width));
    let mut out = Vec::new();
    let mut fault =
        |spans: &[kvasir_engine::Span], values: usize| window.run(spans, &vec![0.5; values], &mut out).unwrap_err();
    assert!(matches!(
        fault(&[span(5, 0, 1)], width),
        EngineError::Slot { slot: 5, sequences: 5 }
    ));
    assert!(matches!(
        fault(&[span(1, 3, 1)], width),
        EngineError::Position {
            slot: 1,
            held: 4,
            position: 3
        }
    ));
    assert!(matches!(fault(&[span(1, 5, 1)], width), EngineError::Position { .. }));
    assert!(matches!(
        fault(&[span(0, 0, 1), span(0, 1, 1)], 2 * width),
        EngineError::DuplicateSlot { slot: 0 }
    ));
    assert!(matches!(fault(&[span(0, 0, 0)], 0), EngineError::EmptySpan { slot: 0 }));
    assert!(matches!(
        fault(&[span(0, 0, 65)], 65 * width),
        EngineError::TooManyRows { rows: 65, limit: 64 }
    ));
    assert!(matches!(
        fault(&[span(0, 0, u32::MAX)], width),
        EngineError::ContextFull { .. }
    ));
    assert!(matches!(
        fault(&[span(0, 0, 2)], width),
        EngineError::InputLength { .. }
    ));
    let mut hidden = rows(0, 3, width);
    hidden[2 * width] = f32::NAN;
    assert!(matches!(
        window.run(&[span(0, 0, 3)], &hidden, &mut out),
        Err(EngineError::InputNotFinite { row: 2 })
    ));
    assert!(matches!(
        window.run_logits(&[span(0, 0, 1)], &rows(0, 1, width), &[0], &mut out),
        Err(EngineError::Output { .. })
    ));
    assert!(matches!(
        window.truncate(1, 5),
        Err(EngineError::Length { held: 4, length: 5, .. })
    ));
    assert!(matches!(window.copy(1, 9, 1), Err(EngineError::Slot { slot: 9, .. })));
    assert_eq!(
        (0..5).map(|slot| window.held(slot)).collect::<Vec<_>>(),
        [0, 4, 0, 0, 0]
    );
    run(&mut window, &[], &[]);
}

#[test]
fn a_full_context_is_refused_and_a_cleared_one_starts_again() {
    let options = WindowOptions {
        context_length: 40,
        ..options()
    };
    let (mut window, _folder) = window(&options);
    let width = window.embedding_length();
    run(&mut window, &[span(0, 0, 40)], &rows(0, 40, width));
    let refused = window.run(&[span(0, 40, 1)], &rows(0, 1, width), &mut Vec::new());
    assert!(matches!(
        refused,
        Err(EngineError::ContextFull {
            slot: 0,
            length: 41,
            context_length: 40
        })
    ));
    window.clear(0);
    run(&mut window, &[span(0, 0, 1)], &rows(0, 1, width));
}

#[test]
fn extreme_values_do_not_outlive_their_sequence() {
    let (mut window, _folder) = window(&options());
    let width = window.embedding_length();
    let expected = run(&mut window, &[span(0, 0, 3)], &rows(0, 3, width));
    for extreme in [f32::MAX, f32::MIN_POSITIVE, -1e30, 1e19] {
        window.clear(0);
        let result = window.run(&[span(0, 0, 5)], &vec![extreme; 5 * width], &mut Vec::new());
        assert!(
            matches!(result, Ok(()) | Err(EngineError::OutputNotFinite { .. })),
            "{result:?}"
        );
        assert!(result.is_ok() || window.held(0) == 0);
        window.clear(0);
        let again = run(&mut window, &[span(0, 0, 3)], &rows(0, 3, width));
        assert_same_bits(&expected, &again, &format!("after {extreme}"));
    }
}

#[test]
fn sliding_windows_that_forgot_a_position_refuse_to_go_back_to_it() {
    let backend = Backend::init(Mode::Fast).unwrap();
    let folder = tempfile::TempDir::new().unwrap();
    let file = cut(&gemma3(), 0, 2, false, folder.path());
    let load = |whole_cache| {
        let options = WindowOptions {
            context_length: 2048,
            max_rows: 512,
            threads: 1,
            whole_cache,
            ..WindowOptions::default()
        };
        let mut window = Window::load(backend, &file, &options).unwrap();
        let width = window.embedding_length();
        for start in (0..1536).step_by(512) {
            run(&mut window, &[span(0, start, 512)], &rows(start as usize, 512, width));
        }
        window
    };
    let mut sparing = load(false);
    assert!(matches!(
        sparing.truncate(0, 600),
        Err(EngineError::Truncate {
            held: 1536,
            length: 600,
            ..
        })
    ));
    assert_eq!(sparing.held(0), 1536);
    let mut whole = load(true);
    assert!(whole.cache_bytes() > sparing.cache_bytes());
    whole.truncate(0, 600).unwrap();
    // a short way back is always possible
    sparing.truncate(0, 1530).unwrap();
}
