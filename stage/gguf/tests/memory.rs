//! What a prefix costs in memory. A test program of its own: others running beside it would be counted too.
#![allow(clippy::unwrap_used, reason = "tests end at the first surprise")]

mod support;

use kvasir_gguf::prefix::{MAX_PREFIX, PrefixParser, Progress};
use support::bytes::Bytes;

/// Most address space that this process has had, in bytes: it grows by what is reserved, used or not.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmPeak:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

#[test]
fn a7_memory_stays_near_the_bytes_received() {
    let before = peak();
    let array = |element, count| Bytes::head(0, 1).text("k").u32(9).u32(element).u64(count);
    let hostile = [
        Bytes::head(1 << 20, 1 << 16),
        Bytes::head(1 << 61, 0),
        Bytes::head(0, 1).u64(1 << 63),
        Bytes::head(0, 1).u64(MAX_PREFIX - 32),
        Bytes::head(0, 1).text("k").u32(8).u64(MAX_PREFIX - 100),
        array(4, u64::MAX / 64),
        array(4, MAX_PREFIX / 4 - 32),
        array(8, MAX_PREFIX / 8),
        Bytes::head(1, 0).text("w").u32(u32::MAX),
    ];
    for bytes in &hostile {
        let _ = PrefixParser::new().feed(&bytes.0);
    }
    assert!(
        peak() - before < 8 << 20,
        "{} bytes for {} files of 60",
        peak() - before,
        hostile.len()
    );

    // a vocabulary as large as Gemma's
    let tokens = 262_144;
    let mut bytes = array(8, tokens);
    for token in 0..tokens {
        bytes = bytes.text(&format!("token {token:06}"));
    }
    let before = peak();
    let mut parser = PrefixParser::new();
    let prefix = bytes
        .0
        .chunks(64 << 10)
        .find_map(|chunk| match parser.feed(chunk).unwrap() {
            Progress::Done(prefix) => Some(prefix),
            Progress::NeedMore { .. } => None,
        });
    let (cost, size) = (peak() - before, bytes.0.len() as u64);
    assert_eq!(
        prefix.unwrap().metadata.get("k").unwrap().as_array().unwrap().len() as u64,
        tokens
    );
    assert!(cost < 4 * size, "{cost} bytes for a prefix of {size}");
}
