//! A Ring from its file, planned for this machine: the Ring is read, the model's prefix is read, nothing is started.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, ensure};
use futures::stream::{self, StreamExt, TryStreamExt};
use kvasir_api::{Backend, Ring, RingSpec};
use kvasir_gguf::{
    Model, ModelSource,
    source::{self, Patience},
    window::{self, WindowRole},
};
use kvasir_plan::{
    Device, LayerRange, ModelProfile, Placement, Plan, RankManifest, Request, Window, WindowHolder, plan,
};
use kvasir_stage::trial::{Gives, Trial, TrialError};
use secrecy::SecretString;

use crate::{failure::Usage, table};

/// Where tokens for sources come from, for `--help`.
pub const TOKEN_HELP: &str = "\
KVASIR_SOURCE_TOKEN in the environment (for Hugging Face, HF_TOKEN too) is sent to the model's source as bearer token.";

/// What the loopback is to the planner.
const LOOPBACK_LATENCY: Duration = Duration::from_micros(20);
const LOOPBACK_BANDWIDTH: u64 = 5_000_000_000;

/// Somebody waits at a terminal for the prefix: an address where nobody answers is told within seconds. A server that says
/// how long to wait is waited for; stages, which nobody watches, try longer.
const AT_A_TERMINAL: Patience = Patience {
    tries: 3,
    first_pause: Duration::from_millis(500),
    longest_pause: Duration::from_secs(30),
};

/// Windows that are tried at the same time.
const TRIALS: usize = 4;

/// Which Ring, and into how many stages.
#[derive(Clone, Debug, clap::Args)]
pub struct RingArgs {
    /// Ring manifest
    #[arg(value_name = "RING.yaml")]
    pub file: PathBuf,
    /// Stages to cut the model into, alike in bytes; the Ring's windows or pools decide when absent
    #[arg(long, env = "KVASIR_STAGES", value_parser = clap::value_parser!(u32).range(1..=512))]
    pub stages: Option<u32>,
}

/// A Ring and its plan.
#[derive(Debug)]
pub struct Planned {
    /// where the model is
    pub source: ModelSource,
    /// what the model looks like
    pub profile: ModelProfile,
    /// who holds what
    pub plan: Plan,
    /// the plan as stages read it: epoch 0, no holders
    pub manifest: RankManifest,
    /// what to say before anything is done by it
    pub warnings: Vec<String>,
}

impl RingArgs {
    /// Reads the Ring.
    pub fn read(&self) -> anyhow::Result<Ring> {
        let path = self.file.display();
        let text = read_file(&self.file).with_context(|| format!("can't read the Ring {path}"))?;
        kvasir_api::from_yaml(&text).with_context(|| format!("{path} is no Ring that can be used: correct it"))
    }

    /// Reads the model's prefix and plans the Ring onto this machine.
    pub async fn plan(&self, ring: &Ring) -> anyhow::Result<Planned> {
        let source = source_of(&ring.spec)?;
        let reader = source::open(&source, &impatient(&source))?;
        let model = source::read_model(&*reader, &[]).await?;
        let profile = ModelProfile::of(&model).context("the model can't be planned")?;
        try_out(&model).await.context("the model can't be planned")?;
        let mut request = ring.spec.request()?;
        if let Some(stages) = self.stages {
            request.windows = even_windows(&profile, stages)?
                .into_iter()
                .map(|layers| Window {
                    layers,
                    holder: WindowHolder::Any,
                })
                .collect();
        }
        let mut devices = ring.spec.devices()?;
        if devices.is_empty() {
            devices.push(this_machine(&request));
            // Stages of one machine share its cores: a second lap would only take turns with the first, and threads
            // that wait for each other spin.
            request.laps.max_laps = 1;
        }
        let plan = plan(&profile, &devices, &request).context("the Ring can't be planned onto this machine")?;
        let name = ring.metadata.name.as_deref().unwrap_or_default();
        let manifest = plan.manifest(name, &ring.spec.model.name);
        try_windows(&model, &manifest)
            .await
            .context("the model can't be cut like this")?;
        let template = template_warning(&model, ring.spec.model.chat_template.as_deref());
        let context = context_warning(&model, request.context_length);
        Ok(Planned {
            source,
            profile,
            plan,
            manifest,
            warnings: template.into_iter().chain(context).collect(),
        })
    }
}

