//! Which cache slot of this stage holds which sequence. Pure.
//!
//! Sequence ids are opaque and never reused; slots are 0…sequences−1, the lowest free one is taken, so that the
//! sequences of a batch lie side by side (llama.cpp runs neighbouring slots as one batch).

use std::collections::BTreeMap;

/// A slot was asked for and none is free: the sender broke the manifest's limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("sequence {sequence} would be one more than the {sequences} that the manifest allows")]
pub struct NoFreeSlot {
    /// the sequence that found none
    pub sequence: u64,
    /// slots there are
    pub sequences: u32,
}

/// Sequences of one epoch and their slots.
#[derive(Debug)]
pub(crate) struct Slots {
    by_sequence: BTreeMap<u64, u32>,
    free: Vec<bool>,
}

impl Slots {
    /// All slots free.
    pub(crate) fn new(sequences: u32) -> Self {
        Slots {
            by_sequence: BTreeMap::new(),
            free: vec![true; sequences as usize],
        }
    }

    /// The slot of a sequence, a free one when it is new. The flag is true when it is new.
    pub(crate) fn of(&mut self, sequence: u64) -> Result<(u32, bool), NoFreeSlot> {
        if let Some(&slot) = self.by_sequence.get(&sequence) {
            return Ok((slot, false));
        }
        let sequences = self.free.len() as u32;
        let slot = self
            .free
            .iter()
            .position(|&f| f)
            .ok_or(NoFreeSlot { sequence, sequences })?;
        self.free[slot] = false;
        self.by_sequence.insert(sequence, slot as u32);
        Ok((slot as u32, true))
    }

    /// The slot of a sequence that is there.
    pub(crate) fn get(&self, sequence: u64) -> Option<u32> {
        self.by_sequence.get(&sequence).copied()
    }

    /// Frees a sequence's slot; `None` when it has none.
    pub(crate) fn close(&mut self, sequence: u64) -> Option<u32> {
        let slot = self.by_sequence.remove(&sequence)?;
        self.free[slot as usize] = true;
        Some(slot)
    }

    /// All sequences and their slots.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        self.by_sequence.iter().map(|(&s, &slot)| (s, slot))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_free_slot_is_taken_and_given_back() {
        let mut slots = Slots::new(2);
        assert_eq!(slots.of(7), Ok((0, true)));
        assert_eq!(slots.of(9), Ok((1, true)));
        assert_eq!(slots.of(7), Ok((0, false)));
        assert_eq!(
            slots.of(11),
            Err(NoFreeSlot {
                sequence: 11,
                sequences: 2
            })
        );
        assert_eq!(slots.close(7), Some(0));
        assert_eq!(slots.of(11), Ok((0, true)));
        assert_eq!(slots.close(7), None);
    }
}
