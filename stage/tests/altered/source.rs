//! A server of one file, which remembers how far into it anybody asked.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::body::Body;
use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::response::Response;
use bytes::Bytes;
use tokio::net::TcpListener;

pub struct Source {
    pub url: String,
    asked_to: Arc<AtomicU64>,
}

impl Source {
    /// Serves `file` until the test's runtime ends.
    pub async fn serve(file: Vec<u8>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/model.gguf", listener.local_addr().unwrap());
        let asked_to = Arc::new(AtomicU64::new(0));
        let (file, asked) = (Bytes::from(file), asked_to.clone());
        let router = axum::Router::new().fallback(move |request: Request| {
            let response = answer(&file, &request, &asked);
            async move { response }
        });
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Source { url, asked_to }
    }

    /// One past the last byte that anybody asked for.
    pub fn asked_to(&self) -> u64 {
        self.asked_to.load(Ordering::Relaxed)
    }
}

fn answer(file: &Bytes, request: &Request, asked_to: &AtomicU64) -> Response {
    let range = request.headers()[header::RANGE].to_str().unwrap();
    let (first, last) = range.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
    let (first, end) = (first.parse::<usize>().unwrap(), last.parse::<usize>().unwrap() + 1);
    asked_to.fetch_max(end as u64, Ordering::Relaxed);
    let end = end.min(file.len());
    Response::builder()
        .status(StatusCode::PARTIAL_CONTENT)
        .header(
            header::CONTENT_RANGE,
            format!("bytes {first}-{}/{}", end - 1, file.len()),
        )
        .body(Body::from(file.slice(first..end)))
        .unwrap()
}
