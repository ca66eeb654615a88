//! The program for phones, emulated, is a stage of a real ring, which computes the whole model's logits within a band.
#![allow(clippy::unwrap_used, reason = "tests end at the first surprise")]

use std::collections::HashMap;
use std::env;
use std::fs;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use kvasir_tests::client::Client;
use kvasir_tests::deadline::wait_until;
use kvasir_tests::nginx::Nginx;
use kvasir_tests::process::Background;
use kvasir_tests::ring::{example, free_port, http_source, program};
use kvasir_tests::{models, skip};
use llama_cpp_2::context::LlamaContext;
use llama_cpp_2::context::params::LlamaContextParams;
use llama_cpp_2::llama_backend::LlamaBackend;
use llama_cpp_2::llama_batch::LlamaBatch;
use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::model::params::LlamaModelParams;
use llama_cpp_2::token::LlamaToken;
use serde_json::{Value, json};
use tempfile::TempDir;

/// The bands of docs/phones.md: of the divergence in nats, its mean over all positions, and of a likely token's
/// log-probability.
const MEAN_KL: f64 = 5e-3;
const LOGPROB: f64 = 1.0;

/// For windows to be fetched and loaded, one of them by an emulated processor, and a ring to form.
const FORMS: Duration = Duration::from_secs(180);
/// The rank whose window the phone holds.
const RANK: usize = 1;
/// Tokens that follow each prompt, one lap each.
const ANSWER: usize = 8;
/// Likeliest tokens that are compared; the API tells no more.
const LIKELIEST: usize = 20;
const TEXT: &str = "The old lighthouse stood at the end of the harbour, and every evening its keeper climbed the stairs \
    to light the lamp. One winter night a storm came in from the sea, and the keeper saw";

/// The program for phones, and what runs it here; else why not.
fn emulated() -> Result<[PathBuf; 2], &'static str> {
    let phone = Path::new(env!("CARGO_MANIFEST_DIR")).join("../bin/kvasir-aarch64");
    let path = env::var_os("PATH").unwrap_or_default();
    let emulator = env::split_paths(&path)
        .flat_map(|folder| ["qemu-aarch64", "qemu-aarch64-static"].map(|name| folder.join(name)))
        .find(|path| path.is_file())
        .ok_or("there is no qemu-aarch64: run `scripts/install.sh test`")?;
    phone
        .is_file()
        .then_some([emulator, phone])
        .ok_or("there is no bin/kvasir-aarch64: run `make phone`")
}

/// A relay with TLS, and a ring offered on it whose middle window is open.
struct Site {
    folder: TempDir,
    model: String,
    relay: String,
    api: SocketAddr,
    running: Vec<Background>,
}

