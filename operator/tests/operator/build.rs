//! What is built of a Ring.

use kvasir_operator::{build::Kind, names, validate::Error};
use kvasir_plan::{LayerRange, RankManifest};
use serde_json::{Value, json};

use crate::world::{
    RING, built, changed, object, open_middle, owner, owner_reference, ring, template, try_validated, validated,
};

fn container<'a>(template: &'a Value, list: &str) -> &'a Value {
    &template["spec"][list][0]
}

fn env<'a>(container: &'a Value, name: &str) -> &'a Value {
    let variables = container["env"].as_array().unwrap();
    let found = variables.iter().find(|variable| variable["name"] == name);
    found.unwrap_or(&Value::Null)
}

#[test]
fn every_window_has_a_deployment_a_plan_and_a_key_and_the_ring_a_service() {
    let resources = built(RING);
    let names: Vec<(&str, &str)> = resources
        .objects
        .iter()
        .map(|object| (object.kind.name(), object.name.as_str()))
        .collect();
    let stages = ["smollm2-0-0-10", "smollm2-0-10-20", "smollm2-0-20-30"];
    let mut expected: Vec<(&str, &str)> = Vec::new();
    for kind in ["Secret", "ConfigMap"] {
        expected.extend(stages.map(|stage| (kind, stage)));
    }
    expected.push(("Service", "smollm2"));
    expected.extend(stages.map(|stage| ("Deployment", stage)));
    assert_eq!(names, expected);
    for object in &resources.objects {
        let owner = owner_reference(&object.value);
        assert_eq!(
            (owner.kind.as_str(), owner.uid.as_str(), owner.controller),
            ("Ring", "7b1f", Some(true))
        );
        assert_eq!(object.value["metadata"]["namespace"], "models");
    }
}

#[test]
fn a_stage_is_told_its_window_by_environment() {
    let resources = built(RING);
    let first = template(&resources, "smollm2-0-0-10");
    let (fetch, stage) = (container(&first, "initContainers"), container(&first, "containers"));
    assert_eq!(fetch["command"], json!(["kvasir-stage", "fetch"]));
    assert_eq!(stage["command"], json!(["kvasir-stage", "run"]));
    assert_eq!(
        env(fetch, "KVASIR_SOURCE")["value"],
        r#"{"http":{"url":"http://files.models.svc/smollm2.gguf"}}"#
    );
    assert_eq!(
        env(stage, "KVASIR_MARKET")["value"],
        "http://kvasir-relay.kvasir-system.svc:8443"
    );
    assert_eq!(env(stage, "KVASIR_OWNER")["value"], owner().public().to_string());
    assert_eq!(env(stage, "KVASIR_ADVERTISE")["value"], "$(POD_IP):7000");
    assert_eq!(env(stage, "KVASIR_NETWORK")["value"], "cluster");
    assert_eq!(env(stage, "KVASIR_API")["value"], "0.0.0.0:8080");
    assert_eq!(
        env(stage, "KVASIR_RANK")["valueFrom"]["configMapKeyRef"],
        json!({"name": "smollm2-0-0-10", "key": "rank"})
    );
    // a variable is only known to those that come after it
    let names: Vec<&str> = stage["env"]
        .as_array()
        .unwrap()
        .iter()
        .map(|v| v["name"].as_str().unwrap())
        .collect();
    let at = |name| names.iter().position(|known| *known == name).unwrap();
    assert!(at("POD_IP") < at("KVASIR_ADVERTISE"));

    let last = template(&resources, "smollm2-0-20-30");
    let stage = container(&last, "containers");
    assert_eq!(env(stage, "KVASIR_API"), &Value::Null);
    assert_eq!(
        stage["readinessProbe"]["httpGet"],
        json!({"path": "/readyz", "port": "health"})
    );
    assert_eq!(
        container(&first, "containers")["readinessProbe"]["httpGet"],
        json!({"path": "/healthz", "port": "api"}),
        "rank 0 is ready when its API listens"
    );
}

#[test]
fn the_plan_is_the_one_of_a_local_run() {
    let resources = built(RING);
    let config = object(&resources, Kind::ConfigMap, "smollm2-0-10-20");
    let manifest: RankManifest = serde_json::from_str(config["data"]["plan.json"].as_str().unwrap()).unwrap();
    assert_eq!(config["data"]["rank"], "1");
    // what `kvasir up` plans: the same request onto the same devices
    let spec = ring(RING).spec;
    let profile = crate::world::model();
    let plan = kvasir_plan::plan(&profile, &spec.devices().unwrap(), &spec.request().unwrap()).unwrap();
    let local = plan.manifest("smollm2", &spec.model.name);
    assert_eq!(
        RankManifest {
            ring: local.ring.clone(),
            ..manifest.clone()
        },
        local
    );
    assert_eq!(
        manifest.ring,
        names::on_market("models", "smollm2", 0, &owner().public().fingerprint())
    );
    manifest.validate().unwrap();
}

