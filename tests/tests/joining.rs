//! A device that joins hands its windows back: at Ctrl-C by itself, and when it was killed by `--leave`. A relay that has
//! forgotten it is told of, and joined again where the invite is still good.
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

/// For a device to notice that its relay has forgotten it, and to give its windows up when nothing helps.
const NOTICES: Duration = Duration::from_secs(120);

struct Site {
    folder: TempDir,
    nginx: Nginx,
    url: String,
    api: SocketAddr,
}

impl Site {
    fn new() -> Site {
        Site {
            folder: tempfile::tempdir().unwrap(),
            nginx: Nginx::serve(models::gemma3().parent().unwrap()),
            url: format!("http://127.0.0.1:{}", free_port()),
            api: SocketAddr::from(([127, 0, 0, 1], free_port())),
        }
    }

    fn start_relay(&self) -> Background {
        let ready = self.path("relay.ready");
        let _ = fs::remove_file(&ready);
        let mut relay = Command::new(program("kvasir-relay"));
        relay
            .args([
                "--public-url",
                &self.url,
                "--listen",
                self.url.trim_start_matches("http://"),
            ])
            .arg("--database")
            .arg(self.path("relay.sqlite"))
            .arg("--ready-file")
            .arg(&ready);
        let relay = Background::start(&mut relay, &self.path("relay.log"));
        wait_until("the relay listens", FORMS, || ready.exists());
        relay
    }

    /// The Ring whose middle window is left to devices, run by `kvasir up`.
    fn start_up(&self) -> (Value, Background) {
        let file = models::gemma3().file_name().unwrap().to_str().unwrap().to_owned();
        let mut ring = example("gemma-3-270m.yaml", http_source(&self.nginx.url(&file)));
        ring["spec"]["windows"][1]["open"] = json!(true);
        ring["spec"]["market"] = json!({ "maxLayers": 6 });
        ring["spec"]["relay"] = json!({ "url": self.url });
        fs::write(self.path("ring.yaml"), serde_yaml::to_string(&ring).unwrap()).unwrap();
        let mut up = Site::kvasir(&["up", "--port", &self.api.port().to_string(), "--dir"]);
        let up = Background::start(
            up.arg(self.path("up")).arg(self.path("ring.yaml")),
            &self.path("up.log"),
        );
        wait_until("the ring is offered", FORMS, || {
            self.log("up.log").contains("rank 0: window is loaded")
        });
        (ring, up)
    }

    fn log(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    fn invite(&self) -> String {
        self.told("invite")["link"].as_str().unwrap().to_owned()
    }

    /// Status and body of a short completion.
    fn completion(&self) -> Option<(u16, Value)> {
        let prompt = json!({ "prompt": "The old ring", "max_tokens": 4 });
        let answer = Client::new(self.api).send("POST", "/v1/completions", Some(&prompt));
        answer.ok().map(|answer| (answer.status, answer.json()))
    }

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
    let site = Site::new();
    let _relay = site.start_relay();
    let (ring, _up) = site.start_up();

    let mut nowhere = ring;
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

    wait_until("clients are told which layers are missing", FORMS, || {
        let (status, body) = site.completion().unwrap_or_default();
        let message = "the ring is not ready: layers 6..12 are not held by any stage";
        status == 503 && body["error"]["message"] == message
    });
    let mut device = site.join(&site.invite());
    site.wait_ready("the ring is ready");
    assert_eq!(site.middle(), "ready");

    assert!(process::signal(device.id(), Signal::INT));
    let status = wait_for("join ends", Duration::from_secs(20), || device.ended());
    assert!(status.success(), "{}", site.log("join.log"));
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

#[test]
fn a_device_that_its_relay_forgot_enrols_again_by_its_invite_or_says_what_to_do() {
    let site = Site::new();
    let mut relay = site.start_relay();
    let (_, _up) = site.start_up();
    let invited = Site::kvasir(&["invite", "--uses", "2", "-o", "json", "--dir"])
        .arg(site.path("up"))
        .arg(site.path("ring.yaml"))
        .output()
        .unwrap();
    let invited: Value = serde_json::from_slice(&invited.stdout).unwrap();
    let mut device = site.join(invited["link"].as_str().unwrap());
    wait_until("the ring is up, and `kvasir up` knows it", FORMS, || {
        site.log("up.log").contains("endpoint: ")
    });

    // Its invite is good for one more.
    relay.kill();
    let forget = "import sqlite3, sys\nmarket = sqlite3.connect(sys.argv[1])\n\
                  market.execute('DELETE FROM members WHERE reserved = 0')\nmarket.commit()\n";
    let forgotten = Command::new("python3")
        .args(["-c", forget])
        .arg(site.path("relay.sqlite"))
        .status();
    assert!(forgotten.unwrap().success());
    relay = site.start_relay();
    wait_until("it says that it enrolled again", NOTICES, || {
        site.log("join.log").contains("has enrolled again with its invite")
    });
    wait_until("the ring serves again", FORMS, || {
        let ready = site.told("status")["status"]["ready"] == true;
        ready && site.completion().is_some_and(|(status, _)| status == 200)
    });
    assert_eq!(device.ended(), None);

    // The whole market is gone, and every invite with it.
    relay.kill();
    for entry in fs::read_dir(site.folder.path()).unwrap().flatten() {
        if entry.file_name().to_string_lossy().starts_with("relay.sqlite") {
            fs::remove_file(entry.path()).unwrap();
        }
    }
    let _relay = site.start_relay();
    wait_until("the ring is offered again", FORMS, || {
        site.log("up.log").contains("is offered there again")
    });
    wait_until("it says what to do", NOTICES, || {
        let told = site.log("join.log");
        told.contains("doesn't know this device") && told.contains("`kvasir invite` prints it")
    });
    let status = wait_for("it ends when its windows are lost", NOTICES, || device.ended());
    assert_eq!(status.code(), Some(2), "{}", site.log("join.log"));

    let _device = site.join(&site.invite());
    wait_until("the ring serves with the new invite", FORMS, || {
        site.completion().is_some_and(|(status, _)| status == 200)
    });
}
