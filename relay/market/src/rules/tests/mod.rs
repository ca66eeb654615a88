//! Rings of a few windows, nodes with keys made once, and one driver that applies commands and checks every invariant.

mod absence;
mod claims;
mod epochs;
mod ledger;
mod model;
mod random;
mod reward;

use std::{collections::BTreeMap, sync::LazyLock};

use kvasir_plan::Link;
use kvasir_plan::{BoundaryType, LayerRange, ModelRef, Rank, RankManifest};
use kvasir_wire::trust::{NodeKeys, OwnerKey, PublicKey, SignedManifest};

use super::{invariants, *};
use crate::types::*;

/// Enough for a node per window of the small rings and some that compete.
const NODES: usize = 24;
const GB: u64 = 1_000_000_000;
const LEASE: Millis = 15_000;

static KEYS: LazyLock<Keys> = LazyLock::new(|| Keys {
    owner: OwnerKey::generate().unwrap(),
    nodes: (0..NODES).map(|_| NodeKeys::generate().unwrap()).collect(),
});

struct Keys {
    owner: OwnerKey,
    nodes: Vec<NodeKeys>,
}

fn node(number: usize) -> PublicKey {
    KEYS.nodes[number].public()
}

fn relays() -> Vec<String> {
    vec!["https://relay.example".to_owned()]
}

/// A ring of so many windows of two layers and a GB each.
fn template(windows: u32) -> RankManifest {
    let rank = |window: u32| Rank {
        layers: LayerRange {
            start: 2 * window,
            end: 2 * window + 2,
        },
        bytes: GB,
        memory: GB,
        placement: None,
        holder: None,
    };
    RankManifest {
        ring: "tea".to_owned(),
        epoch: 0,
        model: ModelRef {
            name: "tea".to_owned(),
            architecture: "llama".to_owned(),
            identity: "1".repeat(64),
            embedding_length: 8,
            layers: 2 * windows,
            vocabulary: 10,
            prefix_bytes: vec![100],
        },
        boundary_type: BoundaryType::Bf16,
        exact: false,
        context_length: 64,
        sequences: 1,
        max_laps: 4,
        max_lap_tokens: 16,
        ranks: (0..windows).map(rank).collect(),
    }
}

/// Open windows between ends that are kept for nodes 0 and 1; the owner delegates to every node.
fn demand(windows: u32) -> Demand {
    Demand {
        template: template(windows),
        source: Source::Http {
            url: "https://models.example/tea.gguf".to_owned(),
        },
        delegations: KEYS
            .nodes
            .iter()
            .map(|keys| KEYS.owner.delegate("tea", keys.public()))
            .collect(),
        reserved: BTreeMap::from([(0, node(0)), (windows - 1, node(1))]),
        trusted_ends: true,
        queued: None,
        lease_s: None,
    }
}

/// All windows open, to anybody.
fn open_demand(windows: u32) -> Demand {
    Demand {
        reserved: BTreeMap::new(),
        trusted_ends: false,
        ..demand(windows)
    }
}

fn ready() -> StageState {
    StageState::Ready {
        fetched_bytes: 1,
        resident_bytes: 2,
        backend: "CPU".to_owned(),
    }
}

fn fetching(done: u64) -> StageState {
    StageState::Fetching { done, total: 1000 }
}

/// A ring, its time, and the accounts that a store would keep beside it. Every command checks all invariants.
#[derive(Clone, Debug)]
struct Market {
    ring: RingState,
    now: Millis,
    relays: Vec<String>,
    accounts: BTreeMap<u64, EpochAccount>,
    /// what each claim was ever credited, by epoch and claim: the shadow of the ledger
    credited: BTreeMap<u64, BTreeMap<u64, u64>>,
}

impl Market {
    fn new(demand: Demand) -> Market {
        let ring = RingState::new(1_000, KEYS.owner.public(), demand).unwrap();
        Market {
            ring,
            now: 1_000,
            relays: relays(),
            accounts: BTreeMap::new(),
            credited: BTreeMap::new(),
        }
    }

