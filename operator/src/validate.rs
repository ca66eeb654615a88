//! Second step: can the Ring be served, and by which plan? Pure.
//!
//! What the Ring itself must fulfil is asked before its model is read ([`spec`]), the plan afterwards ([`plan`]). The schema
//! has checked most of it already; it is checked here once more where a definition of an older version may be served.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::{
    DeepMerge,
    api::core::v1::{LocalObjectReference, PodTemplateSpec},
};
use kube::ResourceExt;
use kvasir_api::{
    ImagePullPolicy, MAX_NAME, Pool, QuantityError, Relay, Ring, RingSpec, UpdateStrategy, conditions::reasons,
};
use kvasir_plan::{Device, ModelProfile, RankManifest, Request};
use serde_json::Value;

use crate::{compare, names, settings::Settings, source::Source};

/// A Service on this port speaks TLS.
const TLS_PORT: i32 = 443;
/// Characters of a quantity that are quoted.
const QUOTED: usize = 40;

/// Why a Ring can't be served as it is.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// names of children would be cut
    #[error("the Ring's name has {length} characters, and {MAX_NAME} are allowed: make it again with a shorter one")]
    NameTooLong {
        /// characters it has
        length: usize,
    },
    /// it names a Service
    #[error(
        "the Ring's name {name:?} can't name its Service: make it again with a name that starts with a letter and holds \
         lower-case letters, digits and '-' only"
    )]
    BadName {
        /// the name
        name: String,
    },
    /// no cluster has it
    #[error(
        "source.file is a path on one machine, which pods don't have: use http, huggingFace or persistentVolumeClaim"
    )]
    FileSource,
    /// nobody may hold a window
    #[error("spec.pools is empty: name at least one pool, and the memory that one of its stages may take")]
    NoPools,
    /// no market
    #[error("there is no relay: set spec.relay, or install the operator with one")]
    NoRelay,
    /// a quantity in it is none
    #[error("a quantity of the spec can't be read")]
    Quantity(#[from] QuantityError),
    /// what is no quantity, or one that the API server would compute on for hours
    #[error("{path} of pool {pool} is `{text}`: write a number and a unit, such as 500m or 2Gi")]
    PoolQuantity {
        /// the pool
        pool: String,
        /// its path in the pool
        path: String,
        /// as it is written, or its beginning
        text: String,
    },
    /// overrides that are no pod template
    #[error("podOverrides of pool {pool} are no part of a pod template")]
    Overrides {
        /// the pool
        pool: String,
        /// what is wrong
        #[source]
        source: serde_json::Error,
    },
    /// overrides with a field that no pod template has
    #[error("podOverrides of pool {pool}: {field} is no field of a pod template")]
    UnknownOverride {
        /// the pool
        pool: String,
        /// its path
        field: String,
    },
    /// the planner refuses
    #[error(transparent)]
    Plan(#[from] kvasir_plan::Error),
    /// rank 0 outside
    #[error("the first window is open, and its rank serves the Service: place it on a pool")]
    OpenHead,
}

impl Error {
    /// Stable `PascalCase` word for metrics, events and conditions.
    pub fn reason(&self) -> &'static str {
        match self {
            Error::NameTooLong { .. } => reasons::NAME_TOO_LONG,
            Error::FileSource => reasons::UNSUPPORTED_SOURCE,
            Error::BadName { .. }
            | Error::NoPools
            | Error::NoRelay
            | Error::Quantity(_)
            | Error::PoolQuantity { .. }
            | Error::Overrides { .. }
            | Error::UnknownOverride { .. } => reasons::INVALID_SPEC,
            Error::Plan(error) => error.reason(),
            Error::OpenHead => reasons::INVALID_PLAN,
        }
    }
}

