//! `run`: loads a window, reports it to the market, and lives through the ring's epochs as one of its ranks.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kvasir_market::client::MarketClient;
use kvasir_market::types::{StageReport, StageState};
use kvasir_plan::{Holder, RankManifest};
use kvasir_wire::edge::Timings;
use kvasir_wire::trust::{NodeKeys, PublicKey, SignedManifest};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::ring::compute::Compute;
use crate::ring::head::{self, HeadHandle, Phase};
use crate::ring::link::{Forming, LinkError};
use crate::ring::relays::Relays;
use crate::ring::schedule::Shape;
use crate::ring::session::{Lost, Session, Tap};
use crate::ring::worker::Worker;

/// A stage says where it stands at least this often.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// Pause after the market could not be reached.
const RETRY: Duration = Duration::from_millis(500);
/// Time to tell the market that this stage leaves.
const FAREWELL: Duration = Duration::from_secs(1);
/// Requests that may wait for a sequence at rank 0.
const QUEUE: usize = 1024;

/// All that a stage needs to be a rank.
pub struct Stage {
    /// where manifests come from and reports go
    pub market: MarketClient,
    /// the ring as planned, epoch 0, no holders: the dimensions that the window is loaded for
    pub plan: RankManifest,
    /// which rank this is
    pub rank: usize,
    /// key of the ring's owner
    pub owner: PublicKey,
    /// this node's keys
    pub keys: Arc<NodeKeys>,
    /// who holds the rank, with the address that the predecessor dials
    pub holder: Holder,
    /// where the predecessor is accepted
    pub listener: TcpListener,
    /// the way to relays, for edges that can't be dialled; none for direct edges only
    pub relays: Option<Relays>,
    /// bytes that `fetch` took from the source, for the report
    pub fetched_bytes: u64,
    /// pings and bounds of the links
    pub timings: Timings,
    /// time for both links to come up
    pub form_within: Duration,
    /// sees what arrives (tests)
    pub tap: Option<Tap>,
}

impl std::fmt::Debug for Stage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stage")
            .field("ring", &self.plan.ring)
            .field("rank", &self.rank)
            .finish_non_exhaustive()
    }
}

/// Why a stage ends.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// the window or the vocabulary didn't load
    #[error("cannot load the window in {}", dir.display())]
    Load {
        /// where the window lies
        dir: PathBuf,
        /// what the engine said
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// the engine thread could not be started
    #[error("cannot start the engine thread")]
    Thread(#[source] std::io::Error),
    /// loading was interrupted
    #[error("loading the window was interrupted")]
    Interrupted,
}

impl RunError {
    /// Stable `PascalCase` word for metrics, events and conditions.
    pub fn reason(&self) -> &'static str {
        match self {
            RunError::Load { .. } => "LoadFailed",
            RunError::Thread(_) => "EngineFailed",
            RunError::Interrupted => "Interrupted",
        }
    }
}

/// What [`Stage::start`] gives back while the stage runs.
#[derive(Debug)]
pub struct Running {
    /// rank 0's door to the ring
    pub head: Option<HeadHandle>,
    task: tokio::task::JoinHandle<Result<(), RunError>>,
}

impl Running {
    /// Ends the stage at once, as a crash would: nothing is said to anybody.
    pub fn abort(self) {
        self.task.abort();
    }

    /// Waits for the stage's end.
    pub async fn ended(self) -> Result<(), RunError> {
        self.task.await.unwrap_or(Err(RunError::Interrupted))
    }
}

impl Stage {
    /// Starts the stage: `load` brings the engine up on a thread of its own, then the stage reports itself ready and
    /// follows the ring's manifests until `shutdown`.
    pub fn start<C, F, E>(self, load: F, shutdown: CancellationToken) -> Running
    where
        C: Compute + 'static,
        F: FnOnce() -> Result<(C, StageFacts), E> + Send + 'static,
        E: Into<RunError> + Send + 'static,
    {
        let plan = &self.plan;
        let shape = Shape {
            max_laps: plan.max_laps.into(),
            max_lap_tokens: plan.max_lap_tokens,
            sequences: plan.sequences as usize,
            context_length: plan.context_length,
            queue: QUEUE,
        };
        // Laps as admitted; a close, an open and a fork for every sequence; the head's own.
        let (jobs, inbox) = mpsc::channel(shape.max_laps + 4 * shape.sequences + 16);
        let head = (self.rank == 0).then(|| head::start(shape, jobs.clone()));
        let task = tokio::spawn({
            let head = head.clone();
            async move {
                let (reports, watch) = watch::channel(self.report(StageState::Loading));
                let market = self.market.clone();
                let reporter = tokio::spawn(report(market, self.rank as u32, watch));
                let runtime = tokio::runtime::Handle::current();
                let loaded = tokio::task::spawn_blocking(load);
                let (compute, facts) = tokio::select! {
                    loaded = loaded => loaded.map_err(|_| RunError::Interrupted)?.map_err(Into::into)?,
                    () = shutdown.cancelled() => return Ok(()),
                };
                let worker = Worker::new(compute, runtime);
                std::thread::Builder::new()
                    .name("engine".into())
                    .spawn(move || worker.run(inbox))
                    .map_err(RunError::Thread)?;
                reports.send_modify(|r| {
                    r.state = StageState::Ready {
                        fetched_bytes: self.fetched_bytes,
                        resident_bytes: resident_bytes(),
                        backend: facts.backend,
                    }
                });
                let proposer =
                    (self.rank == 0).then(|| tokio::spawn(propose(self.market.clone(), self.keys.clone(), self.owner)));
                self.live(&jobs, head.as_ref(), &reports, &shutdown).await;
                if let Some(proposer) = proposer {
                    proposer.abort();
                }
                reports.send_modify(|r| r.state = StageState::Leaving);
                reporter.abort();
                let farewell = reports.borrow().clone();
                // A market that is gone already needs no farewell.
                let _ = tokio::time::timeout(FAREWELL, self.market.report(self.rank as u32, &farewell)).await;
                Ok(())
            }
        });
        Running { head, task }
    }

