//! Both searches against an enumeration of every choice, order and cut, which shares no line with them.

use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::{EXACT_STEPS, ORDER_STEPS, exact, orders};
use crate::outcome::{fits_market, open_seat, problem};
use crate::profile::Padding;
use crate::{Device, Layer, LayerKind, LayerRange, MarketTerms, ModelProfile, Needs, Placement, Request, plan};

const MB: u64 = 1_000_000;

fn layer(kind: LayerKind, bytes: u64) -> Layer {
    Layer {
        kind,
        bytes,
        active_bytes: bytes / 2,
        key_values: 64,
        value_values: 64,
        state_bytes: 1000,
    }
}

fn profile(layers: Vec<Layer>, head_bytes: u64) -> ModelProfile {
    let last_start = layers.len() as u32 - 1;
    ModelProfile {
        architecture: "llama".into(),
        identity: "00".repeat(32),
        size: 0,
        file_type: "Q8_0".into(),
        prefix_bytes: vec![],
        embedding_length: 64,
        vocabulary: 1000,
        heads: 4,
        feed_forward: 256,
        layers,
        mtp_layers: 0,
        mtp_bytes: 0,
        every_bytes: 100,
        embedding_bytes: 10 * MB,
        head_bytes,
        tied: false,
        last_start,
        refused_last_starts: Vec::new(),
        padding: Padding::default(),
        indivisible: None,
    }
}

/// Every way to hold the model: the least layers left open, then the least seconds.
struct Enumeration<'a> {
    profile: &'a ModelProfile,
    needs: &'a Needs,
    devices: &'a [Device],
    request: &'a Request,
    best: Option<(u32, f64)>,
}

impl Enumeration<'_> {
    fn run(mut self) -> Option<(u32, f64)> {
        self.extend(&mut Vec::new(), &mut vec![0; self.devices.len()], 0);
        self.best
    }

    fn extend(&mut self, ranks: &mut Vec<(Option<usize>, LayerRange)>, used: &mut [u32], start: u32) {
        let layers = self.profile.layer_count();
        if start == layers {
            let found = self.judge(ranks);
            let better = |(open, seconds)| found.0 < open || found.0 == open && found.1 < seconds;
            if self.best.is_none_or(better) {
                self.best = Some(found);
            }
            return;
        }
        let holders = (0..self.devices.len())
            .map(Some)
            .chain(self.request.market.map(|_| None));
        for holder in holders {
            if holder.is_some_and(|device| used[device] == self.devices[device].max_stages) {
                continue;
            }
            for end in start + 1..=layers {
                let window = LayerRange { start, end };
                if !self.may_hold(holder, window) {
                    continue;
                }
                ranks.push((holder, window));
                if let Some(device) = holder {
                    used[device] += 1;
                }
                self.extend(ranks, used, end);
                if let Some(device) = holder {
                    used[device] -= 1;
                }
                ranks.pop();
            }
        }
    }

    fn may_hold(&self, holder: Option<usize>, window: LayerRange) -> bool {
        let last = window.end == self.profile.layer_count();
        let trusted = holder.is_some_and(|device| self.devices[device].placement == Placement::Inside);
        let fits = match holder {
            Some(device) => self.needs.rank(window).memory() <= self.devices[device].memory,
            None => fits_market(self.profile, self.needs, self.request, window),
        };
        fits && (trusted || !self.request.trusted_ends || window.start > 0 && !last)
            && (!last || window.start <= self.profile.last_start)
    }

    fn judge(&self, ranks: &[(Option<usize>, LayerRange)]) -> (u32, f64) {
        // the market's imagined device, written out again
        let figures = |holder: Option<usize>| match holder {
            Some(device) => {
                let device = &self.devices[device];
                (
                    device.decode as f64,
                    device.latency.as_secs_f64(),
                    device.bandwidth as f64,
                )
            }
            None => (20e9, 0.02, 2.5e6),
        };
        let boundary = self.request.boundary_type.row_bytes(self.profile.embedding_length) as f64;
        let (mut open, mut seconds) = (0, 0.0);
        for (number, (holder, window)) in ranks.iter().enumerate() {
            let (speed, latency, bandwidth) = figures(*holder);
            seconds += self.needs.active(*window) as f64 / speed;
            if holder.is_none() {
                open += window.len();
            }
            if ranks.len() > 1 {
                let next = (number + 1) % ranks.len();
                let (_, latency2, bandwidth2) = figures(ranks[next].0);
                seconds += latency + latency2;
                if next > 0 {
                    seconds += boundary / bandwidth + boundary / bandwidth2;
                }
            }
        }
        (open, seconds)
    }
}

