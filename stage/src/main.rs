//! One rank of a ring; see `kvasir-stage --help`.

use std::process::ExitCode;

use clap::Parser;
use kvasir_stage::cli::Cli;

fn main() -> ExitCode {
    let cli = Cli::parse();
    kvasir_process::log_to_stderr();
    cli.run(&[])
}
