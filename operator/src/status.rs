//! Fifth step: says what is. Pure; the same observations give the same status, which is then not written again.

pub mod conditions;
pub mod pods;
pub mod stages;

use k8s_openapi::jiff::Timestamp;
use kvasir_api::{
    ModelStatus, RingStatus,
    conditions::{ACCEPTED, COVERED, DEGRADED, MODEL_RESOLVED, PROGRESSING, READY, SCHEDULED, reasons},
};
use kvasir_plan::{LayerRange, ModelProfile};

use crate::{
    apply::Refused,
    build::{Applied, Resources},
    dereference::Live,
    labels,
    market::View,
    switch::Switch,
    validate::Validated,
};
use conditions::{Conditions, Saying};
use stages::Stage;

/// What a visit saw.
#[derive(Debug)]
pub struct Observed<'a> {
    /// status of the last visit
    pub old: &'a RingStatus,
    /// generation of the spec
    pub generation: Option<i64>,
    /// the time
    pub now: Timestamp,
    /// the Ring and its plan
    pub validated: &'a Validated,
    /// the children as they were when the visit began
    pub live: &'a Live,
    /// the rings as their market sees them, by ordinal
    pub views: &'a [View],
    /// whether the plan has taken the place of the one before
    pub switch: &'a Switch,
    /// children that the API server would not take
    pub refused: &'a [Refused],
    /// what the served definition lacks
    pub definition: Option<&'a str>,
}

/// The first status: every condition is unknown. None when there is one already.
pub fn first(old: &RingStatus, generation: Option<i64>, now: Timestamp) -> Option<RingStatus> {
    let conditions = Conditions::of(&old.conditions, generation, now).list();
    (conditions.len() != old.conditions.len()).then(|| RingStatus {
        conditions,
        ..old.clone()
    })
}

/// The status of a Ring whose model is still being read.
pub fn resolving(old: &RingStatus, generation: Option<i64>, now: Timestamp, message: &str) -> RingStatus {
    let mut conditions = Conditions::of(&old.conditions, generation, now);
    conditions.say(MODEL_RESOLVED, Saying::unknown(reasons::PENDING, message));
    unhindered(&mut conditions);
    RingStatus {
        conditions: conditions.list(),
        ..old.clone()
    }
}

/// The status of a Ring whose model is known and can't be planned as the spec asks: `reason` is one of `Accepted`'s.
pub fn unplanned(
    old: &RingStatus,
    generation: Option<i64>,
    now: Timestamp,
    profile: &ModelProfile,
    reason: &str,
    message: &str,
) -> RingStatus {
    let stopped = stopped(old, generation, now, ACCEPTED, reason, message);
    let mut conditions = Conditions::of(&stopped.conditions, generation, now);
    conditions.say(MODEL_RESOLVED, resolved(profile));
    unhindered(&mut conditions);
    RingStatus {
        conditions: conditions.list(),
        model: Some(model(profile)),
        ..stopped
    }
}

/// The status of a Ring for which the operator can't do its work: `Degraded` says why, and `Ready` unless the Ring is. Which
/// spec it was doesn't matter.
pub fn hindered(old: &RingStatus, generation: Option<i64>, now: Timestamp, reason: &str, message: &str) -> RingStatus {
    let mut conditions = Conditions::of(&old.conditions, generation, now);
    conditions.say(DEGRADED, Saying::yes(reason, message));
    if !conditions.is(READY, "True") {
        conditions.say(READY, Saying::no(reason, message));
        conditions.say(PROGRESSING, Saying::no(reason, message));
    }
    RingStatus {
        conditions: conditions.list(),
        ..old.clone()
    }
}

/// What hindered the operator doesn't any more: it came further in this visit.
fn unhindered(conditions: &mut Conditions) {
    let hindered = conditions.get(DEGRADED).is_some_and(|degraded| {
        let hindrances = [reasons::OPERATOR_FORBIDDEN, reasons::MALFORMED_KEY];
        degraded.status == "True" && hindrances.contains(&degraded.reason.as_str())
    });
    if hindered {
        conditions.say(DEGRADED, as_expected());
    }
}

