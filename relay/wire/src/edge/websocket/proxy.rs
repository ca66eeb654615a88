//! A way to relays through an HTTP proxy: which one the environment names for an address, and the `CONNECT` that makes it
//! pass bytes on.

use std::{io, sync::Arc, time::Duration};

use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};
use tokio_tungstenite::tungstenite::http::Uri;

use super::{LegError, Target};
use crate::edge::EdgeError;

/// Bytes of a proxy's answer at most.
const MAX_ANSWER: usize = 8 * 1024;
/// A proxy that took the connection has this long to reach the relay, so that what it is waiting for is told by name.
const ANSWERS_WITHIN: Duration = Duration::from_secs(8);

/// Which addresses are reached through which proxy.
#[derive(Clone, Debug)]
pub(super) struct Proxies(Arc<Matcher>);

impl Proxies {
    /// `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and `NO_PROXY`, also in small letters: as for calls of the market.
    pub(super) fn from_environment() -> Proxies {
        Proxies(Arc::new(Matcher::from_env()))
    }

    /// Everything through `proxy`, but for the hosts in `except`, separated by commas.
    #[cfg(test)]
    pub(super) fn all(proxy: &str, except: &str) -> Proxies {
        let matcher = Matcher::builder().all(proxy.to_owned()).no(except.to_owned());
        Proxies(Arc::new(matcher.build()))
    }

    /// The proxy for a relay, if there is one. The loopback is never behind one.
    pub(super) fn of(&self, target: &Target) -> Option<Proxy> {
        let host = target.host();
        let loopback = host == "localhost"
            || host
                .parse()
                .is_ok_and(|address: std::net::IpAddr| address.is_loopback());
        if loopback {
            return None;
        }
        let scheme = if target.tls { "https" } else { "http" };
        let uri: Uri = format!("{scheme}://{}", target.authority).parse().ok()?;
        self.0.intercept(&uri).map(Proxy)
    }
}

/// One proxy, as the environment names it.
#[derive(Debug)]
pub(super) struct Proxy(Intercept);

impl Proxy {
    /// `host:port`, for errors: what else stands in its address may be a secret.
    fn name(&self) -> String {
        format!("{}:{}", self.host(), self.port())
    }

    fn host(&self) -> &str {
        self.0.uri().host().unwrap_or_default()
    }

    fn port(&self) -> u16 {
        self.0.uri().port_u16().unwrap_or(80)
    }

    fn refuses(&self, detail: impl Into<String>) -> LegError {
        LegError::Proxy {
            proxy: self.name(),
            detail: detail.into(),
        }
    }

    /// A connection that the proxy passes on to `target`.
    pub(super) async fn connect(&self, target: &Target) -> Result<TcpStream, EdgeError> {
        if self.0.uri().scheme_str().is_some_and(|scheme| scheme != "http") {
            return Err(self
                .refuses("it is no plain HTTP proxy, which is all that legs take")
                .into());
        }
        let unreachable = |source: io::Error| EdgeError::Unreachable {
            address: format!("the proxy {}", self.name()),
            source: Arc::new(source),
        };
        let host = self.host().trim_matches(['[', ']']);
        let mut stream = TcpStream::connect((host, self.port())).await.map_err(unreachable)?;
        let asked = self.ask(target).map_err(|detail| self.refuses(detail))?;
        stream.write_all(&asked).await.map_err(unreachable)?;
        let answer = timeout(ANSWERS_WITHIN, read_answer(&mut stream)).await;
        let answer = answer.map_err(|_| {
            let within = ANSWERS_WITHIN.as_secs();
            self.refuses(format!("it did not reach the relay within {within} s"))
        })?;
        match status(&answer.map_err(unreachable)?) {
            Some(200..=299) => Ok(stream),
            Some(407) => Err(self.refuses("it wants a user name and a password, or others").into()),
            Some(status) => Err(self.refuses(format!("HTTP status {status}")).into()),
            None => Err(self.refuses("it is no HTTP proxy").into()),
        }
    }

