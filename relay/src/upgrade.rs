//! The upgrade: everything that is checked before a connection becomes a leg.
//!
//! A refusal is an HTTP status with `{reason, message}` as JSON; after the 101 there are close codes instead
//! ([`kvasir_wire::leg::Close`]). The rule for `Origin`: stages send none, and a browser always does. So an upgrade with
//! an `Origin` header is refused, `null` included, whatever else it carries. A ticket comes in the `Authorization` header
//! only; an upgrade with a query is refused, so that no secret gets used to travelling in one, and neither the address nor
//! the header is ever logged.

use std::{
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use axum::{
    Json,
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, Method, StatusCode, header},
    response::{IntoResponse, Response},
};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use kvasir_market::{Ticket, TicketError, types::Refusal};
use kvasir_wire::leg::SUBPROTOCOL;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

use crate::{
    bridge::Bridge,
    leg::Leg,
    places::{NoPlace, Place},
    socket::Socket,
};

/// Why an upgrade is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum Refused {
    #[error("an address with a query is refused, since secrets don't belong there: send the ticket as a bearer token")]
    Query,
    #[error("browsers, which send an Origin, have no business here")]
    Origin,
    #[error("this is the door for edges: it takes a WebSocket upgrade (version 13) by GET")]
    NotAnUpgrade,
    #[error("the upgrade must name the subprotocol {SUBPROTOCOL}")]
    Protocol,
    #[error("a ticket is wanted as a bearer token: the market gives it")]
    NoTicket,
    #[error(transparent)]
    Ticket(TicketError),
    #[error("the relay is being shut down")]
    Draining,
    #[error(transparent)]
    NoPlace(NoPlace),
}

impl Refused {
    fn reason(&self) -> &'static str {
        match self {
            Refused::Query => "QueryRefused",
            Refused::Origin => "OriginRefused",
            Refused::NotAnUpgrade => "NotAnUpgrade",
            Refused::Protocol => "UnknownProtocol",
            Refused::NoTicket => "NoTicket",
            Refused::Ticket(error) => error.reason(),
            Refused::Draining => "Draining",
            Refused::NoPlace(NoPlace::Full { .. }) => "RelayFull",
            Refused::NoPlace(NoPlace::OfNode { .. }) => "TooManyLegs",
        }
    }

    fn status(&self) -> StatusCode {
        match self {
            Refused::Query | Refused::Protocol => StatusCode::BAD_REQUEST,
            Refused::NotAnUpgrade => StatusCode::UPGRADE_REQUIRED,
            Refused::NoTicket | Refused::Ticket(TicketError::Expired { .. }) => StatusCode::UNAUTHORIZED,
            Refused::Origin | Refused::Ticket(_) => StatusCode::FORBIDDEN,
            Refused::Draining | Refused::NoPlace(NoPlace::Full { .. }) => StatusCode::SERVICE_UNAVAILABLE,
            Refused::NoPlace(NoPlace::OfNode { .. }) => StatusCode::TOO_MANY_REQUESTS,
        }
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let mut response = Json(Refusal {
            reason: self.reason().to_owned(),
            message: self.to_string(),
        })
        .into_response();
        *response.status_mut() = self.status();
        let headers = response.headers_mut();
        match self {
            Refused::NotAnUpgrade => {
                headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
            }
            Refused::Draining | Refused::NoPlace(_) => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("2"));
            }
            _ => {}
        }
        response
    }
}

/// `GET /v1/edge`.
pub(crate) async fn edge(State(bridge): State<Arc<Bridge>>, mut request: Request) -> Response {
    let (ticket, place, accept) = match check(&bridge, &request) {
        Ok(checked) => checked,
        Err(refused) => {
            bridge.metrics.refused(refused.reason());
            tracing::info!(reason = refused.reason(), "refused a leg: {refused}");
            return refused.into_response();
        }
    };
    let upgrade = hyper::upgrade::on(&mut request);
    bridge.spawn(serve(Arc::clone(&bridge), upgrade, ticket, place));
    let mut response = StatusCode::SWITCHING_PROTOCOLS.into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    headers.insert(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(SUBPROTOCOL));
    response
}

fn check(bridge: &Arc<Bridge>, request: &Request) -> Result<(Ticket, Place, HeaderValue), Refused> {
    let headers = request.headers();
    if request.uri().query().is_some() {
        return Err(Refused::Query);
    }
    if headers.contains_key(header::ORIGIN) {
        return Err(Refused::Origin);
    }
    let asks = request.method() == Method::GET
        && names(headers, header::CONNECTION, "upgrade")
        && names(headers, header::UPGRADE, "websocket")
        && names(headers, header::SEC_WEBSOCKET_VERSION, "13");
    let key = headers.get(header::SEC_WEBSOCKET_KEY).ok_or(Refused::NotAnUpgrade)?;
    let accept = HeaderValue::from_str(&derive_accept_key(key.as_bytes())).map_err(|_| Refused::NotAnUpgrade)?;
    if !asks || request.extensions().get::<OnUpgrade>().is_none() {
        return Err(Refused::NotAnUpgrade);
    }
    if !names(headers, header::SEC_WEBSOCKET_PROTOCOL, SUBPROTOCOL) {
        return Err(Refused::Protocol);
    }
    let text = headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "))
        .ok_or(Refused::NoTicket)?;
    let config = &bridge.config;
    let ticket = config
        .tickets
        .verify(text, &config.public_url, now_ms())
        .map_err(Refused::Ticket)?;
    if bridge.is_leaving() {
        return Err(Refused::Draining);
    }
    let place = bridge.places.take(ticket.node).map_err(Refused::NoPlace)?;
    Ok((ticket, place, accept))
}

/// Whether one of the words in a header's comma-separated lists is `word`.
fn names(headers: &HeaderMap, name: header::HeaderName, word: &str) -> bool {
    headers
        .get_all(name)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|value| value.trim().eq_ignore_ascii_case(word))
}

async fn serve(bridge: Arc<Bridge>, upgrade: OnUpgrade, ticket: Ticket, place: Place) {
    let upgraded = match upgrade.await {
        Ok(upgraded) => upgraded,
        Err(error) => {
            tracing::debug!(%error, "a connection ended before it was a leg");
            return;
        }
    };
    let Ok(parts) = upgraded.downcast::<TokioIo<Socket>>() else {
        tracing::error!("a leg came over a connection that this relay didn't accept");
        return;
    };
    let leg = Leg::new(ticket, parts.io.into_inner(), parts.read_buf.to_vec(), place);
    bridge.serve(leg).await;
}

/// A clock before 1970 makes every ticket good, and nothing else would work there either.
fn now_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_millis() as u64)
}
