//! What a rank needs, in bytes, for every possible window: sums over layers, made once, then looked up.

use serde::Serialize;

use crate::profile::{Error, Padding};
use crate::{LayerKind, LayerRange, ModelProfile, Request};

/// Memory of the process without a model: runtime, backend, sockets.
const PROCESS: u64 = 32 << 20;
/// Bytes that one token of a vocabulary takes at the ends: its text, its score and its place in a map.
const PER_TOKEN: u64 = 128;
/// llama.cpp rounds caches up to so many cells (`llama_context`, `llama_kv_cache_iswa`).
const CELLS: u64 = 256;

/// What one rank needs, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Need {
    /// tensors that it fetches; for rank 0 with the embedding, which it reads from its file
    pub fetch: u64,
    /// weights in memory, a padding layer's included
    pub weights: u64,
    /// cache of keys and values, and recurrent states, a padding layer's included
    pub cache: u64,
    /// estimate of everything else: compute buffers, laps in the inbox and in the log, vocabulary, the process itself
    pub buffers: u64,
}

impl Need {
    /// Bytes of memory in all.
    pub fn memory(&self) -> u64 {
        self.weights.saturating_add(self.cache).saturating_add(self.buffers)
    }
}

/// Sums over a model's layers for one shape of work. Every number that a lookup can give fits in 63 bits.
#[derive(Clone, Debug)]
pub struct Needs {
    layers: u32,
    /// sums over the layers before: `[l]` is that of layers `0..l`
    bytes: Vec<u64>,
    active: Vec<u64>,
    cache: Vec<u64>,
    recurrent: Vec<u32>,
    every: u64,
    embedding: u64,
    head: u64,
    tied: bool,
    padding: Padding,
    padding_cache: Padding,
    buffers: u64,
    end_buffers: u64,
    logits: u64,
}

impl Needs {
    /// Adds up what each layer needs under this request.
    pub fn new(profile: &ModelProfile, request: &Request) -> Result<Needs, Error> {
        let mut needs = Needs {
            layers: profile.layer_count(),
            bytes: vec![0],
            active: vec![0],
            cache: vec![0],
            recurrent: vec![0],
            every: profile.every_bytes,
            embedding: profile.embedding_bytes,
            head: profile.head_bytes,
            tied: profile.tied,
            padding: profile.padding,
            padding_cache: padding_cache(profile, request).ok_or(Error::Overflow { what: "cache" })?,
            buffers: buffers(profile, request).ok_or(Error::Overflow { what: "buffers" })?,
            end_buffers: u64::from(profile.vocabulary) * PER_TOKEN,
            logits: u64::from(profile.vocabulary) * 4 * u64::from(request.sequences),
        };
        let (mut bytes, mut active, mut cache, mut recurrent) = (0u64, 0u64, 0u64, 0u32);
        for layer in &profile.layers {
            let too_much = |what| Error::Overflow { what };
            let cached = cache_bytes(layer, request).ok_or(too_much("cache"))?;
            bytes = bytes.checked_add(layer.bytes).ok_or(too_much("size"))?;
            active = active.checked_add(layer.active_bytes).ok_or(too_much("size"))?;
            cache = cache.checked_add(cached).ok_or(too_much("cache"))?;
            recurrent += u32::from(layer.kind == LayerKind::Recurrent);
            needs.bytes.push(bytes);
            needs.active.push(active);
            needs.cache.push(cache);
            needs.recurrent.push(recurrent);
        }
        let whole = [
            bytes,
            active,
            cache,
            needs.every,
            needs.embedding,
            needs.head,
            needs.padding.full,
            needs.padding.recurrent,
            needs.padding_cache.full,
            needs.padding_cache.recurrent,
            needs.buffers,
            needs.end_buffers,
            needs.end_buffers,
            needs.logits,
        ];
        whole
            .iter()
            .try_fold(0u64, |sum, part| sum.checked_add(*part))
            .filter(|sum| i64::try_from(*sum).is_ok())
            .ok_or(Error::Overflow { what: "size" })?;
        Ok(needs)
    }

    /// Layers of the trunk.
    pub fn layers(&self) -> u32 {
        self.layers
    }

