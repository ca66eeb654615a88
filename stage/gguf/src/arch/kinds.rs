//! Of what kind each layer of a model is.

use super::{Error, Kinds, LayerKind, Switch, of};
use crate::model::{self, Model};

const PATTERN: &str = "attention.sliding_window_pattern";
const WIDTH: &str = "attention.sliding_window";

impl Kinds {
    /// Layers of attention and recurrent ones, of both of which a window has to hold one.
    pub(crate) fn is_hybrid(self) -> bool {
        matches!(self, Kinds::Hybrid { .. } | Kinds::HybridByHeads)
    }

    /// How they are told, in words.
    pub(super) fn words(self) -> &'static str {
        match self {
            Kinds::Full => "all alike: full attention",
            Kinds::Sliding { period: 2, .. } => {
                "full or sliding attention by attention.sliding_window_pattern, else every second is full"
            }
            Kinds::Sliding { period: 6, .. } => {
                "full or sliding attention by attention.sliding_window_pattern, else every sixth is full"
            }
            Kinds::Sliding { .. } => "full or sliding attention by attention.sliding_window_pattern, else by a period",
            Kinds::Hybrid { .. } => {
                "recurrent or full attention by attention.recurrent_layers, else by full_attention_interval"
            }
            Kinds::HybridByHeads => "recurrent where attention.head_count_kv is 0, else full attention",
        }
    }
}

/// The kind of each layer of the trunk.
pub fn layer_kinds(model: &Model) -> Result<Vec<LayerKind>, Error> {
    let layers = model.layers() as usize;
    let architecture = of(model)?;
    let mut kinds = match architecture.kinds {
        Kinds::Full => vec![LayerKind::Full; layers],
        Kinds::Sliding { .. } if sliding_window(model)?.is_none() => vec![LayerKind::Full; layers],
        Kinds::Sliding {
            period, dense_first, ..
        } => sliding(model, period, dense_first)?,
        Kinds::Hybrid { interval } => hybrid(model, interval)?,
        Kinds::HybridByHeads => by_heads(model)?,
    };
    kinds.truncate(layers);
    Ok(kinds)
}

/// Positions that the model's sliding layers look back at. None where all layers see all of them.
pub fn sliding_window(model: &Model) -> Result<Option<u64>, Error> {
    let Kinds::Sliding { switch, .. } = of(model)?.kinds else {
        return Ok(None);
    };
    let written = number(model, WIDTH)?;
    match (switch, written) {
        (Switch::ByKey, written) => Ok(written.filter(|width| *width > 0)),
        // with 0 llama.cpp would mask everything
        (Switch::Always { .. }, Some(0)) | (Switch::Always { width: None }, None) => {
            Err(wrong(model, WIDTH, "a number above 0"))
        }
        (Switch::Always { .. }, Some(width)) => Ok(Some(width)),
        (Switch::Always { width }, None) => Ok(width),
    }
}

/// A number that llama.cpp has a default for. One of another type is not taken for none.
fn number(model: &Model, key: &str) -> Result<Option<u64>, Error> {
    let Some(value) = model.get(key) else { return Ok(None) };
    value
        .as_u64()
        .map(Some)
        .ok_or_else(|| wrong(model, key, "a whole number"))
}

fn wrong(model: &Model, key: &str, expected: &'static str) -> Error {
    Error::Model(model::Error::key(model.metadata(), &model.full_key(key), expected))
}

fn sliding(model: &Model, period: u64, dense_first: bool) -> Result<Vec<LayerKind>, Error> {
    let flags = match model.get(PATTERN) {
        Some(value) if value.as_array().is_some() => model.per_layer(PATTERN)?.unwrap_or_default(),
        _ => {
            let period = number(model, PATTERN)?.unwrap_or(period);
            // `llama_hparams::set_swa_pattern`
            let slides = |layer: u64| match (period, dense_first) {
                (0, _) => true,
                (_, true) => !layer.is_multiple_of(period),
                (_, false) => layer % period < period - 1,
            };
            (0..u64::from(model.layers()))
                .map(|layer| slides(layer).into())
                .collect()
        }
    };
    Ok(either(&flags, LayerKind::Sliding))
}

fn hybrid(model: &Model, interval: u64) -> Result<Vec<LayerKind>, Error> {
    let flags = match model.per_layer("attention.recurrent_layers")? {
        Some(flags) => flags,
        None => {
            let key = "full_attention_interval";
            let interval = number(model, key)?.unwrap_or(interval);
            if interval == 0 {
                return Err(wrong(model, key, "a number above 0"));
            }
            (1..=u64::from(model.layers()))
                .map(|place| u64::from(place % interval != 0))
                .collect()
        }
    };
    Ok(either(&flags, LayerKind::Recurrent))
}

fn by_heads(model: &Model) -> Result<Vec<LayerKind>, Error> {
    let key = "attention.head_count_kv";
    let heads = match model.per_layer(key)? {
        Some(heads) => heads,
        None => model
            .per_layer("attention.head_count")?
            .ok_or_else(|| wrong(model, key, "whole numbers, one or one for each block"))?,
    };
    let flags: Vec<u64> = heads.iter().map(|heads| u64::from(*heads == 0)).collect();
    Ok(either(&flags, LayerKind::Recurrent))
}

/// `kind` where the flag isn't 0, full attention elsewhere.
fn either(flags: &[u64], kind: LayerKind) -> Vec<LayerKind> {
    let of = |flag: &u64| if *flag != 0 { kind } else { LayerKind::Full };
    flags.iter().map(of).collect()
}
