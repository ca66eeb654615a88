//! Streams: envelopes, usage, comments while nothing comes, failures before and after the first byte.

use super::*;
use crate::ring::handle::RingError;

const CHAT: &str = "/v1/chat/completions";

/// Every chunk has what strict clients ask for.
fn check_envelopes(chunks: &[Value], object: &str) {
    for chunk in chunks {
        assert_eq!(
            (&chunk["object"], &chunk["model"]),
            (&json!(object), &json!("toy")),
            "{chunk}"
        );
        assert_eq!(
            (&chunk["id"], &chunk["created"]),
            (&chunks[0]["id"], &chunks[0]["created"]),
            "{chunk}"
        );
        assert!(
            chunk["id"].is_string() && chunk["created"].is_u64() && chunk["choices"].is_array(),
            "{chunk}"
        );
    }
}

#[tokio::test]
async fn a_stream_opens_with_the_role_and_ends_with_the_reason() {
    let server = start(say("Hey")).await;
    let chunks = server.stream_chat(json!({})).await;
    check_envelopes(&chunks, "chat.completion.chunk");
    let choice =
        |delta: Value, reason: Value| json!([{"index": 0, "delta": delta, "logprobs": null, "finish_reason": reason}]);
    let choices: Vec<&Value> = chunks.iter().map(|chunk| &chunk["choices"]).collect();
    let expected = [
        choice(json!({"role": "assistant", "content": ""}), Value::Null),
        choice(json!({"content": "H"}), Value::Null),
        choice(json!({"content": "e"}), Value::Null),
        choice(json!({"content": "y"}), Value::Null),
        choice(json!({}), json!("stop")),
    ];
    assert_eq!(choices, expected.iter().collect::<Vec<_>>());
}

#[tokio::test]
async fn d1_no_usage_unless_asked_for() {
    let server = start(say("Hey")).await;
    for extra in [
        json!({}),
        json!({"stream_options": {"include_usage": false}}),
        json!({"stream_options": null}),
    ] {
        let chunks = server.stream_chat(extra).await;
        assert!(
            chunks
                .iter()
                .all(|chunk| chunk.get("usage").is_none() && chunk["choices"] != json!([]))
        );
    }
}

#[tokio::test]
async fn d1_usage_comes_in_one_more_chunk_and_is_null_in_all_others() {
    let server = start(say("Hey")).await;
    for (path, body, object) in [
        (CHAT, chat(json!({})), "chat.completion.chunk"),
        ("/v1/completions", completion(json!({})), "text_completion"),
    ] {
        let mut chunks = server
            .chunks(path, with(body, json!({"stream_options": {"include_usage": true}})))
            .await;
        check_envelopes(&chunks, object);
        let last = chunks.pop().unwrap();
        assert_eq!(last["choices"], json!([]));
        let prompt = server.ring.asked.lock().unwrap().last().unwrap().prompt.len();
        let usage = json!({"prompt_tokens": prompt, "completion_tokens": 4, "total_tokens": prompt + 4});
        assert_eq!(last["usage"], usage);
        assert!(
            chunks
                .iter()
                .all(|chunk| chunk.get("usage") == Some(&Value::Null) && chunk["choices"] != json!([]))
        );
    }
}

#[tokio::test]
async fn d1_stream_options_without_a_stream_are_refused() {
    let server = start(say("Hey")).await;
    let (status, body) = server.chat(json!({"stream_options": {"include_usage": true}})).await;
    assert_eq!((status, error(&body).1), (400, Some("stream_options")));
}

#[tokio::test]
async fn completions_stream_their_text() {
    let server = start(say("ab")).await;
    let chunks = server
        .chunks("/v1/completions", completion(json!({"logprobs": 0})))
        .await;
    let text: String = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["text"].as_str())
        .collect();
    assert_eq!(text, "ab");
    assert_eq!(chunks[0]["choices"][0]["logprobs"]["tokens"], json!(["a"]));
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "stop");
}

#[tokio::test]
async fn c1_comments_keep_the_connection_while_the_prompt_is_computed() {
    let mut setup = Setup::new(Script::Slow(Duration::from_millis(400), b"x".to_vec()));
    setup.config.keep_alive = Duration::from_millis(20);
    let server = setup.start().await;
    let response = server.post(CHAT, &chat(json!({"stream": true}))).send().await.unwrap();
    assert_eq!(response.headers()["x-accel-buffering"], "no");
    let text = response.text().await.unwrap();
    let (before, _) = text.split_once("\"content\":\"x\"").unwrap();
    let comments = before.split("\n\n").filter(|event| event.starts_with(':')).count();
    assert!(comments >= 3, "{comments} comments before the first token");
    assert!(text.ends_with("data: [DONE]\n\n"));
}

#[tokio::test]
async fn a_failure_before_the_first_token_has_a_status_of_its_own() {
    let loss = RingError::StageLost {
        detail: "rank 2".into(),
    };
    let server = start(Script::Fail(Vec::new(), loss)).await;
    for stream in [true, false] {
        let (status, body) = server.chat(json!({"stream": stream})).await;
        assert_eq!((status, error(&body).2), (503, Some("stage_lost")));
        assert!(body["error"]["message"].as_str().unwrap().contains("rank 2"));
    }
}

#[tokio::test]
async fn a_failure_after_the_first_token_is_an_event_and_the_end() {
    let loss = RingError::StageLost {
        detail: "rank 2".into(),
    };
    let server = start(Script::Fail(b"ab".to_vec(), loss)).await;
    let events = server
        .events(CHAT, chat(json!({"stream_options": {"include_usage": true}})))
        .await;
    let last: Value = serde_json::from_str(events.last().unwrap()).unwrap();
    assert_eq!(error(&last), (Some("server_error"), None, Some("stage_lost")));
    assert!(events.iter().all(|event| event != "[DONE]"));
    let (status, body) = server.chat(json!({})).await;
    assert_eq!((status, error(&body).2), (503, Some("stage_lost")));
}

#[tokio::test]
async fn a_grammar_that_the_sampler_refuses_is_the_requests_fault() {
    let failed = RingError::Sampling {
        detail: "unknown rule".into(),
    };
    let server = start(Script::Fail(Vec::new(), failed)).await;
    let (status, body) = server.chat(json!({"grammar": "root ::= nothing"})).await;
    assert_eq!((status, error(&body).1), (400, Some("grammar")));
    let (status, body) = server.chat(json!({})).await;
    assert_eq!((status, error(&body).2), (500, Some("sampling_failed")));
}
