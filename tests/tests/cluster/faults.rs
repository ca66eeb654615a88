//! What keeps a Ring from serving is said in its conditions, and takes nobody else's deletion with it.

use std::time::Duration;

use kvasir_tests::cluster::{Condition, Site, eventually, run};
use serde_json::{Value, json};

use super::{SOON, cluster, name, suspended};

/// For the operator to say why, beyond the Ring's own deadline.
const SAID: Duration = Duration::from_secs(120);
/// Deadline of the Rings here.
const DEADLINE: u32 = 5;
/// For a deletion to end.
const DELETED: Duration = Duration::from_secs(150);

fn impatient(site: &Site) -> Value {
    let mut ring = site.ring();
    ring["spec"]["progressDeadlineSeconds"] = json!(DEADLINE);
    ring
}

/// Each stage's reason, in ring order.
fn reasons(site: &Site, ring: &str) -> Vec<String> {
    let ring = site.get(&["ring", ring]).unwrap();
    let stages = ring["status"]["rings"][0]["stages"].as_array().into_iter().flatten();
    stages
        .map(|stage| stage["reason"].as_str().unwrap_or_default().to_owned())
        .collect()
}

fn not_ready(site: &Site, ring: &str, what: &str) -> Condition {
    site.wait_condition(ring, "Ready", SAID, |c| c.status == "False" && c.message.contains(what))
}

#[test]
fn e4_what_the_scheduler_says_stands_in_the_conditions() {
    let Some(cluster) = cluster() else { return };
    let site = Site::new(cluster, "kvasir-unscheduled");
    site.install(&[]);
    let mut greedy = impatient(&site);
    greedy["metadata"]["name"] = json!("greedy");
    greedy["spec"]["pools"][0]["resources"] = json!({ "limits": { "nvidia.com/gpu": 64 } });
    site.apply(&greedy).unwrap();
    let mut tainted = impatient(&site);
    tainted["metadata"]["name"] = json!("tainted");
    for pool in tainted["spec"]["pools"].as_array_mut().unwrap() {
        pool.as_object_mut().unwrap().remove("tolerations");
    }
    site.apply(&tainted).unwrap();
    for (ring, words) in [
        ("greedy", "Insufficient nvidia.com/gpu"),
        ("tainted", "untolerated taint"),
    ] {
        let scheduled = site.wait_condition(ring, "Scheduled", SAID, |c| {
            c.status == "False" && c.reason == "InsufficientCapacity" && c.message.contains(words)
        });
        assert!(
            scheduled.message.contains("layers"),
            "{ring}: it names the window: {scheduled:?}"
        );
        let ready = site.condition(ring, "Ready").unwrap();
        assert_eq!(ready.status, "False", "{ring}: {ready:?}");
        site.wait_condition(ring, "Progressing", SAID, |c| c.reason == "ProgressDeadlineExceeded");
    }
}

#[test]
fn e4_an_image_that_is_not_there_is_named_with_its_stage() {
    let Some(cluster) = cluster() else { return };
    let site = Site::new(cluster, "kvasir-no-image");
    site.install(&[]);
    let mut ring = impatient(&site);
    ring["spec"]["image"] = json!("kvasir.local/nothing:here");
    ring["spec"]["imagePullPolicy"] = json!("Never");
    site.apply(&ring).unwrap();
    let ready = not_ready(&site, name(&ring), "ErrImageNeverPull");
    let stages = site.stages(name(&ring));
    assert!(
        stages.iter().any(|pod| ready.message.contains(name(pod))),
        "{ready:?} names a stage"
    );
    assert!(reasons(&site, name(&ring)).contains(&"ErrImageNeverPull".to_owned()));
}

/// How messages name the window of a pod.
fn window(pod: &Value) -> String {
    let layers = pod["metadata"]["labels"]["kvasir.dev/layers"].as_str().unwrap();
    format!("layers {}", layers.replace('-', ".."))
}

