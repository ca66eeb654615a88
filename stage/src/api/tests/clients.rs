//! Clients: those that leave, those without a key, those in a browser, and those that watch over the server.

use super::*;
use crate::ring::handle::RingError;
use futures::StreamExt;
use secrecy::SecretString;
use std::io::Write;
use std::sync::Mutex;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

const CHAT: &str = "/v1/chat/completions";

/// A connection that has sent a whole request.
async fn connection(server: &Server, body: &Value) -> TcpStream {
    let mut connection = TcpStream::connect(server.url.strip_prefix("http://").unwrap())
        .await
        .unwrap();
    let body = body.to_string();
    let length = body.len();
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    );
    connection.write_all((head + &body).as_bytes()).await.unwrap();
    connection
}

#[tokio::test]
async fn d6_a_client_that_leaves_mid_stream_frees_its_sequence() {
    let server = start(Script::Stall(b"begun".to_vec())).await;
    let response = server.post(CHAT, &chat(json!({"stream": true}))).send().await.unwrap();
    let mut bytes = response.bytes_stream();
    let first = bytes.next().await.unwrap().unwrap();
    assert!(first.starts_with(b"data: "));
    drop(bytes);
    server.idle().await;
    assert!(
        server
            .get("/metrics")
            .await
            .text()
            .await
            .unwrap()
            .contains("kvasir_api_cancelled_total 1\n")
    );
}

#[tokio::test]
async fn d6_a_client_that_leaves_an_endless_stream_frees_its_sequence() {
    let server = start(Script::Endless).await;
    let response = server.post(CHAT, &chat(json!({"stream": true}))).send().await.unwrap();
    let mut bytes = response.bytes_stream();
    bytes.next().await.unwrap().unwrap();
    drop(bytes);
    server.idle().await;
}

#[tokio::test]
async fn d6_a_client_that_leaves_before_its_answer_frees_its_sequence() {
    for stream in [false, true] {
        // Nothing comes while the prompt is computed, nor after.
        let server = start(Script::Stall(Vec::new())).await;
        let connection = connection(&server, &chat(json!({"stream": stream}))).await;
        server.begun().await;
        drop(connection);
        server.idle().await;
        let metrics = server.get("/metrics").await.text().await.unwrap();
        assert!(
            metrics.contains("kvasir_api_requests_total{route=\"/v1/chat/completions\",code=\"499\"} 1\n"),
            "{metrics}"
        );
    }
}

#[tokio::test]
async fn d6_a_client_that_does_not_read_is_given_up() {
    let mut setup = Setup::new(Script::Endless);
    setup.config.stalled_after = Duration::from_millis(50);
    setup.ring.context_length = 1_000_000;
    let server = setup.start().await;
    let connection = connection(&server, &chat(json!({"stream": true, "max_tokens": 900_000}))).await;
    server.begun().await;
    server.idle().await;
    let metrics = server.get("/metrics").await.text().await.unwrap();
    assert!(
        metrics.contains("kvasir_api_dropped_total{reason=\"ClientStalled\"} 1\n"),
        "{metrics}"
    );
    drop(connection);
}

#[tokio::test]
async fn d6_the_next_request_is_served() {
    let server = start(Script::Echo).await;
    drop(connection(&server, &chat(json!({}))).await);
    assert_eq!(server.chat(json!({})).await.0, 200);
    server.idle().await;
}

