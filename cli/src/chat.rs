//! `kvasir chat`: talks to an OpenAI-compatible endpoint from the terminal, word by word.

use std::{
    io::{IsTerminal, Write},
    time::Duration,
};

use crate::failure::Usage;
use anyhow::{Context, bail, ensure};
use reqwest::{RequestBuilder, Response, Url};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, BufReader};

/// An answer's line longer than this is refused.
const MAX_LINE: usize = 1 << 20;

/// An endpoint that says nothing for so long, not even that it is alive, is given up.
const SILENCE: Duration = Duration::from_secs(120);

/// Chat with a ring. Without a prompt, and with a terminal: a conversation; Ctrl-C stops an answer, Ctrl-D ends.
#[derive(Debug, clap::Args)]
#[command(after_help = "KVASIR_API_KEY in the environment is sent as the API key.")]
pub struct Chat {
    /// Where the API listens; with or without the /v1 at the end
    #[arg(long, env = "KVASIR_URL", default_value = "http://127.0.0.1:8080")]
    url: Url,
    /// Model to ask for; the endpoint's first when absent
    #[arg(long, env = "KVASIR_MODEL")]
    model: Option<String>,
    /// System prompt
    #[arg(long, env = "KVASIR_SYSTEM")]
    system: Option<String>,
    /// Tokens that an answer may have at most
    #[arg(long, env = "KVASIR_MAX_TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: Option<u32>,
    /// From 0 to 2; 0 always takes the likeliest token
    #[arg(long, env = "KVASIR_TEMPERATURE", value_parser = temperature)]
    temperature: Option<f32>,
    /// One question: its answer goes to stdout. Read from stdin when that is no terminal
    prompt: Option<String>,
}

#[derive(Clone, Debug, Serialize)]
struct Message {
    role: &'static str,
    content: String,
}

#[derive(Serialize)]
struct Question<'a> {
    model: &'a str,
    messages: &'a [Message],
    stream: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_tokens: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<f32>,
}

#[derive(Deserialize)]
struct Models {
    data: Vec<Model>,
}

#[derive(Deserialize)]
struct Model {
    id: String,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Chunk {
    Error { error: ApiError },
    Delta { choices: Vec<Choice> },
}

#[derive(Deserialize)]
struct ApiError {
    message: String,
}

#[derive(Deserialize)]
struct Refusal {
    error: ApiError,
}

#[derive(Deserialize)]
struct Choice {
    delta: Delta,
}

#[derive(Deserialize)]
struct Delta {
    content: Option<String>,
}

impl Chat {
    /// Runs the command.
    pub async fn run(self) -> anyhow::Result<()> {
        let endpoint = Endpoint::new(&self.url)?;
        let model = match &self.model {
            Some(model) => model.clone(),
            None => endpoint.first_model().await?,
        };
        let mut messages: Vec<Message> = self
            .system
            .iter()
            .map(|content| Message {
                role: "system",
                content: content.clone(),
            })
            .collect();
        let prompt = match self.prompt.clone() {
            None if !std::io::stdin().is_terminal() => {
                let mut prompt = String::new();
                tokio::io::stdin()
                    .read_to_string(&mut prompt)
                    .await
                    .context("can't read the prompt from stdin")?;
                Some(prompt)
            }
            prompt => prompt,
        };
        if let Some(content) = prompt {
            ensure!(
                !content.trim().is_empty(),
                "the prompt is empty: give one as argument or on stdin"
            );
            messages.push(Message { role: "user", content });
            return self.ask(&endpoint, &model, &messages).await.map(drop);
        }
        self.talk(&endpoint, &model, messages, BufReader::new(tokio::io::stdin()))
            .await
    }

