//! A good way, where many kinds of devices compete: the best one in each of many orders of the devices.

use std::iter::repeat_n;

use super::{Line, Problem, Seat, Taken, Way};

/// Kinds of devices tried as the last rank of each order, the most promising ones.
const LASTS: usize = 16;
/// Orders tried at least, however long they are.
const LEAST: usize = 8;

/// The best way found: from orders that put the likely devices first, and then from exchanges in the best of them.
pub(super) fn solve(problem: &Problem, steps: usize) -> Option<Way> {
    let units: usize = problem.seats.iter().map(|seat| seat.count as usize).sum();
    let tries = (steps / (units * problem.layers as usize).max(1)).max(LEAST);

    let mut best: Option<(Way, Vec<usize>)> = None;
    let attempt = |order: Vec<usize>, best: &mut Option<(Way, Vec<usize>)>| {
        if let Some(way) = in_order(problem, &order)
            // as good is good enough to go on from: exchanges lead across, where none leads down
            && best.as_ref().is_none_or(|(known, _)| way.0 <= known.0)
        {
            *best = Some((way, order));
        }
    };
    let starts = starting_orders(problem);
    let rest = tries.saturating_sub(starts.len());
    for order in starts.into_iter().take(tries) {
        attempt(order, &mut best);
    }
    let mut dice = Dice(0x6b76_6173_6972);
    for _ in 0..rest {
        let Some((_, order)) = best.as_ref().filter(|(_, order)| !order.is_empty()) else {
            break;
        };
        let mut order = order.clone();
        // two at once, now and then, since one alone may make it worse
        for _ in 0..=dice.below(2) {
            let (from, to) = (dice.below(order.len()), dice.below(order.len()));
            if dice.below(2) == 0 {
                order.swap(from, to);
            } else {
                let unit = order.remove(from);
                order.insert(to, unit);
            }
        }
        attempt(order, &mut best);
    }
    best.map(|(way, _)| way)
}

/// Orders by what devices promise, each also with every device that could be last moved there.
fn starting_orders(problem: &Problem) -> Vec<Vec<usize>> {
    let seats = &problem.seats;
    let room = |seat: &Seat| {
        (1..=problem.layers)
            .map(|end| end - seat.earliest[end as usize])
            .max()
            .unwrap_or(0)
    };
    let whole = |seat: &Seat| (seat.upto(problem.layers) + seat.head()).nanos;
    // nanoseconds for one layer when the device is as full as it can be, its hops included
    let filled = |seat: &Seat| {
        let hops = seat.hops(false, false).nanos / i64::from(room(seat).max(1));
        whole(seat) / i64::from(problem.layers) + hops
    };
    let promises: [Vec<i64>; 3] = [
        seats.iter().map(filled).collect(),
        seats.iter().map(|seat| -i64::from(room(seat))).collect(),
        seats.iter().map(whole).collect(),
    ];

    let mut orders = Vec::new();
    for promise in promises {
        let mut kinds: Vec<usize> = (0..seats.len()).collect();
        // rank 0 stays inside, so those inside come first
        kinds.sort_by_key(|&seat| (!seats[seat].inside, promise[seat]));
        // like beside like, and one of each kind in turn, out of which the search can take any mixture
        let count = |seat: usize| seats[seat].count as usize;
        let blocks: Vec<usize> = kinds.iter().flat_map(|&seat| repeat_n(seat, count(seat))).collect();
        let rounds = 0..kinds.iter().map(|&seat| count(seat)).max().unwrap_or(0);
        let turns: Vec<usize> = rounds
            .flat_map(|round| kinds.iter().copied().filter(move |&seat| round < count(seat)))
            .collect();
        let may_be_last = |&seat: &usize| {
            let trusted = seats[seat].inside || !problem.trusted_ends;
            trusted && problem.last_starts(&seats[seat]).next().is_some()
        };
        let lasts: Vec<usize> = kinds.iter().copied().filter(may_be_last).take(LASTS).collect();
        let alike = blocks == turns;
        for units in [turns, blocks].into_iter().skip(usize::from(alike)) {
            orders.push(units.clone());
            for last in &lasts {
                let mut order = units.clone();
                if let Some(at) = units.iter().rposition(|seat| seat == last) {
                    order[at..].rotate_left(1);
                }
                orders.push(order);
            }
        }
    }
    orders
}

/// The cheapest way that uses some of the devices in this order.
fn in_order(problem: &Problem, order: &[usize]) -> Option<Way> {
    let mut lines: Vec<Line> = Vec::with_capacity(order.len() + 1);
    let open = |line: &mut Line| {
        if let Some(open) = &problem.open {
            problem.relax(None, open, line, None);
        }
    };
    let mut line = problem.start();
    open(&mut line);
    lines.push(line);
    for &seat in order {
        let before = &lines[lines.len() - 1];
        // what isn't improved is taken over
        let mut line: Line = before
            .iter()
            .map(|step| step.map(|step| super::Step { via: None, ..step }))
            .collect();
        problem.relax(Some(seat), &problem.seats[seat], &mut line, Some(before));
        open(&mut line);
        lines.push(line);
    }

    let mut at = problem.layers as usize;
    let cost = lines.last()?[at]?.cost;
    let mut ranks: Vec<Taken> = Vec::new();
    let mut number = order.len();
    loop {
        match lines[number][at].and_then(|step| step.via) {
            Some(taken) => {
                at = taken.start as usize;
                number -= usize::from(taken.seat.is_some());
                ranks.push(taken);
            }
            None if number == 0 => break,
            None => number -= 1,
        }
    }
    ranks.reverse();
    Some((cost, ranks))
}

/// The same throws on every machine (`SplitMix64`).
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % bound.max(1) as u64) as usize
    }
}
