//! Models on volumes: a short Job in the Ring's namespace reads the prefix, and its output is the profile.

use std::sync::Arc;

use k8s_openapi::api::{batch::v1::Job, core::v1::Pod};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, LogParams, PostParams},
};
use kvasir_api::conditions::reasons;
use kvasir_plan::ModelProfile;

use crate::{apply, build, context::Context, dereference::is_owned, labels, names, status::pods, validate::Spec};

/// Bytes of a Job's output at most: a profile has some hundred for each layer.
const LONGEST: i64 = 1 << 20;

/// Why a model on a volume isn't known.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// it takes its time
    #[error("Job {job} reads the model's prefix off its volume{}", why(.waits))]
    Reading {
        /// the Job
        job: String,
        /// what its pod waits for; empty when it works
        waits: String,
    },
    /// there is no such claim
    #[error("the model's volume is not there: make the PersistentVolumeClaim {claim} ({message})")]
    NoClaim {
        /// the claim
        claim: String,
        /// the scheduler's words
        message: String,
    },
    /// it could not
    #[error("Job {job} can't read the model off its volume: {message}")]
    Failed {
        /// the Job
        job: String,
        /// what it said last
        message: String,
    },
    /// its output is no profile
    #[error("Job {job} ended without a profile: is the image of the stages that of this operator?")]
    NoProfile {
        /// the Job
        job: String,
    },
    /// an object of that name isn't ours
    #[error("Job {job} is there and not this Ring's: rename one of them")]
    NameInUse {
        /// the Job
        job: String,
    },
    /// the Job can't be built
    #[error(transparent)]
    Build(#[from] build::Error),
    /// the API server failed
    #[error("can't {verb} Job {job}: {}", apply::text(.source))]
    Kube {
        /// `read`, `make` or `delete`
        verb: &'static str,
        /// the Job
        job: String,
        /// why
        source: Box<kube::Error>,
    },
}

impl Error {
    /// Stable `PascalCase` word for metrics, events and conditions.
    pub fn reason(&self) -> &'static str {
        match self {
            Error::Reading { .. } => reasons::PENDING,
            Error::NoClaim { .. } | Error::Failed { .. } => reasons::SOURCE_UNREACHABLE,
            Error::NoProfile { .. } => reasons::UNSUPPORTED_FORMAT,
            Error::NameInUse { .. } => reasons::NAME_IN_USE,
            Error::Build(error) => error.reason(),
            Error::Kube { source, .. } => apply::forbidden_or(source, "ClusterUnreachable"),
        }
    }

    /// Whether the answer is still on its way.
    pub fn is_pending(&self) -> bool {
        matches!(self, Error::Reading { .. })
    }
}

fn why(waits: &str) -> String {
    if waits.is_empty() {
        String::new()
    } else {
        format!(": {waits}")
    }
}

