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

## What is cut

Figures are numbers of cuts shown; cuts into two are counted against all that there are.

| architecture | which layers are of which kind | input of the first layer | in two | in three | cuts refused | variants | remarks |
| --- | --- | --- | --- | --- | --- | --- | --- |
";

const REFUSED: &str = "
## What isn't

";

/// The page.
pub(crate) fn render(shown: &[Shown]) -> String {
    let described: Vec<Described> = arch::known().collect();
    let mut page = INTRODUCTION.to_owned();
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
