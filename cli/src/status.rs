//! `kvasir status`: who covers which layers of a ring, and who has earned what; or what this device holds and has earned.

use std::{io::Write, path::PathBuf, sync::Arc};

use kvasir_market::{
    MarketClient,
    types::{ClaimStatus, Ledger, RingStatus, StageState},
};
use serde::Serialize;

use crate::{
    failure::Usage,
    join::{Link, Own},
    local::Folder,
    planned::RingArgs,
    table::{Column, Output, Table, bytes},
};

/// Show the coverage map of a ring and its ledger, as the relay that it is offered on keeps them; or, for a relay's
/// address, which windows this device holds and what it has earned.
#[derive(Debug, clap::Args)]
pub struct Status {
    /// Ring manifest; or the address of a relay that this device joined by, or the invite that it joined with
    #[arg(value_name = "RING.yaml|LINK")]
    of: String,
    /// Folder that holds the key: the ring's (~/.cache/kvasir/up/NAME when absent), or the one that `kvasir join` uses
    /// (~/.cache/kvasir/join/HOST)
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Form of the output
    #[arg(short, long, env = "KVASIR_OUTPUT", value_enum, default_value_t)]
    output: Output,
}

#[derive(Debug, Serialize)]
struct Report {
    status: RingStatus,
    ledger: Ledger,
}

impl Status {
    /// Runs the command.
    pub async fn run(self) -> anyhow::Result<()> {
        if self.of.starts_with("http://") || self.of.starts_with("https://") {
            let link: Link = self.of.parse()?;
            let dir = self.dir.or_else(|| folder("KVASIR_JOIN_DIR"));
            return Own::ask(&link, dir).await?.print(self.output);
        }
        let ring = RingArgs {
            file: self.of.into(),
            stages: None,
        };
        let ring = ring.read()?;
        let name = ring.metadata.name.clone().unwrap_or_default();
        let url = ring.spec.relay.as_ref().and_then(|relay| relay.url.clone());
        let namespace = ring.metadata.namespace.as_deref();
        let url = url.ok_or_else(|| {
            Usage(format!(
                "the Ring names no relay, which would know: set relay.url\n{}",
                in_a_cluster(&name, namespace)
            ))
        })?;
        let dir = self.dir.or_else(|| folder("KVASIR_UP_DIR"));
        let Some(owner) = Folder::known_owner(dir.as_ref(), &name)? else {
            let folder = dir.map_or_else(String::new, |dir| format!(" in {}", dir.display()));
            return Err(Usage(format!(
                "this machine never ran the Ring {name}{folder}: `kvasir up` would, or --dir names the folder where it did\n{}",
                in_a_cluster(&name, namespace)
            ))
            .into());
        };
        let owner = Arc::new(owner);
        let market = MarketClient::new(&url, owner)?;
        let mut ledger = market.ledger().await?;
        ledger.rows.retain(|row| row.ring == name);
        let report = Report {
            status: market.ring(&name).status().await?,
            ledger,
        };
        self.output.print(&report, coverage)?;
        if self.output == Output::Table {
            let mut out = std::io::stdout();
            writeln!(out, "\n{}\n", summary(&report.status))?;
            self.output.print(&report, earned)?;
        }
        Ok(())
    }
}

/// Where a Ring is looked up that a cluster serves: its owner's key, which the relay asks for, is a Secret there.
fn in_a_cluster(name: &str, namespace: Option<&str>) -> String {
    let namespace = namespace.map_or_else(String::new, |namespace| format!(" --namespace {namespace}"));
    format!(
        "if a cluster serves it, its status is there: `kubectl get ring {name}{namespace} -o wide`, and with reasons \
         `kubectl describe ring {name}{namespace}`"
    )
}

/// A folder that the environment names.
fn folder(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable)
        .filter(|folder| !folder.is_empty())
        .map(PathBuf::from)
}

