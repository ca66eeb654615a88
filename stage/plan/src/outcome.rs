//! The plan: which device holds which window, what that takes, and why there is none.

use std::time::Duration;

use kvasir_gguf::size::size;
use serde::Serialize;

use crate::balance::balance;
use crate::search::{Problem, Seat, Taken, nanos_for};
use crate::{
    Device, LapShape, LayerRange, MAX_LAYERS, ModelProfile, ModelRef, Need, Needs, Placement, Rank, RankManifest,
    Request, manual, profile,
};

/// Where a window was placed: the device's index, or none for the market.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    pub(crate) layers: LayerRange,
    pub(crate) device: Option<usize>,
}

/// Who holds what, in ring order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// the ranks
    pub ranks: Vec<PlannedRank>,
    model: ModelRef,
    request: Request,
}

/// One rank of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedRank {
    /// its window
    pub layers: LayerRange,
    /// device or pool that is to hold it; none: the market
    pub placement: Option<String>,
    /// bytes that it needs
    pub need: Need,
    /// bytes that its device has for it; none for the market
    pub budget: Option<u64>,
    /// time to compute one token
    pub decode: Duration,
    /// time to compute one token of a prompt
    pub prefill: Duration,
    /// time for one token's boundary to reach the next rank; none in a ring of one
    pub hop: Duration,
}

/// One line of the table that people read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// position in the ring
    pub rank: usize,
    /// `start..end`
    pub layers: String,
    /// device or pool; `open` when left to the market
    pub placement: String,
    /// bytes that it fetches
    pub fetch_bytes: u64,
    /// bytes of memory that it needs
    pub memory_bytes: u64,
    /// bytes of memory that its device has for it
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget_bytes: Option<u64>,
    /// microseconds to compute one token
    pub decode_micros: u64,
    /// microseconds to the next rank
    pub hop_micros: u64,
}

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// a model without layers, or with more than llama.cpp holds
    #[error("a model of {layers} layers can't be planned: it must have between 1 and {MAX_LAYERS}")]
    Layers {
        /// layers it has
        layers: usize,
    },
    /// numbers that don't fit
    #[error("the sizes of the model or of the request are out of bounds")]
    Sizes(#[source] profile::Error),
    /// nobody trusted can hold an end of the ring
    #[error(
        "layer {layer} must be held inside the cluster, since its rank sees the text, and takes {} more than \
         any device or pool there has: give one more memory, or lower contextLength or sequences",
        size(*missing)
    )]
    EndTooLarge {
        /// the first layer, or the last
        layer: u32,
        /// bytes that the largest device lacks
        missing: u64,
    },
    /// the devices are too few or too small, and the market may not take the rest
    #[error(
        "layer {layer} and on: {layers} layers, {} with their cache, fit on no device or pool, and the market may take \
         {allowed} layers: add memory or stages, or raise market.maxLayers",
        size(*missing)
    )]
    NotCovered {
        /// the first layer that nobody takes
        layer: u32,
        /// layers that nobody takes
        layers: u32,
        /// bytes of memory that they need
        missing: u64,
        /// layers that the market may take
        allowed: u32,
    },
    /// both ends have to be inside, and one device can't be both
    #[error(
        "rank 0 and the last rank must be inside the cluster, and the devices there can't hold both ends of the model: \
         allow one more stage there (maxStages), or set trustedEnds to false"
    )]
    EndsInside,
    /// the architecture allows no cut
    #[error("the model can only be served whole, on one device: {why}")]
    Indivisible {
        /// the reason
        why: String,
    },
    /// a window by hand that isn't one
    #[error("window {window} is not within the model's {layers} layers")]
    NoSuchWindow {
        /// the window
        window: LayerRange,
        /// layers of the model
        layers: u32,
    },
    /// windows by hand that leave layers out
    #[error("no window holds layers {missing}")]
    LeftOut {
        /// the layers
        missing: LayerRange,
    },
    /// windows by hand in another order than the ring's
    #[error("window {window} stands after window {before}: windows are listed in the order of their layers")]
    OutOfOrder {
        /// the window
        window: LayerRange,
        /// the one that it has to stand before
        before: LayerRange,
    },
    /// windows by hand that overlap
    #[error("window {window} holds layer {layer} again: a window begins where the one before it ends")]
    HeldTwice {
        /// the window
        window: LayerRange,
        /// the layer
        layer: u32,
    },
    /// a last window of a hybrid model that lacks a kind
    #[error("the last window starts at layer {start}; this model's must start at layer {latest} or before")]
    LastTooShort {
        /// where it starts
        start: u32,
        /// where it may start at the latest
        latest: u32,
    },
    /// a last window of a length that llama.cpp takes for another model
    #[error(
        "the last window starts at layer {start}, and llama.cpp takes {layers} layers of this architecture for another model"
    )]
    LastLength {
        /// where it starts
        start: u32,
        /// layers that it has
        layers: u32,
    },
    /// a window by hand on a device that isn't there
    #[error("window {window} is to run on {name}, and there is no such device or pool")]
    UnknownDevice {
        /// the window
        window: LayerRange,
        /// the name
        name: String,
    },
    /// a window by hand that fits nowhere
    #[error("window {window} needs {} of memory, {} more than there is", size(*memory), size(*missing))]
    WindowTooLarge {
        /// the window
        window: LayerRange,
        /// bytes that it needs
        memory: u64,
        /// bytes that the largest device that may hold it lacks
        missing: u64,
    },
    /// an end of the ring by hand outside
    #[error("window {window} sees the text, and no device or pool that it may go to is inside the cluster")]
    NobodyMayHold {
        /// the window
        window: LayerRange,
    },
    /// more windows by hand than stages
    #[error("window {window} finds all stages taken: raise maxStages or merge windows")]
    NoPlaceLeft {
        /// the window
        window: LayerRange,
    },
    /// an end of the ring left to the market
    #[error("window {window} sees the text and can't be left to the market unless trustedEnds is false")]
    OpenEnd {
        /// the window
        window: LayerRange,
    },
    /// an open window past the market's terms
    #[error("open window {window} has {}, and the market's windows have {} at most: cut it", size(*bytes), size(*allowed))]
    OpenTooLarge {
        /// the window
        window: LayerRange,
        /// bytes of its tensors
        bytes: u64,
        /// bytes allowed
        allowed: u64,
    },
    /// more open layers than the market's terms allow
    #[error("{layers} layers are left to the market, which may take {allowed}")]
    TooManyOpen {
        /// layers left
        layers: u32,
        /// layers allowed
        allowed: u32,
    },
}

