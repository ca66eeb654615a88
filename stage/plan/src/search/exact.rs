//! The optimum, where few kinds of devices compete: one line for each number of devices used of each kind.

use super::{Problem, Taken, Way};

/// Lines to fill times ends in each; none when that is past counting.
pub(super) fn steps(problem: &Problem) -> Option<usize> {
    let states = problem
        .seats
        .iter()
        .try_fold(1usize, |n, seat| n.checked_mul(seat.count as usize + 1))?;
    states
        .checked_mul(problem.seats.len() + 1)?
        .checked_mul(problem.layers as usize)
}

/// The cheapest way of all. A state is a number whose digits say how many devices of each kind are used; using one more
/// makes it larger, so that going through the states in order meets each line when it is finished.
pub(super) fn solve(problem: &Problem) -> Option<Way> {
    let mut weights = Vec::with_capacity(problem.seats.len());
    let mut states = 1usize;
    for seat in &problem.seats {
        weights.push(states);
        states *= seat.count as usize + 1;
    }
    let mut lines = vec![problem.empty(); states];
    lines[0] = problem.start();
    for state in 0..states {
        let (done, later) = lines.split_at_mut(state + 1);
        let line = &mut done[state];
        if let Some(open) = &problem.open {
            problem.relax(None, open, line, None);
        }
        for (number, seat) in problem.seats.iter().enumerate() {
            let used = state / weights[number] % (seat.count as usize + 1);
            if used < seat.count as usize {
                let next = &mut later[weights[number] - 1];
                problem.relax(Some(number), seat, next, Some(line));
            }
        }
    }

    let end = problem.layers as usize;
    let reached = lines
        .iter()
        .enumerate()
        .filter_map(|(state, line)| Some((line[end]?.cost, state)));
    let (cost, mut state) = reached.min()?;
    let mut ranks: Vec<Taken> = Vec::new();
    let mut at = end;
    while let Some(taken) = lines[state][at].and_then(|step| step.via) {
        state -= taken.seat.map_or(0, |seat| weights[seat]);
        at = taken.start as usize;
        ranks.push(taken);
    }
    ranks.reverse();
    Some((cost, ranks))
}
