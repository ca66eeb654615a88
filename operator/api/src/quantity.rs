//! Kubernetes quantities as bytes.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// Longest text of a quantity; the cost of a CEL rule is bounded by it.
const MAX_LENGTH: usize = 32;

/// What a quantity has to be.
pub(crate) const RULE: &str = "must be a quantity above 0, such as 512Mi or 2Gi";

/// A digit other than 0 before or after the point, and a unit, or an exponent of two digits at most.
const PATTERN: &str =
    "^[+]?([0-9]*[1-9][0-9]*[.]?[0-9]*|[0-9]*[.][0-9]*[1-9][0-9]*)([eE][-+]?[0-9]{1,2}|[numkMGTPE]|[KMGTPE]i)?$";

/// Why a quantity is no number of bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// not a quantity
    #[error("`{0}` is not a quantity; write a number and a unit, such as 512Mi or 2Gi")]
    Malformed(String),
    /// below one byte
    #[error("`{0}` must be above 0")]
    NotPositive(String),
    /// above 2^63 − 1
    #[error("`{0}` is larger than any memory")]
    TooLarge(String),
}

impl QuantityError {
    /// Stable `PascalCase` word for metrics, events and conditions.
    pub fn reason(&self) -> &'static str {
        "InvalidSpec"
    }
}

/// Bytes of a quantity, rounded up to a whole one: `1.5Gi`, `2G`, `1e9`, `1048576`.
pub fn bytes(quantity: &Quantity) -> Result<u64, QuantityError> {
    let text = quantity.0.as_str();
    let malformed = || QuantityError::Malformed(text.chars().take(MAX_LENGTH).collect());
    if text.len() > MAX_LENGTH {
        return Err(malformed());
    }
    let (negative, unsigned) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    let unit_at = unsigned
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(unsigned.len());
    let (number, unit) = unsigned.split_at(unit_at);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return Err(malformed());
    }
    // value = digits × base^power ÷ 10^places, exact in u128 as far as 2^63 bytes reach
    let digits: u128 = format!("{whole}{fraction}").parse().map_err(|_| malformed())?;
    let (base, power) = scale(unit).ok_or_else(malformed)?;
    let places = i32::try_from(fraction.len()).map_err(|_| malformed())?;
    let too_large = || QuantityError::TooLarge(text.into());
    if digits == 0 || negative {
        return Err(QuantityError::NotPositive(text.into()));
    }
    let (up, down) = if base == 10 { (power - places, 0) } else { (0, places) };
    let mut value = digits;
    if base == 1024 {
        let factor = 1024u128.checked_pow(power.unsigned_abs()).ok_or_else(too_large)?;
        value = value.checked_mul(factor).ok_or_else(too_large)?;
    }
    if up >= 0 {
        let factor = 10u128.checked_pow(up.unsigned_abs()).ok_or_else(too_large)?;
        value = value.checked_mul(factor).ok_or_else(too_large)?;
    }
    let divisor = 10u128.checked_pow(if up < 0 { up.unsigned_abs() } else { down.unsigned_abs() });
    let value = divisor.map_or(1, |divisor| value.div_ceil(divisor));
    u64::try_from(value)
        .ok()
        .filter(|&v| i64::try_from(v).is_ok())
        .ok_or_else(too_large)
}

/// Base and power of a unit.
fn scale(unit: &str) -> Option<(u32, i32)> {
    Some(match unit {
        "" => (10, 0),
        "n" => (10, -9),
        "u" => (10, -6),
        "m" => (10, -3),
        "k" => (10, 3),
        "M" => (10, 6),
        "G" => (10, 9),
        "T" => (10, 12),
        "P" => (10, 15),
        "E" => (10, 18),
        "Ki" => (1024, 1),
        "Mi" => (1024, 2),
        "Gi" => (1024, 3),
        "Ti" => (1024, 4),
        "Pi" => (1024, 5),
        "Ei" => (1024, 6),
        _ => {
            let exponent = unit.strip_prefix(['e', 'E'])?;
            (10, exponent.parse().ok().filter(|e: &i32| e.abs() <= 40)?)
        }
    })
}

