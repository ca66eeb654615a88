//! The table of architectures is that of the llama.cpp in use: an upgrade that brings an architecture, a per-layer key or
//! another way of building a graph fails here, before anybody's window is wrong.
#![allow(clippy::unwrap_used, reason = "tests end at the first surprise")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use kvasir_gguf::arch::{self, PER_LAYER, WHOLE};

/// Arrays that hold no value for each layer of a model that is cut.
const OTHERS: [(&str, &str); 14] = [
    ("adapters.token_ids_activate", "graniteswitch, which isn't cut"),
    ("adapters.token_ids_substitute", "graniteswitch, which isn't cut"),
    ("classifier.output_labels", "classifiers, which give no tokens"),
    ("general.tensor_extra.name", "names tensors: files with it are refused"),
    ("ple.head_offsets", "qwen4exp, which isn't cut"),
    ("ple.head_vocab_sizes", "qwen4exp, which isn't cut"),
    ("ple.layer_multipliers", "qwen4exp, which isn't cut"),
    ("ple.layers", "qwen4exp, which isn't cut"),
    ("target_layers", "drafts of another model, which aren't cut"),
    ("tokenizer.ggml.tokens", "the vocabulary"),
    ("xielu.alpha_n", "apertus, which isn't cut"),
    ("xielu.alpha_p", "apertus, which isn't cut"),
    ("xielu.beta", "apertus, which isn't cut"),
    ("xielu.eps", "apertus, which isn't cut"),
];

fn cargo(arguments: &[&str]) -> Vec<u8> {
    let output = Command::new(env!("CARGO"))
        .args(arguments)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    output.stdout
}

/// `src/` of the llama.cpp that this workspace builds.
fn source() -> PathBuf {
    // packages of other platforms needn't be on this machine
    let version = String::from_utf8(cargo(&["-vV"])).unwrap();
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).unwrap();
    let options = ["--offline", "--locked", "--format-version=1", "--filter-platform", host];
    let listed = cargo(&[&["metadata"][..], &options].concat());
    let metadata: serde_json::Value = serde_json::from_slice(&listed).unwrap();
    let package = metadata["packages"]
        .as_array()
        .unwrap()
        .iter()
        .find(|package| package["name"] == "llama-cpp-sys-2")
        .unwrap();
    let manifest = Path::new(package["manifest_path"].as_str().unwrap());
    manifest.parent().unwrap().join("llama.cpp/src")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// `{ CONSTANT, "text" }` of the map with this name.
fn map(text: &str, name: &str) -> BTreeMap<String, String> {
    let start = text.find(&format!("{name} = {{")).unwrap();
    let body = &text[start..start + text[start..].find("\n};").unwrap()];
    body.lines()
        .filter_map(|line| {
            let (constant, rest) = line.trim().strip_prefix('{')?.split_once(',')?;
            let text = rest.split('"').nth(1)?;
            Some((constant.trim().to_owned(), text.to_owned()))
        })
        .collect()
}

/// All of llama.cpp's own C++ files.
fn files(source: &Path) -> Vec<String> {
    let files: Vec<String> = [source.to_owned(), source.join("models")]
        .iter()
        .flat_map(|folder| fs::read_dir(folder).unwrap())
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "cpp"))
        .map(|path| read(&path))
        .collect();
    assert!(files.len() > 100);
    files
}

/// Constants that stand right behind `call` anywhere in the text.
fn arguments<'a>(text: &'a str, call: &str) -> impl Iterator<Item = &'a str> {
    text.match_indices(call).filter_map(move |(at, _)| {
        let rest = &text[at + call.len()..];
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_')?;
        rest[..end].starts_with("LLM_KV_").then_some(&rest[..end])
    })
}

#[test]
fn every_architecture_that_llama_cpp_knows_is_cut_or_refused_by_name() {
    let theirs: BTreeSet<String> = map(&read(&source().join("llama-arch.cpp")), "LLM_ARCH_NAMES")
        .into_values()
        .filter(|name| name != "(unknown)")
        .collect();
    assert!(theirs.len() > 100);
    let listed: Vec<&str> = arch::known().map(|described| described.name).collect();
    let ours: BTreeSet<String> = listed.iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(ours.len(), listed.len(), "a name stands twice");
    let missing: Vec<&String> = theirs.difference(&ours).collect();
    let gone: Vec<&String> = ours.difference(&theirs).collect();
    assert!(missing.is_empty(), "not in the table: {missing:?}");
    assert!(gone.is_empty(), "unknown to llama.cpp: {gone:?}");
}

#[test]
fn every_array_that_llama_cpp_reads_is_known_to_be_per_layer_or_not() {
    let source = source();
    let keys = map(&read(&source.join("llama-arch.cpp")), "LLM_KV_NAMES");
    let mut theirs = BTreeSet::new();
    for text in files(&source) {
        for call in ["get_key_or_arr(", "get_arr(", "get_arr_n("] {
            for constant in arguments(&text, call) {
                let key = &keys[constant];
                theirs.insert(key.strip_prefix("%s.").unwrap_or(key).to_owned());
            }
        }
    }
    assert!(theirs.contains("attention.head_count_kv"));
    let ours: BTreeSet<String> = PER_LAYER
        .iter()
        .chain(WHOLE)
        .copied()
        .chain(OTHERS.map(|(key, _)| key))
        .map(str::to_owned)
        .collect();
    let missing: Vec<&String> = theirs.difference(&ours).collect();
    let gone: Vec<&String> = ours.difference(&theirs).collect();
    assert!(
        missing.is_empty(),
        "neither per layer nor known as another array: {missing:?}"
    );
    assert!(gone.is_empty(), "llama.cpp reads no such array: {gone:?}");
}

/// What a graph does between the embeddings and its first layer.
fn before_the_first_layer(text: &str) -> &str {
    let start = text.find("= build_inp_embd(").unwrap();
    &text[start..start + text[start..].find("for (int il").unwrap()]
}

#[test]
fn hidden_states_are_written_over_where_a_graph_changes_or_refuses_its_input_and_nowhere_else() {
    let source = source();
    for known in arch::upstream() {
        let text = read(&source.join(known.source));
        let changes = before_the_first_layer(&text)
            .lines()
            .skip(1)
            .map(str::trim)
            .any(|line| line.contains("ubatch.embd") || line.starts_with("inpL = ") || line.starts_with("cur = "));
        assert_eq!(known.plain_input, !changes, "{}", known.name);
    }
}

#[test]
fn nothing_else_depends_on_how_many_layers_there_are_or_which_one_it_is() {
    let source = source();
    for known in arch::upstream() {
        let text = read(&source.join(known.source));
        let counts = text.contains("type == LLM_TYPE") || text.contains("n_layer() ==");
        assert_eq!(known.by_layers, counts, "{}", known.name);
        for by_number in ["il %", "il + 1", "n_no_rope_layer_step", "n_moe_layer_step", "has_kv("] {
            assert!(!text.contains(by_number), "{}: {by_number}", known.name);
        }
    }
}

#[test]
fn an_untied_head_poses_as_a_tied_one_only_where_llama_cpp_takes_that() {
    let source = source();
    for known in arch::upstream() {
        let text = read(&source.join(known.source));
        let asked_for = text
            .lines()
            .filter(|line| line.contains("tn(LLM_TENSOR_OUTPUT,") && line.contains("\"weight\""))
            .any(|line| line.trim_end().ends_with(", 0);"));
        assert_eq!(known.own_head, asked_for, "{}", known.name);
    }
}
