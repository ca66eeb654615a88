//! Epochs: which claims make the next manifest, and when it is due.
//!
//! Every claim becomes one rank, its neighbouring windows merged. A manifest is due when none is published, when
//! another claim serves a window, when an edge is reached in another way, or when a stage lost a link. It is proposed
//! once every window is served, loaded; rank 0 signs it, and it is published.

use kvasir_plan::{Holder, Rank, RankManifest};
use kvasir_wire::trust::{PublicKey, SignedManifest};
use serde::{Deserialize, Serialize};

use super::{Earner, EpochAccount, Millis, RingState, RuleError, absence::Trial, invariants, links, ring::Lease};
use crate::types::{EdgeRole, Proposal, TicketRequest};

/// A manifest that rank 0 has to sign, and the claims that its ranks are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Proposed {
    pub(super) proposal: Proposal,
    pub(super) claims: Vec<u64>,
}

/// The manifest that the ring runs by, and the claims that its ranks are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Published {
    pub(super) signed: SignedManifest,
    pub(super) manifest: RankManifest,
    pub(super) claims: Vec<u64>,
    /// rank 0 said that a lap went round; what an older market published counted from the first
    #[serde(default = "yes")]
    pub(super) closed: bool,
}

fn yes() -> bool {
    true
}

/// Epochs that are left out after one that a stage knows and this market doesn't: other stages may know a few more.
const SKIPPED: u64 = 1_000;
/// Epochs by which a market can be behind its stages. A stage that tells of more is not believed, so that none can bring a
/// ring to the end of all numbers.
const BEHIND: u64 = 1 << 32;

/// What the next manifest would say, if every window is served.
struct Assembly {
    claims: Vec<u64>,
    ranks: Vec<Rank>,
}

/// Why no manifest can be proposed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Waiting {
    /// windows are open, or being loaded
    Cover,
    /// no relay lives for the edge into this rank
    Relay { rank: u32 },
    /// the owner has not delegated to the node of rank 0
    Delegation { node: PublicKey },
}

impl RingState {
    /// The manifest that rank 0 has to sign, if its epoch is above `after`. [`RingState::settle`] before.
    pub fn proposal(&self, after: u64) -> Option<&Proposal> {
        let proposal = &self.proposed.as_ref()?.proposal;
        (proposal.manifest.epoch > after).then_some(proposal)
    }

    /// The published manifest, if its epoch is above `after`.
    pub fn manifest(&self, after: u64) -> Option<&SignedManifest> {
        let published = self.published.as_ref()?;
        (published.manifest.epoch > after).then_some(&published.signed)
    }

    /// Takes the signed manifest if the owner stands behind it and it is the outstanding proposal, whole. Gives the
    /// account of the new epoch, to be kept; none for the manifest that is published already, which is accepted again:
    /// its sender may have missed the answer.
    ///
    /// # Errors
    /// [`RuleError::Unsigned`], [`RuleError::NotProposed`] or [`RuleError::Withdrawn`].
    pub fn publish(
        &mut self,
        now: Millis,
        relays: &[String],
        signed: SignedManifest,
    ) -> Result<Option<EpochAccount>, RuleError> {
        self.on_market()?;
        if self
            .published
            .as_ref()
            .is_some_and(|published| published.signed == signed)
        {
            return Ok(None);
        }
        let manifest = signed
            .verify(&self.owner, self.ring(), 0)
            .map_err(|source| RuleError::Unsigned { source })?;
        self.settle(now, relays);
        let is_proposed = |proposed: &mut Proposed| {
            proposed.proposal.manifest == manifest && proposed.proposal.delegation == signed.delegation
        };
        let Some(Proposed { claims, .. }) = self.proposed.take_if(is_proposed) else {
            return Err(RuleError::NotProposed { epoch: manifest.epoch });
        };
        let earner = |id: &u64| {
            self.leases.get(id).map(|lease| Earner {
                claim: *id,
                node: lease.node,
                rate: lease.rate(),
            })
        };
        let account = EpochAccount {
            epoch: manifest.epoch,
            rank0: signed.delegation.delegate,
            committed: 0,
            trusted: self.demand.trusted_ends,
            earners: claims.iter().filter_map(earner).collect(),
        };
        self.try_out(Trial::of(&manifest, &claims));
        self.published = Some(Published {
            signed,
            manifest,
            claims,
            closed: false,
        });
        self.settle(now, relays);
        debug_assert_eq!(invariants::check_signed(self), Ok(()));
        Ok(Some(account))
    }

