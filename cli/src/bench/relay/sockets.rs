//! WebSockets by hand, as cheap as they can be: the load must not be what is measured.
//!
//! Frames are masked with zeros, which changes nothing for who has to unmask them, and are built once.

use std::net::SocketAddr;

use anyhow::{Context as _, bail, ensure};
use kvasir_wire::leg::SUBPROTOCOL;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

/// Bytes of an HTTP header at most.
const MAX_HEADER: usize = 8 * 1024;
/// Bytes read at a time.
const CHUNK: usize = 128 * 1024;

/// One edge: what goes in at one end comes out at the other.
#[derive(Debug)]
pub(super) struct Edge {
    pub(super) sender: TcpStream,
    pub(super) receiver: Receiver,
}

impl Edge {
    pub(super) fn new(sender: TcpStream, receiver: TcpStream) -> Edge {
        Edge {
            sender,
            receiver: Receiver {
                stream: receiver,
                frames: Frames::default(),
            },
        }
    }

    /// Sends one byte and waits until it is there.
    pub(super) async fn pass_a_byte(&mut self) -> anyhow::Result<()> {
        send(&mut self.sender, &[7]).await?;
        let mut chunk = [0; 64];
        while self.receiver.read(&mut chunk, |_| {}).await? == 0 {}
        Ok(())
    }
}

/// The receiving end, which takes frames apart.
#[derive(Debug)]
pub(super) struct Receiver {
    stream: TcpStream,
    frames: Frames,
}

impl Receiver {
    /// Reads once, and shows the payload in it; gives the bytes of payload.
    pub(super) async fn read(&mut self, chunk: &mut [u8], show: impl FnMut(&[u8])) -> anyhow::Result<usize> {
        let read = self.stream.read(chunk).await?;
        ensure!(read > 0, "a connection ended while it was measured");
        Ok(self.frames.take(&chunk[..read], show))
    }

    pub(super) fn chunk() -> Vec<u8> {
        vec![0; CHUNK]
    }
}

/// Where a stream of frames is.
#[derive(Debug, Default)]
struct Frames {
    /// bytes of payload to come
    left: usize,
    /// whether they are data's
    data: bool,
    /// a header that was cut
    header: Vec<u8>,
}

impl Frames {
    /// Shows the data in `bytes`, and counts it.
    fn take(&mut self, mut bytes: &[u8], mut show: impl FnMut(&[u8])) -> usize {
        let mut data = 0;
        while !bytes.is_empty() {
            if self.left == 0 {
                self.header.push(bytes[0]);
                bytes = &bytes[1..];
                self.begin();
                continue;
            }
            let (here, rest) = bytes.split_at(self.left.min(bytes.len()));
            self.left -= here.len();
            bytes = rest;
            if self.data {
                data += here.len();
                show(here);
            }
        }
        data
    }

    /// Begins the frame whose header is whole.
    fn begin(&mut self) {
        let [first, second, rest @ ..] = self.header.as_slice() else {
            return;
        };
        let mask = if second & 0x80 == 0 { 0 } else { 4 };
        let (length, bytes) = match (second & 0x7F, rest) {
            (126, [a, b, ..]) => (usize::from(u16::from_be_bytes([*a, *b])), 2),
            (127, rest) if rest.len() >= 8 => (rest[..8].iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)), 8),
            (126 | 127, _) => return,
            (short, _) => (usize::from(short), 0),
        };
        if rest.len() == bytes + mask {
            self.left = length;
            self.data = first & 0x0F < 8;
            self.header.clear();
        }
    }
}

/// A client's binary frame around `payload`.
pub(super) fn frame(payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x82];
    match payload.len() {
        length @ 0..126 => bytes.push(0x80 | length as u8),
        length => {
            bytes.push(0x80 | 0x7E);
            bytes.extend((length as u16).to_be_bytes());
        }
    }
    bytes.extend([0; 4]);
    bytes.extend_from_slice(payload);
    bytes
}

/// Sends `payload` as one frame.
pub(super) async fn send(stream: &mut TcpStream, payload: &[u8]) -> anyhow::Result<()> {
    Ok(stream.write_all(&frame(payload)).await?)
}

/// Without waiting for more to send along.
pub(super) fn tuned(stream: TcpStream) -> std::io::Result<TcpStream> {
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Makes a WebSocket at `address`.
pub(super) async fn upgrade(address: SocketAddr, path: &str, ticket: Option<&str>) -> anyhow::Result<TcpStream> {
    let mut stream = tuned(TcpStream::connect(address).await?)?;
    let ticket = ticket
        .map(|ticket| format!("Authorization: Bearer {ticket}\r\n"))
        .unwrap_or_default();
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
         Sec-WebSocket-Protocol: {SUBPROTOCOL}\r\n{ticket}\r\n"
    );
    stream.write_all(request.as_bytes()).await?;
    let header = header(&mut stream).await?;
    ensure!(
        header.starts_with("HTTP/1.1 101 "),
        "the upgrade is refused: {}",
        header.lines().next().unwrap_or_default()
    );
    Ok(stream)
}

/// Where nginx dials.
#[derive(Debug)]
pub(super) struct Upstream(TcpListener);

impl Upstream {
    pub(super) async fn listen(address: &SocketAddr) -> anyhow::Result<Upstream> {
        Ok(Upstream(TcpListener::bind(address).await?))
    }

    /// Takes one WebSocket.
    pub(super) async fn accept(&self) -> anyhow::Result<TcpStream> {
        let (stream, _) = self.0.accept().await?;
        let mut stream = tuned(stream)?;
        header(&mut stream).await?;
        // The answer to the one key that `upgrade` sends.
        let answer = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
        stream.write_all(answer.as_bytes()).await?;
        Ok(stream)
    }
}

/// Reads an HTTP header, and nothing behind it.
async fn header(stream: &mut TcpStream) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\r\n\r\n") {
        if bytes.len() >= MAX_HEADER {
            bail!("a header without an end");
        }
        bytes.push(stream.read_u8().await.context("the connection ended within a header")?);
    }
    Ok(String::from_utf8(bytes)?)
}

/// Takes as many files as the system allows, and says how many those are.
pub(super) fn raise_file_limit() -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    // A limit that can't be raised stays as it is.
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: maximum,
            maximum,
        },
    );
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_found_however_it_is_cut() {
        let wire = [frame(&[1; 200]), vec![0x89, 0], frame(&[2; 3]), vec![0x82, 2, 3, 3]].concat();
        for size in 1..wire.len() {
            let mut frames = Frames::default();
            let mut data = Vec::new();
            for part in wire.chunks(size) {
                frames.take(part, |bytes| data.extend_from_slice(bytes));
            }
            assert_eq!(data, [vec![1; 200], vec![2; 3], vec![3; 2]].concat(), "{size}");
        }
    }
}
