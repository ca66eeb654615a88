//! What the user reads of a Ring that works, and of one that is on its way.

use kvasir_market::types::{ClaimStatus, Reach, Run, StageReport, StageState};
use kvasir_operator::{market::View, status};
use kvasir_plan::{LayerRange, Link};
use kvasir_wire::trust::NodeKeys;
use serde_json::json;

use crate::world::{RING, Visit, WINDOWS, changed, in_short, now, open_middle, owner, pod, ready_pod, said, seen};

#[test]
fn a_ring_is_ready_when_a_lap_went_round() {
    let status = Visit::of(RING).status();
    assert_eq!(
        said(&status, "Ready"),
        "True/LapCompleted: a lap went round in every ring"
    );
    assert_eq!(
        said(&status, "Accepted"),
        "True/Accepted: planned as 3 windows, 0 of them open"
    );
    assert_eq!(in_short(&status, "Progressing"), "True/Complete");
    assert_eq!(in_short(&status, "Degraded"), "False/AsExpected");
    assert_eq!(status.observed_generation, Some(3));
    assert_eq!(
        (status.stages.as_deref(), status.covered.as_deref()),
        (Some("3/3"), Some("30/30"))
    );
    assert_eq!(status.endpoint.as_deref(), Some("http://smollm2.models.svc:8080/v1"));
    assert_eq!(
        status.selector.as_deref(),
        Some("kvasir.dev/rank=0,kvasir.dev/ring=smollm2")
    );
    assert_eq!((status.replicas, status.ready_replicas), (Some(1), Some(1)));
    let ring = &status.rings[0];
    assert_eq!((ring.epoch, ring.ready, ring.stages.len()), (4, true, 3));
    assert_eq!(ring.stages[1].pool.as_deref(), Some("gpu"));
    assert_eq!(ring.stages[1].pod_name.as_deref(), Some("smollm2-0-10-20-abc"));
}

#[test]
fn the_status_fits_the_schema() {
    let mut ring = crate::world::ring(RING);
    ring.status = Some(Visit::of(RING).status());
    let text = serde_yaml::to_string(&ring).unwrap();
    assert_eq!(kvasir_api::from_yaml(&text).unwrap(), ring);
}

#[test]
fn the_first_visit_sets_every_condition_and_the_next_one_does_not() {
    let first = status::first(&kvasir_api::RingStatus::default(), Some(3), now()).unwrap();
    assert_eq!(first.conditions.len(), 7);
    assert!(first.conditions.iter().all(|condition| condition.status == "Unknown"));
    assert_eq!(status::first(&first, Some(3), now()), None);
}

#[test]
fn the_times_of_conditions_are_those_at_which_they_turned() {
    let first = Visit::of(RING).status();
    let lost = Visit::of(RING)
        .with_pod(pod(0, 10, 20, &json!({"phase": "Running"})))
        .after(first)
        .at(60);
    let second = lost.status();
    let time = |status: &kvasir_api::RingStatus, type_: &str| {
        let found = status.conditions.iter().find(|condition| condition.type_ == type_);
        found.unwrap().last_transition_time.0
    };
    assert_eq!(
        time(&second, "Ready"),
        crate::world::later(60),
        "a pod that is gone is seen at once"
    );
    assert_eq!(time(&second, "Accepted"), now());
}

#[test]
fn uncovered_layers_are_named() {
    let ours = Visit::of(RING).seen(seen(&WINDOWS, false, &[(10, 20)])).status();
    assert_eq!(
        said(&ours, "Covered"),
        "False/AwaitingStages: not held yet: layers 10..20 of ring 0"
    );
    assert_eq!(ours.covered.as_deref(), Some("20/30"));
    let mut visit = Visit::of(&open_middle()).seen(seen(&WINDOWS, false, &[(10, 20)]));
    visit
        .pods
        .retain(|pod| pod.metadata.labels.as_ref().unwrap()["kvasir.dev/layers"] != "10-20");
    let open = visit.status();
    assert_eq!(
        said(&open, "Ready"),
        "False/AwaitingClaims: left to the market and not held yet: layers 10..20 of ring 0"
    );
    assert_eq!(open.stages.as_deref(), Some("2/3"));
    assert_eq!(open.rings[0].stages[1].reason.as_deref(), Some("Unclaimed"));
}

/// The same with the middle claimed.
fn claimed(view: View, report: Option<StageReport>) -> View {
    let View::Seen(mut ring) = view else {
        panic!("the market was seen");
    };
    ring.claims = vec![ClaimStatus {
        id: 1,
        generation: 1,
        node: owner().public(),
        instance: "i".into(),
        windows: Run { start: 1, end: 2 },
        layers: ring.windows[1].layers,
        rate: 1,
        replaces: None,
        report,
        expired: false,
    }];
    View::Seen(ring)
}

