//! A relayed leg: a WebSocket dialled to a relay, as a byte stream that [`open`](super::open) takes.
//!
//! Pings of the relay are answered whenever the stream is read, so also while the edge is idle or waits for its peer. How
//! the relay ended the leg comes out of the stream as an [`io::Error`] that holds a [`LegError`].

mod proxy;

use std::{
    io,
    path::{Path, PathBuf},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Buf as _, Bytes};
use futures::{Sink as _, SinkExt as _, Stream as _};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tokio_tungstenite::{
    WebSocketStream, client_async_with_config,
    tungstenite::{
        self, Message,
        handshake::client::{Request, generate_key},
        http::{StatusCode, Uri, header, uri::Authority},
        protocol::WebSocketConfig,
    },
};

use self::proxy::Proxies;
use super::{EdgeError, Role, tune};
use crate::leg::{Close, EDGE_PATH, MAX_MESSAGE, SUBPROTOCOL, role_byte};

/// Names a file of further certificate authorities, in PEM, that this process trusts beside the system's.
pub const CA_FILE_VARIABLE: &str = "KVASIR_CA_FILE";

/// Bytes that the WebSocket reads at a time; a sealed piece takes two or three reads.
const READ_BUFFER: usize = 16 * 1024;

/// Words of a refusal that are shown: the relay's own are shorter.
const MAX_WORDS: usize = 500;

/// Why a relayed leg failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LegError {
    /// the manifest's address of the relay isn't one; it isn't shown, since it may hold a secret
    #[error("the relay's address is not an http or https URL without user, query and fragment")]
    BadUrl,
    /// the system's certificates, or the extra file, can't be used
    #[error("no certificate authorities to check the relay with: {detail}")]
    NoAuthorities {
        /// what is wrong with them
        detail: String,
    },
    /// the relay's certificate isn't trusted, or it speaks no TLS
    #[error("no TLS with the relay: {detail}; a private authority is named by {CA_FILE_VARIABLE}")]
    Tls {
        /// what rustls said
        detail: String,
    },
    /// the relay said no before it was a WebSocket
    #[error("the relay refuses the leg ({reason}): {message}")]
    Refused {
        /// HTTP status
        status: u16,
        /// the relay's own word for it
        reason: String,
        /// the relay's text
        message: String,
    },
    /// the market gives no ticket
    #[error("the market gives no ticket for the leg ({reason}): {message}")]
    NoTicket {
        /// the market's own word for it
        reason: String,
        /// the market's text
        message: String,
        /// whether asking again may help
        retryable: bool,
    },
    /// the market's ticket is for another relay than the manifest names
    #[error("the manifest names the relay at {named}, and the market's ticket is for {offered}")]
    OtherRelay {
        /// relay in the manifest
        named: String,
        /// relay that the ticket is for
        offered: String,
    },
    /// this stage has no way to relays
    #[error("this stage takes no relayed edges: it has no tickets")]
    NoRelays,
    /// the proxy on the way doesn't let the leg through
    #[error("the proxy {proxy} does not pass the leg on to the relay: {detail}; NO_PROXY names hosts that need none")]
    Proxy {
        /// its host and port
        proxy: String,
        /// what went wrong
        detail: String,
    },
    /// it isn't a relay
    #[error("no WebSocket with the relay: {detail}")]
    NotARelay {
        /// what went wrong
        detail: String,
    },
    /// the relay closed the leg
    #[error("the relay closed the leg ({})", .0.reason())]
    Closed(#[source] Close),
    /// somebody on the way closed the leg
    #[error("the leg was closed with code {code} {text:?}")]
    ClosedOtherwise {
        /// WebSocket close code
        code: u16,
        /// its text
        text: String,
    },
}

