//! TCP for direct edges.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use tokio::{
    net::{TcpListener, TcpStream},
    time::timeout,
};

use super::EdgeError;

/// Dials a peer at `host:port`, and tunes the stream.
///
/// # Errors
/// [`EdgeError::Unreachable`] when no address of the host answers within `within`.
pub async fn dial(address: &str, within: Duration) -> Result<TcpStream, EdgeError> {
    let connected = async {
        let stream = TcpStream::connect(address).await?;
        tune(&stream)?;
        Ok(stream)
    };
    let unreachable = |source| EdgeError::Unreachable {
        address: address.to_owned(),
        source: Arc::new(source),
    };
    match timeout(within, connected).await {
        Ok(connected) => connected.map_err(unreachable),
        Err(_) => Err(unreachable(io::ErrorKind::TimedOut.into())),
    }
}

/// Takes the next peer that dials, and tunes the stream.
///
/// # Errors
/// As [`TcpListener::accept`].
pub async fn accept(listener: &TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
    let (stream, peer) = listener.accept().await?;
    tune(&stream)?;
    Ok((stream, peer))
}

/// Bytes that the kernel may hold unsent: what became urgent since they were written waits for no more than these.
#[cfg(any(target_os = "linux", target_os = "android"))]
const UNSENT_BYTES: u32 = 64 * 1024;

/// Sets up a TCP stream for an edge: nothing waits for more to send along with it, and little is queued in the kernel,
/// where nothing can overtake.
///
/// # Errors
/// When the stream is closed already.
pub fn tune(stream: &TcpStream) -> io::Result<()> {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    socket2::SockRef::from(stream).set_tcp_notsent_lowat(UNSENT_BYTES)?;
    stream.set_nodelay(true)
}
