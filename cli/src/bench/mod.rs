//! `kvasir bench`: the whole model in one process against the ring, side by side.
//!
//! Both are loaded at once and take turns, a pair of runs at a time, so that what slows the machine down slows both.

mod command;
mod relay;
mod ring;
mod stats;
mod whole;

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use anyhow::{Context, ensure};
use kvasir_engine::{Backend, CacheType, Mode, Output as EngineOutput, WindowOptions};
use kvasir_gguf::{Model, ModelSource};
use kvasir_plan::RankManifest;
use serde::Serialize;

use crate::{
    failure::{StageLost, Usage},
    local::{self, Folder, Program, RingMarket, Served},
    planned::{self, RingArgs},
    supervise::Children,
    table::{Column, Output, Table},
};
pub use command::BenchCommand;
use ring::MeasuredRing;
use stats::{Pair, Summary};
use whole::WholeModel;

/// Time that a stage has to end once it was asked to.
const GRACE: Duration = Duration::from_secs(5);

/// What is fed to the models, again and again, until a prompt is long enough.
const TEXT: &str = "The ring was not made of gold. It was made of machines that each held a part of the work and \
    passed the rest on, and whoever looked for its master found none. ";

/// Measure a ring against the whole model in one process: tokens per second of both, and what a hop costs. The model
/// must be a file on this machine, which holds it all for the comparison.
#[derive(Debug, clap::Args)]
pub struct Bench {
    #[command(flatten)]
    ring: RingArgs,
    /// Pairs of runs, whole model and ring
    #[arg(long, env = "KVASIR_PAIRS", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..))]
    pairs: u32,
    /// Tokens of each prompt
    #[arg(long, env = "KVASIR_PROMPT_TOKENS", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..))]
    prompt_tokens: u32,
    /// Tokens generated after each prompt
    #[arg(long, env = "KVASIR_TOKENS", default_value_t = 64, value_parser = clap::value_parser!(u32).range(2..))]
    tokens: u32,
    /// Threads that the whole model and each stage compute with; one for each core when absent
    #[arg(long, env = "KVASIR_THREADS", value_parser = clap::value_parser!(u32).range(1..=512))]
    threads: Option<u32>,
    /// Folder for windows, keys and logs; ~/.cache/kvasir/bench/NAME when absent
    #[arg(long, env = "KVASIR_BENCH_DIR")]
    dir: Option<PathBuf>,
    /// Form of the output
    #[arg(short, long, env = "KVASIR_OUTPUT", value_enum, default_value_t)]
    output: Output,
}

#[derive(Serialize)]
struct Report {
    ring: String,
    model: String,
    ranks: usize,
    prompt_tokens: u32,
    tokens: u32,
    #[serde(flatten)]
    summary: Summary,
}

impl Bench {
    /// Runs the command.
    pub async fn run(self) -> anyhow::Result<()> {
        let ring = self.ring.read()?;
        let planned = self.ring.plan(&ring).await?;
        let ModelSource::File { path } = &planned.source else {
            let told = "the whole model must be on this machine to be compared with: name it with source.file";
            return Err(Usage(told.to_owned()).into());
        };
        let manifest = &planned.manifest;
        let needed = self.prompt_tokens.saturating_add(self.tokens);
        ensure!(
            needed <= manifest.context_length,
            Usage(format!(
                "prompt and answer take {needed} tokens and contextLength is {}: lower --prompt-tokens or --tokens",
                manifest.context_length
            ))
        );
        // A ring runs some models that stock llama.cpp doesn't take whole, and ends the process of.
        let model = Model::open(path)?;
        let tried = planned::trial().of_whole(&model, path).await;
        tried.context("the whole model can't be loaded to compare the ring with")?;
        let folder = Folder::open(self.dir.clone(), "bench", &manifest.ring)?;
        let mut children = Children::new(GRACE);
        let summary = self.measure(&folder, manifest, path, &ring.spec, &mut children).await;
        children.end().await;
        let report = Report {
            ring: manifest.ring.clone(),
            model: manifest.model.name.clone(),
            ranks: manifest.ranks.len(),
            prompt_tokens: self.prompt_tokens,
            tokens: self.tokens,
            summary: summary?,
        };
        self.output.print(&report, table)
    }

