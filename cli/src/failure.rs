//! How a command fails: one clear line, what caused it below, and an exit code.

use std::process::ExitCode;

use crate::{join::NotKnown, supervise::Exit};

/// Exit code of a wrong command line, Ring or invite.
pub const USAGE: u8 = 2;
/// Exit code when a stage of a running ring was lost.
pub const STAGE_LOST: u8 = 3;
/// Exit code when a command was interrupted before it was done.
pub const INTERRUPTED: u8 = 130;

/// The exit codes, for `--help`.
pub const EXIT_CODES: &str = "\
Exit codes: 0 done, 1 failed, 2 the command line, the Ring or the invite is wrong, 3 a stage was lost, 130
interrupted. `up` also ends with 0 when Ctrl-C, SIGTERM or SIGHUP ends a ring that was up; before that they interrupt it.
`inspect` ends with 2 where the model can't be served";

/// The command line or the Ring asks for what can't be.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);

/// A stage of a running ring ended by itself.
#[derive(Debug, thiserror::Error)]
#[error("the ring lost a stage: {exit}; its log is {}", exit.log.display())]
pub struct StageLost {
    /// which, and how
    pub exit: Exit,
}

impl From<Exit> for StageLost {
    fn from(exit: Exit) -> Self {
        StageLost { exit }
    }
}

/// Ctrl-C, SIGTERM or SIGHUP came before the command was done.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;

/// Says on stderr what went wrong, and returns the exit code for it.
pub fn tell(error: &anyhow::Error) -> ExitCode {
    if reader_is_gone(error) {
        return ExitCode::SUCCESS;
    }
    eprint!("{}", text(error));
    let code = if is_usage(error) {
        USAGE
    } else if error.is::<StageLost>() {
        STAGE_LOST
    } else if error.is::<Interrupted>() {
        INTERRUPTED
    } else {
        1
    };
    code.into()
}

/// Whether the user must correct what was asked for: trying again, or elsewhere, would not help.
fn is_usage(error: &anyhow::Error) -> bool {
    use kvasir_gguf::window::Error as Cut;
    use kvasir_plan::Error as Unplannable;
    let of_plan = |error: &Unplannable| error.reason() == "InvalidPlan" && !matches!(error, Unplannable::Layers { .. });
    let of_cut = |error: &Cut| {
        matches!(
            error,
            Cut::NoSuchLayers { .. } | Cut::NotLast { .. } | Cut::LastNeedsBothKinds { .. }
        )
    };
    error.is::<kvasir_api::Error>()
        || error.is::<Usage>()
        || error.is::<NotKnown>()
        || error.downcast_ref().is_some_and(of_plan)
        || error.downcast_ref().is_some_and(of_cut)
}

/// `kvasir … | head`: nobody wants the rest of the output.
fn reader_is_gone(error: &anyhow::Error) -> bool {
    let broken = std::io::ErrorKind::BrokenPipe;
    error
        .chain()
        .any(|cause| match cause.downcast_ref::<serde_json::Error>() {
            Some(json) => json.io_error_kind() == Some(broken),
            None => cause
                .downcast_ref::<std::io::Error>()
                .is_some_and(|error| error.kind() == broken),
        })
}

/// `error: what`, then a line for each cause; a cause of several lines stays indented.
fn text(error: &anyhow::Error) -> String {
    let mut text = format!("error: {error}\n");
    let mut said = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if cause != said {
            text.extend(["  because: ", &cause.replace('\n', "\n           "), "\n"]);
        }
        said = cause;
    }
    text
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn the_causes_follow_the_line_that_says_what_failed() {
        let error = anyhow::anyhow!("spec.a: unknown\nspec.b: missing").context("ring.yaml is wrong");
        assert_eq!(
            text(&error),
            "error: ring.yaml is wrong\n  because: spec.a: unknown\n           spec.b: missing\n"
        );
    }

    #[test]
    fn a_cause_that_repeats_its_error_is_told_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("no such file")]
        struct Wrapped(#[source] std::io::Error);
        let error = anyhow::Error::new(Wrapped(std::io::Error::other("no such file")));
        assert_eq!(text(&error), "error: no such file\n");
    }

    #[test]
    fn exit_codes_tell_failures_apart() {
        let code = |error: anyhow::Error| format!("{:?}", tell(&error));
        let of = |code: u8| format!("{:?}", ExitCode::from(code));
        let lost = StageLost::from(Exit {
            name: "rank 1".to_owned(),
            id: 1,
            status: None,
            last_line: String::new(),
            log: "rank-1.log".into(),
        });
        assert_eq!(
            lost.to_string(),
            "the ring lost a stage: rank 1 ended; its log is rank-1.log"
        );
        assert_eq!(code(anyhow::Error::new(lost).context("up")), of(STAGE_LOST));
        assert_eq!(code(Interrupted.into()), of(INTERRUPTED));
        let ring: anyhow::Result<kvasir_api::Ring> = kvasir_api::from_yaml("kind: Pod").context("x.yaml");
        assert_eq!(code(ring.unwrap_err()), of(USAGE));
        assert_eq!(code(Usage("too many".to_owned()).into()), of(USAGE));
        let missing = kvasir_plan::LayerRange { start: 3, end: 4 };
        let plan = anyhow::Error::new(kvasir_plan::Error::LeftOut { missing });
        assert_eq!(code(plan.context("the Ring can't be planned")), of(USAGE));
        assert_eq!(code(anyhow::anyhow!("other")), of(1));
        let pipe = std::io::Error::from(std::io::ErrorKind::BrokenPipe);
        assert_eq!(code(pipe.into()), of(0));
    }
}
