//! Only two ends that hold the listed keys and mean the same ring come together; a refusal says what differs.

use std::sync::Arc;

use kvasir_plan::BoundaryType;
use kvasir_wire::{
    edge::{self, EdgeConfig, EdgeError, HandshakeError, Role},
    trust::NodeKeys,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, duplex},
    net::TcpListener,
    time::Instant,
};

use crate::ends::{configs, decode, limits, open_both};

type Change = fn(&mut EdgeConfig);

fn reason(opened: &Result<crate::ends::End, EdgeError>) -> &'static str {
    opened.as_ref().map_or_else(EdgeError::reason, |_| "opened")
}

/// Why predecessor and successor refuse when the successor's config is changed so.
async fn refusals(change: impl FnOnce(&mut EdgeConfig)) -> [HandshakeError; 2] {
    let mut configs = configs(limits(), 2);
    change(&mut configs[1]);
    open_both(duplex(4096), configs).await.map(|opened| match opened {
        Err(EdgeError::Handshake(error)) => error,
        other => panic!("not a refused handshake: {}", reason(&other)),
    })
}

#[tokio::test]
async fn a_stale_epoch_is_named_on_both_sides() {
    let [predecessor, successor] = refusals(|config| config.epoch = 2).await;
    assert_eq!(predecessor, HandshakeError::Epoch { theirs: 2, ours: 3 });
    assert_eq!(successor, HandshakeError::Epoch { theirs: 3, ours: 2 });
}

#[tokio::test]
async fn another_edge_is_named_on_both_sides() {
    let [predecessor, successor] = refusals(|config| config.edge = 4).await;
    assert_eq!(predecessor, HandshakeError::Edge { theirs: 4, ours: 0 });
    assert_eq!(successor, HandshakeError::Edge { theirs: 0, ours: 4 });
}

#[tokio::test]
async fn another_ring_or_model_or_key_is_refused() {
    let changes: [Change; 4] = [
        |config| config.ring = "other".into(),
        |config| config.identity = "other".into(),
        |config| config.own = Arc::new(NodeKeys::generate().unwrap()),
        |config| config.peer_noise_key = NodeKeys::generate().unwrap().noise_public(),
    ];
    for change in changes {
        let [predecessor, successor] = refusals(change).await;
        assert_eq!(
            (predecessor, successor),
            (HandshakeError::HungUp, HandshakeError::Refused)
        );
    }
}

#[tokio::test]
async fn a_hello_that_says_something_else_is_refused_by_field() {
    let changes: [(&str, Change); 6] = [
        ("ring", |config| config.hello.ring = "other".into()),
        ("epoch", |config| config.hello.epoch = 9),
        ("rank", |config| config.hello.rank = 9),
        ("model identity", |config| config.hello.identity = "other".into()),
        ("embedding length", |config| config.hello.embedding_length = 9),
        ("boundary type", |config| config.hello.boundary_type = BoundaryType::F32),
    ];
    for (field, change) in changes {
        let mut configs = configs(limits(), 2);
        change(&mut configs[1]);
        let [predecessor, _] = open_both(duplex(4096), configs).await;
        let Err(EdgeError::Handshake(HandshakeError::Hello { what, .. })) = predecessor else {
            panic!("{field}")
        };
        assert_eq!(what, field);
    }
}

#[tokio::test]
async fn something_else_than_an_edge_is_refused() {
    for role in [Role::Predecessor, Role::Successor] {
        let (ours, mut theirs) = duplex(4096);
        let [mut config, _] = configs(limits(), 2);
        config.role = role;
        theirs
            .write_all(b"GET / HTTP/1.1\r\nHost: kvasir\r\n\r\n")
            .await
            .unwrap();
        assert_eq!(reason(&edge::open(ours, config).await), "NotAnEdge");
    }
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_says_nothing_is_given_up_in_time() {
    let (ours, _theirs) = duplex(4096);
    let [config, _] = configs(limits(), 2);
    let (start, within) = (Instant::now(), config.timings.handshake);
    assert_eq!(reason(&edge::open(ours, config).await), "HandshakeTimedOut");
    assert_eq!(start.elapsed(), within);
}

#[tokio::test]
async fn a_peer_that_hangs_up_is_named() {
    let (ours, theirs) = duplex(4096);
    drop(theirs);
    let [config, _] = configs(limits(), 2);
    assert_eq!(reason(&edge::open(ours, config).await), "HandshakeEnded");
}

#[tokio::test]
async fn a_recorded_handshake_played_again_opens_nothing() {
    let configs = configs(limits(), 2);
    let (near, mut here) = duplex(1 << 16);
    let (mut there, far) = duplex(1 << 16);
    // A middleman who keeps what the predecessor said until its edge was open.
    let middleman = async {
        let mut said = [0; 18 + 2 + 48];
        here.read_exact(&mut said).await.unwrap();
        there.write_all(&said).await.unwrap();
        let (mut answer, mut hello) = ([0; 4096], [0; 4096]);
        let answered = there.read(&mut answer).await.unwrap();
        here.write_all(&answer[..answered]).await.unwrap();
        let answered = there.read(&mut answer).await.unwrap();
        here.write_all(&answer[..answered]).await.unwrap();
        let said_hello = here.read(&mut hello).await.unwrap();
        there.write_all(&hello[..said_hello]).await.unwrap();
        [&said[..], &hello[..said_hello]].concat()
    };
    let (recorded, [predecessor, successor]) = tokio::join!(middleman, open_both((near, far), configs.clone()));
    assert_eq!((reason(&predecessor), reason(&successor)), ("opened", "opened"));

    let (mut replayer, far) = duplex(1 << 16);
    replayer.write_all(&recorded).await.unwrap();
    let [_, successor] = configs;
    assert_eq!(reason(&edge::open(far, successor).await), "PeerKeyRefused");
}

#[tokio::test]
async fn a_ring_of_one_opens_both_ends_with_one_key() {
    let mut configs = configs(limits(), 2);
    let keys = Arc::new(NodeKeys::generate().unwrap());
    for config in &mut configs {
        config.own = Arc::clone(&keys);
        config.peer_noise_key = config.own.noise_public();
        (config.hello.rank, config.expect_rank) = (0, 0);
    }
    let [predecessor, successor] = open_both(duplex(4096), configs).await.map(Result::unwrap);
    predecessor.0.send(decode(1)).await.unwrap();
    let mut successor = successor.1;
    assert_eq!(successor.recv().await.unwrap(), decode(1));
}

#[tokio::test]
async fn tcp_ends_send_without_delay() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let within = std::time::Duration::from_secs(5);
    let (dialled, accepted) = tokio::join!(edge::dial(&address, within), edge::accept(&listener));
    let (dialled, (accepted, _)) = (dialled.unwrap(), accepted.unwrap());
    assert!(dialled.nodelay().unwrap() && accepted.nodelay().unwrap());
}

#[tokio::test]
async fn an_address_where_nothing_listens_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let nobody = listener.local_addr().unwrap().to_string();
    drop(listener);
    let error = edge::dial(&nobody, std::time::Duration::from_secs(5))
        .await
        .unwrap_err();
    assert_eq!(
        (error.reason(), error.to_string()),
        ("Unreachable", format!("can't reach {nobody}"))
    );
}