    /// What the rank with this window needs. Layers past the model's end count nothing.
    pub fn rank(&self, window: LayerRange) -> Need {
        let (first, last) = (window.start == 0, window.end == self.layers);
        let own = self.own_bytes(window);
        let embedding = if first && !(last && self.tied) {
            self.embedding
        } else {
            0
        };
        let head = if last { self.head } else { 0 };
        let carried = own + self.every + head;
        Need {
            fetch: carried + embedding,
            weights: carried + self.padding(self.padding, window),
            cache: self.between(&self.cache, window) + self.padding(self.padding_cache, window),
            buffers: self.buffers
                + if first || last { self.end_buffers } else { 0 }
                + if last { self.logits } else { 0 },
        }
    }

    /// Bytes of the window's own layers: what a market's limit counts.
    pub fn own_bytes(&self, window: LayerRange) -> u64 {
        self.between(&self.bytes, window)
    }

    /// Bytes that the rank reads to compute one token.
    pub fn active(&self, window: LayerRange) -> u64 {
        self.between(&self.active, window) + if window.end == self.layers { self.head } else { 0 }
    }

    /// [`Needs::active`] of layers `0..end`, without the head.
    pub(crate) fn active_before(&self, end: u32) -> u64 {
        self.active[end as usize]
    }

    /// Of what a padding layer takes, by kind, what this window's takes.
    fn padding(&self, by_kind: Padding, window: LayerRange) -> u64 {
        let at = |layer: u32| self.recurrent[layer.min(self.layers) as usize];
        let recurrent = at(window.end).saturating_sub(at(window.start));
        if recurrent == 0 {
            by_kind.recurrent
        } else if recurrent == window.len() {
            by_kind.full
        } else {
            0
        }
    }

    fn between(&self, sums: &[u64], window: LayerRange) -> u64 {
        let at = |layer: u32| sums[layer.min(self.layers) as usize];
        at(window.end).saturating_sub(at(window.start))
    }
}

/// Cache of one layer for all sequences. A sliding window needs room for itself and for the lap that is being computed.
fn cache_bytes(layer: &crate::Layer, request: &Request) -> Option<u64> {
    let context = u64::from(request.context_length).next_multiple_of(CELLS);
    let lap = u64::from(request.laps.max_lap_tokens);
    let cells = match layer.kind {
        LayerKind::Full => context,
        LayerKind::Sliding { window } => window.checked_add(lap)?.min(context).checked_next_multiple_of(CELLS)?,
        LayerKind::Recurrent => 0,
    };
    let row = |values| request.cache_type.row_bytes(values);
    let token = row(layer.key_values)?.checked_add(row(layer.value_values)?)?;
    let sequence = token.checked_mul(cells)?.checked_add(layer.state_bytes)?;
    sequence.checked_mul(u64::from(request.sequences))
}

/// Cache of a padding layer: llama.cpp makes one for each layer of its kind, computed or not.
fn padding_cache(profile: &ModelProfile, request: &Request) -> Option<Padding> {
    let of = |padding: u64, recurrent: bool| {
        let stands_in = |layer: &&crate::Layer| padding > 0 && (layer.kind == LayerKind::Recurrent) == recurrent;
        let layer = profile.layers.iter().find(stands_in);
        layer.map_or(Some(0), |layer| cache_bytes(layer, request))
    };
    Some(Padding {
        full: of(profile.padding.full, false)?,
        recurrent: of(profile.padding.recurrent, true)?,
    })
}

/// Estimate of what a middle rank needs besides weights and cache, for laps of `max_lap_tokens` rows:
/// f32 rows of the layer being computed (residual, its norm, queries, attention's output; gate, up and their product);
/// the attention mask, or in exact mode, which goes without flash attention, the scores of all heads;
/// the laps of the inbox and as many in the log, in f32; and the process.
fn buffers(profile: &ModelProfile, request: &Request) -> Option<u64> {
    let rows = u64::from(request.laps.max_lap_tokens);
    let width = u64::from(profile.embedding_length);
    let cells = u64::from(request.context_length).next_multiple_of(CELLS);
    let layer = width
        .checked_mul(4)?
        .checked_add(profile.feed_forward.checked_mul(3)?)?
        .checked_mul(4)?;
    let attention = if request.exact {
        profile.heads.checked_add(1)?
    } else {
        1
    };
    let attention = attention.checked_mul(cells)?.checked_mul(4)?;
    let laps = u64::from(request.laps.max_laps)
        .checked_mul(2)?
        .checked_mul(width)?
        .checked_mul(4)?;
    let row = layer.checked_add(attention)?.checked_add(laps)?;
    rows.checked_mul(row)?.checked_add(PROCESS)
}
