//! `kvasir-stage fetch`.

use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::ValueEnum;
use kvasir_gguf::source::{Access, ModelSource};
use kvasir_process::chain;
use secrecy::SecretString;
use serde_json::json;

use super::{read_plan, say, stdin_ended};
use crate::fetch::{FetchError, Fetched, Progress, RankFiles};
use crate::trial::Trial;

/// How progress is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Telling {
    /// log lines
    Log,
    /// one JSON object a line on standard output: progress, done, error
    Json,
}

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The model's source as in a Ring, in JSON: {"http":{"url":"…"}}, {"huggingFace":{…}} or {"file":{"path":"…"}};
    /// a bearer token comes from `KVASIR_SOURCE_TOKEN`
    #[arg(long, env = "KVASIR_SOURCE")]
    source: String,
    /// The plan: a rank manifest in JSON
    #[arg(long, env = "KVASIR_PLAN")]
    plan: PathBuf,
    /// The rank whose window is fetched
    #[arg(long, env = "KVASIR_RANK")]
    rank: usize,
    /// Folder that the window is written into
    #[arg(long, env = "KVASIR_DIR")]
    dir: PathBuf,
    /// How progress is told
    #[arg(long, value_enum, default_value = "log")]
    progress: Telling,
    /// End when standard input ends: a fetch that `kvasir up` started does not outlive it
    #[arg(long)]
    exit_with_stdin: bool,
}

impl Args {
    pub(super) async fn run(self, trial: &Trial) -> anyhow::Result<()> {
        let done = tokio::select! {
            done = self.fetch(trial) => done,
            () = stdin_ended(self.exit_with_stdin) => bail!("the program that started this fetch is gone"),
        };
        if self.progress == Telling::Json {
            match &done {
                Ok(f) => say(&json!({
                    "event": "done", "bytesFetched": f.bytes_fetched, "bytesWritten": f.bytes_written,
                })),
                Err(e) => {
                    let reason = e
                        .downcast_ref::<FetchError>()
                        .map_or("InvalidArguments", FetchError::reason);
                    say(&json!({ "event": "error", "reason": reason, "message": chain(e.as_ref()) }));
                }
            }
        }
        let fetched = done?;
        tracing::info!(bytes_fetched = fetched.bytes_fetched, dir = %self.dir.display(), "the window is there");
        Ok(())
    }

    async fn fetch(&self, trial: &Trial) -> anyhow::Result<Fetched> {
        let source: ModelSource = serde_json::from_str(&self.source).context("--source is no model source")?;
        let plan = read_plan(&self.plan)?;
        let files = RankFiles::new(&plan, self.rank, &self.dir)?;
        let token = std::env::var("KVASIR_SOURCE_TOKEN")
            .ok()
            .filter(|t| !t.is_empty())
            .map(SecretString::from);
        let access = Access {
            token,
            ..Access::default()
        };
        let telling = self.progress;
        let mut told = 0;
        let progress = move |p: Progress| {
            // A line for every hundredth, not for every chunk.
            let hundredth = (p.done * 100).checked_div(p.total).unwrap_or(100);
            if hundredth == told && p.done != 0 {
                return;
            }
            told = hundredth;
            match telling {
                Telling::Json => say(&json!({ "event": "progress", "done": p.done, "total": p.total })),
                Telling::Log if hundredth.is_multiple_of(10) => {
                    tracing::info!(done = p.done, total = p.total, "fetching");
                }
                Telling::Log => {}
            }
        };
        Ok(files
            .fetch(&source, &access, &plan.model.prefix_bytes, trial, progress)
            .await?)
    }
}
