//! A real Kubernetes: the one that `KUBECONFIG` names, or one that `tests/cluster/` brings up on this machine for as long
//! as the test process lives.

mod audit;
mod outside;
mod site;

use std::env;
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::models::cache;
use crate::ring::program;

pub use audit::{Audit, Write};
pub use outside::{Outside, SEEN_AS};
pub use site::{Condition, Site};

/// This machine as pods of the fixture see it.
const MACHINE: Ipv4Addr = Ipv4Addr::new(172, 30, 0, 1);
/// How often the cluster is looked at.
const PAUSE: Duration = Duration::from_millis(500);
/// What becomes of the fixture when this process ends, however it ends: its standard input does, too.
const UNTIL_STDIN_ENDS: &str = "cat >/dev/null; exec \"$1\"";

/// A cluster, and the programs that drive it.
#[derive(Debug)]
pub struct Cluster {
    kubeconfig: PathBuf,
    kubectl: PathBuf,
    helm: PathBuf,
    machine: Ipv4Addr,
    images: Images,
    fixture: Option<Fixture>,
}

/// Where the images of operator, relay and stage are.
#[derive(Clone, Debug)]
pub struct Images {
    /// what stands before `operator`, `relay` and `stage`
    pub prefix: String,
    /// their tag
    pub tag: String,
    /// when they are pulled
    pub pull_policy: &'static str,
    /// an image with `sh`, `nc` and `timeout`, without its tag
    pub busybox: String,
    /// its tag
    pub busybox_tag: String,
}

/// The cluster of `tests/cluster/`, with what only it can do.
#[derive(Debug)]
pub struct Fixture {
    state: PathBuf,
    /// its standard input is open until this process ends
    _keeper: Option<Child>,
}

impl Cluster {
    /// The cluster of this process, brought up at the first call, or why there is none.
    pub fn shared() -> Result<&'static Cluster, &'static str> {
        static SHARED: OnceLock<Result<Cluster, String>> = OnceLock::new();
        SHARED.get_or_init(Cluster::start).as_ref().map_err(String::as_str)
    }

    fn start() -> Result<Cluster, String> {
        match env::var_os("KUBECONFIG") {
            Some(kubeconfig) => Cluster::given(kubeconfig.into()),
            None => Cluster::fixture(),
        }
    }

    /// A cluster that is there: its images have been pushed, and it reaches this machine by an address that is told.
    fn given(kubeconfig: PathBuf) -> Result<Cluster, String> {
        let told = |name: &str| env::var(name).map_err(|_| format!("KUBECONFIG is set, and {name} is not"));
        let machine = told("KVASIR_MACHINE_ADDRESS")?;
        Ok(Cluster {
            kubeconfig,
            kubectl: "kubectl".into(),
            helm: "helm".into(),
            machine: machine
                .parse()
                .map_err(|_| format!("KVASIR_MACHINE_ADDRESS is no IPv4 address: {machine}"))?,
            images: Images {
                prefix: told("KVASIR_IMAGE_PREFIX")?,
                tag: told("KVASIR_IMAGE_TAG")?,
                pull_policy: "IfNotPresent",
                busybox: "busybox".to_owned(),
                busybox_tag: "1.37".to_owned(),
            },
            fixture: None,
        })
    }

