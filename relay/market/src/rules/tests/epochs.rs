//! When a manifest is due, who is in it, and who may publish it. The map that says what is covered.

use super::*;

fn layers(ranges: &[(u32, u32)]) -> Vec<LayerRange> {
    ranges
        .iter()
        .map(|(start, end)| LayerRange {
            start: *start,
            end: *end,
        })
        .collect()
}

fn alive(market: &mut Market, claims: &[(usize, &Claim)]) {
    for (number, claim) in claims {
        market.report(*number, claim, ready()).unwrap();
    }
}

#[test]
fn a_manifest_is_proposed_once_every_window_is_ready() {
    let mut market = Market::new(demand(3));
    let ends = [market.hold(0, 0, 1), market.hold(1, 2, 3)];
    let middle = market.claim(2, 1, 2).unwrap();
    market.report(2, &middle, StageState::Loading).unwrap();
    assert_eq!(market.ring.proposal(0), None);
    assert_eq!(market.status().waiting.as_deref(), Some("nobody serves layers 2..4"));
    market.report(2, &middle, ready()).unwrap();
    let proposal = market.ring.proposal(0).unwrap();
    assert_eq!(proposal.manifest.epoch, 1);
    assert_eq!(proposal.delegation.delegate, node(0));
    let holders: Vec<_> = proposal
        .manifest
        .ranks
        .iter()
        .map(|rank| rank.holder.clone().unwrap().node)
        .collect();
    assert_eq!(holders, [0, 2, 1].map(|number| node(number).to_string()));
    assert_eq!(market.ring.proposal(1), None, "only what is newer than asked for");
    assert_eq!(market.status().waiting, None);
    assert_eq!(market.ring.leases.len(), ends.len() + 1);
}

#[test]
fn a_published_manifest_reaches_who_asks_for_a_newer_one() {
    let mut market = Market::new(demand(2));
    market.hold(0, 0, 1);
    market.hold(1, 1, 2);
    assert_eq!(market.ring.manifest(0), None);
    let signed = market.sign().unwrap();
    market.offer_manifest(signed.clone()).unwrap();
    assert_eq!(market.ring.manifest(0), Some(&signed));
    assert_eq!(market.ring.manifest(1), None);
    assert_eq!(market.ring.proposal(0), None, "nothing changed since");
    market
        .offer_manifest(signed)
        .expect("a repeated call after a lost answer");
    assert_eq!(market.status().epoch, Some(1));
    assert_eq!(market.accounts.len(), 1);
}

#[test]
fn a_lost_link_of_the_current_epoch_brings_the_next_one() {
    let (mut market, [_, claim, ..]) = ring_of_four();
    let mut lost = market.report_of(2, "first", claim.windows, ready());
    lost.lost_epoch = Some(1);
    market.send(2, claim.id, lost.clone()).unwrap();
    assert!(!market.status().ready);
    assert_eq!(market.ring.proposal(1).unwrap().manifest.epoch, 2);
    market.wait(1_000);
    assert_eq!(
        market.ring.proposal(1).unwrap().manifest.epoch,
        2,
        "one loss, one epoch"
    );
    market.form();
    assert!(market.status().ready);
    market.send(2, claim.id, lost).unwrap();
    assert_eq!(market.ring.proposal(0), None, "epoch 1 is over, its losses too");
}

#[test]
fn a_silent_stage_is_not_proposed_and_a_withdrawn_proposal_is_gone_for_good() {
    let mut market = Market::new(demand(2));
    market.hold(0, 0, 1);
    market.hold(1, 1, 2);
    let signed = market.sign().unwrap();
    market.now += LEASE + 1;
    assert_eq!(reason(market.offer_manifest(signed.clone())), "NotProposed");
    assert_eq!(market.ring.proposal(0), None);
    market.hold(0, 0, 1);
    market.hold(1, 1, 2);
    assert_eq!(
        market.ring.proposal(0).unwrap().manifest.epoch,
        2,
        "epoch 1 may have been signed"
    );
    assert_eq!(reason(market.offer_manifest(signed)), "NotProposed");
}

