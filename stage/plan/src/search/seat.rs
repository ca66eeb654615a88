//! A kind of device as the search sees it: which windows fit it, and what they cost there.

use super::Cost;
use crate::{Device, LayerRange, Needs, Placement};

/// Nanoseconds at most for anything, thirteen days: sums over all ranks of a ring stay far below 2^63.
const LONGEST: u128 = 1 << 50;

/// A kind of device, or the market.
#[derive(Clone, Debug)]
pub(crate) struct Seat {
    pub(crate) inside: bool,
    /// ranks that devices of this kind may hold
    pub(crate) count: u32,
    /// for each end, the first layer from which a window to there fits, and so does every shorter one; the end itself
    /// where none does. Never falls with the end, but for the last end, which carries the head.
    pub(crate) earliest: Vec<u32>,
    /// nanoseconds to compute the layers before
    nanos: Vec<i64>,
    head_nanos: i64,
    hop_nanos: i64,
    end_hop_nanos: i64,
    open: bool,
}

impl Seat {
    /// The seat of devices like this one, where `fits` says whether a window does.
    pub(crate) fn new(
        device: &Device,
        needs: &Needs,
        boundary_bytes: u64,
        open: bool,
        fits: impl Fn(LayerRange) -> bool,
    ) -> Seat {
        let layers = needs.layers();
        let mut earliest = vec![0; layers as usize + 1];
        let mut floor = 0;
        for end in 1..=layers {
            let mut start = end;
            while start > floor && fits(LayerRange { start: start - 1, end }) {
                start -= 1;
            }
            earliest[end as usize] = start;
            // what is too much up to here is too much beyond
            floor = floor.max(start.min(end - 1));
        }
        let nanos: Vec<i64> = (0..=layers)
            .map(|end| nanos_for(needs.active_before(end), device.decode))
            .collect();
        let whole = nanos_for(needs.active(LayerRange { start: 0, end: layers }), device.decode);
        let latency = 2 * clamp(device.latency.as_nanos());
        let bytes = nanos_for(boundary_bytes, device.bandwidth);
        Seat {
            inside: device.placement == Placement::Inside,
            count: device.max_stages.min(layers),
            earliest,
            head_nanos: whole - nanos[layers as usize],
            nanos,
            // what a hop carries passes the sender's link and the receiver's; tokens come home for nothing
            hop_nanos: latency + 2 * bytes,
            end_hop_nanos: latency + bytes,
            open,
        }
    }

    /// Whether two seats are of one kind.
    pub(crate) fn is_like(&self, other: &Seat) -> bool {
        let figures = |seat: &Seat| {
            (
                seat.inside,
                seat.open,
                seat.head_nanos,
                seat.hop_nanos,
                seat.end_hop_nanos,
            )
        };
        figures(self) == figures(other) && self.earliest == other.earliest && self.nanos == other.nanos
    }

    /// Cost of a window from layer 0 to `end`, without hops and head: windows cost what lies between two of these.
    pub(crate) fn upto(&self, end: u32) -> Cost {
        Cost {
            open: if self.open { end.into() } else { 0 },
            nanos: self.nanos[end as usize],
            ranks: 0,
        }
    }

    /// Cost of the head.
    pub(crate) fn head(&self) -> Cost {
        Cost {
            nanos: self.head_nanos,
            ..Cost::default()
        }
    }

    /// Cost of being a rank: the seat's share of its hops.
    pub(crate) fn hops(&self, first: bool, last: bool) -> Cost {
        Cost {
            open: 0,
            nanos: match (first, last) {
                (true, true) => 0,
                (false, false) => self.hop_nanos,
                _ => self.end_hop_nanos,
            },
            ranks: 1,
        }
    }
}

/// Nanoseconds for so many bytes at so many per second.
pub(crate) fn nanos_for(bytes: u64, per_second: u64) -> i64 {
    clamp(u128::from(bytes) * 1_000_000_000 / u128::from(per_second.max(1)))
}

fn clamp(nanos: u128) -> i64 {
    nanos.min(LONGEST) as i64
}
