//! One GGUF model, in one part or several: what its prefixes say, without its weights.

mod checks;
mod error;
mod kind;
mod numbers;

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::metadata::{Metadata, Value};
use crate::parts::part_names;
use crate::prefix::{self, Prefix, PrefixParser};
use crate::tensor::{TensorType, layer_of};
pub use error::Error;

/// llama.cpp's `LLAMA_MAX_LAYERS`
const MAX_LAYERS: u32 = 512;
/// Longest name of an architecture, in bytes; llama.cpp's have 17 at most.
const LONGEST_NAME: usize = 64;
/// Most values of a hidden state; the largest known have below 20,000.
const MAX_WIDTH: u32 = 1 << 20;

/// Hash of a model's prefixes, total size and revision. Two stages with different identities don't hold the same model.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ModelIdentity([u8; 32]);

impl ModelIdentity {
    fn of(parts: &[Part], revision: &str) -> ModelIdentity {
        let mut hasher = blake3::Hasher::new_derive_key("kvasir model identity 1");
        for part in parts {
            let prefix = part.prefix.bytes();
            hasher
                .update(&(prefix.len() as u64).to_le_bytes())
                .update(prefix)
                .update(&part.size.to_le_bytes());
        }
        hasher.update(revision.as_bytes());
        ModelIdentity(hasher.finalize().into())
    }

    /// The hash.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for ModelIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&blake3::Hash::from(self.0).to_hex())
    }
}

impl fmt::Debug for ModelIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Text that is no identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a model identity is 64 hexadecimal digits")]
pub struct NoIdentity;

impl FromStr for ModelIdentity {
    type Err = NoIdentity;

    fn from_str(text: &str) -> Result<ModelIdentity, NoIdentity> {
        blake3::Hash::from_hex(text)
            .map(|hash| ModelIdentity(hash.into()))
            .map_err(|_| NoIdentity)
    }
}

/// One file of a model.
#[derive(Clone, Debug)]
pub struct Part {
    /// its prefix
    pub prefix: Prefix,
    /// bytes of the whole file
    pub size: u64,
}

/// A tensor and where its bytes lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// name in the model
    pub name: String,
    /// at most four dimensions, row length first
    pub dims: Vec<u64>,
    /// type of the weights
    pub ty: TensorType,
    /// part that holds it, from 0
    pub part: usize,
    /// first byte in that part's file
    pub start: u64,
    size: Option<u64>,
}

impl Tensor {
    /// Length in bytes.
    pub fn bytes(&self) -> Result<u64, Error> {
        self.size.ok_or_else(|| Error::UnknownType {
            name: self.name.clone(),
            ty: self.ty,
        })
    }

    /// Bytes of the part's file that hold it.
    pub fn range(&self) -> Result<Range<u64>, Error> {
        Ok(self.start..self.start + self.bytes()?)
    }
}

/// A model as its prefixes describe it.
#[derive(Clone, Debug)]
pub struct Model {
    architecture: String,
    blocks: u32,
    nextn: u32,
    embedding_length: u32,
    tensors: Vec<Tensor>,
    index: HashMap<String, usize>,
    identity: ModelIdentity,
    parts: Vec<Part>,
}

impl Model {
    /// Joins the parts, in order, and checks that they are whole and belong together.
    pub fn new(parts: Vec<Part>, revision: &str) -> Result<Model, Error> {
        let metadata = &parts
            .first()
            .ok_or_else(|| Error::Parts {
                part: 1,
                problem: "there is none".into(),
            })?
            .prefix
            .metadata;
        kind::check(metadata)?;
        let key = |key: &str, expected| Error::key(metadata, key, expected);
        // it stands in what people read
        let is_word = |name: &&str| name.len() <= LONGEST_NAME && name.bytes().all(|byte| byte.is_ascii_graphic());
        let architecture = metadata
            .str("general.architecture")
            .filter(is_word)
            .ok_or_else(|| key("general.architecture", "a short word"))?
            .to_owned();
        let number = |name: &str, default: Option<u32>, within: Range<u32>, expected| {
            let full = format!("{architecture}.{name}");
            metadata
                .get(&full)
                .map_or(default, Value::as_u32)
                .filter(|number| within.contains(number))
                .ok_or_else(|| key(&full, expected))
        };
        let blocks = number("block_count", None, 1..MAX_LAYERS + 1, "1 to 512")?;
        let nextn = number("nextn_predict_layers", Some(0), 0..blocks, "below the number of blocks")?;
        let embedding_length = number("embedding_length", None, 1..MAX_WIDTH + 1, "1 to 1,048,576")?;
        checks::split(&parts)?;
        let (tensors, index) = collect_tensors(&parts, blocks)?;
        let identity = ModelIdentity::of(&parts, revision);
        let model = Model {
            architecture,
            blocks,
            nextn,
            embedding_length,
            tensors,
            index,
            identity,
            parts,
        };
        model.check_mtp()?;
        model.check_vocabulary()?;
        Ok(model)
    }

