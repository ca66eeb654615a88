//! Many children: a few at a time, in an order that running pods can live with, and for no Ring that is another one by now.

use kvasir_api::Ring;
use kvasir_operator::apply::AT_ONCE;

use crate::{
    running::{World, on_volume},
    world::{changed, eventually},
};

const RINGS: usize = 12;

fn position(writes: &[String], write: &str, from_end: bool) -> usize {
    let is_one = |asked: &String| asked.starts_with(write);
    let found = if from_end {
        writes.iter().rposition(is_one)
    } else {
        writes.iter().position(is_one)
    };
    found.unwrap_or_else(|| panic!("there is no {write}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_visit_whose_ring_has_changed_ends_there_and_the_next_one_begins_at_once() {
    let world = World::new().await;
    let many = changed(
        &on_volume(),
        "  exact: true",
        &format!("  exact: true\n  replicas: {RINGS}"),
    );
    world.api.hold(Some("deployments"));
    world.apply(&many);
    eventually("the first Deployments", || world.api.waiting() == AT_ONCE).await;
    assert_eq!(
        world.api.names("secrets").len(),
        3 * RINGS + 1,
        "what pods mount is there before them"
    );

    // it is visited with 12 rings, and asks for one
    let before: Ring = serde_json::from_value(world.ring()).unwrap();
    assert!(world.context.newest.is_current(&before));
    world.apply(&changed(&on_volume(), "generation: 3", "generation: 4"));
    eventually("the news", || !world.context.newest.is_current(&before)).await;
    world.api.hold(None);
    eventually("what is asked for now", || world.api.names("deployments").len() == 3).await;
    eventually("the status", || world.ring()["status"]["observedGeneration"] == 4).await;
    assert_eq!(world.ring()["status"]["replicas"], 1);

    let writes = world.api.writes();
    let made = writes.iter().filter(|write| write.starts_with("PATCH deployments/"));
    assert!(made.count() <= AT_ONCE + 3, "{writes:?}");
    let first_status = writes.iter().position(|write| write == "PATCH rings/smollm2").unwrap();
    assert!(first_status < position(&writes, "PATCH deployments/", false));
    assert!(
        position(&writes, "DELETE deployments/", true) < position(&writes, "DELETE secrets/", false),
        "pods go before their keys: {writes:?}"
    );
    world.end().await;
}