/// A device says that its window is loaded.
pub(crate) fn loaded() -> StageReport {
    let link = Link::Relayed { url: String::new() };
    StageReport {
        holder: NodeKeys::generate().unwrap().holder("i", link),
        reach: Reach {
            network: None,
            address: None,
        },
        layers: LayerRange { start: 10, end: 20 },
        identity: String::new(),
        state: StageState::Ready {
            fetched_bytes: 1,
            resident_bytes: 1,
            backend: "CPU".into(),
        },
        epoch: 0,
        lost_epoch: None,
        lost_reason: None,
        lost_edge: None,
        lost_end: None,
    }
}

fn unreachable() -> View {
    View::Unreachable("the market at http://relay does not answer".into())
}

#[test]
fn a_claimed_window_names_its_node() {
    let view = claimed(seen(&WINDOWS, false, &[(10, 20)]), None);
    let status = Visit::of(&open_middle()).seen(view).status();
    let stage = &status.rings[0].stages[1];
    assert_eq!(stage.node_id, Some(owner().public().to_string()));
    assert_eq!((stage.reason.as_deref(), stage.ready), (Some("Claimed"), false));
}

#[test]
fn a_ring_that_is_up_stays_ready_when_its_relay_is_gone() {
    let first = Visit::of(RING).status();
    let status = Visit::of(RING).seen(unreachable()).after(first).at(30).status();
    assert_eq!(in_short(&status, "Ready"), "True/LapCompleted");
    assert_eq!(
        said(&status, "Degraded"),
        "True/RelayUnreachable: the market at http://relay does not answer"
    );
    assert_eq!((status.rings[0].epoch, status.covered.as_deref()), (4, Some("30/30")));
    let never = Visit::of(RING).seen(unreachable()).status();
    assert_eq!(in_short(&never, "Ready"), "Unknown/RelayUnreachable");
}

#[test]
fn a_device_that_held_its_window_holds_it_while_the_relay_is_gone() {
    let view = claimed(seen(&WINDOWS, true, &[]), Some(loaded()));
    let first = Visit::of(&open_middle()).seen(view).status();
    assert_eq!(in_short(&first, "Ready"), "True/LapCompleted");
    let gone = Visit::of(&open_middle()).seen(unreachable());
    let status = gone.after(first.clone()).at(30).status();
    assert_eq!(in_short(&status, "Ready"), "True/LapCompleted");
    assert_eq!(status.rings, first.rings, "its node and its state stand");
    let gone = Visit::of(&open_middle()).seen(unreachable());
    assert_eq!(gone.after(status.clone()).at(60).status(), status, "and go on to stand");
}

#[test]
fn a_window_that_was_opened_while_the_relay_is_gone_is_nobodys() {
    let before = Visit::of(RING).status();
    let status = Visit::of(&open_middle())
        .seen(unreachable())
        .after(before)
        .at(30)
        .status();
    assert_eq!(in_short(&status, "Ready"), "Unknown/RelayUnreachable");
    assert_eq!(status.rings[0].stages[1].reason.as_deref(), Some("Unclaimed"));
}

#[test]
fn a_ring_is_not_ready_by_an_old_lap_when_nobody_holds_one_of_its_windows() {
    let status = Visit::of(&open_middle()).seen(seen(&WINDOWS, true, &[])).status();
    assert_eq!(status.rings[0].stages[1].reason.as_deref(), Some("Unclaimed"));
    assert_eq!(in_short(&status, "Ready"), "False/Forming");
}

#[test]
fn suspended_and_scaled_to_zero_are_states_of_their_own() {
    let mut visit = Visit::of(&changed(RING, "  exact: true", "  exact: true\n  suspend: true"));
    visit.pods.clear();
    visit.views = vec![View::Unasked];
    let status = visit.status();
    assert_eq!(said(&status, "Ready"), "False/Suspended: spec.suspend is set");
    assert_eq!(in_short(&status, "Progressing"), "Unknown/Suspended");
    assert_eq!(status.rings[0].stages[0].reason.as_deref(), Some("Suspended"));
    let mut none = Visit::of(&changed(RING, "  exact: true", "  exact: true\n  replicas: 0"));
    none.pods.clear();
    none.views.clear();
    let status = none.status();
    assert_eq!(said(&status, "Ready"), "False/ScaledToZero: spec.replicas is 0");
    assert_eq!((status.replicas, status.ready_replicas), (Some(0), Some(0)));
}

#[test]
fn the_least_covered_ring_counts() {
    let mut visit = Visit::of(&changed(RING, "  exact: true", "  exact: true\n  replicas: 2"));
    visit
        .pods
        .extend(WINDOWS.iter().map(|(start, end)| ready_pod(1, *start, *end)));
    visit.views = vec![seen(&WINDOWS, true, &[]), seen(&WINDOWS, false, &[(0, 10)])];
    let status = visit.status();
    assert_eq!(
        (status.covered.as_deref(), status.ready_replicas),
        (Some("20/30"), Some(1))
    );
    assert_eq!(
        said(&status, "Covered"),
        "False/AwaitingStages: not held yet: layers 0..10 of ring 1"
    );
}
