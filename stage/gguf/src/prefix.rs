//! Parses the prefix of a GGUF file (header, metadata, tensor table) from bytes that arrive bit by bit.
//!
//! Pure: it reads nothing by itself. Each count and length is checked against what a prefix can hold before memory is
//! set aside for it, so that a hostile file costs no more than the bytes that were received. Work is linear in them:
//! an unfinished entry is read again from its start, and only string arrays, the one kind of entry whose reading takes
//! more than constant time, are resumed inside.
//!
//! Format: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>, versions 2 and 3, little-endian.

mod other;

use std::collections::{HashMap, HashSet};

use bytes::Bytes;

use crate::metadata::{Entry, Metadata, ValueType};
use crate::tensor::{TensorInfo, TensorType};

/// The longest prefix that is read. The largest known (a vocabulary of 262,144 tokens with merges) are below 32 MiB.
pub const MAX_PREFIX: u64 = 256 << 20;
/// Most metadata entries in one file; known files have below 100.
const MAX_ENTRIES: u64 = 1 << 16;
/// Most tensors in one file; known files have below 10,000.
const MAX_TENSORS: u64 = 1 << 20;
/// ggml refuses names of 64 bytes and more (`GGML_MAX_NAME`).
const MAX_TENSOR_NAME: u64 = 63;
/// `GGML_MAX_DIMS`
const MAX_DIMS: u32 = 4;
const DEFAULT_ALIGNMENT: u64 = 32;
/// Known files have 32, some 64; what lies between tensors is padding that has to be set aside.
const MAX_ALIGNMENT: u32 = 1 << 16;

/// Typical sizes, for the estimate of what is still to come: a metadata entry, a tensor's line, a token.
const LIKELY_ENTRY: u64 = 48;
const LIKELY_TENSOR: u64 = 64;
const LIKELY_STRING: u64 = 14;

/// Why bytes are no GGUF prefix that can be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// another kind of file
    #[error("this is not a GGUF file: {}; check the address or path of the model", start_words(*.start, *.looks_like))]
    NotGguf {
        /// first bytes
        start: [u8; 4],
        /// what it seems to be in place of one
        looks_like: Option<&'static str>,
    },
    /// the magic is byte-swapped
    #[error(
        "the file starts with FUGG: it was written with its bytes swapped; convert it again on this kind of machine"
    )]
    Swapped,
    /// GGUF version 1
    #[error("this is a GGUF file of version 1, which llama.cpp no longer reads; convert it to version 3")]
    Version1,
    /// big-endian
    #[error("this is a big-endian GGUF file of version {version}; convert it to little-endian (gguf-convert-endian)")]
    BigEndian {
        /// version after swapping
        version: u32,
    },
    /// a version of the future
    #[error("GGUF version {version} is not known; versions 2 and 3 are")]
    UnknownVersion {
        /// version found
        version: u32,
    },
    /// a count or length that no sound file has
    #[error("{field} at byte {at} is {value}, and at most {limit} can be: the file is damaged or hostile")]
    TooLarge {
        /// which count or length
        field: String,
        /// where it stands
        at: u64,
        /// what it says
        value: u64,
        /// what it may say
        limit: u64,
    },
    /// a field that breaks the format
    #[error("{field} at byte {at}: {problem}")]
    Malformed {
        /// which field
        field: String,
        /// where it stands
        at: u64,
        /// what is wrong
        problem: String,
    },
    /// a key or tensor name that was there before
    #[error("{field} at byte {at} is there twice")]
    Duplicate {
        /// which key or tensor
        field: String,
        /// where the second one stands
        at: u64,
    },
}

impl Error {
    /// Stable `PascalCase` word for metrics, events and conditions.
    pub fn reason(&self) -> &'static str {
        match self {
            Error::NotGguf { .. } => "NotGguf",
            Error::Swapped | Error::Version1 | Error::BigEndian { .. } | Error::UnknownVersion { .. } => {
                "UnsupportedFormat"
            }
            Error::TooLarge { .. } | Error::Malformed { .. } | Error::Duplicate { .. } => "MalformedFile",
        }
    }
}

fn start_words(start: [u8; 4], looks_like: Option<&'static str>) -> String {
    looks_like.map_or_else(
        || format!("it starts with {start:02x?}"),
        |what| format!("it looks like {what}"),
    )
}

/// How far the parser is.
#[derive(Debug)]
pub enum Progress {
    /// more bytes are needed
    NeedMore {
        /// bytes of the file, from its start, that are surely needed
        at_least: u64,
        /// bytes of the file that the whole prefix probably takes
        likely: u64,
    },
    /// the prefix is whole
    Done(Prefix),
}

