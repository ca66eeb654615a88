//! What a stage reads: the plan of its ring, its rank in it, and rank 0's chat template.
//!
//! The objects of windows that stay are changed in place when others are cut differently: their pods hold what they have
//! loaded, and a pod that starts again reads where its window is now.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;

use super::{Error, Slot};

/// The plan, a rank manifest in JSON.
pub(super) const PLAN: &str = "plan.json";
/// The rank of the window.
pub(super) const RANK: &str = "rank";
/// Rank 0's chat template.
pub(super) const CHAT_TEMPLATE: &str = "chat-template.jinja";

pub(super) fn plan(slot: &Slot<'_>) -> Result<ConfigMap, Error> {
    let plan = serde_json::to_string(slot.manifest).map_err(|source| Error::Json { what: "a plan", source })?;
    let mut data = BTreeMap::from([(PLAN.to_owned(), plan), (RANK.to_owned(), slot.rank.to_string())]);
    if let Some(template) = chat_template(slot) {
        data.insert(CHAT_TEMPLATE.to_owned(), template.to_owned());
    }
    Ok(ConfigMap {
        metadata: slot.meta(),
        data: Some(data),
        ..ConfigMap::default()
    })
}

/// The template that this window's rank needs.
pub(super) fn chat_template<'a>(slot: &Slot<'a>) -> Option<&'a str> {
    slot.spec
        .ring
        .model
        .chat_template
        .as_deref()
        .filter(|_| slot.is_first())
}