    /// Epoch after epoch, until shutdown.
    async fn live(
        &self,
        jobs: &mpsc::Sender<crate::ring::worker::Job>,
        head: Option<&HeadHandle>,
        reports: &watch::Sender<StageReport>,
        shutdown: &CancellationToken,
    ) {
        let phase = |text: &str| {
            if let Some(head) = head {
                head.say(Phase::Forming(text.to_owned()));
            }
        };
        phase("waiting for the other stages");
        let mut epoch = 0;
        let mut upcoming: Option<RankManifest> = None;
        loop {
            let manifest = match upcoming.take() {
                Some(manifest) => manifest,
                None => tokio::select! {
                    manifest = self.next_manifest(epoch) => manifest,
                    () = shutdown.cancelled() => break,
                },
            };
            epoch = manifest.epoch;
            if let Err(detail) = self.fits(&manifest) {
                tracing::error!(epoch, detail, "refused the manifest");
                reports.send_modify(|r| (r.lost_epoch, r.lost_reason) = (None, Some(detail.clone())));
                phase(&detail);
                continue;
            }
            phase("the links are being made");
            let ended = tokio::select! {
                lost = self.epoch(&manifest, jobs, head) => Some(lost),
                newer = self.next_manifest(epoch) => { upcoming = Some(newer); None }
                () = shutdown.cancelled() => break,
            };
            let detail = match ended {
                Some(lost) => {
                    tracing::warn!(epoch, reason = lost.reason(), error = %chain(&lost), "the ring is open");
                    let detail = chain(&lost);
                    reports.send_modify(|r| (r.lost_epoch, r.lost_reason) = (Some(epoch), Some(detail.clone())));
                    detail
                }
                None => "the ring is being formed again".to_owned(),
            };
            if let Some(head) = head {
                head.down(detail).await;
            }
        }
        if let Some(head) = head {
            head.say(Phase::Draining);
        }
    }

    async fn epoch(
        &self,
        manifest: &RankManifest,
        jobs: &mpsc::Sender<crate::ring::worker::Job>,
        head: Option<&HeadHandle>,
    ) -> EpochEnd {
        let forming = Forming {
            manifest,
            rank: self.rank,
            keys: &self.keys,
            listener: &self.listener,
            relays: self.relays.as_ref(),
            timings: self.timings,
            within: self.form_within,
        };
        let links = match forming.links().await {
            Ok(links) => links,
            Err(e) => return EpochEnd::NotFormed(e),
        };
        tracing::info!(epoch = manifest.epoch, rank = self.rank, "both links are up");
        let session = Session {
            last: self.rank + 1 == manifest.ranks.len(),
            boundary_type: manifest.boundary_type,
            sequences: manifest.sequences,
            jobs: jobs.clone(),
            head: head.cloned(),
            tap: self.tap.clone(),
        };
        EpochEnd::Lost(session.run(links).await)
    }

