//! What keeps the operator from its work is a condition of the Ring, in the API server's words.

use kvasir_operator::{apply::Refused, status};
use serde_json::json;

use crate::{
    running::{World, on_volume},
    world::{RING, Visit, changed, eventually, in_short, model, now, ready_pod, said, seen, try_validated},
};

const FORBIDDEN: &str = "pods is forbidden: User \"system:serviceaccount:kvasir-system:kvasir-operator\" cannot list \
                         resource \"pods\" in API group \"\" in the namespace \"models\"";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_right_that_the_operator_lacks_is_told_and_no_more_once_it_has_it() {
    let world = World::new().await;
    world.apply(&on_volume());
    eventually("the last child", || world.api.names("deployments").len() == 3).await;
    world.api.refuse("GET", "pods", 403, FORBIDDEN);
    let told = format!("OperatorForbidden: can't read Pod in namespace models: {FORBIDDEN}");
    eventually("what is wrong", || {
        world.said("Degraded") == Some(format!("True/{told}"))
    })
    .await;
    assert_eq!(world.said("Ready"), Some(format!("False/{told}")));
    world.api.refuse_nothing();
    eventually("that it is over", || {
        world.condition("Degraded").as_deref() == Some("False/AsExpected")
    })
    .await;
    assert_eq!(world.condition("Ready").as_deref(), Some("False/AwaitingStages"));
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_secret_that_holds_no_owners_key_is_told() {
    let world = World::new().await;
    world.apply(&on_volume());
    eventually("the last child", || world.api.names("deployments").len() == 3).await;
    let secret = json!({"metadata": {"name": "smollm2-owner"}, "data": {"owner.key": "bm8ga2V5"}});
    world.api.put("secrets", "models", &secret);
    eventually("what is wrong", || {
        world.condition("Degraded").as_deref() == Some("True/MalformedKey")
    })
    .await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deployments_that_a_quota_refuses_are_what_keeps_the_ring_from_being_ready() {
    let world = World::new().await;
    let quota = "deployments.apps \"smollm2-0-0-10\" is forbidden: exceeded quota: few";
    world.api.refuse("PATCH", "deployments", 403, quota);
    world.apply(&on_volume());
    let told = format!("ChildRefused: the API server refuses Deployment smollm2-0-0-10: {quota}");
    eventually("what is wrong", || {
        world.said("Degraded") == Some(format!("True/{told}"))
    })
    .await;
    assert_eq!(world.said("Ready"), Some(format!("False/{told}")));
    assert_eq!(world.said("Scheduled"), Some(format!("Unknown/{told}")));
    world.end().await;
}

fn refused(missing: bool) -> Refused {
    Refused {
        reason: "ChildRefused",
        message: "the API server refuses Deployment smollm2-0-10-20: no".into(),
        missing,
    }
}

#[test]
fn a_refused_change_of_what_is_there_keeps_nobody_from_waiting_for_the_stages() {
    let mut visit = Visit::of(RING).seen(seen(&crate::world::WINDOWS, false, &[(10, 20)]));
    visit.refused = vec![refused(false)];
    let status = visit.status();
    assert_eq!(in_short(&status, "Ready"), "False/AwaitingStages");
    assert_eq!(in_short(&status, "Degraded"), "True/ChildRefused");
    assert_eq!(in_short(&status, "Scheduled"), "True/AllScheduled");
}

#[test]
fn a_stage_without_a_pod_is_not_scheduled() {
    let mut visit = Visit::of(RING).seen(seen(&crate::world::WINDOWS, false, &[(10, 20)]));
    visit.pods = vec![ready_pod(0, 0, 10), ready_pod(0, 20, 30)];
    let status = visit.status();
    assert_eq!(
        said(&status, "Scheduled"),
        "Unknown/AwaitingStages: the stage of layers 10..20 of ring 0 has no pod yet"
    );
    assert_eq!(
        said(&status, "Ready"),
        "False/AwaitingStages: the stage of layers 10..20 of ring 0 has no pod yet"
    );
    visit.refused = vec![refused(true)];
    let status = visit.status();
    let told = "ChildRefused: the API server refuses Deployment smollm2-0-10-20: no";
    assert_eq!(said(&status, "Scheduled"), format!("Unknown/{told}"));
    assert_eq!(said(&status, "Ready"), format!("False/{told}"));
}

#[test]
fn a_model_that_was_read_is_resolved_though_it_can_not_be_planned() {
    let gap = changed(
        RING,
        "{layers: {start: 20, end: 30}, pool: cpu}",
        "{layers: {start: 21, end: 30}, pool: cpu}",
    );
    let error = try_validated(&gap).unwrap_err();
    let old = kvasir_api::RingStatus::default();
    let status = status::unplanned(&old, Some(3), now(), &model(), error.reason(), &error.to_string());
    assert_eq!(said(&status, "ModelResolved"), "True/Resolved: llama, 30 layers");
    assert_eq!(in_short(&status, "Accepted"), "False/InvalidPlan");
    assert_eq!(in_short(&status, "Ready"), "False/InvalidPlan");
    assert_eq!(status.model.unwrap().architecture, "llama");
}

#[test]
fn quantities_that_would_keep_an_api_server_busy_for_hours_are_refused() {
    let pool = "{name: cpu, maxStages: 2, memory: 2Gi}";
    let with = |more: &str| changed(RING, pool, &format!("{{name: cpu, maxStages: 2, memory: 2Gi, {more}}}"));
    let told = |text: &str| {
        let error = try_validated(text).unwrap_err();
        assert_eq!(error.reason(), "InvalidSpec");
        error.to_string()
    };
    assert_eq!(
        told(&with("resources: {limits: {memory: '1e999999999'}}")),
        "resources.limits.memory of pool cpu is `1e999999999`: write a number and a unit, such as 500m or 2Gi"
    );
    assert_eq!(
        told(&with("resources: {requests: {cpu: abc}}")),
        "resources.requests.cpu of pool cpu is `abc`: write a number and a unit, such as 500m or 2Gi"
    );
    let overrides = "podOverrides: {spec: {volumes: [{name: x, emptyDir: {sizeLimit: '1E123456'}}]}}";
    assert_eq!(
        told(&with(overrides)),
        "podOverrides.spec.volumes[0].emptyDir.sizeLimit of pool cpu is `1E123456`: write a number and a unit, such as \
         500m or 2Gi"
    );
    try_validated(&with("resources: {limits: {memory: '1e9', cpu: 500m}}")).unwrap();
}

#[test]
fn some_rings_that_serve_are_counted_in_words() {
    let two = changed(RING, "  exact: true", "  exact: true\n  replicas: 2");
    let mut visit = Visit::of(&two);
    visit.views = vec![
        seen(&crate::world::WINDOWS, true, &[]),
        seen(&crate::world::WINDOWS, false, &[(0, 30)]),
    ];
    let status = visit.status();
    assert_eq!(
        said(&status, "Ready"),
        "False/AwaitingStages: 1 of 2 rings serve: the stage of layers 0..10 of ring 1 has no pod yet"
    );
    assert_eq!(status.ready_rings.as_deref(), Some("1/2"));
}
