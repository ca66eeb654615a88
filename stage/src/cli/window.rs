//! From a fetched window to a running engine, and the stage's way to relays: what `run` and `join` have in common.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use kvasir_engine::{Backend, CacheType, Mode, Output, WindowOptions};
use kvasir_market::client::RingClient;
use kvasir_plan::RankManifest;
use kvasir_wire::edge::RelayDialer;
use secrecy::SecretString;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::{read_plan, stdin_ended};
use crate::fetch::RankFiles;
use crate::ring::compute::{Compute as _, SlotSpan};
use crate::ring::relays::Relays;
use crate::ring::{Embedding, Loaded};
use crate::run::{RunError, StageFacts};

/// Time for both links of an epoch to come up.
pub(super) const FORM_WITHIN: Duration = Duration::from_secs(20);

/// Precision of cached keys and values.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Cache {
    #[value(name = "F16")]
    F16,
    #[value(name = "Q8_0")]
    Q8_0,
}

/// How a window is computed.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct EngineArgs {
    /// Threads that compute; 0: one for each core
    #[arg(long, env = "KVASIR_THREADS", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=512))]
    threads: u32,
    /// Precision of the cache
    #[arg(long, env = "KVASIR_CACHE_TYPE", value_enum, default_value = "F16")]
    cache_type: Cache,
}

/// A plan and the engine that it wants.
pub(super) struct Prepared {
    pub(super) plan: RankManifest,
    pub(super) backend: &'static Backend,
}

impl Prepared {
    /// What must be done while the process has one thread: exact mode sets an environment variable.
    pub(super) fn of(plan: &Path) -> anyhow::Result<Self> {
        let plan = read_plan(plan)?;
        let backend = Backend::init(if plan.exact { Mode::Exact } else { Mode::Fast })?;
        Ok(Prepared { plan, backend })
    }
}

impl EngineArgs {
    /// Loads the window that lies in `dir`, for the dimensions of `plan`.
    pub(super) fn loader(
        &self,
        backend: &'static Backend,
        plan: &RankManifest,
        files: RankFiles,
        dir: PathBuf,
    ) -> impl FnOnce() -> Result<(Loaded, StageFacts), RunError> + Send + 'static {
        let options = self.options(plan, files.is_last());
        move || {
            load(backend, &files, &options).map_err(|e| RunError::Load {
                dir,
                source: e.into_boxed_dyn_error(),
            })
        }
    }

    fn options(&self, plan: &RankManifest, last: bool) -> WindowOptions {
        WindowOptions {
            context_length: plan.context_length,
            sequences: plan.sequences,
            max_rows: plan.max_lap_tokens,
            threads: self.threads,
            cache_type: match self.cache_type {
                Cache::F16 => CacheType::F16,
                Cache::Q8_0 => CacheType::Q8_0,
            },
            output: if last {
                Output::Logits {
                    max_rows: plan.sequences,
                }
            } else {
                Output::Hidden
            },
            exact: plan.exact,
            ..WindowOptions::default()
        }
    }
}

/// Loads a fetched window, with rank 0's embedding where the files hold it.
///
/// # Errors
/// What is wrong with the files or the options.
pub fn load(
    backend: &'static Backend,
    files: &RankFiles,
    options: &WindowOptions,
) -> anyhow::Result<(Loaded, StageFacts)> {
    let embedding = files.embedding()?;
    let embedding = embedding
        .as_ref()
        .map(|(file, scale)| Embedding { file, scale: *scale });
    let loaded = Loaded::load(backend, &files.window(), options, embedding)?;
    let facts = StageFacts {
        backend: loaded.backend_name().to_owned(),
    };
    Ok((loaded, facts))
}

/// Tokens that a window is tried with.
const TRIED: u32 = 8;

/// Runs a middle window on a few tokens, which proves that it computes numbers here, and says how long one takes: the
/// median, for a sequence alone. What it computed is forgotten.
pub(super) fn probe(loaded: &mut Loaded) -> anyhow::Result<Duration> {
    let row: Vec<f32> = (0..loaded.embedding_length()).map(|at| (at % 7) as f32 - 3.0).collect();
    let (mut out, mut times) = (Vec::new(), Vec::new());
    for position in 0..TRIED {
        let span = SlotSpan {
            slot: 0,
            position,
            count: 1,
        };
        let begun = Instant::now();
        loaded.run(&[span], &row, &mut out)?;
        times.push(begun.elapsed());
    }
    loaded.clear(0);
    times.sort_unstable();
    Ok(times[times.len() / 2])
}

/// The way to the relays that a ring's manifests name, with tickets from its market.
pub(super) fn relays(ring: RingClient) -> anyhow::Result<Relays> {
    Ok(Relays {
        dialer: RelayDialer::from_environment()?,
        tickets: Arc::new(ring),
    })
}

/// A secret of the environment; none when it is empty.
pub(super) fn secret(variable: &str) -> Option<SecretString> {
    std::env::var(variable)
        .ok()
        .filter(|v| !v.is_empty())
        .map(SecretString::from)
}

/// Cancels at the first Ctrl-C or SIGTERM, and at the end of standard input if that means anything.
pub(super) async fn cancel_on_signal(shutdown: CancellationToken, with_stdin: bool) {
    let terminated = async {
        match signal(SignalKind::terminate()) {
            Ok(mut signals) => {
                signals.recv().await;
            }
            Err(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        () = stdin_ended(with_stdin) => {}
        () = terminated => {}
        _ = tokio::signal::ctrl_c() => {}
    }
    shutdown.cancel();
}