/// The profile of the model on the Ring's volume: from memory, or from the Job, which is started if there is none.
///
/// # Errors
/// [`Error::Reading`] until the Job has ended; what failed.
pub async fn profile(context: &Context, spec: &Spec, claim: &str) -> Result<Arc<ModelProfile>, Error> {
    if let Some(profile) = context.models.on_volume(&spec.namespace, &spec.source) {
        return Ok(profile);
    }
    let jobs: Api<Job> = Api::namespaced(context.client.clone(), &spec.namespace);
    let name = names::reader(&spec.name);
    let failed = |verb| {
        let job = name.clone();
        move |source| Error::Kube {
            verb,
            job,
            source: Box::new(source),
        }
    };
    let Some(job) = jobs.get_opt(&name).await.map_err(failed("read"))? else {
        let job = build::reader(spec, claim)?;
        let params = PostParams {
            field_manager: Some(labels::MANAGER.to_owned()),
            ..PostParams::default()
        };
        context.metrics.wrote("Job", "create");
        jobs.create(&params, &job).await.map_err(failed("make"))?;
        return Err(Error::Reading {
            job: name,
            waits: String::new(),
        });
    };
    if !is_owned(job.owner_references(), &spec.uid) {
        return Err(Error::NameInUse { job: name });
    }
    let all: Api<Pod> = Api::namespaced(context.client.clone(), &spec.namespace);
    let of_job = ListParams::default().labels(&format!("batch.kubernetes.io/job-name={name}"));
    let found = all.list(&of_job).await.map_err(failed("read"))?.items;
    let ended = |type_: &str| {
        let conditions = job.status.as_ref().and_then(|status| status.conditions.as_ref());
        let mut conditions = conditions.into_iter().flatten();
        conditions.any(|condition| condition.type_ == type_ && condition.status == "True")
    };
    if ended("Failed") {
        return Err(Error::Failed {
            message: last_words(&job, &found),
            job: name,
        });
    }
    if !ended("Complete") {
        let trouble = found
            .iter()
            .map(pods::trouble)
            .find(|trouble| !trouble.message.is_empty());
        let waits = trouble.map(|trouble| trouble.message).unwrap_or_default();
        return Err(if lacks_claim(&waits, claim) {
            Error::NoClaim {
                claim: claim.to_owned(),
                message: waits,
            }
        } else {
            Error::Reading { job: name, waits }
        });
    }
    let succeeded = |pod: &&Pod| pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Succeeded");
    let mut profile = None;
    if let Some(pod) = found.iter().find(succeeded) {
        let output = LogParams {
            limit_bytes: Some(LONGEST),
            ..LogParams::default()
        };
        let text = all.logs(&pod.name_any(), &output).await.map_err(failed("read"))?;
        profile = read(&text);
    }
    // done with it, or none the better for keeping it
    context.metrics.wrote("Job", "delete");
    match jobs.delete(&name, &DeleteParams::background()).await {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if status.code == 404 => {}
        Err(source) => return Err(failed("delete")(source)),
    }
    let profile = Arc::new(profile.ok_or(Error::NoProfile { job: name })?);
    context.models.keep(&spec.namespace, &spec.source, profile.clone());
    Ok(profile)
}

/// The profile among the lines of a log.
fn read(log: &str) -> Option<ModelProfile> {
    log.lines()
        .rev()
        .find_map(|line| serde_json::from_str(line.trim()).ok())
}

/// Whether the scheduler says that the claim isn't there.
fn lacks_claim(said: &str, claim: &str) -> bool {
    said.contains(&format!("persistentvolumeclaim \"{claim}\" not found"))
}

fn last_words(job: &Job, found: &[Pod]) -> String {
    let said = found
        .iter()
        .map(pods::trouble)
        .find(|trouble| !trouble.message.is_empty());
    let conditions = job.status.as_ref().and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    let of_job = || {
        let failed = conditions.find(|condition| condition.type_ == "Failed")?;
        failed.message.clone()
    };
    let said = said.map(|trouble| trouble.message).or_else(of_job);
    said.unwrap_or_else(|| "its pods are gone".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_is_found_among_other_lines() {
        let profile = ModelProfile {
            architecture: "llama".into(),
            identity: "ab".repeat(32),
            size: 1,
            file_type: "F16".into(),
            prefix_bytes: vec![1],
            embedding_length: 1,
            vocabulary: 1,
            heads: 1,
            feed_forward: 1,
            layers: Vec::new(),
            mtp_layers: 0,
            mtp_bytes: 0,
            every_bytes: 0,
            embedding_bytes: 0,
            head_bytes: 0,
            tied: true,
            last_start: 0,
            refused_last_starts: Vec::new(),
            padding: kvasir_plan::profile::Padding::default(),
            indivisible: None,
        };
        let line = serde_json::to_string(&profile).unwrap();
        assert_eq!(read(&format!("INFO reading\n{line}\nINFO done\n")), Some(profile));
        assert_eq!(read("{}\nERROR\n"), None);
    }
}
