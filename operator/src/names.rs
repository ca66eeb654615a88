//! Names of a Ring's children: the same for the same Ring and window, and never too long.
//!
//! A window's objects are named by its layers and not by its rank, so that a window that stays keeps them when others are
//! cut differently.

use kvasir_plan::LayerRange;

/// Longest label value, and longest name of a Service.
pub const MAX_LABEL: usize = 63;
/// Longest name of a Deployment: its `ReplicaSet` adds 11 characters and a pod 6, and a pod's name is its host name.
pub const MAX_WORKLOAD: usize = MAX_LABEL - 17;
/// Digits of the hash in a name that was cut.
const HASH_DIGITS: usize = 8;

/// `ring-suffix`, or, where that has more than `max` characters, as much of the ring as fits, a hash of the whole, and
/// the suffix.
pub fn child(ring: &str, suffix: &str, max: usize) -> String {
    let whole = format!("{ring}-{suffix}");
    if whole.len() <= max {
        return whole;
    }
    let hash = short_hash(&whole);
    // two dashes and the hash
    let rest = max.saturating_sub(HASH_DIGITS + 2);
    match rest.checked_sub(suffix.len()) {
        Some(room) if room > 0 => format!("{}-{hash}-{suffix}", cut(ring, room)),
        _ => format!("{}-{hash}", cut(&whole, max.saturating_sub(HASH_DIGITS + 1))),
    }
}

/// Name of all objects of one window of one ring.
pub fn stage(ring: &str, ordinal: u32, layers: LayerRange) -> String {
    child(
        ring,
        &format!("{ordinal}-{}-{}", layers.start, layers.end),
        MAX_WORKLOAD,
    )
}

/// Name of the Secret with the owner's key.
pub fn owner(ring: &str) -> String {
    child(ring, "owner", MAX_LABEL)
}

/// Name of the Secret with the invite to one ring.
pub fn invite(ring: &str, ordinal: u32) -> String {
    child(ring, &format!("{ordinal}-invite"), MAX_LABEL)
}

/// Name of the Job that reads a model's prefix off a volume.
pub fn reader(ring: &str) -> String {
    child(ring, "reader", MAX_WORKLOAD)
}

/// The ring's name on the market. No two Rings of any cluster share it: an owner's fingerprint is in it, and a Ring that is
/// made again has another owner.
pub fn on_market(namespace: &str, ring: &str, ordinal: u32, owner_fingerprint: &str) -> String {
    let owner: String = owner_fingerprint.chars().take(HASH_DIGITS).collect();
    format!("{namespace}.{ring}.{ordinal}.{owner}")
}

/// What the names of all rings of a Ring on the market begin with.
pub fn all_on_market(namespace: &str, ring: &str) -> String {
    format!("{namespace}.{ring}.")
}

/// 16 hex digits that stand for a text.
pub fn digest(text: &[u8]) -> String {
    blake3::hash(text).to_hex()[..16].to_owned()
}

fn short_hash(text: &str) -> String {
    blake3::hash(text.as_bytes()).to_hex()[..HASH_DIGITS].to_owned()
}

/// The beginning of a name, without a dash at its end.
fn cut(name: &str, length: usize) -> &str {
    let end = name.char_indices().nth(length).map_or(name.len(), |(at, _)| at);
    name[..end].trim_end_matches('-')
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn is_dns_label(name: &str) -> bool {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        name.len() <= MAX_LABEL
            && name.starts_with(|c: char| c.is_ascii_lowercase())
            && !name.ends_with('-')
            && name.chars().all(plain)
    }

    #[test]
    fn short_names_are_kept_whole() {
        let layers = LayerRange { start: 10, end: 20 };
        assert_eq!(stage("smollm2", 0, layers), "smollm2-0-10-20");
        assert_eq!(owner("smollm2"), "smollm2-owner");
        assert_eq!(
            on_market("models", "smollm2", 1, "0123456789abcdef"),
            "models.smollm2.1.01234567"
        );
    }

    #[test]
    fn e2_long_names_with_the_same_beginning_do_not_collide() {
        let layers = LayerRange { start: 100, end: 110 };
        let first = stage("a-ring-with-a-name-of-forty-characters-x", 12, layers);
        let second = stage("a-ring-with-a-name-of-forty-characters-y", 12, layers);
        assert_ne!(first, second);
        assert!(first.ends_with("-12-100-110"), "{first}");
        assert!(first.len() <= MAX_WORKLOAD);
    }

    #[test]
    fn e2_names_that_no_ring_may_have_are_cut_all_the_same() {
        for length in [30, 42, 52, 53, 63, 253] {
            let ring = format!("r{}", "x".repeat(length - 1));
            assert!(is_dns_label(&owner(&ring)), "{length}");
            let name = child(&ring, &"s".repeat(100), MAX_LABEL);
            assert!(is_dns_label(&name), "{name}");
        }
    }

    proptest! {
        #[test]
        fn names_are_labels_and_belong_to_one_window(
            windows in proptest::collection::hash_set(
                ("[a-z]([-a-z0-9]{0,38}[a-z0-9])?", 0u32..64, 0u32..512, 1u32..512), 2..20)
        ) {
            let mut seen = HashMap::new();
            for (ring, ordinal, start, length) in windows {
                let layers = LayerRange { start, end: start + length };
                let name = stage(&ring, ordinal, layers);
                prop_assert!(is_dns_label(&name), "{name}");
                prop_assert!(name.len() <= MAX_WORKLOAD);
                prop_assert_eq!(&name, &stage(&ring, ordinal, layers));
                let before = seen.insert(name.clone(), (ring, ordinal, layers));
                prop_assert!(before.is_none(), "{name} is also {before:?}");
            }
        }
    }
}
