//! The market of one ring, for stages on this machine: one on the loopback and in memory, or a relay's.

use std::{collections::BTreeMap, net::Ipv4Addr, sync::Arc};

use kvasir_gguf::ModelSource;
use kvasir_market::{
    Admission, ClientError, Limits, Market, MarketClient, RingClient, Store, router,
    types::{Demand, Reach, RingStatus, Run, Source},
};
use kvasir_plan::RankManifest;
use kvasir_wire::trust::{NodeKeys, PublicKey};

use super::Folder;

/// All stages of this machine reach each other by the loopback, which goes by this name.
const NETWORK: &str = "local";

/// The market that this machine's stages claim their windows on: its own on the loopback, or a relay's.
#[derive(Clone, Debug)]
pub(crate) struct RingMarket {
    /// the ring's owner, whose key delegates to the node of rank 0
    pub(crate) owner: PublicKey,
    /// its address
    pub(crate) url: String,
    ring: RingClient,
    demand: Demand,
}

impl RingMarket {
    /// Serves a market on the loopback until this process ends, with every window kept for the node of its rank.
    pub(crate) async fn serve(folder: &Folder, manifest: &RankManifest, source: &ModelSource) -> anyhow::Result<Self> {
        let store = Store::memory(Limits::default()).await?;
        let market = Market::new(store, Admission::Owners(vec![folder.owner_key()?.public()])).await?;
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
        let ranks: Vec<usize> = (0..manifest.ranks.len()).collect();
        RingMarket::on(&url, folder, manifest, source, &ranks).await
    }

    /// Offers the ring on the market at `url`: `ranks` are kept for nodes of this machine, the others are open.
    pub(crate) async fn on(
        url: &str,
        folder: &Folder,
        manifest: &RankManifest,
        source: &ModelSource,
        ranks: &[usize],
    ) -> anyhow::Result<Self> {
        let owner = Arc::new(folder.owner_key()?);
        let mut reserved = BTreeMap::new();
        for &rank in ranks {
            reserved.insert(
                rank as u32,
                NodeKeys::load_or_generate(&folder.node_key(rank))?.public(),
            );
        }
        let client = MarketClient::new(url, owner.clone())?;
        let ring = client.ring(&manifest.ring);
        let demand = Demand {
            template: manifest.clone(),
            source: source_of(source),
            delegations: reserved
                .get(&0)
                .map(|rank0| owner.delegate(manifest.ring.as_str(), *rank0))
                .into_iter()
                .collect(),
            trusted_ends: reserved.contains_key(&0) && reserved.contains_key(&(manifest.ranks.len() as u32 - 1)),
            reserved,
            queued: None,
            lease_s: None,
        };
        ring.demand(&demand).await?;
        Ok(RingMarket {
            owner: owner.public(),
            url: url.to_owned(),
            ring,
            demand,
        })
    }

    /// Offers the ring anew on a market that lost it.
    pub(crate) async fn offer_again(&self) -> Result<(), ClientError> {
        self.ring.demand(&self.demand).await
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
