//! Errors as the OpenAI API says them: `{"error": {"message", "type", "param", "code"}}` with an HTTP status.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use std::time::Duration;

use crate::ring::handle::RingError;

/// An answer that is no success.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(super) struct ApiError {
    status: StatusCode,
    message: String,
    kind: &'static str,
    param: Option<String>,
    code: Option<&'static str>,
    /// seconds after which trying again makes sense
    retry_after: Option<u32>,
}

const INVALID_REQUEST: &str = "invalid_request_error";
/// Seconds in which a server that shuts down may be back, or another one in its place.
const AFTER_RESTART: u32 = 5;

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, code: Option<&'static str>, message: impl Into<String>) -> ApiError {
        ApiError {
            status,
            message: message.into(),
            kind,
            param: None,
            code,
            retry_after: None,
        }
    }

    /// 400 for the value of the field `param`.
    pub(super) fn invalid(param: impl Into<String>, message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, INVALID_REQUEST, Some("invalid_value"), message).with_param(param)
    }

    /// 400 for a field that this server knows and can't honour.
    pub(super) fn unsupported(param: impl Into<String>, message: impl Into<String>) -> ApiError {
        ApiError::new(
            StatusCode::BAD_REQUEST,
            INVALID_REQUEST,
            Some("unsupported_parameter"),
            message,
        )
        .with_param(param)
    }

    /// A request that can't be read at all: malformed JSON, too large, not JSON.
    pub(super) fn unreadable(status: StatusCode, message: impl Into<String>) -> ApiError {
        ApiError::new(status, INVALID_REQUEST, None, message)
    }

    /// 408: the body did not come in time.
    pub(super) fn too_slow(within: Duration) -> ApiError {
        ApiError::new(
            StatusCode::REQUEST_TIMEOUT,
            INVALID_REQUEST,
            Some("request_timeout"),
            format!(
                "the body did not come whole within {} s: send it again",
                within.as_secs_f32()
            ),
        )
    }

    /// 408: the head did not come in time.
    pub(super) fn slow_head(within: Duration) -> ApiError {
        ApiError {
            message: format!(
                "the request's head did not come whole within {} s",
                within.as_secs_f32()
            ),
            ..ApiError::too_slow(within)
        }
    }

    /// 400: prompt and one token don't fit the context.
    pub(super) fn context_length(param: &str, prompt: usize, context_length: u32) -> ApiError {
        let message = format!(
            "the prompt has {prompt} tokens; with at least one token to answer it does not fit this model's maximum \
             context length of {context_length} tokens: shorten it"
        );
        ApiError::new(
            StatusCode::BAD_REQUEST,
            INVALID_REQUEST,
            Some("context_length_exceeded"),
            message,
        )
        .with_param(param)
    }

    /// 400: a text so long that no tokens of this model bring it into the context.
    pub(super) fn text_too_long(param: &str, bytes: usize, context_length: u32) -> ApiError {
        let message = format!(
            "the prompt has {bytes} bytes of text, which is more than this model's maximum context length of \
             {context_length} tokens can hold: shorten it"
        );
        ApiError {
            message,
            ..ApiError::context_length(param, 0, context_length)
        }
    }

    /// 404 for a model that isn't served here.
    pub(super) fn model_not_found(asked: &str, served: &str) -> ApiError {
        let message = format!("the model '{asked}' is not served here; this ring serves '{served}'");
        ApiError::new(StatusCode::NOT_FOUND, INVALID_REQUEST, Some("model_not_found"), message).with_param("model")
    }

    /// 404 for a path that isn't served here.
    pub(super) fn no_route(method: &str, path: &str) -> ApiError {
        ApiError::new(
            StatusCode::NOT_FOUND,
            INVALID_REQUEST,
            Some("unknown_url"),
            format!("no route {method} {path}"),
        )
    }

    /// 405.
    pub(super) fn wrong_method(method: &str, path: &str) -> ApiError {
        let message = format!("{method} is not allowed for {path}");
        ApiError::new(
            StatusCode::METHOD_NOT_ALLOWED,
            INVALID_REQUEST,
            Some("method_not_allowed"),
            message,
        )
    }

    /// 401.
    pub(super) fn unauthorized(message: &str) -> ApiError {
        ApiError::new(
            StatusCode::UNAUTHORIZED,
            INVALID_REQUEST,
            Some("invalid_api_key"),
            message,
        )
    }

    /// 500 with a name.
    pub(super) fn internal(code: &'static str, message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", Some(code), message)
    }

    /// 503: answers are in progress and none of them moves.
    pub(super) fn wedged(silence: Duration) -> ApiError {
        let message = format!("generation is wedged: no answer has moved for {} s", silence.as_secs());
        ApiError::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "server_error",
            Some("generation_wedged"),
            message,
        )
    }

    /// What the ring said.
    pub(super) fn ring(error: &RingError) -> ApiError {
        let (status, kind, code) = match error {
            RingError::NotReady { .. } => (StatusCode::SERVICE_UNAVAILABLE, "server_error", "ring_not_ready"),
            RingError::StageLost { .. } => (StatusCode::SERVICE_UNAVAILABLE, "server_error", "stage_lost"),
            RingError::EngineFailed { .. } => (StatusCode::SERVICE_UNAVAILABLE, "server_error", "engine_failed"),
            RingError::Draining => (StatusCode::SERVICE_UNAVAILABLE, "server_error", "server_draining"),
            RingError::Sampling { .. } => (StatusCode::INTERNAL_SERVER_ERROR, "server_error", "sampling_failed"),
            RingError::Busy { .. } => (StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", "server_busy"),
        };
        let mut answer = ApiError::new(status, kind, Some(code), error.to_string());
        answer.retry_after = match error {
            RingError::Busy { .. } => Some(1),
            RingError::Draining => Some(AFTER_RESTART),
            _ => None,
        };
        answer
    }

    fn with_param(mut self, param: impl Into<String>) -> ApiError {
        self.param = Some(param.into());
        self
    }

    /// A whole answer in HTTP/1.1, for where there was no request yet.
    pub(super) fn whole(&self) -> String {
        let body = self.body().to_string();
        format!(
            "HTTP/1.1 {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
            self.status,
            body.len()
        )
    }

    /// The body, also sent as an event once a stream has begun.
    pub(super) fn body(&self) -> Value {
        json!({"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}})
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        if self.status == StatusCode::UNAUTHORIZED {
            response
                .headers_mut()
                .insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if self.status == StatusCode::REQUEST_TIMEOUT {
            // the rest of the body may still come, and is no request
            response
                .headers_mut()
                .insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        if let Some(seconds) = self.retry_after {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}
