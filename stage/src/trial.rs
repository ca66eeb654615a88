//! Tries a model before any of its weights is fetched: llama.cpp loads what the prefix says, in a process of its own, since
//! it ends the process for some of what can be wrong.
//!
//! A trial that can't be held proves nothing against a model: that is a warning, and the fetch goes on.

mod words;

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use kvasir_gguf::{MiniGguf, Model, copy, window};
use serde::{Deserialize, Serialize};
use tokio::process::Command;

/// Time that llama.cpp has for a prefix; it takes a second for the largest.
const WITHIN: Duration = Duration::from_secs(30);
/// Where the process finds an outline, which is its standard input.
const OUTLINE: &str = "/proc/self/fd/0";
/// Memory of a trial whatever its prefix: the program, graphs, the states of recurrent layers.
const MEMORY: u64 = 2 << 30;
/// A byte of prefix becomes as many in memory at most: tokens are looked up by text.
const MEMORY_PER_BYTE: u64 = 32;
/// Signals that a process brings about by what it does, and what that is.
const SIGNALS: [(i32, &str); 5] = [
    (4, "an illegal instruction"),
    (6, "an abort"),
    (7, "a bus error"),
    (8, "a division by zero"),
    (11, "a wrong address"),
];

/// What a file is to give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gives {
    /// hidden states
    Hidden,
    /// logits
    Logits,
    /// tokens
    Tokens,
}

impl Gives {
    fn word(self) -> &'static str {
        match self {
            Gives::Hidden => "hidden",
            Gives::Logits => "logits",
            Gives::Tokens => "tokens",
        }
    }
}

/// What the process says at its end, if it comes to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "verdict", rename_all = "camelCase")]
pub(crate) enum Verdict {
    Sound,
    Refused { said: String },
    NoTokenizer,
    CannotTell { said: String },
}

/// Why a model isn't fetched.
#[derive(Debug, thiserror::Error)]
pub enum TrialError {
    /// llama.cpp can't run what the prefix describes
    #[error("llama.cpp can't run this model: {why}")]
    Refused {
        /// what it says, in the model's own terms
        why: String,
    },
    /// text can't become tokens
    #[error("the model has no tokenizer (metadata keys tokenizer.ggml.…): text can't be served with it")]
    NoTokenizer,
    /// no end came
    #[error("llama.cpp was still busy with the model's prefix after {} seconds", WITHIN.as_secs())]
    Slow,
}

impl TrialError {
    /// Stable `PascalCase` word for metrics, events and conditions.
    pub fn reason(&self) -> &'static str {
        match self {
            TrialError::Refused { .. } | TrialError::NoTokenizer | TrialError::Slow => "MalformedFile",
        }
    }
}

/// How trials are held.
#[derive(Clone, Debug)]
pub struct Trial {
    /// a program and the arguments that make it `kvasir-stage`
    program: Option<(PathBuf, Vec<OsString>)>,
}

impl Trial {
    /// By the running program, which `way` makes `kvasir-stage`.
    pub fn by_this_program(way: &[&str]) -> Self {
        match std::env::current_exe() {
            Ok(program) => Trial::by(program, way),
            Err(_) => Trial::none(),
        }
    }

    /// By this program.
    pub fn by(program: PathBuf, way: &[&str]) -> Self {
        Trial {
            program: Some((program, way.iter().map(OsString::from).collect())),
        }
    }

    /// None are held: for models that are known to be sound.
    pub fn none() -> Self {
        Trial { program: None }
    }

    /// Tries the whole model: its trunk, and beside it its tokenizer.
    ///
    /// # Errors
    /// What is wrong with the model.
    pub async fn of_model(&self, model: &Model) -> Result<(), TrialError> {
        match model.metadata().str("tokenizer.ggml.model") {
            None | Some("no_vocab" | "none") => return Err(TrialError::NoTokenizer),
            Some(_) => {}
        }
        // What can't be cut at all is told by whoever cuts it.
        let trunk = async {
            match window::trunk(model) {
                Ok(trunk) => self.of_file(&trunk, Gives::Logits).await,
                Err(_) => Ok(()),
            }
        };
        let tokenizer = async {
            match window::vocabulary(model, false) {
                Ok(vocabulary) => self.of_file(&vocabulary, Gives::Tokens).await,
                Err(_) => Ok(()),
            }
        };
        tokio::try_join!(trunk, tokenizer).map(drop)
    }

