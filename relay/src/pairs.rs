//! Which legs wait for which, and which are paired: pure, without sockets and clock.
//!
//! An edge has one slot. A leg that finds the other end waiting is paired with it. A leg that finds its own role taken,
//! be it by a leg that waits or by a pair, ends what is there and waits itself: so no half-open leg is ever paired with a
//! new one, and both ends come anew.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
};

use kvasir_wire::edge::Role;

/// What two legs must share to be paired.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct EdgeKey {
    pub(crate) ring: Arc<str>,
    pub(crate) epoch: u64,
    pub(crate) edge: u32,
}

/// All edges that have a leg; `T` reaches the task that serves what is in a slot.
#[derive(Debug)]
pub(crate) struct Pairs<T> {
    slots: HashMap<EdgeKey, Slot<T>>,
    /// slots made so far: a number for each, so that a task that ends late can't clear its successor's
    made: u64,
}

#[derive(Debug)]
struct Slot<T> {
    number: u64,
    /// the role that is there, none when both are
    waiting: Option<Role>,
    server: T,
}

/// What becomes of a leg that arrives.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Arrival<'a, T> {
    /// it waits in a slot of this number; what was in the edge's slot must end
    Waits { number: u64, replaced: Option<T> },
    /// the other end waits, served by this one, and the slot is theirs together
    Meets(&'a T),
}

impl<T> Pairs<T> {
    pub(crate) fn new() -> Self {
        Pairs {
            slots: HashMap::new(),
            made: 0,
        }
    }

    /// Takes a leg in; `server` reaches the task that serves it if it has to wait.
    pub(crate) fn arrive(&mut self, key: EdgeKey, role: Role, server: T) -> Arrival<'_, T> {
        let entry = match self.slots.entry(key) {
            Entry::Occupied(slot) if slot.get().waiting.is_some_and(|waiting| waiting != role) => {
                let slot = slot.into_mut();
                slot.waiting = None;
                return Arrival::Meets(&slot.server);
            }
            entry => entry,
        };
        self.made += 1;
        let slot = Slot {
            number: self.made,
            waiting: Some(role),
            server,
        };
        let replaced = match entry {
            Entry::Occupied(mut taken) => Some(taken.insert(slot).server),
            Entry::Vacant(free) => {
                free.insert(slot);
                None
            }
        };
        Arrival::Waits {
            number: self.made,
            replaced,
        }
    }

    /// Clears the slot if it is still number `number` and still waits for the other end; false when it was paired or
    /// replaced meanwhile.
    pub(crate) fn give_up(&mut self, key: &EdgeKey, number: u64) -> bool {
        let waits = self
            .slots
            .get(key)
            .is_some_and(|slot| slot.number == number && slot.waiting.is_some());
        if waits {
            self.slots.remove(key);
        }
        waits
    }

    /// Clears the slot if it is still number `number`.
    pub(crate) fn leave(&mut self, key: &EdgeKey, number: u64) {
        if self.slots.get(key).is_some_and(|slot| slot.number == number) {
            self.slots.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(edge: u32) -> EdgeKey {
        EdgeKey {
            ring: "ring".into(),
            epoch: 1,
            edge,
        }
    }

    fn waits(arrival: &Arrival<'_, u32>) -> (u64, Option<u32>) {
        match arrival {
            Arrival::Waits { number, replaced } => (*number, *replaced),
            Arrival::Meets(server) => panic!("met {server}"),
        }
    }

    #[test]
    fn two_ends_meet_once() {
        let mut pairs = Pairs::new();
        let (number, replaced) = waits(&pairs.arrive(key(0), Role::Predecessor, 1));
        assert_eq!(replaced, None);
        assert_eq!(pairs.arrive(key(0), Role::Successor, 2), Arrival::Meets(&1));
        assert!(!pairs.give_up(&key(0), number), "it was paired meanwhile");
        pairs.leave(&key(0), number);
        assert_eq!(waits(&pairs.arrive(key(0), Role::Successor, 3)).1, None);
    }

    #[test]
    fn a_second_leg_of_a_role_replaces_both() {
        let mut pairs = Pairs::new();
        pairs.arrive(key(0), Role::Predecessor, 1);
        pairs.arrive(key(0), Role::Successor, 2);
        assert_eq!(waits(&pairs.arrive(key(0), Role::Predecessor, 3)).1, Some(1));
        assert_eq!(pairs.arrive(key(0), Role::Successor, 4), Arrival::Meets(&3));
    }

    #[test]
    fn a_waiting_leg_is_replaced_by_its_own_kind() {
        let mut pairs = Pairs::new();
        let (first, _) = waits(&pairs.arrive(key(0), Role::Successor, 1));
        assert_eq!(waits(&pairs.arrive(key(0), Role::Successor, 2)).1, Some(1));
        assert!(!pairs.give_up(&key(0), first));
        pairs.leave(&key(0), first);
        assert_eq!(pairs.arrive(key(0), Role::Predecessor, 3), Arrival::Meets(&2));
    }

    #[test]
    fn edges_epochs_and_rings_keep_apart() {
        let mut pairs = Pairs::new();
        let (ring, epoch) = (
            EdgeKey {
                ring: "other".into(),
                ..key(0)
            },
            EdgeKey { epoch: 2, ..key(0) },
        );
        pairs.arrive(key(0), Role::Predecessor, 1);
        for other in [key(1), ring, epoch] {
            assert_eq!(waits(&pairs.arrive(other, Role::Successor, 2)).1, None);
        }
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Arrive(u32, bool),
        GiveUp(usize),
        Leave(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (0u32..2, any::<bool>()).prop_map(|(edge, first)| Step::Arrive(edge, first)),
            1 => (0usize..20).prop_map(Step::GiveUp),
            1 => (0usize..20).prop_map(Step::Leave),
        ]
    }

    proptest! {
        /// Whatever comes in whatever order: a leg meets only one that waits with the other role, and every leg that
        /// waited is met, replaced, or has left, once.
        #[test]
        fn each_leg_that_waits_ends_once(steps in prop::collection::vec(step(), 1..60)) {
            let mut pairs = Pairs::new();
            let mut waiting: HashMap<u32, (Role, u32)> = HashMap::new();
            let mut made = Vec::new();
            for (server, step) in (0u32..).zip(steps) {
                match step {
                    Step::Arrive(edge, first) => {
                        let role = if first { Role::Predecessor } else { Role::Successor };
                        match pairs.arrive(key(edge), role, server) {
                            Arrival::Meets(met) => {
                                let (other, expected) = waiting.remove(&edge).unwrap();
                                prop_assert_ne!(other, role);
                                prop_assert_eq!(*met, expected);
                            }
                            Arrival::Waits { number, .. } => {
                                if let Some((other, _)) = waiting.insert(edge, (role, server)) {
                                    prop_assert_eq!(other, role);
                                }
                                made.push((edge, number, server));
                            }
                        }
                    }
                    Step::GiveUp(at) => {
                        if let Some((edge, number, server)) = made.get(at).copied() {
                            let is_there = waiting.get(&edge).is_some_and(|(_, there)| *there == server);
                            prop_assert_eq!(pairs.give_up(&key(edge), number), is_there);
                            if is_there {
                                waiting.remove(&edge);
                            }
                        }
                    }
                    Step::Leave(at) => {
                        if let Some((edge, number, server)) = made.get(at).copied() {
                            pairs.leave(&key(edge), number);
                            if waiting.get(&edge).is_some_and(|(_, there)| *there == server) {
                                waiting.remove(&edge);
                            }
                        }
                    }
                }
            }
        }
    }
}
