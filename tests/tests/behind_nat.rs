//! A device behind a masquerading router that lets nothing in claims a window by its own poll, and the ring answers as
//! if all stages were inside. What happens to its network is mended without anyone's help.
#![allow(clippy::unwrap_used, reason = "tests end at the first surprise")]

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use kvasir_tests::client::Client;
use kvasir_tests::deadline::{wait_for, wait_until};
use kvasir_tests::network::{Network, PUBLIC};
use kvasir_tests::process::Background;
use kvasir_tests::ring::{Ring, example, file_source, http_source, program};
use kvasir_tests::{models, nginx, skip};
use serde_json::{Value, json};
use tempfile::TempDir;

/// For a window to be fetched and loaded, and for a ring to form.
const FORMS: Duration = Duration::from_secs(90);
/// For a ring to serve again: a silent neighbour is given up after 15 s, and its links are made within 20.
const MENDS: Duration = Duration::from_secs(90);
/// The router's address on the public side: the only one that the device is seen under.
const ROUTER: &str = "198.51.100.2";
const PORT: &str = "8080";

/// The public side: files and TLS by nginx, a relay behind it, and a ring whose middle window is open.
struct Site {
    network: Network,
    folder: TempDir,
    relay: Option<Background>,
    others: Vec<Background>,
}