/// A Ring whose spec can be served, if its model can.
#[derive(Clone, Debug)]
pub struct Spec {
    /// its name
    pub name: String,
    /// its namespace
    pub namespace: String,
    /// its identity, by which its children know it
    pub uid: String,
    /// what the user wrote
    pub ring: RingSpec,
    /// where the model is
    pub source: Source,
    /// the relay's address, as the operator and the stages dial it
    pub relay: String,
    /// image of the stages
    pub image: String,
    /// when it is pulled
    pub image_pull_policy: Option<ImagePullPolicy>,
    /// with which Secrets
    pub image_pull_secrets: Vec<LocalObjectReference>,
    /// name of the cluster's network, where stages dial each other
    pub network: String,
    /// by pool: what is merged over the operator's own template
    pub overrides: BTreeMap<String, PodTemplateSpec>,
    request: Request,
    devices: Vec<Device>,
}

/// A Ring that can be served, and its plan.
#[derive(Clone, Debug)]
pub struct Validated {
    /// the Ring
    pub spec: Spec,
    /// its model
    pub profile: Arc<ModelProfile>,
    /// the plan, named as the Ring is: epoch 0, no holders
    pub manifest: RankManifest,
}

/// Checks the Ring itself.
///
/// # Errors
/// What the user has to change.
pub fn spec(ring: &Ring, settings: &Settings) -> Result<Spec, Error> {
    let name = ring.name_any();
    if name.len() > MAX_NAME {
        return Err(Error::NameTooLong { length: name.len() });
    }
    if !is_service_name(&name) {
        return Err(Error::BadName { name });
    }
    let namespace = ring.namespace().unwrap_or_else(|| "default".to_owned());
    let spec = &ring.spec;
    let source = Source::of(&spec.model.source).ok_or(Error::FileSource)?;
    if spec.pools.is_empty() {
        return Err(Error::NoPools);
    }
    let relay = relay(spec.relay.as_ref(), &namespace, settings).ok_or(Error::NoRelay)?;
    spec.pools.iter().try_for_each(plain_quantities)?;
    let own_secrets = !spec.image_pull_secrets.is_empty();
    Ok(Spec {
        uid: ring.uid().unwrap_or_default(),
        source,
        relay,
        image: spec.image.clone().unwrap_or_else(|| settings.stage_image.clone()),
        image_pull_policy: spec.image_pull_policy.or(settings.stage_image_pull_policy.0),
        image_pull_secrets: if own_secrets {
            spec.image_pull_secrets.clone()
        } else {
            settings.pull_secrets()
        },
        network: settings.cluster_network.clone(),
        overrides: spec.pools.iter().map(overrides).collect::<Result<_, _>>()?,
        request: spec.request()?,
        devices: spec.devices()?,
        ring: spec.clone(),
        name,
        namespace,
    })
}

/// Plans the Ring onto its pools, as `kvasir plan` does.
///
/// # Errors
/// [`Error::Plan`] with the layer and the bytes that are missing, [`Error::OpenHead`].
pub fn plan(spec: Spec, profile: Arc<ModelProfile>) -> Result<Validated, Error> {
    let plan = kvasir_plan::plan(&profile, &spec.devices, &spec.request)?;
    let manifest = plan.manifest(&spec.name, &spec.ring.model.name);
    if manifest.ranks.first().is_none_or(|rank| rank.placement.is_none()) {
        return Err(Error::OpenHead);
    }
    Ok(Validated {
        spec,
        profile,
        manifest,
    })
}

impl Validated {
    /// The plan of one of the rings, under its name on the market.
    pub fn manifest_of(&self, ordinal: u32, owner_fingerprint: &str) -> RankManifest {
        RankManifest {
            ring: self.spec.on_market(ordinal, owner_fingerprint),
            ..self.manifest.clone()
        }
    }

    /// Stages of one ring that the cluster runs, by rank.
    pub fn cluster_ranks(&self) -> impl Iterator<Item = (usize, &kvasir_plan::Rank)> {
        let ranks = self.manifest.ranks.iter().enumerate();
        ranks.filter(|(_, rank)| rank.placement.is_some())
    }

    /// Whether the market may take windows.
    pub fn has_open_windows(&self) -> bool {
        self.manifest.ranks.iter().any(|rank| rank.placement.is_none())
    }
}

impl Spec {
    /// Rings that should be there.
    pub fn replicas(&self) -> u32 {
        self.ring.replicas.max(0).unsigned_abs()
    }