#[test]
fn a_manifest_is_taken_only_signed_by_rank_0_and_as_proposed() {
    let mut market = Market::new(demand(2));
    market.hold(0, 0, 1);
    market.hold(1, 1, 2);
    let Proposal { manifest, delegation } = market.ring.proposal(0).unwrap().clone();
    let sign = |manifest: &RankManifest, number: usize, delegation: &kvasir_wire::trust::Delegation| {
        SignedManifest::sign(manifest, &KEYS.nodes[number], delegation.clone()).unwrap()
    };
    let stranger = OwnerKey::generate().unwrap().delegate("tea", node(0));
    assert_eq!(reason(market.offer_manifest(sign(&manifest, 0, &stranger))), "Unsigned");
    assert_eq!(
        reason(market.offer_manifest(sign(&manifest, 1, &delegation))),
        "Unsigned"
    );
    let to_rank_1 = KEYS.owner.delegate("tea", node(1));
    assert_eq!(
        reason(market.offer_manifest(sign(&manifest, 1, &to_rank_1))),
        "Unsigned",
        "not rank 0"
    );
    let mut wider = manifest.clone();
    wider.max_laps += 1;
    assert_eq!(
        reason(market.offer_manifest(sign(&wider, 0, &delegation))),
        "NotProposed"
    );
    let unsigned = SignedManifest {
        signature: None,
        ..sign(&manifest, 0, &delegation)
    };
    assert_eq!(reason(market.offer_manifest(unsigned)), "Unsigned");
    assert_eq!(market.ring.manifest(0), None);
    market.offer_manifest(sign(&manifest, 0, &delegation)).unwrap();
}

#[test]
fn nothing_is_proposed_before_the_owner_agrees_to_rank_0() {
    let mut market = Market::new(Demand {
        delegations: vec![KEYS.owner.delegate("tea", node(5))],
        ..demand(2)
    });
    market.hold(0, 0, 1);
    market.hold(1, 1, 2);
    assert_eq!(market.ring.proposal(0), None);
    assert!(
        market
            .status()
            .waiting
            .unwrap()
            .starts_with("the owner has not delegated to node")
    );
    market
        .step(|ring, now, relays| ring.demand(now, relays, KEYS.owner.public(), demand(2)))
        .unwrap();
    assert_eq!(market.publish().epoch, 1, "claims stay when only delegations change");
}

#[test]
fn a_market_that_starts_again_goes_on_from_its_last_epoch() {
    let mut old = demand(2);
    old.template.epoch = 41;
    let mut market = Market::new(old);
    market.hold(0, 0, 1);
    market.hold(1, 1, 2);
    assert_eq!(market.ring.proposal(0).unwrap().manifest.epoch, 42);
    let json = serde_json::to_vec(&market.ring).unwrap();
    let kept: RingState = serde_json::from_slice(&json).unwrap();
    assert_eq!(kept, market.ring, "its state is whole in a row");
}

#[test]
fn neighbouring_windows_of_one_claim_are_one_rank() {
    let mut market = Market::new(demand(6));
    market.hold(0, 0, 1);
    market.hold(2, 1, 4);
    market.hold(3, 4, 5);
    market.hold(1, 5, 6);
    let manifest = market.publish();
    let ranks: Vec<_> = manifest.ranks.iter().map(|rank| rank.layers).collect();
    assert_eq!(ranks, layers(&[(0, 2), (2, 8), (8, 10), (10, 12)]));
    assert_eq!(manifest.ranks[1].memory, 3 * GB);
    manifest.validate().unwrap();
}

#[test]
fn a_ring_of_one_and_of_two_ranks_are_rings() {
    let mut market = Market::new(open_demand(3));
    market.hold(4, 0, 3);
    assert_eq!(market.publish().ranks.len(), 1);
    let mut market = Market::new(open_demand(2));
    market.hold(4, 0, 1);
    market.hold(5, 1, 2);
    assert_eq!(market.publish().ranks.len(), 2);
}

