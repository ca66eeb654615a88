//! The newest Rings that the watches have seen, so that a long visit notices that it is out of date.

use std::{
    collections::HashMap,
    sync::{PoisonError, RwLock},
};

use kube::{
    Resource as _, ResourceExt,
    core::DeserializeGuard,
    runtime::reflector::{ObjectRef, Store},
};
use kvasir_api::Ring;

/// Rings of one watch.
type Rings = Store<DeserializeGuard<Ring>>;

/// What the watches have seen, by the namespace that each watches; none for all.
#[derive(Default)]
pub struct Newest(RwLock<HashMap<Option<String>, Rings>>);

impl std::fmt::Debug for Newest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Newest").finish()
    }
}

impl Newest {
    /// From now on `rings` is asked for Rings of `namespace`.
    pub fn watch(&self, namespace: Option<&str>, rings: Rings) {
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        all.insert(namespace.map(str::to_owned), rings);
    }

    /// Whether a Ring still asks for what it asked for: it is there, is to stay or to go as before, and its spec is the
    /// same.
    pub fn is_current(&self, ring: &Ring) -> bool {
        let namespace = ring.namespace().unwrap_or_default();
        let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let Some(rings) = all.get(&Some(namespace.clone())).or_else(|| all.get(&None)) else {
            return true;
        };
        let newest = rings.get(&ObjectRef::new(&ring.name_any()).within(&namespace));
        newest.is_some_and(|newest| {
            let (newest, ring) = (newest.meta(), &ring.metadata);
            newest.uid == ring.uid
                && newest.generation == ring.generation
                && newest.deletion_timestamp == ring.deletion_timestamp
        })
    }
}
