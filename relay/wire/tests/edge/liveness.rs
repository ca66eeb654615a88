//! A peer that is gone is noticed within a stated time, one that is slow is waited for, and an end that closes leaves
//! nothing behind. Time is paused: it passes when everything waits.

use std::time::Duration;

use kvasir_plan::BoundaryType;
use kvasir_wire::{
    Limits,
    edge::{CLOSE_GRACE, EdgeError, STALL_FACTOR, Timings},
    frame::{Frame, Lap, LapKind, Span},
};
use tokio::{
    io::duplex,
    sync::watch,
    time::{Instant, sleep},
};

use crate::ends::{Middleman, by_way_of, configs, decode, edge_over, limits, open_both, prefill, watched};

const SECOND: Duration = Duration::from_secs(1);

fn middleman(rate: Option<u32>) -> (watch::Sender<bool>, Middleman) {
    let (gate, lets_pass) = watch::channel(true);
    (gate, Middleman { lets_pass, rate })
}

#[tokio::test(start_paused = true)]
async fn c1_an_idle_edge_pings_both_ways_well_under_a_minute() {
    let [mut predecessor, successor] = edge_over(duplex(4096), 2).await;
    sleep(600 * SECOND).await;
    for stats in [predecessor.0.stats(), successor.0.stats()] {
        // A ping every five seconds, and an answer to each of the peer's.
        assert!((236..=242).contains(&stats.sent_frames), "{stats:?}");
        assert!(stats.round_trip.is_some());
    }
    successor.0.send(decode(1)).await.unwrap();
    assert_eq!(
        predecessor.1.recv().await.unwrap(),
        decode(1),
        "pings are never delivered"
    );
}

#[tokio::test(start_paused = true)]
async fn c1_a_path_that_swallows_everything_is_noticed_by_both_sides_in_time() {
    let (gate, middleman) = middleman(None);
    let streams = by_way_of(&middleman, 4096);
    let ((near, near_watch), (far, far_watch)) = (watched(streams.0), watched(streams.1));
    let [mut predecessor, mut successor] = edge_over((near, far), 2).await;
    sleep(20 * SECOND).await;
    gate.send(false).unwrap();
    let cut = Instant::now();
    let Timings {
        silent_after,
        ping_every,
        ..
    } = Timings::default();
    for end in [&mut predecessor, &mut successor] {
        assert!(matches!(end.1.recv().await, Err(EdgeError::Silent { after }) if after == silent_after));
        assert!(
            cut.elapsed() <= silent_after && cut.elapsed() + ping_every >= silent_after,
            "{:?}",
            cut.elapsed()
        );
        assert_eq!(end.0.send(decode(1)).await.unwrap_err().reason(), "Silent");
    }
    near_watch.dropped().await;
    far_watch.dropped().await;
}

