//! What llama.cpp reads off the number of layers of the model that it loads, and what is done so that a window, which has
//! another number, is computed as the whole model is.

use super::{Error, WindowRole};
use crate::arch::{Architecture, ByLayers};
use crate::metadata::Value;
use crate::model::Model;

const QUERY_RANK: &str = "attention.q_lora_rank";
const GATING: &str = "expert_gating_func";

/// What a window needs, or why there can't be one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Measures {
    /// keys in place of the model's
    pub(super) keys: Vec<(&'static str, u32)>,
    /// padding layers, each with the shapes of this layer
    pub(super) padding: Vec<u32>,
}

impl Measures {
    /// The window has these in place of the model's key.
    pub(super) fn replaces(&self, key: &str) -> bool {
        self.keys.iter().any(|(replaced, _)| *replaced == key)
    }
}

pub(super) fn measures(model: &Model, architecture: &Architecture, role: &WindowRole) -> Result<Measures, Error> {
    match architecture.by_layers {
        ByLayers::Nothing => Ok(Measures::default()),
        ByLayers::QueryScale(layers) => query_scale(model, layers, role),
        ByLayers::LightAttention => light_attention(model, role),
    }
}

fn known_by_layers(model: &Model, role: &WindowRole, what: &'static str) -> Error {
    Error::KnownByLayers {
        name: model.architecture().into(),
        layers: model.layers(),
        start: role.layers.start,
        end: role.layers.end,
        what,
    }
}

fn query_scale(model: &Model, scaled_at: u32, role: &WindowRole) -> Result<Measures, Error> {
    let heads = model
        .per_layer("attention.head_count")?
        .and_then(|heads| heads.first().copied())
        .unwrap_or(0);
    let by_heads = u64::from(model.embedding_length()).checked_div(heads).unwrap_or(0);
    let by_key = model
        .get("attention.key_length")
        .and_then(Value::as_u64)
        .unwrap_or(by_heads);
    let changes = (model.layers() == scaled_at) != (role.layers.len() == scaled_at as usize);
    if changes && by_heads != by_key {
        return Err(known_by_layers(model, role, "scales its queries by it"));
    }
    Ok(Measures::default())
}

fn is_light(layers: u32, vocabulary: u32) -> bool {
    matches!(layers, 26 | 27) || layers == 48 && vocabulary == 128_256
}

/// `llama_model_deepseek2::load_arch_hparams`: 26 and 27 layers, and 48 with a certain vocabulary, are a light model, whose
/// queries aren't compressed whatever `attention.q_lora_rank` says; 47 and 48 with another vocabulary gate their experts
/// by a sigmoid where `expert_gating_func` doesn't say otherwise, all others by a softmax.
fn light_attention(model: &Model, role: &WindowRole) -> Result<Measures, Error> {
    const SIGMOID_VOCABULARY: u32 = 154_880;
    // `llama_expert_gating_func_type`
    const SOFTMAX: u32 = 1;
    const SIGMOID: u32 = 2;

    let number = |key: &str| model.get(key).and_then(Value::as_u32).unwrap_or(0);
    let layers = model.layers();
    let vocabulary = vocabulary_told(model);
    let mut measures = Measures::default();
    if number(GATING) == 0 {
        let sigmoid = matches!(layers, 47 | 48) && vocabulary == SIGMOID_VOCABULARY;
        measures.keys.push((GATING, if sigmoid { SIGMOID } else { SOFTMAX }));
    }
    if is_light(layers, vocabulary) || number(QUERY_RANK) == 0 {
        measures.keys.push((QUERY_RANK, 0));
        return Ok(measures);
    }
    let window = role.layers.end - role.layers.start;
    let carried = if role.last { model.vocabulary()? } else { 1 };
    let taken_for_light = |padding: u32| is_light(window + padding, carried);
    if !taken_for_light(0) {
        return Ok(measures);
    }
    if role.last {
        return Err(known_by_layers(
            model,
            role,
            "would take a last window of this length for a light one, with other queries",
        ));
    }
    // behind layers with experts come layers with experts, so the last one's shapes are right whatever the window holds
    let padding = (1..=2).find(|padding| !taken_for_light(*padding)).unwrap_or(0);
    measures.padding = vec![layers - 1; padding as usize];
    Ok(measures)
}

/// The vocabulary's length as llama.cpp reads it when it looks for light models.
fn vocabulary_told(model: &Model) -> u32 {
    let tokens = || {
        let tokens = model.metadata().get("tokenizer.ggml.tokens")?.as_array()?;
        u32::try_from(tokens.len()).ok()
    };
    model
        .get("vocab_size")
        .and_then(Value::as_u32)
        .or_else(tokens)
        .unwrap_or(0)
}