    /// Reads a model from local files; `path` may be any of its parts.
    pub fn open(path: &Path) -> Result<Model, Error> {
        let parts = part_paths(path)
            .iter()
            .enumerate()
            .map(|(index, path)| read_part(index, path))
            .collect::<Result<Vec<_>, Error>>()?;
        Model::new(parts, "")
    }

    /// What all stages must agree on.
    pub fn identity(&self) -> ModelIdentity {
        self.identity
    }

    /// The files, in order.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Bytes of all files.
    pub fn size(&self) -> u64 {
        self.parts.iter().map(|part| part.size).sum()
    }

    /// Bytes of each part's prefix.
    pub fn prefix_bytes(&self) -> Vec<u64> {
        self.parts.iter().map(|part| part.prefix.bytes().len() as u64).collect()
    }

    /// Metadata of the first part, which speaks for all.
    pub fn metadata(&self) -> &Metadata {
        &self.parts[0].prefix.metadata
    }

    /// `general.architecture`
    pub fn architecture(&self) -> &str {
        &self.architecture
    }

    /// All blocks: the trunk's layers and the MTP (nextn) layers behind them.
    pub fn block_count(&self) -> u32 {
        self.blocks
    }

    /// MTP (nextn) layers, the last blocks. Never part of a window.
    pub fn mtp_layers(&self) -> u32 {
        self.nextn
    }

    /// Layers of the trunk, which windows are cut from.
    pub fn layers(&self) -> u32 {
        self.blocks - self.nextn
    }

    /// Values of one hidden state.
    pub fn embedding_length(&self) -> u32 {
        self.embedding_length
    }

    /// Tokens of the vocabulary: the rows of `token_embd.weight`.
    pub fn vocabulary(&self) -> Result<u32, Error> {
        self.tensor("token_embd.weight")
            .and_then(|tensor| tensor.dims.get(1).copied().unwrap_or(1).try_into().ok())
            .ok_or(Error::NoTensor {
                name: "token_embd.weight",
            })
    }

    /// The value of `<architecture>.<key>`.
    pub fn get(&self, key: &str) -> Option<Value<'_>> {
        self.metadata().get(&self.full_key(key))
    }

    /// `<architecture>.<key>`
    pub fn full_key(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    /// One number for each block, from `<architecture>.<key>`, which may be an array of as many or one number for all.
    /// Booleans count as 0 and 1. None when the key is absent.
    pub fn per_layer(&self, key: &str) -> Result<Option<Vec<u64>>, Error> {
        let full = self.full_key(key);
        let wrong = || Error::key(self.metadata(), &full, "whole numbers, one or one for each block");
        let Some(value) = self.metadata().get(&full) else {
            return Ok(None);
        };
        let Some(array) = value.as_array() else {
            return Ok(Some(vec![value.as_u64().ok_or_else(wrong)?; self.blocks as usize]));
        };
        if array.len() != self.blocks as usize {
            return Err(Error::ArrayLength {
                key: full,
                found: array.len(),
                blocks: self.blocks,
            });
        }
        array
            .iter()
            .map(Value::as_u64)
            .collect::<Option<Vec<u64>>>()
            .ok_or_else(wrong)
            .map(Some)
    }

    /// Whether a key says one thing of one layer, and another of another one.
    pub fn varies_by_layer(&self) -> bool {
        let values = |key: &&str| self.per_layer(key).ok().flatten();
        let mut arrays = crate::arch::PER_LAYER.iter().filter_map(values);
        arrays.any(|values| values.windows(2).any(|pair| pair[0] != pair[1]))
    }

    /// All tensors, in the order of parts and tables.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// The tensor of this name.
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        Some(&self.tensors[*self.index.get(name)?])
    }

    /// Tensors of one block.
    pub fn tensors_of_layer(&self, layer: u32) -> impl Iterator<Item = &Tensor> {
        self.tensors
            .iter()
            .filter(move |tensor| layer_of(&tensor.name).is_some_and(|(found, _)| found == layer))
    }

    /// Tensors of no block.
    pub fn global_tensors(&self) -> impl Iterator<Item = &Tensor> {
        self.tensors.iter().filter(|tensor| layer_of(&tensor.name).is_none())
    }
}

