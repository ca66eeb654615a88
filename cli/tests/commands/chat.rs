//! `kvasir chat` against endpoints that answer, refuse and break off.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, TcpListener},
};

use assert_cmd::Command;
use serde_json::{Value, json};

use crate::{fails, kvasir};

#[test]
fn chat_says_that_nobody_is_there() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    drop(listener);
    let (code, error) = fails(&["chat", "--url", &url, "hello"]);
    assert_eq!(code, 1);
    assert!(
        error.starts_with(&format!("error: nothing answers at {url}v1/models: is the ring up?")),
        "{error}"
    );
}

/// An endpoint that takes one connection after the other and gives the answers in order, as they are.
fn endpoint(answers: Vec<String>) -> (String, std::thread::JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let serve = move || {
        let mut requests = Vec::new();
        for answer in answers {
            let (mut stream, _) = listener.accept().unwrap();
            let (mut request, mut piece) = (Vec::new(), [0; 4096]);
            // The bodies are small JSON objects and come with the head, or right after it.
            let whole = |request: &[u8]| {
                request.ends_with(b"}") || (request.starts_with(b"GET") && request.ends_with(b"\r\n\r\n"))
            };
            while !whole(&request) {
                let count = stream.read(&mut piece).unwrap();
                request.extend_from_slice(&piece[..count]);
            }
            requests.push(String::from_utf8(request).unwrap());
            stream.write_all(answer.as_bytes()).unwrap();
        }
        requests
    };
    (url, std::thread::spawn(serve))
}

fn answer(status: &str, content_type: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: {content_type}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
    )
}

#[test]
fn chat_streams_the_answer_to_stdout_and_sends_the_key_in_a_header() {
    let delta = |text: &str| {
        format!(
            "data: {}\n\n",
            json!({"choices": [{"index": 0, "delta": {"content": text}}]})
        )
    };
    let events = format!(": alive\n\n{}{}data: [DONE]\n\n", delta("Par"), delta("is."));
    let models = json!({"object": "list", "data": [{"id": "tiny"}]}).to_string();
    let (url, served) = endpoint(vec![
        answer("200 OK", "application/json", &models),
        answer("200 OK", "text/event-stream", &events),
    ]);
    let mut command = Command::cargo_bin("kvasir").unwrap();
    let chat = command.args([
        "chat",
        "--url",
        &url,
        "--temperature",
        "0",
        "What is the capital of France?",
    ]);
    let output = chat.env("KVASIR_API_KEY", "s3cret").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "Paris.\n");
    let requests = served.join().unwrap();
    assert!(
        requests
            .iter()
            .all(|request| request.contains("authorization: Bearer s3cret\r\n"))
    );
    assert!(
        !requests
            .iter()
            .any(|request| request.lines().next().unwrap().contains("s3cret"))
    );
    let body: Value = serde_json::from_str(requests[1].split_once("\r\n\r\n").unwrap().1).unwrap();
    assert_eq!(body["model"], "tiny");
    assert_eq!(body["stream"], true);
    assert_eq!(
        body["messages"],
        json!([{"role": "user", "content": "What is the capital of France?"}])
    );
}

#[test]
fn chat_repeats_the_endpoints_own_words_when_it_refuses_or_breaks_off() {
    let chat = |answer: String| {
        let (url, served) = endpoint(vec![answer]);
        let output = kvasir(&["chat", "--url", &url, "--model", "tiny", "hello"]);
        served.join().unwrap();
        let error = String::from_utf8(output.stderr).unwrap().replace(&url, "URL");
        (output.status.code().unwrap(), error)
    };
    let refusal = json!({"error": {"message": "the ring is not ready", "type": "unavailable"}}).to_string();
    let (code, error) = chat(answer("503 Service Unavailable", "application/json", &refusal));
    assert_eq!(code, 1);
    assert_eq!(
        error,
        "error: URL/v1/chat/completions refuses with status 503 Service Unavailable: the ring is not ready\n"
    );
    let lost = format!("data: {}\n\n", json!({"error": {"message": "the ring lost a stage"}}));
    let (code, error) = chat(answer("200 OK", "text/event-stream", &lost));
    assert_eq!(
        (code, error.as_str()),
        (1, "error: the endpoint stopped the answer: the ring lost a stage\n")
    );
    let cut = "data: {\"choices\":[{\"delta\":{\"content\":\"Par\"}}]}\n\n";
    let (code, error) = chat(answer("200 OK", "text/event-stream", cut));
    assert_eq!((code, error.as_str()), (1, "error: the answer broke off\n"));
}
