//! Windows of every architecture give the whole model's logits, to the bit: with one sequence and with several, and where
//! a window holds one kind of a hybrid model's layers only, so that its file has a padding layer.
#![allow(clippy::unwrap_used, reason = "tests end at the first surprise")]

mod support;

use kvasir_engine::{Backend, EngineError, Mode, Output, Whole, WindowOptions};
use kvasir_tests::random_model::{Architecture, RandomModel};
use support::{Chain, assert_same_bits, logits, span};

fn options() -> WindowOptions {
    WindowOptions {
        context_length: 256,
        sequences: 3,
        max_rows: 40,
        threads: 1,
        output: Output::Logits { max_rows: 8 },
        ..WindowOptions::default()
    }
}

/// Spans of batches: a prompt in two slices, another prompt, decodes together, unequal lengths, a gap between slots.
const BATCHES: [&[(u32, u32)]; 6] = [
    &[(0, 30)],
    &[(0, 5)],
    &[(2, 17)],
    &[(2, 1), (0, 1)],
    &[(1, 3), (0, 2), (2, 2)],
    &[(0, 1), (1, 1), (2, 1)],
];

#[test]
fn windows_of_every_architecture_equal_the_whole_model() {
    let backend = Backend::init(Mode::Fast).unwrap();
    let folder = tempfile::tempdir().unwrap();
    // llama.cpp scales the input of every window of Gemma 2, so it is not cut
    for architecture in Architecture::ALL
        .into_iter()
        .filter(|architecture| architecture.name() != "gemma2")
    {
        let name = architecture.name();
        let path = folder.path().join("model.gguf");
        RandomModel::new(architecture).write(&path).unwrap();
        let mut whole = Whole::load(backend, &path, &options()).unwrap();
        let mut chain = Chain::load(backend, &path, &[1, 3, 5], &options());
        let mut held = [0_u32; 3];
        for (number, batch) in BATCHES.iter().enumerate() {
            let (mut spans, mut fed, mut want) = (Vec::new(), Vec::new(), Vec::new());
            for &(slot, count) in *batch {
                let start = held[slot as usize];
                spans.push(span(slot, start, count));
                fed.extend((start..start + count).map(|position| ((position * 37 + slot * 11) % 250) as i32));
                want.push(fed.len() as u32 - 1);
                held[slot as usize] += count;
            }
            let expected = logits(&mut whole, &spans, &fed, &want);
            assert!(expected.iter().any(|logit| *logit != 0.0), "{name}");
            assert_same_bits(
                &expected,
                &chain.logits(&spans, &fed, &want),
                &format!("{name}, batch {number}"),
            );
        }
        chain
            .windows
            .iter_mut()
            .for_each(|window| window.copy(0, 1, held[0]).unwrap());
        let (one, other) = ([span(0, held[0], 1)], [span(1, held[0], 1)]);
        assert_same_bits(
            &chain.logits(&one, &[7], &[0]),
            &chain.logits(&other, &[7], &[0]),
            &format!("{name}, a copy beside its original"),
        );
        for window in &mut chain.windows {
            let cut = window.truncate(2, 9);
            let state = matches!(cut, Err(EngineError::Truncate { slot: 2, length: 9, .. }));
            assert_eq!(state, architecture.is_hybrid(), "{name}: {cut:?}");
            window.truncate(2, 0).unwrap();
        }
    }
}
