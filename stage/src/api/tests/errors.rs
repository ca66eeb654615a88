//! Every error is OpenAI's: the body's shape, the status, and which field caused it.

use super::*;
use crate::ring::handle::RingError;

const CHAT: &str = "/v1/chat/completions";

#[tokio::test]
async fn d4_a_prompt_beyond_the_context_is_refused_before_any_byte() {
    let mut setup = Setup::new(say("x"));
    setup.ring.context_length = 16;
    let server = setup.start().await;
    for stream in [false, true] {
        let request = completion(json!({"prompt": "0123456789abcdef", "stream": stream}));
        let (status, body) = server.ask("/v1/completions", request).await;
        assert_eq!(status, 400);
        let expected = (
            Some("invalid_request_error"),
            Some("prompt"),
            Some("context_length_exceeded"),
        );
        assert_eq!(error(&body), expected);
        let message = body["error"]["message"].as_str().unwrap();
        assert!(
            message.contains("17 tokens") && message.contains("16 tokens"),
            "{message}"
        );
        let (status, body) = server.chat(json!({"stream": stream})).await;
        assert_eq!((status, error(&body).1), (400, Some("messages")));
    }
    assert_eq!(server.ring.asked.lock().unwrap().len(), 0);
    let (status, _) = server.completion(json!({"prompt": "0123456789abcd"})).await;
    assert_eq!(status, 200);
}

#[tokio::test]
async fn another_model_is_not_found() {
    let server = start(say("x")).await;
    for path in [CHAT, "/v1/completions"] {
        let (status, body) = server
            .ask(path, with(chat(json!({"prompt": "x"})), json!({"model": "gpt"})))
            .await;
        assert_eq!(status, 404);
        assert_eq!(
            error(&body),
            (Some("invalid_request_error"), Some("model"), Some("model_not_found"))
        );
    }
    let (status, _) = server
        .ask(CHAT, json!({"messages": [{"role": "user", "content": "Hi"}]}))
        .await;
    assert_eq!(status, 200, "no model named means the one that is served");
}

#[tokio::test]
async fn unknown_paths_and_methods_have_bodies_of_the_same_shape() {
    let server = start(say("x")).await;
    for (path, code) in [("/v1/nothing", 404), ("/nothing", 404), ("/v1", 404), (CHAT, 405)] {
        let (status, body) = read(server.get(path).await).await;
        assert_eq!(status, code, "{path}");
        let message = body["error"]["message"].as_str().unwrap();
        assert!(message.contains(&format!(" {path}")), "the whole path: {message}");
        error(&body);
    }
    let (status, body) = server.ask("/healthz", json!({})).await;
    assert_eq!(status, 405);
    error(&body);
}

#[tokio::test]
async fn what_is_no_json_object_is_refused_in_the_same_shape() {
    let mut setup = Setup::new(say("x"));
    setup.config.max_body_bytes = 1000;
    let server = setup.start().await;
    let url = format!("{}{CHAT}", server.url);
    let send = |media_type: &'static str, body: String| {
        let request = server.client.post(&url).header("content-type", media_type).body(body);
        async move { read(request.send().await.unwrap()).await }
    };
    for (media_type, text, code) in [
        ("application/json", "{\"messages\": [".to_string(), 400),
        ("application/json", "[1]".to_string(), 400),
        ("application/json", String::new(), 400),
        ("text/plain", chat(json!({})).to_string(), 415),
        (
            "application/json",
            chat(json!({"user": "u".repeat(1000)})).to_string(),
            413,
        ),
        ("application/json; charset=utf-8", chat(json!({})).to_string(), 200),
    ] {
        let (status, body) = send(media_type, text).await;
        assert_eq!(status, code, "{media_type} {body}");
        if code != 200 {
            assert_eq!(error(&body).0, Some("invalid_request_error"));
        }
    }
}

#[tokio::test]
async fn missing_and_wrong_messages_are_named() {
    let server = start(say("x")).await;
    for (extra, param) in [
        (json!({"messages": null}), "messages"),
        (json!({"messages": []}), "messages"),
        (json!({"messages": "Hi"}), "messages"),
        (json!({"messages": [{"role": "user"}]}), "messages[0].content"),
        (json!({"temperature": 3}), "temperature"),
        (json!({"model": 3}), "model"),
    ] {
        let (status, body) = server.chat(extra).await;
        assert_eq!((status, error(&body).1), (400, Some(param)));
    }
    let (status, body) = server.completion(json!({"prompt": null})).await;
    assert_eq!((status, error(&body).1), (400, Some("prompt")));
}

#[tokio::test]
async fn a_template_that_refuses_is_a_400_in_its_own_words() {
    let mut setup = Setup::new(say("x"));
    setup.config.chat_template = Some("{{ raise_exception('System role not supported') }}".into());
    let server = setup.start().await;
    let (status, body) = server.chat(json!({})).await;
    assert_eq!((status, error(&body).1), (400, Some("messages")));
    assert!(
        body["error"]["message"]
            .as_str()
            .unwrap()
            .contains("System role not supported")
    );
}

#[tokio::test]
async fn a_template_that_is_no_jinja_leaves_completions_alone() {
    let mut setup = Setup::new(say("x"));
    setup.config.chat_template = Some("{% if %}".into());
    let server = setup.start().await;
    let (status, body) = server.chat(json!({})).await;
    assert_eq!((status, error(&body).2), (500, Some("chat_template_invalid")));
    assert_eq!(server.completion(json!({})).await.0, 200);
}