    /// A conversation: a question a line. What goes wrong at the endpoint ends an answer, and never the conversation.
    async fn talk(
        &self,
        endpoint: &Endpoint,
        model: &str,
        mut messages: Vec<Message>,
        input: impl AsyncBufRead + Unpin,
    ) -> anyhow::Result<()> {
        let mut lines = input.lines();
        let mut unanswered = None;
        loop {
            print("> ")?;
            let Some(line) = lines.next_line().await? else { break };
            let asked = if line.trim().is_empty() {
                unanswered.take()
            } else {
                Some(line)
            };
            let Some(content) = asked else { continue };
            let question = content.clone();
            messages.push(Message { role: "user", content });
            let answered = tokio::select! {
                answered = self.ask(endpoint, model, &messages) => answered,
                _ = tokio::signal::ctrl_c() => {
                    messages.pop();
                    print("\n")?;
                    continue;
                }
            };
            match answered {
                Ok(content) => messages.push(Message {
                    role: "assistant",
                    content,
                }),
                // this terminal is gone, not the endpoint
                Err(error) if error.is::<std::io::Error>() => return Err(error),
                Err(error) => {
                    messages.pop();
                    unanswered = Some(question);
                    writeln!(
                        std::io::stderr(),
                        "\n{error:#}\nthe conversation goes on: Enter asks the same again, Ctrl-D ends"
                    )?;
                }
            }
        }
        print("\n")
    }

    /// Prints the answer as it comes, and returns it. Dropping the future closes the connection, which cancels it.
    async fn ask(&self, endpoint: &Endpoint, model: &str, messages: &[Message]) -> anyhow::Result<String> {
        let (max_tokens, temperature) = (self.max_tokens, self.temperature);
        let question = Question {
            model,
            messages,
            stream: true,
            max_tokens,
            temperature,
        };
        let request = endpoint.http.post(endpoint.path("chat/completions")?).json(&question);
        let mut response = endpoint.send(request).await?;
        let (mut events, mut answer) = (Events::default(), String::new());
        loop {
            let Some(bytes) = response.chunk().await.map_err(broken_off)? else {
                bail!("the answer broke off")
            };
            for event in events.feed(&bytes)? {
                if event == "[DONE]" {
                    print("\n")?;
                    return Ok(answer);
                }
                match serde_json::from_str(&event).context("the endpoint sent an event that is no chat chunk")? {
                    Chunk::Error { error } => bail!("the endpoint stopped the answer: {}", error.message),
                    Chunk::Delta { choices } => {
                        for content in choices.into_iter().filter_map(|choice| choice.delta.content) {
                            print(&content)?;
                            answer.push_str(&content);
                        }
                    }
                }
            }
        }
    }
}

struct Endpoint {
    http: reqwest::Client,
    url: Url,
    key: Option<SecretString>,
}

impl Endpoint {
    fn new(url: &Url) -> anyhow::Result<Self> {
        let key = std::env::var("KVASIR_API_KEY").ok().map(SecretString::from);
        if !matches!(url.scheme(), "http" | "https") {
            return Err(Usage(format!("{} is not an http or https URL", shown(url))).into());
        }
        Ok(Endpoint {
            http: crate::http_client(url, SILENCE)?,
            url: base(url),
            key,
        })
    }

    fn path(&self, path: &str) -> anyhow::Result<Url> {
        let mut url = self.url.clone();
        url.path_segments_mut()
            .map_err(|()| Usage(format!("{} is not an http or https URL", shown(&self.url))))?
            .extend(path.split('/'));
        Ok(url)
    }

    async fn first_model(&self) -> anyhow::Result<String> {
        let response = self.send(self.http.get(self.path("models")?)).await?;
        let models: Models = response.json().await.map_err(broken_off)?;
        let first = models.data.into_iter().next();
        first
            .map(|model| model.id)
            .context("the endpoint serves no model: name one with --model")
    }

