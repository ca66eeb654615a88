//! Third step: the objects that should be there, and what the market should be asked for. Pure: the same Ring, model and
//! owner's key give the same objects, and nothing in them changes from visit to visit.

mod claim;
mod config_map;
mod demand;
mod deployment;
mod job;
mod keys;
mod pod;
mod secret;
mod service;

use std::marker::PhantomData;

use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        core::v1::{ConfigMap, PersistentVolumeClaim, Secret, Service},
    },
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kube::api::ApiResource;
use kvasir_api::conditions::reasons;
use kvasir_market::types::Demand;
use kvasir_plan::{LayerRange, RankManifest};
use kvasir_wire::trust::OwnerKey;
use serde::Serialize;
use serde_json::Value;

use crate::{
    labels::{self, Labels},
    names,
    validate::{Spec, Validated},
};

pub use deployment::{API_PORT, EDGE_PORT, HEALTH_PORT};
pub use job::reader;
pub use keys::node;
pub use pod::{FETCH, STAGE};
pub use secret::{NODE_KEY, OWNER_KEY, invite, leads_there, owner};

/// Why an object can't be built.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// an object that JSON can't hold
    #[error("{what} can't be written as JSON")]
    Json {
        /// which
        what: &'static str,
        /// why
        #[source]
        source: serde_json::Error,
    },
    /// derived bytes that are no key
    #[error("no node key could be derived from the owner's: delete the Secret of the owner's key, for a new one")]
    Key,
}

impl Error {
    /// Stable `PascalCase` word for metrics, events and conditions.
    pub fn reason(&self) -> &'static str {
        match self {
            Error::Json { .. } => "Internal",
            Error::Key => reasons::MALFORMED_KEY,
        }
    }
}

/// Kinds of children.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// keys
    Secret,
    /// plans
    ConfigMap,
    /// caches of windows
    PersistentVolumeClaim,
    /// the door
    Service,
    /// stages
    Deployment,
}

impl Kind {
    /// All of them, in the order in which they are applied.
    pub const ALL: [Kind; 5] = [
        Kind::Secret,
        Kind::ConfigMap,
        Kind::PersistentVolumeClaim,
        Kind::Service,
        Kind::Deployment,
    ];

    /// Its name in the API.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Secret => "Secret",
            Kind::ConfigMap => "ConfigMap",
            Kind::PersistentVolumeClaim => "PersistentVolumeClaim",
            Kind::Service => "Service",
            Kind::Deployment => "Deployment",
        }
    }

    /// Whether pods mount it, so that it has to be there before them, and to stay until they go.
    pub fn is_mounted(self) -> bool {
        matches!(self, Kind::Secret | Kind::ConfigMap | Kind::PersistentVolumeClaim)
    }

    /// How it is addressed.
    pub fn resource(self) -> ApiResource {
        match self {
            Kind::Secret => ApiResource::erase::<Secret>(&()),
            Kind::ConfigMap => ApiResource::erase::<ConfigMap>(&()),
            Kind::PersistentVolumeClaim => ApiResource::erase::<PersistentVolumeClaim>(&()),
            Kind::Service => ApiResource::erase::<Service>(&()),
            Kind::Deployment => ApiResource::erase::<Deployment>(&()),
        }
    }
}

/// An object as it should be.
#[derive(Clone, Debug, PartialEq)]
pub struct Object {
    /// its kind
    pub kind: Kind,
    /// its name
    pub name: String,
    /// the fields that the operator owns, its apiVersion and kind included
    pub value: Value,
}

/// Objects that were built, and not applied.
#[derive(Clone, Copy, Debug)]
pub struct Prepared;
/// Objects that were applied.
#[derive(Clone, Copy, Debug)]
pub struct Applied;

/// What should be there. Only what was applied has a status.
#[derive(Clone, Debug)]
pub struct Resources<State> {
    /// the objects, in the order in which they are applied
    pub objects: Vec<Object>,
    /// what the market is asked for, by ordinal
    pub demands: Vec<Demand>,
    state: PhantomData<State>,
}

impl Resources<Prepared> {
    /// The same, once every object is there: for who has seen to that.
    #[must_use]
    pub fn applied(self) -> Resources<Applied> {
        Resources {
            objects: self.objects,
            demands: self.demands,
            state: PhantomData,
        }
    }
}

