//! Waits until a ring serves, and tells what it came to: the table and the ready file.

use std::{
    convert::Infallible,
    fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context;
use kvasir_market::types::{ClaimStatus, RingStatus, StageState};
use kvasir_plan::{LayerRange, RankManifest};
use reqwest::Url;
use serde::Serialize;
use tokio::time::MissedTickBehavior;

use crate::{
    http_client,
    local::RingMarket,
    table::{Column, Table, bytes},
};

/// Pause between two looks at the ring.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// The same once it is up.
const WATCH_EVERY: Duration = Duration::from_secs(1);

/// Waits until rank 0 says that a lap came home; what happens meanwhile is told on stderr. Doesn't give up: a large
/// window takes long to load.
pub(super) async fn wait(market: &RingMarket, ranks: usize, api: SocketAddr) -> anyhow::Result<RingStatus> {
    let url = Url::parse(&format!("http://{api}/readyz"))?;
    let http = http_client(&url, Duration::from_secs(5))?;
    let mut look = tokio::time::interval(LOOK_EVERY);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut told = Told::default();
    loop {
        look.tick().await;
        let status = match market.status().await {
            Ok(status) => status,
            // A relay that starts again is back in a while, with all that it was told.
            Err(error) if error.retryable() => continue,
            Err(error) => return Err(error).context("the market lost the ring"),
        };
        told.tell(&status, ranks);
        let states = (0..ranks)
            .map(|rank| claim_of(&status, rank).and_then(|claim| claim.report.as_ref()))
            .map(|report| report.map(|report| &report.state));
        if status.epoch.is_none() || !all_ready(states) {
            continue;
        }
        let answer = http.get(url.clone()).send().await;
        if answer.is_ok_and(|answer| answer.status().is_success()) {
            return Ok(status);
        }
    }
}

/// Tells on stderr what becomes of the stages of a ring that was up.
pub(super) async fn watch(market: &RingMarket, ready: &RingStatus, ranks: usize) -> Infallible {
    let mut look = tokio::time::interval(WATCH_EVERY);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut told = Told::of(ready, ranks);
    let mut epoch = ready.epoch;
    loop {
        look.tick().await;
        match market.status().await {
            Ok(status) => {
                told.tell(&status, ranks);
                if status.ready && status.epoch != epoch {
                    eprintln!("the ring is ready again");
                    epoch = status.epoch;
                }
            }
            Err(error) if error.reason() == "UnknownRing" => {
                // Its stages claim their windows again by themselves.
                if market.offer_again().await.is_ok() {
                    eprintln!("the relay had lost the ring, which is offered there again: invite devices anew");
                }
            }
            Err(_) => {}
        }
    }
}

/// What was said last of each rank.
#[derive(Default)]
struct Told(Vec<String>);

impl Told {
    fn of(status: &RingStatus, ranks: usize) -> Self {
        Told((0..ranks).map(|rank| say(claim_of(status, rank))).collect())
    }

    fn tell(&mut self, status: &RingStatus, ranks: usize) {
        let now = Told::of(status, ranks);
        for (rank, line) in now.0.iter().enumerate() {
            if self.0.get(rank) != Some(line) {
                eprintln!("rank {rank}: {line}");
            }
        }
        *self = now;
    }
}

/// Whether every stage has said what its window takes and what computes it: the ring may serve before the market knows.
fn all_ready<'a>(mut states: impl Iterator<Item = Option<&'a StageState>>) -> bool {
    states.all(|state| matches!(state, Some(StageState::Ready { .. })))
}

/// The claim that counts for a rank: here every window is one.
fn claim_of(status: &RingStatus, rank: usize) -> Option<&ClaimStatus> {
    status
        .claims
        .iter()
        .find(|claim| claim.windows.holds(rank as u32) && claim.replaces.is_none())
}

fn say(claim: Option<&ClaimStatus>) -> String {
    let Some(claim) = claim else {
        return "nobody has claimed it yet".to_owned();
    };
    let Some(report) = &claim.report else {
        return "starting".to_owned();
    };
    let phase = match &report.state {
        _ if claim.expired => "not heard of any more",
        StageState::Fetching { .. } => "fetching",
        StageState::Loading => "loading",
        StageState::Ready { .. } => "window is loaded",
        StageState::Leaving => "leaving",
    };
    report
        .lost_reason
        .as_ref()
        .map_or_else(|| phase.to_owned(), |reason| format!("{phase}, no link: {reason}"))
}

/// A ring that is up.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Up {
    ring: String,
    model: String,
    /// root of the API
    pub(super) endpoint: String,
    /// process that ends the ring when it ends
    pid: u32,
    ranks: Vec<Row>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    rank: u32,
    layers: LayerRange,
    fetched_bytes: u64,
    resident_bytes: u64,
    backend: String,
    /// none for a window that a device from outside holds
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
}

