//! What always holds, numbered. Predicates of one state are asserted in debug builds after every command; these and those
//! of two states are checked by the property tests after every random one, and by the model over every interleaving.
//!
//! - **R1** A window is served by at most one claim, and at most one more waits in line for it.
//! - **R2** A claim waits only for claims of its own node that are live, loaded and within its windows, and it isn't
//!   loaded itself.
//! - **R3** Generations only grow, none is given out twice, and a claim that is over stays over.
//! - **R4** A process that a newer one took over from gets no claim any more.
//! - **R5** A reserved window is held by nobody but its node.
//! - **R6** What is proposed has the newest epoch, above the published one, covers every layer by live, loaded claims
//!   that wait for nobody, one rank each, and is for a node to sign to whom the owner delegated and which holds rank 0.
//! - **R7** What is published is signed down from the owner's key.
//! - **R8** A window counts as uncovered exactly while no loaded claim holds it.
//! - **R9** Epochs only grow, and one epoch never names two manifests: what is published was proposed.
//! - **R10** Each claim of an epoch earns floor(counter·rate/10⁶) in all, once, and nothing where the ends aren't the
//!   owner's.
//! - **R11** Epochs in which a node never came to its relay are counted once each, in order, and too many of them are
//!   never on its account: the claim ended.
//! - **R12** A node that is paused gets no claim on a window that another node could have and that it didn't hold.
//! - **R13** An epoch is published as one in which no lap went round yet, and once one did that is not taken back.

use kvasir_wire::trust::TrustError;

use super::{
    Credit, EpochAccount, RingState, absence,
    epochs::{Proposed, Published},
    ledger::worth,
};

/// An invariant that doesn't hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Broken {
    pub(super) rule: &'static str,
    pub(super) detail: String,
}

type Held = Result<(), Broken>;

fn holds(rule: &'static str, held: bool, detail: impl FnOnce() -> String) -> Held {
    if held {
        return Ok(());
    }
    Err(Broken { rule, detail: detail() })
}

/// R1 to R3, R5, R6, R8 and R11, of one state.
pub(super) fn check(state: &RingState) -> Held {
    if state.withdrawn {
        return holds("R3", state.leases.is_empty(), || {
            "a ring off the market has claims".to_owned()
        });
    }
    windows(state)?;
    waiting(state)?;
    generations(state)?;
    missed(state)?;
    if let Some(proposed) = &state.proposed {
        proposal(state, proposed)?;
    }
    if let Some(published) = &state.published {
        let epoch = published.manifest.epoch;
        holds("R9", epoch <= state.epoch, || {
            format!("epoch {epoch} is published, {} given out", state.epoch)
        })?;
    }
    Ok(())
}

fn windows(state: &RingState) -> Held {
    for window in 0..state.count() {
        let holding = state.leases.values().filter(|lease| lease.windows.holds(window));
        let serving = holding.clone().filter(|lease| lease.serves()).count();
        let waiting = holding.clone().count() - serving;
        holds("R1", serving <= 1 && waiting <= 1, || {
            format!("window {window} has {serving} claims, and {waiting} in line")
        })?;
        let reserved = state.demand.reserved.get(&window);
        holds(
            "R5",
            reserved.is_none_or(|node| holding.clone().all(|lease| lease.node == *node)),
            || format!("window {window} is held by another node than it is kept for"),
        )?;
        let uncovered = state.uncovered_since.get(window as usize).copied().flatten().is_some();
        holds("R8", uncovered != state.covered(window), || {
            format!("window {window} counts as uncovered: {uncovered}")
        })?;
    }
    let inside = |end: u32| end <= state.count();
    let all_inside = state
        .leases
        .values()
        .all(|lease| !lease.windows.is_empty() && inside(lease.windows.end));
    holds("R1", all_inside, || "a claim is on windows that aren't".to_owned())
}

