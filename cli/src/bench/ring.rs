//! The ring that is measured: rank 0 in this process, where its laps can be timed, the other ranks in their own.

use std::{sync::Arc, time::Instant};

use anyhow::{Context, bail};
use kvasir_engine::{Backend, WindowOptions};
use kvasir_market::{MarketClient, types::StageState};
use kvasir_plan::RankManifest;
use kvasir_stage::{
    fetch::RankFiles,
    ring::{
        handle::{Event, Generate, Ring},
        head::HeadHandle,
    },
    run::{Keeper, RunError, Stage, Wanted},
};
use kvasir_wire::{
    edge::Timings,
    frame::{LapKind, Sampling},
    trust::NodeKeys,
};
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use super::stats::Run;
use crate::local::{Folder, RingMarket, reach, windows_of};

/// Time for both links of rank 0 to come up.
const FORM_WITHIN: std::time::Duration = std::time::Duration::from_secs(20);

/// Rank 0 of a running ring.
#[derive(Debug)]
pub(super) struct MeasuredRing {
    head: HeadHandle,
    ended: JoinHandle<Result<(), RunError>>,
    shutdown: CancellationToken,
}

impl MeasuredRing {
    /// Starts rank 0 in this process; the ring is ready once the other ranks are there: [`MeasuredRing::ready`].
    pub(super) async fn start(
        backend: &'static Backend,
        manifest: &RankManifest,
        folder: &Folder,
        market: &RingMarket,
        options: WindowOptions,
    ) -> anyhow::Result<Self> {
        let keys = Arc::new(NodeKeys::load_or_generate(&folder.node_key(0))?);
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?.to_string();
        let dir = folder.window(manifest, &manifest.ranks[0]);
        let files = RankFiles::new(manifest, 0, &dir)?;
        let client = MarketClient::new(&market.url, keys.clone())?.ring(&manifest.ring);
        let wanted =
            Wanted::of(client, manifest, windows_of(0), &keys, reach(address)).context("the plan has no ranks")?;
        let stage = Stage {
            keeper: Keeper::start(wanted, StageState::Loading, None),
            plan: manifest.clone(),
            owner: market.owner,
            keys,
            listener,
            relays: None,
            fetched_bytes: 0,
            timings: Timings::default(),
            form_within: FORM_WITHIN,
            tap: None,
        };
        let load = move || {
            kvasir_stage::cli::load(backend, &files, &options).map_err(|error| RunError::Load {
                dir,
                source: error.into_boxed_dyn_error(),
            })
        };
        let shutdown = CancellationToken::new();
        let running = stage.start(load, shutdown.clone());
        let head = running.head.clone().context("rank 0 has a head")?;
        Ok(MeasuredRing {
            head,
            ended: tokio::spawn(running.ended()),
            shutdown,
        })
    }

    /// Returns once a lap has gone round.
    pub(super) async fn ready(&mut self) -> anyhow::Result<()> {
        tokio::select! {
            () = self.head.wait_ready() => Ok(()),
            ended = &mut self.ended => {
                ended??;
                bail!("rank 0 ended before the ring was ready")
            }
        }
    }

    /// Ends rank 0 in good order.
    pub(super) async fn end(self) -> anyhow::Result<()> {
        self.shutdown.cancel();
        Ok(self.ended.await??)
    }

    /// Sends the prompt round and takes `tokens` likeliest tokens after it.
    pub(super) async fn run(&self, prompt: &[i32], tokens: u32) -> anyhow::Result<Run> {
        let begun = Instant::now();
        let request = Generate {
            prompt: prompt.to_vec(),
            max_tokens: tokens,
            sampling: Sampling {
                temperature: 0.0,
                ..Sampling::default()
            },
            stop_tokens: Vec::new(),
        };
        let mut events = self.head.submit(request).await?;
        let mut prefilled = None;
        while let Some(event) = events.recv().await {
            match event {
                Event::Token(_) => {
                    prefilled.get_or_insert_with(Instant::now);
                }
                Event::Done(_) => {
                    let prefilled = prefilled.context("the ring gave no token")?;
                    return Ok(Run::new(prompt.len(), prefilled - begun, tokens, prefilled.elapsed()));
                }
                Event::Failed(error) => return Err(error.into()),
                Event::Prefilled { .. } => {}
            }
        }
        bail!("the ring ended the answer without a word")
    }

    /// What each of the last decode laps spent off engines and samplers, by hop, in milliseconds.
    pub(super) fn hops_ms(&self, ranks: usize) -> Vec<f64> {
        let laps = self
            .head
            .lap_times()
            .into_iter()
            .filter(|lap| lap.kind == LapKind::Decode);
        laps.map(|lap| f64::from(lap.total_us.saturating_sub(lap.compute_us)) / 1000.0 / ranks as f64)
            .collect()
    }
}
