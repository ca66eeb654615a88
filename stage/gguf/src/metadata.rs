//! Metadata of a GGUF file: typed values, kept in order and left where they lie in the prefix.
//!
//! A token list of 260,000 strings costs its own bytes and nothing more: an entry is a range of the prefix, and values
//! are views that are decoded when read.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;

use bytes::Bytes;

/// Type of a metadata value, with the numbers of the GGUF specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum ValueType {
    /// unsigned 8 bits
    U8 = 0,
    /// signed 8 bits
    I8 = 1,
    /// unsigned 16 bits
    U16 = 2,
    /// signed 16 bits
    I16 = 3,
    /// unsigned 32 bits
    U32 = 4,
    /// signed 32 bits
    I32 = 5,
    /// float of 32 bits
    F32 = 6,
    /// one byte, zero or not
    Bool = 7,
    /// u64 length and that many bytes
    String = 8,
    /// u32 element type, u64 count and the elements
    Array = 9,
    /// unsigned 64 bits
    U64 = 10,
    /// signed 64 bits
    I64 = 11,
    /// float of 64 bits
    F64 = 12,
}

impl ValueType {
    /// The type with this number, if there is one.
    pub fn from_id(id: u32) -> Option<ValueType> {
        use ValueType::{Array, Bool, F32, F64, I8, I16, I32, I64, String, U8, U16, U32, U64};
        [U8, I8, U16, I16, U32, I32, F32, Bool, String, Array, U64, I64, F64]
            .get(id as usize)
            .copied()
    }

    /// Bytes of one value, where all values of the type have as many.
    pub fn size(self) -> Option<u64> {
        match self {
            ValueType::U8 | ValueType::I8 | ValueType::Bool => Some(1),
            ValueType::U16 | ValueType::I16 => Some(2),
            ValueType::U32 | ValueType::I32 | ValueType::F32 => Some(4),
            ValueType::U64 | ValueType::I64 | ValueType::F64 => Some(8),
            ValueType::String | ValueType::Array => None,
        }
    }
}

/// One value, read in place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    /// unsigned 8 bits
    U8(u8),
    /// signed 8 bits
    I8(i8),
    /// unsigned 16 bits
    U16(u16),
    /// signed 16 bits
    I16(i16),
    /// unsigned 32 bits
    U32(u32),
    /// signed 32 bits
    I32(i32),
    /// float of 32 bits
    F32(f32),
    /// truth value
    Bool(bool),
    /// bytes of a string; files in the wild hold some that aren't UTF-8
    String(&'a [u8]),
    /// values of one type
    Array(Array<'a>),
    /// unsigned 64 bits
    U64(u64),
    /// signed 64 bits
    I64(i64),
    /// float of 64 bits
    F64(f64),
}

impl<'a> Value<'a> {
    /// The value of a whole number that isn't negative; booleans count as 0 and 1.
    pub fn as_u64(self) -> Option<u64> {
        match self {
            Value::U8(v) => Some(v.into()),
            Value::U16(v) => Some(v.into()),
            Value::U32(v) => Some(v.into()),
            Value::U64(v) => Some(v),
            Value::I8(v) => v.try_into().ok(),
            Value::I16(v) => v.try_into().ok(),
            Value::I32(v) => v.try_into().ok(),
            Value::I64(v) => v.try_into().ok(),
            Value::Bool(v) => Some(v.into()),
            Value::F32(_) | Value::F64(_) | Value::String(_) | Value::Array(_) => None,
        }
    }

    /// The value of a whole number that fits.
    pub fn as_u32(self) -> Option<u32> {
        self.as_u64()?.try_into().ok()
    }

    /// The value of a float.
    pub fn as_f32(self) -> Option<f32> {
        match self {
            Value::F32(v) => Some(v),
            Value::F64(v) => Some(v as f32),
            _ => None,
        }
    }

    /// The text of a string that is UTF-8.
    pub fn as_str(self) -> Option<&'a str> {
        match self {
            Value::String(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }

    /// The values of an array.
    pub fn as_array(self) -> Option<Array<'a>> {
        match self {
            Value::Array(array) => Some(array),
            _ => None,
        }
    }

    /// Decodes the value of type `ty` at the start of `bytes` and tells how long it is.
    /// None when the bytes don't hold one; the parser has checked those of a prefix.
    fn decode(ty: ValueType, bytes: &'a [u8]) -> Option<(Value<'a>, usize)> {
        fn fixed<const N: usize>(bytes: &[u8]) -> Option<[u8; N]> {
            bytes.first_chunk().copied()
        }
        Some(match ty {
            ValueType::U8 => (Value::U8(u8::from_le_bytes(fixed(bytes)?)), 1),
            ValueType::I8 => (Value::I8(i8::from_le_bytes(fixed(bytes)?)), 1),
            ValueType::U16 => (Value::U16(u16::from_le_bytes(fixed(bytes)?)), 2),
            ValueType::I16 => (Value::I16(i16::from_le_bytes(fixed(bytes)?)), 2),
            ValueType::U32 => (Value::U32(u32::from_le_bytes(fixed(bytes)?)), 4),
            ValueType::I32 => (Value::I32(i32::from_le_bytes(fixed(bytes)?)), 4),
            ValueType::F32 => (Value::F32(f32::from_le_bytes(fixed(bytes)?)), 4),
            ValueType::Bool => (Value::Bool(*bytes.first()? != 0), 1),
            ValueType::U64 => (Value::U64(u64::from_le_bytes(fixed(bytes)?)), 8),
            ValueType::I64 => (Value::I64(i64::from_le_bytes(fixed(bytes)?)), 8),
            ValueType::F64 => (Value::F64(f64::from_le_bytes(fixed(bytes)?)), 8),
            ValueType::String => {
                let len = usize::try_from(u64::from_le_bytes(fixed(bytes)?)).ok()?;
                let end = len.checked_add(8)?;
                (Value::String(bytes.get(8..end)?), end)
            }
            ValueType::Array => {
                let ty = ValueType::from_id(u32::from_le_bytes(fixed(bytes)?))?;
                let len = usize::try_from(u64::from_le_bytes(fixed(bytes.get(4..)?)?)).ok()?;
                (
                    Value::Array(Array {
                        ty,
                        len,
                        bytes: bytes.get(12..)?,
                    }),
                    bytes.len(),
                )
            }
        })
    }
}

/// As messages tell it: of a long text its start, of an array its length.
impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// Characters of a text that are told.
        const TOLD: usize = 40;
        match self {
            Value::U8(v) => v.fmt(f),
            Value::I8(v) => v.fmt(f),
            Value::U16(v) => v.fmt(f),
            Value::I16(v) => v.fmt(f),
            Value::U32(v) => v.fmt(f),
            Value::I32(v) => v.fmt(f),
            Value::U64(v) => v.fmt(f),
            Value::I64(v) => v.fmt(f),
            Value::F32(v) => v.fmt(f),
            Value::F64(v) => v.fmt(f),
            Value::Bool(v) => v.fmt(f),
            Value::String(bytes) => {
                // no character takes more than four bytes
                let start = String::from_utf8_lossy(&bytes[..bytes.len().min(4 * TOLD)]);
                let told: String = start.chars().take(TOLD).collect();
                let rest = if told.len() < bytes.len() { "…" } else { "" };
                write!(f, "the text {told:?}{rest}")
            }
            Value::Array(array) => write!(f, "an array of {} values of type {:?}", array.len, array.ty),
        }
    }
}