/// What to say when the chat template, the Ring's or else the model's, can't be read.
pub(crate) fn template_warning(model: &Model, own: Option<&str>) -> Option<String> {
    let template = own.or_else(|| model.metadata().str("tokenizer.chat_template"))?;
    let problem = kvasir_stage::api::template_problem(template)?;
    Some(format!(
        "warning: {problem}. Chats will be refused, completions won't; model.chatTemplate in a Ring takes its place"
    ))
}

/// Asks llama.cpp what it has against the model, of which only the prefix is here.
pub(crate) async fn try_out(model: &Model) -> Result<(), TrialError> {
    trial().of_model(model).await
}

/// Where layers are unlike each other by what the metadata says of each, a window may be refused though the whole isn't:
/// asks for all that are planned.
async fn try_windows(model: &Model, manifest: &RankManifest) -> anyhow::Result<()> {
    if !model.varies_by_layer() {
        return Ok(());
    }
    let trial = trial();
    let last = model.layers();
    let windows = manifest.ranks.iter().map(|rank| {
        let role = WindowRole {
            layers: rank.layers.start..rank.layers.end,
            last: rank.layers.end == last,
        };
        let gives = if role.last { Gives::Logits } else { Gives::Hidden };
        let trial = &trial;
        async move {
            let window = window::window(model, &role)?;
            trial.of_file(&window, gives).await?;
            anyhow::Ok(())
        }
    });
    let tried = stream::iter(windows.collect::<Vec<_>>()).buffered(TRIALS);
    tried.try_collect().await
}

/// What to say of a context that is longer than the model's own.
fn context_warning(model: &Model, asked: u32) -> Option<String> {
    let own = model.get("context_length")?.as_u64()?;
    (u64::from(asked) > own).then(|| {
        format!(
            "warning: contextLength is {asked}, and the model was made for {own} positions: beyond them answers may make no \
             sense"
        )
    })
}

/// This program holds trials as the stage that it also is.
pub(crate) fn trial() -> Trial {
    Trial::by_this_program(&[crate::STAGE])
}

/// Cuts a model into `stages` windows that are as alike in bytes as whole layers allow; the last one starts where it may.
pub(crate) fn even_windows(profile: &ModelProfile, stages: u32) -> anyhow::Result<Vec<LayerRange>> {
    let bytes: Vec<u64> = profile.layers.iter().map(|layer| layer.bytes).collect();
    cuts(&bytes, profile.last_start, &profile.refused_last_starts, stages)
}

fn cuts(bytes: &[u64], last_start: u32, refused: &[u32], stages: u32) -> anyhow::Result<Vec<LayerRange>> {
    // no architecture refuses the latest start of all, so that every range of last cuts holds one that is allowed
    let most = last_start + 1;
    ensure!(
        stages <= most,
        Usage(format!(
            "the model can be cut into {most} stages at most, not {stages}: lower --stages"
        ))
    );
    let sums = bytes.iter().scan(0, |sum, layer| {
        *sum += u128::from(*layer);
        Some(*sum)
    });
    let before: Vec<u128> = std::iter::once(0).chain(sums).collect();
    let total = before[bytes.len()];
    let mut cuts = vec![0];
    for stage in 1..stages {
        let (earliest, latest) = (cuts[cuts.len() - 1] + 1, most + stage - stages);
        let off = |cut: &u32| (before[*cut as usize] * u128::from(stages)).abs_diff(total * u128::from(stage));
        let allowed = |cut: &u32| stage + 1 < stages || !refused.contains(cut);
        // The range holds a layer: each cut left one for every cut after it.
        cuts.extend((earliest..=latest).filter(allowed).min_by_key(off));
    }
    cuts.push(bytes.len() as u32);
    Ok(cuts
        .windows(2)
        .map(|ends| LayerRange {
            start: ends[0],
            end: ends[1],
        })
        .collect())
}

