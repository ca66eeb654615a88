use std::{collections::BTreeMap, sync::LazyLock};

use kvasir_plan::{BoundaryType, Link, ModelRef, Rank};
use kvasir_wire::trust::{NodeKeys, OwnerKey};
use proptest::prelude::*;

use super::*;

const RANKS: usize = 3;

/// Two nodes for each rank, keys made once.
static KEYS: LazyLock<Keys> = LazyLock::new(|| Keys {
    owner: OwnerKey::generate().unwrap(),
    nodes: (0..2 * RANKS).map(|_| NodeKeys::generate().unwrap()).collect(),
});

struct Keys {
    owner: OwnerKey,
    nodes: Vec<NodeKeys>,
}

fn template() -> RankManifest {
    let rank = |start, end| Rank {
        layers: LayerRange { start, end },
        bytes: 1000,
        memory: 2000,
        placement: None,
        holder: None,
    };
    RankManifest {
        ring: "tea".to_owned(),
        epoch: 0,
        model: ModelRef {
            name: "tea".to_owned(),
            architecture: "llama".to_owned(),
            identity: "1".repeat(64),
            embedding_length: 8,
            layers: 6,
            vocabulary: 10,
            prefix_bytes: vec![100],
        },
        boundary_type: BoundaryType::Bf16,
        exact: false,
        context_length: 64,
        sequences: 1,
        max_laps: 4,
        max_lap_tokens: 16,
        ranks: vec![rank(0, 2), rank(2, 4), rank(4, 6)],
    }
}

fn board() -> Board {
    let delegate: Delegate = Box::new(|node| Some(KEYS.owner.delegate("tea", node)));
    Board::new(template(), KEYS.owner.public(), delegate, STALE_AFTER)
}

const READY: StageState = StageState::Ready {
    fetched_bytes: 1,
    resident_bytes: 2,
    backend: String::new(),
};

/// A report of rank `rank`'s node `2 * rank`.
fn report(rank: usize, instance: &str, state: StageState) -> StageReport {
    report_of(2 * rank, rank, instance, state)
}

fn report_of(node: usize, rank: usize, instance: &str, state: StageState) -> StageReport {
    StageReport {
        holder: KEYS.nodes[node].holder(
            instance,
            Link::Direct {
                address: format!("127.0.0.1:{}", 4000 + node),
            },
        ),
        layers: template().ranks[rank].layers,
        identity: "1".repeat(64),
        state,
        lost_epoch: None,
        lost_reason: None,
        lost_edge: None,
        reach: crate::types::Reach::default(),
    }
}

fn all_ready(board: &mut Board, now: Instant) {
    for rank in 0..RANKS {
        board.report(rank as u32, report(rank, "first", READY), now).unwrap();
    }
}

fn sign(proposal: &Proposal) -> SignedManifest {
    let node = &proposal.manifest.ranks[0].holder.as_ref().unwrap().node;
    let keys = KEYS
        .nodes
        .iter()
        .find(|keys| keys.public().to_string() == *node)
        .unwrap();
    SignedManifest::sign(&proposal.manifest, keys, proposal.delegation.clone()).unwrap()
}

fn publish(board: &mut Board, now: Instant) -> SignedManifest {
    let signed = sign(board.proposal(0, now).unwrap());
    board.publish(signed.clone(), now).unwrap();
    signed
}

#[test]
fn a_manifest_is_proposed_once_every_window_is_ready() {
    let (mut board, now) = (board(), Instant::now());
    board.report(0, report(0, "first", READY), now).unwrap();
    board.report(1, report(1, "first", StageState::Loading), now).unwrap();
    board.report(2, report(2, "first", READY), now).unwrap();
    assert_eq!(board.proposal(0, now), None);
    board.report(1, report(1, "first", READY), now).unwrap();
    let proposal = board.proposal(0, now).unwrap();
    assert_eq!(proposal.manifest.epoch, 1);
    assert_eq!(proposal.delegation.delegate, KEYS.nodes[0].public());
    let holders: Vec<_> = proposal
        .manifest
        .ranks
        .iter()
        .map(|rank| rank.holder.clone().unwrap())
        .collect();
    assert_eq!(holders, [0, 1, 2].map(|rank| report(rank, "first", READY).holder));
    assert_eq!(board.proposal(1, now), None, "only what is newer than asked for");
}

#[test]
fn a_published_manifest_reaches_who_asks_for_a_newer_one() {
    let (mut board, now) = (board(), Instant::now());
    all_ready(&mut board, now);
    assert_eq!(board.manifest(0), None);
    let signed = publish(&mut board, now);
    assert_eq!(board.manifest(0), Some(&signed));
    assert_eq!(board.manifest(1), None);
    assert_eq!(board.proposal(0, now), None, "nothing changed since");
    board.publish(signed, now).expect("a repeated call after a lost answer");
    assert_eq!(board.status(now).epoch, Some(1));
}

