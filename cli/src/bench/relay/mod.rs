//! `kvasir bench relay`: this project's relay against nginx that proxies the same WebSockets, side by side.
//!
//! Both run on one core and take turns, with a direct connection in between for what the load itself costs; the load runs
//! on the other cores. An edge is the same to both: a sender and a receiver, a TCP connection of each to what is in the
//! middle, frames of one size one way. What they differ in is what they are for: nginx dials the receiver, both dial the
//! relay.

mod load;
mod proxies;
mod sockets;

use std::time::Duration;

use anyhow::{Context as _, ensure};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::Serialize;

use super::stats::median;
use crate::table::{Column, Output, Table};
use load::{Delays, Load};
use proxies::{Middle, NginxProcess, RelayProcess};

/// Edges that a relay should carry, for the file limit in the report.
const MANY_EDGES: u64 = 20_000;
/// Memory that idle edges should fit in.
const IDLE_MEMORY: u64 = 512 << 20;

/// Measure the relay against nginx, both on one core: what they add to a frame's way, how much one edge carries, and what
/// idle edges take.
#[derive(Debug, clap::Args)]
pub struct RelayBench {
    /// Edges that are busy while delays are measured
    #[arg(long, env = "KVASIR_EDGES", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    edges: u32,
    /// Bytes of a frame
    #[arg(long, env = "KVASIR_FRAME", default_value_t = 12 * 1024, value_parser = clap::value_parser!(u32).range(64..=65_535))]
    frame: u32,
    /// Frames of an edge in a second
    #[arg(long, env = "KVASIR_RATE", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    rate: u32,
    /// Seconds of each turn
    #[arg(long, env = "KVASIR_SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
    /// Turns of each
    #[arg(long, env = "KVASIR_TURNS", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    turns: u32,
    /// MiB that one edge carries in each turn
    #[arg(long, env = "KVASIR_BULK_MIB", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..))]
    bulk_mib: u32,
    /// Edges that are opened and left alone
    #[arg(long, env = "KVASIR_IDLE_EDGES", default_value_t = 5000)]
    idle_edges: u32,
    /// nginx; looked for in PATH, /usr/sbin and the cache when absent
    #[arg(long, env = "KVASIR_NGINX")]
    nginx: Option<std::path::PathBuf>,
    /// Size of nginx's buffers (`proxy_buffer_size`); its own default is 4k
    #[arg(long, env = "KVASIR_NGINX_BUFFER", default_value = "64k")]
    nginx_buffer: String,
    /// Form of the output
    #[arg(short, long, env = "KVASIR_OUTPUT", value_enum, default_value_t)]
    output: Output,
}

/// What was measured; times in microseconds, speeds in MB (10⁶ bytes) a second.
#[derive(Debug, Serialize)]
struct Report {
    edges: u32,
    frame_bytes: u32,
    frames_per_second: u32,
    cores_shared: bool,
    /// what the relay adds to the median frame's way, by what nginx adds
    latency_ratio_p50: f64,
    latency_ratio_p99: f64,
    /// the relay's speed by nginx's
    bulk_ratio: f64,
    relay: Side,
    nginx: Side,
    direct: Side,
    idle_edges: u32,
    bytes_per_idle_edge: u64,
    idle_resident_bytes: u64,
    idle_fits_512_mib: bool,
    /// files that a relay with 20,000 edges opens: `ulimit -n`
    files_for_20000_edges: u64,
}

/// One way for frames to go.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Side {
    p50_us: f64,
    p99_us: f64,
    bulk_mb_per_s: f64,
}

impl RelayBench {
    /// Runs the command.
    pub async fn run(self) -> anyhow::Result<()> {
        // A thread of its own, which can be kept off the core that is measured.
        let measured = tokio::task::spawn_blocking(move || {
            let cores = Cores::split()?;
            let relay = cores.on_the_measured(RelayProcess::start)?;
            let nginx = cores.on_the_measured(|| NginxProcess::start(self.nginx.as_deref(), &self.nginx_buffer))?;
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                // sockets are looked at often although a task that waits for its time is always ready
                .event_interval(4)
                .build()?;
            let report = runtime.block_on(self.measure(relay, nginx, &cores))?;
            self.output.print(&report, table)
        });
        measured.await?
    }

