//! What the API counts: requests, tokens, answers given up, and how fast tokens come.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

/// A request by where it went and how it ended.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(super) struct RequestLabels {
    /// route as declared, `other` for unknown paths
    pub(super) route: String,
    /// HTTP status; 499 when the client left before there was one
    pub(super) code: u16,
}

/// Why an answer was not given or cut short: [`RingError::reason`](crate::ring::handle::RingError::reason), or
/// `ClientStalled`.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ReasonLabels {
    reason: &'static str,
}

/// The API's metrics.
#[derive(Debug)]
pub(super) struct Metrics {
    pub(super) requests: Family<RequestLabels, Counter>,
    pub(super) prompt_tokens: Counter,
    pub(super) generated_tokens: Counter,
    pub(super) cancelled: Counter,
    dropped: Family<ReasonLabels, Counter>,
    pub(super) first_token_seconds: Histogram,
    pub(super) inter_token_seconds: Histogram,
}

impl Metrics {
    pub(super) fn register(registry: &mut Registry) -> Metrics {
        let metrics = Metrics {
            requests: Family::default(),
            prompt_tokens: Counter::default(),
            generated_tokens: Counter::default(),
            cancelled: Counter::default(),
            dropped: Family::default(),
            first_token_seconds: Histogram::new(exponential_buckets(0.01, 2.0, 16)),
            inter_token_seconds: Histogram::new(exponential_buckets(0.001, 2.0, 14)),
        };
        let api = registry.sub_registry_with_prefix("kvasir_api");
        api.register(
            "requests",
            "Requests by route and HTTP status",
            metrics.requests.clone(),
        );
        api.register(
            "prompt_tokens",
            "Tokens of prompts taken",
            metrics.prompt_tokens.clone(),
        );
        api.register("generated_tokens", "Tokens generated", metrics.generated_tokens.clone());
        api.register(
            "cancelled",
            "Answers given up because the client left",
            metrics.cancelled.clone(),
        );
        api.register(
            "dropped",
            "Answers refused or cut short, by reason",
            metrics.dropped.clone(),
        );
        api.register(
            "first_token_seconds",
            "Time from a request's arrival to its first token",
            metrics.first_token_seconds.clone(),
        );
        api.register(
            "inter_token_seconds",
            "Time between two tokens of an answer",
            metrics.inter_token_seconds.clone(),
        );
        metrics
    }

    pub(super) fn dropped(&self, reason: &'static str) {
        self.dropped.get_or_create(&ReasonLabels { reason }).inc();
    }
}
