//! Files written byte by byte, and a server that does as it is told.
#![allow(
    dead_code,
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "each test file uses its part, and ends at the first surprise"
)]

pub mod bytes;
pub mod server;

use std::path::Path;

use kvasir_gguf::prefix::Prefix;
use kvasir_gguf::source::{Access, Error, Patience, RangeReader, open, read_model};
use kvasir_gguf::{MiniGguf, Model, ModelSource};
use kvasir_tests::gguf::{File, Tensor, TensorType, Value};

/// A model in memory.
pub fn parse(file: &File) -> Model {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, file.to_bytes()).unwrap();
    Model::open(&path).unwrap()
}

/// Metadata of a llama model with this many blocks, eight values wide.
pub fn toy(blocks: u32) -> File {
    let mut file = File::default();
    file.set("general.architecture", Value::String("llama".into()));
    file.set("llama.block_count", Value::U32(blocks));
    file.set("llama.embedding_length", Value::U32(8));
    file.set("llama.attention.head_count", Value::U32(2));
    file
}

/// The file with a norm in each block: one without any tensor isn't cut.
pub fn filled(mut file: File, blocks: u32) -> File {
    for block in 0..blocks {
        add(&mut file, &format!("blk.{block}.attn_norm.weight"), &[8]);
    }
    file
}

/// Adds an F32 tensor whose bytes tell its name.
pub fn add(file: &mut File, name: &str, shape: &[u64]) {
    let bytes = 4 * shape.iter().product::<u64>() as usize;
    let data = name.bytes().cycle().take(bytes).collect();
    file.tensors.push(Tensor {
        name: name.into(),
        shape: shape.into(),
        kind: TensorType::F32,
        data,
    });
}

/// A model whose layers are of this many bytes, beside which the rest is small.
pub fn heavy(blocks: u32, bytes: u64) -> File {
    let mut file = toy(blocks);
    add(&mut file, "token_embd.weight", &[8, 16]);
    for block in 0..blocks {
        add(&mut file, &format!("blk.{block}.attn_q.weight"), &[8, bytes / 32]);
    }
    add(&mut file, "output_norm.weight", &[8]);
    file
}

/// Patience for tests: pauses of milliseconds.
pub fn access() -> Access {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let millis = std::time::Duration::from_millis;
    let patience = Patience {
        tries: 4,
        first_pause: millis(1),
        longest_pause: millis(20),
    };
    Access {
        patience,
        ..Access::default()
    }
}

/// What `mini` must look like on disk.
pub fn expected(model: &Path, mini: &MiniGguf) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("expected.gguf");
    kvasir_gguf::copy::write_from_file(model, mini, &out).unwrap();
    std::fs::read(out).unwrap()
}

/// Names in a folder.
pub fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// A reader of an address.
pub fn reader(url: &str, access: &Access) -> Box<dyn RangeReader> {
    open(&ModelSource::Http { url: url.into() }, access).unwrap()
}

/// The model at an address.
pub async fn model_at(url: &str) -> Result<Model, Error> {
    read_model(&*reader(url, &access()), &[]).await
}

/// The file's head, after a look at whether its table says what is written.
pub fn head(mini: &MiniGguf) -> Prefix {
    let prefix = Prefix::parse(&mini.header).unwrap().unwrap();
    assert_eq!(prefix.data_offset, mini.header.len() as u64);
    assert_eq!(prefix.tensors.len(), mini.tensors.len());
    let mut end = prefix.data_offset;
    for (listed, placed) in prefix.tensors.iter().zip(&mini.tensors) {
        assert_eq!(
            (&listed.name, &listed.dims, listed.ty),
            (&placed.name, &placed.dims, placed.ty)
        );
        assert_eq!(
            (prefix.data_offset + listed.offset, placed.start),
            (end, end),
            "one after the other"
        );
        assert_eq!(listed.ty.bytes(&listed.dims), Some(placed.source.bytes()));
        end = (end + placed.source.bytes()).next_multiple_of(prefix.alignment);
    }
    assert_eq!(mini.len, end);
    prefix
}
