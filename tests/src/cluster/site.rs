//! A namespace of a test's own, with an operator and a relay that serve it alone, and a web server with the models.

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{Cluster, eventually, repository, run};
use crate::client::Client;
use crate::models;
use crate::nginx::Nginx;
use crate::ring::{example, http_source};

/// For windows to be fetched and loaded, and a ring to form.
const FORMS: Duration = Duration::from_secs(180);
/// For `helm install --wait`, and for objects to go.
const SETTLES: Duration = Duration::from_secs(180);

/// Name of the release, which names the objects: `kvasir-operator`, `kvasir-relay`.
const RELEASE: &str = "kvasir";

/// A namespace; dropping it removes all that is in it, and says what was there when the test failed.
#[derive(Debug)]
pub struct Site {
    cluster: &'static Cluster,
    namespace: String,
    /// running until the end
    _server: Nginx,
    port: u16,
    folder: TempDir,
}

/// A condition of a Ring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// `True`, `False` or `Unknown`
    pub status: String,
    /// one word
    pub reason: String,
    /// for people
    pub message: String,
}

impl Site {
    /// A namespace that holds its pods to Pod Security "restricted".
    pub fn new(cluster: &'static Cluster, namespace: &str) -> Self {
        remove_namespace(cluster, namespace);
        run(&mut cluster.kubectl(["create", "namespace", namespace])).unwrap();
        restrict(cluster, namespace);
        // Nobody else asks for it, so that its log is of this test.
        let folder = tempfile::tempdir().unwrap();
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let root = folder.path().join("www");
        fs::create_dir(&root).unwrap();
        std::os::unix::fs::symlink(models::smollm2(), root.join(file_name(&models::smollm2()))).unwrap();
        let log = folder.path().join("server.log");
        let directives = format!(
            "listen {}:{port}; access_log {} combined;",
            cluster.machine(),
            log.display()
        );
        Site {
            cluster,
            namespace: namespace.to_owned(),
            _server: Nginx::serve_with(&root, &directives),
            port,
            folder,
        }
    }

