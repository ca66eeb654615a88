//! Claims over HTTP: one winner, leases that end, and a relay that was away.

use std::time::{Duration, Instant};

use kvasir_market::{ClientError, types::StageState};

use crate::world::{World, eventually, ready, request};

crate::on_both_stores!(
    f3_of_claims_for_one_window_at_once_one_wins_and_the_others_learn_what_is_open,
    f3_a_worker_that_wakes_after_its_lease_is_fenced_by_the_claim_of_another,
    a_second_process_of_a_node_fences_the_first_for_good,
    a_claim_given_back_is_open_at_once,
    refusals_carry_the_rules_own_words,
);

async fn f3_of_claims_for_one_window_at_once_one_wins_and_the_others_learn_what_is_open(world: World) {
    let mut demand = world.demand();
    demand.reserved.clear();
    demand.trusted_ends = false;
    world.open_as(demand).await;
    let claims = (0..4).map(|node| {
        let client = world.node(node);
        tokio::spawn(async move { client.claim(&request(1, "first")).await })
    });
    let mut won = 0;
    for claim in claims.collect::<Vec<_>>() {
        match claim.await.unwrap() {
            Ok(_) => won += 1,
            Err(ClientError::Taken { reason, open, .. }) => {
                assert_eq!(reason, "Taken");
                let open: Vec<u32> = open.iter().map(|window| window.index).collect();
                assert_eq!(open, [0, 2]);
            }
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!(won, 1);
}

async fn f3_a_worker_that_wakes_after_its_lease_is_fenced_by_the_claim_of_another(world: World) {
    let mut demand = world.demand();
    demand.lease_s = Some(2);
    world.open_as(demand).await;
    let asleep = world.claim(1, 1).await;
    world
        .node(1)
        .renew(asleep.id, &world.report(1, 1, ready()))
        .await
        .unwrap();
    // The window comes back to the market by itself.
    let claim = eventually("the lease runs out", async || {
        world.node(3).claim(&request(1, "first")).await.ok()
    })
    .await;
    assert!(claim.generation > asleep.generation);
    let late = world
        .node(1)
        .renew(asleep.id, &world.report(1, 1, ready()))
        .await
        .unwrap_err();
    assert_eq!(late.reason(), "Expired");
    assert!(matches!(late, ClientError::Refused { status: 410, .. }), "{late}");
    let foreign = world
        .node(1)
        .renew(claim.id, &world.report(1, 1, ready()))
        .await
        .unwrap_err();
    assert_eq!(foreign.reason(), "ForeignClaim");
}

async fn a_second_process_of_a_node_fences_the_first_for_good(world: World) {
    world.open().await;
    let first = world.claim(1, 1).await;
    world
        .node(1)
        .renew(first.id, &world.report(1, 1, ready()))
        .await
        .unwrap();
    let second = world.node(1).claim(&request(1, "second")).await.unwrap();
    let still = world.node(1).renew(first.id, &world.report(1, 1, ready())).await;
    still.expect("the first serves until the second is ready");
    let report = world.report_of(1, 1, "second", ready());
    world.node(1).renew(second.id, &report).await.unwrap();
    let fenced = world
        .node(1)
        .renew(first.id, &world.report(1, 1, ready()))
        .await
        .unwrap_err();
    assert_eq!(fenced.reason(), "Fenced");
    let again = world.node(1).claim(&request(1, "first")).await.unwrap_err();
    assert_eq!(again.reason(), "Fenced");
}

async fn a_claim_given_back_is_open_at_once(world: World) {
    world.open().await;
    let claim = world.claim(1, 1).await;
    world.node(1).leave(claim.id).await.unwrap();
    world.claim(3, 1).await;
    let status = world.owner().status().await.unwrap();
    assert_eq!(status.claims.len(), 1);
    assert_eq!(status.claims[0].node, world.nodes[3].public());
}

async fn refusals_carry_the_rules_own_words(world: World) {
    world.open().await;
    let reserved = world.node(1).claim(&request(0, "first")).await.unwrap_err();
    assert_eq!(reserved.reason(), "Taken");
    let claim = world.claim(1, 1).await;
    let wrong = world
        .node(1)
        .renew(claim.id, &world.report(1, 2, StageState::Loading))
        .await
        .unwrap_err();
    assert_eq!(wrong.reason(), "WrongWindow");
    assert!(
        wrong
            .to_string()
            .ends_with("the claim is layers 2..4, not 4..6: fetch that window"),
        "{wrong}"
    );
    let unknown = world
        .node(1)
        .renew(99, &world.report(1, 1, StageState::Loading))
        .await
        .unwrap_err();
    assert!(matches!(unknown, ClientError::Refused { status: 404, .. }), "{unknown}");
    let beyond = world.node(1).claim(&request(3, "first")).await.unwrap_err();
    assert_eq!(beyond.reason(), "UnknownWindows");
}

/// Case S16: who was away is judged by the relay's clock, and a relay that was away itself judges nobody for it.
#[tokio::test]
async fn s16_leases_start_again_at_full_length_when_the_relay_does() {
    let mut world = World::new(crate::world::Kind::Sqlite).await;
    let mut demand = world.demand();
    demand.lease_s = Some(2);
    world.open_as(demand).await;
    let claim = world.claim(1, 1).await;
    let claimed = Instant::now();
    world
        .node(1)
        .renew(claim.id, &world.report(1, 1, ready()))
        .await
        .unwrap();
    // Nobody can report to a relay that is not there.
    tokio::time::sleep_until((claimed + Duration::from_millis(2500)).into()).await;
    world.restart().await;
    world
        .node(1)
        .renew(claim.id, &world.report(1, 1, ready()))
        .await
        .expect("the lease began again with the relay");
    let woken = Instant::now();
    tokio::time::sleep_until((woken + Duration::from_millis(2500)).into()).await;
    let asleep = world
        .node(1)
        .renew(claim.id, &world.report(1, 1, ready()))
        .await
        .unwrap_err();
    assert_eq!(asleep.reason(), "Expired");
}
