//! Which legs meet, and what becomes of those that don't.

use std::time::Duration;

use kvasir_relay::BridgeTimings;
use kvasir_wire::{edge::Role, leg::Close};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::relay::{Relay, Wish, closed, dialer, passes};

#[tokio::test]
async fn bytes_of_each_end_come_out_at_the_other() {
    let relay = Relay::start(Wish::default()).await;
    let [mut predecessor, mut successor] = relay.legs(0).await;
    for length in [1, 125, 126, 65_535, 65_536, 1 << 20] {
        let bytes: Vec<u8> = (0..length).map(|at: u32| ((at * 31) >> 3) as u8).collect();
        passes(&mut predecessor, &mut successor, &bytes).await;
        passes(&mut successor, &mut predecessor, &bytes).await;
    }
    assert_eq!(relay.sample("kvasir_relay_edges ").await, 1.0);
}

#[tokio::test]
async fn what_is_said_before_the_peer_is_there_is_kept_for_it() {
    let relay = Relay::start(Wish::default()).await;
    let mut predecessor = relay.leg(0, Role::Predecessor).await.unwrap();
    predecessor.write_all(b"the first ").await.unwrap();
    predecessor.flush().await.unwrap();
    relay.until("kvasir_relay_waiting_legs ", 1.0).await;
    predecessor.write_all(b"and the second").await.unwrap();
    predecessor.flush().await.unwrap();
    let mut successor = relay.leg(0, Role::Successor).await.unwrap();
    let mut said = [0; 24];
    successor.read_exact(&mut said).await.unwrap();
    assert_eq!(&said, b"the first and the second");
}

#[tokio::test]
async fn edges_keep_apart() {
    let relay = Relay::start(Wish::default()).await;
    let ([mut from_zero, mut to_zero], [mut from_one, mut to_one]) = (relay.legs(0).await, relay.legs(1).await);
    passes(&mut from_zero, &mut to_zero, b"zero").await;
    passes(&mut from_one, &mut to_one, b"one!").await;
}

#[tokio::test]
async fn a_role_byte_that_is_not_the_ticket_s_is_refused() {
    let relay = Relay::start(Wish::default()).await;
    let ticket = relay.ticket(0, Role::Predecessor);
    let mut leg = dialer()
        .dial(&relay.url, &ticket, Role::Successor, Duration::from_secs(5))
        .await
        .unwrap();
    assert_eq!(closed(&mut leg).await, Close::RoleMismatch);
}

#[tokio::test]
async fn a_new_leg_closes_both_old_ones_and_both_can_come_again() {
    let relay = Relay::start(Wish::default()).await;
    let [mut old_predecessor, mut old_successor] = relay.legs(0).await;
    passes(&mut old_predecessor, &mut old_successor, b"once").await;
    let mut predecessor = relay.leg(0, Role::Predecessor).await.unwrap();
    assert_eq!(closed(&mut old_predecessor).await, Close::Replaced);
    assert_eq!(closed(&mut old_successor).await, Close::Replaced);
    let mut successor = relay.leg(0, Role::Successor).await.unwrap();
    passes(&mut predecessor, &mut successor, b"again").await;
    assert_eq!(
        relay
            .sample("kvasir_relay_closed_legs_total{reason=\"Replaced\"}")
            .await,
        2.0
    );
}

#[tokio::test]
async fn a_leg_that_waits_is_replaced_too() {
    let relay = Relay::start(Wish::default()).await;
    let mut old = relay.leg(0, Role::Successor).await.unwrap();
    relay.until("kvasir_relay_waiting_legs ", 1.0).await;
    let mut new = relay.leg(0, Role::Successor).await.unwrap();
    assert_eq!(closed(&mut old).await, Close::Replaced);
    let mut peer = relay.leg(0, Role::Predecessor).await.unwrap();
    passes(&mut peer, &mut new, b"hello").await;
}

#[tokio::test]
async fn a_leg_waits_a_bounded_time() {
    let timings = BridgeTimings {
        peer_within: Duration::from_millis(100),
        ..BridgeTimings::default()
    };
    let relay = Relay::start(Wish {
        timings,
        ..Wish::default()
    })
    .await;
    let mut leg = relay.leg(0, Role::Predecessor).await.unwrap();
    assert_eq!(closed(&mut leg).await, Close::PeerTimeout);
    // Its slot is free: two that come later meet.
    let [mut predecessor, mut successor] = relay.legs(0).await;
    passes(&mut predecessor, &mut successor, b"late").await;
}

#[tokio::test]
async fn an_end_that_closes_takes_the_other_with_it_after_its_last_bytes() {
    let relay = Relay::start(Wish::default()).await;
    let [mut predecessor, mut successor] = relay.legs(0).await;
    passes(&mut predecessor, &mut successor, b"x").await;
    let last = vec![7; 300_000];
    let read = tokio::spawn(async move {
        let mut bytes = vec![0; 300_000];
        successor.read_exact(&mut bytes).await.unwrap();
        (bytes, closed(&mut successor).await)
    });
    predecessor.write_all(&last).await.unwrap();
    predecessor.shutdown().await.unwrap();
    let (bytes, close) = read.await.unwrap();
    assert!(bytes == last);
    assert_eq!(close, Close::PeerGone);
}
