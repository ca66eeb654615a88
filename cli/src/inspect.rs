//! `kvasir inspect`: what a model's prefix says of its layers, and of the windows that it can be cut into.

use std::{fmt::Write as _, io::Write as _};

use kvasir_gguf::{Model, ModelSource, source};
use kvasir_plan::{LayerKind, LayerRange, ModelProfile, Needs, Request};
use serde::Serialize;

use crate::{
    failure::Usage,
    planned::{self, even_windows},
    slice::parse_source,
    table::{Column, Output, Table, bytes},
};

/// Bytes of a cached value: keys and values are kept as f16 unless a Ring says otherwise.
const CACHED_VALUE: u64 = 2;

/// For `--help`.
const NOTES: &str = "\
The exit code is 2 where the model can't be served at all, not even by one stage: what can be shown is printed all the same.";

/// Show what a model consists of, and whether and where it can be cut. Only its first bytes are read, no weights.
#[derive(Debug, clap::Args)]
#[command(after_help = format!("{NOTES}\n\n{}", planned::TOKEN_HELP))]
#[allow(clippy::doc_markdown, reason = "help texts, which are no Markdown")]
pub struct Inspect {
    /// Model: a path, an http or https URL, or hf://OWNER/NAME/FILE.gguf (@REVISION after NAME for another than main)
    #[arg(value_parser = parse_source)]
    source: ModelSource,
    /// Stages to cut it into, alike in bytes: shows what each of them needs
    #[arg(long, env = "KVASIR_STAGES", value_parser = clap::value_parser!(u32).range(1..=512))]
    stages: Option<u32>,
    /// Positions that a sequence may hold, for what stages need
    #[arg(long, env = "KVASIR_CONTEXT_LENGTH", value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    context_length: u32,
    /// Sequences served at once, for what stages need
    #[arg(long, env = "KVASIR_SEQUENCES", value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    sequences: u32,
    /// Form of the output
    #[arg(short, long, env = "KVASIR_OUTPUT", value_enum, default_value_t)]
    output: Output,
}

/// What is shown.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Shown {
    architecture: String,
    identity: String,
    parts: usize,
    size_bytes: u64,
    prefix_bytes: u64,
    embedding_length: u32,
    mtp_layers: u32,
    layers: Vec<Layer>,
    /// what an architecture that is known says beyond its tensor table
    #[serde(flatten)]
    known: Option<Known>,
    cut: Cut,
    /// of `--stages`
    #[serde(skip_serializing_if = "Option::is_none")]
    stages: Option<Vec<Stage>>,
}

/// One layer of the trunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Layer {
    layer: u32,
    bytes: u64,
    #[serde(flatten)]
    memory: Option<Memory>,
}

/// How a layer remembers, and what that takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Memory {
    kind: Kind,
    /// tokens that a sliding layer looks back
    #[serde(skip_serializing_if = "Option::is_none")]
    window: Option<u64>,
    /// bytes read to compute one token
    active_bytes: u64,
    kv_bytes_per_token: u64,
    state_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