fn a_device() -> impl Strategy<Value = Device> {
    (any::<bool>(), 0..400u64, 1..100u64, 0..20_000u64, 1..1000u64).prop_map(
        |(inside, memory, speed, latency, link)| Device {
            name: String::new(),
            placement: if inside { Placement::Inside } else { Placement::Outside },
            max_stages: 1,
            memory: (40 + memory) * MB,
            decode: speed * 1_000_000_000,
            prefill: 1,
            latency: Duration::from_micros(latency),
            bandwidth: link * MB,
        },
    )
}

/// A few devices of which some are alike, and a small model whose layers are not.
fn an_instance(
    devices: std::ops::RangeInclusive<usize>,
) -> impl Strategy<Value = (ModelProfile, Vec<Device>, Request)> {
    let layers = prop::collection::vec((1..100u64, any::<bool>()), 1..=7);
    let devices = prop::collection::vec((a_device(), prop::bool::weighted(0.3)), devices);
    (layers, devices, 0..100u64, any::<bool>(), any::<bool>(), 1..150u64).prop_map(
        |(layers, devices, head, trusted_ends, hybrid, window)| {
            let kind = |recurrent| {
                if hybrid && recurrent {
                    LayerKind::Recurrent
                } else {
                    LayerKind::Full
                }
            };
            let layers: Vec<Layer> = layers
                .into_iter()
                .map(|(mb, r)| layer(kind(r), (20 + mb) * MB))
                .collect();
            let mut profile = profile(layers, head * MB);
            if hybrid && profile.layers.len() > 2 {
                profile.last_start -= 1;
                profile.padding = Padding {
                    full: 5 * MB,
                    recurrent: 7 * MB,
                };
            }
            let mut alike: Vec<Device> = Vec::new();
            for (device, same) in devices {
                alike.push(alike.last().filter(|_| same).cloned().unwrap_or(device));
            }
            let request = Request {
                context_length: 256,
                sequences: 1,
                trusted_ends,
                market: Some(MarketTerms {
                    max_layers: 7,
                    max_window_bytes: window * MB,
                }),
                ..Request::default()
            };
            (profile, alike, request)
        },
    )
}