#[test]
fn pods_are_confined_and_leave_lost_nodes_soon() {
    let resources = built(RING);
    let gpu = template(&resources, "smollm2-0-10-20");
    let pod = &gpu["spec"];
    assert_eq!(pod["automountServiceAccountToken"], false);
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    assert_eq!(pod["securityContext"]["runAsUser"], 65_532);
    assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
    for list in ["initContainers", "containers"] {
        let security = &container(&gpu, list)["securityContext"];
        assert_eq!(
            *security,
            json!({"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]}})
        );
    }
    let tolerations = pod["tolerations"].as_array().unwrap();
    assert_eq!(tolerations[0]["key"], "nvidia.com/gpu");
    for lost in &tolerations[1..] {
        assert_eq!(
            (&lost["tolerationSeconds"], &lost["effect"]),
            (&json!(10), &json!("NoExecute"))
        );
    }
    assert_eq!(tolerations.len(), 3);
    assert_eq!(pod["nodeSelector"], json!({"kind": "gpu"}));
    let key = pod["volumes"]
        .as_array()
        .unwrap()
        .iter()
        .find(|volume| volume["name"] == "key")
        .unwrap();
    assert_eq!(key["secret"]["defaultMode"], 0o440);
    let memory = &container(&gpu, "containers")["resources"]["requests"]["memory"];
    let planned = validated(RING).manifest.ranks[1].memory.div_ceil(1 << 20);
    assert_eq!(
        *memory,
        format!("{planned}Mi"),
        "the plan's figure, since the pool says none"
    );
}

#[test]
fn the_next_pod_has_its_window_before_the_old_one_goes_unless_the_pool_says_otherwise() {
    let text = changed(
        RING,
        "      nodeSelector",
        "      updateStrategy: Recreate\n      nodeSelector",
    );
    let text = changed(
        &text,
        "{name: cpu, maxStages: 2, memory: 2Gi}",
        "{name: cpu, maxStages: 2, memory: 2Gi, resources: {limits: {cpu: 1500m}}}",
    );
    let resources = built(&text);
    let strategy = |name: &str| object(&resources, Kind::Deployment, name)["spec"]["strategy"].clone();
    assert_eq!(strategy("smollm2-0-10-20"), json!({"type": "Recreate"}));
    assert_eq!(
        strategy("smollm2-0-0-10"),
        json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}})
    );
    let stage = template(&resources, "smollm2-0-0-10");
    let threads = env(container(&stage, "containers"), "KVASIR_THREADS");
    assert_eq!(threads["value"], "2", "as many as the pool gives it processors");
}

#[test]
fn a_volume_keeps_the_window_on_one_node_at_a_time() {
    let text = changed(
        RING,
        "{name: cpu, maxStages: 2, memory: 2Gi}",
        "{name: cpu, maxStages: 2, memory: 2Gi, storage: {size: 1Gi, storageClassName: fast}}",
    );
    let resources = built(&text);
    let claim = object(&resources, Kind::PersistentVolumeClaim, "smollm2-0-0-10");
    assert_eq!(claim["spec"]["resources"]["requests"]["storage"], "1Gi");
    let deployment = object(&resources, Kind::Deployment, "smollm2-0-0-10");
    assert_eq!(deployment["spec"]["strategy"]["type"], "Recreate");
    assert_eq!(
        deployment["spec"]["template"]["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"],
        "smollm2-0-0-10"
    );
    assert!(resources.get(Kind::PersistentVolumeClaim, "smollm2-0-10-20").is_none());
}

#[test]
fn replicas_are_whole_rings_behind_one_service() {
    let resources = built(&changed(RING, "  exact: true", "  exact: true\n  replicas: 2"));
    let deployments = resources
        .objects
        .iter()
        .filter(|object| object.kind == Kind::Deployment)
        .count();
    assert_eq!((deployments, resources.demands.len()), (6, 2));
    let service = object(&resources, Kind::Service, "smollm2");
    assert_eq!(
        service["spec"]["selector"],
        json!({"kvasir.dev/ring": "smollm2", "kvasir.dev/rank": "0", "kvasir.dev/layers": "0-10"})
    );
    for ordinal in ["0", "1"] {
        let first = template(&resources, &format!("smollm2-{ordinal}-0-10"));
        assert_eq!(first["metadata"]["labels"]["kvasir.dev/rank"], "0");
        assert_eq!(first["metadata"]["labels"]["kvasir.dev/ordinal"], ordinal);
    }
    let second = template(&resources, "smollm2-1-10-20");
    assert_eq!(second["metadata"]["labels"].get("kvasir.dev/rank"), None);
    assert_ne!(resources.demands[0].template.ring, resources.demands[1].template.ring);
}

#[test]
fn a_suspended_ring_keeps_everything_but_its_pods() {
    let awake = built(RING);
    let asleep = built(&changed(RING, "  exact: true", "  exact: true\n  suspend: true"));
    let names = |resources: &kvasir_operator::build::Resources<_>| -> Vec<String> {
        resources.objects.iter().map(|object| object.name.clone()).collect()
    };
    assert_eq!(names(&awake), names(&asleep));
    assert_eq!(
        object(&asleep, Kind::Deployment, "smollm2-0-0-10")["spec"]["replicas"],
        0
    );
    assert_eq!(
        object(&awake, Kind::Deployment, "smollm2-0-0-10")["spec"]["replicas"],
        1
    );
}

