//! The `kvasir` command as a user meets it: the real program, small models, and what it says when something is wrong.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::{
    fs,
    io::{ErrorKind, Read, Write},
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
    process::Output,
};

use assert_cmd::Command;
use kvasir_tests::random_model::{Architecture, RandomModel, Vocabulary};
use serde_json::{Value, json};

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Folder(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A Ring of `model` with the rest of its spec.
    fn ring(&self, source: &Value, rest: &Value) -> PathBuf {
        let mut spec = json!({"model": {"name": "tiny", "source": source}, "contextLength": 256, "sequences": 1});
        spec.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        let ring = json!({
            "apiVersion": "kvasir.dev/v1alpha1", "kind": "Ring", "metadata": {"name": "tiny"}, "spec": spec,
        });
        let path = self.path("ring.yaml");
        fs::write(&path, ring.to_string()).unwrap();
        path
    }

    /// What is in it, sorted, but for the Ring.
    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.0.path()).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.filter(|name| name != "ring.yaml").collect();
        names.sort();
        names
    }

    /// Eight layers of random weights.
    fn model(&self) -> PathBuf {
        let path = self.path("model.gguf");
        RandomModel::new(Architecture::Llama)
            .vocabulary(Vocabulary::Bytes)
            .write(&path)
            .unwrap();
        path
    }
}

