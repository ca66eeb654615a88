//! A ring forms over HTTP, and what it came to survives.

use kvasir_market::{
    Limits,
    auth::{Call, Credentials},
    types::WindowState,
};
use kvasir_plan::LayerRange;
use reqwest::StatusCode;

use crate::world::{Kind, LIMIT, RING, World, enrolment, ready, request};

crate::on_both_stores!(
    a_ring_forms_over_http_and_polls_wake_at_once,
    a_poll_with_nothing_to_tell_ends_empty,
    epochs_go_on_after_a_restart_and_after_a_withdrawal,
    f4_the_map_names_uncovered_layers_within_the_lease,
    a_relay_that_drains_ends_its_polls,
);

async fn a_ring_forms_over_http_and_polls_wake_at_once(world: World) {
    world.open().await;
    let waiting = [0, 1].map(|node| {
        let client = world.node(node);
        tokio::spawn(async move { (client.proposal(0).await.unwrap(), client.manifest(0).await.unwrap()) })
    });
    world.all_ready().await;
    let proposal = world.node(0).proposal(0).await.unwrap().unwrap();
    assert_eq!(proposal.manifest.epoch, 1);
    let signed = world.publish(0).await;
    for polls in waiting {
        let (proposed, published) = tokio::time::timeout(LIMIT, polls).await.unwrap().unwrap();
        // A poll that looked after the publication found no proposal any more and goes on to the manifest.
        assert!(proposed.is_none_or(|proposed| proposed == proposal));
        assert_eq!(published, Some(signed.clone()));
    }
    let status = world.owner().status().await.unwrap();
    assert_eq!((status.epoch, status.proposed, status.ready), (Some(1), None, false));
    world.close(1).await;
    let status = world.owner().status().await.unwrap();
    assert!(status.ready, "a lap went round");
    assert!(status.claims.iter().all(kvasir_market::types::ClaimStatus::ready));
    assert_eq!(status.uncovered, []);
    world
        .node(0)
        .publish(&signed)
        .await
        .expect("a repeated call after a lost answer");
}

async fn a_poll_with_nothing_to_tell_ends_empty(world: World) {
    world.open().await;
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    for (number, what) in ["proposal", "manifest"].into_iter().enumerate() {
        let target = format!("/v1/rings/{RING}/{what}?after=0&wait=0");
        let call = Call {
            method: "GET",
            target: &target,
            body: b"",
        };
        let now = world.owner().market().time().await.unwrap().now;
        let credentials = Credentials::sign(&*world.nodes[1], &call, now, [number as u8; 16]);
        let url = format!("{}{target}", world.url);
        let response = http.get(url).headers(credentials.headers()).send().await.unwrap();
        assert_eq!(response.status(), StatusCode::NO_CONTENT);
    }
}

async fn epochs_go_on_after_a_restart_and_after_a_withdrawal(mut world: World) {
    world.formed().await;
    world.restart().await;
    let published = world.node(1).manifest(0).await.unwrap().unwrap();
    assert!(published.manifest.contains("\"epoch\":1"));
    world.owner().withdraw().await.unwrap();
    let gone = world.node(1).claim(&request(1, "second")).await.unwrap_err();
    assert_eq!(gone.reason(), "UnknownRing");
    world.owner().demand(&world.demand()).await.unwrap();
    for window in 0..3 {
        let node = window as usize;
        let claim = world.node(node).claim(&request(window, "second")).await.unwrap();
        let report = world.report_of(node, window, "second", ready());
        world.node(node).renew(claim.id, &report).await.unwrap();
    }
    let proposal = world.node(0).proposal(0).await.unwrap().unwrap();
    assert_eq!(proposal.manifest.epoch, 2, "one epoch never names two manifests");
}

async fn f4_the_map_names_uncovered_layers_within_the_lease(world: World) {
    let mut demand = world.demand();
    demand.lease_s = Some(2);
    world.open_as(demand).await;
    let claims = world.all_ready().await;
    world.publish(0).await;
    world.close(1).await;
    // The node in the middle says nothing more; the others go on.
    let silent = LayerRange { start: 2, end: 4 };
    let status = crate::world::eventually("the map marks the silent one", async || {
        for node in [0, 2] {
            let report = world.report(node, node as u32, ready());
            world.node(node).renew(claims[node].id, &report).await.unwrap();
        }
        let status = world.owner().status().await.unwrap();
        (!status.ready).then_some(status)
    })
    .await;
    assert_eq!(status.uncovered, [silent]);
    assert_eq!(status.waiting.as_deref(), Some("nobody serves layers 2..4"));
    let offers = world.node(3).market().offers().await.unwrap();
    let states: Vec<_> = offers[0].windows.iter().map(|window| window.state).collect();
    assert_eq!(states, [WindowState::Ready, WindowState::Open, WindowState::Ready]);
    // Another node takes it, without a restart of anything.
    let claim = world.claim(3, 1).await;
    world
        .node(3)
        .renew(claim.id, &world.report(3, 1, ready()))
        .await
        .unwrap();
    world.publish(1).await;
    world.close(2).await;
    let status = world.owner().status().await.unwrap();
    assert_eq!((status.epoch, status.ready), (Some(2), true));
}

async fn a_relay_that_drains_ends_its_polls(world: World) {
    world.open().await;
    let client = world.node(1);
    let poll = tokio::spawn(async move { client.manifest(0).await });
    world.market.drain();
    let answer = tokio::time::timeout(LIMIT / 2, poll).await.unwrap().unwrap();
    assert_eq!(answer.unwrap(), None);
}

#[tokio::test]
async fn a_full_market_says_what_there_is_no_room_for() {
    let limits = Limits {
        rings: 1,
        nodes: 2,
        invites: 1,
    };
    let world = World::with_limits(Kind::Sqlite, limits).await;
    world.owner().demand(&world.demand()).await.unwrap();
    let mut other = world.demand();
    other.template.ring = "coffee".to_owned();
    other.delegations = Vec::new();
    let client = world.client(world.owner.clone()).ring("coffee");
    let refusal = client.demand(&other).await.unwrap_err();
    assert_eq!(refusal.reason(), "Full");
    assert!(refusal.to_string().contains("room for 1 rings"), "{refusal}");
    assert_eq!(client.status().await.unwrap_err().reason(), "UnknownRing");

    let invite = world.invite(3, 60).await;
    for node in 0..2 {
        world.node(node).market().enrol(&invite, &enrolment()).await.unwrap();
    }
    let refusal = world.node(2).market().enrol(&invite, &enrolment()).await.unwrap_err();
    assert!(refusal.to_string().contains("room for 2 nodes"), "{refusal}");
    world
        .node(1)
        .market()
        .enrol(&invite, &enrolment())
        .await
        .expect("it has its place");
}