/// Header, metadata and tensor table of one GGUF file.
#[derive(Clone, Debug)]
pub struct Prefix {
    /// 2 or 3
    pub version: u32,
    /// `general.alignment`, a power of two
    pub alignment: u64,
    /// metadata in the order of the file
    pub metadata: Metadata,
    /// tensor table in the order of the file
    pub tensors: Vec<TensorInfo>,
    /// byte of the file at which the data section starts
    pub data_offset: u64,
    bytes: Bytes,
}

impl Prefix {
    /// Parses bytes that hold a whole prefix. None when they end too early.
    pub fn parse(bytes: &[u8]) -> Result<Option<Prefix>, Error> {
        match PrefixParser::new().feed(bytes)? {
            Progress::Done(prefix) => Ok(Some(prefix)),
            Progress::NeedMore { .. } => Ok(None),
        }
    }

    /// The prefix itself, up to the end of the tensor table.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// Reads a prefix from the pieces that `feed` is given, in order.
#[derive(Debug, Default)]
pub struct PrefixParser {
    bytes: Vec<u8>,
    /// start of the first unread entry, or of the first unread string of `strings`
    at: usize,
    header: Option<Header>,
    entries: Vec<Entry>,
    keys: HashMap<String, usize>,
    /// the string array in which the bytes ended
    strings: Option<Strings>,
    alignment: u64,
    tensors: Vec<TensorInfo>,
    names: HashSet<String>,
}

#[derive(Clone, Copy, Debug)]
struct Header {
    version: u32,
    tensors: u64,
    entries: u64,
}

#[derive(Debug)]
struct Strings {
    name: String,
    entry: Entry,
    first: usize,
    read: u64,
    left: u64,
}

/// Why reading stopped.
enum Stop {
    /// the entry goes on to this byte at least
    Short(u64),
    Fail(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop::Fail(error)
    }
}

impl PrefixParser {
    /// A parser that has seen nothing.
    pub fn new() -> PrefixParser {
        PrefixParser {
            alignment: DEFAULT_ALIGNMENT,
            ..PrefixParser::default()
        }
    }