    /// The relay that bridges an edge of the published manifest, for a ticket to the node at that end of it.
    ///
    /// # Errors
    /// [`RuleError::UnknownEpoch`], [`RuleError::NotAtEdge`], [`RuleError::NotRelayed`] or [`RuleError::Withdrawn`].
    pub fn ticket(&self, now: Millis, node: PublicKey, request: TicketRequest) -> Result<&str, RuleError> {
        self.on_market()?;
        let TicketRequest { epoch, edge, role } = request;
        let published = self
            .published
            .as_ref()
            .filter(|published| published.manifest.epoch == epoch);
        let published = published.ok_or(RuleError::UnknownEpoch { epoch })?;
        let ranks = published.claims.len();
        let before = edge as usize;
        if before >= ranks {
            return Err(RuleError::NotAtEdge { edge });
        }
        let after = (before + 1) % ranks;
        let end = match role {
            EdgeRole::Predecessor => before,
            EdgeRole::Successor => after,
        };
        let lease = self.leases.get(&published.claims[end]);
        if lease.is_none_or(|lease| lease.node != node || self.expired(lease, now)) {
            return Err(RuleError::NotAtEdge { edge });
        }
        let holder = published.manifest.ranks[after].holder.as_ref();
        holder
            .and_then(|holder| links::relay_of(&holder.link))
            .ok_or(RuleError::NotRelayed { edge })
    }

    /// Brings the proposal in line with the claims. A proposal that was withdrawn may have been signed already, so its
    /// epoch is never used again. Returns whether anything changed.
    pub(super) fn propose(&mut self, relays: &[String]) -> bool {
        let assembly = match self.assemble(relays) {
            Ok(assembly) if self.due(&assembly) => assembly,
            _ => return self.proposed.take().is_some(),
        };
        if self
            .proposed
            .as_ref()
            .is_some_and(|p| says(&p.claims, &p.proposal.manifest, &assembly, Some(relays)))
        {
            return false;
        }
        let rank0 = assembly
            .claims
            .first()
            .and_then(|id| self.leases.get(id))
            .map(|lease| lease.node);
        let delegation = rank0.and_then(|node| self.demand.delegations.iter().find(|d| d.delegate == node));
        let Some(delegation) = delegation.cloned() else {
            return self.proposed.take().is_some();
        };
        self.epoch += 1;
        let mut manifest = self.demand.template.clone();
        manifest.epoch = self.epoch;
        manifest.ranks = assembly.ranks;
        self.proposed = Some(Proposed {
            proposal: Proposal { manifest, delegation },
            claims: assembly.claims,
        });
        true
    }

    /// A stage knows of epoch `seen`. If that was never given out here, this market's memory is older than the ring, as
    /// after a restore, or new: what it has published is not what the ring runs by, and since no stage goes back, it goes
    /// on above.
    pub(super) fn catch_up(&mut self, seen: u64) {
        if seen <= self.epoch || seen - self.epoch > BEHIND {
            return;
        }
        self.epoch = seen.saturating_add(SKIPPED);
        self.published = None;
        self.proposed = None;
    }

    /// Why nothing is proposed though a manifest is due, if so.
    pub(super) fn waiting(&self, relays: &[String]) -> Option<Waiting> {
        if self.proposed.is_some() {
            return None;
        }
        let assembly = match self.assemble(relays) {
            Ok(assembly) => assembly,
            Err(waiting) => return Some(waiting),
        };
        let node = assembly.claims.first().and_then(|id| self.leases.get(id))?.node;
        let delegated = self
            .demand
            .delegations
            .iter()
            .any(|delegation| delegation.delegate == node);
        (self.due(&assembly) && !delegated).then_some(Waiting::Delegation { node })
    }

    /// Whether a lap went round in the published epoch, its manifest is what the claims are, and no stage lost a link of
    /// it.
    pub(super) fn stands(&self, relays: &[String]) -> bool {
        let closed = self.published.as_ref().is_some_and(|published| published.closed);
        closed && self.assemble(relays).is_ok_and(|assembly| !self.due(&assembly))
    }

