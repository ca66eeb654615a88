//! The end of a relay, and what its log holds.

use std::time::Duration;

use futures::SinkExt as _;
use kvasir_tests::deadline::wait_until;
use kvasir_wire::{
    edge::{EdgeError, LegError, Role},
    leg::{Close, EDGE_PATH, MAX_MESSAGE, role_byte},
};
use tokio_tungstenite::tungstenite::Message;

use crate::{
    process::RelayProcess,
    relay::{LIMIT, Relay, Wish, ask, by_hand, close_frame, closed, dialer, passes},
};

const READY: &str = "GET /readyz HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n";

#[tokio::test]
async fn a_relay_that_goes_down_says_so_first_and_tells_each_leg_when_to_dial_again() {
    let mut relay = RelayProcess::start(&["--drain-grace", "500ms"]);
    let [mut predecessor, mut successor] = relay.legs(0).await;
    let mut waits = relay.leg(1, Role::Predecessor).await;
    passes(&mut predecessor, &mut successor, b"up").await;
    assert_eq!(ask(relay.address, READY).await.0, 200);
    relay.terminate();
    while ask(relay.address, READY).await.0 == 200 {}
    let url = format!("http://{}", relay.address);
    let ticket = relay.ticket(2, Role::Predecessor);
    let error = dialer()
        .dial(&url, &ticket, Role::Predecessor, LIMIT)
        .await
        .unwrap_err();
    let EdgeError::Leg(LegError::Refused { status, reason, .. }) = error else {
        panic!("{error:?}")
    };
    assert_eq!((status, reason.as_str()), (503, "Draining"));
    // Within the grace what is there goes on.
    passes(&mut predecessor, &mut successor, b"still up").await;
    for leg in [&mut predecessor, &mut successor, &mut waits] {
        let Close::Draining { after } = closed(leg).await else {
            panic!("the relay drains")
        };
        assert!(after <= Duration::from_secs(3), "{after:?}");
    }
    drop((predecessor, successor, waits));
    assert!(relay.wait().success(), "{}", relay.log());
}

#[tokio::test]
async fn legs_that_never_read_don_t_keep_a_relay_up() {
    let relay = Relay::start(Wish::default()).await;
    let _legs = relay.legs(0).await;
    relay.until("kvasir_relay_edges ", 1.0).await;
    relay.shutdown.cancel();
    tokio::time::timeout(LIMIT, relay.ended)
        .await
        .expect("the relay ends")
        .unwrap();
}

#[tokio::test]
async fn c5_the_log_holds_no_ticket_and_no_query_and_c3_both_numbers() {
    let relay = RelayProcess::start(&[]);
    let good = relay.ticket(0, Role::Predecessor);
    let bad = format!("{good}x");
    let secret = "hunter2hunter2";
    for (path, ticket) in [
        (EDGE_PATH.to_owned(), &bad),
        (format!("{EDGE_PATH}?token={secret}"), &good),
    ] {
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: here\r\nConnection: close, upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
             Sec-WebSocket-Protocol: kvasir.edge.v1\r\nAuthorization: Bearer {ticket}\r\n\r\n"
        );
        assert!(ask(relay.address, &request).await.0 >= 400);
    }
    let mut socket = by_hand(relay.address, &good).await;
    socket
        .send(Message::Binary(vec![role_byte(Role::Predecessor)].into()))
        .await
        .unwrap();
    let size = MAX_MESSAGE + 17;
    // The relay may have closed before all was sent.
    let _ = socket.send(Message::Binary(vec![0; size].into())).await;
    assert_eq!(close_frame(&mut socket).await.0, 1009);
    drop(socket);
    let numbers = format!("size={size} limit={MAX_MESSAGE}");
    wait_until("the log names both numbers", LIMIT, || relay.log().contains(&numbers));
    let log = relay.log();
    assert!(log.contains("ForgedTicket") || log.contains("MalformedTicket"), "{log}");
    assert!(log.contains("QueryRefused"), "{log}");
    for word in [&good[..40], &good[good.len() - 20..], secret] {
        assert!(!log.contains(word), "the log holds {word:?}");
    }
}
