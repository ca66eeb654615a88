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

use crate::{
    failure::{Interrupted, StageLost, Usage},
    local::{self, Folder, Program, RingMarket, Served},
    planned::{self, RingArgs},
    signals::interrupted,
    supervise::Children,
    table::Output,
};
use ready::{ReadyFile, Up as RingUp};

/// Time that a stage has to end once it was asked to.
const GRACE: Duration = Duration::from_secs(10);

/// For `--help`.
const NOTES: &str = "\
Ctrl-C, SIGTERM and SIGHUP end the ring: answers in progress have two seconds to be done, then their clients are told.
The exit code is 0 then; it is 130 when the ring was not up yet, and 3 when a stage was lost.

Threads that wait for each other spin. Where other programs use this machine's cores, or several clients ask at once,
set --threads 1: it costs speed on a quiet machine, and saves a busy one from a standstill.

KVASIR_API_KEYS in the environment holds keys that clients must send, separated by commas.";

/// Run a Ring on this machine: fetch its windows, start a process for each, and serve the OpenAI API until Ctrl-C.
#[derive(Debug, clap::Args)]
#[command(after_help = format!("{NOTES}\n\n{}", planned::TOKEN_HELP))]
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
    /// Threads that each stage computes with; one for each core when absent (1 on a busy machine, see below)
    #[arg(long, env = "KVASIR_THREADS", value_parser = clap::value_parser!(u32).range(1..=512))]
    threads: Option<u32>,
    /// Web pages that may call the API from a browser: guarded (any if there are API keys, else only pages that this
    /// machine serves), any, off, or origins separated by commas
    #[arg(long, env = "KVASIR_CORS", value_parser = cors)]
    cors: Option<String>,
    /// File to write once the ring is ready, and to remove at its end: endpoint, process ids and the table, as JSON
    #[arg(long, env = "KVASIR_READY_FILE")]
    ready_file: Option<PathBuf>,
    /// Form of the output
    #[arg(short, long, env = "KVASIR_OUTPUT", value_enum, default_value_t)]
    output: Output,
}

impl Up {
    /// Runs the command until a signal or the loss of a stage.
    pub async fn run(self) -> anyhow::Result<()> {
        // First of all, so that a signal means the same at any time.
        let interrupted = interrupted()?;
        let ring = self.ring.read()?;
        let port = reserve(self.port)?;
        let ready_file = self.ready_file.as_deref().map(ReadyFile::reserve).transpose()?;
        let folder = Folder::open(
            self.dir.clone(),
            "up",
            ring.metadata.name.as_deref().unwrap_or_default(),
        )?;
        let mut children = Children::new(GRACE);
        let head = Cell::new(None);
        let ended = tokio::select! {
            ended = self.serve(&ring, port, &folder, &mut children, ready_file.as_ref(), &head) => ended,
            () = interrupted => match head.get() {
                Some(rank0) => {
                    eprintln!("ending the ring");
                    // Answers need all stages: rank 0 sees them off first.
                    children.end_one(rank0).await;
                    Ok(())
                }
                None => Err(Interrupted.into()),
            },
        };
        children.end().await;
        ended
    }

    /// From the plan to the loss of a stage; what this future had started is left in `children`, and in `head` the
    /// process of rank 0 once the ring is up.
    async fn serve(
        &self,
        ring: &Ring,
        port: TcpListener,
        folder: &Folder,
        children: &mut Children,
        ready_file: Option<&ReadyFile>,
        head: &Cell<Option<u32>>,
    ) -> anyhow::Result<()> {
        let planned = self.ring.plan(ring).await?;
        for warning in planned.memory_warning().iter().chain(&planned.warnings) {
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
        let relay = relay_of(ring)?;
        let ranks = planned.ranks_here();
        if ranks.len() < manifest.ranks.len() && relay.is_none() {
            return Err(Usage(
                "the Ring leaves windows open, and names no relay where they could be claimed: set relay.url"
                    .to_owned(),
            )
            .into());
        }
        let fetched = local::fetch(&program, &ranks, children).await?;

        let market = match &relay {
            Some(url) => RingMarket::on(url, folder, manifest, &planned.source, &ranks).await?,
            None => RingMarket::serve(folder, manifest, &planned.source).await?,
        };
        if ranks.len() < manifest.ranks.len() {
            let open = manifest
                .ranks
                .iter()
                .enumerate()
                .filter(|(rank, _)| !ranks.contains(rank));
            let layers: Vec<String> = open.map(|(_, rank)| rank.layers.to_string()).collect();
            eprintln!(
                "layers {} are left to devices that join: `kvasir invite` with this Ring prints a link for them",
                layers.join(", ")
            );
        }
        let api = port.local_addr()?;
        let served = Served {
            market: &market,
            api,
            threads: self.threads,
            cache_type: ring.spec.cache_type,
            cors: self.cors.clone(),
            chat_template: folder.write_chat_template(ring.spec.model.chat_template.as_deref())?,
        };
        // Rank 0 listens there itself.
        drop(port);
        let pids = program.start(ranks.iter().copied(), &served, &fetched, children)?;
        let status = tokio::select! {
            status = ready::wait(&market, manifest.ranks.len(), api) => status?,
            Some(exit) = children.next_exit() => return Err(StageLost::from(exit).into()),
        };
        let up = RingUp::new(manifest, api, &status, &fetched, &ranks, &pids);
        if !self.keep {
            folder.forget_other_windows(manifest)?;
        }
        if let Some(file) = ready_file {
            file.write(&up)?;
        }
        self.output.print(&up, RingUp::table)?;
        if self.output == Output::Table {
            writeln!(
                std::io::stdout(),
                "\nendpoint: {}   (Ctrl-C ends the ring)",
                up.endpoint
            )?;
        }
        head.set(pids.first().copied());
        tokio::select! {
            exit = children.next_exit() => exit.map_or(Ok(()), |exit| Err(StageLost::from(exit).into())),
            never = ready::watch(&market, &status, manifest.ranks.len()) => match never {},
        }
    }
}

/// The relay whose market the Ring is offered on, if it names one.
fn relay_of(ring: &Ring) -> anyhow::Result<Option<String>> {
    match &ring.spec.relay {
        None => Ok(None),
        Some(kvasir_api::Relay { url: Some(url), .. }) => Ok(Some(url.clone())),
        Some(_) => Err(Usage(
            "relay.serviceRef names a Service, which only a cluster has: use relay.url here".to_owned(),
        )
        .into()),
    }
}

fn cors(text: &str) -> Result<String, String> {
    text.parse::<kvasir_stage::api::Cors>().map(|_| text.to_owned())
}

/// Takes the API's port before anything is fetched.
fn reserve(port: u16) -> anyhow::Result<TcpListener> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    TcpListener::bind(address)
        .with_context(|| format!("can't listen on {address}: end what uses it, or choose another port with --port"))
}
