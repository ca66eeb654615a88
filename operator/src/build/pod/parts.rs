//! Volumes, probes and confinement of a stage's pod.

use k8s_openapi::{
    api::core::v1::{
        Capabilities, ConfigMapVolumeSource, EmptyDirVolumeSource, HTTPGetAction, KeyToPath,
        PersistentVolumeClaimVolumeSource, Probe, SecretVolumeSource, SecurityContext, Volume, VolumeMount,
    },
    apimachinery::pkg::util::intstr::IntOrString,
};

use super::super::{Slot, config_map, deployment};
use crate::source;

/// Where the window is.
pub(super) const WINDOW_DIR: &str = "/var/lib/kvasir/window";
/// Where the plan is.
pub(super) const PLAN_DIR: &str = "/etc/kvasir/plan";
/// Where the node's keys are.
pub(super) const KEY_DIR: &str = "/etc/kvasir/key";

const WINDOW: &str = "window";
const PLAN: &str = "plan";
const KEY: &str = "key";
pub(in crate::build) const MODEL: &str = "model";
const SCRATCH: &str = "tmp";

/// Files of Secrets are readable by the group that the pod's files belong to.
const GROUP_READABLE: i32 = 0o440;

pub(super) fn volumes(slot: &Slot<'_>) -> Vec<Volume> {
    let stored = slot.spec.pool(slot.pool).is_some_and(|pool| pool.storage.is_some());
    let named = |name: &str| Volume {
        name: name.to_owned(),
        ..Volume::default()
    };
    let mut items = vec![config_map::PLAN];
    items.extend(config_map::chat_template(slot).map(|_| config_map::CHAT_TEMPLATE));
    let items = items.into_iter().map(|file| KeyToPath {
        key: file.to_owned(),
        path: file.to_owned(),
        ..KeyToPath::default()
    });
    let mut volumes = vec![
        Volume {
            empty_dir: (!stored).then(EmptyDirVolumeSource::default),
            persistent_volume_claim: stored.then(|| claim(&slot.name(), false)),
            ..named(WINDOW)
        },
        Volume {
            config_map: Some(ConfigMapVolumeSource {
                name: slot.name(),
                items: Some(items.collect()),
                ..ConfigMapVolumeSource::default()
            }),
            ..named(PLAN)
        },
        Volume {
            secret: Some(SecretVolumeSource {
                secret_name: Some(slot.name()),
                default_mode: Some(GROUP_READABLE),
                ..SecretVolumeSource::default()
            }),
            ..named(KEY)
        },
        Volume {
            empty_dir: Some(EmptyDirVolumeSource::default()),
            ..named(SCRATCH)
        },
    ];
    volumes.extend(slot.spec.source.claim().map(|name| Volume {
        persistent_volume_claim: Some(claim(name, true)),
        ..named(MODEL)
    }));
    volumes
}

pub(in crate::build) fn claim(name: &str, read_only: bool) -> PersistentVolumeClaimVolumeSource {
    PersistentVolumeClaimVolumeSource {
        claim_name: name.to_owned(),
        read_only: read_only.then_some(true),
    }
}

pub(super) fn mounts_to_fetch(slot: &Slot<'_>) -> Vec<VolumeMount> {
    let model = slot.spec.source.claim().map(|_| mount(MODEL, source::VOLUME, true));
    let mut mounts = vec![mount(WINDOW, WINDOW_PARENT, false), mount(PLAN, PLAN_DIR, true)];
    mounts.push(mount(SCRATCH, "/tmp", false));
    mounts.extend(model);
    mounts
}

/// The volume's root may hold a `lost+found`; the window has a folder of its own in it.
const WINDOW_PARENT: &str = "/var/lib/kvasir";

pub(super) fn mounts_to_run() -> Vec<VolumeMount> {
    vec![
        mount(WINDOW, WINDOW_PARENT, false),
        mount(PLAN, PLAN_DIR, true),
        mount(KEY, KEY_DIR, true),
        mount(SCRATCH, "/tmp", false),
    ]
}

pub(in crate::build) fn mount(name: &str, path: &str, read_only: bool) -> VolumeMount {
    VolumeMount {
        name: name.to_owned(),
        mount_path: path.to_owned(),
        read_only: read_only.then_some(true),
        ..VolumeMount::default()
    }
}

/// Until it succeeds, no other probe is asked: a large window takes minutes to load from a slow disk, half an hour is
/// not waited for longer.
pub(super) fn loaded_at_last() -> Probe {
    Probe {
        period_seconds: Some(2),
        failure_threshold: Some(900),
        ..probe("/readyz", deployment::HEALTH)
    }
}

/// Rank 0 is ready when its API listens, whatever the ring does, so that clients are told what it waits for; the others
/// when their window is loaded.
pub(super) fn ready(first: bool) -> Probe {
    Probe {
        period_seconds: Some(5),
        failure_threshold: Some(3),
        ..if first {
            probe("/healthz", deployment::API)
        } else {
            probe("/readyz", deployment::HEALTH)
        }
    }
}

/// A stage that computes with all cores may answer late.
pub(super) fn alive(first: bool) -> Probe {
    let port = if first { deployment::API } else { deployment::HEALTH };
    Probe {
        period_seconds: Some(20),
        failure_threshold: Some(6),
        ..probe("/healthz", port)
    }
}

fn probe(path: &str, port: &str) -> Probe {
    Probe {
        http_get: Some(HTTPGetAction {
            path: Some(path.to_owned()),
            port: IntOrString::String(port.to_owned()),
            ..HTTPGetAction::default()
        }),
        timeout_seconds: Some(5),
        ..Probe::default()
    }
}

pub(in crate::build) fn confined() -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        read_only_root_filesystem: Some(true),
        capabilities: Some(Capabilities {
            drop: Some(vec!["ALL".to_owned()]),
            ..Capabilities::default()
        }),
        ..SecurityContext::default()
    }
}
