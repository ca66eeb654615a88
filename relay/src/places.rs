//! How many legs there may be, of one node and in all.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use kvasir_wire::trust::PublicKey;

/// Why a leg finds no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoPlace {
    /// the relay is full
    #[error("this relay has its {most} legs: try again, or raise --max-legs")]
    Full {
        /// legs in all
        most: usize,
    },
    /// the node has enough
    #[error("node has its {most} legs at this relay: close some, or raise --max-legs-per-node")]
    OfNode {
        /// legs of one node
        most: usize,
    },
}

/// Places for legs.
#[derive(Debug)]
pub(crate) struct Places {
    most: usize,
    most_of_node: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    by_node: HashMap<PublicKey, usize>,
}

impl Places {
    pub(crate) fn new(most: usize, most_of_node: usize) -> Arc<Places> {
        Arc::new(Places {
            most,
            most_of_node,
            taken: Mutex::default(),
        })
    }

    /// Takes a place for a leg of `node`, until the place is dropped.
    pub(crate) fn take(self: &Arc<Self>, node: PublicKey) -> Result<Place, NoPlace> {
        let mut taken = self.taken();
        if taken.all >= self.most {
            return Err(NoPlace::Full { most: self.most });
        }
        let of_node = taken.by_node.get(&node).copied().unwrap_or(0);
        if of_node >= self.most_of_node {
            return Err(NoPlace::OfNode {
                most: self.most_of_node,
            });
        }
        taken.by_node.insert(node, of_node + 1);
        taken.all += 1;
        Ok(Place {
            places: Arc::clone(self),
            node,
        })
    }

    /// Numbers are whole after every step, so a lock that a panic poisoned still guards sound ones.
    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A leg's place; dropping it gives it back.
#[derive(Debug)]
pub(crate) struct Place {
    places: Arc<Places>,
    node: PublicKey,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken();
        taken.all -= 1;
        if let Some(of_node) = taken.by_node.get_mut(&self.node) {
            *of_node -= 1;
            if *of_node == 0 {
                taken.by_node.remove(&self.node);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: PublicKey = PublicKey([1; 32]);
    const B: PublicKey = PublicKey([2; 32]);

    #[test]
    fn one_node_can_t_take_all_places() {
        let places = Places::new(3, 2);
        let first = places.take(A).unwrap();
        let _second = places.take(A).unwrap();
        assert_eq!(places.take(A).unwrap_err(), NoPlace::OfNode { most: 2 });
        let _third = places.take(B).unwrap();
        assert_eq!(places.take(B).unwrap_err(), NoPlace::Full { most: 3 });
        drop(first);
        places.take(A).unwrap();
    }

    #[test]
    fn a_node_without_legs_is_forgotten() {
        let places = Places::new(3, 2);
        drop(places.take(A).unwrap());
        assert!(places.taken().by_node.is_empty());
        assert_eq!(places.taken().all, 0);
    }
}
