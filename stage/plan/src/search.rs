//! Finds who holds which window: the cheapest way round the ring that fits every memory.
//!
//! A rank's time is the bytes that it reads over the speed of its device, plus the device's own share of the hops
//! beside it. So the time of a ring is a sum over its ranks, in which a rank's neighbours don't appear, and one device
//! after the other can be added to a table "cheapest way to have held the first `l` layers" ([`Line`]). Where few
//! *kinds* of devices compete, the table is kept for each number of devices used of each kind, and the answer is the
//! optimum ([`exact`]). Where many do, it is kept for one order of the devices at a time, of which any may be left out,
//! and good orders are tried ([`orders`]); layers that are alike make the order irrelevant, so little is lost.

mod exact;
mod orders;
mod seat;

use std::ops::{Add, Sub};

use crate::LayerRange;

pub(crate) use seat::{Seat, nanos_for};

/// Steps that the exact search may take; one is a few nanoseconds.
const EXACT_STEPS: usize = 2_000_000;

/// Steps that the search through orders may take.
const ORDER_STEPS: usize = 1_000_000;

/// What a way costs, most important first: layers left to the market, nanoseconds for one token, ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Cost {
    pub(crate) open: i64,
    pub(crate) nanos: i64,
    pub(crate) ranks: i64,
}

impl Add for Cost {
    type Output = Cost;

    fn add(self, other: Cost) -> Cost {
        Cost {
            open: self.open + other.open,
            nanos: self.nanos + other.nanos,
            ranks: self.ranks + other.ranks,
        }
    }
}

impl Sub for Cost {
    type Output = Cost;

    fn sub(self, other: Cost) -> Cost {
        Cost {
            open: self.open - other.open,
            nanos: self.nanos - other.nanos,
            ranks: self.ranks - other.ranks,
        }
    }
}

/// What is being cut, and among whom.
#[derive(Debug)]
pub(crate) struct Problem {
    /// layers of the model
    pub(crate) layers: u32,
    /// the last window starts here or before
    pub(crate) last_start: u32,
    /// and at none of these layers
    pub(crate) no_last_start: Vec<u32>,
    /// only the whole model may be a window
    pub(crate) indivisible: bool,
    /// the first and the last window stay inside
    pub(crate) trusted_ends: bool,
    /// kinds of devices
    pub(crate) seats: Vec<Seat>,
    /// the market, of which there is as much as one likes
    pub(crate) open: Option<Seat>,
}

/// One rank of the answer: a seat (none: the market) and its window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) seat: Option<usize>,
    pub(crate) start: u32,
    pub(crate) end: u32,
}

impl Taken {
    pub(crate) fn window(&self) -> LayerRange {
        LayerRange {
            start: self.start,
            end: self.end,
        }
    }
}

/// An answer: its cost, and its ranks in ring order.
pub(crate) type Way = (Cost, Vec<Taken>);

/// The cheapest way to hold the first `l` layers, for each `l`.
type Line = Vec<Option<Step>>;

#[derive(Clone, Copy, Debug)]
struct Step {
    cost: Cost,
    /// the last rank of the way; none where no layer is held yet, or where the line before had the way already
    via: Option<Taken>,
}

impl Problem {
    /// The cheapest way round that the search finds; none when no way holds all layers.
    pub(crate) fn solve(&self) -> Option<Way> {
        if exact::steps(self).is_some_and(|steps| steps <= EXACT_STEPS) {
            exact::solve(self)
        } else {
            orders::solve(self, ORDER_STEPS)
        }
    }

    /// A line on which nothing is held yet.
    fn start(&self) -> Line {
        let mut line = vec![None; self.layers as usize + 1];
        line[0] = Some(Step {
            cost: Cost::default(),
            via: None,
        });
        line
    }

    fn empty(&self) -> Line {
        vec![None; self.layers as usize + 1]
    }

    /// Adds one rank on `seat` behind every way of `from` and keeps in `line` what is cheaper than what it has. Without
    /// `from`, adds any number of ranks behind the ways of `line` itself.
    fn relax(&self, number: Option<usize>, seat: &Seat, line: &mut Line, from: Option<&Line>) {
        let rank = |start, end| {
            Some(Taken {
                seat: number,
                start,
                end,
            })
        };
        // Costs of ways that end at `l`, less what the seat's windows would cost up to there: the cheapest of them is the
        // cheapest start for every end. Starts that fit move up with the end, so a queue of rising costs holds them.
        let mut starts: Vec<(Cost, u32)> = Vec::new();
        let mut head = 0;
        for end in 1..self.layers {
            let start = end - 1;
            let way = from.map_or(&line[start as usize], |from| &from[start as usize]);
            let allowed = !self.indivisible && (start > 0 || seat.inside || !self.trusted_ends);
            if let Some(step) = way.as_ref().filter(|_| allowed) {
                let key = step.cost - seat.upto(start) + seat.hops(start == 0, false);
                while starts.len() > head && starts.last().is_some_and(|(cost, _)| *cost >= key) {
                    starts.pop();
                }
                starts.push((key, start));
            }
            while starts
                .get(head)
                .is_some_and(|(_, start)| *start < seat.earliest[end as usize])
            {
                head += 1;
            }
            if let Some((key, start)) = starts.get(head) {
                offer(line, end, *key + seat.upto(end), rank(*start, end));
            }
        }
        if self.trusted_ends && !seat.inside {
            return;
        }
        let end = self.layers;
        for start in self.last_starts(seat) {
            let way = from.map_or(&line[start as usize], |from| &from[start as usize]);
            if let Some(step) = way {
                let cost = step.cost - seat.upto(start) + seat.upto(end) + seat.head() + seat.hops(start == 0, true);
                offer(line, end, cost, rank(start, end));
            }
        }
    }

    /// Layers at which a last window on this seat may start.
    pub(crate) fn last_starts<'a>(&'a self, seat: &Seat) -> impl Iterator<Item = u32> + use<'a> {
        let latest = if self.indivisible {
            0
        } else {
            self.last_start.min(self.layers.saturating_sub(1))
        };
        let earliest = seat.earliest[self.layers as usize];
        (earliest..=latest).filter(|start| !self.no_last_start.contains(start))
    }
}

fn offer(line: &mut Line, end: u32, cost: Cost, via: Option<Taken>) {
    let place = &mut line[end as usize];
    if place.as_ref().is_none_or(|step| cost < step.cost) {
        *place = Some(Step { cost, via });
    }
}

#[cfg(test)]
mod tests;
