//! A Ring, its model, its owner, and what a cluster makes of its children.

use std::{sync::Arc, time::Duration};

use k8s_openapi::{
    api::core::v1::Pod,
    apimachinery::pkg::apis::meta::v1::OwnerReference,
    jiff::{SignedDuration, Timestamp},
};
use kvasir_api::{Ring, RingStatus};
use kvasir_market::types::{self, OfferedWindow, WindowState};
use kvasir_operator::{
    apply::Refused,
    build::{Kind, Prepared, Resources, build},
    compare,
    dereference::Live,
    market::View,
    names,
    settings::{PullPolicy, Settings},
    status::{self, Observed},
    switch::Switch,
    validate::{self, Validated},
};
use kvasir_plan::{Layer, LayerKind, LayerRange, ModelProfile, profile::Padding};
use kvasir_wire::trust::OwnerKey;
use serde_json::{Value, json};

pub(crate) const MIB: u64 = 1 << 20;

/// Three windows over two pools, by hand.
pub(crate) const RING: &str = "
apiVersion: kvasir.dev/v1alpha1
kind: Ring
metadata:
  name: smollm2
  namespace: models
  uid: 7b1f
  generation: 3
spec:
  model:
    name: SmolLM2
    source: {http: {url: 'http://files.models.svc/smollm2.gguf'}}
  exact: true
  pools:
    - {name: cpu, maxStages: 2, memory: 2Gi}
    - name: gpu
      maxStages: 1
      memory: 2Gi
      nodeSelector: {kind: gpu}
      tolerations: [{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}]
  windows:
    - {layers: {start: 0, end: 10}, pool: cpu}
    - {layers: {start: 10, end: 20}, pool: gpu}
    - {layers: {start: 20, end: 30}, pool: cpu}
";

/// The same with the middle left to the market.
pub(crate) fn open_middle() -> String {
    changed(
        RING,
        "{layers: {start: 10, end: 20}, pool: gpu}",
        "{layers: {start: 10, end: 20}, open: true}",
    )
    .replace("  exact: true", "  market: {maxLayers: 10}")
}

pub(crate) fn changed(text: &str, from: &str, to: &str) -> String {
    assert!(text.contains(from), "`{from}` is not in the Ring");
    text.replacen(from, to, 1)
}

pub(crate) fn settings() -> Settings {
    Settings {
        stage_image: "registry.example/kvasir-stage:1".into(),
        stage_image_pull_policy: PullPolicy::default(),
        stage_image_pull_secrets: vec![String::new()],
        relay_url: Some("http://kvasir-relay.kvasir-system.svc:8443".into()),
        watch_namespaces: Vec::new(),
        http_listen: ([127, 0, 0, 1], 0).into(),
        leader_election: false,
        pod_name: "operator".into(),
        pod_namespace: "kvasir-system".into(),
        cluster_network: "cluster".into(),
    }
}

pub(crate) fn model() -> Arc<ModelProfile> {
    let layer = Layer {
        kind: LayerKind::Full,
        bytes: 3 * MIB,
        active_bytes: 3 * MIB,
        key_values: 192,
        value_values: 192,
        state_bytes: 0,
    };
    Arc::new(ModelProfile {
        architecture: "llama".into(),
        identity: "ab".repeat(32),
        size: 100 * MIB,
        file_type: "Q4_1".into(),
        prefix_bytes: vec![2 * MIB],
        embedding_length: 576,
        vocabulary: 49_152,
        heads: 9,
        feed_forward: 1536,
        layers: vec![layer; 30],
        mtp_layers: 0,
        mtp_bytes: 0,
        every_bytes: 0,
        embedding_bytes: 16 * MIB,
        head_bytes: 16 * MIB,
        tied: true,
        last_start: 29,
        refused_last_starts: Vec::new(),
        padding: Padding::default(),
        indivisible: None,
    })
}

/// The same key at each call, so that what is built can be compared.
pub(crate) fn owner() -> OwnerKey {
    OwnerKey::from_text(&format!("{{\"owner\":\"{}\"}}", "07".repeat(32))).unwrap()
}

