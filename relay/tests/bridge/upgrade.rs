//! What is checked before a connection becomes a leg (C5), and the HTTP beside it.

use kvasir_market::TicketKey;
use kvasir_wire::{
    edge::{EdgeError, LegError, Role},
    leg::{EDGE_PATH, SUBPROTOCOL},
    trust::PublicKey,
};

use crate::relay::{LIMIT, NODE, Relay, Wish, ask, dialer, grant, now_ms, passes};

/// An upgrade of `path` with `headers` beside the usual ones, each with its line's end.
fn upgrade(path: &str, headers: &str) -> String {
    format!(
        "GET {path} HTTP/1.1\r\nHost: here\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{headers}\r\n"
    )
}

/// Sends an upgrade that is to be refused; gives the status and the reason.
async fn refused(relay: &Relay, path: &str, headers: &str) -> (u16, String) {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut stream = tokio::net::TcpStream::connect(relay.address).await.unwrap();
    stream.write_all(upgrade(path, headers).as_bytes()).await.unwrap();
    let mut answer = String::new();
    let mut chunk = [0; 2048];
    let whole = async {
        loop {
            let read = stream.read(&mut chunk).await.unwrap();
            answer.push_str(std::str::from_utf8(&chunk[..read]).unwrap());
            let end = answer.split_once("\r\n\r\n").map(|(_, body)| body.ends_with('}'));
            if read == 0 || end == Some(true) || answer.starts_with("HTTP/1.1 101") {
                return;
            }
        }
    };
    tokio::time::timeout(LIMIT, whole).await.expect("the relay answers");
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    let body = answer.split_once("\r\n\r\n").unwrap().1;
    let reason = serde_json::from_str::<serde_json::Value>(body)
        .ok()
        .and_then(|body| Some(body["reason"].as_str()?.to_owned()));
    (status, reason.unwrap_or_default())
}

fn with(ticket: &str, more: &str) -> String {
    format!("Sec-WebSocket-Protocol: {SUBPROTOCOL}\r\nAuthorization: Bearer {ticket}\r\n{more}")
}

#[tokio::test]
async fn c5_a_query_is_refused_with_a_good_ticket_and_without_one() {
    let relay = Relay::start(Wish::default()).await;
    let good = relay.ticket(0, Role::Predecessor);
    for (path, ticket) in [
        (format!("{EDGE_PATH}?token={good}"), ""),
        (format!("{EDGE_PATH}?token={good}"), good.as_str()),
        (format!("{EDGE_PATH}?"), good.as_str()),
        (format!("{EDGE_PATH}?a=b"), good.as_str()),
    ] {
        let expected = (400, "QueryRefused".to_owned());
        assert_eq!(refused(&relay, &path, &with(ticket, "")).await, expected, "{path}");
    }
}

#[tokio::test]
async fn c5_any_origin_is_refused_and_none_is_allowed() {
    let relay = Relay::start(Wish::default()).await;
    let good = relay.ticket(0, Role::Predecessor);
    for origin in ["https://evil.example", "null", "", &relay.url] {
        let headers = with(&good, &format!("Origin: {origin}\r\nCookie: session=good\r\n"));
        let expected = (403, "OriginRefused".to_owned());
        assert_eq!(refused(&relay, EDGE_PATH, &headers).await, expected, "{origin:?}");
    }
    assert_eq!(refused(&relay, EDGE_PATH, &with(&good, "")).await.0, 101);
}