/// The status of a Ring that can't be served as it is: `type_` says why. What serves already goes on.
pub fn stopped(
    old: &RingStatus,
    generation: Option<i64>,
    now: Timestamp,
    type_: &str,
    reason: &str,
    message: &str,
) -> RingStatus {
    let mut conditions = Conditions::of(&old.conditions, generation, now);
    conditions.say(type_, Saying::no(reason, message));
    if type_ == MODEL_RESOLVED {
        unhindered(&mut conditions);
    }
    if type_ == MODEL_RESOLVED && !conditions.is(ACCEPTED, "True") {
        conditions.say(
            ACCEPTED,
            Saying::unknown(reasons::PENDING, "the model is not known yet"),
        );
    }
    if !conditions.is(READY, "True") {
        conditions.say(READY, Saying::no(reason, message));
        conditions.say(PROGRESSING, Saying::no(reason, message));
    }
    RingStatus {
        observed_generation: generation,
        conditions: conditions.list(),
        ..old.clone()
    }
}

/// The status of a Ring whose children were applied.
pub fn status(observed: &Observed<'_>, _applied: &Resources<Applied>) -> RingStatus {
    let validated = observed.validated;
    let spec = &validated.spec;
    let stages = stages::stages(validated, observed.views, observed.live, &observed.old.rings);
    let all: Vec<&Stage> = stages.iter().flatten().collect();
    let ready_stages = all.iter().filter(|stage| stage.told.ready).count() as i32;
    let layers = validated.profile.layer_count();
    let covered = covered(layers, observed);
    let holds = matches!(observed.switch, Switch::Hold { .. });
    let rings = stages::instances(&stages, observed.views, &observed.old.rings, holds);
    let ready_rings = rings.iter().filter(|ring| ring.ready).count();
    let conditions = say(observed, &stages, ready_rings);
    RingStatus {
        observed_generation: observed.generation,
        conditions: conditions.list(),
        operator: observed.old.operator.clone(),
        replicas: Some(rings.len() as i32),
        ready_rings: Some(format!("{ready_rings}/{}", rings.len())),
        ready_replicas: Some(ready_rings as i32),
        selector: Some(labels::selector(&labels::of_rank_0(&spec.name, None))),
        plan_hash: Some(validated.manifest.plan_hash()),
        endpoint: Some(format!(
            "http://{}.{}.svc:{}/v1",
            spec.name, spec.namespace, spec.ring.endpoint.port
        )),
        layers: Some(layers as i32),
        covered_layers: Some(covered as i32),
        covered: Some(format!("{covered}/{layers}")),
        stage_count: Some(all.len() as i32),
        ready_stages: Some(ready_stages),
        stages: Some(format!("{ready_stages}/{}", all.len())),
        model: Some(model(&validated.profile)),
        rings,
    }
}

fn say(observed: &Observed<'_>, stages: &[Vec<Stage>], ready_rings: usize) -> Conditions {
    let validated = observed.validated;
    let mut conditions = Conditions::of(&observed.old.conditions, observed.generation, observed.now);
    let ranks = &validated.manifest.ranks;
    let open = ranks.iter().filter(|rank| rank.placement.is_none()).count();
    let planned = format!("planned as {} windows, {open} of them open", ranks.len());
    conditions.say(ACCEPTED, Saying::yes(reasons::ACCEPTED, planned));
    conditions.say(MODEL_RESOLVED, resolved(&validated.profile));

    let asleep = if validated.spec.ring.suspend {
        Some((reasons::SUSPENDED, "spec.suspend is set"))
    } else if validated.spec.replicas() == 0 {
        Some((reasons::SCALED_TO_ZERO, "spec.replicas is 0"))
    } else {
        None
    };
    conditions.say(DEGRADED, degraded(observed, stages));
    if let Some((reason, message)) = asleep {
        for type_ in [SCHEDULED, PROGRESSING] {
            conditions.say(type_, Saying::unknown(reason, message));
        }
        for type_ in [COVERED, READY] {
            conditions.say(type_, Saying::no(reason, message));
        }
        return conditions;
    }
    conditions.say(SCHEDULED, scheduled(observed, stages));
    if let Some(saying) = cover(observed) {
        conditions.say(COVERED, saying);
    }
    let saying = ready(observed, stages, ready_rings, &conditions);
    conditions.say(READY, counted(saying, ready_rings, observed.views.len()));
    let saying = progressing(observed, &conditions);
    conditions.say(PROGRESSING, saying);
    conditions
}