    async fn send(&self, mut request: RequestBuilder) -> anyhow::Result<Response> {
        if let Some(key) = &self.key {
            request = request.bearer_auth(key.expose_secret());
        }
        let request = request.build().map_err(reqwest::Error::without_url)?;
        let url = shown(request.url());
        let response = self
            .http
            .execute(request)
            .await
            .map_err(reqwest::Error::without_url)
            .with_context(|| format!("nothing answers at {url}: is the ring up? (`kvasir up RING.yaml`)"))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let said = response
            .json::<Refusal>()
            .await
            .map(|refusal| format!(": {}", refusal.error.message));
        bail!("{url} refuses with status {status}{}", said.unwrap_or_default())
    }
}

/// The address that paths of the API are added to: `url`, which may end with the API's version already.
fn base(url: &Url) -> Url {
    let mut base = url.clone();
    let versioned = url.path().trim_end_matches('/').ends_with("/v1");
    // The scheme has paths: this was checked.
    if let Ok(mut path) = base.path_segments_mut() {
        path.pop_if_empty();
        if !versioned {
            path.push("v1");
        }
    }
    base.set_query(None);
    base.set_fragment(None);
    base
}

/// The address as it may be shown: a user name, a password or a query may be secrets.
fn shown(url: &Url) -> String {
    let mut url = url.clone();
    // An address that can't have them has none.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.set_query(None);
    url.to_string()
}

fn temperature(text: &str) -> Result<f32, String> {
    let number = text.parse::<f32>().ok().filter(|number| (0.0..=2.0).contains(number));
    number.ok_or_else(|| "write a number from 0 to 2".to_owned())
}

fn broken_off(error: reqwest::Error) -> anyhow::Error {
    anyhow::Error::new(error.without_url()).context("the answer broke off")
}

fn print(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}

/// Server-sent events out of pieces of a body: the data of each event, in order.
#[derive(Default)]
struct Events {
    pending: Vec<u8>,
    data: Vec<String>,
}

impl Events {
    fn feed(&mut self, bytes: &[u8]) -> anyhow::Result<Vec<String>> {
        let mut events = Vec::new();
        self.pending.extend_from_slice(bytes);
        while let Some(end) = self.pending.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.pending.drain(..=end).collect();
            let line = std::str::from_utf8(&line).context("the endpoint sent text that is not UTF-8")?;
            let line = line.trim_end_matches(['\r', '\n']);
            if line.is_empty() && !self.data.is_empty() {
                events.push(std::mem::take(&mut self.data).join("\n"));
            } else if let Some(data) = line.strip_prefix("data:") {
                self.data.push(data.strip_prefix(' ').unwrap_or(data).to_owned());
            }
        }
        ensure!(
            self.pending.len() <= MAX_LINE,
            "the endpoint sent a line of more than {MAX_LINE} bytes"
        );
        Ok(events)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use serde_json::{Value, json};
    use tokio::{
        io::AsyncWriteExt,
        net::{TcpListener, TcpStream},
    };

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        chat: Chat,
    }

    /// The body of the next request, and where its answer goes.
    async fn question(listener: &TcpListener) -> (Value, TcpStream) {
        let (stream, _) = listener.accept().await.unwrap();
        let mut reader = BufReader::new(stream);
        let (mut length, mut line) = (0, String::new());
        loop {
            line.clear();
            reader.read_line(&mut line).await.unwrap();
            let header = line.trim_end().to_ascii_lowercase();
            if let Some(value) = header.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            if header.is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).await.unwrap();
        (serde_json::from_slice(&body).unwrap(), reader.into_inner())
    }

    async fn reply(mut stream: TcpStream, status: &str, kind: &str, body: &str) {
        let head = format!("HTTP/1.1 {status}\r\ncontent-type: {kind}\r\nconnection: close\r\n\r\n");
        stream.write_all((head + body).as_bytes()).await.unwrap();
    }

