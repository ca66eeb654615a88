//! A window takes its own bytes, its cache, and at most 64 MiB more.
#![allow(clippy::unwrap_used, reason = "tests end at the first surprise")]

mod support;

use kvasir_engine::{Backend, Mode, Output, Window, WindowOptions};
use kvasir_tests::models::gemma3;
use std::path::Path;
use support::{cut, span};

const MIB: u64 = 1 << 20;

/// Resident bytes of this process, without pages of mapped files.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

fn takes_at_most_64_mib_more(path: &Path, options: &WindowOptions) {
    let backend = Backend::init(Mode::Fast).unwrap();
    let before = resident();
    let mut window = Window::load(backend, path, options).unwrap();
    let width = window.embedding_length();
    let rows = options.max_rows;
    let hidden = vec![0.25; rows as usize * width];
    let mut out = Vec::new();
    for slot in 0..options.sequences {
        match options.output {
            Output::Hidden => window.run(&[span(slot, 0, rows)], &hidden, &mut out).unwrap(),
            Output::Logits { .. } => window
                .run_logits(&[span(slot, 0, rows)], &hidden, &[rows - 1], &mut out)
                .unwrap(),
        }
    }
    let own = std::fs::metadata(path).unwrap().len();
    let more = (resident() - before).saturating_sub(own + window.cache_bytes());
    println!(
        "{} of {} MiB, cache {} MiB: {} MiB more",
        path.display(),
        own / MIB,
        window.cache_bytes() / MIB,
        more / MIB
    );
    assert!(more < 64 * MIB, "{} takes {} MiB more", path.display(), more / MIB);
}

/// One test, since the process has one memory.
#[test]
fn windows_take_little_more_than_their_bytes_and_cache() {
    let folder = tempfile::TempDir::new().unwrap();
    let options = WindowOptions {
        context_length: 4096,
        sequences: 4,
        max_rows: 512,
        threads: 2,
        ..WindowOptions::default()
    };
    takes_at_most_64_mib_more(&cut(&gemma3(), 6, 12, false, folder.path()), &options);
    let last = WindowOptions {
        output: Output::Logits { max_rows: 4 },
        ..options
    };
    takes_at_most_64_mib_more(&cut(&gemma3(), 12, 18, true, folder.path()), &last);
}
