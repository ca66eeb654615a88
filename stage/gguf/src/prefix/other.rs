//! Files that often lie where a GGUF should be, told by their first bytes.

/// What the file seems to be, in words with what helps.
pub(super) fn looks_like(bytes: &[u8]) -> Option<&'static str> {
    const STARTS: [(&[u8], &str); 14] = [
        (
            b"version https://git-lfs",
            "a Git LFS pointer, which stands for the file: fetch the file itself (`git lfs pull`)",
        ),
        (
            b"PK\x03\x04",
            "a zip archive or a PyTorch checkpoint: convert it to GGUF",
        ),
        (
            b"\x80\x02",
            "a Python pickle (a PyTorch checkpoint): convert it to GGUF",
        ),
        (b"\x1f\x8b", "a gzip archive: unpack it"),
        (b"\x28\xb5\x2f\xfd", "a zstd archive: unpack it"),
        (b"\xfd7zXZ", "an xz archive: unpack it"),
        (b"BZh", "a bzip2 archive: unpack it"),
        (b"7z\xbc\xaf", "a 7z archive: unpack it"),
        (b"\x89HDF", "an HDF5 file (Keras): convert it to GGUF"),
        (b"lmgg", "a GGML file, the format before GGUF: convert it"),
        (b"fmgg", "a GGML file, the format before GGUF: convert it"),
        (b"tjgg", "a GGML file, the format before GGUF: convert it"),
        (b"ggla", "a LoRA adapter of the format before GGUF"),
        (b"%PDF", "a PDF"),
    ];
    if let Some((_, what)) = STARTS.iter().find(|(start, _)| bytes.starts_with(start)) {
        return Some(what);
    }
    // the length of a JSON header, and the header
    if bytes.get(4..9) == Some(b"\0\0\0\0{") {
        return Some("a safetensors file: convert it to GGUF, or point to a GGUF of the model");
    }
    let text = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes).trim_ascii_start();
    match text.first() {
        Some(b'<') if is_html(text) => Some("an HTML page (a login or an error page?)"),
        Some(b'<') => Some("an XML text (an error of the storage?)"),
        Some(b'{' | b'[') => Some("a JSON text (an error of the server?)"),
        _ => None,
    }
}

/// No XML; of little there is to see, the usual is assumed.
fn is_html(text: &[u8]) -> bool {
    !text.starts_with(b"<?xml") && !text.starts_with(b"<Error")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_often_lies_in_place_of_a_model_is_told() {
        for (bytes, what) in [
            (&b"<!DOCTYPE html><title>Sign in"[..], "HTML page"),
            (b"\n  <html>", "HTML page"),
            (b"<?xml version=\"1.0\"?><Error>", "XML"),
            (b"{\"error\":\"not found\"}", "JSON"),
            (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "Git LFS"),
            (b"\x40\x1f\0\0\0\0\0\0{\"__metadata__\"", "safetensors"),
            (b"PK\x03\x04\x14\0", "zip"),
            (b"tjgg\x03\0\0\0", "GGML"),
        ] {
            let told = looks_like(bytes).unwrap();
            assert!(told.contains(what), "{told}");
        }
        assert_eq!(looks_like(b"MZ\x90\0"), None);
    }
}
