//! `kvasir bench`: the whole model in one process against the ring, side by side.

pub mod stats;
