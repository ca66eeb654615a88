//! Bytes for people.

/// In units of 1024: `512 B`, `45.1 MiB`.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let power = (bytes.max(1).ilog2() / 10).min(UNITS.len() as u32 - 1);
    let unit = UNITS[power as usize];
    if power == 0 {
        format!("{bytes} {unit}")
    } else {
        format!("{:.1} {unit}", bytes as f64 / 1024_f64.powf(power.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::size;

    #[test]
    fn bytes_read_in_units_of_1024() {
        let cases = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (47_290_000, "45.1 MiB"),
            (3 << 30, "3.0 GiB"),
        ];
        for (count, text) in cases {
            assert_eq!(size(count), text);
        }
        assert_eq!(size(5 << 40), "5.0 TiB");
        assert_eq!(size(u64::MAX), "16777216.0 TiB");
    }
}
