//! The client against servers that don't behave.

use std::sync::Arc;

use axum::{Router, http::StatusCode, routing::get};
use kvasir_market::{ClientError, MarketClient, RingClient, routes::MAX_BODY};
use kvasir_wire::trust::NodeKeys;

use crate::world::{Kind, World, ready, serve};

fn client(url: &str) -> RingClient {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let keys = Arc::new(NodeKeys::generate().unwrap());
    MarketClient::new(url, keys).unwrap().ring("tea")
}

#[tokio::test]
async fn bodies_are_bounded_both_ways() {
    let world = World::new(Kind::Sqlite).await;
    world.open().await;
    let claim = world.claim(1, 1).await;
    let mut report = world.report(1, 1, ready());
    report.lost_reason = Some("x".repeat(MAX_BODY));
    let refusal = world.node(1).renew(claim.id, &report).await.unwrap_err();
    assert!(
        matches!(&refusal, ClientError::Refused { status: 413, .. }),
        "{refusal}"
    );

    let endless = || async { axum::body::Body::from_stream(endless_blanks()) };
    let (url, _) = serve(Router::new().route("/v1/rings/tea/status", get(endless))).await;
    let error = client(&url).status().await.unwrap_err();
    assert_eq!(error.reason(), "AnswerTooLong");
}

fn endless_blanks() -> impl futures::Stream<Item = Result<Vec<u8>, std::convert::Infallible>> + Send + 'static {
    futures::stream::repeat_with(|| Ok(vec![b' '; 64 * 1024]))
}

#[tokio::test]
async fn a_page_from_something_in_between_is_not_repeated() {
    let gateway = || async { (StatusCode::BAD_GATEWAY, "<html>a long page</html>") };
    let (url, _) = serve(Router::new().route("/v1/rings/tea/status", get(gateway))).await;
    let error = client(&url).status().await.unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("refuses (MarketRefused): HTTP status 502 Bad Gateway"),
        "{error}"
    );
    assert!(error.retryable());
}

#[tokio::test]
async fn an_empty_answer_to_a_poll_is_nothing_yet() {
    let (url, _) = serve(Router::new().route("/v1/rings/tea/manifest", get(StatusCode::NO_CONTENT))).await;
    assert_eq!(client(&url).manifest(0).await.unwrap(), None);
}

#[tokio::test]
async fn a_market_under_a_path_of_its_own_takes_the_same_signatures() {
    let world = World::new(Kind::Sqlite).await;
    world.open().await;
    let nested = Router::new().nest("/kvasir", kvasir_market::router(world.market.clone()));
    let (url, _) = serve(nested).await;
    let under = MarketClient::new(&format!("{url}/kvasir/"), world.nodes[1].clone()).unwrap();
    assert_eq!(under.offers().await.unwrap().len(), 1);
}

#[tokio::test]
async fn nobody_there_is_worth_another_try() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let error = client(&url).status().await.unwrap_err();
    assert_eq!(error.reason(), "MarketUnreachable");
    assert!(error.retryable());
    assert_eq!(error.to_string(), format!("the market at {url} does not answer"));
}

#[test]
fn an_address_must_be_http_without_credentials_and_none_is_repeated() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let keys = Arc::new(NodeKeys::generate().unwrap());
    for address in ["127.0.0.1:80", "ftp://host/", "http://me:s3cret@host/", "nonsense"] {
        let error = MarketClient::new(address, keys.clone()).unwrap_err();
        assert_eq!(error.reason(), "BadMarketAddress", "{address}");
        assert!(!format!("{error} {error:?}").contains("s3cret"));
    }
    assert!(MarketClient::new("https://relay.example/base/", keys).is_ok());
}
