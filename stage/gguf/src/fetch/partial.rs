//! A file that grows beside its target until it is whole.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use super::Error;
use super::journal::{Head, Journal, Record};
use crate::pieces::{Piece, made_up, pieces};
use crate::window::MiniGguf;

/// The growing file and its journal.
#[derive(Debug)]
pub(super) struct Partial {
    target: PathBuf,
    path: PathBuf,
    file: File,
    journal: Journal,
    /// a piece is there, so that a later run can go on
    begun: AtomicBool,
    made_up: Vec<Record>,
    missing: Vec<Piece>,
    total: u64,
}

impl Partial {
    /// Opens what an earlier run left of `mini`, keeps what is whole, and makes sure that the rest has room.
    pub(super) fn resume(mini: &MiniGguf, target: &Path, validators: &[Option<String>]) -> Result<Partial, Error> {
        let io = |source| Error::Io {
            path: target.to_owned(),
            source,
        };
        let folder = folder(target);
        fs::create_dir_all(folder).map_err(io)?;
        let path = beside(target, "part");
        let pieces = pieces(mini);
        let head = Head {
            plan: plan(mini, &pieces),
            validators: validators.into(),
        };
        let (mut journal, mut records) = Journal::open(target, head)?;
        match File::open(&path) {
            Ok(file) => records.retain(|record| record.holds(&file)),
            Err(_) => records.clear(),
        }
        let there = |piece: &Piece| {
            records
                .iter()
                .any(|record| (record.start, record.len) == (piece.start, piece.len))
        };
        let (whole, missing): (Vec<Piece>, Vec<Piece>) = pieces.iter().partition(|piece| there(piece));
        let made_up_bytes = made_up(mini).map(|(_, bytes)| bytes.len() as u64).sum::<u64>();
        let needed = missing.iter().map(|piece| piece.len).sum::<u64>() + made_up_bytes;
        let free = free_bytes(folder).map_err(io)?;
        if needed > free {
            if whole.is_empty() {
                journal.remove();
            }
            return Err(Error::NoSpace {
                path: target.to_owned(),
                needed,
                free,
            });
        }
        journal.reset(&records)?;
        let begun = !whole.is_empty();
        let options = OpenOptions::new()
            .create(true)
            .read(true)
            .write(true)
            .truncate(!begun)
            .open(&path);
        let partial = Partial {
            file: options.map_err(io)?,
            made_up: made_up(mini).map(|(start, bytes)| Record::of(start, bytes)).collect(),
            total: pieces.iter().map(|piece| piece.len).sum(),
            target: target.into(),
            begun: begun.into(),
            path,
            journal,
            missing,
        };
        partial.file.set_len(mini.len).map_err(io)?;
        made_up(mini).try_for_each(|(start, bytes)| partial.write(start, bytes))?;
        Ok(partial)
    }

    /// The file in the end.
    pub(super) fn target(&self) -> &Path {
        &self.target
    }

    /// Pieces that weren't there at first.
    pub(super) fn missing(&self) -> &[Piece] {
        &self.missing
    }

    /// Bytes of all pieces.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// Bytes that come from no source.
    pub(super) fn made_up_bytes(&self) -> u64 {
        self.made_up.iter().map(|record| record.len).sum()
    }

    /// Stores a piece and notes that it is whole.
    pub(super) fn store(&self, piece: &Piece, bytes: &[u8]) -> Result<(), Error> {
        self.write(piece.start, bytes)?;
        self.journal.append(&Record::of(piece.start, bytes))?;
        self.begun.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Gives the whole file its name.
    pub(super) fn finish(&self) -> Result<(), Error> {
        let io = |source| Error::Io {
            path: self.target.clone(),
            source,
        };
        self.made_up.iter().try_for_each(|record| self.journal.append(record))?;
        self.file.sync_all().map_err(io)?;
        fs::rename(&self.path, &self.target).map_err(io)?;
        // the rename itself must outlive a power cut
        File::open(folder(&self.target))
            .and_then(|folder| folder.sync_all())
            .map_err(io)
    }

    /// Leaves what a later run can go on with, and else nothing.
    pub(super) fn abandon(&self, useless: bool) -> Result<(), Error> {
        if useless || !self.begun.load(Ordering::Relaxed) {
            self.journal.remove();
            fs::remove_file(&self.path).map_err(|source| Error::Io {
                path: self.path.clone(),
                source,
            })?;
        }
        Ok(())
    }

    fn write(&self, start: u64, bytes: &[u8]) -> Result<(), Error> {
        self.file.write_all_at(bytes, start).map_err(|source| {
            let path = self.target.clone();
            if source.kind() == io::ErrorKind::StorageFull {
                let free = free_bytes(folder(&self.target)).unwrap_or(0);
                Error::NoSpace {
                    path,
                    needed: bytes.len() as u64,
                    free,
                }
            } else {
                Error::Io { path, source }
            }
        })
    }
}

/// Hash of all that decides the file's bytes.
fn plan(mini: &MiniGguf, pieces: &[Piece]) -> String {
    let mut hasher = blake3::Hasher::new();
    let mut number = |number: u64| {
        hasher.update(&number.to_le_bytes());
    };
    number(mini.len);
    for Piece {
        part,
        offset,
        start,
        len,
    } in pieces
    {
        [*part as u64, *offset, *start, *len].into_iter().for_each(&mut number);
    }
    for (start, bytes) in made_up(mini) {
        hasher.update(&start.to_le_bytes()).update(bytes);
    }
    hasher.finalize().to_hex().to_string()
}

/// `TARGET.EXTENSION`
pub(super) fn beside(target: &Path, extension: &str) -> PathBuf {
    let mut name = target.as_os_str().to_owned();
    name.push(".");
    name.push(extension);
    name.into()
}

fn folder(target: &Path) -> &Path {
    target
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}

/// Bytes that we may still write there.
fn free_bytes(folder: &Path) -> io::Result<u64> {
    let there = rustix::fs::statvfs(folder)?;
    Ok(there.f_bavail.saturating_mul(there.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b3_a_disk_that_fills_up_is_named_with_its_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("w.gguf");
        let head = Head {
            plan: String::new(),
            validators: Vec::new(),
        };
        let partial = Partial {
            journal: Journal::open(&target, head).unwrap().0,
            // the kernel's own full disk
            file: OpenOptions::new().write(true).open("/dev/full").unwrap(),
            path: beside(&target, "part"),
            target,
            begun: false.into(),
            made_up: Vec::new(),
            missing: Vec::new(),
            total: 0,
        };
        let piece = Piece {
            part: 0,
            offset: 0,
            start: 0,
            len: 5,
        };
        let error = partial.store(&piece, b"piece").unwrap_err();
        assert!(
            matches!(error, Error::NoSpace { needed: 5, free, .. } if free > 0),
            "{error}"
        );
        assert!(!partial.begun.load(Ordering::Relaxed));
    }
}
