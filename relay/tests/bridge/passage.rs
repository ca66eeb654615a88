//! A whole edge by way of the relay: Noise and frames between two stages' ends.

use std::{sync::Arc, time::Duration};

use kvasir_plan::BoundaryType;
use kvasir_wire::{
    Limits,
    edge::{self, EdgeConfig, EdgeError, EdgeReceiver, EdgeSender, Role, Timings},
    frame::{Frame, Hello, Lap, LapKind, Span, VERSION},
    trust::NodeKeys,
};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::relay::{LIMIT, Relay, Wish};

pub(crate) type End = (EdgeSender, EdgeReceiver);

/// Width of a hidden state.
const WIDTH: u32 = 640;

/// Predecessor and successor of edge 0 of a ring of two, in epoch 3.
pub(crate) fn configs() -> [EdgeConfig; 2] {
    let keys = [NodeKeys::generate().unwrap(), NodeKeys::generate().unwrap()].map(Arc::new);
    let limits = Limits {
        embedding_length: WIDTH,
        boundary_type: BoundaryType::F32,
        max_lap_tokens: 512,
        sequences: 4,
        vocabulary: 1000,
        max_prompt: 512,
    };
    [(Role::Predecessor, 0), (Role::Successor, 1)].map(|(role, rank)| EdgeConfig {
        ring: "ring".into(),
        epoch: 3,
        edge: 0,
        identity: "model".into(),
        role,
        own: Arc::clone(&keys[rank]),
        peer_noise_key: keys[1 - rank].noise_public(),
        hello: Hello {
            version: VERSION,
            ring: "ring".into(),
            epoch: 3,
            rank: rank as u32,
            identity: "model".into(),
            embedding_length: WIDTH,
            boundary_type: BoundaryType::F32,
        },
        expect_rank: 1 - rank as u32,
        limits,
        max_laps: 4,
        timings: Timings {
            handshake: LIMIT,
            ..Timings::default()
        },
    })
}

pub(crate) async fn open<A, B>(streams: (A, B), configs: [EdgeConfig; 2]) -> [Result<End, EdgeError>; 2]
where
    A: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    B: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let [predecessor, successor] = configs;
    let opened = async { tokio::join!(edge::open(streams.0, predecessor), edge::open(streams.1, successor)) };
    let (predecessor, successor) = tokio::time::timeout(LIMIT, opened).await.expect("the ends decide");
    [predecessor, successor]
}

/// A lap with `rows` rows of numbers that are told apart.
pub(crate) fn lap(id: u64, rows: u32) -> Frame {
    let hidden: Vec<u8> = (0..rows * WIDTH)
        .flat_map(|at| (at as f32 * 0.37 + id as f32).to_le_bytes())
        .collect();
    Frame::Lap(Lap {
        id,
        kind: LapKind::Prefill,
        compute_us: 0,
        spans: vec![Span {
            sequence: id,
            position: 0,
            count: rows,
        }],
        hidden: hidden.into(),
    })
}

pub(crate) async fn received(end: &mut End) -> Frame {
    tokio::time::timeout(LIMIT, end.1.recv())
        .await
        .expect("a frame comes")
        .unwrap()
}

#[tokio::test]
async fn laps_pass_between_two_stages_that_only_dial_out() {
    let relay = Relay::start(Wish::default()).await;
    let [predecessor, successor] = relay.legs(0).await;
    let [Ok(mut predecessor), Ok(mut successor)] = open((predecessor, successor), configs()).await else {
        panic!("no edge")
    };
    for id in 1..20 {
        let frame = lap(id, 1 + (id as u32 * 37) % 512);
        predecessor.0.send(frame.clone()).await.unwrap();
        assert!(received(&mut successor).await == frame, "lap {id}");
        let back = lap(id, 1);
        successor.0.send(back.clone()).await.unwrap();
        assert!(received(&mut predecessor).await == back, "lap {id} back");
    }
    // A round trip of the edge's own pings is what says that it lives.
    assert_eq!(predecessor.1.stats().received_frames, 19);
    drop(successor);
    let ended = tokio::time::timeout(Duration::from_secs(10), predecessor.1.recv()).await;
    let error = ended.expect("the end is told").unwrap_err();
    assert_eq!(error.reason(), "PeerGone");
}
