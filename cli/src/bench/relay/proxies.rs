//! What is in the middle: the relay, nginx, or nothing.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, bail};
use kvasir_market::{Ticket, TicketKey};
use kvasir_wire::{edge::Role, trust::PublicKey};

use super::sockets::{self, Edge, Upstream};

/// The relay's name in tickets; nothing is there.
const PUBLIC_URL: &str = "http://relay.bench";
/// Time for a process to listen.
const START: Duration = Duration::from_secs(10);

/// A relay of this program's.
#[derive(Debug)]
pub(super) struct RelayProcess {
    process: Process,
    address: SocketAddr,
    tickets: TicketKey,
    /// resident bytes before the first leg
    pub(super) resident_at_start: u64,
}

impl RelayProcess {
    pub(super) fn start() -> anyhow::Result<RelayProcess> {
        let folder = Folder::new()?;
        let tickets = TicketKey::generate()?;
        let (key, ready) = (folder.0.join("key"), folder.0.join("ready"));
        // The same hex as a public key's.
        fs::write(&key, PublicKey(tickets.to_bytes()).to_string())?;
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args([
                "relay",
                "--listen",
                "127.0.0.1:0",
                "--public-url",
                PUBLIC_URL,
                "--max-legs-per-node",
                "1000000",
            ])
            .args([
                "--max-legs",
                "1000000",
                "--drain-grace",
                "0s",
                "--database",
                ":memory:",
                "--ticket-key-file",
            ])
            .arg(key)
            .arg("--ready-file")
            .arg(&ready)
            .env("RUST_LOG", "error");
        let mut process = Process::start(&mut command, folder)?;
        let address = process.until(|| fs::read_to_string(&ready).ok()?.parse().ok())?;
        let resident_at_start = process.resident()?;
        Ok(RelayProcess {
            process,
            address,
            tickets,
            resident_at_start,
        })
    }

    pub(super) fn resident(&self) -> anyhow::Result<u64> {
        self.process.resident()
    }

    fn ticket(&self, edge: u32, role: Role) -> anyhow::Result<String> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis() as u64;
        Ok(self.tickets.sign(&Ticket {
            ring: "bench".to_owned(),
            epoch: 1,
            edge,
            role,
            node: PublicKey([0; 32]),
            relay_url: PUBLIC_URL.to_owned(),
            expires_ms: now + 600_000,
        }))
    }
}

/// An nginx that proxies WebSockets.
#[derive(Debug)]
pub(super) struct NginxProcess {
    _process: Process,
    address: SocketAddr,
    /// where it dials
    pub(super) upstream: SocketAddr,
}

impl NginxProcess {
    pub(super) fn start(program: Option<&Path>, buffer: &str) -> anyhow::Result<NginxProcess> {
        let program = program
            .map(Path::to_owned)
            .or_else(find_nginx)
            .context("there is no nginx to compare with: name it with --nginx, or run scripts/install.sh test")?;
        let folder = Folder::new()?;
        let [address, upstream] = [free_address()?, free_address()?];
        let at = folder.0.display();
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|kind| format!("{kind}_temp_path {at}/{kind};"))
            .concat();
        let configuration = format!(
            "daemon off; master_process off; pid {at}/pid; error_log {at}/errors;
            worker_rlimit_nofile 20000;
            events {{ worker_connections 9000; }}
            http {{
                access_log off; {temporary}
                server {{
                    listen {address};
                    tcp_nodelay on;
                    location / {{
                        proxy_pass http://{upstream};
                        proxy_http_version 1.1;
                        proxy_set_header Upgrade $http_upgrade;
                        proxy_set_header Connection upgrade;
                        proxy_read_timeout 600s;
                        proxy_buffer_size {buffer};
                        proxy_buffers 8 {buffer};
                        proxy_busy_buffers_size {buffer};
                    }}
                }}
            }}"
        );
        let file = folder.0.join("nginx.conf");
        fs::write(&file, configuration)?;
        let mut command = Command::new(program);
        command.arg("-c").arg(file).arg("-e").arg(folder.0.join("errors"));
        let mut process = Process::start(&mut command, folder)?;
        process.until(|| std::net::TcpStream::connect(address).ok())?;
        Ok(NginxProcess {
            _process: process,
            address,
            upstream,
        })
    }
}

