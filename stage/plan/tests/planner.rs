//! What a plan promises: windows in order that hold every layer once, fit their devices and keep to the request.

#![allow(clippy::unwrap_used)]

mod support;

use std::time::Duration;

use kvasir_plan::{
    Device, Error, LapShape, Layer, LayerKind, LayerRange, MarketTerms, ModelProfile, Needs, Placement, Request,
    Window, WindowHolder, plan,
};
use proptest::prelude::*;
use support::{GB, model};

/// A device inside that holds so many layers of [`model`] with room for buffers, and reads 10 GB/s.
fn device(name: &str, layers: u64) -> Device {
    Device {
        name: name.into(),
        placement: Placement::Inside,
        max_stages: 1,
        memory: layers * GB + GB / 2,
        decode: 10 * GB,
        prefill: 100 * GB,
        latency: Duration::from_micros(100),
        bandwidth: GB,
    }
}

fn outside(device: Device) -> Device {
    Device {
        placement: Placement::Outside,
        ..device
    }
}

fn market(max_layers: u32, max_window_bytes: u64) -> Request {
    Request {
        market: Some(MarketTerms {
            max_layers,
            max_window_bytes,
        }),
        ..Request::default()
    }
}

/// `name start..end` of each rank.
fn lines(profile: &ModelProfile, devices: &[Device], request: &Request) -> Vec<String> {
    let plan = plan(profile, devices, request).unwrap_or_else(|e| panic!("{e}"));
    plan.rows()
        .iter()
        .map(|row| format!("{} {}", row.placement, row.layers))
        .collect()
}

fn refusal(profile: &ModelProfile, devices: &[Device], request: &Request) -> Error {
    plan(profile, devices, request).expect_err("a plan where none is possible")
}

#[test]
fn one_device_that_holds_all_is_a_ring_of_one_without_hops() {
    let devices = [device("a", 10), device("b", 10)];
    let plan = plan(&model(8), &devices, &Request::default()).unwrap();
    assert_eq!(plan.ranks.len(), 1);
    assert_eq!(plan.ranks[0].hop, Duration::ZERO);
    // 8 GB and the head's 1000 bytes at 10 GB/s
    assert_eq!(plan.token_time(), Duration::from_nanos(800_000_100));
}

#[test]
fn a_second_device_is_used_when_it_saves_more_than_its_hops() {
    let mut fast = device("fast", 4);
    fast.decode = 100 * GB;
    assert_eq!(
        lines(&model(8), &[device("slow", 10), fast.clone()], &Request::default()),
        ["slow 0..4", "fast 4..8"]
    );
    fast.latency = Duration::from_secs(1);
    assert_eq!(
        lines(&model(8), &[device("slow", 10), fast], &Request::default()),
        ["slow 0..8"]
    );
}

#[test]
fn equal_devices_get_equal_windows() {
    let pool = Device {
        max_stages: 3,
        ..device("pool", 5)
    };
    assert_eq!(
        lines(&model(12), &[pool], &Request::default()),
        ["pool 0..4", "pool 4..8", "pool 8..12"]
    );
}

#[test]
fn of_plans_as_fast_the_one_with_fewer_ranks_is_taken() {
    let instant = |name, layers| Device {
        latency: Duration::ZERO,
        bandwidth: u64::MAX,
        ..device(name, layers)
    };
    let devices = [instant("a", 2), instant("b", 2), instant("c", 3), instant("d", 3)];
    let plan = plan(&model(6), &devices, &Request::default()).unwrap();
    assert_eq!(plan.ranks.len(), 2);
}

#[test]
fn rank_0_and_the_last_rank_stay_inside() {
    let mut phone = outside(device("phone", 6));
    phone.decode = 1000 * GB;
    let devices = [phone, device("a", 4), device("b", 4)];
    let trusted = lines(&model(8), &devices, &Request::default());
    assert_eq!(trusted.len(), 3);
    assert!(trusted[1].starts_with("phone"), "{trusted:?}");
    let open = Request {
        trusted_ends: false,
        ..Request::default()
    };
    assert_eq!(lines(&model(6), &devices, &open), ["phone 0..6"]);
}

#[test]
fn what_no_device_takes_is_left_to_the_market_in_windows_of_its_size() {
    let devices = [device("a", 2), device("b", 2)];
    assert_eq!(
        lines(&model(10), &devices, &market(6, 3 * GB)),
        ["a 0..2", "open 2..5", "open 5..8", "b 8..10"]
    );
    assert_eq!(
        lines(&model(8), &devices, &market(6, 3 * GB)),
        ["a 0..2", "open 2..4", "open 4..6", "b 6..8"],
        "open windows are alike too"
    );
    assert_eq!(
        lines(&model(6), &devices, &market(2, 1)),
        ["a 0..2", "open 2..3", "open 3..4", "b 4..6"],
        "one layer is the floor"
    );
}

