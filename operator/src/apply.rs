//! Fourth step: makes it so. What is there already is left alone, so that a Ring that didn't change causes no writes.
//!
//! Children are written a few at a time, what pods mount before the pods. A visit whose Ring has changed meanwhile ends
//! there: the next one knows better.

use std::collections::BTreeSet;

use futures::stream::{FuturesOrdered, StreamExt as _};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions, PropagationPolicy},
    core::Status,
};
use kvasir_api::conditions::reasons;
use kvasir_process::chain;
use serde_json::{Map, Value, json};

use crate::{
    build::{Applied, Kind, Object, Prepared, Resources},
    compare,
    context::Context,
    dereference::{Live, is_owned},
    labels, names,
    switch::Switch,
    validate::Spec,
};

/// Requests of one visit at a time.
pub const AT_ONCE: usize = 8;

/// Why the children are not as they should be.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// the API server failed, or another writer was faster
    #[error("can't {verb} {kind} {name}: {}", text(.source))]
    Kube {
        /// `apply`, `create` or `delete`
        verb: &'static str,
        /// what
        kind: &'static str,
        /// its name
        name: String,
        /// why
        source: Box<kube::Error>,
    },
    /// an object of that name is there
    #[error("{kind} {name} is there and not this Ring's: rename one of them")]
    NameInUse {
        /// what
        kind: &'static str,
        /// its name
        name: String,
    },
    /// nothing can be made in the namespace any more
    #[error("the namespace is being deleted")]
    NamespaceTerminating,
    /// what is being applied is not what the Ring asks for any more
    #[error("the Ring has changed meanwhile")]
    Superseded,
}

impl Error {
    /// Stable `PascalCase` word for metrics, events and conditions.
    pub fn reason(&self) -> &'static str {
        match self {
            Error::Kube { source, .. } => forbidden_or(source, "ApplyFailed"),
            Error::NameInUse { .. } => reasons::NAME_IN_USE,
            Error::NamespaceTerminating => "NamespaceTerminating",
            Error::Superseded => "Superseded",
        }
    }
}

/// A child that the API server would not take as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// one of the reasons of `Degraded`
    pub reason: &'static str,
    /// what the user reads
    pub message: String,
    /// it isn't there at all: nothing of an earlier form serves
    pub missing: bool,
}

/// What has to be done so that the children are as they should be.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Changes {
    /// objects to apply, stamped
    pub put: Vec<Object>,
    /// objects to delete
    pub delete: Vec<(Kind, String)>,
}

/// Compares what should be there with what is. Pure.
pub fn changes(wanted: &Resources<Prepared>, live: &Live, spec: &Spec, switch: &Switch) -> Changes {
    let holds = *switch != Switch::Go;
    let mut put = Vec::new();
    for object in &wanted.objects {
        let there = live.get(object.kind, &object.name);
        // the door stays where it is until a lap went round the next windows
        if holds && object.kind == Kind::Service && there.is_some() {
            continue;
        }
        let value = compare::stamped(object.value.clone());
        if there.is_none_or(|there| compare::difference(&value, there).is_some()) {
            put.push(Object {
                value,
                ..object.clone()
            });
        }
    }
    let kept = kept(spec);
    let is_orphan = |(kind, name): &&(Kind, String)| {
        let stays = *kind == Kind::Secret && kept.contains(name);
        !stays && !wanted.holds(*kind, name)
    };
    let delete = if holds {
        Vec::new()
    } else {
        live.objects.keys().filter(is_orphan).cloned().collect()
    };
    Changes { put, delete }
}

/// Secrets that are not built anew at each visit.
fn kept(spec: &Spec) -> BTreeSet<String> {
    let invites = (0..spec.replicas()).map(|ordinal| names::invite(&spec.name, ordinal));
    invites.chain([names::owner(&spec.name)]).collect()
}

/// Rings that were there and are no more: their objects are among those that go.
pub fn gone(changes: &Changes, live: &Live, spec: &Spec) -> BTreeSet<u32> {
    let ordinal = |(kind, name): &(Kind, String)| {
        let carried = &live.get(*kind, name)?["metadata"]["labels"];
        carried[labels::ORDINAL].as_str()?.parse().ok()
    };
    let ordinals = changes.delete.iter().filter_map(ordinal);
    ordinals.filter(|ordinal| *ordinal >= spec.replicas()).collect()
}