    /// A ring's name on the market.
    pub fn on_market(&self, ordinal: u32, owner_fingerprint: &str) -> String {
        names::on_market(&self.namespace, &self.name, ordinal, owner_fingerprint)
    }

    /// The pool of that name.
    pub fn pool(&self, name: &str) -> Option<&Pool> {
        self.ring.pools.iter().find(|pool| pool.name == name)
    }

    /// How a stage of `pool` is replaced. A volume of its own is good on one node at a time, so that the next pod can't
    /// have it before the old one goes.
    pub fn strategy(&self, pool: &Pool) -> UpdateStrategy {
        if pool.storage.is_some() {
            return UpdateStrategy::Recreate;
        }
        pool.update_strategy.unwrap_or(self.ring.update_strategy)
    }

    /// `template` with the pool's overrides merged over it.
    pub fn merged(&self, pool: &str, mut template: PodTemplateSpec) -> PodTemplateSpec {
        if let Some(overrides) = self.overrides.get(pool) {
            template.merge_from(overrides.clone());
        }
        template
    }
}

fn is_service_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    name.starts_with(|c: char| c.is_ascii_lowercase()) && !name.ends_with('-') && name.chars().all(plain)
}

/// The relay of a Ring: its own, or the one that the operator was installed with.
pub fn relay(relay: Option<&Relay>, namespace: &str, settings: &Settings) -> Option<String> {
    let Some(relay) = relay else {
        return settings.relay().map(str::to_owned);
    };
    if let Some(url) = &relay.url {
        return Some(url.clone());
    }
    let service = relay.service_ref.as_ref()?;
    let scheme = if service.port == TLS_PORT { "https" } else { "http" };
    let namespace = service.namespace.as_deref().unwrap_or(namespace);
    Some(format!("{scheme}://{}.{namespace}.svc:{}", service.name, service.port))
}

/// Quantities that the pool takes into its pods as they are written. The schema has no rule for them: `resources` is
/// Kubernetes' own type, `podOverrides` can be anything.
fn plain_quantities(pool: &Pool) -> Result<(), Error> {
    let resources = serde_json::to_value(&pool.resources).unwrap_or_default();
    let overrides = pool.pod_overrides.clone().map(Value::Object).unwrap_or_default();
    for (path, value) in [("resources", &resources), ("podOverrides", &overrides)] {
        if let Some((path, text)) = overlong(value, path) {
            return Err(Error::PoolQuantity {
                pool: pool.name.clone(),
                path,
                text: text.chars().take(QUOTED).collect(),
            });
        }
    }
    Ok(())
}

/// The first quantity that isn't plain, and where it is.
fn overlong<'a>(value: &'a Value, path: &str) -> Option<(String, &'a str)> {
    match value {
        Value::String(text) if compare::is_quantity(path) && !kvasir_api::is_plain(text) => {
            Some((path.to_owned(), text))
        }
        Value::Array(items) => {
            let mut items = items.iter().enumerate();
            items.find_map(|(at, item)| overlong(item, &format!("{path}[{at}]")))
        }
        Value::Object(members) => members
            .iter()
            .find_map(|(name, member)| overlong(member, &format!("{path}.{name}"))),
        _ => None,
    }
}

/// A pool's overrides as a pod template. A mistyped field would be passed over in silence, so it is an error.
fn overrides(pool: &Pool) -> Result<(String, PodTemplateSpec), Error> {
    let Some(raw) = &pool.pod_overrides else {
        return Ok((pool.name.clone(), PodTemplateSpec::default()));
    };
    let mut unknown = None;
    let template = serde_ignored::deserialize(Value::Object(raw.clone()), |path| {
        unknown.get_or_insert_with(|| path.to_string().replace(".?", "").replace("?.", ""));
    });
    let template = template.map_err(|source| Error::Overrides {
        pool: pool.name.clone(),
        source,
    })?;
    match unknown {
        Some(field) => Err(Error::UnknownOverride {
            pool: pool.name.clone(),
            field,
        }),
        None => Ok((pool.name.clone(), template)),
    }
}
