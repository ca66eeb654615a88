//! The relays' markets: what the Rings want is put there, and how it stands is read there.
//!
//! What a market was told is remembered while this process lives, so that nothing is said twice; a new process says it
//! again, which changes nothing.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use futures::future::join_all;
use kvasir_market::{
    ClientError, MarketClient, RingClient,
    types::{Demand, InviteRequest, RingStatus},
};
use kvasir_process::chain;
use kvasir_wire::trust::{NodeKeys, OwnerKey, PublicKey};
use secrecy::SecretString;

use crate::names;

/// A ring as its market sees it.
#[derive(Clone, Debug)]
pub enum View {
    /// it is there
    Seen(Box<RingStatus>),
    /// the market knows no such ring
    Absent,
    /// the market doesn't answer
    Unreachable(String),
    /// the market refuses, with its reason and its words
    Refused {
        /// `PascalCase`
        reason: String,
        /// what to do
        message: String,
    },
    /// nobody asked: the Ring is suspended
    Unasked,
}

impl View {
    /// What the market says, if it says anything.
    pub fn status(&self) -> Option<&RingStatus> {
        match self {
            View::Seen(status) => Some(status),
            _ => None,
        }
    }
}

/// Whether the market may say something else in a moment. A relay that can't do what is asked of it at all has answered,
/// with a status of 500 or above.
fn is_passing(error: &ClientError) -> bool {
    const PASSING: [u16; 5] = [429, 500, 502, 503, 504];
    match error {
        ClientError::Refused { status, .. } => PASSING.contains(status),
        error => error.retryable(),
    }
}

impl From<ClientError> for View {
    fn from(error: ClientError) -> View {
        if is_passing(&error) {
            View::Unreachable(chain(&error))
        } else if error.reason() == "UnknownRing" {
            View::Absent
        } else {
            View::Refused {
                reason: error.reason().to_owned(),
                message: chain(&error),
            }
        }
    }
}

/// The markets that were spoken to.
#[derive(Debug, Default)]
pub struct Markets {
    clients: Mutex<HashMap<(String, PublicKey), MarketClient>>,
    told: Mutex<HashMap<String, Told>>,
}

/// What the market of one ring was told last.
#[derive(Clone, Debug)]
enum Told {
    /// what it wants, by its hash, and by whom
    Wanted(String, MarketClient),
    /// that it is no more
    Withdrawn,
}

impl Markets {
    /// How the rings of one owner stand, in the order of `rings`.
    pub async fn look(&self, relay: &str, owner: &Arc<OwnerKey>, rings: &[String]) -> Vec<View> {
        let client = match self.client(relay, owner) {
            Ok(client) => client,
            Err(error) => {
                let view = View::from(error);
                return rings.iter().map(|_| view.clone()).collect();
            }
        };
        let look = |ring: &String| {
            let ring = client.ring(ring);
            async move {
                match ring.status().await {
                    Ok(status) => View::Seen(Box::new(status)),
                    Err(error) => View::from(error),
                }
            }
        };
        join_all(rings.iter().map(look)).await
    }

    /// Puts a ring on its market, unless it was told the very same and `view` shows it there. Whether anything was said.
    ///
    /// # Errors
    /// The market's refusal.
    pub async fn publish(
        &self,
        relay: &str,
        owner: &Arc<OwnerKey>,
        demand: &Demand,
        view: &View,
    ) -> Result<bool, ClientError> {
        let ring = &demand.template.ring;
        let text = serde_json::to_vec(demand).unwrap_or_default();
        let hash = names::digest(&[relay.as_bytes(), &text].concat());
        let told = matches!(self.lock().get(ring), Some(Told::Wanted(told, _)) if *told == hash);
        if told && !matches!(view, View::Absent) {
            return Ok(false);
        }
        let client = self.client(relay, owner)?;
        client.ring(ring).demand(demand).await?;
        self.lock().insert(ring.clone(), Told::Wanted(hash, client));
        tracing::info!(
            ring,
            windows = demand.template.ranks.len(),
            "the market knows what the ring wants"
        );
        Ok(true)
    }

