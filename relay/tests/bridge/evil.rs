//! A relay that means ill: whatever it does with what it carries, the stages notice, and it learns nothing.

use std::sync::{Arc, Mutex};

use futures::{SinkExt as _, StreamExt as _};
use kvasir_plan::{LayerRange, Link, ModelRef, Rank, RankManifest};
use kvasir_wire::{
    edge::{EdgeConfig, LegStream, Role},
    trust::{NodeKeys, OwnerKey, SignedManifest},
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::mpsc,
};
use tokio_tungstenite::{
    WebSocketStream, accept_hdr_async,
    tungstenite::{Message, handshake::server},
};

use crate::{
    passage::{configs, lap, open, received},
    relay::{LIMIT, dialer},
};

/// What an evil relay does with a message: its number on its way, and its bytes; gives what goes on.
type Meddle = Box<dyn FnMut(usize, Vec<u8>) -> Vec<Vec<u8>> + Send>;

/// A relay that pairs whoever comes, in the order in which they come, and meddles with what the first one sends.
async fn evil(meddle: Meddle) -> (String, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let seen = Arc::new(Mutex::new(Vec::new()));
    tokio::spawn({
        let seen = Arc::clone(&seen);
        async move {
            let mut legs = Vec::new();
            while legs.len() < 2 {
                let (stream, _) = listener.accept().await.unwrap();
                // A signature that tungstenite's callback wants.
                #[allow(clippy::result_large_err, reason = "the callback's type is tungstenite's")]
                let named = |_: &server::Request, mut response: server::Response| {
                    let name = kvasir_wire::leg::SUBPROTOCOL.parse().unwrap();
                    response.headers_mut().insert("sec-websocket-protocol", name);
                    Ok(response)
                };
                legs.push(accept_hdr_async(stream, named).await.unwrap());
            }
            let [first, second] = <[_; 2]>::try_from(legs).unwrap();
            pass(first, second, meddle, &seen).await;
        }
    });
    (url, seen)
}

/// Passes messages on, the role bytes aside.
async fn pass(
    first: WebSocketStream<TcpStream>,
    second: WebSocketStream<TcpStream>,
    mut meddle: Meddle,
    seen: &Mutex<Vec<u8>>,
) {
    let ((mut first_sends, mut first_gets), (mut second_sends, mut second_gets)) = (first.split(), second.split());
    let there = async {
        let mut number = 0;
        while let Some(Ok(message)) = first_gets.next().await {
            let Message::Binary(bytes) = message else { continue };
            if bytes.len() == 1 {
                continue;
            }
            seen.lock().unwrap().extend_from_slice(&bytes);
            for bytes in meddle(number, bytes.to_vec()) {
                if second_sends.send(Message::Binary(bytes.into())).await.is_err() {
                    return;
                }
            }
            number += 1;
        }
    };
    let back = async {
        while let Some(Ok(message)) = second_gets.next().await {
            let Message::Binary(bytes) = message else { continue };
            if bytes.len() > 1 {
                seen.lock().unwrap().extend_from_slice(&bytes);
                if first_sends.send(Message::Binary(bytes)).await.is_err() {
                    return;
                }
            }
        }
    };
    tokio::select! {
        () = there => {}
        () = back => {}
    }
}

async fn legs(url: &str) -> [LegStream; 2] {
    let dialer = dialer();
    let mut legs = Vec::new();
    for role in [Role::Predecessor, Role::Successor] {
        legs.push(dialer.dial(url, "ticket", role, LIMIT).await.unwrap());
    }
    <[_; 2]>::try_from(legs).unwrap_or_else(|_| panic!("two legs"))
}

/// The reasons that the two stages give for having no edge by way of this relay.
async fn reasons(meddle: Meddle, configs: [EdgeConfig; 2]) -> [String; 2] {
    let (url, _) = evil(meddle).await;
    let [predecessor, successor] = legs(&url).await;
    open((predecessor, successor), configs)
        .await
        .map(|opened| match opened {
            Ok(_) => "opened".to_owned(),
            Err(error) => error.reason().to_owned(),
        })
}

fn honest() -> Meddle {
    Box::new(|_, bytes| vec![bytes])
}

#[tokio::test]
async fn legs_of_other_edges_and_epochs_are_told_apart() {
    let mut other_edge = configs();
    other_edge[1].edge = 1;
    assert_eq!(reasons(honest(), other_edge).await[0], "EdgeMismatch");
    let mut other_epoch = configs();
    other_epoch[1].epoch = 2;
    assert_eq!(reasons(honest(), other_epoch).await[0], "EpochMismatch");
    let mut other_ring = configs();
    other_ring[1].ring = "another".into();
    assert!(
        reasons(honest(), other_ring)
            .await
            .contains(&"PeerKeyRefused".to_owned())
    );
}

