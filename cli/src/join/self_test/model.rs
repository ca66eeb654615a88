//! The self-test's model: one layer of a llama with weights of a generator, the same bytes every time, as a window that the
//! engine loads like any other.
//!
//! Its matrices are larger together than most processors' caches, so that reading them takes as long as a real window's
//! take, byte for byte. All have one scale, a power of two, which 8-bit blocks hold without rounding: file and arithmetic
//! hold the very same numbers.

/// Bytes in the file that tensors begin at multiples of.
const ALIGNMENT: usize = 32;
/// Weights of a block of `Q8_0`, which share a scale.
const BLOCK: usize = 32;
/// ggml's numbers of the two tensor types.
const F32: u32 = 0;
const Q8_0: u32 = 8;
/// 2⁻¹² as a 16-bit float, and as a 32-bit one.
const SCALE_BITS: u16 = 0x0c00;
const SCALE: f32 = 1.0 / 4096.0;

/// Sizes of a layer. The heads' widths add up to its own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) heads: usize,
    /// heads of keys and values, which several heads of queries share
    pub(super) shared: usize,
    /// width of a head
    pub(super) head: usize,
    /// width of the feed-forward part
    pub(super) inner: usize,
}

impl Shape {
    /// What devices are tested with: 31 MB.
    pub(super) const FULL: Shape = Shape {
        heads: 32,
        shared: 8,
        head: 64,
        inner: 3072,
    };

    /// Width of a hidden state.
    pub(super) fn width(self) -> usize {
        self.heads * self.head
    }
}

/// A matrix of 8-bit weights, a row for each value that comes out.
#[derive(Clone, Debug)]
pub(super) struct Matrix {
    pub(super) columns: usize,
    pub(super) weights: Vec<i8>,
}

/// One layer.
#[derive(Clone, Debug)]
pub(super) struct Layer {
    pub(super) shape: Shape,
    pub(super) attention_norm: Vec<f32>,
    pub(super) queries: Matrix,
    pub(super) keys: Matrix,
    pub(super) values: Matrix,
    pub(super) attended: Matrix,
    pub(super) inner_norm: Vec<f32>,
    pub(super) gate: Matrix,
    pub(super) up: Matrix,
    pub(super) down: Matrix,
}

/// Norms add this to what they divide by.
pub(super) const EPSILON: f32 = 1e-6;
/// Rotation of the slowest pair of a head: this many positions for one radian, nearly.
pub(super) const ROPE_BASE: f32 = 10_000.0;

impl Matrix {
    fn random(random: &mut Random, rows: usize, columns: usize) -> Matrix {
        let mut weights = Vec::with_capacity(rows * columns);
        while weights.len() < rows * columns {
            let bytes = random.next().to_le_bytes();
            weights.extend(bytes.map(|byte| i8::from_le_bytes([byte]).max(-127)));
        }
        Matrix { columns, weights }
    }

    /// The matrix times a vector.
    pub(super) fn times(&self, vector: &[f32]) -> Vec<f32> {
        let dot = |row: &[i8]| {
            let products = row.iter().zip(vector);
            products.map(|(weight, value)| f32::from(*weight) * value).sum::<f32>()
        };
        self.weights
            .chunks_exact(self.columns)
            .map(|row| dot(row) * SCALE)
            .collect()
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.weights.len() / BLOCK * (BLOCK + 2));
        for block in self.weights.chunks_exact(BLOCK) {
            bytes.extend_from_slice(&SCALE_BITS.to_le_bytes());
            bytes.extend(block.iter().map(|weight| weight.to_le_bytes()[0]));
        }
        bytes
    }
}

impl Layer {
    pub(super) fn new(shape: Shape) -> Layer {
        let mut random = Random(1);
        let (width, shared) = (shape.width(), shape.shared * shape.head);
        let norm = |random: &mut Random| (0..width).map(|_| 1.0 + random.uniform() / 4.0).collect();
        let attention_norm = norm(&mut random);
        let inner_norm = norm(&mut random);
        let mut matrix = |rows, columns| Matrix::random(&mut random, rows, columns);
        Layer {
            shape,
            attention_norm,
            queries: matrix(width, width),
            keys: matrix(shared, width),
            values: matrix(shared, width),
            attended: matrix(width, width),
            inner_norm,
            gate: matrix(shape.inner, width),
            up: matrix(shape.inner, width),
            down: matrix(width, shape.inner),
        }
    }

    /// Hidden states to test it with, one after the other.
    pub(super) fn rows(&self, count: usize) -> Vec<f32> {
        let mut random = Random(2);
        (0..count * self.shape.width())
            .map(|_| 2.0 * random.uniform())
            .collect()
    }

    /// Bytes of its matrices, all of which every token needs.
    pub(super) fn weight_bytes(&self) -> u64 {
        let matrices = self.matrices();
        let weights: usize = matrices.iter().map(|(_, matrix)| matrix.weights.len()).sum();
        (weights / BLOCK * (BLOCK + 2)) as u64
    }

