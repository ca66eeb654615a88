//! Log lines on standard error.

use std::io::IsTerminal;

use tracing_subscriber::{EnvFilter, fmt};

/// Sends log lines to standard error: text, or JSON when `KVASIR_LOG_FORMAT=json`. Levels come from `RUST_LOG`.
pub fn log_to_stderr() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let lines = fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(colours())
        .with_target(false);
    if std::env::var("KVASIR_LOG_FORMAT").is_ok_and(|form| form == "json") {
        lines.json().init();
    } else {
        lines.init();
    }
}

/// Whether log lines may have colours: on a terminal whose user doesn't forbid them (<https://no-color.org>).
pub fn colours() -> bool {
    let forbidden = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    !forbidden && std::io::stderr().is_terminal()
}
