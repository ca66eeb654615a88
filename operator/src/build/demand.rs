//! What the market is asked for: the windows of one ring, and the nodes that the cluster's are kept for.

use std::collections::BTreeMap;

use kvasir_market::types::Demand;
use kvasir_plan::RankManifest;
use kvasir_wire::trust::OwnerKey;

use super::{Error, keys};
use crate::validate::Validated;

pub(super) fn demand(validated: &Validated, template: RankManifest, owner: &OwnerKey) -> Result<Demand, Error> {
    let mut reserved = BTreeMap::new();
    for (rank, planned) in validated.cluster_ranks() {
        let node = keys::node(owner, &template.ring, planned.layers)?;
        reserved.insert(rank as u32, node.public());
    }
    let last = (template.ranks.len() as u32).saturating_sub(1);
    let delegation = reserved
        .get(&0)
        .map(|rank0| owner.delegate(template.ring.as_str(), *rank0));
    let lease = validated.spec.ring.market().claim_timeout_seconds;
    Ok(Demand {
        source: validated.spec.source.for_market(),
        delegations: delegation.into_iter().collect(),
        trusted_ends: reserved.contains_key(&0) && reserved.contains_key(&last),
        template,
        reserved,
        queued: None,
        lease_s: Some(lease.max(0).unsigned_abs()),
    })
}
