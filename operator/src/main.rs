//! The operator; see `kvasir-operator --help`.

use std::process::ExitCode;

use clap::Parser;
use kvasir_operator::cli::Cli;

fn main() -> ExitCode {
    let cli = Cli::parse();
    kvasir_process::log_to_stderr();
    cli.run()
}