impl LegError {
    /// Stable `PascalCase` word for metrics, events and conditions; the text of a refusal names the relay's own.
    pub fn reason(&self) -> &'static str {
        match self {
            LegError::BadUrl => "BadRelayAddress",
            LegError::NoAuthorities { .. } => "NoCertificateAuthorities",
            LegError::Tls { .. } => "RelayTlsFailed",
            LegError::Refused { .. } => "RelayRefused",
            LegError::NoTicket { .. } => "NoTicket",
            LegError::OtherRelay { .. } => "WrongRelay",
            LegError::NoRelays => "NoRelays",
            LegError::Proxy { .. } => "ProxyRefused",
            LegError::NotARelay { .. } => "NotARelay",
            LegError::Closed(close) => close.reason(),
            LegError::ClosedOtherwise { .. } => "LegClosed",
        }
    }

    /// Whether another leg may fare better.
    pub fn retryable(&self) -> bool {
        match self {
            LegError::BadUrl | LegError::NoAuthorities { .. } | LegError::NoRelays => false,
            LegError::NoTicket { retryable, .. } => *retryable,
            LegError::Refused { status, .. } => *status == 429 || *status >= 500 || *status == 401,
            LegError::Closed(close) => close.retryable(),
            LegError::Tls { .. }
            | LegError::OtherRelay { .. }
            | LegError::Proxy { .. }
            | LegError::NotARelay { .. }
            | LegError::ClosedOtherwise { .. } => true,
        }
    }
}

impl From<LegError> for EdgeError {
    fn from(error: LegError) -> Self {
        EdgeError::Leg(error)
    }
}

/// Dials relays: holds the certificate authorities that they are checked with, and the proxies on the way to them.
#[derive(Clone)]
pub struct RelayDialer {
    tls: Arc<ClientConfig>,
    proxies: Option<Proxies>,
}

impl std::fmt::Debug for RelayDialer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RelayDialer").finish_non_exhaustive()
    }
}

impl RelayDialer {
    /// Trusts the system's authorities, and those in the file that [`CA_FILE_VARIABLE`] names. Relays are reached through
    /// the proxy that `HTTPS_PROXY`, `HTTP_PROXY` or `ALL_PROXY` names, but for the hosts of `NO_PROXY`.
    ///
    /// # Errors
    /// As [`RelayDialer::new`].
    pub fn from_environment() -> Result<RelayDialer, LegError> {
        let file = std::env::var_os(CA_FILE_VARIABLE)
            .filter(|file| !file.is_empty())
            .map(PathBuf::from);
        Ok(RelayDialer {
            proxies: Some(Proxies::from_environment()),
            ..RelayDialer::new(file.as_deref())?
        })
    }

    /// Trusts the system's authorities, and those in `extra`, a PEM file. No proxies.
    ///
    /// # Errors
    /// [`LegError::NoAuthorities`] when `extra` can't be read or holds none. A system without any is no error: its relays
    /// may be plain, or signed by `extra`.
    pub fn new(extra: Option<&Path>) -> Result<RelayDialer, LegError> {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if let Some(path) = extra {
            let unusable = |detail: String| LegError::NoAuthorities {
                detail: format!("{}: {detail}", path.display()),
            };
            let certificates = CertificateDer::pem_file_iter(path).map_err(|e| unusable(e.to_string()))?;
            let mut added = 0;
            for certificate in certificates {
                let certificate = certificate.map_err(|e| unusable(e.to_string()))?;
                roots.add(certificate).map_err(|e| unusable(e.to_string()))?;
                added += 1;
            }
            if added == 0 {
                return Err(unusable("there is no certificate in it".to_owned()));
            }
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|e| LegError::NoAuthorities { detail: e.to_string() })?
            .with_root_certificates(roots)
            .with_no_client_auth();
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(RelayDialer {
            tls: Arc::new(tls),
            proxies: None,
        })
    }

    /// Dials the relay at `url` (`https://…` or `http://…`), shows the `ticket`, and says the role.
    ///
    /// # Errors
    /// [`EdgeError::Unreachable`] when nothing answers within `within`; [`EdgeError::Leg`] when it won't have the leg.
    pub async fn dial(&self, url: &str, ticket: &str, role: Role, within: Duration) -> Result<LegStream, EdgeError> {
        let target = Target::parse(url)?;
        let unreachable = |source: io::Error| EdgeError::Unreachable {
            address: target.authority.to_string(),
            source: Arc::new(source),
        };
        let dialled = async {
            let proxy = self.proxies.as_ref().and_then(|proxies| proxies.of(&target));
            let tcp = match proxy {
                Some(proxy) => proxy.connect(&target).await?,
                None => TcpStream::connect((target.host(), target.port))
                    .await
                    .map_err(unreachable)?,
            };
            tune(&tcp).map_err(unreachable)?;
            let transport = if target.tls {
                let name = ServerName::try_from(target.host().to_owned()).map_err(|_| LegError::BadUrl)?;
                let connector = TlsConnector::from(Arc::clone(&self.tls));
                let tls = connector.connect(name, tcp).await.map_err(|error| LegError::Tls {
                    detail: error.to_string(),
                })?;
                Transport::Tls(Box::new(tls))
            } else {
                Transport::Plain(tcp)
            };
            let request = target.request(ticket).ok_or(LegError::BadUrl)?;
            let (mut socket, _) = client_async_with_config(request, transport, Some(limits()))
                .await
                .map_err(refused)?;
            let first = Message::Binary(Bytes::copy_from_slice(&[role_byte(role)]));
            socket.send(first).await.map_err(to_io)?;
            Ok(LegStream {
                socket,
                unread: Bytes::new(),
                ended: false,
            })
        };
        timeout(within, dialled)
            .await
            .map_err(|_| unreachable(io::ErrorKind::TimedOut.into()))?
    }
}