#[tokio::test(start_paused = true)]
async fn a_peer_whose_inbox_is_full_is_waited_for_while_it_pings() {
    let [mut predecessor, mut successor] = edge_over(duplex(4096), 1).await;
    let sender = predecessor.0.clone();
    let sending = tokio::spawn(async move {
        for id in 0..5 {
            sender.send(prefill(id, 500)).await.unwrap();
        }
    });
    sleep(100 * SECOND).await;
    assert!(
        !sending.is_finished(),
        "five laps can't be under way where one is admitted"
    );
    for id in 0..5 {
        assert_eq!(successor.1.recv().await.unwrap(), prefill(id, 500));
    }
    sending.await.unwrap();
    successor.0.send(decode(9)).await.unwrap();
    assert_eq!(predecessor.1.recv().await.unwrap(), decode(9));
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_pings_but_takes_nothing_is_given_up_in_the_end() {
    let [predecessor, _successor] = edge_over(duplex(4096), 1).await;
    let start = Instant::now();
    let error = loop {
        if let Err(error) = predecessor.0.send(prefill(1, 500)).await {
            break error;
        }
    };
    let bound = Timings::default().silent_after * STALL_FACTOR;
    assert!(matches!(error, EdgeError::Silent { after } if after == bound));
    assert!(
        (bound..bound + SECOND).contains(&start.elapsed()),
        "{:?}",
        start.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn c3_a_boundary_of_64_mib_passes_a_slow_link_with_pings_between_its_pieces() {
    let wide = Limits {
        embedding_length: 8192,
        boundary_type: BoundaryType::Bf16,
        max_lap_tokens: 4096,
        max_prompt: 4096,
        ..limits()
    };
    // 64 MiB at 1 MB/s, 32 MiB at 200 kB/s: much longer than a silence may last.
    for (rows, rate) in [(4096, 1_000_000), (2048, 200_000)] {
        let (_gate, middleman) = middleman(Some(rate));
        let streams = by_way_of(&middleman, 4096);
        let [predecessor, mut successor] = open_both(streams, configs(wide, 2)).await.map(Result::unwrap);
        let spans = vec![Span {
            sequence: 1,
            position: 0,
            count: rows,
        }];
        let bytes = rows as usize * 8192 * 2;
        let lap = Lap {
            id: 1,
            kind: LapKind::Prefill,
            compute_us: 0,
            spans,
            hidden: vec![7; bytes].into(),
        };
        let start = Instant::now();
        predecessor.0.send(Frame::Lap(lap.clone())).await.unwrap();
        sleep(SECOND).await;
        // Sent later, there sooner.
        predecessor.0.send(decode_of(8192)).await.unwrap();
        assert_eq!(successor.1.recv().await.unwrap(), decode_of(8192));
        assert!(start.elapsed() < 3 * SECOND);
        assert_eq!(successor.1.recv().await.unwrap(), Frame::Lap(lap));
        let seconds = start.elapsed().as_secs();
        assert!(seconds >= bytes as u64 / u64::from(rate));
        // Besides the laps: a ping each five seconds, and an answer to each of its own.
        assert!(
            successor.1.stats().received_frames - 2 >= 2 * (seconds / 5 - 1),
            "{:?}",
            successor.1.stats()
        );
    }
}

fn decode_of(embedding_length: usize) -> Frame {
    let spans = vec![Span {
        sequence: 2,
        position: 0,
        count: 1,
    }];
    let hidden = vec![1; embedding_length * 2].into();
    Frame::Lap(Lap {
        id: 2,
        kind: LapKind::Decode,
        compute_us: 0,
        spans,
        hidden,
    })
}

#[tokio::test]
async fn what_was_sent_before_an_end_closed_still_arrives() {
    let [predecessor, mut successor] = edge_over(duplex(4096), 2).await;
    predecessor.0.send(prefill(1, 500)).await.unwrap();
    predecessor.0.send(Frame::Drain).await.unwrap();
    predecessor.0.close();
    assert_eq!(predecessor.0.send(Frame::Drain).await.unwrap_err().reason(), "Closed");
    let mut arrived = [successor.1.recv().await.unwrap(), successor.1.recv().await.unwrap()];
    arrived.sort_by_key(|frame| *frame != Frame::Drain);
    assert_eq!(arrived, [Frame::Drain, prefill(1, 500)]);
    assert!(matches!(successor.1.recv().await, Err(EdgeError::Closed)));
}

#[tokio::test]
async fn dropping_one_end_ends_both_and_leaves_no_stream_behind() {
    let streams = duplex(4096);
    let ((near, near_watch), (far, far_watch)) = (watched(streams.0), watched(streams.1));
    let [predecessor, mut successor] = edge_over((near, far), 2).await;
    drop(predecessor);
    near_watch.dropped().await;
    assert!(matches!(successor.1.recv().await, Err(EdgeError::Closed)));
    assert_eq!(successor.0.ended().await.reason(), "Closed");
    far_watch.dropped().await;
}

#[tokio::test(start_paused = true)]
async fn an_end_that_closes_does_not_wait_long_for_a_peer_that_takes_nothing() {
    let (gate, middleman) = middleman(None);
    let [predecessor, _successor] = edge_over(by_way_of(&middleman, 4096), 2).await;
    gate.send(false).unwrap();
    predecessor.0.send(prefill(1, 500)).await.unwrap();
    let start = Instant::now();
    predecessor.0.close();
    assert_eq!(predecessor.0.ended().await.reason(), "Closed");
    assert_eq!(start.elapsed(), CLOSE_GRACE);
}