#[tokio::test]
async fn d6_health_turns_red_when_answers_stand_still() {
    let mut setup = Setup::new(Script::Stall(b"x".to_vec()));
    setup.config.wedged_after = Duration::from_millis(30);
    let server = setup.start().await;
    assert_eq!(server.get("/healthz").await.status(), 200);
    let response = server.post(CHAT, &chat(json!({"stream": true}))).send().await.unwrap();
    let red = async {
        loop {
            let health = server.get("/healthz").await;
            if health.status() == 503 {
                return read(health).await.1;
            }
        }
    };
    let body = tokio::time::timeout(DEADLINE, red).await.expect("health stays green");
    assert_eq!(error(&body).2, Some("generation_wedged"));
    assert_eq!(server.get("/readyz").await.status(), 503);
    // A ring that says itself that it can't serve is no reason to restart rank 0.
    *server.ring.ready.lock().unwrap() = Err(RingError::NotReady {
        detail: "layers 4..8".into(),
    });
    assert_eq!(server.get("/healthz").await.status(), 200);
    *server.ring.ready.lock().unwrap() = Ok(());
    drop(response);
    server.idle().await;
    let green = async { while server.get("/healthz").await.status() != 200 {} };
    tokio::time::timeout(DEADLINE, green).await.expect("health stays red");
}

#[tokio::test]
async fn readiness_names_what_is_missing() {
    let server = start(say("x")).await;
    assert_eq!(server.get("/readyz").await.status(), 200);
    *server.ring.ready.lock().unwrap() = Err(RingError::NotReady {
        detail: "layers 4..8 are uncovered".into(),
    });
    let (status, body) = read(server.get("/readyz").await).await;
    assert_eq!((status, error(&body).2), (503, Some("ring_not_ready")));
    assert!(body["error"]["message"].as_str().unwrap().contains("layers 4..8"));
    assert_eq!(server.get("/healthz").await.status(), 200);
}

async fn guarded() -> Server {
    let mut setup = Setup::new(say("x"));
    setup.config.api_keys = vec![SecretString::from("sesame")];
    setup.start().await
}

#[tokio::test]
async fn a_key_opens_the_api_and_its_absence_says_how() {
    let server = guarded().await;
    let request = || server.post(CHAT, &chat(json!({})));
    assert_eq!(request().bearer_auth("sesame").send().await.unwrap().status(), 200);
    let by_url = server.post(&format!("{CHAT}?api_key=sesame"), &chat(json!({})));
    for wrong in [
        request(),
        request().bearer_auth("open"),
        request().basic_auth("sesame", Some("sesame")),
        by_url,
    ] {
        let response = wrong.send().await.unwrap();
        assert_eq!(response.headers()["www-authenticate"], "Bearer");
        let (status, body) = read(response).await;
        assert_eq!(status, 401);
        assert_eq!(
            error(&body),
            (Some("invalid_request_error"), None, Some("invalid_api_key"))
        );
        assert!(!body.to_string().contains("sesame"));
    }
    assert_eq!(
        server.get("/v1/nothing").await.status(),
        401,
        "strangers learn nothing of what exists"
    );
    for open in ["/healthz", "/readyz", "/metrics"] {
        assert_eq!(server.get(open).await.status(), 200);
    }
}

#[tokio::test]
async fn s9_a_preflight_needs_no_key_and_a_401_can_be_read() {
    let server = guarded().await;
    let preflight = server
        .client
        .request(reqwest::Method::OPTIONS, format!("{}{CHAT}", server.url))
        .header("origin", "https://app.example")
        .header("access-control-request-method", "POST")
        .header(
            "access-control-request-headers",
            "authorization,content-type,x-stainless-lang",
        )
        .send()
        .await
        .unwrap();
    assert!(preflight.status().is_success());
    let headers = preflight.headers();
    assert_eq!(headers["access-control-allow-origin"], "*");
    assert!(
        headers["access-control-allow-methods"]
            .to_str()
            .unwrap()
            .contains("POST")
    );
    assert_eq!(
        headers["access-control-allow-headers"],
        "authorization,content-type,x-stainless-lang"
    );

    let refused = server
        .post(CHAT, &chat(json!({})))
        .header("origin", "https://app.example")
        .send()
        .await
        .unwrap();
    assert_eq!(refused.status(), 401);
    assert_eq!(refused.headers()["access-control-allow-origin"], "*");
}

