//! A Ring that is scaled again before it is what it was asked to be.

use std::time::Duration;

use kvasir_tests::cluster::{Site, eventually};

use super::{SOON, cluster, name, suspended};

/// For hundreds of objects to come and go.
const SETTLED: Duration = Duration::from_secs(120);

/// The Ring sleeps, so that its Deployments make no pods.
#[test]
fn a_ring_that_is_scaled_again_and_again_is_what_it_was_asked_last() {
    let Some(cluster) = cluster() else { return };
    let site = Site::new(cluster, "kvasir-scaled");
    site.install(&[]);
    let ring = suspended(site.ring(), "scaled");
    site.apply(&ring).unwrap();
    let deployments = || site.list(&["deployments", "--selector=kvasir.dev/ring=scaled"]);
    let made = eventually(SOON, || (deployments().len() == 3).then_some(()));
    assert!(made.is_some(), "three Deployments");
    for replicas in [64, 0, 64, 1] {
        let before = deployments().len();
        site.kubectl(&["scale", "ring", "scaled", &format!("--replicas={replicas}")])
            .unwrap();
        // the operator has begun, and is far from its end
        let begun = eventually(SOON, || (deployments().len() != before).then_some(()));
        assert!(begun.is_some(), "{before} Deployments stay at {replicas} replicas");
    }
    let settled = eventually(SETTLED, || {
        let object = site.get(&["ring", name(&ring)])?;
        let is_current = object["status"]["observedGeneration"] == object["metadata"]["generation"];
        (is_current && object["status"]["replicas"] == 1 && deployments().len() == 3).then_some(())
    });
    assert!(
        settled.is_some(),
        "{} Deployments within {SETTLED:?}",
        deployments().len()
    );
}
