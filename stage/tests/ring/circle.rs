//! A ring of stages in this process, around a market on the loopback.

use std::sync::Arc;
use std::time::Duration;

use kvasir_market::client::MarketClient;
use kvasir_market::routes::{Admission, Market, router};
use kvasir_market::store::{Limits, Store};
use kvasir_market::types::{Demand, Reach, RingStatus, Run, Source, StageState};
use kvasir_plan::{BoundaryType, LayerRange, ModelRef, Rank, RankManifest};
use kvasir_stage::ring::compute::Compute;
use kvasir_stage::ring::handle::{Event, Finish, Generate, Ring, RingError};
use kvasir_stage::ring::head::HeadHandle;
use kvasir_stage::ring::relays::Relays;
use kvasir_stage::ring::session::Tap;
use kvasir_stage::run::{Keeper, RunError, Running, Stage, StageFacts, Wanted};
use kvasir_wire::edge::Timings;
use kvasir_wire::frame::{Sampled, Sampling};
use kvasir_wire::trust::{NodeKeys, OwnerKey};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// Longest wait for anything in these tests.
pub const LIMIT: Duration = Duration::from_secs(60);

/// A ring's dimensions, with windows of about equal length.
pub fn plan(layers: u32, stages: u32, embedding_length: u32, vocabulary: u32) -> RankManifest {
    let cut = |i: u32| layers * i / stages;
    let ranks = (0..stages)
        .map(|i| Rank {
            layers: LayerRange {
                start: cut(i),
                end: cut(i + 1),
            },
            bytes: 1,
            memory: 1,
            placement: None,
            holder: None,
        })
        .collect();
    RankManifest {
        ring: "test".into(),
        epoch: 0,
        model: ModelRef {
            name: "toy".into(),
            architecture: "toy".into(),
            identity: "00".repeat(32),
            embedding_length,
            layers,
            vocabulary,
            prefix_bytes: vec![],
        },
        boundary_type: BoundaryType::F32,
        exact: false,
        context_length: 256,
        sequences: 8,
        max_laps: 3,
        max_lap_tokens: 16,
        ranks,
    }
}

/// How stages are reached.
#[derive(Clone)]
pub enum Way {
    /// all over TCP
    Direct,
    /// the ranks named by way of a relay
    Relayed {
        ranks: Vec<usize>,
        url: String,
        relays: Option<Relays>,
    },
}

impl Way {
    fn reach(&self, rank: usize, address: String) -> Reach {
        match self {
            Way::Relayed { ranks, .. } if ranks.contains(&rank) => Reach::default(),
            _ => Reach {
                network: Some("local".into()),
                address: Some(address),
            },
        }
    }

    fn relays(&self) -> Option<Relays> {
        match self {
            Way::Direct => None,
            Way::Relayed { relays, .. } => relays.clone(),
        }
    }
}

/// One stage of a [`Circle`].
struct Seat {
    running: Option<Running>,
    stop: CancellationToken,
}

/// A formed ring.
pub struct Circle {
    plan: RankManifest,
    pub head: HeadHandle,
    seats: Vec<Seat>,
    base: String,
    owner: Arc<OwnerKey>,
    keys: Vec<Arc<NodeKeys>>,
    taps: Vec<Option<Tap>>,
    timings: Timings,
    way: Way,
}