    async fn measure(
        &self,
        folder: &Folder,
        manifest: &RankManifest,
        model: &std::path::Path,
        spec: &kvasir_api::RingSpec,
        children: &mut Children,
    ) -> anyhow::Result<Summary> {
        let source = ModelSource::File { path: model.to_owned() };
        let program = Program::new(folder, manifest, &source)?;
        let fetched = local::fetch(&program, &(0..manifest.ranks.len()).collect::<Vec<_>>(), children).await?;
        let market = RingMarket::serve(folder, manifest, &source).await?;
        let served = Served {
            market: &market,
            api: SocketAddr::from(([127, 0, 0, 1], 0)),
            threads: self.threads,
            cache_type: spec.cache_type,
            cors: None,
            chat_template: None,
        };
        let ranks = manifest.ranks.len();
        program.start(1..ranks, &served, &fetched, children)?;
        let backend = Backend::init(if manifest.exact { Mode::Exact } else { Mode::Fast })?;
        let options = self.options(manifest, spec.cache_type);
        let last_rank = EngineOutput::Logits {
            max_rows: manifest.sequences,
        };
        let rank0 = WindowOptions {
            output: if ranks == 1 { last_rank } else { EngineOutput::Hidden },
            max_rows: manifest.max_lap_tokens,
            sequences: manifest.sequences,
            ..options.clone()
        };
        let mut ring = MeasuredRing::start(backend, manifest, folder, &market, rank0).await?;
        let loaded = tokio::task::spawn_blocking({
            let model = model.to_owned();
            move || WholeModel::load(backend, &model, &options)
        });
        let mut whole = loaded.await?.context("can't load the whole model")?;
        let measured = async {
            ring.ready().await?;
            self.pairs(&mut whole, &ring).await
        };
        let pairs = tokio::select! {
            pairs = measured => pairs?,
            Some(exit) = children.next_exit() => return Err(StageLost::from(exit).into()),
        };
        let summary = Summary::new(pairs, &ring.hops_ms(ranks)).context("nothing was measured")?;
        ring.end().await?;
        Ok(summary)
    }

    async fn pairs(&self, whole: &mut WholeModel, ring: &MeasuredRing) -> anyhow::Result<Vec<Pair>> {
        let mut pairs = Vec::new();
        // The first pair warms both up: pages, caches, threads.
        for number in 0..=self.pairs {
            let prompt = self.prompt(whole, number)?;
            let pair = if number % 2 == 0 {
                let whole = tokio::task::block_in_place(|| whole.run(&prompt, self.tokens))?;
                Pair {
                    whole,
                    ring: ring.run(&prompt, self.tokens).await?,
                }
            } else {
                let ring = ring.run(&prompt, self.tokens).await?;
                Pair {
                    whole: tokio::task::block_in_place(|| whole.run(&prompt, self.tokens))?,
                    ring,
                }
            };
            if number > 0 {
                eprintln!(
                    "pair {number}: decode {:.1} and {:.1}, prefill {:.1} and {:.1} tokens per second, whole and ring",
                    pair.whole.decode, pair.ring.decode, pair.whole.prefill, pair.ring.prefill
                );
                pairs.push(pair);
            }
        }
        Ok(pairs)
    }

    /// Ordinary text, another for each pair, so that nothing computed for one serves the next.
    fn prompt(&self, whole: &WholeModel, number: u32) -> anyhow::Result<Vec<i32>> {
        let length = self.prompt_tokens as usize;
        // Every token stands for a byte or more of text.
        let text: String = format!("Pair {number}. ") + &TEXT.repeat(length.div_ceil(TEXT.len()) * 8);
        let mut tokens = whole
            .tokenize(&text)
            .context("the model has no vocabulary: it can't be measured with text")?;
        ensure!(
            tokens.len() >= length,
            "the prompt of {length} tokens is longer than the text for it"
        );
        tokens.truncate(length);
        Ok(tokens)
    }

    fn options(&self, manifest: &RankManifest, cache_type: kvasir_api::CacheType) -> WindowOptions {
        WindowOptions {
            context_length: manifest.context_length,
            sequences: 1,
            threads: self.threads.unwrap_or(0),
            cache_type: match cache_type {
                kvasir_api::CacheType::F16 => CacheType::F16,
                kvasir_api::CacheType::Q8_0 => CacheType::Q8_0,
            },
            output: EngineOutput::Logits { max_rows: 1 },
            exact: manifest.exact,
            ..WindowOptions::default()
        }
    }
}

fn table(report: &Report) -> Table {
    let mut table = Table::new([
        Column::Words("TOKENS PER SECOND"),
        Column::Number("DECODE"),
        Column::Number("PREFILL"),
    ]);
    let summary = &report.summary;
    let cells = |name: &str, decode: f64, prefill: f64, places: usize| {
        [
            name.to_owned(),
            format!("{decode:.places$}"),
            format!("{prefill:.places$}"),
        ]
    };
    table.row(cells("whole model", summary.whole.decode, summary.whole.prefill, 1));
    table.row(cells(
        &format!("ring of {}", report.ranks),
        summary.ring.decode,
        summary.ring.prefill,
        1,
    ));
    table.row(cells(
        "ratio, median of pairs",
        summary.decode_ratio,
        summary.prefill_ratio,
        3,
    ));
    if let Some(hop) = summary.hop_ms_median {
        table.row(["milliseconds a hop".to_owned(), format!("{hop:.3}"), String::new()]);
    }
    table
}
