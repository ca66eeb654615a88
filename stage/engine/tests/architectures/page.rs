//! `docs/architectures.md`, written from what the tests have shown.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::{env, fs};

use kvasir_gguf::arch::{self, Described};

use crate::cuts::Shown;

const INTRODUCTION: &str = "\
# Architectures

Which models can be cut into windows, and where. The tests in `stage/engine/tests/architectures` write this page:

    KVASIR_BLESS=1 cargo test --release --workspace --test architectures

For each architecture they make a small model with random weights, cut it into two windows wherever that can be done and into
three in ten ways, and run the windows one after the other beside the whole model on stock llama.cpp: prompts and single
tokens, several sequences at once. A cut counts here only if all logits were the same to the bit. What can't be cut is refused
by the planner, before any weights are fetched, with the reason that stands here.

`kvasir inspect MODEL` says of a model which architecture it has, and whether and where it can be cut. It reads the model's first
bytes, and no weights.

## Names

GGUF files of the same family don't always have the same architecture, and later models of a family may have another one: what
counts is `general.architecture` in the file.

| model | architecture | |
| --- | --- | --- |
{NAMES}
## What is cut

Figures are numbers of cuts shown; cuts into two are counted against all that there are.

| architecture | which layers are of which kind | input of the first layer | in two | in three | cuts refused | variants | remarks |
| --- | --- | --- | --- | --- | --- | --- | --- |
";

/// Models by the names that people know, and the architecture of their GGUF files.
const NAMES: &[(&str, &str)] = &[
    (
        "Llama 2, Llama 3, 3.1, 3.2 and 3.3, Mistral 7B, Mistral Nemo, Mistral Small up to 3, SmolLM2, TinyLlama, Yi",
        "llama",
    ),
    ("Mixtral 8x7B and 8x22B", "llama"),
    ("Llama 4 Scout and Maverick", "llama4"),
    (
        "Ministral 3, Mistral Small 3.1 and 3.2 (older files: llama)",
        "mistral3",
    ),
    ("Mistral Small 4", "mistral4"),
    ("SmolLM3", "smollm3"),
    ("Qwen2, Qwen2.5, QwQ, DeepSeek-R1-Distill-Qwen", "qwen2"),
    ("DeepSeek-R1-Distill-Llama", "llama"),
    ("Qwen3 0.6B to 32B", "qwen3"),
    ("Qwen3 30B-A3B and 235B-A22B, Qwen3-Coder", "qwen3moe"),
    ("Qwen3-Next 80B-A3B, Qwen3-Coder-Next", "qwen3next"),
    ("Qwen3.5 dense", "qwen35"),
    ("Qwen3.5 35B-A3B, 122B-A10B and 397B-A17B", "qwen35moe"),
    ("Qwen3-VL", "qwen3vl"),
    (
        "DeepSeek-V2, V2-Lite, V3, V3.1 and R1, Kimi K2, GLM-4.7-Flash",
        "deepseek2",
    ),
    ("DeepSeek-V3.2", "deepseek32"),
    ("GLM-4.5, GLM-4.5-Air, GLM-4.6, GLM-4.7", "glm4moe"),
    ("gpt-oss-20b and gpt-oss-120b", "gpt-oss"),
    ("Gemma 1, CodeGemma", "gemma"),
    ("Gemma 2", "gemma2"),
    ("Gemma 3, MedGemma", "gemma3"),
    ("Gemma 3n", "gemma3n"),
    ("Gemma 4", "gemma4"),
    ("Phi-3, Phi-3.5-mini, Phi-4, Phi-4-mini", "phi3"),
    ("Phi-3.5-MoE", "phimoe"),
    ("Granite 4.0 H: Micro, Tiny, Small", "granitehybrid"),
    ("Granite 3, without experts", "granite"),
    ("LFM2 350M, 700M, 1.2B and 2.6B", "lfm2"),
    ("LFM2-8B-A1B", "lfm2moe"),
    ("MiniMax-M2", "minimax-m2"),
    ("Command R", "command-r"),
    ("Falcon-H1", "falcon-h1"),
    ("Nemotron-H, Nemotron Nano 2", "nemotron_h"),
];

const REFUSED: &str = "
## What isn't

";

