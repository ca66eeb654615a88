//! A real nginx on a free local port: the Range server of the tests, whose own log says what was fetched.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use std::{env, fs};

use tempfile::TempDir;

use crate::deadline::wait_for;
use crate::models;

/// A running nginx; dropping it ends it.
#[derive(Debug)]
pub struct Nginx {
    process: Child,
    port: u16,
    folder: TempDir,
}

/// One answered request, from nginx's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// `GET`, `HEAD`…
    pub method: String,
    /// path on the server
    pub path: String,
    /// HTTP status
    pub status: u16,
    /// `Range` header
    pub range: Option<String>,
    /// bytes of the body that were sent
    pub bytes: u64,
}

impl Nginx {
    /// Serves the files under `root`.
    pub fn serve(root: &Path) -> Self {
        Self::serve_with(root, "")
    }

    /// Serves the files under `root`; `directives` go into nginx's `server` block.
    pub fn serve_with(root: &Path, directives: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let configuration = folder.path().join("nginx.conf");
        fs::write(&configuration, configure(root, folder.path(), port, directives)).unwrap();
        let process = Command::new(program())
            .arg("-c")
            .arg(&configuration)
            .arg("-e")
            .arg(folder.path().join("error.log"))
            .stdout(Stdio::null())
            .spawn()
            .unwrap_or_else(|e| panic!("nginx doesn't start: {e}"));
        let mut nginx = Self { process, port, folder };
        wait_for("nginx listens", Duration::from_secs(10), || {
            if let Some(status) = nginx.process.try_wait().unwrap() {
                let log = fs::read_to_string(nginx.folder.path().join("error.log")).unwrap_or_default();
                panic!("nginx ended ({status}): {log}");
            }
            TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok()
        });
        nginx
    }

    /// Address of a file under the root.
    pub fn url(&self, file: &str) -> String {
        format!("http://127.0.0.1:{}/{file}", self.port)
    }

    /// All requests answered so far. nginx writes the line when it has sent the answer, so that a client can see the
    /// end of a body before the line is there.
    pub fn requests(&self) -> Vec<Request> {
        let log = fs::read_to_string(self.folder.path().join("access.log")).unwrap_or_default();
        // a last line without its end is still being written
        log.split_inclusive('\n')
            .filter(|line| line.ends_with('\n'))
            .map(parse)
            .collect()
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// nginx from the `PATH`, from where Debian puts it, or from the cache, where `scripts/install.sh` puts it.
pub fn program() -> PathBuf {
    let in_path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&in_path)
        .chain(["/usr/sbin".into(), models::cache().join("nginx/usr/sbin")])
        .map(|folder| folder.join("nginx"))
        .find(|path| path.is_file())
        .expect("there is no nginx: run `scripts/install.sh test`")
}

/// One process, so that killing it leaves none behind, and so that it keeps our rights to read the files.
fn configure(root: &Path, folder: &Path, port: u16, directives: &str) -> String {
    let temporary = temporary_paths(folder);
    let (root, folder) = (root.display(), folder.display());
    format!(
        "daemon off; master_process off; pid {folder}/nginx.pid;
        events {{ worker_connections 256; }}
        http {{
            log_format tabs '$request_method\\t$uri\\t$status\\t$http_range\\t$body_bytes_sent';
            access_log {folder}/access.log tabs;
            default_type application/octet-stream;
            {temporary}
            server {{ listen 127.0.0.1:{port}; root {root}; {directives} }}
        }}"
    )
}

/// Directives that keep nginx's temporary files in `folder`.
pub fn temporary_paths(folder: &Path) -> String {
    let mut paths = String::new();
    for kind in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
        writeln!(paths, "{kind}_temp_path {}/{kind};", folder.display()).unwrap();
    }
    paths
}

fn parse(line: &str) -> Request {
    let fields: Vec<&str> = line.trim_end().split('\t').collect();
    let [method, path, status, range, bytes] = fields[..] else {
        panic!("nginx wrote {line:?}")
    };
    Request {
        method: method.to_owned(),
        path: path.to_owned(),
        status: status.parse().unwrap(),
        range: (range != "-").then(|| range.to_owned()),
        bytes: bytes.parse().unwrap(),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn a_range_is_answered_and_logged() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("digits"), "0123456789").unwrap();
        let nginx = Nginx::serve(folder.path());
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, nginx.port)).unwrap();
        let request = "GET /digits HTTP/1.1\r\nHost: here\r\nRange: bytes=3-5\r\nConnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 206 "), "{answer}");
        assert!(answer.ends_with("\r\n\r\n345"), "{answer}");
        let logged = wait_for("the request is logged", Duration::from_secs(5), || {
            nginx.requests().pop()
        });
        let expected = Request {
            method: "GET".into(),
            path: "/digits".into(),
            status: 206,
            range: Some("bytes=3-5".into()),
            bytes: 3,
        };
        assert_eq!(logged, expected);
    }
}
