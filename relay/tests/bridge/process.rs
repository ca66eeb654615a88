//! A relay as a process of its own, as it is installed.

use std::{
    fs,
    net::SocketAddr,
    process::{Child, Command, ExitStatus, Stdio},
    time::Duration,
};

use kvasir_market::TicketKey;
use kvasir_tests::{
    deadline::wait_for,
    process::{self, Signal},
};
use kvasir_wire::{
    edge::{LegStream, Role},
    trust::PublicKey,
};
use tempfile::TempDir;

use crate::relay::{LIMIT, NODE, dialer, grant};

pub(crate) struct RelayProcess {
    child: Child,
    folder: TempDir,
    pub(crate) address: SocketAddr,
    pub(crate) url: String,
    tickets: TicketKey,
}

impl RelayProcess {
    /// Starts one that logs all it can.
    pub(crate) fn start(arguments: &[&str]) -> RelayProcess {
        let folder = tempfile::tempdir().unwrap();
        let tickets = TicketKey::generate().unwrap();
        let [key, ready, log] = ["key", "ready", "log"].map(|name| folder.path().join(name));
        fs::write(&key, PublicKey(tickets.to_bytes()).to_string()).unwrap();
        let url = "http://relay.test".to_owned();
        let child = Command::new(env!("CARGO_BIN_EXE_kvasir-relay"))
            .args(["--listen", "127.0.0.1:0", "--public-url", &url])
            .args(["--database", ":memory:"])
            .arg("--ticket-key-file")
            .arg(key)
            .arg("--ready-file")
            .arg(&ready)
            .args(arguments)
            .env("RUST_LOG", "trace")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(log).unwrap())
            .spawn()
            .unwrap();
        let address = wait_for("the relay listens", Duration::from_secs(10), || {
            fs::read_to_string(&ready).ok()?.parse().ok()
        });
        RelayProcess {
            child,
            folder,
            address,
            url,
            tickets,
        }
    }

    pub(crate) fn ticket(&self, edge: u32, role: Role) -> String {
        self.tickets.sign(&grant(&self.url, NODE, edge, role))
    }

    /// A leg: the relay is reached at another address than its public one, as behind a proxy.
    pub(crate) async fn leg(&self, edge: u32, role: Role) -> LegStream {
        let url = format!("http://{}", self.address);
        dialer()
            .dial(&url, &self.ticket(edge, role), role, LIMIT)
            .await
            .unwrap()
    }

    pub(crate) async fn legs(&self, edge: u32) -> [LegStream; 2] {
        let (predecessor, successor) = tokio::join!(self.leg(edge, Role::Predecessor), self.leg(edge, Role::Successor));
        [predecessor, successor]
    }

    pub(crate) fn resident(&self) -> u64 {
        process::resident_bytes(self.child.id()).unwrap()
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    pub(crate) fn terminate(&self) {
        assert!(process::signal(self.child.id(), Signal::TERM));
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        wait_for("the relay ends", LIMIT, || self.child.try_wait().unwrap())
    }
}

impl Drop for RelayProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