fn resolved(profile: &ModelProfile) -> Saying {
    let message = format!("{}, {} layers", profile.architecture, profile.layer_count());
    Saying::yes(reasons::RESOLVED, message)
}

fn as_expected() -> Saying {
    Saying::no(reasons::AS_EXPECTED, "nothing is wrong")
}

fn scheduled(observed: &Observed<'_>, stages: &[Vec<Stage>]) -> Saying {
    let homeless = |stage: &Stage| {
        let (message, since) = stage.unscheduled.clone()?;
        let waited = since.map(|since| pods::since(since, observed.now)).unwrap_or_default();
        Some((stage.name(), message, waited))
    };
    let mut homeless: Vec<_> = stages.iter().flatten().filter_map(homeless).collect();
    homeless.sort_by_key(|(.., waited)| std::cmp::Reverse(*waited));
    let Some((_, _, longest)) = homeless.first() else {
        let unmade = unmade(observed, stages);
        return unmade.unwrap_or_else(|| Saying::yes(reasons::ALL_SCHEDULED, "every pod has a node"));
    };
    let patience = observed.validated.spec.ring.progress_deadline_seconds;
    let is_late = longest.as_secs() >= u64::from(patience.max(0).unsigned_abs());
    let texts: Vec<String> = homeless
        .into_iter()
        .map(|(name, message, _)| format!("the {name} has no node: {message}"))
        .collect();
    let message = texts.join("; ");
    if is_late {
        Saying::no(reasons::INSUFFICIENT_CAPACITY, message)
    } else {
        Saying::unknown(reasons::INSUFFICIENT_CAPACITY, message)
    }
}

/// What is said while pods of the plan don't exist; none when all do.
fn unmade(observed: &Observed<'_>, stages: &[Vec<Stage>]) -> Option<Saying> {
    let mut ours = stages.iter().flatten().filter(|stage| stage.is_ours());
    let stage = ours.find(|stage| stage.told.pod_name.is_none())?;
    if let Some(refused) = missing(observed) {
        return Some(Saying::unknown(refused.reason, refused.message.clone()));
    }
    let trouble = stage.trouble.as_ref().filter(|trouble| !trouble.message.is_empty());
    let message = trouble.map_or_else(
        || format!("the {} has no pod yet", stage.name()),
        |trouble| format!("the {} has no pod: {}", stage.name(), trouble.message),
    );
    Some(Saying::unknown(reasons::AWAITING_STAGES, message))
}

/// A child that was refused and isn't there in an earlier form either: the Ring can't go on without.
fn missing<'a>(observed: &Observed<'a>) -> Option<&'a Refused> {
    observed.refused.iter().find(|refused| refused.missing)
}

/// Layers that are covered in the ring that has fewest. While a market says nothing, what it said last.
fn covered(layers: u32, observed: &Observed<'_>) -> u32 {
    let before = observed.old.covered_layers.unwrap_or(0).max(0).unsigned_abs();
    let covered = |view: &View| match view {
        View::Seen(status) => layers.saturating_sub(status.uncovered.iter().map(|gap| gap.len()).sum()),
        View::Unreachable(_) => before,
        View::Absent | View::Refused { .. } | View::Unasked => 0,
    };
    observed.views.iter().map(covered).min().unwrap_or(0)
}

