//! Waits until a ring serves, and tells what it came to: the table and the ready file.

use std::{fs, net::SocketAddr, path::Path, time::Duration};

use anyhow::Context;
use kvasir_market::types::{ClaimStatus, RingStatus, StageState};
use kvasir_plan::{LayerRange, RankManifest};
use reqwest::Url;
use serde::Serialize;
use tokio::time::MissedTickBehavior;

use crate::{
    http_client,
    local::LocalMarket,
    table::{Column, Table, bytes},
};

/// Pause between two looks at the ring.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Waits until rank 0 says that a lap came home; what happens meanwhile is told on stderr. Doesn't give up: a large
/// window takes long to load.
pub(super) async fn wait(market: &LocalMarket, ranks: usize, api: SocketAddr) -> anyhow::Result<RingStatus> {
    let url = Url::parse(&format!("http://{api}/readyz"))?;
    let http = http_client(&url, Duration::from_secs(5))?;
    let mut look = tokio::time::interval(LOOK_EVERY);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut told: Vec<String> = Vec::new();
    loop {
        look.tick().await;
        let status = market.status().await.context("the market lost the ring")?;
        let now: Vec<String> = (0..ranks).map(|rank| say(claim_of(&status, rank))).collect();
        for (rank, line) in now
            .iter()
            .enumerate()
            .filter(|(rank, line)| told.get(*rank) != Some(*line))
        {
            eprintln!("rank {rank}: {line}");
        }
        told = now;
        if status.epoch.is_none() {
            continue;
        }
        let answer = http.get(url.clone()).send().await;
        if answer.is_ok_and(|answer| answer.status().is_success()) {
            return Ok(status);
        }
    }
}

/// The claim that counts for a rank: here every window is one.
fn claim_of(status: &RingStatus, rank: usize) -> Option<&ClaimStatus> {
    status
        .claims
        .iter()
        .find(|claim| claim.windows.holds(rank as u32) && claim.replaces.is_none())
}

fn say(claim: Option<&ClaimStatus>) -> String {
    let Some((claim, report)) = claim.and_then(|claim| Some((claim, claim.report.as_ref()?))) else {
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
    pid: u32,
}

impl Up {
    pub(super) fn new(
        manifest: &RankManifest,
        api: SocketAddr,
        status: &RingStatus,
        fetched: &[u64],
        pids: &[u32],
    ) -> Self {
        let row = |(rank, (fetched, pid)): (usize, (&u64, &u32))| {
            let report = claim_of(status, rank).and_then(|claim| claim.report.as_ref());
            let (resident_bytes, backend) = match report.map(|report| &report.state) {
                Some(StageState::Ready {
                    resident_bytes,
                    backend,
                    ..
                }) => (*resident_bytes, backend.clone()),
                _ => (0, String::new()),
            };
            Row {
                rank: rank as u32,
                layers: manifest.ranks[rank].layers,
                fetched_bytes: *fetched,
                resident_bytes,
                backend,
                pid: *pid,
            }
        };
        Up {
            ring: manifest.ring.clone(),
            model: manifest.model.name.clone(),
            endpoint: format!("http://{api}"),
            pid: std::process::id(),
            ranks: fetched.iter().zip(pids).enumerate().map(row).collect(),
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
                row.pid.to_string(),
            ]);
        }
        table
    }

    /// Writes the file that tells programs, whole or not at all.
    pub(super) fn write(&self, path: &Path) -> anyhow::Result<()> {
        let mut temporary = path.as_os_str().to_owned();
        temporary.push(".new");
        fs::write(&temporary, serde_json::to_vec_pretty(self)?)
            .and_then(|()| fs::rename(&temporary, path))
            .with_context(|| format!("can't write {}", path.display()))
    }
}
