//! What a rank asks of its engine. The real one is `kvasir-engine`; the ring's own tests bring a toy.

pub use kvasir_engine::Span as SlotSpan;
use kvasir_wire::frame::{Sampled, Sampling};

/// Why an engine could not do its part; the ring gives up the epoch.
#[derive(Debug, thiserror::Error)]
#[error("the engine failed")]
pub struct ComputeError(#[source] pub Box<dyn std::error::Error + Send + Sync>);

/// Picks the tokens of one sequence.
pub trait Sample: Send {
    /// From one row of logits, which it may overwrite, the token at `position`. `sequence` is left 0. An error that
    /// belongs to this sequence alone (a grammar that nothing satisfies) is told in [`Sampled::error`].
    fn sample(&mut self, logits: &mut [f32], position: u32) -> Sampled;
}

/// One window, and at the ends the embedding and the sampler.
pub trait Compute: Send {
    /// Width of a hidden state.
    fn embedding_length(&self) -> usize;
    /// Rank 0: rows of the embedding matrix, `tokens.len()` × embedding length.
    fn embed(&mut self, tokens: &[i32], out: &mut Vec<f32>) -> Result<(), ComputeError>;
    /// Runs the window: rows × embedding length in and out.
    fn run(&mut self, spans: &[SlotSpan], hidden: &[f32], out: &mut Vec<f32>) -> Result<(), ComputeError>;
    /// Last rank: the window and the head; logits of the rows `want` (indices into the batch), row-major.
    fn run_logits(
        &mut self,
        spans: &[SlotSpan],
        hidden: &[f32],
        want: &[u32],
        out: &mut Vec<f32>,
    ) -> Result<(), ComputeError>;
    /// Last rank: how one sequence is sampled; the text says what is wrong with the request.
    fn sampler(&mut self, sampling: &Sampling, prompt: &[i32]) -> Result<Box<dyn Sample>, String>;
    /// Forgets what a slot holds.
    fn clear(&mut self, slot: u32);
    /// `to` becomes a copy of the first `length` positions of `from`.
    fn copy(&mut self, from: u32, to: u32, length: u32) -> Result<(), ComputeError>;
    /// Forgets a slot's positions from `length` on.
    fn truncate(&mut self, slot: u32, length: u32) -> Result<(), ComputeError>;
}
