//! The board of one ring: who holds which window, and when the ring's membership changes. Pure: time is an argument.
//!
//! A slot for each window keeps the latest report of the process that holds it. When every slot is ready and the
//! published manifest is missing, names another process, or has lost a link, the board proposes the next epoch with
//! the owner's delegation to rank 0. Rank 0 signs it, the board checks it and publishes it, and every stage takes it.
//!
//! Invariants: epochs only grow; one epoch never names two manifests; nothing is proposed while a slot isn't ready;
//! once a process has taken a slot over, the one before it is refused for good.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use kvasir_plan::{Holder, LayerRange, RankManifest};
use kvasir_wire::trust::{Delegation, PublicKey, Signature, SignedManifest, TrustError, noise_key};

use crate::types::{BoardStatus, Proposal, SlotStatus, StageReport, StageState};

/// A report counts this long unless the board is told otherwise; stages report every few seconds.
pub const STALE_AFTER: Duration = Duration::from_secs(15);

/// Processes that a slot remembers as replaced. One that wakes after so many successors is taken for a new one.
const REPLACED_KEPT: usize = 64;

/// Context of a node's signature over its Noise key (`kvasir_plan::Holder::noise_key_signature`).
const NOISE_KEY: &str = "kvasir noise key";

/// Gives the owner's delegation to a node, or none while the owner has not agreed to that node as rank 0.
pub type Delegate = Box<dyn Fn(PublicKey) -> Option<Delegation> + Send + Sync>;

/// Why the board refuses a report or a manifest.
#[derive(Debug, thiserror::Error)]
pub enum BoardError {
    /// no such rank
    #[error("the ring has {ranks} ranks, there is no rank {rank}")]
    UnknownRank {
        /// rank asked for
        rank: u32,
        /// ranks there are
        ranks: usize,
    },
    /// the window is another one
    #[error(
        "rank {rank} is layers {}..{}, not {}..{}: fetch that window",
        wanted.start, wanted.end, reported.start, reported.end
    )]
    WrongWindow {
        /// rank
        rank: u32,
        /// its layers
        wanted: LayerRange,
        /// layers that the stage reported
        reported: LayerRange,
    },
    /// the window was cut from another model
    #[error("rank {rank} was cut from model {reported}, the ring serves {wanted}: fetch the window again")]
    WrongModel {
        /// rank
        rank: u32,
        /// identity that the ring serves
        wanted: String,
        /// identity that the stage reported
        reported: String,
    },
    /// the holder's keys don't belong together
    #[error("the holder of rank {rank} does not prove that its Noise key belongs to its node key")]
    BadHolder {
        /// rank
        rank: u32,
    },
    /// another node holds the slot
    #[error("rank {rank} is held by another node that is alive")]
    Held {
        /// rank
        rank: u32,
    },
    /// a newer process of the same slot took over
    #[error("rank {rank} was taken over by a newer process: stop this one")]
    Fenced {
        /// rank
        rank: u32,
    },
    /// the manifest's signature or delegation doesn't hold
    #[error("the manifest is not signed by the ring's owner")]
    Unsigned {
        /// what is wrong with it
        #[source]
        source: TrustError,
    },
    /// what was signed is not what is proposed now
    #[error("the manifest of epoch {epoch} is not the one proposed: ask for the proposal again")]
    NotProposed {
        /// epoch of the refused manifest
        epoch: u64,
    },
}

impl BoardError {
    /// Stable `PascalCase` word for metrics, events and answers.
    pub fn reason(&self) -> &'static str {
        match self {
            BoardError::UnknownRank { .. } => "UnknownRank",
            BoardError::WrongWindow { .. } => "WrongWindow",
            BoardError::WrongModel { .. } => "WrongModel",
            BoardError::BadHolder { .. } => "BadHolder",
            BoardError::Held { .. } => "Held",
            BoardError::Fenced { .. } => "Fenced",
            BoardError::Unsigned { .. } => "Unsigned",
            BoardError::NotProposed { .. } => "NotProposed",
        }
    }
}