#[tokio::test]
async fn c5_only_a_good_ticket_in_the_header_opens() {
    let relay = Relay::start(Wish::default()).await;
    let good = grant(&relay.url, NODE, 0, Role::Predecessor);
    let sign = |change: &dyn Fn(&mut kvasir_market::Ticket)| {
        let mut ticket = good.clone();
        change(&mut ticket);
        relay.tickets.sign(&ticket)
    };
    let cases = [
        (String::new(), 401, "NoTicket"),
        ("nonsense".to_owned(), 403, "MalformedTicket"),
        (TicketKey::generate().unwrap().sign(&good), 403, "ForgedTicket"),
        (sign(&|ticket| ticket.expires_ms = now_ms() - 1), 401, "TicketExpired"),
        (
            sign(&|ticket| ticket.relay_url = "https://other.example".into()),
            403,
            "WrongRelay",
        ),
    ];
    for (ticket, status, reason) in cases {
        let expected = (status, reason.to_owned());
        assert_eq!(
            refused(&relay, EDGE_PATH, &with(&ticket, "")).await,
            expected,
            "{ticket}"
        );
    }
    let protocol = format!("Sec-WebSocket-Protocol: {SUBPROTOCOL}\r\n");
    assert_eq!(
        refused(&relay, EDGE_PATH, &protocol).await,
        (401, "NoTicket".to_owned())
    );
    let bearer = format!("Authorization: Bearer {}\r\n", sign(&|_| ()));
    assert_eq!(
        refused(&relay, EDGE_PATH, &bearer).await,
        (400, "UnknownProtocol".to_owned())
    );
}

#[tokio::test]
async fn what_is_no_upgrade_is_told_so() {
    let relay = Relay::start(Wish::default()).await;
    let request = format!("GET {EDGE_PATH} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n");
    let (status, body) = ask(relay.address, &request).await;
    assert_eq!(status, 426);
    assert!(body.contains("NotAnUpgrade"), "{body}");
}

#[tokio::test]
async fn a_stage_hears_the_relay_s_own_words() {
    let relay = Relay::start(Wish::default()).await;
    let error = dialer()
        .dial(&relay.url, "no ticket", Role::Predecessor, LIMIT)
        .await
        .unwrap_err();
    let EdgeError::Leg(LegError::Refused {
        status,
        reason,
        message,
    }) = error
    else {
        panic!("{error:?}")
    };
    assert_eq!((status, reason.as_str()), (403, "MalformedTicket"));
    assert_eq!(message, "this is no edge ticket");
}

#[tokio::test]
async fn places_are_limited_for_a_node_and_in_all() {
    let relay = Relay::start(Wish {
        max_legs: 3,
        max_legs_per_node: 2,
        ..Wish::default()
    })
    .await;
    let [_predecessor, _successor] = relay.legs(0).await;
    let dial = async |node: u8, edge: u32| {
        let ticket = relay.ticket_of(PublicKey([node; 32]), edge, Role::Predecessor);
        dialer().dial(&relay.url, &ticket, Role::Predecessor, LIMIT).await
    };
    let reason = |error: EdgeError| match error {
        EdgeError::Leg(LegError::Refused { status, reason, .. }) => (status, reason),
        other => panic!("{other:?}"),
    };
    assert_eq!(reason(dial(9, 1).await.unwrap_err()), (429, "TooManyLegs".to_owned()));
    let leg = dial(1, 1).await.unwrap();
    assert_eq!(reason(dial(2, 2).await.unwrap_err()), (503, "RelayFull".to_owned()));
    for reason in ["TooManyLegs", "RelayFull"] {
        let name = format!("kvasir_relay_refused_legs_total{{reason=\"{reason}\"}}");
        assert_eq!(relay.sample(&name).await, 1.0);
    }
    drop(leg);
    relay
        .until("kvasir_relay_closed_legs_total{reason=\"Left\"}", 1.0)
        .await;
    let mut free = dial(2, 2).await;
    while free.is_err() {
        free = dial(2, 2).await;
    }
}

#[tokio::test]
async fn health_and_unknown_paths() {
    let relay = Relay::start(Wish::default()).await;
    for (path, status) in [
        ("/healthz", 200),
        ("/readyz", 200),
        ("/metrics", 200),
        ("/nothing", 404),
    ] {
        let request = format!("GET {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n");
        assert_eq!(ask(relay.address, &request).await.0, status, "{path}");
    }
}

#[tokio::test]
async fn a_client_that_says_nothing_more_is_let_go() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let relay = Relay::start(Wish::default()).await;
    let mut stream = tokio::net::TcpStream::connect(relay.address).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost:").await.unwrap();
    let [mut predecessor, mut successor] = relay.legs(0).await;
    passes(&mut predecessor, &mut successor, b"others pass").await;
    let mut rest = Vec::new();
    let ended = tokio::time::timeout(LIMIT, stream.read_to_end(&mut rest)).await;
    assert!(ended.is_ok(), "half a header holds a connection");
}
