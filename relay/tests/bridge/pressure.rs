//! Ends that take nothing: what they cost, and whom.

use std::time::Duration;

use kvasir_relay::{BridgeTimings, MAX_HELD};
use kvasir_wire::{edge::LegStream, leg::Close};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::{Instant, timeout},
};

use crate::{
    process::RelayProcess,
    relay::{LIMIT, Relay, Wish, closed, passes},
};

/// Nothing more goes in when nothing went in for this long.
const FULL: Duration = Duration::from_millis(200);

/// Writes until nothing more is taken; gives the bytes that were.
async fn fill(leg: &mut LegStream) -> u64 {
    let chunk = vec![0x5A; 64 * 1024];
    let mut sent = 0;
    while let Ok(written) = timeout(FULL, leg.write(&chunk)).await {
        sent += written.unwrap() as u64;
    }
    sent
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ends_that_never_read_cost_a_bounded_amount_and_slow_no_other_edge() {
    const EDGES: u32 = 20;
    let relay = RelayProcess::start(&[]);
    let [mut predecessor, mut successor] = relay.legs(1000).await;
    passes(&mut predecessor, &mut successor, &vec![1; 1 << 20]).await;
    let mut edges = Vec::new();
    for edge in 0..EDGES {
        edges.push(relay.legs(edge).await);
    }
    let before = relay.resident();
    let mut filled = Vec::new();
    for [sender, _receiver] in &mut edges {
        filled.push(fill(sender).await);
    }
    let all: u64 = filled.iter().sum();
    let grown = relay.resident().saturating_sub(before);
    assert!(
        all > u64::from(EDGES) * MAX_HELD as u64,
        "{all} bytes went in: too few to tell"
    );
    // What an allocator keeps beside what it gave out comes on top.
    let bound = u64::from(EDGES) * MAX_HELD as u64 + (1 << 20);
    assert!(
        grown < bound,
        "{EDGES} stopped edges took {grown} bytes, more than {bound}"
    );

    let begun = Instant::now();
    for _ in 0..20 {
        passes(&mut predecessor, &mut successor, &[2; 12 * 1024]).await;
    }
    let each = begun.elapsed() / 20;
    assert!(
        each < Duration::from_millis(50),
        "a frame beside stopped edges took {each:?}"
    );

    // And nothing is lost to the one that reads after all.
    let [sender, receiver] = &mut edges[0];
    let mut bytes = vec![0; filled[0] as usize];
    let all = async { tokio::join!(sender.flush(), receiver.read_exact(&mut bytes)) };
    let (flushed, read) = timeout(LIMIT, all).await.expect("all comes out");
    flushed.unwrap();
    read.unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0x5A));
}

#[tokio::test]
async fn an_end_that_takes_nothing_for_too_long_is_closed_as_slow() {
    let timings = BridgeTimings {
        ping_every: Duration::from_millis(100),
        slow_after: Duration::from_millis(400),
        ..BridgeTimings::default()
    };
    let relay = Relay::start(Wish {
        timings,
        ..Wish::default()
    })
    .await;
    let [mut predecessor, successor] = relay.legs(0).await;
    // It says something now and then, so it isn't silent, and reads nothing.
    let (_unread, mut says) = tokio::io::split(successor);
    let alive = tokio::spawn(async move {
        let mut beats = tokio::time::interval(Duration::from_millis(50));
        loop {
            beats.tick().await;
            if says.write_all(b"x").await.is_err() || says.flush().await.is_err() {
                return;
            }
        }
    });
    let (mut reads, mut writes) = tokio::io::split(&mut predecessor);
    let chunk = vec![0; 64 * 1024];
    let flood = async { while writes.write_all(&chunk).await.is_ok() {} };
    let heard = async {
        let mut bytes = Vec::new();
        reads.read_to_end(&mut bytes).await.unwrap_err()
    };
    let both = async { tokio::join!(flood, heard).1 };
    let error = timeout(LIMIT, both).await.expect("the relay closes the edge");
    assert!(error.to_string().contains("PeerGone"), "{error}");
    assert_eq!(
        relay.sample("kvasir_relay_closed_legs_total{reason=\"Slow\"}").await,
        1.0
    );
    alive.abort();
}

#[tokio::test]
async fn a_slow_reader_holds_its_sender_back_and_gets_every_byte() {
    let relay = Relay::start(Wish::default()).await;
    let [mut predecessor, mut successor] = relay.legs(0).await;
    let total = 24 << 20;
    let send = tokio::spawn(async move {
        for number in 0..total / 4096_u32 {
            predecessor.write_all(&[number as u8; 4096]).await.unwrap();
        }
        predecessor.shutdown().await.unwrap();
    });
    let mut bytes = vec![0; 4096];
    for number in 0..total / 4096_u32 {
        if number % 512 == 0 {
            tokio::task::yield_now().await;
        }
        successor.read_exact(&mut bytes).await.unwrap();
        assert!(bytes.iter().all(|byte| *byte == number as u8), "block {number}");
    }
    assert_eq!(closed(&mut successor).await, Close::PeerGone);
    send.await.unwrap();
}