#[test]
fn the_market_is_asked_for_open_windows_and_keeps_the_others_for_our_nodes() {
    let resources = built(&open_middle());
    assert!(resources.get(Kind::Deployment, "smollm2-0-10-20").is_none());
    let demand = &resources.demands[0];
    let reserved: Vec<u32> = demand.reserved.keys().copied().collect();
    assert_eq!(reserved, [0, 2]);
    assert!(demand.trusted_ends);
    assert_eq!(demand.lease_s, Some(60));
    let delegation = &demand.delegations[0];
    assert_eq!(
        (delegation.delegate, delegation.owner),
        (demand.reserved[&0], owner().public())
    );
    delegation.verify(&owner().public(), &demand.template.ring).unwrap();
    // the node that the window is kept for is the one whose keys its pod mounts
    let secret = object(&resources, Kind::Secret, "smollm2-0-20-30");
    let secret: k8s_openapi::api::core::v1::Secret = serde_json::from_value(secret).unwrap();
    let text = String::from_utf8(secret.data.unwrap()["node.key"].0.clone()).unwrap();
    let keys = kvasir_wire::trust::NodeKeys::from_text(&text).unwrap();
    assert_eq!(keys.public(), demand.reserved[&2]);
}

#[test]
fn overrides_are_merged_over_the_template_and_mistyped_ones_are_named() {
    let with = |overrides: &str| {
        changed(
            RING,
            "{name: cpu, maxStages: 2, memory: 2Gi}",
            &format!("{{name: cpu, maxStages: 2, memory: 2Gi, podOverrides: {overrides}}}"),
        )
    };
    let text = with(
        "{metadata: {labels: {team: a, kvasir.dev/ring: other}}, spec: {priorityClassName: high, \
         containers: [{name: stage, env: [{name: RUST_LOG, value: debug}]}]}}",
    );
    let stage = template(&built(&text), "smollm2-0-0-10");
    assert_eq!(stage["spec"]["priorityClassName"], "high");
    assert_eq!(stage["metadata"]["labels"]["team"], "a");
    assert_eq!(
        stage["metadata"]["labels"]["kvasir.dev/ring"], "smollm2",
        "the selector's labels stay"
    );
    let container = container(&stage, "containers");
    assert_eq!(env(container, "RUST_LOG")["value"], "debug");
    assert_ne!(env(container, "KVASIR_MARKET"), &Value::Null, "what was there stays");
    assert_eq!(container["image"], "registry.example/kvasir-stage:1");

    let error = try_validated(&with("{spec: {priorityClasName: high}}")).unwrap_err();
    assert_eq!(error.reason(), "InvalidSpec");
    assert_eq!(
        error.to_string(),
        "podOverrides of pool cpu: spec.priorityClasName is no field of a pod template"
    );
}

#[test]
fn what_can_not_be_served_is_said_in_words() {
    let reason = |text: &str| {
        let error = try_validated(text).unwrap_err();
        (error.reason(), error.to_string())
    };
    let file = changed(
        RING,
        "{http: {url: 'http://files.models.svc/smollm2.gguf'}}",
        "{file: {path: a.gguf}}",
    );
    assert_eq!(reason(&file).0, "UnsupportedSource");
    let small = RING.replace("2Gi", "8Mi");
    assert_eq!(reason(&small).0, "InsufficientMemory");
    let gap = changed(RING, "{start: 10, end: 20}", "{start: 11, end: 20}");
    assert_eq!(
        reason(&gap),
        ("InvalidPlan", "no window holds layers 10..11".to_owned())
    );
    assert!(matches!(try_validated(&gap), Err(Error::Plan(_))));
}

#[test]
fn names_of_a_long_ring_fit() {
    let long = "a-ring-with-a-name-of-forty-characters-x";
    let resources = built(&RING.replacen("name: smollm2", &format!("name: {long}"), 1));
    let stage = names::stage(long, 0, LayerRange { start: 10, end: 20 });
    assert!(resources.get(Kind::Deployment, &stage).is_some());
    for object in &resources.objects {
        assert!(object.name.len() <= 63, "{}", object.name);
    }
}

#[test]
fn the_example_of_a_cluster_is_three_stages_over_two_pools() {
    let text = include_str!("../../../examples/smollm2-135m-cluster.yaml");
    let planned = validated(text).manifest;
    let placed: Vec<(String, Option<&str>)> = planned
        .ranks
        .iter()
        .map(|rank| (rank.layers.to_string(), rank.placement.as_deref()))
        .collect();
    assert_eq!(
        placed,
        [
            ("0..10".to_owned(), Some("common")),
            ("10..20".to_owned(), Some("gpu")),
            ("20..30".to_owned(), Some("common"))
        ]
    );
}