impl Circle {
    /// Opens the market and starts one stage per rank; `make` gives each rank its engine.
    pub async fn start<C: Compute + 'static>(
        plan: RankManifest,
        taps: Vec<Option<Tap>>,
        timings: Timings,
        make: impl Fn(usize) -> C,
    ) -> Circle {
        Circle::by(Way::Direct, plan, taps, timings, make).await
    }

    /// [`Circle::start`] with stages that are reached in some way.
    pub async fn by<C: Compute + 'static>(
        way: Way,
        plan: RankManifest,
        taps: Vec<Option<Tap>>,
        timings: Timings,
        make: impl Fn(usize) -> C,
    ) -> Circle {
        let owner = Arc::new(OwnerKey::generate().unwrap());
        let keys: Vec<_> = plan
            .ranks
            .iter()
            .map(|_| Arc::new(NodeKeys::generate().unwrap()))
            .collect();
        let store = Store::memory(Limits::default()).await.unwrap();
        if let Way::Relayed { url, .. } = &way {
            store.announce(url).await.unwrap();
        }
        let market = Market::new(store, Admission::Anyone).await.unwrap();
        let _ = rustls::crypto::ring::default_provider().install_default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(axum::serve(listener, router(market)).into_future());
        let demand = Demand {
            template: plan.clone(),
            source: Source::File { path: "toy".into() },
            delegations: vec![owner.delegate(plan.ring.clone(), keys[0].public())],
            reserved: (0..).zip(keys.iter().map(|keys| keys.public())).collect(),
            trusted_ends: true,
            queued: None,
            lease_s: None,
        };
        let client = MarketClient::new(&base, owner.clone()).unwrap();
        client.ring(&plan.ring).demand(&demand).await.unwrap();
        let mut seats = vec![];
        for (rank, keys) in keys.iter().enumerate() {
            let tap = taps.get(rank).cloned().flatten();
            let (running, stop) = seat(&plan, rank, &base, &owner, keys, tap, timings, &way, make(rank)).await;
            seats.push(Seat {
                running: Some(running),
                stop,
            });
        }
        let head = seats[0]
            .running
            .as_ref()
            .and_then(|running| running.head.clone())
            .unwrap();
        Circle {
            plan,
            head,
            seats,
            base,
            owner,
            keys,
            taps,
            timings,
            way,
        }
    }

    /// The ring as its market sees it.
    pub async fn status(&self) -> RingStatus {
        let market = MarketClient::new(&self.base, self.owner.clone()).unwrap();
        market.ring(&self.plan.ring).status().await.unwrap()
    }

    /// [`Circle::start`], and waits until a lap has gone round.
    pub async fn ready<C: Compute + 'static>(plan: RankManifest, make: impl Fn(usize) -> C) -> Circle {
        let circle = Circle::start(plan, vec![], Timings::default(), make).await;
        circle.wait_ready().await;
        circle
    }

    pub async fn wait_ready(&self) {
        tokio::time::timeout(LIMIT, self.head.wait_ready())
            .await
            .expect("the ring forms");
    }

    /// Ends one stage as a crash would: its tasks are gone, nothing is said.
    pub fn kill(&mut self, rank: usize) {
        self.seats[rank].running.take().unwrap().abort();
    }

    /// Ends one stage as a signal would: it gives its claim back.
    pub async fn leave(&mut self, rank: usize) {
        self.seats[rank].stop.cancel();
        self.ended(rank).await.unwrap();
    }

    /// Waits for one stage to end by itself.
    pub async fn ended(&mut self, rank: usize) -> Result<(), RunError> {
        let running = self.seats[rank].running.take().unwrap();
        tokio::time::timeout(LIMIT, running.ended())
            .await
            .expect("the stage ends")
    }

    /// A new process of the same node takes the rank.
    pub async fn replace<C: Compute + 'static>(&mut self, rank: usize, compute: C) {
        let tap = self.taps.get(rank).cloned().flatten();
        let (running, stop) = seat(
            &self.plan,
            rank,
            &self.base,
            &self.owner,
            &self.keys[rank],
            tap,
            self.timings,
            &self.way,
            compute,
        )
        .await;
        self.seats[rank] = Seat {
            running: Some(running),
            stop,
        };
    }

    /// Ends all stages and waits for them.
    pub async fn stop(self) {
        for seat in self.seats {
            seat.stop.cancel();
            if let Some(running) = seat.running {
                tokio::time::timeout(LIMIT, running.ended())
                    .await
                    .expect("the stage ends")
                    .unwrap();
            }
        }
    }

    /// Asks for an answer and collects it.
    pub async fn answer(&self, request: Generate) -> Result<(Vec<Sampled>, Finish), RingError> {
        collect(self.head.submit(request).await?).await
    }
}

#[allow(clippy::too_many_arguments)]
async fn seat<C: Compute + 'static>(
    plan: &RankManifest,
    rank: usize,
    base: &str,
    owner: &OwnerKey,
    keys: &Arc<NodeKeys>,
    tap: Option<Tap>,
    timings: Timings,
    way: &Way,
    compute: C,
) -> (Running, CancellationToken) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let reach = way.reach(rank, listener.local_addr().unwrap().to_string());
    let windows = Run {
        start: rank as u32,
        end: rank as u32 + 1,
    };
    let market = MarketClient::new(base, keys.clone()).unwrap().ring(&plan.ring);
    let wanted = Wanted::of(market, plan, windows, keys, reach).unwrap();
    let stage = Stage {
        keeper: Keeper::start(wanted, StageState::Loading, None),
        plan: plan.clone(),
        owner: owner.public(),
        keys: keys.clone(),
        listener,
        relays: way.relays(),
        fetched_bytes: 0,
        timings,
        form_within: Duration::from_secs(10),
        tap,
    };
    let stop = CancellationToken::new();
    let load = move || Ok::<_, RunError>((compute, StageFacts { backend: "toy".into() }));
    (stage.start(load, stop.clone()), stop)
}

/// All tokens of a stream, and how it ended.
pub async fn collect(mut stream: tokio::sync::mpsc::Receiver<Event>) -> Result<(Vec<Sampled>, Finish), RingError> {
    let mut tokens = vec![];
    loop {
        let event = tokio::time::timeout(LIMIT, stream.recv())
            .await
            .expect("the ring answers");
        match event.expect("a stream ends with Done or Failed") {
            Event::Prefilled { .. } => {}
            Event::Token(token) => tokens.push(token),
            Event::Done(finish) => return Ok((tokens, finish)),
            Event::Failed(error) => return Err(error),
        }
    }
}

/// Waits until `found` finds something.
pub async fn eventually<T>(what: &str, found: impl AsyncFn() -> Option<T>) -> T {
    let look = async {
        loop {
            if let Some(found) = found().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let found = tokio::time::timeout(LIMIT, look).await;
    found.unwrap_or_else(|_| panic!("in vain: {what}"))
}

/// A plain request.
pub fn request(prompt: Vec<i32>, max_tokens: u32) -> Generate {
    Generate {
        prompt,
        max_tokens,
        sampling: Sampling {
            temperature: 0.0,
            ..Sampling::default()
        },
        stop_tokens: vec![],
    }
}
