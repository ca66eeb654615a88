//! A request's body as fields: every error names the field that caused it, and `null` is the same as absent.

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, StatusCode, header};
use serde_json::{Map, Value};
use std::ops::RangeInclusive;
use std::time::Duration;

use super::errors::ApiError;

/// How long a client may take to send its body: what it holds meanwhile is others' to have. A request's extension.
#[derive(Clone, Copy, Debug)]
pub(super) struct BodyWithin(pub(super) Duration);

impl Default for BodyWithin {
    /// 100 KB, which is a long conversation, at 7 kbit/s; 16 MB at 1.1 Mbit/s.
    fn default() -> BodyWithin {
        BodyWithin(Duration::from_secs(120))
    }
}

/// The fields of a JSON object that a client sent.
#[derive(Clone, Debug)]
pub(super) struct Fields(Map<String, Value>);

impl Fields {
    /// The field, unless it is absent or `null`.
    pub(super) fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    pub(super) fn bool(&self, name: &str) -> Result<Option<bool>, ApiError> {
        self.typed(name, "a boolean", Value::as_bool)
    }

    pub(super) fn string(&self, name: &str) -> Result<Option<&str>, ApiError> {
        self.typed(name, "a string", Value::as_str)
    }

    pub(super) fn array(&self, name: &str) -> Result<Option<&Vec<Value>>, ApiError> {
        self.typed(name, "an array", Value::as_array)
    }

    pub(super) fn object(&self, name: &str) -> Result<Option<&Map<String, Value>>, ApiError> {
        self.typed(name, "an object", Value::as_object)
    }

    /// A number within `range`.
    pub(super) fn number(&self, name: &str, range: RangeInclusive<f32>) -> Result<Option<f32>, ApiError> {
        let Some(number) = self.typed(name, "a number", Value::as_f64)? else {
            return Ok(None);
        };
        let number = number as f32;
        if range.contains(&number) {
            return Ok(Some(number));
        }
        Err(ApiError::invalid(
            name,
            format!(
                "'{name}' must be from {} to {}, not {number}",
                range.start(),
                range.end()
            ),
        ))
    }

    /// A whole number within `range`.
    pub(super) fn integer(&self, name: &str, range: RangeInclusive<i64>) -> Result<Option<i64>, ApiError> {
        let Some(number) = self.typed(name, "a whole number", whole)? else {
            return Ok(None);
        };
        if range.contains(&number) {
            return Ok(Some(number));
        }
        Err(ApiError::invalid(
            name,
            format!(
                "'{name}' must be from {} to {}, not {number}",
                range.start(),
                range.end()
            ),
        ))
    }

    fn typed<'a, T>(
        &'a self,
        name: &str,
        wanted: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        match read(value) {
            Some(value) => Ok(Some(value)),
            None => Err(ApiError::invalid(
                name,
                format!("'{name}' must be {wanted}, not {}", kind(value)),
            )),
        }
    }
}

/// The integer that `value` is, also when it is written as `5.0`.
pub(super) fn whole(value: &Value) -> Option<i64> {
    value.as_i64().or_else(|| {
        let number = value.as_f64()?;
        // Every float of this size is exact as an integer.
        (number.fract() == 0.0 && number.abs() < 9e15).then_some(number as i64)
    })
}

/// What kind of JSON `value` is, for messages.
pub(super) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "this number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

impl<S: Send + Sync> FromRequest<S> for Fields {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        if !is_json(request.headers()) {
            return Err(ApiError::unreadable(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "the body must be JSON: send it with 'Content-Type: application/json'",
            ));
        }
        let BodyWithin(within) = request.extensions().get::<BodyWithin>().copied().unwrap_or_default();
        let body = tokio::time::timeout(within, Bytes::from_request(request, state))
            .await
            .map_err(|_| ApiError::too_slow(within))?
            .map_err(|rejection| unreadable(&rejection))?;
        match serde_json::from_slice(&body) {
            Ok(Value::Object(fields)) => Ok(Fields(fields)),
            Ok(other) => Err(ApiError::unreadable(
                StatusCode::BAD_REQUEST,
                format!("the body must be a JSON object, not {}", kind(&other)),
            )),
            Err(error) => Err(ApiError::unreadable(
                StatusCode::BAD_REQUEST,
                format!("the body is not valid JSON: {error}"),
            )),
        }
    }
}

fn unreadable(rejection: &BytesRejection) -> ApiError {
    let status = rejection.status();
    let message = match status {
        StatusCode::PAYLOAD_TOO_LARGE => "the body is larger than this server accepts".to_string(),
        _ => format!("the body could not be read: {}", rejection.body_text()),
    };
    ApiError::unreadable(status, message)
}

fn is_json(headers: &HeaderMap) -> bool {
    let media_type = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split(';').next())
        .map(|value| value.trim().to_ascii_lowercase())
        .unwrap_or_default();
    media_type == "application/json" || (media_type.starts_with("application/") && media_type.ends_with("+json"))
}

#[cfg(test)]
pub(super) fn fields(value: Value) -> Fields {
    match value {
        Value::Object(fields) => Fields(fields),
        other => panic!("not an object: {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn null_is_absent_and_wrong_kinds_name_the_field() {
        let fields = fields(json!({"a": null, "b": "x", "c": 3, "d": 2.0, "e": 2.5}));
        assert_eq!(fields.number("a", 0.0..=1.0), Ok(None));
        assert_eq!(fields.integer("d", 0..=9), Ok(Some(2)));
        let message = |error: ApiError| error.body()["error"]["message"].as_str().unwrap().to_string();
        assert_eq!(
            message(fields.number("b", 0.0..=1.0).unwrap_err()),
            "'b' must be a number, not a string"
        );
        assert_eq!(
            message(fields.number("c", 0.0..=2.0).unwrap_err()),
            "'c' must be from 0 to 2, not 3"
        );
        assert_eq!(
            message(fields.integer("e", 0..=9).unwrap_err()),
            "'e' must be a whole number, not this number"
        );
        assert_eq!(fields.bool("c").unwrap_err().body()["error"]["param"], "c");
    }

    #[test]
    fn whole_numbers_may_be_written_with_a_point() {
        assert_eq!(whole(&json!(5.0)), Some(5));
        assert_eq!(whole(&json!(5.5)), None);
        assert_eq!(whole(&json!(1e300)), None);
    }
}
