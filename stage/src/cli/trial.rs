//! `kvasir-stage trial`: loads a file that has no weights yet, and says what llama.cpp has against it.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::ValueEnum;
use kvasir_engine::{Backend, EngineError, Gives, Mode, try_outline};
use kvasir_process::chain;
use rustix::process::{Resource, Rlimit, setrlimit};
#[cfg(any(target_os = "linux", target_os = "android"))]
use rustix::process::{Signal, set_parent_process_death_signal};

use super::say;
use crate::trial::Verdict;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The file
    file: PathBuf,
    /// What it is to give
    #[arg(long, value_enum)]
    gives: What,
    /// Bytes of memory that this process may have
    #[arg(long)]
    memory: u64,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum What {
    Hidden,
    Logits,
    Tokens,
}

impl Args {
    pub(super) fn run(self) -> ExitCode {
        // It ends when whoever started it does; otherwise it comes to its own end.
        #[cfg(any(target_os = "linux", target_os = "android"))]
        let _ = set_parent_process_death_signal(Some(Signal::KILL));
        self.limit();
        let gives = match self.gives {
            What::Hidden => Gives::Hidden,
            What::Logits => Gives::Logits,
            What::Tokens => Gives::Tokens,
        };
        let tried = Backend::init(Mode::Fast).and_then(|backend| try_outline(backend, &self.file, gives));
        let verdict = match tried {
            Ok(()) => Verdict::Sound,
            Err(
                EngineError::Load { detail, .. }
                | EngineError::Context { detail, .. }
                | EngineError::NotGguf { detail, .. },
            ) => Verdict::Refused { said: detail },
            Err(EngineError::NoVocabulary { .. }) => Verdict::NoTokenizer,
            Err(error) => Verdict::CannotTell { said: chain(&error) },
        };
        match serde_json::to_value(&verdict) {
            Ok(verdict) => say(&verdict),
            Err(_) => return ExitCode::FAILURE,
        }
        ExitCode::SUCCESS
    }

    /// What a file makes llama.cpp ask for must not cost this machine its memory, and an abort leaves no core behind. Where
    /// a limit can't be set, the trial goes on without.
    fn limit(&self) {
        for (resource, most) in [(Resource::As, self.memory), (Resource::Core, 0)] {
            let limit = Rlimit {
                current: Some(most),
                maximum: Some(most),
            };
            let _ = setrlimit(resource, limit);
        }
    }
}
