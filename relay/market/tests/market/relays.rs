//! Several relays on one database, and the edges that go over them.

use std::time::{Duration, Instant};

use kvasir_market::types::{EdgeRole, Reach, StageState, TicketRequest};
use kvasir_plan::{Link, RankManifest};
use kvasir_wire::noise::Role;

use crate::world::{Kind, LIMIT, World, ready};

/// An invented public URL.
const PUBLIC: &str = "https://relay.example";

crate::on_both_stores!(
    an_edge_to_a_node_that_nobody_can_dial_goes_over_a_relay_that_is_there,
    without_a_relay_the_ring_says_what_it_waits_for,
);

fn nat(world: &World, node: usize, state: StageState) -> kvasir_market::types::StageReport {
    let mut report = world.report(node, node as u32, state);
    report.reach = Reach::default();
    report
}

/// The node in the middle is behind a NAT.
async fn with_a_phone(world: &World) {
    world.open().await;
    for node in 0..3 {
        let claim = world.claim(node, node as u32).await;
        let report = if node == 1 {
            nat(world, node, ready())
        } else {
            world.report(node, node as u32, ready())
        };
        world.node(node).renew(claim.id, &report).await.unwrap();
    }
}

async fn an_edge_to_a_node_that_nobody_can_dial_goes_over_a_relay_that_is_there(world: World) {
    world.market.store().announce(PUBLIC).await.unwrap();
    with_a_phone(&world).await;
    let signed = world.publish(0).await;
    let manifest: RankManifest = serde_json::from_str(&signed.manifest).unwrap();
    let links: Vec<&Link> = manifest
        .ranks
        .iter()
        .map(|rank| &rank.holder.as_ref().unwrap().link)
        .collect();
    let relayed = Link::Relayed { url: PUBLIC.to_owned() };
    assert_eq!(links[1], &relayed, "it can't be dialled");
    assert_eq!(links[2], &relayed, "it can't dial in that network");
    assert!(matches!(links[0], Link::Direct { .. }));

    let request = |edge, role| TicketRequest { epoch: 1, edge, role };
    let granted = world.node(0).ticket(&request(0, EdgeRole::Predecessor)).await.unwrap();
    assert_eq!(granted.url, PUBLIC);
    let now = world.node(0).market().time().await.unwrap().now;
    let ticket = world.market.tickets().verify(&granted.ticket, PUBLIC, now).unwrap();
    assert_eq!((ticket.epoch, ticket.edge, ticket.role), (1, 0, Role::Predecessor));
    assert_eq!(ticket.node, world.nodes[0].public());
    assert!(ticket.expires_ms > now && ticket.expires_ms <= now + 61_000);
    let foreign = world
        .node(0)
        .ticket(&request(1, EdgeRole::Predecessor))
        .await
        .unwrap_err();
    assert_eq!(foreign.reason(), "NotAtEdge");
    let direct = world
        .node(2)
        .ticket(&request(2, EdgeRole::Predecessor))
        .await
        .unwrap_err();
    assert_eq!(direct.reason(), "NotRelayed");
}

async fn without_a_relay_the_ring_says_what_it_waits_for(world: World) {
    world.market.store().announce(PUBLIC).await.unwrap();
    world.market.store().retire(PUBLIC).await.unwrap();
    with_a_phone(&world).await;
    let status = world.owner().status().await.unwrap();
    assert_eq!(status.proposed, None);
    assert!(status.waiting.unwrap().contains("no relay is there"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_through_one_relay_is_seen_by_a_poll_at_another() {
    let world = World::new(Kind::Postgres).await;
    let (_, there) = world.another_relay().await;
    world.open().await;
    let (proposals, manifests) = (world.node_at(&there, 0), world.node_at(&there, 2));
    let waiting = tokio::spawn(async move { proposals.proposal(0).await });
    let published = tokio::spawn(async move { manifests.manifest(0).await });
    world.all_ready().await;
    let begun = Instant::now();
    let proposal = tokio::time::timeout(LIMIT, waiting).await.unwrap().unwrap().unwrap();
    assert_eq!(proposal.unwrap().manifest.epoch, 1);
    let signed = world.publish(0).await;
    let seen = tokio::time::timeout(LIMIT, published).await.unwrap().unwrap().unwrap();
    assert_eq!(seen, Some(signed));
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    let status = world.node_at(&there, 1).status().await.unwrap();
    assert_eq!(status, world.node(1).status().await.unwrap());
    let taken = world
        .node_at(&there, 3)
        .claim(&crate::world::request(1, "first"))
        .await
        .unwrap_err();
    assert_eq!(taken.reason(), "Taken");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_claims_through_several_relays_at_once_one_wins() {
    let world = World::new(Kind::Postgres).await;
    let mut demand = world.demand();
    demand.reserved.clear();
    demand.trusted_ends = false;
    world.open_as(demand).await;
    let mut urls = vec![world.url.clone()];
    for _ in 0..3 {
        urls.push(world.another_relay().await.1);
    }
    let claims: Vec<_> = (0..4)
        .map(|node| {
            let client = world.node_at(&urls[node], node);
            tokio::spawn(async move { client.claim(&crate::world::request(1, "first")).await.is_ok() })
        })
        .collect();
    let mut won = 0;
    for claim in claims {
        won += usize::from(claim.await.unwrap());
    }
    assert_eq!(won, 1);
}
