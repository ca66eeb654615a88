//! `/v1/models`: the one model that this ring serves.

use axum::Json;
use axum::extract::{Path, State};
use serde_json::{Value, json};
use std::sync::Arc;

use super::Api;
use super::errors::ApiError;

fn model(api: &Api) -> Value {
    json!({
        "id": api.model_name,
        "object": "model",
        "created": api.started,
        "owned_by": "kvasir",
        "context_length": api.ring.limits().context_length,
    })
}

pub(super) async fn list(State(api): State<Arc<Api>>) -> Json<Value> {
    Json(json!({"object": "list", "data": [model(&api)]}))
}

pub(super) async fn retrieve(State(api): State<Arc<Api>>, Path(id): Path<String>) -> Result<Json<Value>, ApiError> {
    api.check_model(Some(&id))?;
    Ok(Json(model(&api)))
}
