//! The command line of a stage: `fetch` (an init container's job), `run`, and `join`, which does both for windows of the
//! market.

mod fetch;
mod health;
mod join;
mod profile;
mod run;
mod trial;
mod window;

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, Subcommand};
use kvasir_plan::RankManifest;
use tokio::io::AsyncReadExt;

use crate::trial::Trial;

pub use window::load;

/// One rank of a ring: fetches its window of a model, and runs it.
#[derive(Debug, Parser)]
#[command(name = "kvasir-stage", version)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Fetch one window by HTTP Range into a folder, or leave it as it is when it is there.
    Fetch(fetch::Args),
    /// Print what planning needs to know of a model: its prefix is read, and nothing else.
    Profile(profile::Args),
    /// Run a fetched window as one rank of a ring.
    Run(Box<run::Args>),
    /// Claim windows of a ring, fetch them, and serve them until they are handed back: what `kvasir join` starts.
    Join(Box<join::Args>),
    /// Load a file that has no weights yet: what `fetch` starts before it asks for any
    #[command(hide = true)]
    Trial(trial::Args),
}

impl Cli {
    /// Runs the command; an error is one line on standard error, with its causes. `way` are the arguments that lead to this
    /// command line in the running program, which starts itself again for trials.
    pub fn run(self, way: &'static [&'static str]) -> ExitCode {
        let trial = Trial::by_this_program(way);
        // One provider for the process: several compiled in leave rustls without a default.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let done = match self.command {
            Command::Fetch(args) => block_on(args.run(&trial)),
            Command::Profile(args) => block_on(args.run(&trial)),
            Command::Run(args) => args.prepare().and_then(|prepared| block_on(args.run(prepared))),
            Command::Join(args) => args.prepare().and_then(|prepared| block_on(args.run(prepared, &trial))),
            Command::Trial(args) => return args.run(),
        };
        match done {
            Ok(()) => ExitCode::SUCCESS,
            Err(e) => {
                tracing::error!("{e:#}");
                ExitCode::FAILURE
            }
        }
    }
}

fn block_on(job: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Runtime::new().context("cannot start the async runtime")?;
    let done = runtime.block_on(job);
    // Threads that still read a file or compute must not keep the process.
    runtime.shutdown_background();
    done
}

/// Waits for the end of standard input, if that means anything: whatever ends it has ended the parent.
async fn stdin_ended(means_the_end: bool) {
    if means_the_end {
        // Nothing is said on it.
        let _ = tokio::io::stdin().read_to_end(&mut Vec::new()).await;
    } else {
        std::future::pending::<()>().await;
    }
}

/// The plan that a rank is fetched and loaded for.
fn read_plan(path: &Path) -> anyhow::Result<RankManifest> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read the plan {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is no plan", path.display()))
}

/// A line for the program that started this one; when it is gone there is nobody to tell.
fn say(event: &serde_json::Value) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{event}").and_then(|()| out.flush());
}