fn kvasir(arguments: &[&str]) -> Output {
    let mut command = Command::cargo_bin("kvasir").unwrap();
    command.env_remove("RUST_LOG").args(arguments).output().unwrap()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn file(path: &Path) -> Value {
    json!({"file": {"path": path}})
}

/// Its exit code and what it said on stderr; nothing may be on stdout.
fn fails(arguments: &[&str]) -> (i32, String) {
    let output = kvasir(arguments);
    assert!(output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stdout));
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

/// What it printed on stdout.
fn prints(arguments: &[&str]) -> String {
    let output = kvasir(arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_ring_file_that_is_missing_is_named() {
    let (code, error) = fails(&["plan", "no/such/ring.yaml"]);
    assert_eq!(code, 1);
    assert_eq!(
        error,
        "error: can't read the Ring no/such/ring.yaml\n  because: No such file or directory (os error 2)\n"
    );
}

#[test]
fn e1_a_typo_in_a_ring_is_named_by_its_path() {
    let folder = Folder::new();
    let ring = folder.ring(
        &file(&folder.path("model.gguf")),
        &json!({"stagse": 3, "contextLength": "long"}),
    );
    for command in ["plan", "up"] {
        let (code, error) = fails(&[command, text(&ring)]);
        assert_eq!(code, 2);
        let first = format!("error: {} is no Ring that can be used: correct it\n", ring.display());
        assert!(error.starts_with(&first), "{error}");
        assert!(error.contains("spec.stagse: unknown field"), "{error}");
        assert!(error.contains("spec.contextLength: "), "{error}");
    }
}

#[test]
fn a_model_that_is_missing_is_named() {
    let folder = Folder::new();
    let ring = folder.ring(&file(Path::new("/no/such/model.gguf")), &json!({}));
    let (code, error) = fails(&["plan", text(&ring)]);
    assert_eq!(code, 1);
    assert!(
        error.starts_with("error: /no/such/model.gguf can't be read\n"),
        "{error}"
    );
}

#[test]
fn a_file_that_is_no_gguf_is_named() {
    let folder = Folder::new();
    let model = folder.path("model.gguf");
    fs::write(&model, vec![b'x'; 100_000]).unwrap();
    let ring = folder.ring(&file(&model), &json!({}));
    for arguments in [
        vec!["plan", text(&ring)],
        vec!["slice", text(&model), "0..1", "-o", "out.gguf"],
    ] {
        let (code, error) = fails(&arguments);
        assert_eq!(code, 1);
        assert!(error.starts_with(&format!("error: {} ", model.display())), "{error}");
        assert!(error.contains("GGUF"), "{error}");
    }
    assert!(!Path::new("out.gguf").exists());
}

#[test]
fn a_volume_can_only_be_read_in_a_cluster() {
    let folder = Folder::new();
    let ring = folder.ring(
        &json!({"persistentVolumeClaim": {"claimName": "c", "path": "m.gguf"}}),
        &json!({}),
    );
    let (code, error) = fails(&["plan", text(&ring)]);
    assert_eq!(code, 2);
    assert!(error.contains("name it with source.file to run it here"), "{error}");
}

#[test]
fn a_port_in_use_is_told_before_anything_is_fetched() {
    let folder = Folder::new();
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let source = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    source.set_nonblocking(true).unwrap();
    let url = format!("http://{}/model.gguf", source.local_addr().unwrap());
    let ring = folder.ring(&json!({"http": {"url": url}}), &json!({}));
    let (code, error) = fails(&["up", text(&ring), "--port", &port, "--dir", text(&folder.path("up"))]);
    assert_eq!(code, 1);
    let expected = format!(
        "error: can't listen on 127.0.0.1:{port}: end what uses it, or choose another port with --port\n  \
         because: Address already in use (os error 98)\n"
    );
    assert_eq!(error, expected);
    assert_eq!(
        source.accept().unwrap_err().kind(),
        ErrorKind::WouldBlock,
        "the source was asked"
    );
    assert!(!folder.path("up").exists());
}

#[test]
fn a_plan_shows_windows_and_bytes() {
    let folder = Folder::new();
    let windows = json!({"windows": [{"layers": {"start": 0, "end": 3}}, {"layers": {"start": 3, "end": 8}}]});
    let ring = folder.ring(&file(&folder.model()), &windows);
    let shown: Value = serde_json::from_str(&prints(&["plan", text(&ring), "-o", "json"])).unwrap();
    assert_eq!(shown["ring"], "tiny");
    assert_eq!(shown["model"]["layers"], 8);
    let ranks = shown["ranks"].as_array().unwrap();
    let layers: Vec<_> = ranks.iter().map(|rank| rank["layers"].clone()).collect();
    assert_eq!(layers, [json!({"start": 0, "end": 3}), json!({"start": 3, "end": 8})]);
    for column in ["fetchBytes", "memoryBytes", "cacheBytes"] {
        let sum: u64 = ranks.iter().map(|rank| rank[column].as_u64().unwrap()).sum();
        assert_eq!(shown["total"][column], sum, "{column}");
        assert!(sum > 0);
    }

    let table = prints(&["plan", text(&ring)]);
    let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["RANK", "LAYERS", "PLACEMENT", "FETCH", "MEMORY", "CACHE"]);
    assert_eq!(lines[1][..3], ["0", "0..3", "local"]);
    assert_eq!(lines[2][..3], ["1", "3..8", "local"]);
    assert_eq!(lines[3][0], "total");
    assert_eq!(lines.len(), 4);
}

#[test]
fn a3_an_mtp_block_is_planned_at_the_last_rank_and_is_in_no_window() {
    let folder = Folder::new();
    let model = folder.path("model.gguf");
    let with_mtp = RandomModel::new(Architecture::Qwen35Moe).mtp_layers(1);
    with_mtp.write(&model).unwrap();
    let windows = json!({"windows": [{"layers": {"start": 0, "end": 3}}, {"layers": {"start": 3, "end": 8}}]});
    let ring = folder.ring(&file(&model), &windows);
    let shown: Value = serde_json::from_str(&prints(&["plan", text(&ring), "-o", "json"])).unwrap();
    assert_eq!(
        (&shown["model"]["layers"], &shown["model"]["mtpLayers"]),
        (&json!(8), &json!(1))
    );
    assert!(shown["ranks"][0].get("mtpLayers").is_none());
    assert_eq!(shown["ranks"][1]["mtpLayers"], 1);
    assert!(shown["ranks"][1]["mtpBytes"].as_u64() > Some(0));
    let table = prints(&["plan", text(&ring)]);
    assert!(table.contains("  3..8 + 1 MTP  "), "{table}");
}

#[test]
fn stages_can_be_counted_instead_of_cut_by_hand() {
    let folder = Folder::new();
    let ring = folder.ring(&file(&folder.model()), &json!({}));
    let windows = |stages: &str| {
        let shown: Value =
            serde_json::from_str(&prints(&["plan", text(&ring), "--stages", stages, "-o", "json"])).unwrap();
        let ranks = shown["ranks"].as_array().unwrap().clone();
        let ends = ranks.iter().map(|rank| rank["layers"]["end"].as_u64().unwrap());
        ends.collect::<Vec<_>>()
    };
    assert_eq!(windows("1"), [8]);
    assert_eq!(windows("4"), [2, 4, 6, 8]);
    let (code, error) = fails(&["plan", text(&ring), "--stages", "9"]);
    assert_eq!(code, 2);
    assert_eq!(
        error,
        "error: the model can be cut into 8 stages at most, not 9: lower --stages\n"
    );
}

#[test]
fn windows_that_leave_layers_out_are_refused_by_name() {
    let folder = Folder::new();
    let windows = json!({"windows": [{"layers": {"start": 0, "end": 3}}, {"layers": {"start": 4, "end": 8}}]});
    let ring = folder.ring(&file(&folder.model()), &windows);
    let (code, error) = fails(&["plan", text(&ring)]);
    assert_eq!(code, 2);
    assert_eq!(
        error,
        "error: the Ring can't be planned onto this machine\n  because: no window holds layers 3..4\n"
    );
}

#[test]
fn a_slice_is_a_window_and_the_first_one_brings_its_vocabulary() {
    let folder = Folder::new();
    let (model, out) = (folder.model(), folder.path("window.gguf"));
    let said = prints(&["slice", text(&model), "0..3", "-o", text(&out), "--first"]);
    let vocabulary = folder.path("window.vocab.gguf");
    assert_eq!(said.lines().count(), 2);
    let window = kvasir_gguf::Model::open(&out).unwrap();
    assert_eq!(window.layers(), 3);
    assert!(kvasir_gguf::Model::open(&vocabulary).is_ok());
    assert!(fs::metadata(&out).unwrap().len() < fs::metadata(&model).unwrap().len());
    assert_eq!(
        folder.names(),
        ["model.gguf", "window.gguf", "window.vocab.gguf"],
        "and nothing beside them"
    );
}

#[test]
fn a_slice_that_fails_leaves_nothing_and_makes_no_folder() {
    let folder = Folder::new();
    let model = folder.model();
    // the table of tensors is whole, their bytes are not there to the end
    let source = fs::File::options().write(true).open(&model).unwrap();
    let out = folder.path("window.gguf");
    let missing = folder.path("no/such/window.gguf");
    let (code, error) = fails(&["slice", text(&model), "0..3", "-o", text(&missing)]);
    assert_eq!(code, 1);
    let told = format!(
        "error: can't write into {}: make the folder first\n",
        missing.parent().unwrap().display()
    );
    assert!(error.starts_with(&told), "{error}");
    source.set_len(fs::metadata(&model).unwrap().len() / 2).unwrap();
    let (code, error) = fails(&["slice", text(&model), "0..3", "-o", text(&out)]);
    assert_eq!(code, 1);
    assert!(error.contains("model.gguf"), "{error}");
    assert_eq!(folder.names(), ["model.gguf"]);
}

/// A server that gives the beginning of a file, and then answers every request with a failure.
fn source_that_ends(model: &Path, given: usize) -> String {
    let bytes = fs::read(model).unwrap();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let url = format!("http://{}/model.gguf", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let (mut request, mut piece) = (Vec::new(), [0; 4096]);
            while !request.ends_with(b"\r\n\r\n") {
                match stream.read(&mut piece) {
                    Ok(count @ 1..) => request.extend_from_slice(&piece[..count]),
                    _ => break,
                }
            }
            let request = String::from_utf8_lossy(&request).to_ascii_lowercase();
            let range = request.split("range: bytes=").nth(1).and_then(|rest| {
                let (start, end) = rest.lines().next()?.split_once('-')?;
                Some((start.parse::<usize>().ok()?, end.trim().parse::<usize>().ok()?))
            });
            let answer = match range {
                Some((start, end)) if start < given => {
                    let part = &bytes[start..=end.min(bytes.len() - 1)];
                    let head = format!(
                        "HTTP/1.1 206 Partial Content\r\ncontent-range: bytes {start}-{}/{}\r\ncontent-length: {}\r\n\
                         connection: close\r\n\r\n",
                        start + part.len() - 1,
                        bytes.len(),
                        part.len()
                    );
                    [head.as_bytes(), part].concat()
                }
                _ => b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".to_vec(),
            };
            let _ = stream.write_all(&answer);
        }
    });
    url
}

