//! `kvasir-stage join`: claims windows, fetches them while the claim is renewed, and serves them.
//!
//! What happens is told on standard output, a JSON object a line: claimed, progress, done, serving, error.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use kvasir_gguf::source::{Access, ModelSource};
use kvasir_market::client::MarketClient;
use kvasir_market::types::{ClaimRequest, Reach, Run, StageState};
use kvasir_process::chain;
use kvasir_wire::edge::Timings;
use kvasir_wire::trust::{NodeKeys, PublicKey};
use serde_json::json;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::say;
use super::window::{EngineArgs, FORM_WITHIN, Prepared, cancel_on_signal, probe, relays};
use crate::fetch::{Progress, RankFiles};
use crate::run::{Keeper, RunError, Stage, Standing, Wanted};
use crate::trial::Trial;

/// A claim that was lost is claimed again for this long; then other windows may be better.
const CLAIM_AGAIN: Duration = Duration::from_secs(60);

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Address of the market; this node is enrolled there
    #[arg(long, env = "KVASIR_MARKET")]
    market: String,
    /// The ring's plan as the market offers it: a rank manifest in JSON, whose ranks are the windows
    #[arg(long, env = "KVASIR_PLAN")]
    plan: PathBuf,
    /// Windows to claim, neighbours: START..END, counted in ring order
    #[arg(long, env = "KVASIR_WINDOWS")]
    windows: Windows,
    /// The model's source, in JSON: {"http":{"url":"…"}} or {"huggingFace":{…}}
    #[arg(long, env = "KVASIR_SOURCE")]
    source: String,
    /// Ed25519 public key of the ring's owner, hex
    #[arg(long, env = "KVASIR_OWNER")]
    owner: PublicKey,
    /// Folder that the window is written into
    #[arg(long, env = "KVASIR_DIR")]
    dir: PathBuf,
    /// File of this node's keys
    #[arg(long, env = "KVASIR_KEY")]
    key: PathBuf,
    #[command(flatten)]
    engine: EngineArgs,
    /// Seconds without a word after which a neighbour counts as lost
    #[arg(long, env = "KVASIR_SILENT_AFTER", default_value_t = 15)]
    silent_after: u64,
    /// End when standard input ends: a stage that `kvasir join` started does not outlive it
    #[arg(long)]
    exit_with_stdin: bool,
}

/// A run of windows on the command line.
#[derive(Clone, Copy, Debug)]
struct Windows(Run);

impl FromStr for Windows {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let ends = text.split_once("..").and_then(|(start, end)| {
            Some(Run {
                start: start.parse().ok()?,
                end: end.parse().ok()?,
            })
        });
        ends.filter(|run| !run.is_empty())
            .map(Windows)
            .ok_or_else(|| "windows are START..END, with START below END".to_owned())
    }
}

impl Args {
    pub(super) fn prepare(&self) -> anyhow::Result<Prepared> {
        Prepared::of(&self.plan)
    }

    pub(super) async fn run(self, prepared: Prepared, trial: &Trial) -> anyhow::Result<()> {
        let done = self.serve(prepared, trial).await;
        if let Err(error) = &done {
            say(&json!({ "event": "error", "reason": "JoinFailed", "message": chain(error.as_ref()) }));
        }
        done
    }

