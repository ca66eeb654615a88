//! Hidden states to bytes and back, in the three types that a ring may choose.
//!
//! | type | row of `n` values | error of one value `x` |
//! | --- | --- | --- |
//! | `F32` | 4·n bytes | none: every bit, NaN payloads too |
//! | `Bf16` | 2·n bytes | ≤ 2⁻⁸·\|x\| (2⁻¹³⁴ where x is subnormal), nearest even, ggml's bits; infinities stay, NaNs stay NaN (made quiet), values past the largest bf16 become infinite |
//! | `Q8_0` | 34·n/32 bytes | ≤ 0.45 % of the block's largest magnitude and 4·10⁻⁶; ggml's block of an f16 scale and 32 signed bytes |
//!
//! A `Q8_0` block that holds a NaN, an infinity or a magnitude past 65,520·127 comes back as NaNs throughout, so that
//! broken numbers stay visible. Everything is little-endian.

use half::f16;
use kvasir_plan::BoundaryType;

/// Values in a `Q8_0` block.
const BLOCK: usize = 32;
/// Bytes of a `Q8_0` block.
const BLOCK_BYTES: usize = 2 + BLOCK;

/// Why values and bytes don't fit together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BoundaryError {
    /// `Q8_0` packs 32 values a block
    #[error("{values} values a row can't travel as Q8_0, which packs {BLOCK} a block: set boundaryType to Bf16 or F32")]
    Blocks {
        /// values that don't fill whole blocks
        values: usize,
    },
    /// the two buffers mean different lengths
    #[error("{values} values take {expected} bytes as {boundary_type:?}, not {bytes}")]
    Length {
        /// type on the wire
        boundary_type: BoundaryType,
        /// values on one side
        values: usize,
        /// bytes that they take
        expected: usize,
        /// bytes on the other side
        bytes: usize,
    },
}

impl BoundaryError {
    /// Stable `PascalCase` word for metrics, events and conditions.
    pub fn reason(&self) -> &'static str {
        match self {
            BoundaryError::Blocks { .. } => "BoundaryBlocks",
            BoundaryError::Length { .. } => "BoundaryLength",
        }
    }
}

/// Bytes of one row of `embedding_length` values.
///
/// # Errors
/// [`BoundaryError::Blocks`] for `Q8_0` when the length isn't a multiple of 32.
pub fn row_bytes(boundary_type: BoundaryType, embedding_length: u32) -> Result<usize, BoundaryError> {
    bytes_of(boundary_type, embedding_length as usize)
}

fn bytes_of(boundary_type: BoundaryType, values: usize) -> Result<usize, BoundaryError> {
    match boundary_type {
        BoundaryType::F32 => Ok(values * 4),
        BoundaryType::Bf16 => Ok(values * 2),
        BoundaryType::Q8_0 if values.is_multiple_of(BLOCK) => Ok(values / BLOCK * BLOCK_BYTES),
        BoundaryType::Q8_0 => Err(BoundaryError::Blocks { values }),
    }
}

fn check(boundary_type: BoundaryType, values: usize, bytes: usize) -> Result<(), BoundaryError> {
    let expected = bytes_of(boundary_type, values)?;
    if bytes == expected {
        Ok(())
    } else {
        Err(BoundaryError::Length {
            boundary_type,
            values,
            expected,
            bytes,
        })
    }
}

/// Writes whole rows of `values` into `bytes`, which must be exactly as long as they take.
///
/// # Errors
/// [`BoundaryError`] when the lengths don't fit together; `bytes` is untouched then.
pub fn encode(boundary_type: BoundaryType, values: &[f32], bytes: &mut [u8]) -> Result<(), BoundaryError> {
    check(boundary_type, values.len(), bytes.len())?;
    match boundary_type {
        BoundaryType::F32 => {
            for (out, value) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(values) {
                *out = value.to_le_bytes();
            }
        }
        BoundaryType::Bf16 => {
            for (out, value) in bytes.as_chunks_mut::<2>().0.iter_mut().zip(values) {
                *out = bf16_bits(*value).to_le_bytes();
            }
        }
        BoundaryType::Q8_0 => {
            let blocks = bytes.as_chunks_mut::<BLOCK_BYTES>().0;
            for (out, block) in blocks.iter_mut().zip(values.as_chunks::<BLOCK>().0) {
                encode_block(block, out);
            }
        }
    }
    Ok(())
}

