//! Family E of the cases from the wild: what the user reads.

use kvasir_operator::{apply::refusal, build::Kind};
use serde_json::json;

use crate::world::{RING, Visit, WINDOWS, built, in_short, said, seen, stuck_pod, try_validated, unschedulable_pod};

/// Half-way: the market has no word yet of the middle.
fn visit() -> Visit {
    Visit::of(RING).seen(seen(&WINDOWS, false, &[(10, 20)]))
}

#[test]
fn e2_a_name_that_no_service_can_have_is_refused_in_words() {
    let named = |name: &str| {
        let mut ring = crate::world::ring(RING);
        ring.metadata.name = Some(name.to_owned());
        let error = kvasir_operator::validate::spec(&ring, &crate::world::settings()).unwrap_err();
        (error.reason(), error.to_string())
    };
    assert_eq!(
        named(&"x".repeat(41)),
        (
            "NameTooLong",
            "the Ring's name has 41 characters, and 40 are allowed: make it again with a shorter one".to_owned()
        )
    );
    assert_eq!(named("a.b").0, "InvalidSpec");
    try_validated(&RING.replacen("name: smollm2", &format!("name: {}", "x".repeat(40)), 1)).unwrap();
}

#[test]
fn e4_a_pod_that_no_node_takes_is_told_in_the_schedulers_words() {
    let message = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.";
    let waiting = visit().with_pod(unschedulable_pod(10, 20, message));
    let told = format!("the stage of layers 10..20 of ring 0 (pod smollm2-0-10-20-abc) has no node: {message}");
    let soon = waiting.clone().at(10).status();
    assert_eq!(
        said(&soon, "Scheduled"),
        format!("Unknown/InsufficientCapacity: {told}")
    );
    assert_eq!(soon.rings[0].stages[1].reason.as_deref(), Some("Unschedulable"));
    let late = waiting.after(soon).at(611).status();
    assert_eq!(said(&late, "Scheduled"), format!("False/InsufficientCapacity: {told}"));
    assert_eq!(said(&late, "Ready"), format!("False/InsufficientCapacity: {told}"));
    assert_eq!(in_short(&late, "Progressing"), "False/ProgressDeadlineExceeded");
}

#[test]
fn e4_an_image_that_can_not_be_pulled_is_named_once_for_both_words_of_the_kubelet() {
    let state = |reason: &str, message: &str| json!({"waiting": {"reason": reason, "message": message}});
    let why = "failed to resolve reference: not found";
    let pulling = visit()
        .with_pod(stuck_pod(10, 20, "fetch", &state("ErrImagePull", why), &json!({}), 0))
        .status();
    let backing_off = format!("Back-off pulling image \"x\": ErrImagePull: {why}");
    let waiting = visit()
        .with_pod(stuck_pod(
            10,
            20,
            "fetch",
            &state("ImagePullBackOff", &backing_off),
            &json!({}),
            0,
        ))
        .status();
    let told = "the stage of layers 10..20 of ring 0 (pod smollm2-0-10-20-abc) is not ready: ImagePullBackOff: container \
                fetch: image registry.example/kvasir-stage:1 can't be pulled: failed to resolve reference: not found";
    assert_eq!(said(&pulling, "Ready"), format!("False/StageFailed: {told}"));
    assert_eq!(pulling, waiting, "the two take turns, the Ring's status does not");
    assert_eq!(said(&pulling, "Degraded"), format!("True/StageFailed: {told}"));
    assert_eq!(pulling.rings[0].stages[1].reason.as_deref(), Some("ImagePullBackOff"));
}

#[test]
fn e4_a_secret_that_is_not_there_is_named() {
    let state = json!({"waiting": {"reason": "CreateContainerConfigError", "message": "secret \"api-key\" not found"}});
    let status = visit()
        .with_pod(stuck_pod(10, 20, "stage", &state, &json!({}), 0))
        .status();
    assert!(
        said(&status, "Ready").ends_with("CreateContainerConfigError: container stage: secret \"api-key\" not found"),
        "{}",
        said(&status, "Ready")
    );
}

#[test]
fn e4_a_fetch_that_ends_again_and_again_is_told_in_its_own_words() {
    let log = "2026-11-30T12:00:00Z  INFO fetching\n2026-11-30T12:00:01Z ERROR http://files/x.gguf is not there: check \
               the name\n";
    let last = json!({"terminated": {"exitCode": 1, "reason": "Error", "message": log}});
    let waiting = json!({"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s restarting"}});
    let status = visit()
        .with_pod(stuck_pod(10, 20, "fetch", &waiting, &last, 4))
        .status();
    let told = "CrashLoopBackOff: container fetch: http://files/x.gguf is not there: check the name";
    assert!(said(&status, "Ready").ends_with(told), "{}", said(&status, "Ready"));
    assert_eq!(status.rings[0].stages[1].restarts, Some(4));
    let running = json!({"running": {"startedAt": "2026-11-30T12:00:00Z"}});
    let again = visit()
        .with_pod(stuck_pod(10, 20, "fetch", &running, &last, 4))
        .status();
    assert_eq!(again, status, "it has one reason, whatever it does just now");
}

#[test]
fn e4_a_stage_without_enough_memory_is_told_what_to_raise() {
    let last = json!({"terminated": {"exitCode": 137, "reason": "OOMKilled"}});
    let waiting = json!({"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}});
    let status = visit()
        .with_pod(stuck_pod(10, 20, "stage", &waiting, &last, 3))
        .status();
    assert!(
        said(&status, "Ready")
            .ends_with("OOMKilled: container stage: it took more memory than its limit: raise the pool's memory limit"),
        "{}",
        said(&status, "Ready")
    );
}

#[test]
fn e4_ready_falls_back_when_a_stage_falls() {
    let first = Visit::of(RING).status();
    assert_eq!(in_short(&first, "Ready"), "True/LapCompleted");
    let last = json!({"terminated": {"exitCode": 1, "reason": "Error", "message": "ERROR the disk is full"}});
    let waiting = json!({"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}});
    let fallen = Visit::of(RING)
        .with_pod(stuck_pod(10, 20, "fetch", &waiting, &last, 3))
        .after(first)
        .at(5)
        .status();
    assert_eq!(in_short(&fallen, "Ready"), "False/StageFailed");
    assert_eq!(fallen.ready_replicas, Some(0));
}

#[test]
fn what_the_api_server_refuses_is_told_in_its_words() {
    let resources = built(RING);
    let deployment = resources
        .objects
        .iter()
        .find(|object| object.kind == Kind::Deployment)
        .unwrap();
    let status = serde_json::from_value(json!({
        "code": 403, "reason": "Forbidden", "message": "exceeded quota: small"
    }))
    .unwrap();
    let refused = refusal(deployment, None, &status);
    assert_eq!(
        (refused.reason, refused.message.as_str()),
        (
            "ChildRefused",
            "the API server refuses Deployment smollm2-0-0-10: exceeded quota: small"
        )
    );
}
