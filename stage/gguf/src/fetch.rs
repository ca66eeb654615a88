//! Writes a mini-GGUF to disk from ranges of its model, so that it can be broken off at any time.
//!
//! Three files: the target, which only ever is a complete one; `TARGET.part`, which grows; and `TARGET.journal`, a line
//! for each piece that is whole, with its hash. A partial file is never trusted: on the next run each recorded piece is
//! read and hashed again, and the others are fetched. When all are there the part is renamed. The journal stays, so that
//! a file can be checked later without its source.

mod journal;
mod local;
mod partial;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use futures::{StreamExt, TryStreamExt, stream};

use crate::pieces::Piece;
use crate::prefix;
use crate::size::Bytes;
use crate::source::{self, RangeReader};
use crate::window::MiniGguf;
use partial::Partial;

pub use local::verify;

/// Requests that run at once: one connection rarely fills a line.
const CONNECTIONS: usize = 4;

/// Why a file isn't there in the end.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// the source doesn't give the bytes
    #[error(transparent)]
    Source(#[from] source::Error),
    /// the disk is too small
    #[error("{path} needs {} more and {} are free: make room, or choose a smaller window", Bytes(*.needed), Bytes(*.free))]
    NoSpace {
        /// file to be written
        path: PathBuf,
        /// bytes still to be written
        needed: u64,
        /// bytes free on its file system
        free: u64,
    },
    /// a file can't be written or read
    #[error("{path} can't be written or read")]
    Io {
        /// which
        path: PathBuf,
        /// why
        #[source]
        source: io::Error,
    },
    /// another process writes it
    #[error("{path} is being downloaded by another process")]
    Locked {
        /// file to be written
        path: PathBuf,
    },
    /// a local file is not the one that is wanted, or damaged
    #[error("{path} can't be used: {problem}")]
    NotUsable {
        /// which
        path: PathBuf,
        /// what is wrong
        problem: String,
    },
    /// a local file is no GGUF that can be read
    #[error("{path} can't be used")]
    Unreadable {
        /// which
        path: PathBuf,
        /// why
        #[source]
        source: prefix::Error,
    },
}

impl Error {
    /// Stable `PascalCase` word for metrics, events and conditions.
    pub fn reason(&self) -> &'static str {
        match self {
            Error::Source(source) => source.reason(),
            Error::NoSpace { .. } => "NoSpace",
            Error::Io { .. } => "DiskFailure",
            Error::Locked { .. } => "DownloadLocked",
            Error::NotUsable { .. } => "IncompleteFile",
            Error::Unreadable { source, .. } => source.reason(),
        }
    }
}

/// How far a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// bytes there, those of earlier runs included
    pub done: u64,
    /// bytes from the source in the end
    pub total: u64,
}

/// What it took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fetched {
    /// bytes read from the source
    pub bytes_fetched: u64,
    /// bytes written to disk
    pub bytes_written: u64,
}

/// Fetches `mini` to `target`: goes on with what an earlier run left, and asks for nothing when all is there.
pub async fn fetch(
    reader: &dyn RangeReader,
    mini: &MiniGguf,
    target: &Path,
    progress: impl FnMut(Progress) + Send,
) -> Result<Fetched, Error> {
    let validators: Vec<Option<String>> = (0..reader.parts().len()).map(|part| reader.validator(part)).collect();
    let (mini, path) = (mini.clone(), target.to_owned());
    let partial = blocking(target, move || {
        if local::is_whole(&path, &mini) {
            Ok(None)
        } else {
            Partial::resume(&mini, &path, &validators).map(Some)
        }
    })
    .await?;
    let Some(partial) = partial.map(Arc::new) else {
        return Ok(Fetched::default());
    };
    let filled = fill(reader, &partial, progress).await;
    let (finished, whole) = (Arc::clone(&partial), filled.is_ok());
    let changed = matches!(filled, Err(Error::Source(source::Error::Changed { .. })));
    let ended = blocking(target, move || {
        if whole {
            finished.finish()
        } else {
            finished.abandon(changed)
        }
    })
    .await;
    let bytes_fetched = filled?;
    ended?;
    Ok(Fetched {
        bytes_fetched,
        bytes_written: bytes_fetched + partial.made_up_bytes(),
    })
}

/// Takes away what a fetch of `target` keeps beside it: the hashes of a whole file, or what there is of a broken one.
pub fn forget(target: &Path) {
    for extension in ["journal", "part"] {
        // mostly one of the two isn't there
        let _ = std::fs::remove_file(partial::beside(target, extension));
    }
}

/// Fetches the pieces that are missing, several at once.
async fn fill(
    reader: &dyn RangeReader,
    partial: &Arc<Partial>,
    progress: impl FnMut(Progress) + Send,
) -> Result<u64, Error> {
    let missing: u64 = partial.missing().iter().map(|piece| piece.len).sum();
    let total = partial.total();
    let report = Mutex::new((total - missing, progress));
    let advance = |bytes: u64| {
        let mut report = report.lock().unwrap_or_else(PoisonError::into_inner);
        report.0 += bytes;
        let done = report.0;
        report.1(Progress { done, total });
    };
    advance(0);
    let advance = &advance;
    stream::iter(partial.missing())
        .map(|piece| async move {
            let bytes = read(reader, piece, advance).await?;
            let (partial, piece) = (Arc::clone(partial), *piece);
            let path = partial.target().to_owned();
            blocking(&path, move || partial.store(&piece, &bytes)).await
        })
        .buffer_unordered(CONNECTIONS)
        .try_collect::<()>()
        .await?;
    Ok(missing)
}

/// Reads one piece from the source, all of it.
async fn read(reader: &dyn RangeReader, piece: &Piece, advance: &impl Fn(u64)) -> Result<Vec<u8>, Error> {
    let mut body = reader.open(piece.part, piece.offset..piece.offset + piece.len).await?;
    let mut bytes = Vec::with_capacity(piece.len as usize);
    while let Some(chunk) = body.chunk().await? {
        bytes.extend_from_slice(&chunk);
        advance(chunk.len() as u64);
    }
    if bytes.len() as u64 != piece.len {
        let (url, size) = (reader.parts().swap_remove(piece.part), body.file_size());
        return Err(source::Error::Incomplete {
            url,
            size,
            needed: piece.offset + piece.len,
        }
        .into());
    }
    Ok(bytes)
}

/// Disk work, off the threads that serve the network.
async fn blocking<T: Send + 'static>(
    path: &Path,
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let joined = tokio::task::spawn_blocking(work).await;
    joined.map_err(|error| Error::Io {
        path: path.to_owned(),
        source: io::Error::other(error),
    })?
}
