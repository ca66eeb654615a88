//! Counts of bytes as messages tell them.

use std::fmt;

/// In units of 1024: `512 B`, `45.1 MiB`.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let power = bytes.max(1).ilog2() / 10;
    let unit = UNITS[power as usize];
    if power == 0 {
        format!("{bytes} {unit}")
    } else {
        format!("{:.1} {unit}", bytes as f64 / 1024_f64.powf(power.into()))
    }
}

/// `60000000 bytes (57.2 MiB)`: the number to compare, and the size to grasp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Bytes(bytes) = *self;
        write!(f, "{bytes} byte{}", if bytes == 1 { "" } else { "s" })?;
        if bytes < 1024 {
            return Ok(());
        }
        write!(f, " ({})", size(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_read_in_units_of_1024() {
        let cases = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (47_290_000, "45.1 MiB"),
            (3 << 30, "3.0 GiB"),
            (5 << 40, "5.0 TiB"),
            (u64::MAX, "16.0 EiB"),
        ];
        for (count, text) in cases {
            assert_eq!(size(count), text);
        }
    }

    #[test]
    fn a_size_is_told_with_a_unit_once_it_is_hard_to_read() {
        let told = |bytes| Bytes(bytes).to_string();
        assert_eq!(told(0), "0 bytes");
        assert_eq!(told(1), "1 byte");
        assert_eq!(told(1023), "1023 bytes");
        assert_eq!(told(60_000_000), "60000000 bytes (57.2 MiB)");
        assert_eq!(told(u64::MAX), "18446744073709551615 bytes (16.0 EiB)");
    }
}
