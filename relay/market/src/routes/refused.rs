//! Refusals as they travel: a status, a stable word, and a sentence.

use axum::{
    Json,
    extract::rejection::BytesRejection,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use kvasir_process::chain;
use kvasir_wire::trust::PublicKey;

use super::limit::Limited;
use crate::{
    auth::AuthError,
    rules::RuleError,
    store::StoreError,
    types::{Refusal, TakenRefusal},
};

/// Why a call is refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refused {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("{0}")]
    Unread(BytesRejection),
    #[error("{0}")]
    Body(String),
    #[error(
        "this market takes rings of owners that it knows: ask whoever runs it to add this ring's owner, by \
         `kvasir-relay --owner {owner}`"
    )]
    OwnerNotAdmitted { owner: PublicKey },
    #[error(transparent)]
    Limited(#[from] Limited),
    #[error("the market has no random bytes for a token")]
    NoRandomness,
    #[error("the market was interrupted")]
    Interrupted,
}

impl From<AuthError> for Refused {
    fn from(error: AuthError) -> Self {
        Refused::Store(error.into())
    }
}

impl From<RuleError> for Refused {
    fn from(error: RuleError) -> Self {
        Refused::Store(error.into())
    }
}

impl Refused {
    fn reason(&self) -> &'static str {
        match self {
            Refused::Store(error) => error.reason(),
            Refused::Unread(_) | Refused::Body(_) => "BadRequest",
            Refused::OwnerNotAdmitted { .. } => "OwnerNotAdmitted",
            Refused::Limited(limited) => limited.reason(),
            Refused::NoRandomness => "NoRandomness",
            Refused::Interrupted => "Interrupted",
        }
    }

    fn status(&self) -> StatusCode {
        match self {
            Refused::Unread(rejection) => rejection.status(),
            Refused::Body(_) => StatusCode::BAD_REQUEST,
            Refused::OwnerNotAdmitted { .. } => StatusCode::FORBIDDEN,
            Refused::Limited(_) => StatusCode::TOO_MANY_REQUESTS,
            Refused::NoRandomness | Refused::Interrupted => StatusCode::INTERNAL_SERVER_ERROR,
            Refused::Store(error) => match error {
                StoreError::UnknownRing { .. } => StatusCode::NOT_FOUND,
                StoreError::Full { .. } => StatusCode::INSUFFICIENT_STORAGE,
                StoreError::TooBig { .. } => StatusCode::UNPROCESSABLE_ENTITY,
                StoreError::Auth(error) => auth_status(error),
                StoreError::Rule(error) => rule_status(error),
                StoreError::Open(_) | StoreError::Migrate(_) | StoreError::Query(_) | StoreError::Stored { .. } => {
                    StatusCode::SERVICE_UNAVAILABLE
                }
            },
        }
    }
}

fn auth_status(error: &AuthError) -> StatusCode {
    match error {
        AuthError::NotEnrolled { .. } | AuthError::Stranger { .. } | AuthError::NotOwner { .. } => {
            StatusCode::FORBIDDEN
        }
        AuthError::Unsigned { .. }
        | AuthError::Malformed { .. }
        | AuthError::ClockSkew { .. }
        | AuthError::BadSignature
        | AuthError::Replayed
        | AuthError::UnknownInvite
        | AuthError::InviteSpent => StatusCode::UNAUTHORIZED,
    }
}

fn rule_status(error: &RuleError) -> StatusCode {
    match error.reason() {
        "UnknownRing" | "UnknownClaim" | "UnknownEpoch" | "UnknownWindows" => StatusCode::NOT_FOUND,
        "Taken" | "Quota" | "Paused" | "Fenced" | "NotProposed" | "NotRelayed" => StatusCode::CONFLICT,
        "Expired" | "Stalled" | "Absent" => StatusCode::GONE,
        "ForeignOwner" | "ForeignClaim" | "Unsigned" | "NotRank0" | "NotAtEdge" => StatusCode::FORBIDDEN,
        _ => StatusCode::UNPROCESSABLE_ENTITY,
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let (status, reason) = (self.status(), self.reason().to_owned());
        let message = if status.is_server_error() && !matches!(self, Refused::Store(StoreError::Full { .. })) {
            // What a database says may name what is no caller's business.
            tracing::error!(reason, error = %chain(&self), "a call failed");
            self.to_string()
        } else {
            chain(&self)
        };
        if let Refused::Limited(limited) = self {
            let retry_after = [(header::RETRY_AFTER, limited.retry_after_s().to_string())];
            return (status, retry_after, Json(Refusal { reason, message })).into_response();
        }
        if let Refused::Store(StoreError::Rule(RuleError::Taken { open, .. })) = self {
            return (status, Json(TakenRefusal { reason, message, open })).into_response();
        }
        (status, Json(Refusal { reason, message })).into_response()
    }
}
