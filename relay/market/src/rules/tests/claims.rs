//! Who gets a window, who keeps it, who loses it.

use super::*;

#[test]
fn of_two_claims_for_one_window_one_wins_and_the_other_hears_what_is_open() {
    // F3 (iii): the database orders two claims of the same instant, the rules see one after the other at one time
    let mut market = Market::new(demand(5));
    market.claim(2, 1, 3).unwrap();
    let Err(RuleError::Taken { window, open }) = market.claim(3, 2, 4) else {
        panic!("the second claim was granted");
    };
    assert_eq!(window, 2);
    let open: Vec<u32> = open.iter().map(|window| window.index).collect();
    assert_eq!(open, [3], "ends are kept for others, windows 1 and 2 are gone");
    let choice = choose_run(&market.offer(3).windows, GB, None).unwrap();
    market.claim(3, choice.windows.start, choice.windows.end).unwrap();
}

#[test]
fn a_claim_is_repeated_without_harm_when_its_answer_was_lost() {
    let mut market = Market::new(demand(4));
    let claim = market.claim(2, 1, 3).unwrap();
    assert_eq!(market.claim(2, 1, 3).unwrap(), claim);
    assert_eq!(market.claim(2, 2, 3).unwrap(), claim, "a part of it is in it");
    assert_eq!((claim.id, claim.generation, claim.lease_s), (1, 1, 15));
}

#[test]
fn reserved_windows_go_to_their_node_alone() {
    let mut market = Market::new(demand(3));
    assert_eq!(reason(market.claim(2, 0, 1)), "Taken");
    assert_eq!(reason(market.claim(2, 1, 3)), "Taken");
    assert_eq!(market.offer(2).windows[0].state, WindowState::Reserved);
    assert_eq!(market.offer(0).windows[0].state, WindowState::Open);
    market.claim(0, 0, 1).unwrap();
}

#[test]
fn windows_that_are_not_and_texts_without_end_are_refused() {
    let mut market = Market::new(demand(3));
    assert_eq!(reason(market.claim(2, 1, 4)), "UnknownWindows");
    assert_eq!(reason(market.claim(2, 1, 1)), "UnknownWindows");
    assert_eq!(reason(market.claim(2, 2, 1)), "UnknownWindows");
    assert_eq!(reason(market.claim(2, u32::MAX, u32::MAX)), "UnknownWindows");
    assert_eq!(reason(market.claim_as(2, &"x".repeat(300), 1, 2)), "TooLong");
    assert_eq!(market.ring.generation, 0);
}

#[test]
fn a_node_claims_no_more_than_its_memory_over_all_its_claims() {
    let mut market = Market::new(demand(12));
    let Err(RuleError::TooLarge { wanted, memory, .. }) = market.claim(2, 1, 10) else {
        panic!("nine GB were granted to a node with eight");
    };
    assert_eq!((wanted, memory), (9 * GB, 8 * GB));
    market.claim(2, 1, 6).unwrap();
    assert_eq!(reason(market.claim(2, 7, 11)), "TooLarge");
    market.claim(2, 7, 10).unwrap();
}

#[test]
fn a_process_that_claims_next_to_its_own_windows_has_one_larger_claim() {
    let mut market = Market::new(demand(5));
    let first = market.claim(2, 1, 2).unwrap();
    let second = market.claim(2, 2, 3).unwrap();
    assert_eq!(second.windows, Run { start: 1, end: 3 });
    assert!(second.generation > first.generation);
    assert_eq!(second.rate, 2 * first.rate);
    assert_eq!(market.ring.leases.len(), 1, "the smaller one was not ready: it is over");
    assert_eq!(reason(market.report(2, &first, ready())), "Expired");
    market.report(2, &second, ready()).unwrap();
}

