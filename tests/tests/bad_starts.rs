//! What can't start says so in one clear line, and leaves no window behind.
#![allow(clippy::unwrap_used, reason = "tests end at the first surprise")]

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use kvasir_plan::RankManifest;
use kvasir_tests::deadline::wait_until;
use kvasir_tests::gguf::Value as Metadata;
use kvasir_tests::models;
use kvasir_tests::nginx::Nginx;
use kvasir_tests::random_model::{Architecture, RandomModel, Vocabulary};
use kvasir_tests::ring::{Ring, Up, example, file_source, http_source, program};
use kvasir_tests::skip;
use kvasir_wire::trust::{NodeKeys, OwnerKey, SignedManifest};
use serde_json::{Value, json};

/// Time to say what is wrong.
const TOLD: Duration = Duration::from_secs(30);
/// Exit code for a wrong Ring or command line.
const USAGE: i32 = 2;

/// What `kvasir up` says when it can't start: its exit code, and the line that says what failed with its causes below.
fn refusal(ring: &Value, arguments: &[&str]) -> (i32, String) {
    let mut up = Up::start(ring, arguments);
    let code = up.wait(TOLD).code().expect("an exit, no signal");
    let stderr = up.stderr();
    assert_ne!(code, 0, "{stderr}");
    let lines: Vec<&str> = stderr.lines().collect();
    let errors: Vec<usize> = (0..lines.len()).filter(|&i| lines[i].starts_with("error: ")).collect();
    assert_eq!(errors.len(), 1, "one line says what failed: {stderr}");
    let told = lines[errors[0]..].join("\n");
    assert!(
        told.lines().skip(1).all(|line| line.starts_with("  ")),
        "only causes follow: {stderr}"
    );
    assert!(
        !told.contains("panicked") && !told.contains("RUST_BACKTRACE"),
        "{stderr}"
    );
    let left = files(&up.dir());
    assert!(
        left.iter()
            .all(|file| file.extension().is_none_or(|e| e != "gguf" && e != "part")),
        "left: {left:?}"
    );
    (code, told)
}

/// All files under a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let paths = entries.map(|entry| entry.unwrap().path());
    paths
        .flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] })
        .collect()
}

fn smollm2(source: Value) -> Value {
    example("smollm2-135m.yaml", source)
}

#[test]
fn a_truncated_file_is_told_before_a_window_is_fetched() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    fs::write(&path, &fs::read(models::smollm2()).unwrap()[..60_000_000]).unwrap();
    let nginx = Nginx::serve(folder.path());
    for source in [file_source(&path), http_source(&nginx.url("model.gguf"))] {
        let (_, told) = refusal(&smollm2(source), &[]);
        assert!(told.contains("60000000") && told.contains("model.gguf"), "{told}");
    }
    let sent: u64 = nginx.requests().iter().map(|request| request.bytes).sum();
    assert!(sent < 10_000_000, "{sent} bytes were fetched of a file that is no use");
}

#[test]
fn what_is_no_model_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.gguf");
    fs::write(&page, "<!DOCTYPE html><title>Sign in</title>".repeat(100)).unwrap();
    let (_, told) = refusal(&smollm2(file_source(&page)), &[]);
    assert!(told.contains("not a GGUF file"), "{told}");

    let absent = folder.path().join("absent.gguf");
    let (_, told) = refusal(&smollm2(file_source(&absent)), &[]);
    assert!(told.contains("absent.gguf"), "{told}");

    let nginx = Nginx::serve(folder.path());
    let (_, told) = refusal(&smollm2(http_source(&nginx.url("absent.gguf"))), &[]);
    assert!(told.contains("absent.gguf is not there"), "{told}");
}

#[test]
fn an_architecture_that_cannot_be_cut_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let model = RandomModel::new(Architecture::Llama).vocabulary(Vocabulary::Bytes);
    model
        .metadata("general.architecture", Metadata::String("gpt2".into()))
        .write(&path)
        .unwrap();
    let (_, told) = refusal(&smollm2(file_source(&path)), &[]);
    assert!(told.contains("gpt2"), "{told}");
}

#[test]
fn windows_that_do_not_fit_the_model_are_told() {
    let mut ring = smollm2(file_source(&models::smollm2()));
    ring["spec"]["windows"][2]["layers"]["end"] = 29.into();
    let (_, told) = refusal(&ring, &[]);
    assert!(told.contains("30"), "{told}");
}

#[test]
fn a_port_in_use_is_told() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let (_, told) = refusal(&smollm2(file_source(&models::smollm2())), &["--port", &port]);
    assert!(told.contains(&port) && told.contains("--port"), "{told}");
}

#[test]
fn e1_a_typo_in_a_field_is_told_with_its_path() {
    let mut ring = smollm2(file_source(&models::smollm2()));
    ring["spec"]["contxtLength"] = 128.into();
    let (code, told) = refusal(&ring, &[]);
    assert_eq!(code, USAGE, "{told}");
    assert!(told.contains("spec.contxtLength"), "{told}");

    let mut ring = smollm2(file_source(&models::smollm2()));
    ring["spec"]["model"]["contextLength"] = 128.into();
    let (code, told) = refusal(&ring, &[]);
    assert_eq!(code, USAGE, "{told}");
    assert!(told.contains("spec.model.contextLength"), "{told}");
}