    /// The cluster.
    pub fn cluster(&self) -> &'static Cluster {
        self.cluster
    }

    /// The namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// A file of this test's own.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Installs the definition and the operator, `helm install --wait`, with further settings `name=value`.
    pub fn install(&self, settings: &[&str]) {
        self.install_definition();
        run(&mut self.helm_install("install", settings)).unwrap_or_else(|error| panic!("{error}"));
    }

    /// Installs the definition, or brings it to the chart's version, and waits until it is served.
    pub fn install_definition(&self) {
        let chart = repository().join("charts/kvasir-crds");
        let mut command = self.cluster.helm(["upgrade", "--install", "--wait", "kvasir-crds"]);
        run(command
            .arg(chart)
            .args(["--namespace", "kvasir-definitions", "--create-namespace"]))
        .unwrap();
        // the API server goes over to another definition a moment after it was written
        let mut last = String::new();
        let served = eventually(SETTLES, || {
            self.try_apply(&self.ring()).map_err(|told| last = told).ok()
        });
        assert!(
            served.is_some() || thread::panicking(),
            "the definition is not served: {last}"
        );
    }

    /// `helm install` or `upgrade` of the operator, serving this namespace, with the test's images.
    pub fn helm_install(&self, verb: &str, settings: &[&str]) -> std::process::Command {
        let images = self.cluster.images();
        let image = |at: &str, what: &str| {
            [
                format!("{at}image.repository={}{what}", images.prefix),
                format!("{at}image.tag={}", images.tag),
                format!("{at}image.pullPolicy={}", images.pull_policy),
            ]
        };
        let busybox = |at: &str| {
            [
                format!("{at}tests.image.repository={}", images.busybox),
                format!("{at}tests.image.tag={}", images.busybox_tag),
            ]
        };
        let mut all = vec![format!("watchNamespaces={{{}}}", self.namespace)];
        all.extend(image("", "operator"));
        all.extend(image("stage.", "stage"));
        all.extend(image("relay.", "relay"));
        all.extend(busybox(""));
        all.extend(busybox("relay."));
        all.extend(settings.iter().map(|&setting| setting.to_owned()));
        let chart = repository().join("charts/kvasir-operator");
        let mut command = self.cluster.helm([verb, RELEASE]);
        command
            .arg(chart)
            .args(["--namespace", &self.namespace, "--wait", "--timeout"])
            .arg(format!("{}s", SETTLES.as_secs()));
        for setting in all {
            // a tag is a text even if it looks like a number
            let set = if setting.contains("image.tag=") {
                "--set-string"
            } else {
                "--set"
            };
            command.args([set, &setting]);
        }
        command
    }

    /// Takes the operator and the relay away, as a user does.
    pub fn uninstall(&self) {
        let mut command = self
            .cluster
            .helm(["uninstall", RELEASE, "--wait", "--namespace", &self.namespace]);
        run(&mut command).unwrap();
    }

    /// Address of a file of the site's web server, for pods and for this machine.
    pub fn url(&self, file: &str) -> String {
        format!("http://{}:{}/{file}", self.cluster.machine(), self.port)
    }

    /// Address of the model of [`Site::ring`].
    pub fn model_url(&self) -> String {
        self.url(&file_name(&models::smollm2()))
    }

    /// Takes the model off the server, or puts it back.
    pub fn set_model(&self, there: bool) {
        let link = self.folder.path().join("www").join(file_name(&models::smollm2()));
        if there {
            std::os::unix::fs::symlink(models::smollm2(), link).unwrap();
        } else {
            fs::remove_file(link).unwrap();
        }
    }

    /// `examples/smollm2-135m-cluster.yaml` with this site's server as its source, exact, and a port on every node.
    pub fn ring(&self) -> Value {
        let mut ring = example("smollm2-135m-cluster.yaml", http_source(&self.model_url()));
        ring["spec"]["exact"] = json!(true);
        ring["spec"]["endpoint"]["serviceType"] = json!("NodePort");
        // where it goes is for who applies it to say
        ring["metadata"].as_object_mut().unwrap().remove("namespace");
        ring
    }

    /// Applies a Ring, and says how the API server refuses it if it does.
    pub fn apply(&self, object: &Value) -> Result<String, String> {
        self.cluster.apply(object, &["--namespace", &self.namespace])
    }

    /// What [`Site::apply`] would say; nothing is applied.
    pub fn try_apply(&self, object: &Value) -> Result<String, String> {
        let arguments = ["--namespace", &self.namespace, "--dry-run=server"];
        self.cluster.apply(object, &arguments)
    }

    /// An object of the namespace: `["ring", "smollm2"]`.
    pub fn get(&self, arguments: &[&str]) -> Option<Value> {
        let arguments = [arguments, &["--namespace", &self.namespace]].concat();
        self.cluster.get(&arguments)
    }

    /// The items of a list: `["pods", "--selector=…"]`.
    pub fn list(&self, arguments: &[&str]) -> Vec<Value> {
        let list = self.get(arguments).unwrap_or_default();
        list["items"].as_array().cloned().unwrap_or_default()
    }

    /// `kubectl` in the namespace, to its end.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String, String> {
        let mut command = self.cluster.kubectl(["--namespace", &self.namespace]);
        run(command.args(arguments))
    }

    /// A condition of a Ring, if it is set.
    pub fn condition(&self, ring: &str, kind: &str) -> Option<Condition> {
        let ring = self.get(&["ring", ring])?;
        let conditions = ring["status"]["conditions"].as_array()?.clone();
        let found = conditions.into_iter().find(|condition| condition["type"] == kind)?;
        let text = |key: &str| found[key].as_str().unwrap_or_default().to_owned();
        Some(Condition {
            status: text("status"),
            reason: text("reason"),
            message: text("message"),
        })
    }

    /// Waits for a condition of a Ring to be as `wanted` says, and gives it.
    pub fn wait_condition(
        &self,
        ring: &str,
        kind: &str,
        within: Duration,
        wanted: impl Fn(&Condition) -> bool,
    ) -> Condition {
        let mut last = None;
        let found = eventually(within, || {
            last = self.condition(ring, kind);
            last.clone().filter(|condition| wanted(condition))
        });
        found.unwrap_or_else(|| panic!("{kind} of {ring} within {within:?}: {last:?}"))
    }

    /// Waits until a Ring is Ready.
    pub fn wait_ready(&self, ring: &str) {
        let mut last = Value::Null;
        let ready = eventually(FORMS, || {
            let object = self.get(&["ring", ring])?;
            // what is told of it as it is now, not as it was before it was changed
            let current = object["status"]["observedGeneration"] == object["metadata"]["generation"];
            last = object["status"]["conditions"].clone();
            let mut conditions = last.as_array().into_iter().flatten();
            let ready = conditions.any(|condition| condition["type"] == "Ready" && condition["status"] == "True");
            (current && ready).then_some(())
        });
        assert!(ready.is_some(), "{ring} is not Ready within {FORMS:?}: {last}");
    }

    /// Epoch of the first ring of a Ring, when it is ready.
    pub fn ready_epoch(&self, ring: &str) -> Option<i64> {
        let ring = self.get(&["ring", ring])?;
        let first = &ring["status"]["rings"][0];
        first["epoch"].as_i64().filter(|_| first["ready"] == true)
    }

    /// Pods of a Ring's stages that are not on their way out.
    pub fn stages(&self, ring: &str) -> Vec<Value> {
        let selector = format!("--selector=kvasir.dev/ring={ring},app.kubernetes.io/component=stage");
        let pods = self.list(&["pods", &selector]);
        let stays = |pod: &Value| pod["metadata"]["deletionTimestamp"].is_null();
        pods.into_iter().filter(stays).collect()
    }

    /// Where a Ring's API is reached through its Service: at a port of a node that is ready.
    pub fn endpoint(&self, ring: &str) -> Option<SocketAddr> {
        let service = self.get(&["service", ring])?;
        let port = u16::try_from(service["spec"]["ports"][0]["nodePort"].as_u64()?).ok()?;
        Some((self.cluster.node_address(), port).into())
    }

    /// A client of a Ring's API.
    pub fn client(&self, ring: &str) -> Client {
        Client::new(eventually(FORMS, || self.endpoint(ring)).expect("the Ring's Service"))
    }

    /// Bytes that each address has had of the model.
    pub fn sent(&self) -> BTreeMap<String, u64> {
        let log = fs::read_to_string(self.folder.path().join("server.log")).unwrap_or_default();
        let mut sent = BTreeMap::new();
        for line in log.lines() {
            let (who, rest) = line.split_once(' ').unwrap();
            // ADDRESS - - [TIME] "REQUEST" STATUS BYTES "REFERRER" "AGENT"
            let numbers = rest.split('"').nth(2).unwrap();
            let bytes: u64 = numbers.split_whitespace().nth(1).unwrap().parse().unwrap();
            *sent.entry(who.to_owned()).or_default() += bytes;
        }
        sent
    }

    /// What someone who looks for the cause of a failure would ask for.
    pub fn explain(&self) -> String {
        let ask = |arguments: &[&str]| self.kubectl(arguments).unwrap_or_else(|error| error);
        let conditions = "--output=jsonpath={range .items[*]}{.metadata.name}{.status.conditions}{\"\\n\"}{end}";
        let mut told = vec![
            ask(&["get", "rings,deployments,pods,services,events", "--output=wide"]),
            ask(&["get", "rings", conditions]),
        ];
        for component in ["operator", "relay", "stage"] {
            let selector = format!("--selector=app.kubernetes.io/component={component}");
            told.push(format!("--- log of {component}"));
            told.push(ask(&["logs", &selector, "--all-containers", "--prefix", "--tail=40"]));
        }
        told.join("\n")
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("{}", self.explain());
        }
        let _ = self.kubectl(&["delete", "rings", "--all", "--timeout=60s"]);
        let mut uninstall = self.cluster.helm([
            "uninstall",
            RELEASE,
            "--ignore-not-found",
            "--namespace",
            &self.namespace,
        ]);
        let _ = run(&mut uninstall);
        remove_namespace(self.cluster, &self.namespace);
    }
}

