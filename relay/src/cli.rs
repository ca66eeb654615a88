//! The command line of a relay.

use std::{net::SocketAddr, path::PathBuf, process::ExitCode, thread::available_parallelism, time::Duration};

use anyhow::{Context as _, ensure};
use clap::Parser;
use kvasir_market::{Admission, Market, TicketKey, router};
use kvasir_process::stop_on_signals;
use kvasir_wire::trust::PublicKey;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::{
    bridge::{BridgeConfig, BridgeTimings},
    serve::{RelayConfig, serve_with},
    store::Database,
    tls::{RELOAD_EVERY, TlsFiles},
};

/// Files of a relay beside those of its legs.
pub const OTHER_FILES: u64 = 512;

/// A relay: bridges the edges of stages that can't be dialled, and serves the market.
#[derive(Debug, Parser)]
#[command(name = "kvasir-relay", version)]
pub struct Cli {
    /// Where to listen
    #[arg(long, env = "KVASIR_LISTEN", default_value = "0.0.0.0:8443")]
    listen: SocketAddr,
    /// This relay's address as stages dial it, also through a proxy: `https://relay.example`
    #[arg(long, env = "KVASIR_PUBLIC_URL")]
    public_url: String,
    /// Certificate chain in PEM; plain HTTP without it, for a proxy that does TLS. Read again when it changes
    #[arg(long, env = "KVASIR_TLS_CERT", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Private key in PEM
    #[arg(long, env = "KVASIR_TLS_KEY", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// File of the market's database, or `:memory:`, which is lost with the process. With `DATABASE_URL` in the environment
    /// it is that PostgreSQL instead, which several relays may share
    #[arg(long, env = "KVASIR_DATABASE", default_value = "kvasir-relay.sqlite")]
    database: Database,
    /// Public keys of the owners who may offer rings, 64 digits of hex each; anyone may when absent
    #[arg(long = "owner", env = "KVASIR_OWNERS", value_delimiter = ',', value_name = "KEY")]
    owners: Vec<PublicKey>,
    /// File with the key of edge tickets, 64 digits of hex; the database's when absent
    #[arg(long, env = "KVASIR_TICKET_KEY_FILE")]
    ticket_key_file: Option<PathBuf>,
    /// Legs in all, two for an edge; each takes a file
    #[arg(long, env = "KVASIR_MAX_LEGS", default_value_t = 40_000)]
    max_legs: usize,
    /// Legs of one node
    #[arg(long, env = "KVASIR_MAX_LEGS_PER_NODE", default_value_t = 256)]
    max_legs_per_node: usize,
    /// Time for the other end of an edge to come
    #[arg(long, env = "KVASIR_PEER_WITHIN", default_value = "30s", value_parser = humantime::parse_duration)]
    peer_within: Duration,
    /// Time from SIGTERM to the end of the legs, for a load balancer to notice
    #[arg(long, env = "KVASIR_DRAIN_GRACE", default_value = "5s", value_parser = humantime::parse_duration)]
    drain_grace: Duration,
    /// Writes the address that it listens on to this file, once it does
    #[arg(long, env = "KVASIR_READY_FILE")]
    ready_file: Option<PathBuf>,
}

impl Cli {
    /// Runs the relay; an error is one line on standard error, with its causes.
    pub fn run(self) -> ExitCode {
        // One provider for the process: several compiled in leave rustls without a default.
        let _ = rustls::crypto::ring::default_provider().install_default();
        match self.block_on() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                tracing::error!("{error:#}");
                ExitCode::FAILURE
            }
        }
    }

    fn block_on(self) -> anyhow::Result<()> {
        // On one core, threads that hand work to each other only cost.
        let mut builder = match available_parallelism() {
            Ok(cores) if cores.get() > 1 => tokio::runtime::Builder::new_multi_thread(),
            _ => tokio::runtime::Builder::new_current_thread(),
        };
        let runtime = builder.enable_all().build().context("cannot start the async runtime")?;
        runtime.block_on(self.serve())
    }

    async fn serve(self) -> anyhow::Result<()> {
        ensure!(
            self.public_url.starts_with("https://") || self.public_url.starts_with("http://"),
            "--public-url must begin with https:// or http://"
        );
        raise_file_limit(self.max_legs as u64);
        let tls = self.tls_cert.zip(self.tls_key).map(|(cert, key)| TlsFiles {
            cert,
            key,
            reload_every: RELOAD_EVERY,
        });
        let admission = if self.owners.is_empty() {
            Admission::Anyone
        } else {
            Admission::Owners(self.owners)
        };
        let market = Market::new(self.database.open().await?, admission).await?;
        let config = RelayConfig {
            bridge: BridgeConfig {
                public_url: self.public_url,
                tickets: match &self.ticket_key_file {
                    Some(file) => ticket_key(file)?,
                    None => market.tickets().clone(),
                },
                max_legs: self.max_legs,
                max_legs_per_node: self.max_legs_per_node,
                timings: BridgeTimings {
                    peer_within: self.peer_within,
                    ..BridgeTimings::default()
                },
            },
            tls,
            drain_grace: self.drain_grace,
        };
        let listener = TcpListener::bind(self.listen)
            .await
            .with_context(|| format!("cannot listen on {}", self.listen))?;
        let address = listener.local_addr()?;
        let shutdown = CancellationToken::new();
        stop_on_signals(shutdown.clone())?;
        tracing::info!(%address, public_url = config.bridge.public_url, tls = config.tls.is_some(), "the relay listens");
        if let Some(file) = self.ready_file {
            // Beside it first, so that nobody reads half an address.
            let whole = file.with_extension("new");
            tokio::fs::write(&whole, address.to_string()).await?;
            tokio::fs::rename(&whole, &file).await?;
        }
        let keeping = tokio::spawn({
            let (market, url) = (market.clone(), config.bridge.public_url.clone());
            async move { market.keep(Some(&url)).await }
        });
        tokio::spawn({
            let (market, shutdown) = (market.clone(), shutdown.clone());
            async move {
                shutdown.cancelled().await;
                market.drain();
            }
        });
        let mut registry = Registry::default();
        market.register(&mut registry);
        serve_with(listener, router(market), registry, config, shutdown).await?;
        // It takes its name off the list of relays.
        keeping.await?;
        Ok(())
    }
}

fn ticket_key(path: &std::path::Path) -> anyhow::Result<TicketKey> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    // A node's public key has the same form: 32 bytes in hex.
    let bytes = text.trim().parse::<PublicKey>();
    let bytes = bytes
        .ok()
        .with_context(|| format!("{} is no ticket key: 64 digits of hex", path.display()))?;
    Ok(TicketKey::from_bytes(bytes.0))
}

/// Takes as many files as the system allows, and says so when they are too few for the legs.
fn raise_file_limit(legs: u64) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // A limit that can't be raised stays as it is.
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: maximum,
            maximum,
        },
    );
    let files = getrlimit(Resource::Nofile).current.or(current);
    if let Some(files) = files.filter(|files| *files < legs + OTHER_FILES) {
        tracing::warn!(
            files,
            needed = legs + OTHER_FILES,
            "the limit of open files (ulimit -n) is below what --max-legs needs"
        );
    }
}
