//! A model of 77.6 GB, by its stand-in: planned out of its prefix, and carried window by window by devices that could
//! never hold it.
//!
//! What is measured is printed, for docs/full-size.md.
#![allow(clippy::unwrap_used, reason = "tests end at the first surprise")]

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kvasir_gguf::Model;
use kvasir_tests::deadline::{wait_for, wait_until};
use kvasir_tests::nginx::Nginx;
use kvasir_tests::process::{self, Background, Signal};
use kvasir_tests::ring::{example, free_port, http_source, program};
use kvasir_tests::stand_in;
use serde_json::{Value, json};
use tempfile::TempDir;

const FILE: &str = "model.gguf";
const GB: u64 = 1_000_000_000;
const MIB: u64 = 1 << 20;
/// What may be fetched for a plan.
const PLANNED_WITHIN: u64 = 20 * MIB;
/// For a window of 3 GB to be fetched and loaded on a machine that is busy with other things.
const SERVES: Duration = Duration::from_secs(180);
const SOON: Duration = Duration::from_secs(30);

/// The stand-in on a web server.
struct Served {
    nginx: Nginx,
    model: Model,
    folder: TempDir,
    _alone: MutexGuard<'static, ()>,
}

impl Served {
    /// One test at a time: each takes gigabytes.
    fn new() -> Self {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("www")).unwrap();
        let file = folder.path().join("www").join(FILE);
        stand_in::write(&file).unwrap();
        Self {
            nginx: Nginx::serve(file.parent().unwrap()),
            model: Model::open(&file).unwrap(),
            folder,
            _alone: alone,
        }
    }

    fn url(&self) -> String {
        self.nginx.url(FILE)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn log(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    fn write(&self, name: &str, ring: &Value) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, serde_yaml::to_string(ring).unwrap()).unwrap();
        path
    }

    fn prefix_bytes(&self) -> u64 {
        self.model.prefix_bytes().iter().sum()
    }

    /// Bytes of the tensors of layers `start..end`, by the tensor table alone.
    fn layer_bytes(&self, start: u32, end: u32) -> u64 {
        (start..end)
            .flat_map(|layer| self.model.tensors_of_layer(layer))
            .map(|tensor| tensor.bytes().unwrap())
            .sum()
    }

    /// Bytes that the web server has sent so far, once they are `least` or more: its log comes after the answers.
    fn sent(&self, least: u64) -> u64 {
        wait_for("the requests are logged", SOON, || {
            let requests = self.nginx.requests();
            let whole = |r: &kvasir_tests::nginx::Request| r.method == "GET" && r.status != 206;
            assert!(!requests.iter().any(whole), "all is read by ranges");
            let sent: u64 = requests.iter().map(|request| request.bytes).sum();
            (sent >= least).then_some(sent)
        })
    }
}

fn kvasir(arguments: &[&str]) -> Command {
    let mut command = Command::new(program("kvasir"));
    command.env("KVASIR_THREADS", "1").args(arguments);
    command
}