    fn matrices(&self) -> [(&'static str, &Matrix); 7] {
        [
            ("attn_q", &self.queries),
            ("attn_k", &self.keys),
            ("attn_v", &self.values),
            ("attn_output", &self.attended),
            ("ffn_gate", &self.gate),
            ("ffn_up", &self.up),
            ("ffn_down", &self.down),
        ]
    }

    /// The layer as a GGUF file.
    pub(super) fn file(&self) -> Vec<u8> {
        let width = self.shape.width();
        let floats = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
        let vector = |name: &str, values: &[f32]| Tensor {
            name: name.to_owned(),
            dims: vec![width as u64],
            ty: F32,
            bytes: floats(values),
        };
        let mut tensors = vec![
            Tensor {
                // llama.cpp asks every model for tokens
                dims: vec![width as u64, 1],
                ..vector("token_embd.weight", &vec![0.0; width])
            },
            vector("output_norm.weight", &vec![1.0; width]),
            vector("blk.0.attn_norm.weight", &self.attention_norm),
            vector("blk.0.ffn_norm.weight", &self.inner_norm),
        ];
        tensors.extend(self.matrices().map(|(name, matrix)| Tensor {
            name: format!("blk.0.{name}.weight"),
            dims: vec![matrix.columns as u64, (matrix.weights.len() / matrix.columns) as u64],
            ty: Q8_0,
            bytes: matrix.bytes(),
        }));
        file(&self.metadata(), &tensors)
    }

    fn metadata(&self) -> Vec<(&'static str, Entry)> {
        let Shape {
            heads,
            shared,
            head,
            inner,
        } = self.shape;
        let number = |value: usize| Entry::U32(value as u32);
        vec![
            ("general.architecture", Entry::Text("llama")),
            ("llama.block_count", number(1)),
            ("llama.context_length", number(4096)),
            ("llama.embedding_length", number(self.shape.width())),
            ("llama.feed_forward_length", number(inner)),
            ("llama.attention.head_count", number(heads)),
            ("llama.attention.head_count_kv", number(shared)),
            ("llama.attention.layer_norm_rms_epsilon", Entry::F32(EPSILON)),
            ("llama.rope.dimension_count", number(head)),
            ("llama.rope.freq_base", Entry::F32(ROPE_BASE)),
            ("llama.vocab_size", number(1)),
            ("tokenizer.ggml.model", Entry::Text("no_vocab")),
        ]
    }
}

/// A value of the file's metadata.
enum Entry {
    U32(u32),
    F32(f32),
    Text(&'static str),
}

struct Tensor {
    name: String,
    /// length of a row first
    dims: Vec<u64>,
    ty: u32,
    bytes: Vec<u8>,
}

fn file(metadata: &[(&str, Entry)], tensors: &[Tensor]) -> Vec<u8> {
    fn text(out: &mut Vec<u8>, text: &str) {
        out.extend_from_slice(&(text.len() as u64).to_le_bytes());
        out.extend_from_slice(text.as_bytes());
    }
    let data: usize = tensors.iter().map(|tensor| tensor.bytes.len() + ALIGNMENT).sum();
    let mut out = Vec::with_capacity(data + 4096);
    out.extend_from_slice(b"GGUF");
    out.extend_from_slice(&3_u32.to_le_bytes());
    out.extend_from_slice(&(tensors.len() as u64).to_le_bytes());
    out.extend_from_slice(&(metadata.len() as u64).to_le_bytes());
    for (key, entry) in metadata {
        text(&mut out, key);
        match entry {
            Entry::U32(value) => {
                out.extend_from_slice(&4_u32.to_le_bytes());
                out.extend_from_slice(&value.to_le_bytes());
            }
            Entry::F32(value) => {
                out.extend_from_slice(&6_u32.to_le_bytes());
                out.extend_from_slice(&value.to_le_bytes());
            }
            Entry::Text(value) => {
                out.extend_from_slice(&8_u32.to_le_bytes());
                text(&mut out, value);
            }
        }
    }
    let mut offset = 0;
    for tensor in tensors {
        text(&mut out, &tensor.name);
        out.extend_from_slice(&(tensor.dims.len() as u32).to_le_bytes());
        for dim in &tensor.dims {
            out.extend_from_slice(&dim.to_le_bytes());
        }
        out.extend_from_slice(&tensor.ty.to_le_bytes());
        out.extend_from_slice(&(offset as u64).to_le_bytes());
        offset = (offset + tensor.bytes.len()).next_multiple_of(ALIGNMENT);
    }
    for tensor in tensors {
        out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
        out.extend_from_slice(&tensor.bytes);
    }
    out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
    out
}

/// `SplitMix64` (Steele, Lea and Flood, OOPSLA 2014): small, and the same on every device.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Between −1 and 1.
    fn uniform(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1_u32 << 23) as f32 - 1.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_is_the_same_every_time_and_as_large_as_it_says() {
        let shape = Shape {
            heads: 2,
            shared: 1,
            head: 32,
            inner: 96,
        };
        let (one, other) = (Layer::new(shape), Layer::new(shape));
        assert_eq!(one.file(), other.file());
        // 64×64 twice, 64×32 twice, 64×96 three times: 30,720 weights
        assert_eq!(one.weight_bytes(), 30_720 / 32 * 34);
        let floats = 4 * 64 * 4;
        let rest = one.file().len() as u64 - one.weight_bytes() - floats;
        assert!((500..2500).contains(&rest), "the head takes {rest} bytes");
        assert_eq!(one.file().len() % ALIGNMENT, 0);
        assert_eq!(Layer::new(Shape::FULL).weight_bytes(), 31_195_136);
    }

    #[test]
    fn a_scale_of_a_block_is_exact() {
        let matrix = Matrix {
            columns: 32,
            weights: (0..32).collect(),
        };
        assert_eq!(matrix.bytes()[..4], [0x00, 0x0c, 0, 1]);
        let mut vector = vec![0.0; 32];
        vector[16] = 2.0;
        assert_eq!(matrix.times(&vector), [32.0 / 4096.0]);
    }
}