#[tokio::test]
async fn keys_of_the_relay_s_own_are_refused() {
    // It answers the predecessor in the successor's place, with its own keys.
    let [predecessor, mut impostor] = configs();
    impostor.own = Arc::new(NodeKeys::generate().unwrap());
    let told = reasons(honest(), [predecessor, impostor]).await;
    assert!(told.contains(&"PeerKeyRefused".to_owned()), "{told:?}");
    assert!(!told.contains(&"opened".to_owned()), "{told:?}");
}

#[tokio::test]
async fn a_changed_handshake_is_refused() {
    let changes: Meddle = Box::new(|number, mut bytes| {
        if number == 0 {
            // Within the Noise message, behind the preamble.
            bytes[30] ^= 1;
        }
        vec![bytes]
    });
    let told = reasons(changes, configs()).await;
    assert_eq!(told[1], "PeerKeyRefused", "{told:?}");
}

#[tokio::test]
async fn what_is_changed_dropped_or_repeated_later_ends_the_edge() {
    type Change = fn(Vec<u8>) -> Vec<Vec<u8>>;
    let cases: [(&str, Change); 3] = [
        ("changed", |mut bytes| {
            let last = bytes.len() - 1;
            bytes[last] ^= 1;
            vec![bytes]
        }),
        ("dropped", |_| vec![]),
        ("repeated", |bytes| vec![bytes.clone(), bytes]),
    ];
    for (what, change) in cases {
        let (touch, mut touched) = mpsc::unbounded_channel::<()>();
        let (url, _) = evil(Box::new(move |_, bytes| {
            // From the first lap on: handshake and hello are smaller.
            if bytes.len() > 2000 && !touch.is_closed() {
                let _ = touch.send(());
                change(bytes)
            } else {
                vec![bytes]
            }
        }))
        .await;
        let [predecessor, successor] = legs(&url).await;
        let [Ok(predecessor), Ok(mut successor)] = open((predecessor, successor), configs()).await else {
            panic!("{what}: no edge")
        };
        for id in 0..3 {
            // It may be over by then.
            let _ = predecessor.0.send(lap(id, 1)).await;
        }
        touched.recv().await.unwrap();
        let error = loop {
            match tokio::time::timeout(LIMIT, successor.1.recv())
                .await
                .expect("the edge ends")
            {
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        assert_eq!(error.reason(), "Tampered", "{what}");
    }
}

#[tokio::test]
async fn an_old_manifest_is_refused_with_its_epoch() {
    let owner = OwnerKey::generate().unwrap();
    let keys = NodeKeys::generate().unwrap();
    let link = || Link::Relayed {
        url: "https://relay.example".into(),
    };
    let manifest = |epoch| RankManifest {
        ring: "ring".into(),
        epoch,
        model: ModelRef {
            name: "toy".into(),
            architecture: "toy".into(),
            identity: "00".repeat(32),
            embedding_length: 32,
            layers: 4,
            vocabulary: 64,
            prefix_bytes: vec![],
        },
        boundary_type: kvasir_plan::BoundaryType::F32,
        exact: false,
        context_length: 64,
        sequences: 1,
        max_laps: 1,
        max_lap_tokens: 16,
        ranks: vec![Rank {
            layers: LayerRange { start: 0, end: 4 },
            bytes: 1,
            memory: 1,
            placement: None,
            holder: Some(keys.holder("process", link())),
        }],
    };
    let delegation = || owner.delegate("ring", keys.public());
    let old = SignedManifest::sign(&manifest(3), &keys, delegation()).unwrap();
    let new = SignedManifest::sign(&manifest(4), &keys, delegation()).unwrap();
    assert!(new.verify(&owner.public(), "ring", 3).is_ok());
    let error = old.verify(&owner.public(), "ring", 4).unwrap_err();
    assert!(
        error.to_string().contains('3') && error.to_string().contains('4'),
        "{error}"
    );

    // Keys that are swapped in a manifest aren't rank 0's word any more.
    let mut swapped = SignedManifest::sign(&manifest(5), &keys, delegation()).unwrap();
    let [own, other] = [&keys, &NodeKeys::generate().unwrap()].map(|keys| keys.holder("process", link()).noise_key);
    swapped.manifest = swapped.manifest.replace(&own, &other);
    assert!(swapped.verify(&owner.public(), "ring", 4).is_err());
}

#[tokio::test]
async fn a_relay_sees_no_boundary() {
    let (url, seen) = evil(honest()).await;
    let [predecessor, successor] = legs(&url).await;
    let [Ok(predecessor), Ok(mut successor)] = open((predecessor, successor), configs()).await else {
        panic!("no edge")
    };
    let frame = lap(1, 64);
    predecessor.0.send(frame.clone()).await.unwrap();
    assert!(received(&mut successor).await == frame);
    let kvasir_wire::frame::Frame::Lap(lap) = frame else {
        panic!("a lap")
    };
    let seen = seen.lock().unwrap();
    assert!(seen.len() > lap.hidden.len(), "it passed by way of the relay");
    for row in lap.hidden.chunks(16).step_by(7) {
        assert!(
            !seen.windows(row.len()).any(|window| window == row),
            "a row passed in the clear"
        );
    }
}
