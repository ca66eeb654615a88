//! `run`: loads a window, holds its claim, and lives through the ring's epochs as one of its ranks.

mod claim;
mod cover;
mod legs;
mod positions;
mod tickets;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvasir_market::client::{Backoff, RingClient};
use kvasir_market::types::{Enrolment, StageState};
use kvasir_plan::{LayerRange, RankManifest};
use kvasir_process::chain;
use kvasir_wire::edge::Timings;
use kvasir_wire::trust::{NodeKeys, PublicKey, SignedManifest};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

pub use claim::{Keeper, Standing, Wanted};
use legs::Legs;
use positions::Meter;

use crate::ring::compute::Compute;
use crate::ring::handle::RingError;
use crate::ring::head::{self, HeadHandle, Phase};
use crate::ring::link::{Forming, LinkError};
use crate::ring::relays::Relays;
use crate::ring::schedule::Shape;
use crate::ring::session::{Lost, Session, Tap};
use crate::ring::worker::Worker;
use crate::strikes::Strikes;

/// Pause after the market proposed or published what can't be taken.
const RETRY: Duration = Duration::from_millis(500);
/// Time to tell the market what came home, at the end.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// A stage whose engine fails so often within [`STRIKES_WITHIN`] ends: what it holds is damaged, or what it runs on.
const STRIKES: usize = 3;
const STRIKES_WITHIN: Duration = Duration::from_secs(60);
/// Requests that may wait for a sequence at rank 0.
const QUEUE: usize = 1024;

/// All that a stage needs to be a rank.
pub struct Stage {
    /// the claim on its windows, which are one rank in every manifest
    pub keeper: Keeper,
    /// the ring as planned, epoch 0, no holders: the dimensions that the windows are loaded for
    pub plan: RankManifest,
    /// key of the ring's owner
    pub owner: PublicKey,
    /// this node's keys
    pub keys: Arc<NodeKeys>,
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
            .field("layers", &self.layers())
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
    /// the engine failed, epoch after epoch
    #[error(
        "rank {rank} (layers {layers}) failed {STRIKES} times within {} s, the last time because {detail}: its window \
         may be damaged, delete it and start again",
        STRIKES_WITHIN.as_secs()
    )]
    GaveUp {
        /// this stage's rank
        rank: usize,
        /// its window
        layers: LayerRange,
        /// what the engine said
        detail: String,
    },
    /// loading was interrupted
    #[error("loading the window was interrupted")]
    Interrupted,
    /// a newer process took over
    #[error("a newer process of this node holds the windows: this one ends")]
    Fenced,
}

impl RunError {
    /// Stable `PascalCase` word for metrics, events and conditions.
    pub fn reason(&self) -> &'static str {
        match self {
            RunError::Load { .. } => "LoadFailed",
            RunError::Thread(_) | RunError::GaveUp { .. } => "EngineFailed",
            RunError::Interrupted => "Interrupted",
            RunError::Fenced => "Fenced",
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
    pub fn start<C, F, E>(mut self, load: F, shutdown: CancellationToken) -> Running
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
        let head = self.is_first().then(|| head::start(shape, jobs.clone()));
        let legs = Arc::new(Legs::default());
        self.relays = self.relays.map(|relays| legs::watched(relays, legs.clone()));
        let task = tokio::spawn({
            let head = head.clone();
            async move {
                let runtime = tokio::runtime::Handle::current();
                let loaded = tokio::task::spawn_blocking(load);
                let (compute, facts) = tokio::select! {
                    loaded = loaded => loaded.map_err(|_| RunError::Interrupted)?.map_err(Into::into)?,
                    () = self.keeper.fenced() => return Err(RunError::Fenced),
                    () = shutdown.cancelled() => return Ok(()),
                };
                let worker = Worker::new(compute, runtime);
                std::thread::Builder::new()
                    .name("engine".into())
                    .spawn(move || worker.run(inbox))
                    .map_err(RunError::Thread)?;
                self.keeper.say(StageState::Ready {
                    fetched_bytes: self.fetched_bytes,
                    resident_bytes: resident_bytes(),
                    backend: facts.backend,
                });
                let market = self.market();
                let proposer = head
                    .is_some()
                    .then(|| AbortOnDrop(tokio::spawn(propose(market.clone(), self.keys.clone(), self.owner))));
                let cover = head
                    .clone()
                    .map(|head| AbortOnDrop(tokio::spawn(cover::watch(market.clone(), head))));
                let meter = head.clone().map(|head| Meter::start(market.clone(), head));
                let done = tokio::select! {
                    lived = self.live(&jobs, head.as_ref(), meter.as_ref(), &legs, &shutdown) => lived,
                    () = self.keeper.fenced() => Err(RunError::Fenced),
                };
                drop((proposer, cover));
                if let Some(head) = &head {
                    if done.is_err() {
                        // Its clients are told; the newer process serves those that come.
                        let detail = "a newer process took over".to_owned();
                        head.down(detail.clone(), RingError::StageLost { detail }).await;
                    }
                    head.say(Phase::Draining);
                }
                if let Some(meter) = meter {
                    meter.finish(LAST_WORDS).await;
                }
                self.keeper.leave().await;
                done
            }
        });
        Running { head, task }
    }

