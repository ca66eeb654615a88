//! The `kvasir` command as a user meets it: the real program, small models, and what it says when something is wrong.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod bench;
mod chat;
mod flags;
mod plan;
mod relayed;
mod slice;
mod sources;
mod up;

use std::{
    fs,
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