#[test]
fn nothing_is_left_to_the_market_that_a_device_takes() {
    let slow = Device {
        decode: 1,
        ..device("slow", 8)
    };
    assert_eq!(lines(&model(8), &[slow], &market(8, 4 * GB)), ["slow 0..8"]);
}

#[test]
fn layers_past_the_markets_terms_are_refused_with_the_layer_and_the_bytes() {
    let devices = [device("a", 2), device("b", 2)];
    let cache = 4 * 4096 * 2 * 4; // values of a token, positions, bytes, sequences
    let refused = refusal(&model(10), &devices, &market(5, 3 * GB));
    match &refused {
        Error::NotCovered {
            layer: 2,
            layers: 6,
            missing,
            allowed: 5,
        } => assert_eq!(*missing, 6 * (GB + cache)),
        other => panic!("{other:?}"),
    }
    assert_eq!(refused.reason(), "InsufficientMemory");
    let refused = refusal(&model(10), &devices, &Request::default());
    assert!(
        matches!(
            refused,
            Error::NotCovered {
                layers: 6,
                allowed: 0,
                ..
            }
        ),
        "{refused:?}"
    );
}

#[test]
fn an_end_that_nobody_inside_can_hold_is_refused_with_the_missing_bytes() {
    let devices = [outside(device("phone", 100))];
    let request = market(100, GB);
    let first = LayerRange { start: 0, end: 1 };
    let need = Needs::new(&model(4), &request).unwrap().rank(first).memory();
    match refusal(&model(4), &devices, &request) {
        Error::EndTooLarge { layer: 0, missing } => assert_eq!(missing, need),
        other => panic!("{other:?}"),
    }
    let mut heavy_head = model(4);
    heavy_head.head_bytes = 3 * GB;
    match refusal(&heavy_head, &[device("a", 2)], &request) {
        Error::EndTooLarge { layer: 3, missing } => assert!(missing > GB && missing < 2 * GB, "{missing}"),
        other => panic!("{other:?}"),
    }
    let refused = refusal(&model(4), &[device("a", 2)], &request);
    assert!(matches!(refused, Error::EndsInside), "{refused:?}");
}

#[test]
fn a_pool_is_used_as_often_as_it_has_stages() {
    let pool = |max_stages| Device {
        max_stages,
        ..device("pool", 3)
    };
    assert_eq!(lines(&model(9), &[pool(3)], &Request::default()).len(), 3);
    let refused = refusal(&model(9), &[pool(2)], &Request::default());
    assert!(matches!(refused, Error::NotCovered { layers: 3, .. }), "{refused:?}");
    let refused = refusal(&model(9), &[pool(0)], &Request::default());
    assert!(matches!(refused, Error::EndTooLarge { layer: 0, .. }), "{refused:?}");
}

#[test]
fn the_last_window_of_a_hybrid_model_is_long_enough() {
    let mut hybrid = model(8);
    hybrid.last_start = 5;
    let devices = [device("a", 7), device("b", 4)];
    let plan = plan(&hybrid, &devices, &Request::default()).unwrap();
    assert!(plan.ranks.last().unwrap().layers.start <= 5);
    let refused = refusal(&hybrid, &[device("b", 2)], &Request::default());
    assert!(matches!(refused, Error::EndTooLarge { layer: 7, .. }), "{refused:?}");
}

#[test]
fn a_model_that_cannot_be_cut_is_planned_whole_or_refused_with_the_reason() {
    let mut whole = model(8);
    whole.indivisible = Some("it is known by its layers".into());
    assert_eq!(
        lines(&whole, &[device("a", 4), device("b", 8)], &Request::default()),
        ["b 0..8"]
    );
    let refused = refusal(&whole, &[device("a", 4), device("b", 4)], &market(8, GB));
    assert!(refused.to_string().contains("it is known by its layers"));
}

fn by_hand(windows: &[(u32, u32, WindowHolder)]) -> Request {
    let windows = windows
        .iter()
        .map(|(start, end, holder)| Window {
            layers: LayerRange {
                start: *start,
                end: *end,
            },
            holder: holder.clone(),
        })
        .collect();
    Request {
        windows,
        ..market(4, 2 * GB)
    }
}