    /// Tries one file.
    ///
    /// # Errors
    /// What is wrong with the model.
    pub async fn of_file(&self, mini: &MiniGguf, gives: Gives) -> Result<(), TrialError> {
        if self.program.is_none() {
            return Ok(());
        }
        match outline(mini) {
            Ok(outline) => {
                let memory = MEMORY + MEMORY_PER_BYTE * mini.header.len() as u64;
                self.of(Path::new(OUTLINE), outline.into(), gives, memory, &mini.blocks)
                    .await
            }
            Err(error) => {
                cannot_tell(&error.to_string());
                Ok(())
            }
        }
    }

    /// Tries a whole model that lies on this machine, as it is.
    ///
    /// # Errors
    /// What is wrong with the model.
    pub async fn of_whole(&self, model: &Model, path: &Path) -> Result<(), TrialError> {
        let prefix: u64 = model.prefix_bytes().iter().sum();
        let memory = MEMORY.saturating_add(MEMORY_PER_BYTE.saturating_mul(prefix));
        self.of(path, Stdio::null(), Gives::Logits, memory, &[]).await
    }

    async fn of(&self, path: &Path, stdin: Stdio, gives: Gives, memory: u64, blocks: &[u32]) -> Result<(), TrialError> {
        let Some((program, way)) = &self.program else {
            return Ok(());
        };
        let mut command = Command::new(program);
        command
            .args(way)
            .arg("trial")
            .arg(path)
            .args(["--gives", gives.word(), "--memory", &memory.to_string()])
            .env("RUST_LOG", "error")
            .env("NO_COLOR", "1")
            .env_remove("KVASIR_LOG_FORMAT")
            .env_remove("KVASIR_SOURCE_TOKEN")
            .env_remove("KVASIR_TOKEN")
            .stdin(stdin)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let child = match command.spawn() {
            Ok(child) => child,
            Err(error) => {
                cannot_tell(&error.to_string());
                return Ok(());
            }
        };
        let ended = tokio::time::timeout(WITHIN, child.wait_with_output()).await;
        let output = match ended {
            Ok(Ok(output)) => output,
            Ok(Err(error)) => {
                cannot_tell(&error.to_string());
                return Ok(());
            }
            Err(_) => return Err(TrialError::Slow),
        };
        let (said, log) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        let verdict = said.lines().rev().find_map(|line| serde_json::from_str(line).ok());
        let verdict = verdict.unwrap_or_else(|| died(output.status, &log, gives));
        match verdict {
            Verdict::Sound => Ok(()),
            Verdict::NoTokenizer => Err(TrialError::NoTokenizer),
            Verdict::Refused { said } => {
                let why = words::of(&said, path, blocks);
                Err(TrialError::Refused { why })
            }
            Verdict::CannotTell { said } => {
                cannot_tell(&said);
                Ok(())
            }
        }
    }
}

/// What it means that the process ended without a word.
fn died(status: ExitStatus, log: &str, gives: Gives) -> Verdict {
    let refused = |said: String| Verdict::Refused { said };
    if let Some(said) = words::last(log) {
        return refused(said);
    }
    let what = |signal| SIGNALS.iter().find(|(number, _)| *number == signal);
    match status.signal().and_then(what) {
        Some((_, what)) if gives == Gives::Tokens => refused(format!(
            "its tokenizer ends by {what}: tokens or pieces are missing that some text needs, or are malformed"
        )),
        Some((_, what)) => refused(format!("it ends by {what}: keys and shapes contradict each other")),
        None => Verdict::CannotTell {
            said: status.to_string(),
        },
    }
}

/// A file without weights, in memory: no folder has to take it, and nothing of it can stay behind.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn outline(mini: &MiniGguf) -> io::Result<File> {
    use rustix::fs::{MemfdFlags, memfd_create};

    let file = File::from(memfd_create("outline of a model", MemfdFlags::CLOEXEC)?);
    copy::write_outline(mini, &file)?;
    Ok(file)
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn outline(_: &MiniGguf) -> io::Result<File> {
    Err(io::ErrorKind::Unsupported.into())
}

/// A trial that can't be held proves nothing.
fn cannot_tell(why: &str) {
    tracing::warn!(why, "the model can't be tried before it is fetched");
}
