//! `kvasir up`: runs a Ring on this machine, a process for each window, with the protocols that a cluster uses.
//!
//! The Ring is read and planned, the windows are fetched by one child process each, then one child process each runs
//! them, and this process serves them the market: it proposes the manifest that rank 0 signs. The ring is up until a
//! signal comes or a stage is lost; then all children are ended.

mod ready;

use std::{
    cell::Cell,
    io::Write,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::PathBuf,
    time::Duration,
};

use anyhow::Context;
use kvasir_api::Ring;
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    failure::{Interrupted, StageLost},
    local::{self, Folder, LocalMarket, Program, Served},
    planned::{self, RingArgs},
    supervise::Children,
    table::Output,
};
use ready::Up as RingUp;

/// Time that a stage has to end once it was asked to.
const GRACE: Duration = Duration::from_secs(10);

/// Run a Ring on this machine: fetch its windows, start a process for each, and serve the OpenAI API until Ctrl-C.
#[derive(Debug, clap::Args)]
#[command(after_help = planned::TOKEN_HELP)]
#[allow(clippy::doc_markdown, reason = "help texts, which are no Markdown")]
pub struct Up {
    #[command(flatten)]
    ring: RingArgs,
    /// Port of the API on 127.0.0.1; 0 takes a free one
    #[arg(long, env = "KVASIR_PORT", default_value_t = 8080)]
    port: u16,
    /// Folder for windows, keys and logs, so that the next run finds them; ~/.cache/kvasir/up/NAME when absent
    #[arg(long, env = "KVASIR_UP_DIR")]
    dir: Option<PathBuf>,
    /// Keep windows that an earlier plan of this Ring fetched and this one doesn't use
    #[arg(long, env = "KVASIR_KEEP")]
    keep: bool,
    /// Threads that each stage computes with; one for each core when absent
    #[arg(long, env = "KVASIR_THREADS")]
    threads: Option<u32>,
    /// File to write once the ring is ready: endpoint, process ids and the table, as JSON
    #[arg(long, env = "KVASIR_READY_FILE")]
    ready_file: Option<PathBuf>,
    /// Form of the output
    #[arg(short, long, env = "KVASIR_OUTPUT", value_enum, default_value_t)]
    output: Output,
}

impl Up {
    /// Runs the command until a signal or the loss of a stage.
    pub async fn run(self) -> anyhow::Result<()> {
        let ring = self.ring.read()?;
        let port = reserve(self.port)?;
        if let Some(file) = &self.ready_file {
            // That of an earlier run would say too much.
            let _ = std::fs::remove_file(file);
        }
        let interrupted = interrupted()?;
        let folder = Folder::open(
            self.dir.clone(),
            "up",
            ring.metadata.name.as_deref().unwrap_or_default(),
        )?;
        let mut children = Children::new(GRACE);
        let ready = Cell::new(false);
        let ended = tokio::select! {
            ended = self.serve(&ring, port, &folder, &mut children, &ready) => ended,
            () = interrupted => if ready.get() { Ok(()) } else { Err(Interrupted.into()) },
        };
        children.end().await;
        ended
    }

    /// From the plan to the loss of a stage; what this future had started is left in `children`.
    async fn serve(
        &self,
        ring: &Ring,
        port: TcpListener,
        folder: &Folder,
        children: &mut Children,
        ready: &Cell<bool>,
    ) -> anyhow::Result<()> {
        let planned = self.ring.plan(ring).await?;
        if let Some(warning) = planned.memory_warning() {
            eprintln!("{warning}");
        }
        if let (Some(secret), Err(_)) = (&ring.spec.endpoint.api_key_secret_ref, std::env::var("KVASIR_API_KEYS")) {
            eprintln!(
                "warning: Secret {} is a cluster's; set KVASIR_API_KEYS to ask for API keys here",
                secret.name
            );
        }
        let manifest = &planned.manifest;
        let program = Program::new(folder, manifest, &planned.source)?;
        let fetched = local::fetch(&program, children).await?;

        let market = LocalMarket::serve(folder, manifest, &planned.source).await?;
        let api = port.local_addr()?;
        let served = Served {
            market: &market,
            api,
            threads: self.threads,
            cache_type: ring.spec.cache_type,
            chat_template: folder.write_chat_template(ring.spec.model.chat_template.as_deref())?,
        };
        // Rank 0 listens there itself.
        drop(port);
        let pids = program.start(0..manifest.ranks.len(), &served, &fetched, children)?;
        let status = tokio::select! {
            status = ready::wait(&market, pids.len(), api) => status?,
            Some(exit) = children.next_exit() => return Err(StageLost::from(exit).into()),
        };
        let up = RingUp::new(manifest, api, &status, &fetched, &pids);
        if !self.keep {
            folder.forget_other_windows(manifest)?;
        }
        if let Some(file) = &self.ready_file {
            up.write(file)?;
        }
        self.output.print(&up, RingUp::table)?;
        if self.output == Output::Table {
            writeln!(
                std::io::stdout(),
                "\nendpoint: {}   (Ctrl-C ends the ring)",
                up.endpoint
            )?;
        }
        ready.set(true);
        children
            .next_exit()
            .await
            .map_or(Ok(()), |exit| Err(StageLost::from(exit).into()))
    }
}

/// Takes the API's port before anything is fetched.
fn reserve(port: u16) -> anyhow::Result<TcpListener> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    TcpListener::bind(address)
        .with_context(|| format!("can't listen on {address}: end what uses it, or choose another port with --port"))
}

/// Ends at the first Ctrl-C, SIGTERM or SIGHUP from now on.
fn interrupted() -> anyhow::Result<impl Future<Output = ()>> {
    let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
    let mut signals = kinds.into_iter().map(signal).collect::<Result<Vec<_>, _>>()?;
    Ok(async move {
        futures::future::select_all(signals.iter_mut().map(|signal| Box::pin(signal.recv()))).await;
    })
}