enum Kind {
    Full,
    Sliding,
    Recurrent,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Known {
    file_type: String,
    vocabulary: u32,
    embedding_bytes: u64,
    head_bytes: u64,
    tied: bool,
    every_window_bytes: u64,
    mtp_bytes: u64,
    /// of all layers; those of sliding layers count up to their window only
    kv_bytes_per_token: u64,
    /// of all layers, for one sequence
    state_bytes: u64,
}

/// Whether and where the model can be cut.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Cut {
    possible: bool,
    /// why not
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
    max_stages: u32,
    /// the layer that the last window starts at, or one before it
    #[serde(skip_serializing_if = "Option::is_none")]
    last_start: Option<u32>,
    /// layers before that at which it can't start all the same
    #[serde(skip_serializing_if = "Vec::is_empty")]
    refused_last_starts: Vec<u32>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Stage {
    rank: usize,
    layers: LayerRange,
    fetch_bytes: u64,
    weight_bytes: u64,
    cache_bytes: u64,
    memory_bytes: u64,
}

impl Cut {
    /// Not even the whole model can be served.
    fn unservable(why: String) -> Self {
        Cut {
            possible: false,
            why: Some(why),
            max_stages: 0,
            last_start: None,
            refused_last_starts: Vec::new(),
        }
    }
}

impl Inspect {
    /// Runs the command.
    pub async fn run(self) -> anyhow::Result<()> {
        let reader = source::open(&self.source, &planned::impatient(&self.source))?;
        let model = match source::read_model(&*reader, &[]).await {
            Err(error @ source::Error::Model { .. }) => return Err(unservable(error)),
            read => read?,
        };
        let profile = match ModelProfile::of(&model) {
            Ok(profile) => Ok(profile),
            // what the tensor table says can be shown all the same
            Err(error) if error.reason() == "UnsupportedArchitecture" => Err(error.to_string()),
            Err(error) => return Err(unservable(error)),
        };
        let mut shown = shown(&model, profile.as_ref().map_err(String::as_str))?;
        if let Some(warning) = planned::template_warning(&model, None) {
            eprintln!("{warning}");
        }
        if profile.is_ok()
            && let Err(error) = planned::try_out(&model).await
        {
            shown.cut = Cut::unservable(error.to_string());
        }
        if let Some(stages) = self.stages {
            let request = Request {
                context_length: self.context_length,
                sequences: self.sequences,
                ..Request::default()
            };
            shown.stages = Some(split(&shown.cut, profile.as_ref().ok(), stages, &request)?);
        }
        if self.output == Output::Table {
            writeln!(std::io::stdout(), "{}", words(&shown))?;
        }
        self.output.print(&shown, layer_table)?;
        if self.output == Output::Table
            && let Some(stages) = &shown.stages
        {
            write!(std::io::stdout(), "\n{}", stage_table(stages))?;
        }
        match shown.cut.why {
            Some(why) if shown.cut.max_stages == 0 => Err(Usage(format!("{UNSERVABLE}: {why}")).into()),
            _ => Ok(()),
        }
    }
}

const UNSERVABLE: &str = "the model can't be served";

fn unservable(error: impl Into<anyhow::Error>) -> anyhow::Error {
    error.into().context(Usage(UNSERVABLE.to_owned()))
}

fn shown(model: &Model, profile: Result<&ModelProfile, &str>) -> anyhow::Result<Shown> {
    let known = profile.ok();
    Ok(Shown {
        architecture: model.architecture().to_owned(),
        identity: model.identity().to_string(),
        parts: model.parts().len(),
        size_bytes: model.size(),
        prefix_bytes: model.prefix_bytes().iter().sum(),
        embedding_length: model.embedding_length(),
        mtp_layers: model.mtp_layers(),
        layers: match known {
            Some(profile) => (0..).zip(&profile.layers).map(known_layer).collect(),
            None => plain_layers(model)?,
        },
        known: known.map(of_profile),
        cut: cut(profile),
        stages: None,
    })
}

fn known_layer((number, layer): (u32, &kvasir_plan::Layer)) -> Layer {
    let (kind, window) = match layer.kind {
        LayerKind::Full => (Kind::Full, None),
        LayerKind::Sliding { window } => (Kind::Sliding, Some(window)),
        LayerKind::Recurrent => (Kind::Recurrent, None),
    };
    Layer {
        layer: number,
        bytes: layer.bytes,
        memory: Some(Memory {
            kind,
            window,
            active_bytes: layer.active_bytes,
            kv_bytes_per_token: kv_bytes(layer),
            state_bytes: layer.state_bytes,
        }),
    }
}

/// Layers of an architecture that nothing is known of.
fn plain_layers(model: &Model) -> anyhow::Result<Vec<Layer>> {
    let mut layers = Vec::new();
    for layer in 0..model.layers() {
        let mut bytes = 0u64;
        for tensor in model.tensors_of_layer(layer) {
            bytes = bytes.saturating_add(tensor.bytes()?);
        }
        layers.push(Layer {
            layer,
            bytes,
            memory: None,
        });
    }
    Ok(layers)
}

fn of_profile(profile: &ModelProfile) -> Known {
    let sum = |of: fn(&kvasir_plan::Layer) -> u64| profile.layers.iter().map(of).fold(0, u64::saturating_add);
    Known {
        file_type: profile.file_type.clone(),
        vocabulary: profile.vocabulary,
        embedding_bytes: profile.embedding_bytes,
        head_bytes: profile.head_bytes,
        tied: profile.tied,
        every_window_bytes: profile.every_bytes,
        mtp_bytes: profile.mtp_bytes,
        kv_bytes_per_token: sum(kv_bytes),
        state_bytes: sum(|layer| layer.state_bytes),
    }
}

fn kv_bytes(layer: &kvasir_plan::Layer) -> u64 {
    let values = layer.key_values.saturating_add(layer.value_values);
    values.saturating_mul(CACHED_VALUE)
}

fn cut(profile: Result<&ModelProfile, &str>) -> Cut {
    let refused = |why: String| Cut {
        max_stages: 1,
        ..Cut::unservable(why)
    };
    match profile {
        Err(why) => Cut::unservable(why.to_owned()),
        Ok(profile) => match &profile.indivisible {
            Some(why) => refused(why.clone()),
            None if profile.last_start == 0 => refused("the last window needs all layers that there are".to_owned()),
            None => Cut {
                possible: true,
                why: None,
                max_stages: profile.last_start + 1,
                last_start: Some(profile.last_start),
                refused_last_starts: profile.refused_last_starts.clone(),
            },
        },
    }
}

fn split(cut: &Cut, profile: Option<&ModelProfile>, stages: u32, request: &Request) -> anyhow::Result<Vec<Stage>> {
    let why = || Usage(cut.why.clone().unwrap_or_default());
    let profile = profile.ok_or_else(why)?;
    if !cut.possible && stages > cut.max_stages {
        return Err(why().into());
    }
    let needs = Needs::new(profile, request)?;
    let windows = even_windows(profile, stages)?;
    let stage = |(rank, layers)| {
        let need = needs.rank(layers);
        Stage {
            rank,
            layers,
            fetch_bytes: need.fetch,
            weight_bytes: need.weights,
            cache_bytes: need.cache,
            memory_bytes: need.memory(),
        }
    };
    Ok(windows.into_iter().enumerate().map(stage).collect())
}

/// The lines above the tables.
fn words(shown: &Shown) -> String {
    let mut text = String::new();
    let mut line = |title: &str, words: String| {
        // a String takes everything
        let _ = writeln!(text, "{title:<9}{words}");
    };
    let parts = if shown.parts == 1 {
        String::new()
    } else {
        format!(" in {} parts", shown.parts)
    };
    line(
        "model",
        format!(
            "{}, {} layers of width {}, {}{parts}; its prefix takes {}",
            shown.architecture,
            shown.layers.len(),
            shown.embedding_length,
            bytes(shown.size_bytes),
            bytes(shown.prefix_bytes)
        ),
    );
    if let Some(known) = &shown.known {
        let tied = if known.tied { ", which is the embedding" } else { "" };
        line(
            "ends",
            format!(
                "rank 0 fetches the embedding ({}), the last rank the head ({}{tied})",
                bytes(known.embedding_bytes),
                bytes(known.head_bytes)
            ),
        );
        if known.every_window_bytes > 0 {
            line(
                "windows",
                format!("each carries {} more", bytes(known.every_window_bytes)),
            );
        }
        if shown.mtp_layers > 0 {
            line(
                "mtp",
                format!(
                    "{} layer(s) of {} that ride with the last rank: no window holds them, and they are not fetched yet",
                    shown.mtp_layers,
                    bytes(known.mtp_bytes)
                ),
            );
        }
        line("kinds", kinds(&shown.layers));
        line(
            "memory",
            format!(
                "{} a token, {} a sequence, all layers together",
                bytes(known.kv_bytes_per_token),
                bytes(known.state_bytes)
            ),
        );
    }
    line("cut", where_cut(shown));
    text
}

/// `12 full, 36 recurrent`
fn kinds(layers: &[Layer]) -> String {
    let all = [Kind::Full, Kind::Sliding, Kind::Recurrent];
    let counted = all.map(|kind| {
        let of_kind = |layer: &&Layer| layer.memory.is_some_and(|memory| memory.kind == kind);
        (kind, layers.iter().filter(of_kind).count())
    });
    let told = counted.iter().filter(|(_, count)| *count > 0);
    told.map(|(kind, count)| format!("{count} {}", kind.name()))
        .collect::<Vec<_>>()
        .join(", ")
}

fn where_cut(shown: &Shown) -> String {
    let layers = shown.layers.len() as u32;
    let most = shown.cut.max_stages;
    match (&shown.cut.why, shown.cut.last_start) {
        (Some(why), _) => format!("not possible: {why}"),
        (None, Some(start)) if start + 1 < layers => {
            format!("before any layer up to {start}, so that the last window has both kinds; {most} stages at most")
        }
        (None, _) if !shown.cut.refused_last_starts.is_empty() => {
            let refused: Vec<String> = shown.cut.refused_last_starts.iter().map(u32::to_string).collect();
            format!(
                "before any layer, but the last window can't start at {}, for llama.cpp takes as many layers for another \
                 model; {most} stages at most",
                refused.join(" or ")
            )
        }
        (None, _) => format!("before any layer; {most} stages at most"),
    }
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Full => "full",
            Kind::Sliding => "sliding",
            Kind::Recurrent => "recurrent",
        }
    }
}

