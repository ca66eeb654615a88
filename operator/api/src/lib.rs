//! The `Ring` custom resource: its types, its schema and the reading of a Ring from YAML. No client, no I/O.
//!
//! Entry points: [`Ring`] and [`RingSpec`] (what a user writes), [`RingStatus`] with [`conditions`] (what the operator
//! answers), [`from_yaml`] (what the command line reads, under the rules of the cluster), [`crd_yaml`] (what `crds/`
//! holds) and [`reference()`] (what `docs/ring.md` says).
//!
//! The rules live in the schema, as limits and CEL expressions, so that the API server and [`from_yaml`] give the same
//! answer. What needs the model's block count (do the windows cover it?) is the planner's to say, which is asked through
//! [`RingSpec::request`] and [`RingSpec::devices`].

// KubeSchema copies each struct, visibility and all, into a function body.
#![allow(unreachable_pub)]

pub mod conditions;
mod document;
mod endpoint;
mod market;
mod model;
mod planning;
mod pool;
mod quantity;
mod reference;
mod ring;
mod schema;
mod status;

pub use document::{Error, Fault, from_yaml};
pub use endpoint::{Endpoint, ImagePullPolicy, Relay, SecretKeyRef, ServiceRef, ServiceType};
pub use market::Market;
pub use model::{ClaimSource, FileSource, HttpSource, HuggingFaceSource, Model, Source};
pub use pool::{Backend, Layers, Pool, Storage, UpdateStrategy, Window};
pub use quantity::{QuantityError, bytes, is_plain};
pub use reference::reference;
pub use ring::{BoundaryType, CacheType, MAX_NAME, Ring, RingSpec};
pub use schema::crd_yaml;
pub use status::{ModelStatus, Placement, RingInstance, RingStatus, StageStatus};

/// API group of the resource, and the prefix of its labels, annotations and finalizer.
pub const GROUP: &str = "kvasir.dev";
/// Version of the resource.
pub const VERSION: &str = "v1alpha1";
/// `apiVersion` of a Ring.
pub const API_VERSION: &str = "kvasir.dev/v1alpha1";
/// `kind` of a Ring.
pub const KIND: &str = "Ring";