fn told(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn number(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or_else(|| panic!("{name} in {value}"))
}

fn range(rank: &Value) -> (u64, u64) {
    (number(&rank["layers"], "start"), number(&rank["layers"], "end"))
}

/// All 49 layers, in windows that fit; text stays inside, and what is open is for phones.
fn check_plan(shown: &Value, gpu: u64, cpu: u64) {
    assert_eq!(
        (number(&shown["model"], "layers"), number(&shown["model"], "mtpLayers")),
        (48, 1)
    );
    let ranks = shown["ranks"].as_array().unwrap();
    let end = ranks.iter().fold(0, |end, rank| {
        let (start, next) = range(rank);
        assert_eq!(start, end, "windows follow each other: {shown}");
        next
    });
    assert_eq!(end, u64::from(stand_in::LAYERS));
    let (last, others) = ranks.split_last().unwrap();
    assert_eq!(number(last, "mtpLayers"), 1, "the MTP block rides with the last rank");
    assert!(number(last, "mtpBytes") > GB);
    assert!(others.iter().all(|rank| rank.get("mtpLayers").is_none()));

    let placed = |name: &'static str| ranks.iter().filter(move |rank| rank["placement"] == name);
    for (pool, memory) in [("gpu", gpu), ("cpu", cpu)] {
        assert_eq!(placed(pool).count(), 2, "{shown}");
        assert!(
            placed(pool).all(|rank| number(rank, "memoryBytes") <= memory),
            "{shown}"
        );
    }
    assert!(!ranks[0]["placement"].is_null() && !last["placement"].is_null());
    let open: Vec<&Value> = ranks.iter().filter(|rank| rank["placement"].is_null()).collect();
    assert!(!open.is_empty() && open.len() <= 8, "{shown}");
    for rank in open {
        let (start, end) = range(rank);
        assert_eq!(end - start, 1, "one layer each: {rank}");
        assert!(
            (14 * GB / 10..16 * GB / 10).contains(&number(rank, "fetchBytes")),
            "{rank}"
        );
        assert!(
            number(rank, "memoryBytes") <= 3 * GB,
            "a phone of 4 GB has room for it: {rank}"
        );
    }
}

#[test]
fn all_49_layers_are_planned_in_a_second_out_of_20_mib() {
    let served = Served::new();
    let layers = 0..stand_in::LAYERS;
    let sizes: Vec<u64> = layers.map(|layer| served.layer_bytes(layer, layer + 1)).collect();
    assert!(
        sizes.iter().all(|bytes| (14 * GB / 10..16 * GB / 10).contains(bytes)),
        "{sizes:?}"
    );
    println!(
        "whole: {} bytes, prefix {}; layers {}..={}",
        served.model.size(),
        served.prefix_bytes(),
        sizes.iter().min().unwrap(),
        sizes.iter().max().unwrap()
    );

    let mut ring = example("qwen3.5-122b.yaml", http_source(&served.url()));
    // by what the example's stages may take, and by all that its devices have
    for (gpu, cpu) in [(22, 14), (24, 16)] {
        for (pool, gigabytes) in [(0usize, gpu), (1, cpu)] {
            ring["spec"]["pools"][pool]["memory"] = json!(format!("{gigabytes}G"));
        }
        let file = served.write("ring.yaml", &ring);
        // The quickest of three: other programs have the machine too.
        let mut quickest = Duration::MAX;
        for _ in 0..3 {
            let before = served.sent(0);
            let begun = Instant::now();
            let output = kvasir(&["plan", "-o", "json"]).arg(&file).output().unwrap();
            quickest = quickest.min(begun.elapsed());
            check_plan(&told(&output), gpu * GB, cpu * GB);
            let sent = served.sent(before + served.prefix_bytes()) - before;
            assert!(sent <= PLANNED_WITHIN, "{sent} bytes fetched for a plan");
            println!("planned in {:?}, {sent} bytes fetched", begun.elapsed());
        }
        assert!(quickest < Duration::from_secs(1), "{quickest:?}");
        let table = kvasir(&["plan"]).arg(&file).output().unwrap();
        let table = String::from_utf8(table.stdout).unwrap();
        println!("{table}");
        let last = table.lines().rev().nth(1).unwrap();
        assert!(last.contains("..48 + 1 MTP"), "{table}");
    }
}

#[test]
fn inspect_tells_its_kinds_and_what_a_split_needs() {
    let served = Served::new();
    let output = kvasir(&["inspect", "-o", "json", "--stages", "48", &served.url()])
        .output()
        .unwrap();
    assert_eq!(
        output.status.code(),
        Some(2),
        "the last window has both kinds, so there are 47 at most"
    );
    let output = kvasir(&["inspect", "-o", "json", "--stages", "47", &served.url()])
        .output()
        .unwrap();
    let shown = told(&output);
    let kinds = |kind: &str| {
        let layers = shown["layers"].as_array().unwrap();
        layers.iter().filter(|layer| layer["kind"] == kind).count()
    };
    assert_eq!(
        (kinds("full"), kinds("recurrent"), number(&shown, "mtpLayers")),
        (12, 36, 1)
    );
    let stages = shown["stages"].as_array().unwrap();
    assert_eq!(stages.len(), 47);
    // keys and values: 2 heads of 256 each, 2 bytes a value
    assert_eq!(number(&shown, "kvBytesPerToken"), 12 * 2 * 2 * 256 * 2);
}

/// Windows that are all open: those of one layer, and between the first and them one of two, which needs no padding.
fn open_ring(served: &Served, relay: &str) -> Value {
    let mut ring = example("qwen3.5-122b.yaml", http_source(&served.url()));
    let ends = [0, 2, 4].into_iter().chain(5..=46).chain([48]);
    let ends: Vec<u32> = ends.collect();
    let windows = ends
        .windows(2)
        .map(|ends| json!({ "layers": { "start": ends[0], "end": ends[1] }, "open": true }));
    let spec = ring["spec"].as_object_mut().unwrap();
    spec.remove("pools");
    spec.insert("windows".to_owned(), windows.collect());
    let market = json!({ "maxLayers": 48, "maxWindowBytes": "3500M", "trustedEnds": false });
    spec.insert("market".to_owned(), market);
    spec.insert("relay".to_owned(), json!({ "url": relay }));
    spec.insert("contextLength".to_owned(), json!(4096));
    spec.insert("sequences".to_owned(), json!(1));
    ring
}

/// A device that has joined and serves a window.
struct Device {
    join: Background,
    /// its window's index in the ring
    index: usize,
    planned: Value,
    /// bytes of tensors that it holds
    bytes: u64,
    file: PathBuf,
    stage: u32,
}

impl Device {
    /// Lends `memory` to the ring until it serves a window, which has to be that of layers `start..end`.
    fn join(served: &Served, memory: &str, (start, end): (u32, u32)) -> Self {
        let folder = served.path(&format!("device-{start}"));
        let log = format!("join-{start}.log");
        let link = served.of_ring(&["invite"])["link"].as_str().unwrap().to_owned();
        let before = served.sent(0);
        let mut command = kvasir(&["join", &link, "--memory", memory, "--dir"]);
        let mut join = Background::start(command.arg(&folder), &served.path(&log));
        wait_until("a window is served", SERVES, || {
            assert!(join.ended().is_none(), "{}", served.log(&log));
            served.log(&log).contains("serving on CPU")
        });
        let plan: Value = serde_json::from_slice(&fs::read(folder.join("plan.json")).unwrap()).unwrap();
        let ranks = plan["ranks"].as_array().unwrap();
        let layers = (u64::from(start), u64::from(end));
        let index = ranks.iter().position(|rank| range(rank) == layers).unwrap();
        wait_until("the market knows that it is served", SOON, || {
            served.of_ring(&["status"])["status"]["windows"][index]["state"] == "ready"
        });
        let bytes = served.layer_bytes(start, end);
        let sent = served.sent(before + bytes) - before;
        let allowed = bytes + bytes / 50 + served.prefix_bytes();
        println!("layers {start}..{end}: {bytes} bytes of tensors, {sent} sent, {allowed} allowed");
        assert!(sent <= allowed);
        let windows: Vec<PathBuf> = fs::read_dir(folder.join("windows"))
            .unwrap()
            .map(|window| window.unwrap().path())
            .collect();
        assert_eq!(windows.len(), 1, "one window and no more: {windows:?}");
        Self {
            stage: process::children(join.id())[0],
            planned: ranks[index].clone(),
            file: windows[0].join("window.gguf"),
            join,
            index,
            bytes,
        }
    }

    /// A line of proc(5)'s `status`, in bytes.
    fn memory(&self, field: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.stage)).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
        let kibibytes: u64 = line
            .trim_matches([':', '\t', ' '])
            .strip_suffix(" kB")
            .unwrap()
            .trim()
            .parse()
            .unwrap();
        kibibytes * 1024
    }

    fn print(&self) {
        let disk = self.file.metadata().unwrap();
        println!(
            "window {}: file of {} bytes, {} on disk; resident {} ({} anonymous, {} of files), at most {}; planned {}",
            self.index,
            disk.len(),
            disk.blocks() * 512,
            self.memory("VmRSS"),
            self.memory("RssAnon"),
            self.memory("RssFile"),
            self.memory("VmHWM"),
            self.planned["memory"],
        );
    }

    fn leave(mut self) {
        assert!(process::signal(self.join.id(), Signal::INT));
        let status = wait_for("join ends", SOON, || self.join.ended());
        assert!(status.success());
        fs::remove_file(&self.file).unwrap();
    }
}