#[test]
fn what_is_served_is_served_on_while_the_larger_window_is_fetched() {
    let (mut market, [_, held, other, _]) = ring_of_four();
    market.leave(3, &other).unwrap();
    let larger = market.claim(2, 2, 3).unwrap();
    assert_eq!(larger.windows, Run { start: 1, end: 3 });
    for _ in 0..4 {
        market.wait(10_000);
        for number in [0, 1] {
            let (id, window) = if number == 0 { (1, 0) } else { (4, 3) };
            let run = Run {
                start: window,
                end: window + 1,
            };
            let report = market.report_of(number, "first", run, ready());
            market.send(number, id, report).unwrap();
        }
        let done = market.now;
        market.report(2, &larger, fetching(done)).unwrap();
    }
    assert_eq!(market.status().uncovered, [LayerRange { start: 4, end: 6 }]);
    assert_eq!(market.serving_claim(1), Some(held.id), "one process, one heartbeat");
    market.report(2, &larger, ready()).unwrap();
    assert_eq!(market.serving_claim(1), Some(larger.id));
    assert_eq!(reason(market.report(2, &held, ready())), "Expired");
    let manifest = market.publish();
    let layers: Vec<_> = manifest.ranks.iter().map(|rank| rank.layers).collect();
    assert_eq!(
        layers,
        [(0, 2), (2, 6), (6, 8)].map(|(start, end)| LayerRange { start, end })
    );
    assert_eq!(manifest.ranks[1].bytes, 2 * GB);
}

#[test]
fn a_larger_window_that_never_comes_costs_the_smaller_one_nothing() {
    let (mut market, [_, held, other, _]) = ring_of_four();
    market.leave(3, &other).unwrap();
    let larger = market.claim(2, 2, 3).unwrap();
    market.leave(2, &larger).unwrap();
    assert_eq!(market.serving_claim(1), Some(held.id));
    assert_eq!(market.serving_claim(2), None);
    market.report(2, &held, ready()).unwrap();
}

#[test]
fn a_restarted_process_takes_its_claim_back_at_once_and_fences_the_older_one() {
    let (mut market, [_, old, ..]) = ring_of_four();
    let new = market.claim_as(2, "second", 1, 2).unwrap();
    assert_eq!(new.rate, old.rate, "the rate stays frozen");
    market.report(2, &old, ready()).unwrap();
    market.report_as(2, "second", &new, ready()).unwrap();
    let proposed = market.ring.proposal(1).unwrap();
    assert_eq!(proposed.manifest.ranks[1].holder.as_ref().unwrap().instance, "second");
    assert_eq!(reason(market.report(2, &old, ready())), "Fenced");
    assert_eq!(reason(market.claim(2, 1, 2)), "Fenced");
    assert_eq!(reason(market.claim(2, 2, 3)), "Fenced");
}

#[test]
fn a_replacement_that_still_fetches_leaves_the_window_to_the_process_that_serves() {
    let (mut market, [_, old, ..]) = ring_of_four();
    let new = market.claim_as(2, "second", 1, 2).unwrap();
    market.report_as(2, "second", &new, fetching(1)).unwrap();
    market.report(2, &old, ready()).unwrap();
    assert_eq!(market.ring.proposal(0), None);
    assert!(market.status().ready);
    assert_eq!(
        reason(market.claim(2, 1, 3)),
        "Fenced",
        "the older process gets nothing more"
    );
    market.report_as(2, "second", &new, ready()).unwrap();
    assert_eq!(market.ring.proposal(0).unwrap().manifest.epoch, 2);
}

#[test]
fn a_replacement_takes_over_from_a_process_that_is_not_ready_at_once() {
    let mut market = Market::new(demand(3));
    let old = market.claim(2, 1, 2).unwrap();
    let new = market.claim_as(2, "second", 1, 2).unwrap();
    assert_eq!(reason(market.report(2, &old, ready())), "Fenced");
    let third = market.claim_as(2, "third", 1, 2).unwrap();
    assert_eq!(reason(market.report_as(2, "second", &new, ready())), "Fenced");
    market.report_as(2, "third", &third, ready()).unwrap();
}

#[test]
fn a_process_that_sleeps_while_its_replacement_fetches_is_refused_when_it_wakes() {
    let (mut market, [_, old, ..]) = ring_of_four();
    let new = market.claim_as(2, "second", 1, 2).unwrap();
    market.wait(10_000);
    market.report_as(2, "second", &new, fetching(1)).unwrap();
    market.wait(10_000);
    assert_eq!(market.serving_claim(1), Some(new.id), "the older one's lease is over");
    assert_eq!(reason(market.report(2, &old, ready())), "Fenced");
    assert_eq!(
        reason(market.claim(2, 1, 2)),
        "Fenced",
        "a copied key doesn't take turns"
    );
}

