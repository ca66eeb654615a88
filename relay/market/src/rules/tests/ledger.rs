//! Credit: once, whatever is reported how often and when.

use proptest::prelude::*;

use super::*;

#[test]
fn the_same_positions_are_credited_once_however_often_and_late_they_are_reported() {
    // F1: sent twice, after the lease, after a restart, at a second relay, in other bytes
    let (mut market, claims) = ring_of_four();
    let rate = claims[1].rate;
    assert_eq!(rate, 1_000_001, "a GB and two blocks of width 8");
    let credits = market.positions(0, 1, 3_000_000).unwrap();
    assert_eq!(credits.len(), 4, "every rank carried every token");
    assert_eq!(credits[1].amount, 3_000_003);
    assert_eq!(market.positions(0, 1, 3_000_000).unwrap(), [], "sent twice");
    assert_eq!(
        market.positions(0, 1, 1_000_000).unwrap(),
        [],
        "an older one that comes late"
    );
    assert_eq!(market.accounts[&1].committed, 3_000_000, "the answer is the same");
    market.wait(LEASE + 1);
    assert_eq!(market.ring.leases.len(), 0);
    assert_eq!(market.positions(0, 1, 3_000_000).unwrap(), [], "after the lease");
    let json = serde_json::to_string(&(&market.ring, &market.accounts[&1])).unwrap();
    let (ring, account): (RingState, EpochAccount) = serde_json::from_str(&json).unwrap();
    market.ring = ring;
    market.accounts.insert(1, account);
    market.ring.restart(0);
    market.now = 0;
    assert_eq!(
        market.positions(0, 1, 3_000_000).unwrap(),
        [],
        "after a restart, or at a second relay"
    );
    assert_eq!(market.earned(2), 3_000_003);
}

#[test]
fn positions_of_an_epoch_that_is_over_count_for_the_claims_of_that_epoch() {
    let (mut market, [_, second, ..]) = ring_of_four();
    market.positions(0, 1, 10_000_000).unwrap();
    market.leave(2, &second).unwrap();
    market.hold(4, 1, 2);
    market.publish();
    market.positions(0, 2, 5_000_000).unwrap();
    let late = market.positions(0, 1, 12_000_000).unwrap();
    assert_eq!(late.len(), 4);
    assert_eq!(late[1].node, node(2));
    assert_eq!(market.earned(2), 12_000_012);
    assert_eq!(market.earned(4), 5_000_005);
    assert_eq!(market.earned(0), 12_000_012 + 5_000_005);
}

#[test]
fn only_rank_0_of_the_epoch_reports_it() {
    let (mut market, _) = ring_of_four();
    assert_eq!(reason(market.positions(2, 1, 5)), "NotRank0");
    assert_eq!(reason(market.positions(0, 2, 5)), "UnknownEpoch");
    assert_eq!(reason(market.positions(0, 1, u64::MAX)), "BadCounter");
    let mut account = market.accounts[&1].clone();
    let other = Positions {
        epoch: 2,
        committed: 5,
        queued: 0,
    };
    assert_eq!(
        reason(market.ring.positions(0, node(0), &mut account, other)),
        "UnknownEpoch"
    );
    assert_eq!(account, market.accounts[&1]);
}

#[test]
fn a_ring_whose_ends_are_not_the_owners_earns_nothing() {
    let mut market = Market::new(open_demand(2));
    market.hold(4, 0, 1);
    market.hold(5, 1, 2);
    market.publish();
    assert_eq!(market.positions(4, 1, 1_000_000_000).unwrap(), []);
    assert_eq!(market.accounts[&1].committed, 1_000_000_000);
}

#[test]
fn the_rate_of_a_claim_is_the_one_it_was_claimed_at() {
    let mut market = Market::new(demand(3));
    market.hold(0, 0, 1);
    market.hold(1, 2, 3);
    let early = market.claim(2, 1, 2).unwrap();
    market.wait(10_000);
    market.report(2, &early, ready()).unwrap();
    assert_eq!(market.ring.leases[&early.id].rate(), early.rate);
    assert_eq!(market.offer(3).windows[1].uncovered_since, None);
}

proptest! {
    #[test]
    fn reports_in_any_order_add_up_to_the_formula(
        counters in proptest::collection::vec((0..2_u64, 0..50_000_000_u64), 1..40),
    ) {
        let (mut market, [_, second, ..]) = ring_of_four();
        market.leave(2, &second).unwrap();
        market.wait(700_000);
        for (number, window) in [(0, 0), (4, 1), (3, 2), (1, 3)] {
            market.hold(number, window, window + 1);
        }
        market.publish();
        let rates: BTreeMap<u64, u64> = market.accounts[&2].earners.iter().map(|e| (e.claim, e.rate)).collect();
        prop_assert!(rates.values().any(|rate| *rate != 1_000_001));
        for (epoch, committed) in &counters {
            market.positions(0, epoch + 1, *committed).unwrap();
        }
        let highest = |epoch| counters.iter().filter(|(e, _)| *e == epoch).map(|(_, c)| *c).max().unwrap_or(0);
        for (claim, rate) in rates {
            let paid = market.credited.get(&2).and_then(|credited| credited.get(&claim)).copied().unwrap_or(0);
            let formula = u128::from(highest(1)) * u128::from(rate) / 1_000_000;
            prop_assert_eq!(u128::from(paid), formula);
        }
        prop_assert_eq!(market.earned(2), highest(0) * 1_000_001 / 1_000_000);
    }
}
