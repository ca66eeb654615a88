//! Random commands: whatever nodes, owners and time do, every invariant holds after every step.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Claim {
        node: usize,
        instance: u8,
        start: u32,
        length: u32,
    },
    Report {
        nth: usize,
        state: StageState,
        lost: bool,
        /// epochs by which the stage is ahead of the market
        ahead: u64,
        edge: Option<u32>,
        end: Option<LostEnd>,
        direct: bool,
    },
    /// a stage of the published epoch never comes: what its neighbours say, and it itself
    Absent {
        nth: usize,
        admits: bool,
    },
    ReportOver {
        node: usize,
        instance: u8,
        id: u64,
    },
    Leave {
        nth: usize,
    },
    Publish,
    PublishEarlier {
        back: usize,
    },
    Positions {
        back: u64,
        committed: u64,
    },
    Wait {
        millis: u64,
    },
    Relays {
        count: usize,
    },
    Demand {
        change: u8,
    },
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let state = prop_oneof![
        6 => Just(ready()),
        1 => Just(StageState::Loading),
        2 => (0..1000_u64).prop_map(fetching),
        1 => Just(StageState::Leaving),
    ];
    let report = (
        0..8_usize,
        state,
        proptest::bool::weighted(0.1),
        prop_oneof![20 => Just(0), 1 => Just(7_u64), 1 => Just(u64::MAX)],
        proptest::option::of(0..5_u32),
        proptest::option::of(prop_oneof![Just(LostEnd::Own), Just(LostEnd::Other)]),
        any::<bool>(),
    );
    prop_oneof![
        10 => (0..6_usize, 0..3_u8, 0..5_u32, 1..4_u32).prop_map(|(node, instance, start, length)| {
            Step::Claim { node, instance, start, length }
        }),
        16 => report.prop_map(|(nth, state, lost, ahead, edge, end, direct)| {
            Step::Report { nth, state, lost, ahead, edge, end, direct }
        }),
        3 => (0..8_usize, any::<bool>()).prop_map(|(nth, admits)| Step::Absent { nth, admits }),
        1 => (0..6_usize, 0..3_u8, 0..20_u64).prop_map(|(node, instance, id)| Step::ReportOver { node, instance, id }),
        1 => (0..8_usize).prop_map(|nth| Step::Leave { nth }),
        6 => Just(Step::Publish),
        1 => (0..4_usize).prop_map(|back| Step::PublishEarlier { back }),
        2 => (0..3_u64).prop_map(|back| Step::Positions { back, committed: 0 }),
        3 => (0..3_u64, 0..5_000_000_u64).prop_map(|(back, committed)| Step::Positions { back, committed }),
        4 => (0..20_000_u64).prop_map(|millis| Step::Wait { millis }),
        1 => (0..3_usize).prop_map(|count| Step::Relays { count }),
        1 => (0..5_u8).prop_map(|change| Step::Demand { change }),
        1 => Just(Step::Restart),
    ]
}

fn demand_after(change: u8) -> Demand {
    let mut demand = demand(5);
    match change {
        0 => demand.template.context_length = 128,
        1 => {
            // windows 1 and 2 as one
            demand.template.ranks[1].layers.end = 6;
            demand.template.ranks.remove(2);
            demand.reserved = BTreeMap::from([(0, node(0)), (3, node(1))]);
        }
        2 => {
            demand.reserved.insert(2, node(3));
        }
        3 => demand.queued = Some(7),
        _ => {}
    }
    demand
}

