//! What the self-test's layer must give, by plain arithmetic: no kernel of the engine has a part in it.

use super::model::{EPSILON, Layer, ROPE_BASE};

/// The layer's residual stream for hidden states `rows` at positions from 0 on, one after the other.
pub(super) fn hidden(layer: &Layer, rows: &[f32]) -> Vec<f32> {
    let width = layer.shape.width();
    let mut seen = Seen::default();
    rows.chunks_exact(width)
        .enumerate()
        .flat_map(|(position, row)| {
            let normed = norm(row, &layer.attention_norm);
            let attended = attend(layer, &mut seen, &normed, position);
            let mut out = sum(row, &layer.attended.times(&attended));
            let normed = norm(&out, &layer.inner_norm);
            let gate = layer.gate.times(&normed).into_iter().map(|x| x / (1.0 + (-x).exp()));
            let inner: Vec<f32> = gate.zip(layer.up.times(&normed)).map(|(gate, up)| gate * up).collect();
            out = sum(&out, &layer.down.times(&inner));
            out
        })
        .collect()
}

/// Keys and values of the positions so far.
#[derive(Default)]
struct Seen {
    keys: Vec<Vec<f32>>,
    values: Vec<Vec<f32>>,
}

fn attend(layer: &Layer, seen: &mut Seen, normed: &[f32], position: usize) -> Vec<f32> {
    let (head, shape) = (layer.shape.head, layer.shape);
    let queries = turned(layer.queries.times(normed), head, position);
    seen.keys.push(turned(layer.keys.times(normed), head, position));
    seen.values.push(layer.values.times(normed));
    let scale = 1.0 / (head as f32).sqrt();
    let mut attended = Vec::with_capacity(shape.width());
    for (number, query) in queries.chunks_exact(head).enumerate() {
        let at = number / (shape.heads / shape.shared) * head;
        let part = |of: &Vec<f32>| of[at..at + head].to_vec();
        let scores = seen.keys.iter().map(|key| dot(query, &part(key)) * scale);
        let weights: Vec<f32> = scores.map(f32::exp).collect();
        let total: f32 = weights.iter().sum();
        let mut mixed = vec![0.0; head];
        for (weight, value) in weights.iter().zip(&seen.values) {
            for (mixed, value) in mixed.iter_mut().zip(part(value)) {
                *mixed += weight / total * value;
            }
        }
        attended.extend(mixed);
    }
    attended
}

/// Heads turned by their position: each pair of neighbouring values by an angle of its own.
fn turned(mut heads: Vec<f32>, head: usize, position: usize) -> Vec<f32> {
    for values in heads.chunks_exact_mut(head) {
        for (pair, values) in values.chunks_exact_mut(2).enumerate() {
            let angle = position as f32 * ROPE_BASE.powf(-2.0 * pair as f32 / head as f32);
            let (sin, cos) = angle.sin_cos();
            (values[0], values[1]) = (values[0] * cos - values[1] * sin, values[0] * sin + values[1] * cos);
        }
    }
    heads
}

fn norm(row: &[f32], scale: &[f32]) -> Vec<f32> {
    let mean = dot(row, row) / row.len() as f32;
    let by = 1.0 / (mean + EPSILON).sqrt();
    row.iter().zip(scale).map(|(value, scale)| value * by * scale).collect()
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn sum(a: &[f32], b: &[f32]) -> Vec<f32> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_turns_by_its_position_and_keeps_its_length() {
        let heads = turned(vec![1.0, 0.0, 1.0, 0.0], 2, 1);
        for pair in heads.chunks_exact(2) {
            assert!(
                (pair[0] - 1_f32.cos()).abs() < 1e-6 && (pair[1] - 1_f32.sin()).abs() < 1e-6,
                "{pair:?}"
            );
        }
        assert_eq!(turned(vec![3.0, 4.0], 2, 0), [3.0, 4.0]);
    }

    #[test]
    fn a_normed_row_has_length_one_per_value() {
        let normed = norm(&[3.0, -3.0, 3.0, 3.0], &[1.0, 1.0, 2.0, 1.0]);
        for (value, expected) in normed.iter().zip([1.0, -1.0, 2.0, 1.0]) {
            assert!((value - expected).abs() < 1e-5, "{normed:?}");
        }
    }
}
