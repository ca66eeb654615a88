//! The market's calls as a stage makes them: real client, real server, over the loopback.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::Arc;

use axum::{Router, http::StatusCode, routing::get};
use kvasir_market::{
    Board, ClientError, Market, MarketClient, StageReport, StageState,
    board::STALE_AFTER,
    router,
    routes::{LONG_POLL, MAX_BODY},
};
use kvasir_plan::{BoundaryType, LayerRange, Link, ModelRef, Rank, RankManifest};
use kvasir_wire::trust::{NodeKeys, OwnerKey, SignedManifest};
use secrecy::SecretString;

const TOKEN: &str = "s3cret";

struct World {
    market: Arc<Market>,
    url: String,
    nodes: Vec<NodeKeys>,
}

async fn serve(router: Router) -> String {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    url
}

fn plan() -> RankManifest {
    let rank = |start, end| Rank {
        layers: LayerRange { start, end },
        bytes: 1,
        memory: 1,
        placement: None,
        holder: None,
    };
    RankManifest {
        ring: "tea".to_owned(),
        epoch: 0,
        model: ModelRef {
            name: "tea".to_owned(),
            architecture: "llama".to_owned(),
            identity: "1".repeat(64),
            embedding_length: 8,
            layers: 4,
            vocabulary: 10,
            prefix_bytes: Vec::new(),
        },
        boundary_type: BoundaryType::F32,
        exact: true,
        context_length: 64,
        sequences: 1,
        max_laps: 4,
        max_lap_tokens: 16,
        ranks: vec![rank(0, 2), rank(2, 4)],
    }
}

impl World {
    async fn new() -> Self {
        let owner = OwnerKey::generate().unwrap();
        let public = owner.public();
        let delegate = Box::new(move |node| Some(owner.delegate("tea", node)));
        let market = Arc::new(Market::new());
        market.open("tea", Board::new(plan(), public, delegate, STALE_AFTER));
        let url = serve(router(market.clone(), Some(SecretString::from(TOKEN)))).await;
        World {
            market,
            url,
            nodes: vec![NodeKeys::generate().unwrap(), NodeKeys::generate().unwrap()],
        }
    }

    fn client(&self) -> MarketClient {
        MarketClient::new(&self.url, "tea", Some(SecretString::from(TOKEN))).unwrap()
    }

    fn report(&self, rank: usize) -> StageReport {
        let link = Link::Direct {
            address: "127.0.0.1:1".to_owned(),
        };
        StageReport {
            holder: self.nodes[rank].holder("first", link),
            layers: plan().ranks[rank].layers,
            identity: "1".repeat(64),
            state: StageState::Ready {
                fetched_bytes: 7,
                resident_bytes: 9,
                backend: "CPU".to_owned(),
            },
            lost_epoch: None,
            lost_reason: None,
            lost_edge: None,
            reach: kvasir_market::types::Reach::default(),
        }
    }
}

#[tokio::test]
async fn a_ring_forms_over_http_and_polls_wake_at_once() {
    let world = World::new().await;
    let waiting = [world.client(), world.client()].map(|client| {
        tokio::spawn(async move { (client.proposal(0).await.unwrap(), client.manifest(0).await.unwrap()) })
    });
    for rank in [1, 0] {
        world.client().report(rank, &world.report(rank as usize)).await.unwrap();
    }
    let proposal = world.client().proposal(0).await.unwrap().unwrap();
    assert_eq!(proposal.manifest.epoch, 1);
    let signed = SignedManifest::sign(&proposal.manifest, &world.nodes[0], proposal.delegation.clone()).unwrap();
    world.client().publish(&signed).await.unwrap();
    for polls in waiting {
        let (proposed, published) = tokio::time::timeout(LONG_POLL / 2, polls).await.unwrap().unwrap();
        // A poll that looked after the publication found no proposal any more and goes on to the manifest.
        assert!(proposed.is_none_or(|proposed| proposed == proposal));
        assert_eq!(published, Some(signed.clone()));
    }
    let status = world.client().status().await.unwrap();
    assert_eq!((status.epoch, status.proposed), (Some(1), None));
    assert!(status.slots.iter().all(kvasir_market::SlotStatus::ready));
    assert_eq!(Some(status), world.market.status("tea"));
}

