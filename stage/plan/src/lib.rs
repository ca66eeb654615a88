//! Which windows a model is cut into, and who holds them: model profile, planner, rank manifest. Pure, no I/O.

pub mod manifest;

pub use manifest::{BoundaryType, Holder, LayerRange, Link, ModelRef, Rank, RankManifest};
