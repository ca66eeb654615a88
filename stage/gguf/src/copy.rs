//! Writes a mini-GGUF from a model that lies in local files, or as an outline without weights.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::model::part_paths;
use crate::pieces::{made_up, pieces};
use crate::window::MiniGguf;

/// Writes `mini` to `out` at once; `model` is the path of any part of the model it was cut from.
pub fn write_from_file(model: &Path, mini: &MiniGguf, out: &Path) -> io::Result<()> {
    let parts = part_paths(model)
        .iter()
        .map(File::open)
        .collect::<io::Result<Vec<File>>>()?;
    let file = File::create(out)?;
    for (start, bytes) in made_up(mini) {
        file.write_all_at(bytes, start)?;
    }
    for piece in pieces(mini) {
        let mut bytes = vec![0; piece.len as usize];
        parts[piece.part].read_exact_at(&mut bytes, piece.offset)?;
        file.write_all_at(&bytes, piece.start)?;
    }
    file.set_len(mini.len)?;
    file.sync_all()
}

/// Writes `mini` into `out`, an empty file, with a hole in place of every weight: as long as the whole file, it takes the
/// room of its head.
pub fn write_outline(mini: &MiniGguf, out: &File) -> io::Result<()> {
    out.write_all_at(&mini.header, 0)?;
    out.set_len(mini.len)
}
