//! A client of the API on one plain connection, which a test can hold, leave unread, or cut.
//!
//! It speaks HTTP/1.0: the answer's body ends with the connection, without chunks, so that what arrives is what was sent.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::{Value, json};

/// A silent server is given up after this time.
const SILENCE: Duration = Duration::from_secs(60);
const CHAT: &str = "/v1/chat/completions";

/// Where an API listens.
#[derive(Clone, Copy, Debug)]
pub struct Client {
    address: SocketAddr,
}

impl Client {
    /// A client of the API at `address`.
    pub fn new(address: SocketAddr) -> Self {
        Self { address }
    }

    /// Sends a request, and reads the answer's head.
    pub fn send(self, method: &str, path: &str, body: Option<&Value>) -> io::Result<Answer> {
        let mut stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(SILENCE))?;
        let body = body.map(Value::to_string).unwrap_or_default();
        write!(
            stream,
            "{method} {path} HTTP/1.0\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        )?;
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let status = line.split(' ').nth(1).and_then(|code| code.parse().ok());
        let status = status.ok_or_else(|| io::Error::new(io::ErrorKind::UnexpectedEof, "no status line"))?;
        while !line.trim_end().is_empty() {
            line.clear();
            if reader.read_line(&mut line)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(Answer { status, reader })
    }

    /// Sends a chat, such as [`question`], to be answered at once.
    pub fn ask(self, chat: &Value) -> Value {
        let answer = self.send("POST", CHAT, Some(chat)).unwrap();
        let status = answer.status;
        let body = answer.json();
        assert_eq!(status, 200, "{body}");
        body
    }

    /// Sends a chat, to be answered word by word.
    pub fn stream(self, chat: &Value) -> io::Result<Answer> {
        let mut chat = chat.clone();
        chat["stream"] = Value::Bool(true);
        self.send("POST", CHAT, Some(&chat))
    }
}

/// A chat of one question, answered by the likeliest tokens, `max_tokens` of them at most.
pub fn question(text: &str, max_tokens: u32) -> Value {
    json!({
        "messages": [
            { "role": "system", "content": "Answer in one sentence." },
            { "role": "user", "content": text },
        ],
        "max_tokens": max_tokens,
        "temperature": 0,
    })
}

/// An answer whose body is still to be read. Dropping it cuts the connection.
#[derive(Debug)]
pub struct Answer {
    /// HTTP status
    pub status: u16,
    reader: BufReader<TcpStream>,
}

/// What comes next in a stream.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// a chunk
    Chunk(Value),
    /// `[DONE]`
    Done,
    /// the connection ended before `[DONE]`
    BrokenOff,
}

impl Answer {
    /// The whole body as JSON; its text in a string when it isn't JSON.
    pub fn json(mut self) -> Value {
        let mut text = String::new();
        self.reader.read_to_string(&mut text).unwrap();
        serde_json::from_str(&text).unwrap_or(Value::String(text))
    }

    /// The next server-sent event.
    pub fn next_event(&mut self) -> Event {
        let mut line = String::new();
        loop {
            line.clear();
            match self.reader.read_line(&mut line) {
                Ok(0) | Err(_) => return Event::BrokenOff,
                Ok(_) => {}
            }
            match line.trim_end().strip_prefix("data:").map(str::trim_start) {
                Some("[DONE]") => return Event::Done,
                Some(data) => return Event::Chunk(serde_json::from_str(data).unwrap()),
                None => {}
            }
        }
    }

    /// The text of the next chunk that has some; none at the end, however it came.
    pub fn next_text(&mut self) -> Option<String> {
        loop {
            match self.next_event() {
                Event::Chunk(chunk) => match chunk["choices"][0]["delta"]["content"].as_str() {
                    Some(text) if !text.is_empty() => return Some(text.to_owned()),
                    _ => {}
                },
                Event::Done | Event::BrokenOff => return None,
            }
        }
    }

    /// All of the text to come.
    ///
    /// # Panics
    /// When the answer breaks off or holds an error.
    pub fn text(mut self) -> String {
        let mut text = String::new();
        loop {
            match self.next_event() {
                Event::Chunk(chunk) => {
                    assert!(chunk.get("error").is_none(), "{chunk}");
                    text.push_str(chunk["choices"][0]["delta"]["content"].as_str().unwrap_or_default());
                }
                Event::Done => return text,
                Event::BrokenOff => panic!("the answer broke off after {text:?}"),
            }
        }
    }
}
