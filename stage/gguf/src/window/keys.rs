//! Metadata of the files that are cut: the model's, with what belongs to the window changed.

use super::{
    Error, KEY_END, KEY_IDENTITY, KEY_INPUT, KEY_LAYERS, KEY_MODEL_LAYERS, KEY_SPARSE, KEY_START, Plan, WindowRole,
};
use crate::arch::{Input, InputScale, Kinds, LayerKind, PER_LAYER, Switch, WHOLE, sliding_window};
use crate::header::Header;
use crate::metadata::{Value, ValueType};
use crate::model::{self, Model};

/// Names tensors of blocks, which have other numbers in a window.
const TENSOR_NAMES: &str = "general.tensor_extra.name";

/// Sliding layers look back at this many positions where they stand for full ones: more than the engine holds of all
/// sequences together.
const EVERYTHING: u32 = 1 << 26;

/// Keys that treat sliding layers in another way than full ones.
const SLIDING_ONLY: [&str; 4] = [
    "rope.freq_base_swa",
    "rope.dimension_count_swa",
    "attention.key_length_swa",
    "attention.value_length_swa",
];

/// How a window's file says which of its layers slide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sliding {
    /// as the model does: nothing about it is changed
    AsItIs,
    /// layer by layer
    Listed,
    /// none does, and the switch is off
    Off,
    /// none does, and there is no switch: all see everything
    Everything,
}

impl Sliding {
    fn of(model: &Model, plan: &Plan) -> Result<Sliding, Error> {
        let Kinds::Sliding { switch, .. } = plan.architecture.kinds else {
            return Ok(Sliding::AsItIs);
        };
        if sliding_window(model)?.is_none() {
            return Ok(Sliding::AsItIs);
        }
        let slides = |layer: &u32| plan.kinds[*layer as usize] == LayerKind::Sliding;
        Ok(match switch {
            _ if plan.layers.iter().any(slides) => Sliding::Listed,
            Switch::ByKey => Sliding::Off,
            Switch::Always { .. } => Sliding::Everything,
        })
    }

    /// The model's key isn't the window's.
    fn replaces(self, key: &str) -> bool {
        match key {
            "attention.sliding_window_pattern" => self != Sliding::AsItIs,
            "attention.sliding_window" => matches!(self, Sliding::Off | Sliding::Everything),
            _ => self == Sliding::Everything && SLIDING_ONLY.contains(&key),
        }
    }

    fn write(self, header: &mut Header, model: &Model, plan: &Plan) {
        let pattern = model.full_key("attention.sliding_window_pattern");
        match self {
            Sliding::AsItIs | Sliding::Off => {}
            Sliding::Listed => {
                let slides = |layer: &u32| plan.kinds[*layer as usize] == LayerKind::Sliding;
                header.flags(&pattern, &plan.layers.iter().map(slides).collect::<Vec<bool>>());
            }
            Sliding::Everything => {
                header.u32(&model.full_key("attention.sliding_window"), EVERYTHING);
                header.flags(&pattern, &vec![true; plan.layers.len()]);
            }
        }
    }
}

/// Metadata of a window; with the tokenizer's keys where `tokenizer` says so.
pub(super) fn of_window(model: &Model, role: &WindowRole, plan: &Plan, tokenizer: bool) -> Result<Header, Error> {
    let (start, end) = (role.layers.start, role.layers.end);
    let sliding = Sliding::of(model, plan)?;
    let listed_states = matches!(plan.architecture.kinds, Kinds::Hybrid { .. });
    let scale = match plan.architecture.scale {
        InputScale::Key(key) => Some(key),
        InputScale::One | InputScale::SqrtEmbedding => None,
    };
    let prefix = model.full_key("");
    let mut header = Header::default();

    for (key, entry, place) in model.metadata().raw() {
        match key.strip_prefix(&prefix) {
            None if key.starts_with("split.") => {}
            None if key == TENSOR_NAMES => return Err(Error::NamesTensors { key: TENSOR_NAMES }),
            None if key.starts_with("tokenizer.") && !tokenizer => {}
            Some("block_count" | "nextn_predict_layers" | "vocab_size" | "leading_dense_block_count") => {}
            Some("attention.recurrent_layers" | "full_attention_interval") if listed_states => {}
            Some(short) if sliding.replaces(short) || plan.measures.replaces(short) || scale == Some(short) => {}
            Some(short) if place.ty == ValueType::Array && !WHOLE.contains(&short) => {
                write_array(&mut header, model, key, short, entry, &plan.layers)?;
            }
            _ => header.raw(entry),
        }
    }

    header.u32(&model.full_key("block_count"), plan.layers.len() as u32);
    if model.mtp_layers() > 0 {
        header.u32(&model.full_key("nextn_predict_layers"), 0);
    }
    if let Some(dense) = model.get("leading_dense_block_count").and_then(Value::as_u32) {
        let leading = plan.layers.iter().take_while(|layer| **layer < dense).count();
        header.u32(&model.full_key("leading_dense_block_count"), leading as u32);
    }
    if listed_states {
        let recurrent = |layer: &u32| plan.kinds[*layer as usize] == LayerKind::Recurrent;
        let recurrent: Vec<bool> = plan.layers.iter().map(recurrent).collect();
        header.flags(&model.full_key("attention.recurrent_layers"), &recurrent);
    }
    sliding.write(&mut header, model, plan);
    for (key, value) in &plan.measures.keys {
        header.u32(&model.full_key(key), *value);
    }
    write_head_lengths(&mut header, model)?;
    header.u32(
        &model.full_key("vocab_size"),
        if role.last { model.vocabulary()? } else { 1 },
    );
    if !tokenizer {
        header.text("tokenizer.ggml.model", "no_vocab");
    }
    header.u32(KEY_START, start);
    header.u32(KEY_END, end);
    header.u32(KEY_LAYERS, end - start);
    if let Input::Overwritten(node) = plan.architecture.input {
        header.text(KEY_INPUT, node);
    }
    if plan.sparse {
        header.u32(KEY_SPARSE, 1);
    }
    write_origin(&mut header, model);
    Ok(header)
}

