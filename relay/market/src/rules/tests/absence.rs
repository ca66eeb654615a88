//! A stage that is alive for the market and never comes to its relay: who says so, when that ends its claim, and for how
//! long it is paused. And the same over every interleaving of what the stages of a small ring may say.

use std::{
    collections::BTreeSet,
    hash::{Hash, Hasher},
};

use stateright::{Checker, Model, Property};

use super::{
    super::absence::{MISSES, PAUSE, WITHIN},
    *,
};

/// Stages give their links about so long.
const FORMS: Millis = 8_000;

/// The ring did not form without claim `id`; the next epoch is signed.
fn miss(market: &mut Market, id: u64, admits: bool) {
    market.without(id, admits);
    if market.ring.proposal(0).is_some() {
        market.publish();
    }
    market.now += FORMS;
    let alive: Vec<u64> = market.ring.leases.keys().copied().collect();
    for id in alive {
        let lease = market.ring.leases[&id].clone();
        let number = (0..NODES).find(|number| node(*number) == lease.node).unwrap();
        let report = market.report_of(number, &lease.instance, lease.windows, ready());
        market.send(number, id, report).unwrap();
    }
}

fn missed(market: &Market, number: usize) -> usize {
    let standing = market.ring.nodes.get(&node(number));
    standing.map_or(0, |standing| standing.missed.len())
}

#[test]
fn a_stage_that_never_comes_to_its_relay_loses_its_claim_and_is_told_why() {
    let (mut market, [_, absent, ..]) = ring_of_four();
    for epoch in 1..MISSES {
        miss(&mut market, absent.id, false);
        assert_eq!(missed(&market, 2), epoch);
        assert!(market.status().uncovered.is_empty(), "it may still come");
    }
    miss(&mut market, absent.id, false);
    assert_eq!(market.status().windows[1].state, WindowState::Open);
    assert_eq!(reason(market.report(2, &absent, ready())), "Absent");
    assert_eq!(reason(market.claim(2, 1, 2)), "Paused");
    assert_eq!(market.offer(2).limit, Some(0));
    let choice = choose(&[market.offer(2)], 8 * GB);
    assert_eq!(choice, None, "its own side doesn't ask either");

    market.hold(4, 1, 2);
    market.form();
    assert!(market.status().ready, "with another in its place the ring is up");
}

#[test]
fn one_neighbours_word_is_enough_only_for_a_stage_that_admits_it() {
    let (mut market, [first, accused, _, _]) = ring_of_four();
    for _ in 0..2 * MISSES {
        let epoch = market.status().epoch.unwrap();
        market.say(first.id, epoch, 0, LostEnd::Other);
        // it waited as well
        market.say(accused.id, epoch, 0, LostEnd::Other);
        market.publish();
    }
    assert_eq!((missed(&market, 2), missed(&market, 0)), (0, 0));
    for _ in 0..MISSES {
        let epoch = market.status().epoch.unwrap();
        market.say(first.id, epoch, 0, LostEnd::Other);
        market.say(accused.id, epoch, 0, LostEnd::Own);
        if market.ring.proposal(0).is_some() {
            market.publish();
        }
    }
    assert_eq!(reason(market.report(2, &accused, ready())), "Absent");
}

#[test]
fn one_node_on_both_sides_is_one_word() {
    let mut market = Market::new(open_demand(4));
    let claims = [(4, 0), (5, 1), (4, 2), (6, 3)].map(|(number, window)| market.hold(number, window, window + 1));
    market.publish();
    for _ in 0..MISSES {
        miss(&mut market, claims[1].id, false);
    }
    assert_eq!(missed(&market, 5), 0);
    assert_eq!(market.ring.leases.len(), 4);
}

#[test]
fn a_relay_that_nobody_reaches_is_nobodys_fault() {
    let (mut market, claims) = ring_of_four();
    for _ in 0..2 * MISSES {
        let epoch = market.status().epoch.unwrap();
        for (edge, claim) in claims.iter().enumerate() {
            market.say(claim.id, epoch, edge as u32, LostEnd::Own);
        }
        market.publish();
    }
    assert_eq!(market.ring.leases.len(), 4);
    assert!((0..4).all(|number| missed(&market, number) == 0));
}

