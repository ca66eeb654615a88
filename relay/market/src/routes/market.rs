//! What the calls work on: the store, the key of tickets, who may put rings on the market, and long polls.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use kvasir_wire::trust::PublicKey;
use prometheus_client::registry::Registry;
use tokio::sync::watch;

use super::{
    limit::{Limiter, RateLimits},
    refused::Refused,
    signed::Signed,
};
use crate::{
    rules::RingState,
    store::{Need, Store, StoreError, View},
    ticket::TicketKey,
};

/// A poll with nothing to tell ends after this long, well under the 60 s at which proxies cut idle connections.
pub const LONG_POLL: Duration = Duration::from_secs(25);

/// Where several relays share the store, a poll looks this often whether another one changed the ring.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// A relay says this often that it is there, well within the time after which it counts as gone.
const ANNOUNCE_EVERY: Duration = Duration::from_secs(5);
/// The store forgets what no longer counts this often.
const SWEEP_EVERY: Duration = Duration::from_secs(60);

/// Who may put rings on the market.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Admission {
    /// whoever asks, up to the store's limit
    #[default]
    Anyone,
    /// these owners
    Owners(Vec<PublicKey>),
}

/// The market of all rings of a store.
#[derive(Debug)]
pub struct Market {
    store: Arc<Store>,
    tickets: TicketKey,
    admission: Admission,
    limiter: Limiter,
    draining: watch::Sender<bool>,
}

impl Market {
    /// The market that `store` keeps.
    ///
    /// # Errors
    /// [`StoreError`] when the store fails.
    pub async fn new(store: Store, admission: Admission) -> Result<Arc<Self>, StoreError> {
        Market::with_rates(store, admission, RateLimits::default()).await
    }

    /// The same with other rates for its callers.
    ///
    /// # Errors
    /// [`StoreError`] when the store fails.
    pub async fn with_rates(store: Store, admission: Admission, rates: RateLimits) -> Result<Arc<Self>, StoreError> {
        Ok(Arc::new(Market {
            tickets: store.ticket_key().await?,
            store: Arc::new(store),
            admission,
            limiter: Limiter::new(rates),
            draining: watch::Sender::new(false),
        }))
    }

    /// Adds its metrics to those of whoever serves it.
    pub fn register(&self, registry: &mut Registry) {
        self.limiter.register(registry);
    }

    pub(super) fn limiter(&self) -> &Limiter {
        &self.limiter
    }

    /// Its database.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The key that edge tickets are made with.
    pub fn tickets(&self) -> &TicketKey {
        &self.tickets
    }

    /// Ends all polls, since this process goes down: who polls asks the next relay.
    pub fn drain(&self) {
        self.draining.send_replace(true);
    }

    /// Does what has to be done again and again, until it is dropped or [`Market::drain`] is called: forgets what is
    /// over, and, with the public URL of a relay, says that the relay is there.
    pub async fn keep(&self, public_url: Option<&str>) {
        let mut draining = self.draining.subscribe();
        let mut announce = tokio::time::interval(ANNOUNCE_EVERY);
        let mut sweep = tokio::time::interval(SWEEP_EVERY);
        loop {
            let done = tokio::select! {
                _ = announce.tick(), if public_url.is_some() => {
                    self.store.announce(public_url.unwrap_or_default()).await
                }
                _ = sweep.tick() => self.store.sweep().await,
                () = async { drop(draining.wait_for(|draining| *draining).await) } => break,
            };
            if let Err(error) = done {
                tracing::warn!(reason = error.reason(), error = %kvasir_process::chain(&error), "the store fails");
            }
        }
        if let Some(url) = public_url
            && let Err(error) = self.store.retire(url).await
        {
            tracing::warn!(reason = error.reason(), error = %kvasir_process::chain(&error), "the store fails");
        }
    }

    pub(super) async fn admit(&self, call: &Signed, need: Need<'_>) -> Result<(), Refused> {
        Ok(self.store.admit(&call.credentials, need).await?)
    }

    pub(super) async fn admit_owner(&self, call: &Signed, ring: &str) -> Result<(), Refused> {
        match &self.admission {
            Admission::Owners(owners) if !owners.contains(&call.key()) => {
                Err(Refused::OwnerNotAdmitted { owner: call.key() })
            }
            _ => self.admit(call, Need::OwnerToBe(ring)).await,
        }
    }

    /// A ring as it stands now.
    pub(super) async fn look(&self, ring: &str) -> Result<View, Refused> {
        let (store, ring) = (self.store.clone(), ring.to_owned());
        // What time did is stored and told even when the caller hangs up meanwhile.
        let view = tokio::spawn(async move { store.look(&ring).await });
        Ok(view.await.map_err(|_| Refused::Interrupted)??)
    }

    /// What `look` finds in the ring, as soon as there is something, or nothing after `wait`.
    pub(super) async fn poll<T>(
        &self,
        ring: &str,
        wait: Duration,
        look: impl Fn(&RingState) -> Option<T>,
    ) -> Result<Option<T>, Refused> {
        let end = Instant::now() + wait;
        // A ring that is not there is not waited for.
        self.look(ring).await?;
        let mut changed = self.store.subscribe(ring);
        let mut draining = self.draining.subscribe();
        loop {
            let view = self.look(ring).await?;
            if let Some(found) = look(&view.state) {
                return Ok(Some(found));
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || *draining.borrow_and_update() {
                return Ok(None);
            }
            let due = view.state.next_deadline().map(|due| due.saturating_sub(view.now));
            let due = due.map_or(Duration::MAX, |due| Duration::from_millis(due.max(10)));
            let another = if self.store.shared() { LOOK_EVERY } else { Duration::MAX };
            // The store lives as long as this does, so nobody hangs up on `changed`.
            tokio::select! {
                _ = changed.changed() => {}
                _ = draining.changed() => {}
                () = tokio::time::sleep(left.min(due).min(another)) => {}
            }
        }
    }
}
