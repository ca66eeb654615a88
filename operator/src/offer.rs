//! What a visit has to do with the market: how the rings stand, what they want, and invites for those with open windows.

use std::{collections::BTreeSet, sync::Arc};

use futures::stream::{self, StreamExt as _};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kvasir_market::{
    ClientError,
    types::{ClaimStatus, Demand, InviteRequest},
};
use kvasir_plan::LayerRange;
use kvasir_process::chain;
use kvasir_wire::trust::{NodeKeys, OwnerKey};
use secrecy::ExposeSecret;
use serde_json::Value;

use crate::{
    apply,
    build::{self, Applied, Kind, Resources},
    context::Context,
    dereference::Live,
    market::View,
    names,
    switch::Switch,
    validate::{Spec, Validated},
};

/// Devices that one invite is good for.
const INVITED: u32 = 1000;
/// Seconds that an invite is good for: 90 days.
const INVITE_LASTS: u32 = 90 * 24 * 3600;
/// An invite is made anew when its Secret is so old: 60 days.
const INVITE_RENEWED: SignedDuration = SignedDuration::from_hours(60 * 24);

/// How the rings stand. Nobody asks about rings that sleep.
pub async fn look(context: &Context, validated: &Validated, owner: &Arc<OwnerKey>) -> Vec<View> {
    let spec = &validated.spec;
    if spec.ring.suspend {
        return vec![View::Unasked; spec.replicas() as usize];
    }
    context.markets.look(&spec.relay, owner, &rings(spec, owner)).await
}

/// Puts the rings on the market, or takes them off it when the Ring sleeps, and says how they stand then.
pub async fn offer(
    context: &Context,
    validated: &Validated,
    owner: &Arc<OwnerKey>,
    applied: &Resources<Applied>,
    views: Vec<View>,
    switch: &Switch,
) -> Vec<View> {
    let spec = &validated.spec;
    if spec.ring.suspend {
        return sleep(context, spec, owner, views).await;
    }
    if matches!(switch, Switch::Hold { .. }) {
        return views;
    }
    let mut asked = Vec::new();
    for (demand, view) in applied.demands.iter().zip(views) {
        asked.push(put(context, spec, owner, demand, view));
    }
    let answers: Vec<(bool, View)> = stream::iter(asked).buffered(apply::AT_ONCE).collect().await;
    let changed = answers.iter().any(|(changed, _)| *changed);
    let mut views: Vec<View> = answers.into_iter().map(|(_, view)| view).collect();
    if changed {
        let seen = look(context, validated, owner).await;
        for (view, seen) in views.iter_mut().zip(seen) {
            // what was refused just now says more than that there is no such ring
            if !matches!(view, View::Refused { .. }) {
                *view = seen;
            }
        }
    }
    views
}

/// Puts one ring on the market: whether that changed anything there, and how the ring stands as far as is known.
async fn put(context: &Context, spec: &Spec, owner: &Arc<OwnerKey>, demand: &Demand, view: View) -> (bool, View) {
    if matches!(view, View::Unreachable(_)) {
        return (false, view);
    }
    let left = vacate(context, spec, owner, demand, &view).await;
    match context.markets.publish(&spec.relay, owner, demand, &view).await {
        Ok(published) => (left || published, view),
        Err(error) => {
            tracing::warn!(
                ring = demand.template.ring,
                reason = error.reason(),
                error = chain(&error),
                "the market does not take the ring"
            );
            (left, View::from(error))
        }
    }
}

/// Gives claims back that the cluster's nodes have on windows which `demand` opens, and says whether there were any.
/// Once the market knows it, those nodes are strangers to it: their pods can't give anything back any more, and the
/// windows would be theirs, and count as served, until the leases run out.
async fn vacate(context: &Context, spec: &Spec, owner: &OwnerKey, demand: &Demand, view: &View) -> bool {
    let (ring, ranks) = (&demand.template.ring, &demand.template.ranks);
    let claims = view.status().map(|status| status.claims.as_slice()).unwrap_or_default();
    let is_open = |layers: LayerRange| {
        let mut open = ranks.iter().filter(|rank| rank.placement.is_none());
        open.any(|rank| rank.layers == layers)
    };
    let ours = |claim: &ClaimStatus| {
        if !is_open(claim.layers) {
            return None;
        }
        let node = build::node(owner, ring, claim.layers).ok()?;
        (node.public() == claim.node).then_some((claim.id, node))
    };
    let ours: Vec<(u64, NodeKeys)> = claims.iter().filter_map(ours).collect();
    let mut left = false;
    for (claim, node) in ours {
        match context.markets.leave(&spec.relay, node, ring, claim).await {
            Ok(()) => left = true,
            // the pod was faster, or the lease will run out
            Err(error) => tracing::debug!(ring, error = chain(&error), "a claim was not given back"),
        }
    }
    left
}