/// Frames and messages up to [`MAX_MESSAGE`], each written at once.
fn limits() -> WebSocketConfig {
    WebSocketConfig::default()
        .read_buffer_size(READ_BUFFER)
        .write_buffer_size(0)
        .max_write_buffer_size(2 * MAX_MESSAGE)
        .max_message_size(Some(MAX_MESSAGE))
        .max_frame_size(Some(MAX_MESSAGE))
}

/// Where a URL leads.
#[derive(Debug, PartialEq, Eq)]
struct Target {
    tls: bool,
    authority: Authority,
    port: u16,
    path: String,
}

impl Target {
    fn parse(url: &str) -> Result<Target, LegError> {
        let uri: Uri = url.parse().map_err(|_| LegError::BadUrl)?;
        let tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(LegError::BadUrl),
        };
        let authority = uri.authority().ok_or(LegError::BadUrl)?.clone();
        if authority.as_str().contains('@') || uri.query().is_some() || url.contains('#') || authority.host().is_empty()
        {
            return Err(LegError::BadUrl);
        }
        let port = authority.port_u16().unwrap_or(if tls { 443 } else { 80 });
        let path = format!("{}{EDGE_PATH}", uri.path().trim_end_matches('/'));
        Ok(Target {
            tls,
            authority,
            port,
            path,
        })
    }

    /// Without the brackets of an IPv6 address.
    fn host(&self) -> &str {
        self.authority.host().trim_matches(['[', ']'])
    }

    fn request(&self, ticket: &str) -> Option<Request> {
        let scheme = if self.tls { "wss" } else { "ws" };
        Request::builder()
            .uri(format!("{scheme}://{}{}", self.authority, self.path))
            .header(header::HOST, self.authority.as_str())
            .header(header::CONNECTION, "Upgrade")
            .header(header::UPGRADE, "websocket")
            .header(header::SEC_WEBSOCKET_VERSION, "13")
            .header(header::SEC_WEBSOCKET_KEY, generate_key())
            .header(header::SEC_WEBSOCKET_PROTOCOL, SUBPROTOCOL)
            .header(header::AUTHORIZATION, format!("Bearer {ticket}"))
            .body(())
            .ok()
    }
}

/// Why there is no WebSocket.
fn refused(error: tungstenite::Error) -> EdgeError {
    #[derive(serde::Deserialize)]
    struct Refusal {
        reason: String,
        message: String,
    }
    match error {
        tungstenite::Error::Io(error) => error.into(),
        tungstenite::Error::Http(response) => {
            // Something between here and the relay may answer with a page: only the relay's own words are shown.
            let refusal = response
                .body()
                .as_ref()
                .and_then(|body| serde_json::from_slice::<Refusal>(body).ok())
                .filter(|refusal| refusal.reason.len() + refusal.message.len() < MAX_WORDS);
            let status = response.status();
            let Refusal { reason, message } = refusal.unwrap_or_else(|| Refusal {
                reason: if status == StatusCode::NOT_FOUND {
                    "NotARelay".to_owned()
                } else {
                    "RelayRefused".to_owned()
                },
                message: format!("HTTP status {status}"),
            });
            LegError::Refused {
                status: status.as_u16(),
                reason,
                message,
            }
            .into()
        }
        other => LegError::NotARelay {
            detail: other.to_string(),
        }
        .into(),
    }
}

/// What a failing WebSocket comes out of the stream as.
fn to_io(error: tungstenite::Error) -> io::Error {
    match error {
        tungstenite::Error::Io(error) => error,
        tungstenite::Error::ConnectionClosed
        | tungstenite::Error::AlreadyClosed
        | tungstenite::Error::Protocol(tungstenite::error::ProtocolError::ResetWithoutClosingHandshake) => {
            io::ErrorKind::ConnectionReset.into()
        }
        other => io::Error::other(LegError::NotARelay {
            detail: other.to_string(),
        }),
    }
}