#[test]
fn a_slice_that_breaks_off_leaves_nothing() {
    let folder = Folder::new();
    let model = folder.model();
    let prefix = kvasir_gguf::Model::open(&model).unwrap().prefix_bytes()[0];
    let url = source_that_ends(&model, prefix as usize);
    let out = folder.path("window.gguf");
    let (code, error) = fails(&["slice", &url, "2..4", "-o", text(&out)]);
    assert_eq!(code, 1, "{error}");
    assert!(error.contains("forbids reading"), "{error}");
    assert_eq!(folder.names(), ["model.gguf"]);
}

#[test]
fn what_is_no_regular_file_is_refused_at_once() {
    let folder = Folder::new();
    let pipe = folder.path("pipe");
    assert!(
        std::process::Command::new("mkfifo")
            .arg(&pipe)
            .status()
            .unwrap()
            .success()
    );
    for (path, kind) in [
        (pipe.as_path(), "a pipe"),
        (Path::new("/dev/zero"), "a device"),
        (Path::new("/tmp"), "a folder"),
    ] {
        let ring = folder.ring(&file(path), &json!({}));
        let (code, error) = fails(&["plan", text(&ring)]);
        assert_eq!(code, 1);
        let told = format!(
            "error: {} is {kind} and no file: name the model's file\n",
            path.display()
        );
        assert_eq!(error, told);
        let (_, error) = fails(&["slice", text(path), "0..1", "-o", text(&folder.path("out.gguf"))]);
        assert_eq!(error, told);
        let (_, error) = fails(&["plan", text(path)]);
        assert!(error.contains(&format!("it is {kind} and no file")), "{error}");
    }
}