/// What the markets say of cover; none where they say nothing, and what was true may still be.
fn cover(observed: &Observed<'_>) -> Option<Saying> {
    let validated = observed.validated;
    let mut gaps: Vec<(usize, LayerRange)> = Vec::new();
    for (ordinal, view) in observed.views.iter().enumerate() {
        match view {
            View::Seen(status) => gaps.extend(status.uncovered.iter().map(|gap| (ordinal, *gap))),
            View::Absent => gaps.push((
                ordinal,
                LayerRange {
                    start: 0,
                    end: validated.profile.layer_count(),
                },
            )),
            View::Unreachable(_) | View::Refused { .. } | View::Unasked => return None,
        }
    }
    if gaps.is_empty() {
        return Some(Saying::yes(
            reasons::ALL_COVERED,
            "every layer is held by a ready stage",
        ));
    }
    let texts: Vec<String> = gaps
        .iter()
        .map(|(ordinal, gap)| format!("layers {gap} of ring {ordinal}"))
        .collect();
    let overlaps = |a: LayerRange, b: LayerRange| a.start < b.end && b.start < a.end;
    let ours = validated
        .cluster_ranks()
        .any(|(_, rank)| gaps.iter().any(|(_, gap)| overlaps(*gap, rank.layers)));
    Some(if ours {
        Saying::no(reasons::AWAITING_STAGES, format!("not held yet: {}", texts.join(", ")))
    } else {
        Saying::no(
            reasons::AWAITING_CLAIMS,
            format!("left to the market and not held yet: {}", texts.join(", ")),
        )
    })
}

/// With the number of rings that serve, where some do and not all.
fn counted(saying: Saying, ready_rings: usize, rings: usize) -> Saying {
    if ready_rings == 0 || ready_rings == rings {
        return saying;
    }
    Saying {
        message: format!("{ready_rings} of {rings} rings serve: {}", saying.message),
        ..saying
    }
}

/// The sum of the others.
fn ready(observed: &Observed<'_>, stages: &[Vec<Stage>], ready_rings: usize, so_far: &Conditions) -> Saying {
    if ready_rings == observed.views.len() {
        return Saying::yes(reasons::LAP_COMPLETED, "a lap went round in every ring");
    }
    let troubled = stages.iter().flatten().filter(|stage| stage.is_ours());
    let mut troubled: Vec<(&Stage, &pods::Trouble)> = troubled
        .filter_map(|stage| Some((stage, stage.trouble.as_ref()?)))
        .collect();
    troubled.sort_by_key(|(_, trouble)| !trouble.failing);
    if let Some(refused) = missing(observed) {
        return Saying::no(refused.reason, refused.message.clone());
    }
    if let Some((stage, trouble)) = troubled.first().filter(|(_, trouble)| trouble.failing) {
        return Saying::no(reasons::STAGE_FAILED, told(stage, trouble));
    }
    if let Some(scheduled) = so_far.get(SCHEDULED).filter(|scheduled| scheduled.status != "True") {
        return Saying::no(&scheduled.reason, scheduled.message.clone());
    }
    if let Some((stage, trouble)) = troubled.first() {
        return Saying::no(reasons::AWAITING_STAGES, told(stage, trouble));
    }
    for view in observed.views {
        match view {
            View::Unreachable(message) => {
                return Saying::unknown(reasons::RELAY_UNREACHABLE, message.clone());
            }
            View::Refused { message, .. } => {
                return Saying::no(reasons::RELAY_REFUSED, message.clone());
            }
            View::Seen(_) | View::Absent | View::Unasked => {}
        }
    }
    if let Some(covered) = so_far.get(COVERED).filter(|covered| covered.status != "True") {
        return Saying::no(&covered.reason, covered.message.clone());
    }
    let mut waiting = observed.views.iter().filter_map(View::status);
    let waiting = waiting.find_map(|status| status.waiting.clone());
    let message = waiting.unwrap_or_else(|| "all layers are held, the links are being made".to_owned());
    Saying::no(reasons::FORMING, message)
}

