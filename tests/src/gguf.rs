//! A small GGUF writer, for test files only.
//!
//! It shares nothing with the writer under test, so that a mistake there can't hide behind the same mistake here.
//! Layout: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>, version 3, little-endian.

use half::f16;

/// Bytes that each tensor's data starts at a multiple of, unless `general.alignment` says otherwise.
const ALIGNMENT: usize = 32;
/// Values in one block of `Q8_0`.
const BLOCK: usize = 32;

/// A metadata value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// one u32
    U32(u32),
    /// one f32
    F32(f32),
    /// one bool
    Bool(bool),
    /// UTF-8 text
    String(String),
    /// array of i32
    I32s(Vec<i32>),
    /// array of bool
    Bools(Vec<bool>),
    /// array of UTF-8 text
    Strings(Vec<String>),
}

/// How a tensor's values are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TensorType {
    /// 4 bytes a value
    F32,
    /// 2 bytes a value
    F16,
    /// whole numbers of 4 bytes, which no weights are
    I32,
    /// blocks of 32 values: an f16 scale and 32 signed bytes
    #[default]
    Q8_0,
}

impl TensorType {
    /// ggml's number for the type
    fn id(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::I32 => 26,
            Self::Q8_0 => 8,
        }
    }

    /// The bytes of `values`, whose count must be a multiple of 32 for `Q8_0`.
    pub fn encode(self, values: &[f32]) -> Vec<u8> {
        match self {
            Self::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
            Self::F16 => values.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect(),
            Self::I32 => values.iter().flat_map(|&v| (v as i32).to_le_bytes()).collect(),
            Self::Q8_0 => {
                assert_eq!(values.len() % BLOCK, 0, "Q8_0 stores whole blocks");
                values.chunks_exact(BLOCK).flat_map(q8_0_block).collect()
            }
        }
    }
}

/// ggml's `quantize_row_q8_0_ref`: the scale is the largest magnitude / 127.
fn q8_0_block(values: &[f32]) -> [u8; 2 + BLOCK] {
    let largest = values.iter().fold(0f32, |m, v| m.max(v.abs()));
    let scale = largest / 127.0;
    let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
    let mut block = [0; 2 + BLOCK];
    block[..2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
    for (byte, value) in block[2..].iter_mut().zip(values) {
        *byte = ((value * inverse).round() as i8).to_le_bytes()[0];
    }
    block
}

/// A tensor: `shape` in GGUF order, the length of a row first.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// name, such as `blk.0.attn_norm.weight`
    pub name: String,
    /// length of a row, then rows, then matrices
    pub shape: Vec<u64>,
    /// how `data` is stored
    pub kind: TensorType,
    /// the stored bytes
    pub data: Vec<u8>,
}

/// A file in memory; entries are written in the order given.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct File {
    /// metadata
    pub metadata: Vec<(String, Value)>,
    /// tensors
    pub tensors: Vec<Tensor>,
}

impl File {
    /// Sets a metadata key, in place where it is there already.
    pub fn set(&mut self, key: impl Into<String>, value: Value) {
        let key = key.into();
        match self.metadata.iter_mut().find(|(k, _)| *k == key) {
            Some((_, old)) => *old = value,
            None => self.metadata.push((key, value)),
        }
    }

    /// The file's bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let entries = self.tensors.iter().map(|tensor| Entry {
            name: &tensor.name,
            shape: &tensor.shape,
            kind: tensor.kind.id(),
            bytes: tensor.data.len() as u64,
        });
        let (mut out, _) = prefix(&self.metadata, entries);
        for tensor in &self.tensors {
            out.extend(&tensor.data);
            out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
        }
        out
    }
}

/// A line of a tensor table.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// name, such as `blk.0.attn_norm.weight`
    pub name: &'a str,
    /// length of a row, then rows, then matrices
    pub shape: &'a [u64],
    /// ggml's number for the type
    pub kind: u32,
    /// length of its data
    pub bytes: u64,
}

