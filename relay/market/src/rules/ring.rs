//! The state of one ring: its demand, and what time does to its claims.

use std::collections::{BTreeMap, VecDeque};

use kvasir_plan::{LayerRange, RankManifest};
use kvasir_wire::trust::PublicKey;
use serde::{Deserialize, Serialize};

use super::{
    Millis, RuleError,
    absence::{LONGEST_PAUSE, Missed, Trial},
    epochs::{Proposed, Published},
    invariants,
};
use crate::types::{Demand, Run, Source, StageReport, StageState};

/// A claim lasts this long without a report, unless the demand says otherwise; stages report every few seconds.
pub(super) const LEASE_S: u32 = 15;
/// What a demand may ask for: below two seconds a report that is on its way is late, above an hour nothing is a lease.
const LEASES_S: std::ops::RangeInclusive<u32> = 2..=3600;

/// Fetching without a byte of progress for this long loses the claim.
pub(super) const STALLED_AFTER: Millis = 120_000;
/// Loading for this long loses the claim: the largest windows load in minutes from a slow disk.
pub(super) const LOADS_WITHIN: Millis = 900_000;

/// Requests that waited count towards scarcity this long after they were reported.
const QUEUED_FOR: Millis = 600_000;

/// Processes of one node that are remembered as replaced. One that wakes after so many successors is taken for new.
const REPLACED_KEPT: usize = 64;
/// Ended claims whose end is remembered; the end of older ones is told as `Expired`.
const ENDED_KEPT: usize = 1024;
/// Nodes whose failures and replaced processes a ring remembers, beyond those with claims.
const NODES_KEPT: usize = 4096;

/// Who claims: a node that has proved its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claimant {
    /// the node
    pub node: PublicKey,
    /// bytes of memory that it lends, less what it holds in other rings
    pub memory: u64,
    /// its claims in other rings that aren't ready yet
    pub unready_elsewhere: u32,
}

/// All that the market knows of one ring.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RingState {
    pub(super) owner: PublicKey,
    pub(super) demand: Demand,
    pub(super) withdrawn: bool,
    /// last one given out
    pub(super) epoch: u64,
    /// last one given out
    pub(super) generation: u64,
    /// by window: since when nobody serves it
    pub(super) uncovered_since: Vec<Option<Millis>>,
    pub(super) leases: BTreeMap<u64, Lease>,
    /// claims that are over, oldest first
    pub(super) ended: VecDeque<(u64, Ending)>,
    pub(super) nodes: BTreeMap<PublicKey, Standing>,
    pub(super) queued: u32,
    pub(super) queued_at: Millis,
    pub(super) proposed: Option<Proposed>,
    pub(super) published: Option<Published>,
    /// pairs of claims, predecessor first, that could not be joined by a direct link
    pub(super) unjoined: Vec<(u64, u64)>,
    /// the epochs that were published last, oldest first
    #[serde(default)]
    pub(super) trials: VecDeque<Trial>,
}

/// A claim as it is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Lease {
    pub(super) node: PublicKey,
    pub(super) instance: String,
    pub(super) windows: Run,
    /// of each window, frozen
    pub(super) rates: Vec<u64>,
    /// claims of the same node that serve on until this one is ready
    pub(super) replaces: Vec<u64>,
    pub(super) renewed_at: Millis,
    /// last time that it came nearer to being ready than ever before
    pub(super) progress_at: Millis,
    pub(super) progress: Progress,
    pub(super) report: Option<StageReport>,
}

/// How near to being ready a claim has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Progress {
    #[default]
    Claimed,
    Fetching(u64),
    Loading,
    Ready,
}

/// How a claim ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Ending {
    /// its lease ran out
    Expired,
    /// it made no progress
    Stalled,
    /// its stage never came to the relay, epoch after epoch
    Absent,
    /// a larger claim of the process or a newer process is in its place
    Replaced,
    /// its node gave it back
    Left,
    /// the ring has other windows now
    Withdrawn,
}