/// Applies what differs and deletes what is not wanted any more. `is_current` says whether the Ring is still the one
/// that this is for; once it isn't, no further child is begun.
///
/// # Errors
/// [`Error`], which another visit may not meet. What the API server refuses for good is in the answer.
pub async fn apply(
    context: &Context,
    spec: &Spec,
    wanted: Resources<Prepared>,
    live: &Live,
    changes: &Changes,
    is_current: impl Fn() -> bool + Sync,
) -> Result<(Resources<Applied>, Vec<Refused>), Error> {
    let mut refused = Vec::new();
    for wave in waves(&changes.put, |object| object.kind) {
        let mut puts = Vec::new();
        for object in wave {
            puts.push(put(context, spec, object, live.get(object.kind, &object.name)));
        }
        let answers = each(puts, &is_current).await?;
        refused.extend(answers.into_iter().flatten());
    }
    let mut doomed: Vec<&(Kind, String)> = changes.delete.iter().collect();
    // pods lose their keys after they were told to go
    doomed.sort_by_key(|(kind, _)| std::cmp::Reverse(*kind));
    for wave in waves(&doomed, |(kind, _)| *kind) {
        let mut removals = Vec::new();
        for (kind, name) in wave {
            removals.push(remove(context, spec, *kind, name, live));
        }
        each(removals, &is_current).await?;
    }
    Ok((wanted.applied(), refused))
}

/// Runs of neighbours whose order among themselves doesn't matter: what pods mount, and what leads to pods or makes them.
fn waves<T>(items: &[T], kind: impl Fn(&T) -> Kind) -> Vec<&[T]> {
    items
        .chunk_by(|a, b| kind(a).is_mounted() == kind(b).is_mounted())
        .collect()
}

/// Does all of it, a few at a time and in order, unless one fails or the Ring is another one meanwhile. What was begun is
/// ended in either case.
async fn each<T, F>(requests: Vec<F>, is_current: &(impl Fn() -> bool + Sync)) -> Result<Vec<T>, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    let mut waiting = requests.into_iter();
    let mut begun = FuturesOrdered::new();
    let (mut done, mut failed) = (Vec::new(), None);
    loop {
        while begun.len() < AT_ONCE && failed.is_none() && is_current() {
            match waiting.next() {
                Some(request) => begun.push_back(request),
                None => break,
            }
        }
        match begun.next().await {
            Some(Ok(answer)) => done.push(answer),
            Some(Err(error)) => {
                failed.get_or_insert(error);
            }
            None => break,
        }
    }
    match failed {
        Some(error) => Err(error),
        None if waiting.len() > 0 => Err(Error::Superseded),
        None => Ok(done),
    }
}

/// Makes an object that must not be there yet: a key, of which there can be one only.
///
/// # Errors
/// [`Error`], also when it is there.
pub async fn create(context: &Context, spec: &Spec, object: &Object) -> Result<(), Error> {
    let api = api(&context.client, spec, object.kind);
    let failed = |source| failed("create", object.kind, &object.name, source);
    let value = compare::stamped(object.value.clone());
    let value = serde_json::from_value(value).map_err(|error| failed(kube::Error::SerdeError(error)))?;
    let params = PostParams {
        field_manager: Some(labels::MANAGER.to_owned()),
        ..PostParams::default()
    };
    context.metrics.wrote(object.kind.name(), "create");
    match api.create(&params, &value).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 409 => Err(Error::NameInUse {
            kind: object.kind.name(),
            name: object.name.clone(),
        }),
        Err(source) => Err(failed(source)),
    }
}

async fn put(context: &Context, spec: &Spec, object: &Object, there: Option<&Value>) -> Result<Option<Refused>, Error> {
    let (kind, name) = (object.kind, &object.name);
    let api = api(&context.client, spec, kind);
    if there.is_none() {
        let found = api
            .get_opt(name)
            .await
            .map_err(|source| failed("apply", kind, name, source))?;
        if found.is_some_and(|found| !is_owned(found.owner_references(), &spec.uid)) {
            return Ok(Some(Refused {
                reason: reasons::NAME_IN_USE,
                message: format!(
                    "{} {name} is there and not this Ring's: rename one of them",
                    kind.name()
                ),
                missing: true,
            }));
        }
    }
    tracing::debug!(
        kind = kind.name(),
        name,
        field = there.and_then(|there| compare::difference(&object.value, there)),
        "applying"
    );
    let strangers = there.map(|there| compare::strangers_in_selector(&object.value, there));
    if let Some(strangers) = strangers.filter(|strangers| !strangers.is_empty()) {
        let gone: Map<String, Value> = strangers.into_iter().map(|key| (key, Value::Null)).collect();
        let without = Patch::Merge(json!({"spec": {"selector": gone}}));
        context.metrics.wrote(kind.name(), "patch");
        api.patch(name, &PatchParams::default(), &without)
            .await
            .map_err(|source| failed("apply", kind, name, source))?;
    }
    let params = PatchParams::apply(labels::MANAGER).force();
    context.metrics.wrote(kind.name(), "apply");
    match api.patch(name, &params, &Patch::Apply(&object.value)).await {
        Ok(_) => Ok(None),
        Err(kube::Error::Api(status)) if is_final(&status) => Ok(Some(refusal(object, there, &status))),
        Err(source) => Err(failed("apply", kind, name, source)),
    }
}

