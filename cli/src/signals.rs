//! The signals that end a command.

use tokio::signal::unix::{SignalKind, signal};

/// Ends at the first Ctrl-C, SIGTERM or SIGHUP from now on.
pub(crate) fn interrupted() -> anyhow::Result<impl Future<Output = ()>> {
    let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
    let mut signals = kinds.into_iter().map(signal).collect::<Result<Vec<_>, _>>()?;
    Ok(async move {
        futures::future::select_all(signals.iter_mut().map(|signal| Box::pin(signal.recv()))).await;
    })
}