    #[tokio::test]
    async fn an_answer_that_failed_leaves_the_conversation_and_is_asked_again_by_enter() {
        const HI: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"hi\"}}]}\n\n";
        let _ = rustls::crypto::ring::default_provider().install_default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let served = tokio::spawn(async move {
            let mut asked = Vec::new();
            let lost = "{\"error\":{\"message\":\"the ring lost a stage\"}}";
            let whole = format!("{HI}data: [DONE]\n\n");
            for (status, kind, body) in [
                ("503 Service Unavailable", "application/json", lost.to_owned()),
                ("200 OK", "text/event-stream", format!("{HI}data: {lost}\n\n")),
                ("200 OK", "text/event-stream", HI.to_owned()),
                ("200 OK", "text/event-stream", whole.clone()),
                ("200 OK", "text/event-stream", whole),
            ] {
                let (body_asked, stream) = question(&listener).await;
                asked.push(body_asked["messages"].clone());
                reply(stream, status, kind, &body).await;
            }
            asked
        });
        let chat = Line::parse_from(["chat", "--url", &url]).chat;
        let endpoint = Endpoint::new(&chat.url).unwrap();
        let input: &[u8] = b"\none\n\n\n\n\ntwo\n";
        chat.talk(&endpoint, "toy", Vec::new(), input).await.unwrap();
        let one = json!({"role": "user", "content": "one"});
        let hi = json!({"role": "assistant", "content": "hi"});
        let two = json!({"role": "user", "content": "two"});
        let first = json!([one]);
        let expected = [
            first.clone(),
            first.clone(),
            first.clone(),
            first,
            json!([one, hi, two]),
        ];
        assert_eq!(served.await.unwrap(), expected);
    }

    #[test]
    fn events_come_whole_however_the_body_is_cut() {
        let body = ": alive\r\n\r\ndata: {\"a\":\"ü\"}\r\n\r\nevent: x\ndata:one\ndata: two\n\ndata: [DONE]\n\n";
        for cut in 0..=body.len() {
            let mut events = Events::default();
            let mut seen = events.feed(&body.as_bytes()[..cut]).unwrap();
            seen.extend(events.feed(&body.as_bytes()[cut..]).unwrap());
            assert_eq!(seen, ["{\"a\":\"ü\"}", "one\ntwo", "[DONE]"], "cut at {cut}");
        }
    }

    #[test]
    fn an_address_may_end_with_the_version_or_not() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        for (given, used) in [
            ("http://h:1", "http://h:1/v1/models"),
            ("http://h:1/", "http://h:1/v1/models"),
            ("http://h:1/v1", "http://h:1/v1/models"),
            ("http://h:1/v1/", "http://h:1/v1/models"),
            ("https://h/ring/v1", "https://h/ring/v1/models"),
            ("https://h/ring/", "https://h/ring/v1/models"),
            ("http://h/api-v1", "http://h/api-v1/v1/models"),
        ] {
            let endpoint = Endpoint {
                http: reqwest::Client::new(),
                url: base(&given.parse().unwrap()),
                key: None,
            };
            assert_eq!(endpoint.path("models").unwrap().as_str(), used, "{given}");
        }
        let secret = "http://me:word@h/v1?key=word".parse().unwrap();
        assert_eq!(shown(&secret), "http://h/v1");
    }

    #[test]
    fn a_temperature_is_a_number_that_the_api_takes() {
        assert_eq!(temperature("0"), Ok(0.0));
        assert_eq!(temperature("1.5"), Ok(1.5));
        for wrong in ["NaN", "inf", "-inf", "-0.1", "2.1", "1e99", "warm", ""] {
            assert!(temperature(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_line_without_end_is_refused() {
        let mut events = Events::default();
        assert!(events.feed(&vec![b'x'; MAX_LINE]).unwrap().is_empty());
        assert!(events.feed(b"x").unwrap_err().to_string().contains("more than"));
    }

    #[test]
    fn an_error_event_is_told_from_a_delta() {
        let error: Chunk = serde_json::from_str(r#"{"error":{"message":"the ring lost a stage"}}"#).unwrap();
        assert!(matches!(error, Chunk::Error { error } if error.message == "the ring lost a stage"));
        let delta: Chunk = serde_json::from_str(r#"{"choices":[{"index":0,"delta":{"content":"hi"}}]}"#).unwrap();
        assert!(matches!(delta, Chunk::Delta { choices } if choices[0].delta.content.as_deref() == Some("hi")));
    }
}