    async fn serve(self, Prepared { plan, backend }: Prepared, trial: &Trial) -> anyhow::Result<()> {
        let source: ModelSource = serde_json::from_str(&self.source).context("--source is no model source")?;
        let keys = Arc::new(NodeKeys::load_or_generate(&self.key)?);
        let ring = MarketClient::new(&self.market, keys.clone())?.ring(&plan.ring);
        // Nobody dials a device that joins from outside: it has no address.
        let wanted = Wanted::of(ring.clone(), &plan, self.windows.0, &keys, Reach::default())
            .context("the plan has no such windows")?;
        ensure!(
            wanted.layers.start > 0,
            "the first window serves clients: it is not for devices that join"
        );
        let files = RankFiles::of_layers(&plan, wanted.layers, &self.dir)?;
        let signalled = CancellationToken::new();
        tokio::spawn(cancel_on_signal(signalled.clone(), self.exit_with_stdin));

        let request = ClaimRequest {
            windows: self.windows.0,
            instance: wanted.holder.instance.clone(),
        };
        let claim = ring.claim(&request).await?;
        say(&json!({
            "event": "claimed", "claim": claim.id, "layers": wanted.layers.to_string(), "rate": claim.rate,
        }));
        let keeper = Keeper::start(wanted, StageState::Fetching { done: 0, total: 0 }, Some(claim));
        let mut standing = keeper.standing();
        let fetched = tokio::select! {
            fetched = self.fetch(&files, &source, &plan.model.prefix_bytes, trial, &keeper) => fetched.map(Some),
            lost = lost_for_good(&mut standing) => Err(lost),
            () = signalled.cancelled() => Ok(None),
        };
        let Ok(Some(fetched_bytes)) = fetched else {
            keeper.leave().await;
            return fetched.map(drop);
        };

        let silent_after = Duration::from_secs(self.silent_after);
        let stage = Stage {
            keeper,
            plan: plan.clone(),
            owner: self.owner,
            keys,
            // All edges of a device without an address are relayed: nobody learns of this port.
            listener: TcpListener::bind("127.0.0.1:0").await?,
            relays: Some(relays(ring)?),
            fetched_bytes,
            timings: Timings {
                silent_after,
                ping_every: silent_after / 3,
                ..Timings::default()
            },
            form_within: FORM_WITHIN,
            tap: None,
        };
        let last = files.is_last();
        let load = self.engine.loader(backend, &plan, files, self.dir.clone());
        let dir = self.dir.clone();
        let tried = move || {
            let (mut loaded, facts) = load()?;
            // The last window gives logits, which is tried by the first answer.
            let micros = if last {
                None
            } else {
                let took = probe(&mut loaded).map_err(|e| RunError::Load {
                    dir,
                    source: e.into_boxed_dyn_error(),
                })?;
                Some(took.as_micros() as u64)
            };
            say(&json!({ "event": "serving", "backend": facts.backend, "tokenMicros": micros }));
            Ok::<_, RunError>((loaded, facts))
        };
        let shutdown = CancellationToken::new();
        let ended = stage.start(tried, shutdown.clone()).ended();
        tokio::pin!(ended);
        let lost = tokio::select! {
            ended = &mut ended => return Ok(ended?),
            () = signalled.cancelled() => None,
            lost = lost_for_good(&mut standing) => Some(lost),
        };
        shutdown.cancel();
        ended.await?;
        lost.map_or(Ok(()), Err)
    }

    async fn fetch(
        &self,
        files: &RankFiles,
        source: &ModelSource,
        prefix_bytes: &[u64],
        trial: &Trial,
        keeper: &Keeper,
    ) -> anyhow::Result<u64> {
        let mut told = None;
        let progress = |p: Progress| {
            let hundredth = (p.done * 100).checked_div(p.total).unwrap_or(100);
            if told.replace(hundredth) == Some(hundredth) {
                return;
            }
            keeper.say(StageState::Fetching {
                done: p.done,
                total: p.total,
            });
            say(&json!({ "event": "progress", "done": p.done, "total": p.total }));
        };
        let fetched = files
            .fetch(source, &Access::default(), prefix_bytes, trial, progress)
            .await?;
        keeper.say(StageState::Loading);
        say(&json!({
            "event": "done", "bytesFetched": fetched.bytes_fetched, "bytesWritten": fetched.bytes_written,
        }));
        Ok(fetched.bytes_fetched)
    }
}

/// Returns once the claim was lost and could not be had again for a while.
async fn lost_for_good(standing: &mut tokio::sync::watch::Receiver<Standing>) -> anyhow::Error {
    let held = |standing: &Standing| matches!(standing, Standing::Held(_));
    loop {
        let seeking = standing
            .wait_for(|standing| matches!(standing, Standing::Seeking(_)))
            .await;
        if seeking.is_err() {
            return std::future::pending().await;
        }
        drop(seeking);
        if tokio::time::timeout(CLAIM_AGAIN, standing.wait_for(held))
            .await
            .is_err()
        {
            let why = match &*standing.borrow() {
                Standing::Seeking(why) => why.clone(),
                Standing::Held(_) | Standing::Fenced => "a newer process of this device took over".to_owned(),
            };
            return anyhow::anyhow!("the windows are lost: {why}");
        }
    }
}
