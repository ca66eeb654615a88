//! `kvasir-stage run`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::ValueEnum;
use kvasir_engine::{Backend, CacheType, Mode, Output, Vocabulary, WindowOptions};
use kvasir_market::client::MarketClient;
use kvasir_plan::{Link, RankManifest};
use kvasir_wire::edge::Timings;
use kvasir_wire::trust::{NodeKeys, PublicKey};
use secrecy::SecretString;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::{read_plan, stdin_ended};
use crate::api::{self, ApiConfig};
use crate::fetch::RankFiles;
use crate::ring::{Embedding, Loaded};
use crate::run::{RunError, Stage, StageFacts};

/// Time for both links of an epoch to come up.
const FORM_WITHIN: Duration = Duration::from_secs(20);

/// Bytes of a request's body for each position of the context: a token's text, as JSON, with room for structure.
const BODY_PER_POSITION: usize = 128;
/// Every ring takes bodies of this size.
const SMALLEST_BODY: usize = 1 << 20;

/// Precision of cached keys and values.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Cache {
    #[value(name = "F16")]
    F16,
    #[value(name = "Q8_0")]
    Q8_0,
}

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Address of the market, which hands out manifests; its token comes from `KVASIR_TOKEN`
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
    /// Rank 0: address of the API; its keys come from `KVASIR_API_KEYS`, separated by commas
    #[arg(long, env = "KVASIR_API")]
    api: Option<SocketAddr>,
    /// Rank 0: file with a chat template that replaces the model's own
    #[arg(long, env = "KVASIR_CHAT_TEMPLATE")]
    chat_template: Option<PathBuf>,
    /// Threads that compute; one for each core when absent
    #[arg(long, env = "KVASIR_THREADS", default_value_t = 0)]
    threads: u32,
    /// Precision of the cache
    #[arg(long, env = "KVASIR_CACHE_TYPE", value_enum, default_value = "F16")]
    cache_type: Cache,
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

/// A plan and the engine that it wants.
pub(super) struct Prepared {
    plan: RankManifest,
    backend: &'static Backend,
}

impl Args {
    /// What must be done while the process has one thread: exact mode sets an environment variable.
    pub(super) fn prepare(&self) -> anyhow::Result<Prepared> {
        let plan = read_plan(&self.plan)?;
        let backend = Backend::init(if plan.exact { Mode::Exact } else { Mode::Fast })?;
        Ok(Prepared { plan, backend })
    }

    pub(super) async fn run(self, Prepared { plan, backend }: Prepared) -> anyhow::Result<()> {
        let files = RankFiles::new(&plan, self.rank, &self.dir)?;
        // Ports first: a port in use is told before anything is loaded.
        let listener = bind(self.listen).await?;
        let api = match self.api {
            Some(address) if self.rank == 0 => Some(bind(address).await?),
            _ => None,
        };
        let keys = Arc::new(NodeKeys::load_or_generate(&self.key)?);
        let token = secret("KVASIR_TOKEN");
        let market = MarketClient::new(&self.market, &plan.ring, token)?;
        let address = match &self.advertise {
            Some(address) => address.clone(),
            None => listener.local_addr()?.to_string(),
        };
        let holder = keys.holder(uuid::Uuid::new_v4().to_string(), Link::Direct { address });
        tokio::task::spawn_blocking({
            let files = files.clone();
            move || files.verify()
        })
        .await?
        .context("the window is not usable: fetch it again")?;

        let shutdown = CancellationToken::new();
        tokio::spawn(cancel_on_signal(shutdown.clone(), self.exit_with_stdin));
        let silent_after = Duration::from_secs(self.silent_after);
        let stage = Stage {
            market,
            plan: plan.clone(),
            rank: self.rank,
            owner: self.owner,
            keys,
            holder,
            listener,
            relays: None,
            fetched_bytes: self.fetched_bytes,
            timings: Timings {
                silent_after,
                ping_every: silent_after / 3,
                ..Timings::default()
            },
            form_within: FORM_WITHIN,
            tap: None,
        };
        let options = self.options(&plan);
        let load = {
            let (files, dir) = (files.clone(), self.dir.clone());
            move || {
                load(backend, &files, &options).map_err(|e| RunError::Load {
                    dir,
                    source: e.into_boxed_dyn_error(),
                })
            }
        };
        let running = stage.start(load, shutdown.clone());
        if let (Some(listener), Some(head)) = (api, running.head.clone()) {
            let config = self.api_config(&plan)?;
            let path = files.vocabulary().context("rank 0 has a vocabulary")?;
            let tokenizer = tokio::task::spawn_blocking(move || Vocabulary::load(backend, &path)).await??;
            let router = api::router(Arc::new(head), Arc::new(tokenizer), config);
            let stop = shutdown.clone();
            tokio::spawn(async move { api::serve(listener, router, stop.cancelled_owned()).await });
        }
        Ok(running.ended().await?)
    }

    fn options(&self, plan: &RankManifest) -> WindowOptions {
        let last = self.rank + 1 == plan.ranks.len();
        WindowOptions {
            context_length: plan.context_length,
            sequences: plan.sequences,
            max_rows: plan.max_lap_tokens,
            threads: self.threads,
            cache_type: match self.cache_type {
                Cache::F16 => CacheType::F16,
                Cache::Q8_0 => CacheType::Q8_0,
            },
            output: if last {
                Output::Logits {
                    max_rows: plan.sequences,
                }
            } else {
                Output::Hidden
            },
            exact: plan.exact,
            ..WindowOptions::default()
        }
    }

    fn api_config(&self, plan: &RankManifest) -> anyhow::Result<ApiConfig> {
        let keys = std::env::var("KVASIR_API_KEYS").unwrap_or_default();
        let api_keys = keys
            .split(',')
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
            ..ApiConfig::new(&plan.model.name)
        })
    }
}

fn load(backend: &'static Backend, files: &RankFiles, options: &WindowOptions) -> anyhow::Result<(Loaded, StageFacts)> {
    let embedding = files.embedding()?;
    let embedding = embedding
        .as_ref()
        .map(|(file, scale)| Embedding { file, scale: *scale });
    let loaded = Loaded::load(backend, &files.window(), options, embedding)?;
    let facts = StageFacts {
        backend: loaded.backend_name().to_owned(),
    };
    Ok((loaded, facts))
}

async fn bind(address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot listen on {address}: choose another port, or end what uses it"))
}

fn secret(variable: &str) -> Option<SecretString> {
    std::env::var(variable)
        .ok()
        .filter(|v| !v.is_empty())
        .map(SecretString::from)
}

async fn cancel_on_signal(shutdown: CancellationToken, with_stdin: bool) {
    let terminated = async {
        match signal(SignalKind::terminate()) {
            Ok(mut signals) => {
                signals.recv().await;
            }
            Err(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        () = stdin_ended(with_stdin) => {}
        () = terminated => {}
        _ = tokio::signal::ctrl_c() => {}
    }
    shutdown.cancel();
}
