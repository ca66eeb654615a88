//! What is credited, and that it is credited once.

use kvasir_market::types::{Claim, Ledger};

use crate::world::{Kind, World, positions, ready};

crate::on_both_stores!(
    f1_the_same_receipt_is_credited_once_however_it_comes,
    receipts_of_an_older_epoch_still_count_for_its_claims,
    rows_tell_the_epochs_counter_also_when_no_whole_credit_came_of_it,
    a_ring_without_trusted_ends_earns_nothing,
    only_rank_0_reports_and_only_of_epochs_that_were,
);

/// µcredit that so many positions are worth to a claim.
fn worth(claim: &Claim, committed: u64) -> u64 {
    (u128::from(claim.rate) * u128::from(committed) / 1_000_000) as u64
}

fn sum(claims: &[Claim], committed: u64) -> u64 {
    claims.iter().map(|claim| worth(claim, committed)).sum()
}

async fn paid(world: &World) -> Ledger {
    world.owner().market().ledger().await.unwrap()
}

async fn f1_the_same_receipt_is_credited_once_however_it_comes(mut world: World) {
    let claims = world.formed().await;
    assert!(
        claims.iter().all(|claim| worth(claim, 12_345) > 0),
        "is the test blind?"
    );
    let receipt = positions(1, 12_345);
    let first = world.node(0).positions(&receipt).await.unwrap();
    assert_eq!(first.committed, 12_345);
    let once = paid(&world).await;
    assert_eq!(once.earned, sum(&claims, 12_345));
    // Each call signs the receipt anew: other bytes, the same claim.
    assert_eq!(world.node(0).positions(&receipt).await.unwrap(), first);
    assert_eq!(world.node(0).positions(&positions(1, 12_000)).await.unwrap(), first);
    for claim in &claims {
        let node = claim.windows.start as usize;
        world.node(node).leave(claim.id).await.unwrap();
    }
    assert_eq!(
        world.node(0).positions(&receipt).await.unwrap(),
        first,
        "after the lease"
    );
    world.restart().await;
    assert_eq!(
        world.node(0).positions(&receipt).await.unwrap(),
        first,
        "after a restart"
    );
    if world.kind == Kind::Postgres {
        let (_, url) = world.another_relay().await;
        let there = world.node_at(&url, 0).positions(&receipt).await.unwrap();
        assert_eq!(there, first, "at a second relay");
    }
    let ledger = paid(&world).await;
    assert_eq!(ledger, once);
    assert_eq!(ledger.rows.len(), claims.len());

    for claim in &claims {
        let node = claim.windows.start as usize;
        let own = world.node(node).market().ledger().await.unwrap();
        assert_eq!(own.earned, worth(claim, 12_345));
        assert_eq!(own.rows.len(), 1);
        let row = &own.rows[0];
        assert_eq!((row.claim, row.rate, row.committed), (claim.id, claim.rate, 12_345));
        assert_eq!(row.node, world.nodes[node].public());
    }
}

async fn rows_tell_the_epochs_counter_also_when_no_whole_credit_came_of_it(world: World) {
    world.formed().await;
    world.node(0).positions(&positions(1, 12_345)).await.unwrap();
    // One position is worth less than a µcredit to any of them.
    let before = paid(&world).await.earned;
    world.node(0).positions(&positions(1, 12_346)).await.unwrap();
    let ledger = paid(&world).await;
    assert!(ledger.earned - before < ledger.rows.len() as u64, "is the test blind?");
    let told: Vec<u64> = ledger.rows.iter().map(|row| row.committed).collect();
    assert_eq!(told, vec![12_346; ledger.rows.len()]);
}

async fn receipts_of_an_older_epoch_still_count_for_its_claims(world: World) {
    let claims = world.formed().await;
    world.node(0).positions(&positions(1, 1000)).await.unwrap();
    world.node(1).leave(claims[1].id).await.unwrap();
    let newcomer = world.claim(3, 1).await;
    world
        .node(3)
        .renew(newcomer.id, &world.report(3, 1, ready()))
        .await
        .unwrap();
    world.publish(1).await;
    world.node(0).positions(&positions(2, 500)).await.unwrap();
    // Epoch 1 ended with more than was reported of it.
    world.node(0).positions(&positions(1, 3000)).await.unwrap();
    let left = world.node(1).market().ledger().await.unwrap();
    assert_eq!(left.earned, worth(&claims[1], 3000));
    let came = world.node(3).market().ledger().await.unwrap();
    assert_eq!(came.earned, worth(&newcomer, 500));
    let stayed = world.node(2).market().ledger().await.unwrap();
    assert_eq!(stayed.earned, worth(&claims[2], 3000) + worth(&claims[2], 500));
    let report = world.report(2, 2, ready());
    assert_eq!(
        world.node(2).renew(claims[2].id, &report).await.unwrap().earned,
        stayed.earned
    );
}

async fn a_ring_without_trusted_ends_earns_nothing(world: World) {
    let mut demand = world.demand();
    demand.trusted_ends = false;
    world.open_as(demand).await;
    world.all_ready().await;
    world.publish(0).await;
    let answer = world.node(0).positions(&positions(1, 1_000_000)).await.unwrap();
    assert_eq!(answer.committed, 1_000_000);
    assert_eq!(
        paid(&world).await,
        Ledger {
            rows: Vec::new(),
            earned: 0
        }
    );
}

async fn only_rank_0_reports_and_only_of_epochs_that_were(world: World) {
    world.formed().await;
    let other = world.node(1).positions(&positions(1, 10)).await.unwrap_err();
    assert_eq!(other.reason(), "NotRank0");
    for epoch in [0, 2, u64::MAX] {
        let refusal = world.node(0).positions(&positions(epoch, 10)).await.unwrap_err();
        assert_eq!(refusal.reason(), "UnknownEpoch", "{epoch}");
    }
    let absurd = world.node(0).positions(&positions(1, u64::MAX)).await.unwrap_err();
    assert_eq!(absurd.reason(), "BadCounter");
    assert_eq!(paid(&world).await.earned, 0);
}
