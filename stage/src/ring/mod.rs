//! The ring at run time, as one rank sees it. `handle` is what rank 0's API holds of it.

pub mod handle;
