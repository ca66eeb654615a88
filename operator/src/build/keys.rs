//! Keys of the cluster's nodes.
//!
//! They are derived from the owner's key: building stays pure, a Secret that was deleted comes back as it was, and a
//! replaced pod is the same node. One leads to no other, nor back to the owner's.

use kvasir_plan::LayerRange;
use kvasir_wire::trust::{NodeKeys, OwnerKey};

use super::Error;

const SIGNING: &str = "kvasir operator: ed25519 key of a window's node, v1";
const NOISE: &str = "kvasir operator: x25519 key of a window's node, v1";

/// The node of one window of a ring.
///
/// # Errors
/// [`Error::Key`].
pub fn node(owner: &OwnerKey, ring: &str, layers: LayerRange) -> Result<NodeKeys, Error> {
    let material = format!("{}\0{ring}\0{layers}", owner.to_text());
    let derive = |context| blake3::Hash::from_bytes(blake3::derive_key(context, material.as_bytes())).to_hex();
    let text = format!(
        "{{\"ed25519\":\"{}\",\"x25519\":\"{}\"}}",
        derive(SIGNING),
        derive(NOISE)
    );
    NodeKeys::from_text(&text).ok_or(Error::Key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_window_of_each_ring_has_a_node_of_its_own_which_stays() {
        let owner = OwnerKey::generate().unwrap();
        let key = |owner: &OwnerKey, ring: &str, start, end| node(owner, ring, LayerRange { start, end }).unwrap();
        let first = key(&owner, "a", 0, 10);
        assert_eq!(first.to_text(), key(&owner, "a", 0, 10).to_text());
        let other_owner = OwnerKey::generate().unwrap();
        for other in [
            key(&owner, "a", 10, 20),
            key(&owner, "b", 0, 10),
            key(&other_owner, "a", 0, 10),
        ] {
            assert_ne!(first.public(), other.public());
            assert_ne!(first.noise_public(), other.noise_public());
        }
    }
}
