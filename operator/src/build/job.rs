//! The Job that reads a model's prefix off a volume, since the operator can't mount it.

use k8s_openapi::api::{
    batch::v1::{Job, JobSpec},
    core::v1::{Container, EnvVar, PodSpec, PodTemplateSpec, Volume},
};

use super::{
    Error, meta,
    pod::{self, parts},
};
use crate::{labels, names, source, validate::Spec};

/// Name of the container whose output is the profile.
const READER: &str = "reader";
/// Tries of the Job.
const TRIES: i32 = 2;
/// Seconds that it may take: a volume may have to be attached first.
const PATIENCE: i64 = 600;
/// Seconds after which a Job that ended goes, so that a failed one is tried again.
const KEPT: i32 = 300;

/// The Job for a Ring whose model is on the volume `claim`.
///
/// # Errors
/// [`Error::Json`].
pub fn reader(spec: &Spec, claim: &str) -> Result<Job, Error> {
    let source = serde_json::to_string(&spec.source.in_pod()).map_err(|source| Error::Json {
        what: "a source",
        source,
    })?;
    let labels = labels::of_ring(&spec.name, READER);
    let first = spec.ring.pools.first();
    Ok(Job {
        metadata: meta(spec, names::reader(&spec.name), labels.clone()),
        spec: Some(JobSpec {
            backoff_limit: Some(TRIES - 1),
            active_deadline_seconds: Some(PATIENCE),
            ttl_seconds_after_finished: Some(KEPT),
            template: PodTemplateSpec {
                metadata: Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                    labels: Some(labels),
                    ..Default::default()
                }),
                spec: Some(PodSpec {
                    restart_policy: Some("Never".to_owned()),
                    automount_service_account_token: Some(false),
                    enable_service_links: Some(false),
                    security_context: Some(pod::security()),
                    image_pull_secrets: Some(spec.image_pull_secrets.clone()).filter(|secrets| !secrets.is_empty()),
                    tolerations: first
                        .map(|pool| pool.tolerations.clone())
                        .filter(|list| !list.is_empty()),
                    containers: vec![Container {
                        name: READER.to_owned(),
                        image: Some(spec.image.clone()),
                        image_pull_policy: pod::pull_policy(spec),
                        command: Some(vec!["kvasir-stage".to_owned(), "profile".to_owned()]),
                        env: Some(vec![EnvVar {
                            name: "KVASIR_SOURCE".to_owned(),
                            value: Some(source),
                            value_from: None,
                        }]),
                        volume_mounts: Some(vec![parts::mount(parts::MODEL, source::VOLUME, true)]),
                        security_context: Some(parts::confined()),
                        termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
                        ..Container::default()
                    }],
                    volumes: Some(vec![Volume {
                        name: parts::MODEL.to_owned(),
                        persistent_volume_claim: Some(parts::claim(claim, true)),
                        ..Volume::default()
                    }]),
                    ..PodSpec::default()
                }),
            },
            ..JobSpec::default()
        }),
        ..Job::default()
    })
}
