//! The market over HTTP: one router, the same behind `kvasir up` on the loopback and behind the relay.
//!
//! | call | body → answer |
//! | --- | --- |
//! | `PUT /v1/rings/{ring}/ranks/{rank}` | `StageReport` → 204 |
//! | `GET /v1/rings/{ring}/proposal?after=E` | → `Proposal` above epoch E, or 204 after a while |
//! | `PUT /v1/rings/{ring}/manifest` | `SignedManifest` → 204 |
//! | `GET /v1/rings/{ring}/manifest?after=E` | → `SignedManifest` above epoch E, or 204 after a while |
//! | `GET /v1/rings/{ring}/status` | → `BoardStatus` |
//!
//! The two polls answer as soon as there is something, and wait at most `wait` seconds (25 when absent, and no more).
//! Refusals carry a `Refusal` as JSON.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use axum::{
    Json, Router,
    extract::{DefaultBodyLimit, FromRequest, Path, Query, Request, State, rejection::JsonRejection},
    http::{StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{get, put},
};
use kvasir_wire::trust::SignedManifest;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;
use tokio::sync::watch;

use crate::{
    board::{Board, BoardError},
    types::{BoardStatus, Refusal, StageReport},
};

/// A poll with nothing to tell ends after this long, well under the 60 s at which proxies cut idle connections.
pub const LONG_POLL: Duration = Duration::from_secs(25);

/// Bodies longer than this are refused: a manifest of a few hundred ranks is some 300 KiB.
pub const MAX_BODY: usize = 1 << 20;

/// The boards of all rings that this process keeps.
#[derive(Debug, Default)]
pub struct Market {
    rings: Mutex<BTreeMap<String, Arc<Entry>>>,
}

#[derive(Debug)]
struct Entry {
    board: Mutex<Board>,
    /// told whenever something was reported or published: polls look again
    changed: watch::Sender<()>,
}

impl Market {
    /// A market without rings.
    pub fn new() -> Self {
        Market::default()
    }

    /// Keeps `board` under the name `ring`; a board kept under that name before is dropped.
    pub fn open(&self, ring: &str, board: Board) {
        let entry = Entry {
            board: Mutex::new(board),
            changed: watch::Sender::new(()),
        };
        lock(&self.rings).insert(ring.to_owned(), Arc::new(entry));
    }

    /// A ring as it stands, none when there is no such ring.
    pub fn status(&self, ring: &str) -> Option<BoardStatus> {
        let entry = lock(&self.rings).get(ring).cloned()?;
        let status = lock(&entry.board).status(Instant::now());
        Some(status)
    }

    fn entry(&self, ring: &str) -> Result<Arc<Entry>, Refused> {
        lock(&self.rings)
            .get(ring)
            .cloned()
            .ok_or_else(|| Refused::UnknownRing(ring.to_owned()))
    }
}

impl Entry {
    fn change<T>(&self, change: impl FnOnce(&mut Board) -> Result<T, BoardError>) -> Result<T, BoardError> {
        let result = change(&mut lock(&self.board));
        self.changed.send_replace(());
        result
    }

    async fn poll<T>(&self, wait: Duration, look: impl Fn(&mut Board) -> Option<T>) -> Option<T> {
        let mut changed = self.changed.subscribe();
        let found = async {
            loop {
                if let Some(found) = look(&mut lock(&self.board)) {
                    return Some(found);
                }
                changed.changed().await.ok()?;
            }
        };
        tokio::time::timeout(wait, found).await.ok().flatten()
    }
}

/// A board is whole after every step, so a lock that a panic poisoned still guards a sound one.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The market's calls. With a token, every call must carry it as a bearer token.
pub fn router(market: Arc<Market>, token: Option<SecretString>) -> Router {
    Router::new()
        .route("/v1/rings/{ring}/ranks/{rank}", put(report))
        .route("/v1/rings/{ring}/proposal", get(proposal))
        .route("/v1/rings/{ring}/manifest", put(publish).get(manifest))
        .route("/v1/rings/{ring}/status", get(status))
        .with_state(market)
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(middleware::from_fn_with_state(Arc::new(token), authorise))
}

async fn authorise(State(token): State<Arc<Option<SecretString>>>, request: Request, next: Next) -> Response {
    let Some(wanted) = token.as_ref() else {
        return next.run(request).await;
    };
    let given = request
        .headers()
        .get(header::AUTHORIZATION)
        .and_then(|value| value.as_bytes().strip_prefix(b"Bearer "))
        .unwrap_or_default();
    if bool::from(given.ct_eq(wanted.expose_secret().as_bytes())) {
        next.run(request).await
    } else {
        Refused::Unauthorized.into_response()
    }
}

