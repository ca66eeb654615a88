//! Answers that go well: shapes, prompts, caps, stop strings, log-probabilities, tools.

use super::*;
use kvasir_wire::frame::Grammar;

const TOOLS_TEMPLATE: &str = "{% if tools %}{{ tools | tojson }}<tool_call>{% endif %}\
    {% for message in messages %}{{ message.content }}{% endfor %}";

#[tokio::test]
async fn a_chat_answer_has_openais_shape() {
    let server = start(say("Hello")).await;
    let (status, body) = server.chat(json!({})).await;
    assert_eq!(status, 200);
    assert!(body["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert_eq!(body["object"], "chat.completion");
    assert_eq!(body["model"], "toy");
    assert!(body["created"].as_u64().unwrap() > 1_700_000_000);
    let choice = json!({"index": 0, "message": {"role": "assistant", "content": "Hello", "refusal": null},
        "logprobs": null, "finish_reason": "stop"});
    assert_eq!(body["choices"], json!([choice]));
    assert_eq!(
        server.prompt(),
        "<s><|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    );
    let prompt = server.ring.asked.lock().unwrap()[0].prompt.len();
    assert_eq!(
        body["usage"],
        json!({"prompt_tokens": prompt, "completion_tokens": 6, "total_tokens": prompt + 6})
    );
}

#[tokio::test]
async fn a_completion_has_openais_shape_and_takes_text_or_tokens() {
    let server = start(say(" upon")).await;
    for (prompt, expected) in [
        (json!("Once"), "<s>Once"),
        (json!(["Once"]), "<s>Once"),
        (json!([79, 110]), "On"),
        (json!([[79, 110]]), "On"),
        (json!("<s>Once"), "<s>Once"),
    ] {
        let (status, body) = server.completion(json!({"prompt": prompt})).await;
        assert_eq!((status, server.prompt().as_str()), (200, expected));
        assert_eq!(body["object"], "text_completion");
        assert!(body["id"].as_str().unwrap().starts_with("cmpl-"));
        let choice = json!({"index": 0, "text": " upon", "logprobs": null, "finish_reason": "stop"});
        assert_eq!(body["choices"], json!([choice]));
    }
    for (prompt, message) in [
        (json!(["a", "b"]), "2 prompts"),
        (json!([1, 100_000]), "100000"),
        (json!([1, -1]), "-1"),
        (json!([1, "a"]), "\"a\""),
        (json!([]), "no tokens"),
        (json!(7), "must be"),
    ] {
        let (status, body) = server.completion(json!({"prompt": prompt})).await;
        assert_eq!((status, error(&body).1), (400, Some("prompt")));
        assert!(body["error"]["message"].as_str().unwrap().contains(message), "{body}");
    }
}

#[tokio::test]
async fn a_template_that_writes_its_beginning_gets_no_second_one() {
    let mut setup = Setup::new(say("x"));
    setup.config.chat_template = Some("{{ bos_token }}{{ messages[0].content }}".into());
    let server = setup.start().await;
    server.chat(json!({})).await;
    assert_eq!(server.prompt(), "<s>Hi");
}

#[tokio::test]
async fn the_models_own_template_is_used_unless_the_config_has_another() {
    let mut setup = Setup::new(say("x"));
    setup.tokenizer.chat_template = Some("own: {{ messages[0].content }}".into());
    let server = setup.start().await;
    server.chat(json!({})).await;
    assert_eq!(server.prompt(), "<s>own: Hi");
}

#[tokio::test]
async fn d2_parts_null_and_absent_contents_reach_the_prompt() {
    let server = start(say("x")).await;
    let call = json!([{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]);
    let messages = json!([
        {"role": "user", "content": [{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]},
        {"role": "assistant", "content": null, "tool_calls": call},
        {"role": "assistant", "tool_calls": call},
        {"role": "assistant", "content": ""},
        {"role": "assistant", "content": [{"type": "text", "text": "last"}]},
    ]);
    let (status, _) = server.chat(json!({"messages": messages})).await;
    assert_eq!(status, 200);
    let turn = |role: &str, text: &str| format!("<|im_start|>{role}\n{text}<|im_end|>\n");
    let empty = turn("assistant", "");
    let expected = format!(
        "<s>{}{empty}{empty}{empty}{}<|im_start|>assistant\n",
        turn("user", "A\nB"),
        turn("assistant", "last")
    );
    assert_eq!(server.prompt(), expected);
    let image = json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]);
    let (status, body) = server.chat(json!({"messages": image})).await;
    assert_eq!(status, 400);
    let expected = (
        Some("invalid_request_error"),
        Some("messages[0].content[0]"),
        Some("invalid_value"),
    );
    assert_eq!(error(&body), expected);
}

#[tokio::test]
async fn d4_caps_end_an_answer_with_length() {
    let server = start(say("0123456789")).await;
    for caps in [
        json!({"max_completion_tokens": 5}),
        json!({"max_completion_tokens": 5, "max_tokens": 8}),
    ] {
        let (_, body) = server.chat(caps).await;
        assert_eq!(body["choices"][0]["message"]["content"], "01234");
        assert_eq!(body["choices"][0]["finish_reason"], "length");
        assert_eq!(body["usage"]["completion_tokens"], 5);
    }
    for cap in [json!(-1), json!(0)] {
        let (status, body) = server.chat(json!({"max_tokens": cap})).await;
        assert_eq!((status, error(&body).1), (400, Some("max_tokens")));
    }
}

#[tokio::test]
async fn d4_no_cap_means_the_servers_default_within_the_context() {
    let mut setup = Setup::new(say("0123456789"));
    setup.config.default_max_tokens = 7;
    setup.ring.context_length = 20;
    let server = setup.start().await;
    server.completion(json!({"max_tokens": null})).await;
    assert_eq!(server.ring.asked.lock().unwrap().last().unwrap().max_tokens, 7);
    let (status, body) = server
        .completion(json!({"prompt": "0123456789abcde", "max_tokens": 1000}))
        .await;
    assert_eq!(server.ring.asked.lock().unwrap().last().unwrap().max_tokens, 4);
    assert_eq!(status, 200);
    assert_eq!(body["choices"][0]["finish_reason"], "length");
}

#[tokio::test]
async fn d5_cut_and_dead_bytes_are_the_same_text_streamed_and_whole() {
    let bytes = [
        b"a\xf0\x9f\x91\x8d \xff b".as_slice(),
        "👩\u{200d}👧 שלום \0".as_bytes(),
        b"\xf0\x9f",
    ]
    .concat();
    let server = start(Script::Say(bytes.clone())).await;
    let (_, body) = server.chat(json!({})).await;
    let expected = String::from_utf8_lossy(&bytes).into_owned();
    assert_eq!(body["choices"][0]["message"]["content"], expected);
    let chunks = server.stream_chat(json!({})).await;
    assert_eq!(streamed_content(&chunks), expected);
    let emoji = "👩\u{200d}👧 שלום \0";
    server.completion(json!({"prompt": emoji})).await;
    assert_eq!(server.prompt(), format!("<s>{emoji}"));
}

#[tokio::test]
async fn stop_strings_end_the_answer_and_free_the_ring() {
    let server = start(Script::Stall(b"one two STOP three".to_vec())).await;
    let (_, body) = server.chat(json!({"stop": ["STOP", "never"]})).await;
    assert_eq!(body["choices"][0]["message"]["content"], "one two ");
    assert_eq!(body["choices"][0]["finish_reason"], "stop");
    server.idle().await;
    let chunks = server.stream_chat(json!({"stop": "STOP"})).await;
    assert_eq!(streamed_content(&chunks), "one two ");
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "stop");
    server.idle().await;
}

#[tokio::test]
async fn parameters_reach_the_ring() {
    let server = start(say("x")).await;
    let extra = json!({"temperature": 0, "seed": 7, "top_k": 3, "response_format": {"type": "json_object"},
        "ignore_eos": true, "max_tokens": 3});
    server.chat(extra).await;
    let asked = server.ring.asked.lock().unwrap().pop().unwrap();
    assert_eq!(
        (asked.sampling.temperature, asked.sampling.seed, asked.sampling.top_k),
        (0.0, 7, 3)
    );
    assert_eq!(
        asked.sampling.grammar,
        Some(Grammar::JsonSchema("{\"type\":\"object\"}".into()))
    );
    assert_eq!((asked.max_tokens, asked.stop_tokens), (3, Vec::new()));
    server.chat(json!({})).await;
    assert_eq!(
        server.ring.asked.lock().unwrap().pop().unwrap().stop_tokens,
        [Bytes::END]
    );
}

#[tokio::test]
async fn s10_log_probabilities_have_the_shape_of_the_endpoint() {
    let server = start(say("é")).await;
    let (_, body) = server.chat(json!({"logprobs": true})).await;
    let entry =
        |byte: u8, top: Value| json!({"token": "\u{fffd}", "logprob": -0.5, "bytes": [byte], "top_logprobs": top});
    let expected = json!({"content": [entry(0xc3, json!([])), entry(0xa9, json!([]))], "refusal": null});
    assert_eq!(body["choices"][0]["logprobs"], expected);

    let (_, body) = server.chat(json!({"logprobs": true, "top_logprobs": 2})).await;
    let top = &body["choices"][0]["logprobs"]["content"][0]["top_logprobs"];
    let likely = |byte: u8, logprob: f64| json!({"token": "\u{fffd}", "logprob": logprob, "bytes": [byte]});
    assert_eq!(*top, json!([likely(0xc3, -0.5), likely(0xc4, -9999.0)]));

    let chunks = server.stream_chat(json!({"logprobs": true})).await;
    let streamed: Vec<&Value> = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["logprobs"]["content"].as_array())
        .flatten()
        .collect();
    assert_eq!(streamed, [&entry(0xc3, json!([])), &entry(0xa9, json!([]))]);

    let (status, body) = server.chat(json!({"top_logprobs": 2})).await;
    assert_eq!((status, error(&body).1), (400, Some("top_logprobs")));
}

#[tokio::test]
async fn s10_completions_have_the_older_shape() {
    let server = start(say("aé")).await;
    let (_, body) = server.completion(json!({"logprobs": 1})).await;
    let expected = json!({
        "tokens": ["a", "bytes:\\xc3", "bytes:\\xa9"],
        "token_logprobs": [-0.5, -0.5, -0.5],
        "top_logprobs": [{"a": -0.5}, {"bytes:\\xc3": -0.5}, {"bytes:\\xa9": -0.5}],
        "text_offset": [0, 1, 1],
    });
    assert_eq!(body["choices"][0]["logprobs"], expected);
}

#[tokio::test]
async fn s10_n_above_one_is_refused_by_name() {
    let server = start(say("x")).await;
    let (status, body) = server.chat(json!({"n": 2})).await;
    assert_eq!(status, 400);
    assert_eq!(
        error(&body),
        (Some("invalid_request_error"), Some("n"), Some("unsupported_parameter"))
    );
}

fn tool() -> Value {
    json!({"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}})
}

async fn with_tools(script: Script) -> Server {
    let mut setup = Setup::new(script);
    setup.config.chat_template = Some(TOOLS_TEMPLATE.into());
    setup.start().await
}

#[tokio::test]
async fn calls_are_read_out_of_the_text() {
    let server = with_tools(say(
        "Wait.\n<tool_call>\n{\"name\": \"now\", \"arguments\": {\"z\": 1}}\n</tool_call>",
    ))
    .await;
    let (_, body) = server.chat(json!({"tools": [tool()]})).await;
    let choice = &body["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls");
    assert_eq!(choice["message"]["content"], "Wait.");
    let call = &choice["message"]["tool_calls"][0];
    assert!(call["id"].as_str().unwrap().starts_with("call_"));
    assert_eq!(call["type"], "function");
    assert_eq!(call["function"], json!({"name": "now", "arguments": "{\"z\":1}"}));
    assert!(
        server.prompt().starts_with("<s>[{\"type\": \"function\""),
        "{}",
        server.prompt()
    );

    let chunks = server.stream_chat(json!({"tools": [tool()]})).await;
    assert_eq!(streamed_content(&chunks), "Wait.");
    let calls: Vec<&Value> = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["delta"].get("tool_calls"))
        .collect();
    assert_eq!(calls.len(), 1);
    assert_eq!(calls[0][0]["index"], 0);
    assert_eq!(
        calls[0][0]["function"],
        json!({"name": "now", "arguments": "{\"z\":1}"})
    );
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");
}

#[tokio::test]
async fn tags_that_are_special_tokens_are_seen_and_an_answer_of_calls_alone_has_no_content() {
    let call = [
        vec![258],
        b"{\"name\":\"now\"}".iter().map(|&byte| i32::from(byte)).collect(),
        vec![259, Bytes::END],
    ];
    let server = with_tools(Script::Tokens(call.concat())).await;
    let (_, body) = server.chat(json!({"tools": [tool()]})).await;
    assert_eq!(body["choices"][0]["message"]["content"], Value::Null);
    assert_eq!(
        body["choices"][0]["message"]["tool_calls"][0]["function"]["name"],
        "now"
    );
    let (_, body) = server.chat(json!({"tools": [tool()], "tool_choice": "none"})).await;
    assert_eq!(body["choices"][0]["message"]["content"], "{\"name\":\"now\"}");
    assert_eq!(server.prompt(), "<s>Hi");
}

#[tokio::test]
async fn a_forced_call_is_a_grammar() {
    let server = with_tools(say("x")).await;
    let choices = [
        json!("required"),
        json!({"type": "function", "function": {"name": "now"}}),
    ];
    for choice in choices {
        let (status, _) = server.chat(json!({"tools": [tool()], "tool_choice": choice})).await;
        assert_eq!(status, 200);
        let asked = server.ring.asked.lock().unwrap().pop().unwrap();
        assert!(matches!(asked.sampling.grammar, Some(Grammar::Gbnf(gbnf)) if gbnf.contains("name ::= \"now\"")));
    }
    for (extra, param) in [
        (
            json!({"tools": [tool()], "tool_choice": {"type": "function", "function": {"name": "other"}}}),
            "tool_choice",
        ),
        (json!({"tool_choice": "required"}), "tool_choice"),
        (
            json!({"tools": [tool()], "tool_choice": "required", "response_format": {"type": "json_object"}}),
            "tool_choice",
        ),
        (
            json!({"tools": [{"type": "function", "function": {"name": "no spaces"}}]}),
            "tools[0].function.name",
        ),
        (json!({"tools": [{"type": "retrieval"}]}), "tools[0].type"),
    ] {
        let (status, body) = server.chat(extra).await;
        assert_eq!((status, error(&body).1), (400, Some(param)));
    }
}

#[tokio::test]
async fn tools_for_a_model_that_takes_none_are_refused() {
    let server = start(say("x")).await;
    let (status, body) = server.chat(json!({"tools": [tool()]})).await;
    assert_eq!((status, error(&body).1), (400, Some("tools")));
}

#[tokio::test]
async fn models_are_listed_and_found_by_name() {
    let mut setup = Setup::new(say("x"));
    setup.config.model_name = "org/toy:Q4".into();
    let server = setup.start().await;
    let (_, list) = read(server.get("/v1/models").await).await;
    assert_eq!(list["object"], "list");
    let model = &list["data"][0];
    assert_eq!(
        (&model["id"], &model["object"], &model["context_length"]),
        (&json!("org/toy:Q4"), &json!("model"), &json!(512))
    );
    let (status, one) = read(server.get("/v1/models/org/toy:Q4").await).await;
    assert_eq!((status, &one), (200, model));
    let (status, one) = read(server.get("/v1/models/org%2Ftoy:Q4").await).await;
    assert_eq!((status, &one), (200, model));
    let (status, body) = read(server.get("/v1/models/other").await).await;
    assert_eq!(status, 404);
    assert_eq!(
        error(&body),
        (Some("invalid_request_error"), Some("model"), Some("model_not_found"))
    );
}