/// Has the API server hold a namespace's pods to Pod Security "restricted".
fn restrict(cluster: &Cluster, namespace: &str) {
    let mut label = cluster.kubectl(["label", "--overwrite", "namespace", namespace]);
    for mode in ["enforce", "warn"] {
        label.arg(format!("pod-security.kubernetes.io/{mode}=restricted"));
    }
    run(&mut label).unwrap();
}

/// Removes a namespace, also one whose Rings wait for an operator that is gone.
fn remove_namespace(cluster: &Cluster, namespace: &str) {
    let mut delete = cluster.kubectl(["delete", "namespace", namespace, "--ignore-not-found", "--wait=false"]);
    let _ = run(&mut delete);
    let gone = || cluster.get(&["namespace", namespace]).is_none().then_some(());
    if eventually(SETTLES / 4, gone).is_some() {
        return;
    }
    let rings = cluster.get(&["rings", "--namespace", namespace]).unwrap_or_default();
    for ring in rings["items"].as_array().into_iter().flatten() {
        let name = ring["metadata"]["name"].as_str().unwrap();
        let release = [
            "patch",
            "ring",
            name,
            "--namespace",
            namespace,
            "--type=merge",
            "--patch",
        ];
        let mut command = cluster.kubectl(release);
        let _ = run(command.arg(r#"{"metadata":{"finalizers":null}}"#));
    }
    let gone = eventually(SETTLES, gone);
    assert!(gone.is_some() || thread::panicking(), "the namespace {namespace} stays");
}

fn file_name(path: &std::path::Path) -> String {
    path.file_name().unwrap().to_str().unwrap().to_owned()
}
