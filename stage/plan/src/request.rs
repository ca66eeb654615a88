//! What is asked of the planner: devices, the shape of the work, the market's terms, windows by hand.

use std::time::Duration;

use crate::{BoundaryType, LapShape, LayerRange};

/// A device, or a pool of identical ones, each of which may hold one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// name that the manifest carries as `placement`
    pub name: String,
    /// whether the ring's owner trusts it with text
    pub placement: Placement,
    /// ranks that it may hold
    pub max_stages: u32,
    /// bytes that one rank may take: weights, cache and buffers
    pub memory: u64,
    /// bytes of weights that it reads per second when it decodes
    pub decode: u64,
    /// bytes of weights × tokens that it computes per second for a prompt
    pub prefill: u64,
    /// one way from it to the middle of the network (the relay, the switch)
    pub latency: Duration,
    /// bytes per second of its link
    pub bandwidth: u64,
}

/// Whether a device is the owner's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// in the cluster, or the owner's own: may hold rank 0 and the last rank
    Inside,
    /// anybody's
    Outside,
}

/// What the ring is for, and what it may leave to others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// positions that one sequence may hold
    pub context_length: u32,
    /// sequences served at once
    pub sequences: u32,
    /// type of the cache
    pub cache_type: CacheType,
    /// how hidden states travel
    pub boundary_type: BoundaryType,
    /// batch-invariant kernels, which hold the attention scores of a whole lap
    pub exact: bool,
    /// laps in flight
    pub laps: LapShape,
    /// rank 0 and the last rank, which see text, stay inside
    pub trusted_ends: bool,
    /// what may be left to the market; nothing when none
    pub market: Option<MarketTerms>,
    /// windows by hand, in ring order; when there are none, the planner decides
    pub windows: Vec<Window>,
}

impl Default for Request {
    fn default() -> Self {
        Self {
            context_length: 4096,
            sequences: 4,
            cache_type: CacheType::default(),
            boundary_type: BoundaryType::default(),
            exact: false,
            laps: LapShape::default(),
            trusted_ends: true,
            market: None,
            windows: Vec::new(),
        }
    }
}

/// Type of the cache of keys and values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheType {
    /// 2 bytes a value
    #[default]
    F16,
    /// blocks of 32 values, 34 bytes each
    Q8_0,
}

impl CacheType {
    /// Bytes of one token's row of so many values.
    pub(crate) fn row_bytes(self, values: u64) -> Option<u64> {
        match self {
            CacheType::F16 => values.checked_mul(2),
            CacheType::Q8_0 => values.div_ceil(32).checked_mul(34),
        }
    }
}

/// What may be left to the market.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MarketTerms {
    /// layers at most
    pub max_layers: u32,
    /// bytes of tensors of one window at most; one layer is the floor
    pub max_window_bytes: u64,
}

/// A window by hand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// its layers
    pub layers: LayerRange,
    /// who is to hold it
    pub holder: WindowHolder,
}

/// Who is to hold a window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WindowHolder {
    /// any device that it fits
    Any,
    /// the device or pool of that name
    Device(String),
    /// the market
    Open,
}