    /// Rank 0 says that a lap of `epoch` came home.
    pub(super) fn note_closed(&mut self, epoch: u64) {
        if let Some(published) = &mut self.published
            && published.manifest.epoch == epoch
        {
            published.closed = true;
        }
    }

    fn assemble(&self, relays: &[String]) -> Result<Assembly, Waiting> {
        let mut serving: Vec<(u64, &Lease)> = self
            .leases
            .iter()
            .filter(|(_, lease)| lease.serves())
            .map(|(id, lease)| (*id, lease))
            .collect();
        serving.sort_by_key(|(_, lease)| lease.windows);
        let mut next = 0;
        for (_, lease) in &serving {
            if lease.windows.start != next || !lease.ready() {
                return Err(Waiting::Cover);
            }
            next = lease.windows.end;
        }
        if next != self.count() {
            return Err(Waiting::Cover);
        }
        let ranks = (0..serving.len()).map(|rank| self.rank(&serving, rank, relays));
        Ok(Assembly {
            ranks: ranks.collect::<Result<_, _>>()?,
            claims: serving.iter().map(|(id, _)| *id).collect(),
        })
    }

    fn rank(&self, serving: &[(u64, &Lease)], rank: usize, relays: &[String]) -> Result<Rank, Waiting> {
        let before = serving[(rank + serving.len() - 1) % serving.len()];
        let (id, lease) = serving[rank];
        let reported = lease.report.as_ref().ok_or(Waiting::Cover)?;
        let pair = (before.0, id);
        let direct = before
            .1
            .report
            .as_ref()
            .and_then(|before| links::direct(&before.reach, &reported.reach));
        // Without a relay there is only the way that failed before: whoever was away may be back.
        let link = match direct.filter(|_| relays.is_empty() || !self.unjoined.contains(&pair)) {
            Some(link) => link,
            None => {
                // the edge is named after the rank it leaves
                let edge = (rank + serving.len() - 1) % serving.len();
                links::relayed(self.ring(), edge as u32, relays).ok_or(Waiting::Relay { rank: rank as u32 })?
            }
        };
        let windows = &self.demand.template.ranks[lease.windows.start as usize..lease.windows.end as usize];
        let placement = match windows {
            [window] => window.placement.clone(),
            _ => None,
        };
        Ok(Rank {
            layers: self.layers(lease.windows),
            bytes: windows
                .iter()
                .fold(0, |sum: u64, window| sum.saturating_add(window.bytes)),
            memory: self.memory(lease.windows),
            placement,
            holder: Some(Holder {
                link,
                ..reported.holder.clone()
            }),
        })
    }

    fn due(&self, assembly: &Assembly) -> bool {
        let Some(published) = &self.published else {
            return true;
        };
        let epoch = Some(published.manifest.epoch);
        let lost = |id: &u64| {
            let report = self.leases.get(id).and_then(|lease| lease.report.as_ref());
            report.is_some_and(|report| report.lost_epoch == epoch)
        };
        // A relay that is gone is for the stages to say: the edge may be up all the same.
        !says(&published.claims, &published.manifest, assembly, None) || assembly.claims.iter().any(lost)
    }
}

/// Whether a manifest says what the claims are. A relay in it need not be the one that would be chosen now; with
/// `relays` it has to be alive.
fn says(claims: &[u64], manifest: &RankManifest, assembly: &Assembly, relays: Option<&[String]>) -> bool {
    let same = |(said, now): (&Rank, &Rank)| {
        let (Some(said_by), Some(now_by)) = (&said.holder, &now.holder) else {
            return false;
        };
        let same_link = match (links::relay_of(&said_by.link), links::relay_of(&now_by.link)) {
            (Some(said), Some(_)) => relays.is_none_or(|relays| relays.iter().any(|relay| relay == said)),
            _ => said_by.link == now_by.link,
        };
        let same_process =
            said_by.node == now_by.node && said_by.instance == now_by.instance && said_by.noise_key == now_by.noise_key;
        said.layers == now.layers && same_process && same_link
    };
    claims == assembly.claims
        && manifest.ranks.len() == assembly.ranks.len()
        && manifest.ranks.iter().zip(&assembly.ranks).all(same)
}
