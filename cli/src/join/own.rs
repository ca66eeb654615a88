//! This device's own view of a market: the windows that it holds, and what it has earned.

use std::{collections::BTreeMap, io::Write, path::PathBuf, sync::Arc};

use kvasir_market::{
    MarketClient,
    types::{ClaimStatus, Ledger, LedgerRow},
};
use kvasir_wire::trust::PublicKey;
use serde::Serialize;

use super::Link;
use crate::{
    local::Folder,
    status::state,
    table::{Column, Output, Table},
};

/// All of it, as `kvasir status LINK` prints it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Own {
    relay: String,
    node: PublicKey,
    claims: Vec<Held>,
    /// rings in which this device gets no window for a while, since it never came to their relay
    paused: Vec<String>,
    rings: Vec<Earned>,
    /// µcredit, in all rings and epochs
    earned: u64,
}

/// A claim of this device.
#[derive(Debug, Serialize)]
struct Held {
    ring: String,
    #[serde(flatten)]
    claim: ClaimStatus,
}

/// What a ring has paid to this device.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Earned {
    ring: String,
    /// positions that came home while it was there, of the rows that the market lists
    positions: u64,
    /// µcredit, of the rows that the market lists
    earned: u64,
}

impl Own {
    /// Asks the market of `link` as the node whose key is in the folder that `kvasir join` uses.
    pub(crate) async fn ask(link: &Link, dir: Option<PathBuf>) -> anyhow::Result<Own> {
        let host = link.market.host_str().unwrap_or("relay");
        let keys = Arc::new(Folder::node_of(dir, host)?);
        let node = keys.public();
        let market = MarketClient::new(link.market.as_str(), keys)?;
        let (mut claims, mut paused) = (Vec::new(), Vec::new());
        for offer in market.offers().await? {
            let status = market.ring(&offer.ring).status().await?;
            let held = status.claims.into_iter().filter(|claim| claim.node == node);
            claims.extend(held.map(|claim| Held {
                ring: offer.ring.clone(),
                claim,
            }));
            if offer.limit == Some(0) {
                paused.push(offer.ring);
            }
        }
        let Ledger { rows, earned } = market.ledger().await?;
        Ok(Own {
            relay: link.to_string(),
            node,
            claims,
            paused,
            rings: by_ring(&rows, node),
            earned,
        })
    }

    /// Prints it: two tables for people, or one document.
    pub(crate) fn print(&self, output: Output) -> anyhow::Result<()> {
        output.print(self, Own::held)?;
        if output == Output::Table {
            let mut out = std::io::stdout();
            for ring in &self.paused {
                writeln!(out, "paused in ring {ring}: this device never came to its relay")?;
            }
            writeln!(out)?;
            output.print(self, Own::earned)?;
        }
        Ok(())
    }

    fn held(&self) -> Table {
        let mut table = Table::new([
            Column::Words("RING"),
            Column::Number("CLAIM"),
            Column::Words("WINDOWS"),
            Column::Words("LAYERS"),
            Column::Words("STATE"),
            Column::Number("RATE"),
        ]);
        for Held { ring, claim } in &self.claims {
            table.row([
                ring.clone(),
                claim.id.to_string(),
                claim.windows.to_string(),
                claim.layers.to_string(),
                state(claim),
                claim.rate.to_string(),
            ]);
        }
        table
    }

    fn earned(&self) -> Table {
        let mut table = Table::new([
            Column::Words("RING"),
            Column::Number("POSITIONS"),
            Column::Number("EARNED"),
        ]);
        for ring in &self.rings {
            table.row([ring.ring.clone(), ring.positions.to_string(), ring.earned.to_string()]);
        }
        let listed: u64 = self.rings.iter().map(|ring| ring.earned).sum();
        if let older @ 1.. = self.earned.saturating_sub(listed) {
            table.row(["(older)".to_owned(), "-".to_owned(), older.to_string()]);
        }
        let cells = ["total".to_owned(), String::new(), self.earned.to_string()];
        table.row(cells);
        table
    }
}

