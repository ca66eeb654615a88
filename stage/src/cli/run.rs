//! `kvasir-stage run`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use kvasir_engine::Vocabulary;
use kvasir_market::client::MarketClient;
use kvasir_market::types::{Reach, Run, StageState};
use kvasir_plan::RankManifest;
use kvasir_wire::edge::Timings;
use kvasir_wire::trust::{NodeKeys, PublicKey};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use secrecy::SecretString;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::health::Health;
use super::window::{EngineArgs, FORM_WITHIN, Prepared, cancel_on_signal, relays, secret};
use crate::api::{self, ApiConfig, Cors, Shutdown};
use crate::fetch::RankFiles;
use crate::run::{Keeper, RunError, Stage, Wanted};

/// Bytes of a request's body for each position of the context: a token's text, as JSON, with room for structure.
const BODY_PER_POSITION: usize = 128;
/// Every ring takes bodies of this size.
const SMALLEST_BODY: usize = 1 << 20;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Address of the market, where windows are claimed and manifests come from; the invite comes from `KVASIR_TOKEN`,
    /// and a node that is enrolled already needs none
    #[arg(long, env = "KVASIR_MARKET")]
    market: String,
    /// The plan: a rank manifest in JSON
    #[arg(long, env = "KVASIR_PLAN")]
    plan: PathBuf,
    /// This stage's rank
    #[arg(long, env = "KVASIR_RANK")]
    rank: usize,
    /// Ed25519 public key of the ring's owner, hex
    #[arg(long, env = "KVASIR_OWNER")]
    owner: PublicKey,
    /// Folder that holds the window
    #[arg(long, env = "KVASIR_DIR")]
    dir: PathBuf,
    /// File of this node's keys; made when it isn't there
    #[arg(long, env = "KVASIR_KEY")]
    key: PathBuf,
    /// Address on which the predecessor is accepted
    #[arg(long, env = "KVASIR_LISTEN", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// host:port that the predecessor dials; the listening address when absent
    #[arg(long, env = "KVASIR_ADVERTISE")]
    advertise: Option<String>,
    /// Name of the network that the address is good in: stages that name the same one dial each other directly
    #[arg(long, env = "KVASIR_NETWORK", default_value = "local")]
    network: String,
    /// Rank 0: address of the API; its keys come from `KVASIR_API_KEYS`, separated by commas
    #[arg(long, env = "KVASIR_API")]
    api: Option<SocketAddr>,
    /// Rank 0: file with a chat template that replaces the model's own
    #[arg(long, env = "KVASIR_CHAT_TEMPLATE")]
    chat_template: Option<PathBuf>,
    /// Rank 0: web pages that may call the API from a browser: guarded (any with API keys, else this machine's), any,
    /// off, or origins separated by commas
    #[arg(long, env = "KVASIR_CORS", default_value = "guarded")]
    cors: Cors,
    /// Rank 0: seconds that answers in progress have to end once the stage is asked to
    #[arg(long, env = "KVASIR_DRAIN", default_value_t = 25, value_parser = clap::value_parser!(u64).range(0..=3600))]
    drain: u64,
    /// Address that tells whether the window is loaded, at /readyz, and that the process lives, at /healthz
    #[arg(long, env = "KVASIR_HEALTH")]
    health: Option<SocketAddr>,
    #[command(flatten)]
    engine: EngineArgs,
    /// Seconds without a word after which a neighbour counts as lost
    #[arg(long, env = "KVASIR_SILENT_AFTER", default_value_t = 15)]
    silent_after: u64,
    /// Bytes that `fetch` took from the source, for the report
    #[arg(long, default_value_t = 0)]
    fetched_bytes: u64,
    /// End when standard input ends: a stage that `kvasir up` started does not outlive it
    #[arg(long)]
    exit_with_stdin: bool,
}

impl Args {
    pub(super) fn prepare(&self) -> anyhow::Result<Prepared> {
        Prepared::of(&self.plan)
    }

