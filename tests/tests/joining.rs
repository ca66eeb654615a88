//! A device that joins hands its windows back: at Ctrl-C by itself, and when it was killed by `--leave`.
#![allow(clippy::unwrap_used, reason = "tests end at the first surprise")]

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use kvasir_tests::client::Client;
use kvasir_tests::deadline::{wait_for, wait_until};
use kvasir_tests::models;
use kvasir_tests::nginx::Nginx;
use kvasir_tests::process::{self, Background, Signal};
use kvasir_tests::ring::{example, free_port, http_source, program};
use serde_json::{Value, json};
use tempfile::TempDir;

/// For windows to be fetched and loaded, and a ring to form.
const FORMS: Duration = Duration::from_secs(90);
/// For a window to be open again: less than a lease, so that it was handed back.
const BACK: Duration = Duration::from_secs(8);

struct Site {
    folder: TempDir,
    url: String,
    api: SocketAddr,
}

impl Site {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn kvasir(arguments: &[&str]) -> Command {
        let mut command = Command::new(program("kvasir"));
        command.env("KVASIR_THREADS", "1").args(arguments);
        command
    }

    fn told(&self, what: &str) -> Value {
        let mut command = Site::kvasir(&[what, "-o", "json"]);
        let out = command
            .arg(self.path("ring.yaml"))
            .arg("--dir")
            .arg(self.path("up"))
            .output()
            .unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        serde_json::from_slice(&out.stdout).unwrap()
    }

    fn middle(&self) -> String {
        self.told("status")["status"]["windows"][1]["state"]
            .as_str()
            .unwrap()
            .to_owned()
    }

    fn join(&self, link: &str) -> Background {
        let mut command = Site::kvasir(&["join", link, "--memory", "4G", "--dir"]);
        Background::start(command.arg(self.path("device")), &self.path("join.log"))
    }

    fn wait_ready(&self, what: &str) {
        wait_until(what, FORMS, || {
            let answer = Client::new(self.api).send("GET", "/readyz", None);
            answer.is_ok_and(|answer| answer.status == 200)
        });
    }
}

#[test]
fn windows_are_handed_back_by_ctrl_c_and_by_leave() {
    let nginx = Nginx::serve(models::gemma3().parent().unwrap());
    let (relay_port, api_port) = (free_port(), free_port());
    let site = Site {
        folder: tempfile::tempdir().unwrap(),
        url: format!("http://127.0.0.1:{relay_port}"),
        api: SocketAddr::from(([127, 0, 0, 1], api_port)),
    };
    let mut relay = Command::new(program("kvasir-relay"));
    relay
        .args(["--database", ":memory:", "--public-url", &site.url, "--listen"])
        .arg(format!("127.0.0.1:{relay_port}"))
        .arg("--ready-file")
        .arg(site.path("relay.ready"));
    let _relay = Background::start(&mut relay, &site.path("relay.log"));
    wait_until("the relay listens", FORMS, || site.path("relay.ready").exists());

    let file = models::gemma3().file_name().unwrap().to_str().unwrap().to_owned();
    let mut ring = example("gemma-3-270m.yaml", http_source(&nginx.url(&file)));
    ring["spec"]["windows"][1]["open"] = json!(true);
    ring["spec"]["market"] = json!({ "maxLayers": 6 });
    ring["spec"]["relay"] = json!({ "url": site.url });
    fs::write(site.path("ring.yaml"), serde_yaml::to_string(&ring).unwrap()).unwrap();
    let mut up = Site::kvasir(&["up", "--port", &api_port.to_string(), "--dir"]);
    let _up = Background::start(
        up.arg(site.path("up")).arg(site.path("ring.yaml")),
        &site.path("up.log"),
    );
    let log = |name: &str| fs::read_to_string(site.path(name)).unwrap_or_default();
    wait_until("the ring is offered", FORMS, || {
        log("up.log").contains("rank 0: window is loaded")
    });

    let mut nowhere = ring.clone();
    nowhere["spec"].as_object_mut().unwrap().remove("relay");
    fs::write(site.path("nowhere.yaml"), serde_yaml::to_string(&nowhere).unwrap()).unwrap();
    let mut up = Site::kvasir(&["up", "--port", "0", "--dir"]);
    let refused = up
        .arg(site.path("nowhere"))
        .arg(site.path("nowhere.yaml"))
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        refused.status.code() == Some(2) && told.contains("set relay.url"),
        "{told}"
    );

    let stranger = Site::kvasir(&["join", &site.url, "--once", "--dir"])
        .arg(site.path("stranger"))
        .output()
        .unwrap();
    assert!(!stranger.status.success(), "a device without an invite is told so");

    let link = site.told("invite")["link"].as_str().unwrap().to_owned();
    let mut device = site.join(&link);
    site.wait_ready("the ring is ready");
    assert_eq!(site.middle(), "ready");

    assert!(process::signal(device.id(), Signal::INT));
    let status = wait_for("join ends", Duration::from_secs(20), || device.ended());
    assert!(status.success(), "{}", log("join.log"));
    wait_until("the window is open at once", BACK, || site.middle() == "open");

    // It is a member now: the address alone will do.
    let mut device = site.join(&site.url);
    site.wait_ready("the ring is ready again");
    // Its stage first, which would hand the window back by itself.
    for stage in process::children(device.id()) {
        assert!(process::signal(stage, Signal::KILL));
    }
    device.kill();
    let mut leave = Site::kvasir(&["join", &site.url, "--leave", "--dir"]);
    let left = leave.arg(site.path("device")).output().unwrap();
    let told = String::from_utf8_lossy(&left.stdout).into_owned();
    assert!(
        left.status.success() && told.starts_with("handed back: windows 1..2 (layers 6..12)"),
        "{told}"
    );
    wait_until("the window is open at once", BACK, || site.middle() == "open");
}