#[test]
fn e4_a_fetch_that_runs_out_of_memory_is_said_to() {
    let Some(cluster) = cluster() else { return };
    let site = Site::new(cluster, "kvasir-out-of-memory");
    site.install(&[]);
    let mut ring = impatient(&site);
    for pool in ring["spec"]["pools"].as_array_mut().unwrap() {
        pool["podOverrides"] = json!({ "spec": { "initContainers": [
            { "name": "fetch", "resources": { "limits": { "memory": "6Mi" }, "requests": { "memory": "6Mi" } } },
        ] } });
    }
    site.apply(&ring).unwrap();
    // a limit below what a process takes to start is told by the runtime in other words
    let ready = site.wait_condition(name(&ring), "Ready", SAID, |c| {
        c.status == "False" && ["OOMKilled", "StartError"].iter().any(|word| c.message.contains(word))
    });
    assert!(ready.message.contains("fetch"), "{ready:?}");
}

#[test]
fn e4_a_model_that_does_not_exist_is_named() {
    let Some(cluster) = cluster() else { return };
    let site = Site::new(cluster, "kvasir-no-model");
    site.install(&[]);
    let mut ring = impatient(&site);
    ring["spec"]["model"]["source"]["http"]["url"] = json!(site.url("nothing.gguf"));
    site.apply(&ring).unwrap();
    let resolved = site.wait_condition(name(&ring), "ModelResolved", SAID, |c| c.reason == "SourceUnreachable");
    assert_eq!(resolved.status, "False");
    assert!(resolved.message.contains("nothing.gguf is not there"), "{resolved:?}");
    assert!(site.stages(name(&ring)).is_empty());
}

#[test]
fn e4_a_ring_that_was_ready_is_not_when_a_stage_cannot_start_again() {
    let Some(cluster) = cluster() else { return };
    let site = Site::new(cluster, "kvasir-falls");
    site.install(&[]);
    let ring = site.ring();
    site.apply(&ring).unwrap();
    site.wait_ready(name(&ring));
    site.set_model(false);
    let stages = site.stages(name(&ring));
    let lost = stages
        .iter()
        .find(|pod| pod["metadata"]["labels"]["kvasir.dev/rank"].is_null())
        .unwrap();
    site.kubectl(&["delete", "pod", name(lost), "--wait=false"]).unwrap();
    // at first it only fetches; then the container's own failure is told
    site.wait_condition(name(&ring), "Ready", SAID, |c| {
        c.status == "False" && c.message.contains(&window(lost)) && c.message.contains("container fetch")
    });
    let degraded = site.wait_condition(name(&ring), "Degraded", SAID, |c| c.reason == "StageFailed");
    assert_eq!(degraded.status, "True", "{degraded:?}");
    site.set_model(true);
    site.wait_ready(name(&ring));
    site.wait_condition(name(&ring), "Degraded", SAID, |c| c.status == "False");
}

#[test]
fn s12_a_change_that_a_child_cannot_take_is_a_condition_that_names_the_field() {
    let Some(cluster) = cluster() else { return };
    let site = Site::new(cluster, "kvasir-child-fields");
    site.install(&[]);
    let mut ring = site.ring();
    let storage = |size: &str| json!({ "size": size, "storageClassName": "none-such" });
    ring["spec"]["pools"][0]["storage"] = storage("2Gi");
    let ring_name = name(&ring).to_owned();
    site.apply(&suspended(ring.clone(), &ring_name)).unwrap();
    let made = eventually(SOON, || site.list(&["persistentvolumeclaims"]).first().cloned());
    assert!(made.is_some(), "a claim for the cache");
    ring["spec"]["pools"][0]["storage"] = storage("1Gi");
    site.apply(&suspended(ring, &ring_name)).unwrap();
    // the relay may be out of reach for a moment, which degrades it, too
    let told = site.wait_condition(&ring_name, "Degraded", SAID, |c| c.reason == "ImmutableField");
    assert_eq!(told.status, "True", "{told:?}");
    assert!(
        told.message.contains("PersistentVolumeClaim"),
        "{told:?} names the object"
    );
    assert!(told.message.contains("storage"), "{told:?} names the field");
}