impl Error {
    /// Stable `PascalCase` word for metrics, events and conditions.
    pub fn reason(&self) -> &'static str {
        match self {
            Error::EndTooLarge { .. } | Error::NotCovered { .. } | Error::WindowTooLarge { .. } => "InsufficientMemory",
            Error::Sizes(error) => error.reason(),
            _ => "InvalidPlan",
        }
    }
}

/// A device of the market as the planner imagines it: a laptop at the end of a home's line.
fn volunteer() -> Device {
    Device {
        name: String::new(),
        placement: Placement::Outside,
        max_stages: MAX_LAYERS,
        memory: u64::MAX,
        decode: 20_000_000_000,
        prefill: 200_000_000_000,
        latency: Duration::from_millis(20),
        bandwidth: 2_500_000,
    }
}

/// Cuts the model into windows and gives them to devices, so that a token takes the least time; of plans that take the
/// same, the one with fewer ranks. Layers that no device can take are left to the market, as few as can be and within
/// its terms. Windows in the request are taken as they are, once they are found sound.
///
/// 64 devices and 126 layers take some 10 ms.
pub fn plan(profile: &ModelProfile, devices: &[Device], request: &Request) -> Result<Plan, Error> {
    let layers = profile.layers.len();
    if layers == 0 || layers > MAX_LAYERS as usize {
        return Err(Error::Layers { layers });
    }
    let needs = Needs::new(profile, request).map_err(Error::Sizes)?;
    let slots = if request.windows.is_empty() {
        search(profile, &needs, devices, request)?
    } else {
        manual::place(profile, &needs, devices, request)?
    };
    Ok(Plan {
        ranks: ranks(&needs, devices, profile, request, &slots),
        model: model_ref(profile),
        request: request.clone(),
    })
}

