//! The operator's loop against an API server in memory and a real market, and what kubelets and stages do.

use std::{sync::Arc, time::Duration};

use kube::Client;
use kvasir_market::{
    Admission, Limits, Market, MarketClient, RingClient, Store, router,
    types::{ClaimRequest, Positions, Reach, Run, StageReport},
};
use kvasir_operator::{
    build::NODE_KEY,
    context::{Context, Pauses},
    controller,
    dereference::owner_key,
    events::Events,
    holder::Told,
    market::Markets,
    metrics::Metrics,
    model::Models,
    names,
    newest::Newest,
    settings::Settings,
    source::Source,
};
use kvasir_plan::Link;
use kvasir_wire::trust::{NodeKeys, SignedManifest};
use prometheus_client::{encoding::text::encode, registry::Registry};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    api_server::ApiServer,
    files::serve,
    status::loaded,
    world::{RING, WINDOWS, WITHIN, changed, model, ready_pod, ring, settings},
};

/// The operator's loop, and what it works with.
pub(crate) struct World {
    pub(crate) api: Arc<ApiServer>,
    pub(crate) relay: String,
    pub(crate) context: Arc<Context>,
    registry: Registry,
    shutdown: CancellationToken,
    operator: tokio::task::JoinHandle<()>,
}

/// The Ring of the other tests, with its model where nobody has to be asked for it.
pub(crate) fn on_volume() -> String {
    changed(
        RING,
        "{http: {url: 'http://files.models.svc/smollm2.gguf'}}",
        "{persistentVolumeClaim: {claimName: models, path: a.gguf}}",
    )
}

/// A market that knows nothing yet.
pub(crate) async fn market() -> Arc<Market> {
    let store = Store::memory(Limits::default()).await.unwrap();
    Market::new(store, Admission::Anyone).await.unwrap()
}

impl World {
    /// With a relay, and the model of [`on_volume`] read already.
    pub(crate) async fn new() -> World {
        World::with(&[], true).await
    }

    /// With a relay, for Rings of these namespaces alone.
    pub(crate) async fn in_namespaces(namespaces: &[&str]) -> World {
        World::with(namespaces, true).await
    }

    /// With a relay, and no model read.
    pub(crate) async fn without_model() -> World {
        World::with(&[], false).await
    }

    async fn with(namespaces: &[&str], is_read: bool) -> World {
        let relay = serve(router(market().await)).await;
        World::start(relay, namespaces, is_read).await
    }

    /// With a relay that may be there.
    pub(crate) async fn on(relay: String) -> World {
        World::start(relay, &[], true).await
    }

    async fn start(relay: String, namespaces: &[&str], is_read: bool) -> World {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let (api, client) = ApiServer::start().await;
        let mut settings = settings();
        settings.relay_url = Some(relay.clone());
        settings.watch_namespaces = namespaces.iter().map(|&namespace| namespace.to_owned()).collect();
        World::work(api, client, settings, is_read)
    }

    /// An operator of another release for the same Rings.
    pub(crate) fn beside(&self, namespace: &str) -> World {
        let mut settings = settings();
        settings.relay_url = Some(self.relay.clone());
        namespace.clone_into(&mut settings.pod_namespace);
        settings.stage_image = format!("{namespace}.example/kvasir-stage:1");
        World::work(self.api.clone(), self.context.client.clone(), settings, true)
    }

    fn work(api: Arc<ApiServer>, client: Client, settings: Settings, is_read: bool) -> World {
        let mut registry = Registry::default();
        let relay = settings.relay_url.clone().unwrap();
        let models = Models::default();
        if is_read {
            let source = Source::of(&ring(&on_volume()).spec.model.source).unwrap();
            models.keep("models", &source, model());
        }
        let (_told, definition) = watch::channel(None);
        let context = Arc::new(Context {
            events: Events::new(client.clone(), "operator"),
            client,
            settings,
            metrics: Metrics::register(&mut registry),
            models,
            markets: Markets::default(),
            pauses: Pauses::default(),
            newest: Newest::default(),
            others: Told::default(),
            definition,
        });
        let shutdown = CancellationToken::new();
        let operator = tokio::spawn(controller::run(context.clone(), shutdown.clone()));
        World {
            api,
            relay,
            context,
            registry,
            shutdown,
            operator,
        }
    }

