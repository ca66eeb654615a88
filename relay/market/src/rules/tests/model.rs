//! Every interleaving of a small market: two nodes and a restarted process want one window beside a rank 0 that is there,
//! manifests are signed late, leases run out, counters come late and twice. The very code that the servers run.

use std::hash::{Hash, Hasher};

use stateright::{Checker, Model, Property};

use super::*;

/// Three windows: the ends are held, the one between is contested.
struct Contest {
    depth: u8,
}

/// Nodes and processes that want window 1: an older and a newer process of node 2, and node 3.
const RIVALS: [(usize, &str); 3] = [(2, "old"), (2, "new"), (3, "other")];

#[derive(Clone, Debug)]
struct State {
    market: Market,
    /// claims granted, by rival; what a paused process still believes
    granted: [Option<Claim>; 3],
    /// the claims of the ends
    ends: [Claim; 2],
    /// manifests signed and not delivered yet, or delivered and kept by who repeats them
    signed: Vec<SignedManifest>,
    steps: u8,
    broken: Option<String>,
}

impl State {
    /// What tells states apart: the market's own state and what is under way. The step count is left out on purpose:
    /// it bounds the search and has no part in what is checked.
    fn key(&self) -> String {
        let market = &self.market;
        serde_json::to_string(&(
            &market.ring,
            market.now,
            &market.accounts,
            &self.granted,
            self.signed.iter().map(|signed| &signed.manifest).collect::<Vec<_>>(),
            &self.broken,
        ))
        .unwrap()
    }
}

impl PartialEq for State {
    fn eq(&self, other: &State) -> bool {
        self.key() == other.key()
    }
}

impl Eq for State {}

impl Hash for State {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

#[derive(Clone, Debug, PartialEq)]
enum Step {
    Claim(usize),
    Fetch(usize),
    Ready(usize),
    Leave(usize),
    Lost(usize),
    Sign,
    Deliver(usize),
    Commit(u64, u64),
    Pass,
}

/// More than half a lease, so that two of them without a report end it.
const PASS: Millis = 8_000;

impl Model for Contest {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let mut market = Market::new(demand(3));
        let ends = [market.hold(0, 0, 1), market.hold(1, 2, 3)];
        vec![State {
            market,
            granted: [None, None, None],
            ends,
            signed: Vec::new(),
            steps: 0,
            broken: None,
        }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        if state.steps == self.depth || state.broken.is_some() {
            return;
        }
        for rival in 0..RIVALS.len() {
            steps.push(Step::Claim(rival));
            if state.granted[rival].is_some() {
                steps.extend([
                    Step::Fetch(rival),
                    Step::Ready(rival),
                    Step::Leave(rival),
                    Step::Lost(rival),
                ]);
            }
        }
        if state.market.ring.proposal(0).is_some() {
            steps.push(Step::Sign);
        }
        steps.extend((0..state.signed.len()).map(Step::Deliver));
        for epoch in state.market.accounts.keys() {
            // the first lap of an epoch, which carries nothing, and two counters
            steps.extend([0, 1_500_000, 2_333_333].map(|committed| Step::Commit(*epoch, committed)));
        }
        steps.push(Step::Pass);
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut state = last.clone();
        state.steps += 1;
        // `Market::step` asserts the invariants; here a broken one is a state that a property names
        let applied = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| state.apply(&step)));
        if let Err(panic) = applied {
            let said = panic.downcast_ref::<String>().cloned();
            state.broken = Some(said.unwrap_or_else(|| "a command panicked".to_owned()));
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("every invariant holds", |_, state: &State| state.broken.is_none()),
            Property::always(
                "at most one live claim per window and generation",
                |_, state: &State| {
                    let ring = &state.market.ring;
                    let holding = ring
                        .leases
                        .values()
                        .filter(|lease| lease.windows.holds(1) && lease.serves());
                    holding.count() <= 1
                },
            ),
            Property::always("the ledger's sum follows the formula", |_, state: &State| {
                let market = &state.market;
                let none = BTreeMap::new();
                market.accounts.iter().all(|(epoch, account)| {
                    let credited = market.credited.get(epoch).unwrap_or(&none);
                    invariants::check_sum(account, credited).is_ok()
                })
            }),
            Property::always(
                "a ring is ready by a lap of its published epoch alone",
                |_, state: &State| {
                    let market = &state.market;
                    let closed = market.ring.published.as_ref().is_some_and(|published| {
                        published.closed && market.credited.contains_key(&published.manifest.epoch)
                    });
                    closed || !market.status().ready
                },
            ),
            Property::sometimes("a ring is published", |_, state: &State| {
                state.market.ring.published.is_some()
            }),
            Property::sometimes("a second epoch is published", |_, state: &State| {
                state.market.accounts.len() == 2
            }),
            Property::sometimes("a lap goes round in a second epoch", |_, state: &State| {
                state.market.status().ready && state.market.status().epoch == Some(2)
            }),
            Property::sometimes("a process is fenced", |_, state: &State| {
                state.market.ring.fenced(node(2), "old")
            }),
            Property::sometimes("a claim is in line for a served window", |_, state: &State| {
                state.market.ring.leases.values().any(|lease| !lease.serves())
            }),
            Property::sometimes("a lease runs out", |_, state: &State| {
                state.market.ring.nodes.values().any(|standing| standing.failures > 0)
            }),
        ]
    }
}

