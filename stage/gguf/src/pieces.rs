//! The pieces in which a mini-GGUF is fetched, checked and resumed.

use crate::window::{MiniGguf, Source};

/// A piece is at most this long: what is lost when a download breaks off, and what each connection holds in memory.
pub(crate) const LARGEST: u64 = 8 << 20;
/// Tensors with no more than this between them are fetched together; it is padding to the alignment.
const LARGEST_GAP: u64 = 256;

/// Bytes of a part, and where they go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// part, from 0
    pub(crate) part: usize,
    /// first byte in the part's file
    pub(crate) offset: u64,
    /// first byte in the mini-GGUF
    pub(crate) start: u64,
    /// bytes
    pub(crate) len: u64,
}

/// All that is fetched, in the order of the file. Tensors that are neighbours in both files become one run.
pub(crate) fn pieces(mini: &MiniGguf) -> Vec<Piece> {
    let mut runs: Vec<Piece> = Vec::new();
    for tensor in &mini.tensors {
        let Source::Range { part, offset, len } = tensor.source else {
            continue;
        };
        if let Some(run) = runs.last_mut().filter(|run| run.part == part) {
            let (end, written) = (run.offset + run.len, run.start + run.len);
            let gap = offset.checked_sub(end).filter(|gap| *gap <= LARGEST_GAP);
            if gap.is_some() && gap == tensor.start.checked_sub(written) {
                run.len = offset + len - run.offset;
                continue;
            }
        }
        runs.push(Piece {
            part,
            offset,
            start: tensor.start,
            len,
        });
    }
    runs.into_iter().filter(|run| run.len > 0).flat_map(cut).collect()
}

/// Cuts a run into pieces of equal length, as few as may be.
fn cut(run: Piece) -> impl Iterator<Item = Piece> {
    let step = run.len.div_ceil(run.len.div_ceil(LARGEST));
    (0..run.len.div_ceil(step)).map(move |index| {
        let from = index * step;
        Piece {
            offset: run.offset + from,
            start: run.start + from,
            len: step.min(run.len - from),
            ..run
        }
    })
}

/// Bytes that no source has, and where they go.
pub(crate) fn made_up(mini: &MiniGguf) -> impl Iterator<Item = (u64, &[u8])> {
    let tensors = mini.tensors.iter().filter_map(|tensor| match &tensor.source {
        Source::Bytes(bytes) => Some((tensor.start, &bytes[..])),
        Source::Range { .. } | Source::Hole { .. } => None,
    });
    std::iter::once((0, &mini.header[..])).chain(tensors)
}
