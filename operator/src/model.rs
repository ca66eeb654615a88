//! Models as their prefixes describe them, read once for all Rings that name the same source.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use kvasir_gguf::{
    ModelSource,
    source::{self, Access, Patience},
};
use kvasir_plan::{ModelProfile, profile};
use secrecy::{ExposeSecret, SecretString};
use tokio::sync::{OnceCell, Semaphore};

use crate::{names, source::Source};

/// A prefix is some megabytes while it is parsed; so many are read at a time.
const AT_ONCE: usize = 2;
/// Models that are remembered.
const KEPT: usize = 512;
/// A visit doesn't wait for a server that is down: the next one tries again.
const PATIENCE: Patience = Patience {
    tries: 3,
    first_pause: Duration::from_millis(500),
    longest_pause: Duration::from_secs(5),
};

/// Why a model is not known.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// its source can't be read
    #[error(transparent)]
    Source(#[from] source::Error),
    /// it can't be planned
    #[error("the model can't be cut into windows")]
    Profile(#[from] profile::Error),
    /// the operator is ending
    #[error("the operator ends")]
    Ending,
}

impl Error {
    /// Stable `PascalCase` word for metrics, events and conditions.
    pub fn reason(&self) -> &'static str {
        match self {
            Error::Source(error) => error.reason(),
            Error::Profile(error) => error.reason(),
            Error::Ending => "Ending",
        }
    }
}

/// What was read, and with which token: another one may see another file.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    source: ModelSource,
    token: Option<String>,
}

type Slot = Arc<OnceCell<Arc<ModelProfile>>>;

/// The models that were read.
#[derive(Debug)]
pub struct Models {
    known: Mutex<HashMap<Key, Slot>>,
    /// by namespace and source
    on_volumes: Mutex<HashMap<(String, Source), Arc<ModelProfile>>>,
    permits: Semaphore,
}

impl Default for Models {
    fn default() -> Self {
        Models {
            known: Mutex::default(),
            on_volumes: Mutex::default(),
            permits: Semaphore::new(AT_ONCE),
        }
    }
}

impl Models {
    /// The profile of the model at `source`. Rings that ask at the same time wait for one reading.
    ///
    /// # Errors
    /// [`Error`]; nothing is remembered then.
    pub async fn profile(&self, source: &ModelSource, token: Option<SecretString>) -> Result<Arc<ModelProfile>, Error> {
        let slot = self.slot(Key {
            source: source.clone(),
            token: token
                .as_ref()
                .map(|token| names::digest(token.expose_secret().as_bytes())),
        });
        let read = || async {
            let _permit = self.permits.acquire().await.map_err(|_| Error::Ending)?;
            let access = Access {
                token,
                patience: PATIENCE,
                ..Access::default()
            };
            let reader = source::open(source, &access)?;
            let model = source::read_model(&*reader, &[]).await?;
            Ok::<_, Error>(Arc::new(ModelProfile::of(&model)?))
        };
        slot.get_or_try_init(read).await.cloned()
    }

    /// The profile of a model on a volume, once a Job has read it.
    pub fn on_volume(&self, namespace: &str, source: &Source) -> Option<Arc<ModelProfile>> {
        let known = self.on_volumes.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(&(namespace.to_owned(), source.clone())).cloned()
    }

    /// Remembers what a Job has read.
    pub fn keep(&self, namespace: &str, source: &Source, profile: Arc<ModelProfile>) {
        let mut known = self.on_volumes.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= KEPT {
            known.clear();
        }
        known.insert((namespace.to_owned(), source.clone()), profile);
    }

    fn slot(&self, key: Key) -> Slot {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= KEPT && !known.contains_key(&key) {
            known.clear();
        }
        known.entry(key).or_default().clone()
    }
}
