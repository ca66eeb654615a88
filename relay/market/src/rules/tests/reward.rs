//! What a window pays, and that rational nodes cover a ring by it.

use proptest::prelude::*;

use super::*;

/// Pseudo-random numbers from a seed that a failure prints (`SplitMix64`).
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ (mixed >> 31)) % sides as u64) as usize
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.roll(last + 1));
        }
    }
}

/// One layer a window; some are larger, as layers with experts and attention differ.
fn ring_of_layers(layers: u32, uneven: bool) -> Demand {
    let mut demand = open_demand(layers);
    for (window, rank) in (0..).zip(&mut demand.template.ranks) {
        rank.layers = LayerRange {
            start: window,
            end: window + 1,
        };
        if uneven && window % 3 == 1 {
            (rank.bytes, rank.memory) = (GB * 4 / 3, GB * 4 / 3);
        }
    }
    demand.template.model.layers = layers;
    demand
}

/// Rounds until every window is claimed: in each every free node polls and claims once, in random order.
fn rounds_to_cover(seed: u64, demand: Demand, sizes: &[u64]) -> u32 {
    let mut dice = Dice(seed);
    let mut market = Market::new(demand);
    let mut free: Vec<usize> = (0..sizes.len()).collect();
    for round in 1..=10 {
        dice.shuffle(&mut free);
        free.retain(|number| {
            let memory = sizes[*number];
            let Some(choice) = choose(&[market.offer(*number)], memory) else {
                return true;
            };
            let by = Claimant {
                node: node(*number),
                memory,
                unready_elsewhere: 0,
            };
            let request = ClaimRequest {
                windows: choice.windows,
                instance: "first".to_owned(),
            };
            let claim = market
                .step(|ring, now, relays| ring.claim(now, relays, &by, &request))
                .unwrap();
            assert_eq!(claim.rate, choice.rate, "the price it was offered");
            false
        });
        if market
            .offer(0)
            .windows
            .iter()
            .all(|window| window.state == WindowState::Claimed)
        {
            let claims: Vec<ClaimStatus> = market.status().claims;
            for claim in &claims {
                let number = (0..NODES).find(|number| node(*number) == claim.node).unwrap();
                let report = market.report_of(number, "first", claim.windows, ready());
                market.send(number, claim.id, report).unwrap();
            }
            let manifest = market.publish();
            assert_eq!(manifest.ranks.len(), claims.len());
            manifest.validate().unwrap();
            return round;
        }
        market.wait(5_000);
    }
    panic!(
        "seed {seed}, {} GB: layers {:?} stay uncovered",
        sizes.iter().sum::<u64>() / GB,
        market.status().uncovered
    );
}

#[test]
fn rational_nodes_of_mixed_size_cover_an_empty_ring_of_48_layers_in_3_rounds() {
    let mut worst = 0;
    for seed in 0..200 {
        for uneven in [false, true] {
            // From a phone to a workstation: 20 nodes, 72 GB for 48. Uneven windows leave gaps in every node, and a node
            // claims once: there each has one more.
            let mut sizes: Vec<u64> = [2, 2, 2, 3, 3, 3, 4, 4, 5, 8]
                .iter()
                .map(|gb| gb + u64::from(uneven))
                .flat_map(|gb| [gb * GB, gb * GB])
                .collect();
            Dice(seed ^ 0xABCD).shuffle(&mut sizes);
            let rounds = rounds_to_cover(seed, ring_of_layers(48, uneven), &sizes);
            assert!(rounds <= 3, "seed {seed}, uneven {uneven}: {rounds} rounds");
            worst = worst.max(rounds);
        }
    }
    println!("seeds 0..200: at most {worst} rounds");
}

