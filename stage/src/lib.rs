//! A stage: fetches one window, runs it, and is one rank of the ring.

pub mod api;
pub mod cli;
pub mod fetch;
pub mod ring;
pub mod run;
mod strikes;
pub mod trial;
mod vocabulary;