#[test]
fn an_edge_is_direct_where_both_ends_are_on_one_network_and_relayed_elsewhere() {
    let mut market = Market::new(demand(4));
    let reach = |network: Option<&str>, address: Option<&str>| Reach {
        network: network.map(str::to_owned),
        address: address.map(str::to_owned),
    };
    let at = |market: &mut Market, number: usize, window: u32, reach: Reach| {
        let claim = market.claim(number, window, window + 1).unwrap();
        let mut report = market.report_of(number, "first", claim.windows, ready());
        report.reach = reach;
        market.send(number, claim.id, report.clone()).unwrap();
        (claim, report)
    };
    at(&mut market, 0, 0, reach(Some("rack"), Some("10.0.0.1:4000")));
    let (second, mut report) = at(&mut market, 2, 1, reach(Some("rack"), Some("10.0.0.2:4000")));
    at(&mut market, 3, 2, reach(Some("home"), Some("192.168.0.3:4000")));
    at(&mut market, 1, 3, reach(Some("home"), None));
    let links = |market: &mut Market| -> Vec<Link> {
        let manifest = market.publish();
        manifest
            .ranks
            .iter()
            .map(|rank| rank.holder.clone().unwrap().link)
            .collect()
    };
    let relayed = || Link::Relayed {
        url: "https://relay.example".to_owned(),
    };
    let direct = Link::Direct {
        address: "10.0.0.2:4000".to_owned(),
    };
    assert_eq!(links(&mut market), [relayed(), direct, relayed(), relayed()]);

    report.reach.address = Some("10.0.0.9:4000".to_owned());
    market.send(2, second.id, report.clone()).unwrap();
    let moved = Link::Direct {
        address: "10.0.0.9:4000".to_owned(),
    };
    assert_eq!(links(&mut market)[1], moved, "another address is another epoch");

    // F4: a neighbour that says it can be dialled and can't
    (report.lost_epoch, report.lost_edge) = (Some(2), Some(0));
    market.send(2, second.id, report.clone()).unwrap();
    assert_eq!(links(&mut market)[1], relayed(), "the next epoch goes over the relay");
    (report.lost_epoch, report.lost_edge) = (Some(3), Some(u32::MAX));
    market.send(2, second.id, report).unwrap();
    assert_eq!(links(&mut market)[1], relayed());
}

#[test]
fn a_direct_edge_that_was_lost_is_tried_again_where_there_is_no_relay() {
    let mut market = Market::new(demand(2));
    market.relays.clear();
    for (number, window) in [(0, 0), (1, 1)] {
        let claim = market.claim(number, window, window + 1).unwrap();
        let mut report = market.report_of(number, "first", claim.windows, ready());
        report.reach = Reach {
            network: Some("rack".to_owned()),
            address: Some(format!("10.0.0.{number}:4000")),
        };
        market.send(number, claim.id, report.clone()).unwrap();
        if number == 1 {
            market.publish();
            (report.lost_epoch, report.lost_edge) = (Some(1), Some(0));
            market.send(number, claim.id, report).unwrap();
        }
    }
    let manifest = market.publish();
    assert_eq!(manifest.epoch, 2);
    let link = manifest.ranks[1].holder.clone().unwrap().link;
    assert_eq!(
        link,
        Link::Direct {
            address: "10.0.0.1:4000".to_owned()
        }
    );
}

#[test]
fn an_edge_that_needs_a_relay_waits_for_one_and_leaves_one_that_is_gone() {
    let mut market = Market::new(demand(2));
    market.relays.clear();
    market.hold(0, 0, 1);
    let claim = market.hold(1, 1, 2);
    assert_eq!(market.ring.proposal(0), None);
    assert!(market.status().waiting.unwrap().contains("no relay is there"));
    market.relays = vec!["https://a.example".to_owned()];
    market.settle();
    assert_eq!(market.ring.proposal(0).unwrap().manifest.epoch, 1);
    market.relays = vec!["https://b.example".to_owned()];
    market.settle();
    assert_eq!(
        market.ring.proposal(0).unwrap().manifest.epoch,
        2,
        "a relay that is gone bridges nothing"
    );
    market.publish();
    market.relays = vec!["https://c.example".to_owned()];
    market.settle();
    assert_eq!(
        market.ring.proposal(0),
        None,
        "the edges may still be up: the stages say when not"
    );
    let mut lost = market.report_of(1, "first", claim.windows, ready());
    lost.lost_epoch = Some(2);
    market.send(1, claim.id, lost).unwrap();
    let holder = market.publish().ranks[1].holder.clone().unwrap();
    assert_eq!(
        holder.link,
        Link::Relayed {
            url: "https://c.example".to_owned()
        }
    );
}