#[derive(Deserialize)]
struct Poll {
    #[serde(default)]
    after: u64,
    wait: Option<u64>,
}

impl Poll {
    fn wait(&self) -> Duration {
        self.wait
            .map_or(LONG_POLL, |seconds| Duration::from_secs(seconds).min(LONG_POLL))
    }
}

async fn report(
    State(market): State<Arc<Market>>,
    Path((ring, rank)): Path<(String, u32)>,
    Body(report): Body<StageReport>,
) -> Result<StatusCode, Refused> {
    market
        .entry(&ring)?
        .change(|board| board.report(rank, report, Instant::now()))?;
    Ok(StatusCode::NO_CONTENT)
}

async fn publish(
    State(market): State<Arc<Market>>,
    Path(ring): Path<String>,
    Body(signed): Body<SignedManifest>,
) -> Result<StatusCode, Refused> {
    market
        .entry(&ring)?
        .change(|board| board.publish(signed, Instant::now()))?;
    Ok(StatusCode::NO_CONTENT)
}

async fn proposal(
    State(market): State<Arc<Market>>,
    Path(ring): Path<String>,
    Query(poll): Query<Poll>,
) -> Result<Response, Refused> {
    let entry = market.entry(&ring)?;
    Ok(found(
        entry
            .poll(poll.wait(), |board| board.proposal(poll.after, Instant::now()).cloned())
            .await,
    ))
}

async fn manifest(
    State(market): State<Arc<Market>>,
    Path(ring): Path<String>,
    Query(poll): Query<Poll>,
) -> Result<Response, Refused> {
    let entry = market.entry(&ring)?;
    Ok(found(
        entry
            .poll(poll.wait(), |board| board.manifest(poll.after).cloned())
            .await,
    ))
}

async fn status(State(market): State<Arc<Market>>, Path(ring): Path<String>) -> Result<Json<BoardStatus>, Refused> {
    market.status(&ring).map(Json).ok_or(Refused::UnknownRing(ring))
}

fn found<T: Serialize>(answer: Option<T>) -> Response {
    answer.map_or_else(
        || StatusCode::NO_CONTENT.into_response(),
        |answer| Json(answer).into_response(),
    )
}

/// A JSON body whose refusals read like all others.
struct Body<T>(T);

impl<S: Send + Sync, T> FromRequest<S> for Body<T>
where
    Json<T>: FromRequest<S, Rejection = JsonRejection>,
{
    type Rejection = Refused;

    async fn from_request(request: Request, state: &S) -> Result<Self, Refused> {
        Json::from_request(request, state)
            .await
            .map(|Json(body)| Body(body))
            .map_err(Refused::Body)
    }
}

#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error("the market wants its bearer token: set KVASIR_TOKEN")]
    Unauthorized,
    #[error("the market keeps no ring named {0:?}")]
    UnknownRing(String),
    #[error("{0}")]
    Body(JsonRejection),
    #[error(transparent)]
    Board(#[from] BoardError),
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let (status, reason) = match &self {
            Refused::Unauthorized => (StatusCode::UNAUTHORIZED, "Unauthorized"),
            Refused::UnknownRing(_) => (StatusCode::NOT_FOUND, "UnknownRing"),
            Refused::Body(rejection) => (rejection.status(), "BadRequest"),
            Refused::Board(error) => {
                let status = match error {
                    BoardError::UnknownRank { .. } => StatusCode::NOT_FOUND,
                    BoardError::Held { .. } | BoardError::Fenced { .. } | BoardError::NotProposed { .. } => {
                        StatusCode::CONFLICT
                    }
                    BoardError::Unsigned { .. } => StatusCode::FORBIDDEN,
                    BoardError::WrongWindow { .. } | BoardError::WrongModel { .. } | BoardError::BadHolder { .. } => {
                        StatusCode::UNPROCESSABLE_ENTITY
                    }
                };
                (status, error.reason())
            }
        };
        let message = std::iter::successors(Some(&self as &dyn std::error::Error), |error| error.source())
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(": ");
        (
            status,
            Json(Refusal {
                reason: reason.to_owned(),
                message,
            }),
        )
            .into_response()
    }
}
