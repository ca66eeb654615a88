//! A market on a store of its own, an owner, nodes, and a ring of three windows.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use kvasir_market::{
    Admission, Limits, Market, MarketClient, RateLimits, RingClient, Store,
    auth::Signer,
    router,
    types::{
        Claim, ClaimRequest, Demand, Enrolment, InviteRequest, Positions, Reach, Run, Source, StageReport, StageState,
    },
};
use kvasir_plan::{BoundaryType, LayerRange, Link, ModelRef, Rank, RankManifest};
use kvasir_tests::postgres::Postgres;
use kvasir_wire::trust::{NodeKeys, OwnerKey, SignedManifest};
use secrecy::SecretString;
use tempfile::TempDir;

pub(crate) const RING: &str = "tea";
pub(crate) const WINDOWS: u32 = 3;
/// Longest wait for anything in these tests.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Sqlite,
    Postgres,
}

/// Where the store lies.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    File(Arc<TempDir>),
    Database(String),
}

pub(crate) struct World {
    pub(crate) kind: Kind,
    pub(crate) place: Place,
    pub(crate) market: Arc<Market>,
    pub(crate) url: String,
    pub(crate) owner: Arc<OwnerKey>,
    pub(crate) nodes: Vec<Arc<NodeKeys>>,
    server: tokio::task::JoinHandle<()>,
}

impl Place {
    fn new(kind: Kind) -> Self {
        match kind {
            Kind::Sqlite => Place::File(Arc::new(tempfile::tempdir().unwrap())),
            Kind::Postgres => Place::Database(Postgres::shared().database()),
        }
    }

    pub(crate) async fn store(&self, limits: Limits) -> Store {
        match self {
            Place::File(folder) => Store::file(&folder.path().join("a market?%.db"), limits).await.unwrap(),
            Place::Database(url) => Store::postgres(&SecretString::from(url.clone()), limits).await.unwrap(),
        }
    }
}

pub(crate) async fn serve(router: axum::Router) -> (String, tokio::task::JoinHandle<()>) {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let service = router.into_make_service_with_connect_info::<SocketAddr>();
    let server = tokio::spawn(async move { axum::serve(listener, service).await.unwrap() });
    (url, server)
}

impl World {
    /// A market without rings.
    pub(crate) async fn new(kind: Kind) -> Self {
        World::with_limits(kind, Limits::default()).await
    }

    pub(crate) async fn with_limits(kind: Kind, limits: Limits) -> Self {
        World::with_rates(kind, limits, RateLimits::default()).await
    }

    pub(crate) async fn with_rates(kind: Kind, limits: Limits, rates: RateLimits) -> Self {
        let place = Place::new(kind);
        let store = place.store(limits).await;
        let market = Market::with_rates(store, Admission::Anyone, rates).await.unwrap();
        let (url, server) = serve(router(market.clone())).await;
        World {
            kind,
            place,
            market,
            url,
            owner: Arc::new(OwnerKey::generate().unwrap()),
            nodes: (0..4).map(|_| Arc::new(NodeKeys::generate().unwrap())).collect(),
            server,
        }
    }

    /// The relay ends and another starts on the same store.
    pub(crate) async fn restart(&mut self) {
        self.server.abort();
        let _ = (&mut self.server).await;
        self.market = Market::new(self.place.store(Limits::default()).await, Admission::Anyone)
            .await
            .unwrap();
        (self.url, self.server) = serve(router(self.market.clone())).await;
    }

    /// Another relay on the same database.
    pub(crate) async fn another_relay(&self) -> (Arc<Market>, String) {
        let market = Market::new(self.place.store(Limits::default()).await, Admission::Anyone)
            .await
            .unwrap();
        (market.clone(), serve(router(market)).await.0)
    }

    pub(crate) fn client(&self, signer: Arc<dyn Signer>) -> MarketClient {
        MarketClient::new(&self.url, signer).unwrap()
    }

    pub(crate) fn owner(&self) -> RingClient {
        self.client(self.owner.clone()).ring(RING)
    }

    pub(crate) fn node(&self, node: usize) -> RingClient {
        self.client(self.nodes[node].clone()).ring(RING)
    }

    /// A node at another relay.
    pub(crate) fn node_at(&self, url: &str, node: usize) -> RingClient {
        MarketClient::new(url, self.nodes[node].clone()).unwrap().ring(RING)
    }

    pub(crate) fn demand(&self) -> Demand {
        Demand {
            template: plan(),
            source: Source::Http {
                url: "http://models.example/tea.gguf".to_owned(),
            },
            delegations: vec![self.owner.delegate(RING, self.nodes[0].public())],
            reserved: [(0, self.nodes[0].public()), (2, self.nodes[2].public())].into(),
            trusted_ends: true,
            queued: None,
            lease_s: None,
        }
    }