    fn fixture() -> Result<Cluster, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("a cluster takes root's rights, and KUBECONFIG names none".to_owned());
        }
        let cache = cache();
        let state = env::var_os("CLUSTER_STATE").map_or_else(|| cache.join("cluster/run"), PathBuf::from);
        let was_up = state.join("admin.kubeconfig").exists();
        // Held before it starts, so that what a failed start leaves is taken down as well.
        let keeper = (!was_up && env::var_os("KVASIR_CLUSTER_KEEP").is_none())
            .then(keep)
            .transpose()
            .map_err(|error| format!("what takes the cluster down can't be started: {error}"))?;
        let kubeconfig = run(&mut script("up.sh"))?;
        let programs = program("kvasir-operator");
        let archives = run(script("images.sh").arg(programs.parent().unwrap()))?;
        run(script("load.sh").args(archives.lines()))?;
        let bin = cache.join("cluster/bin");
        Ok(Cluster {
            kubeconfig: PathBuf::from(kubeconfig.lines().last().unwrap_or_default()),
            kubectl: bin.join("kubectl"),
            helm: bin.join("helm"),
            machine: MACHINE,
            images: Images {
                prefix: "kvasir.local/".to_owned(),
                tag: "test".to_owned(),
                pull_policy: "Never",
                busybox: "cluster.local/busybox".to_owned(),
                busybox_tag: "1".to_owned(),
            },
            fixture: Some(Fixture { state, _keeper: keeper }),
        })
    }

    /// What only the fixture can do; none when the cluster is another.
    pub fn own(&self) -> Option<&Fixture> {
        self.fixture.as_ref()
    }

    /// This machine as pods see it.
    pub fn machine(&self) -> Ipv4Addr {
        self.machine
    }

    /// Where the images are.
    pub fn images(&self) -> &Images {
        &self.images
    }

    /// `kubectl` on this cluster.
    pub fn kubectl<I: AsRef<std::ffi::OsStr>>(&self, arguments: impl IntoIterator<Item = I>) -> Command {
        self.command(&self.kubectl, arguments)
    }

    /// `helm` on this cluster.
    pub fn helm<I: AsRef<std::ffi::OsStr>>(&self, arguments: impl IntoIterator<Item = I>) -> Command {
        self.command(&self.helm, arguments)
    }

    fn command<I: AsRef<std::ffi::OsStr>>(&self, program: &Path, arguments: impl IntoIterator<Item = I>) -> Command {
        let mut command = Command::new(program);
        command.env("KUBECONFIG", &self.kubeconfig).args(arguments);
        if let Some(fixture) = &self.fixture {
            for folder in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
                command.env(folder, fixture.state.join("helm"));
            }
        }
        command
    }

    /// What `kubectl get … -o json` says; none when there is no such object.
    pub fn get(&self, arguments: &[&str]) -> Option<Value> {
        let mut command = self.kubectl(["get", "--output=json", "--ignore-not-found"]);
        let text = run(command.args(arguments)).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// Applies an object, and says what `kubectl` printed, or the refusal.
    pub fn apply(&self, object: &Value, arguments: &[&str]) -> Result<String, String> {
        let mut command = self.kubectl(["apply", "--filename=-"]);
        fed(command.args(arguments), &object.to_string())
    }

    /// Address of a node that is ready, by the order of their names.
    pub fn node_address(&self) -> Ipv4Addr {
        let nodes = self.get(&["nodes"]).expect("nodes");
        let nodes = nodes["items"].as_array().unwrap();
        let ready = |node: &&Value| {
            let conditions = node["status"]["conditions"].as_array().unwrap();
            conditions.iter().any(|c| c["type"] == "Ready" && c["status"] == "True")
        };
        let node = nodes.iter().find(ready).expect("a node that is ready");
        let addresses = node["status"]["addresses"].as_array().unwrap();
        let internal = addresses.iter().find(|a| a["type"] == "InternalIP").unwrap();
        internal["address"].as_str().unwrap().parse().unwrap()
    }
}

impl Fixture {
    /// Pulls a node's plug.
    pub fn kill_node(&self, node: &str) {
        run(script("kill-node.sh").arg(node)).unwrap();
    }

    /// Switches killed nodes on again, and waits until they are ready.
    pub fn revive_nodes(&self) {
        run(&mut script("up.sh")).unwrap();
    }

    /// Who wrote what.
    pub fn audit(&self) -> Audit {
        Audit::of(&self.state.join("log/audit.log"))
    }
}

/// The repository.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Looks at a condition until it gives a value; none once `limit` is over. Unlike `deadline::wait_for` it leaves time
/// between two looks, since a look at the cluster starts a `kubectl`.
pub fn eventually<T>(limit: Duration, mut condition: impl FnMut() -> Option<T>) -> Option<T> {
    let start = Instant::now();
    loop {
        let value = condition();
        if value.is_some() || start.elapsed() >= limit {
            return value;
        }
        thread::sleep(PAUSE);
    }
}

/// Runs a command to its end: what it printed, or what it complained of.
pub fn run(command: &mut Command) -> Result<String, String> {
    let done = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{command:?}: {error}"))?;
    finished(command, &done)
}

/// [`run`] with something to read.
pub fn fed(command: &mut Command, input: &str) -> Result<String, String> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("{command:?}: {error}"))?;
    // Gone at the end of the statement, so that the reader sees the end. One that doesn't read has its own complaint.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let done = child.wait_with_output().unwrap();
    finished(command, &done)
}

fn finished(command: &Command, done: &std::process::Output) -> Result<String, String> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if done.status.success() {
        return Ok(text(&done.stdout));
    }
    let program = command.get_program().to_string_lossy().into_owned();
    Err(format!(
        "{program}: {}{}",
        text(&done.stdout),
        text(&done.stderr).trim()
    ))
}

fn script(name: &str) -> Command {
    Command::new(repository().join("tests/cluster").join(name))
}

/// Starts what takes the fixture down when this process has ended.
fn keep() -> std::io::Result<Child> {
    Command::new("sh")
        .args(["-c", UNTIL_STDIN_ENDS, "keeper"])
        .arg(repository().join("tests/cluster/down.sh"))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // Ctrl-C is for the tests
        .process_group(0)
        .spawn()
}