/// What edges go through.
#[derive(Clone, Copy, Debug)]
pub(super) enum Middle<'a> {
    Relay(&'a RelayProcess),
    Nginx(&'a NginxProcess, &'a Upstream),
    Direct,
}

impl Middle<'_> {
    /// Opens `count` edges, one after the other.
    pub(super) async fn edges(self, count: u32) -> anyhow::Result<Vec<Edge>> {
        let direct = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let mut edges = Vec::new();
        for number in 0..count {
            edges.push(match self {
                Middle::Relay(relay) => {
                    let mut ends = Vec::new();
                    for (role, byte) in [
                        (Role::Predecessor, kvasir_wire::ROLE_PREDECESSOR),
                        (Role::Successor, kvasir_wire::ROLE_SUCCESSOR),
                    ] {
                        let ticket = relay.ticket(number, role)?;
                        let mut end =
                            sockets::upgrade(relay.address, kvasir_wire::leg::EDGE_PATH, Some(&ticket)).await?;
                        sockets::send(&mut end, &[byte]).await?;
                        ends.push(end);
                    }
                    let [sender, receiver] = <[_; 2]>::try_from(ends).map_err(|_| anyhow::anyhow!("two ends"))?;
                    Edge::new(sender, receiver)
                }
                Middle::Nginx(nginx, upstream) => {
                    let (sender, receiver) =
                        tokio::try_join!(sockets::upgrade(nginx.address, "/", None), upstream.accept())?;
                    Edge::new(sender, receiver)
                }
                Middle::Direct => {
                    let dial = tokio::net::TcpStream::connect(direct.local_addr()?);
                    let (sender, (receiver, _)) = tokio::try_join!(dial, direct.accept())?;
                    Edge::new(sockets::tuned(sender)?, sockets::tuned(receiver)?)
                }
            });
        }
        Ok(edges)
    }
}

/// A child that ends with its parent's interest in it, and its folder.
#[derive(Debug)]
struct Process {
    child: Child,
    folder: Folder,
}

impl Process {
    fn start(command: &mut Command, folder: Folder) -> anyhow::Result<Process> {
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .with_context(|| format!("can't start {}", command.get_program().display()))?;
        Ok(Process { child, folder })
    }

    /// Looks until there is something, or the process has ended.
    fn until<T>(&mut self, look: impl Fn() -> Option<T>) -> anyhow::Result<T> {
        let begun = Instant::now();
        loop {
            if let Some(found) = look() {
                return Ok(found);
            }
            if let Some(status) = self.child.try_wait()? {
                let errors = fs::read_to_string(self.folder.0.join("errors")).unwrap_or_default();
                bail!("what is to be measured ended ({status}): {errors}");
            }
            if begun.elapsed() > START {
                bail!("what is to be measured doesn't listen after {START:?}");
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn resident(&self) -> anyhow::Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kibibytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        Ok(kibibytes.context("the system doesn't say how much memory a process has")? * 1024)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A new folder, gone when it is dropped.
#[derive(Debug)]
struct Folder(PathBuf);

impl Folder {
    fn new() -> anyhow::Result<Folder> {
        let path = std::env::temp_dir().join(format!("kvasir-bench-{}", uuid::Uuid::new_v4().simple()));
        fs::create_dir(&path).with_context(|| format!("can't make {}", path.display()))?;
        Ok(Folder(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What stays behind is small, and in the temporary folder.
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn free_address() -> anyhow::Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

fn find_nginx() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let cache = std::env::var_os("KVASIR_CACHE").map(PathBuf::from).or_else(|| {
        let home = std::env::var_os("HOME")?;
        Some(PathBuf::from(home).join(".cache/kvasir"))
    });
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into()])
        .chain(cache.map(|cache| cache.join("nginx/usr/sbin")))
        .map(|folder| folder.join("nginx"))
        .find(|file| file.is_file())
}