#[tokio::test]
async fn s9_without_a_key_only_local_pages_may_call() {
    let server = start(say("x")).await;
    for (origin, allowed) in [
        ("http://localhost:3000", true),
        ("https://127.0.0.1", true),
        ("http://[::1]:8080", true),
        ("https://evil.example", false),
        ("http://localhost.evil.example", false),
        ("null", false),
    ] {
        let response = server
            .post(CHAT, &chat(json!({})))
            .header("origin", origin)
            .send()
            .await
            .unwrap();
        let told = response
            .headers()
            .get("access-control-allow-origin")
            .map(|value| value.to_str().unwrap());
        assert_eq!(told, allowed.then_some(origin));
    }
}

#[tokio::test]
async fn metrics_count_requests_tokens_and_refusals() {
    let server = start(say("abc")).await;
    server.chat(json!({})).await;
    server.chat(json!({"n": 2})).await;
    server.get("/somewhere").await;
    let prompt = server.ring.asked.lock().unwrap()[0].prompt.len();
    let response = server.get("/metrics").await;
    assert!(
        response.headers()["content-type"]
            .to_str()
            .unwrap()
            .starts_with("application/openmetrics-text")
    );
    let text = response.text().await.unwrap();
    for line in [
        "kvasir_api_requests_total{route=\"/v1/chat/completions\",code=\"200\"} 1".to_string(),
        "kvasir_api_requests_total{route=\"/v1/chat/completions\",code=\"400\"} 1".to_string(),
        "kvasir_api_requests_total{route=\"other\",code=\"404\"} 1".to_string(),
        format!("kvasir_api_prompt_tokens_total {prompt}"),
        "kvasir_api_generated_tokens_total 4".to_string(),
        "kvasir_api_first_token_seconds_count 1".to_string(),
        "kvasir_api_inter_token_seconds_count 3".to_string(),
    ] {
        assert!(text.lines().any(|found| found == line), "no '{line}' in\n{text}");
    }
    let busy = start(Script::Refuse(RingError::Busy { waiting: 3 })).await;
    busy.chat(json!({})).await;
    assert!(
        busy.get("/metrics")
            .await
            .text()
            .await
            .unwrap()
            .contains("kvasir_api_dropped_total{reason=\"Busy\"} 1\n")
    );
}

#[tokio::test]
async fn shutdown_lets_answers_in_progress_end() {
    let server = start(Script::Slow(Duration::from_millis(300), b"done".to_vec())).await;
    let request = server.post(CHAT, &chat(json!({})));
    let asking = tokio::spawn(async move { read(request.send().await.unwrap()).await });
    server.begun().await;
    server.stop.cancel();
    let (status, body) = asking.await.unwrap();
    assert_eq!(
        (status, &body["choices"][0]["message"]["content"]),
        (200, &json!("done"))
    );
    server.serving.await.unwrap();
    assert!(
        TcpStream::connect(server.url.strip_prefix("http://").unwrap())
            .await
            .is_err()
    );
}

#[tokio::test]
async fn answers_that_outlast_the_shutdown_are_told_so() {
    let mut setup = Setup::new(Script::Stall(b"begun".to_vec()));
    setup.drain = Duration::from_millis(100);
    let server = setup.start().await;
    let request = server.post(CHAT, &chat(json!({"stream": true})));
    let streaming = tokio::spawn(async move { request.send().await.unwrap().text().await.unwrap() });
    let request = server.post(CHAT, &chat(json!({})));
    let waiting = tokio::spawn(async move { request.send().await.unwrap() });
    let mut begun = server.ring.begun.subscribe();
    begun.wait_for(|&begun| begun == 2).await.unwrap();
    server.stop.cancel();

    let text = streaming.await.unwrap();
    let events: Vec<&str> = text
        .split("\n\n")
        .filter_map(|event| event.strip_prefix("data: "))
        .collect();
    assert!(text.contains("\"content\":\"b\""), "what came before is kept: {text}");
    let last: Value = serde_json::from_str(events.last().unwrap()).unwrap();
    assert_eq!(error(&last), (Some("server_error"), None, Some("server_draining")));
    assert_eq!(last["error"]["message"], "the server is shutting down");
    assert_eq!(events.iter().filter(|event| event.contains("\"error\"")).count(), 1);
    assert!(!text.contains("[DONE]"), "half an answer must not look whole");

    let response = waiting.await.unwrap();
    assert_eq!(response.headers()["retry-after"], "5");
    let (status, body) = read(response).await;
    assert_eq!((status, error(&body).2), (503, Some("server_draining")));
    server.serving.await.unwrap();
    server.ring.open.subscribe().wait_for(|&open| open == 0).await.unwrap();
}

