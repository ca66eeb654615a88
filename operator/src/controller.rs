//! The loop: each Ring that changed, whose children changed, or whose time has come is visited, step after step.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{StreamExt, future::join_all};
use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret, Service},
    },
    jiff::Timestamp,
};
use kube::{
    Api, Resource as _, ResourceExt,
    api::{Patch, PatchParams},
    core::{DeserializeGuard, NamespaceResourceScope},
    runtime::{
        Controller,
        controller::{self, Action, Config},
        reflector::ObjectRef,
        watcher,
    },
};
use kvasir_api::{
    Ring, RingStatus,
    conditions::{ACCEPTED, MODEL_RESOLVED},
};
use kvasir_process::chain;
use kvasir_wire::trust::{KeyError, OwnerKey};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::{
    apply::{self, changes},
    build,
    context::Context,
    dereference::{self, ModelError, dereference},
    holder, labels,
    market::View,
    offer, release, status,
    status::Observed,
    switch::switch,
    validate,
};

/// Rings that are visited at the same time.
const AT_ONCE: u16 = 8;
/// Changes that come so soon after each other are one visit.
const DEBOUNCE: Duration = Duration::from_millis(100);

/// Until the next visit of a Ring that is on its way.
const FORMING: Duration = Duration::from_secs(5);
/// Until the next visit of a Ring that is ready.
const SETTLED: Duration = Duration::from_secs(15);
/// Until the next visit of a Ring whose children were refused.
const REFUSED: Duration = Duration::from_secs(30);
/// Until the next visit of a Ring that sleeps.
const ASLEEP: Duration = Duration::from_secs(300);