#[test]
fn windows_by_hand_are_taken_as_they_are() {
    use WindowHolder::{Any, Device, Open};
    let devices = [device("a", 6), device("b", 6), outside(device("c", 6))];
    let request = by_hand(&[
        (0, 1, Device("b".into())),
        (1, 3, Open),
        (3, 6, Device("c".into())),
        (6, 8, Any),
    ]);
    assert_eq!(
        lines(&model(8), &devices, &request),
        ["b 0..1", "open 1..3", "c 3..6", "a 6..8"]
    );
}

#[test]
fn windows_by_hand_that_cannot_be_are_refused_by_name() {
    use WindowHolder::{Any, Device, Open};
    let pool = kvasir_plan::Device {
        max_stages: 2,
        ..device("a", 6)
    };
    let devices = [pool, outside(device("c", 6))];
    let a = || Device("a".into());
    let mut hybrid = model(8);
    hybrid.last_start = 5;
    let mut whole = model(8);
    whole.indivisible = Some("why".into());
    for (model, windows, expected) in [
        (model(8), vec![(0, 4, a()), (5, 8, a())], "no window holds layers 4..5"),
        (model(8), vec![(1, 8, a())], "no window holds layers 0..1"),
        (model(8), vec![(0, 4, a()), (4, 7, a())], "no window holds layers 7..8"),
        (
            model(8),
            vec![(0, 4, a()), (3, 8, a())],
            "window 3..8 holds layer 3 again",
        ),
        (
            model(8),
            vec![(4, 8, a()), (0, 4, a())],
            "window 0..4 stands after window 4..8: windows are listed in the order of their layers",
        ),
        (
            model(8),
            vec![(0, 4, a()), (4, 9, a())],
            "window 4..9 is not within the model's 8 layers",
        ),
        (
            model(8),
            vec![(0, 4, a()), (4, 4, a()), (4, 8, a())],
            "window 4..4 is not within",
        ),
        (model(8), vec![(0, 4, a()), (4, u32::MAX, a())], "is not within"),
        (
            model(8),
            vec![(0, 8, Device("d".into()))],
            "window 0..8 is to run on d, and there is no such device or pool",
        ),
        (model(8), vec![(0, 8, a())], "window 0..8 needs 7."),
        (
            model(8),
            vec![(0, 2, a()), (2, 4, a()), (4, 8, a())],
            "window 4..8 finds all stages taken",
        ),
        (
            model(8),
            vec![(0, 4, Device("c".into())), (4, 8, a())],
            "window 0..4 sees the text",
        ),
        (
            model(8),
            vec![(0, 4, a()), (4, 8, Open)],
            "window 4..8 sees the text and can't be left to the market",
        ),
        (
            model(8),
            vec![(0, 2, a()), (2, 5, Open), (5, 8, Any)],
            "open window 2..5 has 2.8 GiB, and",
        ),
        (
            model(10),
            vec![(0, 1, a()), (1, 3, Open), (3, 5, Open), (5, 6, Open), (6, 10, Any)],
            "5 layers are left to the market, which may take 4",
        ),
        (
            hybrid,
            vec![(0, 4, a()), (4, 6, a()), (6, 8, Any)],
            "the last window starts at layer 6",
        ),
        (
            whole,
            vec![(0, 4, a()), (4, 8, a())],
            "the model can only be served whole",
        ),
    ] {
        let refused = refusal(&model, &devices, &by_hand(&windows)).to_string();
        assert!(refused.contains(expected), "{refused}\nmisses: {expected}");
    }
}

#[test]
fn a_manifest_of_a_plan_is_sound() {
    let devices = [device("a", 2), device("b", 2)];
    let plan = plan(&model(8), &devices, &market(4, 3 * GB)).unwrap();
    let manifest = plan.manifest("ring", "served");
    manifest.validate().unwrap();
    assert_eq!(
        (manifest.epoch, manifest.model.name.as_str(), manifest.max_laps),
        (0, "served", 8)
    );
    assert_eq!(manifest.ranks[1].placement, None);
    assert!(manifest.ranks.iter().all(|rank| rank.holder.is_none()));
    assert_eq!(plan.open_layers(), 4);
    assert_eq!(serde_json::to_value(plan.rows()).unwrap()[0]["placement"], "a");
}

/// Numbers as they come out of wrong files and forms: none, few, and as many as fit.
fn any_number() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), Just(1), 0..100u64, 0..100 * GB, Just(u64::MAX), any::<u64>()]
}

prop_compose! {
    fn any_device()(
        name in "[a-c]",
        inside in any::<bool>(),
        max_stages in prop_oneof![0..4u32, Just(u32::MAX)],
        memory in any_number(),
        decode in any_number(),
        prefill in any_number(),
        latency in any_number(),
        bandwidth in any_number(),
    ) -> Device {
        Device {
            name,
            placement: if inside { Placement::Inside } else { Placement::Outside },
            max_stages,
            memory,
            decode,
            prefill,
            latency: Duration::from_nanos(latency),
            bandwidth,
        }
    }
}

