//! The loop against an API server in memory and a real market: from a Ring to ready, silence, and its end.

use std::sync::Arc;

use kvasir_market::{
    Admission, Limits, Market, MarketClient, RingClient, Store, router,
    types::{ClaimRequest, Reach, Run, StageReport, StageState},
};
use kvasir_operator::{
    build::NODE_KEY,
    context::{Context, Pauses},
    controller,
    dereference::owner_key,
    events::Events,
    market::Markets,
    metrics::Metrics,
    model::Models,
    names,
    release::FINALIZER,
    source::Source,
};
use kvasir_plan::Link;
use kvasir_wire::trust::{NodeKeys, SignedManifest};
use prometheus_client::{encoding::text::encode, registry::Registry};
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::watch};
use tokio_util::sync::CancellationToken;

use crate::{
    api_server::ApiServer,
    world::{RING, WINDOWS, changed, eventually, model, ready_pod, ring, settings},
};

struct World {
    api: Arc<ApiServer>,
    relay: String,
    registry: Registry,
    shutdown: CancellationToken,
    operator: tokio::task::JoinHandle<()>,
}

/// The Ring of the other tests, with its model where nobody has to be asked for it.
fn on_volume() -> String {
    changed(
        RING,
        "{http: {url: 'http://files.models.svc/smollm2.gguf'}}",
        "{persistentVolumeClaim: {claimName: models, path: a.gguf}}",
    )
}