/// Metadata of the vocabulary file: the model's.
pub(super) fn of_vocabulary(model: &Model) -> Header {
    let mut header = Header::default();
    for (key, entry, _) in model.metadata().raw() {
        if !key.starts_with("split.") {
            header.raw(entry);
        }
    }
    write_origin(&mut header, model);
    header
}

/// Metadata of the MTP file: a model that has MTP blocks and no trunk.
pub(super) fn of_mtp(model: &Model) -> Result<Header, Error> {
    let blocks: Vec<u32> = (model.layers()..model.block_count()).collect();
    let prefix = model.full_key("");
    let mut header = Header::default();
    for (key, entry, place) in model.metadata().raw() {
        match key.strip_prefix(&prefix) {
            None if key.starts_with("split.") || key.starts_with("tokenizer.") => {}
            None if key == TENSOR_NAMES => return Err(Error::NamesTensors { key: TENSOR_NAMES }),
            Some("block_count" | "vocab_size" | "leading_dense_block_count") => {}
            Some(short) if place.ty == ValueType::Array && !WHOLE.contains(&short) => {
                write_array(&mut header, model, key, short, entry, &blocks)?;
            }
            _ => header.raw(entry),
        }
    }
    header.u32(&model.full_key("block_count"), model.mtp_layers());
    write_head_lengths(&mut header, model)?;
    header.u32(&model.full_key("vocab_size"), model.vocabulary()?);
    header.text("tokenizer.ggml.model", "no_vocab");
    write_origin(&mut header, model);
    Ok(header)
}

/// Which model a file is of.
fn write_origin(header: &mut Header, model: &Model) {
    header.u32(KEY_MODEL_LAYERS, model.layers());
    header.text(KEY_IDENTITY, &model.identity().to_string());
}

/// An array under the architecture's prefix: cut to the window where it has one value for each block.
fn write_array(
    header: &mut Header,
    model: &Model,
    key: &str,
    short: &str,
    entry: &[u8],
    layers: &[u32],
) -> Result<(), Error> {
    let Some(array) = model.metadata().get(key).and_then(Value::as_array) else {
        return Ok(());
    };
    let blocks = model.block_count();
    if !PER_LAYER.contains(&short) {
        if array.len() == blocks as usize {
            return Err(Error::UnknownArray { key: key.into() });
        }
        header.raw(entry);
        return Ok(());
    }
    if array.len() != blocks as usize {
        return Err(model::Error::ArrayLength {
            key: key.into(),
            found: array.len(),
            blocks,
        }
        .into());
    }
    let values: Option<Vec<&[u8]>> = layers
        .iter()
        .map(|layer| array.element_bytes(*layer as usize))
        .collect();
    let values = values.ok_or_else(|| model::Error::key(model.metadata(), key, "an array of numbers"))?;
    header.array(key, array.element_type() as u32, values.into_iter());
    Ok(())
}

/// llama.cpp takes a missing key or value length from the heads of layer 0; with heads that differ from layer to layer
/// the window's layer 0 would give another one.
fn write_head_lengths(header: &mut Header, model: &Model) -> Result<(), Error> {
    let heads = "attention.head_count";
    if model.get(heads).and_then(Value::as_array).is_none() {
        return Ok(());
    }
    let first = model
        .per_layer(heads)?
        .and_then(|heads| heads.first().copied())
        .unwrap_or(0);
    let Some(length) = u64::from(model.embedding_length()).checked_div(first) else {
        return Ok(());
    };
    for key in ["attention.key_length", "attention.value_length"] {
        if model.get(key).is_none() {
            header.u32(&model.full_key(key), length as u32);
        }
    }
    Ok(())
}
