//! Files that are GGUF and no language model: what they are, and what to point to instead.

use super::Error;
use crate::metadata::Metadata;

/// Refuses a file that goes beside a model, or is made of one.
pub(super) fn check(metadata: &Metadata) -> Result<(), Error> {
    match what(metadata) {
        Some((what, instead)) => Err(Error::NoModel { what, instead }),
        None => Ok(()),
    }
}

const THE_MODEL: &str = "the GGUF of the language model, which it goes with";

fn what(metadata: &Metadata) -> Option<(&'static str, &'static str)> {
    let architecture = metadata.str("general.architecture").unwrap_or_default();
    let has = |key: &str| metadata.get(key).is_some();
    match metadata.str("general.type").unwrap_or_default() {
        "mmproj" => return Some(("a projector of images or sound (mmproj)", THE_MODEL)),
        "adapter" => {
            return Some((
                "an adapter (LoRA)",
                "the GGUF of its base model, or of both merged into one",
            ));
        }
        "imatrix" => return Some(("an importance matrix, which models are quantised with", THE_MODEL)),
        _ => {}
    }
    match architecture {
        "clip" if !has("clip.block_count") => Some(("a projector of images or sound (mmproj)", THE_MODEL)),
        "controlvector" => Some(("a control vector", THE_MODEL)),
        "imatrix" => Some(("an importance matrix, which models are quantised with", THE_MODEL)),
        _ if has("adapter.type") => Some((
            "an adapter (LoRA)",
            "the GGUF of its base model, or of both merged into one",
        )),
        _ if has("imatrix.datasets") => Some(("an importance matrix, which models are quantised with", THE_MODEL)),
        _ => None,
    }
}
