//! Which windows a model is cut into, and who holds them: model profile, planner, rank manifest. Pure, no I/O.
//!
//! The way through: [`ModelProfile::of`] a model's prefix; [`plan`] it onto [`Device`]s under a [`Request`];
//! [`Plan::manifest`], which the holders of the ranks are written into later; [`RankManifest::validate`] at every stage.
//!
//! All arithmetic is in integers (bytes, nanoseconds) and checked: the same input gives the same plan on every machine.

mod balance;
mod check;
pub mod manifest;
mod manual;
mod needs;
mod outcome;
pub mod profile;
mod request;
mod search;

pub use check::{InvalidManifest, MAX_LAYERS};
pub use manifest::{BoundaryType, Holder, LapShape, LayerRange, Link, ModelRef, Rank, RankManifest};
pub use needs::{Need, Needs};
pub use outcome::{Error, Plan, PlannedRank, Row, plan};
pub use profile::{Layer, LayerKind, ModelProfile};
pub use request::{CacheType, Device, MarketTerms, Placement, Request, Window, WindowHolder};