/// Why a visit failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// the object is no Ring by this operator's definition
    #[error("the Ring can't be read: {0}")]
    Malformed(String),
    /// the Ring can't be served as it is
    #[error(transparent)]
    Invalid(#[from] validate::Error),
    /// what the Ring names can't be read
    #[error(transparent)]
    Dereference(#[from] dereference::Error),
    /// the model can't be read
    #[error(transparent)]
    Model(#[from] ModelError),
    /// no new owner
    #[error("can't make the owner's key")]
    Key(#[from] KeyError),
    /// the children can't be built
    #[error(transparent)]
    Build(#[from] build::Error),
    /// the children can't be applied
    #[error(transparent)]
    Apply(#[from] apply::Error),
    /// the Ring's own object can't be written
    #[error("can't write the Ring's {what}: {}", apply::text(.source))]
    Write {
        /// `status` or `finalizers`
        what: &'static str,
        /// why
        source: Box<kube::Error>,
    },
}

impl Error {
    /// Stable `PascalCase` word for metrics, events and conditions.
    pub fn reason(&self) -> &'static str {
        match self {
            Error::Malformed(_) => "InvalidSpec",
            Error::Invalid(error) => error.reason(),
            Error::Dereference(error) => error.reason(),
            Error::Model(error) => error.reason(),
            Error::Key(error) => error.reason(),
            Error::Build(error) => error.reason(),
            Error::Apply(error) => error.reason(),
            Error::Write { .. } => "WriteFailed",
        }
    }

    /// Whether it keeps the operator from its work, is told in no condition yet, and stays until somebody does something.
    fn hinders(&self) -> bool {
        match self {
            Error::Key(_) | Error::Build(_) | Error::Dereference(dereference::Error::OwnerKey { .. }) => true,
            Error::Dereference(dereference::Error::Kube { source, .. })
            | Error::Apply(apply::Error::Kube { source, .. })
            | Error::Write { source, .. } => apply::is_refusal(source),
            Error::Malformed(_) | Error::Invalid(_) | Error::Model(_) | Error::Apply(_) => false,
        }
    }

    /// What the user reads.
    fn words(&self) -> String {
        match self {
            // they quote the API server already
            Error::Dereference(_) | Error::Apply(_) | Error::Write { .. } => self.to_string(),
            error => chain(error),
        }
    }

    /// Whether only a change of the Ring helps.
    fn awaits_change(&self) -> bool {
        matches!(self, Error::Malformed(_) | Error::Invalid(_))
    }
}

/// Visits Rings until `shutdown`; visits that have begun are ended.
pub async fn run(context: Arc<Context>, shutdown: CancellationToken) {
    let namespaces = context.settings.namespaces();
    let scopes: Vec<Option<&str>> = if namespaces.is_empty() {
        vec![None]
    } else {
        namespaces.into_iter().map(Some).collect()
    };
    let loops = scopes
        .into_iter()
        .map(|namespace| watch(context.clone(), namespace, shutdown.clone()));
    join_all(loops).await;
}

async fn watch(context: Arc<Context>, namespace: Option<&str>, shutdown: CancellationToken) {
    let ours = || watcher::Config::default().labels(&labels::managed());
    let client = &context.client;
    let rings: Api<DeserializeGuard<Ring>> = api(client, namespace);
    let controller = Controller::new(rings, watcher::Config::default().any_semantic());
    context.newest.watch(namespace, controller.store());
    let visits = controller
        .owns(api::<Deployment>(client, namespace), ours())
        .owns(api::<Service>(client, namespace), ours())
        .owns(api::<ConfigMap>(client, namespace), ours())
        .owns(api::<Secret>(client, namespace), ours())
        .owns(api::<PersistentVolumeClaim>(client, namespace), ours())
        .watches(api::<Pod>(client, namespace), ours(), ring_of)
        .with_config(Config::default().concurrency(AT_ONCE).debounce(DEBOUNCE))
        .graceful_shutdown_on(async move { shutdown.cancelled().await })
        .run(visited, after_failure, context.clone());
    // all at a time: while one is waited for, no visit goes on
    visits
        .for_each_concurrent(None, |visit| {
            let context = context.clone();
            async move {
                match visit {
                    Ok(_) => {}
                    // its children's end, or a visit that was due, tells of a Ring that has no finalizer
                    Err(controller::Error::ObjectNotFound(ring)) => {
                        release::gone(&ring.name, &ring.namespace.unwrap_or_default(), &context).await;
                    }
                    Err(controller::Error::QueueError(error)) => {
                        tracing::warn!(error = chain(&error), "a watch failed");
                    }
                    // it was told where it failed
                    Err(error) => tracing::debug!(error = chain(&error), "a visit failed"),
                }
            }
        })
        .await;
}

fn api<K>(client: &kube::Client, namespace: Option<&str>) -> Api<K>
where
    K: kube::Resource<Scope = NamespaceResourceScope>,
    K::DynamicType: Default,
{
    match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    }
}

/// The Ring whose stage a pod runs.
#[allow(clippy::needless_pass_by_value, reason = "the signature is kube's")]
fn ring_of(pod: Pod) -> Option<ObjectRef<DeserializeGuard<Ring>>> {
    let ring = pod.labels().get(labels::RING)?;
    let namespace = pod.metadata.namespace.as_deref()?;
    Some(ObjectRef::new(ring).within(namespace))
}

async fn visited(ring: Arc<DeserializeGuard<Ring>>, context: Arc<Context>) -> Result<Action, Error> {
    let begun = Instant::now();
    let visit = async {
        let ring = match &ring.0 {
            Ok(ring) => ring,
            Err(invalid) => {
                release::abandon(&invalid.metadata, &context).await?;
                return Err(Error::Malformed(invalid.error.clone()));
            }
        };
        let done = visit(ring, &context).await;
        if let Err(error) = &done
            && error.hinders()
        {
            tell(ring, &context, error).await;
        }
        done
    };
    let done = visit.await;
    context.metrics.visited(begun.elapsed());
    if done.is_ok() {
        context.pauses.forget(ring.meta().uid.as_deref().unwrap_or_default());
    }
    done
}

/// Says in the Ring's conditions what keeps the operator from its work.
async fn tell(ring: &Ring, context: &Context, error: &Error) {
    let old = ring.status.clone().unwrap_or_default();
    let (generation, now) = (ring.meta().generation, Timestamp::now());
    let new = status::hindered(&old, generation, now, error.reason(), &error.words());
    if let Err(unwritten) = write(ring, context, &old, new).await {
        tracing::debug!(error = unwritten.words(), "what hinders can't be told");
    }
}

#[allow(clippy::needless_pass_by_value, reason = "the signature is kube's")]
fn after_failure(ring: Arc<DeserializeGuard<Ring>>, error: &Error, context: Arc<Context>) -> Action {
    let (name, namespace) = (ring.name_any(), ring.namespace().unwrap_or_default());
    if matches!(error, Error::Apply(apply::Error::Superseded)) {
        tracing::debug!(ring = name, namespace, "the Ring has changed meanwhile");
        return Action::requeue(Duration::ZERO);
    }
    context.metrics.failed(error.reason());
    let text = error.words();
    if error.awaits_change() {
        tracing::warn!(
            ring = name,
            namespace,
            reason = error.reason(),
            error = text,
            "the Ring can't be served"
        );
        return Action::await_change();
    }
    if matches!(error, Error::Apply(apply::Error::NamespaceTerminating)) {
        // the namespace's end is the Ring's, and takes no words
        tracing::debug!(ring = name, namespace, "the namespace is being deleted");
        return Action::requeue(ASLEEP);
    }
    let pause = context.pauses.failed(ring.meta().uid.as_deref().unwrap_or_default());
    tracing::warn!(
        ring = name,
        namespace,
        reason = error.reason(),
        error = text,
        ?pause,
        "the visit failed"
    );
    Action::requeue(pause)
}

/// One visit, from what the Ring names to its status.
async fn visit(ring: &Ring, context: &Context) -> Result<Action, Error> {
    if holder::is_others(ring, context).await {
        return Ok(Action::requeue(REFUSED));
    }
    if ring.meta().deletion_timestamp.is_some() {
        return release::release(ring, context).await;
    }
    let old = ring.status.clone().unwrap_or_default();
    let generation = ring.meta().generation;
    if let Some(first) = status::first(&old, generation, Timestamp::now()) {
        write(ring, context, &old, first).await?;
        // its own event brings the Ring back, with its first status
        return Ok(Action::requeue(FORMING));
    }
    if is_taken_over(&old, context) {
        write(ring, context, &old, old.clone()).await?;
        return Ok(Action::requeue(FORMING));
    }
    let stopped = |type_: &str, reason: &str, message: String| {
        status::stopped(&old, generation, Timestamp::now(), type_, reason, &message)
    };
    let spec = match validate::spec(ring, &context.settings) {
        Ok(spec) => spec,
        Err(error) => {
            write(ring, context, &old, stopped(ACCEPTED, error.reason(), chain(&error))).await?;
            return Err(error.into());
        }
    };
    let mut found = dereference(context, &spec).await?;
    let profile = match found.profile {
        Ok(profile) => profile,
        Err(error) if error.is_pending() => {
            let resolving = status::resolving(&old, generation, Timestamp::now(), &error.words());
            write(ring, context, &old, resolving).await?;
            return Ok(Action::requeue(FORMING));
        }
        Err(error) => {
            write(
                ring,
                context,
                &old,
                stopped(MODEL_RESOLVED, error.reason(), error.words()),
            )
            .await?;
            return Err(error.into());
        }
    };
    let validated = match validate::plan(spec.clone(), profile.clone()) {
        Ok(validated) => validated,
        Err(error) => {
            let (reason, message) = (error.reason(), chain(&error));
            let unplanned = status::unplanned(&old, generation, Timestamp::now(), &profile, reason, &message);
            write(ring, context, &old, unplanned).await?;
            return Err(error.into());
        }
    };
    release::hold(ring, context).await?;
    let owner = match found.owner {
        Some(owner) => Arc::new(owner),
        None => {
            let owner = OwnerKey::generate()?;
            let made = apply::create(context, &spec, &build::owner(&spec, &owner)?).await;
            if let Err(error @ apply::Error::NameInUse { .. }) = &made {
                write(ring, context, &old, stopped(ACCEPTED, error.reason(), chain(error))).await?;
            }
            made?;
            Arc::new(owner)
        }
    };
    let prepared = build::build(&validated, &owner)?;
    let views = offer::look(context, &validated, &owner).await;
    let switch = switch(&validated, &views, &found.live, Timestamp::now());
    let changes = changes(&prepared, &found.live, &spec, &switch);
    offer::withdraw_gone(context, &spec, &owner, apply::gone(&changes, &found.live, &spec)).await;
    let is_current = || context.newest.is_current(ring);
    let (applied, refused) = apply::apply(context, &spec, prepared, &found.live, &changes, is_current).await?;
    offer::uninvite(context, &spec, &mut found.live, &views).await?;
    let views = offer::offer(context, &validated, &owner, &applied, views, &switch).await;
    offer::invite(context, &validated, &owner, &found.live, &views).await?;
    let definition = context.definition.borrow().clone();
    let new = status::status(
        &Observed {
            old: &old,
            generation,
            now: Timestamp::now(),
            validated: &validated,
            live: &found.live,
            views: &views,
            switch: &switch,
            refused: &refused,
            definition: definition.as_deref(),
        },
        &applied,
    );
    let is_ready = new.ready_replicas == new.replicas;
    write(ring, context, &old, new).await?;
    Ok(Action::requeue(if !refused.is_empty() {
        REFUSED
    } else if spec.ring.suspend && views.iter().all(|view| matches!(view, View::Unasked)) {
        ASLEEP
    } else if is_ready || spec.ring.suspend {
        SETTLED
    } else {
        FORMING
    }))
}

/// Whether another operator served the Ring before.
fn is_taken_over(old: &RingStatus, context: &Context) -> bool {
    old.operator.is_some() && signs(context).is_some_and(|own| old.operator.as_ref() != Some(own))
}

/// By what name this operator signs statuses. None where a definition of another version is served, which may not hold the
/// field: it would be missing at each visit.
fn signs(context: &Context) -> Option<&String> {
    let fits = context.definition.borrow().is_none();
    fits.then_some(&context.settings.pod_namespace)
}

/// Writes the status as this operator's, if it is another one than before, and tells of what turned.
async fn write(ring: &Ring, context: &Context, old: &RingStatus, mut new: RingStatus) -> Result<(), Error> {
    if let Some(own) = signs(context) {
        new.operator = Some(own.clone());
    }
    if *old == new {
        return Ok(());
    }
    let mut metadata = json!({"name": ring.name_any()});
    if old.operator != new.operator {
        // refused where another operator was faster
        metadata["resourceVersion"] = json!(ring.resource_version());
    }
    let api: Api<Ring> = Api::namespaced(context.client.clone(), &ring.namespace().unwrap_or_default());
    let patch = json!({
        "apiVersion": kvasir_api::API_VERSION,
        "kind": kvasir_api::KIND,
        "metadata": metadata,
        "status": new,
    });
    let (params, patch) = if signs(context).is_some() {
        (PatchParams::apply(labels::MANAGER).force(), Patch::Apply(&patch))
    } else {
        // an API server refuses to apply what its definition doesn't hold, and leaves it out of what is merged
        let params = PatchParams {
            field_manager: Some(labels::MANAGER.to_owned()),
            ..PatchParams::default()
        };
        (params, Patch::Merge(&patch))
    };
    context.metrics.wrote(kvasir_api::KIND, "status");
    match api.patch_status(&ring.name_any(), &params, &patch).await {
        Ok(_) => {}
        // it is gone
        Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
        Err(source) => {
            return Err(Error::Write {
                what: "status",
                source: Box::new(source),
            });
        }
    }
    context.events.turned(ring, &old.conditions, &new.conditions).await;
    Ok(())
}