    fn step<T>(&mut self, command: impl FnOnce(&mut RingState, Millis, &[String]) -> T) -> T {
        let before = self.ring.clone();
        let result = command(&mut self.ring, self.now, &self.relays);
        assert_eq!(invariants::check(&self.ring), Ok(()));
        assert_eq!(invariants::check_step(&before, &self.ring), Ok(()));
        if before.published != self.ring.published {
            assert_eq!(invariants::check_signed(&self.ring), Ok(()));
        }
        result
    }

    fn wait(&mut self, millis: Millis) {
        self.now += millis;
        self.settle();
    }

    fn settle(&mut self) {
        self.step(RingState::settle);
    }

    fn claim_as(&mut self, number: usize, instance: &str, start: u32, end: u32) -> Result<Claim, RuleError> {
        let by = Claimant {
            node: node(number),
            memory: 8 * GB,
            unready_elsewhere: 0,
        };
        let request = ClaimRequest {
            windows: Run { start, end },
            instance: instance.to_owned(),
        };
        self.step(|ring, now, relays| ring.claim(now, relays, &by, &request))
    }

    fn claim(&mut self, number: usize, start: u32, end: u32) -> Result<Claim, RuleError> {
        self.claim_as(number, "first", start, end)
    }

    fn report_of(&self, number: usize, instance: &str, windows: Run, state: StageState) -> StageReport {
        let link = Link::Direct {
            address: "unused:1".to_owned(),
        };
        StageReport {
            holder: KEYS.nodes[number].holder(instance, link),
            reach: Reach::default(),
            layers: self.ring.layers(windows),
            identity: "1".repeat(64),
            state,
            epoch: 0,
            lost_epoch: None,
            lost_reason: None,
            lost_edge: None,
            lost_end: None,
        }
    }

    fn send(&mut self, number: usize, id: u64, report: StageReport) -> Result<u32, RuleError> {
        self.step(|ring, now, relays| ring.report(now, relays, node(number), id, report))
    }

    /// A report of the claim's own process, as the claim stands or stood.
    fn report(&mut self, number: usize, claim: &Claim, state: StageState) -> Result<u32, RuleError> {
        self.report_as(number, "first", claim, state)
    }

    fn report_as(&mut self, number: usize, instance: &str, claim: &Claim, state: StageState) -> Result<u32, RuleError> {
        let report = self.report_of(number, instance, claim.windows, state);
        self.send(number, claim.id, report)
    }

    /// The stage of a claim never came in the published epoch: its neighbours say so, and it itself if it `admits`.
    fn without(&mut self, id: u64, admits: bool) {
        let Some(published) = &self.ring.published else {
            return;
        };
        let (epoch, claims) = (published.manifest.epoch, published.claims.clone());
        let Some(rank) = claims.iter().position(|claim| *claim == id) else {
            return;
        };
        let (count, own) = (claims.len(), rank as u32);
        let before = (rank + count - 1) % count;
        let mut words = vec![
            (claims[before], before as u32, LostEnd::Other),
            (claims[(rank + 1) % count], own, LostEnd::Other),
        ];
        words.extend(admits.then_some((id, own, LostEnd::Own)));
        for (by, edge, end) in words {
            self.say(by, epoch, edge, end);
        }
    }

    /// A claim's stage says which end of an edge never came.
    fn say(&mut self, by: u64, epoch: u64, edge: u32, end: LostEnd) {
        let Some(lease) = self.ring.leases.get(&by).cloned() else {
            return;
        };
        let number = (0..NODES).find(|number| node(*number) == lease.node).unwrap();
        let mut report = self.report_of(number, &lease.instance, lease.windows, ready());
        (report.lost_epoch, report.lost_edge, report.lost_end) = (Some(epoch), Some(edge), Some(end));
        // a stage that is gone by its neighbour's word is told so
        let _ = self.send(number, by, report);
    }

