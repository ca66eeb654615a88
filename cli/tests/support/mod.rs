//! Runs `kvasir` and reads what it says.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::process::Output;

use assert_cmd::Command;
use kvasir_tests::random_model::{Architecture, RandomModel, Vocabulary};
use serde_json::Value;

pub(crate) fn kvasir(arguments: &[&str]) -> Output {
    let mut command = Command::cargo_bin("kvasir").unwrap();
    command.env_remove("RUST_LOG").args(arguments).output().unwrap()
}

/// What a command prints that succeeds.
pub(crate) fn prints(arguments: &[&str]) -> String {
    let output = kvasir(arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// What `kvasir inspect` tells.
pub(crate) fn inspected(arguments: &[&str]) -> Value {
    let arguments = [&["inspect", "-o", "json"], arguments].concat();
    serde_json::from_str(&prints(&arguments)).unwrap()
}

/// Values of one member, by row.
pub(crate) fn column(rows: &Value, name: &str) -> Vec<Value> {
    rows.as_array().unwrap().iter().map(|row| row[name].clone()).collect()
}

/// A small model that reads text.
pub(crate) fn random(architecture: Architecture) -> RandomModel {
    RandomModel::new(architecture).vocabulary(Vocabulary::Bytes)
}
