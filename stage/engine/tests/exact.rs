//! In exact mode a token's logits don't depend on what else is in its batch, to the bit.
#![allow(clippy::unwrap_used, reason = "tests end at the first surprise")]

mod support;

use kvasir_engine::{Backend, CacheType, EngineError, Mode, Output, Whole, WindowOptions};
use kvasir_tests::models::{gemma3, smollm2};
use kvasir_tests::random_model::{Architecture, RandomModel};
use std::path::Path;
use support::{Chain, assert_same_bits, logits, span, tokens};

fn options() -> WindowOptions {
    WindowOptions {
        context_length: 640,
        sequences: 4,
        max_rows: 128,
        threads: 1,
        output: Output::Logits { max_rows: 8 },
        exact: true,
        ..WindowOptions::default()
    }
}

const LENGTH: usize = 90;

fn logits_do_not_depend_on_the_batch(path: &Path, cuts: &[u32], threads: u32) {
    let backend = Backend::init(Mode::Exact).unwrap();
    let mut whole = Whole::load(backend, path, &options()).unwrap();
    let text = tokens(&whole.vocabulary().unwrap(), 4 * LENGTH);
    let rows = [0, 1, 30, 61, LENGTH as u32 - 1];

    // one batch
    let together = logits(&mut whole, &[span(0, 0, LENGTH as u32)], &text[..LENGTH], &rows);
    // one by one
    whole.clear(0);
    let mut alone = Vec::new();
    for (position, &token) in (0..).zip(&text[..LENGTH]) {
        let one = logits(&mut whole, &[span(0, position, 1)], &[token], &[0]);
        if rows.contains(&position) {
            alone.extend(one);
        }
    }
    assert_same_bits(&together, &alone, "one batch, and one by one");

    // among other sequences, in slices of other lengths, in another slot, on other threads, cut into windows
    let other = WindowOptions { threads, ..options() };
    let mut chain = Chain::load(backend, path, cuts, &other);
    chain.logits(&[span(0, 0, 33)], &text[LENGTH..LENGTH + 33], &[]);
    let mut among = Vec::new();
    let mut position = 0;
    for (turn, count) in [1_u32, 1, 29, 31, 28].into_iter().enumerate() {
        let of = |sequence: usize| {
            let start = sequence * LENGTH + position as usize;
            &text[start..start + count as usize]
        };
        let others = if turn % 2 == 0 { vec![1, 3] } else { vec![1] };
        let (mut spans, mut fed) = (vec![span(2, position, count)], of(0).to_vec());
        for other in others {
            spans.push(span(other, chain.windows[0].held(other), count));
            fed.extend_from_slice(of(other as usize));
        }
        among.extend(chain.logits(&spans, &fed, &[count - 1]));
        position += count;
    }
    assert_same_bits(&together, &among, "alone, and among others in windows");
}

#[test]
fn logits_of_smollm2_do_not_depend_on_the_batch() {
    logits_do_not_depend_on_the_batch(&smollm2(), &[10, 20], 2);
}

#[test]
fn logits_of_gemma3_do_not_depend_on_the_batch() {
    logits_do_not_depend_on_the_batch(&gemma3(), &[9], 1);
}

#[test]
fn nor_do_they_beyond_a_sliding_window_and_beyond_a_step_of_the_cache() {
    let backend = Backend::init(Mode::Exact).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let fed: Vec<i32> = (0..600).map(|i| i * 37 % 250).collect();
    for architecture in Architecture::ALL
        .into_iter()
        .filter(|architecture| architecture.is_sliding())
    {
        let path = folder.path().join("model.gguf");
        RandomModel::new(architecture).write(&path).unwrap();
        let mut whole = Whole::load(backend, &path, &options()).unwrap();
        let mut run = |slot: u32, slices: &[u32]| {
            let mut position = 0;
            let mut last = Vec::new();
            for &count in slices {
                let fed = &fed[position as usize..(position + count) as usize];
                last = logits(&mut whole, &[span(slot, position, count)], fed, &[count - 1]);
                position += count;
            }
            assert_eq!(position, 600);
            last
        };
        let long = run(0, &[128, 128, 128, 128, 88]);
        let short = run(1, &[100, 3, 100, 7, 100, 100, 100, 80, 9, 1]);
        assert_same_bits(&long, &short, architecture.name());
    }
}

#[test]
fn logits_of_every_architecture_do_not_depend_on_the_batch() {
    const LENGTH: u32 = 40;
    let backend = Backend::init(Mode::Exact).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let fed: Vec<i32> = (0..4 * LENGTH as i32).map(|i| i * 37 % 250).collect();
    for architecture in Architecture::ALL {
        let path = folder.path().join("model.gguf");
        RandomModel::new(architecture).write(&path).unwrap();
        let options = WindowOptions {
            output: Output::Logits { max_rows: LENGTH },
            ..options()
        };
        let mut whole = Whole::load(backend, &path, &options).unwrap();
        let all: Vec<u32> = (0..LENGTH).collect();
        let together = logits(&mut whole, &[span(0, 0, LENGTH)], &fed[..LENGTH as usize], &all);
        let mut alone = Vec::new();
        for position in 0..LENGTH {
            // three other sequences beside it
            let spans: Vec<_> = (0..4)
                .map(|slot| span(slot, if slot == 0 { LENGTH } else { position }, 1))
                .collect();
            let tokens: Vec<i32> = (0..4).map(|slot| fed[(slot * LENGTH + position) as usize]).collect();
            if position % 2 == 0 {
                alone.extend(logits(
                    &mut whole,
                    &spans[1..],
                    &[tokens[0], tokens[2], tokens[3]],
                    &[0],
                ));
            } else {
                let rest = logits(&mut whole, &spans[2..], &tokens[2..], &[]);
                assert!(rest.is_empty());
                alone.extend(logits(&mut whole, &spans[1..2], &tokens[..1], &[0]));
            }
        }
        assert_same_bits(&together, &alone, architecture.name());
    }
}

#[test]
fn a_quantised_cache_is_refused() {
    let backend = Backend::init(Mode::Exact).unwrap();
    let options = WindowOptions {
        cache_type: CacheType::Q8_0,
        ..options()
    };
    assert!(matches!(
        Whole::load(backend, &smollm2(), &options),
        Err(EngineError::ExactCache)
    ));
}

#[test]
fn a_process_in_exact_mode_also_runs_other_windows() {
    Backend::init(Mode::Exact).unwrap();
    let backend = Backend::init(Mode::Fast).unwrap();
    assert_eq!(backend.mode(), Mode::Exact);
    let options = WindowOptions {
        exact: false,
        cache_type: CacheType::Q8_0,
        ..options()
    };
    Whole::load(backend, &smollm2(), &options).unwrap();
}
