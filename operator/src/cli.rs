//! The command line of the operator.

use std::{io::Write as _, process::ExitCode};

use anyhow::Context as _;
use clap::{Parser, Subcommand};

use crate::{run, settings::Settings};

/// Keeps the Rings of a cluster served.
#[derive(Debug, Parser)]
#[command(name = "kvasir-operator", version)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Work until SIGTERM
    Run(Box<Settings>),
    /// Print the custom resource definition of Ring
    Crd,
}

impl Cli {
    /// Runs the command; an error is one line on standard error, with its causes.
    pub fn run(self) -> ExitCode {
        // One provider for the process: several compiled in leave rustls without a default.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let done = match self.command {
            Command::Run(settings) => work(*settings),
            Command::Crd => print_definition(),
        };
        match done {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                tracing::error!("{error:#}");
                ExitCode::FAILURE
            }
        }
    }
}

fn work(settings: Settings) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Runtime::new().context("cannot start the async runtime")?;
    runtime.block_on(run::run(settings))
}

fn print_definition() -> anyhow::Result<()> {
    let text = kvasir_api::crd_yaml()?;
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(())
}
