//! What a supervisor may ask of any stage: `/healthz` answers while the process does, `/readyz` once the window is loaded.
//!
//! Neither says anything of links or of the ring: those are conditions of the ring, not of one process.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use tokio::net::TcpListener;

/// Whether the window is loaded, as told to whoever asks.
#[derive(Clone, Debug, Default)]
pub(super) struct Health(Arc<AtomicBool>);

impl Health {
    /// The window is loaded.
    pub(super) fn loaded(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Answers on `listener` for as long as this process lives.
    pub(super) fn serve(&self, listener: TcpListener) {
        let router = Router::new()
            .route("/healthz", get(healthz))
            .route("/readyz", get(readyz))
            .with_state(self.clone());
        let address = listener.local_addr().unwrap_or(SocketAddr::from(([0, 0, 0, 0], 0)));
        tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, router).await {
                tracing::error!(%address, %error, "health is no longer told");
            }
        });
    }
}

async fn healthz() -> &'static str {
    "ok\n"
}

async fn readyz(State(health): State<Health>) -> (StatusCode, &'static str) {
    if health.0.load(Ordering::Relaxed) {
        (StatusCode::OK, "loaded\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "the window is being loaded\n")
    }
}