/// Neighbours that are alike share a row.
fn layer_table(shown: &Shown) -> Table {
    let mut table = Table::new([
        Column::Words("LAYERS"),
        Column::Words("KIND"),
        Column::Number("BYTES EACH"),
        Column::Number("READ A TOKEN"),
        Column::Number("KV A TOKEN"),
        Column::Number("STATE"),
    ]);
    for alike in shown.layers.chunk_by(|a, b| (a.bytes, a.memory) == (b.bytes, b.memory)) {
        let (Some(first), Some(last)) = (alike.first(), alike.last()) else {
            continue;
        };
        let layers = LayerRange {
            start: first.layer,
            end: last.layer + 1,
        };
        let unknown = || "-".to_owned();
        let of_memory = |of: fn(Memory) -> u64| first.memory.map_or_else(unknown, |memory| bytes(of(memory)));
        let kind = first.memory.map_or_else(unknown, |memory| match memory.window {
            Some(window) => format!("{} {window}", memory.kind.name()),
            None => memory.kind.name().to_owned(),
        });
        table.row([
            layers.to_string(),
            kind,
            bytes(first.bytes),
            of_memory(|memory| memory.active_bytes),
            of_memory(|memory| memory.kv_bytes_per_token),
            of_memory(|memory| memory.state_bytes),
        ]);
    }
    table
}

fn stage_table(stages: &[Stage]) -> Table {
    let mut table = Table::new([
        Column::Number("RANK"),
        Column::Words("LAYERS"),
        Column::Number("FETCH"),
        Column::Number("WEIGHTS"),
        Column::Number("CACHE"),
        Column::Number("MEMORY"),
    ]);
    for stage in stages {
        table.row([
            stage.rank.to_string(),
            stage.layers.to_string(),
            bytes(stage.fetch_bytes),
            bytes(stage.weight_bytes),
            bytes(stage.cache_bytes),
            bytes(stage.memory_bytes),
        ]);
    }
    table
}
