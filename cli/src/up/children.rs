//! The command lines of the stages that `kvasir up` starts.

use std::{net::SocketAddr, path::PathBuf, process::Command};

use anyhow::Context;
use kvasir_gguf::ModelSource;
use kvasir_plan::RankManifest;
use kvasir_wire::trust::PublicKey;
use secrecy::{ExposeSecret, SecretString};

use super::folder::Folder;
use crate::{planned, supervise::Children};

/// This program as a stage, and what all stages of one ring share.
#[derive(Debug)]
pub(super) struct Program<'a> {
    pub(super) folder: &'a Folder,
    pub(super) manifest: &'a RankManifest,
    executable: PathBuf,
    plan: PathBuf,
    source: String,
    source_token: Option<SecretString>,
}

/// What a running stage needs besides its window.
#[derive(Debug)]
pub(super) struct Served {
    pub(super) market: String,
    pub(super) token: SecretString,
    pub(super) owner: PublicKey,
    pub(super) api: SocketAddr,
    pub(super) threads: Option<u32>,
    pub(super) cache_type: kvasir_api::CacheType,
    pub(super) chat_template: Option<PathBuf>,
}

impl<'a> Program<'a> {
    /// Writes the plan to the folder; stages are this program's own `stage` command.
    pub(super) fn new(folder: &'a Folder, manifest: &'a RankManifest, source: &ModelSource) -> anyhow::Result<Self> {
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
    pub(super) fn name(&self, rank: usize) -> String {
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
        // Logs go to files. A setting of another stage's environment must not reach these.
        command.env("NO_COLOR", "1").env_remove("KVASIR_ADVERTISE");
        command
    }

    /// `stage fetch` for a rank: events as JSON lines on stdout.
    pub(super) fn fetch(&self, rank: usize) -> Command {
        let mut command = self.command("fetch", rank);
        command.args(["--progress", "json", "--source", &self.source]);
        if let Some(token) = &self.source_token {
            command.env("KVASIR_SOURCE_TOKEN", token.expose_secret());
        }
        command
    }

    fn run(&self, served: &Served, rank: usize, fetched: u64) -> Command {
        let mut command = self.command("run", rank);
        command.args([
            "--exit-with-stdin",
            "--listen",
            "127.0.0.1:0",
            "--market",
            &served.market,
        ]);
        command.arg("--owner").arg(served.owner.to_string());
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
            if let Some(template) = &served.chat_template {
                command.arg("--chat-template").arg(template);
            }
        }
        command
            .env("KVASIR_TOKEN", served.token.expose_secret())
            .env_remove("KVASIR_SOURCE_TOKEN");
        command
    }

    /// Starts a stage for every rank and returns their process ids.
    pub(super) fn run_all(
        &self,
        served: &Served,
        fetched: &[u64],
        children: &mut Children,
    ) -> anyhow::Result<Vec<u32>> {
        let start = |(rank, fetched): (usize, &u64)| {
            let (command, log) = (self.run(served, rank, *fetched), self.folder.log(rank));
            children
                .spawn(self.name(rank), command, &log, |_| {})
                .with_context(|| format!("can't start {}", self.name(rank)))
        };
        fetched.iter().enumerate().map(start).collect()
    }
}
