//! Who may ask: signatures, clocks, nonces, invites, owners.

use std::{sync::Arc, time::Duration};

use kvasir_market::{
    Admission, ClientError, Limits, Market, MarketClient, Store,
    auth::{Call, Credentials},
    router,
    types::InviteRequest,
};
use kvasir_wire::trust::{NodeKeys, OwnerKey};
use reqwest::{Method, StatusCode};
use secrecy::{ExposeSecret, SecretString};

use crate::world::{Place, RING, World, enrolment, eventually, request, serve};

crate::on_both_stores!(
    calls_are_refused_without_a_signature_or_from_strangers,
    a_request_that_comes_twice_counts_once,
    s16_a_clock_45_s_off_is_taken_and_one_10_min_off_is_told_by_how_much,
    an_invite_is_good_for_so_many_nodes_and_until_then,
    the_first_owner_of_a_name_stays_it,
    a_ticket_key_is_made_once,
);

fn wall_clock() -> u64 {
    let since = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
    since.as_millis() as u64
}

async fn calls_are_refused_without_a_signature_or_from_strangers(world: World) {
    world.open().await;
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let paths = [
        (Method::POST, "nodes"),
        (Method::POST, "invites"),
        (Method::GET, "rings"),
        (Method::GET, "ledger"),
        (Method::PUT, "rings/tea"),
        (Method::DELETE, "rings/tea"),
        (Method::POST, "rings/tea/claims"),
        (Method::PUT, "rings/tea/claims/1"),
        (Method::DELETE, "rings/tea/claims/1"),
        (Method::GET, "rings/tea/proposal"),
        (Method::PUT, "rings/tea/manifest"),
        (Method::GET, "rings/tea/manifest"),
        (Method::POST, "rings/tea/positions"),
        (Method::POST, "rings/tea/tickets"),
        (Method::GET, "rings/tea/status"),
    ];
    for (method, path) in paths {
        let url = format!("{}/v1/{path}", world.url);
        let response = http.request(method, url).send().await.unwrap();
        assert_eq!(response.status(), StatusCode::UNAUTHORIZED, "{path}");
        let text = response.text().await.unwrap();
        assert!(text.contains("\"reason\":\"Unsigned\""), "{path}: {text}");
    }

    let stranger = world.client(Arc::new(NodeKeys::generate().unwrap()));
    let ring = stranger.ring(RING);
    let refusals = [
        stranger.offers().await.unwrap_err(),
        stranger.ledger().await.unwrap_err(),
        ring.status().await.unwrap_err(),
        ring.manifest(0).await.unwrap_err(),
        ring.claim(&request(1, "first")).await.unwrap_err(),
        ring.leave(1).await.unwrap_err(),
    ];
    for refusal in refusals {
        assert!(
            matches!(&refusal, ClientError::Refused { status: 403, .. }),
            "{refusal}"
        );
        assert_eq!(refusal.reason(), "NotEnrolled");
        assert!(!refusal.retryable());
    }
    let invite = InviteRequest {
        ring: RING.to_owned(),
        uses: 1,
        expires_in_s: 1,
    };
    let refusals = [
        ring.withdraw().await.unwrap_err(),
        ring.demand(&world.demand()).await.unwrap_err(),
        world.node(0).withdraw().await.unwrap_err(),
        stranger.invite(&invite).await.unwrap_err(),
    ];
    for refusal in refusals {
        assert_eq!(refusal.reason(), "NotOwner", "{refusal}");
    }
    let unknown = world.client(world.owner.clone()).ring("a/b ?");
    let refusal = unknown.status().await.unwrap_err();
    assert_eq!(refusal.reason(), "UnknownRing");
    assert!(refusal.to_string().contains("\"a/b ?\""), "{refusal}");
}

async fn a_request_that_comes_twice_counts_once(world: World) {
    world.open().await;
    let body = serde_json::to_vec(&request(1, "first")).unwrap();
    let target = format!("/v1/rings/{RING}/claims");
    let call = Call {
        method: "POST",
        target: &target,
        body: &body,
    };
    let credentials = Credentials::sign(&*world.nodes[1], &call, wall_clock(), [9; 16]);
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let mut urls = vec![world.url.clone(), world.url.clone()];
    if matches!(world.place, Place::Database(_)) {
        urls.push(world.another_relay().await.1);
    }
    let mut answers = Vec::new();
    for url in urls {
        let sent = http
            .post(format!("{url}{target}"))
            .headers(credentials.headers())
            .body(body.clone());
        let answer = sent.send().await.unwrap();
        answers.push((answer.status().as_u16(), answer.text().await.unwrap()));
    }
    assert_eq!(answers[0].0, 201);
    for (status, text) in &answers[1..] {
        assert_eq!(*status, 401);
        assert!(text.contains("\"reason\":\"Replayed\""), "{text}");
    }
    let other_body = http
        .post(format!("{}{target}", world.url))
        .headers(credentials.headers())
        .body("{}");
    let text = other_body.send().await.unwrap().text().await.unwrap();
    assert!(text.contains("\"reason\":\"BadSignature\""), "{text}");
}

