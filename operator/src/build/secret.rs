//! Secrets: the owner's key, a node's keys, an invite.

use std::collections::BTreeMap;

use k8s_openapi::{ByteString, api::core::v1::Secret};
use kvasir_wire::trust::OwnerKey;
use serde_json::Value;

use super::{Error, Kind, Object, Slot, keys, meta, object};
use crate::{
    labels::{self, Labels},
    names,
    validate::Spec,
};

/// Key of a node's keys in its Secret.
pub const NODE_KEY: &str = "node.key";
/// Key of the owner's key in its Secret.
pub const OWNER_KEY: &str = "owner.key";
/// Key of an invite's link in its Secret.
const LINK: &str = "link";

/// The Secret of a new owner's key.
///
/// # Errors
/// [`Error::Json`].
pub fn owner(spec: &Spec, key: &OwnerKey) -> Result<Object, Error> {
    let name = names::owner(&spec.name);
    let labels = labels::of_ring(&spec.name, "owner");
    let secret = secret(spec, &name, labels, [(OWNER_KEY, key.to_text())]);
    object(Kind::Secret, &name, &secret)
}

/// The Secret of an invite to one ring: its parts, and the link that they make.
///
/// # Errors
/// [`Error::Json`].
pub fn invite(spec: &Spec, ordinal: u32, owner: &OwnerKey, token: &str) -> Result<Object, Error> {
    let name = names::invite(&spec.name, ordinal);
    let mut labels = labels::of_ring(&spec.name, "invite");
    labels.insert(labels::ORDINAL.to_owned(), ordinal.to_string());
    let owner = owner.public().to_string();
    let link = format!("{}token={token}&owner={owner}", door(spec));
    let data = [(LINK, link), ("token", token.to_owned()), ("owner", owner)];
    object(Kind::Secret, &name, &secret(spec, &name, labels, data))
}

/// Whether the link of an invite leads to the relay that the Ring has now.
pub fn leads_there(spec: &Spec, invite: &Value) -> bool {
    let secret: Option<Secret> = serde_json::from_value(invite.clone()).ok();
    let link = secret.and_then(|secret| secret.data?.remove(LINK));
    link.is_some_and(|link| link.0.starts_with(door(spec).as_bytes()))
}

/// What the links of invites begin with.
fn door(spec: &Spec) -> String {
    format!("{}/#", spec.relay.trim_end_matches('/'))
}

pub(super) fn node(slot: &Slot<'_>) -> Result<Secret, Error> {
    let keys = keys::node(slot.owner, &slot.manifest.ring, slot.layers)?;
    let data = [(NODE_KEY, keys.to_text())];
    Ok(secret(slot.spec, &slot.name(), slot.labels(), data))
}

fn secret<const N: usize>(spec: &Spec, name: &str, labels: Labels, data: [(&str, String); N]) -> Secret {
    let data = data
        .into_iter()
        .map(|(key, text)| (key.to_owned(), ByteString(text.into_bytes())));
    Secret {
        metadata: meta(spec, name.to_owned(), labels),
        data: Some(data.collect::<BTreeMap<_, _>>()),
        type_: Some("Opaque".to_owned()),
        ..Secret::default()
    }
}