async fn sleep(context: &Context, spec: &Spec, owner: &Arc<OwnerKey>, mut views: Vec<View>) -> Vec<View> {
    let rings = rings(spec, owner);
    let awake: Vec<&String> = rings
        .iter()
        .filter(|ring| !context.markets.is_withdrawn(ring))
        .collect();
    if awake.is_empty() {
        return views;
    }
    for ring in awake {
        if let Err(error) = context.markets.withdraw(&spec.relay, owner, ring).await {
            told(ring, &error);
            // it is tried again at the next visit; leases run out meanwhile
            if let Some(view) = views.first_mut() {
                *view = View::from(error);
            }
            return views;
        }
    }
    context.markets.release(owner.public());
    views
}

/// Takes rings off the market that the Ring has no more.
pub async fn withdraw_gone(context: &Context, spec: &Spec, owner: &Arc<OwnerKey>, gone: BTreeSet<u32>) {
    let fingerprint = owner.public().fingerprint();
    let mut asked = Vec::new();
    for ordinal in gone {
        let ring = spec.on_market(ordinal, &fingerprint);
        asked.push(async move {
            let done = context.markets.withdraw(&spec.relay, owner, &ring).await;
            done.map_err(|error| (ring, error))
        });
    }
    let mut answers = stream::iter(asked).buffer_unordered(apply::AT_ONCE);
    while let Some(answer) = answers.next().await {
        // the claims of one that can't be withdrawn run out
        let Err((ring, error)) = answer else { continue };
        told(&ring, &error);
        if error.retryable() {
            // as little would come of the others, and each would be waited for
            return;
        }
    }
}

/// Takes invites away whose ring its market doesn't know: it doesn't know them either, and would refuse who comes with one.
/// Another one is made once the ring is back on the market. Before [`offer`], which puts it there: what is taken away is
/// seen to be missing at any later visit.
///
/// # Errors
/// The Secret can't be deleted.
pub async fn uninvite(context: &Context, spec: &Spec, live: &mut Live, views: &[View]) -> Result<(), apply::Error> {
    for (ordinal, view) in views.iter().enumerate() {
        let name = names::invite(&spec.name, ordinal as u32);
        if matches!(view, View::Absent) && live.get(Kind::Secret, &name).is_some() {
            apply::remove(context, spec, Kind::Secret, &name, live).await?;
            live.objects.remove(&(Kind::Secret, name));
        }
    }
    Ok(())
}

/// Keeps an invite in a Secret for each ring with open windows, so that whoever may read it can invite devices. One that
/// is old, or whose link leads to another relay than the Ring's, is made anew.
///
/// # Errors
/// The Secret can't be written.
pub async fn invite(
    context: &Context,
    validated: &Validated,
    owner: &Arc<OwnerKey>,
    live: &Live,
    views: &[View],
) -> Result<(), apply::Error> {
    let spec = &validated.spec;
    if spec.ring.suspend || !validated.has_open_windows() {
        return Ok(());
    }
    let mut asked = Vec::new();
    for (ordinal, view) in views.iter().enumerate() {
        let ordinal = ordinal as u32;
        let there = live.get(Kind::Secret, &names::invite(&spec.name, ordinal));
        let is_good = there.is_some_and(|secret| is_young(secret) && build::leads_there(spec, secret));
        if view.status().is_some() && !is_good {
            asked.push(invite_to(context, spec, owner, live, ordinal));
        }
    }
    let answers: Vec<_> = stream::iter(asked).buffered(apply::AT_ONCE).collect().await;
    answers.into_iter().collect()
}

/// Makes an invite to one ring, in the place of the one that is there.
async fn invite_to(
    context: &Context,
    spec: &Spec,
    owner: &Arc<OwnerKey>,
    live: &Live,
    ordinal: u32,
) -> Result<(), apply::Error> {
    let request = InviteRequest {
        ring: spec.on_market(ordinal, &owner.public().fingerprint()),
        uses: INVITED,
        expires_in_s: INVITE_LASTS,
    };
    let token = match context.markets.invite(&spec.relay, owner, &request).await {
        Ok(token) => token,
        Err(error) => {
            told(&request.ring, &error);
            return Ok(());
        }
    };
    let Ok(secret) = build::invite(spec, ordinal, owner, token.expose_secret()) else {
        return Ok(());
    };
    if live.get(Kind::Secret, &secret.name).is_some() {
        apply::remove(context, spec, Kind::Secret, &secret.name, live).await?;
    }
    apply::create(context, spec, &secret).await
}

fn is_young(secret: &Value) -> bool {
    let made = secret["metadata"]["creationTimestamp"].as_str();
    let made: Option<Timestamp> = made.and_then(|made| made.parse().ok());
    made.is_some_and(|made| Timestamp::now().duration_since(made) < INVITE_RENEWED)
}

fn rings(spec: &Spec, owner: &OwnerKey) -> Vec<String> {
    let fingerprint = owner.public().fingerprint();
    (0..spec.replicas())
        .map(|ordinal| spec.on_market(ordinal, &fingerprint))
        .collect()
}

fn told(ring: &str, error: &ClientError) {
    tracing::warn!(
        ring,
        reason = error.reason(),
        error = chain(error),
        "the market was not told"
    );
}