#[test]
fn a_second_ring_in_the_same_folder_is_told() {
    let manifest = smollm2(file_source(&models::smollm2()));
    let ring = Ring::up(&manifest);
    let dir = ring.up.dir();
    let mut second = Up::start(&manifest, &["--dir", dir.to_str().unwrap()]);
    assert!(!second.wait(TOLD).success());
    let told = second.stderr();
    assert!(
        told.starts_with("error: another ") && told.contains(dir.to_str().unwrap()),
        "{told}"
    );
}

#[test]
fn b3_a_full_disk_is_told_with_both_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let mount = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=40m", "none"])
        .arg(folder.path())
        .output();
    if !mount.is_ok_and(|output| output.status.success()) {
        return skip("mounting a small file system needs root");
    }
    let told = thread::scope(|scope| {
        let refused = scope.spawn(|| {
            let manifest = smollm2(file_source(&models::smollm2()));
            let mut up = Up::start(&manifest, &["--dir", folder.path().to_str().unwrap()]);
            assert!(!up.wait(TOLD).success());
            (up.stderr(), files(folder.path()))
        });
        refused.join()
    });
    assert!(Command::new("umount").arg(folder.path()).status().unwrap().success());
    let (stderr, left) = told.unwrap();
    let error = stderr
        .lines()
        .find(|line| line.starts_with("error: "))
        .unwrap_or_else(|| panic!("{stderr}"));
    let numbers = error
        .split(' ')
        .filter(|word| word.parse::<u64>().is_ok_and(|n| n > 10_000_000))
        .count();
    assert!(error.contains("free") && numbers == 2, "needed and free bytes: {error}");
    assert!(!left.iter().any(|file| file.ends_with("rank-0.gguf")), "{left:?}");
}

#[test]
fn a_stage_refuses_another_model_than_the_plans() {
    let ring = Ring::up(&smollm2(file_source(&models::smollm2())));
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(program("kvasir-stage"))
        .args([
            "fetch",
            "--rank",
            "1",
            "--source",
            &file_source(&models::gemma3()).to_string(),
        ])
        .arg("--plan")
        .arg(ring.up.dir().join("plan.json"))
        .arg("--dir")
        .arg(folder.path().join("window"))
        .output()
        .unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success(), "{stderr}");
    assert!(stderr.contains("the source holds model"), "{stderr}");
    assert_eq!(files(folder.path()), Vec::<PathBuf>::new());
}

/// A market that gives every stage the same signed manifest, whatever it asks.
fn market_of_lies(manifest: &SignedManifest) -> String {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let manifest = serde_json::to_string(manifest).unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut request = [0; 8 << 10];
            let read = stream.read(&mut request).unwrap_or(0);
            let answer =
                if request[..read].starts_with(b"GET ") && request[..read].windows(9).any(|w| w == b"/manifest") {
                    format!(
                        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
                     Connection: close\r\n\r\n{manifest}",
                        manifest.len()
                    )
                } else {
                    "HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n".to_owned()
                };
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    url
}

#[test]
fn a_stage_refuses_a_manifest_that_the_owner_did_not_have_signed() {
    let ring = Ring::up(&smollm2(file_source(&models::smollm2())));
    let plan = ring.up.dir().join("plan.json");
    let manifest: RankManifest = serde_json::from_slice(&fs::read(&plan).unwrap()).unwrap();
    let window = fs::read_dir(ring.up.dir().join("windows"))
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let window = window
        .into_iter()
        .find(|path| path.to_str().unwrap().ends_with("-10-20"))
        .unwrap();

    let (owner, stranger) = (OwnerKey::generate().unwrap(), OwnerKey::generate().unwrap());
    let signer = NodeKeys::generate().unwrap();
    let signed = |by: &OwnerKey| {
        SignedManifest::sign(&manifest, &signer, by.delegate(manifest.ring.as_str(), signer.public())).unwrap()
    };
    let unsigned = SignedManifest {
        signature: None,
        ..signed(&owner)
    };
    for (lie, reason) in [(unsigned, "Unsigned"), (signed(&stranger), "ForeignOwner")] {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let mut stage = Command::new(program("kvasir-stage"))
            .args(["run", "--rank", "1", "--market", &market_of_lies(&lie)])
            .args(["--owner", &owner.public().to_string()])
            .arg("--plan")
            .arg(&plan)
            .arg("--dir")
            .arg(&window)
            .arg("--key")
            .arg(folder.path().join("key"))
            .env("NO_COLOR", "1")
            .stderr(fs::File::create(&log).unwrap())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let read = || fs::read_to_string(&log).unwrap();
        wait_until("the stage refuses", TOLD, || read().contains("refused a manifest"));
        stage.kill().unwrap();
        stage.wait().unwrap();
        assert!(read().contains(reason), "{}", read());
    }
}

#[test]
fn a_command_line_that_makes_no_sense_is_told() {
    let ring = json!({ "kind": "Ring" });
    let (code, told) = refusal(&ring, &[]);
    assert_eq!(code, USAGE, "{told}");
}
