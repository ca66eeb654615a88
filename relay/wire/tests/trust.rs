//! A stage takes a manifest only when every signature holds, from the ring's owner down to the holders' Noise keys.

#![allow(clippy::unwrap_used, reason = "tests end at the first surprise")]

use kvasir_plan::{BoundaryType, LayerRange, Link, ModelRef, Rank, RankManifest};
use kvasir_wire::trust::{
    Delegation, KeyError, NodeKeys, OwnerKey, PublicKey, SignedManifest, TrustError, noise_key, verify_holder,
};

struct Ring {
    owner: OwnerKey,
    nodes: [NodeKeys; 2],
}

impl Ring {
    fn new() -> Ring {
        let nodes = [NodeKeys::generate().unwrap(), NodeKeys::generate().unwrap()];
        Ring {
            owner: OwnerKey::generate().unwrap(),
            nodes,
        }
    }

    fn manifest(&self, epoch: u64) -> RankManifest {
        let rank = |index: u32| Rank {
            layers: LayerRange {
                start: index * 4,
                end: index * 4 + 4,
            },
            bytes: 1,
            memory: 2,
            placement: None,
            holder: Some(self.nodes[index as usize].holder(
                "one",
                Link::Direct {
                    address: "127.0.0.1:1".into(),
                },
            )),
        };
        RankManifest {
            ring: "ring".into(),
            epoch,
            model: ModelRef {
                name: "model".into(),
                architecture: "llama".into(),
                identity: "id".into(),
                embedding_length: 64,
                layers: 8,
                vocabulary: 100,
                prefix_bytes: Vec::new(),
            },
            boundary_type: BoundaryType::Bf16,
            exact: false,
            context_length: 512,
            sequences: 4,
            max_laps: 2,
            max_lap_tokens: 64,
            ranks: vec![rank(0), rank(1)],
        }
    }

    fn delegation(&self) -> Delegation {
        self.owner.delegate("ring", self.nodes[0].public())
    }

    fn sign(&self, manifest: &RankManifest) -> SignedManifest {
        SignedManifest::sign(manifest, &self.nodes[0], self.delegation()).unwrap()
    }

    fn verify(&self, signed: &SignedManifest) -> Result<RankManifest, TrustError> {
        signed.verify(&self.owner.public(), "ring", 5)
    }
}

#[test]
fn a_manifest_signed_down_from_the_owner_is_taken_also_after_a_trip_as_json() {
    let ring = Ring::new();
    for epoch in [5, 6] {
        let manifest = ring.manifest(epoch);
        let json = serde_json::to_string(&ring.sign(&manifest)).unwrap();
        let signed: SignedManifest = serde_json::from_str(&json).unwrap();
        assert_eq!(ring.verify(&signed).unwrap(), manifest);
    }
}

#[test]
fn an_unsigned_manifest_is_refused() {
    let ring = Ring::new();
    let signed = SignedManifest {
        signature: None,
        ..ring.sign(&ring.manifest(5))
    };
    assert!(matches!(ring.verify(&signed), Err(TrustError::Unsigned)));
}

#[test]
fn a_manifest_signed_by_another_is_refused() {
    let ring = Ring::new();
    let signed = SignedManifest::sign(&ring.manifest(5), &ring.nodes[1], ring.delegation()).unwrap();
    assert!(matches!(ring.verify(&signed), Err(TrustError::ForeignSigner { .. })));
}

#[test]
fn a_delegate_that_does_not_hold_rank_0_is_refused() {
    let ring = Ring::new();
    let delegation = ring.owner.delegate("ring", ring.nodes[1].public());
    let signed = SignedManifest::sign(&ring.manifest(5), &ring.nodes[1], delegation).unwrap();
    let Err(TrustError::SignerNotRank0 { holder, signer }) = ring.verify(&signed) else {
        panic!()
    };
    assert_eq!(
        (holder, signer),
        (ring.nodes[0].public().to_string(), ring.nodes[1].public())
    );
}

#[test]
fn a_changed_text_is_refused_even_if_it_means_the_same() {
    let ring = Ring::new();
    let mut signed = ring.sign(&ring.manifest(5));
    signed.manifest.push(' ');
    assert!(matches!(ring.verify(&signed), Err(TrustError::ForeignSigner { .. })));
}

#[test]
fn a_lower_epoch_is_refused_with_both_numbers() {
    let ring = Ring::new();
    let refused = ring.verify(&ring.sign(&ring.manifest(4)));
    assert!(matches!(refused, Err(TrustError::LowerEpoch { theirs: 4, last: 5 })));
}

#[test]
fn another_ring_is_refused_in_manifest_and_delegation() {
    let ring = Ring::new();
    let manifest = RankManifest {
        ring: "other".into(),
        ..ring.manifest(5)
    };
    assert!(matches!(
        ring.verify(&ring.sign(&manifest)),
        Err(TrustError::WrongRing { .. })
    ));
    let delegation = ring.owner.delegate("other", ring.nodes[0].public());
    let signed = SignedManifest::sign(&ring.manifest(5), &ring.nodes[0], delegation).unwrap();
    assert!(matches!(ring.verify(&signed), Err(TrustError::WrongRing { .. })));
}

