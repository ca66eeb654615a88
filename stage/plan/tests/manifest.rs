//! A stage trusts no dimension of a manifest that it hasn't checked.

#![allow(clippy::unwrap_used)]

use kvasir_plan::{BoundaryType, Holder, InvalidManifest, LayerRange, Link, ModelRef, Rank, RankManifest};

fn rank(start: u32, end: u32) -> Rank {
    Rank {
        layers: LayerRange { start, end },
        bytes: 1000,
        memory: 2000,
        placement: None,
        holder: None,
    }
}

fn holder() -> Holder {
    Holder {
        node: "0a".repeat(32),
        noise_key: "1b".repeat(32),
        noise_key_signature: "2c".repeat(64),
        instance: "0190b3a5-0000-7000-8000-000000000000".into(),
        link: Link::Relayed {
            url: "https://relay.example.com/ring".into(),
        },
    }
}

fn manifest() -> RankManifest {
    RankManifest {
        ring: "gemma".into(),
        epoch: 7,
        model: ModelRef {
            name: "gemma-3-270m".into(),
            architecture: "gemma3".into(),
            identity: "ef".repeat(32),
            embedding_length: 640,
            layers: 18,
            vocabulary: 262_144,
            prefix_bytes: vec![6_000_000],
        },
        boundary_type: BoundaryType::Bf16,
        exact: false,
        context_length: 4096,
        sequences: 4,
        max_laps: 8,
        max_lap_tokens: 256,
        ranks: vec![
            rank(0, 6),
            Rank {
                holder: Some(holder()),
                ..rank(6, 12)
            },
            rank(12, 18),
        ],
    }
}

fn refused(change: impl FnOnce(&mut RankManifest)) -> InvalidManifest {
    let mut changed = manifest();
    change(&mut changed);
    changed.validate().expect_err("a manifest that nobody should trust")
}

#[test]
fn a_sound_manifest_is_taken_and_keeps_its_json() {
    let sound = manifest();
    sound.validate().unwrap();
    let json = serde_json::to_string(&sound).unwrap();
    assert_eq!(serde_json::from_str::<RankManifest>(&json).unwrap(), sound);
    let unknown = json.replacen('{', "{\"extra\":1,", 1);
    assert!(serde_json::from_str::<RankManifest>(&unknown).is_err());
}

#[test]
fn ranks_that_do_not_follow_each_other_are_refused() {
    use InvalidManifest::{Empty, NotContiguous, NotCovered, OutOfRange};
    assert_eq!(
        refused(|m| m.ranks[1].layers.start = 7),
        NotContiguous {
            rank: 1,
            expected: 6,
            found: 7
        }
    );
    assert_eq!(
        refused(|m| m.ranks[1].layers.start = 5),
        NotContiguous {
            rank: 1,
            expected: 6,
            found: 5
        }
    );
    assert_eq!(
        refused(|m| m.ranks[0].layers.start = 1),
        NotContiguous {
            rank: 0,
            expected: 0,
            found: 1
        }
    );
    assert_eq!(refused(|m| m.ranks[1].layers.end = 6), Empty { rank: 1 });
    assert_eq!(refused(|m| m.ranks[1].layers.end = 3), Empty { rank: 1 });
    assert_eq!(refused(|m| m.ranks.truncate(2)), NotCovered { end: 12, layers: 18 });
    assert_eq!(
        refused(|m| m.ranks[2].layers.end = 19),
        NotCovered { end: 19, layers: 18 }
    );
    assert!(matches!(
        refused(|m| m.ranks.clear()),
        OutOfRange {
            field: "rank count",
            ..
        }
    ));
    assert!(matches!(
        refused(|m| m.ranks = vec![rank(0, 1); 19]),
        OutOfRange {
            field: "rank count",
            ..
        }
    ));
}

