//! A stage: fetches one window, runs it, and is one rank of the ring.

pub mod ring;
