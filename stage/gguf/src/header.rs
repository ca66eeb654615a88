//! Writes the head of a GGUF file (version 3): metadata and tensor table.

use crate::tensor::TensorType;

/// Metadata entries in order, as bytes.
#[derive(Debug, Default)]
pub(crate) struct Header {
    entries: u64,
    bytes: Vec<u8>,
}

impl Header {
    /// An entry as it stood in another file.
    pub(crate) fn raw(&mut self, entry: &[u8]) {
        self.entries += 1;
        self.bytes.extend_from_slice(entry);
    }

    /// An entry of a value type by its number in the specification.
    pub(crate) fn put(&mut self, key: &str, ty: u32, value: &[u8]) {
        self.entries += 1;
        self.string(key);
        self.bytes.extend_from_slice(&ty.to_le_bytes());
        self.bytes.extend_from_slice(value);
    }

    pub(crate) fn u32(&mut self, key: &str, value: u32) {
        self.put(key, 4, &value.to_le_bytes());
    }

    pub(crate) fn text(&mut self, key: &str, value: &str) {
        let mut bytes = (value.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(value.as_bytes());
        self.put(key, 8, &bytes);
    }

    /// An array of elements of type `element`, given as bytes.
    pub(crate) fn array<'a>(&mut self, key: &str, element: u32, values: impl ExactSizeIterator<Item = &'a [u8]>) {
        let mut bytes = element.to_le_bytes().to_vec();
        bytes.extend_from_slice(&(values.len() as u64).to_le_bytes());
        values.for_each(|value| bytes.extend_from_slice(value));
        self.put(key, 9, &bytes);
    }

    pub(crate) fn flags(&mut self, key: &str, flags: &[bool]) {
        self.array(
            key,
            7,
            flags.iter().map(|flag| if *flag { &[1u8][..] } else { &[0u8][..] }),
        );
    }

    fn string(&mut self, text: &str) {
        self.bytes.extend_from_slice(&(text.len() as u64).to_le_bytes());
        self.bytes.extend_from_slice(text.as_bytes());
    }

    /// The head of a file with these tensors (name, dimensions, type, offset), padded to where its data start.
    pub(crate) fn finish<'a>(
        mut self,
        tensors: impl ExactSizeIterator<Item = (&'a str, &'a [u64], TensorType, u64)>,
        alignment: u64,
    ) -> Vec<u8> {
        let mut head = b"GGUF".to_vec();
        head.extend_from_slice(&3u32.to_le_bytes());
        head.extend_from_slice(&(tensors.len() as u64).to_le_bytes());
        head.extend_from_slice(&self.entries.to_le_bytes());
        for (name, dims, ty, offset) in tensors {
            self.string(name);
            self.bytes.extend_from_slice(&(dims.len() as u32).to_le_bytes());
            for dim in dims {
                self.bytes.extend_from_slice(&dim.to_le_bytes());
            }
            self.bytes.extend_from_slice(&ty.0.to_le_bytes());
            self.bytes.extend_from_slice(&offset.to_le_bytes());
        }
        head.append(&mut self.bytes);
        head.resize(head.len().next_multiple_of(alignment as usize), 0);
        head
    }
}
