//! What pods say: whether a stage is ready, and why it isn't, in the words of the kubelet, the scheduler and the stage.

use std::time::Duration;

use k8s_openapi::{
    api::core::v1::{ContainerState, ContainerStateTerminated, ContainerStatus, Pod},
    jiff::Timestamp,
};
use kube::ResourceExt;
use kvasir_plan::LayerRange;
use serde_json::Value;

use crate::{build::FETCH, labels};

/// Bytes of a container's own words that are quoted.
const QUOTED: usize = 500;
/// Restarts after which a stage that isn't ready counts as failing.
const RESTARTS: i32 = 3;

/// Reasons of containers that wait for nothing but patience.
const PATIENT: [&str; 2] = ["PodInitializing", "ContainerCreating"];

/// A window of one of the rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// which ring
    pub ordinal: u32,
    /// which window
    pub layers: LayerRange,
}

/// Why a stage isn't ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// `PascalCase`
    pub reason: String,
    /// what the cluster or the container says; empty when there is nothing to say
    pub message: String,
    /// waiting will not help, or has not helped again and again
    pub failing: bool,
}

/// The pods of a window that are not on their way out, the ready one first, then the newest.
pub fn of<'a>(ring: &str, slot: Slot, pods: &'a [Pod]) -> Vec<&'a Pod> {
    let wanted = labels::of_window(ring, slot.ordinal, slot.layers);
    let mine = |pod: &&Pod| {
        let carried = pod.labels();
        let over = ["Succeeded", "Failed"];
        pod.metadata.deletion_timestamp.is_none()
            && wanted.iter().all(|(key, value)| carried.get(key) == Some(value))
            && !phase(pod).is_some_and(|phase| over.contains(&phase))
    };
    let mut pods: Vec<&Pod> = pods.iter().filter(mine).collect();
    pods.sort_by_key(|pod| {
        let made = pod.metadata.creation_timestamp.as_ref().map(|made| made.0);
        (!is_ready(pod), std::cmp::Reverse(made))
    });
    pods
}

/// Whether the kubelet finds the pod ready.
pub fn is_ready(pod: &Pod) -> bool {
    condition(pod, "Ready").is_some_and(|(status, ..)| status == "True")
}

/// The scheduler's message and when it came to it, for a pod that has no node.
pub fn unschedulable(pod: &Pod) -> Option<(String, Option<Timestamp>)> {
    let status = pod.status.as_ref()?;
    let conditions = status.conditions.as_ref()?;
    let found = conditions.iter().find(|condition| condition.type_ == "PodScheduled")?;
    let waits = found.status == "False" && found.reason.as_deref() == Some("Unschedulable");
    waits.then(|| {
        let message = found.message.clone().unwrap_or_default();
        // the first attempt, not the last: the scheduler tries again and again
        let since = pod.metadata.creation_timestamp.as_ref().map(|made| made.0);
        (message, since)
    })
}

/// Restarts of all containers of a pod.
pub fn restarts(pod: &Pod) -> i32 {
    containers(pod).map(|container| container.restart_count).sum()
}

/// Why a pod that isn't ready isn't.
pub fn trouble(pod: &Pod) -> Trouble {
    if let Some((message, _)) = unschedulable(pod) {
        return Trouble {
            reason: "Unschedulable".to_owned(),
            message,
            failing: false,
        };
    }
    if let Some(stuck) = containers(pod).find_map(stuck) {
        return stuck;
    }
    let initialising = |container: &ContainerStatus| {
        container.name == FETCH && state(container).is_some_and(|state| state.running.is_some())
    };
    let reason = if containers(pod).any(initialising) {
        "Fetching"
    } else if containers(pod).any(|container| state(container).is_some_and(|state| state.running.is_some())) {
        "Loading"
    } else {
        "Starting"
    };
    Trouble {
        reason: reason.to_owned(),
        message: String::new(),
        failing: false,
    }
}

