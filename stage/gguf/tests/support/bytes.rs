//! GGUF by hand: fields one after the other, right or wrong.

/// Bytes of a file that is being written.
#[derive(Clone, Debug)]
pub struct Bytes(pub Vec<u8>);

impl Bytes {
    /// `GGUF`, version 3 and the two counts.
    pub fn head(tensors: u64, entries: u64) -> Bytes {
        Bytes(b"GGUF".to_vec()).u32(3).u64(tensors).u64(entries)
    }

    pub fn u32(mut self, value: u32) -> Bytes {
        self.0.extend(value.to_le_bytes());
        self
    }

    pub fn u64(mut self, value: u64) -> Bytes {
        self.0.extend(value.to_le_bytes());
        self
    }

    pub fn text(mut self, text: &str) -> Bytes {
        self = self.u64(text.len() as u64);
        self.0.extend(text.as_bytes());
        self
    }

    /// A metadata entry of type string.
    pub fn entry(self, key: &str, value: &str) -> Bytes {
        self.text(key).u32(8).text(value)
    }

    /// A line of the tensor table of type F32.
    pub fn tensor(self, name: &str, dims: &[u64], offset: u64) -> Bytes {
        let bytes = self.text(name).u32(dims.len() as u32);
        dims.iter().fold(bytes, |bytes, dim| bytes.u64(*dim)).u32(0).u64(offset)
    }
}