#[test]
fn words_count_once_and_also_when_the_next_epoch_is_there_already() {
    let (mut market, [first, absent, third, _]) = ring_of_four();
    market.say(first.id, 1, 0, LostEnd::Other);
    market.publish();
    assert_eq!(missed(&market, 2), 0);
    market.say(third.id, 1, 1, LostEnd::Other);
    assert_eq!(missed(&market, 2), 1, "a word about epoch 1 in epoch 2");
    assert!(market.ring.proposal(0).is_none(), "which asks for no further epoch");
    for _ in 0..MISSES {
        market.say(absent.id, 1, 0, LostEnd::Own);
        market.say(third.id, 1, 1, LostEnd::Other);
    }
    assert_eq!(missed(&market, 2), 1, "however often it is said");
    market.say(third.id, 40, 1, LostEnd::Other);
    market.say(third.id, 2, 3, LostEnd::Other);
    market.say(third.id, 2, u32::MAX, LostEnd::Other);
    assert_eq!(missed(&market, 2), 1, "another epoch, another's edge, no edge");
}

#[test]
fn old_misses_are_forgotten_and_what_comes_home_clears_them() {
    let (mut market, [_, absent, ..]) = ring_of_four();
    for _ in 1..MISSES {
        miss(&mut market, absent.id, true);
    }
    let epoch = market.status().epoch.unwrap();
    market.positions(0, epoch, 5).unwrap();
    assert_eq!(missed(&market, 2), 0, "a token came round by way of it");
    // what is said of this epoch from now on doesn't count
    for _ in 0..MISSES {
        miss(&mut market, absent.id, true);
    }
    let epoch = market.status().epoch.unwrap();
    market.positions(0, epoch - 1, 9).unwrap();
    assert_eq!(
        missed(&market, 2),
        MISSES - 1,
        "a late report of an earlier epoch shows nothing"
    );
    for _ in 0..WITHIN / FORMS {
        market.now += FORMS;
        let report = market.report_of(2, "first", absent.windows, ready());
        market.send(2, absent.id, report).unwrap();
    }
    for (number, window) in [(0, 0), (3, 2), (1, 3)] {
        market.hold(number, window, window + 1);
    }
    market.publish();
    miss(&mut market, absent.id, true);
    assert_eq!(missed(&market, 2), 1);
}

#[test]
fn a_pause_ends_and_the_next_one_is_twice_as_long() {
    let (mut market, [_, absent, ..]) = ring_of_four();
    let mut absent = absent.id;
    for pause in [PAUSE, 2 * PAUSE] {
        for _ in 0..MISSES {
            miss(&mut market, absent, false);
        }
        let left = market.ring.paused(market.now, node(2)).unwrap();
        assert_eq!(left, pause - FORMS);
        market.now += left - 1;
        assert_eq!(reason(market.claim_as(2, "second", 1, 2)), "Paused");
        market.now += 1;
        for (number, window) in [(0, 0), (3, 2), (1, 3)] {
            market.hold(number, window, window + 1);
        }
        absent = market.hold(2, 1, 2).id;
        market.publish();
    }
}

#[test]
fn a_window_that_is_kept_for_a_node_stays_with_it() {
    let (mut market, [first, ..]) = ring_of_four();
    for _ in 0..2 * MISSES {
        miss(&mut market, first.id, true);
    }
    assert!(market.ring.leases.contains_key(&first.id), "nobody else could have it");
    assert_eq!(market.ring.paused(market.now, node(0)), None);
}

#[test]
fn direct_edges_have_no_relay_to_come_to() {
    let mut market = Market::new(demand(3));
    market.relays.clear();
    let mut claims = Vec::new();
    for (number, window) in [(0, 0), (2, 1), (1, 2)] {
        let claim = market.claim(number, window, window + 1).unwrap();
        let mut report = market.report_of(number, "first", claim.windows, ready());
        report.reach = Reach {
            network: Some("rack".to_owned()),
            address: Some(format!("10.0.0.{number}:4000")),
        };
        market.send(number, claim.id, report).unwrap();
        claims.push(claim);
    }
    market.publish();
    market.without(claims[1].id, true);
    assert_eq!(missed(&market, 2), 0);
}

/// A ring of three whose middle stage may never come; another node waits for its window.
struct Absence {
    depth: u8,
}

#[derive(Clone, Debug)]
struct State {
    market: Market,
    /// claims of the ring, by rank; the middle one is whoever has it
    claims: [u64; 3],
    /// by epoch: who named the first holder of the middle, as the stages said it
    words: BTreeMap<u64, BTreeSet<usize>>,
    steps: u8,
    broken: Option<String>,
}

