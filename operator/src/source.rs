//! Where a Ring's model is, as the operator reads it, as the stages read it, and as the market is told.

use kvasir_gguf::ModelSource;
use kvasir_market::types;

/// Where a volume with the model is mounted in the pods that read it.
pub const VOLUME: &str = "/model";

/// A source that a cluster can read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// anybody with an address can: the operator itself, every stage
    Remote(ModelSource),
    /// pods in the Ring's namespace can
    Volume {
        /// the `PersistentVolumeClaim`
        claim_name: String,
        /// path from its root
        path: String,
    },
}

impl Source {
    /// The source that a Ring names; none for a file, which no cluster has.
    pub fn of(source: &kvasir_api::Source) -> Option<Source> {
        if let Some(hub) = &source.hugging_face {
            let (repo, file, revision) = (hub.repo.clone(), hub.file.clone(), hub.revision.clone());
            Some(Source::Remote(ModelSource::HuggingFace { repo, file, revision }))
        } else if let Some(http) = &source.http {
            Some(Source::Remote(ModelSource::Http { url: http.url.clone() }))
        } else {
            source.persistent_volume_claim.as_ref().map(|claim| Source::Volume {
                claim_name: claim.claim_name.clone(),
                path: claim.path.clone(),
            })
        }
    }

    /// The source as a pod reads it: a volume is mounted at [`VOLUME`] there.
    pub fn in_pod(&self) -> ModelSource {
        match self {
            Source::Remote(source) => source.clone(),
            Source::Volume { path, .. } => ModelSource::File {
                path: std::path::Path::new(VOLUME).join(path),
            },
        }
    }

    /// The claim that pods have to mount, if any.
    pub fn claim(&self) -> Option<&str> {
        match self {
            Source::Remote(_) => None,
            Source::Volume { claim_name, .. } => Some(claim_name),
        }
    }

    /// The source as devices of the market are told.
    pub fn for_market(&self) -> types::Source {
        match self {
            Source::Remote(ModelSource::HuggingFace { repo, file, revision }) => types::Source::HuggingFace {
                repo: repo.clone(),
                file: file.clone(),
                revision: Some(revision.clone()),
            },
            Source::Remote(ModelSource::Http { url }) => types::Source::Http { url: url.clone() },
            Source::Remote(ModelSource::File { path }) => types::Source::File {
                path: path.display().to_string(),
            },
            Source::Volume { claim_name, path } => types::Source::PersistentVolumeClaim {
                claim_name: claim_name.clone(),
                path: path.clone(),
            },
        }
    }
}
