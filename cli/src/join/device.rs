//! What this device can lend.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::planned;

/// No window takes less.
const LEAST: u64 = 1 << 20;

/// `--memory`: a quantity of bytes, such as `4G` or `3.5Gi`.
pub(super) fn memory(text: &str) -> Result<u64, String> {
    let bytes = kvasir_api::bytes(&Quantity(text.to_owned())).map_err(|error| error.to_string())?;
    // `500m` is half a byte: m stands for milli
    if bytes < LEAST {
        return Err(format!("{text} holds no window: write megabytes as 500M or 500Mi"));
    }
    Ok(bytes)
}

/// Three quarters of the memory that is free: the rest stays with whoever uses the device.
pub(super) fn spare_memory() -> u64 {
    planned::memory() / 4 * 3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_with_its_unit() {
        assert_eq!(memory("4G"), Ok(4_000_000_000));
        assert_eq!(memory("512Mi"), Ok(512 << 20));
        assert_eq!(
            memory("500m"),
            Err("500m holds no window: write megabytes as 500M or 500Mi".to_owned())
        );
        assert!(memory("lots").is_err() && memory("0").is_err() && memory("-1G").is_err());
    }
}