fn waiting(state: &RingState) -> Held {
    for (id, lease) in &state.leases {
        let priced = lease.rates.len() as u32 == lease.windows.len();
        holds("R2", priced, || format!("claim {id} has {} rates", lease.rates.len()))?;
        for replaced in &lease.replaces {
            let sound = state.leases.get(replaced).is_some_and(|old| {
                old.node == lease.node && old.ready() && old.serves() && lease.windows.covers(old.windows)
            });
            holds("R2", sound && !lease.ready() && replaced < id, || {
                format!("claim {id} waits for claim {replaced}")
            })?;
        }
    }
    Ok(())
}

fn generations(state: &RingState) -> Held {
    let newest = state.leases.keys().next_back().copied().unwrap_or_default();
    let given = state.generation;
    holds("R3", newest <= given, || {
        format!("claim {newest} is above generation {given}")
    })?;
    let risen = state.ended.iter().find(|(id, _)| state.leases.contains_key(id));
    holds("R3", risen.is_none(), || {
        format!("a claim that is over is live: {risen:?}")
    })
}

fn missed(state: &RingState) -> Held {
    for (node, standing) in &state.nodes {
        let epochs: Vec<u64> = standing.missed.iter().map(|missed| missed.epoch).collect();
        let in_order = epochs.is_sorted_by(|a, b| a < b) && epochs.last().is_none_or(|last| *last <= state.epoch);
        holds("R11", in_order && epochs.len() < absence::MISSES, || {
            format!("node {node} was missing in epochs {epochs:?}")
        })?;
    }
    Ok(())
}

fn proposal(state: &RingState, proposed: &Proposed) -> Held {
    let Proposed { proposal, claims } = proposed;
    let manifest = &proposal.manifest;
    let published = state.published.as_ref().map_or(0, |published| published.manifest.epoch);
    holds(
        "R6",
        manifest.epoch == state.epoch && manifest.epoch > published,
        || {
            format!(
                "epoch {} is proposed, {published} published, {} given out",
                manifest.epoch, state.epoch
            )
        },
    )?;
    let delegate = proposal.delegation.delegate;
    let rank0 = manifest.ranks.first().and_then(|rank| rank.holder.as_ref());
    let delegated = state.demand.delegations.contains(&proposal.delegation);
    holds(
        "R6",
        delegated && rank0.is_some_and(|holder| holder.node == delegate.to_string()),
        || format!("{delegate} would sign, rank 0 is {rank0:?}"),
    )?;
    holds("R6", manifest.validate().is_ok(), || {
        format!("{:?}", manifest.validate())
    })?;
    holds("R6", claims.len() == manifest.ranks.len(), || {
        format!("{} claims", claims.len())
    })?;
    let mut next = 0;
    for (id, rank) in claims.iter().zip(&manifest.ranks) {
        let sound = state.leases.get(id).is_some_and(|lease| {
            let holder = rank.holder.as_ref();
            let in_order = lease.windows.start == next && rank.layers == state.layers(lease.windows);
            next = lease.windows.end;
            let same = holder.is_some_and(|h| h.instance == lease.instance && h.node == lease.node.to_string());
            in_order && same && lease.ready() && lease.serves()
        });
        holds("R6", sound, || {
            format!("claim {id} is no live, loaded holder of layers {}", rank.layers)
        })?;
    }
    holds("R6", next == state.count(), || {
        format!("windows from {next} on have no rank")
    })
}

/// R7, of one state: apart from the others, since checking signatures takes long.
pub(super) fn check_signed(state: &RingState) -> Held {
    let Some(Published { signed, manifest, .. }) = &state.published else {
        return Ok(());
    };
    let verified: Result<_, TrustError> = signed.verify(&state.owner, state.ring(), 0);
    holds(
        "R7",
        verified.as_ref().is_ok_and(|verified| verified == manifest),
        || format!("{:?}", verified.err()),
    )
}

