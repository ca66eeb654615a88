//! The sampler's only source of chance.

/// A number in [0, 1) that depends on seed and position alone: output number `position` of `SplitMix64` (Steele, Lea and
/// Flood, 2014) started from the mixed seed, its upper 53 bits as a fraction. Mixing the seed first keeps neighbouring
/// seeds from giving each other's numbers one position later.
pub fn uniform(seed: u64, position: u32) -> f64 {
    const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;
    let start = mix(seed.wrapping_add(GAMMA));
    let bits = mix(start.wrapping_add(GAMMA.wrapping_mul(u64::from(position) + 1)));
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ring members of different versions must draw alike: these values never change.
    #[test]
    fn the_numbers_are_fixed() {
        let draw = |seed, position| (uniform(seed, position) * 1e9) as u64;
        assert_eq!(
            [draw(0, 0), draw(0, 1), draw(1, 0), draw(u64::MAX, u32::MAX)],
            [652_448_486, 701_212_109, 368_189_515, 774_697_827]
        );
    }

    #[test]
    fn numbers_spread_evenly_over_positions_and_over_seeds() {
        for by_seed in [false, true] {
            let mut buckets = [0_u32; 16];
            for i in 0..16_000_u32 {
                let number = if by_seed {
                    uniform(u64::from(i), 7)
                } else {
                    uniform(7, i)
                };
                buckets[(number * 16.0) as usize] += 1;
            }
            // 1000 expected in each, standard deviation 31
            assert!(buckets.iter().all(|&count| (850..1150).contains(&count)), "{buckets:?}");
        }
    }
}