    /// Epoch after epoch, until shutdown or until the engine has failed too often.
    async fn live(
        &self,
        jobs: &mpsc::Sender<crate::ring::worker::Job>,
        head: Option<&HeadHandle>,
        meter: Option<&Meter>,
        legs: &Legs,
        shutdown: &CancellationToken,
    ) -> Result<(), RunError> {
        let phase = |text: &str| {
            if let Some(head) = head {
                head.say(Phase::Forming(text.to_owned()));
            }
        };
        phase("waiting for the other stages");
        let mut epoch = 0;
        let mut upcoming: Option<RankManifest> = None;
        let mut strikes = Strikes::new(STRIKES, STRIKES_WITHIN);
        loop {
            let manifest = match upcoming.take() {
                Some(manifest) => manifest,
                None => tokio::select! {
                    manifest = self.next_manifest(epoch) => manifest,
                    () = shutdown.cancelled() => break,
                },
            };
            epoch = manifest.epoch;
            self.keeper.knows(epoch);
            let rank = match self.fits(&manifest) {
                Ok(rank) => rank,
                Err(detail) => {
                    tracing::error!(epoch, detail, "refused the manifest");
                    phase(&detail);
                    self.keeper.lost(None, detail, None, None);
                    continue;
                }
            };
            phase("the links are being made");
            if let Some(meter) = meter {
                meter.begin(epoch);
            }
            let begun = Instant::now();
            let ended = tokio::select! {
                lost = self.epoch(&manifest, rank, jobs, head) => Some(lost),
                newer = self.next_manifest(epoch) => { upcoming = Some(newer); None }
                () = shutdown.cancelled() => break,
            };
            let mut gave_up = None;
            let (detail, told) = match ended {
                Some(lost) => {
                    tracing::warn!(epoch, reason = lost.reason(), error = %chain(&lost), "the ring is open");
                    let detail = chain(&lost);
                    let (edge, end) = legs.lost(epoch, lost.edge(rank, manifest.ranks.len()));
                    self.keeper.lost(Some(epoch), detail.clone(), edge, end);
                    let told = match lost.engine_failure(rank as u32) {
                        Some((failed, why)) if failed as usize == rank => {
                            let layers = self.layers();
                            tracing::error!("rank {rank} (layers {layers}): {detail}");
                            if strikes.again(Instant::now()) {
                                gave_up = Some(RunError::GaveUp {
                                    rank,
                                    layers,
                                    detail: why.clone(),
                                });
                            }
                            RingError::EngineFailed {
                                detail: format!("rank {rank}: {why}"),
                            }
                        }
                        Some((failed, why)) => RingError::EngineFailed {
                            detail: format!("rank {failed}: {why}"),
                        },
                        None => RingError::StageLost {
                            detail: lost.public(rank as u32),
                        },
                    };
                    (lost.public(rank as u32), told)
                }
                None => {
                    // Another stage gave this epoch up a moment earlier: what this one saw of it counts all the same.
                    if begun.elapsed() >= self.form_within * 3 / 4
                        && let (Some(edge), Some(end)) = legs.lost(epoch, None)
                    {
                        let detail = format!("edge {edge} never came up");
                        self.keeper.lost(Some(epoch), detail, Some(edge), Some(end));
                    }
                    let detail = "the ring is being formed again".to_owned();
                    (detail.clone(), RingError::StageLost { detail })
                }
            };
            if let Some(head) = head {
                head.down(detail, told).await;
            }
            if let Some(gave_up) = gave_up {
                return Err(gave_up);
            }
            if let Some(meter) = meter {
                meter.end();
            }
        }
        Ok(())
    }