#[test]
fn edges_spread_over_the_relays_and_only_those_of_a_lost_one_move() {
    let relays: Vec<String> = (0..4).map(|relay| format!("https://r{relay}.example")).collect();
    let of = |relays: &[String]| -> Vec<Link> {
        (0..200)
            .map(|edge| links::relayed("tea", edge, relays).unwrap())
            .collect()
    };
    let all = of(&relays);
    let fewer = of(&relays[..3]);
    let mut moved = 0;
    for (before, after) in all.iter().zip(&fewer) {
        let was_lost = *before == Link::Relayed { url: relays[3].clone() };
        assert!(was_lost || before == after, "an edge of a relay that lives moved");
        moved += usize::from(was_lost);
    }
    assert!((25..=75).contains(&moved), "{moved} of 200 edges on one relay of four");
    let mut turned = relays;
    turned.reverse();
    assert_eq!(of(&turned), all, "whatever order the relays are listed in");
}

#[test]
fn the_map_names_what_is_uncovered_within_a_lease_and_recovery_needs_no_restart() {
    // F4: ring 0-9, 10-19, 20-29; the middle one dies without a word
    let mut plan = open_demand(3);
    for (rank, start) in plan.template.ranks.iter_mut().zip([0, 10, 20]) {
        rank.layers = LayerRange { start, end: start + 10 };
    }
    plan.template.model.layers = 30;
    let mut market = Market::new(plan);
    let [first, dead, last] = [(4, 0), (5, 1), (6, 2)].map(|(number, window)| market.hold(number, window, window + 1));
    market.form();
    assert!(market.status().ready);

    market.wait(1_000);
    alive(&mut market, &[(4, &first), (6, &last)]);
    market.wait(9_000);
    alive(&mut market, &[(4, &first), (6, &last)]);
    market.wait(5_001);
    alive(&mut market, &[(4, &first), (6, &last)]);
    let status = market.status();
    assert_eq!(status.uncovered, layers(&[(10, 20)]));
    assert!(!status.ready);
    assert_eq!(status.waiting.as_deref(), Some("nobody serves layers 10..20"));
    assert_eq!(status.windows[1].state, WindowState::Open);
    assert_eq!(market.ring.proposal(0), None, "no manifest names a dead stage");
    assert_eq!(reason(market.report(5, &dead, ready())), "Expired");

    // enough stages in number, and still no cover
    market.wait(1_000);
    alive(&mut market, &[(4, &first), (6, &last)]);
    let extra = market.claim(7, 1, 2).unwrap();
    assert_eq!(market.status().claims.len(), 3);
    assert_eq!(market.status().uncovered, layers(&[(10, 20)]));
    assert!(!market.status().ready);
    market.report(7, &extra, ready()).unwrap();
    assert_eq!(market.status().uncovered, layers(&[]));
    assert!(!market.status().ready, "covered, and not formed yet");
    assert_eq!(market.form().epoch, 2);
    assert!(market.status().ready);
}

#[test]
fn a_ring_is_ready_once_rank_0_says_that_a_lap_went_round_in_the_published_epoch() {
    let (mut market, [_, second, ..]) = ring_of_four();
    let mut lost = market.report_of(2, "first", second.windows, ready());
    lost.lost_epoch = Some(1);
    market.send(2, second.id, lost).unwrap();
    market.publish();
    assert!(!market.status().ready, "the links of epoch 2 are being made");
    market.positions(0, 1, 7).unwrap();
    assert!(!market.status().ready, "what came home in epoch 1 comes late");
    assert_eq!(reason(market.positions(2, 2, 0)), "NotRank0");
    assert!(!market.status().ready, "nobody but rank 0 knows");
    market.positions(0, 2, 0).unwrap();
    assert!(market.status().ready, "the first lap carries no positions");
    let json = serde_json::to_string(&market.ring).unwrap();
    market.ring = serde_json::from_str(&json).unwrap();
    assert!(market.status().ready, "a market that starts again knows it");
}

