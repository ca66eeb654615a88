//! Ends that never come: a stage that reports itself ready while its legs never reach the relay would keep its window
//! for ever, and the ring down. What the stages say of epochs that did not form shows which one it is.
//!
//! A stage was missing in an epoch when a neighbour waited for it at their relay in vain, and either the stage says
//! itself that it did not get there, or its other neighbour, another node, waited in vain as well. So no node's word
//! alone is enough, and a relay that nobody reaches is nobody's fault.
//!
//! A node that was missing in [`MISSES`] epochs within [`WITHIN`], while nothing came home, loses the claim and is
//! paused, for longer each time. Windows that are kept for one node are left to it: nobody else could have them.

use std::collections::{BTreeMap, BTreeSet};

use kvasir_plan::RankManifest;
use kvasir_wire::trust::PublicKey;
use serde::{Deserialize, Serialize};

use super::{
    Millis, RingState, RuleError, links,
    ring::{Ending, Lease},
};
use crate::types::{LostEnd, StageReport};

/// So many epochs without it are too many. Each takes the time that stages give their links to come up.
pub(super) const MISSES: usize = 3;
/// Older ones don't count.
pub(super) const WITHIN: Millis = 600_000;
/// The first pause. Each further one, with nothing come home in between, is twice as long.
pub(super) const PAUSE: Millis = 600_000;
/// No pause is longer.
pub(super) const LONGEST_PAUSE: Millis = PAUSE << 4;

/// Epochs of which words are still taken: stages may learn of the next one before they give this one up.
const TRIALS_KEPT: usize = 3;

/// A published epoch, and what its stages said when it did not form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Trial {
    epoch: u64,
    /// by rank
    claims: Vec<u64>,
    /// by edge: whether it goes over a relay
    relayed: Vec<bool>,
    /// by claim: who, in its words, did not come
    said: BTreeMap<u64, u64>,
}

/// An epoch in which a node was missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Missed {
    pub(super) epoch: u64,
    pub(super) at: Millis,
}

impl Trial {
    pub(super) fn of(manifest: &RankManifest, claims: &[u64]) -> Trial {
        let relayed = |edge: usize| {
            let into = manifest.ranks.get((edge + 1) % manifest.ranks.len());
            let holder = into.and_then(|rank| rank.holder.as_ref());
            holder.is_some_and(|holder| links::relay_of(&holder.link).is_some())
        };
        Trial {
            epoch: manifest.epoch,
            claims: claims.to_vec(),
            relayed: (0..manifest.ranks.len()).map(relayed).collect(),
            said: BTreeMap::new(),
        }
    }

    /// The claim that did not come to an edge, in the words of the claim at one end of it.
    fn named(&self, by: u64, edge: u32, end: LostEnd) -> Option<u64> {
        let edge = edge as usize;
        if !*self.relayed.get(edge)? {
            return None;
        }
        let before = *self.claims.get(edge)?;
        let after = *self.claims.get((edge + 1) % self.claims.len())?;
        let other = match by {
            _ if before == after => return None,
            _ if by == before => after,
            _ if by == after => before,
            _ => return None,
        };
        Some(match end {
            LostEnd::Own => by,
            LostEnd::Other => other,
        })
    }

    /// Claims that did not come, by the word of two.
    fn missing(&self, leases: &BTreeMap<u64, Lease>) -> Vec<u64> {
        let node = |claim: &u64| leases.get(claim).map(|lease| lease.node);
        let missing = |claim: &&u64| {
            let words = self.said.iter().filter(|(_, named)| *named == *claim);
            let by: BTreeSet<PublicKey> = words.filter_map(|(by, _)| node(by)).collect();
            by.len() > 1
        };
        self.claims.iter().filter(missing).copied().collect()
    }
}

impl RingState {
    /// From now on words about this epoch are taken.
    pub(super) fn try_out(&mut self, trial: Trial) {
        if self.trials.len() == TRIALS_KEPT {
            self.trials.pop_front();
        }
        self.trials.push_back(trial);
    }

    /// Takes a stage's word that an end never came, and ends the claims that were missing too often.
    pub(super) fn note_absence(&mut self, now: Millis, id: u64, report: &StageReport) {
        let (Some(epoch), Some(edge), Some(end)) = (report.lost_epoch, report.lost_edge, report.lost_end) else {
            return;
        };
        let Some(trial) = self.trials.iter_mut().find(|trial| trial.epoch == epoch) else {
            return;
        };
        let Some(named) = trial.named(id, edge, end) else {
            return;
        };
        if trial.said.insert(id, named) == Some(named) {
            return;
        }
        for missing in trial.missing(&self.leases) {
            self.note_missed(now, missing, epoch);
        }
    }

    fn note_missed(&mut self, now: Millis, id: u64, epoch: u64) {
        let Some(lease) = self.leases.get(&id) else {
            return;
        };
        let node = lease.node;
        let mut windows = lease.windows.windows();
        if windows.all(|window| self.demand.reserved.contains_key(&window)) {
            return;
        }
        let standing = self.standing(node);
        // An epoch counts once, also for a node with several claims in it.
        if standing.missed.iter().any(|missed| missed.epoch >= epoch) {
            return;
        }
        standing.missed.retain(|missed| now.saturating_sub(missed.at) <= WITHIN);
        standing.missed.push(Missed { epoch, at: now });
        if standing.missed.len() < MISSES {
            return;
        }
        standing.missed.clear();
        let pause = PAUSE << standing.absences.min(4);
        standing.absences = standing.absences.saturating_add(1);
        standing.paused_until = now.saturating_add(pause);
        self.end(id, Ending::Absent);
    }

    /// Something came home: every stage of the published epoch is there, whatever is said later.
    pub(super) fn note_home(&mut self) {
        let epoch = self.published.as_ref().map(|published| published.manifest.epoch);
        self.trials.retain(|trial| Some(trial.epoch) != epoch);
        let claims = self.published.iter().flat_map(|published| &published.claims);
        let nodes: BTreeSet<PublicKey> = claims.filter_map(|id| Some(self.leases.get(id)?.node)).collect();
        for node in nodes {
            if let Some(standing) = self.nodes.get_mut(&node) {
                standing.missed.clear();
                standing.absences = 0;
            }
        }
    }

    /// Milliseconds for which a node still gets no window that others could have.
    pub(super) fn paused(&self, now: Millis, node: PublicKey) -> Option<Millis> {
        let until = self.nodes.get(&node)?.paused_until;
        until.checked_sub(now).filter(|left| *left > 0)
    }

    pub(super) fn not_paused(&self, now: Millis, node: PublicKey) -> Result<(), RuleError> {
        match self.paused(now, node) {
            Some(left) => Err(RuleError::Paused {
                for_s: left.div_ceil(1000),
            }),
            None => Ok(()),
        }
    }
}
