//! Checks files that are there already, without their source.

use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::journal::records;
use super::{Error, MiniGguf};
use crate::metadata::Value;
use crate::model::ModelIdentity;
use crate::prefix::{Prefix, PrefixParser, Progress};
use crate::size::Bytes;
use crate::window::{KEY_END, KEY_IDENTITY, KEY_START};

/// Checks that `path` is a whole file of the model with this identity: the window of these layers, or the vocabulary
/// file where there are none. The bytes are compared with the hashes in its journal; without one nothing is believed.
///
/// Blocks while it reads the file. Nothing is asked of the network, so a stage whose source is away can start.
pub fn verify(path: &Path, identity: ModelIdentity, layers: Option<Range<u32>>) -> Result<(), Error> {
    let unusable = |problem: String| {
        Err(Error::NotUsable {
            path: path.to_owned(),
            problem,
        })
    };
    let io = |source| Error::Io {
        path: path.to_owned(),
        source,
    };
    let file = File::open(path).map_err(io)?;
    let len = file.metadata().map_err(io)?.len();
    let Some(prefix) = read_prefix(path, &file)? else {
        return unusable("it ends within its prefix".into());
    };
    let found = prefix.metadata.str(KEY_IDENTITY);
    if found != Some(identity.to_string().as_str()) {
        return unusable(format!(
            "it is of model {} and not of {identity}",
            found.unwrap_or("unknown")
        ));
    }
    let number = |key| prefix.metadata.get(key).and_then(Value::as_u32);
    let window = number(KEY_START).zip(number(KEY_END)).map(|(start, end)| start..end);
    if window != layers {
        let held = |layers: Option<Range<u32>>| match layers {
            Some(Range { start, end }) => format!("layers {start}..{end}"),
            None => "the vocabulary".into(),
        };
        return unusable(format!("it holds {} and not {}", held(window), held(layers)));
    }
    let last = prefix.tensors.iter().map(|tensor| {
        let bytes = tensor.ty.bytes(&tensor.dims).unwrap_or(0);
        (prefix.data_offset + tensor.offset + bytes).next_multiple_of(prefix.alignment)
    });
    let needed = last.max().unwrap_or(prefix.data_offset);
    if len != needed {
        return unusable(format!("it has {} and should have {}", Bytes(len), Bytes(needed)));
    }
    let records = records(path);
    if records.is_empty() {
        return unusable("the hashes of its bytes are not beside it".into());
    }
    match records.iter().find(|record| !record.holds(&file)) {
        Some(record) => unusable(format!(
            "bytes {}..{} are damaged",
            record.start,
            record.start + record.len
        )),
        None => Ok(()),
    }
}

/// `target` is `mini`, whole and undamaged as far as its journal can tell.
pub(super) fn is_whole(target: &Path, mini: &MiniGguf) -> bool {
    let Ok(file) = File::open(target) else { return false };
    let records = records(target);
    let mut header = vec![0; mini.header.len()];
    file.metadata().is_ok_and(|metadata| metadata.len() == mini.len)
        && file.read_exact_at(&mut header, 0).is_ok()
        && header == mini.header
        && !records.is_empty()
        && records.iter().all(|record| record.holds(&file))
}

fn read_prefix(path: &Path, mut file: &File) -> Result<Option<Prefix>, Error> {
    let mut parser = PrefixParser::new();
    let mut buffer = vec![0; 256 << 10];
    loop {
        let read = file.read(&mut buffer).map_err(|source| Error::Io {
            path: path.to_owned(),
            source,
        })?;
        if read == 0 {
            return Ok(None);
        }
        let progress = parser.feed(&buffer[..read]);
        match progress.map_err(|source| Error::Unreadable {
            path: path.to_owned(),
            source,
        })? {
            Progress::Done(prefix) => return Ok(Some(prefix)),
            Progress::NeedMore { .. } => {}
        }
    }
}