impl State {
    fn key(&self) -> String {
        serde_json::to_string(&(&self.market.ring, &self.market.accounts, &self.words, &self.broken)).unwrap()
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
    /// rank 0 or the last rank waited for the middle in vain
    Accuse(usize),
    /// the middle says that it did not get there
    Admit,
    /// what is proposed is signed and published
    Form,
    /// a token came home
    Home,
    /// the first holder asks for the window again, or another node takes it
    Take(usize),
}

/// The node that holds the middle at first, and the one that would take its place.
const HOLDER: usize = 2;
const NEXT: usize = 3;

impl Model for Absence {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let mut market = Market::new(demand(3));
        let claims = [(0, 0), (HOLDER, 1), (1, 2)].map(|(number, window)| market.hold(number, window, window + 1).id);
        market.publish();
        vec![State {
            market,
            claims,
            words: BTreeMap::new(),
            steps: 0,
            broken: None,
        }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        if state.steps == self.depth || state.broken.is_some() {
            return;
        }
        steps.extend([
            Step::Accuse(0),
            Step::Accuse(2),
            Step::Admit,
            Step::Home,
            Step::Take(HOLDER),
            Step::Take(NEXT),
        ]);
        if state.market.ring.proposal(0).is_some() {
            steps.push(Step::Form);
        }
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut state = last.clone();
        state.steps += 1;
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
                "a claim ends for absence by two words in each of so many epochs",
                |_, state: &State| {
                    let by_two = state.words.values().filter(|by| by.len() > 1).count();
                    !state.lost() || by_two >= MISSES
                },
            ),
            Property::sometimes("the holder loses its claim", |_, state: &State| state.lost()),
            Property::sometimes("the ring is formed again without it", |_, state: &State| {
                let ring = &state.market.ring;
                let published = ring.published.as_ref();
                state.lost() && published.is_some_and(|published| published.claims[1] == state.claims[1])
            }),
            Property::sometimes("something comes home after it was missing", |_, state: &State| {
                let mut home = state.market.accounts.values().filter(|account| account.committed > 0);
                home.next_back().is_some_and(|account| account.epoch > 2) && !state.lost()
            }),
        ]
    }
}

impl State {
    fn lost(&self) -> bool {
        self.market.ring.paused(self.market.now, node(HOLDER)).is_some()
    }

    fn apply(&mut self, step: &Step) {
        let Some(epoch) = self.market.status().epoch else {
            return;
        };
        let held = |state: &State| state.market.ring.leases.get(&state.claims[1]).map(|lease| lease.node);
        let by_holder = held(self) == Some(node(HOLDER));
        let published = self
            .market
            .ring
            .published
            .as_ref()
            .map(|published| published.claims.clone());
        let in_epoch = published.is_some_and(|claims| claims.contains(&self.claims[1]));
        // what came home shows that the epoch formed, whatever is said later
        let counts = by_holder && in_epoch && self.market.accounts[&epoch].committed == 0;
        match *step {
            Step::Accuse(rank) => {
                let edge = u32::from(rank != 0);
                self.market.say(self.claims[rank], epoch, edge, LostEnd::Other);
                if counts {
                    self.words.entry(epoch).or_default().insert(rank);
                }
            }
            Step::Admit => {
                self.market.say(self.claims[1], epoch, 1, LostEnd::Own);
                if counts {
                    self.words.entry(epoch).or_default().insert(1);
                }
            }
            Step::Form => {
                self.market.publish();
            }
            Step::Home => {
                self.market.positions(0, epoch, 1).unwrap();
                if !self.lost() {
                    self.words.clear();
                }
            }
            Step::Take(number) => {
                let before = self.lost();
                if let Ok(claim) = self.market.claim(number, 1, 2) {
                    assert!(number != HOLDER || !before, "a paused node got its window back");
                    self.market.report(number, &claim, ready()).unwrap();
                    self.claims[1] = claim.id;
                }
            }
        }
    }
}

#[test]
fn whatever_the_stages_say_no_claim_ends_by_the_word_of_one_node() {
    let checker = Absence { depth: 10 }.checker().threads(2).spawn_bfs().join();
    println!(
        "{} states, {} of them unlike",
        checker.state_count(),
        checker.unique_state_count()
    );
    checker.assert_properties();
}