#[test]
fn a_live_claim_is_kept_from_other_nodes_and_a_silent_one_is_not() {
    let (mut market, [_, old, other, _]) = ring_of_four();
    assert_eq!(reason(market.claim(4, 1, 2)), "Taken");
    let report = market.report_of(4, "first", old.windows, ready());
    assert_eq!(reason(market.send(4, old.id, report)), "ForeignClaim");
    market.wait(LEASE);
    assert_eq!(
        reason(market.claim(4, 1, 2)),
        "Taken",
        "a lease ends after its last millisecond"
    );
    market.wait(1);
    market.claim(4, 1, 2).unwrap();
    assert_eq!(reason(market.report(2, &old, ready())), "Expired");
    assert_eq!(reason(market.report(3, &other, ready())), "Expired");
}

#[test]
fn a_stage_that_leaves_gives_its_window_to_others_at_once() {
    let (mut market, [_, held, other, _]) = ring_of_four();
    market.report(2, &held, StageState::Leaving).unwrap();
    market.claim(4, 1, 2).unwrap();
    market.leave(3, &other).unwrap();
    market.claim(5, 2, 3).unwrap();
    assert_eq!(reason(market.leave(3, &other)), "Expired");
    assert_eq!(reason(market.leave(3, &Claim { id: 99, ..other })), "UnknownClaim");
    assert!(
        market.ring.nodes.values().all(|standing| standing.failures == 0),
        "who served has not failed"
    );
}

#[test]
fn a_window_of_another_claim_or_model_and_a_swapped_key_are_refused() {
    let mut market = Market::new(demand(4));
    let claim = market.claim(2, 1, 2).unwrap();
    let good = market.report_of(2, "first", claim.windows, ready());
    let next = market.report_of(2, "first", Run { start: 2, end: 3 }, ready());
    let wrong = market.send(2, claim.id, next).unwrap_err();
    assert_eq!(
        wrong.to_string(),
        "the claim is layers 2..4, not 4..6: fetch that window"
    );
    let refuse = |market: &mut Market, change: &dyn Fn(&mut StageReport)| {
        let mut report = good.clone();
        change(&mut report);
        reason(market.send(2, claim.id, report))
    };
    let other = market.report_of(3, "first", claim.windows, ready()).holder;
    assert_eq!(refuse(&mut market, &|r| r.identity = "2".repeat(64)), "WrongModel");
    assert_eq!(
        refuse(&mut market, &|r| r.holder.noise_key = other.noise_key.clone()),
        "BadHolder"
    );
    assert_eq!(refuse(&mut market, &|r| r.holder = other.clone()), "BadHolder");
    assert_eq!(
        refuse(&mut market, &|r| r.holder.instance = "another".to_owned()),
        "BadHolder"
    );
    assert_eq!(
        refuse(&mut market, &|r| r.reach.address = Some("no address".to_owned())),
        "BadAddress"
    );
    assert_eq!(
        refuse(&mut market, &|r| r.reach.network = Some("n".repeat(300))),
        "TooLong"
    );
    assert!(market.status().claims[0].report.is_none());
    let mut wordy = good.clone();
    wordy.lost_reason = Some("ä".repeat(10_000));
    market.send(2, claim.id, wordy).unwrap();
    let kept = market.status().claims[0].report.clone().unwrap().lost_reason.unwrap();
    assert_eq!(kept, "ä".repeat(256), "texts for people are cut, not refused");
}

#[test]
fn a_claim_that_makes_no_progress_is_lost_and_one_that_does_is_kept() {
    let mut market = Market::new(demand(4));
    let slow = market.claim(2, 1, 2).unwrap();
    let stuck = market.claim(3, 2, 3).unwrap();
    for beat in 0..13 {
        market.report(2, &slow, fetching(beat)).unwrap();
        market.report(3, &stuck, fetching(7)).unwrap();
        market.wait(10_000);
    }
    // the first report was 130 s ago, all after it brought nothing
    assert_eq!(reason(market.report(3, &stuck, fetching(8))), "Stalled");
    market.report(2, &slow, fetching(13)).unwrap();
    market.claim(4, 2, 3).unwrap();
}

