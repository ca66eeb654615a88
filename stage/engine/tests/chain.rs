//! Windows run one after the other give the whole model's logits, to the bit.
#![allow(clippy::unwrap_used, reason = "tests end at the first surprise")]

mod support;

use kvasir_engine::{Backend, Mode, Output, Whole, WindowOptions};
use kvasir_tests::models::{gemma3, smollm2};
use std::path::Path;
use support::{Chain, assert_same_bits, logits, span, tokens};

fn options() -> WindowOptions {
    WindowOptions {
        context_length: 512,
        sequences: 1,
        max_rows: 300,
        threads: 1,
        output: Output::Logits { max_rows: 7 },
        ..WindowOptions::default()
    }
}

fn chained_equals_whole(path: &Path, cuts: &[&[u32]]) {
    let backend = Backend::init(Mode::Fast).unwrap();
    let mut whole = Whole::load(backend, path, &options()).unwrap();
    let tokens = tokens(&whole.vocabulary().unwrap(), 308);
    for cuts in cuts {
        let mut chain = Chain::load(backend, path, cuts, &options());
        for prompt in [1_u32, 7, 300] {
            whole.clear(0);
            chain.windows.iter_mut().for_each(|window| window.clear(0));
            let all: Vec<u32> = if prompt < 10 {
                (0..prompt).collect()
            } else {
                vec![0, 149, prompt - 1]
            };
            let fed = &tokens[..prompt as usize];
            let spans = [span(0, 0, prompt)];
            assert_same_bits(
                &logits(&mut whole, &spans, fed, &all),
                &chain.logits(&spans, fed, &all),
                &format!("prompt of {prompt}, cut at {cuts:?}"),
            );
            for position in prompt..prompt + 8 {
                let fed = &tokens[position as usize..=position as usize];
                let spans = [span(0, position, 1)];
                assert_same_bits(
                    &logits(&mut whole, &spans, fed, &[0]),
                    &chain.logits(&spans, fed, &[0]),
                    &format!("position {position}, cut at {cuts:?}"),
                );
            }
        }
    }
}

#[test]
fn windows_of_smollm2_equal_the_whole_model() {
    chained_equals_whole(&smollm2(), &[&[15], &[10, 20]]);
}

#[test]
fn windows_of_gemma3_equal_the_whole_model() {
    chained_equals_whole(&gemma3(), &[&[9], &[6, 12]]);
}