#[test]
fn nodes_that_all_poll_the_same_map_cover_the_ring_by_what_refusals_list() {
    for seed in 0..50 {
        let mut market = Market::new(ring_of_layers(48, false));
        let stale: Vec<Offer> = (0..20).map(|number| market.offer(number)).collect();
        let mut order: Vec<usize> = (0..20).collect();
        Dice(seed).shuffle(&mut order);
        let mut refused = 0;
        for number in order {
            let memory = [2, 3, 4][number % 3] * GB;
            let by = Claimant {
                node: node(number),
                memory,
                unready_elsewhere: 0,
            };
            let mut choice = choose(&stale[number..=number], memory);
            while let Some(Choice { windows, .. }) = choice {
                let request = ClaimRequest {
                    windows,
                    instance: "first".to_owned(),
                };
                choice = match market.step(|ring, now, relays| ring.claim(now, relays, &by, &request)) {
                    Ok(_) => None,
                    Err(RuleError::Taken { open, .. }) => {
                        refused += 1;
                        choose_run(&open, memory, None)
                    }
                    Err(error) => panic!("seed {seed}: {error}"),
                };
            }
        }
        let open = market
            .offer(0)
            .windows
            .iter()
            .filter(|window| window.state == WindowState::Open)
            .count();
        assert_eq!(open, 0, "seed {seed}");
        assert!(
            refused <= 20,
            "seed {seed}: each loses at most once, {refused} refusals"
        );
    }
}

#[test]
fn scarcity_grows_while_a_window_is_uncovered_and_ends_when_it_is_served() {
    let mut market = Market::new(demand(3));
    let paid = |market: &Market| market.offer(2).windows[1].rate;
    let weight = paid(&market);
    let mut last = weight;
    for _ in 0..40 {
        market.wait(60_000);
        assert!(paid(&market) > last, "after {} ms", market.now);
        last = paid(&market);
    }
    assert_eq!(last, weight * 5, "once more every ten minutes");
    market.wait(24 * 3_600_000);
    assert_eq!(paid(&market), weight * 9, "and at most nine times");
    let claim = market.claim(2, 1, 2).unwrap();
    assert_eq!(claim.rate, weight * 9);
    assert_eq!(paid(&market), weight * 9, "claimed isn't served");
    market.report(2, &claim, ready()).unwrap();
    assert_eq!(paid(&market), weight);
    assert_eq!(market.status().claims[0].rate, weight * 9, "frozen");
    market.leave(2, &claim).unwrap();
    assert_eq!(paid(&market), weight, "leaving to claim again at once pays nothing");
}

#[test]
fn a_claim_that_comes_to_nothing_does_not_make_the_window_cheaper() {
    let mut market = Market::new(demand(3));
    market.wait(600_000);
    let before = market.offer(2).windows[1].rate;
    market.claim(2, 1, 2).unwrap();
    market.wait(LEASE + 1);
    assert!(market.offer(2).windows[1].rate > before);
}

#[test]
fn queued_demand_raises_the_price_until_it_is_old() {
    let (mut market, claims) = ring_of_four();
    let plain = market.offer(2).windows[1].rate;
    let report = |market: &mut Market, queued| {
        let mut account = market.accounts[&1].clone();
        let positions = Positions {
            epoch: 1,
            committed: 0,
            queued,
        };
        market
            .step(|ring, now, _| ring.positions(now, node(0), &mut account, positions))
            .unwrap();
    };
    report(&mut market, 10);
    assert_eq!(market.offer(2).windows[1].rate, plain * 3 / 2);
    report(&mut market, u32::MAX);
    assert_eq!(market.offer(2).windows[1].rate, plain * 5);
    for (number, claim) in [0, 2, 3, 1].into_iter().zip(&claims) {
        market.report(number, claim, ready()).unwrap();
    }
    report(&mut market, 10);
    market.now += 600_001;
    assert_eq!(market.offer(2).windows[1].rate, plain);
    let said = Demand {
        queued: Some(20),
        ..demand(3)
    };
    assert_eq!(
        Market::new(said).offer(2).windows[1].rate,
        2 * Market::new(demand(3)).offer(2).windows[1].rate
    );
}