    /// Takes a ring off its market. One that isn't there is gone already.
    ///
    /// # Errors
    /// The market's refusal, or that it doesn't answer.
    pub async fn withdraw(&self, relay: &str, owner: &Arc<OwnerKey>, ring: &str) -> Result<(), ClientError> {
        match self.client(relay, owner)?.ring(ring).withdraw().await {
            Err(error) if error.reason() != "UnknownRing" => Err(error),
            _ => {
                self.lock().insert(ring.to_owned(), Told::Withdrawn);
                Ok(())
            }
        }
    }

    /// Gives back a claim of a node that this cluster ran.
    ///
    /// # Errors
    /// The market's refusal, or that it doesn't answer.
    pub async fn leave(&self, relay: &str, node: NodeKeys, ring: &str, claim: u64) -> Result<(), ClientError> {
        MarketClient::new(relay, Arc::new(node))?.ring(ring).leave(claim).await
    }

    /// Takes all rings off their markets that this process put there and whose names begin with `prefix`, and forgets
    /// them. A market that doesn't have it isn't asked again: claims run out.
    pub async fn withdraw_all(&self, prefix: &str) {
        let mut left = Vec::new();
        self.lock().retain(|ring, told| {
            let is_one = ring.starts_with(prefix);
            if let (true, Told::Wanted(_, client)) = (is_one, told) {
                left.push(client.ring(ring));
            }
            !is_one
        });
        for ended in join_all(left.iter().map(RingClient::withdraw)).await {
            if let Err(error) = ended {
                tracing::debug!(error = chain(&error), "the ring is not off its market");
            }
        }
    }

    /// Whether this process took the ring off its market.
    pub fn is_withdrawn(&self, ring: &str) -> bool {
        matches!(self.lock().get(ring), Some(Told::Withdrawn))
    }

    /// An invite to a ring.
    ///
    /// # Errors
    /// The market's refusal.
    pub async fn invite(
        &self,
        relay: &str,
        owner: &Arc<OwnerKey>,
        request: &InviteRequest,
    ) -> Result<SecretString, ClientError> {
        let granted = self.client(relay, owner)?.invite(request).await?;
        Ok(SecretString::from(granted.token))
    }

    /// Lets go of an owner's connections, for a Ring that sleeps: a client holds certificates, too.
    pub fn release(&self, owner: PublicKey) {
        self.clients
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .retain(|(_, known), _| *known != owner);
    }

    /// Forgets the rings of an owner, whose Ring is gone.
    pub fn forget(&self, owner: PublicKey, rings: &[String]) {
        self.release(owner);
        let mut told = self.lock();
        for ring in rings {
            told.remove(ring);
        }
    }

    fn client(&self, relay: &str, owner: &Arc<OwnerKey>) -> Result<MarketClient, ClientError> {
        let key = (relay.to_owned(), owner.public());
        let known = self
            .clients
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&key)
            .cloned();
        if let Some(client) = known {
            return Ok(client);
        }
        let client = MarketClient::new(relay, owner.clone())?;
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(clients.entry(key).or_insert(client).clone())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Told>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_for_good_is_told_in_the_relays_words_and_one_that_passes_is_not() {
        let refused = |status| {
            View::from(ClientError::Refused {
                market: "http://relay".into(),
                status,
                reason: "NoMarket".into(),
                message: "this relay has no market".into(),
                retry_after: None,
            })
        };
        for status in [400, 403, 501, 505] {
            let view = refused(status);
            let told = "the market at http://relay refuses (NoMarket): this relay has no market";
            assert!(
                matches!(&view, View::Refused { reason, message } if reason == "NoMarket" && message == told),
                "{status}: {view:?}"
            );
        }
        for status in [429, 500, 502, 503, 504] {
            assert!(matches!(refused(status), View::Unreachable(_)), "{status}");
        }
    }
}
