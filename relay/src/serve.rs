//! One port: HTTP/1.1, plain or TLS, with the bridge, the market and the health of both behind it.

use std::{sync::Arc, time::Duration};

use axum::{
    Extension, Json, Router,
    extract::{ConnectInfo, State},
    http::{StatusCode, header},
    response::IntoResponse,
    routing::{any, get},
};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use kvasir_market::types::Refusal;
use kvasir_wire::{edge::tune, leg::EDGE_PATH};
use prometheus_client::{encoding::text::encode, registry::Registry};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use crate::{
    bridge::{Bridge, BridgeConfig},
    socket::Socket,
    tls::{Tls, TlsError, TlsFiles},
    upgrade,
};

/// A client has this long for its TLS handshake, and for each request's header.
const HEADER_WITHIN: Duration = Duration::from_secs(10);
/// Bytes of a request's header at most: a ticket and a signature fit many times.
const MAX_HEADER: usize = 16 * 1024;
/// Connections that are no legs (yet): calls of the market, and upgrades under way. More wait in the kernel's queue.
const MAX_CONNECTIONS: usize = 4096;
/// Calls under way have this long to end once the legs are gone.
const LAST_CALLS: Duration = Duration::from_secs(2);

/// What a relay is told.
#[derive(Debug)]
pub struct RelayConfig {
    /// the bridge's part
    pub bridge: BridgeConfig,
    /// certificate and key; none behind a proxy that does TLS
    pub tls: Option<TlsFiles>,
    /// time from the order to shut down to the end of the legs, in which `/readyz` says no and new legs are refused
    pub drain_grace: Duration,
}

struct Health {
    bridge: Arc<Bridge>,
    registry: Registry,
}

/// Serves a relay on `listener`, with `market` beside the bridge, until `shutdown`, and then until all legs are told.
///
/// # Errors
/// When the certificate can't be used.
pub async fn serve(
    listener: TcpListener,
    market: Router,
    config: RelayConfig,
    shutdown: CancellationToken,
) -> Result<(), TlsError> {
    serve_with(listener, market, Registry::default(), config, shutdown).await
}

/// The same, with metrics of the market's beside the relay's own.
pub(crate) async fn serve_with(
    listener: TcpListener,
    market: Router,
    mut registry: Registry,
    config: RelayConfig,
    shutdown: CancellationToken,
) -> Result<(), TlsError> {
    let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let closing = CancellationToken::new();
    let tls = match config.tls {
        Some(files) => Some(Tls::load(files, closing.clone()).await?),
        None => None,
    };
    let bridge = Bridge::new(config.bridge, &mut registry);
    let health = Arc::new(Health {
        bridge: Arc::clone(&bridge),
        registry,
    });
    let router = Router::new()
        .route(EDGE_PATH, any(upgrade::edge))
        .with_state(Arc::clone(&bridge))
        .merge(
            Router::new()
                .route("/healthz", get(|| async { "ok" }))
                .route("/readyz", get(ready))
                .route("/metrics", get(metrics))
                .with_state(health),
        )
        .merge(market)
        .fallback(unknown);
    let accepting = tokio::spawn(accept(listener, router, tls, connections, closing.clone()));
    shutdown.cancelled().await;
    bridge.leave();
    tracing::info!(grace = ?config.drain_grace, "shutting down: no new legs");
    tokio::time::sleep(config.drain_grace).await;
    bridge.close().await;
    closing.cancel();
    // What is still under way then ends with the process.
    let _ = timeout(LAST_CALLS, accepting).await;
    tracing::info!("the relay ended");
    Ok(())
}

/// Takes connections until `closing`, each on a task of its own; returns when they have ended.
async fn accept(
    listener: TcpListener,
    router: Router,
    tls: Option<Tls>,
    connections: Arc<Semaphore>,
    closing: CancellationToken,
) {
    let tasks = tokio_util::task::TaskTracker::new();
    loop {
        // A place first: what finds none waits in the kernel's queue.
        let place = tokio::select! {
            place = Arc::clone(&connections).acquire_owned() => place,
            () = closing.cancelled() => break,
        };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = closing.cancelled() => break,
        };
        match (place, accepted) {
            (Ok(place), Ok((tcp, peer))) => {
                // The market counts calls by address.
                let router = router.clone().layer(Extension(ConnectInfo(peer)));
                tasks.spawn(connection(tcp, router, tls.clone(), place, closing.clone()));
            }
            (_, Err(error)) => {
                // Out of files, most likely: others end in a while.
                tracing::error!(%error, "can't take a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            (Err(_), _) => break,
        }
    }
    tasks.close();
    tasks.wait().await;
}

async fn connection(
    tcp: TcpStream,
    router: Router,
    tls: Option<Tls>,
    place: OwnedSemaphorePermit,
    closing: CancellationToken,
) {
    if tune(&tcp).is_err() {
        return;
    }
    let socket = match tls {
        None => Socket::Plain(tcp),
        Some(tls) => match timeout(HEADER_WITHIN, tls.acceptor().accept(tcp)).await {
            Ok(Ok(stream)) => Socket::Tls(Box::new(stream)),
            Ok(Err(error)) => {
                tracing::debug!(%error, "no TLS with a client");
                return;
            }
            Err(_) => return,
        },
    };
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_WITHIN)
        .max_buf_size(MAX_HEADER)
        .serve_connection(TokioIo::new(socket), TowerToHyperService::new(router))
        .with_upgrades();
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = closing.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection failed");
    }
    // A connection that became a leg has a place among the legs by now.
    drop(place);
}

async fn ready(State(health): State<Arc<Health>>) -> impl IntoResponse {
    if health.bridge.is_leaving() {
        (StatusCode::SERVICE_UNAVAILABLE, "shutting down")
    } else {
        (StatusCode::OK, "ok")
    }
}

async fn metrics(State(health): State<Arc<Health>>) -> impl IntoResponse {
    let mut text = String::new();
    match encode(&mut text, &health.registry) {
        Ok(()) => (
            [(
                header::CONTENT_TYPE,
                "application/openmetrics-text; version=1.0.0; charset=utf-8",
            )],
            text,
        )
            .into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

async fn unknown() -> impl IntoResponse {
    (
        StatusCode::NOT_FOUND,
        Json(Refusal {
            reason: "UnknownPath".to_owned(),
            message: "the relay has nothing at this path".to_owned(),
        }),
    )
}
