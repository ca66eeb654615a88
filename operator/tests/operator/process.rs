//! The program itself, against an API server in memory: its start, its Lease, its memory, its end.

use std::{
    net::TcpListener,
    path::Path,
    process::{Command, ExitStatus},
    sync::Arc,
};

use kube::CustomResourceExt;
use kvasir_api::Ring;
use kvasir_market::{Admission, Limits, Market, Store, router};
use kvasir_tests::process::{Background, Signal, resident_bytes, signal};
use serde_json::{Value, json};

use crate::{
    api_server::ApiServer,
    files::{self, serve},
    world::{RING, changed, eventually, ring},
};

struct World {
    api: Arc<ApiServer>,
    operator: Background,
    http: String,
    folder: tempfile::TempDir,
    model: String,
}

impl World {
    async fn new(definition: Value) -> World {
        let (api, url) = ApiServer::serve().await;
        api.put("customresourcedefinitions", "", &definition);
        let market = Market::new(Store::memory(Limits::default()).await.unwrap(), Admission::Anyone)
            .await
            .unwrap();
        let relay = serve(router(market)).await;
        let model = files::model().await;

        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("kubeconfig");
        let text = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": url}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "users": [{"name": "u", "user": {}}],
        });
        std::fs::write(&config, text.to_string()).unwrap();
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvasir-operator"));
        command
            .arg("run")
            .env("KUBECONFIG", &config)
            .env("KVASIR_STAGE_IMAGE", "registry.example/kvasir-stage:1")
            .env("KVASIR_RELAY_URL", relay)
            .env("KVASIR_HTTP_LISTEN", free.to_string())
            // a chart sets what its user left empty
            .env("KVASIR_WATCH_NAMESPACES", "")
            .env("KVASIR_STAGE_IMAGE_PULL_POLICY", "")
            .env("KVASIR_STAGE_IMAGE_PULL_SECRETS", "")
            .env("POD_NAME", "operator-0")
            .env("POD_NAMESPACE", "kvasir-system")
            .env_remove("RUST_LOG");
        let operator = Background::start(&mut command, &folder.path().join("log"));
        World {
            api,
            operator,
            http: format!("http://{free}"),
            folder,
            model,
        }
    }

    fn apply(&self, name: &str, text: &str) {
        let text = changed(text, "http://files.models.svc/smollm2.gguf", &self.model);
        let mut object = serde_json::to_value(ring(&text)).unwrap();
        object["metadata"].as_object_mut().unwrap().remove("uid");
        object["metadata"]["name"] = json!(name);
        self.api.put("rings", "models", &object);
    }

    fn said(&self, name: &str, type_: &str) -> Option<(String, String)> {
        let ring = self.api.get("rings", "models", name)?;
        let conditions = ring["status"]["conditions"].as_array()?;
        let found = conditions.iter().find(|condition| condition["type"] == type_)?;
        Some((found["reason"].as_str()?.into(), found["message"].as_str()?.into()))
    }

    fn lease_holder(&self) -> Option<String> {
        let lease = self.api.get("leases", "kvasir-system", "kvasir-operator")?;
        lease["spec"]["holderIdentity"]
            .as_str()
            .filter(|holder| !holder.is_empty())
            .map(str::to_owned)
    }

    async fn ended(&mut self) -> ExitStatus {
        assert!(signal(self.operator.id(), Signal::TERM));
        let mut status = None;
        eventually("the operator's end", || {
            status = self.operator.ended();
            status.is_some()
        })
        .await;
        status.unwrap()
    }

    fn log(&self) -> String {
        std::fs::read_to_string(Path::new(self.folder.path()).join("log")).unwrap()
    }
}

fn definition() -> Value {
    serde_json::to_value(Ring::crd()).unwrap()
}

async fn fetched(url: &str) -> Option<String> {
    let address = url.strip_prefix("http://").unwrap();
    let (host, path) = address.split_once('/').unwrap();
    let mut stream = tokio::net::TcpStream::connect(host).await.ok()?;
    let request = format!("GET /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    tokio::io::AsyncWriteExt::write_all(&mut stream, request.as_bytes())
        .await
        .ok()?;
    let mut answer = String::new();
    tokio::io::AsyncReadExt::read_to_string(&mut stream, &mut answer)
        .await
        .ok()?;
    Some(answer)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_operator_takes_its_lease_works_and_gives_it_back_at_its_end() {
    let mut world = World::new(definition()).await;
    world.apply("smollm2", RING);
    eventually("the last child", || world.api.names("deployments").len() == 3).await;
    assert_eq!(world.lease_holder().as_deref(), Some("operator-0"));
    assert!(
        fetched(&format!("{}/readyz", world.http))
            .await
            .unwrap()
            .ends_with("ready\n")
    );
    let metrics = fetched(&format!("{}/metrics", world.http)).await.unwrap();
    assert!(metrics.contains("kvasir_operator_leader 1"), "{metrics}");
    let status = world.ended().await;
    assert!(status.success(), "{status}\n{}", world.log());
    assert_eq!(world.lease_holder(), None, "the next one needn't wait");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s11_an_outdated_definition_is_told_in_every_rings_conditions() {
    let mut older = definition();
    let fields = &mut older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"];
    for (part, field) in [("spec", "exact"), ("status", "operator"), ("status", "readyRings")] {
        fields[part]["properties"].as_object_mut().unwrap().remove(field);
    }
    let mut world = World::new(older).await;
    world.apply("smollm2", RING);
    let told = || {
        world
            .said("smollm2", "Degraded")
            .filter(|(reason, _)| reason == "OutdatedDefinition")
    };
    eventually("what is wrong", || told().is_some()).await;
    assert_eq!(
        told().unwrap().1,
        "the cluster's definition of Ring is of another version and lacks spec.exact, status.operator, \
         status.readyRings: upgrade the chart kvasir-crds"
    );
    assert!(world.ended().await.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_sleeping_rings_converge_in_little_memory_and_are_silent_then() {
    const RINGS: usize = 200;
    let mut world = World::new(definition()).await;
    let text = changed(RING, "  exact: true", "  exact: true\n  suspend: true");
    for number in 0..RINGS {
        world.apply(&format!("ring-{number}"), &text);
    }
    let asleep = |number: usize| {
        let said = world.said(&format!("ring-{number}"), "Ready");
        said.is_some_and(|(reason, _)| reason == "Suspended")
    };
    let mut next = 0;
    eventually("the last ring", || {
        while next < RINGS && asleep(next) {
            next += 1;
        }
        next == RINGS
    })
    .await;
    let writes = world.api.writes().len();
    let memory = resident_bytes(world.operator.id()).unwrap() >> 20;
    assert!(memory < 128, "{memory} MiB");
    // one more, whose end shows that the operator has come past all that was waiting before
    world.apply("last", &text);
    let mut more = 0;
    eventually("one more ring", || {
        more = world
            .api
            .writes()
            .iter()
            .skip(writes)
            .filter(|write| !write.contains("/last"))
            .count();
        world
            .said("last", "Ready")
            .is_some_and(|(reason, _)| reason == "Suspended")
    })
    .await;
    assert_eq!(more, 0, "{:?}", &world.api.writes()[writes..]);
    assert!(world.ended().await.success());
    eprintln!("{RINGS} sleeping rings: {memory} MiB");
}
