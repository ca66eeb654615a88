//! What ranks will fetch, from the tensor table alone.

use std::ops::Range;

use super::{Error, is_tied};
use crate::arch::{self, GlobalRole};
use crate::model::Model;
use crate::tensor::layer_of;

/// Bytes of a model's tensors by who needs them, for planning without cutting anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorBytes {
    /// each layer of the trunk
    pub layers: Vec<u64>,
    /// all MTP blocks
    pub mtp: u64,
    /// what every window carries
    pub every: u64,
    /// `token_embd.weight`, which rank 0 reads
    pub embedding: u64,
    /// output norm and head, which the last rank holds; a tied head counts here as well
    pub head: u64,
    /// the head is the embedding
    pub tied: bool,
}

impl TensorBytes {
    /// Adds up the tensor table.
    pub fn of(model: &Model) -> Result<TensorBytes, Error> {
        let architecture = arch::of(model)?;
        model.check_blocks()?;
        let mut blocks = vec![0; model.block_count() as usize];
        let (mut every, mut embedding, mut head) = (0, 0, 0);
        for tensor in model.tensors() {
            let bytes = tensor.bytes()?;
            match layer_of(&tensor.name) {
                Some((layer, _)) => blocks[layer as usize] += bytes,
                None => match architecture.global(&tensor.name)? {
                    GlobalRole::Embedding => embedding += bytes,
                    GlobalRole::Head => head += bytes,
                    GlobalRole::Every => every += bytes,
                },
            }
        }
        let tied = is_tied(model);
        let mtp = blocks.split_off(model.layers() as usize).iter().sum();
        Ok(TensorBytes {
            layers: blocks,
            mtp,
            every,
            embedding,
            head: if tied { head + embedding } else { head },
            tied,
        })
    }

    /// What a rank fetches: its layers, for the first rank the embedding, for the last one the head. A rank that is both
    /// fetches a tied embedding once.
    pub fn rank(&self, layers: Range<u32>, first: bool, last: bool) -> u64 {
        let window: u64 = self
            .layers
            .iter()
            .take(layers.end as usize)
            .skip(layers.start as usize)
            .sum();
        let embedding = if first && !(last && self.tied) {
            self.embedding
        } else {
            0
        };
        window + self.every + embedding + if last { self.head } else { 0 }
    }
}
