//! Conditions by the conventions of the API: all types from the first visit on, and a time that moves only when a status
//! turns.

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::Timestamp,
};
use kvasir_api::conditions::{self, reasons};

/// Characters of a message: the schema takes 32,768, and nobody reads as many.
const LONGEST: usize = 2000;

/// What a condition says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saying {
    /// `True`, `False` or `Unknown`
    pub status: &'static str,
    /// one of [`reasons`]
    pub reason: String,
    /// for people
    pub message: String,
}

impl Saying {
    /// It is so.
    pub fn yes(reason: &str, message: impl Into<String>) -> Saying {
        Saying::new("True", reason, message)
    }

    /// It is not so.
    pub fn no(reason: &str, message: impl Into<String>) -> Saying {
        Saying::new("False", reason, message)
    }

    /// Nobody knows.
    pub fn unknown(reason: &str, message: impl Into<String>) -> Saying {
        Saying::new("Unknown", reason, message)
    }

    fn new(status: &'static str, reason: &str, message: impl Into<String>) -> Saying {
        Saying {
            status,
            reason: reason.to_owned(),
            message: message.into().chars().take(LONGEST).collect(),
        }
    }
}

/// The conditions of a Ring while they are written down.
#[derive(Clone, Debug)]
pub struct Conditions {
    list: Vec<Condition>,
    generation: Option<i64>,
    now: Timestamp,
}

impl Conditions {
    /// The conditions of the last visit; those that are missing are unknown.
    pub fn of(old: &[Condition], generation: Option<i64>, now: Timestamp) -> Conditions {
        let pending = |type_: &str| Condition {
            type_: type_.to_owned(),
            status: "Unknown".to_owned(),
            reason: reasons::PENDING.to_owned(),
            message: "not looked at yet".to_owned(),
            observed_generation: generation,
            last_transition_time: Time(now),
        };
        let of = |type_: &&str| {
            let known = old.iter().find(|condition| condition.type_ == **type_).cloned();
            known.unwrap_or_else(|| pending(type_))
        };
        Conditions {
            list: conditions::ALL.iter().map(of).collect(),
            generation,
            now,
        }
    }

    /// Writes one down.
    pub fn say(&mut self, type_: &str, saying: Saying) {
        let Some(condition) = self.list.iter_mut().find(|condition| condition.type_ == type_) else {
            return;
        };
        if condition.status != saying.status {
            condition.last_transition_time = Time(self.now);
        }
        saying.status.clone_into(&mut condition.status);
        condition.reason = saying.reason;
        condition.message = saying.message;
        condition.observed_generation = self.generation;
    }

    /// One of them as it is written down now.
    pub fn get(&self, type_: &str) -> Option<&Condition> {
        self.list.iter().find(|condition| condition.type_ == type_)
    }

    /// Whether one has that status.
    pub fn is(&self, type_: &str, status: &str) -> bool {
        self.get(type_).is_some_and(|condition| condition.status == status)
    }

    /// All of them, in the order in which they are reached.
    pub fn list(self) -> Vec<Condition> {
        self.list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_types_are_there_from_the_first_visit_on() {
        let list = Conditions::of(&[], Some(1), Timestamp::UNIX_EPOCH).list();
        let types: Vec<&str> = list.iter().map(|condition| condition.type_.as_str()).collect();
        assert_eq!(types, conditions::ALL);
        assert!(
            list.iter()
                .all(|condition| condition.status == "Unknown" && condition.reason == "Pending")
        );
    }

    #[test]
    fn the_time_moves_when_the_status_turns_and_only_then() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let mut first = Conditions::of(&[], Some(1), at(1));
        first.say(conditions::READY, Saying::no("AwaitingStages", "a"));
        let mut second = Conditions::of(&first.list(), Some(2), at(2));
        second.say(conditions::READY, Saying::no("Forming", "b"));
        let ready = second.get(conditions::READY).unwrap();
        assert_eq!(ready.last_transition_time.0, at(1));
        assert_eq!((ready.reason.as_str(), ready.observed_generation), ("Forming", Some(2)));
        let mut third = Conditions::of(&second.list(), Some(2), at(3));
        third.say(conditions::READY, Saying::yes("LapCompleted", "c"));
        assert_eq!(third.get(conditions::READY).unwrap().last_transition_time.0, at(3));
    }
}