#[test]
fn a_node_chooses_what_pays_most_and_fits() {
    let window = |index: u32, gb: u64, rate, state| OfferedWindow {
        index,
        layers: LayerRange {
            start: index,
            end: index + 1,
        },
        bytes: gb * GB,
        memory: gb * GB,
        state,
        rate,
        uncovered_since: None,
    };
    let open = |index, gb, rate| window(index, gb, rate, WindowState::Open);
    let run = |windows: &[OfferedWindow], gb: u64, limit| {
        choose_run(windows, gb * GB, limit).map(|choice| (choice.windows.start, choice.windows.end, choice.rate))
    };
    let scarce = [open(0, 1, 10), open(1, 1, 10), open(2, 1, 50), open(3, 1, 10)];
    assert_eq!(run(&scarce, 1, None), Some((2, 3, 50)));
    assert_eq!(run(&scarce, 2, None), Some((2, 4, 60)), "of equals one at an end");
    assert_eq!(run(&scarce, 9, None), Some((0, 4, 80)));
    let even = [open(0, 1, 15), open(1, 1, 16), open(2, 1, 15)];
    assert_eq!(
        run(&even, 1, None),
        Some((0, 1, 15)),
        "a little less, and one gap in place of two"
    );
    assert_eq!(run(&scarce, 9, Some(1)), Some((2, 3, 50)));
    assert_eq!(run(&scarce, 0, None), None);
    assert_eq!(run(&[], 9, None), None);
    let heavy = [open(0, 8, 90), open(1, 2, 30), open(2, 2, 30)];
    assert_eq!(run(&heavy, 4, None), Some((1, 3, 60)), "the best one doesn't fit");
    let gaps = [
        open(0, 1, 10),
        open(1, 1, 10),
        open(2, 1, 10),
        window(3, 1, 10, WindowState::Claimed),
        open(4, 1, 10),
        window(5, 1, 99, WindowState::Reserved),
        window(6, 1, 99, WindowState::Ready),
        open(7, 1, 10),
    ];
    assert_eq!(
        run(&gaps, 1, None),
        Some((4, 5, 10)),
        "the smallest gap first, and there the first"
    );
    assert_eq!(run(&gaps, 2, None), Some((0, 2, 20)));
}

#[test]
fn a_node_chooses_the_ring_that_pays_most() {
    let mut dear = open_demand(3);
    dear.template.ring = "dear".to_owned();
    dear.delegations.clear();
    dear.queued = Some(100);
    let offers = [Market::new(open_demand(3)).offer(2), Market::new(dear).offer(2)];
    let choice = choose(&offers, 2 * GB).unwrap();
    assert_eq!(
        (choice.ring.as_str(), choice.windows),
        ("dear", Run { start: 0, end: 2 })
    );
    assert_eq!((choice.memory, choice.bytes), (2 * GB, 2 * GB));
    assert_eq!(choose(&[], GB), None);
    assert_eq!(choose(&offers, GB - 1), None);
}

fn window(bytes: u64, layers: u32) -> Rank {
    Rank {
        layers: LayerRange { start: 0, end: layers },
        bytes,
        memory: bytes,
        placement: None,
        holder: None,
    }
}

proptest! {
    #[test]
    fn the_price_never_falls_with_size_time_or_demand_and_fits_an_epochs_worth(
        bytes in 1..u64::MAX / 2, more in 0..1_u64 << 40, layers in 1..100_u32, width in 1..1_u32 << 17,
        time in any::<u64>(), later in any::<u64>(), queued in any::<u32>(), longer in any::<u32>(),
    ) {
        let price = |bytes, time, queued| rate(&window(bytes, layers), width, time, queued);
        let base = price(bytes, time, queued);
        prop_assert!((1..=MAX_RATE).contains(&base));
        prop_assert!(price(bytes.saturating_add(more), time, queued) >= base);
        prop_assert!(price(bytes, time.saturating_add(later), queued) >= base);
        prop_assert!(price(bytes, time, queued.saturating_add(longer)) >= base);
        prop_assert!(i64::try_from(super::super::ledger::worth(1 << 48, base)).is_ok());
        prop_assert!(scarcity(time, queued) <= 13_000);
        prop_assert!(weight(&window(bytes, layers), width) >= 1);
    }
}