/// A file's bytes up to the first tensor's data, and the length of the whole file, whose tensors lie one after the other.
pub fn prefix<'a>(metadata: &[(String, Value)], tensors: impl ExactSizeIterator<Item = Entry<'a>>) -> (Vec<u8>, u64) {
    let mut out = b"GGUF".to_vec();
    out.extend(3u32.to_le_bytes());
    put_len(&mut out, tensors.len());
    put_len(&mut out, metadata.len());
    for (key, value) in metadata {
        put_string(&mut out, key);
        put_value(&mut out, value);
    }
    let mut offset = 0u64;
    for tensor in tensors {
        put_string(&mut out, tensor.name);
        out.extend((tensor.shape.len() as u32).to_le_bytes());
        out.extend(tensor.shape.iter().flat_map(|d| d.to_le_bytes()));
        out.extend(tensor.kind.to_le_bytes());
        out.extend(offset.to_le_bytes());
        offset = (offset + tensor.bytes).next_multiple_of(ALIGNMENT as u64);
    }
    out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
    let whole = out.len() as u64 + offset;
    (out, whole)
}

fn put_len(out: &mut Vec<u8>, len: usize) {
    out.extend((len as u64).to_le_bytes());
}

fn put_string(out: &mut Vec<u8>, text: &str) {
    put_len(out, text.len());
    out.extend(text.as_bytes());
}

fn put_array<T>(out: &mut Vec<u8>, kind: u32, items: &[T], mut put: impl FnMut(&mut Vec<u8>, &T)) {
    out.extend(9u32.to_le_bytes());
    out.extend(kind.to_le_bytes());
    put_len(out, items.len());
    for item in items {
        put(out, item);
    }
}

fn put_value(out: &mut Vec<u8>, value: &Value) {
    let scalar = |out: &mut Vec<u8>, kind: u32, bytes: &[u8]| {
        out.extend(kind.to_le_bytes());
        out.extend(bytes);
    };
    match value {
        Value::U32(v) => scalar(out, 4, &v.to_le_bytes()),
        Value::F32(v) => scalar(out, 6, &v.to_le_bytes()),
        Value::Bool(v) => scalar(out, 7, &[u8::from(*v)]),
        Value::String(v) => {
            out.extend(8u32.to_le_bytes());
            put_string(out, v);
        }
        Value::I32s(v) => put_array(out, 5, v, |out, i| out.extend(i.to_le_bytes())),
        Value::Bools(v) => put_array(out, 7, v, |out, &b| out.push(u8::from(b))),
        Value::Strings(v) => put_array(out, 8, v, |out, s| put_string(out, s)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn q8_0_stores_the_scale_and_rounded_values() {
        let mut values = [0.0; BLOCK];
        values[0] = 127.0;
        values[1] = -63.6;
        let bytes = TensorType::Q8_0.encode(&values);
        assert_eq!(bytes.len(), 34);
        assert_eq!(bytes[..2], f16::from_f32(1.0).to_le_bytes());
        assert_eq!(bytes[2..4], [127, (-64i8).to_le_bytes()[0]]);
        assert!(bytes[4..].iter().all(|&b| b == 0));
    }

    #[test]
    fn the_second_tensor_starts_at_a_multiple_of_the_alignment() {
        let tensor = |name: &str| Tensor {
            name: name.to_owned(),
            shape: vec![1],
            kind: TensorType::F32,
            data: 1f32.to_le_bytes().to_vec(),
        };
        let file = File {
            metadata: vec![],
            tensors: vec![tensor("a"), tensor("b")],
        };
        // header 24, two table entries of 8 + 1 + 4 + 8 + 4 + 8 = 33 bytes: 90, rounded up to 96
        let bytes = file.to_bytes();
        assert_eq!(bytes[24 + 33 + 25..24 + 66], 32u64.to_le_bytes());
        assert_eq!(bytes[96..100], 1f32.to_le_bytes());
        assert_eq!(bytes[128..132], 1f32.to_le_bytes());
        assert_eq!(bytes.len(), 160);
    }
}