fn told(stage: &Stage, trouble: &pods::Trouble) -> String {
    let name = stage.name();
    if trouble.message.is_empty() {
        format!("the {name} is not ready: {}", trouble.reason)
    } else {
        format!("the {name} is not ready: {}: {}", trouble.reason, trouble.message)
    }
}

/// Whether something moves. The Ring's patience begins when it stops being ready, or when it began to move.
fn progressing(observed: &Observed<'_>, so_far: &Conditions) -> Saying {
    if let Switch::Hold { waiting } = observed.switch {
        let windows: Vec<String> = waiting.iter().map(ToString::to_string).collect();
        return Saying::yes(
            reasons::ROLLING_OUT,
            format!("the next windows are being loaded: layers {}", windows.join(", ")),
        );
    }
    let Some(ready) = so_far.get(READY) else {
        return Saying::unknown(reasons::PENDING, "not looked at yet");
    };
    if ready.status == "True" {
        return Saying::yes(reasons::COMPLETE, "the Ring is what its spec asks for");
    }
    let is_new = observed.old.observed_generation != observed.generation;
    let since = |type_: &str| so_far.get(type_).map(|condition| condition.last_transition_time.0);
    let moving = so_far
        .get(PROGRESSING)
        .filter(|progressing| progressing.status == "True")
        .and_then(|_| since(PROGRESSING));
    let begun = since(READY).max(moving).unwrap_or(observed.now);
    let patience = u64::from(
        observed
            .validated
            .spec
            .ring
            .progress_deadline_seconds
            .max(0)
            .unsigned_abs(),
    );
    if !is_new && pods::since(begun, observed.now).as_secs() >= patience {
        return Saying::no(
            reasons::PROGRESS_DEADLINE_EXCEEDED,
            format!("not ready within {patience} s: {}", ready.message),
        );
    }
    Saying::yes(reasons::ROLLING_OUT, ready.message.clone())
}

fn degraded(observed: &Observed<'_>, stages: &[Vec<Stage>]) -> Saying {
    if let Some(lacks) = observed.definition {
        return Saying::yes(reasons::OUTDATED_DEFINITION, lacks);
    }
    if let Some(refused) = observed.refused.first() {
        return Saying::yes(refused.reason, refused.message.clone());
    }
    let failing = |stage: &&Stage| stage.trouble.as_ref().is_some_and(|trouble| trouble.failing);
    let failing = stages.iter().flatten().find(failing);
    if let Some((stage, trouble)) = failing.and_then(|stage| Some((stage, stage.trouble.as_ref()?))) {
        return Saying::yes(reasons::STAGE_FAILED, told(stage, trouble));
    }
    for view in observed.views {
        match view {
            View::Unreachable(message) => return Saying::yes(reasons::RELAY_UNREACHABLE, message.clone()),
            View::Refused { message, .. } => {
                return Saying::yes(reasons::RELAY_REFUSED, message.clone());
            }
            View::Seen(_) | View::Absent | View::Unasked => {}
        }
    }
    as_expected()
}

fn model(profile: &ModelProfile) -> ModelStatus {
    ModelStatus {
        architecture: profile.architecture.clone(),
        trunk_layers: profile.layer_count() as i32,
        mtp_layers: profile.mtp_layers as i32,
        embedding_length: profile.embedding_length as i32,
        file_type: Some(profile.file_type.clone()).filter(|name| !name.is_empty()),
        size_bytes: i64::try_from(profile.size).unwrap_or(i64::MAX),
        identity: profile.identity.clone(),
    }
}