/// What a ring remembers of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Standing {
    /// claims that came to nothing since one was ready
    pub(super) failures: u32,
    /// processes that newer ones took over from, oldest first: they keep what is waited for, and get nothing more
    pub(super) replaced: VecDeque<String>,
    /// epochs in which it never came to the relay, since something came home
    #[serde(default)]
    pub(super) missed: Vec<Missed>,
    /// claims that it lost so, since something came home
    #[serde(default)]
    pub(super) absences: u32,
    /// it gets no window that others could have before this
    #[serde(default)]
    pub(super) paused_until: Millis,
}

impl Lease {
    pub(super) fn ready(&self) -> bool {
        self.progress == Progress::Ready
    }

    /// Whether it counts for its windows: one that waits for its turn doesn't, where another still serves.
    pub(super) fn serves(&self) -> bool {
        self.replaces.is_empty()
    }

    pub(super) fn rate(&self) -> u64 {
        self.rates
            .iter()
            .fold(0, |sum: u64, rate| sum.saturating_add(*rate))
            .min(super::MAX_RATE)
    }

    pub(super) fn rate_of(&self, window: u32) -> Option<u64> {
        let place = window.checked_sub(self.windows.start)?;
        self.rates.get(place as usize).copied()
    }

    fn stalled(&self, now: Millis) -> bool {
        let idle = now.saturating_sub(self.progress_at);
        match self.progress {
            Progress::Claimed | Progress::Fetching(_) => idle > STALLED_AFTER,
            Progress::Loading => idle > LOADS_WITHIN,
            Progress::Ready => false,
        }
    }
}

impl Progress {
    pub(super) fn of(state: &StageState) -> Progress {
        match state {
            StageState::Fetching { done, .. } => Progress::Fetching(*done),
            StageState::Loading => Progress::Loading,
            StageState::Ready { .. } => Progress::Ready,
            StageState::Leaving => Progress::Claimed,
        }
    }
}

impl RingState {
    /// A ring that `owner` puts on the market. The first epoch is `demand.template.epoch + 1`.
    ///
    /// # Errors
    /// [`RuleError::BadDemand`] or [`RuleError::BadDelegation`].
    pub fn new(now: Millis, owner: PublicKey, demand: Demand) -> Result<RingState, RuleError> {
        let demand = checked(&owner, demand)?;
        let mut state = RingState {
            owner,
            epoch: demand.template.epoch,
            generation: 0,
            uncovered_since: vec![Some(now); demand.template.ranks.len()],
            demand,
            withdrawn: false,
            leases: BTreeMap::new(),
            ended: VecDeque::new(),
            nodes: BTreeMap::new(),
            queued: 0,
            queued_at: now,
            proposed: None,
            published: None,
            unjoined: Vec::new(),
            trials: VecDeque::new(),
        };
        state.take_queued(now, state.demand.queued);
        Ok(state)
    }

    /// Puts another demand in place. Windows that stay the same keep their claims; where model or dimensions change,
    /// all claims are dropped. A ring that was withdrawn is back on the market.
    ///
    /// # Errors
    /// [`RuleError::ForeignOwner`], [`RuleError::BadDemand`] or [`RuleError::BadDelegation`]; nothing is changed then.
    pub fn demand(
        &mut self,
        now: Millis,
        relays: &[String],
        owner: PublicKey,
        demand: Demand,
    ) -> Result<(), RuleError> {
        self.owned_by(owner)?;
        if demand.template.ring != self.ring() {
            return Err(RuleError::BadDemand {
                detail: format!("its plan is for ring {:?}, not {:?}", demand.template.ring, self.ring()),
            });
        }
        let demand = checked(&owner, demand)?;
        self.expire(now);
        let old = std::mem::replace(&mut self.demand, demand);
        self.withdrawn = false;
        self.epoch = self.epoch.max(self.demand.template.epoch);
        self.take_queued(now, self.demand.queued);
        if same_windows(&old.template, &self.demand.template) {
            self.drop_unreserved();
        } else {
            self.rewindow(now, &old.template);
            self.unpublish();
        }
        self.settle(now, relays);
        Ok(())
    }

    /// Takes the ring off the market: all claims end. Owner, epoch and generation stay, since they only ever grow:
    /// keep the row.
    ///
    /// # Errors
    /// [`RuleError::ForeignOwner`].
    pub fn withdraw(&mut self, owner: PublicKey) -> Result<(), RuleError> {
        self.owned_by(owner)?;
        self.withdrawn = true;
        let ids: Vec<u64> = self.leases.keys().copied().collect();
        for id in ids {
            self.end(id, Ending::Withdrawn);
        }
        self.unpublish();
        Ok(())
    }