prop_compose! {
    fn any_layer()(
        bytes in any_number(),
        active_bytes in any_number(),
        values in any_number(),
        kind in prop_oneof![
            Just(LayerKind::Full),
            any_number().prop_map(|window| LayerKind::Sliding { window }),
            Just(LayerKind::Recurrent),
        ],
        state_bytes in any_number(),
    ) -> Layer {
        Layer { kind, bytes, active_bytes, key_values: values, value_values: values, state_bytes }
    }
}

prop_compose! {
    fn any_request()(
        context_length in any::<u32>(),
        sequences in any::<u32>(),
        exact in any::<bool>(),
        max_laps in any::<u16>(),
        max_lap_tokens in any::<u32>(),
        trusted_ends in any::<bool>(),
        market in prop::option::of((any::<u32>(), any_number())),
        windows in prop::collection::vec((any::<u32>(), any::<u32>()), 0..3),
    ) -> Request {
        let by_hand = |(start, end)| Window { layers: LayerRange { start, end }, holder: WindowHolder::Any };
        Request {
            context_length,
            sequences,
            exact,
            trusted_ends,
            laps: LapShape { max_laps, max_lap_tokens },
            market: market.map(|(max_layers, max_window_bytes)| MarketTerms { max_layers, max_window_bytes }),
            windows: windows.into_iter().map(by_hand).collect(),
            ..Request::default()
        }
    }
}

proptest! {
    #[test]
    fn no_numbers_make_the_planner_panic(
        layers in prop::collection::vec(any_layer(), 0..6),
        head in any_number(),
        devices in prop::collection::vec(any_device(), 0..5),
        request in any_request(),
        last_start in any::<u32>(),
    ) {
        let mut profile = model(0);
        (profile.layers, profile.head_bytes, profile.last_start) = (layers, head, last_start);
        if let Ok(plan) = plan(&profile, &devices, &request) {
            let _ = (plan.token_time(), plan.rows(), plan.prompt_tokens_per_second());
        }
    }

    #[test]
    fn every_plan_holds_each_layer_once_and_fits(
        count in 1..127usize,
        sizes in prop::collection::vec(1..40u64, 127),
        devices in prop::collection::vec((0..20u64, 1..4u32, 1..200u64, any::<bool>()), 0..40),
        trusted_ends in any::<bool>(),
        terms in prop::option::of((0..130u32, 1..8u64)),
    ) {
        let mut profile = model(count);
        for (layer, size) in profile.layers.iter_mut().zip(sizes) {
            layer.bytes = size * GB / 20;
            layer.active_bytes = layer.bytes;
        }
        let devices: Vec<Device> = devices
            .into_iter()
            .enumerate()
            .map(|(i, (layers, max_stages, speed, inside))| Device {
                max_stages,
                decode: speed * GB,
                placement: if inside { Placement::Inside } else { Placement::Outside },
                ..device(&i.to_string(), layers)
            })
            .collect();
        let request = Request {
            trusted_ends,
            market: terms.map(|(max_layers, gb)| MarketTerms { max_layers, max_window_bytes: gb * GB }),
            ..Request::default()
        };
        let needs = Needs::new(&profile, &request).unwrap();

        let Ok(plan) = plan(&profile, &devices, &request) else { return Ok(()) };
        let mut next = 0;
        let mut used = vec![0; devices.len()];
        for rank in &plan.ranks {
            prop_assert_eq!(rank.layers.start, next);
            prop_assert!(rank.layers.end > next);
            next = rank.layers.end;
            let end = rank.layers.start == 0 || next == count as u32;
            if let Some(name) = &rank.placement {
                let index: usize = name.parse().unwrap();
                used[index] += 1;
                prop_assert!(needs.rank(rank.layers).memory() <= devices[index].memory);
                prop_assert!(!end || !trusted_ends || devices[index].placement == Placement::Inside);
            } else {
                let terms = request.market.unwrap();
                prop_assert!(rank.layers.len() == 1 || needs.own_bytes(rank.layers) <= terms.max_window_bytes);
                prop_assert!(!end || !trusted_ends);
            }
        }
        prop_assert_eq!(next, count as u32);
        prop_assert!(used.iter().zip(&devices).all(|(used, device)| *used <= device.max_stages));
        prop_assert!(plan.open_layers() <= request.market.map_or(0, |terms| terms.max_layers));
        plan.manifest("ring", "model").validate().unwrap();
    }
}