fn search(profile: &ModelProfile, needs: &Needs, devices: &[Device], request: &Request) -> Result<Vec<Slot>, Error> {
    let (mut problem, members) = problem(profile, needs, devices, request);
    let mut way = problem.solve();
    if way.is_none() {
        // also where nothing may be left to the market: what would be is what is missing
        problem.open = Some(open_seat(profile, needs, request));
        way = problem.solve();
    }
    let (cost, taken) = way.ok_or_else(|| ends_are_missing(profile, needs, devices))?;
    let allowed = request.market.map_or(0, |terms| terms.max_layers);
    if cost.open > i64::from(allowed) {
        return Err(not_covered(needs, &taken, allowed));
    }
    let mut members: Vec<_> = members.into_iter().map(Vec::into_iter).collect();
    Ok(balance(&problem, taken)
        .iter()
        .map(|taken| Slot {
            layers: taken.window(),
            device: taken.seat.and_then(|seat| members[seat].next()),
        })
        .collect())
}

/// The problem without the market, and the devices of each of its seats: those that are alike share one.
pub(crate) fn problem(
    profile: &ModelProfile,
    needs: &Needs,
    devices: &[Device],
    request: &Request,
) -> (Problem, Vec<Vec<usize>>) {
    let boundary = request.boundary_type.row_bytes(profile.embedding_length);
    let mut problem = Problem {
        layers: needs.layers(),
        last_start: profile.last_start,
        no_last_start: profile.refused_last_starts.clone(),
        indivisible: profile.indivisible.is_some(),
        trusted_ends: request.trusted_ends,
        seats: Vec::new(),
        open: None,
    };
    let mut members: Vec<Vec<usize>> = Vec::new();
    for (index, device) in devices.iter().enumerate().filter(|(_, device)| device.max_stages > 0) {
        let fits = |window| needs.rank(window).memory() <= device.memory;
        let seat = Seat::new(device, needs, boundary, false, fits);
        let places = std::iter::repeat_n(index, seat.count as usize);
        if let Some(known) = problem.seats.iter().position(|known| known.is_like(&seat)) {
            let count = &mut problem.seats[known].count;
            *count = (*count + seat.count).min(needs.layers());
            members[known].extend(places);
        } else {
            problem.seats.push(seat);
            members.push(places.collect());
        }
    }
    (problem, members)
}

/// The market: windows up to its limit, and the smallest ones that can be cut whatever their size.
pub(crate) fn open_seat(profile: &ModelProfile, needs: &Needs, request: &Request) -> Seat {
    let boundary = request.boundary_type.row_bytes(profile.embedding_length);
    Seat::new(&volunteer(), needs, boundary, true, |window| {
        fits_market(profile, needs, request, window)
    })
}

/// Whether the market's limit allows the window.
pub(crate) fn fits_market(profile: &ModelProfile, needs: &Needs, request: &Request, window: LayerRange) -> bool {
    let floor = window.len() <= 1 || window.end == needs.layers() && window.start >= profile.last_start;
    floor
        || request
            .market
            .is_none_or(|terms| needs.own_bytes(window) <= terms.max_window_bytes)
}

fn not_covered(needs: &Needs, taken: &[Taken], allowed: u32) -> Error {
    let open = || taken.iter().filter(|taken| taken.seat.is_none()).map(Taken::window);
    Error::NotCovered {
        layer: open().next().map_or(0, |window| window.start),
        layers: open().map(LayerRange::len).sum(),
        missing: open()
            .map(|window| needs.rank(window))
            .map(|need| need.weights + need.cache)
            .sum(),
        allowed,
    }
}

/// Why not even a market that takes everything in the middle helps.
fn ends_are_missing(profile: &ModelProfile, needs: &Needs, devices: &[Device]) -> Error {
    if let Some(why) = &profile.indivisible {
        return Error::Indivisible { why: why.clone() };
    }
    let layers = needs.layers();
    let inside = devices
        .iter()
        .filter(|d| d.placement == Placement::Inside && d.max_stages > 0);
    let largest = inside.map(|device| device.memory).max().unwrap_or(0);
    let first = LayerRange { start: 0, end: 1 };
    let last = LayerRange {
        start: profile.last_start.min(layers - 1),
        end: layers,
    };
    for (window, layer) in [(first, 0), (last, layers - 1)] {
        let missing = needs.rank(window).memory().saturating_sub(largest);
        if missing > 0 {
            return Error::EndTooLarge { layer, missing };
        }
    }
    Error::EndsInside
}

