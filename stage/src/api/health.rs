//! Health: `/healthz` says whether the process does its work, `/readyz` whether the ring serves, `/metrics` the numbers.
//!
//! Health turns red when generation is wedged: the ring claims to be ready, answers are in progress, and for a while
//! not one of them has moved. A ring that isn't ready (a window unclaimed, a stage being replaced) is healthy but not
//! ready: restarting rank 0 would not help.

use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use prometheus_client::encoding::text::encode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::Api;
use super::errors::ApiError;
use crate::ring::handle::RingError;

/// When answers last moved.
#[derive(Debug)]
pub(super) struct Pulse {
    origin: Instant,
    /// milliseconds from `origin` to the last event
    last: AtomicU64,
    answers: AtomicUsize,
}

impl Pulse {
    pub(super) fn new() -> Pulse {
        Pulse {
            origin: Instant::now(),
            last: AtomicU64::new(0),
            answers: AtomicUsize::new(0),
        }
    }

    /// An answer begins.
    pub(super) fn begin(&self) {
        if self.answers.fetch_add(1, Ordering::Relaxed) == 0 {
            self.beat();
        }
    }

    /// An answer moved.
    pub(super) fn beat(&self) {
        self.last
            .store(self.origin.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    /// An answer ended, however it did.
    pub(super) fn end(&self) {
        self.answers.fetch_sub(1, Ordering::Relaxed);
    }

    /// For how long answers have been in progress without any of them moving.
    fn silence(&self) -> Option<Duration> {
        let silence = self
            .origin
            .elapsed()
            .saturating_sub(Duration::from_millis(self.last.load(Ordering::Relaxed)));
        (self.answers.load(Ordering::Relaxed) > 0).then_some(silence)
    }
}

fn wedged(api: &Api) -> Result<(), ApiError> {
    match api.pulse.silence() {
        Some(silence) if silence > api.wedged_after && api.ring.ready().is_ok() => Err(ApiError::wedged(silence)),
        _ => Ok(()),
    }
}

pub(super) async fn healthz(State(api): State<Arc<Api>>) -> Result<&'static str, ApiError> {
    wedged(&api)?;
    Ok("ok\n")
}

pub(super) async fn readyz(State(api): State<Arc<Api>>) -> Result<&'static str, ApiError> {
    if api.shutdown.begun.is_cancelled() {
        return Err(ApiError::ring(&RingError::Draining));
    }
    api.ring.ready().map_err(|error| ApiError::ring(&error))?;
    wedged(&api)?;
    Ok("ready\n")
}

pub(super) async fn metrics(State(api): State<Arc<Api>>) -> Result<impl IntoResponse, ApiError> {
    let mut text = String::new();
    encode(&mut text, &api.registry).map_err(|error| ApiError::internal("metrics_failed", error.to_string()))?;
    Ok((
        [(
            header::CONTENT_TYPE,
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
        )],
        text,
    ))
}