fn collect_tensors(parts: &[Part], blocks: u32) -> Result<(Vec<Tensor>, HashMap<String, usize>), Error> {
    let mut tensors: Vec<Tensor> = Vec::new();
    let mut index = HashMap::new();
    for (number, part) in parts.iter().enumerate() {
        // where the next tensor has to lie, as `gguf_init_from_file` has it; unknown behind one of unknown size
        let mut expected = Some(0_u64);
        for info in &part.prefix.tensors {
            if let Some(first) = index.insert(info.name.clone(), tensors.len()) {
                let first = tensors[first].part + 1;
                return Err(Error::Duplicate {
                    name: info.name.clone(),
                    first,
                    second: number + 1,
                });
            }
            if let Some((layer, _)) = layer_of(&info.name).filter(|(layer, _)| *layer >= blocks) {
                return Err(Error::NoSuchBlock {
                    name: info.name.clone(),
                    layer,
                    blocks,
                });
            }
            let size = info.ty.bytes(&info.dims);
            if let Some(expected) = expected.filter(|expected| *expected != info.offset) {
                return Err(Error::Misplaced {
                    name: info.name.clone(),
                    offset: info.offset,
                    expected,
                });
            }
            expected = size.and_then(|size| {
                let end = info.offset.checked_add(size)?;
                end.checked_next_multiple_of(part.prefix.alignment)
            });
            let start = part.prefix.data_offset.saturating_add(info.offset);
            let needed = start.saturating_add(size.unwrap_or(0));
            if needed > part.size {
                let what = format!("tensor {}", info.name);
                return Err(Error::Incomplete {
                    part: number + 1,
                    size: part.size,
                    needed,
                    what,
                });
            }
            let (name, dims, ty) = (info.name.clone(), info.dims.clone(), info.ty);
            tensors.push(Tensor {
                name,
                dims,
                ty,
                part: number,
                start,
                size,
            });
        }
    }
    Ok((tensors, index))
}

/// Paths of all parts of the model that `path` is a part of.
pub(crate) fn part_paths(path: &Path) -> Vec<PathBuf> {
    match path.file_name().and_then(|name| name.to_str()) {
        Some(name) => part_names(name).iter().map(|part| path.with_file_name(part)).collect(),
        None => vec![path.to_owned()],
    }
}

fn read_part(index: usize, path: &Path) -> Result<Part, Error> {
    let io = |source| Error::Io {
        path: path.to_owned(),
        source,
    };
    let mut file = File::open(path).map_err(io)?;
    let size = file.metadata().map_err(io)?.len();
    let mut parser = PrefixParser::new();
    let mut buffer = vec![0; 256 << 10];
    let mut needed = 0;
    loop {
        let read = file.read(&mut buffer).map_err(io)?;
        if read == 0 {
            return Err(Error::Incomplete {
                part: index + 1,
                size,
                needed,
                what: "the prefix".into(),
            });
        }
        match parser.feed(&buffer[..read]).map_err(|source| Error::Prefix {
            part: index + 1,
            source,
        })? {
            prefix::Progress::Done(prefix) => return Ok(Part { prefix, size }),
            prefix::Progress::NeedMore { at_least, .. } => needed = at_least,
        }
    }
}
