//! The hole at the end of a mapped window, a padding layer or an embedding: llama.cpp reads a file that it maps from end
//! to end, and the pages of the hole, which are never computed with, would stay in this process's memory.

use crate::table;
use std::ffi::CStr;
use std::ops::Range;
use std::path::Path;

/// The byte of the file at which the hole begins, behind which there is nothing else: the layers behind the window's
/// `layers`, or where there are none the embedding beside a head of its own.
pub(crate) fn start(file: &CStr, layers: u32) -> Option<u64> {
    let tensors = table::of(file)?;
    let first = |wanted: &dyn Fn(&str) -> bool| {
        let wanted = tensors.iter().filter(|(name, _)| wanted(name));
        wanted.map(|(_, start)| *start).min()
    };
    let padding = first(&|name| block(name).is_some_and(|block| block >= layers));
    padding.or_else(|| first(&|name| name == "token_embd.weight"))
}

/// `N` of `blk.N.…`
fn block(name: &str) -> Option<u32> {
    let rest = name.strip_prefix("blk.")?;
    rest.split_once('.')?.0.parse().ok()
}

/// Hands the pages of `bytes` of the file back, wherever this process has the file mapped. They hold what the file
/// holds, so a read would bring them back. Where the system doesn't say what is mapped, nothing happens.
pub(crate) fn release(path: &Path, bytes: &Range<u64>) {
    let (Ok(path), Ok(maps)) = (path.canonicalize(), std::fs::read_to_string("/proc/self/maps")) else {
        return;
    };
    let Some(path) = path.to_str() else { return };
    for mapping in maps.lines().filter_map(|line| Mapping::of(line, path)) {
        if let Some(pages) = mapping.pages(bytes) {
            forget(&pages);
        }
    }
}

/// Whole pages on every system that llama.cpp maps files on.
const PAGE: u64 = 64 << 10;

/// Where a part of a file lies in memory.
#[derive(Debug, PartialEq, Eq)]
struct Mapping {
    memory: Range<u64>,
    /// byte of the file that lies at its start
    offset: u64,
}

impl Mapping {
    /// A line of `/proc/self/maps` (proc(5)), if the file lies there as it is: shared, and nobody writes.
    fn of(line: &str, path: &str) -> Option<Mapping> {
        let (range, rest) = line.split_once(' ')?;
        let (rights, rest) = rest.split_once(' ')?;
        let (offset, rest) = rest.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        // device and inode, then blanks up to the name
        let name = rest.splitn(3, ' ').nth(2)?.trim_start();
        let number = |text| u64::from_str_radix(text, 16).ok();
        (name == path && rights == "r--s").then_some(Mapping {
            memory: number(start)?..number(end)?,
            offset: number(offset)?,
        })
    }

    /// The pages that hold nothing but `bytes` of the file.
    fn pages(&self, bytes: &Range<u64>) -> Option<Range<u64>> {
        let at = |byte: u64| {
            let from_start = byte.saturating_sub(self.offset);
            self.memory.start.saturating_add(from_start).min(self.memory.end)
        };
        let (start, end) = (at(bytes.start).next_multiple_of(PAGE), at(bytes.end) / PAGE * PAGE);
        (start < end).then_some(start..end)
    }
}

#[cfg(target_os = "linux")]
fn forget(pages: &Range<u64>) {
    let (address, length) = (
        pages.start as usize as *mut libc::c_void,
        (pages.end - pages.start) as usize,
    );
    // SAFETY: the pages are those of a shared mapping that can't be written to: they hold the file's own bytes, and what
    // is dropped reads as before. llama.cpp made the mapping for a model that its caller holds, so it is still there.
    unsafe { libc::madvise(address, length, libc::MADV_DONTNEED) };
}

#[cfg(not(target_os = "linux"))]
fn forget(_: &Range<u64>) {}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "7f0000010000-7f0000210000 r--s 00010000 fe:00 123  \t /a folder/window.gguf";

    #[test]
    fn a_files_mapping_is_found_by_its_name() {
        let found = Mapping::of(LINE, "/a folder/window.gguf").unwrap();
        assert_eq!(found.memory, 0x7f00_0001_0000..0x7f00_0021_0000);
        assert_eq!(found.offset, 0x1_0000);
        assert_eq!(Mapping::of(LINE, "/a folder/other.gguf"), None);
        for rights in ["rw-s", "r--p"] {
            assert_eq!(
                Mapping::of(&LINE.replace("r--s", rights), "/a folder/window.gguf"),
                None
            );
        }
        assert_eq!(Mapping::of("7ffd1000-7ffd2000 rw-p 00000000 00:00 0", ""), None);
    }

    #[test]
    fn tensors_tell_their_block() {
        assert_eq!(block("blk.12.attn_q.weight"), Some(12));
        for other in ["token_embd.weight", "blk.x.weight", "blk.1"] {
            assert_eq!(block(other), None, "{other}");
        }
    }

    #[test]
    fn only_whole_pages_of_the_hole_are_meant() {
        let mapping = Mapping::of(LINE, "/a folder/window.gguf").unwrap();
        let pages = |bytes| mapping.pages(&bytes);
        assert_eq!(pages(0x2_0001..0x6_ffff), Some(0x7f00_0003_0000..0x7f00_0006_0000));
        assert_eq!(pages(0x2_0001..0x3_ffff), None);
        assert_eq!(pages(0x1f_0000..u64::MAX), Some(0x7f00_001f_0000..0x7f00_0021_0000));
        assert_eq!(pages(0..0x1_0000), None, "before the mapping");
    }
}
