//! The loop against an API server in memory and a real market: from a Ring to ready, silence, and its end.

use kvasir_operator::release::FINALIZER;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::{
    files,
    running::{World, off_market, on_volume},
    world::{changed, eventually, open_middle},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ring_becomes_ready_and_then_nothing_is_written_until_it_goes() {
    let world = World::new().await;
    world.apply(&on_volume());
    eventually("the last child", || world.api.names("deployments").len() == 3).await;
    assert_eq!(world.api.names("services"), ["smollm2"]);
    eventually("what it waits for", || {
        world.condition("Ready").as_deref() == Some("False/AwaitingStages")
    })
    .await;
    assert_eq!(world.ring()["metadata"]["finalizers"], json!([FINALIZER]));
    let demanded = world.as_owner().status().await.unwrap();
    assert_eq!(demanded.windows.len(), 3);

    world.serve().await;
    eventually("readiness", || {
        world.condition("Ready").as_deref() == Some("True/LapCompleted")
    })
    .await;
    assert_eq!(world.ring()["status"]["stages"], "3/3");
    assert_eq!(world.condition("Progressing").as_deref(), Some("True/Complete"));

    // a visit for each time that something of it is touched, and not one write
    let writes = world.api.writes();
    for round in 0..5 {
        let visits = world.visits();
        let pod = json!({"metadata": {"name": "smollm2-0-0-10-abc", "annotations": {"round": round.to_string()}}});
        world.api.put("pods", "models", &pod);
        eventually("a visit", || world.visits() > visits).await;
    }
    assert_eq!(world.api.writes()[writes.len()..], [] as [String; 0]);

    let node = world.as_node(0, 10);
    world.api.delete("rings", "models", "smollm2");
    eventually("its end", || world.api.get("rings", "models", "smollm2").is_none()).await;
    assert_eq!(world.api.names("deployments"), [] as [String; 0]);
    off_market(&node).await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_somebody_bent_leads_to_rank_0_again() {
    let world = World::new().await;
    world.apply(&on_volume());
    eventually("the service", || world.api.names("services").len() == 1).await;
    let service = || world.api.get("services", "models", "smollm2").unwrap();
    let mut bent = service();
    let before = bent["spec"]["selector"].clone();
    bent["spec"]["selector"]["x"] = json!("y");
    world.api.put("services", "models", &bent);
    eventually("its own selector", || service()["spec"]["selector"] == before).await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ring_that_nothing_holds_is_off_the_market_after_it_went() {
    // where the operator's rights may go with the namespace, no finalizer keeps a Ring
    let world = World::in_namespaces(&["models"]).await;
    world.apply(&on_volume());
    eventually("the last child", || world.api.names("deployments").len() == 3).await;
    eventually("what it waits for", || {
        world.condition("Ready").as_deref() == Some("False/AwaitingStages")
    })
    .await;
    assert_eq!(world.ring()["metadata"]["finalizers"], Value::Null);
    world.serve().await;
    let node = world.as_node(0, 10);
    world.api.delete("rings", "models", "smollm2");
    assert_eq!(world.ring(), Value::Null, "nothing held it");
    off_market(&node).await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e3_a_relay_that_is_gone_does_not_keep_a_ring() {
    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let relay = format!("http://{}", nobody.local_addr().unwrap());
    drop(nobody);
    let world = World::on(relay).await;
    world.apply(&on_volume());
    eventually("the last child", || world.api.names("deployments").len() == 3).await;
    eventually("what is wrong", || {
        world.condition("Degraded").as_deref() == Some("True/RelayUnreachable")
    })
    .await;
    assert_eq!(world.ring()["metadata"]["finalizers"], json!([FINALIZER]));
    // it has been tried for long enough: the API server's clock stands still, long ago
    world.api.delete("rings", "models", "smollm2");
    eventually("its end", || world.api.get("rings", "models", "smollm2").is_none()).await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e3_nothing_is_made_in_a_namespace_that_ends() {
    let world = World::new().await;
    world.api.terminate("models");
    world.apply(&on_volume());
    // refused before it is known, and allowed to be there
    eventually("the first status", || world.condition("Ready").is_some()).await;
    let visits = world.visits();
    eventually("another visit", || world.visits() > visits).await;
    assert_eq!(world.api.names("secrets"), [] as [String; 0]);
    let tries = || {
        world
            .api
            .writes()
            .iter()
            .filter(|write| write.starts_with("POST"))
            .count()
    };
    eventually("one try", || tries() == 1).await;
    world.api.delete("rings", "models", "smollm2");
    eventually("its end", || world.api.get("rings", "models", "smollm2").is_none()).await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_suspended_ring_has_no_pods_and_is_on_no_market() {
    let world = World::new().await;
    world.apply(&changed(
        &on_volume(),
        "  exact: true",
        "  exact: true\n  suspend: true",
    ));
    eventually("the last child", || world.api.names("deployments").len() == 3).await;
    eventually("sleep", || {
        world.condition("Ready").as_deref() == Some("False/Suspended")
    })
    .await;
    let stage = world.api.get("deployments", "models", "smollm2-0-0-10").unwrap();
    assert_eq!(stage["spec"]["replicas"], 0);
    assert_eq!(world.as_owner().status().await.unwrap_err().reason(), "UnknownRing");
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e1_a_ring_that_can_not_be_read_keeps_no_other_from_being_served() {
    let world = World::new().await;
    let broken = json!({
        "metadata": {"name": "broken", "finalizers": [FINALIZER]}, "spec": {"model": "a text"},
    });
    world.api.put("rings", "models", &broken);
    world.apply(&on_volume());
    eventually("the other's children", || world.api.names("deployments").len() == 3).await;
    world.api.delete("rings", "models", "broken");
    eventually("its end", || world.api.get("rings", "models", "broken").is_none()).await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_of_somebody_elses_is_left_alone_and_named() {
    let world = World::new().await;
    let service = json!({"metadata": {"name": "smollm2"}, "spec": {"selector": {"app": "other"}}});
    world.api.put("services", "models", &service);
    world.apply(&on_volume());
    eventually("what is wrong", || {
        world.condition("Degraded").as_deref() == Some("True/NameInUse")
    })
    .await;
    let service = world.api.get("services", "models", "smollm2").unwrap();
    assert_eq!(service["spec"]["selector"], json!({"app": "other"}));
    assert_eq!(world.api.names("deployments").len(), 3, "all else is there");
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_window_that_is_opened_is_at_once_nobodys_and_the_ring_not_ready() {
    let world = World::without_model().await;
    // leases outlast the test: nothing of this is their end
    let lasting = changed(
        &open_middle(),
        "maxLayers: 10",
        "maxLayers: 10, claimTimeoutSeconds: 3600",
    );
    let open = changed(&lasting, "http://files.models.svc/smollm2.gguf", &files::model().await);
    let closed = changed(
        &open,
        "{layers: {start: 10, end: 20}, open: true}",
        "{layers: {start: 10, end: 20}, pool: gpu}",
    );
    world.apply(&closed);
    eventually("the last child", || world.api.names("deployments").len() == 3).await;
    eventually("what it waits for", || {
        world.condition("Ready").as_deref() == Some("False/AwaitingStages")
    })
    .await;
    world.serve().await;
    eventually("readiness", || {
        world.condition("Ready").as_deref() == Some("True/LapCompleted")
    })
    .await;

    world.apply(&open);
    eventually("what it waits for now", || {
        world.condition("Ready").as_deref() == Some("False/AwaitingClaims")
    })
    .await;
    assert_eq!(world.api.names("deployments"), ["smollm2-0-0-10", "smollm2-0-20-30"]);
    let stage = world.ring()["status"]["rings"][0]["stages"][1].clone();
    assert_eq!(
        (&stage["placement"], &stage["reason"]),
        (&json!("Claimed"), &json!("Unclaimed"))
    );
    let told = world.as_owner().status().await.unwrap();
    let held: Vec<u32> = told.claims.iter().map(|claim| claim.windows.start).collect();
    assert_eq!(held, [0, 2], "the others keep their claims");
    world.end().await;
}
