//! API keys: a Bearer token in the `Authorization` header, nowhere else, compared in constant time.

use axum::extract::{Request, State};
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::Response;
use secrecy::{ExposeSecret, SecretString};
use std::sync::Arc;
use subtle::{Choice, ConstantTimeEq};

use super::errors::ApiError;

/// Lets a request pass that carries one of `keys`; with no keys at all, every request.
pub(super) async fn require_key(
    State(keys): State<Arc<[SecretString]>>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    if !keys.is_empty() {
        check(&keys, request.headers())?;
    }
    Ok(next.run(request).await)
}

fn check(keys: &[SecretString], headers: &HeaderMap) -> Result<(), ApiError> {
    let given = headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
        .map(|(_, key)| key.trim())
        .ok_or_else(|| ApiError::unauthorized("an API key is needed: send it as 'Authorization: Bearer KEY'"))?;
    let known = keys.iter().fold(Choice::from(0), |known, key| {
        known | key.expose_secret().as_bytes().ct_eq(given.as_bytes())
    });
    if bool::from(known) {
        Ok(())
    } else {
        Err(ApiError::unauthorized("the API key is not known here"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    fn allowed(authorization: &str) -> bool {
        let keys = [SecretString::from("first"), SecretString::from("second")];
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, HeaderValue::from_str(authorization).unwrap());
        check(&keys, &headers).is_ok()
    }

    #[test]
    fn any_of_the_keys_opens_and_nothing_else_does() {
        assert!(allowed("Bearer first"));
        assert!(allowed("bearer second"));
        for wrong in ["Bearer firs", "Bearer firstt", "Bearer ", "Basic first", "first", ""] {
            assert!(!allowed(wrong), "{wrong:?}");
        }
    }
}
