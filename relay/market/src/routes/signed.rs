//! A signed request: its body, and who sent it, once clock and signature were found right.

use std::sync::Arc;

use axum::{
    body::Bytes,
    extract::{FromRequest, Request},
};
use kvasir_wire::trust::PublicKey;
use serde::de::DeserializeOwned;

use super::{market::Market, refused::Refused};
use crate::{
    auth::{Call, Credentials},
    store::wall_clock,
};

/// What a handler gets of a signed request. Whether its sender may ask, [`Market::admit`] says.
pub(super) struct Signed {
    pub(super) credentials: Credentials,
    body: Bytes,
}

impl Signed {
    pub(super) fn key(&self) -> PublicKey {
        self.credentials.key
    }

    pub(super) fn json<T: DeserializeOwned>(&self) -> Result<T, Refused> {
        serde_json::from_slice(&self.body)
            .map_err(|error| Refused::Body(format!("the body is not what this call takes: {error}")))
    }
}

impl FromRequest<Arc<Market>> for Signed {
    type Rejection = Refused;

    async fn from_request(request: Request, state: &Arc<Market>) -> Result<Self, Refused> {
        // Nothing is read for somebody who doesn't sign.
        let credentials = Credentials::read(request.headers())?;
        let method = request.method().clone();
        let target = request
            .uri()
            .path_and_query()
            .map_or("/", |target| target.as_str())
            .to_owned();
        let body = Bytes::from_request(request, state).await.map_err(Refused::Unread)?;
        let call = Call {
            method: method.as_str(),
            target: &target,
            body: &body,
        };
        credentials.check(&call, wall_clock())?;
        state.limiter().signed(credentials.key)?;
        Ok(Signed { credentials, body })
    }
}
