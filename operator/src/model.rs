//! Models as their prefixes describe them, read once for all Rings that name the same source.
//!
//! Visits don't wait for sources: a reading goes on beside them, within a time of its own, and a visit that comes before it
//! has ended is told so. Otherwise a few sources that send a byte now and then would keep the operator from all other Rings.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use axum::http::Uri;
use futures::{
    FutureExt as _,
    future::{BoxFuture, Shared},
};
use kvasir_api::conditions::reasons;
use kvasir_gguf::{
    ModelSource,
    source::{self, Access, Patience},
};
use kvasir_plan::{ModelProfile, profile};
use secrecy::{ExposeSecret, SecretString};
use tokio::sync::Semaphore;

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
    /// the operator is ending, or the reading failed in a way that it shouldn't
    #[error("the reading of the model's prefix was broken off")]
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

/// A reading, which goes on whether or not anybody waits for it.
type Reading = Shared<BoxFuture<'static, Result<Arc<ModelProfile>, Arc<Error>>>>;

/// The models that were read.
#[derive(Debug)]
pub struct Models {
    readings: Mutex<HashMap<Key, Reading>>,
    /// by namespace and source
    on_volumes: Mutex<HashMap<(String, Source), Arc<ModelProfile>>>,
    servers: Mutex<HashMap<String, Arc<Semaphore>>>,
    all: Arc<Semaphore>,
}

impl Default for Models {
    fn default() -> Self {
        Models {
            readings: Mutex::default(),
            on_volumes: Mutex::default(),
            servers: Mutex::default(),
            all: Arc::new(Semaphore::new(AT_ONCE)),
        }
    }
}

async fn read(
    source: ModelSource,
    token: Option<SecretString>,
    turns: [Arc<Semaphore>; 2],
) -> Result<Arc<ModelProfile>, Error> {
    let [of_server, of_all] = &turns;
    let _of_server = of_server.acquire().await.map_err(|_| Error::Ending)?;
    let _of_all = of_all.acquire().await.map_err(|_| Error::Ending)?;
    let access = Access {
        token,
        patience: PATIENCE,
        ..Access::default()
    };
    let reading = async {
        let reader = source::open(&source, &access)?;
        let model = source::read_model(&*reader, &[]).await?;
        Ok(Arc::new(ModelProfile::of(&model)?))
    };
    tokio::time::timeout(READ_WITHIN, reading)
        .await
        .unwrap_or(Err(Error::Slow))
}

/// Host and port, or the service that a source names.
fn server_of(source: &ModelSource) -> String {
    let ModelSource::Http { url } = source else {
        return String::new();
    };
    let address: Option<Uri> = url.parse().ok();
    let server = address.and_then(|address| Some(address.authority()?.to_string()));
    server.unwrap_or_default()
}

impl Models {
    /// The profile of the model at `source`. The first who asks begins the reading; it goes on beside the visits.
    ///
    /// # Errors
    /// [`Error`], of which [`Error::Reading`] says to ask again; after any other the next who asks begins anew.
    pub async fn profile(
        &self,
        source: &ModelSource,
        token: Option<SecretString>,
    ) -> Result<Arc<ModelProfile>, Arc<Error>> {
        let key = Key {
            source: source.clone(),
            token: token
                .as_ref()
                .map(|token| names::digest(token.expose_secret().as_bytes())),
        };
        let known = self.readings().get(&key).cloned();
        let patience = if known.is_some() { Duration::ZERO } else { PROMPTLY };
        let reading = known.unwrap_or_else(|| self.begin(key.clone(), token));
        let Ok(read) = tokio::time::timeout(patience, reading.clone()).await else {
            return Err(Arc::new(Error::Reading));
        };
        if read.is_err() {
            let mut readings = self.readings();
            // not one that was begun since
            if readings.get(&key).is_some_and(|there| there.ptr_eq(&reading)) {
                readings.remove(&key);
            }
        }
        read
    }

    /// Begins a reading, unless somebody was faster.
    fn begin(&self, key: Key, token: Option<SecretString>) -> Reading {
        let turns = [self.server(&key.source), self.all.clone()];
        let mut readings = self.readings();
        if readings.len() >= KEPT {
            readings.retain(|_, reading| reading.clone().now_or_never().is_none());
        }
        let source = key.source.clone();
        let start = || {
            let task = tokio::spawn(read(source, token, turns));
            let end = task.map(|read| read.unwrap_or(Err(Error::Ending)).map_err(Arc::new));
            end.boxed().shared()
        };
        readings.entry(key).or_insert_with(start).clone()
    }

    fn readings(&self) -> MutexGuard<'_, HashMap<Key, Reading>> {
        self.readings.lock().unwrap_or_else(PoisonError::into_inner)
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
        let is_reading = |told: &Result<_, Arc<Error>>| matches!(told, Err(error) if matches!(**error, Error::Reading));
        assert!(told.iter().all(is_reading), "{told:?}");
        assert!(began.elapsed() < READ_WITHIN / 4, "{:?}", began.elapsed());

        let gone = server(Some(
            b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
        ))
        .await;
        let other = models.profile(&file(&gone, "model"), None).await;
        let told = matches!(other.as_deref(), Err(error) if matches!(**error, Error::Source(_)));
        assert!(told, "{other:?}");
    }

    #[tokio::test]
    async fn a_source_that_failed_is_read_anew_for_whoever_asks_next() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let models = Models::default();
        let gone = server(Some(
            b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
        ))
        .await;
        let source = file(&gone, "model");
        for _ in 0..3 {
            // several Rings name it: some come while it is read
            let told = join_all((0..8).map(|_| models.profile(&source, None))).await;
            let has_failed =
                |told: &Result<_, Arc<Error>>| matches!(told, Err(error) if matches!(**error, Error::Source(_)));
            assert!(told.iter().any(has_failed), "{told:?}");
        }
    }
}
