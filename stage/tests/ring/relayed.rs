//! Rings whose stages only dial out: both ends of an edge come to a relay.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use kvasir_market::{Ticket, TicketKey};
use kvasir_relay::{BridgeConfig, BridgeTimings, RelayConfig};
use kvasir_stage::ring::relays::{EdgeTicket, Relays, Role, Tickets};
use kvasir_stage::ring::session::Tap;
use kvasir_wire::edge::{LegError, RelayDialer, Timings};
use kvasir_wire::frame::{Frame, Grammar, Sampling};
use kvasir_wire::trust::PublicKey;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::circle::{Circle, LIMIT, Way, plan, request};
use crate::toy::{Toy, VOCABULARY, WIDTH, expected};

const LAYERS: u32 = 10;

/// A relay in this process, and how stages come to it.
struct Bridge {
    address: SocketAddr,
    url: String,
    tickets: TicketKey,
    shutdown: CancellationToken,
    ended: JoinHandle<()>,
}

impl Bridge {
    async fn start() -> Bridge {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        Bridge::on(listener, url, TicketKey::generate().unwrap())
    }

    fn on(listener: TcpListener, url: String, tickets: TicketKey) -> Bridge {
        let address = listener.local_addr().unwrap();
        let config = RelayConfig {
            bridge: BridgeConfig {
                public_url: url.clone(),
                tickets: tickets.clone(),
                max_legs: 100,
                max_legs_per_node: 100,
                timings: BridgeTimings::default(),
            },
            tls: None,
            drain_grace: Duration::ZERO,
        };
        let shutdown = CancellationToken::new();
        let serving = kvasir_relay::serve(listener, axum::Router::new(), config, shutdown.clone());
        Bridge {
            address,
            url,
            tickets,
            shutdown,
            ended: tokio::spawn(async move { serving.await.unwrap() }),
        }
    }

    fn way(&self, ranks: impl IntoIterator<Item = usize>, edge_of: fn(u32, Role) -> u32) -> Way {
        let desk = Desk {
            url: self.url.clone(),
            tickets: self.tickets.clone(),
            edge_of,
        };
        Way::Relayed {
            ranks: ranks.into_iter().collect(),
            url: self.url.clone(),
            relays: Some(Relays {
                dialer: RelayDialer::new(None).unwrap(),
                tickets: Arc::new(desk),
            }),
        }
    }
}

/// Gives tickets to whoever asks, for the edge that `edge_of` makes of the one asked for.
struct Desk {
    url: String,
    tickets: TicketKey,
    edge_of: fn(u32, Role) -> u32,
}

#[async_trait]
impl Tickets for Desk {
    async fn ticket(&self, epoch: u64, edge: u32, role: Role) -> Result<EdgeTicket, LegError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
        let ticket = Ticket {
            ring: "test".into(),
            epoch,
            edge: (self.edge_of)(edge, role),
            role,
            node: PublicKey([1; 32]),
            relay_url: self.url.clone(),
            expires_ms: now + 60_000,
        };
        Ok(EdgeTicket {
            url: self.url.clone(),
            ticket: self.tickets.sign(&ticket).into(),
        })
    }
}

fn as_asked(edge: u32, _: Role) -> u32 {
    edge
}

fn toys(stages: u32) -> (kvasir_plan::RankManifest, impl Fn(usize) -> Toy) {
    let plan = plan(LAYERS, stages, WIDTH as u32, VOCABULARY as u32);
    let (ranks, sequences) = (plan.ranks.clone(), plan.sequences);
    let make = move |rank: usize| {
        let layers = ranks[rank].layers;
        Toy::new(layers.start..layers.end, sequences)
    };
    (plan, make)
}

