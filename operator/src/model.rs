//! Models as their prefixes describe them, read once for all Rings that name the same source.
//!
//! Visits don't wait for sources: a reading goes on beside them, within a time of its own, and a visit that comes before it
//! has ended is told so. Otherwise a few sources that send a byte now and then would keep the operator from all other Rings.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use kvasir_api::conditions::reasons;
use kvasir_gguf::{
    ModelSource,
    source::{self, Access, Patience},
};
use kvasir_plan::{ModelProfile, profile};
use secrecy::{ExposeSecret, SecretString};
use tokio::sync::{Semaphore, oneshot};

use crate::{names, source::Source};

/// A prefix is some megabytes while it is parsed; so many are read at a time.
const AT_ONCE: usize = 4;
/// Of those, from one server.
const FROM_ONE_SERVER: usize = 2;
/// A prefix of 10 MB takes 170 kB/s.
const READ_WITHIN: Duration = Duration::from_secs(60);
/// The visit that begins a reading waits so long for it, since most end sooner.
const PROMPTLY: Duration = Duration::from_secs(2);
/// Models and servers that are remembered.
const KEPT: usize = 512;
/// A server that is down isn't waited for: a later visit tries again.
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
    /// the reading goes on
    #[error("the model's prefix is being read")]
    Reading,
    /// the source took too long
    #[error(
        "the model's prefix did not come within {} s: is its server fast enough from here?",
        READ_WITHIN.as_secs()
    )]
    Slow,
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
            Error::Reading => reasons::PENDING,
            Error::Slow => reasons::SOURCE_UNREACHABLE,
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

#[derive(Debug)]
enum State {
    Reading,
    Known(Arc<ModelProfile>),
    /// until a visit has been told
    Failed(Error),
}

/// The models that were read.
#[derive(Debug, Default)]
pub struct Models {
    remote: Arc<Remote>,
    /// by namespace and source
    on_volumes: Mutex<HashMap<(String, Source), Arc<ModelProfile>>>,
}

#[derive(Debug)]
struct Remote {
    states: Mutex<HashMap<Key, State>>,
    servers: Mutex<HashMap<String, Arc<Semaphore>>>,
    all: Semaphore,
}

impl Default for Remote {
    fn default() -> Self {
        Remote {
            states: Mutex::default(),
            servers: Mutex::default(),
            all: Semaphore::new(AT_ONCE),
        }
    }
}

impl Remote {
    fn states(&self) -> MutexGuard<'_, HashMap<Key, State>> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known, or that a reading has to begin.
    fn look(&self, key: &Key) -> Option<Result<Arc<ModelProfile>, Error>> {
        let mut states = self.states();
        match states.get(key) {
            Some(State::Known(profile)) => return Some(Ok(profile.clone())),
            Some(State::Reading) => return Some(Err(Error::Reading)),
            Some(State::Failed(_)) => {}
            None => {
                if states.len() >= KEPT {
                    states.retain(|_, state| matches!(state, State::Reading));
                }
                states.insert(key.clone(), State::Reading);
                return None;
            }
        }
        match states.remove(key) {
            Some(State::Failed(error)) => Some(Err(error)),
            _ => Some(Err(Error::Reading)),
        }
    }

    fn end(&self, key: Key, read: Result<Arc<ModelProfile>, Error>) {
        let state = read.map_or_else(State::Failed, State::Known);
        self.states().insert(key, state);
    }

    fn server(&self, source: &ModelSource) -> Arc<Semaphore> {
        let mut servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
        if servers.len() >= KEPT {
            servers.retain(|_, server| Arc::strong_count(server) > 1);
        }
        let server = servers.entry(server_of(source));
        server
            .or_insert_with(|| Arc::new(Semaphore::new(FROM_ONE_SERVER)))
            .clone()
    }

    async fn read(&self, source: &ModelSource, token: Option<SecretString>) -> Result<Arc<ModelProfile>, Error> {
        let server = self.server(source);
        let _of_server = server.acquire().await.map_err(|_| Error::Ending)?;
        let _of_all = self.all.acquire().await.map_err(|_| Error::Ending)?;
        let access = Access {
            token,
            patience: PATIENCE,
            ..Access::default()
        };
        let reading = async {
            let reader = source::open(source, &access)?;
            let model = source::read_model(&*reader, &[]).await?;
            Ok(Arc::new(ModelProfile::of(&model)?))
        };
        tokio::time::timeout(READ_WITHIN, reading)
            .await
            .unwrap_or(Err(Error::Slow))
    }
}

/// Host and port, or the service that a source names.
fn server_of(source: &ModelSource) -> String {
    let text = match source {
        ModelSource::Http { url } => url.as_str(),
        _ => return String::new(),
    };
    let after = text.split_once("://").map_or(text, |(_, after)| after);
    after.split(['/', '?', '#']).next().unwrap_or_default().to_owned()
}

impl Models {
    /// The profile of the model at `source`. The first who asks begins the reading; it goes on beside the visits.
    ///
    /// # Errors
    /// [`Error`], of which [`Error::Reading`] says to ask again; whatever else is forgotten once it was told.
    pub async fn profile(&self, source: &ModelSource, token: Option<SecretString>) -> Result<Arc<ModelProfile>, Error> {
        let key = Key {
            source: source.clone(),
            token: token
                .as_ref()
                .map(|token| names::digest(token.expose_secret().as_bytes())),
        };
        if let Some(known) = self.remote.look(&key) {
            return known;
        }
        let (ended, end) = oneshot::channel::<()>();
        let (remote, source, of) = (self.remote.clone(), source.clone(), key.clone());
        tokio::spawn(async move {
            let read = remote.read(&source, token).await;
            remote.end(of, read);
            drop(ended);
        });
        let _ = tokio::time::timeout(PROMPTLY, end).await;
        self.remote.look(&key).unwrap_or(Err(Error::Reading))
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
}

#[cfg(test)]
mod tests {
    use futures::future::join_all;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
        time::Instant,
    };

    use super::*;

    /// A server that takes every request; `answer` is what it says, or nothing for ever.
    async fn server(answer: Option<&'static [u8]>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let mut held = Vec::new();
            while let Ok((mut connection, _)) = listener.accept().await {
                if let Some(answer) = answer {
                    let mut request = [0; 4096];
                    let _ = connection.read(&mut request).await;
                    let _ = connection.write_all(answer).await;
                } else {
                    held.push(connection);
                }
            }
        });
        format!("http://{address}")
    }

    fn file(server: &str, name: &str) -> ModelSource {
        let url = format!("{server}/{name}.gguf");
        ModelSource::Http { url }
    }

    #[tokio::test]
    async fn sources_that_never_answer_keep_no_visit_and_no_other_source_waiting() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let models = Models::default();
        let silent = server(None).await;
        let began = Instant::now();
        let sources: Vec<_> = (0..20).map(|number| file(&silent, &number.to_string())).collect();
        let told = join_all(sources.iter().map(|source| models.profile(source, None))).await;
        assert!(told.iter().all(|told| matches!(told, Err(Error::Reading))), "{told:?}");
        assert!(began.elapsed() < READ_WITHIN / 4, "{:?}", began.elapsed());

        let gone = server(Some(
            b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
        ))
        .await;
        let other = models.profile(&file(&gone, "model"), None).await;
        assert!(matches!(other, Err(Error::Source(_))), "{other:?}");
    }
}