/// One ring's slots, its outstanding proposal and its published manifest.
pub struct Board {
    /// windows and dimensions; its epoch is the last one given out
    template: RankManifest,
    owner: PublicKey,
    delegate: Delegate,
    stale_after: Duration,
    slots: Vec<Slot>,
    proposed: Option<Proposal>,
    published: Option<Published>,
}

struct Slot {
    layers: LayerRange,
    held: Option<Held>,
    /// instances that were replaced, oldest first
    replaced: VecDeque<String>,
}

struct Held {
    report: StageReport,
    at: Instant,
}

struct Published {
    signed: SignedManifest,
    manifest: RankManifest,
}

impl std::fmt::Debug for Board {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Board")
            .field("ring", &self.template.ring)
            .field("epoch", &self.template.epoch)
            .field("slots", &self.slots.len())
            .finish_non_exhaustive()
    }
}

impl Board {
    /// A board for the ring that `template` plans; holders in it are dropped. The first epoch proposed is
    /// `template.epoch + 1`, so a market that starts again hands in the last epoch it gave out.
    pub fn new(template: RankManifest, owner: PublicKey, delegate: Delegate, stale_after: Duration) -> Self {
        let slots = template.ranks.iter().map(|rank| Slot::new(rank.layers)).collect();
        Board {
            template,
            owner,
            delegate,
            stale_after,
            slots,
            proposed: None,
            published: None,
        }
    }

    /// Takes a stage's report. A process takes a slot that is free, stale or being left; a new process of the same
    /// node also takes it from one that isn't ready, or once it is ready itself, so that a replacement can fetch its
    /// window while the old process still serves.
    pub fn report(&mut self, rank: u32, report: StageReport, now: Instant) -> Result<(), BoardError> {
        let ranks = self.slots.len();
        let slot = self
            .slots
            .get_mut(rank as usize)
            .ok_or(BoardError::UnknownRank { rank, ranks })?;
        if report.layers != slot.layers {
            return Err(BoardError::WrongWindow {
                rank,
                wanted: slot.layers,
                reported: report.layers,
            });
        }
        if report.identity != self.template.model.identity {
            let wanted = self.template.model.identity.clone();
            return Err(BoardError::WrongModel {
                rank,
                wanted,
                reported: report.identity,
            });
        }
        if !proves_noise_key(&report.holder) {
            return Err(BoardError::BadHolder { rank });
        }
        slot.take(rank, report, now, self.stale_after)?;
        self.settle(now);
        Ok(())
    }

    /// The manifest that rank 0 has to sign, if its epoch is above `after`.
    pub fn proposal(&mut self, after: u64, now: Instant) -> Option<&Proposal> {
        self.settle(now);
        self.proposed
            .as_ref()
            .filter(|proposal| proposal.manifest.epoch > after)
    }

    /// Takes the signed manifest if the owner stands behind it and it is the outstanding proposal, whole. The one
    /// that is published already is accepted again: its sender may have missed the answer.
    pub fn publish(&mut self, signed: SignedManifest, now: Instant) -> Result<(), BoardError> {
        if self
            .published
            .as_ref()
            .is_some_and(|published| published.signed == signed)
        {
            return Ok(());
        }
        let manifest = signed
            .verify(&self.owner, &self.template.ring, 0)
            .map_err(|source| BoardError::Unsigned { source })?;
        self.settle(now);
        match self.proposed.take_if(|proposal| proposal.manifest == manifest) {
            Some(_) => {
                self.published = Some(Published { signed, manifest });
                self.settle(now);
                Ok(())
            }
            None => Err(BoardError::NotProposed { epoch: manifest.epoch }),
        }
    }

    /// The published manifest, if its epoch is above `after`.
    pub fn manifest(&self, after: u64) -> Option<&SignedManifest> {
        self.published
            .as_ref()
            .filter(|published| published.manifest.epoch > after)
            .map(|published| &published.signed)
    }

    /// The ring as it stands.
    pub fn status(&mut self, now: Instant) -> BoardStatus {
        self.settle(now);
        BoardStatus {
            ring: self.template.ring.clone(),
            epoch: self.published.as_ref().map(|published| published.manifest.epoch),
            proposed: self.proposed.as_ref().map(|proposal| proposal.manifest.epoch),
            slots: (0..)
                .zip(&self.slots)
                .map(|(rank, slot)| SlotStatus {
                    rank,
                    layers: slot.layers,
                    report: slot.held.as_ref().map(|held| held.report.clone()),
                    stale: slot.held.as_ref().is_some_and(|held| held.stale(now, self.stale_after)),
                })
                .collect(),
        }
    }