    /// Bytes received so far.
    pub fn received(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Takes the next bytes of the file. After `Done` or an error the parser is spent.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<Progress, Error> {
        self.bytes.extend_from_slice(bytes);
        match self.advance() {
            Ok(()) => Ok(Progress::Done(self.finish())),
            Err(Stop::Fail(error)) => Err(error),
            Err(Stop::Short(at_least)) => Ok(Progress::NeedMore {
                at_least,
                likely: self.likely().clamp(at_least, MAX_PREFIX.max(at_least)),
            }),
        }
    }

    fn advance(&mut self) -> Result<(), Stop> {
        let header = match self.header {
            Some(header) => header,
            None => {
                let header = self.read_header()?;
                *self.header.insert(header)
            }
        };
        while self.strings.is_some() || (self.entries.len() as u64) < header.entries {
            if self.strings.is_none() {
                self.read_entry()?;
            }
            self.read_strings()?;
        }
        while (self.tensors.len() as u64) < header.tensors {
            self.read_tensor()?;
        }
        Ok(())
    }

    fn read_header(&mut self) -> Result<Header, Stop> {
        let mut cursor = Cursor {
            bytes: &self.bytes,
            at: 0,
        };
        let magic: [u8; 4] = cursor.array()?;
        match &magic {
            b"GGUF" => {}
            b"FUGG" => return Err(Error::Swapped.into()),
            _ => {
                let looks_like = other::looks_like(&self.bytes);
                return Err(Error::NotGguf {
                    start: magic,
                    looks_like,
                }
                .into());
            }
        }
        let version = cursor.u32()?;
        match version {
            2 | 3 => {}
            1 => return Err(Error::Version1.into()),
            _ if version.trailing_zeros() >= 16 => {
                return Err(Error::BigEndian {
                    version: version.swap_bytes(),
                }
                .into());
            }
            _ => return Err(Error::UnknownVersion { version }.into()),
        }
        let tensors = cursor.count(|| "the number of tensors".into(), MAX_TENSORS)?;
        let entries = cursor.count(|| "the number of metadata entries".into(), MAX_ENTRIES)?;
        self.at = cursor.at;
        Ok(Header {
            version,
            tensors,
            entries,
        })
    }

    /// Reads a metadata entry; of a string array only the head, the strings are `read_strings`' work.
    fn read_entry(&mut self) -> Result<(), Stop> {
        let index = self.entries.len();
        let mut cursor = Cursor {
            bytes: &self.bytes,
            at: self.at,
        };
        let start = cursor.at as u64;
        let key = cursor.string(|| format!("the length of metadata key {index}"), MAX_PREFIX)?;
        let name = match std::str::from_utf8(&self.bytes[key.clone()]) {
            Ok("") => return Err(malformed(format!("metadata key {index}"), start, "it is empty")),
            Ok(name) => name.to_owned(),
            Err(_) => return Err(malformed(format!("metadata key {index}"), start, "it is not UTF-8")),
        };
        if self.keys.contains_key(&name) {
            return Err(Error::Duplicate {
                field: format!("metadata key {name}"),
                at: start,
            }
            .into());
        }
        let value_type = |id: u32, at: usize| {
            ValueType::from_id(id).ok_or_else(|| {
                malformed(
                    format!("the type of {name}"),
                    at as u64,
                    &format!("{id} is no value type"),
                )
            })
        };
        let ty = value_type(cursor.u32()?, cursor.at - 4)?;
        let value = cursor.at;
        let mut strings = None;
        match ty {
            ValueType::String => {
                cursor.string(|| format!("the length of the value of {name}"), MAX_PREFIX)?;
            }
            ValueType::Array => {
                let element = value_type(cursor.u32()?, cursor.at - 4)?;
                let counted = cursor.at as u64;
                let size = match element {
                    ValueType::Array => {
                        return Err(malformed(
                            format!("the value of {name}"),
                            counted,
                            "arrays of arrays are not read",
                        ));
                    }
                    ValueType::String => 8,
                    fixed => fixed.size().unwrap_or(1),
                };
                let count = cursor.count(|| format!("the number of elements of {name}"), MAX_PREFIX / size)?;
                if element == ValueType::String {
                    strings = Some(count);
                } else {
                    cursor.skip(|| format!("the number of elements of {name}"), count * size)?;
                }
            }
            fixed => cursor.skip(|| format!("the value of {name}"), fixed.size().unwrap_or(1))?,
        }
        self.at = cursor.at;
        let entry = Entry {
            key,
            ty,
            value: value..cursor.at,
        };
        if let Some(left) = strings {
            self.strings = Some(Strings {
                name,
                entry,
                first: self.at,
                read: 0,
                left,
            });
            return Ok(());
        }
        if name == "general.alignment" {
            self.alignment = self.read_alignment(&entry)?;
        }
        self.keys.insert(name, index);
        self.entries.push(entry);
        Ok(())
    }

    fn read_alignment(&self, entry: &Entry) -> Result<u64, Stop> {
        let at = entry.value.start as u64;
        let wrong = |problem: &str| Err(malformed("general.alignment".into(), at, problem));
        if entry.ty != ValueType::U32 {
            return wrong("it is not of type u32");
        }
        let alignment = Cursor {
            bytes: &self.bytes,
            at: entry.value.start,
        }
        .u32()?;
        if !alignment.is_power_of_two() || alignment > MAX_ALIGNMENT {
            return wrong(&format!("{alignment} is not a power of two up to {MAX_ALIGNMENT}"));
        }
        Ok(alignment.into())
    }

    /// Goes on with the string array that `read_entry` began, if it began one.
    fn read_strings(&mut self) -> Result<(), Stop> {
        let Some(strings) = &mut self.strings else {
            return Ok(());
        };
        let mut cursor = Cursor {
            bytes: &self.bytes,
            at: self.at,
        };
        while strings.left > 0 {
            let (name, index) = (&strings.name, strings.read);
            cursor.string(|| format!("the length of element {index} of {name}"), MAX_PREFIX)?;
            self.at = cursor.at;
            strings.read += 1;
            strings.left -= 1;
        }
        if let Some(mut strings) = self.strings.take() {
            strings.entry.value.end = self.at;
            self.keys.insert(strings.name, self.entries.len());
            self.entries.push(strings.entry);
        }
        Ok(())
    }

    fn read_tensor(&mut self) -> Result<(), Stop> {
        let index = self.tensors.len();
        let mut cursor = Cursor {
            bytes: &self.bytes,
            at: self.at,
        };
        let start = cursor.at as u64;
        let name = cursor.string(|| format!("the length of the name of tensor {index}"), MAX_TENSOR_NAME)?;
        let name = std::str::from_utf8(&self.bytes[name])
            .map_err(|_| malformed(format!("the name of tensor {index}"), start, "it is not UTF-8"))?
            .to_owned();
        if self.names.contains(&name) {
            return Err(Error::Duplicate {
                field: format!("tensor {name}"),
                at: start,
            }
            .into());
        }
        let at = cursor.at as u64;
        let n_dims = cursor.u32()?;
        if n_dims > MAX_DIMS {
            let field = format!("the number of dimensions of {name}");
            return Err(Error::TooLarge {
                field,
                at,
                value: n_dims.into(),
                limit: MAX_DIMS.into(),
            }
            .into());
        }
        let at = cursor.at as u64;
        let dims = (0..n_dims).map(|_| cursor.u64()).collect::<Result<Vec<u64>, Stop>>()?;
        let elements = dims.iter().try_fold(1u64, |product, dim| product.checked_mul(*dim));
        if elements.is_none_or(|product| product > i64::MAX as u64) {
            return Err(malformed(
                format!("the dimensions of {name}"),
                at,
                &format!("the product of {dims:?} wraps"),
            ));
        }
        let at = cursor.at as u64;
        let ty = TensorType(cursor.u32()?);
        if ty.name().is_some() && ty.bytes(&dims).is_none() {
            let problem = format!("{dims:?} is not a whole number of {ty} blocks that fits a file");
            return Err(malformed(format!("the dimensions of {name}"), at, &problem));
        }
        let at = cursor.at as u64;
        let offset = cursor.u64()?;
        if offset % self.alignment != 0 {
            let problem = format!("{offset} is not a multiple of the alignment {}", self.alignment);
            return Err(malformed(format!("the offset of {name}"), at, &problem));
        }
        self.at = cursor.at;
        self.names.insert(name.clone());
        self.tensors.push(TensorInfo { name, dims, ty, offset });
        Ok(())
    }

    fn finish(&mut self) -> Prefix {
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.truncate(self.at);
        let bytes = Bytes::from(bytes);
        let keys = std::mem::take(&mut self.keys);
        Prefix {
            version: self.header.map_or(0, |header| header.version),
            alignment: self.alignment,
            metadata: Metadata::new(bytes.clone(), std::mem::take(&mut self.entries), keys),
            tensors: std::mem::take(&mut self.tensors),
            data_offset: (self.at as u64).next_multiple_of(self.alignment),
            bytes,
        }
    }

    /// Extrapolates from what was read to the length of the whole prefix.
    fn likely(&self) -> u64 {
        let Some(header) = self.header else { return 0 };
        let entries = header.entries - self.entries.len() as u64;
        let tensors = header.tensors - self.tensors.len() as u64;
        let strings = self.strings.as_ref().map_or(0, |strings| {
            let read = (self.at - strings.first) as u64;
            let average = read.checked_div(strings.read).unwrap_or(LIKELY_STRING);
            strings.left * average.max(8)
        });
        self.at as u64 + strings + entries * LIKELY_ENTRY + tensors * LIKELY_TENSOR
    }
}

fn malformed(field: String, at: u64, problem: &str) -> Stop {
    Stop::Fail(Error::Malformed {
        field,
        at,
        problem: problem.into(),
    })
}

/// A place in the bytes received. Never moves past `MAX_PREFIX`.
struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Cursor<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Stop> {
        let found = self.bytes[self.at.min(self.bytes.len())..].first_chunk().copied();
        let found = found.ok_or(Stop::Short((self.at + N) as u64))?;
        self.at += N;
        Ok(found)
    }

