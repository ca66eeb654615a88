//! What a rank needs follows from its layers, the cache and the laps.

#![allow(clippy::unwrap_used)]

mod support;

use kvasir_plan::profile::Padding;
use kvasir_plan::{CacheType, LapShape, LayerKind, LayerRange, Needs, Request};
use support::{GB, model};

#[test]
fn a_cache_in_blocks_takes_about_half() {
    let mut wide = model(1);
    (wide.layers[0].key_values, wide.layers[0].value_values) = (1024, 1024);
    let cache = |cache_type| {
        let request = Request {
            cache_type,
            ..Request::default()
        };
        Needs::new(&wide, &request)
            .unwrap()
            .rank(LayerRange { start: 0, end: 1 })
            .cache
    };
    // values × bytes × positions × sequences
    assert_eq!(cache(CacheType::F16), 2048 * 2 * 4096 * 4);
    assert_eq!(cache(CacheType::Q8_0), 2048 / 32 * 34 * 4096 * 4);
}

#[test]
fn a_sliding_window_and_a_recurrent_state_cap_the_cache() {
    let mut capped = model(2);
    capped.layers[0].kind = LayerKind::Sliding { window: 512 };
    capped.layers[1].kind = LayerKind::Recurrent;
    (capped.layers[1].key_values, capped.layers[1].value_values) = (0, 0);
    capped.layers[1].state_bytes = 777;
    let request = Request {
        context_length: 100_000,
        sequences: 3,
        ..Request::default()
    };
    let needs = Needs::new(&capped, &request).unwrap();
    // 512 positions and a lap of 256, which is a multiple of 256 already
    assert_eq!(needs.rank(LayerRange { start: 0, end: 1 }).cache, 4 * 2 * 768 * 3);
    assert_eq!(needs.rank(LayerRange { start: 1, end: 2 }).cache, 777 * 3);
    let short = Request {
        context_length: 300,
        ..request
    };
    let needs = Needs::new(&capped, &short).unwrap();
    let cache = needs.rank(LayerRange { start: 0, end: 1 }).cache;
    assert_eq!(cache, 4 * 2 * 512 * 3, "never more than the context");
}

#[test]
fn windows_of_one_kind_carry_a_padding_layer_of_the_other() {
    let mut hybrid = model(4);
    hybrid.layers[1].kind = LayerKind::Recurrent;
    hybrid.padding = Padding {
        full: 10,
        recurrent: 20,
    };
    let needs = Needs::new(&hybrid, &Request::default()).unwrap();
    let weights = |start, end| needs.rank(LayerRange { start, end }).weights - u64::from(end - start) * GB;
    assert_eq!(
        (weights(0, 1), weights(1, 2), weights(0, 2), weights(1, 3)),
        (20, 10, 0, 0)
    );
    let fetch = needs.rank(LayerRange { start: 1, end: 2 }).fetch;
    assert_eq!(fetch, GB, "a hole is not fetched");
}

#[test]
fn exact_mode_and_longer_laps_need_larger_buffers() {
    let buffers = |request: &Request| {
        let needs = Needs::new(&model(4), request).unwrap();
        needs.rank(LayerRange { start: 1, end: 2 }).buffers
    };
    let plain = Request::default();
    let exact = Request {
        exact: true,
        ..plain.clone()
    };
    let long = Request {
        laps: LapShape {
            max_lap_tokens: 512,
            ..plain.laps
        },
        ..plain.clone()
    };
    // the scores of two heads, for 256 rows and 4096 positions
    assert_eq!(buffers(&exact) - buffers(&plain), 2 * 256 * 4096 * 4);
    assert!(buffers(&long) > buffers(&plain));
}
