//! A Ring is read or refused as the cluster would, and every refusal names the field.

#![allow(clippy::unwrap_used)]

use kvasir_api::{BoundaryType, Error, MAX_NAME, Ring, bytes, from_yaml};

const SMALLEST: &str = include_str!("good/smallest.yaml");
const LOCAL_WINDOWS: &str = include_str!("good/local-windows.yaml");
const CLUSTER: &str = include_str!("good/cluster.yaml");
const VOLUME: &str = include_str!("good/volume.yaml");
const UNTRUSTED_ENDS: &str = include_str!("good/untrusted-ends.yaml");

fn read(text: &str) -> Ring {
    from_yaml(text).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

/// The faults of `text` with `from` replaced by `to`, as lines.
fn faults(text: &str, from: &str, to: &str) -> Vec<String> {
    let changed = text.replacen(from, to, 1);
    assert_ne!(text, changed, "`{from}` is not in the fixture");
    refusal(&changed)
}

fn refusal(text: &str) -> Vec<String> {
    match from_yaml(text) {
        Err(e @ Error::Invalid(_)) => e.to_string().lines().map(String::from).collect(),
        other => panic!("expected faults, got {other:?}"),
    }
}

#[test]
fn the_smallest_ring_has_the_defaults_of_the_definition() {
    let spec = read(SMALLEST).spec;
    assert_eq!(
        (spec.context_length, spec.sequences, spec.replicas, spec.suspend),
        (4096, 4, 1, false)
    );
    assert_eq!(spec.boundary_type(), BoundaryType::Bf16);
    assert_eq!(spec.endpoint.port, 8080);
    assert_eq!((spec.pools.len(), spec.windows.len()), (0, 0));
    let market = spec.market();
    assert_eq!(
        (market.max_layers, market.trusted_ends, market.claim_timeout_seconds),
        (0, true, 60)
    );
    assert_eq!(bytes(&market.max_window_bytes), Ok(2 << 30));
}

#[test]
fn windows_by_hand_need_no_pool_on_one_machine() {
    let spec = read(LOCAL_WINDOWS).spec;
    let windows: Vec<_> = spec.windows.iter().map(|w| (w.layers.start, w.layers.end)).collect();
    assert_eq!(windows, [(0, 10), (10, 20), (20, 30)]);
    assert_eq!(spec.boundary_type(), BoundaryType::F32, "exact rings pass full values");
    assert!(spec.model.chat_template.is_some());
}

#[test]
fn every_field_of_a_cluster_ring_is_read() {
    let spec = read(CLUSTER).spec;
    assert_eq!(bytes(&spec.pools[0].memory), Ok(40 << 30));
    assert_eq!(bytes(&spec.pools[1].memory), Ok(8 << 30), "a plain number is bytes");
    assert_eq!(
        spec.pools[0].pod_overrides.as_ref().unwrap()["spec"]["priorityClassName"],
        "high"
    );
    assert_eq!(spec.boundary_type(), BoundaryType::Q8_0);
    assert!(spec.windows[1].open);
    read(VOLUME);
    read(UNTRUSTED_ENDS);
}

#[test]
fn a_ring_survives_writing_and_reading() {
    for text in [SMALLEST, LOCAL_WINDOWS, CLUSTER, VOLUME, UNTRUSTED_ENDS] {
        let ring = read(text);
        let written = serde_yaml::to_string(&ring).unwrap();
        assert_eq!(read(&written), ring);
    }
}

#[test]
fn e1_a_typo_is_named_by_its_path() {
    assert_eq!(
        faults(SMALLEST, "spec:\n", "spec:\n  stagse: 3\n"),
        ["spec.stagse: unknown field"]
    );
    assert_eq!(
        faults(SMALLEST, "spec:\n", "spec:\n  replcias: 3\n"),
        ["spec.replcias: unknown field; did you mean `replicas`?"]
    );
    assert_eq!(
        faults(CLUSTER, "resources:", "resource:"),
        ["spec.pools[0].resource: unknown field; did you mean `resources`?"]
    );
    assert_eq!(
        faults(CLUSTER, "nodeSelectorTerms:", "nodeSelectorTrems:")[0],
        "spec.pools[1].affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTrems: \
         unknown field; did you mean `nodeSelectorTerms`?",
        "Kubernetes' own types are as strict"
    );
    assert_eq!(
        faults(SMALLEST, "  name: gemma\n", "  name: gemma\n  lables: {a: b}\n"),
        ["metadata.lables: unknown field"]
    );
    assert_eq!(
        faults(SMALLEST, "spec:\n", "specs: {}\nspec:\n"),
        ["specs: unknown field; did you mean `spec`?"]
    );
}

#[test]
fn e1_the_right_key_at_the_wrong_level_is_told_its_place() {
    assert_eq!(
        faults(SMALLEST, "spec:\n", "spec:\n  maxLayers: 3\n"),
        ["spec.maxLayers: unknown field; `maxLayers` belongs at spec.market.maxLayers"]
    );
    assert_eq!(
        faults(SMALLEST, "spec:\n", "spec:\n  nodeSelector: {a: b}\n"),
        ["spec.nodeSelector: unknown field; `nodeSelector` belongs at spec.pools[].nodeSelector"]
    );
    assert_eq!(
        faults(SMALLEST, "kind: Ring\n", "kind: Ring\nreplicas: 2\n"),
        ["replicas: unknown field; `replicas` belongs at spec.replicas"]
    );
}

#[test]
fn e1_a_required_field_that_vanished_is_refused() {
    assert_eq!(
        faults(SMALLEST, "    source:", "    sauce:"),
        ["spec.model.sauce: unknown field", "spec.model.source: missing"]
    );
    assert_eq!(
        faults(CLUSTER, "maxStages: 2", "maxStage: 2"),
        [
            "spec.pools[0].maxStage: unknown field; did you mean `maxStages`?",
            "spec.pools[0].maxStages: missing"
        ]
    );
    assert_eq!(
        refusal("{apiVersion: kvasir.dev/v1alpha1, kind: Ring}"),
        ["metadata.name: missing", "spec: missing"]
    );
    for (name, found) in [("123", "an integer"), ("true", "true or false"), ("[a]", "a list")] {
        assert_eq!(
            faults(SMALLEST, "  name: gemma\n", &format!("  name: {name}\n")),
            [format!(
                "metadata.name: must be a string, found {found}: put it in quotes"
            )]
        );
    }
    assert_eq!(
        refusal("{apiVersion: kvasir.dev/v1alpha1, kind: Ring, metadata: {name: a}, spec: {}}"),
        ["spec.model: missing"]
    );
}

#[test]
fn a_wrong_type_is_named_by_its_path() {
    for (from, to, expected) in [
        (
            "contextLength: 2048",
            "contextLength: 2k",
            "spec.contextLength: expected an integer, found a text",
        ),
        (
            "contextLength: 2048",
            "contextLength: 2048.5",
            "spec.contextLength: expected an integer, found a fraction",
        ),
        (
            "exact: true",
            "exact: 'yes'",
            "spec.exact: expected true or false, found a text",
        ),
        (
            "start: 10",
            "start: null",
            "spec.windows[1].layers.start: expected an integer, found nothing",
        ),
        (
            "    name: smollm2-135m",
            "    name: [a]",
            "spec.model.name: expected a text, found a list",
        ),
        (
            "  exact: true",
            "  cacheType: q8_0",
            "spec.cacheType: \"q8_0\" is not one of F16, Q8_0; did you mean `Q8_0`?",
        ),
        (
            "  exact: true",
            "  pools: {}",
            "spec.pools: expected a list, found a map",
        ),
    ] {
        assert_eq!(faults(LOCAL_WINDOWS, from, to), [expected]);
    }
}

#[test]
fn a_value_past_its_limit_is_named_with_the_limit() {
    let long = "x".repeat(254);
    for (from, to, expected) in [
        (
            "contextLength: 2048",
            "contextLength: 0",
            "spec.contextLength: must be between 1 and 16777216, is 0",
        ),
        (
            "sequences: 2",
            "sequences: 99999999999",
            "spec.sequences: must be between 1 and 1024, is 99999999999",
        ),
        ("name: smollm2-135m", "name: ''", "spec.model.name: must not be empty"),
        (
            "name: smollm2-135m",
            &format!("name: {long}"),
            "spec.model.name: must have 253 characters or fewer, has 254",
        ),
        (
            "start: 0",
            "start: -1",
            "spec.windows[0].layers.start: must be between 0 and 4095, is -1",
        ),
    ] {
        assert_eq!(faults(LOCAL_WINDOWS, from, to), [expected]);
    }
    assert_eq!(
        faults(CLUSTER, "    - name: cpu", "    - name: gpu"),
        ["spec.pools[1]: \"gpu\" is there twice"]
    );
}

#[test]
fn all_faults_are_named_at_once() {
    let text = LOCAL_WINDOWS
        .replace("contextLength: 2048", "contextLength: 0")
        .replace("sequences", "sequence");
    assert_eq!(
        refusal(&text),
        [
            "spec.contextLength: must be between 1 and 16777216, is 0",
            "spec.sequence: unknown field; did you mean `sequences`?"
        ]
    );
}

#[test]
fn what_fields_say_of_each_other_is_checked_as_in_the_cluster() {
    let file = "file:\n        path: models/gemma-3-270m.Q4_K_M.gguf";
    for (text, from, to, expected) in [
        (
            SMALLEST,
            file,
            "{}",
            "spec.model.source: exactly one of huggingFace, http, persistentVolumeClaim and file must be set",
        ),
        (
            VOLUME,
            "      persistentVolumeClaim:",
            "      file: {path: a.gguf}\n      persistentVolumeClaim:",
            "spec.model.source: exactly one of huggingFace, http, persistentVolumeClaim and file must be set",
        ),
        (
            LOCAL_WINDOWS,
            "{start: 10, end: 20}",
            "{start: 20, end: 20}",
            "spec.windows[1].layers: layers.start must be below layers.end, which is not in the window",
        ),
        (
            VOLUME,
            "  replicas: 0",
            "  market: {maxLayers: 1}",
            "spec.market: market.maxLayers above 0 needs a huggingFace or http source without credentials: outsiders \
             fetch their windows themselves",
        ),
        (
            CLUSTER,
            "  contextLength:",
            "    credentialsSecretRef: {name: hub, key: token}\n  contextLength:",
            "spec.market: market.maxLayers above 0 needs a huggingFace or http source without credentials: outsiders \
             fetch their windows themselves",
        ),
        (
            CLUSTER,
            "suspend: false",
            "exact: true",
            "spec.boundaryType: exact: true needs boundaryType F32, or none",
        ),
        (
            CLUSTER,
            "pool: cpu",
            "pool: cpus",
            "spec.windows: every window's pool must be one of spec.pools",
        ),
        (
            CLUSTER,
            "      pool: cpu\n",
            "",
            "spec.windows: with pools, every window names its pool or is open",
        ),
        (
            CLUSTER,
            "maxLayers: 8",
            "maxLayers: 0",
            "spec.windows: an open window needs market.maxLayers above 0",
        ),
        (
            UNTRUSTED_ENDS,
            "trustedEnds: false",
            "trustedEnds: true",
            "spec.windows: the first and the last window can't be open unless market.trustedEnds is false: they see the text",
        ),
        (
            UNTRUSTED_ENDS,
            "https://",
            "https://user:password@",
            "spec.model.source.http.url: url must start with http:// or https:// and hold no user name, password or space",
        ),
        (
            UNTRUSTED_ENDS,
            "https://",
            "ftp://",
            "spec.model.source.http.url: url must start with http:// or https:// and hold no user name, password or space",
        ),
        (
            VOLUME,
            "gguf/model",
            "../model",
            "spec.model.source.persistentVolumeClaim.path: path must be relative to the volume's root and stay inside it",
        ),
        (
            CLUSTER,
            "unsloth/",
            "",
            "spec.model.source.huggingFace.repo: repo must be owner/name",
        ),
        (
            CLUSTER,
            "memory: 40Gi",
            "memory: 40GB",
            "spec.pools[0].memory: must be a quantity above 0, such as 512Mi or 2Gi",
        ),
        (
            CLUSTER,
            "memory: 40Gi",
            "memory: 0",
            "spec.pools[0].memory: must be a quantity above 0, such as 512Mi or 2Gi",
        ),
        (
            CLUSTER,
            "memory: 40Gi",
            "memory: 1e999999999",
            "spec.pools[0].memory: must be a quantity above 0, such as 512Mi or 2Gi",
        ),
        (
            CLUSTER,
            "memory: 40Gi",
            "memory: -1Gi",
            "spec.pools[0].memory: must be a quantity above 0, such as 512Mi or 2Gi",
        ),
        (
            VOLUME,
            "- name: cpu",
            "- name: CPU",
            "spec.pools[0].name: a pool's name must be a DNS label: lower-case letters, digits and '-'",
        ),
        (
            VOLUME,
            "    url: https://relay.example.com",
            "    {}",
            "spec.relay: exactly one of url and serviceRef must be set",
        ),
        (
            VOLUME,
            "https://relay.example.com",
            "https://relay.example.com?token=a",
            "spec.relay.url: url must start with http:// or https:// and hold no user name, query or space",
        ),
    ] {
        assert_eq!(faults(text, from, to), [expected]);
    }
    let both = CLUSTER.replacen("      pool: cpu\n", "      pool: cpu\n      open: true\n", 1);
    assert_eq!(
        refusal(&both),
        ["spec.windows[2]: a window has a pool or is open, not both"]
    );
}

#[test]
fn the_source_of_a_ring_cannot_be_changed() {
    let old = read(SMALLEST);
    let mut new = old.clone();
    new.spec.replicas = 3;
    assert!(new.validate_cel_update(&old).is_ok());
    new.spec.model.source.file.as_mut().unwrap().path = "other.gguf".into();
    let refused = new.validate_cel_update(&old).unwrap_err();
    assert_eq!(refused[0].field_path, "spec.model.source");
    assert_eq!(
        refused[0].message,
        "source is immutable; make another Ring for another model"
    );
}

#[test]
fn e2_names_that_leave_children_no_room_are_refused_with_the_limit() {
    let named = |name: &str| SMALLEST.replace("name: gemma\n", &format!("name: {name}\n"));
    for length in [1, 30, MAX_NAME] {
        read(&named(&"a".repeat(length)));
    }
    for length in [MAX_NAME + 1, 42, 52, 53, 63, 253] {
        let refused = refusal(&named(&"a".repeat(length)));
        assert_eq!(refused.len(), 1);
        assert!(
            refused[0].starts_with("metadata.name must be 40 characters or fewer"),
            "{refused:?}"
        );
    }
    for name in ["with.dot", "1st", "Gemma", "under_score", "-a", "a-", "ä"] {
        let refused = refusal(&named(name));
        assert!(
            refused[0].starts_with("metadata.name must start with a letter"),
            "{name}: {refused:?}"
        );
    }
}

#[test]
fn anything_but_one_ring_is_refused_by_kind() {
    let refused = |text: &str| from_yaml(text).unwrap_err();
    assert_eq!(
        refused(&format!("{SMALLEST}---\n{SMALLEST}")).to_string(),
        "expected one YAML document, found 2"
    );
    assert_eq!(refused("").to_string(), "expected one YAML document, found 0");
    read(&format!("---\n{SMALLEST}---\n"));
    assert_eq!(
        refused(&SMALLEST.replace("v1alpha1", "v1")).to_string(),
        "expected kvasir.dev/v1alpha1 Ring, found kvasir.dev/v1 Ring"
    );
    assert_eq!(
        refused("kind: Ring\nspec: {}").to_string(),
        "expected kvasir.dev/v1alpha1 Ring, found no apiVersion Ring"
    );
    assert!(matches!(refused("- a"), Error::NotARing { .. }));
    assert!(matches!(refused("a: [\n"), Error::Syntax(_)));
    assert!(matches!(
        refused(&SMALLEST.replace("spec:\n", "spec:\n  suspend: true\n  suspend: false\n")),
        Error::Syntax(_)
    ));
    assert!(matches!(refused(&"a".repeat(4 << 20)), Error::TooLarge(_)));
}
