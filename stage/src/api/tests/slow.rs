//! Clients that take their time: to send a request they have so much of it, to take an answer as much as it needs.

use super::*;
use futures::StreamExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedWriteHalf;

const SHORT: Duration = Duration::from_millis(200);
const HEAD: &str = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n";

/// Sends a byte now and then, never silent for long.
async fn trickle(mut to: OwnedWriteHalf) {
    let mut ticks = tokio::time::interval(SHORT / 20);
    loop {
        ticks.tick().await;
        if to.write_all(b" ").await.is_err() {
            return;
        }
    }
}

/// What comes back for a request whose beginning comes at once, and the rest byte by byte.
async fn answered(server: &Server, beginning: &str) -> String {
    let mut connection = TcpStream::connect(server.url.strip_prefix("http://").unwrap())
        .await
        .unwrap();
    connection.write_all(beginning.as_bytes()).await.unwrap();
    let (mut from, to) = connection.into_split();
    let sending = tokio::spawn(trickle(to));
    let mut answer = Vec::new();
    // what the server did not read may reset the connection after the answer
    let _ = tokio::time::timeout(DEADLINE, from.read_to_end(&mut answer))
        .await
        .expect("it ends");
    sending.abort();
    String::from_utf8(answer).unwrap()
}

/// An answer is a 408 of OpenAI's shape, after which the connection ends.
fn assert_timeout(answer: &str) {
    let (head, body) = answer
        .split_once("\r\n\r\n")
        .unwrap_or_else(|| panic!("no answer: {answer:?}"));
    assert!(head.starts_with("HTTP/1.1 408 "), "{answer}");
    assert!(head.to_ascii_lowercase().contains("connection: close"), "{answer}");
    let body: Value = serde_json::from_str(body).unwrap();
    assert_eq!(
        error(&body),
        (Some("invalid_request_error"), None, Some("request_timeout"))
    );
}

#[tokio::test]
async fn d6_a_body_that_comes_too_slowly_is_refused_by_name() {
    let mut setup = Setup::new(say("x"));
    setup.config.body_within = SHORT;
    let server = setup.start().await;
    let answer = answered(&server, &format!("{HEAD}content-length: 100000\r\n\r\n{{")).await;
    assert_timeout(&answer);
    assert_eq!(server.chat(json!({})).await.0, 200, "others are served");
    assert_eq!(server.ring.asked.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn d6_a_head_that_comes_too_slowly_is_refused_by_name() {
    let mut setup = Setup::new(say("x"));
    setup.head_within = SHORT;
    let server = setup.start().await;
    assert_timeout(&answered(&server, &format!("{HEAD}x-slow: ")).await);
    // nor does a request that was answered buy a slow one
    let answers = answered(
        &server,
        &format!("GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n{HEAD}x-slow: "),
    )
    .await;
    assert!(answers.starts_with("HTTP/1.1 200 "), "{answers}");
    assert_timeout(&answers[answers.rfind("HTTP/1.1 ").unwrap()..]);
    assert_eq!(server.chat(json!({})).await.0, 200, "others are served");
}

#[tokio::test]
async fn d6_whoever_says_nothing_is_let_go() {
    let mut setup = Setup::new(say("x"));
    setup.head_within = SHORT;
    let server = setup.start().await;
    let mut connection = TcpStream::connect(server.url.strip_prefix("http://").unwrap())
        .await
        .unwrap();
    let mut nothing = Vec::new();
    let ended = tokio::time::timeout(DEADLINE, connection.read_to_end(&mut nothing)).await;
    assert!(ended.is_ok() && nothing.is_empty(), "{nothing:?}");
}

#[tokio::test]
async fn d6_answers_take_longer_than_requests_may() {
    // a prompt that takes its time
    let mut setup = Setup::new(Script::Slow(SHORT * 5, b"at last".to_vec()));
    (setup.head_within, setup.config.body_within) = (SHORT, SHORT);
    let server = setup.start().await;
    assert_eq!(server.chat(json!({})).await.0, 200);
    // a stream whose pauses are filled with comments
    let mut setup = Setup::new(Script::Stall(b"begun".to_vec()));
    (setup.head_within, setup.config.body_within) = (SHORT, SHORT);
    setup.config.keep_alive = SHORT / 4;
    let server = setup.start().await;
    let response = server
        .post("/v1/chat/completions", &chat(json!({"stream": true})))
        .send()
        .await
        .unwrap();
    let mut bytes = response.bytes_stream();
    let cut = async { while bytes.next().await.is_some_and(|piece| piece.is_ok()) {} };
    let cut = tokio::time::timeout(SHORT * 5, cut).await;
    assert!(cut.is_err(), "the stream was cut");
}