#[test]
fn a_delegation_by_another_owner_or_moved_to_another_key_is_refused() {
    let (ring, stranger) = (Ring::new(), OwnerKey::generate().unwrap());
    let delegation = stranger.delegate("ring", ring.nodes[0].public());
    let foreign = SignedManifest::sign(&ring.manifest(5), &ring.nodes[0], delegation.clone()).unwrap();
    assert!(matches!(ring.verify(&foreign), Err(TrustError::ForeignOwner { .. })));
    let forged = Delegation {
        owner: ring.owner.public(),
        ..delegation
    };
    let signed = SignedManifest::sign(&ring.manifest(5), &ring.nodes[0], forged).unwrap();
    assert!(matches!(ring.verify(&signed), Err(TrustError::BadDelegation { .. })));
    let moved = Delegation {
        delegate: ring.nodes[1].public(),
        ..ring.delegation()
    };
    let signed = SignedManifest::sign(&ring.manifest(5), &ring.nodes[1], moved).unwrap();
    assert!(matches!(ring.verify(&signed), Err(TrustError::BadDelegation { .. })));
}

#[test]
fn a_swapped_noise_key_is_refused_even_under_a_good_signature() {
    let ring = Ring::new();
    let stranger = NodeKeys::generate()
        .unwrap()
        .holder("one", Link::Direct { address: String::new() });
    for swap in 0..2 {
        let mut manifest = ring.manifest(5);
        let holder = manifest.ranks[1].holder.as_mut().unwrap();
        holder.noise_key.clone_from(&stranger.noise_key);
        if swap == 1 {
            holder.noise_key_signature.clone_from(&stranger.noise_key_signature);
        }
        let Err(TrustError::HolderKey { node }) = ring.verify(&ring.sign(&manifest)) else {
            panic!()
        };
        assert_eq!(node, ring.nodes[1].public().to_string());
    }
}

#[test]
fn a_rank_without_holder_is_refused() {
    let ring = Ring::new();
    let mut manifest = ring.manifest(5);
    manifest.ranks[1].holder = None;
    assert!(matches!(
        ring.verify(&ring.sign(&manifest)),
        Err(TrustError::Unclaimed { rank: 1 })
    ));
}

#[test]
fn what_is_no_manifest_is_refused_by_name() {
    let ring = Ring::new();
    let text = "{\"epoch\": 5}".to_owned();
    let signature = Some(ring.nodes[0].sign("kvasir manifest v1", text.as_bytes()));
    let signed = SignedManifest {
        manifest: text,
        signature,
        delegation: ring.delegation(),
    };
    assert_eq!(ring.verify(&signed).unwrap_err().reason(), "MalformedManifest");
}

#[test]
fn a_signature_in_one_context_is_none_in_another() {
    let keys = NodeKeys::generate().unwrap();
    let signature = keys.sign("kvasir request v1", b"text");
    assert!(keys.public().verifies("kvasir request v1", b"text", &signature));
    assert!(!keys.public().verifies("kvasir manifest v1", b"text", &signature));
    assert!(!keys.public().verifies("kvasir request v", b"1\0text", &signature));
    assert!(
        !NodeKeys::generate()
            .unwrap()
            .public()
            .verifies("kvasir request v1", b"text", &signature)
    );
}

#[test]
fn a_holder_lists_the_noise_key_that_its_node_signed() {
    let keys = NodeKeys::generate().unwrap();
    let mut holder = keys.holder("one", Link::Direct { address: "h:1".into() });
    verify_holder(&holder).unwrap();
    assert_eq!(noise_key(&holder).unwrap(), keys.noise_public());
    holder.noise_key.make_ascii_uppercase();
    assert!(noise_key(&holder).is_err() && verify_holder(&holder).is_err());
}

#[cfg(unix)]
#[test]
fn key_files_are_private_and_come_back_the_same() {
    use std::os::unix::fs::PermissionsExt as _;

    let folder = tempfile::tempdir().unwrap();
    let [node_path, owner_path] = ["node.key", "owner.key"].map(|name| folder.path().join(name));
    let node = NodeKeys::load_or_generate(&node_path).unwrap();
    let again = NodeKeys::load_or_generate(&node_path).unwrap();
    assert_eq!(
        (again.public(), again.noise_public()),
        (node.public(), node.noise_public())
    );
    let owner = OwnerKey::generate().unwrap();
    owner.save(&owner_path).unwrap();
    owner.save(&owner_path).unwrap();
    assert_eq!(OwnerKey::load(&owner_path).unwrap().public(), owner.public());
    for path in [&node_path, &owner_path] {
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }
    let left: Vec<_> = folder.path().read_dir().unwrap().collect();
    assert_eq!(left.len(), 2, "no temporary files stay");
    assert!(matches!(
        NodeKeys::load(&owner_path),
        Err(KeyError::Content { expected: "node", .. })
    ));
    assert!(matches!(
        OwnerKey::load(&node_path),
        Err(KeyError::Content { expected: "owner", .. })
    ));
}

#[test]
fn secrets_are_never_printed() {
    let (node, owner) = (NodeKeys::generate().unwrap(), OwnerKey::generate().unwrap());
    let secrets = format!("{}{}", node.to_text(), owner.to_text());
    let printed = format!("{node:?} {owner:?}");
    let hex = |c: char| !c.is_ascii_hexdigit();
    let secret: Vec<&str> = secrets.split(hex).filter(|word| word.len() == 64).collect();
    assert_eq!(secret.len(), 3);
    assert!(secret.iter().all(|secret| !printed.contains(secret)));
}

#[test]
fn keys_have_one_spelling_and_a_short_fingerprint() {
    let key = PublicKey([0xab; 32]);
    assert_eq!(key.to_string(), "ab".repeat(32));
    assert_eq!(key.to_string().parse::<PublicKey>().unwrap(), key);
    for text in [
        "ab".repeat(31),
        "AB".repeat(32),
        format!("{}a", "ab".repeat(31)),
        "zz".repeat(32),
        "ä".repeat(32),
    ] {
        assert!(text.parse::<PublicKey>().is_err(), "{text}");
    }
    assert_eq!(key.fingerprint().len(), 32);
    assert_ne!(key.fingerprint(), PublicKey([0xac; 32]).fingerprint());
}