impl Up {
    pub(super) fn new(
        manifest: &RankManifest,
        api: SocketAddr,
        status: &RingStatus,
        fetched: &[u64],
        ranks: &[usize],
        pids: &[u32],
    ) -> Self {
        let row = |rank: usize| {
            let report = claim_of(status, rank).and_then(|claim| claim.report.as_ref());
            let here = ranks.iter().position(|here| *here == rank);
            let (theirs, resident_bytes, backend) = match report.map(|report| &report.state) {
                Some(StageState::Ready {
                    fetched_bytes,
                    resident_bytes,
                    backend,
                }) => (*fetched_bytes, *resident_bytes, backend.clone()),
                _ => (0, 0, String::new()),
            };
            Row {
                rank: rank as u32,
                layers: manifest.ranks[rank].layers,
                fetched_bytes: if here.is_some() { fetched[rank] } else { theirs },
                resident_bytes,
                backend,
                pid: here.and_then(|here| pids.get(here).copied()),
            }
        };
        Up {
            ring: manifest.ring.clone(),
            model: manifest.model.name.clone(),
            endpoint: format!("http://{api}"),
            pid: std::process::id(),
            ranks: (0..manifest.ranks.len()).map(row).collect(),
        }
    }

    pub(super) fn table(&self) -> Table {
        let mut table = Table::new([
            Column::Number("RANK"),
            Column::Words("LAYERS"),
            Column::Number("FETCHED"),
            Column::Number("MEMORY"),
            Column::Words("BACKEND"),
            Column::Number("PID"),
        ]);
        for row in &self.ranks {
            table.row([
                row.rank.to_string(),
                row.layers.to_string(),
                bytes(row.fetched_bytes),
                bytes(row.resident_bytes),
                row.backend.clone(),
                row.pid.map_or_else(|| "outside".to_owned(), |pid| pid.to_string()),
            ]);
        }
        table
    }
}

/// The file that tells programs that the ring is up; it is there as long as the ring is.
#[derive(Debug)]
pub(super) struct ReadyFile {
    path: PathBuf,
    /// what is written before it gets its name
    temporary: PathBuf,
}

impl ReadyFile {
    /// Takes away the file of an earlier run, which would say too much, and makes sure that one can be written.
    pub(super) fn reserve(path: &Path) -> anyhow::Result<Self> {
        let mut temporary = path.as_os_str().to_owned();
        temporary.push(".new");
        let file = ReadyFile {
            path: path.to_owned(),
            temporary: temporary.into(),
        };
        let removed = match fs::remove_file(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        };
        removed
            .and_then(|()| fs::write(&file.temporary, ""))
            .and_then(|()| fs::remove_file(&file.temporary))
            .with_context(|| format!("can't write {}: choose another --ready-file", path.display()))?;
        Ok(file)
    }

    /// Writes it, whole or not at all.
    pub(super) fn write(&self, up: &Up) -> anyhow::Result<()> {
        fs::write(&self.temporary, serde_json::to_vec_pretty(up)?)
            .and_then(|()| fs::rename(&self.temporary, &self.path))
            .with_context(|| format!("can't write {}", self.path.display()))
    }
}

impl Drop for ReadyFile {
    fn drop(&mut self) {
        for path in [&self.temporary, &self.path] {
            // It may not have been written yet.
            let _ = fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_is_told_once_every_stage_has_reported() {
        let ready = StageState::Ready {
            fetched_bytes: 0,
            resident_bytes: 7,
            backend: "CPU".to_owned(),
        };
        assert!(all_ready([Some(&ready), Some(&ready)].into_iter()));
        for late in [None, Some(&StageState::Loading), Some(&StageState::Leaving)] {
            assert!(!all_ready([Some(&ready), late].into_iter()), "{late:?}");
        }
    }

    #[test]
    fn a_ready_file_is_there_from_its_writing_to_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ready.json");
        fs::write(&path, "of an earlier run").unwrap();
        let file = ReadyFile::reserve(&path).unwrap();
        assert!(!path.exists());
        let up = Up {
            ring: "tea".to_owned(),
            model: "m".to_owned(),
            endpoint: "http://127.0.0.1:1".to_owned(),
            pid: 1,
            ranks: Vec::new(),
        };
        file.write(&up).unwrap();
        assert!(fs::read_to_string(&path).unwrap().contains("http://127.0.0.1:1"));
        drop(file);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        for unwritable in [folder.path().to_owned(), folder.path().join("no/such/ready.json")] {
            let error = ReadyFile::reserve(&unwritable).unwrap_err().to_string();
            assert!(error.contains("choose another --ready-file"), "{error}");
        }
    }
}
