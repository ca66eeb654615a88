//! A model that can't be run is refused before a byte of its weights is asked for, whichever rank asks; a sound one passes.
#![allow(
    unreachable_pub,
    clippy::unwrap_used,
    reason = "tests end at the first surprise, and share within one file"
)]

mod cases;
mod source;

use std::path::Path;

use kvasir_gguf::source::Access;
use kvasir_gguf::{Model, ModelSource};
use kvasir_plan::{BoundaryType, LayerRange, ModelRef, Rank, RankManifest};
use kvasir_stage::fetch::{FetchError, RankFiles};
use kvasir_stage::trial::Trial;
use kvasir_tests::gguf::{File, Value};
use kvasir_tests::models;
use kvasir_tests::random_model::{Architecture, RandomModel, Vocabulary};

use cases::{Case, of};
use source::Source;

/// Windows of so many layers, of a model with this identity.
fn plan(identity: &str, ends: &[u32], prefix: u64) -> RankManifest {
    let ranks = ends.windows(2).map(|ends| Rank {
        layers: LayerRange {
            start: ends[0],
            end: ends[1],
        },
        bytes: 1,
        memory: 1,
        placement: None,
        holder: None,
    });
    RankManifest {
        ring: "test".into(),
        epoch: 0,
        model: ModelRef {
            name: "altered".into(),
            architecture: "any".into(),
            identity: identity.into(),
            embedding_length: 1,
            layers: *ends.last().unwrap(),
            vocabulary: 1,
            prefix_bytes: vec![prefix],
        },
        boundary_type: BoundaryType::F32,
        exact: false,
        context_length: 256,
        sequences: 1,
        max_laps: 1,
        max_lap_tokens: 16,
        ranks: ranks.collect(),
    }
}

/// Fetches one rank of a plan by the program itself.
async fn fetch(source: &Source, plan: &RankManifest, rank: usize, folder: &Path) -> Result<(), FetchError> {
    let trial = Trial::by(env!("CARGO_BIN_EXE_kvasir-stage").into(), &[]);
    let from = ModelSource::Http {
        url: source.url.clone(),
    };
    let prefix = &plan.model.prefix_bytes;
    let files = RankFiles::new(plan, rank, folder)?;
    files
        .fetch(&from, &Access::default(), prefix, &trial, |_| {})
        .await
        .map(drop)
}

/// Length of a file's prefix, by the writer's own table: all that comes before the data of its tensors.
fn prefix_bytes(file: &File) -> u64 {
    let bytes = File {
        metadata: file.metadata.clone(),
        tensors: file
            .tensors
            .iter()
            .cloned()
            .map(|mut tensor| {
                tensor.data.clear();
                tensor
            })
            .collect(),
    };
    bytes.to_bytes().len() as u64
}

fn setup() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// What both ranks of a ring say of the file, having asked for nothing but its prefix.
async fn refusals(file: &File, layers: u32) -> Vec<Result<FetchError, String>> {
    let bytes = file.to_bytes();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, &bytes).unwrap();
    let model = Model::open(&path);
    let layers = model.as_ref().map_or(layers, Model::layers);
    let identity = model.map(|model| model.identity().to_string());
    let source = Source::serve(bytes).await;
    let prefix = prefix_bytes(file);
    let plan = plan(&identity.unwrap_or("00".repeat(32)), &[0, layers / 2, layers], prefix);
    let mut refusals = Vec::new();
    for rank in 0..2 {
        let target = folder.path().join(format!("rank-{rank}"));
        let told = fetch(&source, &plan, rank, &target).await;
        let left: Vec<_> = std::fs::read_dir(&target).unwrap().collect();
        let asked = source.asked_to();
        refusals.push(match told {
            Ok(()) => Err(format!("rank {rank} fetched its window")),
            Err(error) if asked > prefix => Err(format!("byte {asked} of {prefix} was asked for: {error}")),
            Err(error) if !left.is_empty() => Err(format!("{left:?} is left: {error}")),
            Err(error) => Ok(error),
        });
    }
    refusals
}