#[test]
fn files_that_are_too_short_are_told_by_what_they_lack() {
    let folder = Folder::new();
    let model = folder.path("model.gguf");
    let ring = folder.ring(&file(&model), &json!({}));
    fs::write(&model, "").unwrap();
    let (_, error) = fails(&["plan", text(&ring)]);
    assert!(
        error.starts_with(&format!("error: {} is empty", model.display())),
        "{error}"
    );
    fs::write(&model, b"GGUF\x03\0\0\0").unwrap();
    let (_, error) = fails(&["plan", text(&ring)]);
    assert!(error.contains("has 8 bytes and needs 16 or more"), "{error}");
}

#[test]
fn addresses_of_other_kinds_are_refused_with_what_is_supported() {
    let folder = Folder::new();
    let ring = folder.ring(&file(Path::new("ftp://host/model.gguf")), &json!({}));
    let (code, error) = fails(&["plan", text(&ring)]);
    assert_eq!(code, 2);
    assert!(
        error.contains("huggingFace, http (http:// or https://) or file"),
        "{error}"
    );
    let ring = folder.ring(&json!({"http": {"url": "ftp://host/model.gguf"}}), &json!({}));
    let (code, error) = fails(&["plan", text(&ring)]);
    assert_eq!(code, 2);
    assert!(error.contains("url must start with http:// or https://"), "{error}");
    let (code, error) = fails(&["slice", "ftp://host/model.gguf", "0..1", "-o", "out.gguf"]);
    assert_eq!(code, 2);
    assert!(
        error.contains("http:// or https:// URL, or hf://OWNER/NAME/FILE.gguf"),
        "{error}"
    );
}

#[test]
fn numbers_out_of_range_are_refused_by_the_command_line() {
    for arguments in [
        &["chat", "--temperature", "NaN", "hi"][..],
        &["chat", "--temperature=-1", "hi"],
        &["chat", "--temperature", "inf", "hi"],
        &["chat", "--max-tokens", "0", "hi"],
        &["up", "ring.yaml", "--threads", "999999999"],
        &["up", "ring.yaml", "--threads", "0"],
        &["bench", "ring.yaml", "--threads", "513"],
        &["up", "ring.yaml", "--stages", "0"],
    ] {
        let (code, error) = fails(arguments);
        assert_eq!(code, 2, "{arguments:?}");
        assert!(error.starts_with("error: invalid value"), "{error}");
    }
}

#[test]
fn a_ready_file_that_cannot_be_written_is_told_before_anything_is_fetched() {
    let folder = Folder::new();
    let ring = folder.ring(&file(&folder.model()), &json!({}));
    let (ready, up) = (folder.path("no/such/ready.json"), folder.path("up"));
    let (code, error) = fails(&[
        "up",
        text(&ring),
        "--port",
        "0",
        "--dir",
        text(&up),
        "--ready-file",
        text(&ready),
    ]);
    assert_eq!(code, 1);
    assert!(
        error.starts_with(&format!(
            "error: can't write {}: choose another --ready-file",
            ready.display()
        )),
        "{error}"
    );
    assert!(!up.exists());
}