impl World {
    async fn new() -> World {
        let market = Market::new(Store::memory(Limits::default()).await.unwrap(), Admission::Anyone)
            .await
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let relay = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router(market)).await.unwrap() });
        World::on(relay).await
    }

    /// With a relay that may be there.
    async fn on(relay: String) -> World {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let (api, client) = ApiServer::start().await;
        let mut registry = Registry::default();
        let mut settings = settings();
        settings.relay_url = Some(relay.clone());
        let models = Models::default();
        let source = Source::of(&ring(&on_volume()).spec.model.source).unwrap();
        models.keep("models", &source, model());
        let (_told, definition) = watch::channel(None);
        let context = Arc::new(Context {
            events: Events::new(client.clone(), "operator"),
            client,
            settings,
            metrics: Metrics::register(&mut registry),
            models,
            markets: Markets::default(),
            pauses: Pauses::default(),
            definition,
        });
        let shutdown = CancellationToken::new();
        let operator = tokio::spawn(controller::run(context, shutdown.clone()));
        World {
            api,
            relay,
            registry,
            shutdown,
            operator,
        }
    }

    fn apply(&self, text: &str) {
        let mut object = serde_json::to_value(ring(text)).unwrap();
        object["metadata"].as_object_mut().unwrap().remove("uid");
        self.api.put("rings", "models", &object);
    }

    fn ring(&self) -> Value {
        self.api.get("rings", "models", "smollm2").unwrap_or_default()
    }

    fn condition(&self, type_: &str) -> Option<String> {
        let ring = self.ring();
        let conditions = ring["status"]["conditions"].as_array()?;
        let found = conditions.iter().find(|condition| condition["type"] == type_)?;
        Some(format!("{}/{}", found["status"].as_str()?, found["reason"].as_str()?))
    }

    fn visits(&self) -> u64 {
        let mut text = String::new();
        encode(&mut text, &self.registry).unwrap();
        let line = text
            .lines()
            .find(|line| line.starts_with("kvasir_operator_visits_total"));
        line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0)
    }

    /// The keys that a window's pod mounts.
    fn keys(&self, start: u32, end: u32) -> Arc<NodeKeys> {
        let secret = self
            .api
            .get("secrets", "models", &format!("smollm2-0-{start}-{end}"))
            .unwrap();
        let secret: k8s_openapi::api::core::v1::Secret = serde_json::from_value(secret).unwrap();
        let text = String::from_utf8(secret.data.unwrap()[NODE_KEY].0.clone()).unwrap();
        Arc::new(NodeKeys::from_text(&text).unwrap())
    }

    fn as_owner(&self) -> RingClient {
        let secret = self.api.get("secrets", "models", "smollm2-owner").unwrap();
        let owner = Arc::new(owner_key(&secret).unwrap());
        let name = names::on_market("models", "smollm2", 0, &owner.public().fingerprint());
        MarketClient::new(&self.relay, owner).unwrap().ring(&name)
    }

    /// What kubelet and stages do: pods are ready, windows are claimed, rank 0 signs.
    async fn serve(&self) {
        let ring = self.as_owner().name().to_owned();
        for (rank, (start, end)) in WINDOWS.into_iter().enumerate() {
            let pod = serde_json::to_value(ready_pod(0, start, end)).unwrap();
            let mut pod = pod;
            pod["metadata"]["labels"]["app.kubernetes.io/managed-by"] = json!("kvasir-operator");
            self.api.put("pods", "models", &pod);
            let keys = self.keys(start, end);
            let client = MarketClient::new(&self.relay, keys.clone()).unwrap().ring(&ring);
            let address = format!("10.0.0.{rank}:7000");
            let windows = Run {
                start: rank as u32,
                end: rank as u32 + 1,
            };
            let instance = format!("instance-{rank}");
            let request = ClaimRequest {
                windows,
                instance: instance.clone(),
            };
            let claim = client.claim(&request).await.unwrap();
            let report = StageReport {
                holder: keys.holder(
                    instance,
                    Link::Direct {
                        address: address.clone(),
                    },
                ),
                reach: Reach {
                    network: Some("cluster".into()),
                    address: Some(address),
                },
                layers: kvasir_plan::LayerRange { start, end },
                identity: model().identity.clone(),
                state: StageState::Ready {
                    fetched_bytes: 1,
                    resident_bytes: 1,
                    backend: "CPU".into(),
                },
                lost_epoch: None,
                lost_reason: None,
                lost_edge: None,
                lost_end: None,
            };
            client.renew(claim.id, &report).await.unwrap();
        }
        let keys = self.keys(0, 10);
        let head = MarketClient::new(&self.relay, keys.clone()).unwrap().ring(&ring);
        let proposal = head.proposal(0).await.unwrap().unwrap();
        let signed = SignedManifest::sign(&proposal.manifest, &keys, proposal.delegation).unwrap();
        head.publish(&signed).await.unwrap();
    }

    async fn end(self) {
        self.shutdown.cancel();
        self.operator.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ring_becomes_ready_and_then_nothing_is_written_until_it_goes() {
    let world = World::new().await;
    world.apply(&on_volume());
    eventually("the last child", || world.api.names("deployments").len() == 3).await;
    assert_eq!(world.api.names("services"), ["smollm2"]);
    eventually("what it waits for", || {
        world.condition("Ready").as_deref() == Some("False/AwaitingStages")
    })
    .await;
    assert_eq!(world.ring()["metadata"]["finalizers"], json!([FINALIZER]));
    let demanded = world.as_owner().status().await.unwrap();
    assert_eq!(demanded.windows.len(), 3);

    world.serve().await;
    eventually("readiness", || {
        world.condition("Ready").as_deref() == Some("True/LapCompleted")
    })
    .await;
    assert_eq!(world.ring()["status"]["stages"], "3/3");
    assert_eq!(world.condition("Progressing").as_deref(), Some("True/Complete"));

    // a visit for each time that something of it is touched, and not one write
    let writes = world.api.writes();
    for round in 0..5 {
        let visits = world.visits();
        let pod = json!({"metadata": {"name": "smollm2-0-0-10-abc", "annotations": {"round": round.to_string()}}});
        world.api.put("pods", "models", &pod);
        eventually("a visit", || world.visits() > visits).await;
    }
    assert_eq!(world.api.writes()[writes.len()..], [] as [String; 0]);

    let owner = world.as_owner();
    world.api.delete("rings", "models", "smollm2");
    eventually("its end", || world.api.get("rings", "models", "smollm2").is_none()).await;
    assert_eq!(world.api.names("deployments"), [] as [String; 0]);
    // the ring is off the market: nobody can claim of it
    let request = ClaimRequest {
        windows: Run { start: 0, end: 1 },
        instance: "i".into(),
    };
    assert!(owner.claim(&request).await.is_err());
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e3_a_relay_that_is_gone_does_not_keep_a_ring() {
    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let relay = format!("http://{}", nobody.local_addr().unwrap());
    drop(nobody);
    let world = World::on(relay).await;
    world.apply(&on_volume());
    eventually("the last child", || world.api.names("deployments").len() == 3).await;
    eventually("what is wrong", || {
        world.condition("Degraded").as_deref() == Some("True/RelayUnreachable")
    })
    .await;
    assert_eq!(world.ring()["metadata"]["finalizers"], json!([FINALIZER]));
    // it has been tried for long enough: the API server's clock stands still, long ago
    world.api.delete("rings", "models", "smollm2");
    eventually("its end", || world.api.get("rings", "models", "smollm2").is_none()).await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e3_nothing_is_made_in_a_namespace_that_ends() {
    let world = World::new().await;
    world.api.terminate("models");
    world.apply(&on_volume());
    // refused before it is known, and allowed to be there
    eventually("the first status", || world.condition("Ready").is_some()).await;
    let visits = world.visits();
    eventually("another visit", || world.visits() > visits).await;
    assert_eq!(world.api.names("secrets"), [] as [String; 0]);
    let tries = || {
        world
            .api
            .writes()
            .iter()
            .filter(|write| write.starts_with("POST"))
            .count()
    };
    eventually("one try", || tries() == 1).await;
    world.api.delete("rings", "models", "smollm2");
    eventually("its end", || world.api.get("rings", "models", "smollm2").is_none()).await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_suspended_ring_has_no_pods_and_is_on_no_market() {
    let world = World::new().await;
    world.apply(&changed(
        &on_volume(),
        "  exact: true",
        "  exact: true\n  suspend: true",
    ));
    eventually("the last child", || world.api.names("deployments").len() == 3).await;
    eventually("sleep", || {
        world.condition("Ready").as_deref() == Some("False/Suspended")
    })
    .await;
    let stage = world.api.get("deployments", "models", "smollm2-0-0-10").unwrap();
    assert_eq!(stage["spec"]["replicas"], 0);
    assert_eq!(world.as_owner().status().await.unwrap_err().reason(), "UnknownRing");
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e1_a_ring_that_can_not_be_read_keeps_no_other_from_being_served() {
    let world = World::new().await;
    let broken = json!({
        "metadata": {"name": "broken", "finalizers": [FINALIZER]}, "spec": {"model": "a text"},
    });
    world.api.put("rings", "models", &broken);
    world.apply(&on_volume());
    eventually("the other's children", || world.api.names("deployments").len() == 3).await;
    world.api.delete("rings", "models", "broken");
    eventually("its end", || world.api.get("rings", "models", "broken").is_none()).await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_of_somebody_elses_is_left_alone_and_named() {
    let world = World::new().await;
    let service = json!({"metadata": {"name": "smollm2"}, "spec": {"selector": {"app": "other"}}});
    world.api.put("services", "models", &service);
    world.apply(&on_volume());
    eventually("what is wrong", || {
        world.condition("Degraded").as_deref() == Some("True/NameInUse")
    })
    .await;
    let service = world.api.get("services", "models", "smollm2").unwrap();
    assert_eq!(service["spec"]["selector"], json!({"app": "other"}));
    assert_eq!(world.api.names("deployments").len(), 3, "all else is there");
    world.end().await;
}
