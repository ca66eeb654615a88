//! Frames pass whole, in order, in few writes, both ways at once, and only as the peer sealed them.

use std::time::Duration;

use kvasir_wire::{
    Limits,
    edge::{EdgeError, ProtocolError},
    frame::{Frame, Open, Sampling, Tokens},
};
use tokio::{
    io::duplex,
    net::{TcpListener, TcpSocket},
    time::timeout,
};

use crate::ends::{End, configs, decode, edge_over, limits, meddled, open_both, prefill, watched};

#[tokio::test]
async fn frames_pass_both_ways_in_order() {
    let [mut predecessor, mut successor] = edge_over(duplex(4096), 4).await;
    let forward = [prefill(1, 500), prefill(2, 3), Frame::Close { sequence: 1 }];
    let open = Open {
        sequence: 1,
        prompt: vec![1, 2, 3],
        sampling: Sampling::default(),
    };
    let backward = [
        Frame::Open(open),
        Frame::Tokens(Tokens {
            lap: 1,
            compute_us: 2,
            sampled: Vec::new(),
        }),
    ];
    for frame in &forward {
        predecessor.0.send(frame.clone()).await.unwrap();
    }
    for frame in &backward {
        successor.0.send(frame.clone()).await.unwrap();
    }
    for frame in &forward {
        assert_eq!(successor.1.recv().await.unwrap(), *frame);
    }
    for frame in &backward {
        assert_eq!(predecessor.1.recv().await.unwrap(), *frame);
    }
}

#[tokio::test]
async fn a_decode_lap_goes_out_in_one_write() {
    let (near, far) = duplex(1 << 16);
    let (near, watch) = watched(near);
    let [predecessor, mut successor] = edge_over((near, far), 4).await;
    let (writes, bytes) = (watch.writes(), predecessor.0.stats().sent_bytes);
    predecessor.0.send(decode(1)).await.unwrap();
    assert_eq!(successor.1.recv().await.unwrap(), decode(1));
    assert_eq!(watch.writes() - writes, 1);
    // Length, piece header, frame header with one span, one row in bf16, tag.
    assert_eq!(predecessor.0.stats().sent_bytes - bytes, 2 + 5 + (18 + 16) + 1280 + 16);
}

/// Each end sends all the laps that a ring admits before it takes any.
async fn send_all_then_take_all(mut ends: [End; 2], laps: u16) {
    let passage = async {
        for _ in 0..3 {
            for end in &ends {
                for id in 0..u64::from(laps) {
                    end.0.send(prefill(id, 400)).await.unwrap();
                }
            }
            for end in &mut ends {
                for id in 0..u64::from(laps) {
                    assert_eq!(end.1.recv().await.unwrap(), prefill(id, 400));
                }
            }
        }
    };
    timeout(Duration::from_secs(60), passage).await.expect("a deadlock");
}

#[tokio::test]
async fn laps_both_ways_at_once_never_deadlock_in_buffers_of_4_kib() {
    send_all_then_take_all(edge_over(duplex(4096), 4).await, 4).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn laps_both_ways_at_once_never_deadlock_in_tcp_buffers_of_4_kib() {
    let small = || {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_send_buffer_size(4096).unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        socket
    };
    let listening = small();
    listening.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener: TcpListener = listening.listen(1).unwrap();
    let dialling = small().connect(listener.local_addr().unwrap());
    let (dialled, accepted) = tokio::join!(dialling, kvasir_wire::edge::accept(&listener));
    let dialled = dialled.unwrap();
    kvasir_wire::edge::tune(&dialled).unwrap();
    send_all_then_take_all(edge_over((dialled, accepted.unwrap().0), 4).await, 4).await;
}

#[tokio::test]
async fn no_send_waits_on_a_full_ring_whose_stages_have_stopped() {
    const LAPS: u16 = 3;
    const ROUNDS: u64 = 20;
    // Three ranks in a circle; stage r takes from edge r − 1 and gives to edge r.
    let edges = [
        edge_over(duplex(4096), LAPS).await,
        edge_over(duplex(4096), LAPS).await,
        edge_over(duplex(4096), LAPS).await,
    ];
    let [[out0, in1], [out1, in2], [out2, in0]] = edges;
    for id in 0..u64::from(LAPS) {
        // Nobody takes anything yet, and still no send waits.
        out0.0.send(prefill(id, 500)).await.unwrap();
    }
    for (mut from, to) in [(in1, out1), (in2, out2)] {
        tokio::spawn(async move {
            // Held as long as the stage runs: dropping either end would close its edge.
            let (_from_sender, _to_receiver) = (&from.0, &to.1);
            while let Ok(lap) = from.1.recv().await {
                if to.0.send(lap).await.is_err() {
                    break;
                }
            }
        });
    }
    let mut home = in0;
    let rounds = async {
        for lap in 0..ROUNDS * u64::from(LAPS) {
            let came = home.1.recv().await.unwrap();
            assert_eq!(came, prefill(lap % u64::from(LAPS), 500));
            out0.0.send(came).await.unwrap();
        }
    };
    timeout(Duration::from_secs(60), rounds).await.expect("a deadlock");
}

#[tokio::test]
async fn a_frame_past_the_limits_is_not_sent_and_the_edge_stays_open() {
    let [predecessor, mut successor] = edge_over(duplex(4096), 4).await;
    let Err(EdgeError::Invalid(error)) = predecessor.0.send(prefill(1, 513)).await else {
        panic!()
    };
    assert_eq!(error.reason(), "FrameTooLarge");
    predecessor.0.send(prefill(2, 512)).await.unwrap();
    assert_eq!(successor.1.recv().await.unwrap(), prefill(2, 512));
}

#[tokio::test]
async fn a_peer_that_sends_more_than_the_manifest_allows_is_cut_off() {
    let mut configs = configs(limits(), 4);
    configs[0].limits = Limits {
        max_lap_tokens: 4096,
        max_prompt: 4096,
        ..limits()
    };
    let [mut predecessor, mut successor] = open_both(duplex(4096), configs).await.map(Result::unwrap);
    predecessor.0.send(prefill(1, 4000)).await.unwrap();
    let error = successor.1.recv().await.unwrap_err();
    assert!(matches!(error, EdgeError::Protocol(ProtocolError::Piece(_))));
    assert_eq!(error.reason(), "FrameTooLarge");
    assert!(matches!(
        predecessor.1.recv().await,
        Err(EdgeError::Closed | EdgeError::Io(_))
    ));
}

/// What goes on instead of the message of that number.
type Meddler = fn(usize, Vec<u8>) -> Vec<Vec<u8>>;

#[tokio::test]
async fn a_relay_that_changes_repeats_or_drops_a_piece_is_caught() {
    let meddlers: [Meddler; 3] = [
        |number, mut message| {
            if number == 3 {
                message[20] ^= 1;
            }
            vec![message]
        },
        |number, message| {
            if number == 3 {
                vec![message.clone(), message]
            } else {
                vec![message]
            }
        },
        |number, message| if number == 3 { Vec::new() } else { vec![message] },
    ];
    for meddle in meddlers {
        let [predecessor, mut successor] = edge_over(meddled(meddle), 4).await;
        for id in 0..3 {
            predecessor.0.send(decode(id)).await.unwrap();
            // One by one, so that each is a message of its own.
            if id == 0 {
                assert_eq!(successor.1.recv().await.unwrap(), decode(0));
            }
        }
        let error = loop {
            match successor.1.recv().await {
                Ok(frame) => assert_eq!(frame, decode(1)),
                Err(error) => break error,
            }
        };
        assert_eq!(error.reason(), "Tampered");
    }
}
