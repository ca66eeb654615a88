//! The two real models of the tests, as `make models` leaves them in the cache.

use std::env;
use std::path::{Path, PathBuf};

/// SmolLM2-135M-Instruct, `Q4_1`: architecture llama, 30 layers, embedding length 576, with a chat template.
pub fn smollm2() -> PathBuf {
    cached("SmolLM2-135M-Instruct.Q4_1.gguf")
}

/// Gemma 3 270M, `Q4_K_M`: architecture gemma3, 18 layers, embedding length 640, sliding windows, no chat template.
pub fn gemma3() -> PathBuf {
    cached("gemma-3-270m.Q4_K_M.gguf")
}

/// The cache: `$KVASIR_CACHE`, else `~/.cache/kvasir`.
pub fn cache() -> PathBuf {
    match env::var_os("KVASIR_CACHE") {
        Some(folder) => PathBuf::from(folder),
        None => Path::new(&env::var_os("HOME").unwrap_or_default()).join(".cache/kvasir"),
    }
}

fn cached(file: &str) -> PathBuf {
    let path = cache().join("models").join(file);
    assert!(path.is_file(), "{} is missing: run `make models`", path.display());
    path
}
