//! One log line and one count for every request: method, path, status and time, never a query, a key or a text.

use axum::extract::{MatchedPath, Request, State};
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use std::sync::Arc;
use std::time::Instant;

use super::Api;
use super::metrics::RequestLabels;

/// What nginx writes when a client leaves before it was answered.
const CLIENT_CLOSED_REQUEST: u16 = 499;

/// Writes its line when dropped, so that a request that nobody waited for has one too.
struct Record {
    api: Arc<Api>,
    method: Method,
    path: String,
    route: String,
    arrived: Instant,
    status: Option<StatusCode>,
}

impl Drop for Record {
    fn drop(&mut self) {
        let code = self.status.map_or(CLIENT_CLOSED_REQUEST, |status| status.as_u16());
        let milliseconds = self.arrived.elapsed().as_millis() as u64;
        tracing::info!(method = %self.method, path = %self.path, code, milliseconds, "request");
        let labels = RequestLabels {
            route: std::mem::take(&mut self.route),
            code,
        };
        self.api.metrics.requests.get_or_create(&labels).inc();
    }
}

pub(super) async fn record(State(api): State<Arc<Api>>, request: Request, next: Next) -> Response {
    let route = request
        .extensions()
        .get::<MatchedPath>()
        .map_or("other", MatchedPath::as_str)
        .to_string();
    let mut record = Record {
        api,
        method: request.method().clone(),
        path: request.uri().path().to_string(),
        route,
        arrived: Instant::now(),
        status: None,
    };
    let response = next.run(request).await;
    record.status = Some(response.status());
    response
}
