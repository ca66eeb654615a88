//! Which operator serves a Ring where several could: the one that its annotation names, or else the one that came first,
//! until its Lease has not been renewed for a while. Two that serve the same Ring would undo each other's work for ever.
//!
//! An operator is known by the namespace of its Lease. docs/adr/0007 says why it is done like this.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use k8s_openapi::{api::coordination::v1::Lease, jiff::Timestamp};
use kube::{Api, ResourceExt};
use kvasir_api::{Ring, conditions::reasons};

use crate::{context::Context, events::Note, leader::LEASE, status::pods::since};

/// Annotation of a Ring with the namespace of the operator that is to serve it.
pub const ANNOTATION: &str = "kvasir.dev/operator";
/// An operator whose Lease wasn't renewed for so long is gone: it is longer than an upgrade or the loss of a node takes.
const GONE_AFTER: Duration = Duration::from_secs(300);
/// Rings of others that are remembered.
const KEPT: usize = 4096;

/// Who serves a Ring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    /// this operator, or whoever comes first
    Own,
    /// another one, which the Ring's annotation names
    Named(String),
    /// another one, which came before
    Other(String),
}

/// By Ring's uid: the other operator that was told of last, so that it is told of once.
#[derive(Debug, Default)]
pub struct Told(Mutex<HashMap<String, Holder>>);

impl Told {
    fn is_news(&self, uid: String, holder: &Holder) -> bool {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if told.len() >= KEPT {
            told.clear();
        }
        told.insert(uid, holder.clone()).as_ref() != Some(holder)
    }

    fn forget(&self, uid: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
    }
}

/// Who serves a Ring, by what the Ring itself says to the operator in namespace `own`. Pure.
pub fn holder(ring: &Ring, own: &str) -> Holder {
    if let Some(named) = ring.annotations().get(ANNOTATION) {
        return if named == own {
            Holder::Own
        } else {
            Holder::Named(named.clone())
        };
    }
    match ring.status.as_ref().and_then(|status| status.operator.as_deref()) {
        Some(other) if other != own => Holder::Other(other.to_owned()),
        _ => Holder::Own,
    }
}

/// Whether the operator that had this Lease is gone for good. One without a Lease may be at work all the same. Pure.
pub fn is_gone(lease: Option<&Lease>, now: Timestamp) -> bool {
    let renewed = lease.and_then(|lease| lease.spec.as_ref()?.renew_time.as_ref());
    renewed.is_some_and(|renewed| since(renewed.0, now) > GONE_AFTER)
}

/// What the user reads of a Ring that the operator in namespace `own` leaves alone. Pure.
pub fn words(ring: &str, holder: &Holder, own: &str) -> String {
    match holder {
        Holder::Own => String::new(),
        Holder::Named(named) => format!(
            "the operator in namespace {own} leaves this Ring to the one in namespace {named}, which the annotation \
             {ANNOTATION} names"
        ),
        Holder::Other(other) => format!(
            "the operator in namespace {own} leaves this Ring alone, since the one in namespace {other} serves it: give \
             each its own watchNamespaces, or say which is to serve it: kubectl annotate ring {ring} {ANNOTATION}={own}"
        ),
    }
}

/// Whether another operator serves the Ring, which is told of once.
pub async fn is_others(ring: &Ring, context: &Context) -> bool {
    let own = &context.settings.pod_namespace;
    let (name, uid) = (ring.name_any(), ring.uid().unwrap_or_default());
    let holder = holder(ring, own);
    let is_over = match &holder {
        Holder::Own => true,
        Holder::Named(_) => false,
        Holder::Other(other) => is_over(context, other).await,
    };
    if is_over {
        context.others.forget(&uid);
        return false;
    }
    let conflicts = matches!(holder, Holder::Other(_));
    if conflicts {
        context.metrics.failed(reasons::MANAGED_ELSEWHERE);
    }
    if context.others.is_news(uid, &holder) {
        let text = words(&name, &holder, own);
        tracing::warn!(
            ring = name,
            namespace = ring.namespace(),
            reason = reasons::MANAGED_ELSEWHERE,
            "{text}"
        );
        let note = Note {
            is_warning: conflicts,
            reason: reasons::MANAGED_ELSEWHERE.to_owned(),
            action: "LeaveAlone".to_owned(),
            text,
        };
        context.events.tell(ring, note).await;
    }
    true
}

async fn is_over(context: &Context, other: &str) -> bool {
    let api: Api<Lease> = Api::namespaced(context.client.clone(), other);
    match api.get_opt(LEASE).await {
        Ok(lease) => is_gone(lease.as_ref(), Timestamp::now()),
        // who isn't known to be gone is at work
        Err(error) => {
            tracing::debug!(%error, other, "can't read the other operator's Lease");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{
        api::coordination::v1::LeaseSpec, apimachinery::pkg::apis::meta::v1::MicroTime, jiff::SignedDuration,
    };
    use kvasir_api::RingStatus;

    use super::*;

    fn ring(annotation: Option<&str>, operator: Option<&str>) -> Ring {
        let mut ring: Ring = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "r"},
            "spec": {"model": {"name": "m", "source": {"http": {"url": "http://a/m.gguf"}}}},
        }))
        .unwrap();
        ring.status = Some(RingStatus {
            operator: operator.map(str::to_owned),
            ..RingStatus::default()
        });
        let annotations = annotation.map(|named| [(ANNOTATION.to_owned(), named.to_owned())].into());
        ring.metadata.annotations = annotations;
        ring
    }

    #[test]
    fn the_annotation_decides_and_without_one_who_came_first() {
        let of = |annotation, operator| holder(&ring(annotation, operator), "a");
        assert_eq!(of(None, None), Holder::Own);
        assert_eq!(of(None, Some("a")), Holder::Own);
        assert_eq!(of(None, Some("b")), Holder::Other("b".into()));
        assert_eq!(of(Some("a"), Some("b")), Holder::Own);
        assert_eq!(of(Some("b"), Some("a")), Holder::Named("b".into()));
    }

    #[test]
    fn an_operator_is_gone_when_its_lease_is_old_and_not_when_it_has_none() {
        let now = Timestamp::UNIX_EPOCH + SignedDuration::from_hours(1);
        let renewed = |seconds| Lease {
            spec: Some(LeaseSpec {
                renew_time: Some(MicroTime(now - SignedDuration::from_secs(seconds))),
                ..LeaseSpec::default()
            }),
            ..Lease::default()
        };
        assert!(!is_gone(None, now));
        assert!(!is_gone(Some(&Lease::default()), now));
        assert!(!is_gone(Some(&renewed(60)), now), "an upgrade takes that long");
        assert!(is_gone(Some(&renewed(301)), now));
    }

    #[test]
    fn what_is_left_alone_is_told_once_for_each_other_operator() {
        let told = Told::default();
        let other = |name: &str| Holder::Other(name.into());
        let news: Vec<bool> = [other("b"), other("b"), other("c")]
            .iter()
            .map(|holder| told.is_news("u".into(), holder))
            .collect();
        assert_eq!(news, [true, false, true]);
        told.forget("u");
        assert!(told.is_news("u".into(), &other("c")));
    }
}