#[test]
fn loading_has_its_own_patience_and_an_end() {
    let mut market = Market::new(demand(3));
    let claim = market.claim(2, 1, 2).unwrap();
    for _ in 0..90 {
        market.report(2, &claim, StageState::Loading).unwrap();
        market.wait(10_000);
    }
    market.report(2, &claim, StageState::Loading).unwrap();
    market.wait(10_000);
    assert_eq!(reason(market.report(2, &claim, StageState::Loading)), "Stalled");
}

#[test]
fn a_node_that_takes_windows_and_finishes_none_gets_one_at_a_time() {
    // F3 (i)
    let mut market = Market::new(demand(20));
    let claims: Vec<Claim> = [1, 3, 5, 7]
        .map(|window| market.claim(2, window, window + 1).unwrap())
        .into();
    let Err(RuleError::Quota {
        unready,
        failures,
        allowed,
    }) = market.claim(2, 9, 10)
    else {
        panic!("a fifth claim was granted");
    };
    assert_eq!((unready, failures, allowed), (4, 0, 4));
    market.leave(2, &claims[0]).unwrap();
    assert_eq!(market.offer(2).limit, Some(2));
    market.wait(LEASE + 1);
    assert_eq!(market.offer(2).limit, Some(1), "three leases ran out");
    assert_eq!(reason(market.claim(2, 1, 3)), "Quota");
    let one = market.claim(2, 1, 2).unwrap();
    assert_eq!(reason(market.claim(2, 3, 4)), "Quota");
    assert_eq!(reason(market.claim(2, 2, 3)), "Quota", "nor next to it");
    market.report(2, &one, ready()).unwrap();
    assert_eq!(market.offer(2).limit, None, "one that is ready restores it");
    market.claim(2, 2, 5).unwrap();
}

#[test]
fn one_failure_halves_what_a_node_may_have() {
    let mut market = Market::new(demand(9));
    let claim = market.claim(2, 1, 2).unwrap();
    market.leave(2, &claim).unwrap();
    assert_eq!(reason(market.claim(2, 1, 4)), "Quota");
    market.claim(2, 1, 2).unwrap();
    market.claim(2, 3, 4).unwrap();
    assert_eq!(reason(market.claim(2, 5, 6)), "Quota");
}

#[test]
fn claims_in_other_rings_count_and_windows_kept_for_a_node_do_not() {
    let mut market = Market::new(demand(4));
    let busy = |number: usize| Claimant {
        node: node(number),
        memory: 8 * GB,
        unready_elsewhere: 4,
    };
    let request = |start, end| ClaimRequest {
        windows: Run { start, end },
        instance: "first".to_owned(),
    };
    let claim = |market: &mut Market, number, start, end| {
        market.step(|ring, now, relays| ring.claim(now, relays, &busy(number), &request(start, end)))
    };
    assert_eq!(reason(claim(&mut market, 2, 1, 2)), "Quota");
    claim(&mut market, 0, 0, 1).unwrap();
    assert_eq!(
        reason(claim(&mut market, 0, 1, 2)),
        "Quota",
        "the open one next to it does"
    );
}

