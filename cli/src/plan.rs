//! `kvasir plan`: which stage would hold what, and what that takes; nothing is started.

use serde::Serialize;

use crate::{
    planned::{self, Planned, RingArgs},
    table::{Column, Output, Table, bytes},
};

/// Show the ranks of a Ring: windows, bytes to fetch, memory. Only the model's prefix is read, nothing is started.
#[derive(Debug, clap::Args)]
#[command(after_help = planned::TOKEN_HELP)]
pub struct Plan {
    #[command(flatten)]
    ring: RingArgs,
    /// Form of the output
    #[arg(short, long, env = "KVASIR_OUTPUT", value_enum, default_value_t)]
    output: Output,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Shown {
    ring: String,
    model: Model,
    file_type: String,
    ranks: Vec<Row>,
    total: Sizes,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Model {
    #[serde(flatten)]
    served: kvasir_plan::ModelRef,
    /// behind the trunk's layers
    mtp_layers: u32,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    rank: usize,
    layers: kvasir_plan::LayerRange,
    /// at the last rank, where drafts would be made and checked
    #[serde(flatten)]
    mtp: Option<Mtp>,
    /// pool or device; none for a window left to the market
    placement: Option<String>,
    #[serde(flatten)]
    sizes: Sizes,
}

/// MTP layers, which ride with the last rank. They are not fetched before a rank drafts, so no other size counts them.
#[derive(Clone, Copy, Serialize)]
struct Mtp {
    #[serde(rename = "mtpLayers")]
    layers: u32,
    #[serde(rename = "mtpBytes")]
    bytes: u64,
}

/// In bytes.
#[derive(Clone, Copy, Default, Serialize)]
struct Sizes {
    #[serde(rename = "fetchBytes")]
    fetch: u64,
    #[serde(rename = "memoryBytes")]
    memory: u64,
    #[serde(rename = "cacheBytes")]
    cache: u64,
}

impl Plan {
    /// Runs the command.
    pub async fn run(self) -> anyhow::Result<()> {
        let planned = self.ring.plan(&self.ring.read()?).await?;
        for warning in &planned.warnings {
            eprintln!("{warning}");
        }
        self.output.print(&shown(&planned), table)
    }
}

fn shown(planned: &Planned) -> Shown {
    let mut total = Sizes::default();
    let mut ranks = Vec::new();
    let profile = &planned.profile;
    let mtp = (profile.mtp_layers > 0).then_some(Mtp {
        layers: profile.mtp_layers,
        bytes: profile.mtp_bytes,
    });
    for (number, rank) in planned.plan.ranks.iter().enumerate() {
        let sizes = Sizes {
            fetch: rank.need.fetch,
            memory: rank.need.memory(),
            cache: rank.need.cache,
        };
        total.fetch = total.fetch.saturating_add(sizes.fetch);
        total.memory = total.memory.saturating_add(sizes.memory);
        total.cache = total.cache.saturating_add(sizes.cache);
        ranks.push(Row {
            rank: number,
            layers: rank.layers,
            mtp: mtp.filter(|_| rank.layers.end == profile.layer_count()),
            placement: rank.placement.clone(),
            sizes,
        });
    }
    Shown {
        ring: planned.manifest.ring.clone(),
        model: Model {
            served: planned.manifest.model.clone(),
            mtp_layers: profile.mtp_layers,
        },
        file_type: profile.file_type.clone(),
        ranks,
        total,
    }
}

fn table(shown: &Shown) -> Table {
    let mut table = Table::new([
        Column::Number("RANK"),
        Column::Words("LAYERS"),
        Column::Words("PLACEMENT"),
        Column::Number("FETCH"),
        Column::Number("MEMORY"),
        Column::Number("CACHE"),
    ]);
    let cells = |sizes: Sizes| [sizes.fetch, sizes.memory, sizes.cache].map(bytes);
    for row in &shown.ranks {
        let placement = row.placement.clone().unwrap_or_else(|| "open".to_owned());
        let mtp = row.mtp.map_or_else(String::new, |mtp| format!(" + {} MTP", mtp.layers));
        let words = [row.rank.to_string(), format!("{}{mtp}", row.layers), placement];
        table.row([words, cells(row.sizes)].concat());
    }
    let total = [String::new(), "total".to_owned(), String::new()];
    table.row([total, cells(shown.total)].concat());
    table
}
