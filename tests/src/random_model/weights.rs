//! Random values, each tensor's drawn from a generator of its own.

/// What a tensor is for, which decides how its values are spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Values {
    /// weights of a matrix: variance 1 / row length, so that activations keep their size
    Matrix,
    /// a norm's scale: near 1
    Norm,
    /// a bias, a router or a convolution: variance 1/4, always stored as `F32`
    Plain,
    /// `ssm_a`: negative decay rates
    Decay,
    /// long-context rope factors: from 1 upwards
    RopeFactors,
}

impl Values {
    /// `shape` in GGUF order: row length first.
    pub(super) fn draw(self, seed: u64, name: &str, shape: &[u64]) -> Vec<f32> {
        let mut random = Random::for_tensor(seed, name);
        let row = shape[0] as f32;
        let count = shape.iter().product::<u64>() as usize;
        let mut value = |index: usize| match self {
            Self::Matrix => random.unit_variance() / row.sqrt(),
            Self::Norm => 1.0 + 0.1 * random.unit_variance(),
            Self::Plain => 0.5 * random.unit_variance(),
            Self::Decay => -(-1.25 + random.unit_variance()).exp(),
            Self::RopeFactors => 1.0 + index as f32 / 8.0,
        };
        (0..count).map(&mut value).collect()
    }
}

/// Steele, Lea and Flood's `SplitMix64` (OOPSLA 2014): small, and the same on every machine.
struct Random(u64);

impl Random {
    /// FNV-1a of the name, mixed with the seed.
    fn for_tensor(seed: u64, name: &str) -> Self {
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| {
            (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)
        });
        Self(hash ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in ±√3: mean 0, variance 1.
    fn unit_variance(&mut self) -> f32 {
        let unit = (self.next() >> 40) as f32 / (1u32 << 24) as f32;
        (2.0 * unit - 1.0) * 3f32.sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_matrix_keeps_the_size_of_what_it_multiplies() {
        let values = Values::Matrix.draw(1, "blk.0.attn_q.weight", &[256, 256]);
        let mean = values.iter().sum::<f32>() / values.len() as f32;
        let variance = values.iter().map(|v| v * v).sum::<f32>() / values.len() as f32;
        assert!(mean.abs() < 1e-3, "mean {mean}");
        assert!((variance * 256.0 - 1.0).abs() < 0.05, "variance {variance}");
    }

    #[test]
    fn seed_and_name_alone_decide_the_values() {
        let draw = |seed, name| Values::Norm.draw(seed, name, &[4]);
        assert_eq!(draw(1, "a"), draw(1, "a"));
        assert_ne!(draw(1, "a"), draw(1, "b"));
        assert_ne!(draw(1, "a"), draw(2, "a"));
    }
}