#[test]
fn e3_a_ring_goes_by_the_documented_way_when_its_operator_is_gone() {
    let Some(cluster) = cluster() else { return };
    let site = Site::new(cluster, "kvasir-orphaned");
    site.install(&[]);
    let ring = site.ring();
    site.apply(&ring).unwrap();
    site.wait_ready(name(&ring));
    site.uninstall();
    // the way that docs/operator.md names
    site.kubectl(&["delete", "ring", name(&ring), "--wait=false"]).unwrap();
    if site.get(&["ring", name(&ring)]).is_some() {
        let _ = site.kubectl(&[
            "patch",
            "ring",
            name(&ring),
            "--type=merge",
            r#"--patch={"metadata":{"finalizers":null}}"#,
        ]);
    }
    let gone = eventually(DELETED, || {
        let children = ["deployments", "services", "configmaps", "secrets"];
        let selector = format!("--selector=kvasir.dev/ring={}", name(&ring));
        let left = children
            .iter()
            .map(|kind| site.list(&[kind, &selector]).len())
            .sum::<usize>();
        (left == 0 && site.stages(name(&ring)).is_empty()).then_some(())
    });
    assert!(gone.is_some(), "owner references take the children along");
}

#[test]
fn e3_a_namespace_goes_with_its_rings_while_events_are_refused() {
    let Some(cluster) = cluster() else { return };
    let site = Site::new(cluster, "kvasir-events-refused");
    let elsewhere = "kvasir-events-refused-rings";
    let _ = run(&mut cluster.kubectl(["delete", "namespace", elsewhere, "--ignore-not-found"]));
    run(&mut cluster.kubectl(["create", "namespace", elsewhere])).unwrap();
    site.install(&[&format!("watchNamespaces[1]={elsewhere}")]);
    // events of this namespace are refused with 403
    let role = ["role", "kvasir-operator", "--namespace", elsewhere];
    let rules = cluster.get(&role).unwrap()["rules"].as_array().unwrap().clone();
    let events = rules
        .iter()
        .position(|rule| rule["resources"] == json!(["events"]))
        .unwrap();
    let mut patch = cluster.kubectl(["patch"]);
    let remove = format!(r#"--patch=[{{"op":"remove","path":"/rules/{events}"}}]"#);
    run(patch.args(role).args(["--type=json", &remove])).unwrap();
    let ring = site.ring();
    cluster.apply(&ring, &["--namespace", elsewhere]).unwrap();
    let ready = eventually(Duration::from_secs(120), || {
        let ring = cluster.get(&["ring", name(&ring), "--namespace", elsewhere])?;
        (ring["status"]["rings"][0]["ready"] == true).then_some(())
    });
    assert!(ready.is_some(), "a Ring whose events are refused is served");

    run(&mut cluster.kubectl(["delete", "namespace", elsewhere, "--wait=false"])).unwrap();
    let gone = eventually(DELETED, || {
        cluster.get(&["namespace", elsewhere]).is_none().then_some(())
    });
    assert!(gone.is_some(), "the namespace is gone within {DELETED:?}");
    let log = site
        .kubectl(&["logs", "deployment/kvasir-operator", "--tail=2000"])
        .unwrap();
    let errors = log.lines().filter(|line| line.contains("\"ERROR\"")).count();
    assert!(errors < 20, "{errors} errors in the operator's log:\n{log}");
}

#[test]
fn e3_a_namespace_goes_with_its_rings_and_their_operator() {
    let Some(cluster) = cluster() else { return };
    let site = Site::new(cluster, "kvasir-all-gone");
    site.install(&[]);
    let ring = site.ring();
    site.apply(&ring).unwrap();
    site.wait_ready(name(&ring));
    run(&mut cluster.kubectl(["delete", "namespace", site.namespace(), "--wait=false"])).unwrap();
    let gone = eventually(DELETED, || {
        cluster.get(&["namespace", site.namespace()]).is_none().then_some(())
    });
    assert!(gone.is_some(), "the namespace is gone within {DELETED:?}");
}

#[test]
fn a_right_that_the_operator_lacks_is_told_in_the_api_servers_words() {
    let Some(cluster) = cluster() else { return };
    let site = Site::new(cluster, "kvasir-forbidden");
    site.install(&[]);
    let ring = suspended(site.ring(), "forbidden");
    site.apply(&ring).unwrap();
    site.wait_condition("forbidden", "Ready", SOON, |c| c.reason == "Suspended");
    let role = site.get(&["role", "kvasir-operator"]).unwrap();
    let rules = role["rules"].as_array().unwrap();
    let pods = rules
        .iter()
        .position(|rule| rule["resources"] == json!(["pods"]))
        .unwrap();
    let patch = |patch: Value| {
        let patch = format!("--patch={patch}");
        site.kubectl(&["patch", "role", "kvasir-operator", "--type=json", &patch])
            .unwrap();
    };
    patch(json!([{ "op": "remove", "path": format!("/rules/{pods}") }]));
    // something to do
    site.kubectl(&["scale", "ring", "forbidden", "--replicas=2"]).unwrap();
    let degraded = site.wait_condition("forbidden", "Degraded", SAID, |c| c.reason == "OperatorForbidden");
    assert_eq!(degraded.status, "True");
    assert!(
        degraded.message.contains("cannot list resource \"pods\""),
        "{degraded:?}"
    );
    patch(json!([{ "op": "add", "path": "/rules/-", "value": rules[pods] }]));
    site.wait_condition("forbidden", "Degraded", SAID, |c| c.reason == "AsExpected");
}

#[test]
fn deployments_that_a_quota_refuses_are_what_keeps_a_ring_from_being_ready() {
    let Some(cluster) = cluster() else { return };
    let site = Site::new(cluster, "kvasir-quota");
    site.install(&[]);
    let quota = json!({
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": { "name": "few" },
        // the operator's and the relay's own
        "spec": { "hard": { "count/deployments.apps": "2" } },
    });
    site.apply(&quota).unwrap();
    let ring = site.ring();
    site.apply(&ring).unwrap();
    let ready = site.wait_condition(name(&ring), "Ready", SAID, |c| {
        c.reason == "ChildRefused" && c.message.contains("exceeded quota")
    });
    assert_eq!(ready.status, "False", "{ready:?}");
    let scheduled = site.condition(name(&ring), "Scheduled").unwrap();
    assert_eq!(scheduled.status, "Unknown", "nothing is scheduled: {scheduled:?}");
    site.kubectl(&["delete", "resourcequota", "few"]).unwrap();
    site.wait_ready(name(&ring));
}

#[test]
fn a_volume_that_does_not_exist_is_told_in_the_schedulers_words() {
    let Some(cluster) = cluster() else { return };
    let site = Site::new(cluster, "kvasir-no-volume");
    site.install(&[]);
    let mut ring = site.ring();
    ring["spec"]["model"]["source"] = json!({
        "persistentVolumeClaim": { "claimName": "nothing", "path": "model.gguf" },
    });
    site.apply(&ring).unwrap();
    let resolved = site.wait_condition(name(&ring), "ModelResolved", SAID, |c| c.status == "False");
    assert_eq!(resolved.reason, "SourceUnreachable", "{resolved:?}");
    assert!(
        resolved.message.contains("persistentvolumeclaim \"nothing\" not found"),
        "{resolved:?}"
    );
}