/// Reads whole rows out of `bytes` into `values`, which must be exactly as long as they hold.
///
/// # Errors
/// [`BoundaryError`] when the lengths don't fit together; `values` is untouched then.
pub fn decode(boundary_type: BoundaryType, bytes: &[u8], values: &mut [f32]) -> Result<(), BoundaryError> {
    check(boundary_type, values.len(), bytes.len())?;
    match boundary_type {
        BoundaryType::F32 => {
            for (value, chunk) in values.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *value = f32::from_le_bytes(*chunk);
            }
        }
        BoundaryType::Bf16 => {
            for (value, chunk) in values.iter_mut().zip(bytes.as_chunks::<2>().0) {
                *value = f32::from_bits(u32::from(u16::from_le_bytes(*chunk)) << 16);
            }
        }
        BoundaryType::Q8_0 => {
            let blocks = bytes.as_chunks::<BLOCK_BYTES>().0;
            for (out, block) in values.as_chunks_mut::<BLOCK>().0.iter_mut().zip(blocks) {
                decode_block(block, out);
            }
        }
    }
    Ok(())
}

/// ggml's `ggml_compute_fp32_to_bf16` (ggml-impl.h), without a branch so that it vectorises.
fn bf16_bits(value: f32) -> u16 {
    let bits = value.to_bits();
    let quiet = (bits >> 16) | 64;
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    (if bits & 0x7fff_ffff > 0x7f80_0000 {
        quiet
    } else {
        rounded
    }) as u16
}

/// ggml's `quantize_row_q8_0_ref` (ggml-quants.c): the scale is the largest magnitude over 127, values round half away
/// from zero.
fn encode_block(values: &[f32; BLOCK], out: &mut [u8; BLOCK_BYTES]) {
    let largest = values.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
    let finite = values.iter().all(|value| value.is_finite());
    let (scale, quants) = out.split_at_mut(2);
    let step = largest / 127.0;
    let stored = f16::from_f32(step);
    if !finite || !stored.is_finite() {
        scale.copy_from_slice(&f16::NAN.to_le_bytes());
        quants.fill(0);
        return;
    }
    // A step so small that its inverse overflows is stored as zero anyway.
    let inverse = if (1.0 / step).is_finite() { 1.0 / step } else { 0.0 };
    scale.copy_from_slice(&stored.to_le_bytes());
    for (quant, value) in quants.iter_mut().zip(values) {
        *quant = round_away(value * inverse) as u8;
    }
}

/// `roundf` for |x| ≤ 127, where the fraction is exact; unlike `f32::round` it needs no library call and vectorises.
fn round_away(x: f32) -> i8 {
    let whole = x as i32;
    let fraction = x - whole as f32;
    (whole + i32::from(fraction >= 0.5) - i32::from(fraction <= -0.5)) as i8
}

