//! Speed of a whole model, fast and exact side by side: `speed MODEL [ROUNDS]`; or where two ways to slice a prompt
//! part: `speed MODEL slices 128,128,44 300x1` (exact, or with FAST set, fast).
//!
//! Each mode runs in a process of its own, since ggml reads one of the switches once; rounds alternate. Time is the
//! process's own on one thread, so that a busy machine disturbs it less.

use kvasir_engine::{Backend, Mode, Output, Span, Whole, WindowOptions};
use std::path::Path;

const PROMPT: u32 = 256;
const ANSWER: u32 = 32;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [model, mode] if mode == "fast" || mode == "exact" => measure(model, mode == "exact"),
        [model, slices, one, other] if slices == "slices" => compare(model, one, other),
        [model] => alternate(model, 3),
        [model, rounds] => alternate(model, rounds.parse().expect("a number of rounds")),
        _ => panic!("MODEL [ROUNDS]"),
    }
}

fn alternate(model: &str, rounds: u32) {
    let program = std::env::current_exe().expect("this program has a path");
    for _ in 0..rounds {
        for mode in ["fast", "exact"] {
            let status = std::process::Command::new(&program).args([model, mode]).status();
            assert!(status.expect("this program runs").success());
        }
    }
}

fn load(model: &str, exact: bool) -> Whole {
    let backend = Backend::init(if exact { Mode::Exact } else { Mode::Fast }).expect("llama.cpp starts");
    let options = WindowOptions {
        context_length: 1024,
        sequences: 2,
        max_rows: 512,
        threads: 1,
        output: Output::Logits { max_rows: 512 },
        exact,
        ..WindowOptions::default()
    };
    Whole::load(backend, Path::new(model), &options).expect("the model loads")
}

fn tokens() -> Vec<i32> {
    (0..1024).map(|i| i * 7919 % 500 + 100).collect()
}

fn measure(model: &str, exact: bool) {
    let mut whole = load(model, exact);
    let tokens = tokens();
    let mut logits = Vec::new();
    let mut best = (f64::INFINITY, f64::INFINITY);
    for _ in 0..3 {
        whole.clear(0);
        let start = cpu_seconds();
        let prompt = Span {
            slot: 0,
            position: 0,
            count: PROMPT,
        };
        whole
            .run(&[prompt], &tokens[..PROMPT as usize], &[PROMPT - 1], &mut logits)
            .expect("a prompt runs");
        let prompt = cpu_seconds() - start;
        let start = cpu_seconds();
        for position in PROMPT..PROMPT + ANSWER {
            let one = Span {
                slot: 0,
                position,
                count: 1,
            };
            whole
                .run(
                    &[one],
                    &tokens[position as usize..=position as usize],
                    &[0],
                    &mut logits,
                )
                .expect("a token runs");
        }
        best = (best.0.min(prompt), best.1.min(cpu_seconds() - start));
    }
    let mode = if exact { "exact" } else { "fast" };
    println!(
        "{mode}: prompt {:.1} tok/s, answer {:.1} tok/s",
        f64::from(PROMPT) / best.0,
        f64::from(ANSWER) / best.1
    );
}

fn compare(model: &str, one: &str, other: &str) {
    let mut whole = load(model, std::env::var_os("FAST").is_none());
    let tokens = tokens();
    let mut run = |slot: u32, slices: &str| {
        let (mut position, mut all, mut logits) = (0_u32, Vec::new(), Vec::new());
        for count in slices.split(',').flat_map(|slice| match slice.split_once('x') {
            Some((times, count)) => vec![count.parse::<u32>().expect("a length"); times.parse().expect("a number")],
            None => vec![slice.parse().expect("a length")],
        }) {
            let fed = &tokens[position as usize..(position + count) as usize];
            let want: Vec<u32> = (0..count).collect();
            whole
                .run(&[Span { slot, position, count }], fed, &want, &mut logits)
                .expect("a slice runs");
            // the first thousand logits say it as well as all
            all.extend(logits.chunks(logits.len() / want.len()).map(|row| row[..1000].to_vec()));
            position += count;
        }
        all
    };
    let (one, other) = (run(0, one), run(1, other));
    let differ: Vec<usize> = (0..one.len().min(other.len()))
        .filter(|&i| one[i] != other[i])
        .collect();
    println!(
        "{} of {} positions differ: {:?}",
        differ.len(),
        one.len().min(other.len()),
        differ.iter().take(20).collect::<Vec<_>>()
    );
}

/// Processor time of this process, by /proc/self/stat in ticks of 10 ms.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("Linux");
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    fields[11..13]
        .iter()
        .map(|ticks| ticks.parse::<f64>().expect("ticks"))
        .sum::<f64>()
        / 100.0
}
