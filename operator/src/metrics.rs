//! What the operator counts.

use std::time::Duration;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};

/// One of the words that `reason()` gives.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Reason {
    reason: String,
}

/// A request that changes something in the cluster.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Write {
    kind: &'static str,
    verb: &'static str,
}

/// The operator's metrics.
#[derive(Debug)]
pub struct Metrics {
    visits: Counter,
    seconds: Histogram,
    failures: Family<Reason, Counter>,
    writes: Family<Write, Counter>,
    leader: Gauge,
}

impl Metrics {
    /// Metrics that are told through `registry`.
    pub fn register(registry: &mut Registry) -> Metrics {
        let metrics = Metrics {
            visits: Counter::default(),
            seconds: Histogram::new(exponential_buckets(0.005, 2.0, 14)),
            failures: Family::default(),
            writes: Family::default(),
            leader: Gauge::default(),
        };
        let operator = registry.sub_registry_with_prefix("kvasir_operator");
        operator.register("visits", "Rings visited", metrics.visits.clone());
        operator.register("visit_seconds", "How long a visit took", metrics.seconds.clone());
        operator.register("failures", "Visits that failed, by reason", metrics.failures.clone());
        operator.register(
            "writes",
            "Requests that change something in the cluster, Lease and events left out, by kind and verb",
            metrics.writes.clone(),
        );
        operator.register("leader", "1 in the process that works", metrics.leader.clone());
        metrics
    }

    pub(crate) fn visited(&self, took: Duration) {
        self.visits.inc();
        self.seconds.observe(took.as_secs_f64());
    }

    pub(crate) fn failed(&self, reason: &str) {
        let reason = Reason {
            reason: reason.to_owned(),
        };
        self.failures.get_or_create(&reason).inc();
    }

    pub(crate) fn wrote(&self, kind: &'static str, verb: &'static str) {
        self.writes.get_or_create(&Write { kind, verb }).inc();
    }

    pub(crate) fn leads(&self, leads: bool) {
        self.leader.set(i64::from(leads));
    }
}
