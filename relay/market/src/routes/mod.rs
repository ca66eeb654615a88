//! The market over HTTP: one router, the same behind `kvasir up` on the loopback and behind the relay.
//!
//! | call | signed by | body → answer |
//! | --- | --- | --- |
//! | `GET /v1/time` | nobody | → `Time` |
//! | `POST /v1/nodes`, invite as bearer token | a node | `Enrolment` → `Enrolled` |
//! | `POST /v1/invites` | the ring's owner | `InviteRequest` → `InviteGranted` |
//! | `GET /v1/rings` | a node | → `[Offer]` |
//! | `PUT /v1/rings/{ring}` | the owner | `Demand` → 204 |
//! | `DELETE /v1/rings/{ring}` | the owner | → 204 |
//! | `POST /v1/rings/{ring}/claims` | a node | `ClaimRequest` → 201 `Claim`, or 409 `TakenRefusal` |
//! | `PUT /v1/rings/{ring}/claims/{id}` | its node | `StageReport` → `Renewed` |
//! | `DELETE /v1/rings/{ring}/claims/{id}` | its node | → 204 |
//! | `GET /v1/rings/{ring}/proposal?after=E` | a node | → `Proposal` above epoch E, or 204 after a while |
//! | `PUT /v1/rings/{ring}/manifest` | rank 0's node | `SignedManifest` → 204 |
//! | `GET /v1/rings/{ring}/manifest?after=E` | a node | → `SignedManifest` above epoch E, or 204 after a while |
//! | `POST /v1/rings/{ring}/positions` | rank 0's node | `Positions` → `Committed` |
//! | `POST /v1/rings/{ring}/tickets` | a node of the manifest | `TicketRequest` → `TicketGranted` |
//! | `GET /v1/rings/{ring}/status` | a node or the owner | → `RingStatus` |
//! | `GET /v1/ledger` | a node or an owner | → `Ledger` |
//!
//! The two polls answer as soon as there is something, and wait at most `wait` seconds (25 when absent, and no more).
//! Refusals carry a `Refusal` as JSON. Whoever calls too often gets a 429 that says so, with `Retry-After`; a server that
//! inserts `ConnectInfo` into its requests has that for callers without a key too.

mod limit;
mod market;
mod refused;
mod signed;

use std::{sync::Arc, time::Duration};

