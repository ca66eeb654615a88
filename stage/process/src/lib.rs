//! What every program of a ring does alike: its log lines, its end by a signal, and how it tells an error.

mod log;
mod signals;
mod told;

pub use log::{colours, log_to_stderr};
pub use signals::stop_on_signals;
pub use told::chain;
