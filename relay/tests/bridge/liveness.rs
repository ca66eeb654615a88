//! Idle legs stay, dead ones go (C1), and messages keep to their size (C3).

use std::time::Duration;

use futures::{SinkExt as _, StreamExt as _};
use kvasir_relay::BridgeTimings;
use kvasir_wire::{
    edge::{LegStream, Role},
    leg::{Close, MAX_MESSAGE, role_byte},
};
use tokio::{io::AsyncReadExt as _, time::Instant};
use tokio_tungstenite::tungstenite::Message;

use crate::relay::{LIMIT, Relay, Wish, by_hand, close_frame, closed, passes};

const PING_EVERY: Duration = Duration::from_millis(200);

async fn quick() -> Relay {
    let timings = BridgeTimings {
        ping_every: PING_EVERY,
        ..BridgeTimings::default()
    };
    Relay::start(Wish {
        timings,
        ..Wish::default()
    })
    .await
}

/// Reads while the other side is silent, which also answers pings.
async fn listens(leg: &mut LegStream, time: Duration) {
    let read = tokio::time::timeout(time, leg.read_u8()).await;
    assert!(read.is_err(), "nothing was to come: {read:?}");
}

#[tokio::test]
async fn c1_idle_legs_are_kept_and_both_ends_are_pinged() {
    let relay = quick().await;
    let ticket = relay.ticket(0, Role::Successor);
    let mut successor = by_hand(relay.address, &ticket).await;
    successor
        .send(Message::Binary(vec![role_byte(Role::Successor)].into()))
        .await
        .unwrap();
    let mut predecessor = relay.leg(0, Role::Predecessor).await.unwrap();
    let pings = async {
        let mut pings = 0;
        while pings < 6 {
            match successor.next().await.unwrap().unwrap() {
                // tungstenite answers with the next read.
                Message::Ping(_) => pings += 1,
                other => panic!("{other:?}"),
            }
        }
    };
    let idle = async { listens(&mut predecessor, PING_EVERY * 6).await };
    tokio::time::timeout(LIMIT, async { tokio::join!(pings, idle) })
        .await
        .expect("the relay pings");
    assert_eq!(relay.sample("kvasir_relay_edges ").await, 1.0);
}

#[tokio::test]
async fn c1_pongs_are_answered_while_a_leg_waits_for_its_peer() {
    let relay = quick().await;
    let mut predecessor = relay.leg(0, Role::Predecessor).await.unwrap();
    listens(&mut predecessor, PING_EVERY * 5).await;
    let mut successor = relay.leg(0, Role::Successor).await.unwrap();
    passes(&mut predecessor, &mut successor, b"there you are").await;
}

#[tokio::test]
async fn c1_a_leg_that_answers_no_ping_is_closed_within_three_of_them() {
    let relay = quick().await;
    let ticket = relay.ticket(0, Role::Successor);
    let mut dead = by_hand(relay.address, &ticket).await;
    dead.send(Message::Binary(vec![role_byte(Role::Successor)].into()))
        .await
        .unwrap();
    let mut predecessor = relay.leg(0, Role::Predecessor).await.unwrap();
    relay.until("kvasir_relay_edges ", 1.0).await;
    // From here on nothing of it is heard, and its connection stays open: a middlebox that drops everything.
    let begun = Instant::now();
    assert_eq!(closed(&mut predecessor).await, Close::PeerGone);
    let after = begun.elapsed();
    assert!(after < PING_EVERY * 3 + Duration::from_secs(1), "{after:?}");
    assert_eq!(
        relay.sample("kvasir_relay_closed_legs_total{reason=\"Silent\"}").await,
        1.0
    );
    assert_eq!(close_frame(&mut dead).await.0, Close::Silent.code());
}

#[tokio::test]
async fn c1_a_leg_that_dies_while_it_waits_is_closed_too() {
    let relay = quick().await;
    let ticket = relay.ticket(0, Role::Successor);
    let mut dead = by_hand(relay.address, &ticket).await;
    dead.send(Message::Binary(vec![role_byte(Role::Successor)].into()))
        .await
        .unwrap();
    relay
        .until("kvasir_relay_closed_legs_total{reason=\"Silent\"}", 1.0)
        .await;
    let [mut predecessor, mut successor] = relay.legs(0).await;
    passes(&mut predecessor, &mut successor, b"alive").await;
}

#[tokio::test]
async fn c3_a_message_above_the_limit_is_closed_with_1009_and_both_numbers() {
    let relay = Relay::start(Wish::default()).await;
    let ticket = relay.ticket(0, Role::Successor);
    let mut big = by_hand(relay.address, &ticket).await;
    big.send(Message::Binary(vec![role_byte(Role::Successor)].into()))
        .await
        .unwrap();
    let mut predecessor = relay.leg(0, Role::Predecessor).await.unwrap();
    relay.until("kvasir_relay_edges ", 1.0).await;
    let size = 20 << 20;
    let (mut sink, mut messages) = big.split();
    // The relay stops reading after the header: what can't be sent any more is no fault.
    let send = tokio::spawn(async move {
        let _ = sink.send(Message::Binary(vec![0; size].into())).await;
    });
    let frame = loop {
        if let Message::Close(Some(frame)) = messages.next().await.unwrap().unwrap() {
            break frame;
        }
    };
    send.abort();
    let expected = Close::TooLarge {
        size: size as u64,
        limit: MAX_MESSAGE as u64,
    };
    assert_eq!(u16::from(frame.code), 1009);
    assert_eq!(Close::parse(1009, &frame.reason), Some(expected));
    assert_eq!(closed(&mut predecessor).await, Close::PeerGone);
}

#[tokio::test]
async fn text_has_no_business_on_a_leg() {
    let relay = Relay::start(Wish::default()).await;
    let ticket = relay.ticket(0, Role::Successor);
    let mut socket = by_hand(relay.address, &ticket).await;
    socket.send(Message::Text("hello".into())).await.unwrap();
    assert_eq!(close_frame(&mut socket).await, (1002, "Malformed".to_owned()));
}
