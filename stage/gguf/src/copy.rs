//! Writes a mini-GGUF from a model that lies in local files.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::io::{Read, copy};
use std::path::Path;

use crate::model::part_paths;
use crate::window::{MiniGguf, Source};

/// Writes `mini` to `out`; `model` is the path of any part of the model that it was cut from. Holes stay holes.
pub fn write_from_file(model: &Path, mini: &MiniGguf, out: &Path) -> io::Result<()> {
    let mut parts = part_paths(model)
        .iter()
        .map(File::open)
        .collect::<io::Result<Vec<File>>>()?;
    let mut file = File::create(out)?;
    file.write_all(&mini.header)?;
    for tensor in &mini.tensors {
        file.seek(SeekFrom::Start(tensor.start))?;
        match &tensor.source {
            Source::Hole { .. } => {}
            Source::Bytes(bytes) => file.write_all(bytes)?,
            Source::Range { part, offset, len } => {
                let part = &mut parts[*part];
                part.seek(SeekFrom::Start(*offset))?;
                if copy(&mut part.take(*len), &mut file)? != *len {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
        }
    }
    file.set_len(mini.len)?;
    file.sync_all()
}