impl Site {
    fn start(model: &str) -> Site {
        let (relay_port, api_port) = (free_port(), free_port());
        let mut site = Site {
            folder: tempfile::tempdir().unwrap(),
            model: model.to_owned(),
            relay: format!("https://127.0.0.1:{relay_port}"),
            api: SocketAddr::from(([127, 0, 0, 1], api_port)),
            running: vec![],
        };
        let certified = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        fs::write(site.path("ca.pem"), certified.cert.pem()).unwrap();
        fs::write(site.path("key.pem"), certified.signing_key.serialize_pem()).unwrap();
        let mut relay = Command::new(program("kvasir-relay"));
        relay
            .args(["--database", ":memory:", "--public-url", &site.relay, "--listen"])
            .arg(format!("127.0.0.1:{relay_port}"))
            .arg("--tls-cert")
            .arg(site.path("ca.pem"))
            .arg("--tls-key")
            .arg(site.path("key.pem"))
            .arg("--ready-file")
            .arg(site.path("relay.ready"));
        site.run(&mut relay, "relay.log");
        wait_until("the relay listens", FORMS, || site.path("relay.ready").exists());

        let mut ring = example("smollm2-135m.yaml", http_source(model));
        ring["spec"]["windows"][RANK]["open"] = json!(true);
        ring["spec"]["market"] = json!({ "maxLayers": 10 });
        ring["spec"]["relay"] = json!({ "url": site.relay });
        // so that what differs is what the phone's processor computes
        ring["spec"]["boundaryType"] = json!("F32");
        fs::write(site.path("ring.yaml"), serde_yaml::to_string(&ring).unwrap()).unwrap();
        let mut up = site.here(&["up", "--port", &api_port.to_string()]);
        site.run(&mut up, "up.log");
        wait_until("the ring is offered", FORMS, || {
            site.log("up.log").contains("rank 0: window is loaded")
        });
        site
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn log(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    fn run(&mut self, command: &mut Command, log: &str) {
        self.running.push(Background::start(command, &self.path(log)));
    }

    /// This machine's `kvasir` about the ring.
    fn here(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(program("kvasir"));
        command
            .env("KVASIR_THREADS", "1")
            .env("KVASIR_CA_FILE", self.path("ca.pem"))
            .args(arguments)
            .arg(self.path("ring.yaml"))
            .arg("--dir")
            .arg(self.path("up"));
        command
    }

    fn told(&self, what: &str) -> Value {
        let out = self.here(&[what, "-o", "json"]).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        serde_json::from_slice(&out.stdout).unwrap()
    }

    /// The phone fetches its window and serves it, as `kvasir join` has it done. That starts a program of its own,
    /// which the kernel would have to know how to emulate.
    fn join(&mut self, [emulator, phone]: &[PathBuf; 2]) {
        let stage = |what: &str| {
            let mut command = Command::new(emulator);
            command
                .arg(phone)
                .args(["stage", what, "--rank", &RANK.to_string(), "--plan"])
                .arg(self.path("up/plan.json"))
                .arg("--dir")
                .arg(self.path("phone"))
                .env("KVASIR_CA_FILE", self.path("ca.pem"));
            command
        };
        let mut fetch = stage("fetch");
        fetch.args(["--source", &json!({ "http": { "url": self.model } }).to_string()]);
        let fetched = fetch.output().unwrap();
        assert!(fetched.status.success(), "{}", String::from_utf8_lossy(&fetched.stderr));

        let link = self.told("invite")["link"].as_str().unwrap().to_owned();
        let of_link = |key: &str| {
            let part = link.split(['#', '&']).find_map(|part| part.strip_prefix(key));
            part.unwrap_or_else(|| panic!("an invite has a {key}")).to_owned()
        };
        let mut run = stage("run");
        // on a network of its own, so that all its edges are the relay's
        run.args([
            "--network",
            "mobile",
            "--threads",
            "1",
            "--market",
            &self.relay,
            "--owner",
        ])
        .arg(of_link("owner="))
        .arg("--key")
        .arg(self.path("phone.key"))
        .env("KVASIR_TOKEN", of_link("token="));
        self.run(&mut run, "phone.log");
        let api = Client::new(self.api);
        wait_until("the ring is ready", FORMS, || {
            let ended = self.running.iter_mut().find_map(Background::ended);
            assert!(ended.is_none(), "a part has ended: {}", self.logs());
            let answer = api.send("GET", "/readyz", None);
            answer.is_ok_and(|answer| answer.status == 200)
        });
    }

    fn logs(&self) -> String {
        ["phone.log", "up.log", "relay.log"]
            .map(|name| format!("--- {name}\n{}", self.log(name)))
            .join("\n")
    }

    /// The likeliest answer of the ring, as the API tells it: tokens and their likeliest alternatives, by name.
    fn answer(&self, prompt: &[LlamaToken]) -> Value {
        let prompt: Vec<i32> = prompt.iter().map(|token| token.0).collect();
        let body = json!({
            "prompt": prompt, "max_tokens": ANSWER, "temperature": 0, "logprobs": LIKELIEST, "ignore_eos": true,
        });
        let answer = Client::new(self.api)
            .send("POST", "/v1/completions", Some(&body))
            .unwrap();
        let status = answer.status;
        let mut body = answer.json();
        assert_eq!(status, 200, "{body}\n{}", self.logs());
        body["choices"][0]["logprobs"].take()
    }
}

/// What the API calls a token.
fn name(bytes: &[u8]) -> String {
    match str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => bytes
            .iter()
            .fold("bytes:".to_owned(), |name, byte| name + &format!("\\x{byte:02x}")),
    }
}

/// Tokens by name, without those that share one.
fn tokens_by_name(model: &LlamaModel) -> HashMap<String, LlamaToken> {
    let mut tokens = HashMap::new();
    for id in 0..model.n_vocab() {
        let named = name(&model.vocab().detokenize(&[LlamaToken(id)], false, true));
        tokens
            .entry(named)
            .and_modify(|token| *token = None)
            .or_insert(Some(LlamaToken(id)));
    }
    tokens
        .into_iter()
        .filter_map(|(name, token)| Some((name, token?)))
        .collect()
}

/// Log-probabilities of all tokens after `tokens`, which come after `position` others.
fn logprobs(context: &mut LlamaContext<'_>, tokens: &[LlamaToken], position: usize) -> Vec<f64> {
    let mut batch = LlamaBatch::new(tokens.len(), 1);
    for (i, &token) in tokens.iter().enumerate() {
        let is_last = i + 1 == tokens.len();
        batch.add(token, (position + i) as i32, &[0], is_last).unwrap();
    }
    context.decode(&mut batch).unwrap();
    let logits: Vec<f64> = context.get_logits().iter().map(|&logit| logit.into()).collect();
    let top = logits.iter().copied().fold(f64::MIN, f64::max);
    let norm = top + logits.iter().map(|logit| (logit - top).exp()).sum::<f64>().ln();
    logits.into_iter().map(|logit| logit - norm).collect()
}

/// How far a ring's likeliest tokens are from the whole model's log-probabilities of them: the divergence, with all other
/// tokens taken together, and the largest difference.
fn compare(ring: &Value, whole: &[f64], tokens: &HashMap<String, LlamaToken>) -> (f64, f64) {
    let (mut divergence, mut largest, mut counted) = (0.0, 0f64, 0);
    let (mut rest_of_whole, mut rest_of_ring) = (1.0, 1.0);
    for (name, logprob) in ring.as_object().unwrap() {
        let Some(token) = tokens.get(name) else { continue };
        let (want, got) = (whole[token.0 as usize], logprob.as_f64().unwrap());
        divergence += want.exp() * (want - got);
        largest = largest.max((want - got).abs());
        rest_of_whole -= want.exp();
        rest_of_ring -= got.exp();
        counted += 1;
    }
    assert!(
        counted + 4 >= LIKELIEST,
        "{counted} tokens of {ring} have names of their own"
    );
    if rest_of_whole > 0.0 && rest_of_ring > 0.0 {
        divergence += rest_of_whole * (rest_of_whole / rest_of_ring).ln();
    }
    (divergence, largest)
}

#[test]
fn a_ring_with_a_phone_in_its_middle_computes_the_whole_models_logits_within_the_band() {
    let programs = match emulated() {
        Ok(programs) => programs,
        Err(why) => return skip(why),
    };
    let file = models::smollm2();
    let nginx = Nginx::serve(file.parent().unwrap());
    let mut site = Site::start(&nginx.url(file.file_name().unwrap().to_str().unwrap()));
    site.join(&programs);
    assert_eq!(site.told("status")["status"]["windows"][RANK]["state"], "ready");

    let mut backend = LlamaBackend::init().unwrap();
    backend.void_logs();
    let whole = LlamaModel::load_from_file(&backend, &file, &LlamaModelParams::default()).unwrap();
    let by_name = tokens_by_name(&whole);
    let text = whole.vocab().tokenize(TEXT.as_bytes(), false, false);
    let params = LlamaContextParams::default()
        .with_n_ctx(NonZeroU32::new(512))
        .with_n_threads(1)
        .with_n_threads_batch(1);
    let mut distances = vec![];
    for prompt in [&text[..1], &text[..7], &text[..]] {
        let answer = site.answer(prompt);
        let likeliest = answer["top_logprobs"].as_array().unwrap();
        assert_eq!(likeliest.len(), ANSWER, "{answer}");
        // the whole model is fed the ring's own tokens, so that a near tie doesn't part the two
        let mut context = whole.new_context(&backend, params.clone()).unwrap();
        let (mut fed, mut position) = (prompt.to_vec(), 0);
        for (step, token) in answer["tokens"].as_array().unwrap().iter().enumerate() {
            let distance = compare(&likeliest[step], &logprobs(&mut context, &fed, position), &by_name);
            println!(
                "prompt of {}, step {step}: KL {:.1e}, {:.1e}",
                prompt.len(),
                distance.0,
                distance.1
            );
            distances.push(distance);
            position += fed.len();
            fed = vec![by_name[token.as_str().unwrap()]];
        }
    }
    let mean = distances.iter().map(|(divergence, _)| divergence).sum::<f64>() / distances.len() as f64;
    let largest = distances.iter().map(|(_, largest)| *largest).fold(0.0, f64::max);
    println!("mean KL {mean:.1e}, largest difference of a log-probability {largest:.1e}");
    assert!(mean <= MEAN_KL, "mean KL {mean:e}");
    assert!(largest <= LOGPROB, "a log-probability differs by {largest:e}");
}
