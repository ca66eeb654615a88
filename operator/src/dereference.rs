//! First step: reads what the Ring names, and what is there of it already.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Pod, Secret},
};
use kube::{
    Api, ResourceExt,
    api::{DynamicObject, ListParams},
};
use kvasir_api::{SecretKeyRef, conditions::reasons};
use kvasir_plan::ModelProfile;
use kvasir_process::chain;
use kvasir_wire::trust::OwnerKey;
use secrecy::SecretString;
use serde_json::Value;

use crate::{
    apply,
    build::{Kind, OWNER_KEY},
    context::Context,
    labels, model, names, reader,
    source::Source,
    validate::Spec,
};

/// Why something that the Ring names isn't known.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// the API server doesn't answer, or not to this
    #[error("can't read {what} in namespace {namespace}: {}", apply::text(.source))]
    Kube {
        /// which objects
        what: &'static str,
        /// where
        namespace: String,
        /// why
        #[source]
        source: Box<kube::Error>,
    },
    /// the Secret holds something else
    #[error("Secret {name} holds no owner's key: restore it, or delete it for a new owner")]
    OwnerKey {
        /// the Secret
        name: String,
    },
}

impl Error {
    /// Stable `PascalCase` word for metrics, events and conditions.
    pub fn reason(&self) -> &'static str {
        match self {
            Error::Kube { source, .. } => apply::forbidden_or(source, "ClusterUnreachable"),
            Error::OwnerKey { .. } => reasons::MALFORMED_KEY,
        }
    }
}

/// Why the model isn't known.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// the token isn't there
    #[error("Secret {name} has no key {key}, which is to hold the token for the model's source: make it")]
    Token {
        /// the Secret
        name: String,
        /// its key
        key: String,
    },
    /// it can't be read
    #[error(transparent)]
    Model(#[from] Arc<model::Error>),
    /// it can't be read off its volume
    #[error(transparent)]
    Volume(#[from] reader::Error),
}

impl ModelError {
    /// Stable `PascalCase` word for metrics, events and conditions.
    pub fn reason(&self) -> &'static str {
        match self {
            ModelError::Token { .. } => reasons::UNAUTHORIZED,
            ModelError::Model(error) => error.reason(),
            ModelError::Volume(error) => error.reason(),
        }
    }

    /// Whether the answer is still on its way.
    pub fn is_pending(&self) -> bool {
        match self {
            ModelError::Volume(error) => error.is_pending(),
            ModelError::Model(error) => matches!(**error, model::Error::Reading),
            ModelError::Token { .. } => false,
        }
    }

    /// What the user reads.
    pub fn words(&self) -> String {
        match self {
            // it quotes the API server already
            ModelError::Volume(error) => error.to_string(),
            error => chain(error),
        }
    }
}

/// The Ring's children as they are.
#[derive(Clone, Debug, Default)]
pub struct Live {
    /// everything but pods
    pub objects: BTreeMap<(Kind, String), Value>,
    /// pods of the stages
    pub pods: Vec<Pod>,
}

impl Live {
    /// A child.
    pub fn get(&self, kind: Kind, name: &str) -> Option<&Value> {
        self.objects.get(&(kind, name.to_owned()))
    }

    /// A stage's Deployment.
    pub fn deployment(&self, name: &str) -> Option<Deployment> {
        serde_json::from_value(self.get(Kind::Deployment, name)?.clone()).ok()
    }
}

/// What a Ring names, and what is there.
#[derive(Debug)]
pub struct Dereferenced {
    /// the owner's key; none before the first visit
    pub owner: Option<OwnerKey>,
    /// the children
    pub live: Live,
    /// the model
    pub profile: Result<Arc<ModelProfile>, ModelError>,
}

/// Reads the children, the owner's key, and the model's prefix.
///
/// # Errors
/// [`Error`]; a model that can't be read is none, but part of the answer.
pub async fn dereference(context: &Context, spec: &Spec) -> Result<Dereferenced, Error> {
    let live = live(context, spec).await?;
    let name = names::owner(&spec.name);
    let owner = match live.get(Kind::Secret, &name) {
        None => None,
        Some(secret) => Some(owner_key(secret).ok_or(Error::OwnerKey { name })?),
    };
    let token = match &spec.ring.model.credentials_secret_ref {
        None => Ok(None),
        Some(secret) => token(context, spec, secret).await?.map(Some),
    };
    let profile = match (token, &spec.source) {
        (Err(error), _) => Err(error),
        (Ok(token), Source::Remote(source)) => context.models.profile(source, token).await.map_err(Into::into),
        (Ok(_), Source::Volume { claim_name, .. }) => {
            reader::profile(context, spec, claim_name).await.map_err(Into::into)
        }
    };
    Ok(Dereferenced { owner, live, profile })
}

/// The owner's key in its Secret, if it is one.
pub fn owner_key(secret: &Value) -> Option<OwnerKey> {
    let secret: Secret = serde_json::from_value(secret.clone()).ok()?;
    let bytes = secret.data?.remove(OWNER_KEY)?.0;
    OwnerKey::from_text(&String::from_utf8(bytes).ok()?)
}

async fn live(context: &Context, spec: &Spec) -> Result<Live, Error> {
    let children = ListParams::default().labels(&format!("{},{}={}", labels::managed(), labels::RING, spec.name));
    let mut live = Live::default();
    for kind in Kind::ALL {
        let api: Api<DynamicObject> = Api::namespaced_with(context.client.clone(), &spec.namespace, &kind.resource());
        let list = api.list(&children).await.map_err(failed(kind.name(), spec))?;
        for object in list {
            // one that an earlier Ring of this name had is on its way out
            if is_owned(object.owner_references(), &spec.uid) {
                let name = object.name_any();
                let value = serde_json::to_value(object).unwrap_or_default();
                live.objects.insert((kind, name), value);
            }
        }
    }
    let api: Api<Pod> = Api::namespaced(context.client.clone(), &spec.namespace);
    let pods = api.list(&children).await.map_err(failed("Pod", spec))?;
    live.pods = pods.items;
    Ok(live)
}

/// Whether a Ring is the controller of an object.
pub fn is_owned(owners: &[k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference], uid: &str) -> bool {
    owners
        .iter()
        .any(|owner| owner.controller == Some(true) && owner.uid == uid)
}

async fn token(
    context: &Context,
    spec: &Spec,
    secret: &SecretKeyRef,
) -> Result<Result<SecretString, ModelError>, Error> {
    let api: Api<Secret> = Api::namespaced(context.client.clone(), &spec.namespace);
    let found = api.get_opt(&secret.name).await.map_err(failed("Secret", spec))?;
    let bytes = found.and_then(|found| found.data?.remove(&secret.key));
    let text = bytes.and_then(|bytes| String::from_utf8(bytes.0).ok());
    Ok(match text {
        Some(text) => Ok(SecretString::from(text.trim().to_owned())),
        None => Err(ModelError::Token {
            name: secret.name.clone(),
            key: secret.key.clone(),
        }),
    })
}

fn failed(what: &'static str, spec: &Spec) -> impl FnOnce(kube::Error) -> Error + use<> {
    let namespace = spec.namespace.clone();
    move |source| Error::Kube {
        what,
        namespace,
        source: Box::new(source),
    }
}
