//! The unmodified `openai` package for Python against this API; `tests/python/openai_client.py` holds its checks.

use super::*;
use secrecy::SecretString;
use std::path::PathBuf;
use tokio::process::Command;

/// A Python that has the package, where this machine has one.
fn python() -> Option<PathBuf> {
    let cache = std::env::var_os("KVASIR_CACHE")
        .map(PathBuf::from)
        .or_else(|| std::env::home_dir().map(|home| home.join(".cache/kvasir")))?;
    let python = cache.join("openai-venv/bin/python");
    python.exists().then_some(python)
}

#[tokio::test]
async fn the_openai_package_finds_nothing_amiss() {
    let Some(python) = python() else {
        assert!(
            std::env::var_os("CI").is_none(),
            "CI must have a Python with the openai package"
        );
        eprintln!("skipped: no Python with the openai package");
        return;
    };
    let mut setup = Setup::new(Script::Echo);
    setup.config.api_keys = vec![SecretString::from("sesame")];
    let server = setup.start().await;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/python/openai_client.py");
    let run = Command::new(python)
        .arg(script)
        .env("KVASIR_BASE_URL", format!("{}/v1", server.url))
        .env("KVASIR_API_KEY", "sesame")
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(Duration::from_secs(120), run)
        .await
        .expect("the client hangs")
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{said}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(said.trim_end().ends_with("passed, 0 failed"), "{said}");
}