    fn unpublish(&mut self) {
        (self.proposed, self.published) = (None, None);
        self.trials.clear();
    }

    /// Whether the owner took it off the market.
    pub fn withdrawn(&self) -> bool {
        self.withdrawn
    }

    /// The ring's name.
    pub fn ring(&self) -> &str {
        &self.demand.template.ring
    }

    /// The ring's owner.
    pub fn owner(&self) -> PublicKey {
        self.owner
    }

    /// Leases and progress start again at full length, for a market that starts again: its nodes could not report.
    /// `now` may be earlier than all times before.
    pub fn restart(&mut self, now: Millis) {
        for lease in self.leases.values_mut() {
            (lease.renewed_at, lease.progress_at) = (now, now);
        }
        for since in self.uncovered_since.iter_mut().flatten() {
            *since = now.min(*since);
        }
        for standing in self.nodes.values_mut() {
            standing.paused_until = standing.paused_until.min(now.saturating_add(LONGEST_PAUSE));
            for missed in &mut standing.missed {
                missed.at = missed.at.min(now);
            }
        }
        self.queued_at = now;
    }

    /// What time did since the last command: leases that ran out, windows without progress, the proposal that is due.
    /// `relays` are the public URLs of the relays that live. Returns whether anything changed.
    pub fn settle(&mut self, now: Millis, relays: &[String]) -> bool {
        if self.withdrawn {
            return false;
        }
        let expired = self.expire(now);
        let covered = self.note_cover(now);
        let proposed = self.propose(relays);
        debug_assert_eq!(invariants::check(self), Ok(()));
        expired || covered || proposed
    }

    /// When time will do something next if nobody calls: the first lease or patience to run out.
    pub fn next_deadline(&self) -> Option<Millis> {
        let patience = |lease: &Lease| match lease.progress {
            Progress::Claimed | Progress::Fetching(_) => STALLED_AFTER,
            Progress::Loading => LOADS_WITHIN,
            Progress::Ready => Millis::MAX,
        };
        let ends = |lease: &Lease| {
            let lost = lease.renewed_at.saturating_add(self.lease_ms());
            lost.min(lease.progress_at.saturating_add(patience(lease)))
        };
        self.leases.values().map(ends).min().map(|at| at.saturating_add(1))
    }

    pub(super) fn on_market(&self) -> Result<(), RuleError> {
        if self.withdrawn {
            return Err(RuleError::Withdrawn {
                ring: self.ring().to_owned(),
            });
        }
        Ok(())
    }

    fn owned_by(&self, owner: PublicKey) -> Result<(), RuleError> {
        if owner != self.owner {
            return Err(RuleError::ForeignOwner {
                ring: self.ring().to_owned(),
                owner: self.owner,
            });
        }
        Ok(())
    }

    pub(super) fn count(&self) -> u32 {
        self.demand.template.ranks.len() as u32
    }

    pub(super) fn lease_s(&self) -> u32 {
        self.demand.lease_s.unwrap_or(LEASE_S)
    }

    pub(super) fn lease_ms(&self) -> Millis {
        Millis::from(self.lease_s()) * 1000
    }

    pub(super) fn expired(&self, lease: &Lease, now: Millis) -> bool {
        now.saturating_sub(lease.renewed_at) > self.lease_ms()
    }

    /// Layers of a run; the run is within the windows.
    pub(super) fn layers(&self, run: Run) -> LayerRange {
        let ranks = &self.demand.template.ranks;
        let start = ranks.get(run.start as usize).map_or(0, |rank| rank.layers.start);
        let last = run.end.saturating_sub(1);
        let end = ranks.get(last as usize).map_or(0, |rank| rank.layers.end);
        LayerRange { start, end }
    }

    pub(super) fn memory(&self, run: Run) -> u64 {
        let ranks = &self.demand.template.ranks;
        let windows = run.windows().filter_map(|window| ranks.get(window as usize));
        windows.fold(0, |sum: u64, rank| sum.saturating_add(rank.memory))
    }

