//! `fetch`: brings one rank's files into a folder: its window, and at rank 0 the vocabulary.

use std::path::{Path, PathBuf};

use kvasir_gguf::source::{self, Access, ModelSource};
use kvasir_gguf::window::{self, WindowRole};
use kvasir_gguf::{MiniGguf, Model, ModelIdentity, arch, fetch};
use kvasir_plan::{LayerRange, RankManifest};

use crate::trial::{Gives, Trial, TrialError};

/// The window of a rank.
pub const WINDOW_FILE: &str = "window.gguf";
/// Rank 0's tokenizer and embedding.
pub const VOCABULARY_FILE: &str = "vocab.gguf";

pub use kvasir_gguf::fetch::{Fetched, Progress};

/// Why a rank's files are not there.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// the folder can't be made
    #[error("cannot make the folder {}", dir.display())]
    Folder {
        /// which
        dir: PathBuf,
        /// why
        #[source]
        source: std::io::Error,
    },
    /// the plan has no such rank
    #[error("the plan has {ranks} ranks, there is no rank {rank}")]
    NoSuchRank {
        /// asked for
        rank: usize,
        /// there are
        ranks: usize,
    },
    /// the plan's identity isn't one
    #[error("the plan names {identity:?}, which is no model identity")]
    BadIdentity {
        /// the text
        identity: String,
    },
    /// the source holds another model than the plan
    #[error("the source holds model {found}, the plan is for {wanted}: plan again, or point to the same file")]
    WrongModel {
        /// identity at the source
        found: String,
        /// identity in the plan
        wanted: String,
    },
    /// the source can't be read
    #[error(transparent)]
    Source(#[from] source::Error),
    /// the window can't be cut
    #[error(transparent)]
    Window(#[from] window::Error),
    /// the architecture can't be run in windows
    #[error(transparent)]
    Architecture(#[from] arch::Error),
    /// llama.cpp can't run what the prefix describes
    #[error(transparent)]
    Trial(#[from] TrialError),
    /// the download failed
    #[error(transparent)]
    Fetch(#[from] fetch::Error),
    /// a file that should be there can't be read
    #[error("cannot read the model in {}", path.display())]
    Model {
        /// which
        path: PathBuf,
        /// why
        #[source]
        source: kvasir_gguf::model::Error,
    },
}

impl FetchError {
    /// Stable `PascalCase` word for metrics, events and conditions.
    pub fn reason(&self) -> &'static str {
        match self {
            FetchError::Folder { .. } => "DiskFailure",
            FetchError::NoSuchRank { .. } | FetchError::BadIdentity { .. } => "InvalidPlan",
            FetchError::WrongModel { .. } => "WrongModel",
            FetchError::Source(e) => e.reason(),
            FetchError::Window(e) => e.reason(),
            FetchError::Architecture(e) => e.reason(),
            FetchError::Trial(e) => e.reason(),
            FetchError::Fetch(e) => e.reason(),
            FetchError::Model { source, .. } => source.reason(),
        }
    }
}

/// One rank's place in its model.
#[derive(Clone, Debug)]
pub struct RankFiles {
    identity: ModelIdentity,
    layers: LayerRange,
    first: bool,
    last: bool,
    dir: PathBuf,
}

impl RankFiles {
    /// The files of `rank` in `dir`.
    pub fn new(plan: &RankManifest, rank: usize, dir: &Path) -> Result<Self, FetchError> {
        let ranks = plan.ranks.len();
        let planned = plan.ranks.get(rank).ok_or(FetchError::NoSuchRank { rank, ranks })?;
        RankFiles::of_layers(plan, planned.layers, dir)
    }

    /// The files of a rank that is `layers` in `dir`: windows claimed together are one rank.
    pub fn of_layers(plan: &RankManifest, layers: LayerRange, dir: &Path) -> Result<Self, FetchError> {
        let text = &plan.model.identity;
        let identity = text
            .parse()
            .map_err(|_| FetchError::BadIdentity { identity: text.clone() })?;
        Ok(RankFiles {
            identity,
            layers,
            first: layers.start == 0,
            last: layers.end == plan.model.layers,
            dir: dir.to_owned(),
        })
    }

    /// Whether the window holds the head.
    pub fn is_last(&self) -> bool {
        self.last
    }

    /// Path of the window.
    pub fn window(&self) -> PathBuf {
        self.dir.join(WINDOW_FILE)
    }

    /// Path of the vocabulary, at rank 0.
    pub fn vocabulary(&self) -> Option<PathBuf> {
        self.first.then(|| self.dir.join(VOCABULARY_FILE))
    }

    /// Checks that the files are whole and of this model; asks nothing of the network.
    pub fn verify(&self) -> Result<(), FetchError> {
        let layers = self.layers.start..self.layers.end;
        fetch::verify(&self.window(), self.identity, Some(layers))?;
        if let Some(path) = self.vocabulary() {
            fetch::verify(&path, self.identity, None)?;
        }
        Ok(())
    }

    /// Fetches what isn't there yet, once a trial has found nothing against the model. `progress` counts the bytes of both
    /// files together.
    pub async fn fetch(
        &self,
        from: &ModelSource,
        access: &Access,
        prefix_bytes: &[u64],
        trial: &Trial,
        mut progress: impl FnMut(Progress) + Send,
    ) -> Result<Fetched, FetchError> {
        std::fs::create_dir_all(&self.dir).map_err(|source| FetchError::Folder {
            dir: self.dir.clone(),
            source,
        })?;
        // A stage whose window is whole starts without its source.
        let files = self.clone();
        if tokio::task::spawn_blocking(move || files.verify())
            .await
            .is_ok_and(|v| v.is_ok())
        {
            return Ok(Fetched::default());
        }
        let reader = source::open(from, access)?;
        let model = source::read_model(&*reader, prefix_bytes).await?;
        if model.identity() != self.identity {
            let (found, wanted) = (model.identity().to_string(), self.identity.to_string());
            return Err(FetchError::WrongModel { found, wanted });
        }
        let role = WindowRole {
            layers: self.layers.start..self.layers.end,
            last: self.last,
        };
        let window = window::window(&model, &role)?;
        self.try_out(trial, &model, &window).await?;
        let mut files = vec![(window, self.window())];
        if let Some(path) = self.vocabulary() {
            // In a ring of one with a tied head the window holds the embedding already.
            files.push((
                window::vocabulary(&model, !(self.last && window::is_tied(&model)))?,
                path,
            ));
        }
        let total = files.iter().map(|(mini, _)| mini.fetched_bytes()).sum();
        let mut sum = Fetched {
            bytes_fetched: model.prefix_bytes().iter().sum(),
            bytes_written: 0,
        };
        let mut before = 0;
        for (mini, path) in &files {
            let told = |p: Progress| {
                progress(Progress {
                    done: before + p.done,
                    total,
                });
            };
            let fetched = fetch::fetch(&*reader, mini, path, told).await?;
            before += mini.fetched_bytes();
            sum.bytes_fetched += fetched.bytes_fetched;
            sum.bytes_written += fetched.bytes_written;
        }
        Ok(sum)
    }

    /// Tries the whole model, so that what is wrong with another rank's files is told here too, and then the rank's own
    /// window.
    async fn try_out(&self, trial: &Trial, model: &Model, window: &MiniGguf) -> Result<(), FetchError> {
        trial.of_model(model).await?;
        if !(self.first && self.last) {
            let gives = if self.last { Gives::Logits } else { Gives::Hidden };
            trial.of_file(window, gives).await?;
        }
        Ok(())
    }

    /// File that rank 0 reads rows of the embedding from, and what it multiplies them by.
    pub fn embedding(&self) -> Result<Option<(PathBuf, f32)>, FetchError> {
        let Some(path) = self.vocabulary() else { return Ok(None) };
        let model = Model::open(&path).map_err(|source| FetchError::Model {
            path: path.clone(),
            source,
        })?;
        let scale = arch::input_scale(&model)?;
        let held_here = !model.tensors().is_empty();
        Ok(Some((if held_here { path } else { self.window() }, scale)))
    }
}
