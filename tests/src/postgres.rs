//! A real `PostgreSQL` on a socket in a folder of its own, for the stores that are tested on it.

use std::ffi::OsStr;
use std::fs;
use std::io::Read as _;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::deadline::wait_until;

/// Time for the server to come up on a machine that is busy with other things.
const START: Duration = Duration::from_secs(60);

/// What becomes of the server when this process ends, however it ends: its standard input does, too.
const UNTIL_STDIN_ENDS: &str = r#"folder=$1; shift; "$@" & cat >/dev/null; kill -QUIT $!; wait; rm -rf "$folder""#;

/// A running server, one for each test process.
#[derive(Debug)]
pub struct Postgres {
    programs: PathBuf,
    folder: PathBuf,
    /// open until this process ends
    _stdin: Option<ChildStdin>,
    databases: AtomicU32,
}

impl Postgres {
    /// The server of this process, started at the first call.
    pub fn shared() -> &'static Postgres {
        static SHARED: OnceLock<Postgres> = OnceLock::new();
        SHARED.get_or_init(Postgres::start)
    }

    /// The address of an empty database that nobody else uses.
    pub fn database(&self) -> String {
        let name = format!("test{}", self.databases.fetch_add(1, Ordering::Relaxed));
        let made = self.client("createdb").arg(&name).output().unwrap();
        assert!(
            made.status.success(),
            "createdb: {}",
            String::from_utf8_lossy(&made.stderr)
        );
        format!("postgres://kvasir@localhost/{name}?host={}", self.folder.display())
    }

    fn start() -> Self {
        let programs = programs();
        let folder = tempfile::tempdir().unwrap().keep();
        let account = account();
        if let Some((user, group)) = account {
            chown(&folder, Some(user), Some(group)).unwrap();
        }
        let data = folder.join("data");
        let made = as_account(programs.join("initdb"), account, &folder)
            .args(["--no-sync", "--auth=trust", "--username=kvasir", "--encoding=UTF8"])
            .args(["--locale=C", "--pgdata"])
            .arg(&data)
            .output()
            .unwrap();
        assert!(
            made.status.success(),
            "initdb: {}",
            String::from_utf8_lossy(&made.stderr)
        );
        let log = fs::File::create(folder.join("log")).unwrap();
        let mut process = as_account("sh", account, &folder)
            .args(["-c", UNTIL_STDIN_ENDS, "sh"])
            .arg(&folder)
            .arg(programs.join("postgres"))
            .arg("-D")
            .arg(&data)
            .arg("-k")
            .arg(&folder)
            // No test takes the power away.
            .args([
                "-c",
                "listen_addresses=",
                "-c",
                "fsync=off",
                "-c",
                "max_connections=100",
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let server = Postgres {
            programs,
            folder,
            _stdin: process.stdin.take(),
            databases: AtomicU32::new(0),
        };
        wait_until("PostgreSQL takes connections", START, || {
            if let Some(status) = process.try_wait().unwrap() {
                let mut log = String::new();
                let _ = fs::File::open(server.folder.join("log")).and_then(|mut file| file.read_to_string(&mut log));
                panic!("PostgreSQL ended ({status}): {log}");
            }
            let ready = server.client("pg_isready").arg("--quiet").status();
            ready.is_ok_and(|status| status.success())
        });
        server
    }

    fn client(&self, name: &str) -> Command {
        let mut command = Command::new(self.programs.join(name));
        command
            .arg("--host")
            .arg(&self.folder)
            .args(["--username", "kvasir"])
            .stdin(Stdio::null());
        command
    }
}

/// Debian keeps the programs of each version in a folder of its own, out of the `PATH`.
fn programs() -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let newest = versions
        .map(|version| version.path().join("bin"))
        .filter(|programs| programs.join("initdb").is_file())
        .max();
    newest.expect("there is no PostgreSQL: run `scripts/install.sh test`")
}

/// The server refuses to run as root: the account that its package made, where this process is root.
fn account() -> Option<(u32, u32)> {
    if !rustix::process::getuid().is_root() {
        return None;
    }
    let accounts = fs::read_to_string("/etc/passwd").unwrap();
    let line = accounts.lines().find(|line| line.starts_with("postgres:"));
    let fields: Vec<&str> = line
        .expect("the package of PostgreSQL makes an account `postgres`")
        .split(':')
        .collect();
    Some((fields[2].parse().unwrap(), fields[3].parse().unwrap()))
}

fn as_account(program: impl AsRef<OsStr>, account: Option<(u32, u32)>, folder: &Path) -> Command {
    let mut command = Command::new(program);
    command.current_dir(folder).stdin(Stdio::null());
    if let Some((user, group)) = account {
        command.uid(user).gid(group);
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn databases_are_there_and_empty() {
        let server = Postgres::shared();
        let (first, second) = (server.database(), server.database());
        assert_ne!(first, second);
        let tables = server
            .client("psql")
            .args(["--dbname", "test0", "--tuples-only", "--command", "\\dt"])
            .output()
            .unwrap();
        assert!(tables.status.success());
        assert!(String::from_utf8_lossy(&tables.stdout).trim().is_empty());
    }
}