    pub(crate) fn apply(&self, text: &str) {
        let mut object = serde_json::to_value(ring(text)).unwrap();
        object["metadata"].as_object_mut().unwrap().remove("uid");
        self.api.put("rings", "models", &object);
    }

    pub(crate) fn ring(&self) -> Value {
        self.api.get("rings", "models", "smollm2").unwrap_or_default()
    }

    pub(crate) fn condition(&self, type_: &str) -> Option<String> {
        let ring = self.ring();
        let conditions = ring["status"]["conditions"].as_array()?;
        let found = conditions.iter().find(|condition| condition["type"] == type_)?;
        Some(format!("{}/{}", found["status"].as_str()?, found["reason"].as_str()?))
    }

    /// The same with its message: `status/reason: message`.
    pub(crate) fn said(&self, type_: &str) -> Option<String> {
        let ring = self.ring();
        let conditions = ring["status"]["conditions"].as_array()?;
        let found = conditions.iter().find(|condition| condition["type"] == type_)?;
        let of = |key: &str| found[key].as_str();
        Some(format!("{}/{}: {}", of("status")?, of("reason")?, of("message")?))
    }

    /// How often something was asked of the API server: `POST jobs/smollm2-reader`.
    pub(crate) fn asked(&self, write: &str) -> usize {
        self.api.writes().iter().filter(|asked| *asked == write).count()
    }

    pub(crate) fn visits(&self) -> u64 {
        let mut text = String::new();
        encode(&mut text, &self.registry).unwrap();
        let line = text
            .lines()
            .find(|line| line.starts_with("kvasir_operator_visits_total"));
        line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0)
    }

    /// The keys that a window's pod mounts.
    pub(crate) fn keys(&self, start: u32, end: u32) -> Arc<NodeKeys> {
        let secret = self
            .api
            .get("secrets", "models", &format!("smollm2-0-{start}-{end}"))
            .unwrap();
        let secret: k8s_openapi::api::core::v1::Secret = serde_json::from_value(secret).unwrap();
        let text = String::from_utf8(secret.data.unwrap()[NODE_KEY].0.clone()).unwrap();
        Arc::new(NodeKeys::from_text(&text).unwrap())
    }

    pub(crate) fn as_owner(&self) -> RingClient {
        let secret = self.api.get("secrets", "models", "smollm2-owner").unwrap();
        let owner = Arc::new(owner_key(&secret).unwrap());
        let name = names::on_market("models", "smollm2", 0, &owner.public().fingerprint());
        MarketClient::new(&self.relay, owner).unwrap().ring(&name)
    }

    /// A window's node at the ring's market.
    pub(crate) fn as_node(&self, start: u32, end: u32) -> RingClient {
        let ring = self.as_owner().name().to_owned();
        MarketClient::new(&self.relay, self.keys(start, end))
            .unwrap()
            .ring(&ring)
    }

    /// What kubelet and stages do: pods are ready, windows are claimed, rank 0 signs, and a lap goes round.
    pub(crate) async fn serve(&self) {
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
            let offers = client.market().offers().await.unwrap();
            let identity = &offers[0].model.identity;
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
                identity: identity.clone(),
                ..loaded()
            };
            client.renew(claim.id, &report).await.unwrap();
        }
        let keys = self.keys(0, 10);
        let head = MarketClient::new(&self.relay, keys.clone()).unwrap().ring(&ring);
        let proposal = head.proposal(0).await.unwrap().unwrap();
        let signed = SignedManifest::sign(&proposal.manifest, &keys, proposal.delegation).unwrap();
        head.publish(&signed).await.unwrap();
        let first_lap = Positions {
            epoch: proposal.manifest.epoch,
            committed: 0,
            queued: 0,
        };
        head.positions(&first_lap).await.unwrap();
    }

    pub(crate) async fn end(self) {
        self.shutdown.cancel();
        self.operator.await.unwrap();
    }
}

/// Waits until the market knows the ring no more, by the word of a node for which a window was kept.
pub(crate) async fn off_market(node: &RingClient) {
    let request = ClaimRequest {
        windows: Run { start: 0, end: 1 },
        instance: "instance-0".into(),
    };
    let end = tokio::time::Instant::now() + WITHIN;
    loop {
        let claimed = node.claim(&request).await;
        if claimed.as_ref().is_err_and(|error| error.reason() == "UnknownRing") {
            return;
        }
        assert!(tokio::time::Instant::now() < end, "it is there: {claimed:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
