//! How the edge into a rank is reached: directly where both ends are on one network, else over a relay.

use kvasir_plan::Link;

use crate::types::Reach;

/// The direct link from one stage to the next, if the next can be dialled and both name the same network.
pub(super) fn direct(from: &Reach, to: &Reach) -> Option<Link> {
    let address = to.address.clone()?;
    (to.network.is_some() && from.network == to.network).then_some(Link::Direct { address })
}

/// The link over one of the live relays. Both ends and every market choose the same one, edges spread over all, and
/// only the edges of a relay that goes move (rendezvous hashing).
pub(super) fn relayed(ring: &str, edge: u32, relays: &[String]) -> Option<Link> {
    let weight = |relay: &&String| {
        let mut hash = blake3::Hasher::new_derive_key("kvasir relay of an edge v1");
        hash.update(&(ring.len() as u64).to_le_bytes());
        hash.update(ring.as_bytes());
        hash.update(&edge.to_le_bytes());
        hash.update(relay.as_bytes());
        *hash.finalize().as_bytes()
    };
    let relay = relays.iter().max_by_key(weight)?;
    Some(Link::Relayed { url: relay.clone() })
}

/// The relay of a link, if it has one.
pub(super) fn relay_of(link: &Link) -> Option<&str> {
    match link {
        Link::Direct { .. } => None,
        Link::Relayed { url } => Some(url),
    }
}