#[test]
fn a_market_whose_memory_is_older_than_the_ring_goes_on_above_what_its_stages_know() {
    let (mut market, [_, second, ..]) = ring_of_four();
    let mut report = market.report_of(2, "first", second.windows, ready());
    report.epoch = 40;
    market.send(2, second.id, report.clone()).unwrap();
    let status = market.status();
    assert_eq!(
        (status.ready, status.epoch),
        (false, None),
        "the ring doesn't run by epoch 1"
    );
    let next = market.form().epoch;
    assert!(next > 40, "{next} is an epoch that no stage would take");
    assert!(market.status().ready);
    market.send(2, second.id, report.clone()).unwrap();
    assert_eq!(market.status().epoch, Some(next), "what it knows now is enough");
    report.epoch = u64::MAX;
    market.send(2, second.id, report).unwrap();
    assert_eq!(market.status().epoch, Some(next), "no stage ends the numbers");
}

#[test]
fn a_ring_that_an_older_market_published_stays_ready() {
    let (mut market, _) = ring_of_four();
    let mut json = serde_json::to_value(&market.ring).unwrap();
    json["published"].as_object_mut().unwrap().remove("closed").unwrap();
    market.ring = serde_json::from_value(json).unwrap();
    assert!(market.status().ready);
}

#[test]
fn tickets_are_for_the_two_ends_of_a_relayed_edge_of_the_newest_epoch() {
    let (mut market, [_, second, third, _]) = ring_of_four();
    let ticket = |market: &Market, number: usize, epoch, edge, role| {
        let request = TicketRequest { epoch, edge, role };
        market.ring.ticket(market.now, node(number), request).map(str::to_owned)
    };
    let (before, after) = (EdgeRole::Predecessor, EdgeRole::Successor);
    assert_eq!(ticket(&market, 2, 1, 1, before).unwrap(), "https://relay.example");
    assert_eq!(ticket(&market, 3, 1, 1, after).unwrap(), "https://relay.example");
    assert_eq!(
        ticket(&market, 0, 1, 3, after).unwrap(),
        "https://relay.example",
        "the closing edge enters rank 0"
    );
    assert_eq!(reason(ticket(&market, 2, 1, 1, after)), "NotAtEdge");
    assert_eq!(reason(ticket(&market, 9, 1, 1, before)), "NotAtEdge");
    assert_eq!(reason(ticket(&market, 2, 1, 4, before)), "NotAtEdge");
    assert_eq!(reason(ticket(&market, 2, 1, u32::MAX, before)), "NotAtEdge");
    assert_eq!(reason(ticket(&market, 2, 2, 1, before)), "UnknownEpoch");
    for (number, claim) in [(2, &second), (3, &third)] {
        let mut report = market.report_of(number, "first", claim.windows, ready());
        report.reach = Reach {
            network: Some("rack".to_owned()),
            address: Some("10.0.0.1:1".to_owned()),
        };
        market.send(number, claim.id, report).unwrap();
    }
    market.publish();
    assert_eq!(reason(ticket(&market, 2, 2, 1, before)), "NotRelayed");
    market.now += LEASE + 1;
    assert_eq!(
        reason(ticket(&market, 2, 2, 0, after)),
        "NotAtEdge",
        "a dead one gets none"
    );
}