    pub(crate) async fn invite(&self, uses: u32, expires_in_s: u32) -> SecretString {
        let request = InviteRequest {
            ring: RING.to_owned(),
            uses,
            expires_in_s,
        };
        let granted = self.owner().market().invite(&request).await.unwrap();
        granted.token.into()
    }

    /// The ring is on the market, and all nodes are enrolled.
    pub(crate) async fn open(&self) {
        self.open_as(self.demand()).await;
    }

    pub(crate) async fn open_as(&self, demand: Demand) {
        self.owner().demand(&demand).await.unwrap();
        let invite = self.invite(self.nodes.len() as u32, 3600).await;
        for node in 0..self.nodes.len() {
            self.node(node).market().enrol(&invite, &enrolment()).await.unwrap();
        }
    }

    pub(crate) async fn claim(&self, node: usize, window: u32) -> Claim {
        self.node(node).claim(&request(window, "first")).await.unwrap()
    }

    pub(crate) fn report(&self, node: usize, window: u32, state: StageState) -> StageReport {
        self.report_of(node, window, "first", state)
    }

    pub(crate) fn report_of(&self, node: usize, window: u32, instance: &str, state: StageState) -> StageReport {
        let address = format!("127.0.0.1:{}", 4000 + node);
        StageReport {
            holder: self.nodes[node].holder(
                instance,
                Link::Direct {
                    address: address.clone(),
                },
            ),
            reach: Reach {
                network: Some("here".to_owned()),
                address: Some(address),
            },
            layers: plan().ranks[window as usize].layers,
            identity: "1".repeat(64),
            state,
            epoch: 0,
            lost_epoch: None,
            lost_reason: None,
            lost_edge: None,
            lost_end: None,
        }
    }

    /// Every node claims its window and is ready.
    pub(crate) async fn all_ready(&self) -> Vec<Claim> {
        let mut claims = Vec::new();
        for window in 0..WINDOWS {
            let node = window as usize;
            let claim = self.claim(node, window).await;
            self.node(node)
                .renew(claim.id, &self.report(node, window, ready()))
                .await
                .unwrap();
            claims.push(claim);
        }
        claims
    }

    /// Signs and publishes what is proposed.
    pub(crate) async fn publish(&self, after: u64) -> SignedManifest {
        let proposal = self.node(0).proposal(after).await.unwrap().expect("a proposal");
        let signed = SignedManifest::sign(&proposal.manifest, &self.nodes[0], proposal.delegation).unwrap();
        self.node(0).publish(&signed).await.unwrap();
        signed
    }

    /// Rank 0 says that the epoch's first lap went round.
    pub(crate) async fn close(&self, epoch: u64) {
        self.node(0).positions(&positions(epoch, 0)).await.unwrap();
    }

    /// A formed ring, in epoch 1.
    pub(crate) async fn formed(&self) -> Vec<Claim> {
        self.open().await;
        let claims = self.all_ready().await;
        self.publish(0).await;
        claims
    }
}

pub(crate) fn ready() -> StageState {
    StageState::Ready {
        fetched_bytes: 7,
        resident_bytes: 9,
        backend: "CPU".to_owned(),
    }
}

pub(crate) fn request(window: u32, instance: &str) -> ClaimRequest {
    ClaimRequest {
        windows: Run {
            start: window,
            end: window + 1,
        },
        instance: instance.to_owned(),
    }
}

pub(crate) fn enrolment() -> Enrolment {
    Enrolment {
        name: Some("a laptop".to_owned()),
        platform: "linux-x86_64".to_owned(),
        memory: 1 << 40,
    }
}

pub(crate) fn positions(epoch: u64, committed: u64) -> Positions {
    Positions {
        epoch,
        committed,
        queued: 0,
    }
}

pub(crate) fn plan() -> RankManifest {
    let rank = |start| Rank {
        layers: LayerRange { start, end: start + 2 },
        bytes: 300_000_000,
        memory: 400_000_000,
        placement: None,
        holder: None,
    };
    RankManifest {
        ring: RING.to_owned(),
        epoch: 0,
        model: ModelRef {
            name: "tea".to_owned(),
            architecture: "llama".to_owned(),
            identity: "1".repeat(64),
            embedding_length: 8,
            layers: 2 * WINDOWS,
            vocabulary: 10,
            prefix_bytes: Vec::new(),
        },
        boundary_type: BoundaryType::F32,
        exact: true,
        context_length: 64,
        sequences: 1,
        max_laps: 4,
        max_lap_tokens: 16,
        ranks: (0..WINDOWS).map(|window| rank(2 * window)).collect(),
    }
}

/// Looks again and again until there is something.
pub(crate) async fn eventually<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(begun.elapsed() < LIMIT, "{what}: not within {LIMIT:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