#[test]
fn log_lines_that_go_to_no_terminal_have_no_colours() {
    let folder = Folder::new();
    let ring = folder.ring(&file(&folder.model()), &json!({}));
    let mut command = Command::cargo_bin("kvasir").unwrap();
    let plan = command.args(["plan", text(&ring)]).env("RUST_LOG", "trace");
    let output = plan.env_remove("NO_COLOR").output().unwrap();
    assert!(
        !output.stderr.contains(&b'\x1b'),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let mut command = Command::cargo_bin("kvasir").unwrap();
    let stage = command.args([
        "stage",
        "fetch",
        "--plan",
        "no/such/plan",
        "--rank",
        "0",
        "--dir",
        "no",
        "--source",
        "{}",
    ]);
    let output = stage.env_remove("NO_COLOR").output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("ERROR") && !stderr.contains('\x1b'), "{stderr}");
}

#[test]
fn a_slice_outside_the_model_or_at_the_wrong_end_is_refused() {
    let folder = Folder::new();
    let (model, out) = (folder.model(), folder.path("window.gguf"));
    let slice = |rest: &[&str]| fails(&[&["slice", text(&model), "-o", text(&out)], rest].concat());
    let (code, error) = slice(&["4..9"]);
    assert_eq!(
        (code, error.as_str()),
        (2, "error: layers 4..9 are not within the model's 8 layers\n")
    );
    for (wrong, told) in [
        (["0..3", "--last"], "must end at layer 8"),
        (["2..3", "--first"], "starts at layer 0"),
    ] {
        let (code, error) = slice(&wrong);
        assert_eq!(code, 2, "{error}");
        assert!(error.contains(told), "{error}");
    }
    let (code, error) = slice(&["3..3"]);
    assert_eq!(code, 2);
    assert!(error.contains("write START..END with START below END"), "{error}");
    assert!(!out.exists());
}

#[test]
fn a_bench_needs_a_pair_and_a_context_for_its_prompts() {
    let folder = Folder::new();
    let ring = folder.ring(&file(&folder.model()), &json!({}));
    let (code, error) = fails(&["bench", text(&ring), "--prompt-tokens", "200", "--tokens", "100"]);
    assert_eq!(
        error,
        "error: prompt and answer take 300 tokens and contextLength is 256: lower --prompt-tokens or --tokens\n"
    );
    assert_eq!(code, 2);
    assert_eq!(fails(&["bench", text(&ring), "--pairs", "0"]).0, 2);
}

#[test]
fn a_relay_is_measured_beside_nginx() {
    let small = [
        "--edges",
        "2",
        "--seconds",
        "1",
        "--turns",
        "1",
        "--bulk-mib",
        "8",
        "--idle-edges",
        "50",
    ];
    let printed = prints(&[&["bench", "relay", "-o", "json"], &small[..]].concat());
    let report: Value = serde_json::from_str(&printed).unwrap();
    for ratio in ["latency_ratio_p50", "latency_ratio_p99", "bulk_ratio"] {
        assert!(report[ratio].is_number(), "{ratio}: {report}");
    }
    let idle = report["bytes_per_idle_edge"].as_u64().unwrap();
    assert!(idle < 200_000, "{idle} bytes for an idle edge");
    assert!(report["files_for_20000_edges"].as_u64().unwrap() > 40_000);
}

#[test]
fn chat_says_that_nobody_is_there() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    drop(listener);
    let (code, error) = fails(&["chat", "--url", &url, "hello"]);
    assert_eq!(code, 1);
    assert!(
        error.starts_with(&format!("error: nothing answers at {url}v1/models: is the ring up?")),
        "{error}"
    );
}