/// Whether a text is a quantity, and one that an API server reads at once: it computes for hours on the exponent of
/// `1e999999999`.
pub fn is_plain(text: &str) -> bool {
    const UNITS: [&str; 16] = [
        "", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei",
    ];
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let is_number = |c: char| c.is_ascii_digit() || c == '.';
    let unit_at = unsigned.find(|c| !is_number(c)).unwrap_or(unsigned.len());
    let (number, unit) = unsigned.split_at(unit_at);
    let is_exponent = |unit: &str| {
        let exponent = unit.strip_prefix(['e', 'E']).unwrap_or_default();
        let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
        (1..=2).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit())
    };
    text.len() <= MAX_LENGTH
        && number.contains(|c: char| c.is_ascii_digit())
        && number.matches('.').count() <= 1
        && (UNITS.contains(&unit) || is_exponent(unit))
}

/// Schema of a quantity above 0: a text with a unit, or a plain number of bytes. A pattern and no rule: an API server runs
/// rules on texts that break a pattern, and its own `isQuantity` takes hours for a large exponent.
pub(crate) fn schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "x-kubernetes-int-or-string": true,
        "minimum": 1,
        "maxLength": MAX_LENGTH,
        "pattern": PATTERN,
    })
}

/// What is wrong with a value under [`schema`], in the words of this project.
pub(crate) fn fault(value: &serde_json::Value) -> Option<&'static str> {
    let is_one = match value {
        serde_json::Value::String(text) => match bytes(&Quantity(text.clone())) {
            Ok(_) => true,
            // the pattern takes it, and who asks for the bytes is told
            Err(QuantityError::TooLarge(_)) => is_plain(text),
            Err(_) => false,
        },
        value => value.as_i64().is_some_and(|bytes| bytes > 0),
    };
    (!is_one).then_some(RULE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<u64, QuantityError> {
        bytes(&Quantity(text.into()))
    }

    #[test]
    fn every_unit_gives_its_bytes() {
        for (text, value) in [
            ("1048576", 1 << 20),
            ("1", 1),
            ("2Gi", 2 << 30),
            ("1.5Gi", 3 << 29),
            ("512Mi", 512 << 20),
            ("3Ki", 3072),
            ("2G", 2_000_000_000),
            ("1.25k", 1250),
            ("1e3", 1000),
            ("12E1", 120),
            ("1E", 1_000_000_000_000_000_000),
            ("1500m", 2),
            ("0.1m", 1),
            (".5Ki", 512),
            ("7.", 7),
            ("+4Ki", 4096),
            ("7Ei", 7 << 60),
        ] {
            assert_eq!(of(text), Ok(value), "{text}");
        }
    }

    #[test]
    fn quantities_that_an_api_server_reads_at_once_are_told_from_others() {
        for text in ["1", "1.5Gi", "1e9", "1E+18", "12E", "500m", "-1e-9"] {
            assert!(is_plain(text), "{text}");
        }
        for text in [
            "1e999999999",
            "1E100",
            "1e+1000000",
            "1e-999999999",
            "abc",
            "",
            "1x",
            "1e",
            "1.2.3",
        ] {
            assert!(!is_plain(text), "{text}");
        }
        assert!(!is_plain(&"9".repeat(33)));
    }

    #[test]
    fn what_is_no_number_of_bytes_is_refused_by_kind() {
        for text in [
            "",
            "Gi",
            "1.2.3",
            "1 Gi",
            "1gi",
            "GiB",
            "1e",
            "0x10",
            "١",
            "1KiB",
            "--1",
            "1e99999999999",
        ] {
            assert!(matches!(of(text), Err(QuantityError::Malformed(_))), "{text}");
        }
        for text in ["0", "0Gi", "-1Gi", "-0"] {
            assert!(matches!(of(text), Err(QuantityError::NotPositive(_))), "{text}");
        }
        for text in ["8Ei", "1e40", "99999999999999999999999999999", "9223372036854775808"] {
            assert!(matches!(of(text), Err(QuantityError::TooLarge(_))), "{text}");
        }
        assert!(matches!(of(&"9".repeat(1000)), Err(QuantityError::Malformed(_))));
    }
}
