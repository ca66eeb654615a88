//! What the black-box tests stand on: models, a real Range server, and a ring of real processes.
//!
//! Nothing here imitates a part of Kvasir Ring: the tests start the programs that users start.
#![allow(
    clippy::missing_panics_doc,
    clippy::unwrap_used,
    reason = "what can't do its work here ends the test"
)]

pub mod client;
pub mod cluster;
pub mod deadline;
pub mod gguf;
pub mod models;
pub mod network;
pub mod nginx;
pub mod postgres;
pub mod process;
pub mod random_model;
pub mod ring;
mod skip;
pub mod stand_in;

pub use skip::skip;
