//! What a window pays: µcredit per million tokens = weight × scarcity, in integers.

use kvasir_plan::Rank;

use super::Millis;

/// µcredit per million tokens that a claim earns at most, so that an epoch's worth fits in 63 bits.
pub const MAX_RATE: u64 = 10_000_000_000;

/// Scarcity is in thousandths.
const ONE: u64 = 1000;
/// Uncovered time that adds the price once more.
const UNCOVERED_ONCE_MORE: Millis = 600_000;
/// Thousandths that uncovered time adds at most, so that nobody gains by letting a ring lie open.
const MOST_FOR_UNCOVERED: u64 = 8 * ONE;
/// Thousandths for each request that waits, and at most.
const FOR_QUEUED: u64 = 50;
const MOST_FOR_QUEUED: u64 = 4 * ONE;

/// What carrying a window is worth when it isn't scarce, in µcredit per million tokens: one for each KB that it keeps in
/// memory and each thousand weights of a dense block of its width that a token passes (12·d² a layer), so that a GB is
/// about a credit. Experts take memory and little compute; both terms count.
pub fn weight(window: &Rank, embedding_length: u32) -> u64 {
    let width = u64::from(embedding_length);
    let block = width.saturating_mul(width).saturating_mul(12);
    let compute = block.saturating_mul(window.layers.len().into());
    (window.bytes.saturating_add(compute) / 1000).clamp(1, MAX_RATE)
}

/// How scarce a window is, in thousandths: 1000 when it was given up just now and nothing waits.
pub fn scarcity(uncovered_for: Millis, queued: u32) -> u64 {
    let uncovered = uncovered_for.saturating_mul(ONE) / UNCOVERED_ONCE_MORE;
    let queued = u64::from(queued) * FOR_QUEUED;
    ONE + uncovered.min(MOST_FOR_UNCOVERED) + queued.min(MOST_FOR_QUEUED)
}

/// µcredit per million tokens for who claims the window now.
pub fn rate(window: &Rank, embedding_length: u32, uncovered_for: Millis, queued: u32) -> u64 {
    let scarce = u128::from(weight(window, embedding_length)) * u128::from(scarcity(uncovered_for, queued));
    u64::try_from(scarce / u128::from(ONE)).map_or(MAX_RATE, |rate| rate.min(MAX_RATE))
}