pub(crate) fn ring(text: &str) -> Ring {
    kvasir_api::from_yaml(text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

pub(crate) fn validated(text: &str) -> Validated {
    try_validated(text).unwrap()
}

pub(crate) fn try_validated(text: &str) -> Result<Validated, validate::Error> {
    validate::plan(validate::spec(&ring(text), &settings())?, model())
}

pub(crate) fn built(text: &str) -> Resources<Prepared> {
    build(&validated(text), &owner()).unwrap()
}

/// An object by kind and name.
pub(crate) fn object(resources: &Resources<Prepared>, kind: Kind, name: &str) -> Value {
    let found = resources.get(kind, name);
    found
        .unwrap_or_else(|| panic!("there is no {} {name}", kind.name()))
        .clone()
}

/// The pod template of a stage.
pub(crate) fn template(resources: &Resources<Prepared>, name: &str) -> Value {
    object(resources, Kind::Deployment, name)["spec"]["template"].clone()
}

/// What an API server makes of the objects: stamped as they are applied, with identities and defaults of its own.
pub(crate) fn applied(resources: &Resources<Prepared>, now: Timestamp) -> Live {
    let mut live = Live::default();
    for object in &resources.objects {
        let mut value = compare::stamped(object.value.clone());
        value["metadata"]["uid"] = json!(format!("uid-of-{}", object.name));
        value["metadata"]["resourceVersion"] = json!("17");
        value["metadata"]["creationTimestamp"] = json!(now.to_string());
        value["metadata"]["managedFields"] = json!([{"manager": "kvasir-operator"}]);
        if object.kind == Kind::Deployment {
            let pod = &mut value["spec"]["template"]["spec"];
            pod["dnsPolicy"] = json!("ClusterFirst");
            pod["restartPolicy"] = json!("Always");
            pod["containers"][0]["terminationMessagePath"] = json!("/dev/termination-log");
            pod["containers"][0]["imagePullPolicy"] = json!("IfNotPresent");
            pod["volumes"][1]["configMap"]["defaultMode"] = json!(420);
            value["status"] = json!({"observedGeneration": 1});
        }
        if object.kind == Kind::Service {
            value["spec"]["clusterIP"] = json!("10.0.0.7");
            value["spec"]["sessionAffinity"] = json!("None");
            value["spec"]["ports"][0]["nodePort"] = json!(31_000);
            value["spec"]
                .as_object_mut()
                .unwrap()
                .remove("publishNotReadyAddresses");
        }
        // items of lists don't say what they are
        value
            .as_object_mut()
            .unwrap()
            .retain(|name, _| name != "apiVersion" && name != "kind");
        live.objects.insert((object.kind, object.name.clone()), value);
    }
    live
}

pub(crate) fn now() -> Timestamp {
    "2026-11-30T12:00:00Z".parse().unwrap()
}

pub(crate) fn later(seconds: i64) -> Timestamp {
    now() + SignedDuration::from_secs(seconds)
}

/// A pod of a window, with a status in the API's own words.
pub(crate) fn pod(ordinal: u32, start: u32, end: u32, status: &Value) -> Pod {
    let name = names::stage("smollm2", ordinal, LayerRange { start, end });
    serde_json::from_value(json!({
        "metadata": {
            "name": format!("{name}-abc"),
            "namespace": "models",
            "creationTimestamp": now().to_string(),
            "labels": {
                "kvasir.dev/ring": "smollm2",
                "kvasir.dev/ordinal": ordinal.to_string(),
                "kvasir.dev/layers": format!("{start}-{end}"),
            }
        },
        "status": status
    }))
    .unwrap()
}

pub(crate) fn ready_pod(ordinal: u32, start: u32, end: u32) -> Pod {
    pod(
        ordinal,
        start,
        end,
        &json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}),
    )
}

/// A pod one of whose containers waits, or ended.
pub(crate) fn stuck_pod(start: u32, end: u32, container: &str, state: &Value, last: &Value, restarts: u32) -> Pod {
    let status = json!({
        "name": container, "image": "registry.example/kvasir-stage:1", "imageID": "", "ready": false,
        "restartCount": restarts, "state": state, "lastState": last,
    });
    let list = if container == "fetch" {
        "initContainerStatuses"
    } else {
        "containerStatuses"
    };
    pod(
        0,
        start,
        end,
        &json!({"phase": "Pending", "conditions": [{"type": "Ready", "status": "False"}], list: [status]}),
    )
}

