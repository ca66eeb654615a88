//! Events: conditions that turned, for `kubectl describe`. An event that isn't taken is no failure of anything.
//!
//! The note of an event can't be changed, by the API's own rule: what is told again in the same words is counted, and other
//! words are another event.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use k8s_openapi::{
    api::events::v1,
    apimachinery::pkg::apis::meta::v1::{Condition, MicroTime, ObjectMeta},
    jiff::Timestamp,
};
use kube::{
    Api, Client, Resource as _, ResourceExt,
    api::{Patch, PatchParams, PostParams},
};
use kvasir_api::{Ring, conditions};
use kvasir_process::chain;
use serde_json::json;

use crate::{labels, status::pods::since};

/// Bytes of an event's note: Kubernetes takes 1024.
const NOTE: usize = 1000;
/// What is told again later than this is another event.
const SERIES: Duration = Duration::from_secs(360);

/// One thing to tell of a Ring.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Note {
    /// whether somebody has to do something
    pub is_warning: bool,
    /// `PascalCase`
    pub reason: String,
    /// what was done, or which condition turned: `PascalCase`
    pub action: String,
    /// for people
    pub text: String,
}

/// What was told of which Ring, by its uid.
type Key = (String, Note);

/// An event that is there.
#[derive(Clone, Debug)]
struct Told {
    name: String,
    /// how often
    count: i32,
    last: Timestamp,
}

/// Tells events of Rings.
pub struct Events {
    client: Client,
    pod: String,
    told: Mutex<HashMap<Key, Told>>,
}

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Events").field("pod", &self.pod).finish_non_exhaustive()
    }
}

impl Events {
    /// Events by the operator in the pod of that name.
    pub fn new(client: Client, pod: &str) -> Events {
        Events {
            client,
            pod: pod.to_owned(),
            told: Mutex::default(),
        }
    }

    /// Tells of every condition that turned between `old` and `new`.
    pub async fn turned(&self, ring: &Ring, old: &[Condition], new: &[Condition]) {
        for condition in turned(old, new) {
            let note = Note {
                is_warning: !is_good(condition),
                reason: condition.reason.clone(),
                action: condition.type_.clone(),
                text: format!("{}: {}", condition.type_, condition.message),
            };
            self.tell(ring, note).await;
        }
    }

    /// Tells one thing of a Ring.
    pub async fn tell(&self, ring: &Ring, note: Note) {
        let reason = note.reason.clone();
        if let Err(error) = self.publish(ring, note).await {
            tracing::debug!(error = chain(&error), reason, "the event was not taken");
        }
    }

    async fn publish(&self, ring: &Ring, note: Note) -> Result<(), kube::Error> {
        let now = Timestamp::now();
        let api: Api<v1::Event> = Api::namespaced(self.client.clone(), &ring.namespace().unwrap_or_default());
        let key = (ring.uid().unwrap_or_default(), note);
        if let Some(known) = self.known(&key, now) {
            let count = known.count + 1;
            let series = json!({"series": {"count": count, "lastObservedTime": MicroTime(now)}});
            let patch = Patch::Merge(&series);
            match api.patch(&known.name, &PatchParams::default(), &patch).await {
                Ok(_) => {
                    let last = now;
                    self.lock().insert(key, Told { count, last, ..known });
                    return Ok(());
                }
                // it has had its time
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                Err(error) => return Err(error),
            }
        }
        let event = event(ring, &key.1, &self.pod, now);
        api.create(&PostParams::default(), &event).await?;
        let told = Told {
            name: event.name_any(),
            count: 1,
            last: now,
        };
        self.lock().insert(key, told);
        Ok(())
    }

    /// The event that told the same a short while ago; older ones are forgotten.
    fn known(&self, key: &Key, now: Timestamp) -> Option<Told> {
        let mut told = self.lock();
        told.retain(|_, told| since(told.last, now) < SERIES);
        told.get(key).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Told>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn event(ring: &Ring, note: &Note, pod: &str, now: Timestamp) -> v1::Event {
    v1::Event {
        metadata: ObjectMeta {
            name: Some(format!("{}.{:x}", ring.name_any(), now.as_nanosecond())),
            namespace: ring.namespace(),
            ..ObjectMeta::default()
        },
        type_: Some(if note.is_warning { "Warning" } else { "Normal" }.to_owned()),
        reason: Some(note.reason.clone()),
        action: Some(note.action.clone()),
        note: Some(cut(&note.text).to_owned()),
        regarding: Some(ring.object_ref(&())),
        event_time: Some(MicroTime(now)),
        reporting_controller: Some(labels::MANAGER.to_owned()),
        reporting_instance: Some(pod.to_owned()),
        ..v1::Event::default()
    }
}

/// Conditions whose status or, while they are bad, whose reason is another one than before. What is not known yet is no
/// news.
fn turned<'a>(old: &[Condition], new: &'a [Condition]) -> Vec<&'a Condition> {
    let turned = |condition: &&Condition| {
        let before = old.iter().find(|before| before.type_ == condition.type_);
        let news = condition.status != "Unknown"
            && before.is_none_or(|before| {
                before.status != condition.status || (!is_good(condition) && before.reason != condition.reason)
            });
        // `Degraded` begins as False, and everything starts by rolling out
        let expected = is_good(condition)
            && [conditions::DEGRADED, conditions::PROGRESSING].contains(&condition.type_.as_str())
            && before.is_none_or(|before| before.status == "Unknown");
        news && !expected
    };
    new.iter().filter(turned).collect()
}

fn is_good(condition: &Condition) -> bool {
    let wanted = if condition.type_ == conditions::DEGRADED {
        "False"
    } else {
        "True"
    };
    condition.status == wanted
}

fn cut(text: &str) -> &str {
    let end = text
        .char_indices()
        .map(|(at, _)| at)
        .take_while(|at| *at <= NOTE)
        .last();
    if text.len() <= NOTE {
        text
    } else {
        &text[..end.unwrap_or(0)]
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};

    use super::*;

    fn condition(type_: &str, status: &str, reason: &str) -> Condition {
        Condition {
            type_: type_.into(),
            status: status.into(),
            reason: reason.into(),
            message: "m".into(),
            observed_generation: None,
            last_transition_time: Time(Timestamp::UNIX_EPOCH),
        }
    }

    #[test]
    fn only_what_turned_is_told() {
        let ready = |status: &str, reason: &str| vec![condition("Ready", status, reason)];
        let told = |old: &[Condition], new: &[Condition]| turned(old, new).len();
        assert_eq!(told(&ready("Unknown", "Pending"), &ready("False", "AwaitingStages")), 1);
        assert_eq!(
            told(&ready("False", "AwaitingStages"), &ready("False", "StageFailed")),
            1
        );
        assert_eq!(told(&ready("False", "StageFailed"), &ready("False", "StageFailed")), 0);
        assert_eq!(told(&ready("True", "LapCompleted"), &ready("True", "LapCompleted")), 0);
        assert_eq!(told(&[], &ready("Unknown", "Pending")), 0);
        let degraded = |status: &str| vec![condition("Degraded", status, "AsExpected")];
        assert_eq!(told(&degraded("Unknown"), &degraded("False")), 0);
        assert_eq!(told(&degraded("True"), &degraded("False")), 1, "it is over");
    }

    #[test]
    fn long_notes_are_cut_between_characters() {
        let text = "ä".repeat(NOTE);
        assert!(cut(&text).len() <= NOTE);
        assert_eq!(cut("short"), "short");
    }
}
