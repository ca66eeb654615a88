//! A Ring that didn't change causes no writes.

use kvasir_operator::{
    apply::{changes, gone, refusal},
    build::Kind,
    switch::Switch,
};
use serde_json::json;

use crate::world::{RING, Visit, applied, built, changed, now, validated};

#[test]
fn building_twice_gives_the_same() {
    assert_eq!(built(RING).objects, built(RING).objects);
    assert_eq!(built(RING).demands, built(RING).demands);
}

#[test]
fn what_was_applied_is_not_applied_again() {
    let resources = built(RING);
    let live = applied(&resources, now());
    let changes = changes(&resources, &live, &validated(RING).spec, &Switch::Go);
    assert_eq!(changes, kvasir_operator::apply::Changes::default());
}

#[test]
fn a_status_that_says_the_same_is_not_written_again() {
    let first = Visit::of(RING).status();
    let second = Visit::of(RING).after(first.clone()).at(90).status();
    assert_eq!(second, first, "no time and no counter moves by itself");
}

#[test]
fn whatever_differs_is_applied_and_nothing_else() {
    let resources = built(RING);
    let mut live = applied(&resources, now());
    let stage = "smollm2-0-0-10".to_owned();
    live.objects.get_mut(&(Kind::Deployment, stage.clone())).unwrap()["spec"]["replicas"] = json!(3);
    live.objects.remove(&(Kind::Secret, "smollm2-0-20-30".to_owned()));
    let changes = changes(&resources, &live, &validated(RING).spec, &Switch::Go);
    let put: Vec<(Kind, String)> = changes
        .put
        .into_iter()
        .map(|object| (object.kind, object.name))
        .collect();
    assert_eq!(
        put,
        [(Kind::Secret, "smollm2-0-20-30".to_owned()), (Kind::Deployment, stage)]
    );
    assert_eq!(changes.delete, []);
}

#[test]
fn a_selector_to_which_somebody_added_a_key_is_applied_again() {
    let resources = built(RING);
    let mut live = applied(&resources, now());
    live.objects.get_mut(&(Kind::Service, "smollm2".to_owned())).unwrap()["spec"]["selector"]["x"] = json!("y");
    let changes = changes(&resources, &live, &validated(RING).spec, &Switch::Go);
    let put: Vec<Kind> = changes.put.iter().map(|object| object.kind).collect();
    assert_eq!(put, [Kind::Service], "it leads nowhere");
}

#[test]
fn what_the_ring_has_no_more_goes_and_keys_and_invites_stay() {
    let two = changed(RING, "  exact: true", "  exact: true\n  replicas: 2");
    let mut live = applied(&built(&two), now());
    for kept in ["smollm2-owner", "smollm2-0-invite"] {
        live.objects
            .insert((Kind::Secret, kept.to_owned()), json!({"metadata": {"name": kept}}));
    }
    let spec = validated(RING).spec;
    let changes = changes(&built(RING), &live, &spec, &Switch::Go);
    assert_eq!(changes.put, []);
    let deployments: Vec<&str> = changes
        .delete
        .iter()
        .filter(|(kind, _)| *kind == Kind::Deployment)
        .map(|(_, name)| name.as_str())
        .collect();
    assert_eq!(deployments, ["smollm2-1-0-10", "smollm2-1-10-20", "smollm2-1-20-30"]);
    assert!(
        !changes
            .delete
            .iter()
            .any(|(_, name)| name.ends_with("owner") || name.ends_with("0-invite"))
    );
    assert_eq!(gone(&changes, &live, &spec).into_iter().collect::<Vec<_>>(), [1]);
}

#[test]
fn s12_a_field_that_can_not_change_is_named() {
    let stored = |class: &str| {
        changed(
            RING,
            "{name: cpu, maxStages: 2, memory: 2Gi}",
            &format!("{{name: cpu, maxStages: 2, memory: 2Gi, storage: {{size: 1Gi, storageClassName: {class}}}}}"),
        )
    };
    let live = applied(&built(&stored("fast")), now());
    let slow = built(&stored("slow"));
    let changes = changes(&slow, &live, &validated(&stored("slow")).spec, &Switch::Go);
    let claim = changes
        .put
        .iter()
        .find(|object| object.kind == Kind::PersistentVolumeClaim)
        .unwrap();
    let status = serde_json::from_value(json!({
        "code": 422, "reason": "Invalid", "message": "spec is immutable after creation",
        "details": {"causes": [{"reason": "FieldValueForbidden", "message": "", "field": "spec"}]}
    }))
    .unwrap();
    let refused = refusal(claim, live.get(claim.kind, &claim.name), &status);
    assert_eq!(refused.reason, "ImmutableField");
    assert_eq!(
        refused.message,
        "spec.storageClassName of PersistentVolumeClaim smollm2-0-0-10 can't be changed: set it back, or delete the \
         PersistentVolumeClaim for a new one (spec is immutable after creation)"
    );
}