async fn s16_a_clock_45_s_off_is_taken_and_one_10_min_off_is_told_by_how_much(world: World) {
    world.open().await;
    let status = |clock: fn() -> u64| {
        let client = world.client(world.nodes[1].clone()).with_clock(clock).ring(RING);
        async move { client.status().await }
    };
    for clock in [|| wall_clock() + 45_000, || wall_clock() - 45_000] {
        status(clock).await.unwrap();
    }
    let ahead = status(|| wall_clock() + 600_000).await.unwrap_err();
    let ClientError::ClockSkew { by, ahead: true, .. } = &ahead else {
        panic!("{ahead}")
    };
    assert!(by.abs_diff(Duration::from_secs(600)) < Duration::from_secs(5), "{by:?}");
    assert!(ahead.to_string().starts_with("this machine's clock is "), "{ahead}");
    let behind = status(|| wall_clock() - 600_000).await.unwrap_err();
    assert!(
        matches!(behind, ClientError::ClockSkew { ahead: false, .. }),
        "{behind}"
    );
    assert_eq!(behind.reason(), "ClockSkew");
}

async fn an_invite_is_good_for_so_many_nodes_and_until_then(world: World) {
    world.owner().demand(&world.demand()).await.unwrap();
    let enrol = async |node: usize, invite: &SecretString| world.node(node).market().enrol(invite, &enrolment()).await;
    let invite = world.invite(2, 3600).await;
    let enrolled = enrol(1, &invite).await.unwrap();
    assert_eq!(enrolled.node, world.nodes[1].public());
    assert_eq!(enrol(1, &invite).await.unwrap(), enrolled, "again is as good as once");
    enrol(2, &invite).await.unwrap();
    assert_eq!(enrol(3, &invite).await.unwrap_err().reason(), "InviteSpent");
    enrol(1, &invite).await.expect("it is enrolled already");

    let text = invite.expose_secret();
    let last = text.chars().last().unwrap();
    let changed = if last == '0' { '1' } else { '0' };
    let mut forged = text[..text.len() - 1].to_owned();
    forged.push(changed);
    for wrong in [forged.as_str(), "", "kvi_", "nonsense"] {
        let refusal = enrol(3, &wrong.to_owned().into()).await.unwrap_err();
        assert_eq!(refusal.reason(), "UnknownInvite", "{wrong}");
    }

    let short = world.invite(5, 1).await;
    eventually("the invite expires", async || {
        let spare = Arc::new(NodeKeys::generate().unwrap());
        let refusal = world.client(spare).enrol(&short, &enrolment()).await.err()?;
        (refusal.reason() == "InviteSpent").then_some(())
    })
    .await;
}

async fn the_first_owner_of_a_name_stays_it(world: World) {
    world.open().await;
    let other = world.client(Arc::new(OwnerKey::generate().unwrap())).ring(RING);
    for _ in 0..2 {
        let refusal = other.demand(&world.demand()).await.unwrap_err();
        assert_eq!(refusal.reason(), "NotOwner");
        world.owner().withdraw().await.unwrap();
    }
    world.owner().demand(&world.demand()).await.unwrap();
}

async fn a_ticket_key_is_made_once(mut world: World) {
    let key = world.market.tickets().to_bytes();
    world.restart().await;
    assert_eq!(world.market.tickets().to_bytes(), key);
}

#[tokio::test]
async fn a_market_may_know_its_owners() {
    let (known, other) = (OwnerKey::generate().unwrap(), OwnerKey::generate().unwrap());
    let store = Store::memory(Limits::default()).await.unwrap();
    let market = Market::new(store, Admission::Owners(vec![known.public()]))
        .await
        .unwrap();
    let (url, _) = serve(router(market)).await;
    let stranger = other.public();
    let client = MarketClient::new(&url, Arc::new(other)).unwrap().ring(RING);
    let world = World::new(crate::world::Kind::Sqlite).await;
    let refusal = client.demand(&world.demand()).await.unwrap_err();
    assert_eq!(refusal.reason(), "OwnerNotAdmitted");
    let told = refusal.to_string();
    assert!(told.contains(&format!("`kvasir-relay --owner {stranger}`")), "{told}");
    let client = MarketClient::new(&url, Arc::new(known)).unwrap().ring(RING);
    let refusal = client.demand(&world.demand()).await.unwrap_err();
    assert_eq!(refusal.reason(), "BadDelegation", "it gets as far as the rules");
}

/// What lies on the disk lets nobody in.
#[tokio::test]
async fn an_invite_is_not_in_the_store() {
    let world = World::new(crate::world::Kind::Sqlite).await;
    world.owner().demand(&world.demand()).await.unwrap();
    let invite = world.invite(1, 60).await;
    let Place::File(folder) = &world.place else {
        unreachable!("SQLite's")
    };
    let secret = &invite.expose_secret()[20..];
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder.path()).unwrap() {
        let content = std::fs::read(entry.unwrap().path()).unwrap();
        bytes += content.len();
        let held = content.windows(secret.len()).any(|window| window == secret.as_bytes());
        assert!(!held);
    }
    assert!(bytes > 10_000, "is the store elsewhere?");
}