    async fn measure(&self, relay: RelayProcess, nginx: NginxProcess, cores: &Cores) -> anyhow::Result<Report> {
        let upstream = sockets::Upstream::listen(&nginx.upstream).await?;
        let ways = [
            ("relay", Middle::Relay(&relay)),
            ("nginx", Middle::Nginx(&nginx, &upstream)),
            ("direct", Middle::Direct),
        ];
        let load = Load {
            frame: self.frame as usize,
            pause: Duration::from_secs(1) / self.rate,
            time: Duration::from_secs(self.seconds.into()),
        };
        let mut delays: [Vec<Delays>; 3] = Default::default();
        let mut speeds: [Vec<f64>; 3] = Default::default();
        // The first turn warms all three up.
        for turn in 0..=self.turns {
            for (at, (name, middle)) in ways.iter().enumerate() {
                let edges = middle
                    .edges(self.edges)
                    .await
                    .with_context(|| format!("no edges through {name}"))?;
                let delay = load.delays(edges).await?;
                let edge = middle.edges(1).await?.pop().context("no edge")?;
                let speed = load.bulk(edge, u64::from(self.bulk_mib) << 20).await?;
                eprintln!(
                    "turn {turn}: {name}: {:.0} µs median, {:.0} µs at 99 of 100, {:.0} MB/s",
                    delay.p50_us, delay.p99_us, speed
                );
                if turn > 0 {
                    delays[at].push(delay);
                    speeds[at].push(speed);
                }
            }
        }
        let added = |at: usize, value: fn(&Delays) -> f64| {
            let pairs = delays[at].iter().zip(&delays[2]);
            pairs
                .map(|(via, direct)| value(via) - value(direct))
                .collect::<Vec<_>>()
        };
        let ratio = |value: fn(&Delays) -> f64| {
            let pairs = added(0, value).into_iter().zip(added(1, value));
            median(&pairs.map(|(relay, nginx)| relay / nginx).collect::<Vec<_>>())
        };
        let bulk: Vec<f64> = speeds[0]
            .iter()
            .zip(&speeds[1])
            .map(|(relay, nginx)| relay / nginx)
            .collect();
        let side = |at: usize| Side {
            p50_us: median(&delays[at].iter().map(|d| d.p50_us).collect::<Vec<_>>()).unwrap_or_default(),
            p99_us: median(&delays[at].iter().map(|d| d.p99_us).collect::<Vec<_>>()).unwrap_or_default(),
            bulk_mb_per_s: median(&speeds[at]).unwrap_or_default(),
        };
        drop(relay);
        // A fresh relay, whose memory is that of its idle edges alone.
        let relay = cores.on_the_measured(RelayProcess::start)?;
        let idle = self.idle(&relay).await?;
        Ok(Report {
            edges: self.edges,
            frame_bytes: self.frame,
            frames_per_second: self.edges * self.rate,
            cores_shared: cores.load.is_none(),
            latency_ratio_p50: ratio(|d| d.p50_us).context("no turn")?,
            latency_ratio_p99: ratio(|d| d.p99_us).context("no turn")?,
            bulk_ratio: median(&bulk).context("no turn")?,
            relay: side(0),
            nginx: side(1),
            direct: side(2),
            idle_edges: self.idle_edges,
            bytes_per_idle_edge: idle.saturating_sub(relay.resident_at_start) / u64::from(self.idle_edges).max(1),
            idle_resident_bytes: idle,
            idle_fits_512_mib: idle <= IDLE_MEMORY,
            files_for_20000_edges: MANY_EDGES * 2 + kvasir_relay::cli::OTHER_FILES,
        })
    }

    /// Resident bytes of a relay with idle edges on which a byte has passed.
    async fn idle(&self, relay: &RelayProcess) -> anyhow::Result<u64> {
        let files = sockets::raise_file_limit();
        ensure!(
            files >= u64::from(self.idle_edges) * 2 + 64,
            "{} idle edges take twice as many files here and as many in the relay, and this system gives {files}: \
             lower --idle-edges, or raise ulimit -n",
            self.idle_edges
        );
        let mut edges = Middle::Relay(relay).edges(self.idle_edges).await?;
        for edge in &mut edges {
            edge.pass_a_byte().await?;
        }
        relay.resident()
    }
}

/// The core that is measured, and the others.
struct Cores {
    measured: CpuSet,
    /// none where there is only one
    load: Option<CpuSet>,
}

impl Cores {
    /// Keeps this thread, and so its load, off the first core.
    fn split() -> anyhow::Result<Cores> {
        let all = sched_getaffinity(None).context("can't tell which cores there are")?;
        let mut cores = (0..CpuSet::MAX_CPU).filter(|core| all.is_set(*core));
        let (mut measured, mut load) = (CpuSet::new(), CpuSet::new());
        measured.set(cores.next().context("there is no core")?);
        cores.for_each(|core| load.set(core));
        let load = (load.count() > 0).then_some(load);
        sched_setaffinity(None, load.as_ref().unwrap_or(&measured)).context("can't choose cores")?;
        Ok(Cores { measured, load })
    }

    /// What `start` starts inherits the core.
    fn on_the_measured<T>(&self, start: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
        sched_setaffinity(None, &self.measured).context("can't choose a core")?;
        let started = start();
        sched_setaffinity(None, self.load.as_ref().unwrap_or(&self.measured)).context("can't choose cores")?;
        started
    }
}

fn table(report: &Report) -> Table {
    let mut table = Table::new([
        Column::Words("WAY"),
        Column::Number("MEDIAN µS"),
        Column::Number("P99 µS"),
        Column::Number("MB/S"),
    ]);
    for (name, side) in [
        ("relay", report.relay),
        ("nginx", report.nginx),
        ("direct", report.direct),
    ] {
        table.row([
            name.to_owned(),
            format!("{:.0}", side.p50_us),
            format!("{:.0}", side.p99_us),
            format!("{:.0}", side.bulk_mb_per_s),
        ]);
    }
    table.row([
        "relay by nginx (added delay, speed)".to_owned(),
        format!("{:.2}", report.latency_ratio_p50),
        format!("{:.2}", report.latency_ratio_p99),
        format!("{:.2}", report.bulk_ratio),
    ]);
    table.row([
        format!("bytes of each of {} idle edges", report.idle_edges),
        report.bytes_per_idle_edge.to_string(),
        String::new(),
        String::new(),
    ]);
    table
}