fn apply(market: &mut Market, signed: &mut Vec<SignedManifest>, step: Step) {
    let nth_lease = |market: &Market, nth: usize| {
        let count = market.ring.leases.len().max(1);
        let lease = market.ring.leases.iter().nth(nth % count);
        lease.map(|(id, lease)| (*id, lease.clone()))
    };
    let number_of = |key: PublicKey| (0..NODES).find(|number| node(*number) == key).unwrap();
    match step {
        Step::Claim {
            node,
            instance,
            start,
            length,
        } => {
            let _ = market.claim_as(node, &format!("{node}-{instance}"), start, start + length);
        }
        Step::Report {
            nth,
            state,
            lost,
            ahead,
            edge,
            end,
            direct,
        } => {
            let Some((id, lease)) = nth_lease(market, nth) else {
                return;
            };
            let number = number_of(lease.node);
            let mut report = market.report_of(number, &lease.instance, lease.windows, state);
            report.lost_epoch = market.status().epoch.filter(|_| lost);
            report.epoch = market.ring.epoch.saturating_add(ahead);
            (report.lost_edge, report.lost_end) = (edge, end);
            if direct {
                let [network, address] = ["rack".to_owned(), format!("10.0.0.{number}:4000")];
                report.reach = Reach {
                    network: Some(network),
                    address: Some(address),
                };
            }
            let _ = market.send(number, id, report);
        }
        Step::Absent { nth, admits } => {
            if let Some((id, _)) = nth_lease(market, nth) {
                market.without(id, admits);
            }
        }
        Step::ReportOver { node, instance, id } => {
            let report = market.report_of(node, &format!("{node}-{instance}"), Run { start: 1, end: 2 }, ready());
            let _ = market.send(node, id, report);
        }
        Step::Leave { nth } => {
            if let Some((id, lease)) = nth_lease(market, nth) {
                let number = number_of(lease.node);
                let _ = market.step(|ring, now, relays| ring.leave(now, relays, node(number), id));
            }
        }
        Step::Publish => {
            if let Some(manifest) = market.sign() {
                signed.push(manifest.clone());
                market.offer_manifest(manifest).unwrap();
            }
        }
        Step::PublishEarlier { back } => {
            if let Some(at) = signed.len().checked_sub(back + 1) {
                let earlier = signed[at].clone();
                let current = market.ring.manifest(0).cloned();
                let taken = market.offer_manifest(earlier.clone()).is_ok();
                assert_eq!(taken, current.as_ref() == Some(&earlier), "an old epoch was accepted");
                assert_eq!(market.ring.manifest(0), current.as_ref());
            }
        }
        Step::Positions { back, committed } => {
            let epoch = market.ring.epoch.saturating_sub(back);
            let rank0 = market.accounts.get(&epoch).map(|account| number_of(account.rank0));
            let _ = market.positions(rank0.unwrap_or(0), epoch, committed);
        }
        Step::Wait { millis } => market.wait(millis),
        Step::Relays { count } => {
            market.relays = (0..count).map(|relay| format!("https://r{relay}.example")).collect();
            market.settle();
        }
        Step::Demand { change } => {
            let demand = demand_after(change);
            let owner = KEYS.owner.public();
            market
                .step(|ring, now, relays| ring.demand(now, relays, owner, demand))
                .unwrap();
        }
        Step::Restart => {
            let json = serde_json::to_vec(&market.ring).unwrap();
            market.ring = serde_json::from_slice(&json).unwrap();
            let now = market.now;
            market.ring.restart(now);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_invariant_holds_whatever_happens(steps in proptest::collection::vec(step(), 1..120)) {
        let mut market = Market::new(demand(5));
        let mut signed = Vec::new();
        let mut by_epoch: BTreeMap<u64, RankManifest> = BTreeMap::new();
        let mut newest = 0;
        for step in steps {
            // `Market::step` checks the invariants around every command
            apply(&mut market, &mut signed, step);
            let status = market.status();
            let published = status.epoch.unwrap_or(newest);
            prop_assert!(published >= newest, "published epoch went from {newest} to {published}");
            newest = published;
            if let Some(proposal) = market.ring.proposal(0) {
                let known = by_epoch.entry(proposal.manifest.epoch).or_insert_with(|| proposal.manifest.clone());
                prop_assert_eq!(&*known, &proposal.manifest, "one epoch, two manifests");
                prop_assert!(status.uncovered.is_empty(), "a proposal while layers are uncovered");
            } else if status.uncovered.is_empty() && status.waiting.is_none() {
                let closed = market.ring.published.as_ref().is_some_and(|published| published.closed);
                prop_assert_eq!(status.ready, closed, "covered, nothing proposed, nothing to wait for: links are all it lacks");
            }
            prop_assert!(!status.ready || status.uncovered.is_empty());
            let live: Vec<_> = status.claims.iter().filter(|claim| claim.replaces.is_none()).collect();
            for (at, claim) in live.iter().enumerate() {
                prop_assert!(live[at + 1..].iter().all(|other| !other.windows.overlaps(claim.windows)));
            }
            for (epoch, account) in &market.accounts {
                let credited = market.credited.get(epoch).cloned().unwrap_or_default();
                prop_assert_eq!(invariants::check_sum(account, &credited), Ok(()));
            }
        }
    }

    #[test]
    fn a_ring_is_up_again_when_all_do_what_they_should(steps in proptest::collection::vec(step(), 1..60)) {
        let mut market = Market::new(demand(5));
        let mut signed = Vec::new();
        for step in steps {
            apply(&mut market, &mut signed, step);
        }
        market.relays = relays();
        let owner = KEYS.owner.public();
        market.step(|ring, now, relays| ring.demand(now, relays, owner, demand(5))).unwrap();
        market.wait(LEASE + 1);
        for (number, window) in [(0, 0), (8, 1), (9, 2), (10, 3), (1, 4)] {
            let claim = market.claim_as(number, "fresh", window, window + 1).unwrap();
            market.report_as(number, "fresh", &claim, ready()).unwrap();
        }
        market.form();
        prop_assert!(market.status().ready, "{:?}", market.status());
    }
}
