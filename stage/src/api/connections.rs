//! Connections of the API: small packets at once, clients that vanished found out, and an end to those that keep a
//! connection without saying what they want.
//!
//! A request that is under way, and an answer that is being sent, keep a connection open however long they take.

use axum::Router;
use axum::serve::Listener;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use socket2::{SockRef, TcpKeepalive};
use std::io;
use std::pin::Pin;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::errors::ApiError;

/// Time for a request's head, from the connection's beginning or the last answer's end. Longer than proxies keep
/// connections without requests, so that it is they who close.
pub(super) const HEAD_WITHIN: Duration = Duration::from_secs(120);
/// A silent client is asked for a sign of life after this time, and then each [`PROBE_EVERY`].
const PROBE_AFTER: Duration = Duration::from_secs(30);
const PROBE_EVERY: Duration = Duration::from_secs(10);
/// Probes without an answer after which a client is gone.
const PROBES: u32 = 3;
/// A client that acknowledges nothing of what it was sent for so long, or takes nothing, is gone.
#[cfg(any(target_os = "linux", target_os = "android"))]
const UNTAKEN_FOR: Duration = Duration::from_secs(60);

/// Takes connections until `closing`, and returns once each of them has ended.
pub(super) async fn serve(
    mut listener: TcpListener,
    router: Router,
    head_within: Duration,
    closing: CancellationToken,
) {
    let connections = TaskTracker::new();
    loop {
        let (stream, _) = tokio::select! {
            accepted = Listener::accept(&mut listener) => accepted,
            () = closing.cancelled() => break,
        };
        if let Err(error) = tune(&stream) {
            tracing::debug!(%error, "connection without some of its options");
        }
        connections.spawn(connection(stream, router.clone(), head_within, closing.clone()));
    }
    drop(listener);
    connections.close();
    connections.wait().await;
}

async fn connection(stream: TcpStream, router: Router, head_within: Duration, closing: CancellationToken) {
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(head_within)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut serving = Pin::new(&mut connection);
    let ended = tokio::select! {
        ended = serving.as_mut() => ended,
        () = closing.cancelled() => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    let Err(error) = ended else { return };
    tracing::debug!(%error, "a connection failed");
    let left = connection.into_parts();
    // No answer is on its way, and whoever takes not even this one gets none. Who said nothing is let go without a word.
    if error.is_timeout() && !left.read_buf.is_empty() {
        let refusal = ApiError::slow_head(head_within).whole();
        let _ = left.io.into_inner().try_write(refusal.as_bytes());
    }
}

/// Sets up an accepted connection: small packets go out at once, and a client that vanished without a word is found out,
/// so that it holds no sequence.
pub(super) fn tune(connection: &TcpStream) -> io::Result<()> {
    // Each token is a small packet of its own that must not wait for the next.
    connection.set_nodelay(true)?;
    let socket = SockRef::from(connection);
    let probes = TcpKeepalive::new()
        .with_time(PROBE_AFTER)
        .with_interval(PROBE_EVERY)
        .with_retries(PROBES);
    socket.set_tcp_keepalive(&probes)?;
    #[cfg(any(target_os = "linux", target_os = "android"))]
    socket.set_tcp_user_timeout(Some(UNTAKEN_FOR))?;
    Ok(())
}
