//! The market behind the relay's port.

use std::sync::Arc;

use axum::Router;
use kvasir_market::{Market, router};

/// The market's calls.
pub(crate) fn mount() -> Router {
    router(Arc::new(Market::new()), None)
}