/// This machine as the planner's device, for a Ring without pools: as many stages as it has windows, each of which may
/// take all the memory that is free.
fn this_machine(request: &Request) -> Device {
    let (decode, prefill) = Backend::Cpu.nominal_speed();
    Device {
        name: "local".to_owned(),
        placement: Placement::Inside,
        max_stages: request.windows.len().max(1) as u32,
        memory: memory(),
        decode,
        prefill,
        latency: LOOPBACK_LATENCY,
        bandwidth: LOOPBACK_BANDWIDTH,
    }
}

fn source_of(spec: &RingSpec) -> anyhow::Result<ModelSource> {
    let source = &spec.model.source;
    Ok(if let Some(hub) = &source.hugging_face {
        let (repo, file, revision) = (hub.repo.clone(), hub.file.clone(), hub.revision.clone());
        ModelSource::HuggingFace { repo, file, revision }
    } else if let Some(http) = &source.http {
        ModelSource::Http { url: http.url.clone() }
    } else if let Some(file) = &source.file {
        if let Some((scheme, _)) = address(&file.path) {
            return Err(Usage(format!(
                "source.file.path is a path on this machine, and {scheme}:// begins an address: {SOURCES}"
            ))
            .into());
        }
        ModelSource::File {
            path: file.path.clone().into(),
        }
    } else {
        let told = "the model lies on a volume, which only a cluster has: name it with source.file to run it here";
        return Err(Usage(told.to_owned()).into());
    })
}

/// What a Ring can name, for messages.
const SOURCES: &str = "a Ring's source is huggingFace, http (http:// or https://) or file";

/// Scheme and rest of a text that is an address and no path.
pub(crate) fn address(text: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = text.split_once("://")?;
    let word = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    (scheme.starts_with(|first: char| first.is_ascii_alphabetic()) && scheme.bytes().all(word))
        .then_some((scheme, rest))
}

/// Reads a small text file. A folder, a device or a pipe is refused: the latter two may never end.
fn read_file(path: &Path) -> std::io::Result<String> {
    let kind = std::fs::metadata(path)?.file_type();
    if !kind.is_file() {
        let problem = format!("it is {} and no file", kvasir_gguf::source::kind_of(kind));
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, problem));
    }
    std::fs::read_to_string(path)
}

/// How the source is reached: its token comes from the environment.
pub fn access(source: &ModelSource) -> source::Access {
    let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    let hub = matches!(source, ModelSource::HuggingFace { .. });
    let token = variable("KVASIR_SOURCE_TOKEN").or_else(|| variable("HF_TOKEN").filter(|_| hub));
    source::Access {
        token: token.map(SecretString::from),
        ..source::Access::default()
    }
}

/// The same, for who waits for no more than a prefix.
pub(crate) fn impatient(source: &ModelSource) -> source::Access {
    source::Access {
        patience: AT_A_TERMINAL,
        ..access(source)
    }
}

/// Bytes of memory that new processes here can have: what the system has free, or what is left of a control group's
/// limit. No bound where the system doesn't say.
pub fn memory() -> u64 {
    let free = std::fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| available(&text));
    let number = |path: &str| {
        std::fs::read_to_string(Path::new("/sys/fs/cgroup").join(path))
            .ok()?
            .trim()
            .parse()
            .ok()
    };
    let left = number("memory.max").map(|limit: u64| limit.saturating_sub(number("memory.current").unwrap_or(0)));
    free.into_iter().chain(left).min().unwrap_or(i64::MAX as u64)
}

fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim()
        .strip_suffix("kB")?
        .trim()
        .parse::<u64>()
        .ok()?
        .checked_mul(1024)
}

impl Planned {
    /// Ranks that the plan puts on this machine; the others are left to the market.
    pub fn ranks_here(&self) -> Vec<usize> {
        let ranks = self.manifest.ranks.iter().enumerate();
        ranks
            .filter(|(_, rank)| rank.placement.is_some())
            .map(|(rank, _)| rank)
            .collect()
    }

