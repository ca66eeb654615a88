//! What all commands have in common: their flags, their numbers, their log lines.

use assert_cmd::Command;
use serde_json::json;

use crate::{Folder, fails, file, prints, text};

#[test]
fn numbers_out_of_range_are_refused_by_the_command_line() {
    for arguments in [
        &["chat", "--temperature", "NaN", "hi"][..],
        &["chat", "--temperature=-1", "hi"],
        &["chat", "--temperature", "inf", "hi"],
        &["chat", "--max-tokens", "0", "hi"],
        &["up", "ring.yaml", "--threads", "999999999"],
        &["up", "ring.yaml", "--threads", "0"],
        &["bench", "ring.yaml", "--threads", "513"],
        &["up", "ring.yaml", "--stages", "0"],
    ] {
        let (code, error) = fails(arguments);
        assert_eq!(code, 2, "{arguments:?}");
        assert!(error.starts_with("error: invalid value"), "{error}");
    }
}

#[test]
fn log_lines_that_go_to_no_terminal_have_no_colours() {
    let folder = Folder::new();
    let ring = folder.ring(&file(&folder.model()), &json!({}));
    let mut command = Command::cargo_bin("kvasir").unwrap();
    let plan = command.args(["plan", text(&ring)]).env("RUST_LOG", "trace");
    let output = plan.env_remove("NO_COLOR").output().unwrap();
    assert!(
        !output.stderr.contains(&b'\x1b'),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let mut command = Command::cargo_bin("kvasir").unwrap();
    let stage = command.args([
        "stage",
        "fetch",
        "--plan",
        "no/such/plan",
        "--rank",
        "0",
        "--dir",
        "no",
        "--source",
        "{}",
    ]);
    let output = stage.env_remove("NO_COLOR").output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("ERROR") && !stderr.contains('\x1b'), "{stderr}");
}

#[test]
fn every_flag_says_what_it_does_and_which_variable_sets_it() {
    for command in ["up", "plan", "inspect", "slice", "chat", "bench", "bench relay"] {
        let words: Vec<&str> = command.split(' ').chain(["-h"]).collect();
        let help = prints(&words);
        let flags = help
            .lines()
            .filter(|line| line.trim_start().starts_with('-') && !line.contains("--help"));
        for flag in flags {
            assert!(flag.contains("[env: KVASIR_"), "{command}: {flag}");
        }
    }
    let help = prints(&["--help"]);
    assert!(help.contains("Exit codes: 0 done, 1 failed"), "{help}");
    for hidden in ["  stage", "  relay"] {
        assert!(!help.lines().any(|line| line.starts_with(hidden)), "hidden: {help}");
    }
}
