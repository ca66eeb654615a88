//! Where a model's files are, and reading ranges of their bytes.

mod file;
mod http;
mod retry;

use async_trait::async_trait;
use bytes::Bytes;
use secrecy::SecretString;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::model::{self, Model, Part};
use crate::prefix::{self, MAX_PREFIX, PrefixParser};

pub use retry::Patience;

/// Where a model is; any of its parts names it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum ModelSource {
    /// a file in a repository of the Hugging Face hub
    HuggingFace {
        /// `owner/name`
        repo: String,
        /// path in the repository
        file: String,
        /// branch, tag or commit
        #[serde(default = "main_branch")]
        revision: String,
    },
    /// any server that honours Range
    Http {
        /// address, without secrets
        url: String,
    },
    /// a local file
    File {
        /// its path
        path: PathBuf,
    },
}

fn main_branch() -> String {
    "main".into()
}

/// How sources are reached.
#[derive(Clone, Debug)]
pub struct Access {
    /// bearer token for the source's own server; never sent to where it redirects to
    pub token: Option<SecretString>,
    /// address of the Hugging Face hub or a mirror of it
    pub hub: String,
    /// how long to go on trying
    pub patience: Patience,
}

impl Default for Access {
    fn default() -> Access {
        Access {
            token: None,
            hub: "https://huggingface.co".into(),
            patience: Patience::default(),
        }
    }
}

/// Why bytes can't be had. Addresses in it are without query and user: they may carry signatures.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// no address
    #[error("{url} is no address of a model: {problem}")]
    Address {
        /// the address
        url: String,
        /// what is wrong
        problem: String,
    },
    /// no answer, or answers that break off
    #[error("{url} can't be reached (tried {tries} times): check the address and the network")]
    Unreachable {
        /// the address
        url: String,
        /// requests made
        tries: u32,
        /// the last failure
        #[source]
        source: reqwest::Error,
    },
    /// answers that are shorter than they say
    #[error("{url} sends less than it announces (tried {tries} times)")]
    Truncated {
        /// the address
        url: String,
        /// requests made
        tries: u32,
    },
    /// too many requests, or overload
    #[error("{url} is busy: it answered {status} {tries} times; try again later, or use a token or a mirror")]
    Busy {
        /// the address
        url: String,
        /// HTTP status
        status: u16,
        /// requests made
        tries: u32,
    },
    /// 401
    #[error("{url} wants a token: set one that may read the model")]
    TokenMissing {
        /// the address
        url: String,
    },
    /// 401 though there was a token
    #[error("{url} doesn't accept the token: it is mistyped, expired or of another server")]
    TokenRefused {
        /// the address
        url: String,
    },
    /// 403
    #[error("{url} forbids reading the model: accept its licence, or use a token of an account that may read it")]
    Forbidden {
        /// the address
        url: String,
    },
    /// 404, 410
    #[error("{url} is not there: check the name, the revision and that all parts are published")]
    NotFound {
        /// the address
        url: String,
    },
    /// another status
    #[error("{url} answered {status}")]
    Status {
        /// the address
        url: String,
        /// HTTP status
        status: u16,
    },
    /// 200 to a request for a range
    #[error("{url}: the server does not honour ranges, so that a window would cost the whole file; use another one")]
    NoRanges {
        /// the address
        url: String,
    },
    /// a redirect that isn't followed
    #[error("{url} redirects {problem}")]
    Redirect {
        /// the address
        url: String,
        /// where, without secrets
        problem: String,
    },
    /// the file was replaced while it was read
    #[error("{url} changed while it was read: start again")]
    Changed {
        /// the address
        url: String,
    },
    /// an answer that breaks HTTP
    #[error("{url} answers a request for a range wrongly: {problem}")]
    Protocol {
        /// the address
        url: String,
        /// what is wrong
        problem: String,
    },
    /// nothing in it
    #[error("{url} is empty: check the address or path of the model")]
    Empty {
        /// the address or path
        url: String,
    },
    /// bytes past the end
    #[error("{url} has {} and needs {} or more: it is incomplete", crate::size::Bytes(*.size), crate::size::Bytes(*.needed))]
    Incomplete {
        /// the address or path
        url: String,
        /// bytes there
        size: u64,
        /// bytes needed
        needed: u64,
    },
    /// a folder, a device, a pipe
    #[error("{path} is {kind} and no file: name the model's file")]
    NoFile {
        /// which
        path: PathBuf,
        /// what it is
        kind: &'static str,
    },
    /// a local file
    #[error("{path} can't be read")]
    Io {
        /// which
        path: PathBuf,
        /// why
        #[source]
        source: std::io::Error,
    },
    /// the HTTP client can't be made
    #[error("HTTP can't be set up")]
    Client(#[source] reqwest::Error),
    /// the bytes are no model
    #[error("{url} holds no model that can be used")]
    Model {
        /// the address or path
        url: String,
        /// why
        #[source]
        source: model::Error,
    },
}

