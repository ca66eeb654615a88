//! A server whose answers are a function of the request, and which remembers all requests.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::Response;
use tokio::net::TcpListener;

/// A request as it arrived.
#[derive(Clone, Debug)]
pub struct Asked {
    /// `GET`…
    pub method: Method,
    /// path
    pub path: String,
    /// what follows `?`
    pub query: Option<String>,
    /// bytes asked for
    pub range: Option<Range<u64>>,
    /// all headers
    pub headers: HeaderMap,
    /// requests before it
    pub index: usize,
}

/// A running server; it ends with the runtime of its test.
#[derive(Clone, Debug)]
pub struct Server {
    /// `http://127.0.0.1:PORT`
    pub address: String,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Server {
    /// Answers every request with what `answer` makes of it.
    pub async fn start(answer: impl Fn(&Asked) -> Response + Send + Sync + 'static) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (seen, answer) = (Arc::clone(&asked), Arc::new(answer));
        let router = axum::Router::new().fallback(move |request: Request| {
            let asked = record(&request, &mut seen.lock().unwrap());
            let response = answer(&asked);
            async move { response }
        });
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Server { address, asked }
    }

    /// Address of a path.
    pub fn url(&self, path: &str) -> String {
        format!("{}/{path}", self.address)
    }

    /// All requests so far.
    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }
}

fn record(request: &Request, asked: &mut Vec<Asked>) -> Asked {
    let headers = request.headers().clone();
    let range = headers.get(header::RANGE).map(|value| {
        let (first, last) = value
            .to_str()
            .unwrap()
            .strip_prefix("bytes=")
            .unwrap()
            .split_once('-')
            .unwrap();
        first.parse().unwrap()..last.parse::<u64>().unwrap() + 1
    });
    let new = Asked {
        method: request.method().clone(),
        path: request.uri().path().trim_start_matches('/').into(),
        query: request.uri().query().map(Into::into),
        range,
        headers,
        index: asked.len(),
    };
    asked.push(new.clone());
    new
}

/// A well-behaved answer: 206 for a range of `bytes`.
pub fn ranged(bytes: &[u8], asked: &Asked) -> Response {
    let size = bytes.len() as u64;
    let range = asked.range.clone().unwrap();
    if range.start >= size {
        return with(416, &[("content-range", format!("bytes */{size}"))], Body::empty());
    }
    let end = range.end.min(size);
    let body = bytes[range.start as usize..end as usize].to_vec();
    with(
        206,
        &[("content-range", format!("bytes {}-{}/{size}", range.start, end - 1))],
        Body::from(body),
    )
}

/// 200 with everything.
pub fn whole(bytes: &[u8]) -> Response {
    with(200, &[("accept-ranges", "bytes".into())], Body::from(bytes.to_vec()))
}

/// An answer.
pub fn with(status: u16, headers: &[(&str, String)], body: impl Into<Body>) -> Response {
    let mut response = Response::builder().status(StatusCode::from_u16(status).unwrap());
    for (name, value) in headers {
        response = response.header(*name, value);
    }
    response.body(body.into()).unwrap()
}

/// A redirect.
pub fn redirect(status: u16, to: &str) -> Response {
    with(status, &[("location", to.into())], Body::empty())
}