#[test]
fn numbers_that_would_be_allocated_are_bounded() {
    type Change = fn(&mut RankManifest);
    let changes: [(Change, &str); 17] = [
        (|m| m.model.embedding_length = 0, "embedding length"),
        (|m| m.model.embedding_length = u32::MAX, "embedding length"),
        (|m| m.model.layers = 0, "layer count"),
        (|m| m.model.layers = u32::MAX, "layer count"),
        (|m| m.model.vocabulary = 0, "vocabulary"),
        (|m| m.model.vocabulary = u32::MAX, "vocabulary"),
        (|m| m.model.prefix_bytes = vec![1; 2000], "part count"),
        (|m| m.context_length = 0, "context length"),
        (|m| m.context_length = u32::MAX, "context length"),
        (|m| m.sequences = 0, "sequence count"),
        (|m| m.sequences = u32::MAX, "sequence count"),
        (|m| m.max_laps = 0, "lap count"),
        (|m| m.max_laps = u16::MAX, "lap count"),
        (|m| m.max_lap_tokens = 0, "lap size in tokens"),
        (|m| m.max_lap_tokens = u32::MAX, "lap size in tokens"),
        (|m| m.ranks[2].bytes = u64::MAX, "window size in bytes"),
        (|m| m.ranks[2].memory = 0, "memory of a rank in bytes"),
    ];
    for (change, name) in changes {
        match refused(change) {
            InvalidManifest::OutOfRange { field, .. } => assert_eq!(field, name),
            other => panic!("{name}: {other}"),
        }
    }
    // 2^28 bytes of f32 rows of 640 values
    let mut longest = manifest();
    longest.max_lap_tokens = (1 << 28) / 4 / 640;
    longest.validate().unwrap();
    longest.max_lap_tokens += 1;
    assert!(longest.validate().is_err(), "the limit holds for the product");
}

#[test]
fn texts_that_name_things_are_bounded() {
    let long = "x".repeat(254);
    for (text, field) in [("", "ring"), (&long, "ring")] {
        let refused = refused(|m| m.ring = text.into());
        assert_eq!(
            refused,
            InvalidManifest::Text {
                field,
                length: text.len(),
                max: 253
            }
        );
    }
    assert_eq!(refused(|m| m.model.identity = "ef".into()), InvalidManifest::Identity);
    assert!(matches!(
        refused(|m| m.ranks[0].placement = Some(String::new())),
        InvalidManifest::Text { field: "placement", .. }
    ));
}

#[test]
fn holders_have_keys_and_links_that_can_be_used() {
    fn with(change: impl FnOnce(&mut Holder)) -> InvalidManifest {
        refused(|m| change(m.ranks[1].holder.as_mut().unwrap()))
    }
    let key = |field, digits| InvalidManifest::Key { rank: 1, field, digits };
    assert_eq!(with(|h| h.node = "0A".repeat(32)), key("node key", 64));
    assert_eq!(with(|h| h.noise_key.truncate(63)), key("noise key", 64));
    assert_eq!(
        with(|h| h.noise_key_signature.push('0')),
        key("noise key signature", 128)
    );
    for url in [
        "",
        "relay.example.com",
        "https://",
        "https:///path",
        "ftp://relay.example.com",
        "https://user:secret@relay.example.com",
        "https://relay.example.com?ticket=secret",
        "https://relay.example.com/a b",
        "https://relay.example.com/\r\nX: y",
    ] {
        assert_eq!(
            with(|h| h.link = Link::Relayed { url: url.into() }),
            InvalidManifest::Link { rank: 1 },
            "{url}"
        );
    }
    for address in [
        "",
        "host",
        "host:",
        ":80",
        "host:0",
        "host:65536",
        "host:http",
        "a b:80",
        "user@host:80",
    ] {
        let link = Link::Direct {
            address: address.into(),
        };
        assert_eq!(with(|h| h.link = link), InvalidManifest::Link { rank: 1 }, "{address}");
    }
    for address in ["10.0.0.1:7000", "stage-0.models.svc:7000", "[::1]:7000"] {
        let mut direct = manifest();
        direct.ranks[1].holder = Some(Holder {
            link: Link::Direct {
                address: address.into(),
            },
            ..holder()
        });
        direct.validate().unwrap();
    }
}

#[test]
fn the_hash_of_a_plan_is_blind_to_epochs_and_holders_and_to_nothing_else() {
    let plan = manifest();
    let mut next = plan.clone();
    next.epoch += 1;
    next.ranks[0].holder = Some(holder());
    next.ranks[1].holder = None;
    assert_eq!(next.plan_hash(), plan.plan_hash());
    assert_eq!(plan.plan_hash().len(), 16);
    next.ranks[1].layers.end = 11;
    next.ranks[2].layers.start = 11;
    assert_ne!(next.plan_hash(), plan.plan_hash());
}
