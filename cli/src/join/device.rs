//! What this device can lend.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::planned;

/// `--memory`: a quantity of bytes, such as `4G` or `3.5Gi`.
pub(super) fn memory(text: &str) -> Result<u64, String> {
    kvasir_api::bytes(&Quantity(text.to_owned())).map_err(|error| error.to_string())
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
        assert!(memory("lots").is_err() && memory("0").is_err() && memory("-1G").is_err());
    }
}
