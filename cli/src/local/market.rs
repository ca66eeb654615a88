//! The market of one ring, for stages on this machine: the relay's own, on the loopback and in memory.

use std::{net::Ipv4Addr, sync::Arc};

use kvasir_gguf::ModelSource;
use kvasir_market::{
    Admission, ClientError, Limits, Market, MarketClient, RingClient, Store, router,
    types::{Demand, InviteRequest, Reach, RingStatus, Run, Source},
};
use kvasir_plan::RankManifest;
use kvasir_wire::trust::{NodeKeys, PublicKey};
use secrecy::SecretString;

use super::Folder;

/// All stages of this machine reach each other by the loopback, which goes by this name.
const NETWORK: &str = "local";
/// An invite outlasts every ring.
const INVITE_S: u32 = 365 * 24 * 3600;

/// A market on the loopback, which takes only the nodes that the folder holds the keys of.
#[derive(Clone, Debug)]
pub(crate) struct LocalMarket {
    /// the ring's owner, whose key delegates to the node of rank 0
    pub(crate) owner: PublicKey,
    /// its address
    pub(crate) url: String,
    /// what its stages enrol with
    pub(crate) invite: SecretString,
    ring: RingClient,
}

impl LocalMarket {
    /// Serves the ring's market until this process ends, every window kept for the node of its rank.
    pub(crate) async fn serve(folder: &Folder, manifest: &RankManifest, source: &ModelSource) -> anyhow::Result<Self> {
        let owner = Arc::new(folder.owner_key()?);
        let keys = (0..manifest.ranks.len())
            .map(|rank| Ok(NodeKeys::load_or_generate(&folder.node_key(rank))?.public()))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let store = Store::memory(Limits::default()).await?;
        let market = Market::new(store, Admission::Owners(vec![owner.public()])).await?;
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let url = format!("http://{}", listener.local_addr()?);
        tokio::spawn({
            let market = market.clone();
            async move { market.keep(None).await }
        });
        tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, router(market)).await {
                tracing::error!(%error, "the market ended");
            }
        });

        let client = MarketClient::new(&url, owner.clone())?;
        let ring = client.ring(&manifest.ring);
        let demand = Demand {
            template: manifest.clone(),
            source: source_of(source),
            delegations: keys
                .first()
                .map(|rank0| owner.delegate(manifest.ring.as_str(), *rank0))
                .into_iter()
                .collect(),
            reserved: (0..).zip(keys.iter().copied()).collect(),
            trusted_ends: true,
            queued: None,
            lease_s: None,
        };
        ring.demand(&demand).await?;
        let request = InviteRequest {
            ring: manifest.ring.clone(),
            uses: keys.len() as u32,
            expires_in_s: INVITE_S,
        };
        let invite = client.invite(&request).await?;
        Ok(LocalMarket {
            owner: owner.public(),
            url,
            invite: invite.token.into(),
            ring,
        })
    }

    /// The ring as its market sees it.
    pub(crate) async fn status(&self) -> Result<RingStatus, ClientError> {
        self.ring.status().await
    }
}

/// The windows of a rank of a ring that is cut as it was planned.
pub(crate) fn windows_of(rank: usize) -> Run {
    Run {
        start: rank as u32,
        end: rank as u32 + 1,
    }
}

/// How a stage of this machine that listens at `address` is reached.
pub(crate) fn reach(address: String) -> Reach {
    Reach {
        network: Some(NETWORK.to_owned()),
        address: Some(address),
    }
}

fn source_of(source: &ModelSource) -> Source {
    match source {
        ModelSource::HuggingFace { repo, file, revision } => Source::HuggingFace {
            repo: repo.clone(),
            file: file.clone(),
            revision: Some(revision.clone()),
        },
        ModelSource::Http { url } => Source::Http { url: url.clone() },
        ModelSource::File { path } => Source::File {
            path: path.display().to_string(),
        },
    }
}