fn summary(status: &RingStatus) -> String {
    let epoch = status
        .epoch
        .map_or_else(|| "no epoch yet".to_owned(), |epoch| format!("epoch {epoch}"));
    if status.ready {
        return format!("{epoch}, ready");
    }
    if status.uncovered.is_empty() {
        let state = match (&status.waiting, status.proposed) {
            (Some(waiting), _) => waiting.clone(),
            (None, Some(next)) => format!("epoch {next} is to be signed by rank 0"),
            (None, None) => "the links are being made".to_owned(),
        };
        return format!("{epoch}, every layer is held: {state}");
    }
    let layers: Vec<String> = status.uncovered.iter().map(ToString::to_string).collect();
    format!("{epoch}, nobody serves layers {}", layers.join(", "))
}

fn coverage(report: &Report) -> Table {
    let mut table = Table::new([
        Column::Words("LAYERS"),
        Column::Words("HOLDER"),
        Column::Words("STATE"),
        Column::Number("MEMORY"),
        Column::Number("RATE"),
    ]);
    for window in &report.status.windows {
        let claim = report
            .status
            .claims
            .iter()
            .find(|claim| claim.windows.holds(window.index));
        let holder = claim.map_or_else(
            || "-".to_owned(),
            |claim| claim.node.to_string().chars().take(8).collect(),
        );
        table.row([
            window.layers.to_string(),
            holder,
            claim.map_or_else(|| "open".to_owned(), state),
            bytes(window.memory),
            claim.map_or(window.rate, |claim| claim.rate).to_string(),
        ]);
    }
    table
}

/// How far a claim is, in words.
pub(crate) fn state(claim: &ClaimStatus) -> String {
    match claim.report.as_ref().map(|report| &report.state) {
        _ if claim.expired => "expired".to_owned(),
        None => "claimed".to_owned(),
        Some(StageState::Fetching { done, total }) => format!("fetching {} of {}", bytes(*done), bytes(*total)),
        Some(StageState::Loading) => "loading".to_owned(),
        Some(StageState::Ready { backend, .. }) => format!("ready on {backend}"),
        Some(StageState::Leaving) => "leaving".to_owned(),
    }
}

fn earned(report: &Report) -> Table {
    let mut table = Table::new([
        Column::Words("NODE"),
        Column::Number("EPOCH"),
        Column::Number("CLAIM"),
        Column::Number("POSITIONS"),
        Column::Number("RATE"),
        Column::Number("EARNED"),
    ]);
    for row in &report.ledger.rows {
        table.row([
            row.node.to_string().chars().take(8).collect(),
            row.epoch.to_string(),
            row.claim.to_string(),
            row.committed.to_string(),
            row.rate.to_string(),
            row.earned.to_string(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use kvasir_plan::LayerRange;
    use kvasir_wire::trust::PublicKey;

    use super::*;

    #[test]
    fn the_summary_says_what_a_ring_that_is_not_ready_waits_for() {
        let ring = |ready, uncovered: &[(u32, u32)], proposed, waiting: Option<&str>| RingStatus {
            ring: "tea".to_owned(),
            owner: PublicKey([1; 32]),
            epoch: Some(4),
            proposed,
            ready,
            uncovered: uncovered
                .iter()
                .map(|(start, end)| LayerRange {
                    start: *start,
                    end: *end,
                })
                .collect(),
            waiting: waiting.map(str::to_owned),
            windows: Vec::new(),
            claims: Vec::new(),
        };
        assert_eq!(summary(&ring(true, &[], None, None)), "epoch 4, ready");
        assert_eq!(
            summary(&ring(false, &[(2, 4), (6, 8)], None, None)),
            "epoch 4, nobody serves layers 2..4, 6..8"
        );
        for (proposed, waiting, told) in [
            (None, None, "the links are being made"),
            (Some(5), None, "epoch 5 is to be signed by rank 0"),
            (None, Some("no relay is there"), "no relay is there"),
        ] {
            let held = format!("epoch 4, every layer is held: {told}");
            assert_eq!(summary(&ring(false, &[], proposed, waiting)), held);
        }
    }
}