    fn ask(&self, target: &Target) -> Result<Vec<u8>, &'static str> {
        let host = target.authority.host();
        let to = format!("{host}:{}", target.port);
        let mut asked = format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n").into_bytes();
        if let Some(authorization) = self.0.basic_auth() {
            asked.extend_from_slice(b"Proxy-Authorization: ");
            asked.extend_from_slice(authorization.as_bytes());
            asked.extend_from_slice(b"\r\n");
        } else if self.0.raw_auth().is_some() {
            return Err("its user name is of a kind that legs don't take");
        }
        asked.extend_from_slice(b"\r\n");
        Ok(asked)
    }
}

/// The head of the proxy's answer. Nothing behind it is taken off the stream: that is the relay's.
async fn read_answer(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() == MAX_ANSWER {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the proxy's answer is longer than any real one",
            ));
        }
        head.push(stream.read_u8().await?);
    }
    Ok(head)
}

/// The status of an HTTP answer.
fn status(head: &[u8]) -> Option<u16> {
    let line = head.split(|byte| *byte == b'\r').next()?;
    let mut words = std::str::from_utf8(line).ok()?.split(' ');
    words.next().filter(|version| version.starts_with("HTTP/1."))?;
    words.next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::{
        net::SocketAddr,
        sync::{Mutex, PoisonError},
    };

    use futures::{SinkExt as _, StreamExt as _};
    use tokio::{io::AsyncBufReadExt as _, io::BufReader, net::TcpListener};
    use tokio_tungstenite::{
        accept_hdr_async,
        tungstenite::{
            Message,
            handshake::server::{ErrorResponse, Request, Response},
        },
    };

    use super::*;
    use crate::{
        edge::{RelayDialer, Role},
        leg::SUBPROTOCOL,
    };

    /// Longest wait for anything in these tests.
    const LIMIT: Duration = Duration::from_secs(10);

    /// A proxy on the loopback that takes `CONNECT` with the right password. Whatever host it is asked for, it goes to
    /// `relay`: the tests have no names of their own.
    struct RealProxy {
        address: SocketAddr,
        asked: Arc<Mutex<Vec<String>>>,
    }

    impl RealProxy {
        async fn before(relay: SocketAddr) -> RealProxy {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let proxy = RealProxy {
                address: listener.local_addr().unwrap(),
                asked: Arc::default(),
            };
            let asked = proxy.asked.clone();
            tokio::spawn(async move {
                loop {
                    let (client, _) = listener.accept().await.unwrap();
                    tokio::spawn(pass_on(client, relay, asked.clone()));
                }
            });
            proxy
        }

        fn url(&self, user: &str) -> String {
            format!("http://{user}{}", self.address)
        }

        fn asked(&self) -> Vec<String> {
            self.asked.lock().unwrap_or_else(PoisonError::into_inner).clone()
        }
    }

    async fn pass_on(client: TcpStream, relay: SocketAddr, asked: Arc<Mutex<Vec<String>>>) {
        let mut client = BufReader::new(client);
        let mut head = Vec::new();
        while !head.last().is_some_and(String::is_empty) {
            let mut line = String::new();
            client.read_line(&mut line).await.unwrap();
            head.push(line.trim_end().to_owned());
        }
        // me:s3cret
        let allowed = head
            .iter()
            .any(|line| line.eq_ignore_ascii_case("proxy-authorization: Basic bWU6czNjcmV0"));
        asked.lock().unwrap().push(head[0].clone());
        if !allowed {
            let answer = b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n";
            client.get_mut().write_all(answer).await.unwrap();
            return;
        }
        let mut relay = TcpStream::connect(relay).await.unwrap();
        let answer = b"HTTP/1.1 200 Connection established\r\nVia: 1.1 here\r\n\r\n";
        client.get_mut().write_all(answer).await.unwrap();
        let _ = tokio::io::copy_bidirectional(&mut client, &mut relay).await;
    }

    /// A relay that says back what a leg says first.
    async fn relay() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let (tcp, _) = listener.accept().await.unwrap();
            #[allow(clippy::result_large_err, reason = "tungstenite's own")]
            let answer = |request: &Request, mut response: Response| -> Result<Response, ErrorResponse> {
                assert_eq!(request.headers()["authorization"], "Bearer ticket");
                let protocol = SUBPROTOCOL.parse().unwrap();
                response.headers_mut().insert("sec-websocket-protocol", protocol);
                Ok(response)
            };
            let mut socket = accept_hdr_async(tcp, answer).await.unwrap();
            while let Some(Ok(Message::Binary(bytes))) = socket.next().await {
                socket.send(Message::Binary(bytes)).await.unwrap();
            }
        });
        address
    }

    fn dialer(proxy: &str, except: &str) -> RelayDialer {
        let mut dialer = RelayDialer::new(None).unwrap();
        dialer.proxies = Some(Proxies::all(proxy, except));
        dialer
    }

    #[tokio::test]
    async fn a_leg_goes_through_the_proxy_that_the_environment_names() {
        let proxy = RealProxy::before(relay().await).await;
        let dialer = dialer(&proxy.url("me:s3cret@"), "");
        let mut leg = dialer
            .dial("http://relay.example:8080/ring", "ticket", Role::Successor, LIMIT)
            .await
            .unwrap();
        assert_eq!(leg.read_u8().await.unwrap(), 2, "the role, said back by the relay");
        leg.write_all(b"tea").await.unwrap();
        leg.flush().await.unwrap();
        let mut said = [0; 3];
        leg.read_exact(&mut said).await.unwrap();
        assert_eq!(&said, b"tea");
        assert_eq!(proxy.asked(), ["CONNECT relay.example:8080 HTTP/1.1"]);
    }

    #[tokio::test]
    async fn a_proxy_that_refuses_is_told_by_name_and_without_its_secret() {
        let proxy = RealProxy::before(relay().await).await;
        let dialer = dialer(&proxy.url("me:wr0ng@"), "");
        let error = dialer
            .dial("https://relay.example", "ticket", Role::Successor, LIMIT)
            .await
            .unwrap_err();
        let EdgeError::Leg(leg) = &error else {
            panic!("{error}");
        };
        assert!(leg.reason() == "ProxyRefused" && leg.retryable());
        let told = format!("{leg} {error:?} {dialer:?}");
        assert!(
            told.contains(&proxy.address.to_string()) && told.contains("user name"),
            "{told}"
        );
        assert!(!told.contains("wr0ng") && !told.contains("ticket"), "{told}");
        assert_eq!(proxy.asked(), ["CONNECT relay.example:443 HTTP/1.1"]);
    }

    #[tokio::test]
    async fn what_is_no_proxy_is_told_so() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let (mut client, _) = listener.accept().await.unwrap();
            client.write_all(b"220 mail.example\r\n\r\n").await.unwrap();
            let _ = client.read_to_end(&mut Vec::new()).await;
        });
        let dial = async |proxy: &str| {
            let dialler = dialer(proxy, "");
            let dialled = dialler
                .dial("http://relay.example", "ticket", Role::Successor, LIMIT)
                .await;
            match dialled.unwrap_err() {
                EdgeError::Leg(leg) => leg.to_string(),
                other => panic!("{other}"),
            }
        };
        let told = dial(&format!("http://{address}")).await;
        assert!(told.contains("it is no HTTP proxy"), "{told}");
        let told = dial("socks5://127.0.0.1:1").await;
        assert!(told.contains("no plain HTTP proxy"), "{told}");
    }

    #[test]
    fn exceptions_and_the_loopback_are_dialled_directly() {
        let proxies = Proxies::all("http://proxy.example:3128", "relay.example,10.0.0.0/8");
        let of = |url: &str| proxies.of(&Target::parse(url).unwrap()).map(|proxy| proxy.name());
        for direct in [
            "https://relay.example",
            "https://eu.relay.example:8443",
            "http://10.1.2.3",
            "http://localhost:8080",
            "http://127.0.0.1:8080",
            "http://[::1]:8080",
        ] {
            assert_eq!(of(direct), None, "{direct}");
        }
        for through in ["https://norelay.example", "http://11.1.2.3", "https://[2001:db8::1]"] {
            assert_eq!(of(through).as_deref(), Some("proxy.example:3128"), "{through}");
        }
    }

    #[test]
    fn only_an_http_status_is_one() {
        assert_eq!(status(b"HTTP/1.1 200 Connection established\r\n\r\n"), Some(200));
        assert_eq!(status(b"HTTP/1.0 407\r\n\r\n"), Some(407));
        for no in [&b"SSH-2.0-x 200\r\n\r\n"[..], b"HTTP/1.1\r\n\r\n", b"\xff\r\n\r\n", b""] {
            assert_eq!(status(no), None);
        }
    }
}