/// The page.
pub(crate) fn render(shown: &[Shown]) -> String {
    let described: Vec<Described> = arch::known().collect();
    let mut page = INTRODUCTION.replace("{NAMES}\n", &names(&described));
    let mut rows: Vec<(&str, Vec<&Shown>)> = Vec::new();
    for shown in shown {
        let name = shown.case.architecture.name();
        match rows.iter_mut().find(|(other, _)| *other == name) {
            Some((_, row)) => row.push(shown),
            None => rows.push((name, vec![shown])),
        }
    }
    for (name, shown) in &rows {
        let known = described.iter().find(|known| known.name == *name);
        let known = known.unwrap_or_else(|| panic!("{name} is cut, and the table doesn't describe it"));
        page += &row(known, shown);
    }
    for known in described.iter().filter(|known| known.cut.is_ok()) {
        let is_shown = rows.iter().any(|(name, _)| *name == known.name);
        assert!(is_shown, "{} is cut, and no test shows that it can be", known.name);
    }
    page + REFUSED + &refused(&described)
}

/// Every name stands for an architecture that llama.cpp knows.
fn names(described: &[Described]) -> String {
    let line = |(model, architecture): &(&str, &str)| {
        let known = described.iter().find(|known| known.name == *architecture);
        let known = known.unwrap_or_else(|| panic!("{model}: there is no architecture {architecture}"));
        let verdict = match known.cut {
            Ok(_) => "can be cut".to_owned(),
            Err(why) => format!("can't be cut: {why}"),
        };
        format!("| {model} | {architecture} | {verdict} |\n")
    };
    NAMES.iter().map(line).collect::<String>() + "\n"
}

fn row(known: &Described, shown: &[&Shown]) -> String {
    let (plain, variants) = shown.split_first().unwrap();
    let variants: Vec<String> = variants
        .iter()
        .map(|shown| {
            let label = shown.case.label();
            let variant = label.strip_prefix(known.name).unwrap_or(&label);
            let variant = variant.trim_start_matches([',', ' ']);
            let refused = match refusals(shown) {
                refused if shown.refused.len() == plain.refused.len() || refused.is_empty() => String::new(),
                refused => format!(" ({refused})"),
            };
            format!("{variant}: {}{refused}, {}", two(shown), three(shown))
        })
        .collect();
    let remarks = known
        .cut
        .unwrap_or_else(|why| panic!("{} is refused: {why}", known.name));
    format!(
        "| {} | {} | {} | {} | {} | {} | {} | {remarks} |\n",
        known.name,
        known.kinds,
        known.input,
        two(plain),
        three(plain),
        refusals(plain),
        variants.join("; "),
    )
}

fn two(shown: &Shown) -> String {
    format!("{} of {}", shown.two.len(), shown.layers - 1)
}

fn three(shown: &Shown) -> String {
    shown.three.len().to_string()
}

/// The cuts that are refused, each reason once.
fn refusals(shown: &Shown) -> String {
    let mut reasons: Vec<(&str, Vec<String>)> = Vec::new();
    for (at, why) in &shown.refused {
        match reasons.iter_mut().find(|(other, _)| other == why) {
            Some((_, cuts)) => cuts.push(at.to_string()),
            None => reasons.push((why, vec![at.to_string()])),
        }
    }
    let each: Vec<String> = reasons
        .into_iter()
        .map(|(why, cuts)| format!("at {}: {why}", cuts.join(", ")))
        .collect();
    each.join("; ")
}

/// Architectures that are refused, those with the same reason together.
fn refused(described: &[Described]) -> String {
    let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for known in described {
        if let Err(why) = known.cut {
            reasons.entry(why).or_default().push(known.name);
        }
    }
    let mut reasons: Vec<_> = reasons.into_iter().collect();
    reasons.sort_by_key(|(_, names)| names.len());
    let lines: Vec<String> = reasons
        .iter()
        .map(|(why, names)| format!("- {}: {why}\n", names.join(", ")))
        .collect();
    lines.concat()
}

/// Compares the page with the file, or with `KVASIR_BLESS=1` writes it.
pub(crate) fn compare(page: &str) {
    let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/architectures.md"));
    if env::var_os("KVASIR_BLESS").is_some_and(|bless| bless == "1") {
        fs::write(&path, page).unwrap();
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == page,
        "docs/architectures.md doesn't say what the tests show; write it with KVASIR_BLESS=1. It should be:\n{page}"
    );
}
