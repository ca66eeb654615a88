//! The finalizer, which is there for what lives outside the cluster: rings on the market. It never keeps a Ring for long.
//! Where the operator may go before a Ring does, there is none: it would hold the namespace for ever.

use std::{sync::Arc, time::Duration};

use futures::future::join_all;
use k8s_openapi::{api::core::v1::Secret, jiff::Timestamp};
use kube::{
    Api, ResourceExt,
    api::{ApiResource, DynamicObject, ObjectMeta, Patch, PatchParams},
    runtime::controller::Action,
};
use kvasir_api::Ring;
use kvasir_process::chain;
use kvasir_wire::trust::OwnerKey;
use serde_json::json;

use crate::{build::OWNER_KEY, context::Context, controller::Error, names, status::pods::since, validate};

/// The finalizer.
pub const FINALIZER: &str = "kvasir.dev/release-claims";

/// A market that doesn't answer is asked for so long; then its leases run out by themselves.
const PATIENCE: Duration = Duration::from_secs(30);
/// Between two tries.
const AGAIN: Duration = Duration::from_secs(5);
/// A try ends after this long, however many rings there are.
const TRY: Duration = Duration::from_secs(10);

/// Sees that the Ring has the finalizer before anything of it is on a market.
///
/// # Errors
/// [`Error::Write`].
pub async fn hold(ring: &Ring, context: &Context) -> Result<(), Error> {
    if !context.settings.outlives(&ring.namespace().unwrap_or_default()) {
        return Ok(());
    }
    if ring.finalizers().iter().any(|known| known == FINALIZER) {
        return Ok(());
    }
    let mut finalizers = ring.finalizers().to_vec();
    finalizers.push(FINALIZER.to_owned());
    write(&ring.metadata, context, &finalizers).await
}

/// Lets a Ring go that can't be read: nobody knows what of it is on which market, and claims run out by themselves.
///
/// # Errors
/// [`Error::Write`].
pub async fn abandon(metadata: &ObjectMeta, context: &Context) -> Result<(), Error> {
    let finalizers = metadata.finalizers.as_deref().unwrap_or_default();
    if metadata.deletion_timestamp.is_none() || !finalizers.iter().any(|known| known == FINALIZER) {
        return Ok(());
    }
    write(metadata, context, &without(finalizers)).await
}

/// Takes what is left of a Ring that went without a finalizer off its market, as far as this process put it there.
pub async fn gone(name: &str, namespace: &str, context: &Context) {
    let rings = names::all_on_market(namespace, name);
    if tokio::time::timeout(TRY, context.markets.withdraw_all(&rings))
        .await
        .is_err()
    {
        tracing::debug!(ring = name, namespace, "the market does not answer; claims run out");
    }
}

/// Takes the rings of a Ring that is being deleted off the market, and lets it go: when that is done, when it can't be
/// done, or when it has been tried for long enough.
///
/// # Errors
/// [`Error::Write`] when the finalizer can't be taken off.
pub async fn release(ring: &Ring, context: &Context) -> Result<Action, Error> {
    if !ring.finalizers().iter().any(|known| known == FINALIZER) {
        return Ok(Action::await_change());
    }
    let asked = ring.metadata.deletion_timestamp.as_ref().map(|asked| asked.0);
    let is_over = asked.is_none_or(|asked| since(asked, Timestamp::now()) >= PATIENCE);
    if !withdrawn(ring, context).await && !is_over {
        return Ok(Action::requeue(AGAIN));
    }
    write(&ring.metadata, context, &without(ring.finalizers())).await?;
    context.pauses.forget(&ring.uid().unwrap_or_default());
    tracing::info!(
        ring = ring.name_any(),
        namespace = ring.namespace(),
        "the Ring is let go"
    );
    Ok(Action::await_change())
}

/// Whether nothing of the Ring is on a market any more, as far as can be done about it.
async fn withdrawn(ring: &Ring, context: &Context) -> bool {
    let (name, namespace) = (ring.name_any(), ring.namespace().unwrap_or_default());
    // without the owner's key nobody can withdraw: the namespace may have taken it already
    let Some(owner) = owner(context, &name, &namespace).await else {
        return true;
    };
    let Some(relay) = validate::relay(ring.spec.relay.as_ref(), &namespace, &context.settings) else {
        return true;
    };
    let told = ring.status.as_ref().map_or(0, |status| status.rings.len());
    let count = told.max(usize::try_from(ring.spec.replicas).unwrap_or(0)) as u32;
    let fingerprint = owner.public().fingerprint();
    let rings: Vec<String> = (0..count)
        .map(|ordinal| names::on_market(&namespace, &name, ordinal, &fingerprint))
        .collect();
    let withdraw = |market: &str| {
        let (owner, relay, market) = (owner.clone(), relay.clone(), market.to_owned());
        async move { context.markets.withdraw(&relay, &owner, &market).await }
    };
    let all = join_all(rings.iter().map(|market| withdraw(market)));
    let Ok(ended) = tokio::time::timeout(TRY, all).await else {
        return false;
    };
    let failed: Vec<_> = ended.into_iter().filter_map(Result::err).collect();
    for error in &failed {
        tracing::debug!(
            ring = name,
            namespace,
            error = chain(error),
            "the ring is not off its market"
        );
    }
    // what the market refuses once it refuses again
    let done = failed.iter().all(|error| !error.retryable());
    if done {
        context.markets.forget(owner.public(), &rings);
    }
    done
}

async fn owner(context: &Context, ring: &str, namespace: &str) -> Option<Arc<OwnerKey>> {
    let api: Api<Secret> = Api::namespaced(context.client.clone(), namespace);
    let secret = api.get_opt(&names::owner(ring)).await.ok()??;
    let text = String::from_utf8(secret.data?.remove(OWNER_KEY)?.0).ok()?;
    OwnerKey::from_text(&text).map(Arc::new)
}

fn without(finalizers: &[String]) -> Vec<String> {
    let others = finalizers.iter().filter(|known| *known != FINALIZER);
    others.cloned().collect()
}

async fn write(metadata: &ObjectMeta, context: &Context, finalizers: &[String]) -> Result<(), Error> {
    let namespace = metadata.namespace.as_deref().unwrap_or_default();
    let name = metadata.name.as_deref().unwrap_or_default();
    let resource = ApiResource::erase::<Ring>(&());
    // untyped, so that a Ring which can't be read can be let go
    let api: Api<DynamicObject> = Api::namespaced_with(context.client.clone(), namespace, &resource);
    // refused when another writer changed the list meanwhile
    let patch = json!({"metadata": {"finalizers": finalizers, "resourceVersion": metadata.resource_version}});
    context.metrics.wrote(kvasir_api::KIND, "finalizers");
    match api.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(source) => Err(Error::Write {
            what: "finalizers",
            source: Box::new(source),
        }),
    }
}