/// Sums of a node's rows.
fn by_ring(rows: &[LedgerRow], node: PublicKey) -> Vec<Earned> {
    // A counter counts once for a node, however many claims it had in the epoch.
    let mut epochs: BTreeMap<(&str, u64), (u64, u64)> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.node == node) {
        let (positions, earned) = epochs.entry((row.ring.as_str(), row.epoch)).or_default();
        *positions = row.committed.max(*positions);
        *earned += row.earned;
    }
    let mut rings: Vec<Earned> = Vec::new();
    for ((ring, _), (positions, earned)) in epochs {
        match rings.last_mut().filter(|last| last.ring == ring) {
            Some(last) => (last.positions, last.earned) = (last.positions + positions, last.earned + earned),
            None => rings.push(Earned {
                ring: ring.to_owned(),
                positions,
                earned,
            }),
        }
    }
    rings
}

#[cfg(test)]
mod tests {
    use kvasir_market::types::Run;
    use kvasir_plan::LayerRange;

    use super::*;

    const NODE: PublicKey = PublicKey([7; 32]);

    fn row(ring: &str, epoch: u64, claim: u64, committed: u64, earned: u64) -> LedgerRow {
        LedgerRow {
            ring: ring.to_owned(),
            epoch,
            claim,
            node: NODE,
            rate: 1000,
            committed,
            earned,
        }
    }

    fn own(rows: &[LedgerRow], earned: u64) -> Own {
        let claim = ClaimStatus {
            id: 12,
            generation: 12,
            node: NODE,
            instance: "first".to_owned(),
            windows: Run { start: 1, end: 3 },
            layers: LayerRange { start: 6, end: 12 },
            rate: 1000,
            replaces: None,
            report: None,
            expired: false,
        };
        Own {
            relay: "https://relay.example/".to_owned(),
            node: NODE,
            claims: vec![Held {
                ring: "tea".to_owned(),
                claim,
            }],
            paused: Vec::new(),
            rings: by_ring(rows, NODE),
            earned,
        }
    }

    #[test]
    fn epochs_and_claims_add_up_by_ring_and_others_rows_are_left_out() {
        let foreign = LedgerRow {
            node: PublicKey([8; 32]),
            ..row("tea", 2, 4, 100, 70)
        };
        let rows = [
            row("tea", 2, 4, 100, 7),
            row("tea", 2, 5, 100, 8),
            row("milk", 1, 1, 40, 2),
            row("tea", 1, 4, 50, 3),
            foreign,
        ];
        let own = own(&rows, 20);
        let of = |ring: &str, positions, earned| Earned {
            ring: ring.to_owned(),
            positions,
            earned,
        };
        assert_eq!(own.rings, [of("milk", 40, 2), of("tea", 150, 18)]);
        assert_eq!(
            own.earned().to_string(),
            "RING   POSITIONS  EARNED\nmilk          40       2\ntea          150      18\ntotal                 20\n"
        );
    }

    #[test]
    fn what_the_market_no_longer_lists_is_in_the_total() {
        let own = own(&[row("tea", 1, 4, 50, 3)], 10);
        let table = own.earned().to_string();
        assert!(table.contains("(older)          -       7\n"), "{table}");
        assert!(table.ends_with("total                   10\n"), "{table}");
    }

    #[test]
    fn each_claim_is_told_with_its_windows_and_its_state() {
        assert_eq!(
            own(&[], 0).held().to_string(),
            "RING  CLAIM  WINDOWS  LAYERS  STATE    RATE\ntea      12  1..3     6..12   claimed  1000\n"
        );
        let json = serde_json::to_value(own(&[], 0)).unwrap();
        assert_eq!(json["claims"][0]["ring"], "tea");
        assert_eq!(json["claims"][0]["windows"]["start"], 1);
        assert_eq!(json["earned"], 0);
    }
}