    /// Brings the proposal in line with the slots. A proposal that was withdrawn may have been signed already, so its
    /// epoch is never used again.
    fn settle(&mut self, now: Instant) {
        let holders: Option<Vec<&Holder>> = self
            .slots
            .iter()
            .map(|slot| slot.ready(now, self.stale_after))
            .collect();
        let Some(holders) = holders.filter(|_| self.change_due()) else {
            self.proposed = None;
            return;
        };
        if self
            .proposed
            .as_ref()
            .is_some_and(|proposal| held_by(&proposal.manifest, &holders))
        {
            return;
        }
        let rank0 = holders.first().and_then(|first| first.node.parse().ok());
        self.proposed = rank0.and_then(|node| (self.delegate)(node)).map(|delegation| {
            let mut manifest = self.template.clone();
            manifest.epoch += 1;
            for (rank, holder) in manifest.ranks.iter_mut().zip(holders) {
                rank.holder = Some(holder.clone());
            }
            Proposal { manifest, delegation }
        });
        if let Some(proposal) = &self.proposed {
            self.template.epoch = proposal.manifest.epoch;
        }
    }

    /// Whether the published manifest no longer describes the ring: there is none, a slot changed hands or address,
    /// or a stage lost a link of it.
    fn change_due(&self) -> bool {
        let Some(Published { manifest, .. }) = &self.published else {
            return true;
        };
        self.slots.iter().zip(&manifest.ranks).any(|(slot, rank)| {
            slot.held.as_ref().is_some_and(|held| {
                Some(&held.report.holder) != rank.holder.as_ref() || held.report.lost_epoch == Some(manifest.epoch)
            })
        })
    }
}

impl Slot {
    fn new(layers: LayerRange) -> Self {
        Slot {
            layers,
            held: None,
            replaced: VecDeque::new(),
        }
    }

    fn ready(&self, now: Instant, stale_after: Duration) -> Option<&Holder> {
        self.held
            .as_ref()
            .filter(|held| held.ready() && !held.stale(now, stale_after))
            .map(|held| &held.report.holder)
    }

    fn take(&mut self, rank: u32, report: StageReport, now: Instant, stale_after: Duration) -> Result<(), BoardError> {
        if self.replaced.contains(&report.holder.instance) {
            return Err(BoardError::Fenced { rank });
        }
        let newcomer = Held { report, at: now };
        if let Some(held) = &self.held
            && held.report.holder.instance != newcomer.report.holder.instance
        {
            let same_node = held.report.holder.node == newcomer.report.holder.node;
            let free = held.stale(now, stale_after) || held.report.state == StageState::Leaving;
            if !free && !same_node {
                return Err(BoardError::Held { rank });
            }
            if !free && held.ready() && !newcomer.ready() {
                return Ok(());
            }
            if self.replaced.len() == REPLACED_KEPT {
                self.replaced.pop_front();
            }
            self.replaced.push_back(held.report.holder.instance.clone());
        }
        self.held = Some(newcomer);
        Ok(())
    }
}

impl Held {
    fn ready(&self) -> bool {
        matches!(self.report.state, StageState::Ready { .. })
    }

    fn stale(&self, now: Instant, stale_after: Duration) -> bool {
        now.saturating_duration_since(self.at) > stale_after
    }
}

fn proves_noise_key(holder: &Holder) -> bool {
    let (Ok(node), Ok(key)) = (holder.node.parse::<PublicKey>(), noise_key(holder)) else {
        return false;
    };
    let signature = holder.noise_key_signature.parse::<Signature>();
    signature.is_ok_and(|signature| node.verifies(NOISE_KEY, &key, &signature))
}

fn held_by(manifest: &RankManifest, holders: &[&Holder]) -> bool {
    manifest
        .ranks
        .iter()
        .map(|rank| rank.holder.as_ref())
        .eq(holders.iter().map(|holder| Some(*holder)))
}

#[cfg(test)]
mod tests;