/// An array of values of one type, read in place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Array<'a> {
    ty: ValueType,
    len: usize,
    bytes: &'a [u8],
}

impl<'a> Array<'a> {
    /// type of the elements
    pub fn element_type(self) -> ValueType {
        self.ty
    }

    /// number of elements
    pub fn len(self) -> usize {
        self.len
    }

    /// no elements
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// The elements in order.
    pub fn iter(self) -> impl Iterator<Item = Value<'a>> {
        let mut rest = self.bytes;
        (0..self.len).map_while(move |_| {
            let (value, len) = Value::decode(self.ty, rest)?;
            rest = &rest[len..];
            Some(value)
        })
    }

    /// Bytes of element `index`, for element types of one size.
    pub(crate) fn element_bytes(self, index: usize) -> Option<&'a [u8]> {
        let size = self.ty.size()? as usize;
        self.bytes.get(index * size..(index + 1) * size)
    }
}

/// Where one entry lies in the prefix.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// the key's text
    pub(crate) key: Range<usize>,
    pub(crate) ty: ValueType,
    /// the value behind its type
    pub(crate) value: Range<usize>,
}

/// Metadata in the order of the file, with look-up by key.
#[derive(Clone, Debug)]
pub struct Metadata {
    prefix: Bytes,
    entries: Vec<Entry>,
    index: HashMap<String, usize>,
}

impl Metadata {
    pub(crate) fn new(prefix: Bytes, entries: Vec<Entry>, index: HashMap<String, usize>) -> Metadata {
        Metadata { prefix, entries, index }
    }

    /// number of entries
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// no entries
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<Value<'_>> {
        self.value(&self.entries[*self.index.get(key)?])
    }

    /// The text of a key's value.
    pub fn str(&self, key: &str) -> Option<&str> {
        self.get(key)?.as_str()
    }

    /// Keys and values in the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Value<'_>)> {
        self.raw().filter_map(|(key, _, entry)| Some((key, self.value(entry)?)))
    }

    /// Key, the bytes of the whole entry (length of the key to end of the value), and where they lie.
    pub(crate) fn raw(&self) -> impl Iterator<Item = (&str, &[u8], &Entry)> {
        self.entries.iter().filter_map(|entry| {
            let key = std::str::from_utf8(&self.prefix[entry.key.clone()]).ok()?;
            Some((key, &self.prefix[entry.key.start - 8..entry.value.end], entry))
        })
    }

    pub(crate) fn value(&self, entry: &Entry) -> Option<Value<'_>> {
        Value::decode(entry.ty, &self.prefix[entry.value.clone()]).map(|(value, _)| value)
    }
}
