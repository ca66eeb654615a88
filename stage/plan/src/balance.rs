//! Evens out the windows of devices that are equally fast. A token takes as long either way, but with several laps in
//! flight the slowest stage sets the pace of all.

use crate::search::{Problem, Seat, Taken};

/// Layers left to the market, nanoseconds of all ranks, and the sum of their squares.
type Weight = (i64, i64, u128);

/// The same seats in the same order, cut so that the sum stays least and then that of squares is: that makes times as
/// alike as they can be, those of the slowest ranks first of all.
pub(crate) fn balance(problem: &Problem, ranks: Vec<Taken>) -> Vec<Taken> {
    let layers = problem.layers as usize;
    let seat_of = |taken: &Taken| taken.seat.map_or(problem.open.as_ref(), |seat| problem.seats.get(seat));
    let Some(seats) = ranks.iter().map(seat_of).collect::<Option<Vec<&Seat>>>() else {
        return ranks;
    };

    // best[r][e]: the first r ranks hold the layers before e; where the last of them starts
    let mut best: Vec<Vec<Option<(Weight, u32)>>> = vec![vec![None; layers + 1]; ranks.len() + 1];
    best[0][0] = Some((Weight::default(), 0));
    for (number, seat) in seats.iter().enumerate() {
        let last = number + 1 == seats.len();
        let (before, after) = best.split_at_mut(number + 1);
        let ends = if last {
            problem.layers..=problem.layers
        } else {
            1..=problem.layers.saturating_sub(1)
        };
        for end in ends {
            let starts: Vec<u32> = if last {
                problem.last_starts(seat).collect()
            } else {
                (seat.earliest[end as usize]..end).collect()
            };
            for start in starts {
                let Some(((open, sum, squares), _)) = before[number][start as usize] else {
                    continue;
                };
                let mut cost = seat.upto(end) - seat.upto(start);
                if last {
                    cost = cost + seat.head();
                }
                let square = u128::from(cost.nanos.unsigned_abs()).pow(2);
                let weight = (open + cost.open, sum + cost.nanos, squares + square);
                let place = &mut after[0][end as usize];
                if place.is_none_or(|(known, _)| weight < known) {
                    *place = Some((weight, start));
                }
            }
        }
    }

    let mut end = problem.layers;
    let mut cut = ranks.clone();
    for (number, taken) in cut.iter_mut().enumerate().rev() {
        let Some((_, start)) = best[number + 1][end as usize] else {
            return ranks;
        };
        (taken.start, taken.end) = (start, end);
        end = start;
    }
    cut
}
