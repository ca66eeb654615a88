//! Models on volumes: a pod in the Ring's namespace would have to read the prefix.

use std::sync::Arc;

use kvasir_api::conditions::reasons;
use kvasir_plan::ModelProfile;

use crate::{context::Context, validate::Spec};

/// Why a model on a volume isn't known.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// there is no reader yet
    #[error("models on a persistentVolumeClaim can't be read yet: serve the file by http in the cluster")]
    Unsupported,
}

impl Error {
    /// Stable `PascalCase` word for metrics, events and conditions.
    pub fn reason(&self) -> &'static str {
        reasons::UNSUPPORTED_SOURCE
    }
}

/// The profile of the model on the Ring's volume.
///
/// # Errors
/// [`Error`].
pub async fn profile(_context: &Context, _spec: &Spec) -> Result<Arc<ModelProfile>, Error> {
    Err(Error::Unsupported)
}