    fn u32(&mut self) -> Result<u32, Stop> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Stop> {
        self.array().map(u64::from_le_bytes)
    }

    /// A u64 that may be at most `limit`.
    fn count(&mut self, field: impl FnOnce() -> String, limit: u64) -> Result<u64, Stop> {
        let at = self.at as u64;
        let value = self.u64()?;
        if value > limit {
            Err(Error::TooLarge {
                field: field(),
                at,
                value,
                limit,
            }
            .into())
        } else {
            Ok(value)
        }
    }

    /// Moves on by `len` bytes, which the field before gave.
    fn skip(&mut self, field: impl FnOnce() -> String, len: u64) -> Result<(), Stop> {
        let (at, limit) = (self.at as u64, MAX_PREFIX.saturating_sub(self.at as u64));
        if len > limit {
            return Err(Error::TooLarge {
                field: field(),
                at: at.saturating_sub(8),
                value: len,
                limit,
            }
            .into());
        }
        if at + len > self.bytes.len() as u64 {
            return Err(Stop::Short(at + len));
        }
        self.at += len as usize;
        Ok(())
    }

    /// Where the text of a string with its length in front lies.
    fn string(&mut self, field: impl Fn() -> String, limit: u64) -> Result<std::ops::Range<usize>, Stop> {
        let len = self.count(&field, limit)?;
        let start = self.at;
        self.skip(field, len)?;
        Ok(start..self.at)
    }
}