#[test]
fn a_ring_keeps_the_claims_of_windows_that_stay_and_drops_the_others() {
    let (mut market, claims) = ring_of_four();
    let owner = KEYS.owner.public();
    let stranger = OwnerKey::generate().unwrap().public();
    let put = |market: &mut Market, by, demand| market.step(|ring, now, relays| ring.demand(now, relays, by, demand));
    assert_eq!(reason(put(&mut market, stranger, demand(4))), "ForeignOwner");
    put(&mut market, owner, demand(4)).unwrap();
    assert!(market.status().ready, "nothing changed");
    assert_eq!(market.ring.proposal(0), None);

    // windows 1 and 2 become three; the ends stay, the last one at another place
    let mut finer = demand(5);
    for (rank, (start, end)) in finer
        .template
        .ranks
        .iter_mut()
        .zip([(0, 2), (2, 3), (3, 4), (4, 6), (6, 8)])
    {
        rank.layers = LayerRange { start, end };
    }
    finer.template.model.layers = 8;
    put(&mut market, owner, finer).unwrap();
    let kept: Vec<_> = market
        .status()
        .claims
        .iter()
        .map(|claim| (claim.id, claim.windows.start))
        .collect();
    assert_eq!(kept, [(claims[0].id, 0), (claims[2].id, 3), (claims[3].id, 4)]);
    assert_eq!(reason(market.report(2, &claims[1], ready())), "Expired");
    market.hold(2, 1, 3);
    assert_eq!(market.publish().epoch, 2);

    let mut longer = demand(4);
    longer.template.context_length *= 2;
    put(&mut market, owner, longer).unwrap();
    assert_eq!(market.status().claims, [], "windows are loaded for one context length");
    assert_eq!(market.status().epoch, None);
    for (number, window) in [(0, 0), (2, 1), (3, 2), (1, 3)] {
        market.hold(number, window, window + 1);
    }
    assert_eq!(market.publish().epoch, 3, "epochs only grow");
}

#[test]
fn a_window_that_is_kept_for_another_node_from_now_on_is_taken_from_its_holder() {
    let (mut market, claims) = ring_of_four();
    let mut kept = demand(4);
    kept.reserved.insert(1, node(7));
    market
        .step(|ring, now, relays| ring.demand(now, relays, KEYS.owner.public(), kept))
        .unwrap();
    assert_eq!(reason(market.report(2, &claims[1], ready())), "Expired");
    assert_eq!(reason(market.claim(2, 1, 2)), "Taken");
    market.hold(7, 1, 2);
    assert_eq!(market.publish().epoch, 2);
}

#[test]
fn a_ring_that_is_taken_off_the_market_ends_all_claims_and_comes_back_with_higher_epochs() {
    let (mut market, claims) = ring_of_four();
    let owner = KEYS.owner.public();
    market.ring.withdraw(owner).unwrap();
    assert!(market.ring.withdrawn());
    assert_eq!(reason(market.report(2, &claims[1], ready())), "UnknownRing");
    assert_eq!(reason(market.claim(2, 1, 2)), "UnknownRing");
    assert_eq!(market.ring.offer(market.now, node(2)), None);
    assert_eq!(market.ring.manifest(0), None);
    market
        .step(|ring, now, relays| ring.demand(now, relays, owner, demand(4)))
        .unwrap();
    let mut newest = 0;
    for (number, window) in [(0, 0), (2, 1), (3, 2), (1, 3)] {
        newest = market.hold(number, window, window + 1).generation;
    }
    assert!(newest > claims[3].generation);
    assert_eq!(market.publish().epoch, 2);
}

#[test]
fn a_demand_that_can_not_be_served_is_refused_by_name() {
    let refuse = |change: &dyn Fn(&mut Demand)| {
        let mut demand = demand(3);
        change(&mut demand);
        RingState::new(0, KEYS.owner.public(), demand).unwrap_err().to_string()
    };
    let said = refuse(&|demand| demand.template.ranks[1].layers.start = 3);
    assert!(
        said.ends_with("rank 1 starts at layer 3, and the layers before it end at 2"),
        "{said}"
    );
    let open_end = refuse(&|demand| demand.reserved.retain(|window, _| *window != 0));
    assert!(open_end.contains("window 0 is an end and open"), "{open_end}");
    let beyond = refuse(&|demand| demand.reserved.extend([(3, node(3))]));
    assert!(beyond.contains("the last one is 2"), "{beyond}");
    assert!(refuse(&|demand| demand.lease_s = Some(0)).contains("a lease of 0 s"));
    let file = Source::File {
        path: "/models/tea.gguf".to_owned(),
    };
    assert!(refuse(&|demand| demand.source = file.clone()).contains("a source that outsiders can read"));
    let stranger = OwnerKey::generate().unwrap();
    let foreign = refuse(&|demand| demand.delegations = vec![stranger.delegate("tea", node(0))]);
    assert_eq!(foreign, "a delegation in the demand doesn't hold");
}