impl<State> Resources<State> {
    /// Whether an object is among them.
    pub fn holds(&self, kind: Kind, name: &str) -> bool {
        self.objects
            .iter()
            .any(|object| object.kind == kind && object.name == name)
    }

    /// The object of that kind and name.
    pub fn get(&self, kind: Kind, name: &str) -> Option<&Value> {
        let mut objects = self.objects.iter();
        objects
            .find(|object| object.kind == kind && object.name == name)
            .map(|object| &object.value)
    }
}

/// One window that the cluster runs, in one of the rings.
#[derive(Clone, Copy, Debug)]
struct Slot<'a> {
    spec: &'a Spec,
    /// the plan of its ring
    manifest: &'a RankManifest,
    ordinal: u32,
    rank: usize,
    layers: LayerRange,
    /// the pool
    pool: &'a str,
    /// bytes of memory that it needs
    memory: u64,
    owner: &'a OwnerKey,
}

impl Slot<'_> {
    fn name(&self) -> String {
        names::stage(&self.spec.name, self.ordinal, self.layers)
    }

    fn is_first(&self) -> bool {
        self.layers.start == 0
    }

    fn labels(&self) -> Labels {
        let mut labels = labels::of_ring(&self.spec.name, "stage");
        labels.extend(self.selector());
        labels.insert(labels::POOL.to_owned(), self.pool.to_owned());
        if self.is_first() {
            labels.insert(labels::RANK.to_owned(), "0".to_owned());
        }
        labels
    }

    fn selector(&self) -> Labels {
        labels::of_window(&self.spec.name, self.ordinal, self.layers)
    }

    fn meta(&self) -> ObjectMeta {
        meta(self.spec, self.name(), self.labels())
    }
}

/// Builds everything but the owner's key, which is random and was there before.
///
/// # Errors
/// [`Error::Json`] and [`Error::Key`], neither of which a Ring can bring about.
pub fn build(validated: &Validated, owner: &OwnerKey) -> Result<Resources<Prepared>, Error> {
    let spec = &validated.spec;
    let first = validated.manifest.ranks.first().map(|rank| rank.layers);
    let mut objects = vec![object(Kind::Service, &spec.name, &service::service(spec, first))?];
    let mut demands = Vec::new();
    for ordinal in 0..spec.replicas() {
        let manifest = validated.manifest_of(ordinal, &owner.public().fingerprint());
        for (rank, planned) in validated.cluster_ranks() {
            let slot = Slot {
                spec,
                manifest: &manifest,
                ordinal,
                rank,
                layers: planned.layers,
                pool: planned.placement.as_deref().unwrap_or_default(),
                memory: planned.memory,
                owner,
            };
            let name = slot.name();
            objects.push(object(Kind::Secret, &name, &secret::node(&slot)?)?);
            objects.push(object(Kind::ConfigMap, &name, &config_map::plan(&slot)?)?);
            if let Some(claim) = claim::window(&slot) {
                objects.push(object(Kind::PersistentVolumeClaim, &name, &claim)?);
            }
            objects.push(object(Kind::Deployment, &name, &deployment::stage(&slot)?)?);
        }
        demands.push(demand::demand(validated, manifest, owner)?);
    }
    // stable: within a kind they stay in ring order
    objects.sort_by_key(|object| object.kind);
    Ok(Resources {
        objects,
        demands,
        state: PhantomData,
    })
}

fn object(kind: Kind, name: &str, typed: &impl Serialize) -> Result<Object, Error> {
    let value = serde_json::to_value(typed);
    Ok(Object {
        kind,
        name: name.to_owned(),
        value: value.map_err(|source| Error::Json {
            what: kind.name(),
            source,
        })?,
    })
}

/// Metadata of a child, which goes when its Ring goes.
fn meta(spec: &Spec, name: String, labels: Labels) -> ObjectMeta {
    ObjectMeta {
        name: Some(name),
        namespace: Some(spec.namespace.clone()),
        labels: Some(labels),
        owner_references: Some(vec![OwnerReference {
            api_version: kvasir_api::API_VERSION.to_owned(),
            kind: kvasir_api::KIND.to_owned(),
            name: spec.name.clone(),
            uid: spec.uid.clone(),
            controller: Some(true),
            block_owner_deletion: Some(true),
        }]),
        ..ObjectMeta::default()
    }
}
