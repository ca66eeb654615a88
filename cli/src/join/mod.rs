//! `kvasir join`: lends this device to rings, a run of windows at a time, and shows what it earns.
//!
//! Before anything else the device is tested: what it computes is right, and how fast.
//! The market is polled for the windows that pay most and fit; a child process (`stage join`) claims, fetches and serves
//! them. When it ends, for whatever reason, the next poll finds the next windows.

mod device;
mod link;
mod membership;
mod own;
mod self_test;

use std::{
    fs,
    io::Write,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use anyhow::{Context, bail};
use kvasir_gguf::ModelSource;
use kvasir_market::{
    MarketClient,
    client::{Backoff, ClientError},
    rules::{Choice, choose},
    types::{Enrolment, Offer, Source, WindowState},
};
use kvasir_wire::trust::{NodeKeys, PublicKey};
use secrecy::SecretString;

pub(crate) use link::Link;
pub(crate) use membership::NotKnown;
pub(crate) use own::Own;

use self::membership::{Membership, is_unknown};
use crate::{
    failure::Interrupted,
    local::{Folder, Telling},
    signals::interrupted,
    supervise::Children,
    table::bytes,
};

/// Pause between two looks at what was earned.
const EARNED_EVERY: Duration = Duration::from_secs(10);
/// Time that a stage has to hand its windows back.
const GRACE: Duration = Duration::from_secs(10);

/// For `--help`.
const NOTES: &str = "\
The first time, LINK is an invite as `kvasir invite` prints it; later the relay's address alone will do. The token can
also come from KVASIR_TOKEN. Ctrl-C hands the windows back; so does --leave, for a device whose kvasir is gone.

Only the windows' layers come to this device: it sees neither texts nor tokens, nor who asked for what.";

/// Lend this device to a ring: it claims windows that nobody holds, downloads just those, serves them and earns.
#[derive(Debug, clap::Args)]
#[command(after_help = NOTES)]
#[allow(clippy::doc_markdown, reason = "help texts, which are no Markdown")]
pub struct Join {
    /// Invite, or address of a relay
    #[arg(value_name = "LINK", required_unless_present = "self_test")]
    link: Option<String>,
    /// Invite token, when LINK holds none (better by KVASIR_TOKEN, which other users of the device can't see)
    #[arg(long, env = "KVASIR_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// Memory to lend, such as 4G; three quarters of what is free when absent
    #[arg(long, env = "KVASIR_MEMORY", value_parser = device::memory)]
    memory: Option<u64>,
    /// Threads that compute; one for each core when absent
    #[arg(long, env = "KVASIR_THREADS", value_parser = clap::value_parser!(u32).range(1..=512))]
    threads: Option<u32>,
    /// What people call this device
    #[arg(long, env = "KVASIR_NAME")]
    name: Option<String>,
    /// End after the first windows were served or lost
    #[arg(long)]
    once: bool,
    /// Hand back all windows that this device holds, and end
    #[arg(long, conflicts_with = "once")]
    leave: bool,
    /// Folder for windows, keys and logs; ~/.cache/kvasir/join/HOST when absent
    #[arg(long, env = "KVASIR_JOIN_DIR")]
    dir: Option<PathBuf>,
    /// Test this device with a model that is written to this file, and say what was found: what `kvasir join` starts
    #[arg(long, value_name = "FILE", hide = true, conflicts_with = "link")]
    self_test: Option<PathBuf>,
}

impl Join {
    /// Runs the command until a signal.
    pub async fn run(self) -> anyhow::Result<()> {
        if let Some(file) = self.self_test.clone() {
            let tested = tokio::task::spawn_blocking(move || self_test::run(&file, self.threads)).await??;
            writeln!(std::io::stdout(), "{}", serde_json::to_string(&tested)?)?;
            return Ok(());
        }
        let interrupted = interrupted()?;
        let link: Link = self.link.as_deref().unwrap_or_default().parse()?;
        let folder = Folder::open(self.dir.clone(), "join", link.market.host_str().unwrap_or("relay"))?;
        let keys = Arc::new(NodeKeys::load_or_generate(&folder.node_key(0))?);
        let node = keys.public();
        let market = MarketClient::new(link.market.as_str(), keys)?;
        if self.leave {
            return leave(&market, node).await;
        }
        let memory = self.memory.unwrap_or_else(device::spare_memory);
        tokio::pin!(interrupted);
        let model = folder.node_key(0).with_file_name("self-test.gguf");
        let tested = tokio::select! {
            tested = self_test::of_this_device(&model, self.threads) => tested?,
            () = &mut interrupted => return Err(Interrupted.into()),
        };
        eprintln!(
            "this device is {} and lends {} of memory; {tested}",
            short(node),
            bytes(memory)
        );
        let mut children = Children::new(GRACE);
        let ended = tokio::select! {
            ended = self.serve(&link, &folder, &market, node, memory, &mut children) => ended,
            () = &mut interrupted => {
                eprintln!("handing the windows back");
                Ok(())
            }
        };
        children.end().await;
        ended
    }

    async fn serve(
        &self,
        link: &Link,
        folder: &Folder,
        market: &MarketClient,
        node: PublicKey,
        memory: u64,
        children: &mut Children,
    ) -> anyhow::Result<()> {
        let enrolment = Enrolment {
            name: self.name.clone(),
            memory,
            ..kvasir_stage::run::enrolment()
        };
        let member = Membership::new(market, self.token(link), enrolment);
        member.begin().await?;
        let mut backoff = Backoff::default();
        let mut told = String::new();
        loop {
            let offers = match market.offers().await {
                Ok(offers) => offers,
                Err(error) if is_unknown(&error) => {
                    member.again(error).await?;
                    tokio::time::sleep(backoff.pause()).await;
                    continue;
                }
                Err(error) if worth_another_try(&error) => {
                    tell(&mut told, format!("no word from the market, trying again: {error}"));
                    tokio::time::sleep(backoff.pause()).await;
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            let strangers = link
                .owner
                .filter(|owner| offers.iter().any(|offer| offer.owner != *owner));
            let offers: Vec<Offer> = offers
                .into_iter()
                .filter(|offer| usable(offer, link.owner))
                .map(without_first)
                .collect();
            let Some(choice) = choose(&offers, memory) else {
                tell(
                    &mut told,
                    match strangers.filter(|_| offers.is_empty()) {
                        Some(owner) => format!(
                            "waiting: all rings that are offered are others' than the owner's whom the link names ({}): if \
                             it is not as it was sent, ask for a new one",
                            owner.fingerprint()
                        ),
                        None => waiting(&offers, memory),
                    },
                );
                // Up to 15 s, by chance: not all devices look at the same moment.
                tokio::time::sleep(backoff.pause()).await;
                continue;
            };
            let offer = offers.iter().find(|offer| offer.ring == choice.ring);
            let offer = offer.context("a choice is one of the offers")?;
            tell(
                &mut told,
                format!(
                    "ring {}: windows {} of {} for {} µcredits per million tokens",
                    choice.ring, choice.windows, offer.model.name, choice.rate
                ),
            );
            let served = self
                .stage(folder, market, &member, offer, &choice, node, children)
                .await?;
            told.clear();
            if self.once {
                return Ok(());
            }
            if served {
                backoff.reset();
            } else {
                tokio::time::sleep(backoff.pause()).await;
            }
        }
    }

    /// The invite's token, of the command line or of the link.
    fn token(&self, link: &Link) -> Option<SecretString> {
        let given = self.token.clone().filter(|token| !token.is_empty());
        given.map(SecretString::from).or_else(|| link.token.clone())
    }

    /// Claims, fetches and serves one run of windows in a child process; whether it got as far as serving.
    #[allow(clippy::too_many_arguments, reason = "all of what a stage is started from")]
    async fn stage(
        &self,
        folder: &Folder,
        market: &MarketClient,
        member: &Membership<'_>,
        offer: &Offer,
        choice: &Choice,
        node: PublicKey,
        children: &mut Children,
    ) -> anyhow::Result<bool> {
        let plan = folder.write_plan(&offer.template)?;
        let layers = layers(offer, choice)?;
        let name = format!("layers {layers}");
        let dir = folder.window_of(&offer.model.identity, layers);
        fs::create_dir_all(&dir).with_context(|| format!("can't make {}", dir.display()))?;
        let source = model_source(&offer.source).context("the ring's source is not for devices from outside")?;
        let mut command = std::process::Command::new(std::env::current_exe()?);
        command
            .args(["stage", "join", "--exit-with-stdin"])
            .args(["--market", market.address()])
            .arg("--plan")
            .arg(&plan)
            .args(["--windows", &choice.windows.to_string()])
            .args(["--source", &serde_json::to_string(&source)?])
            .args(["--owner", &offer.owner.to_string()])
            .arg("--dir")
            .arg(&dir)
            .arg("--key")
            .arg(folder.node_key(0))
            .env("NO_COLOR", "1")
            .env_remove("KVASIR_TOKEN");
        if let Some(threads) = self.threads {
            command.arg("--threads").arg(threads.to_string());
        }
        let serving = Arc::new(AtomicBool::new(false));
        let log = folder.new_log(0)?;
        let mut telling = Telling::new(&name);
        children.spawn(&name, command, &log, {
            let serving = serving.clone();
            move |line| {
                if telling.line(line) {
                    serving.store(true, Relaxed);
                }
            }
        })?;
        let (mut earned, mut told) = (None, String::new());
        let exit = loop {
            tokio::select! {
                exit = children.next_exit() => break exit,
                () = tokio::time::sleep(EARNED_EVERY) => {}
            }
            match show_earned(market, node, &mut earned).await {
                Err(error) if is_unknown(&error) => match member.again(error).await {
                    Ok(()) => told.clear(),
                    Err(error) if error.is::<NotKnown>() => {
                        // Its stage may still carry a ring that stands, for a while.
                        tell(
                            &mut told,
                            format!("{error}; this one goes on until its windows are lost"),
                        );
                    }
                    Err(_) => {}
                },
                _ => {}
            }
        };
        let _ = show_earned(market, node, &mut earned).await;
        match exit {
            Some(exit) if !exit.success() => {
                eprintln!("{exit}");
                if !serving.load(Relaxed) && self.once {
                    bail!("the windows were not served; the log is {}", exit.log.display());
                }
            }
            _ => {}
        }
        Ok(serving.load(Relaxed))
    }
}

async fn leave(market: &MarketClient, node: PublicKey) -> anyhow::Result<()> {
    let mut left = 0;
    for offer in market.offers().await? {
        let ring = market.ring(&offer.ring);
        for claim in ring.status().await?.claims {
            if claim.node == node {
                ring.leave(claim.id).await?;
                println!(
                    "handed back: windows {} (layers {}) of ring {}",
                    claim.windows, claim.layers, offer.ring
                );
                left += 1;
            }
        }
    }
    if left == 0 {
        println!("this device holds no windows");
    }
    Ok(())
}

async fn show_earned(market: &MarketClient, node: PublicKey, shown: &mut Option<u64>) -> Result<(), ClientError> {
    let ledger = market.ledger().await?;
    if shown.replace(ledger.earned) != Some(ledger.earned) {
        eprintln!("{} has earned {} µcredits", short(node), ledger.earned);
    }
    Ok(())
}

/// Says a line once, not again and again.
fn tell(told: &mut String, line: String) {
    if *told != line {
        eprintln!("{line}");
        *told = line;
    }
}

fn worth_another_try(error: &ClientError) -> bool {
    error.retryable() || error.reason() == "ClockSkew"
}

/// Rings of the invite's owner, from a source that a device outside can read.
fn usable(offer: &Offer, owner: Option<PublicKey>) -> bool {
    owner.is_none_or(|owner| offer.owner == owner) && model_source(&offer.source).is_some()
}

/// The first window serves clients, which can't come to a device that nobody can dial.
fn without_first(mut offer: Offer) -> Offer {
    for window in &mut offer.windows {
        if window.layers.start == 0 && window.state == WindowState::Open {
            window.state = WindowState::Reserved;
        }
    }
    offer
}

fn waiting(offers: &[Offer], memory: u64) -> String {
    if offers.is_empty() {
        return "waiting: no ring is offered to this device".to_owned();
    }
    if offers.iter().all(|offer| offer.limit == Some(0)) {
        return "waiting: this device never came to its ring's relay and gets no window for a while: see that it reaches \
                the relay, by HTTPS_PROXY where there is a proxy"
            .to_owned();
    }
    format!("waiting: no window is open that takes at most {}", bytes(memory))
}

fn layers(offer: &Offer, choice: &Choice) -> anyhow::Result<kvasir_plan::LayerRange> {
    let run = offer
        .windows
        .get(choice.windows.start as usize..choice.windows.end as usize);
    let (first, last) = run
        .and_then(|run| Some((run.first()?, run.last()?)))
        .context("no such windows")?;
    Ok(kvasir_plan::LayerRange {
        start: first.layers.start,
        end: last.layers.end,
    })
}

fn model_source(source: &Source) -> Option<ModelSource> {
    Some(match source {
        Source::Http { url } => ModelSource::Http { url: url.clone() },
        Source::HuggingFace { repo, file, revision } => ModelSource::HuggingFace {
            repo: repo.clone(),
            file: file.clone(),
            revision: revision.clone().unwrap_or_else(|| "main".to_owned()),
        },
        Source::PersistentVolumeClaim { .. } | Source::File { .. } => return None,
    })
}

/// The beginning of a key, for people.
fn short(key: PublicKey) -> String {
    key.to_string().chars().take(8).collect()
}
