//! The ring at run time, as one rank sees it.
//!
//! ```text
//!   API ── handle ── head ──┐ jobs                        (rank 0 only: head, schedule)
//!                           ▼
//!   predecessor ─ session ─ worker ─ edge ─▶ successor    (every rank: link, relays, session, worker, slots, compute)
//! ```

pub mod compute;
mod engine;
#[cfg(test)]
mod flow_model;
pub mod handle;
pub mod head;
pub mod link;
pub mod relays;
pub mod schedule;
#[cfg(test)]
mod schedule_tests;
pub mod session;
pub mod slots;
pub(crate) mod worker;

pub use engine::{Embedding, Loaded};