/// A leg as a byte stream over binary messages.
#[derive(Debug)]
pub struct LegStream {
    socket: WebSocketStream<Transport>,
    /// what is left of the last message
    unread: Bytes,
    ended: bool,
}

impl AsyncRead for LegStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        while self.unread.is_empty() {
            if self.ended {
                return Poll::Ready(Ok(()));
            }
            let message = match ready!(Pin::new(&mut self.socket).poll_next(cx)) {
                Some(Ok(message)) => message,
                Some(Err(error)) => {
                    self.ended = true;
                    return Poll::Ready(Err(to_io(error)));
                }
                None => {
                    self.ended = true;
                    return Poll::Ready(Ok(()));
                }
            };
            match message {
                Message::Binary(bytes) => self.unread = bytes,
                Message::Close(frame) => {
                    self.ended = true;
                    let Some(frame) = frame else {
                        return Poll::Ready(Ok(()));
                    };
                    let code = u16::from(frame.code);
                    let error = Close::parse(code, &frame.reason).map_or_else(
                        || LegError::ClosedOtherwise {
                            code,
                            text: frame.reason.to_string(),
                        },
                        LegError::Closed,
                    );
                    return Poll::Ready(Err(io::Error::other(error)));
                }
                // The answer to a ping is queued, and written by the next read.
                Message::Ping(_) | Message::Pong(_) => {}
                Message::Text(_) | Message::Frame(_) => {
                    self.ended = true;
                    return Poll::Ready(Err(io::Error::other(LegError::NotARelay {
                        detail: "it sends text".to_owned(),
                    })));
                }
            }
        }
        let length = self.unread.len().min(buf.remaining());
        buf.put_slice(&self.unread[..length]);
        self.unread.advance(length);
        if self.unread.is_empty() {
            // Gives the message's memory back.
            self.unread = Bytes::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for LegStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut socket = Pin::new(&mut self.socket);
        ready!(socket.as_mut().poll_ready(cx)).map_err(to_io)?;
        let length = bytes.len().min(MAX_MESSAGE);
        let message = Message::Binary(Bytes::copy_from_slice(&bytes[..length]));
        socket.start_send(message).map_err(to_io)?;
        Poll::Ready(Ok(length))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx).map_err(to_io)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_close(cx).map_err(to_io)
    }
}

/// The connection under a leg.
#[derive(Debug)]
enum Transport {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl AsyncRead for Transport {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Transport::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Transport::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Transport {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Transport::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Transport::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Transport::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Transport::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Transport::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Transport::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(tls: bool, authority: &str, port: u16, path: &str) -> Target {
        Target {
            tls,
            authority: authority.parse().unwrap(),
            port,
            path: path.to_owned(),
        }
    }

    #[test]
    fn a_url_leads_to_the_edge_path_under_it() {
        let cases = [
            ("https://relay.example", target(true, "relay.example", 443, "/v1/edge")),
            (
                "http://10.0.0.1:8080/",
                target(false, "10.0.0.1:8080", 8080, "/v1/edge"),
            ),
            ("https://[::1]:9/ring/", target(true, "[::1]:9", 9, "/ring/v1/edge")),
        ];
        for (url, expected) in cases {
            let parsed = Target::parse(url).unwrap();
            assert_eq!(parsed, expected, "{url}");
            assert!(!parsed.host().contains('['));
        }
    }

    #[test]
    fn a_url_that_could_hold_a_secret_is_refused() {
        for url in [
            "https://user:secret@relay.example",
            "https://relay.example?token=1",
            "https://relay.example/#token",
            "ftp://relay.example",
            "relay.example",
            "",
        ] {
            let error = Target::parse(url).unwrap_err();
            assert_eq!(error, LegError::BadUrl, "{url}");
            assert!(!error.to_string().contains("secret"));
        }
    }

    #[test]
    fn the_ticket_travels_in_a_header() {
        let request = Target::parse("https://relay.example")
            .unwrap()
            .request("secret")
            .unwrap();
        assert_eq!(request.headers()["authorization"], "Bearer secret");
        assert!(!request.uri().to_string().contains("secret"));
    }
}
