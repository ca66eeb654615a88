//! One answer from the ring, from the prompt's submission to the last piece; dropping it cancels it on every stage.

use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc::Receiver;

use super::Api;
use super::answer::{Answer, FinishReason, Piece};
use super::errors::ApiError;
use crate::ring::handle::{Event, Generate, RingError};

/// Tokens of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) prompt_tokens: usize,
    pub(super) completion_tokens: usize,
}

/// What tells one generation from another.
pub(super) struct Order {
    /// id of the answer, as the client sees it
    pub(super) id: String,
    /// when the request came
    pub(super) arrived: Instant,
    /// the field that forbids tokens, if one does
    pub(super) restriction: Option<&'static str>,
    /// what the ring is to do
    pub(super) generate: Generate,
}

/// An answer in progress.
pub(super) struct Generation {
    api: Arc<Api>,
    id: String,
    restriction: Option<&'static str>,
    arrived: Instant,
    /// none once the answer has ended: the ring's stream is dropped at once
    events: Option<Receiver<Event>>,
    answer: Answer,
    usage: Usage,
    last_token: Option<Instant>,
    ended: Ended,
}

/// How an answer ended, for the log.
#[derive(Clone, Copy, Debug)]
enum Ended {
    Cancelled,
    Finished(FinishReason),
    Failed(&'static str),
}

impl Generation {
    /// Hands the prompt to the ring.
    pub(super) async fn submit(api: Arc<Api>, order: Order, answer: Answer) -> Result<Generation, ApiError> {
        let prompt_tokens = order.generate.prompt.len();
        let submitted = if api.shutdown.begun.is_cancelled() {
            Err(RingError::Draining)
        } else {
            api.ring.submit(order.generate).await
        };
        let events = submitted.map_err(|error| {
            api.metrics.dropped(error.reason());
            ApiError::ring(&error)
        })?;
        api.metrics.prompt_tokens.inc_by(prompt_tokens as u64);
        api.pulse.begin();
        Ok(Generation {
            api,
            id: order.id,
            restriction: order.restriction,
            arrived: order.arrived,
            events: Some(events),
            answer,
            usage: Usage {
                prompt_tokens,
                completion_tokens: 0,
            },
            last_token: None,
            ended: Ended::Cancelled,
        })
    }

    /// The next piece, empty for a token that adds nothing yet; none after the piece that has a finish reason.
    /// Cancel-safe.
    pub(super) async fn next(&mut self) -> Result<Option<Piece>, ApiError> {
        while let Some(events) = &mut self.events {
            let event = tokio::select! {
                biased;
                event = events.recv() => event,
                () = self.api.shutdown.over.cancelled() => Some(Event::Failed(RingError::Draining)),
            };
            self.api.pulse.beat();
            let piece = match event {
                Some(Event::Prefilled { .. }) => continue,
                Some(Event::Token(sampled)) => {
                    self.count_token();
                    self.answer.token(&sampled)
                }
                Some(Event::Done(finish)) => self.answer.finish(finish),
                Some(Event::Failed(error)) => return Err(self.fail(&error)),
                None => {
                    let detail = "the answer's stream ended before the answer did".to_string();
                    return Err(self.fail(&RingError::StageLost { detail }));
                }
            };
            if let Some(reason) = piece.finish {
                self.ended = Ended::Finished(reason);
                self.events = None;
            }
            return Ok(Some(piece));
        }
        Ok(None)
    }

    /// Tokens so far.
    pub(super) fn usage(&self) -> Usage {
        self.usage
    }

    /// Gives the answer up because its client no longer takes what comes.
    pub(super) fn stalled(mut self) {
        self.api.metrics.dropped("ClientStalled");
        self.ended = Ended::Failed("ClientStalled");
    }

    fn count_token(&mut self) {
        let now = Instant::now();
        let metrics = &self.api.metrics;
        match self.last_token.replace(now) {
            None => metrics.first_token_seconds.observe((now - self.arrived).as_secs_f64()),
            Some(last) => metrics.inter_token_seconds.observe((now - last).as_secs_f64()),
        }
        metrics.generated_tokens.inc();
        self.usage.completion_tokens += 1;
    }

    fn fail(&mut self, error: &RingError) -> ApiError {
        self.events = None;
        self.ended = Ended::Failed(error.reason());
        self.api.metrics.dropped(error.reason());
        match (error, self.restriction) {
            // The only thing that a sampler can stumble over is what the client forbids: a grammar that leads into a
            // dead end may do so late.
            (RingError::Sampling { detail }, Some(param)) => {
                ApiError::invalid(param, format!("'{param}' can't be used: {detail}"))
            }
            _ => ApiError::ring(error),
        }
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        self.api.pulse.end();
        let ended = match self.ended {
            Ended::Finished(reason) => reason.as_str(),
            Ended::Failed(reason) => reason,
            Ended::Cancelled => {
                self.api.metrics.cancelled.inc();
                "cancelled"
            }
        };
        tracing::info!(
            id = self.id,
            prompt_tokens = self.usage.prompt_tokens,
            completion_tokens = self.usage.completion_tokens,
            milliseconds = self.arrived.elapsed().as_millis() as u64,
            ended,
            "answer"
        );
    }
}