fn ranks(
    needs: &Needs,
    devices: &[Device],
    profile: &ModelProfile,
    request: &Request,
    slots: &[Slot],
) -> Vec<PlannedRank> {
    let volunteer = volunteer();
    let device = |slot: &Slot| slot.device.map_or(&volunteer, |index| &devices[index]);
    let boundary = request.boundary_type.row_bytes(profile.embedding_length);
    let duration = |nanos: i64| Duration::from_nanos(nanos.unsigned_abs());
    let hop = |number: usize| {
        let next = (number + 1) % slots.len();
        if slots.len() == 1 {
            return Duration::ZERO;
        }
        // tokens, not hidden states, come home
        let bytes = if next == 0 { 0 } else { boundary };
        [&slots[number], &slots[next]]
            .into_iter()
            .map(device)
            .map(|device| {
                device
                    .latency
                    .saturating_add(duration(nanos_for(bytes, device.bandwidth)))
            })
            .fold(Duration::ZERO, Duration::saturating_add)
    };
    slots
        .iter()
        .enumerate()
        .map(|(number, slot)| PlannedRank {
            layers: slot.layers,
            placement: slot.device.map(|index| devices[index].name.clone()),
            need: needs.rank(slot.layers),
            budget: slot.device.map(|index| devices[index].memory),
            decode: duration(nanos_for(needs.active(slot.layers), device(slot).decode)),
            prefill: duration(nanos_for(needs.active(slot.layers), device(slot).prefill)),
            hop: hop(number),
        })
        .collect()
}

fn model_ref(profile: &ModelProfile) -> ModelRef {
    ModelRef {
        name: String::new(),
        architecture: profile.architecture.clone(),
        identity: profile.identity.clone(),
        embedding_length: profile.embedding_length,
        layers: profile.layer_count(),
        vocabulary: profile.vocabulary,
        prefix_bytes: profile.prefix_bytes.clone(),
    }
}

impl Plan {
    /// Time from one token of a sequence to its next: all windows and all hops.
    pub fn token_time(&self) -> Duration {
        self.ranks
            .iter()
            .map(|rank| rank.decode.saturating_add(rank.hop))
            .fold(Duration::ZERO, Duration::saturating_add)
    }

    /// Tokens of one prompt per second once its laps fill the ring: the slowest rank sets the pace.
    pub fn prompt_tokens_per_second(&self) -> f64 {
        let slowest = self.ranks.iter().map(|rank| rank.prefill).max().unwrap_or_default();
        1.0 / slowest.max(Duration::from_nanos(1)).as_secs_f64()
    }

    /// Layers left to the market.
    pub fn open_layers(&self) -> u32 {
        self.ranks
            .iter()
            .filter(|rank| rank.placement.is_none())
            .map(|rank| rank.layers.len())
            .sum()
    }

    /// Laps in flight and their size, as planned for.
    pub fn laps(&self) -> LapShape {
        self.request.laps
    }

    /// The plan as lines of a table.
    pub fn rows(&self) -> Vec<Row> {
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.ranks
            .iter()
            .enumerate()
            .map(|(number, rank)| Row {
                rank: number,
                layers: rank.layers.to_string(),
                placement: rank.placement.clone().unwrap_or_else(|| "open".into()),
                fetch_bytes: rank.need.fetch,
                memory_bytes: rank.need.memory(),
                budget_bytes: rank.budget,
                decode_micros: micros(rank.decode),
                hop_micros: micros(rank.hop),
            })
            .collect()
    }

    /// The rank manifest of epoch 0, before anybody holds anything. `ring` is the ring's name, `model` the name that the
    /// API serves the model under.
    pub fn manifest(&self, ring: &str, model: &str) -> RankManifest {
        RankManifest {
            ring: ring.into(),
            epoch: 0,
            model: ModelRef {
                name: model.into(),
                ..self.model.clone()
            },
            boundary_type: self.request.boundary_type,
            exact: self.request.exact,
            context_length: self.request.context_length,
            sequences: self.request.sequences,
            max_laps: self.request.laps.max_laps,
            max_lap_tokens: self.request.laps.max_lap_tokens,
            ranks: self
                .ranks
                .iter()
                .map(|rank| Rank {
                    layers: rank.layers,
                    bytes: rank.need.fetch,
                    memory: rank.need.memory(),
                    placement: rank.placement.clone(),
                    holder: None,
                })
                .collect(),
        }
    }
}
