//! A node's side of the market: which run of windows to claim. Pure, so that it is tested together with the rules.
//!
//! A node wants the run that pays most and fits its memory. For a little less it takes one at either end of a gap, since
//! one from the middle leaves two gaps, and a ring with a gap pays nobody. Of runs that pay the same it takes the one in
//! the smallest gap, and there the first: whole gaps are filled, and what is left over stays in one piece for a larger
//! node.

use std::cmp::Reverse;

use crate::types::{Offer, OfferedWindow, Run, WindowState};

/// What a run at the end of a gap pays at least, beside the best one: seven eighths.
const LESS: (u128, u128) = (7, 8);

/// A run that a node would claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// the ring
    pub ring: String,
    /// its windows
    pub windows: Run,
    /// µcredit per million tokens
    pub rate: u64,
    /// bytes of memory that they take
    pub memory: u64,
    /// bytes to fetch
    pub bytes: u64,
}

/// The best claim for a node with so many bytes of memory; none when nothing that is open fits.
pub fn choose(offers: &[Offer], memory: u64) -> Option<Choice> {
    let best = |offer: &Offer| {
        let choice = choose_run(&offer.windows, memory, offer.limit)?;
        Some(Choice {
            ring: offer.ring.clone(),
            ..choice
        })
    };
    let choices = offers.iter().filter_map(best);
    // of equals the first ring's: offers come in one order for all
    choices.reduce(|best, next| if next.rate > best.rate { next } else { best })
}

/// The best run among windows of one ring, which may be those that a refusal lists; `limit` is the most windows that the
/// node may ask for. The choice's ring is empty.
pub fn choose_run(windows: &[OfferedWindow], memory: u64, limit: Option<u32>) -> Option<Choice> {
    let open: Vec<&OfferedWindow> = windows
        .iter()
        .filter(|window| window.state == WindowState::Open)
        .collect();
    let follows = |a: &&OfferedWindow, b: &&OfferedWindow| a.index.checked_add(1) == Some(b.index);
    let limit = limit.map_or(usize::MAX, |limit| limit as usize);
    let runs = open.chunk_by(follows).flat_map(|gap| {
        let end = gap.last().map_or(0, |last| last.index + 1);
        let runs = (0..gap.len()).filter_map(move |start| Some((start, fitting(&gap[start..], memory, limit)?)));
        runs.map(move |(start, choice)| (start == 0 || choice.windows.end == end, choice, gap.len()))
    });
    let runs: Vec<(bool, Choice, usize)> = runs.collect();
    let most = u128::from(runs.iter().map(|(_, choice, _)| choice.rate).max()?);
    let enough = |choice: &Choice| u128::from(choice.rate) * LESS.1 >= most * LESS.0;
    let order = |(at_end, choice, gap): &(bool, Choice, usize)| {
        (*at_end, choice.rate, Reverse(*gap), Reverse(choice.windows.start))
    };
    let candidates = runs.into_iter().filter(|(_, choice, _)| enough(choice));
    candidates.max_by_key(order).map(|(_, choice, _)| choice)
}

/// The longest run from the first window that fits; rates add up, so longer is better.
fn fitting(gap: &[&OfferedWindow], memory: u64, limit: usize) -> Option<Choice> {
    let first = gap.first()?.index;
    let mut choice = Choice {
        ring: String::new(),
        windows: Run {
            start: first,
            end: first,
        },
        rate: 0,
        memory: 0,
        bytes: 0,
    };
    for window in gap.iter().take(limit) {
        let taken = choice.memory.saturating_add(window.memory);
        if taken > memory {
            break;
        }
        choice.memory = taken;
        choice.windows.end = window.index + 1;
        choice.rate = choice.rate.saturating_add(window.rate);
        choice.bytes = choice.bytes.saturating_add(window.bytes);
    }
    (!choice.windows.is_empty()).then_some(choice)
}
