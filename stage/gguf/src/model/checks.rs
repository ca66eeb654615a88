//! What prefixes say twice has to agree: otherwise a window would compute something, and not what the model is.

use super::{Error, Model, Part, Tensor};
use crate::metadata::Value;
use crate::tensor::layer_of;

impl Model {
    /// MTP blocks have the tensors that make them some: otherwise a layer would be left out in silence.
    pub(super) fn check_mtp(&self) -> Result<(), Error> {
        let is_mtp = |block: &u32| {
            self.tensors_of_layer(*block)
                .filter_map(|tensor| layer_of(&tensor.name))
                .any(|(_, rest)| rest.starts_with(".nextn."))
        };
        match (self.layers()..self.blocks).find(|block| !is_mtp(block)) {
            Some(block) => Err(Error::NoMtpBlock { block }),
            None => Ok(()),
        }
    }

    /// Every block has tensors.
    pub(crate) fn check_blocks(&self) -> Result<(), Error> {
        let mut found = vec![false; self.blocks as usize];
        for (block, _) in self.tensors.iter().filter_map(|tensor| layer_of(&tensor.name)) {
            found[block as usize] = true;
        }
        match (0..self.blocks).zip(found).find(|(_, found)| !found) {
            Some((block, _)) => Err(Error::EmptyBlock {
                block,
                blocks: self.blocks,
            }),
            None => Ok(()),
        }
    }

    /// Rows of the embedding are hidden states, and the head has one for each of them.
    pub(super) fn check_vocabulary(&self) -> Result<(), Error> {
        let Some(embedding) = self.tensor("token_embd.weight") else {
            return Ok(());
        };
        let wrong = |name, tensor: &Tensor, expected| Error::Shape {
            name,
            found: tensor.dims.clone(),
            expected,
        };
        if embedding.dims.first() != Some(&self.embedding_length.into()) {
            let expected = format!("rows of {}", self.embedding_length);
            return Err(wrong("token_embd.weight", embedding, expected));
        }
        let tokens = self.metadata().get("tokenizer.ggml.tokens").and_then(Value::as_array);
        let rows = embedding.dims.iter().skip(1).product::<u64>();
        if let Some(tokens) = tokens.filter(|tokens| tokens.len() as u64 != rows) {
            let expected = format!("a row for each of the {} tokens of tokenizer.ggml.tokens", tokens.len());
            return Err(wrong("token_embd.weight", embedding, expected));
        }
        match self.tensor("output.weight") {
            Some(head) if head.dims != embedding.dims => {
                let expected = format!("that of token_embd.weight, {:?}", embedding.dims);
                Err(wrong("output.weight", head, expected))
            }
            _ => Ok(()),
        }
    }
}

/// `split.no` and `split.count` of each part, and that `split.tensors.count` is the sum over all of them.
pub(super) fn split(parts: &[Part]) -> Result<(), Error> {
    let total: usize = parts.iter().map(|part| part.prefix.tensors.len()).sum();
    let check = |index: usize, key: &str, expected: usize, default: Option<usize>| {
        let wrong = |problem| {
            Err(Error::Parts {
                part: index + 1,
                problem,
            })
        };
        let default = default.map(|default| default as u64);
        match parts[index].prefix.metadata.get(key).map_or(default, Value::as_u64) {
            Some(found) if found == expected as u64 => Ok(()),
            Some(found) => wrong(format!("{key} is {found} and should be {expected}")),
            None => wrong(format!("it has no {key}")),
        }
    };
    let alone = parts.len() == 1;
    let number = |key: &str| parts.first()?.prefix.metadata.get(key).and_then(Value::as_u64);
    if let Some(of) = number("split.count").filter(|of| alone && *of > 1) {
        let problem = format!(
            "the file is part {} of {of}, and its name doesn't say so: parts are named NAME-00001-of-{of:05}.gguf and lie \
             beside each other",
            number("split.no").unwrap_or(0).saturating_add(1),
        );
        return Err(Error::Parts { part: 1, problem });
    }
    for index in 0..parts.len() {
        check(index, "split.count", parts.len(), alone.then_some(1))?;
        check(index, "split.no", index, alone.then_some(0))?;
    }
    (0..parts.len()).try_for_each(|index| check(index, "split.tensors.count", total, Some(total)))
}