#[tokio::test]
async fn a_client_that_never_reads_does_not_hold_up_the_end() {
    let mut setup = Setup::new(Script::Endless);
    setup.ring.context_length = 1_000_000;
    setup.drain = Duration::ZERO;
    let server = setup.start().await;
    let connection = connection(&server, &chat(json!({"stream": true, "max_tokens": 900_000}))).await;
    server.begun().await;
    server.stop.cancel();
    tokio::time::timeout(DEADLINE, server.serving)
        .await
        .expect("the server hangs")
        .unwrap();
    drop(connection);
}

#[tokio::test]
async fn accepted_connections_are_probed_for_clients_that_vanished() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (accepted, _) = listener.accept().await.unwrap();
    super::super::connections::tune(&accepted).unwrap();
    let socket = socket2::SockRef::from(&accepted);
    assert!(socket.keepalive().unwrap());
    assert!(socket.tcp_keepalive_time().unwrap() <= Duration::from_secs(60));
    #[cfg(target_os = "linux")]
    assert_eq!(socket.tcp_user_timeout().unwrap(), Some(Duration::from_secs(60)));
    assert!(accepted.nodelay().unwrap());
    drop(client);
}

#[test]
fn pages_that_may_call_are_named_by_word_or_origin() {
    use super::super::Cors;
    assert_eq!("guarded".parse(), Ok(Cors::Guarded));
    assert_eq!("any".parse(), Ok(Cors::Any));
    assert_eq!("off".parse(), Ok(Cors::Off));
    let origins = ["https://a.example", "http://localhost:3000"]
        .map(String::from)
        .to_vec();
    assert_eq!(
        "https://a.example, http://localhost:3000".parse(),
        Ok(Cors::Origins(origins))
    );
    for wrong in [
        "",
        "*",
        "a.example",
        "https://",
        "https://a.example/",
        "ftp://a.example",
        "any,off",
    ] {
        assert!(wrong.parse::<Cors>().is_err(), "{wrong:?}");
    }
}

/// What is logged, for all to read.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn a_request_is_one_line_in_the_log_without_texts_queries_or_keys() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_writer(move || writer.clone())
        .with_ansi(false);
    let _guard = tracing::subscriber::set_default(subscriber.with_max_level(tracing::Level::TRACE).finish());
    let server = guarded().await;
    // A place in the code that logs for the first time while other tests run may not know of this subscriber yet.
    server.chat(json!({})).await;
    tracing::callsite::rebuild_interest_cache();
    let body = chat(json!({"messages": [{"role": "user", "content": "whispered"}]}));
    let request = server
        .post(&format!("{CHAT}?api_key=inquery"), &body)
        .bearer_auth("sesame");
    assert_eq!(request.send().await.unwrap().status(), 200);
    server.idle().await;
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    let ours: Vec<&str> = text.lines().filter(|line| line.contains("kvasir_stage::api")).collect();
    let requests: Vec<&&str> = ours
        .iter()
        .filter(|line| line.contains("request method=POST path=/v1/chat/completions code=200"))
        .collect();
    assert_eq!(requests.len(), 1, "{text}");
    for secret in ["whispered", "inquery", "sesame"] {
        assert!(ours.iter().all(|line| !line.contains(secret)), "{secret} in {text}");
    }
}