#[tokio::test]
async fn a_poll_with_nothing_to_tell_ends_empty() {
    let world = World::new().await;
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    for what in ["proposal", "manifest"] {
        let url = format!("{}/v1/rings/tea/{what}?after=0&wait=0", world.url);
        let response = http.get(url).bearer_auth(TOKEN).send().await.unwrap();
        assert_eq!(response.status(), StatusCode::NO_CONTENT);
    }
    let url = serve(Router::new().route("/v1/rings/tea/manifest", get(StatusCode::NO_CONTENT))).await;
    assert_eq!(
        MarketClient::new(&url, "tea", None).unwrap().manifest(0).await.unwrap(),
        None
    );
}

#[tokio::test]
async fn without_the_token_every_call_is_refused() {
    let world = World::new().await;
    for token in [None, Some("s3cre"), Some("s3cret2")] {
        let client = MarketClient::new(&world.url, "tea", token.map(SecretString::from)).unwrap();
        let refusals = [
            client.status().await.unwrap_err(),
            client.report(0, &world.report(0)).await.unwrap_err(),
            client.manifest(0).await.unwrap_err(),
        ];
        for refusal in refusals {
            assert!(
                matches!(&refusal, ClientError::Refused { status: 401, .. }),
                "{refusal}"
            );
            assert_eq!(refusal.reason(), "Unauthorized");
            assert!(!refusal.retryable());
        }
    }
    assert!(
        world
            .market
            .status("tea")
            .unwrap()
            .slots
            .iter()
            .all(|slot| slot.report.is_none())
    );
}

#[tokio::test]
async fn refusals_carry_the_boards_own_words() {
    let world = World::new().await;
    let refusal = world.client().report(1, &world.report(0)).await.unwrap_err();
    assert_eq!(refusal.reason(), "WrongWindow");
    assert!(
        refusal
            .to_string()
            .ends_with("rank 1 is layers 2..4, not 0..2: fetch that window"),
        "{refusal}"
    );
    let other = MarketClient::new(&world.url, "a/b ?", Some(SecretString::from(TOKEN))).unwrap();
    let refusal = other.status().await.unwrap_err();
    assert_eq!(refusal.reason(), "UnknownRing");
    assert!(refusal.to_string().contains("\"a/b ?\""), "{refusal}");
}

#[tokio::test]
async fn bodies_are_bounded_both_ways() {
    let world = World::new().await;
    let mut report = world.report(0);
    report.lost_reason = Some("x".repeat(MAX_BODY));
    let refusal = world.client().report(0, &report).await.unwrap_err();
    assert!(
        matches!(&refusal, ClientError::Refused { status: 413, .. }),
        "{refusal}"
    );

    let endless = || async { axum::body::Body::from_stream(endless_blanks()) };
    let url = serve(Router::new().route("/v1/rings/tea/status", get(endless))).await;
    let error = MarketClient::new(&url, "tea", None)
        .unwrap()
        .status()
        .await
        .unwrap_err();
    assert_eq!(error.reason(), "AnswerTooLong");
}

fn endless_blanks() -> impl futures::Stream<Item = Result<Vec<u8>, std::convert::Infallible>> + Send + 'static {
    futures::stream::repeat_with(|| Ok(vec![b' '; 64 * 1024]))
}

#[tokio::test]
async fn a_page_from_something_in_between_is_not_repeated() {
    let gateway = || async { (StatusCode::BAD_GATEWAY, "<html>a long page</html>") };
    let url = serve(Router::new().route("/v1/rings/tea/status", get(gateway))).await;
    let error = MarketClient::new(&url, "tea", None)
        .unwrap()
        .status()
        .await
        .unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("refuses (MarketRefused): HTTP status 502 Bad Gateway"),
        "{error}"
    );
    assert!(error.retryable());
}

#[tokio::test]
async fn nobody_there_is_worth_another_try_and_names_no_secret() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let client = MarketClient::new(&url, "tea", Some(SecretString::from(TOKEN))).unwrap();
    let error = client.status().await.unwrap_err();
    assert_eq!(error.reason(), "MarketUnreachable");
    assert!(error.retryable());
    assert_eq!(error.to_string(), format!("the market at {url} does not answer"));
    assert!(!format!("{client:?} {error:?}").contains(TOKEN));
}

#[test]
fn an_address_must_be_http_without_credentials() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    for address in ["127.0.0.1:80", "ftp://host/", "http://me:pass@host/", "nonsense"] {
        let error = MarketClient::new(address, "tea", None).unwrap_err();
        assert_eq!(error.reason(), "BadMarketAddress", "{address}");
    }
    assert!(MarketClient::new("https://relay.example/base/", "tea", None).is_ok());
}
