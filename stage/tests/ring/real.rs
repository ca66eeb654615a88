//! Rings of real engines over windows cut from a model's file, and the whole model beside them.

use std::path::{Path, PathBuf};

use kvasir_engine::{Backend, Output, Span, Whole, WindowOptions};
use kvasir_gguf::Model;
use kvasir_gguf::source::{Access, ModelSource};
use kvasir_plan::{BoundaryType, RankManifest};
use kvasir_stage::fetch::RankFiles;
use kvasir_stage::ring::{Embedding, Loaded};
use kvasir_stage::trial::Trial;

use crate::circle::{Circle, plan};

/// A model's file, and how its rings are shaped.
pub struct Real {
    pub path: PathBuf,
    pub plan: RankManifest,
    pub backend: &'static Backend,
    /// threads of each stage; one where several stages compute at once, since threads that wait for each other spin
    pub threads: u32,
    folder: tempfile::TempDir,
}

impl Real {
    /// Plans `stages` windows of the model at `path`.
    pub fn new(backend: &'static Backend, path: &Path, stages: u32) -> Real {
        let model = Model::open(path).unwrap();
        let layers = model.layers();
        let mut plan = plan(layers, stages, model.embedding_length(), model.vocabulary().unwrap());
        plan.model.identity = model.identity().to_string();
        plan.model.architecture = model.architecture().into();
        plan.context_length = 2048;
        plan.sequences = 2;
        // one lap at a time: stages that compute side by side on two cores only take turns
        plan.max_laps = 1;
        plan.max_lap_tokens = 512;
        plan.boundary_type = BoundaryType::F32;
        Real {
            path: path.into(),
            plan,
            backend,
            threads: 0,
            folder: tempfile::tempdir().unwrap(),
        }
    }

    pub fn options(&self, last: bool) -> WindowOptions {
        WindowOptions {
            context_length: self.plan.context_length,
            sequences: self.plan.sequences,
            max_rows: self.plan.max_lap_tokens,
            output: if last {
                Output::Logits {
                    max_rows: self.plan.sequences,
                }
            } else {
                Output::Hidden
            },
            exact: self.plan.exact,
            threads: self.threads,
            ..WindowOptions::default()
        }
    }

    /// Fetches and loads one rank.
    pub fn load(&self, rank: usize) -> Loaded {
        let files = RankFiles::new(&self.plan, rank, &self.folder.path().join(rank.to_string())).unwrap();
        let source = ModelSource::File {
            path: self.path.clone(),
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime
            .block_on(files.fetch(&source, &Access::default(), &[], &Trial::none(), |_| {}))
            .unwrap();
        let embedding = files.embedding().unwrap();
        let embedding = embedding
            .as_ref()
            .map(|(file, scale)| Embedding { file, scale: *scale });
        let last = rank + 1 == self.plan.ranks.len();
        Loaded::load(self.backend, &files.window(), &self.options(last), embedding).unwrap()
    }

    /// The formed ring.
    pub async fn ring(&self) -> Circle {
        let loaded: Vec<_> = std::thread::scope(|s| {
            s.spawn(|| (0..self.plan.ranks.len()).map(|rank| self.load(rank)).collect())
                .join()
                .unwrap()
        });
        let loaded = std::sync::Mutex::new(loaded.into_iter().map(Some).collect::<Vec<_>>());
        Circle::ready(self.plan.clone(), |rank| loaded.lock().unwrap()[rank].take().unwrap()).await
    }

    pub fn whole(&self) -> Whole {
        Whole::load(self.backend, &self.path, &self.options(true)).unwrap()
    }
}

/// The whole model's logits after the prompt and after each token of `answer` but the last, in the ring's own batches.
pub fn whole_logits(whole: &mut Whole, chunk: usize, prompt: &[i32], answer: &[i32]) -> Vec<Vec<f32>> {
    whole.clear(0);
    let mut rows = vec![];
    let mut out = vec![];
    let mut position = 0;
    for piece in prompt.chunks(chunk) {
        let last = piece.len() as u32 - 1;
        let span = Span {
            slot: 0,
            position,
            count: piece.len() as u32,
        };
        whole.run(&[span], piece, &[last], &mut out).unwrap();
        position += piece.len() as u32;
    }
    rows.push(out.clone());
    for token in &answer[..answer.len() - 1] {
        whole
            .run(
                &[Span {
                    slot: 0,
                    position,
                    count: 1,
                }],
                &[*token],
                &[0],
                &mut out,
            )
            .unwrap();
        position += 1;
        rows.push(out.clone());
    }
    rows
}

/// f32 values out of a token's raw logits.
pub fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes
        .chunks_exact(4)
        .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
        .collect()
}
