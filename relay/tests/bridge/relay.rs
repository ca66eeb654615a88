//! A relay in this process, and legs to it.

use std::{
    net::SocketAddr,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use kvasir_market::{Ticket, TicketKey};
use kvasir_relay::{BridgeConfig, BridgeTimings, RelayConfig, TlsFiles, serve};
use kvasir_wire::{
    edge::{EdgeError, LegError, LegStream, RelayDialer, Role},
    leg::{Close, EDGE_PATH, SUBPROTOCOL},
    trust::PublicKey,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
    time::timeout,
};
use tokio_tungstenite::{
    WebSocketStream, client_async_with_config,
    tungstenite::{Message, handshake::client::generate_key, http, protocol::WebSocketConfig},
};
use tokio_util::sync::CancellationToken;

/// Longest wait for anything in these tests.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

/// The node whose tickets these are, unless a test says otherwise.
pub(crate) const NODE: PublicKey = PublicKey([9; 32]);

pub(crate) struct Relay {
    pub(crate) url: String,
    pub(crate) address: SocketAddr,
    pub(crate) tickets: TicketKey,
    pub(crate) shutdown: CancellationToken,
    pub(crate) ended: JoinHandle<()>,
}

/// What a test wants otherwise.
pub(crate) struct Wish {
    pub(crate) timings: BridgeTimings,
    pub(crate) tls: Option<TlsFiles>,
    pub(crate) max_legs: usize,
    pub(crate) max_legs_per_node: usize,
    pub(crate) drain_grace: Duration,
}

impl Default for Wish {
    fn default() -> Self {
        Wish {
            timings: BridgeTimings::default(),
            tls: None,
            max_legs: 100,
            max_legs_per_node: 100,
            drain_grace: Duration::ZERO,
        }
    }
}

impl Relay {
    pub(crate) async fn start(wish: Wish) -> Relay {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let scheme = if wish.tls.is_some() { "https" } else { "http" };
        let url = format!("{scheme}://localhost:{}", address.port());
        let tickets = TicketKey::generate().unwrap();
        let config = RelayConfig {
            bridge: BridgeConfig {
                public_url: url.clone(),
                tickets: tickets.clone(),
                max_legs: wish.max_legs,
                max_legs_per_node: wish.max_legs_per_node,
                timings: wish.timings,
            },
            tls: wish.tls,
            drain_grace: wish.drain_grace,
        };
        let shutdown = CancellationToken::new();
        let ended = tokio::spawn({
            let shutdown = shutdown.clone();
            async move { serve(listener, axum::Router::new(), config, shutdown).await.unwrap() }
        });
        Relay {
            url,
            address,
            tickets,
            shutdown,
            ended,
        }
    }

    pub(crate) fn ticket(&self, edge: u32, role: Role) -> String {
        self.ticket_of(NODE, edge, role)
    }

    pub(crate) fn ticket_of(&self, node: PublicKey, edge: u32, role: Role) -> String {
        self.tickets.sign(&grant(&self.url, node, edge, role))
    }

    /// A leg as stages dial it.
    pub(crate) async fn leg(&self, edge: u32, role: Role) -> Result<LegStream, EdgeError> {
        let ticket = self.ticket(edge, role);
        dialer().dial(&self.url, &ticket, role, LIMIT).await
    }

    /// Both legs of an edge: predecessor, successor.
    pub(crate) async fn legs(&self, edge: u32) -> [LegStream; 2] {
        let (predecessor, successor) = tokio::join!(self.leg(edge, Role::Predecessor), self.leg(edge, Role::Successor));
        [predecessor.unwrap(), successor.unwrap()]
    }

    /// What `/metrics` says of a sample whose name and labels begin with `name`; 0 when it isn't there yet.
    pub(crate) async fn sample(&self, name: &str) -> f64 {
        let (_, text) = ask(
            self.address,
            "GET /metrics HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n",
        )
        .await;
        let line = text.lines().find(|line| line.starts_with(name));
        line.map_or(0.0, |line| line.rsplit(' ').next().unwrap().parse().unwrap())
    }

    /// Looks at a sample until it is `value`.
    pub(crate) async fn until(&self, name: &str, value: f64) {
        let reached = async {
            while self.sample(name).await < value {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(LIMIT, reached)
            .await
            .unwrap_or_else(|_| panic!("{name} isn't {value}"));
    }
}

pub(crate) fn grant(url: &str, node: PublicKey, edge: u32, role: Role) -> Ticket {
    Ticket {
        ring: "ring".into(),
        epoch: 3,
        edge,
        role,
        node,
        relay_url: url.to_owned(),
        expires_ms: now_ms() + 60_000,
    }
}

pub(crate) fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

pub(crate) fn dialer() -> RelayDialer {
    RelayDialer::new(None).unwrap()
}

/// A WebSocket that does what a test tells it to, the role byte not yet sent.
pub(crate) async fn by_hand(address: SocketAddr, ticket: &str) -> WebSocketStream<TcpStream> {
    let request = http::Request::builder()
        .uri(format!("ws://{address}{EDGE_PATH}"))
        .header("Host", address.to_string())
        .header("Connection", "Upgrade")
        .header("Upgrade", "websocket")
        .header("Sec-WebSocket-Version", "13")
        .header("Sec-WebSocket-Key", generate_key())
        .header("Sec-WebSocket-Protocol", SUBPROTOCOL)
        .header("Authorization", format!("Bearer {ticket}"))
        .body(())
        .unwrap();
    let stream = TcpStream::connect(address).await.unwrap();
    let limits = WebSocketConfig::default().max_write_buffer_size(64 << 20);
    client_async_with_config(request, stream, Some(limits)).await.unwrap().0
}

/// Sends an HTTP request as it is, and gives status and body of the answer.
pub(crate) async fn ask(address: SocketAddr, request: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let read = timeout(LIMIT, stream.read_to_end(&mut answer)).await;
    read.expect("the relay answers").unwrap();
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, body.to_owned())
}

/// Reads until the leg ends, and says how the relay closed it.
pub(crate) async fn closed(leg: &mut LegStream) -> Close {
    let mut rest = Vec::new();
    let error = timeout(LIMIT, leg.read_to_end(&mut rest))
        .await
        .expect("the relay closes the leg")
        .unwrap_err();
    match EdgeError::from(error) {
        EdgeError::Leg(LegError::Closed(close)) => close,
        other => panic!("{other:?}"),
    }
}

/// Reads messages until a close frame, and gives its code and text.
pub(crate) async fn close_frame(socket: &mut WebSocketStream<TcpStream>) -> (u16, String) {
    use futures::StreamExt as _;
    let found = async {
        while let Some(message) = socket.next().await {
            if let Message::Close(Some(frame)) = message.unwrap() {
                return (u16::from(frame.code), frame.reason.to_string());
            }
        }
        panic!("no close frame")
    };
    timeout(LIMIT, found).await.expect("the relay closes the leg")
}

/// Sends bytes one way and waits until they are there.
pub(crate) async fn passes(from: &mut LegStream, to: &mut LegStream, bytes: &[u8]) {
    let send = async {
        from.write_all(bytes).await.unwrap();
        from.flush().await.unwrap();
    };
    let mut received = vec![0; bytes.len()];
    let receive = async { to.read_exact(&mut received).await.unwrap() };
    timeout(LIMIT, async { tokio::join!(send, receive) })
        .await
        .expect("the bytes pass");
    assert!(received == bytes, "{} bytes came out otherwise", bytes.len());
}