    pub(super) async fn run(self, Prepared { plan, backend }: Prepared) -> anyhow::Result<()> {
        let files = RankFiles::new(&plan, self.rank, &self.dir)?;
        // Ports first: a port in use is told before anything is loaded.
        let listener = bind(self.listen).await?;
        let api = match self.api {
            Some(address) if self.rank == 0 => Some(bind(address).await?),
            _ => None,
        };
        let health = Health::default();
        if let Some(address) = self.health {
            health.serve(bind(address).await?);
        }
        let keys = Arc::new(NodeKeys::load_or_generate(&self.key)?);
        let market = MarketClient::new(&self.market, keys.clone())?;
        let address = match &self.advertise {
            Some(address) => address.clone(),
            None => listener.local_addr()?.to_string(),
        };
        let windows = Run {
            start: self.rank as u32,
            end: self.rank as u32 + 1,
        };
        let reach = Reach {
            network: Some(self.network.clone()),
            address: Some(address),
        };
        let ring = market.ring(&plan.ring);
        let wanted = Wanted::of(ring.clone(), &plan, windows, &keys, reach)
            .context("the plan has no such rank")?
            .with_invite(secret("KVASIR_TOKEN"));
        tokio::task::spawn_blocking({
            let files = files.clone();
            move || files.verify()
        })
        .await?
        .context("the window is not usable: fetch it again")?;

        let (signalled, shutdown) = (CancellationToken::new(), CancellationToken::new());
        tokio::spawn(cancel_on_signal(signalled.clone(), self.exit_with_stdin));
        let silent_after = Duration::from_secs(self.silent_after);
        let stage = Stage {
            keeper: Keeper::start(wanted, StageState::Loading, None),
            plan: plan.clone(),
            owner: self.owner,
            keys,
            listener,
            relays: Some(relays(ring)?),
            fetched_bytes: self.fetched_bytes,
            timings: Timings {
                silent_after,
                ping_every: silent_after / 3,
                ..Timings::default()
            },
            form_within: FORM_WITHIN,
            tap: None,
        };
        let load = self.engine.loader(backend, &plan, files.clone(), self.dir.clone());
        let load = move || load().inspect(|_| health.loaded());
        let running = stage.start(load, shutdown.clone());
        let api = match (api, running.head.clone()) {
            (Some(listener), Some(head)) => {
                let config = self.api_config(&plan, &signalled)?;
                let ending = config.shutdown.clone();
                let path = files.vocabulary().context("rank 0 has a vocabulary")?;
                let tokenizer = tokio::task::spawn_blocking(move || Vocabulary::load(backend, &path)).await??;
                let router = api::router(Arc::new(head), Arc::new(tokenizer), config);
                let drain = Duration::from_secs(self.drain);
                Some(tokio::spawn(api::serve(listener, router, ending, drain)))
            }
            _ => None,
        };
        // The ring goes on while the API sees its clients off.
        let (seen_off, asked) = (tokio::spawn(see_off(api, signalled.clone(), shutdown)), signalled);
        let ended = running.ended().await;
        asked.cancel();
        seen_off.await?;
        match ended {
            Err(gave_up @ RunError::GaveUp { .. }) => {
                Err(gave_up).with_context(|| format!("{} is no use", files.window().display()))
            }
            ended => Ok(ended?),
        }
    }

    fn api_config(&self, plan: &RankManifest, signalled: &CancellationToken) -> anyhow::Result<ApiConfig> {
        let keys = std::env::var("KVASIR_API_KEYS").unwrap_or_default();
        let api_keys = keys
            .split(',')
            .map(str::trim)
            .filter(|k| !k.is_empty())
            .map(SecretString::from)
            .collect();
        let template = self.chat_template.as_ref();
        let chat_template = template
            .map(|path| {
                std::fs::read_to_string(path)
                    .with_context(|| format!("cannot read the chat template {}", path.display()))
            })
            .transpose()?;
        // What is much longer than the context is refused before it is read.
        let max_body_bytes = (plan.context_length as usize * BODY_PER_POSITION).max(SMALLEST_BODY);
        Ok(ApiConfig {
            chat_template,
            api_keys,
            max_body_bytes,
            cors: self.cors.clone(),
            shutdown: Shutdown::on(signalled.clone()),
            registry: registry(plan),
            ..ApiConfig::new(&plan.model.name)
        })
    }
}

/// What `/metrics` says of the ring itself.
fn registry(plan: &RankManifest) -> Registry {
    let facts = [
        ("ring", plan.ring.clone()),
        ("model", plan.model.name.clone()),
        ("ranks", plan.ranks.len().to_string()),
        ("version", env!("CARGO_PKG_VERSION").to_owned()),
    ];
    let mut registry = Registry::default();
    registry.register("kvasir_ring", "What is served", Info::new(facts.to_vec()));
    registry
}

/// Ends the stage once its API, if it has one, has ended; without one at the signal.
async fn see_off(api: Option<JoinHandle<()>>, signalled: CancellationToken, shutdown: CancellationToken) {
    match api {
        Some(api) => {
            if let Err(error) = api.await {
                tracing::error!(%error, "the API ended");
            }
        }
        None => signalled.cancelled().await,
    }
    shutdown.cancel();
}

async fn bind(address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot listen on {address}: choose another port, or end what uses it"))
}