    async fn epoch(
        &self,
        manifest: &RankManifest,
        rank: usize,
        jobs: &mpsc::Sender<crate::ring::worker::Job>,
        head: Option<&HeadHandle>,
    ) -> EpochEnd {
        let forming = Forming {
            manifest,
            rank,
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
        tracing::info!(epoch = manifest.epoch, rank, "both links are up");
        let session = Session {
            rank: rank as u32,
            last: rank + 1 == manifest.ranks.len(),
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
        let (market, mut after) = (self.market(), after);
        let mut backoff = Backoff::default();
        loop {
            match market.manifest(after).await {
                Ok(Some(signed)) => match signed.verify(&self.owner, &self.plan.ring, after) {
                    Ok(manifest) => return manifest,
                    Err(e) => {
                        tracing::error!(reason = e.reason(), error = %chain(&e), "refused a manifest");
                        after = epoch_claimed(&signed).unwrap_or(after).max(after);
                        tokio::time::sleep(RETRY).await;
                    }
                },
                Ok(None) => backoff.reset(),
                Err(e) => {
                    tracing::debug!(error = %chain(&e), "the market was not reached");
                    tokio::time::sleep(backoff.pause()).await;
                }
            }
        }
    }

    /// The rank that a manifest gives this process, if it speaks of what this stage loaded.
    fn fits(&self, manifest: &RankManifest) -> Result<usize, String> {
        manifest.validate().map_err(|e| chain(&e))?;
        let (want, got) = (&self.plan, manifest);
        let own = &self.keeper.wanted().holder;
        let mut holders = got.ranks.iter().map(|rank| rank.holder.as_ref());
        let rank = holders
            .position(|h| h.is_some_and(|h| h.node == own.node && h.instance == own.instance))
            .ok_or("the manifest gives its ranks to other processes")?;
        let layers = got.ranks[rank].layers;
        if layers != self.layers() {
            return Err(format!(
                "the manifest gives this process layers {layers}, and it loaded {}",
                self.layers()
            ));
        }
        if got.model.identity != want.model.identity {
            return Err(format!(
                "the manifest is for another model ({}) than the one fetched here ({})",
                got.model.identity, want.model.identity
            ));
        }
        let same = got.model.embedding_length == want.model.embedding_length
            && got.exact == want.exact
            && got.context_length == want.context_length
            && got.sequences == want.sequences
            && got.max_laps == want.max_laps
            && got.max_lap_tokens == want.max_lap_tokens;
        if same {
            Ok(rank)
        } else {
            Err("the manifest has other dimensions than the plan that this stage was loaded for".into())
        }
    }

    fn market(&self) -> &RingClient {
        &self.keeper.wanted().market
    }

    fn layers(&self) -> LayerRange {
        self.keeper.wanted().layers
    }

    /// Whether it will be rank 0, however the ring is cut.
    fn is_first(&self) -> bool {
        self.layers().start == 0
    }
}

struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
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
    fn engine_failure(&self, own: u32) -> Option<(u32, String)> {
        match self {
            EpochEnd::NotFormed(_) => None,
            EpochEnd::Lost(lost) => lost.engine_failure(own),
        }
    }

    fn reason(&self) -> &'static str {
        match self {
            EpochEnd::NotFormed(e) => e.reason(),
            EpochEnd::Lost(e) => e.reason(),
        }
    }

    /// What clients of rank `own` are told. The causes of a link that didn't come up name addresses, and those of an engine
    /// that failed name files, which are not theirs to know.
    fn public(&self, own: u32) -> String {
        match (self, self.engine_failure(own)) {
            (_, Some((rank, why))) => format!("the engine of rank {rank} failed: {why}"),
            (EpochEnd::NotFormed(e), None) => format!("{self}: {e}"),
            (EpochEnd::Lost(_), None) => chain(self),
        }
    }

    /// The edge that never came up, if that was it: its market may choose another way for it.
    fn edge(&self, rank: usize, ranks: usize) -> Option<u32> {
        let EpochEnd::NotFormed(LinkError::Deadline { rank: neighbour, .. }) = self else {
            return None;
        };
        // Of two ranks each is the other's neighbour on both sides, so which edge it was can't be told.
        let edge = if *neighbour == (rank + 1) % ranks {
            rank
        } else {
            *neighbour
        };
        (ranks > 2).then_some(edge as u32)
    }
}

/// What this machine enrols with.
pub fn enrolment() -> Enrolment {
    Enrolment {
        name: None,
        platform: format!("{}-{}", std::env::consts::OS, std::env::consts::ARCH),
        memory: memory_bytes(),
    }
}

/// Rank 0: signs what the market proposes.
async fn propose(market: RingClient, keys: Arc<NodeKeys>, owner: PublicKey) {
    let mut epoch = 0;
    let mut backoff = Backoff::default();
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
            Ok(None) => {
                backoff.reset();
                continue;
            }
            Err(e) => {
                tracing::debug!(error = %chain(&e), "the market was not reached");
                backoff.pause()
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

/// Resident memory of this process in bytes, 0 where the system doesn't say.
pub fn resident_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").ok();
    let resident: Option<u64> = pages.and_then(|s| s.split_whitespace().nth(1)?.parse().ok());
    resident.unwrap_or(0) * 4096
}

/// Memory of this machine in bytes, without limit where the system doesn't say.
pub fn memory_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kibibytes: Option<u64> = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    kibibytes.map_or(u64::MAX, |kibibytes| kibibytes.saturating_mul(1024))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::compute::ComputeError;
    use crate::ring::worker::Fault;

    #[derive(Debug, thiserror::Error)]
    #[error("/home/someone/window.gguf could not be computed")]
    struct Window(#[source] std::fmt::Error);

    #[test]
    fn clients_are_told_of_an_engine_that_failed_and_of_no_file() {
        let fault = Fault::Engine(ComputeError(Box::new(Window(std::fmt::Error))));
        let ended = EpochEnd::Lost(Lost::Fault(fault));
        assert!(chain(&ended).contains("window.gguf"), "the log is told");
        let told = format!("the engine of rank 0 failed: {}", std::fmt::Error);
        assert_eq!(ended.public(0), told);
    }
}