#[test]
fn a_late_writer_is_refused_by_its_generation() {
    // F3 (ii) and (iv): A is paused, B takes the window, A wakes and serves; then B crashes
    let (mut market, [a0, paused, a3, a1]) = ring_of_four();
    let first = market.ring.manifest(0).unwrap().clone();
    let alive = |market: &mut Market| {
        for (number, claim) in [(0, &a0), (3, &a3), (1, &a1)] {
            market.report(number, claim, ready()).unwrap();
        }
    };
    alive(&mut market);
    market.wait(10_000);
    alive(&mut market);
    market.wait(5_001);
    let b = market.claim(4, 1, 2).unwrap();
    assert!(b.generation > paused.generation);
    assert_eq!(reason(market.report(2, &paused, ready())), "Expired");
    alive(&mut market);
    market.report(4, &b, ready()).unwrap();
    let manifest = market.publish();
    assert_eq!(manifest.epoch, 2);
    let holder = manifest.ranks[1].holder.as_ref().unwrap();
    assert_eq!(holder.node, node(4).to_string());
    assert_eq!(
        reason(market.offer_manifest(first)),
        "NotProposed",
        "the old epoch is over for good"
    );
    let ticket = |market: &Market, number: usize, epoch| {
        let request = TicketRequest {
            epoch,
            edge: 1,
            role: EdgeRole::Predecessor,
        };
        market.ring.ticket(market.now, node(number), request).map(str::to_owned)
    };
    assert_eq!(
        reason(ticket(&market, 2, 1)),
        "UnknownEpoch",
        "no link of the old epoch"
    );
    assert_eq!(reason(ticket(&market, 2, 2)), "NotAtEdge", "and none of the new one");
    assert_eq!(ticket(&market, 4, 2).unwrap(), "https://relay.example");

    market.wait(10_000);
    alive(&mut market);
    market.wait(5_001);
    assert_eq!(market.status().uncovered, [LayerRange { start: 2, end: 4 }]);
    market
        .claim(5, 1, 2)
        .expect("B crashed: its window is on the market again, without a restart");
}

#[test]
fn a_laptop_that_slept_for_40_minutes_has_lost_its_claim_and_may_claim_again() {
    // S16: leases run by the market's time; the report says no time, so a wrong clock can't prolong or cut one
    let (mut market, [a0, asleep, a3, a1]) = ring_of_four();
    for _ in 0..240 {
        market.wait(10_000);
        for (number, claim) in [(0, &a0), (3, &a3), (1, &a1)] {
            market.report(number, claim, ready()).unwrap();
        }
    }
    assert_eq!(market.status().uncovered, [LayerRange { start: 2, end: 4 }]);
    assert_eq!(reason(market.report(2, &asleep, ready())), "Expired");
    let again = market.claim(2, 1, 2).unwrap();
    market.report(2, &again, ready()).unwrap();
    assert_eq!(market.publish().epoch, 2);
    assert!(
        again.rate > asleep.rate,
        "40 minutes uncovered: {} µcredit, not {}",
        again.rate,
        asleep.rate
    );
}

#[test]
fn a_clock_that_goes_back_ends_no_lease() {
    let (mut market, claims) = ring_of_four();
    market.now = 0;
    market.settle();
    for (number, claim) in [0, 2, 3, 1].into_iter().zip(&claims) {
        market.report(number, claim, ready()).unwrap();
    }
    assert!(market.status().ready);
}

#[test]
fn leases_start_again_at_full_length_when_the_market_does() {
    let (mut market, claims) = ring_of_four();
    let json = serde_json::to_string(&market.ring).unwrap();
    market.ring = serde_json::from_str(&json).unwrap();
    market.now += 3_600_000;
    let now = market.now;
    market.ring.restart(now);
    market.settle();
    market.wait(LEASE);
    assert!(market.status().ready, "an hour without a market is nobody's fault");
    for (number, claim) in [0, 2, 3, 1].into_iter().zip(&claims) {
        market.report(number, claim, ready()).unwrap();
    }
    market.wait(LEASE + 1);
    assert_eq!(market.ring.leases.len(), 0);
}

#[test]
fn the_next_deadline_is_when_the_first_lease_or_patience_ends() {
    let mut market = Market::new(demand(4));
    assert_eq!(market.ring.next_deadline(), None);
    let claim = market.claim(2, 1, 2).unwrap();
    let start = market.now;
    assert_eq!(market.ring.next_deadline(), Some(start + LEASE + 1));
    for _ in 0..12 {
        market.wait(10_000);
        market.report(2, &claim, fetching(0)).unwrap();
    }
    // fetching began with the first report
    assert_eq!(market.ring.next_deadline(), Some(start + 10_000 + 120_000 + 1));
    let deadline = market.ring.next_deadline().unwrap();
    market.wait(deadline - market.now);
    assert_eq!(market.ring.leases.len(), 0);
}

impl Market {
    fn serving_claim(&self, window: u32) -> Option<u64> {
        self.ring.serving(window).map(|(id, _)| id)
    }
}