impl Error {
    /// Stable `PascalCase` word for metrics, events and conditions.
    pub fn reason(&self) -> &'static str {
        match self {
            Error::Address { .. } => "InvalidSource",
            Error::TokenMissing { .. } | Error::TokenRefused { .. } | Error::Forbidden { .. } => "Unauthorized",
            Error::NoRanges { .. } => "RangesNotHonoured",
            Error::Changed { .. } => "SourceChanged",
            Error::Empty { .. } | Error::Incomplete { .. } => "IncompleteFile",
            Error::NoFile { .. } => "NoFile",
            Error::Model { source, .. } => source.reason(),
            Error::Unreachable { .. }
            | Error::Truncated { .. }
            | Error::Busy { .. }
            | Error::NotFound { .. }
            | Error::Status { .. }
            | Error::Redirect { .. }
            | Error::Protocol { .. }
            | Error::Io { .. }
            | Error::Client(_) => "SourceUnreachable",
        }
    }
}

/// Ranges of the bytes of a model's parts.
#[async_trait]
pub trait RangeReader: Send + Sync {
    /// The parts by name, in order: address without query, or path.
    fn parts(&self) -> Vec<String>;

    /// Opens a range of a part, which isn't empty. It may reach past the file's end, but must start before it.
    async fn open(&self, part: usize, range: Range<u64>) -> Result<Box<dyn RangeBody + '_>, Error>;

    /// What tells this version of the part from another within one download (a strong `ETag`), once a range was opened.
    fn validator(&self, part: usize) -> Option<String>;

    /// The version of the source, as far as it has one, once a range was opened.
    fn revision(&self) -> String;
}

/// The bytes of one range, as they arrive.
#[async_trait]
pub trait RangeBody: Send {
    /// Bytes of the whole file.
    fn file_size(&self) -> u64;

    /// The next bytes; none at the end of the range or the file.
    async fn chunk(&mut self) -> Result<Option<Bytes>, Error>;
}

/// A reader for a source.
pub fn open(source: &ModelSource, access: &Access) -> Result<Box<dyn RangeReader>, Error> {
    Ok(match source {
        ModelSource::HuggingFace { repo, file, revision } => {
            Box::new(http::HttpReader::hugging_face(repo, file, revision, access)?)
        }
        ModelSource::Http { url } => Box::new(http::HttpReader::new(url, access)?),
        ModelSource::File { path } => Box::new(file::FileReader::new(path)),
    })
}

/// What a path leads to that isn't a regular file, in words.
pub fn kind_of(kind: std::fs::FileType) -> &'static str {
    use std::os::unix::fs::FileTypeExt;
    if kind.is_dir() {
        "a folder"
    } else if kind.is_fifo() {
        "a pipe"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    }
}

/// A reader for local files.
pub fn open_file(path: &Path) -> impl RangeReader {
    file::FileReader::new(path)
}

/// A request for part of a prefix asks for at least this much more.
const SMALLEST_STEP: u64 = 32 << 10;
/// A request for part of a prefix asks for at most this much more than is surely needed.
const LARGEST_STEP: u64 = 8 << 20;

/// Reads the prefixes of all parts, and nothing else, in growing steps that overshoot little.
///
/// `prefix_bytes` are hints: the lengths of the prefixes where they are known, read in one request each.
pub async fn read_model(reader: &dyn RangeReader, prefix_bytes: &[u64]) -> Result<Model, Error> {
    let names = reader.parts();
    let mut parts = Vec::with_capacity(names.len());
    for (index, name) in names.iter().enumerate() {
        let hint = prefix_bytes
            .get(index)
            .copied()
            .filter(|hint| (1..=MAX_PREFIX).contains(hint));
        parts.push(read_part(reader, index, name, hint).await?);
    }
    let revision = reader.revision();
    Model::new(parts, &revision).map_err(|source| Error::Model {
        url: names.join(", "),
        source,
    })
}

async fn read_part(reader: &dyn RangeReader, index: usize, name: &str, hint: Option<u64>) -> Result<Part, Error> {
    let mut parser = PrefixParser::new();
    let mut end = hint.unwrap_or(SMALLEST_STEP);
    let mut surely_needed = 1;
    loop {
        let have = parser.received();
        let mut body = match reader.open(index, have..end).await {
            // the file ends where the request begins: what is needed is what the prefix says, not what was asked for
            Err(Error::Incomplete { url, size: 0, .. }) => return Err(Error::Empty { url }),
            Err(Error::Incomplete { url, size, .. }) => {
                return Err(Error::Incomplete {
                    url,
                    size,
                    needed: surely_needed,
                });
            }
            opened => opened?,
        };
        let size = body.file_size();
        let (mut at_least, mut likely) = (have + 1, have + 1);
        while let Some(bytes) = body.chunk().await? {
            let wrong = |source| Error::Model {
                url: name.into(),
                source: model::Error::Prefix {
                    part: index + 1,
                    source,
                },
            };
            match parser.feed(&bytes).map_err(wrong)? {
                prefix::Progress::Done(prefix) => return Ok(Part { prefix, size }),
                prefix::Progress::NeedMore {
                    at_least: surely,
                    likely: probably,
                } => (at_least, likely) = (surely, probably),
            }
        }
        if at_least > size || parser.received() == have {
            return Err(Error::Incomplete {
                url: name.into(),
                size,
                needed: at_least,
            });
        }
        surely_needed = at_least;
        end = next_end(parser.received(), at_least, likely);
    }
}

/// Where the next request for a prefix ends, of which `have` bytes are there: short of the estimate, so that a wrong one
/// costs little, and never in steps too small or too large.
fn next_end(have: u64, at_least: u64, likely: u64) -> u64 {
    let step = likely.saturating_sub(have) * 9 / 10;
    at_least.max(have + step.clamp(SMALLEST_STEP, LARGEST_STEP))
}
