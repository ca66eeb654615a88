//! The pod of a stage: one container fetches its window, the next one runs it.
//!
//! The template holds what this window needs and nothing of the others, so that a new plan replaces only the pods whose
//! window is another one.

mod env;
pub(super) mod parts;

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{
        Container, ContainerPort, EnvVar, PodSecurityContext, PodSpec, PodTemplateSpec, ResourceRequirements,
        SeccompProfile, Toleration,
    },
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::ObjectMeta},
};
use kvasir_api::{ImagePullPolicy, Pool};

use super::{Error, Slot, config_map, deployment};
use crate::{labels, names, validate::Spec};

/// Name of the container that fetches the window.
pub const FETCH: &str = "fetch";
/// Name of the container that runs it.
pub const STAGE: &str = "stage";

/// The images' user.
const USER: i64 = 65_532;
/// Seconds that a pod has to end: answers in progress have 25, then links are closed and the claim is given back.
const GRACE: i64 = 45;
/// Seconds that a stage stays on a node which doesn't answer.
const LOST_NODE: i64 = 10;

pub(super) fn template(slot: &Slot<'_>) -> Result<PodTemplateSpec, Error> {
    let spec = slot.spec;
    let pool = spec.pool(slot.pool);
    let labels = slot.labels();
    let window = window_hash(slot)?;
    let template = PodTemplateSpec {
        metadata: Some(ObjectMeta {
            labels: Some(labels.clone()),
            annotations: Some(BTreeMap::from([(labels::WINDOW.to_owned(), window.clone())])),
            ..ObjectMeta::default()
        }),
        spec: Some(PodSpec {
            init_containers: Some(vec![fetch(slot)?]),
            containers: vec![stage(slot)],
            volumes: Some(parts::volumes(slot)),
            automount_service_account_token: Some(false),
            enable_service_links: Some(false),
            termination_grace_period_seconds: Some(GRACE),
            security_context: Some(security()),
            image_pull_secrets: Some(spec.image_pull_secrets.clone()).filter(|secrets| !secrets.is_empty()),
            node_selector: pool
                .map(|pool| pool.node_selector.clone())
                .filter(|labels| !labels.is_empty()),
            tolerations: Some(tolerations(pool)),
            affinity: pool.and_then(|pool| pool.affinity.clone()),
            topology_spread_constraints: pool
                .map(|pool| pool.topology_spread_constraints.clone())
                .filter(|constraints| !constraints.is_empty()),
            runtime_class_name: pool.and_then(|pool| pool.runtime_class_name.clone()),
            ..PodSpec::default()
        }),
    };
    let mut template = spec.merged(slot.pool, template);
    // what the Deployment finds its pods by, and what makes another pod, is not to be overridden
    let metadata = template.metadata.get_or_insert_default();
    metadata.labels.get_or_insert_default().extend(labels);
    let annotations = metadata.annotations.get_or_insert_default();
    annotations.insert(labels::WINDOW.to_owned(), window);
    Ok(template)
}

/// Hash of all that the window was fetched and loaded for: the ring's dimensions and its own layers.
fn window_hash(slot: &Slot<'_>) -> Result<String, Error> {
    let mut shape = slot.manifest.clone();
    shape.ranks.clear();
    // a hint for faster fetching
    shape.model.prefix_bytes.clear();
    let parts = (shape, slot.layers, config_map::chat_template(slot));
    let text = serde_json::to_vec(&parts).map_err(|source| Error::Json {
        what: "a window",
        source,
    })?;
    Ok(names::digest(&text))
}

fn fetch(slot: &Slot<'_>) -> Result<Container, Error> {
    Ok(Container {
        // one range after the other through a small buffer
        resources: Some(requests([("cpu", "10m"), ("memory", "64Mi")])),
        volume_mounts: Some(parts::mounts_to_fetch(slot)),
        ..container(slot, FETCH, "fetch", env::fetch(slot)?)
    })
}