impl State {
    fn apply(&mut self, step: &Step) {
        match *step {
            Step::Claim(rival) => {
                let (number, instance) = RIVALS[rival];
                if let Ok(claim) = self.market.claim_as(number, instance, 1, 2) {
                    self.granted[rival] = Some(claim);
                }
            }
            Step::Fetch(rival) => self.report(rival, fetching(1), false),
            Step::Ready(rival) => self.report(rival, ready(), false),
            Step::Lost(rival) => self.report(rival, ready(), true),
            Step::Leave(rival) => {
                if let Some(claim) = self.granted[rival].take() {
                    let _ = self.market.leave(RIVALS[rival].0, &claim);
                }
            }
            Step::Sign => {
                let signed = self.market.sign();
                self.signed
                    .extend(signed.filter(|signed| !self.signed.contains(signed)));
            }
            Step::Deliver(nth) => {
                let signed = self.signed[nth].clone();
                let proposed = self.market.ring.proposal(0).map(|proposal| proposal.manifest.epoch);
                let current = self.market.ring.manifest(0).cloned();
                let epoch = serde_json::from_str::<RankManifest>(&signed.manifest).unwrap().epoch;
                let taken = self.market.offer_manifest(signed.clone()).is_ok();
                let allowed = proposed == Some(epoch) || current == Some(signed);
                assert!(!taken || allowed, "the manifest of old epoch {epoch} was accepted");
            }
            Step::Commit(epoch, committed) => {
                let _ = self.market.positions(0, epoch, committed);
            }
            Step::Pass => {
                self.market.wait(PASS);
                for (number, end) in self.ends.clone().iter().enumerate() {
                    self.market.report(number, end, ready()).unwrap();
                }
            }
        }
    }

    fn report(&mut self, rival: usize, state: StageState, lost: bool) {
        let Some(claim) = self.granted[rival].clone() else {
            return;
        };
        let (number, instance) = RIVALS[rival];
        let mut report = self.market.report_of(number, instance, claim.windows, state);
        report.lost_epoch = self.market.status().epoch.filter(|_| lost);
        let was_over = !self.market.ring.leases.contains_key(&claim.id);
        let taken = self.market.send(number, claim.id, report).is_ok();
        assert!(!(was_over && taken), "a claim that is over was renewed");
    }
}

#[test]
fn no_interleaving_of_claims_restarts_signatures_and_counters_breaks_an_invariant() {
    let checker = Contest { depth: 8 }.checker().threads(2).spawn_bfs().join();
    println!(
        "{} states, {} of them unlike",
        checker.state_count(),
        checker.unique_state_count()
    );
    checker.assert_properties();
}
