//! How big a context may be, how many rows it computes at a time, and what memory it took.

use crate::error::EngineError;
use crate::log;
use crate::window::{CacheType, Output, WindowOptions};

/// llama.cpp's own limit, `LLAMA_MAX_SEQ`.
const MAX_SEQUENCES: u32 = 256;
/// llama.cpp rounds caches up to this many positions.
const CACHE_STEP: u32 = 256;
/// Positions of all sequences together: their bookkeeping is 3.5 GB then, which is touched before anything else fails.
const MAX_POSITIONS: u64 = 1 << 26;
/// Rows of a microbatch, at least and at most.
const MICROBATCH: std::ops::RangeInclusive<u32> = 32..=512;

/// Bytes of memory that a context takes, as llama.cpp reports them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Footprint {
    /// keys, values and recurrent states of all slots
    pub(crate) cache: u64,
    /// intermediate results of one microbatch
    pub(crate) compute: u64,
    /// rows of logits
    pub(crate) output: u64,
}

impl Footprint {
    /// Adds up the lines `… KV buffer size = 12.00 MiB` that llama.cpp logs when it makes a context.
    pub(crate) fn of(said: &log::Said) -> Footprint {
        let mut footprint = Footprint::default();
        for line in said.lines() {
            let Some((what, size)) = line.split_once(log::BUFFER_SIZE) else {
                continue;
            };
            let Some(size) = size
                .split_whitespace()
                .next()
                .and_then(|number| number.parse::<f64>().ok())
            else {
                continue;
            };
            let bytes = (size * 1024.0 * 1024.0) as u64;
            match what.split_whitespace().last() {
                Some("KV" | "RS") => footprint.cache += bytes,
                Some("compute") => footprint.compute += bytes,
                Some("output") => footprint.output += bytes,
                _ => {}
            }
        }
        footprint
    }
}

/// Checks the options; returns the positions to reserve for a sequence.
pub(crate) fn check(options: &WindowOptions) -> Result<u32, EngineError> {
    let in_range = |field, value: u32, most: u32, rule| {
        if (1..=most).contains(&value) {
            Ok(())
        } else {
            Err(EngineError::Option {
                field,
                value: value.into(),
                rule,
            })
        }
    };
    in_range(
        "contextLength",
        options.context_length,
        1 << 28,
        "it must be between 1 and 268435456",
    )?;
    in_range(
        "sequences",
        options.sequences,
        MAX_SEQUENCES,
        "it must be between 1 and 256",
    )?;
    in_range("maxRows", options.max_rows, 1 << 20, "it must be between 1 and 1048576")?;
    if let Output::Logits { max_rows } = options.output {
        in_range("logit rows", max_rows, 1 << 20, "it must be between 1 and 1048576")?;
    }
    let reserved = options.context_length.next_multiple_of(CACHE_STEP);
    let total = u64::from(reserved) * u64::from(options.sequences);
    if total > MAX_POSITIONS {
        let rule = "it must be at most 67108864, for llama.cpp's bookkeeping of each position alone takes 52 bytes";
        return Err(EngineError::Option {
            field: "contextLength × sequences",
            value: total,
            rule,
        });
    }
    if options.exact && options.cache_type != CacheType::F16 {
        return Err(EngineError::ExactCache);
    }
    Ok(reserved)
}

/// Rows that llama.cpp computes at a time. Buffers for intermediate results grow with it (at 3072 values a row, with
/// eight experts of 1024, 128 rows take 60 MiB and 512 take 200), while on a CPU prompts don't get faster beyond a few
/// dozen rows. In fast mode the result depends on it in the last bits, so that it must be the same for all windows of a
/// model: it follows from the embedding length. In exact mode it is free to shrink with the scores that attention
/// writes down for all heads.
pub(crate) fn microbatch(embedding_length: usize, heads: u32, options: &WindowOptions) -> u32 {
    /// Values of hidden states in a microbatch.
    const VALUES: u32 = 1 << 19;
    /// Bytes of attention's scores in a microbatch.
    const SCORES: u64 = 32 << 20;
    let rows = VALUES.checked_div(embedding_length as u32).unwrap_or(0);
    let rows = if options.exact {
        let row = 4 * u64::from(heads.max(1)) * u64::from(options.context_length.max(1));
        u64::from(rows).min(SCORES / row) as u32
    } else {
        rows
    };
    (1 << rows.max(1).ilog2()).clamp(*MICROBATCH.start(), *MICROBATCH.end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_models_and_long_exact_contexts_go_in_small_microbatches() {
        let options = |exact, context_length| WindowOptions {
            context_length,
            exact,
            ..WindowOptions::default()
        };
        let fast = |width| microbatch(width, 32, &options(false, 1 << 20));
        assert_eq!([576, 1024, 3072, 8192, 65_536].map(fast), [512, 512, 128, 64, 32]);
        let exact = |context_length| microbatch(1024, 32, &options(true, context_length));
        assert_eq!([256, 1024, 4096, 1 << 20].map(exact), [512, 256, 64, 32]);
    }
}
