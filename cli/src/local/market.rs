//! The market of one ring, for stages on this machine.

use std::{net::Ipv4Addr, sync::Arc};

use kvasir_market::{Board, BoardStatus, Market, board::STALE_AFTER, router};
use kvasir_plan::RankManifest;
use kvasir_wire::trust::{OwnerKey, PublicKey};
use secrecy::SecretString;

/// A market on the loopback, behind a token that only its own stages know.
#[derive(Clone, Debug)]
pub(crate) struct LocalMarket {
    /// the ring's owner, whose key delegates to whatever node holds rank 0
    pub(crate) owner: PublicKey,
    /// its address
    pub(crate) url: String,
    /// what its stages present
    pub(crate) token: SecretString,
    market: Arc<Market>,
    ring: String,
}

impl LocalMarket {
    /// Serves the ring's market until this process ends.
    pub(crate) async fn serve(owner: OwnerKey, manifest: &RankManifest) -> anyhow::Result<Self> {
        let (public, ring) = (owner.public(), manifest.ring.clone());
        let delegate = Box::new({
            let ring = ring.clone();
            move |node| Some(owner.delegate(ring.as_str(), node))
        });
        let market = Arc::new(Market::new());
        market.open(&ring, Board::new(manifest.clone(), public, delegate, STALE_AFTER));
        let token = SecretString::from(uuid::Uuid::new_v4().simple().to_string());
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let url = format!("http://{}", listener.local_addr()?);
        let router = router(market.clone(), Some(token.clone()));
        tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, router).await {
                tracing::error!(%error, "the market ended");
            }
        });
        Ok(LocalMarket {
            owner: public,
            url,
            token,
            market,
            ring,
        })
    }

    /// The ring as its market sees it.
    pub(crate) fn status(&self) -> Option<BoardStatus> {
        self.market.status(&self.ring)
    }
}