    pub(super) fn queued(&self, now: Millis) -> u32 {
        if now.saturating_sub(self.queued_at) > QUEUED_FOR {
            0
        } else {
            self.queued
        }
    }

    pub(super) fn take_queued(&mut self, now: Millis, queued: Option<u32>) {
        if let Some(queued) = queued {
            (self.queued, self.queued_at) = (queued, now);
        }
    }

    /// The claim that counts for a window, if there is one.
    pub(super) fn serving(&self, window: u32) -> Option<(u64, &Lease)> {
        let mut leases = self.leases.iter().filter(|(_, lease)| lease.windows.holds(window));
        let first = leases.clone().find(|(_, lease)| lease.serves());
        first.or_else(|| leases.next()).map(|(id, lease)| (*id, lease))
    }

    /// Whether somebody serves a window, loaded.
    pub(super) fn covered(&self, window: u32) -> bool {
        let mut leases = self.leases.values();
        leases.any(|lease| lease.ready() && lease.windows.holds(window))
    }

    pub(super) fn standing(&mut self, node: PublicKey) -> &mut Standing {
        if self.nodes.len() >= NODES_KEPT && !self.nodes.contains_key(&node) {
            let holds = |node: &PublicKey| self.leases.values().any(|lease| lease.node == *node);
            let idle = |node: &PublicKey| !holds(node);
            let forgettable = self.nodes.iter().filter(|(node, _)| idle(node));
            let least = forgettable.min_by_key(|(_, standing)| {
                let Standing {
                    absences,
                    failures,
                    replaced,
                    ..
                } = standing;
                (*absences, *failures, replaced.len())
            });
            if let Some(node) = least.map(|(node, _)| *node) {
                self.nodes.remove(&node);
            }
        }
        self.nodes.entry(node).or_default()
    }

    pub(super) fn fenced(&self, node: PublicKey, instance: &str) -> bool {
        let standing = self.nodes.get(&node);
        standing.is_some_and(|standing| standing.replaced.iter().any(|replaced| replaced == instance))
    }

    /// From now on the process gets no claim any more.
    pub(super) fn fence(&mut self, node: PublicKey, instance: &str) {
        if self.fenced(node, instance) {
            return;
        }
        let replaced = &mut self.standing(node).replaced;
        if replaced.len() == REPLACED_KEPT {
            replaced.pop_front();
        }
        replaced.push_back(instance.to_owned());
    }

    /// Ends a claim. What waited for it to go takes its place.
    pub(super) fn end(&mut self, id: u64, ending: Ending) {
        let Some(lease) = self.leases.remove(&id) else {
            return;
        };
        for other in self.leases.values_mut() {
            other.replaces.retain(|replaced| *replaced != id);
        }
        self.unjoined.retain(|(before, after)| *before != id && *after != id);
        if self.ended.len() == ENDED_KEPT {
            self.ended.pop_front();
        }
        self.ended.push_back((id, ending));
        let failed = match ending {
            Ending::Expired | Ending::Stalled | Ending::Absent => true,
            Ending::Left => !lease.ready(),
            Ending::Replaced | Ending::Withdrawn => false,
        };
        if failed {
            let standing = self.standing(lease.node);
            standing.failures = standing.failures.saturating_add(1);
        }
    }

    fn expire(&mut self, now: Millis) -> bool {
        let over = |(id, lease): (&u64, &Lease)| {
            let ending = if self.expired(lease, now) {
                Some(Ending::Expired)
            } else {
                lease.stalled(now).then_some(Ending::Stalled)
            };
            ending.map(|ending| (*id, ending))
        };
        let over: Vec<(u64, Ending)> = self.leases.iter().filter_map(over).collect();
        for (id, ending) in &over {
            self.end(*id, *ending);
        }
        !over.is_empty()
    }

    fn note_cover(&mut self, now: Millis) -> bool {
        let covered: Vec<bool> = (0..self.count()).map(|window| self.covered(window)).collect();
        let mut changed = false;
        for (since, covered) in self.uncovered_since.iter_mut().zip(covered) {
            if covered == since.is_some() {
                *since = (!covered).then_some(now);
                changed = true;
            }
        }
        changed
    }