/// Deletes a child, unless it was made anew meanwhile.
///
/// # Errors
/// [`Error`].
pub async fn remove(context: &Context, spec: &Spec, kind: Kind, name: &str, live: &Live) -> Result<(), Error> {
    let uid = live.get(kind, name).and_then(|there| there["metadata"]["uid"].as_str());
    let params = DeleteParams {
        propagation_policy: Some(PropagationPolicy::Background),
        preconditions: uid.map(|uid| Preconditions {
            uid: Some(uid.to_owned()),
            ..Preconditions::default()
        }),
        ..DeleteParams::default()
    };
    context.metrics.wrote(kind.name(), "delete");
    match api(&context.client, spec, kind).delete(name, &params).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 || status.code == 409 => Ok(()),
        Err(source) => Err(failed("delete", kind, name, source)),
    }
}

/// Whether the same request would be refused again.
fn is_final(status: &Status) -> bool {
    matches!(status.code, 400 | 422) || status.code == 403 && !is_terminating(status)
}

/// What the user reads of a refusal: the field, and the API server's own words.
pub fn refusal(object: &Object, there: Option<&Value>, status: &Status) -> Refused {
    let (kind, name) = (object.kind.name(), &object.name);
    let causes = status.details.as_ref().map(|details| details.causes.as_slice());
    let cause = causes.unwrap_or_default().iter().map(|cause| cause.field.as_str());
    let field = there
        .and_then(|there| compare::difference(&object.value, there))
        .or_else(|| cause.filter(|field| !field.is_empty()).map(str::to_owned).next());
    match (field, there) {
        (Some(field), Some(_)) if status.code == 422 => Refused {
            reason: reasons::IMMUTABLE_FIELD,
            message: format!(
                "{field} of {kind} {name} can't be changed: set it back, or delete the {kind} for a new one ({})",
                status.message
            ),
            missing: false,
        },
        _ => Refused {
            reason: if is_forbidden(status) {
                reasons::OPERATOR_FORBIDDEN
            } else {
                reasons::CHILD_REFUSED
            },
            message: format!("the API server refuses {kind} {name}: {}", status.message),
            missing: there.is_none(),
        },
    }
}

/// Whether the operator lacks a right, and not its user's object a quality: a quota's and a policy's refusals are 403, too.
pub fn is_forbidden(status: &Status) -> bool {
    status.code == 403 && status.message.contains("User \"") && status.message.contains("\" cannot ")
}

/// The reason of a failed request: that the operator isn't allowed to, or else `other`.
pub fn forbidden_or(error: &kube::Error, other: &'static str) -> &'static str {
    match error {
        kube::Error::Api(status) if is_forbidden(status) => reasons::OPERATOR_FORBIDDEN,
        _ => other,
    }
}

/// Whether waiting won't help: the API server answered, and would answer the same again.
pub fn is_refusal(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if is_final(status))
}

fn is_terminating(status: &Status) -> bool {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    causes.into_iter().any(|cause| cause.reason == "NamespaceTerminating")
}

fn failed(verb: &'static str, kind: Kind, name: &str, source: kube::Error) -> Error {
    match &source {
        kube::Error::Api(status) if is_terminating(status) => Error::NamespaceTerminating,
        _ => Error::Kube {
            verb,
            kind: kind.name(),
            name: name.to_owned(),
            source: Box::new(source),
        },
    }
}

fn api(client: &Client, spec: &Spec, kind: Kind) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), &spec.namespace, &kind.resource())
}

/// What the API server says, without the whole answer around it.
pub fn text(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => chain(other),
    }
}
