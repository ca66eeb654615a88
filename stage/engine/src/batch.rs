//! How the spans of a lap become calls of `llama_decode` whose rows come back in a known order.
//!
//! llama.cpp cuts a batch into microbatches by sequence (`llama_batch_allocr::split_equal`, sequential): it takes runs
//! of neighbouring sequence ids, as many rows of each, lowest id first. So a call is safe when its spans are in slot
//! order, have one length, and fit one microbatch together: whether llama.cpp then runs it as one microbatch or, for
//! slots with gaps between them, as several, rows come out in the order they went in.

use crate::Span;

/// Rows of one slot within a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) slot: u32,
    pub(crate) position: u32,
    pub(crate) count: u32,
    /// first of its rows in the caller's batch
    pub(crate) row: usize,
}

/// One call of `llama_decode`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) parts: Vec<Part>,
}

impl Call {
    pub(crate) fn rows(&self) -> usize {
        self.parts.iter().map(|part| part.count as usize).sum()
    }

    /// Rows of the caller's batch in the order of this call.
    pub(crate) fn order(&self) -> impl Iterator<Item = usize> {
        self.parts
            .iter()
            .flat_map(|part| part.row..part.row + part.count as usize)
    }
}

/// Splits spans of distinct slots into calls of at most `limit` rows (≥ 1). Depends only on the spans and the limit,
/// so every rank splits a lap in the same way.
pub(crate) fn plan(spans: &[Span], limit: u32) -> Vec<Call> {
    let mut row = 0;
    let mut parts: Vec<Part> = Vec::with_capacity(spans.len());
    for span in spans {
        parts.push(Part {
            slot: span.slot,
            position: span.position,
            count: span.count,
            row,
        });
        row += span.count as usize;
    }
    parts.sort_by_key(|part| (part.count, part.slot));

    let mut calls = Vec::new();
    for group in parts.chunk_by(|a, b| a.count == b.count) {
        let count = group[0].count;
        if count <= limit {
            calls.extend(
                group
                    .chunks((limit / count) as usize)
                    .map(|parts| Call { parts: parts.to_vec() }),
            );
        } else {
            calls.extend(group.iter().flat_map(|part| slices(*part, limit)));
        }
    }
    calls
}

/// A span longer than a microbatch, in slices that follow each other.
fn slices(part: Part, limit: u32) -> impl Iterator<Item = Call> {
    (0..part.count).step_by(limit as usize).map(move |start| Call {
        parts: vec![Part {
            position: part.position + start,
            row: part.row + start as usize,
            count: limit.min(part.count - start),
            ..part
        }],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn span(slot: u32, position: u32, count: u32) -> Span {
        Span { slot, position, count }
    }

    #[test]
    fn a_decode_lap_is_one_call_in_slot_order() {
        let calls = plan(&[span(3, 7, 1), span(0, 5, 1), span(2, 9, 1)], 8);
        assert_eq!(calls.len(), 1);
        assert_eq!(calls[0].parts.iter().map(|p| p.slot).collect::<Vec<_>>(), [0, 2, 3]);
        assert_eq!(calls[0].order().collect::<Vec<_>>(), [1, 2, 0]);
    }

    #[test]
    fn a_long_prompt_goes_in_slices() {
        let calls = plan(&[span(1, 10, 20)], 8);
        let parts: Vec<_> = calls
            .iter()
            .map(|c| (c.parts[0].position, c.parts[0].count, c.parts[0].row))
            .collect();
        assert_eq!(parts, [(10, 8, 0), (18, 8, 8), (26, 4, 16)]);
    }

    proptest! {
        #[test]
        fn every_row_is_computed_once_and_in_order(counts in prop::collection::vec(1u32..40, 1..8), limit in 1u32..64, seed: u64) {
            let mut slots: Vec<u32> = (0..counts.len() as u32).collect();
            slots.sort_by_key(|slot| seed.rotate_left(slot * 7) ^ u64::from(*slot));
            let spans: Vec<Span> = slots.iter().zip(&counts).map(|(&slot, &count)| span(slot, slot * 100, count)).collect();
            let calls = plan(&spans, limit);
            let mut next: Vec<u32> = (0..counts.len() as u32).map(|slot| slot * 100).collect();
            let mut rows = Vec::new();
            for call in &calls {
                prop_assert!(call.rows() <= limit as usize);
                prop_assert!(call.parts.is_sorted_by(|a, b| a.slot < b.slot && a.count == b.count));
                for part in &call.parts {
                    prop_assert_eq!(part.position, next[part.slot as usize]);
                    next[part.slot as usize] += part.count;
                }
                rows.extend(call.order());
            }
            rows.sort_unstable();
            prop_assert_eq!(rows, (0..counts.iter().sum::<u32>() as usize).collect::<Vec<_>>());
        }
    }
}