fn stage(slot: &Slot<'_>) -> Container {
    let port = |name: &str, number| ContainerPort {
        name: Some(name.to_owned()),
        container_port: number,
        protocol: Some("TCP".to_owned()),
        ..ContainerPort::default()
    };
    let mut ports = vec![
        port("edge", deployment::EDGE_PORT),
        port(deployment::HEALTH, deployment::HEALTH_PORT),
    ];
    if slot.is_first() {
        ports.push(port(deployment::API, deployment::API_PORT));
    }
    Container {
        ports: Some(ports),
        resources: Some(resources(slot)),
        volume_mounts: Some(parts::mounts_to_run()),
        startup_probe: Some(parts::loaded_at_last()),
        readiness_probe: Some(parts::ready(slot.is_first())),
        liveness_probe: Some(parts::alive(slot.is_first())),
        ..container(slot, STAGE, "run", env::run(slot))
    }
}

/// When the kubelet pulls the image, in its own words.
pub(super) fn pull_policy(spec: &Spec) -> Option<String> {
    let policy = match spec.image_pull_policy? {
        ImagePullPolicy::Always => "Always",
        ImagePullPolicy::IfNotPresent => "IfNotPresent",
        ImagePullPolicy::Never => "Never",
    };
    Some(policy.to_owned())
}

/// What both containers have in common.
fn container(slot: &Slot<'_>, name: &str, command: &str, env: Vec<EnvVar>) -> Container {
    Container {
        name: name.to_owned(),
        image: Some(slot.spec.image.clone()),
        image_pull_policy: pull_policy(slot.spec),
        command: Some(vec!["kvasir-stage".to_owned(), command.to_owned()]),
        env: Some(env),
        security_context: Some(parts::confined()),
        // the last lines of a log say why it ended, and the Ring's conditions quote them
        termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
        ..Container::default()
    }
}

pub(super) fn security() -> PodSecurityContext {
    PodSecurityContext {
        run_as_non_root: Some(true),
        run_as_user: Some(USER),
        run_as_group: Some(USER),
        fs_group: Some(USER),
        fs_group_change_policy: Some("OnRootMismatch".to_owned()),
        seccomp_profile: Some(SeccompProfile {
            type_: "RuntimeDefault".to_owned(),
            ..SeccompProfile::default()
        }),
        ..PodSecurityContext::default()
    }
}

/// The pool's tolerations, and those that take a stage off a lost node soon; the pool may say how soon itself.
fn tolerations(pool: Option<&Pool>) -> Vec<Toleration> {
    let mut tolerations = pool.map(|pool| pool.tolerations.clone()).unwrap_or_default();
    for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        if tolerations.iter().any(|known| known.key.as_deref() == Some(key)) {
            continue;
        }
        tolerations.push(Toleration {
            key: Some(key.to_owned()),
            operator: Some("Exists".to_owned()),
            effect: Some("NoExecute".to_owned()),
            toleration_seconds: Some(LOST_NODE),
            ..Toleration::default()
        });
    }
    tolerations
}

/// The pool's resources; the memory that the plan found is asked for where the pool says nothing of memory.
fn resources(slot: &Slot<'_>) -> ResourceRequirements {
    let pool = slot.spec.pool(slot.pool);
    let mut resources = pool.and_then(|pool| pool.resources.clone()).unwrap_or_default();
    let named =
        |list: &Option<BTreeMap<String, Quantity>>| list.as_ref().is_some_and(|list| list.contains_key("memory"));
    if !named(&resources.requests) && !named(&resources.limits) {
        let mebibytes = slot.memory.div_ceil(1 << 20);
        let requests = resources.requests.get_or_insert_default();
        requests.insert("memory".to_owned(), Quantity(format!("{mebibytes}Mi")));
    }
    resources
}

fn requests<const N: usize>(pairs: [(&str, &str); N]) -> ResourceRequirements {
    let pairs = pairs
        .into_iter()
        .map(|(key, value)| (key.to_owned(), Quantity(value.to_owned())));
    ResourceRequirements {
        requests: Some(pairs.collect()),
        ..ResourceRequirements::default()
    }
}
