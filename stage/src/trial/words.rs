//! What llama.cpp says against a file, in the model's own terms: names and numbers of the model, no path, no function.

use std::path::Path;

/// What llama.cpp says in front of what is wrong.
const WHO: [&str; 7] = [
    "error loading model hyperparameters: ",
    "error loading model vocabulary: ",
    "error loading model: ",
    "failed to initialize the context: ",
    "check_tensor_dims: ",
    "create_tensor: ",
    "llama_model_load: ",
];
/// What the engine says in front of an abort's text.
const ABORT: &str = "llama.cpp aborts the process: ";

/// The text of an abort, if the log of the process holds one.
pub(super) fn last(log: &str) -> Option<String> {
    let (_, said) = log.rsplit_once(ABORT)?;
    let line = said.lines().next()?;
    // `/path/of/source.cpp:123: GGML_ASSERT(…) failed`
    let text = match line.find("GGML_ASSERT(") {
        Some(at) => &line[at..],
        None => line.rsplit_once(": ").map_or(line, |(_, text)| text),
    };
    Some(text.trim().to_owned())
}

/// What was said, of a file whose blocks have these numbers in the model.
pub(super) fn of(said: &str, path: &Path, blocks: &[u32]) -> String {
    let mut text = said.trim();
    while let Some(rest) = WHO.iter().find_map(|who| text.strip_prefix(who)) {
        text = rest;
    }
    let text = text.replace(&*path.to_string_lossy(), "the file");
    let text = renumbered(&text, blocks);
    quoted(&text, "missing tensor '", "'")
        .or_else(|| quoted(&text, "tensor '", "' not found"))
        .map(|(name, _)| format!("tensor {name} is missing"))
        .or_else(|| wrong_shape(&text))
        .or_else(|| Some(format!("metadata key {} is missing", missing_key(&text)?)))
        .or_else(|| {
            let (condition, _) = text.strip_prefix("GGML_ASSERT(")?.rsplit_once(") failed")?;
            Some(format!(
                "its keys and shapes contradict each other, for it is not so that {condition}"
            ))
        })
        .unwrap_or(text)
}

fn missing_key(text: &str) -> Option<&str> {
    text.strip_prefix("key not found in model: ").or(match text {
        "cannot find tokenizer vocab in model file" => Some("tokenizer.ggml.tokens"),
        "cannot find tokenizer merges in model file" => Some("tokenizer.ggml.merges"),
        _ => None,
    })
}

/// What stands in `text` between `before` and `after`, and the rest.
fn quoted<'a>(text: &'a str, before: &str, after: &str) -> Option<(&'a str, &'a str)> {
    text.strip_prefix(before)?.split_once(after)
}

/// `tensor 'NAME' has wrong shape; expected  256,  512, got   256,   768,     1,     1`
fn wrong_shape(text: &str) -> Option<String> {
    let (name, rest) = quoted(text, "tensor '", "' has wrong shape; expected ")?;
    let (expected, found) = rest.split_once(", got ")?;
    let dims = |text: &str| {
        let mut dims: Vec<&str> = text.split(',').map(str::trim).collect();
        while dims.len() > 1 && dims.last() == Some(&"1") {
            dims.pop();
        }
        dims.join(", ")
    };
    Some(format!(
        "tensor {name} has the shape [{}], and by the metadata it should have [{}]",
        dims(found),
        dims(expected)
    ))
}

/// `blk.N.` with the number that the block has in the model.
fn renumbered(text: &str, blocks: &[u32]) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("blk.") {
        let digits = after.bytes().take_while(u8::is_ascii_digit).count();
        let block = after[..digits]
            .parse()
            .ok()
            .and_then(|number: usize| blocks.get(number));
        out += before;
        out += "blk.";
        match block {
            Some(block) => out += &block.to_string(),
            None => out += &after[..digits],
        }
        rest = &after[digits..];
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(said: &str) -> String {
        of(said, Path::new("/windows/.trial-1-0.gguf"), &[7, 8, 3])
    }

    #[test]
    fn tensors_have_the_numbers_of_the_model() {
        assert_eq!(
            told("error loading model: missing tensor 'blk.1.attn_q.weight'"),
            "tensor blk.8.attn_q.weight is missing"
        );
        assert_eq!(
            told("it has no use for blk.0.x.weight, blk.2.y.weight and 3 more"),
            "it has no use for blk.7.x.weight, blk.3.y.weight and 3 more"
        );
        assert_eq!(
            of("missing tensor 'blk.4.x'", Path::new("/m.gguf"), &[]),
            "tensor blk.4.x is missing"
        );
    }

    #[test]
    fn shapes_are_told_as_lists() {
        assert_eq!(
            told(
                "error loading model: check_tensor_dims: tensor 'blk.0.ffn_up.weight' has wrong shape; expected   256,   \
                 512, got   256,   768,     1,     1"
            ),
            "tensor blk.7.ffn_up.weight has the shape [256, 768], and by the metadata it should have [256, 512]"
        );
    }

    #[test]
    fn no_path_of_this_machine_is_told() {
        assert_eq!(told("can't open /windows/.trial-1-0.gguf"), "can't open the file");
        let log = "ERROR llama.cpp aborts the process: /root/x/llama-model.cpp:1364: GGML_ASSERT(a <= b) failed\n";
        let said = last(log).unwrap();
        assert_eq!(said, "GGML_ASSERT(a <= b) failed");
        assert_eq!(
            told(&said),
            "its keys and shapes contradict each other, for it is not so that a <= b"
        );
        assert_eq!(last("ERROR something else\n"), None);
    }

    #[test]
    fn a_missing_key_is_named() {
        assert_eq!(
            told("error loading model hyperparameters: key not found in model: llama.attention.head_count"),
            "metadata key llama.attention.head_count is missing"
        );
    }
}
