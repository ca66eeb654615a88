//! The bounds that every length on an edge is checked against before anything is allocated.

use kvasir_plan::{BoundaryType, RankManifest};

use crate::{
    boundary::{self, BoundaryError},
    frame::Kind,
};

/// Bytes of a ring's name or of a model identity in a hello.
pub const MAX_NAME_BYTES: usize = 1024;
/// Bytes of a grammar in an open frame.
pub const MAX_GRAMMAR_BYTES: usize = 1 << 20;
/// Biased tokens in an open frame.
pub const MAX_LOGIT_BIASES: usize = 1 << 16;
/// Bytes of the text that says why a sampler gave no token.
pub const MAX_ERROR_BYTES: usize = 4096;
/// Likeliest tokens that a sampled token may report; the request counts them in a byte.
pub const MAX_TOP: usize = 255;
/// Bytes of any frame, whatever a manifest says.
pub const MAX_FRAME_BYTES: usize = 1 << 30;

/// The ring's dimensions, as its manifest states them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// width of a hidden state, in values
    pub embedding_length: u32,
    /// how hidden states travel
    pub boundary_type: BoundaryType,
    /// rows in one lap at most
    pub max_lap_tokens: u32,
    /// sequences served at once
    pub sequences: u32,
    /// tokens in the vocabulary
    pub vocabulary: u32,
    /// positions that one sequence may hold (the context length), and so tokens in a prompt
    pub max_prompt: u32,
}

impl Limits {
    /// The limits of the ring that `manifest` describes.
    pub fn of(manifest: &RankManifest) -> Limits {
        Limits {
            embedding_length: manifest.model.embedding_length,
            boundary_type: manifest.boundary_type,
            max_lap_tokens: manifest.max_lap_tokens,
            sequences: manifest.sequences,
            vocabulary: manifest.model.vocabulary,
            max_prompt: manifest.context_length,
        }
    }

    /// Bytes of one row of hidden states.
    ///
    /// # Errors
    /// [`BoundaryError::Blocks`] where the embedding length doesn't fit the boundary type.
    pub fn row_bytes(&self) -> Result<usize, BoundaryError> {
        boundary::row_bytes(self.boundary_type, self.embedding_length)
    }

    /// Spans in one lap at most: each is of another sequence and holds a row.
    pub fn max_spans(&self) -> usize {
        self.sequences.min(self.max_lap_tokens) as usize
    }

    /// Entries of a report at most: every live sequence, and as many whose end is still on its way.
    pub fn max_report(&self) -> usize {
        (self.sequences as usize).saturating_mul(2)
    }

    /// Bytes of a whole row of logits.
    pub fn logits_bytes(&self) -> usize {
        (self.vocabulary as usize).saturating_mul(4)
    }

    /// Bytes that a frame of `kind` takes at most, its kind byte included; never more than [`MAX_FRAME_BYTES`].
    pub fn frame_bytes(&self, kind: Kind) -> usize {
        let bytes = match kind {
            Kind::Hello => 64 + 2 * MAX_NAME_BYTES,
            Kind::Lap => {
                let hidden = (self.max_lap_tokens as usize).saturating_mul(self.row_bytes().unwrap_or(0));
                self.max_spans()
                    .saturating_mul(16)
                    .saturating_add(hidden)
                    .saturating_add(32)
            }
            Kind::Tokens => {
                let sampled = 64 + 8 * MAX_TOP + MAX_ERROR_BYTES + self.logits_bytes();
                (self.sequences as usize).saturating_mul(sampled).saturating_add(32)
            }
            Kind::Open => {
                let prompt = (self.max_prompt as usize).saturating_mul(4);
                prompt.saturating_add(128 + 8 * MAX_LOGIT_BIASES + MAX_GRAMMAR_BYTES)
            }
            Kind::Report => self.max_report().saturating_mul(12).saturating_add(16),
            Kind::Failed => 64 + MAX_ERROR_BYTES,
            Kind::Close | Kind::Fork | Kind::Truncate | Kind::Replay | Kind::Drain | Kind::Ping => 32,
        };
        bytes.min(MAX_FRAME_BYTES)
    }
}