    /// The next manifest above `after` that the owner's trust stands behind.
    async fn next_manifest(&self, after: u64) -> RankManifest {
        let mut after = after;
        loop {
            match self.market.manifest(after).await {
                Ok(Some(signed)) => match signed.verify(&self.owner, &self.plan.ring, after) {
                    Ok(manifest) => return manifest,
                    Err(e) => {
                        tracing::error!(reason = e.reason(), error = %chain(&e), "refused a manifest");
                        after = epoch_claimed(&signed).unwrap_or(after).max(after);
                        tokio::time::sleep(RETRY).await;
                    }
                },
                Ok(None) => {}
                Err(e) => {
                    tracing::debug!(error = %chain(&e), "the market was not reached");
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }

    /// Whether a manifest speaks of what this stage loaded.
    fn fits(&self, manifest: &RankManifest) -> Result<(), String> {
        manifest.validate().map_err(|e| chain(&e))?;
        let (want, got) = (&self.plan, manifest);
        let rank = got.ranks.get(self.rank).ok_or("the manifest has no such rank")?;
        if got.model.identity != want.model.identity {
            return Err(format!(
                "the manifest is for another model ({}) than the one fetched here ({})",
                got.model.identity, want.model.identity
            ));
        }
        let same = got.ranks.len() == want.ranks.len()
            && rank.layers == want.ranks[self.rank].layers
            && got.model.embedding_length == want.model.embedding_length
            && got.exact == want.exact
            && got.context_length == want.context_length
            && got.sequences == want.sequences
            && got.max_laps == want.max_laps
            && got.max_lap_tokens == want.max_lap_tokens;
        if !same {
            return Err("the manifest has other dimensions than the plan that this stage was loaded for".into());
        }
        match &rank.holder {
            Some(h) if h.node == self.holder.node && h.instance == self.holder.instance => Ok(()),
            _ => Err(format!("rank {} belongs to another process now", self.rank)),
        }
    }

    fn report(&self, state: StageState) -> StageReport {
        StageReport {
            holder: self.holder.clone(),
            layers: self.plan.ranks[self.rank].layers,
            identity: self.plan.model.identity.clone(),
            state,
            lost_epoch: None,
            lost_reason: None,
        }
    }
}

/// What loading found out.
#[derive(Clone, Debug)]
pub struct StageFacts {
    /// the backend really used
    pub backend: String,
}

/// How an epoch ended for this rank.
#[derive(Debug, thiserror::Error)]
enum EpochEnd {
    #[error("the ring was not formed")]
    NotFormed(#[source] LinkError),
    #[error("the ring was lost")]
    Lost(#[source] Lost),
}

impl EpochEnd {
    fn reason(&self) -> &'static str {
        match self {
            EpochEnd::NotFormed(e) => e.reason(),
            EpochEnd::Lost(e) => e.reason(),
        }
    }
}

/// Tells the market where this stage stands, when that changes and as a heartbeat.
async fn report(market: MarketClient, rank: u32, mut reports: watch::Receiver<StageReport>) {
    loop {
        let mut report = reports.borrow_and_update().clone();
        if let StageState::Ready { resident_bytes: r, .. } = &mut report.state {
            *r = resident_bytes();
        }
        let pause = match market.report(rank, &report).await {
            Ok(()) => HEARTBEAT,
            Err(e) => {
                tracing::debug!(error = %chain(&e), "the market did not take the report");
                RETRY
            }
        };
        // A change ends the pause; so does the end of the stage.
        if let Ok(Err(_)) = tokio::time::timeout(pause, reports.changed()).await {
            return;
        }
    }
}

/// Rank 0: signs what the market proposes.
async fn propose(market: MarketClient, keys: Arc<NodeKeys>, owner: PublicKey) {
    let mut epoch = 0;
    loop {
        let pause = match market.proposal(epoch).await {
            Ok(Some(proposal)) => {
                let next = proposal.manifest.epoch;
                let ring = proposal.manifest.ring.clone();
                match SignedManifest::sign(&proposal.manifest, &keys, proposal.delegation) {
                    Ok(signed) if signed.verify(&owner, &ring, epoch).is_ok() => match market.publish(&signed).await {
                        Ok(()) => {
                            epoch = next;
                            continue;
                        }
                        Err(e) => tracing::warn!(error = %chain(&e), "the market did not take the manifest"),
                    },
                    Ok(_) => {
                        tracing::error!("the market proposed a manifest that this ring's owner does not stand behind");
                    }
                    Err(e) => tracing::error!(error = %chain(&e), "cannot sign the manifest"),
                }
                RETRY
            }
            Ok(None) => continue,
            Err(e) => {
                tracing::debug!(error = %chain(&e), "the market was not reached");
                RETRY
            }
        };
        tokio::time::sleep(pause).await;
    }
}

/// The epoch that a refused manifest names, so that the same one isn't fetched again and again.
fn epoch_claimed(signed: &SignedManifest) -> Option<u64> {
    serde_json::from_str::<RankManifest>(&signed.manifest)
        .ok()
        .map(|m| m.epoch)
}

/// An error and its causes on one line.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text
}

/// Resident memory of this process in bytes, 0 where the system doesn't say.
pub fn resident_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").ok();
    let resident: Option<u64> = pages.and_then(|s| s.split_whitespace().nth(1)?.parse().ok());
    resident.unwrap_or(0) * 4096
}