    /// What to say when all stages together need more memory than this machine has left.
    pub fn memory_warning(&self) -> Option<String> {
        let needed: u64 = self.manifest.ranks.iter().map(|rank| rank.memory).sum();
        let free = memory();
        (needed > free).then(|| {
            let (needed, free) = (table::bytes(needed), table::bytes(free));
            format!("warning: all stages together need {needed} of memory, this machine has {free} free")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_told_from_a_path() {
        assert_eq!(address("ftp://host/a.gguf"), Some(("ftp", "host/a.gguf")));
        assert_eq!(address("s3+x://b"), Some(("s3+x", "b")));
        for path in ["/models/a.gguf", "models/a://b", "://a", "1a://b", "a:b"] {
            assert_eq!(address(path), None, "{path}");
        }
    }

    #[tokio::test]
    async fn an_address_where_nobody_answers_is_told_within_seconds() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/a.gguf", nobody.local_addr().unwrap());
        drop(nobody);
        let text = format!(
            "apiVersion: kvasir.dev/v1alpha1\nkind: Ring\nmetadata: {{name: a}}\n\
             spec: {{model: {{name: a, source: {{http: {{url: '{url}'}}}}}}}}\n"
        );
        let ring = kvasir_api::from_yaml(&text).unwrap();
        let arguments = RingArgs {
            file: "ring.yaml".into(),
            stages: None,
        };
        let told = tokio::time::timeout(Duration::from_secs(15), arguments.plan(&ring)).await;
        let error = told.expect("it is told within seconds").unwrap_err().to_string();
        assert!(
            error.contains(&url) && error.contains("can't be reached") && error.contains("check the address"),
            "{error}"
        );
    }

    #[test]
    fn free_memory_is_read_off_the_systems_table() {
        let text = "MemTotal:       16316412 kB\nMemFree:         1 kB\nMemAvailable:    9000000 kB\n";
        assert_eq!(available(text), Some(9_000_000 * 1024));
        assert_eq!(available("MemTotal: 1 kB\n"), None);
    }

    fn cut(bytes: &[u64], last_start: u32, stages: u32) -> Vec<(u32, u32)> {
        let windows = cuts(bytes, last_start, &[], stages).unwrap();
        windows.iter().map(|window| (window.start, window.end)).collect()
    }

    #[test]
    fn windows_are_alike_in_bytes() {
        assert_eq!(cut(&[10; 30], 29, 3), [(0, 10), (10, 20), (20, 30)]);
        assert_eq!(cut(&[10; 30], 29, 1), [(0, 30)]);
        assert_eq!(cut(&[30, 10, 10, 10, 30], 4, 3), [(0, 1), (1, 4), (4, 5)]);
    }

    #[test]
    fn every_window_has_a_layer_and_the_last_one_those_it_needs() {
        assert_eq!(cut(&[1, 1, 1, 100], 3, 4), [(0, 1), (1, 2), (2, 3), (3, 4)]);
        assert_eq!(cut(&[100, 1, 1, 1], 3, 4), [(0, 1), (1, 2), (2, 3), (3, 4)]);
        assert_eq!(cut(&[1, 1, 1, 100], 2, 3), [(0, 1), (1, 2), (2, 4)]);
        let error = cuts(&[1; 4], 2, &[], 4).unwrap_err();
        assert!(error.is::<Usage>());
        assert_eq!(
            error.to_string(),
            "the model can be cut into 3 stages at most, not 4: lower --stages"
        );
    }

    #[test]
    fn the_last_window_starts_where_it_may() {
        let windows = |refused: &[u32]| {
            let windows = cuts(&[1; 9], 8, refused, 3).unwrap();
            windows.iter().map(|window| window.start).collect::<Vec<u32>>()
        };
        assert_eq!(windows(&[]), [0, 3, 6]);
        assert_eq!(windows(&[6]), [0, 3, 5]);
        assert_eq!(windows(&[4, 5, 6, 7]), [0, 3, 8]);
    }

    #[test]
    fn bytes_beyond_64_bits_add_up() {
        assert_eq!(cut(&[u64::MAX; 4], 3, 2), [(0, 2), (2, 4)]);
    }
}
