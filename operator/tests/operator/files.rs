//! A web server with a model, of which any part can be had.

use std::sync::Arc;

use axum::{
    Router,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use kvasir_tests::random_model::{Architecture, RandomModel};

/// Address of a model of 30 layers.
pub(crate) async fn model() -> String {
    let bytes = Arc::new(RandomModel::new(Architecture::Llama).layers(30).to_bytes());
    let file = get(move |headers: HeaderMap| async move { range(&bytes, &headers) });
    let server = serve(Router::new().route("/model.gguf", file)).await;
    format!("{server}/model.gguf")
}

/// Serves at a port of its own, and says where.
pub(crate) async fn serve(router: Router) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    url
}

/// Any part of a model's file, as a web server gives it.
fn range(bytes: &[u8], headers: &HeaderMap) -> Response {
    let asked = headers[header::RANGE].to_str().unwrap().strip_prefix("bytes=").unwrap();
    let (start, end) = asked.split_once('-').unwrap();
    let (start, end) = (start.parse::<usize>().unwrap(), end.parse::<usize>().unwrap());
    let end = end.min(bytes.len() - 1);
    let content = format!("bytes {start}-{end}/{}", bytes.len());
    let part = bytes[start..=end].to_vec();
    (StatusCode::PARTIAL_CONTENT, [(header::CONTENT_RANGE, content)], part).into_response()
}
