//! The `kvasir` command line: runs a Ring on this machine, plans it, looks into models, cuts windows, chats, measures.
//!
//! One module per command (`up`, `plan`, `inspect`, `slice`, `chat`, `bench`, `join`, `invite`, `status`). `planned` reads
//! a Ring and plans it, `local` is a ring of processes on this machine, `supervise` keeps child processes, `table` prints,
//! `failure` says what went wrong and with which exit code.

pub mod bench;
pub mod chat;
pub mod failure;
pub mod inspect;
pub mod invite;
pub mod join;
mod local;
pub mod plan;
pub mod planned;
mod signals;
pub mod slice;
pub mod status;
pub mod supervise;
pub mod table;
pub mod up;

use std::{ffi::OsString, net::IpAddr, process::ExitCode, time::Duration};

use clap::Parser;
use reqwest::Url;

/// The command that is `kvasir-stage`.
const STAGE: &str = "stage";

/// Kvasir Ring: serves a language model by stages in a circle, each of which holds only a window of its layers.
#[derive(Debug, Parser)]
#[command(name = "kvasir", version, after_help = failure::EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Up(up::Up),
    Plan(plan::Plan),
    Inspect(inspect::Inspect),
    Slice(slice::Slice),
    Chat(chat::Chat),
    Bench(bench::BenchCommand),
    Join(join::Join),
    Invite(invite::Invite),
    Status(status::Status),
    /// What `kvasir up` starts for each window: the command line of `kvasir-stage`
    #[command(name = STAGE, hide = true)]
    Stage(kvasir_stage::cli::Cli),
    /// What `kvasir bench relay` starts: the command line of `kvasir-relay`
    #[command(hide = true)]
    Relay(kvasir_relay::cli::Cli),
}

/// Runs the command that `args` name, the program's own name first.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() {
                failure::USAGE.into()
            } else {
                ExitCode::SUCCESS
            };
        }
    };
    if let Command::Stage(stage) = cli.command {
        kvasir_process::log_to_stderr();
        return stage.run(&[STAGE]);
    }
    if let Command::Relay(relay) = cli.command {
        kvasir_process::log_to_stderr();
        return relay.run();
    }
    let logs = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "warn".into());
    tracing_subscriber::fmt()
        .with_env_filter(logs)
        .with_writer(std::io::stderr)
        .with_ansi(kvasir_process::colours())
        .init();
    // Another provider can't have been installed before; if it was, it serves as well.
    let _ = rustls::crypto::ring::default_provider().install_default();
    match block_on(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failure::tell(&error),
    }
}

#[tokio::main]
async fn block_on(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Up(up) => up.run().await,
        Command::Plan(plan) => plan.run().await,
        Command::Inspect(inspect) => inspect.run().await,
        Command::Slice(slice) => slice.run().await,
        Command::Chat(chat) => chat.run().await,
        Command::Bench(bench) => bench.run().await,
        Command::Join(join) => join.run().await,
        Command::Invite(invite) => invite.run().await,
        Command::Status(status) => status.run().await,
        // `run` took them: they make runtimes of their own.
        Command::Stage(_) | Command::Relay(_) => Ok(()),
    }
}

/// A client for the API at `url`, which gives up when nothing comes for `silence`. Proxies are for addresses elsewhere.
fn http_client(url: &Url, silence: Duration) -> anyhow::Result<reqwest::Client> {
    let http = reqwest::Client::builder()
        .connect_timeout(Duration::from_secs(5))
        .read_timeout(silence);
    let host = url.host_str().unwrap_or_default();
    let address: Option<IpAddr> = host.trim_matches(['[', ']']).parse().ok();
    let here = host == "localhost" || address.is_some_and(|address| address.is_loopback());
    Ok(if here { http.no_proxy() } else { http }.build()?)
}
