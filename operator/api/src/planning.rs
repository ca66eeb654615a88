//! What a Ring asks of the planner, so that the operator and a local run ask the same.

use std::time::Duration;

use kvasir_plan::{Device, LayerRange, MarketTerms, Placement, Request, WindowHolder};

use crate::{Backend, BoundaryType, CacheType, QuantityError, RingSpec, Window, bytes};

/// One way from a node of a cluster to its switch.
const CLUSTER_LATENCY: Duration = Duration::from_micros(50);
/// Bytes per second of a node's link: 10 Gbit/s.
const CLUSTER_BANDWIDTH: u64 = 1_250_000_000;

impl RingSpec {
    /// The shape of the work, the market's terms and the windows by hand. Numbers below 0, which the schema refuses,
    /// count as 0.
    pub fn request(&self) -> Result<Request, QuantityError> {
        let market = self.market();
        let terms = MarketTerms {
            max_layers: market.max_layers.max(0).unsigned_abs(),
            max_window_bytes: bytes(&market.max_window_bytes)?,
        };
        Ok(Request {
            context_length: self.context_length.max(0).unsigned_abs(),
            sequences: self.sequences.max(0).unsigned_abs(),
            cache_type: self.cache_type.into(),
            boundary_type: self.boundary_type().into(),
            exact: self.exact,
            trusted_ends: market.trusted_ends,
            market: (terms.max_layers > 0).then_some(terms),
            windows: self.windows.iter().map(Window::for_planner).collect(),
            ..Request::default()
        })
    }

    /// The pools as the planner's devices, with the figures of their backend where none were measured.
    pub fn devices(&self) -> Result<Vec<Device>, QuantityError> {
        self.pools
            .iter()
            .map(|pool| {
                let (decode, prefill) = pool.backend.nominal_speed();
                Ok(Device {
                    name: pool.name.clone(),
                    placement: Placement::Inside,
                    max_stages: pool.max_stages.max(0).unsigned_abs(),
                    memory: bytes(&pool.memory)?,
                    decode,
                    prefill,
                    latency: CLUSTER_LATENCY,
                    bandwidth: CLUSTER_BANDWIDTH,
                })
            })
            .collect()
    }
}

impl Window {
    fn for_planner(&self) -> kvasir_plan::Window {
        kvasir_plan::Window {
            layers: LayerRange {
                start: self.layers.start.max(0).unsigned_abs(),
                end: self.layers.end.max(0).unsigned_abs(),
            },
            holder: match &self.pool {
                Some(pool) => WindowHolder::Device(pool.clone()),
                None if self.open => WindowHolder::Open,
                None => WindowHolder::Any,
            },
        }
    }
}

impl Backend {
    /// Bytes of weights read per second, and bytes of weights × prompt tokens computed per second, by a common device
    /// of the kind. Only their ratios matter for where windows go.
    pub fn nominal_speed(self) -> (u64, u64) {
        const GB: u64 = 1_000_000_000;
        match self {
            Backend::Auto | Backend::Cpu => (40 * GB, 400 * GB),
            Backend::Cuda | Backend::Rocm => (800 * GB, 80_000 * GB),
            Backend::Vulkan | Backend::Metal => (200 * GB, 10_000 * GB),
            Backend::OpenCl | Backend::Hexagon => (30 * GB, 1_000 * GB),
        }
    }
}

impl From<BoundaryType> for kvasir_plan::BoundaryType {
    fn from(chosen: BoundaryType) -> Self {
        match chosen {
            BoundaryType::Bf16 => Self::Bf16,
            BoundaryType::F32 => Self::F32,
            BoundaryType::Q8_0 => Self::Q8_0,
        }
    }
}

impl From<CacheType> for kvasir_plan::CacheType {
    fn from(chosen: CacheType) -> Self {
        match chosen {
            CacheType::F16 => Self::F16,
            CacheType::Q8_0 => Self::Q8_0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_windows_and_terms_reach_the_planner() {
        let ring = crate::from_yaml(include_str!("../tests/good/cluster.yaml")).unwrap();
        let request = ring.spec.request().unwrap();
        assert_eq!((request.context_length, request.sequences), (32_768, 8));
        assert_eq!(request.boundary_type, kvasir_plan::BoundaryType::Q8_0);
        assert_eq!(request.cache_type, kvasir_plan::CacheType::Q8_0);
        let terms = MarketTerms {
            max_layers: 8,
            max_window_bytes: 4 << 30,
        };
        assert_eq!((request.market, request.trusted_ends), (Some(terms), true));
        let holders: Vec<_> = request
            .windows
            .iter()
            .map(|w| (w.layers.to_string(), w.holder.clone()))
            .collect();
        let pool = |name: &str| WindowHolder::Device(name.into());
        assert_eq!(
            holders,
            [
                ("0..12".into(), pool("gpu")),
                ("12..20".into(), WindowHolder::Open),
                ("20..36".into(), pool("cpu")),
                ("36..48".into(), pool("gpu"))
            ]
        );

        let devices = ring.spec.devices().unwrap();
        let figures: Vec<_> = devices
            .iter()
            .map(|d| (d.name.as_str(), d.max_stages, d.memory))
            .collect();
        assert_eq!(figures, [("gpu", 2, 40 << 30), ("cpu", 4, 8 << 30)]);
        assert!(devices[0].decode > devices[1].decode);
    }

    #[test]
    fn without_layers_for_it_there_is_no_market() {
        let ring = crate::from_yaml(include_str!("../tests/good/smallest.yaml")).unwrap();
        assert_eq!(ring.spec.request().unwrap().market, None);
        assert!(ring.spec.devices().unwrap().is_empty());
    }
}
