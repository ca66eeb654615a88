//! Windows by hand: checked as strictly as the planner's own, and given to devices.

use crate::outcome::{Error, Slot, fits_market};
use crate::{Device, LayerRange, MarketTerms, ModelProfile, Needs, Placement, Request, Window, WindowHolder};

/// Gives each window to a device, or to the market.
pub(crate) fn place(
    profile: &ModelProfile,
    needs: &Needs,
    devices: &[Device],
    request: &Request,
) -> Result<Vec<Slot>, Error> {
    check_cover(profile, request)?;
    check_open(profile, needs, request)?;
    let mut left: Vec<u32> = devices.iter().map(|device| device.max_stages).collect();
    let mut slots = vec![None; request.windows.len()];
    // windows that ask for a device by name go first, so that no other takes its place
    let named = |index: &usize| matches!(request.windows[*index].holder, WindowHolder::Device(_));
    let (named, any): (Vec<usize>, Vec<usize>) = (0..request.windows.len()).partition(named);
    for index in named.into_iter().chain(any) {
        let window = &request.windows[index];
        slots[index] = Some(Slot {
            layers: window.layers,
            device: match &window.holder {
                WindowHolder::Open => None,
                WindowHolder::Device(name) => {
                    Some(pick(needs, devices, &mut left, request, window.layers, Some(name))?)
                }
                WindowHolder::Any => Some(pick(needs, devices, &mut left, request, window.layers, None)?),
            },
        });
    }
    Ok(slots.into_iter().flatten().collect())
}

/// Each layer exactly once, in order, and cut where the architecture can be.
fn check_cover(profile: &ModelProfile, request: &Request) -> Result<(), Error> {
    let layers = profile.layer_count();
    let out_of_order = |pair: &&[Window]| pair[1].layers.start < pair[0].layers.start;
    if let Some(pair) = request.windows.windows(2).find(out_of_order) {
        return Err(Error::OutOfOrder {
            window: pair[1].layers,
            before: pair[0].layers,
        });
    }
    let mut next = 0;
    for window in &request.windows {
        let LayerRange { start, end } = window.layers;
        if window.layers.is_empty() || end > layers {
            return Err(Error::NoSuchWindow {
                window: window.layers,
                layers,
            });
        }
        if start > next {
            return Err(Error::LeftOut {
                missing: LayerRange {
                    start: next,
                    end: start,
                },
            });
        }
        if start < next {
            return Err(Error::HeldTwice {
                window: window.layers,
                layer: start,
            });
        }
        next = end;
    }
    if next < layers {
        return Err(Error::LeftOut {
            missing: LayerRange {
                start: next,
                end: layers,
            },
        });
    }
    let last = request.windows.last().map_or(0, |window| window.layers.start);
    if last > profile.last_start {
        return Err(Error::LastTooShort {
            start: last,
            latest: profile.last_start,
        });
    }
    if profile.refused_last_starts.contains(&last) {
        return Err(Error::LastLength {
            start: last,
            layers: layers - last,
        });
    }
    match &profile.indivisible {
        Some(why) if request.windows.len() > 1 => Err(Error::Indivisible { why: why.clone() }),
        _ => Ok(()),
    }
}

/// What is left to the market is within its terms.
fn check_open(profile: &ModelProfile, needs: &Needs, request: &Request) -> Result<(), Error> {
    let terms = request.market.unwrap_or(MarketTerms {
        max_layers: 0,
        max_window_bytes: 0,
    });
    let mut open = 0;
    for window in request
        .windows
        .iter()
        .filter(|window| window.holder == WindowHolder::Open)
    {
        let layers = window.layers;
        if request.trusted_ends && (layers.start == 0 || layers.end == needs.layers()) {
            return Err(Error::OpenEnd { window: layers });
        }
        if !fits_market(profile, needs, request, layers) {
            return Err(Error::OpenTooLarge {
                window: layers,
                bytes: needs.own_bytes(layers),
                allowed: terms.max_window_bytes,
            });
        }
        open += layers.len();
    }
    if open > terms.max_layers {
        return Err(Error::TooManyOpen {
            layers: open,
            allowed: terms.max_layers,
        });
    }
    Ok(())
}

/// The fastest device that has a place left and room for the window.
fn pick(
    needs: &Needs,
    devices: &[Device],
    left: &mut [u32],
    request: &Request,
    window: LayerRange,
    name: Option<&str>,
) -> Result<usize, Error> {
    if let Some(name) = name
        && !devices.iter().any(|device| device.name == name)
    {
        return Err(Error::UnknownDevice {
            window,
            name: name.into(),
        });
    }
    let end = window.start == 0 || window.end == needs.layers();
    let may_hold = |device: &Device| {
        name.is_none_or(|name| device.name == name)
            && (!end || !request.trusted_ends || device.placement == Placement::Inside)
    };
    let free = |index: &usize| left[*index] > 0 && may_hold(&devices[*index]);
    let memory = needs.rank(window).memory();
    let fits = |index: &usize| devices[*index].memory >= memory;
    let fastest = (0..devices.len()).filter(free).filter(fits).min_by_key(|index| {
        let device = &devices[*index];
        (u64::MAX - device.decode, *index)
    });
    if let Some(index) = fastest {
        left[index] -= 1;
        return Ok(index);
    }
    let largest = (0..devices.len()).filter(free).map(|index| devices[index].memory).max();
    Err(match largest {
        Some(largest) => Error::WindowTooLarge {
            window,
            memory,
            missing: memory - largest,
        },
        None if !devices.iter().any(may_hold) => Error::NobodyMayHold { window },
        None => Error::NoPlaceLeft { window },
    })
}