impl Site {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn log(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    fn start_nginx(&mut self, models: &Path) {
        let certified = rcgen::generate_simple_self_signed([PUBLIC.to_owned()]).unwrap();
        fs::write(self.path("ca.pem"), certified.cert.pem()).unwrap();
        fs::write(self.path("key.pem"), certified.signing_key.serialize_pem()).unwrap();
        let folder = self.folder.path().display();
        let configuration = format!(
            "daemon off; master_process off; pid {folder}/nginx.pid;
            events {{ worker_connections 256; }}
            http {{
                log_format bytes '$remote_addr $request_method $uri $status $body_bytes_sent';
                access_log {folder}/access.log bytes;
                {temporary}
                server {{ listen {PUBLIC}:80; root {root}; }}
                server {{
                    listen {PUBLIC}:443 ssl;
                    ssl_certificate {folder}/ca.pem; ssl_certificate_key {folder}/key.pem;
                    location / {{
                        proxy_pass http://127.0.0.1:8443; proxy_http_version 1.1;
                        proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection upgrade;
                        proxy_set_header Host $host;
                        proxy_buffering off; proxy_read_timeout 60s;
                    }}
                }}
            }}",
            temporary = nginx::temporary_paths(self.folder.path()),
            root = models.display(),
        );
        fs::write(self.path("nginx.conf"), configuration).unwrap();
        let mut command = self.network.public(nginx::program());
        command
            .arg("-c")
            .arg(self.path("nginx.conf"))
            .arg("-e")
            .arg(self.path("error.log"));
        self.others
            .push(Background::start(&mut command, &self.path("nginx.log")));
    }

    fn start_relay(&mut self) {
        let ready = self.path("relay.ready");
        let _ = fs::remove_file(&ready);
        let mut command = self.network.public(program("kvasir-relay"));
        command
            .args(["--listen", "127.0.0.1:8443", "--public-url"])
            .arg(format!("https://{PUBLIC}"))
            .arg("--database")
            .arg(self.path("relay.sqlite"))
            .arg("--ready-file")
            .arg(&ready);
        self.relay = Some(Background::start(&mut command, &self.path("relay.log")));
        wait_until("the relay listens", Duration::from_secs(20), || ready.exists());
    }

    /// `kvasir` on the public side, which trusts nginx's certificate.
    fn kvasir(&self) -> Command {
        let mut command = self.network.public(program("kvasir"));
        command
            .env("KVASIR_CA_FILE", self.path("ca.pem"))
            .env("KVASIR_THREADS", "1");
        command
    }

    /// What a command prints as JSON.
    fn told(&self, arguments: &[&str]) -> Value {
        let out = self
            .kvasir()
            .args(arguments)
            .arg(self.path("ring.yaml"))
            .arg("--dir")
            .arg(self.path("up"))
            .args(["-o", "json"])
            .output()
            .unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        serde_json::from_slice(&out.stdout).unwrap()
    }

    fn start_up(&mut self, ring: &Value) {
        fs::write(self.path("ring.yaml"), serde_yaml::to_string(ring).unwrap()).unwrap();
        let mut command = self.kvasir();
        command
            .arg("up")
            .arg(self.path("ring.yaml"))
            .arg("--dir")
            .arg(self.path("up"))
            .args(["--port", PORT, "--ready-file"])
            .arg(self.path("up.ready"));
        let up = Background::start(&mut command, &self.path("up.log"));
        self.others.push(up);
    }

    fn join(&mut self) {
        let link = self.told(&["invite"])["link"].as_str().unwrap().to_owned();
        let mut command = self.network.device(program("kvasir"));
        command
            .env("KVASIR_CA_FILE", self.path("ca.pem"))
            .env("KVASIR_THREADS", "1")
            .args(["join", &link, "--memory", "4G", "--dir"])
            .arg(self.path("device"));
        self.others
            .push(Background::start(&mut command, &self.path("join.log")));
    }

    /// The completion, if the ring serves.
    fn completion(&self) -> Option<Value> {
        self.network.publicly(|| {
            let address: SocketAddr = format!("127.0.0.1:{PORT}").parse().unwrap();
            let answer = Client::new(address)
                .send("POST", "/v1/completions", Some(&prompt()))
                .ok()?;
            (answer.status == 200)
                .then(|| answer.json())
                .filter(|body| body["choices"].is_array())
        })
    }

    fn logs(&self) -> String {
        ["up.log", "join.log", "relay.log", "device/rank-0.log"]
            .map(|name| format!("--- {name}\n{}", self.log(name)))
            .join("\n")
    }

    /// Waits until the ring answers, and says what.
    fn answer(&self, what: &str, within: Duration) -> Value {
        let mut last = None;
        let asked = std::time::Instant::now();
        while asked.elapsed() < within {
            last = self.completion();
            if last.is_some() {
                break;
            }
            thread::sleep(Duration::from_millis(500));
        }
        last.unwrap_or_else(|| panic!("{what}: no answer within {within:?}\n{}", self.logs()))
    }
}

fn prompt() -> Value {
    json!({ "prompt": "The old ring was made of", "max_tokens": 24, "temperature": 0 })
}

fn text(body: &Value) -> String {
    body["choices"][0]["text"].as_str().unwrap().to_owned()
}

fn ring(source: Value, open: bool) -> Value {
    let mut ring = example("gemma-3-270m.yaml", source);
    ring["spec"]["exact"] = json!(true);
    if open {
        ring["spec"]["windows"][1]["open"] = json!(true);
        ring["spec"]["market"] = json!({ "maxLayers": 6 });
        ring["spec"]["relay"] = json!({ "url": format!("https://{PUBLIC}") });
    }
    ring
}

#[test]
fn a_device_behind_nat_serves_the_middle_window_and_survives_what_networks_do() {
    let network = match Network::new() {
        Ok(network) => network,
        Err(why) => return skip(&format!("network namespaces can't be made: {why}")),
    };
    let model = models::gemma3();
    let inside = Ring::up(&ring(file_source(&model), false));
    let expected = inside
        .client()
        .send("POST", "/v1/completions", Some(&prompt()))
        .unwrap()
        .json();
    let expected = text(&expected);
    drop(inside);

    let mut site = Site {
        network,
        folder: tempfile::tempdir().unwrap(),
        relay: None,
        others: Vec::new(),
    };
    site.start_nginx(model.parent().unwrap());
    site.start_relay();
    let file = model.file_name().unwrap().to_str().unwrap();
    site.start_up(&ring(http_source(&format!("http://{PUBLIC}/{file}")), true));
    wait_until("the ring is offered", FORMS, || {
        site.log("up.log").contains("rank 0: window is loaded")
    });
    site.join();
    wait_for("the ring is ready", FORMS, || fs::read(site.path("up.ready")).ok());
    let first = site.answer("the first time", FORMS);
    assert_eq!(text(&first), expected);

    // It fetched its window and no more.
    let plan: Value = serde_json::from_slice(&fs::read(site.path("up/plan.json")).unwrap()).unwrap();
    let window = plan["ranks"][1]["bytes"].as_u64().unwrap();
    let prefix: u64 = plan["model"]["prefixBytes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|part| part.as_u64().unwrap())
        .sum();
    let log = site.log("access.log");
    let fetched: u64 = log
        .lines()
        .filter(|line| line.starts_with(ROUTER) && line.contains(file))
        .map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
        .sum();
    assert!(
        fetched >= window,
        "{fetched} of {window} bytes: is the device seen as {ROUTER}?"
    );
    assert!(
        fetched <= window * 102 / 100 + prefix,
        "{fetched} bytes for a window of {window} and a prefix of {prefix}"
    );

    // It earned what the formula says, for what came home.
    let committed = first["usage"]["total_tokens"].as_u64().unwrap();
    let rate_of = |status: &Value| {
        let claims = status["status"]["claims"].as_array().unwrap().clone();
        let claim = claims.into_iter().find(|claim| claim["windows"]["start"] == 1).unwrap();
        (claim["node"].clone(), claim["rate"].as_u64().unwrap())
    };
    let row = wait_for("the ledger has the answer", Duration::from_secs(15), || {
        let told = site.told(&["status"]);
        let (node, rate) = rate_of(&told);
        let rows = told["ledger"]["rows"].as_array().unwrap().clone();
        let row = rows
            .into_iter()
            .find(|row| row["node"] == node && row["committed"] == committed)?;
        assert_eq!(row["rate"], rate);
        Some(row)
    });
    assert_eq!(
        row["earned"].as_u64().unwrap(),
        committed * row["rate"].as_u64().unwrap() / 1_000_000
    );

    site.network.set_cable(false);
    thread::sleep(Duration::from_secs(10)); // the cut itself
    site.network.set_cable(true);
    assert_eq!(text(&site.answer("after a cut of 10 s", MENDS)), expected);

    site.network.move_device("192.168.7.33");
    assert_eq!(text(&site.answer("at another address", MENDS)), expected);

    site.relay.as_mut().unwrap().kill();
    site.start_relay();
    assert_eq!(text(&site.answer("after the relay's restart", MENDS)), expected);

    let all = site.told(&["status"]);
    let paid: u64 = all["ledger"]["rows"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["earned"].as_u64().unwrap())
        .sum();
    assert_eq!(
        all["ledger"]["earned"].as_u64().unwrap(),
        paid,
        "the ledger's sum is that of its rows"
    );
}
