//! The API over HTTP, against a scripted ring.

mod answers;
mod clients;
mod errors;
mod openai;
mod slow;
mod streams;

use reqwest::{Client, RequestBuilder, Response};
use serde_json::{Value, json};
use std::sync::{Arc, Once};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::connections::HEAD_WITHIN;
use super::fake::{Bytes, Script, Scripted};
use super::{ApiConfig, Shutdown, router, serve_within};

/// Nothing here takes longer unless it hangs.
const DEADLINE: Duration = Duration::from_secs(20);

/// A server on a port of its own.
struct Server {
    url: String,
    ring: Arc<Scripted>,
    client: Client,
    stop: CancellationToken,
    serving: JoinHandle<()>,
}

/// What a test may change of a server before it starts.
struct Setup {
    config: ApiConfig,
    ring: Scripted,
    tokenizer: Bytes,
    /// time for answers in progress once it is to end
    drain: Duration,
    head_within: Duration,
}

impl Setup {
    fn new(script: Script) -> Setup {
        Setup {
            config: ApiConfig::new("toy"),
            ring: Scripted::new(script),
            tokenizer: Bytes::default(),
            drain: DEADLINE,
            head_within: HEAD_WITHIN,
        }
    }

    async fn start(mut self) -> Server {
        static PROVIDER: Once = Once::new();
        PROVIDER.call_once(|| {
            let _ = rustls::crypto::ring::default_provider().install_default();
        });
        let ring = Arc::new(self.ring);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let stop = CancellationToken::new();
        let shutdown = Shutdown::on(stop.clone());
        self.config.shutdown = shutdown.clone();
        let router = router(ring.clone(), Arc::new(self.tokenizer), self.config);
        let serving = tokio::spawn(serve_within(listener, router, shutdown, self.drain, self.head_within));
        Server {
            url,
            ring,
            client: Client::new(),
            stop,
            serving,
        }
    }
}

async fn start(script: Script) -> Server {
    Setup::new(script).start().await
}

fn say(text: &str) -> Script {
    Script::Say(text.as_bytes().to_vec())
}

/// A chat request with `extra` fields.
fn chat(extra: Value) -> Value {
    with(
        json!({"model": "toy", "messages": [{"role": "user", "content": "Hi"}]}),
        extra,
    )
}

/// A completion request with `extra` fields.
fn completion(extra: Value) -> Value {
    with(json!({"model": "toy", "prompt": "Once"}), extra)
}

fn with(mut body: Value, extra: Value) -> Value {
    let Value::Object(extra) = extra else {
        panic!("not fields: {extra}")
    };
    body.as_object_mut().unwrap().extend(extra);
    body
}

impl Server {
    fn post(&self, path: &str, body: &Value) -> RequestBuilder {
        let request = self
            .client
            .post(format!("{}{path}", self.url))
            .header("content-type", "application/json");
        request.body(body.to_string()).timeout(DEADLINE)
    }

    async fn get(&self, path: &str) -> Response {
        self.client
            .get(format!("{}{path}", self.url))
            .timeout(DEADLINE)
            .send()
            .await
            .unwrap()
    }

    /// Status and body of a request that isn't streamed.
    async fn ask(&self, path: &str, body: Value) -> (u16, Value) {
        read(self.post(path, &body).send().await.unwrap()).await
    }

    async fn chat(&self, extra: Value) -> (u16, Value) {
        self.ask("/v1/chat/completions", chat(extra)).await
    }

    async fn completion(&self, extra: Value) -> (u16, Value) {
        self.ask("/v1/completions", completion(extra)).await
    }

    /// The `data` of all events of a streamed request, as text.
    async fn events(&self, path: &str, body: Value) -> Vec<String> {
        let response = self
            .post(path, &with(body, json!({"stream": true})))
            .send()
            .await
            .unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        let text = response.text().await.unwrap();
        text.split("\n\n")
            .filter_map(|event| event.strip_prefix("data: "))
            .map(String::from)
            .collect()
    }

    /// The chunks of a streamed request that ends well.
    async fn chunks(&self, path: &str, body: Value) -> Vec<Value> {
        let mut events = self.events(path, body).await;
        assert_eq!(events.pop().as_deref(), Some("[DONE]"));
        events
            .iter()
            .map(|event| serde_json::from_str(event).unwrap())
            .collect()
    }

    async fn stream_chat(&self, extra: Value) -> Vec<Value> {
        self.chunks("/v1/chat/completions", chat(extra)).await
    }

    /// Waits until the ring holds no stream.
    async fn idle(&self) {
        let mut open = self.ring.open.subscribe();
        tokio::time::timeout(DEADLINE, open.wait_for(|&open| open == 0))
            .await
            .expect("a stream is still held")
            .unwrap();
    }

    /// Waits until the ring has taken a prompt.
    async fn begun(&self) {
        let mut begun = self.ring.begun.subscribe();
        tokio::time::timeout(DEADLINE, begun.wait_for(|&begun| begun > 0))
            .await
            .expect("no prompt came")
            .unwrap();
    }

    /// The prompt that the ring got, as text.
    fn prompt(&self) -> String {
        use super::Tokenizer;
        let asked = self.ring.asked.lock().unwrap();
        let bytes = asked
            .last()
            .unwrap()
            .prompt
            .iter()
            .flat_map(|&token| Bytes::default().special_piece(token));
        String::from_utf8(bytes.collect()).unwrap()
    }
}

async fn read(response: Response) -> (u16, Value) {
    let status = response.status().as_u16();
    let body = response.text().await.unwrap();
    (
        status,
        serde_json::from_str(&body).unwrap_or_else(|_| panic!("not JSON: {body}")),
    )
}

/// Type, param and code of an error body; its message must not be empty.
fn error(body: &Value) -> (Option<&str>, Option<&str>, Option<&str>) {
    let error = &body["error"];
    assert!(
        error["message"].as_str().is_some_and(|message| !message.is_empty()),
        "{body}"
    );
    let fields: Vec<&String> = error.as_object().unwrap().keys().collect();
    assert_eq!(fields, ["message", "type", "param", "code"]);
    (error["type"].as_str(), error["param"].as_str(), error["code"].as_str())
}

/// Contents of all chat chunks, joined.
fn streamed_content(chunks: &[Value]) -> String {
    chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str())
        .collect()
}
