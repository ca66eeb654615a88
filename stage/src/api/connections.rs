//! Connections of the API: small packets at once, clients that vanished found out, and an end to those that keep a
//! connection without saying what they want.
//!
//! The time for a request's head counts from its first byte, and from the end of whatever the server itself was doing on the
//! connection: a request that is under way, and an answer that is being sent, keep it open however long they take.

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use socket2::{SockRef, TcpKeepalive};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, Sleep};

use super::errors::ApiError;

/// A silent client is asked for a sign of life after this time, and then each [`PROBE_EVERY`].
const PROBE_AFTER: Duration = Duration::from_secs(30);
const PROBE_EVERY: Duration = Duration::from_secs(10);
/// Probes without an answer after which a client is gone.
const PROBES: u32 = 3;
/// A client that acknowledges nothing of what it was sent for so long, or takes nothing, is gone.
#[cfg(any(target_os = "linux", target_os = "android"))]
const UNTAKEN_FOR: Duration = Duration::from_secs(60);

/// How long a connection is kept for a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// from a head's first byte to its last; longer than the pauses of a stream, which are ended by comments
    pub(super) head: Duration,
    /// without any byte
    pub(super) idle: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            head: Duration::from_secs(60),
            // longer than proxies keep theirs, so that it is they who close
            idle: Duration::from_secs(300),
        }
    }
}

/// A listener whose connections end by [`Limits`].
pub(super) struct Connections {
    listener: TcpListener,
    limits: Limits,
}

impl Connections {
    pub(super) fn new(listener: TcpListener, limits: Limits) -> Connections {
        Connections { listener, limits }
    }
}

impl Listener for Connections {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        let (stream, peer) = Listener::accept(&mut self.listener).await;
        if let Err(error) = tune(&stream) {
            tracing::debug!(%error, "connection without some of its options");
        }
        (Connection::new(stream, self.limits), peer)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// The requests of one connection, as those who serve them tell.
#[derive(Clone, Debug, Default)]
pub(super) struct Requests(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    begun: AtomicUsize,
    ended: AtomicUsize,
}

/// A request whose head has come and whose answer hasn't begun.
pub(super) struct UnderWay(Requests);

impl Requests {
    /// A request is under way until what this gives is dropped.
    pub(super) fn begin(&self) -> UnderWay {
        self.0.begun.fetch_add(1, Ordering::Relaxed);
        UnderWay(self.clone())
    }

    fn begun(&self) -> usize {
        self.0.begun.load(Ordering::Relaxed)
    }

    fn under_way(&self) -> bool {
        self.begun() != self.0.ended.load(Ordering::Relaxed)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.0.ended.fetch_add(1, Ordering::Relaxed);
    }
}

impl Connected<IncomingStream<'_, Connections>> for Requests {
    fn connect_info(stream: IncomingStream<'_, Connections>) -> Requests {
        stream.io().requests.clone()
    }
}

/// A connection that a client may keep for its requests only.
pub(super) struct Connection {
    stream: TcpStream,
    requests: Requests,
    limits: Limits,
    /// the server's last doing
    active: Instant,
    /// the first byte of a head, and the requests before it
    head: Option<(Instant, usize)>,
    timer: Pin<Box<Sleep>>,
}

impl Connection {
    fn new(stream: TcpStream, limits: Limits) -> Connection {
        Connection {
            stream,
            requests: Requests::default(),
            limits,
            active: Instant::now(),
            head: None,
            timer: Box::pin(tokio::time::sleep(limits.head)),
        }
    }

    /// Ready when the client has had its time.
    fn poll_over(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.timer.as_mut().poll(cx));
            let now = Instant::now();
            if self.requests.under_way() {
                self.active = now;
            }
            let begun = self.requests.begun();
            let head = self.head.filter(|(_, before)| *before == begun);
            let end = match head {
                Some((since, _)) => since.max(self.active) + self.limits.head,
                // whoever connects has something to say
                None if begun == 0 => self.active + self.limits.head,
                None => self.active + self.limits.idle,
            };
            if now < end {
                self.timer.as_mut().reset(end);
                continue;
            }
            if head.is_some() {
                // no answer is on its way, and whoever takes not even this one gets none
                let _ = self
                    .stream
                    .try_write(ApiError::slow_head(self.limits.head).whole().as_bytes());
            }
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        match Pin::new(&mut this.stream).poll_read(cx, buf) {
            Poll::Pending => this.poll_over(cx),
            came @ Poll::Ready(_) => {
                let begun = this.requests.begun();
                let is_known = this.head.is_some_and(|(_, before)| before == begun);
                if buf.filled().len() > before && !is_known && !this.requests.under_way() {
                    this.head = Some((Instant::now(), begun));
                    // sooner than an idle one ends
                    let end = Instant::now() + this.limits.head;
                    if end < this.timer.deadline() {
                        this.timer.as_mut().reset(end);
                    }
                }
                came
            }
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.active = Instant::now();
        Pin::new(&mut this.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.active = Instant::now();
        Pin::new(&mut this.stream).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

/// Sets up an accepted connection: small packets go out at once, and a client that vanished without a word is found out,
/// so that it holds no sequence.
pub(super) fn tune(connection: &TcpStream) -> io::Result<()> {
    // Each token is a small packet of its own that must not wait for the next.
    connection.set_nodelay(true)?;
    let socket = SockRef::from(connection);
    let probes = TcpKeepalive::new()
        .with_time(PROBE_AFTER)
        .with_interval(PROBE_EVERY)
        .with_retries(PROBES);
    socket.set_tcp_keepalive(&probes)?;
    #[cfg(any(target_os = "linux", target_os = "android"))]
    socket.set_tcp_user_timeout(Some(UNTAKEN_FOR))?;
    Ok(())
}
