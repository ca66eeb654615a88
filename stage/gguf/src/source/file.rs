//! Reads ranges of local files.

use std::io::SeekFrom;
use std::ops::Range;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncSeekExt};

use super::{Error, RangeBody, RangeReader};
use crate::model::part_paths;

const CHUNK: usize = 1 << 20;

/// The parts of a model in local files.
#[derive(Debug)]
pub(super) struct FileReader {
    parts: Vec<PathBuf>,
}

impl FileReader {
    pub(super) fn new(path: &Path) -> FileReader {
        FileReader {
            parts: part_paths(path),
        }
    }
}

#[async_trait]
impl RangeReader for FileReader {
    fn parts(&self) -> Vec<String> {
        self.parts.iter().map(|path| path.display().to_string()).collect()
    }

    async fn open(&self, part: usize, range: Range<u64>) -> Result<Box<dyn RangeBody + '_>, Error> {
        let path = &self.parts[part];
        let io = |source| Error::Io {
            path: path.clone(),
            source,
        };
        // Before it is opened: opening a pipe waits for whoever writes into it.
        let kind = tokio::fs::metadata(path).await.map_err(io)?.file_type();
        if !kind.is_file() {
            return Err(Error::NoFile {
                path: path.clone(),
                kind: super::kind_of(kind),
            });
        }
        let mut file = File::open(path).await.map_err(io)?;
        let size = file.metadata().await.map_err(io)?.len();
        if range.start >= size {
            return Err(Error::Incomplete {
                url: path.display().to_string(),
                size,
                needed: range.end,
            });
        }
        file.seek(SeekFrom::Start(range.start)).await.map_err(io)?;
        Ok(Box::new(FileBody {
            path,
            file,
            size,
            left: range.end.min(size).saturating_sub(range.start),
        }))
    }

    fn validator(&self, _part: usize) -> Option<String> {
        None
    }

    fn revision(&self) -> String {
        String::new()
    }
}

struct FileBody<'a> {
    path: &'a Path,
    file: File,
    size: u64,
    left: u64,
}

#[async_trait]
impl RangeBody for FileBody<'_> {
    fn file_size(&self) -> u64 {
        self.size
    }

    async fn chunk(&mut self) -> Result<Option<Bytes>, Error> {
        if self.left == 0 {
            return Ok(None);
        }
        let mut bytes = BytesMut::zeroed(self.left.min(CHUNK as u64) as usize);
        let io = |source| Error::Io {
            path: self.path.to_owned(),
            source,
        };
        self.file.read_exact(&mut bytes).await.map_err(io)?;
        self.left -= bytes.len() as u64;
        Ok(Some(bytes.freeze()))
    }
}
