//! The command lines of the stages that this program starts.

use std::{net::SocketAddr, path::PathBuf, process::Command};

use anyhow::Context;
use kvasir_gguf::ModelSource;
use kvasir_plan::RankManifest;
use secrecy::{ExposeSecret, SecretString};

use super::{Folder, RingMarket};
use crate::{planned, supervise::Children};

/// Seconds that answers in progress have once the ring is to end: whoever pressed Ctrl-C waits for it.
const DRAIN_SECONDS: &str = "2";

/// This program as a stage, and what all stages of one ring share.
#[derive(Debug)]
pub(crate) struct Program<'a> {
    pub(crate) folder: &'a Folder,
    pub(crate) manifest: &'a RankManifest,
    executable: PathBuf,
    plan: PathBuf,
    source: String,
    source_token: Option<SecretString>,
}

/// What a running stage needs besides its window.
#[derive(Debug)]
pub(crate) struct Served<'a> {
    /// where manifests come from
    pub(crate) market: &'a RingMarket,
    /// where rank 0 serves the API
    pub(crate) api: SocketAddr,
    /// threads of each stage; none: one for each core
    pub(crate) threads: Option<u32>,
    /// precision of the cache
    pub(crate) cache_type: kvasir_api::CacheType,
    /// web pages that may call the API, as `--cors` takes them; none: as the stage does by itself
    pub(crate) cors: Option<String>,
    /// rank 0's template in place of the model's own
    pub(crate) chat_template: Option<PathBuf>,
}

impl<'a> Program<'a> {
    /// Writes the plan to the folder; stages are this program's own `stage` command.
    pub(crate) fn new(folder: &'a Folder, manifest: &'a RankManifest, source: &ModelSource) -> anyhow::Result<Self> {
        Ok(Program {
            folder,
            manifest,
            executable: std::env::current_exe().context("can't find this program's own file")?,
            plan: folder.write_plan(manifest)?,
            source: serde_json::to_string(source)?,
            source_token: planned::access(source).token,
        })
    }

    /// Name of a rank in messages.
    pub(crate) fn name(&self, rank: usize) -> String {
        format!("rank {rank} (layers {})", self.manifest.ranks[rank].layers)
    }

    fn command(&self, what: &str, rank: usize) -> Command {
        let mut command = Command::new(&self.executable);
        command
            .args(["stage", what])
            .arg("--plan")
            .arg(&self.plan)
            .arg("--rank")
            .arg(rank.to_string());
        command
            .arg("--dir")
            .arg(self.folder.window(self.manifest, &self.manifest.ranks[rank]));
        // Logs are files for people. What may be set for a stage that runs alone must not reach these.
        command
            .env("NO_COLOR", "1")
            .env_remove("KVASIR_LOG_FORMAT")
            .env_remove("KVASIR_ADVERTISE")
            .env_remove("KVASIR_HEALTH")
            .env_remove("KVASIR_NETWORK");
        command
    }

    /// `stage fetch` for a rank: events as JSON lines on stdout.
    pub(crate) fn fetch(&self, rank: usize) -> Command {
        let mut command = self.command("fetch", rank);
        command.args(["--exit-with-stdin", "--progress", "json", "--source", &self.source]);
        if let Some(token) = &self.source_token {
            command.env("KVASIR_SOURCE_TOKEN", token.expose_secret());
        }
        command
    }

    fn run(&self, served: &Served<'_>, rank: usize, fetched: u64) -> Command {
        let mut command = self.command("run", rank);
        command.args([
            "--exit-with-stdin",
            "--listen",
            "127.0.0.1:0",
            "--market",
            &served.market.url,
        ]);
        command.arg("--owner").arg(served.market.owner.to_string());
        command.arg("--key").arg(self.folder.node_key(rank));
        command.arg("--fetched-bytes").arg(fetched.to_string());
        command.args([
            "--cache-type",
            match served.cache_type {
                kvasir_api::CacheType::F16 => "F16",
                kvasir_api::CacheType::Q8_0 => "Q8_0",
            },
        ]);
        if let Some(threads) = served.threads {
            command.arg("--threads").arg(threads.to_string());
        }
        if rank == 0 {
            command.arg("--api").arg(served.api.to_string());
            command.args(["--drain", DRAIN_SECONDS]);
            if let Some(cors) = &served.cors {
                command.args(["--cors", cors]);
            }
            if let Some(template) = &served.chat_template {
                command.arg("--chat-template").arg(template);
            }
        }
        command.env_remove("KVASIR_TOKEN").env_remove("KVASIR_SOURCE_TOKEN");
        command
    }

    /// Starts a stage for each of `ranks` and returns their process ids; `fetched` says what each rank's window took.
    pub(crate) fn start(
        &self,
        ranks: impl IntoIterator<Item = usize>,
        served: &Served<'_>,
        fetched: &[u64],
        children: &mut Children,
    ) -> anyhow::Result<Vec<u32>> {
        let start = |rank: usize| {
            let (command, log) = (self.run(served, rank, fetched[rank]), self.folder.log(rank));
            children
                .spawn(self.name(rank), command, &log, |_| {})
                .with_context(|| format!("can't start {}", self.name(rank)))
        };
        ranks.into_iter().map(start).collect()
    }
}
