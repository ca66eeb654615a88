//! Callers that call too often: told so by name, and what the client makes of it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use axum::{
    Json, Router,
    http::{StatusCode, header},
    response::IntoResponse as _,
    routing::get,
};
use kvasir_market::{ClientError, Limits, MarketClient, Rate, RateLimits, types::Refusal};
use kvasir_wire::trust::NodeKeys;

use crate::world::{Kind, World, enrolment, ready, serve};

const PLENTY: Rate = Rate {
    burst: 1000,
    every: Duration::from_millis(1),
};
/// Five calls, and no further one while a test runs.
const FEW: Rate = Rate {
    burst: 5,
    every: Duration::from_secs(3600),
};

#[tokio::test]
async fn a_key_that_calls_too_often_is_told_so_and_others_go_on() {
    let rates = RateLimits {
        key: FEW,
        address: PLENTY,
    };
    let world = World::with_rates(Kind::Sqlite, Limits::default(), rates).await;
    // Each node enrols with one of its calls.
    world.open().await;
    let url = format!("{}/v1/time", world.url);
    for _ in 0..3 {
        world.node(1).status().await.unwrap();
    }
    let claim = world.claim(1, 1).await;
    let report = world.report(1, 1, ready());
    let error = world.node(1).renew(claim.id, &report).await.unwrap_err();
    let ClientError::Refused {
        status,
        reason,
        message,
        retry_after,
        ..
    } = &error
    else {
        panic!("{error}");
    };
    assert_eq!((*status, reason.as_str()), (429, "TooManyCallsOfKey"));
    assert!(message.starts_with("this key may make 5 calls at once"), "{message}");
    assert_eq!(*retry_after, Some(Duration::from_secs(3600)));
    assert!(error.retryable());
    world.node(3).status().await.expect("another key's calls are its own");
    assert_eq!(reqwest::get(url).await.unwrap().status(), 200);
}

#[tokio::test]
async fn strangers_share_their_addresss_calls_and_members_do_not_suffer() {
    let rates = RateLimits {
        key: PLENTY,
        address: FEW,
    };
    let world = World::with_rates(Kind::Sqlite, Limits::default(), rates).await;
    world.open().await;
    let guess = async || {
        let stranger = Arc::new(NodeKeys::generate().unwrap());
        let client = MarketClient::new(&world.url, stranger).unwrap();
        let token = "no such invite".to_owned().into();
        client
            .enrol(&token, &enrolment())
            .await
            .unwrap_err()
            .reason()
            .to_owned()
    };
    for _ in 0..3 {
        assert_eq!(guess().await, "UnknownInvite");
    }
    let url = format!("{}/v1/time", world.url);
    for _ in 0..2 {
        assert_eq!(reqwest::get(&url).await.unwrap().status(), 200);
    }
    let refused = reqwest::get(&url).await.unwrap();
    assert_eq!(refused.status(), 429);
    assert_eq!(refused.headers()["retry-after"], "3600");
    let refusal: Refusal = serde_json::from_slice(&refused.bytes().await.unwrap()).unwrap();
    assert_eq!(refusal.reason, "TooManyCallsOfAddress");
    assert_eq!(guess().await, "TooManyCallsOfAddress", "with a fresh key too");
    for _ in 0..10 {
        world.node(1).status().await.expect("who was let in before is heard");
    }
}

#[tokio::test]
async fn the_client_leaves_a_market_alone_for_as_long_as_it_asks() {
    let calls = Arc::new(AtomicU32::new(0));
    let busy = {
        let calls = calls.clone();
        move || {
            let call = calls.fetch_add(1, SeqCst);
            async move {
                if call > 0 {
                    return StatusCode::NO_CONTENT.into_response();
                }
                let refusal = Refusal {
                    reason: "TooManyCallsOfKey".to_owned(),
                    message: "later".to_owned(),
                };
                let after = [(header::RETRY_AFTER, "1")];
                (StatusCode::TOO_MANY_REQUESTS, after, Json(refusal)).into_response()
            }
        }
    };
    let (url, _) = serve(Router::new().route("/v1/rings/tea/manifest", get(busy))).await;
    let client = MarketClient::new(&url, Arc::new(NodeKeys::generate().unwrap())).unwrap();
    let begun = Instant::now();
    let refused = client.ring("tea").manifest(0).await.unwrap_err();
    assert!(refused.retryable() && refused.reason() == "TooManyCallsOfKey");
    // another handle of the same client
    assert_eq!(client.clone().ring("tea").manifest(0).await.unwrap(), None);
    assert!(begun.elapsed() >= Duration::from_secs(1), "{:?}", begun.elapsed());
    assert_eq!(calls.load(SeqCst), 2);
}
