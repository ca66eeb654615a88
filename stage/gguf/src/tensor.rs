//! Tensors as a GGUF file lists them, and how many bytes each type takes.

use std::fmt;

/// A tensor type by its number in ggml; numbers that this version doesn't know are kept.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TensorType(pub u32);

/// Name, weights in a block and bytes of a block (`type_traits` in ggml.c and ggml-common.h of llama-cpp-sys-2 0.1.160).
const LAYOUTS: [(u32, &str, u64, u64); 35] = [
    (0, "F32", 1, 4),
    (1, "F16", 1, 2),
    (2, "Q4_0", 32, 18),
    (3, "Q4_1", 32, 20),
    (6, "Q5_0", 32, 22),
    (7, "Q5_1", 32, 24),
    (8, "Q8_0", 32, 34),
    (9, "Q8_1", 32, 36),
    (10, "Q2_K", 256, 84),
    (11, "Q3_K", 256, 110),
    (12, "Q4_K", 256, 144),
    (13, "Q5_K", 256, 176),
    (14, "Q6_K", 256, 210),
    (15, "Q8_K", 256, 292),
    (16, "IQ2_XXS", 256, 66),
    (17, "IQ2_XS", 256, 74),
    (18, "IQ3_XXS", 256, 98),
    (19, "IQ1_S", 256, 50),
    (20, "IQ4_NL", 32, 18),
    (21, "IQ3_S", 256, 110),
    (22, "IQ2_S", 256, 82),
    (23, "IQ4_XS", 256, 136),
    (24, "I8", 1, 1),
    (25, "I16", 1, 2),
    (26, "I32", 1, 4),
    (27, "I64", 1, 8),
    (28, "F64", 1, 8),
    (29, "IQ1_M", 256, 56),
    (30, "BF16", 1, 2),
    (34, "TQ1_0", 256, 54),
    (35, "TQ2_0", 256, 66),
    (39, "MXFP4", 32, 17),
    (40, "NVFP4", 64, 36),
    (41, "Q1_0", 128, 18),
    (42, "Q2_0", 64, 18),
];

impl TensorType {
    /// 32-bit floats
    pub const F32: TensorType = TensorType(0);
    /// 16-bit floats
    pub const F16: TensorType = TensorType(1);
    /// bfloat16
    pub const BF16: TensorType = TensorType(30);
    /// the type of padding layers: 50 bytes for 256 weights
    pub const IQ1_S: TensorType = TensorType(19);
    /// 18 bytes for 64 weights
    pub const Q2_0: TensorType = TensorType(42);
    /// 17 bytes for 32 weights
    pub const MXFP4: TensorType = TensorType(39);

    fn layout(self) -> Option<(&'static str, u64, u64)> {
        LAYOUTS
            .iter()
            .find(|layout| layout.0 == self.0)
            .map(|layout| (layout.1, layout.2, layout.3))
    }

    /// ggml's name, where the number is known.
    pub fn name(self) -> Option<&'static str> {
        self.layout().map(|layout| layout.0)
    }

    /// Whether llama.cpp multiplies with matrices of the type on a CPU (`vec_dot` of `type_traits_cpu` in ggml-cpu.c). Of
    /// a number that isn't known here nothing is said.
    pub(crate) fn is_of_weights(self) -> bool {
        !matches!(
            self.name(),
            Some("Q8_1" | "Q8_K" | "I8" | "I16" | "I32" | "I64" | "F64")
        )
    }

    /// Several weights share a block.
    pub fn is_quantised(self) -> bool {
        self.layout().is_some_and(|layout| layout.1 > 1)
    }

    /// Bytes of a tensor of these dimensions (the first is the row length).
    /// None when the type is unknown, a row isn't whole blocks, or the product doesn't fit.
    pub fn bytes(self, dims: &[u64]) -> Option<u64> {
        let (_, weights, bytes) = self.layout()?;
        let row = dims.first().copied().unwrap_or(1);
        if row % weights != 0 {
            return None;
        }
        dims.iter()
            .skip(1)
            .try_fold((row / weights).checked_mul(bytes)?, |total, dim| {
                total.checked_mul(*dim)
            })
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "unknown type {}", self.0),
        }
    }
}

impl fmt::Debug for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A line of the tensor table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// name, shorter than 64 bytes
    pub name: String,
    /// at most four dimensions, row length first
    pub dims: Vec<u64>,
    /// type of the weights
    pub ty: TensorType,
    /// bytes from the start of the file's data section
    pub offset: u64,
}

/// The layer that a tensor belongs to: `N` of `blk.N.…`, and the rest of the name with its dot. Other spellings of a number
/// are none: llama.cpp would not find such a tensor.
pub fn layer_of(name: &str) -> Option<(u32, &str)> {
    let rest = name.strip_prefix("blk.")?;
    let dot = rest.find('.')?;
    let digits = &rest[..dot];
    let is_plain = digits == "0" || !digits.starts_with('0');
    (is_plain && !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()))
        .then(|| digits.parse().ok())
        .flatten()
        .map(|layer| (layer, &rest[dot..]))
}
