//! A new plan replaces the pods whose window is another one, and no others, and not before the next ones are loaded.

use kvasir_operator::{
    apply::changes,
    build::Kind,
    dereference::Live,
    market::View,
    switch::{Switch, switch},
};
use kvasir_plan::LayerRange;

use crate::world::{
    RING, Visit, WINDOWS, applied, built, changed, in_short, later, now, object, ready_pod, said, seen, template,
    unschedulable_pod, validated,
};

/// The last two windows cut differently: four windows, of which the first and the last stay.
fn recut() -> String {
    let text = changed(
        RING,
        "    - {layers: {start: 10, end: 20}, pool: gpu}",
        "    - {layers: {start: 10, end: 15}, pool: gpu}\n    - {layers: {start: 15, end: 20}, pool: cpu}",
    );
    changed(&text, "maxStages: 2", "maxStages: 3")
}

#[test]
fn pods_whose_window_stays_keep_their_template_though_their_rank_is_another() {
    let (before, after) = (built(RING), built(&recut()));
    for stage in ["smollm2-0-0-10", "smollm2-0-20-30"] {
        assert_eq!(template(&before, stage), template(&after, stage), "{stage}");
        assert_eq!(
            object(&before, Kind::Secret, stage),
            object(&after, Kind::Secret, stage),
            "it stays the same node"
        );
    }
    let rank = |resources, stage| object(resources, Kind::ConfigMap, stage)["data"]["rank"].clone();
    assert_eq!(rank(&before, "smollm2-0-20-30"), "2");
    assert_eq!(rank(&after, "smollm2-0-20-30"), "3");
}

#[test]
fn other_dimensions_replace_every_pod() {
    let longer = changed(RING, "  exact: true", "  exact: true\n  contextLength: 8192");
    let annotation = |text: &str, stage: &str| template(&built(text), stage)["metadata"]["annotations"].clone();
    for (start, end) in WINDOWS {
        let stage = format!("smollm2-0-{start}-{end}");
        assert_ne!(annotation(RING, &stage), annotation(&longer, &stage), "{stage}");
    }
    let template_of_0 = changed(RING, "    name: SmolLM2\n", "    name: SmolLM2\n    chatTemplate: x\n");
    assert_ne!(
        annotation(RING, "smollm2-0-0-10"),
        annotation(&template_of_0, "smollm2-0-0-10")
    );
    assert_eq!(
        annotation(RING, "smollm2-0-10-20"),
        annotation(&template_of_0, "smollm2-0-10-20"),
        "only rank 0 reads the chat template"
    );
}

/// What is there after the new plan's objects were applied beside the old ones.
fn both() -> Live {
    let mut live = applied(&built(RING), now());
    live.objects.extend(applied(&built(&recut()), now()).objects);
    live.pods = WINDOWS.iter().map(|(start, end)| ready_pod(0, *start, *end)).collect();
    live
}

fn decided(live: &Live, views: &[View], seconds: i64) -> Switch {
    switch(&validated(&recut()), views, live, later(seconds))
}

#[test]
fn the_plan_that_serves_goes_on_until_the_next_windows_are_loaded() {
    let serving = [seen(&WINDOWS, true, &[])];
    let mut live = both();
    let waiting = |windows: &[(u32, u32)]| Switch::Hold {
        waiting: windows
            .iter()
            .map(|(start, end)| LayerRange {
                start: *start,
                end: *end,
            })
            .collect(),
    };
    assert_eq!(decided(&live, &serving, 1), waiting(&[(10, 15), (15, 20)]));
    let mut old = applied(&built(RING), now());
    old.pods.clone_from(&live.pods);
    assert_eq!(
        decided(&old, &serving, 700),
        waiting(&[(10, 15), (15, 20)]),
        "the age of the windows that stay says nothing of those that aren't there yet"
    );
    live.pods.push(ready_pod(0, 10, 15));
    let hold = decided(&live, &serving, 1);
    assert_eq!(hold, waiting(&[(15, 20)]));
    let spec = validated(&recut()).spec;
    assert_eq!(
        changes(&built(&recut()), &live, &spec, &hold).delete,
        [],
        "the old windows stay"
    );
    live.pods.push(ready_pod(0, 15, 20));
    assert_eq!(decided(&live, &serving, 1), Switch::Over, "now the market is told");
    let planned = [(0, 10), (10, 15), (15, 20), (20, 30)];
    let forming = [seen(&planned, false, &[(10, 20)])];
    assert_eq!(
        decided(&live, &forming, 2),
        Switch::Over,
        "the old windows serve meanwhile"
    );
    assert_eq!(changes(&built(&recut()), &live, &spec, &Switch::Over).delete, []);
    assert_eq!(decided(&live, &forming, 700), Switch::Go, "not for ever");
    assert_eq!(decided(&live, &[seen(&planned, true, &[])], 3), Switch::Go);
    let gone = changes(&built(&recut()), &live, &spec, &Switch::Go).delete;
    assert!(gone.iter().all(|(_, name)| name == "smollm2-0-10-20"), "{gone:?}");
    assert_eq!(gone.len(), 3, "its key, its plan and its Deployment");
}

#[test]
fn nothing_is_waited_for_where_waiting_would_not_end() {
    let serving = [seen(&WINDOWS, true, &[])];
    assert_eq!(
        decided(&both(), &[seen(&WINDOWS, false, &[(0, 10)])], 1),
        Switch::Go,
        "nothing serves"
    );
    assert_eq!(
        decided(&both(), &[View::Absent], 1),
        Switch::Go,
        "nothing was there before"
    );
    assert_eq!(
        decided(&both(), &serving, 700),
        Switch::Go,
        "the Ring's patience is over"
    );
    let mut full = both();
    full.pods.push(unschedulable_pod(10, 15, "0/2 nodes are available"));
    assert_eq!(
        decided(&full, &serving, 1),
        Switch::Go,
        "there is no room beside the old pod"
    );
    let recreate = changed(&recut(), "  exact: true", "  exact: true\n  updateStrategy: Recreate");
    assert_eq!(switch(&validated(&recreate), &serving, &both(), later(1)), Switch::Go);
}

#[test]
fn the_ring_stays_ready_while_the_next_windows_are_loaded() {
    let mut visit = Visit::of(&recut()).seen(seen(&WINDOWS, true, &[]));
    visit.switch = Switch::Hold {
        waiting: vec![LayerRange { start: 10, end: 15 }],
    };
    let status = visit.status();
    assert_eq!(in_short(&status, "Ready"), "True/LapCompleted");
    assert_eq!(
        said(&status, "Progressing"),
        "True/RollingOut: the next windows are being loaded: layers 10..15"
    );
}

#[test]
fn an_old_stage_does_not_stay_where_it_could_take_an_open_window() {
    let text = changed(
        RING,
        "    - {layers: {start: 10, end: 20}, pool: gpu}",
        "    - {layers: {start: 10, end: 20}, open: true}",
    )
    .replace("  exact: true", "  market: {maxLayers: 10}");
    let mut live = applied(&built(&text), now());
    live.pods = WINDOWS.iter().map(|(start, end)| ready_pod(0, *start, *end)).collect();
    let before = [(0, 10), (10, 15), (15, 20), (20, 30)];
    let decided = switch(&validated(&text), &[seen(&before, true, &[])], &live, later(1));
    assert_eq!(decided, Switch::Go);
}
