//! What the relay counts.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

/// One of the words that `reason()` gives.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
}

/// The relay's metrics.
#[derive(Debug)]
pub(crate) struct Metrics {
    pub(crate) waiting: Gauge,
    pub(crate) edges: Gauge,
    pub(crate) paired: Counter,
    pub(crate) bytes: Counter,
    refused: Family<Reason, Counter>,
    closed: Family<Reason, Counter>,
}

impl Metrics {
    pub(crate) fn register(registry: &mut Registry) -> Metrics {
        let metrics = Metrics {
            waiting: Gauge::default(),
            edges: Gauge::default(),
            paired: Counter::default(),
            bytes: Counter::default(),
            refused: Family::default(),
            closed: Family::default(),
        };
        let relay = registry.sub_registry_with_prefix("kvasir_relay");
        relay.register(
            "waiting_legs",
            "Legs whose other end isn't there",
            metrics.waiting.clone(),
        );
        relay.register("edges", "Edges with both legs", metrics.edges.clone());
        relay.register("pairs", "Times that two legs met", metrics.paired.clone());
        relay.register("edge_bytes", "Bytes read from paired legs", metrics.bytes.clone());
        relay.register("refused_legs", "Upgrades refused, by reason", metrics.refused.clone());
        relay.register(
            "closed_legs",
            "Legs that the relay closed, by reason",
            metrics.closed.clone(),
        );
        metrics
    }

    pub(crate) fn refused(&self, reason: &'static str) {
        self.refused.get_or_create(&Reason { reason }).inc();
    }

    pub(crate) fn closed(&self, reason: &'static str) {
        self.closed.get_or_create(&Reason { reason }).inc();
    }
}
