//! An answer as server-sent events: chunks, comments while nothing comes, an error event if the ring fails, `[DONE]`.
//!
//! The head waits for the first token, but no longer than a keep-alive interval: what fails until then has an HTTP
//! status of its own. A task takes pieces from the ring and offers them to the connection. When the connection is gone
//! the task ends at once, and also when the client takes nothing for a while, so that nobody holds a sequence for ever by
//! not reading.

use axum::http::{HeaderName, HeaderValue};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::stream;
use serde_json::Value;
use std::convert::Infallible;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::answer::Piece;
use super::errors::ApiError;
use super::generation::Generation;
use super::reply::{Delivery, Envelope, Shape, usage};

/// Chunks that wait for the connection: enough that a hiccup of the network doesn't reach the ring.
const DEPTH: usize = 256;

type Next = Result<Option<Piece>, ApiError>;

pub(super) async fn send<S: Shape>(
    mut generation: Generation,
    envelope: Envelope,
    shape: S,
    delivery: Delivery,
) -> Result<Response, ApiError> {
    let first = match timeout(delivery.keep_alive, generation.next()).await {
        Ok(next) => Some(Ok(next?)),
        Err(_) => None,
    };
    let (chunks, waiting) = mpsc::channel(DEPTH);
    tokio::spawn(pump(
        generation,
        first,
        Writer {
            envelope,
            shape,
            chunks,
            delivery,
        },
    ));
    let events = stream::unfold(waiting, |mut waiting| async move {
        let event: Event = waiting.recv().await?;
        Some((Ok::<_, Infallible>(event), waiting))
    });
    let mut response = Sse::new(events)
        .keep_alive(KeepAlive::new().interval(delivery.keep_alive))
        .into_response();
    // nginx would otherwise collect chunks until its buffer is full.
    let unbuffered = HeaderName::from_static("x-accel-buffering");
    response
        .headers_mut()
        .insert(unbuffered, HeaderValue::from_static("no"));
    Ok(response)
}

/// The connection no longer takes events.
enum Gone {
    Closed,
    Stalled,
}

async fn pump<S: Shape>(mut generation: Generation, first: Option<Next>, mut writer: Writer<S>) {
    let sent = writer.all(&mut generation, first).await;
    if matches!(sent, Err(Gone::Stalled)) {
        generation.stalled();
    }
}

struct Writer<S> {
    envelope: Envelope,
    shape: S,
    chunks: mpsc::Sender<Event>,
    delivery: Delivery,
}

impl<S: Shape> Writer<S> {
    async fn all(&mut self, generation: &mut Generation, mut first: Option<Next>) -> Result<(), Gone> {
        if let Some(choice) = self.shape.opening() {
            self.chunk(choice).await?;
        }
        loop {
            let next = if let Some(next) = first.take() {
                next
            } else {
                tokio::select! {
                    () = self.chunks.closed() => return Err(Gone::Closed),
                    next = generation.next() => next,
                }
            };
            match next {
                Ok(Some(piece)) => {
                    for choice in self.shape.chunks(piece) {
                        self.chunk(choice).await?;
                    }
                }
                Ok(None) => break,
                Err(error) => return self.event(Event::default().data(error.body().to_string())).await,
            }
        }
        if self.delivery.include_usage {
            let mut chunk = self.envelope.wrap(S::CHUNK, &[]);
            chunk["usage"] = usage(generation.usage());
            self.event(Event::default().data(chunk.to_string())).await?;
        }
        self.event(Event::default().data("[DONE]")).await
    }

    async fn chunk(&mut self, choice: Value) -> Result<(), Gone> {
        let mut chunk = self.envelope.wrap(S::CHUNK, &[choice]);
        if self.delivery.include_usage {
            chunk["usage"] = Value::Null;
        }
        self.event(Event::default().data(chunk.to_string())).await
    }

    async fn event(&mut self, event: Event) -> Result<(), Gone> {
        match timeout(self.delivery.stalled_after, self.chunks.send(event)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(Gone::Closed),
            Err(_) => Err(Gone::Stalled),
        }
    }
}