impl Served {
    /// What a command says of the ring that `kvasir up` offers.
    fn of_ring(&self, arguments: &[&str]) -> Value {
        let mut command = kvasir(arguments);
        command.arg(self.path("ring.yaml")).arg("--dir").arg(self.path("up"));
        told(&command.args(["-o", "json"]).output().unwrap())
    }
}

fn is_within(what: &str, bytes: u64, allowed: u64) {
    assert!(bytes <= allowed, "{what}: {bytes} bytes, {allowed} allowed");
}

fn offer(served: &Served) -> (Background, Background) {
    let relay = format!("http://127.0.0.1:{}", free_port());
    let listen = relay.trim_start_matches("http://");
    let mut command = Command::new(program("kvasir-relay"));
    command
        .args(["--database", ":memory:", "--public-url", &relay, "--listen", listen])
        .arg("--ready-file")
        .arg(served.path("relay.ready"));
    let process = Background::start(&mut command, &served.path("relay.log"));
    wait_until("the relay listens", SOON, || served.path("relay.ready").exists());
    let file = served.write("ring.yaml", &open_ring(served, &relay));
    let mut command = kvasir(&["up", "--port", "0", "--dir"]);
    let up = Background::start(command.arg(served.path("up")).arg(file), &served.path("up.log"));
    wait_until("the ring is offered", SOON, || {
        served.log("up.log").contains("are left to devices that join")
    });
    (process, up)
}

