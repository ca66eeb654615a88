//! Runs one window of a model on llama.cpp: hidden states in, hidden states or logits out.
//!
//! - [`Backend`] is llama.cpp in this process, in fast or exact mode.
//! - [`Window`] is a contiguous range of layers with the cache of its sequences; [`Whole`] is the model in one piece.
//! - [`Embedder`] and [`Vocabulary`] are rank 0's ends of it, [`sampler`] is the last rank's.
//! - [`try_outline`] asks whether a file could be run, before its weights are there.
//!
//! llama.cpp aborts the process when a precondition is hurt, so all are checked here and become [`EngineError`]s. All
//! `unsafe` code of the project lives in this crate.

#![allow(unsafe_code, reason = "the crate that speaks to llama.cpp")]

mod arrays;
mod backend;
mod batch;
mod context;
mod embedder;
mod error;
mod hole;
mod log;
mod model;
mod nodes;
pub mod sampler;
mod size;
mod table;
mod threads;
mod trial;
mod vocabulary;
mod whole;
mod window;

pub use backend::{Backend, Mode};
pub use embedder::Embedder;
pub use error::EngineError;
pub use trial::{Gives, try_outline};
pub use vocabulary::Vocabulary;
pub use whole::Whole;
pub use window::{CacheType, Output, Span, Window, WindowOptions};
