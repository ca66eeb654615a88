//! Two operators that could serve the same Ring: one does, and the other says so.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kvasir_operator::holder::ANNOTATION;
use serde_json::{Value, json};

use crate::{
    running::{World, on_volume},
    world::eventually,
};

fn image(world: &World) -> Value {
    let stage = world
        .api
        .get("deployments", "models", "smollm2-0-0-10")
        .unwrap_or_default();
    stage["spec"]["template"]["spec"]["containers"][0]["image"].clone()
}

fn annotated(value: &Value) -> Value {
    json!({"metadata": {"name": "smollm2", "annotations": {ANNOTATION: value}}})
}

fn told(world: &World, by: &str) -> Vec<String> {
    let events = world.api.events();
    let told = events.iter().filter(|(_, event)| event["reason"] == "ManagedElsewhere");
    let notes = told.map(|(_, event)| event["note"].as_str().unwrap().to_owned());
    notes
        .filter(|note| note.contains(&format!("the operator in namespace {by} leaves")))
        .collect()
}

/// The operator has seen this change, and is done with it.
async fn visited(worlds: &[&World]) {
    for round in 0..3 {
        let before: Vec<u64> = worlds.iter().map(|world| world.visits()).collect();
        let touched = json!({"metadata": {"name": "smollm2", "labels": {"round": format!("{round}-{}", before[0])}}});
        worlds[0].api.put("rings", "models", &touched);
        eventually("a visit by each", || {
            worlds
                .iter()
                .zip(&before)
                .all(|(world, before)| world.visits() > *before)
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_operator_serves_a_ring_and_the_second_one_says_so_and_writes_nothing() {
    let first = World::new().await;
    first.apply(&on_volume());
    eventually("the last child", || first.api.names("deployments").len() == 3).await;
    eventually("what it waits for", || {
        first.condition("Ready").as_deref() == Some("False/AwaitingStages")
    })
    .await;
    assert_eq!(first.ring()["status"]["operator"], "kvasir-system");

    let second = first.beside("other");
    eventually("what the second one says", || told(&first, "other").len() == 1).await;
    assert_eq!(
        told(&first, "other"),
        [
            "the operator in namespace other leaves this Ring alone, since the one in namespace kvasir-system serves it: give \
          each its own watchNamespaces, or say which is to serve it: kubectl annotate ring smollm2 \
          kvasir.dev/operator=other"
        ]
    );
    let writes = first.api.writes().len();
    visited(&[&first, &second]).await;
    assert_eq!(first.api.writes()[writes..], [] as [String; 0]);
    assert_eq!(told(&first, "other").len(), 1, "it is told once");

    // the user says which
    first.api.put("rings", "models", &annotated(&json!("other")));
    eventually("the second one's image", || {
        image(&first) == "other.example/kvasir-stage:1"
    })
    .await;
    eventually("its name", || first.ring()["status"]["operator"] == "other").await;
    eventually("what the first one says", || told(&first, "kvasir-system").len() == 1).await;
    visited(&[&second, &first]).await;
    let writes = first.api.writes().len();
    visited(&[&second, &first]).await;
    assert_eq!(first.api.writes()[writes..], [] as [String; 0]);

    // without the annotation who has it keeps it, until its Lease is old
    first.api.put("rings", "models", &annotated(&Value::Null));
    visited(&[&second, &first]).await;
    assert_eq!(first.ring()["status"]["operator"], "other");
    second.end().await;
    let old = Timestamp::now() - SignedDuration::from_secs(600);
    let lease = json!({
        "metadata": {"name": "kvasir-operator"},
        "spec": {"renewTime": format!("{old:.6}"), "leaseDurationSeconds": 15},
    });
    first.api.put("leases", "other", &lease);
    first.api.put(
        "rings",
        "models",
        &json!({"metadata": {"name": "smollm2", "labels": {"round": "last"}}}),
    );
    eventually("the first one's image", || {
        image(&first) == "registry.example/kvasir-stage:1"
    })
    .await;
    eventually("its name", || first.ring()["status"]["operator"] == "kvasir-system").await;
    first.end().await;
}