async fn answers(ring: &Circle) {
    for length in [1, 17, 60] {
        let prompt: Vec<i32> = (0..length).map(|at| at * 7 % VOCABULARY as i32).collect();
        let (got, _) = ring.answer(request(prompt.clone(), 20)).await.unwrap();
        let got: Vec<i32> = got.iter().map(|sampled| sampled.token).collect();
        assert_eq!(got, expected(LAYERS, &prompt, 20), "prompt of {length}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rings_of_relayed_edges_answer_as_others() {
    for (stages, relayed) in [(1, vec![0]), (2, vec![0, 1]), (3, vec![0, 1, 2]), (3, vec![1])] {
        let bridge = Bridge::start().await;
        let (plan, make) = toys(stages);
        let way = bridge.way(relayed, as_asked);
        let ring = Circle::by(way, plan, vec![], Timings::default(), make).await;
        ring.wait_ready().await;
        answers(&ring).await;
        ring.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replaced_stage_and_a_restarted_relay_are_found_again() {
    let bridge = Bridge::start().await;
    let (plan, make) = toys(3);
    let way = bridge.way(0..3, as_asked);
    let mut ring = Circle::by(way, plan, vec![], Timings::default(), &make).await;
    ring.wait_ready().await;
    answers(&ring).await;

    ring.kill(1);
    ring.replace(1, make(1)).await;
    answers_in_time(&ring).await;

    bridge.shutdown.cancel();
    bridge.ended.await.unwrap();
    let listener = TcpListener::bind(bridge.address).await.unwrap();
    let _again = Bridge::on(listener, bridge.url, bridge.tickets);
    answers_in_time(&ring).await;
    ring.stop().await;
}

/// Asks until the ring answers again; what it says then must be right.
async fn answers_in_time(ring: &Circle) {
    let found = async {
        while ring.answer(request(vec![1], 1)).await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(LIMIT, found).await.expect("the ring forms again");
    answers(ring).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_pairs_the_wrong_legs_is_found_out_and_said_by_name() {
    let bridge = Bridge::start().await;
    let (plan, make) = toys(3);
    // Predecessors come where they should, successors an edge further.
    let way = bridge.way(0..3, |edge, role| match role {
        Role::Predecessor => edge,
        Role::Successor => (edge + 1) % 3,
    });
    let ring = Circle::by(way, plan, vec![], Timings::default(), make).await;
    let reason = said(&ring, "edge").await;
    assert!(reason.contains("the handshake failed"), "{reason}");
    ring.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stage_without_tickets_says_so() {
    let bridge = Bridge::start().await;
    let (plan, make) = toys(2);
    let way = Way::Relayed {
        ranks: vec![0, 1],
        url: bridge.url.clone(),
        relays: None,
    };
    let ring = Circle::by(way, plan, vec![], Timings::default(), make).await;
    said(&ring, "this stage takes no relayed edges").await;
    ring.stop().await;
}

/// Waits until a stage reports a reason that holds `words`.
async fn said(ring: &Circle, words: &str) -> String {
    let found = async {
        loop {
            let status = ring.status().await;
            let reports = status.claims.into_iter().filter_map(|claim| claim.report?.lost_reason);
            if let Some(reason) = reports.into_iter().find(|reason| reason.contains(words)) {
                return reason;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(LIMIT, found).await.expect("a stage says why")
}

/// Passes connections on to `to`, and keeps what comes back: what a relay sends to its legs isn't masked.
async fn tapped(to: SocketAddr) -> (String, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let seen = Arc::new(Mutex::new(Vec::new()));
    let kept = seen.clone();
    tokio::spawn(async move {
        loop {
            let (client, _) = listener.accept().await.unwrap();
            let kept = kept.clone();
            tokio::spawn(async move {
                let relay = TcpStream::connect(to).await.unwrap();
                let ((mut from_client, mut to_client), (mut from_relay, mut to_relay)) =
                    (client.into_split(), relay.into_split());
                let there = tokio::spawn(async move {
                    let _ = tokio::io::copy(&mut from_client, &mut to_relay).await;
                });
                let mut bytes = vec![0; 64 * 1024];
                while let Ok(read @ 1..) = from_relay.read(&mut bytes).await {
                    kept.lock().unwrap().extend_from_slice(&bytes[..read]);
                    if to_client.write_all(&bytes[..read]).await.is_err() {
                        break;
                    }
                }
                there.abort();
            });
        }
    });
    (url, seen)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_crosses_a_relay_holds_no_boundary_no_token_and_no_text() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (url, seen) = tapped(listener.local_addr().unwrap()).await;
    let bridge = Bridge::on(listener, url, TicketKey::generate().unwrap());
    let (plan, make) = toys(3);
    let rows = Arc::new(Mutex::new(Vec::<u8>::new()));
    let tap: Tap = {
        let rows = rows.clone();
        Arc::new(move |frame| {
            if let Frame::Lap(lap) = frame {
                rows.lock().unwrap().extend_from_slice(&lap.hidden);
            }
        })
    };
    let ring = Circle::by(
        bridge.way(0..3, as_asked),
        plan,
        vec![None, Some(tap.clone()), Some(tap)],
        Timings::default(),
        make,
    )
    .await;
    ring.wait_ready().await;
    let text = "root ::= \"a secret of the user's\"";
    let prompt: Vec<i32> = (0..40).map(|at| at * 13 % VOCABULARY as i32).collect();
    let mut asked = request(prompt.clone(), 30);
    asked.sampling = Sampling {
        grammar: Some(Grammar::Gbnf(text.into())),
        ..asked.sampling
    };
    let (got, _) = ring.answer(asked).await.unwrap();
    ring.stop().await;

    let seen = seen.lock().unwrap();
    let rows = rows.lock().unwrap();
    assert!(rows.len() > 60 * WIDTH * 4, "rows crossed: {}", rows.len());
    assert!(seen.len() > rows.len(), "by way of the relay");
    let holds = |needle: &[u8]| seen.windows(needle.len()).any(|window| window == needle);
    for row in rows.chunks(WIDTH * 4) {
        assert!(!holds(&row[..32]), "a row crossed in the clear");
    }
    assert!(
        !holds(&[0; 32]),
        "zeros, of which the toy's rows are full, crossed in the clear"
    );
    let bytes = |tokens: &[i32]| tokens.iter().flat_map(|token| token.to_le_bytes()).collect::<Vec<u8>>();
    let answer: Vec<i32> = got.iter().map(|sampled| sampled.token).collect();
    for tokens in [&prompt[..4], &prompt[20..24], &answer[..4]] {
        assert!(!holds(&bytes(tokens)), "tokens crossed in the clear");
    }
    assert!(!holds(b"secret of the user"), "text crossed in the clear");
}