use axum::{
    Json, Router,
    extract::{DefaultBodyLimit, Path, Query, Request, State},
    http::{HeaderMap, Method, StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{get, post, put},
};
use kvasir_wire::noise::Role;
use serde::{Deserialize, Serialize};

pub use limit::{Rate, RateLimits};
pub use market::{Admission, LONG_POLL, Market};
use refused::Refused;
use signed::Signed;

use crate::{
    auth::{AuthError, Credentials, InviteGranted, InviteToken, TicketGranted},
    store::{Need, wall_clock},
    ticket::{TICKET_LIFE_MS, Ticket},
    types::{
        ClaimRequest, Committed, Demand, EdgeRole, Enrolled, Enrolment, InviteRequest, Ledger, Offer, Positions,
        Renewed, RingStatus, StageReport, TicketRequest, Time,
    },
};

/// Bodies longer than this are refused: a manifest of a few hundred ranks is some 300 KiB.
pub const MAX_BODY: usize = 1 << 20;

/// Nobody plans further ahead; an invite that lasts is a risk that lasts.
const MAX_INVITE: Duration = Duration::from_secs(365 * 24 * 3600);
/// Texts of an enrolment.
const MAX_NAME: usize = 256;

type Shared = State<Arc<Market>>;
type Ring = Path<String>;

/// The market's calls.
pub fn router(market: Arc<Market>) -> Router {
    Router::new()
        .route("/v1/time", get(time))
        .route("/v1/nodes", post(enrol))
        .route("/v1/invites", post(invite))
        .route("/v1/ledger", get(ledger))
        .route("/v1/rings", get(offers))
        .route("/v1/rings/{ring}", put(demand).delete(withdraw))
        .route("/v1/rings/{ring}/claims", post(claim))
        .route("/v1/rings/{ring}/claims/{id}", put(renew).delete(leave))
        .route("/v1/rings/{ring}/proposal", get(proposal))
        .route("/v1/rings/{ring}/manifest", put(publish).get(manifest))
        .route("/v1/rings/{ring}/positions", post(positions))
        .route("/v1/rings/{ring}/tickets", post(ticket))
        .route("/v1/rings/{ring}/status", get(status))
        .with_state(market.clone())
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(middleware::from_fn(to_the_end))
        .layer(middleware::from_fn_with_state(market, limited))
}

/// Counts the calls of strangers by their address. Those of keys are counted once the signature is found right.
async fn limited(State(market): Shared, request: Request, next: Next) -> Response {
    let limiter = market.limiter();
    let key = Credentials::read(request.headers())
        .ok()
        .map(|credentials| credentials.key);
    let address = limit::address(request.extensions(), request.headers());
    let heard = match (address, key) {
        (None, _) => Ok(()),
        (Some(address), Some(key)) => limiter.heard(key, address),
        (Some(address), None) => limiter.strange(address),
    };
    if let Err(limited) = heard {
        return Refused::from(limited).into_response();
    }
    let answer = next.run(request).await;
    match (answer.status(), address, key) {
        (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, Some(address), Some(_)) => {
            let strange = limiter.strange(address);
            strange.map_or_else(|limited| Refused::from(limited).into_response(), |()| answer)
        }
        (status, _, Some(key)) if status.is_success() => {
            limiter.let_in(key);
            answer
        }
        _ => answer,
    }
}

/// What changes the market goes on when its caller hangs up: who waits for the change is told of it all the same.
async fn to_the_end(request: Request, next: Next) -> Response {
    if request.method() == Method::GET {
        return next.run(request).await;
    }
    let answer = tokio::spawn(next.run(request)).await;
    answer.unwrap_or_else(|_| StatusCode::INTERNAL_SERVER_ERROR.into_response())
}

async fn time() -> Json<Time> {
    Json(Time { now: wall_clock() })
}

async fn enrol(State(market): Shared, headers: HeaderMap, call: Signed) -> Result<Json<Enrolled>, Refused> {
    let token = headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "))
        .ok_or(AuthError::UnknownInvite)?;
    let token: InviteToken = token.parse()?;
    let enrolment: Enrolment = call.json()?;
    let texts = [enrolment.name.as_deref().unwrap_or_default(), &enrolment.platform];
    if texts.iter().any(|text| text.len() > MAX_NAME) {
        return Err(Refused::Body(format!("a name is at most {MAX_NAME} bytes")));
    }
    market.store().enrol(&call.credentials, &token, &enrolment).await?;
    Ok(Json(Enrolled { node: call.key() }))
}

async fn invite(State(market): Shared, call: Signed) -> Result<Json<InviteGranted>, Refused> {
    let request: InviteRequest = call.json()?;
    if request.uses == 0 || request.expires_in_s == 0 || u64::from(request.expires_in_s) > MAX_INVITE.as_secs() {
        let days = MAX_INVITE.as_secs() / 24 / 3600;
        return Err(Refused::Body(format!(
            "an invite has a use or more and lasts up to {days} days"
        )));
    }
    market.admit(&call, Need::Owner(&request.ring)).await?;
    let mut random = [0; 40];
    getrandom::fill(&mut random).map_err(|_| Refused::NoRandomness)?;
    let token = InviteToken::new(random);
    market.store().invite(&token, &request).await?;
    Ok(Json(InviteGranted { token: token.text() }))
}

async fn offers(State(market): Shared, call: Signed) -> Result<Json<Vec<Offer>>, Refused> {
    market.admit(&call, Need::Known).await?;
    Ok(Json(market.store().offers(call.key()).await?))
}

async fn ledger(State(market): Shared, call: Signed) -> Result<Json<Ledger>, Refused> {
    market.admit(&call, Need::Known).await?;
    Ok(Json(market.store().ledger(call.key()).await?))
}

async fn demand(State(market): Shared, Path(ring): Ring, call: Signed) -> Result<StatusCode, Refused> {
    market.admit_owner(&call, &ring).await?;
    let demand: Demand = call.json()?;
    if demand.template.ring != ring {
        return Err(Refused::Body(format!(
            "the plan is for ring {:?}, not {ring:?}",
            demand.template.ring
        )));
    }
    market.store().demand(&ring, call.key(), demand).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn withdraw(State(market): Shared, Path(ring): Ring, call: Signed) -> Result<StatusCode, Refused> {
    market.admit(&call, Need::Owner(&ring)).await?;
    let owner = call.key();
    market
        .store()
        .change(&ring, |state, _, _| state.withdraw(owner))
        .await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn claim(State(market): Shared, Path(ring): Ring, call: Signed) -> Result<Response, Refused> {
    market.admit(&call, Need::Member(&ring)).await?;
    let request: ClaimRequest = call.json()?;
    let claimant = market.store().claimant(call.key(), &ring).await?;
    let claim = market
        .store()
        .change(&ring, |state, now, relays| {
            state.claim(now, relays, &claimant, &request)
        })
        .await?;
    Ok((StatusCode::CREATED, Json(claim)).into_response())
}

async fn renew(
    State(market): Shared,
    Path((ring, id)): Path<(String, u64)>,
    call: Signed,
) -> Result<Json<Renewed>, Refused> {
    market.admit(&call, Need::Member(&ring)).await?;
    let (node, report): (_, StageReport) = (call.key(), call.json()?);
    let lease_s = market
        .store()
        .change(&ring, |state, now, relays| state.report(now, relays, node, id, report))
        .await?;
    let earned = market.store().earned(&ring, node).await?;
    Ok(Json(Renewed { lease_s, earned }))
}

async fn leave(
    State(market): Shared,
    Path((ring, id)): Path<(String, u64)>,
    call: Signed,
) -> Result<StatusCode, Refused> {
    market.admit(&call, Need::Member(&ring)).await?;
    let node = call.key();
    market
        .store()
        .change(&ring, |state, now, relays| state.leave(now, relays, node, id))
        .await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn publish(State(market): Shared, Path(ring): Ring, call: Signed) -> Result<StatusCode, Refused> {
    market.admit(&call, Need::Member(&ring)).await?;
    market.store().publish(&ring, call.json()?).await?;
    Ok(StatusCode::NO_CONTENT)
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

async fn proposal(
    State(market): Shared,
    Path(ring): Ring,
    Query(poll): Query<Poll>,
    call: Signed,
) -> Result<Response, Refused> {
    market.admit(&call, Need::Member(&ring)).await?;
    let look = |state: &crate::rules::RingState| state.proposal(poll.after).cloned();
    Ok(found(market.poll(&ring, poll.wait(), look).await?))
}

async fn manifest(
    State(market): Shared,
    Path(ring): Ring,
    Query(poll): Query<Poll>,
    call: Signed,
) -> Result<Response, Refused> {
    market.admit(&call, Need::MemberOrOwner(&ring)).await?;
    let look = |state: &crate::rules::RingState| state.manifest(poll.after).cloned();
    Ok(found(market.poll(&ring, poll.wait(), look).await?))
}

async fn positions(State(market): Shared, Path(ring): Ring, call: Signed) -> Result<Json<Committed>, Refused> {
    market.admit(&call, Need::Member(&ring)).await?;
    let positions: Positions = call.json()?;
    Ok(Json(market.store().positions(&ring, call.key(), positions).await?))
}

async fn ticket(State(market): Shared, Path(ring): Ring, call: Signed) -> Result<Json<TicketGranted>, Refused> {
    market.admit(&call, Need::Member(&ring)).await?;
    let request: TicketRequest = call.json()?;
    let view = market.look(&ring).await?;
    let url = view.state.ticket(view.now, call.key(), request)?.to_owned();
    let ticket = Ticket {
        ring,
        epoch: request.epoch,
        edge: request.edge,
        role: match request.role {
            EdgeRole::Predecessor => Role::Predecessor,
            EdgeRole::Successor => Role::Successor,
        },
        node: call.key(),
        relay_url: url.clone(),
        expires_ms: wall_clock() + TICKET_LIFE_MS,
    };
    Ok(Json(TicketGranted {
        url,
        ticket: market.tickets().sign(&ticket),
        expires_in_s: (TICKET_LIFE_MS / 1000) as u32,
    }))
}

async fn status(State(market): Shared, Path(ring): Ring, call: Signed) -> Result<Json<RingStatus>, Refused> {
    market.admit(&call, Need::MemberOrOwner(&ring)).await?;
    let view = market.look(&ring).await?;
    let relays = market.store().relays().await?;
    Ok(Json(view.state.status(view.now, &relays)))
}

fn found<T: Serialize>(answer: Option<T>) -> Response {
    answer.map_or_else(
        || StatusCode::NO_CONTENT.into_response(),
        |answer| Json(answer).into_response(),
    )
}