/// An endpoint that takes one connection after the other and gives the answers in order, as they are.
fn endpoint(answers: Vec<String>) -> (String, std::thread::JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let serve = move || {
        let mut requests = Vec::new();
        for answer in answers {
            let (mut stream, _) = listener.accept().unwrap();
            let (mut request, mut piece) = (Vec::new(), [0; 4096]);
            // The bodies are small JSON objects and come with the head, or right after it.
            let whole = |request: &[u8]| {
                request.ends_with(b"}") || (request.starts_with(b"GET") && request.ends_with(b"\r\n\r\n"))
            };
            while !whole(&request) {
                let count = stream.read(&mut piece).unwrap();
                request.extend_from_slice(&piece[..count]);
            }
            requests.push(String::from_utf8(request).unwrap());
            stream.write_all(answer.as_bytes()).unwrap();
        }
        requests
    };
    (url, std::thread::spawn(serve))
}

fn answer(status: &str, content_type: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: {content_type}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
    )
}

#[test]
fn chat_streams_the_answer_to_stdout_and_sends_the_key_in_a_header() {
    let delta = |text: &str| {
        format!(
            "data: {}\n\n",
            json!({"choices": [{"index": 0, "delta": {"content": text}}]})
        )
    };
    let events = format!(": alive\n\n{}{}data: [DONE]\n\n", delta("Par"), delta("is."));
    let models = json!({"object": "list", "data": [{"id": "tiny"}]}).to_string();
    let (url, served) = endpoint(vec![
        answer("200 OK", "application/json", &models),
        answer("200 OK", "text/event-stream", &events),
    ]);
    let mut command = Command::cargo_bin("kvasir").unwrap();
    let chat = command.args([
        "chat",
        "--url",
        &url,
        "--temperature",
        "0",
        "What is the capital of France?",
    ]);
    let output = chat.env("KVASIR_API_KEY", "s3cret").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "Paris.\n");
    let requests = served.join().unwrap();
    assert!(
        requests
            .iter()
            .all(|request| request.contains("authorization: Bearer s3cret\r\n"))
    );
    assert!(
        !requests
            .iter()
            .any(|request| request.lines().next().unwrap().contains("s3cret"))
    );
    let body: Value = serde_json::from_str(requests[1].split_once("\r\n\r\n").unwrap().1).unwrap();
    assert_eq!(body["model"], "tiny");
    assert_eq!(body["stream"], true);
    assert_eq!(
        body["messages"],
        json!([{"role": "user", "content": "What is the capital of France?"}])
    );
}

#[test]
fn chat_repeats_the_endpoints_own_words_when_it_refuses_or_breaks_off() {
    let chat = |answer: String| {
        let (url, served) = endpoint(vec![answer]);
        let output = kvasir(&["chat", "--url", &url, "--model", "tiny", "hello"]);
        served.join().unwrap();
        let error = String::from_utf8(output.stderr).unwrap().replace(&url, "URL");
        (output.status.code().unwrap(), error)
    };
    let refusal = json!({"error": {"message": "the ring is not ready", "type": "unavailable"}}).to_string();
    let (code, error) = chat(answer("503 Service Unavailable", "application/json", &refusal));
    assert_eq!(code, 1);
    assert_eq!(
        error,
        "error: URL/v1/chat/completions refuses with status 503 Service Unavailable: the ring is not ready\n"
    );
    let lost = format!("data: {}\n\n", json!({"error": {"message": "the ring lost a stage"}}));
    let (code, error) = chat(answer("200 OK", "text/event-stream", &lost));
    assert_eq!(
        (code, error.as_str()),
        (1, "error: the endpoint stopped the answer: the ring lost a stage\n")
    );
    let cut = "data: {\"choices\":[{\"delta\":{\"content\":\"Par\"}}]}\n\n";
    let (code, error) = chat(answer("200 OK", "text/event-stream", cut));
    assert_eq!((code, error.as_str()), (1, "error: the answer broke off\n"));
}

#[test]
fn every_flag_says_what_it_does_and_which_variable_sets_it() {
    for command in ["up", "plan", "inspect", "slice", "chat", "bench", "bench relay"] {
        let words: Vec<&str> = command.split(' ').chain(["-h"]).collect();
        let help = prints(&words);
        let flags = help
            .lines()
            .filter(|line| line.trim_start().starts_with('-') && !line.contains("--help"));
        for flag in flags {
            assert!(flag.contains("[env: KVASIR_"), "{command}: {flag}");
        }
    }
    let help = prints(&["--help"]);
    assert!(help.contains("Exit codes: 0 done, 1 failed"), "{help}");
    for hidden in ["  stage", "  relay"] {
        assert!(!help.lines().any(|line| line.starts_with(hidden)), "hidden: {help}");
    }
}