    fn leave(&mut self, number: usize, claim: &Claim) -> Result<(), RuleError> {
        self.step(|ring, now, relays| ring.leave(now, relays, node(number), claim.id))
    }

    fn hold(&mut self, number: usize, start: u32, end: u32) -> Claim {
        let claim = self.claim(number, start, end).unwrap();
        self.report(number, &claim, ready()).unwrap();
        claim
    }

    fn sign(&self) -> Option<SignedManifest> {
        let proposal = self.ring.proposal(0)?;
        let signer = proposal.delegation.delegate;
        let keys = KEYS.nodes.iter().find(|keys| keys.public() == signer).unwrap();
        Some(SignedManifest::sign(&proposal.manifest, keys, proposal.delegation.clone()).unwrap())
    }

    fn offer_manifest(&mut self, signed: SignedManifest) -> Result<(), RuleError> {
        let account = self.step(|ring, now, relays| ring.publish(now, relays, signed))?;
        if let Some(account) = account {
            let known = self.accounts.insert(account.epoch, account);
            assert_eq!(known, None, "an epoch has one account");
        }
        Ok(())
    }

    /// Signs and publishes what is proposed.
    fn publish(&mut self) -> RankManifest {
        let signed = self.sign().expect("a proposal");
        self.offer_manifest(signed).unwrap();
        self.ring.published.as_ref().unwrap().manifest.clone()
    }

    /// Publishes what is proposed, and rank 0 says that a lap went round.
    fn form(&mut self) -> RankManifest {
        let manifest = self.publish();
        self.close();
        manifest
    }

    /// Rank 0 says that a lap of the published epoch went round.
    fn close(&mut self) {
        let epoch = self.ring.published.as_ref().unwrap().manifest.epoch;
        let rank0 = self.accounts[&epoch].rank0;
        let number = (0..NODES).find(|number| node(*number) == rank0).unwrap();
        let committed = self.accounts[&epoch].committed;
        self.positions(number, epoch, committed).unwrap();
    }

    fn positions(&mut self, number: usize, epoch: u64, committed: u64) -> Result<Vec<Credit>, RuleError> {
        let mut account = self
            .accounts
            .get(&epoch)
            .cloned()
            .ok_or(RuleError::UnknownEpoch { epoch })?;
        let report = Positions {
            epoch,
            committed,
            queued: 0,
        };
        let credits = self.step(|ring, now, _| ring.positions(now, node(number), &mut account, report))?;
        let credited = self.credited.entry(epoch).or_default();
        for credit in &credits {
            *credited.entry(credit.claim).or_default() += credit.amount;
        }
        assert_eq!(invariants::check_sum(&account, credited), Ok(()));
        self.accounts.insert(epoch, account);
        Ok(credits)
    }

    fn status(&self) -> RingStatus {
        self.ring.status(self.now, &self.relays)
    }

    fn offer(&self, number: usize) -> Offer {
        self.ring.offer(self.now, node(number)).unwrap()
    }

    fn earned(&self, number: usize) -> u64 {
        let of = |account: &EpochAccount| {
            let credited = self.credited.get(&account.epoch);
            let earners = account.earners.iter().filter(|earner| earner.node == node(number));
            earners
                .map(|earner| credited.and_then(|c| c.get(&earner.claim)).copied().unwrap_or_default())
                .sum::<u64>()
        };
        self.accounts.values().map(of).sum()
    }
}

fn reason<T: std::fmt::Debug>(result: Result<T, RuleError>) -> &'static str {
    result.unwrap_err().reason()
}

/// A ring of four windows that is up: nodes 0 and 1 hold the ends, nodes 2 and 3 the middle.
fn ring_of_four() -> (Market, [Claim; 4]) {
    let mut market = Market::new(demand(4));
    let claims = [(0, 0), (2, 1), (3, 2), (1, 3)].map(|(number, window)| market.hold(number, window, window + 1));
    market.form();
    (market, claims)
}
