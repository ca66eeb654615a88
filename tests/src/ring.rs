//! `kvasir up` as a user runs it: the built program, a Ring manifest, and a folder of its own.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;
use std::{env, io};

use serde::Deserialize;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::client::Client;
use crate::deadline::wait_for;
use crate::process::{self, Signal};

/// Time for windows to be fetched and loaded, on a machine that is busy with other things.
const START: Duration = Duration::from_secs(120);
/// Time for a ring to end: the stages have ten seconds.
const END: Duration = Duration::from_secs(20);

/// A Ring from `examples/` with another source, such as `{"file": {"path": …}}`.
pub fn example(file: &str, source: Value) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples").join(file);
    let mut ring: Value = serde_yaml::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    ring["spec"]["model"]["source"] = source;
    ring
}

/// A source on this machine.
pub fn file_source(model: &Path) -> Value {
    json!({ "file": { "path": model } })
}

/// A source on a web server.
pub fn http_source(url: &str) -> Value {
    json!({ "http": { "url": url } })
}

/// A program of this workspace. The test's own file lies in the folder `deps` beside it.
pub fn program(name: &str) -> PathBuf {
    let path = env::current_exe().unwrap().parent().unwrap().with_file_name(name);
    assert!(
        path.is_file(),
        "{} is missing: run `cargo build --release` first",
        path.display()
    );
    path
}

/// A port that nothing listens on.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    listener.local_addr().unwrap().port()
}

/// `kvasir up`, running, whether its ring is ready or not. Dropping it ends it and its stages.
#[derive(Debug)]
pub struct Up {
    process: Child,
    /// its `--dir`, and beside it what it printed
    folder: TempDir,
}

impl Up {
    /// Starts `kvasir up` on a Ring, with further arguments. Without `--port` it takes a free port, without `--dir` a
    /// folder of its own.
    pub fn start(ring: &Value, arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let inside = |name: &str| folder.path().join(name);
        fs::write(inside("ring.yaml"), serde_yaml::to_string(ring).unwrap()).unwrap();
        let process = Command::new(program("kvasir"))
            .arg("up")
            .arg(inside("ring.yaml"))
            .env("KVASIR_READY_FILE", inside("ready.json"))
            // More threads than processors spin while they wait for each other: on a busy machine that costs a
            // hundredfold, and the tests measure promises, not speed.
            .env("KVASIR_THREADS", "1")
            .env("KVASIR_PORT", "0")
            .env("KVASIR_UP_DIR", inside("dir"))
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(File::create(inside("stdout")).unwrap())
            .stderr(File::create(inside("stderr")).unwrap())
            .spawn()
            .unwrap();
        Self { process, folder }
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// The folder that it keeps windows, keys and logs in.
    pub fn dir(&self) -> PathBuf {
        self.folder.path().join("dir")
    }

    /// The file that it writes once it is ready.
    pub fn ready_file(&self) -> PathBuf {
        self.folder.path().join("ready.json")
    }

    /// What it has printed on stdout.
    pub fn stdout(&self) -> String {
        fs::read_to_string(self.folder.path().join("stdout")).unwrap()
    }

    /// What it has printed on stderr.
    pub fn stderr(&self) -> String {
        fs::read_to_string(self.folder.path().join("stderr")).unwrap()
    }

    /// Waits for it to end by itself.
    pub fn wait(&mut self, limit: Duration) -> ExitStatus {
        wait_for("kvasir up ends", limit, || self.process.try_wait().unwrap())
    }

    /// Asks it to end, as Ctrl-C does, and waits.
    pub fn interrupt(&mut self) -> ExitStatus {
        process::signal(self.id(), Signal::INT);
        self.wait(END)
    }

    fn ready(&self) -> io::Result<Ready> {
        let text = fs::read_to_string(self.ready_file())?;
        Ok(serde_json::from_str(&text).unwrap())
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        if self.process.try_wait().is_ok_and(|status| status.is_some()) {
            return;
        }
        // The stages end when their parent does, so this is clean even when it hangs.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// What `--ready-file` says.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ready {
    /// root of the API, `http://127.0.0.1:…`
    pub endpoint: String,
    /// the ranks in order
    pub ranks: Vec<Rank>,
}

/// A running rank.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rank {
    /// its window
    pub layers: Layers,
    /// bytes that it took from the source
    pub fetched_bytes: u64,
    /// memory that it said it held when it was ready
    pub resident_bytes: u64,
    /// its process
    pub pid: u32,
}

/// Half-open range.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Layers {
    /// first layer
    pub start: u32,
    /// one past the last
    pub end: u32,
}

/// A ring that is ready.
#[derive(Debug)]
pub struct Ring {
    /// the process that started it
    pub up: Up,
    /// what it said when it was ready
    pub ready: Ready,
}

impl Ring {
    /// Starts a ring and waits until it is ready.
    pub fn up(ring: &Value) -> Self {
        let mut up = Up::start(ring, &[]);
        let ready = wait_for("the ring is ready", START, || {
            if let Some(status) = up.process.try_wait().unwrap() {
                panic!("kvasir up ended ({status}): {}", up.stderr());
            }
            up.ready().ok()
        });
        Self { up, ready }
    }

    /// A client of its API.
    pub fn client(&self) -> Client {
        let address: SocketAddr = self.ready.endpoint.trim_start_matches("http://").parse().unwrap();
        Client::new(address)
    }

    /// Process ids of its stages, in ring order.
    pub fn stages(&self) -> Vec<u32> {
        self.ready.ranks.iter().map(|rank| rank.pid).collect()
    }
}