fn enumerate(profile: &ModelProfile, devices: &[Device], request: &Request) -> Option<(u32, f64)> {
    let needs = Needs::new(profile, request).unwrap();
    let (needs, best) = (&needs, None);
    Enumeration {
        profile,
        needs,
        devices,
        request,
        best,
    }
    .run()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn a_plan_for_few_devices_is_the_best_there_is((profile, devices, request) in an_instance(0..=5)) {
        let best = enumerate(&profile, &devices, &request);
        match (plan(&profile, &devices, &request), best) {
            (Ok(plan), Some((open, seconds))) => {
                prop_assert_eq!(plan.open_layers(), open);
                let found = plan.token_time().as_secs_f64();
                prop_assert!((found - seconds).abs() < 1e-7, "{found} s, and {seconds} s is possible");
            }
            (Err(_), None) => {}
            (plan, best) => prop_assert!(false, "{plan:?}, and {best:?} is possible"),
        }
    }

    #[test]
    fn orders_find_a_way_within_a_twentieth_of_the_best((profile, devices, request) in an_instance(1..=5)) {
        let best = enumerate(&profile, &devices, &request);
        let needs = Needs::new(&profile, &request).unwrap();
        let (mut problem, _) = problem(&profile, &needs, &devices, &request);
        problem.open = Some(open_seat(&profile, &needs, &request));
        // as many orders as 64 devices and 126 layers get
        let units: usize = problem.seats.iter().map(|seat| seat.count as usize).sum();
        let steps = ORDER_STEPS / (64 * 126) * units * problem.layers as usize;
        match (orders::solve(&problem, steps), best) {
            (Some((cost, _)), Some((open, seconds))) => {
                prop_assert_eq!(cost.open, i64::from(open));
                prop_assert!(cost.nanos as f64 / 1e9 <= seconds * 1.05 + 1e-7);
            }
            (None, None) => {}
            (way, best) => prop_assert!(false, "{way:?}, and {best:?} is possible"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn eight_devices_are_planned_as_well_as_can_be((profile, devices, mut request) in an_instance(8..=8)) {
        request.market = None;
        if let Some((_, seconds)) = enumerate(&profile, &devices, &request) {
            let found = plan(&profile, &devices, &request).unwrap().token_time().as_secs_f64();
            prop_assert!((found - seconds).abs() < 1e-7, "{found} s, and {seconds} s is possible");
        }
    }
}

/// 126 layers, 64 devices of as many kinds, of which about half are needed.
fn a_large_instance(seed: u64) -> (ModelProfile, Vec<Device>) {
    let mix = |i: u64| (i + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    let layers = (0..126)
        .map(|i| layer(LayerKind::Full, (400 + mix(i) % 40) * MB))
        .collect();
    let device = |i: u64| Device {
        name: format!("d{i}"),
        placement: if i.is_multiple_of(3) {
            Placement::Inside
        } else {
            Placement::Outside
        },
        max_stages: 1,
        memory: (500 + mix(i * 7) % 3000) * MB,
        decode: (5 + mix(i * 13) % 200) * 1_000_000_000,
        prefill: 1,
        latency: Duration::from_micros(100 + mix(i * 17) % 10_000),
        bandwidth: 10 * MB,
    };
    (profile(layers, 500 * MB), (0..64).map(device).collect())
}

/// Time that this thread has computed, where the system tells it (Linux): other programs don't count.
fn computed() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split(' ').next()?.parse().ok().map(Duration::from_nanos)
}

#[test]
fn sixty_four_devices_and_126_layers_are_planned_in_50_ms() {
    const RUNS: u32 = 10;
    let request = Request::default();
    let (profile, devices) = a_large_instance(1);
    let (start, before) = (Instant::now(), computed());
    for _ in 0..RUNS {
        plan(&profile, &devices, &request).unwrap();
    }
    let spent = computed()
        .zip(before)
        .map_or_else(|| start.elapsed(), |(after, before)| after.saturating_sub(before));
    println!("64 devices, 126 layers: {:?}", spent / RUNS);
    assert!(spent / RUNS < Duration::from_millis(50), "{:?}", spent / RUNS);
}

#[test]
fn orders_come_close_to_the_optimum_of_many_devices_of_few_kinds() {
    let request = Request::default();
    let mut compared = 0;
    for seed in 0..20 {
        let (profile, devices) = a_large_instance(seed);
        // two kinds inside, two outside, a dozen of each
        let devices: Vec<Device> = (0..48)
            .map(|i| Device {
                placement: if i % 4 < 2 {
                    Placement::Inside
                } else {
                    Placement::Outside
                },
                ..devices[i % 4].clone()
            })
            .collect();
        let needs = Needs::new(&profile, &request).unwrap();
        let (mut problem, _) = problem(&profile, &needs, &devices, &request);
        problem.open = Some(open_seat(&profile, &needs, &request));
        assert!(
            exact::steps(&problem).unwrap() > EXACT_STEPS,
            "the search would be exact anyway"
        );
        let Some((best, _)) = exact::solve(&problem) else {
            // neither kind inside can hold the head
            continue;
        };
        let (found, _) = orders::solve(&problem, ORDER_STEPS).unwrap();
        assert_eq!(found.open, best.open);
        let ratio = found.nanos as f64 / best.nanos as f64;
        println!("seed {seed}: {ratio:.4} of the optimum");
        assert!(ratio <= 1.05, "seed {seed}: {ratio}");
        compared += 1;
    }
    assert!(compared >= 15, "{compared} instances had a plan");
}
