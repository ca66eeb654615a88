//! What an edge promises, over in-memory streams and TCP.

#![allow(clippy::unwrap_used, reason = "tests end at the first surprise")]

mod ends;
mod liveness;
mod opening;
mod passage;