#[tokio::test]
async fn what_the_ring_refuses_is_said_by_name() {
    for (refusal, status, kind, code, detail) in [
        (
            RingError::NotReady {
                detail: "layers 4..8 are uncovered".into(),
            },
            503,
            "server_error",
            "ring_not_ready",
            "4..8",
        ),
        (
            RingError::Draining,
            503,
            "server_error",
            "server_draining",
            "shutting down",
        ),
        (
            RingError::Busy { waiting: 9 },
            429,
            "rate_limit_error",
            "server_busy",
            "9",
        ),
    ] {
        let server = start(Script::Refuse(refusal)).await;
        for stream in [false, true] {
            let response = server
                .post(CHAT, &chat(json!({"stream": stream})))
                .send()
                .await
                .unwrap();
            let retry_after = response
                .headers()
                .get("retry-after")
                .map(|value| value.to_str().unwrap().to_string());
            let expected = match code {
                "server_busy" => Some("1"),
                "server_draining" => Some("5"),
                _ => None,
            };
            assert_eq!(retry_after.as_deref(), expected);
            let (answered, body) = read(response).await;
            assert_eq!((answered, error(&body)), (status, (Some(kind), None, Some(code))));
            assert!(body["error"]["message"].as_str().unwrap().contains(detail), "{body}");
        }
    }
}

#[tokio::test]
async fn s2_a_text_that_no_tokens_bring_into_the_context_is_refused_by_its_length() {
    let mut setup = Setup::new(say("x"));
    setup.ring.context_length = 100;
    let server = setup.start().await;
    // the vocabulary's longest token has 12 bytes
    let long = "a".repeat(1_000_000);
    let (status, body) = server.completion(json!({"prompt": long})).await;
    assert_eq!(status, 400);
    let expected = (
        Some("invalid_request_error"),
        Some("prompt"),
        Some("context_length_exceeded"),
    );
    assert_eq!(error(&body), expected);
    let message = body["error"]["message"].as_str().unwrap();
    assert!(
        message.contains("1000000 bytes") && message.contains("100 tokens"),
        "{message}"
    );
    let (status, body) = server
        .chat(json!({"messages": [{"role": "user", "content": "a".repeat(1_000_000)}]}))
        .await;
    assert_eq!((status, error(&body).1), (400, Some("messages")));
    let calls = "</tool_call>".repeat(99);
    assert_eq!(
        server.completion(json!({"prompt": calls})).await.0,
        400,
        "a hundredth token begins the text"
    );
    let calls = "</tool_call>".repeat(98);
    assert_eq!(server.completion(json!({"prompt": calls})).await.0, 200);
}

#[tokio::test]
async fn a_grammar_that_cannot_work_is_refused_before_the_ring_hears_of_it() {
    let server = start(say("x")).await;
    let schema = json!({"type": "json_schema", "json_schema": {"name": "s", "schema": {"const": "impossible"}}});
    for stream in [false, true] {
        for (extra, param) in [
            (json!({"response_format": schema, "stream": stream}), "response_format"),
            (json!({"grammar": "impossible", "stream": stream}), "grammar"),
        ] {
            for (status, body) in [server.chat(extra.clone()).await, server.completion(extra).await] {
                assert_eq!(status, 400);
                assert_eq!(
                    error(&body),
                    (Some("invalid_request_error"), Some(param), Some("invalid_value"))
                );
                assert!(body["error"]["message"].as_str().unwrap().contains("it is impossible"));
            }
        }
    }
    assert_eq!(server.ring.asked.lock().unwrap().len(), 0);
}

#[tokio::test]
async fn a_grammar_that_leads_into_a_dead_end_is_the_requests_fault_however_late() {
    let failed = RingError::Sampling {
        detail: "no token is left to choose".into(),
    };
    let server = start(Script::Fail(b"ab".to_vec(), failed)).await;
    for (extra, param) in [
        (json!({"grammar": "g"}), "grammar"),
        (json!({"response_format": {"type": "json_object"}}), "response_format"),
        (json!({"logit_bias": {"1": -100}}), "logit_bias"),
    ] {
        let (status, body) = server.chat(extra.clone()).await;
        assert_eq!(status, 400);
        assert_eq!(
            error(&body),
            (Some("invalid_request_error"), Some(param), Some("invalid_value"))
        );
        let events = server.events(CHAT, chat(extra)).await;
        let last: Value = serde_json::from_str(events.last().unwrap()).unwrap();
        assert_eq!(error(&last).0, Some("invalid_request_error"));
    }
    let (status, _) = server.chat(json!({"response_format": {"type": "text"}})).await;
    assert_eq!(status, 500, "nothing that the request forbids explains it");
}

#[tokio::test]
async fn an_engine_that_failed_is_told_from_a_stage_that_was_lost() {
    let failed = RingError::EngineFailed {
        detail: "rank 1: the computed row 0 is not finite".into(),
    };
    let server = start(Script::Fail(Vec::new(), failed)).await;
    let (status, body) = server.chat(json!({})).await;
    assert_eq!(
        (status, error(&body)),
        (503, (Some("server_error"), None, Some("engine_failed")))
    );
    assert!(body["error"]["message"].as_str().unwrap().contains("rank 1"));
}