#[test]
fn a_lost_link_of_the_current_epoch_brings_the_next_one() {
    let (mut board, now) = (board(), Instant::now());
    all_ready(&mut board, now);
    publish(&mut board, now);
    let mut lost = report(1, "first", READY);
    lost.lost_epoch = Some(1);
    board.report(1, lost.clone(), now).unwrap();
    assert_eq!(board.proposal(1, now).unwrap().manifest.epoch, 2);
    board.report(2, report(2, "first", READY), now).unwrap();
    assert_eq!(board.proposal(1, now).unwrap().manifest.epoch, 2, "one loss, one epoch");
    publish(&mut board, now);
    board.report(1, lost, now).unwrap();
    assert_eq!(board.proposal(0, now), None, "epoch 1 is over, its losses too");
}

#[test]
fn a_restarted_process_takes_its_slot_back_and_fences_the_older_one() {
    let (mut board, now) = (board(), Instant::now());
    all_ready(&mut board, now);
    publish(&mut board, now);
    board.report(1, report(1, "second", READY), now).unwrap();
    let proposal = board.proposal(1, now).unwrap();
    assert_eq!(proposal.manifest.ranks[1].holder.as_ref().unwrap().instance, "second");
    let error = board.report(1, report(1, "first", READY), now).unwrap_err();
    assert_eq!(error.reason(), "Fenced");
}

#[test]
fn a_replacement_that_still_fetches_leaves_the_slot_to_the_process_that_serves() {
    let (mut board, now) = (board(), Instant::now());
    all_ready(&mut board, now);
    publish(&mut board, now);
    board
        .report(1, report(1, "second", StageState::Fetching { done: 1, total: 9 }), now)
        .unwrap();
    board.report(1, report(1, "first", READY), now).unwrap();
    assert_eq!(board.proposal(0, now), None);
    board.report(1, report(1, "second", READY), now).unwrap();
    assert_eq!(board.proposal(0, now).unwrap().manifest.epoch, 2);
}

#[test]
fn a_live_slot_is_kept_from_other_nodes_and_a_silent_or_leaving_one_is_not() {
    let (mut board, now) = (board(), Instant::now());
    all_ready(&mut board, now);
    let other = report_of(3, 1, "other", READY);
    assert_eq!(board.report(1, other.clone(), now).unwrap_err().reason(), "Held");
    board
        .report(1, other, now + STALE_AFTER + Duration::from_millis(1))
        .expect("silent for too long");
    let left = now + STALE_AFTER + Duration::from_millis(2);
    board.report(2, report(2, "first", StageState::Leaving), left).unwrap();
    board.report(2, report_of(5, 2, "other", READY), left).expect("left");
}

#[test]
fn a_silent_stage_is_not_ready_and_its_proposal_is_withdrawn_for_good() {
    let (mut board, now) = (board(), Instant::now());
    all_ready(&mut board, now);
    let signed = sign(board.proposal(0, now).unwrap());
    let late = now + STALE_AFTER + Duration::from_millis(1);
    assert_eq!(board.proposal(0, late), None);
    assert!(board.status(late).slots.iter().all(|slot| slot.stale && !slot.ready()));
    assert_eq!(board.publish(signed.clone(), late).unwrap_err().reason(), "NotProposed");
    all_ready(&mut board, late);
    assert_eq!(
        board.proposal(0, late).unwrap().manifest.epoch,
        2,
        "epoch 1 may have been signed"
    );
    assert_eq!(board.publish(signed, late).unwrap_err().reason(), "NotProposed");
}

#[test]
fn a_window_of_another_rank_or_model_is_refused() {
    let (mut board, now) = (board(), Instant::now());
    let refuse = |board: &mut Board, rank, report| board.report(rank, report, now).unwrap_err();
    let window = refuse(&mut board, 0, report(1, "first", READY));
    assert_eq!(window.to_string(), "rank 0 is layers 0..2, not 2..4: fetch that window");
    let mut other = report(0, "first", READY);
    other.identity = "2".repeat(64);
    assert_eq!(refuse(&mut board, 0, other).reason(), "WrongModel");
    assert_eq!(refuse(&mut board, 3, report(0, "first", READY)).reason(), "UnknownRank");
    let mut swapped = report(0, "first", READY);
    swapped.holder.noise_key = report(1, "first", READY).holder.noise_key;
    assert_eq!(refuse(&mut board, 0, swapped).reason(), "BadHolder");
    assert!(board.status(now).slots.iter().all(|slot| slot.report.is_none()));
}

#[test]
fn a_manifest_is_taken_only_signed_by_rank_0_and_as_proposed() {
    let (mut board, now) = (board(), Instant::now());
    all_ready(&mut board, now);
    let proposal = board.proposal(0, now).unwrap().clone();
    let stranger = OwnerKey::generate().unwrap();
    let foreign = SignedManifest::sign(
        &proposal.manifest,
        &KEYS.nodes[0],
        stranger.delegate("tea", KEYS.nodes[0].public()),
    );
    assert_eq!(board.publish(foreign.unwrap(), now).unwrap_err().reason(), "Unsigned");
    let by_rank_1 = SignedManifest::sign(&proposal.manifest, &KEYS.nodes[2], proposal.delegation.clone());
    assert_eq!(board.publish(by_rank_1.unwrap(), now).unwrap_err().reason(), "Unsigned");
    let mut wider = proposal.clone();
    wider.manifest.max_laps += 1;
    assert_eq!(board.publish(sign(&wider), now).unwrap_err().reason(), "NotProposed");
    assert_eq!(board.manifest(0), None);
    board.publish(sign(&proposal), now).unwrap();
}