/// A container that will not start by waiting, or that ended and is started again and again.
fn stuck(container: &ContainerStatus) -> Option<Trouble> {
    let state = state(container)?;
    let last = container.last_state.as_ref().and_then(|last| last.terminated.as_ref());
    if let Some(waiting) = &state.waiting {
        let reason = waiting.reason.as_deref().unwrap_or_default();
        if reason.is_empty() || PATIENT.contains(&reason) {
            return None;
        }
        let said = waiting.message.as_deref().unwrap_or_default();
        return Some(match (reason, last) {
            // the kubelet says how long it waits, the container why it ended
            ("CrashLoopBackOff", Some(ended)) => again(container, ended),
            // the two take turns
            ("ErrImagePull" | "ImagePullBackOff", _) => {
                let why = said.split_once("ErrImagePull: ").map_or(said, |(_, why)| why);
                let image = &container.image;
                failing(
                    "ImagePullBackOff",
                    container,
                    &format!("image {image} can't be pulled: {why}"),
                )
            }
            _ => failing(reason, container, said),
        });
    }
    if let Some(ended) = state.terminated.as_ref().filter(|ended| ended.exit_code != 0) {
        let failing = container.restart_count >= RESTARTS;
        return Some(Trouble {
            failing,
            ..again(container, ended)
        });
    }
    let tries_again = state.running.is_some() && !container.ready && container.restart_count >= RESTARTS;
    last.filter(|_| tries_again).map(|ended| again(container, ended))
}

/// A container that ends again and again has one reason, whatever it does just now.
fn again(container: &ContainerStatus, ended: &ContainerStateTerminated) -> Trouble {
    let reason = match ended.reason.as_deref() {
        Some("OOMKilled") => "OOMKilled",
        _ => "CrashLoopBackOff",
    };
    let message = ended_because(ended.reason.as_deref(), ended.exit_code, ended.message.as_deref());
    failing(reason, container, &message)
}

fn failing(reason: &str, container: &ContainerStatus, message: &str) -> Trouble {
    Trouble {
        reason: reason.to_owned(),
        message: quoted(container, message),
        failing: true,
    }
}

fn ended_because(reason: Option<&str>, exit_code: i32, message: Option<&str>) -> String {
    let said = message.map(last_words).filter(|said| !said.is_empty());
    match (said, reason) {
        (Some(said), Some("OOMKilled")) => format!("out of memory: {said}"),
        (Some(said), _) => said,
        (None, Some("OOMKilled")) => "it took more memory than its limit: raise the pool's memory limit".to_owned(),
        (None, _) => format!("it ended with exit code {exit_code}"),
    }
}

/// What a stage said last: the end of its log, without what changes from run to run.
fn last_words(log: &str) -> String {
    let mut lines = log.lines().map(str::trim).filter(|line| !line.is_empty());
    let Some(line) = lines.next_back() else {
        return String::new();
    };
    if let Ok(Value::Object(fields)) = serde_json::from_str::<Value>(line)
        && let Some(message) = fields.get("fields").and_then(|fields| fields["message"].as_str())
    {
        return message.to_owned();
    }
    // text lines begin with a time
    let said = ["ERROR", "WARN"].iter().find_map(|level| line.split_once(level));
    said.map_or(line, |(_, said)| said.trim_start_matches(':').trim())
        .to_owned()
}

fn quoted(container: &ContainerStatus, message: &str) -> String {
    let short: String = message.chars().take(QUOTED).collect();
    if short.is_empty() {
        format!("container {} does not start", container.name)
    } else {
        format!("container {}: {short}", container.name)
    }
}

fn state(container: &ContainerStatus) -> Option<&ContainerState> {
    container.state.as_ref()
}

fn containers(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    let status = pod.status.as_ref();
    let lists = status.map(|status| [&status.init_container_statuses, &status.container_statuses]);
    lists.into_iter().flatten().flatten().flatten()
}

fn condition<'a>(pod: &'a Pod, type_: &str) -> Option<(&'a str, Option<&'a str>)> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let found = conditions.iter().find(|condition| condition.type_ == type_)?;
    Some((&found.status, found.reason.as_deref()))
}

fn phase(pod: &Pod) -> Option<&str> {
    pod.status.as_ref()?.phase.as_deref()
}

/// Time from one moment to a later one.
pub fn since(then: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(then)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_log_is_quoted_without_times() {
        let text =
            "2026-11-30T12:00:00.1Z  INFO fetching\n2026-11-30T12:00:01.2Z ERROR the file is not there: HTTP 404\n";
        assert_eq!(last_words(text), "the file is not there: HTTP 404");
        let json = r#"{"timestamp":"2026-11-30T12:00:00Z","level":"ERROR","fields":{"message":"no space"}}"#;
        assert_eq!(last_words(json), "no space");
        assert_eq!(last_words("Killed"), "Killed");
        assert_eq!(last_words("\n"), "");
    }
}
