//! Events: conditions that turned, for `kubectl describe`. An event that isn't taken is no failure of anything.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{
    Client, Resource as _,
    runtime::events::{Event, EventType, Recorder, Reporter},
};
use kvasir_api::{Ring, conditions};

use crate::labels;

/// Bytes of an event's note: Kubernetes takes 1024.
const NOTE: usize = 1000;

/// Tells events of Rings.
#[derive(Clone)]
pub struct Events(Recorder);

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Events").finish()
    }
}

impl Events {
    /// Events by the operator in the pod of that name.
    pub fn new(client: Client, pod: &str) -> Events {
        let reporter = Reporter {
            controller: labels::MANAGER.to_owned(),
            instance: Some(pod.to_owned()),
        };
        Events(Recorder::new(client, reporter))
    }

    /// Tells of every condition that turned between `old` and `new`.
    pub async fn turned(&self, ring: &Ring, old: &[Condition], new: &[Condition]) {
        for condition in turned(old, new) {
            let event = Event {
                type_: if is_good(condition) {
                    EventType::Normal
                } else {
                    EventType::Warning
                },
                reason: condition.reason.clone(),
                note: Some(cut(&format!("{}: {}", condition.type_, condition.message)).to_owned()),
                action: condition.type_.clone(),
                secondary: None,
            };
            if let Err(error) = self.0.publish(&event, &ring.object_ref(&())).await {
                tracing::debug!(%error, reason = condition.reason, "the event was not taken");
            }
        }
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