fn decode_block(block: &[u8; BLOCK_BYTES], out: &mut [f32; BLOCK]) {
    let (scale, quants) = block.split_at(2);
    let scale = f16::from_le_bytes([scale[0], scale[1]]).to_f32();
    for (value, quant) in out.iter_mut().zip(quants) {
        *value = f32::from(*quant as i8) * scale;
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;
    use proptest::{collection::vec, prelude::*};

    use super::*;

    fn there_and_back(boundary_type: BoundaryType, values: &[f32]) -> Vec<f32> {
        let mut bytes = vec![0; bytes_of(boundary_type, values.len()).unwrap()];
        encode(boundary_type, values, &mut bytes).unwrap();
        let mut back = vec![0.0; values.len()];
        decode(boundary_type, &bytes, &mut back).unwrap();
        back
    }

    fn bits() -> impl Strategy<Value = f32> {
        any::<u32>().prop_map(f32::from_bits)
    }

    /// ggml's reference, line by line, with the standard library's `roundf`.
    fn ggml_q8_0(block: &[f32]) -> Vec<u8> {
        let amax = block
            .iter()
            .fold(0.0_f32, |amax, v| if amax > v.abs() { amax } else { v.abs() });
        let d = amax / 127.0;
        let id = if d == 0.0 { 0.0 } else { 1.0 / d };
        let mut bytes = f16::from_f32(d).to_le_bytes().to_vec();
        bytes.extend(block.iter().map(|x| (x * id).round() as i8 as u8));
        bytes
    }

    proptest! {
        #[test]
        fn f32_keeps_every_bit(values in vec(bits(), 0..100)) {
            let back = there_and_back(BoundaryType::F32, &values);
            prop_assert!(values.iter().zip(&back).all(|(value, back)| value.to_bits() == back.to_bits()));
        }

        #[test]
        fn bf16_has_the_bits_of_ggml(value in bits()) {
            // `half` rounds as ggml_compute_fp32_to_bf16 does: nearest even, NaNs made quiet by bit 6.
            prop_assert_eq!(bf16_bits(value), bf16::from_f32(value).to_bits());
        }

        #[test]
        fn bf16_errs_by_less_than_an_eighth_bit(values in vec(bits(), 0..100)) {
            for (value, back) in values.iter().zip(there_and_back(BoundaryType::Bf16, &values)) {
                if value.is_nan() {
                    prop_assert!(back.is_nan());
                } else if value.abs() < 3.38e38 {
                    let bound = (f64::from(value.abs()) / 256.0).max(2.0_f64.powi(-134));
                    prop_assert!((f64::from(*value) - f64::from(back)).abs() <= bound);
                } else {
                    prop_assert!(back.is_infinite() || value.is_finite());
                }
            }
        }

        #[test]
        fn q8_0_has_the_bytes_of_ggml(block in vec(-1e5_f32..1e5, BLOCK), exponent in -30..2) {
            let block: Vec<f32> = block.iter().map(|value| value * 10.0_f32.powi(exponent)).collect();
            let mut bytes = [0; BLOCK_BYTES];
            encode(BoundaryType::Q8_0, &block, &mut bytes).unwrap();
            prop_assert_eq!(bytes.to_vec(), ggml_q8_0(&block));
        }

        #[test]
        fn q8_0_errs_by_a_share_of_the_largest(values in vec(-9e4_f32..9e4, BLOCK), exponent in -12..1) {
            let values: Vec<f32> = values.iter().map(|value| value * 10.0_f32.powi(exponent)).collect();
            let largest = values.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
            for (value, back) in values.iter().zip(there_and_back(BoundaryType::Q8_0, &values)) {
                prop_assert!((value - back).abs() <= largest * 0.0045 + 4e-6);
            }
        }

        #[test]
        fn any_block_of_q8_0_can_be_read_and_written(values in vec(bits(), BLOCK), bytes in vec(any::<u8>(), BLOCK_BYTES)) {
            let back = there_and_back(BoundaryType::Q8_0, &values);
            let broken = values.iter().any(|value| !value.is_finite() || value.abs() > 65_520.0 * 127.0);
            prop_assert_eq!(back.iter().all(|value| value.is_nan()), broken);
            decode(BoundaryType::Q8_0, &bytes, &mut [0.0; BLOCK]).unwrap();
        }
    }

    #[test]
    fn bf16_rounds_ties_to_even_and_keeps_what_f16_cannot_hold() {
        let ties = [
            1.0 + 1.0 / 256.0,
            1.0 + 3.0 / 256.0,
            90_685.0,
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::MAX,
            -0.0,
        ];
        let back = there_and_back(BoundaryType::Bf16, &ties);
        let expected = [
            1.0,
            1.0 + 4.0 / 256.0,
            90_624.0,
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::INFINITY,
            -0.0,
        ];
        assert_eq!(
            back.iter().map(|value| value.to_bits()).collect::<Vec<_>>(),
            expected.map(f32::to_bits)
        );
    }

    #[test]
    fn q8_0_rounds_halves_away_from_zero() {
        let mut block = [0.0; BLOCK];
        block[..6].copy_from_slice(&[127.0, 0.5, -0.5, 2.5, -2.5, 0.499_999_97]);
        assert_eq!(
            there_and_back(BoundaryType::Q8_0, &block)[..6],
            [127.0, 1.0, -1.0, 3.0, -3.0, 0.0]
        );
    }

    #[test]
    fn q8_0_refuses_rows_that_do_not_fill_blocks() {
        assert_eq!(row_bytes(BoundaryType::Q8_0, 640), Ok(680));
        assert_eq!(
            row_bytes(BoundaryType::Q8_0, 48),
            Err(BoundaryError::Blocks { values: 48 })
        );
        assert_eq!(row_bytes(BoundaryType::Bf16, 48), Ok(96));
    }

    #[test]
    fn buffers_of_another_length_are_refused() {
        let error = encode(BoundaryType::Bf16, &[1.0; 3], &mut [0; 5]).unwrap_err();
        let expected = BoundaryError::Length {
            boundary_type: BoundaryType::Bf16,
            values: 3,
            expected: 6,
            bytes: 5,
        };
        assert_eq!(error, expected);
        assert_eq!(decode(BoundaryType::Bf16, &[0; 5], &mut [0.0; 3]), Err(expected));
    }
}
