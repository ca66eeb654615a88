//! Labels and annotations of a Ring's children.

use std::collections::BTreeMap;

use kvasir_plan::LayerRange;

/// Who writes the fields of children: the field manager of server-side apply, and the label of what it manages.
pub const MANAGER: &str = "kvasir-operator";

/// Label by which the operator finds what it manages.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Label with the Ring's name.
pub const RING: &str = "kvasir.dev/ring";
/// Label with the number of the ring among its replicas.
pub const ORDINAL: &str = "kvasir.dev/ordinal";
/// Label with the window: `start-end`.
pub const LAYERS: &str = "kvasir.dev/layers";
/// Label of the first window's pods, `0`: the others' rank may change while they run.
pub const RANK: &str = "kvasir.dev/rank";
/// Label with the pool.
pub const POOL: &str = "kvasir.dev/pool";

/// Annotation with the hash of an object as it was applied.
pub const APPLIED: &str = "kvasir.dev/applied";
/// Annotation of pods with the hash of what their window was loaded for: another one makes another pod.
pub const WINDOW: &str = "kvasir.dev/window";

/// Labels.
pub type Labels = BTreeMap<String, String>;

/// Labels of all children of a Ring.
pub fn of_ring(ring: &str, component: &str) -> Labels {
    labels([
        ("app.kubernetes.io/name", "kvasir"),
        ("app.kubernetes.io/instance", ring),
        ("app.kubernetes.io/component", component),
        ("app.kubernetes.io/part-of", "kvasir"),
        (MANAGED_BY, MANAGER),
        (RING, ring),
    ])
}

/// Labels that say which window of which ring a pod runs; they never change.
pub fn of_window(ring: &str, ordinal: u32, layers: LayerRange) -> Labels {
    labels([(RING, ring), (ORDINAL, &ordinal.to_string()), (LAYERS, &range(layers))])
}

/// Labels of the pods behind the Service; with `layers` only of those whose window is that one.
pub fn of_rank_0(ring: &str, layers: Option<LayerRange>) -> Labels {
    let mut labels = labels([(RING, ring), (RANK, "0")]);
    labels.extend(layers.map(|layers| (LAYERS.to_owned(), range(layers))));
    labels
}

/// Value of [`LAYERS`].
pub fn range(layers: LayerRange) -> String {
    format!("{}-{}", layers.start, layers.end)
}

/// Selector of everything that this operator manages.
pub fn managed() -> String {
    format!("{MANAGED_BY}={MANAGER}")
}

/// Labels as the text of a selector.
pub fn selector(labels: &Labels) -> String {
    let pairs: Vec<String> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    pairs.join(",")
}

fn labels<const N: usize>(pairs: [(&str, &str); N]) -> Labels {
    pairs
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}
