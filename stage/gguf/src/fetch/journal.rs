//! The journal of a download: which pieces of the file beside it are whole, and their hashes.
//!
//! Lines of JSON. Nothing depends on when they reach the disk: what they say is checked against the file.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::Error;

/// The first line: what the pieces are of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Head {
    /// hash of what the file is to hold and where from
    pub(super) plan: String,
    /// version of each part of the source, where it tells one
    pub(super) validators: Vec<Option<String>>,
}

impl Head {
    /// Pieces of a download with this head may be kept for one with `other`.
    fn goes_with(&self, other: &Head) -> bool {
        let same = |(a, b): (&Option<String>, &Option<String>)| a.is_none() || b.is_none() || a == b;
        self.plan == other.plan && self.validators.iter().zip(&other.validators).all(same)
    }
}

/// Another line: bytes that are whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    /// first byte
    pub(super) start: u64,
    /// bytes
    pub(super) len: u64,
    blake3: String,
}

impl Record {
    pub(super) fn of(start: u64, bytes: &[u8]) -> Record {
        Record {
            start,
            len: bytes.len() as u64,
            blake3: blake3::hash(bytes).to_hex().to_string(),
        }
    }

    /// The file holds these bytes.
    pub(super) fn holds(&self, file: &File) -> bool {
        // records come from disk: no length is trusted
        if file
            .metadata()
            .is_ok_and(|metadata| self.start.saturating_add(self.len) > metadata.len())
        {
            return false;
        }
        let mut hasher = blake3::Hasher::new();
        let mut buffer = vec![0; (1 << 20).min(self.len) as usize];
        let (mut at, end) = (self.start, self.start + self.len);
        while at < end {
            let bytes = &mut buffer[..(end - at).min(1 << 20) as usize];
            if file.read_exact_at(bytes, at).is_err() {
                return false;
            }
            hasher.update(bytes);
            at += bytes.len() as u64;
        }
        hasher.finalize().to_hex().as_str() == self.blake3
    }
}

/// An open journal; no other process can open it meanwhile.
#[derive(Debug)]
pub(super) struct Journal {
    path: PathBuf,
    file: File,
    head: Head,
}

impl Journal {
    /// Opens the journal of `target`, and reads what it says about a download with this head: nothing when it is of
    /// another.
    pub(super) fn open(target: &Path, head: Head) -> Result<(Journal, Vec<Record>), Error> {
        let path = path_of(target);
        let io = |source| Error::Io {
            path: path.clone(),
            source,
        };
        let file = OpenOptions::new()
            .create(true)
            .read(true)
            .append(true)
            .open(&path)
            .map_err(io)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(Error::Locked {
                    path: target.to_owned(),
                });
            }
            Err(TryLockError::Error(source)) => return Err(io(source)),
        }
        let (found, records) = lines(&file);
        let records = if found.is_some_and(|found| found.goes_with(&head)) {
            records
        } else {
            Vec::new()
        };
        Ok((Journal { path, file, head }, records))
    }

    /// Starts it again, with these records.
    pub(super) fn reset(&mut self, records: &[Record]) -> Result<(), Error> {
        self.file.set_len(0).map_err(|source| self.io(source))?;
        self.append(&self.head)?;
        records.iter().try_for_each(|record| self.append(record))
    }

    /// Adds a line.
    pub(super) fn append(&self, line: &impl Serialize) -> Result<(), Error> {
        let mut bytes = serde_json::to_vec(line).map_err(|error| self.io(error.into()))?;
        bytes.push(b'\n');
        (&self.file).write_all(&bytes).map_err(|source| self.io(source))
    }

    /// Takes the journal away.
    pub(super) fn remove(&self) {
        // nothing is lost when it stays: it is checked before use
        let _ = fs::remove_file(&self.path);
    }

    fn io(&self, source: std::io::Error) -> Error {
        Error::Io {
            path: self.path.clone(),
            source,
        }
    }
}

/// What the journal of a file says, if there is one.
pub(super) fn records(target: &Path) -> Vec<Record> {
    File::open(path_of(target))
        .map(|file| lines(&file).1)
        .unwrap_or_default()
}

fn path_of(target: &Path) -> PathBuf {
    super::partial::beside(target, "journal")
}

/// A line that can't be read ends the list: the process died while it wrote it.
fn lines(file: &File) -> (Option<Head>, Vec<Record>) {
    let mut lines = BufReader::new(file).lines().map_while(Result::ok);
    let head = lines.next().and_then(|line| serde_json::from_str(&line).ok());
    let records = lines.map_while(|line| serde_json::from_str(&line).ok()).collect();
    (head, records)
}