/// R3, R4, R9, R12 and R13, of two states that follow one another.
#[cfg(test)]
pub(super) fn check_step(before: &RingState, after: &RingState) -> Held {
    let grown = before.epoch <= after.epoch && before.generation <= after.generation;
    holds("R3", grown, || "an epoch or a generation shrank".to_owned())?;
    let new = after.leases.keys().filter(|id| !before.leases.contains_key(id));
    let risen = new.clone().find(|id| **id <= before.generation);
    holds("R3", risen.is_none(), || format!("claim {risen:?} is back"))?;
    let fenced = new.clone().find(|id| {
        let lease = after.leases.get(id);
        lease.is_some_and(|lease| before.fenced(lease.node, &lease.instance))
    });
    holds("R4", fenced.is_none(), || {
        format!("claim {fenced:?} went to a replaced process")
    })?;
    for lease in new.filter_map(|id| after.leases.get(id)) {
        // it was claimed just now
        let paused = before.paused(lease.renewed_at, lease.node).is_some();
        let held = |window: u32| {
            let mut leases = before.leases.values();
            leases.any(|old| old.node == lease.node && old.windows.holds(window))
        };
        let mut windows = lease.windows.windows();
        let gained = windows.find(|window| !after.demand.reserved.contains_key(window) && !held(*window));
        holds("R12", !paused || gained.is_none(), || {
            format!("node {} is paused and has got window {gained:?}", lease.node)
        })?;
    }
    if let (Some(old), Some(new)) = (&before.proposed, &after.proposed) {
        let (old, new) = (&old.proposal.manifest, &new.proposal.manifest);
        holds("R9", old.epoch < new.epoch || old == new, || {
            format!("epoch {} is proposed twice", new.epoch)
        })?;
    }
    let Some(new) = &after.published else {
        return Ok(());
    };
    let epoch = new.manifest.epoch;
    match &before.published {
        Some(old) if old.manifest.epoch == epoch => {
            let same = (&old.signed, &old.manifest, &old.claims) == (&new.signed, &new.manifest, &new.claims);
            holds("R9", same, || format!("epoch {epoch} changed"))?;
            holds("R13", new.closed || !old.closed, || {
                format!("a lap went round in epoch {epoch}, and then none had")
            })
        }
        old => {
            let last = old.as_ref().map_or(0, |old| old.manifest.epoch);
            let proposed = before.proposed.as_ref().map(|proposed| &proposed.proposal.manifest);
            holds("R9", epoch > last && proposed == Some(&new.manifest), || {
                format!("epoch {epoch} follows {last} and was not proposed")
            })?;
            holds("R13", !new.closed, || {
                format!("epoch {epoch} was published as if a lap had gone round")
            })
        }
    }
}

/// R10, of the credits that just moved an account: each is the difference of two values of one formula.
pub(super) fn check_credits(account: &EpochAccount, credits: &[Credit]) -> Held {
    for credit in credits {
        let earner = account.earners.iter().find(|earner| earner.claim == credit.claim);
        let formula = worth(credit.to, credit.rate) - worth(credit.from, credit.rate);
        let sound = earner.is_some_and(|earner| earner.node == credit.node && earner.rate == credit.rate)
            && account.trusted
            && credit.from < credit.to
            && credit.to == account.committed
            && credit.amount == formula;
        holds("R10", sound, || format!("{credit:?}"))?;
    }
    Ok(())
}

/// R10, of all that was ever credited in an account.
#[cfg(test)]
pub(super) fn check_sum(account: &EpochAccount, credited: &std::collections::BTreeMap<u64, u64>) -> Held {
    for earner in &account.earners {
        let paid = credited.get(&earner.claim).copied().unwrap_or_default();
        let earned = if account.trusted {
            worth(account.committed, earner.rate)
        } else {
            0
        };
        holds("R10", paid == earned, || {
            format!("claim {} was paid {paid} for {earned}", earner.claim)
        })?;
    }
    let stranger = credited
        .keys()
        .find(|id| account.earners.iter().all(|earner| earner.claim != **id));
    holds("R10", stranger.is_none(), || {
        format!("claim {stranger:?} isn't of epoch {}", account.epoch)
    })
}