#[test]
fn nothing_is_proposed_before_the_owner_agrees_to_rank_0() {
    let mut board = Board::new(template(), KEYS.owner.public(), Box::new(|_| None), STALE_AFTER);
    let now = Instant::now();
    all_ready(&mut board, now);
    assert_eq!(board.proposal(0, now), None);
}

#[test]
fn a_market_that_starts_again_goes_on_from_its_last_epoch() {
    let mut manifest = template();
    manifest.epoch = 41;
    let delegate: Delegate = Box::new(|node| Some(KEYS.owner.delegate("tea", node)));
    let (mut board, now) = (
        Board::new(manifest, KEYS.owner.public(), delegate, STALE_AFTER),
        Instant::now(),
    );
    all_ready(&mut board, now);
    assert_eq!(board.proposal(0, now).unwrap().manifest.epoch, 42);
}

#[derive(Clone, Debug)]
enum Step {
    Report {
        rank: usize,
        other_node: bool,
        instance: u8,
        state: StageState,
        lost: bool,
    },
    Publish,
    PublishEarlier {
        back: usize,
    },
    Wait {
        millis: u64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let state = prop_oneof![
        4 => Just(READY),
        1 => Just(StageState::Loading),
        1 => Just(StageState::Fetching { done: 1, total: 2 }),
        1 => Just(StageState::Leaving),
    ];
    let report = (
        0..RANKS,
        proptest::bool::weighted(0.1),
        0..4_u8,
        state,
        proptest::bool::weighted(0.2),
    );
    prop_oneof![
        12 => report.prop_map(|(rank, other_node, instance, state, lost)| {
            Step::Report { rank, other_node, instance, state, lost }
        }),
        4 => Just(Step::Publish),
        1 => (0..4_usize).prop_map(|back| Step::PublishEarlier { back }),
        2 => (0..20_000_u64).prop_map(|millis| Step::Wait { millis }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn epochs_only_grow_and_each_names_one_manifest(steps in proptest::collection::vec(step(), 1..80)) {
        let (mut board, mut now) = (board(), Instant::now());
        let mut by_epoch: BTreeMap<u64, RankManifest> = BTreeMap::new();
        let mut signed: Vec<SignedManifest> = Vec::new();
        let mut newest = 0;
        for step in steps {
            match step {
                Step::Report { rank, other_node, instance, state, lost } => {
                    let node = 2 * rank + usize::from(other_node);
                    let mut report = report_of(node, rank, &format!("{node}-{instance}"), state);
                    report.lost_epoch = board.status(now).epoch.filter(|_| lost);
                    let _ = board.report(rank as u32, report, now);
                }
                Step::Publish => {
                    if let Some(proposal) = board.proposal(0, now).cloned() {
                        signed.push(sign(&proposal));
                        prop_assert!(board.publish(sign(&proposal), now).is_ok());
                    }
                }
                Step::PublishEarlier { back } => {
                    let at = signed.len().checked_sub(back + 1);
                    if let Some(earlier) = at.map(|at| signed[at].clone()) {
                        let current = board.manifest(0).cloned();
                        prop_assert_eq!(board.publish(earlier.clone(), now).is_ok(), current.as_ref() == Some(&earlier));
                        prop_assert_eq!(board.manifest(0).cloned(), current);
                    }
                }
                Step::Wait { millis } => now += Duration::from_millis(millis),
            }

            let status = board.status(now);
            let published = status.epoch.unwrap_or(0);
            prop_assert!(published >= newest, "published epoch went from {newest} to {published}");
            newest = published;
            let ready = status.slots.iter().all(SlotStatus::ready);
            if let Some(proposal) = board.proposal(0, now).cloned() {
                prop_assert!(ready, "a proposal while a slot isn't ready");
                prop_assert!(proposal.manifest.epoch > published);
                let known = by_epoch.entry(proposal.manifest.epoch).or_insert_with(|| proposal.manifest.clone());
                prop_assert_eq!(&*known, &proposal.manifest, "one epoch, two manifests");
                prop_assert_eq!(by_epoch.last_key_value().map(|(epoch, _)| *epoch), Some(proposal.manifest.epoch));
            } else if ready {
                let text = &board.manifest(0).expect("ready, nothing proposed: so it is published").manifest;
                let manifest: RankManifest = serde_json::from_str(text).unwrap();
                for (slot, rank) in status.slots.iter().zip(&manifest.ranks) {
                    prop_assert_eq!(slot.report.as_ref().map(|report| &report.holder), rank.holder.as_ref());
                }
            }
        }
    }
}
