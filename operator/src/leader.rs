//! One operator of several works: the one that holds the Lease.
//!
//! Who loses it ends, and starts again as one of those that wait: a process that has led knows things that may be old.

use kube::Client;
use kube_lease_manager::{LeaseManagerBuilder, LeaseManagerError};
use tokio::{sync::watch, task::JoinHandle};

use crate::settings::Settings;

/// Name of the Lease.
pub const LEASE: &str = "kvasir-operator";
/// Seconds that a Lease is good for without being renewed.
const DURATION: u64 = 15;
/// Seconds before its end at which it is renewed, and by which clocks may differ.
const GRACE: u64 = 5;

/// Why there is no Lease.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// the Lease can't be read or made
    #[error("can't use the Lease {LEASE} in namespace {namespace}: is the operator allowed to?")]
    Lease {
        /// where
        namespace: String,
        /// why
        #[source]
        source: Box<LeaseManagerError>,
    },
    /// it was lost while others wait for it
    #[error("another operator took the Lease: this one ends")]
    Lost,
}

impl Error {
    /// Stable `PascalCase` word for metrics, events and conditions.
    pub fn reason(&self) -> &'static str {
        match self {
            Error::Lease { .. } => "LeaseUnusable",
            Error::Lost => "LeaseLost",
        }
    }
}

/// The Lease while it is held; dropping it lets others have it.
#[derive(Debug)]
pub struct Leadership {
    leads: watch::Receiver<bool>,
    task: JoinHandle<Result<kube_lease_manager::LeaseManager, LeaseManagerError>>,
}

impl Leadership {
    /// Waits for the Lease.
    ///
    /// # Errors
    /// [`Error::Lease`].
    pub async fn won(client: Client, settings: &Settings) -> Result<Leadership, Error> {
        let namespace = &settings.pod_namespace;
        let failed = |source| Error::Lease {
            namespace: namespace.clone(),
            source: Box::new(source),
        };
        let manager = LeaseManagerBuilder::new(client, LEASE)
            .with_namespace(namespace)
            .with_identity(&settings.pod_name)
            .with_duration(DURATION)
            .with_grace(GRACE)
            .build()
            .await
            .map_err(failed)?;
        let (mut leads, task) = manager.watch().await;
        tracing::info!(namespace, identity = settings.pod_name, "waiting for the Lease");
        if leads.wait_for(|leads| *leads).await.is_err() {
            return Err(Error::Lost);
        }
        tracing::info!(namespace, identity = settings.pod_name, "this operator works");
        Ok(Leadership { leads, task })
    }

    /// Returns when the Lease is lost.
    pub async fn lost(&self) -> Error {
        let mut leads = self.leads.clone();
        // the sender gone is the Lease gone
        let _ = leads.wait_for(|leads| !*leads).await;
        Error::Lost
    }

    /// Gives the Lease back, so that the next operator needn't wait for its end.
    pub async fn resign(self) {
        drop(self.leads);
        match self.task.await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::debug!(%error, "the Lease was not given back"),
            Err(error) => tracing::debug!(%error, "the Lease was not given back"),
        }
    }
}
