//! `kvasir-operator run`: from the settings to the loop, and its end.

use std::sync::Arc;

use anyhow::{Context as _, bail};
use kube::Client;
use kvasir_process::stop_on_signals;
use prometheus_client::registry::Registry;
use tokio::{net::TcpListener, sync::watch};
use tokio_util::sync::CancellationToken;

use crate::{
    context::{Context, Pauses},
    controller, definition,
    events::Events,
    holder::Told,
    http,
    leader::Leadership,
    market::Markets,
    metrics::Metrics,
    model::Models,
    newest::Newest,
    settings::Settings,
};

/// Works until a signal, or until another operator takes the Lease.
///
/// # Errors
/// The API server can't be reached, the port is taken, or the Lease is lost.
pub async fn run(settings: Settings) -> anyhow::Result<()> {
    // First of all, so that a signal means the same at any time.
    let shutdown = CancellationToken::new();
    stop_on_signals(shutdown.clone())?;
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        image = settings.stage_image,
        "the operator starts"
    );
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    let (reached, is_reached) = watch::channel(false);
    let listener = TcpListener::bind(settings.http_listen)
        .await
        .with_context(|| format!("cannot listen on {}", settings.http_listen))?;
    let served = tokio::spawn(http::serve(listener, registry, is_reached, shutdown.clone()));
    let worked = work(settings, metrics, &reached, shutdown.clone()).await;
    shutdown.cancel();
    served.await??;
    worked
}

async fn work(
    settings: Settings,
    metrics: Metrics,
    reached: &watch::Sender<bool>,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let client = tokio::select! {
        client = connected() => client.context("cannot reach the API server")?,
        () = shutdown.cancelled() => return Ok(()),
    };
    reached.send_replace(true);
    let leadership = if settings.leader_election {
        tokio::select! {
            won = Leadership::won(client.clone(), &settings) => Some(won?),
            () = shutdown.cancelled() => return Ok(()),
        }
    } else {
        None
    };
    metrics.leads(true);
    let (told, lacking) = watch::channel(None);
    tokio::spawn(definition::watch(client.clone(), told));
    let context = Arc::new(Context {
        events: Events::new(client.clone(), &settings.pod_name),
        client,
        settings,
        metrics,
        models: Models::default(),
        markets: Markets::default(),
        pauses: Pauses::default(),
        newest: Newest::default(),
        others: Told::default(),
        definition: lacking,
    });
    let lost = async {
        match &leadership {
            Some(leadership) => leadership.lost().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = controller::run(context.clone(), shutdown.clone()) => {}
        // visits stop where they are: the next leader is at work
        lost = lost => bail!(lost),
    }
    context.metrics.leads(false);
    if !shutdown.is_cancelled() {
        bail!("the loop ended by itself");
    }
    if let Some(leadership) = leadership {
        leadership.resign().await;
    }
    tracing::info!("the operator ends");
    Ok(())
}

async fn connected() -> Result<Client, kube::Error> {
    let client = Client::try_default().await?;
    let version = client.apiserver_version().await?;
    tracing::info!(kubernetes = version.git_version, "the API server answers");
    Ok(client)
}