/// What is wrong with a refusal.
fn fault(error: &FetchError, expected: &[String]) -> Option<String> {
    let (text, reason) = (kvasir_process::chain(error), error.reason());
    let known = ["MalformedFile", "UnsupportedFormat", "UnsupportedArchitecture"].contains(&reason);
    let holds = expected.iter().all(|expected| text.contains(expected));
    let is_clean = !text.contains(".trial") && !text.contains(".cpp:");
    println!("    {reason}: {text}");
    (!known || !holds || !is_clean).then(|| format!("{reason}: {text:?} should hold {expected:?} and no path"))
}

async fn refuses(architectures: &[Architecture], cases: impl Fn(&File) -> Vec<Case>) {
    setup();
    let mut faults = Vec::new();
    for architecture in architectures {
        for Case { what, file, expected } in cases(&sound(*architecture)) {
            let label = format!("{}, {what}", architecture.label());
            println!("{label}");
            for told in refusals(&file, architecture.default_layers()).await {
                let fault = match told {
                    Ok(error) => fault(&error, &expected),
                    Err(fault) => Some(fault),
                };
                faults.extend(fault.map(|fault| format!("{label}: {fault}")));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// A model with a tokenizer that llama.cpp takes: of one named Phi-3 it expects tokens that this one hasn't.
fn sound(architecture: Architecture) -> File {
    RandomModel::new(architecture)
        .vocabulary(Vocabulary::Bytes)
        .metadata("general.name", Value::String("random".to_owned()))
        .file()
}

const DENSE: [Architecture; 5] = [
    Architecture::Llama,
    Architecture::Qwen3,
    Architecture::Gemma2,
    Architecture::Gemma3,
    Architecture::Mistral3,
];
const EXPERTS: [Architecture; 4] = [
    Architecture::LlamaMoe,
    Architecture::Qwen3Moe,
    Architecture::GptOss,
    Architecture::Glm4Moe,
];
const HYBRID: [Architecture; 3] = [Architecture::Qwen35, Architecture::GraniteHybrid, Architecture::Lfm2];
const LATENT: [Architecture; 1] = [Architecture::Deepseek2];

#[tokio::test]
async fn tensors_that_are_missing_or_renamed_or_of_another_shape_are_named() {
    let all = [&DENSE[..], &EXPERTS, &HYBRID, &LATENT].concat();
    refuses(&all, cases::tensors).await;
}

#[tokio::test]
async fn numbers_that_contradict_the_shapes_are_told() {
    refuses(&[&DENSE[..], &HYBRID[..2]].concat(), cases::numbers).await;
}

#[tokio::test]
async fn experts_that_are_not_there_are_told() {
    refuses(&EXPERTS, cases::experts).await;
}

#[tokio::test]
async fn numbers_and_types_that_nothing_can_be_computed_with_are_told() {
    refuses(
        &[Architecture::Llama, Architecture::Gemma2, Architecture::Qwen35],
        cases::scalars,
    )
    .await;
}

#[tokio::test]
async fn a_model_without_its_tokenizer_is_refused() {
    refuses(&[Architecture::Llama, Architecture::GptOss], cases::tokenizer).await;
}

/// Windows that get padding, that take their input over a node, and that hold a hole in place of the embedding.
#[tokio::test]
async fn sound_models_of_every_architecture_pass() {
    setup();
    for architecture in Architecture::ALL {
        let file = sound(architecture);
        let layers = architecture.default_layers();
        passes(of(&file), file.to_bytes(), &[0, 1, 2, layers - 3, layers]).await;
    }
}

#[tokio::test]
async fn the_real_models_pass_whole_and_cut() {
    setup();
    for (path, layers) in [(models::smollm2(), 30), (models::gemma3(), 18)] {
        for ends in [&[0, layers][..], &[0, 7, 8, layers]] {
            let bytes = std::fs::read(&path).unwrap();
            passes(path.to_str().unwrap(), bytes, ends).await;
        }
    }
}

async fn passes(label: &str, bytes: Vec<u8>, ends: &[u32]) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, &bytes).unwrap();
    let model = Model::open(&path).unwrap();
    let source = Source::serve(bytes).await;
    let plan = plan(&model.identity().to_string(), ends, model.prefix_bytes()[0]);
    for rank in 0..plan.ranks.len() {
        let told = fetch(&source, &plan, rank, &folder.path().join(rank.to_string())).await;
        told.unwrap_or_else(|error| panic!("{label}, {ends:?}, rank {rank}: {}", kvasir_process::chain(&error)));
    }
}
