//! Metrics and health, for Prometheus and the kubelet.

use std::{io, sync::Arc};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use prometheus_client::{encoding::text::encode, registry::Registry};
use tokio::{net::TcpListener, sync::watch};
use tokio_util::sync::CancellationToken;

#[derive(Clone, Debug)]
struct Told {
    registry: Arc<Registry>,
    ready: watch::Receiver<bool>,
}

/// Serves `/metrics`, `/healthz` and `/readyz` until `shutdown`. Ready is who could work: the process that leads, and
/// those that wait for their turn.
///
/// # Errors
/// The listener fails.
pub async fn serve(
    listener: TcpListener,
    registry: Registry,
    ready: watch::Receiver<bool>,
    shutdown: CancellationToken,
) -> io::Result<()> {
    let told = Told {
        registry: Arc::new(registry),
        ready,
    };
    let router = Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .with_state(told);
    axum::serve(listener, router)
        .with_graceful_shutdown(async move { shutdown.cancelled().await })
        .await
}

async fn healthz() -> &'static str {
    "ok\n"
}

async fn readyz(State(told): State<Told>) -> (StatusCode, &'static str) {
    if *told.ready.borrow() {
        (StatusCode::OK, "ready\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "the API server was not reached yet\n")
    }
}

async fn metrics(State(told): State<Told>) -> Response {
    let mut text = String::new();
    if encode(&mut text, &told.registry).is_err() {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    }
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}