    /// Moves claims and times over to the new windows where both ends still are ends; the rest ends.
    fn rewindow(&mut self, now: Millis, old: &RankManifest) {
        let new = &self.demand.template;
        let same_model = same_dimensions(old, new);
        let place = |layers: LayerRange| new.ranks.iter().position(|rank| rank.layers == layers);
        let moved = |lease: &Lease| {
            let windows = old
                .ranks
                .get(lease.windows.start as usize..lease.windows.end as usize)?;
            let places: Option<Vec<usize>> = windows.iter().map(|rank| place(rank.layers)).collect();
            let (first, last) = (*places.as_ref()?.first()? as u32, *places.as_ref()?.last()? as u32);
            same_model.then_some(Run {
                start: first,
                end: last + 1,
            })
        };
        let runs: Vec<(u64, Option<Run>)> = self.leases.iter().map(|(id, lease)| (*id, moved(lease))).collect();
        let since = |layers: LayerRange| {
            let before = old.ranks.iter().position(|rank| rank.layers == layers);
            before.map_or(Some(now), |before| self.uncovered_since.get(before).copied().flatten())
        };
        self.uncovered_since = new.ranks.iter().map(|rank| since(rank.layers)).collect();
        for (id, run) in runs {
            match (run, self.leases.get_mut(&id)) {
                (Some(run), Some(lease)) => lease.windows = run,
                _ => self.end(id, Ending::Withdrawn),
            }
        }
        self.drop_unreserved();
    }

    /// Ends claims on windows that are kept for another node now.
    fn drop_unreserved(&mut self) {
        let reserved = &self.demand.reserved;
        let foreign = |lease: &Lease| {
            let mut windows = lease.windows.windows();
            windows.any(|window| reserved.get(&window).is_some_and(|node| *node != lease.node))
        };
        let over = self.leases.iter().filter(|(_, lease)| foreign(lease));
        let over: Vec<u64> = over.map(|(id, _)| *id).collect();
        for id in over {
            self.end(id, Ending::Withdrawn);
        }
    }
}

/// A demand that can be served, without holders.
fn checked(owner: &PublicKey, mut demand: Demand) -> Result<Demand, RuleError> {
    let bad = |detail: String| Err(RuleError::BadDemand { detail });
    demand.template.ranks.iter_mut().for_each(|rank| rank.holder = None);
    if let Err(error) = demand.template.validate() {
        return bad(error.to_string());
    }
    let last = demand.template.ranks.len() as u32 - 1;
    if let Some(window) = demand.reserved.keys().find(|window| **window > last) {
        return bad(format!("window {window} is reserved, and the last one is {last}"));
    }
    if demand.trusted_ends {
        for window in [0, last] {
            if !demand.reserved.contains_key(&window) {
                return bad(format!(
                    "window {window} is an end and open: reserve it for a node of the owner's, or set trustedEnds to false"
                ));
            }
        }
    }
    let ours = matches!(
        demand.source,
        Source::File { .. } | Source::PersistentVolumeClaim { .. }
    );
    if ours && demand.reserved.len() <= last as usize {
        return bad("open windows need a source that outsiders can read: http or Hugging Face".to_owned());
    }
    if let Some(lease) = demand.lease_s
        && !LEASES_S.contains(&lease)
    {
        let (least, most) = LEASES_S.into_inner();
        return bad(format!("a lease of {lease} s is not between {least} s and {most} s"));
    }
    for delegation in &demand.delegations {
        delegation
            .verify(owner, &demand.template.ring)
            .map_err(|source| RuleError::BadDelegation { source })?;
    }
    Ok(demand)
}

/// Whether what a stage loaded for one plan serves the other.
fn same_dimensions(a: &RankManifest, b: &RankManifest) -> bool {
    let shape = |plan: &RankManifest| {
        let mut shape = plan.clone();
        shape.epoch = 0;
        shape.ranks.clear();
        shape.model.prefix_bytes.clear();
        shape
    };
    shape(a) == shape(b)
}

fn same_windows(a: &RankManifest, b: &RankManifest) -> bool {
    let layers = |plan: &RankManifest| plan.ranks.iter().map(|rank| rank.layers).collect::<Vec<_>>();
    same_dimensions(a, b) && layers(a) == layers(b)
}