pub(crate) fn unschedulable_pod(start: u32, end: u32, message: &str) -> Pod {
    pod(
        0,
        start,
        end,
        &json!({"phase": "Pending", "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        ]}),
    )
}

/// The ring as its market sees it.
pub(crate) fn seen(windows: &[(u32, u32)], ready: bool, uncovered: &[(u32, u32)]) -> View {
    let range = |(start, end): &(u32, u32)| LayerRange {
        start: *start,
        end: *end,
    };
    let offered = |(index, window): (usize, &(u32, u32))| OfferedWindow {
        index: index as u32,
        layers: range(window),
        bytes: 1,
        memory: 1,
        state: if ready {
            WindowState::Ready
        } else {
            WindowState::Reserved
        },
        rate: 1,
        uncovered_since: None,
    };
    View::Seen(Box::new(types::RingStatus {
        ring: "models.smollm2.0.0".into(),
        owner: owner().public(),
        epoch: ready.then_some(4),
        proposed: None,
        ready,
        uncovered: uncovered.iter().map(range).collect(),
        waiting: None,
        windows: windows.iter().enumerate().map(offered).collect(),
        claims: Vec::new(),
    }))
}

pub(crate) const WINDOWS: [(u32, u32); 3] = [(0, 10), (10, 20), (20, 30)];

/// A visit whose children are there, with these pods and markets.
#[derive(Clone)]
pub(crate) struct Visit {
    pub(crate) text: String,
    pub(crate) pods: Vec<Pod>,
    pub(crate) views: Vec<View>,
    pub(crate) old: RingStatus,
    pub(crate) now: Timestamp,
    pub(crate) switch: Switch,
    pub(crate) refused: Vec<Refused>,
}

impl Visit {
    pub(crate) fn of(text: &str) -> Visit {
        Visit {
            text: text.into(),
            pods: WINDOWS.iter().map(|(start, end)| ready_pod(0, *start, *end)).collect(),
            views: vec![seen(&WINDOWS, true, &[])],
            old: RingStatus::default(),
            now: now(),
            switch: Switch::Go,
            refused: Vec::new(),
        }
    }

    pub(crate) fn with_pod(mut self, pod: Pod) -> Visit {
        let layers = |pod: &Pod| pod.metadata.labels.as_ref().unwrap()["kvasir.dev/layers"].clone();
        self.pods.retain(|other| layers(other) != layers(&pod));
        self.pods.push(pod);
        self
    }

    pub(crate) fn seen(mut self, view: View) -> Visit {
        self.views = vec![view];
        self
    }

    pub(crate) fn after(mut self, old: RingStatus) -> Visit {
        self.old = old;
        self
    }

    pub(crate) fn at(mut self, seconds: i64) -> Visit {
        self.now = later(seconds);
        self
    }

    pub(crate) fn status(&self) -> RingStatus {
        let validated = validated(&self.text);
        let prepared = build(&validated, &owner()).unwrap();
        let mut live = applied(&prepared, now());
        live.pods.clone_from(&self.pods);
        let observed = Observed {
            old: &self.old,
            generation: Some(3),
            now: self.now,
            validated: &validated,
            live: &live,
            views: &self.views,
            switch: &self.switch,
            refused: &self.refused,
            definition: None,
        };
        status::status(&observed, &prepared.applied())
    }
}

/// A condition as `status/reason: message`.
pub(crate) fn said(status: &RingStatus, type_: &str) -> String {
    let condition = status
        .conditions
        .iter()
        .find(|condition| condition.type_ == type_)
        .unwrap();
    format!("{}/{}: {}", condition.status, condition.reason, condition.message)
}

/// Its beginning.
pub(crate) fn in_short(status: &RingStatus, type_: &str) -> String {
    said(status, type_).split(':').next().unwrap().to_owned()
}

pub(crate) fn owner_reference(value: &Value) -> OwnerReference {
    serde_json::from_value(value["metadata"]["ownerReferences"][0].clone()).unwrap()
}

/// Whatever is waited for comes within this on a busy machine.
pub(crate) const WITHIN: Duration = Duration::from_secs(300);

/// Looks again and again until it is so.
pub(crate) async fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = tokio::time::Instant::now() + WITHIN;
    while !is_so() {
        assert!(tokio::time::Instant::now() < end, "{what} does not come");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
