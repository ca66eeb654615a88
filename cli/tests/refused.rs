//! What can't be served is refused by every command alike, and before anything is fetched.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod support;

use std::fs;
use std::path::{Path, PathBuf};

use kvasir_tests::gguf::{File, Value as Metadata};
use kvasir_tests::random_model::{Architecture, RandomModel};
use serde_json::{Value, json};
use tempfile::TempDir;

use support::{column, inspected, kvasir, prints, random};

/// What a command says when it fails.
fn refusal(arguments: &[&str]) -> String {
    let output = kvasir(arguments);
    assert!(!output.status.success(), "{arguments:?}");
    String::from_utf8(output.stderr).unwrap()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A model in a folder, with a Ring of it.
struct Site {
    folder: TempDir,
    model: PathBuf,
    ring: PathBuf,
}

impl Site {
    fn of(file: &File) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (model, ring) = (folder.path().join("model.gguf"), folder.path().join("ring.yaml"));
        fs::write(&model, file.to_bytes()).unwrap();
        let spec =
            json!({ "model": { "name": "tiny", "source": { "file": { "path": model } } }, "contextLength": 256 });
        let of_ring = json!({
            "apiVersion": "kvasir.dev/v1alpha1", "kind": "Ring", "metadata": { "name": "tiny" }, "spec": spec,
        });
        fs::write(&ring, of_ring.to_string()).unwrap();
        Site { folder, model, ring }
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder.path()).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

#[test]
fn every_command_says_what_llama_cpp_has_against_a_model() {
    let mut file = random(Architecture::Llama).file();
    file.tensors.retain(|tensor| tensor.name != "blk.5.ffn_norm.weight");
    let site = Site::of(&file);
    let (model, ring) = (text(&site.model), text(&site.ring));
    let why = "llama.cpp can't run this model: tensor blk.5.ffn_norm.weight is missing";

    let output = kvasir(&["inspect", "-o", "json", model]);
    assert_eq!(output.status.code(), Some(2));
    let shown: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(shown["cut"]["why"], why);
    assert_eq!(
        column(&shown["layers"], "kind"),
        vec![json!("full"); 8],
        "what can be told is told"
    );

    let (dir, out) = (site.folder.path().join("dir"), site.folder.path().join("out.gguf"));
    for arguments in [
        vec!["plan", ring],
        vec!["up", ring, "--port", "0", "--dir", text(&dir)],
        vec!["bench", ring, "--dir", text(&dir)],
        vec!["slice", model, "4..8", "--out", text(&out)],
    ] {
        let told = refusal(&arguments);
        let own = "tensor blk.5.ffn_norm.weight is missing";
        assert!(told.contains(own), "{arguments:?}: {told}");
        assert!(!told.contains(".trial"), "{arguments:?}: {told}");
    }
    let left: Vec<String> = site.names().into_iter().filter(|name| name != "dir").collect();
    assert_eq!(left, ["model.gguf", "ring.yaml"]);
}

#[test]
fn a_model_without_a_tokenizer_is_refused_before_it_is_fetched() {
    let site = Site::of(&RandomModel::new(Architecture::Llama).file());
    let dir = site.folder.path().join("dir");
    for arguments in [
        vec!["plan", text(&site.ring)],
        vec!["up", text(&site.ring), "--port", "0", "--dir", text(&dir)],
    ] {
        let told = refusal(&arguments);
        assert!(told.contains("the model has no tokenizer"), "{told}");
    }
    assert!(!dir.join("windows").exists());
}

#[test]
fn a_bench_says_that_stock_llama_cpp_does_not_take_the_whole_model() {
    let none_slides = Metadata::Bools(vec![false; 8]);
    let model = random(Architecture::Gemma2).metadata("gemma2.attention.sliding_window_pattern", none_slides);
    let site = Site::of(&model.file());
    prints(&["plan", text(&site.ring), "--stages", "2"]);
    let dir = site.folder.path().join("dir");
    let short = ["--prompt-tokens", "8", "--tokens", "8", "--dir", text(&dir)];
    let told = refusal(&[&["bench", text(&site.ring)], &short[..]].concat());
    assert!(
        told.starts_with("error: the whole model can't be loaded to compare the ring with\n"),
        "{told}"
    );
    assert!(told.contains("is_swa_any"), "{told}");
}

#[test]
fn a_slice_of_layers_without_tensors_is_refused() {
    let mut file = random(Architecture::Llama).file();
    file.tensors.retain(|tensor| !tensor.name.starts_with("blk.3."));
    let site = Site::of(&file);
    let out = site.folder.path().join("out.gguf");
    let told = refusal(&["slice", text(&site.model), "3..4", "--out", text(&out)]);
    assert!(told.contains("there is no tensor of block 3"), "{told}");
}

#[test]
fn a_chat_template_that_cannot_be_read_is_told_with_the_plan() {
    let template = Metadata::String("{% for message in messages %}{{ message.content }".to_owned());
    let model = random(Architecture::Llama).metadata("tokenizer.chat_template", template);
    let site = Site::of(&model.file());
    for arguments in [["plan", text(&site.ring)], ["inspect", text(&site.model)]] {
        let output = kvasir(&arguments);
        assert!(output.status.success(), "completions are served all the same");
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(told.contains("warning: the chat template can't be read"), "{told}");
    }
}

#[test]
fn every_command_cuts_where_the_last_window_may_start() {
    let site = Site::of(&random(Architecture::Deepseek2).layers(54).file());
    let model = text(&site.model);
    let shown = inspected(&[model, "--stages", "2"]);
    assert_eq!(shown["cut"]["refusedLastStarts"], json!([27, 28]));
    let start = shown["stages"][1]["layers"]["start"].as_u64().unwrap();
    assert!(![27, 28].contains(&start), "{start}");
    let table = prints(&["inspect", model]);
    assert!(table.contains("the last window can't start at 27 or 28"), "{table}");

    let planned = prints(&["plan", text(&site.ring), "--stages", "2", "-o", "json"]);
    let planned: Value = serde_json::from_str(&planned).unwrap();
    assert_eq!(column(&planned["ranks"], "layers"), column(&shown["stages"], "layers"));
    for start in [27, 28, start] {
        let out = site.folder.path().join("out.gguf");
        let cut = kvasir(&["slice", model, &format!("{start}..54"), "--out", text(&out)]);
        assert_eq!(cut.status.success(), ![27, 28].contains(&start), "{start}");
    }
}

#[test]
fn a_tokenizer_that_would_end_a_ring_at_somebodys_text_is_refused_by_every_command() {
    let mut file = random(Architecture::Llama).file();
    // loaded without a word, and thrown at by the first text that it has no token for
    file.set("tokenizer.ggml.model", Metadata::String("llama".to_owned()));
    let site = Site::of(&file);
    let (model, ring) = (text(&site.model), text(&site.ring));
    assert_eq!(kvasir(&["inspect", model]).status.code(), Some(2));
    let (dir, out) = (site.folder.path().join("dir"), site.folder.path().join("out.gguf"));
    for arguments in [
        vec!["inspect", model],
        vec!["plan", ring],
        vec!["up", ring, "--port", "0", "--dir", text(&dir)],
        vec!["slice", model, "0..4", "--first", "--out", text(&out)],
    ] {
        let told = refusal(&arguments);
        assert!(told.contains("its tokenizer ends by"), "{arguments:?}: {told}");
    }
    assert!(!dir.join("windows").exists() && !out.exists());
}

#[test]
fn planned_windows_are_tried_where_layers_are_unlike_each_other() {
    let mut file = random(Architecture::Llama).file();
    let wide = file.metadata.iter().find(|(key, _)| key == "llama.feed_forward_length");
    let Some((_, Metadata::U32(wide))) = wide else {
        panic!("one length for all layers");
    };
    let wide = *wide as i32;
    // llama.cpp takes the first of a window for all of its layers
    let lengths = vec![wide, wide, wide, wide, wide - 32, wide, wide, wide];
    file.set("llama.feed_forward_length", Metadata::I32s(lengths));
    let site = Site::of(&file);
    let ring = text(&site.ring);
    prints(&["plan", ring, "--stages", "1"]);
    let told = refusal(&["plan", ring, "--stages", "2"]);
    assert!(told.contains("tensor blk.4.ffn_"), "{told}");
}

#[test]
fn a_template_that_refuses_a_greeting_and_a_context_beyond_the_models_are_told_with_the_plan() {
    let template = Metadata::String("{{ raise_exception('never') }}".to_owned());
    let model = random(Architecture::Llama)
        .metadata("tokenizer.chat_template", template)
        .metadata("llama.context_length", Metadata::U32(128));
    let site = Site::of(&model.file());
    let output = kvasir(&["plan", text(&site.ring)]);
    assert!(output.status.success());
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(
        told.contains("the chat template refuses these messages: never"),
        "{told}"
    );
    assert!(told.contains("the model was made for 128 positions"), "{told}");
}
