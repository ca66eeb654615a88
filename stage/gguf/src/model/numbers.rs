//! Numbers and types that llama.cpp takes without a word, and ends the process with, or gives no numbers, once it computes.

use super::{Error, Model};
use crate::metadata::Value;

impl Model {
    /// Every float under the architecture's prefix is one that can be computed with.
    pub(crate) fn check_numbers(&self) -> Result<(), Error> {
        let prefix = self.full_key("");
        for (key, value) in self.metadata().iter() {
            let Some(short) = key.strip_prefix(&prefix) else {
                continue;
            };
            let rule = Rule::of(self.architecture(), short);
            if floats(value).all(|float| rule.allows(float)) {
                continue;
            }
            return Err(Error::Key {
                key: key.into(),
                expected: rule.words(),
                found: Some(value.to_string()),
            });
        }
        Ok(())
    }

    /// Every tensor is of a type that llama.cpp computes with in its place.
    pub(crate) fn check_types(&self) -> Result<(), Error> {
        for tensor in self.tensors() {
            let expected = if is_vector(&tensor.name) {
                (tensor.ty.name() != Some("F32")).then_some("F32, as llama.cpp asks of norms, biases and convolutions")
            } else {
                (!tensor.ty.is_of_weights()).then_some("a type of weights, such as F16 or Q8_0")
            };
            if let Some(expected) = expected {
                return Err(Error::WrongType {
                    name: tensor.name.clone(),
                    ty: tensor.ty,
                    expected,
                });
            }
        }
        Ok(())
    }
}

/// What a float may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    Finite,
    /// 0 switches it off
    NotNegative,
    Positive,
}

impl Rule {
    fn of(architecture: &str, key: &str) -> Rule {
        match key {
            "rope.freq_base" | "rope.freq_base_swa" => Rule::Positive,
            _ if key.ends_with("_epsilon") => Rule::Positive,
            // Gemma 2's graph divides by it, others ask whether it is 0
            _ if key.ends_with("_softcapping") && architecture == "gemma2" => Rule::Positive,
            _ if key.ends_with("_softcapping") => Rule::NotNegative,
            "rope.scaling.factor" | "rope.scale_linear" => Rule::NotNegative,
            _ => Rule::Finite,
        }
    }

    fn allows(self, float: f64) -> bool {
        float.is_finite()
            && match self {
                Rule::Finite => true,
                Rule::NotNegative => float >= 0.0,
                Rule::Positive => float > 0.0,
            }
    }

    fn words(self) -> &'static str {
        match self {
            Rule::Finite => "a finite number",
            Rule::NotNegative => "a finite number, 0 or above",
            Rule::Positive => "a finite number above 0",
        }
    }
}

fn floats(value: Value<'_>) -> impl Iterator<Item = f64> {
    let one = |value| match value {
        Value::F32(float) => Some(f64::from(float)),
        Value::F64(float) => Some(float),
        _ => None,
    };
    let array = value.as_array().into_iter().flat_map(crate::metadata::Array::iter);
    one(value).into_iter().chain(array.filter_map(one))
}

/// Tensors that are added, multiplied or folded value by value, for which llama.cpp has no kernels but those of F32.
fn is_vector(name: &str) -> bool {
    const ENDS: [&str; 8] = [
        "norm.weight",
        ".bias",
        ".scale",
        "attn_sinks.weight",
        "ssm_conv1d.weight",
        "shortconv.conv.weight",
        ".ssm_a",
        ".ssm_d",
    ];
    name.starts_with("rope_") || ENDS.iter().any(|end| name.ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_is_a_number_where_it_switches_something_off() {
        assert!(Rule::of("gemma3", "final_logit_softcapping").allows(0.0));
        assert!(!Rule::of("gemma2", "final_logit_softcapping").allows(0.0));
        assert!(Rule::of("llama", "attention.scale").allows(0.0));
        assert!(Rule::of("llama", "rope.scaling.factor").allows(0.0));
        assert!(!Rule::of("llama", "attention.layer_norm_rms_epsilon").allows(0.0));
        for nothing in [f64::NAN, f64::INFINITY] {
            assert!(!Rule::of("llama", "attention.scale").allows(nothing));
        }
    }
}