#[test]
fn a_device_carries_one_layer_in_little_more_than_its_bytes() {
    let served = Served::new();
    let _offered = offer(&served);

    // Room for one layer, so that the window of two is none for it.
    let device = Device::join(&served, "2500M", (4, 5));
    device.print();
    let disk = device.file.metadata().unwrap();
    is_within("disk", disk.blocks() * 512, device.bytes + device.bytes / 50);
    assert!(
        disk.len() > device.bytes + device.bytes / 5,
        "a padding layer is there, as a hole"
    );
    let resident = device.memory("VmRSS");
    is_within("resident", resident, device.bytes * 135 / 100);
    is_within("the window", device.bytes, resident);
    // The rest are pages of the file, which the kernel takes back when it needs them.
    is_within("not reclaimable", device.memory("RssAnon"), device.bytes / 10);
    device.leave();

    // A window of both kinds needs no padding: it is read into memory, and nothing of it is there twice. Those at the ends
    // take more, with embedding and head.
    let device = Device::join(&served, "3400M", (2, 4));
    device.print();
    let cache_and_buffers = number(&device.planned, "memory") - number(&device.planned, "bytes");
    is_within(
        "resident",
        device.memory("VmRSS"),
        device.bytes * 105 / 100 + cache_and_buffers,
    );
    device.leave();
}

#[test]
fn the_stand_in_is_sparse_and_of_the_real_size() {
    let served = Served::new();
    let file: &Path = &served.path("www").join(FILE);
    let file = file.metadata().unwrap();
    assert!((file.len() as f64 / 77.6e9 - 1.0).abs() < 0.02, "{} bytes", file.len());
    is_within("disk", file.blocks() * 512, 16 * MIB);
    assert_eq!((served.model.layers(), served.model.mtp_layers()), (48, 1));
}
