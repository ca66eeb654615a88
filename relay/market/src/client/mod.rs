//! The caller's side of the market: every call signed anew, answers bounded. Retries are the caller's, with [`Backoff`];
//! a market that asks to be left alone for a while is.

mod backoff;
mod error;

use std::{
    fmt,
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use kvasir_wire::{
    edge::CA_FILE_VARIABLE,
    trust::{PublicKey, SignedManifest},
};
use reqwest::{Method, Response, StatusCode, Url, header, redirect};
use secrecy::{ExposeSecret, SecretString};
use serde::{Serialize, de::DeserializeOwned};

pub use backoff::Backoff;
pub use error::ClientError;

use crate::{
    auth::{Call, Credentials, InviteGranted, Signer, TicketGranted},
    types::{
        Claim, ClaimRequest, Committed, Demand, Enrolled, Enrolment, InviteRequest, Ledger, Offer, Positions, Proposal,
        Refusal, Renewed, RingStatus, StageReport, TakenRefusal, TicketRequest, Time,
    },
};

/// The market answers polls within 25 s; a proxy or a slow link may add some.
const POLL_TIMEOUT: Duration = Duration::from_secs(40);
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A market that is called too often says when it wants to be called again. More than this is no answer to that.
const LONGEST_REST: Duration = Duration::from_secs(60);

/// Answers longer than this are refused: the offers of a few hundred rings are some megabytes.
const MAX_ANSWER: usize = 8 << 20;

/// A market, as one node or owner reaches it.
#[derive(Clone)]
pub struct MarketClient {
    http: reqwest::Client,
    /// its root, ending in a slash
    base: Url,
    /// scheme, host and port, for errors
    market: String,
    signer: Arc<dyn Signer>,
    clock: fn() -> u64,
    /// no call before this, as the market asked
    not_before: Arc<Mutex<Option<Instant>>>,
}

impl fmt::Debug for MarketClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MarketClient")
            .field("market", &self.market)
            .field("key", &self.signer.public())
            .finish_non_exhaustive()
    }
}

impl MarketClient {
    /// A client of the market whose root is `base_url`, which signs as `signer`. The process has installed a rustls
    /// provider before.
    pub fn new(base_url: &str, signer: Arc<dyn Signer>) -> Result<Self, ClientError> {
        let bad = || ClientError::BadAddress {
            // what stands before an @ or after a ? may be a secret
            address: base_url
                .split(['?', '#'])
                .next()
                .and_then(|address| address.rsplit('@').next())
                .unwrap_or_default()
                .to_owned(),
        };
        let mut base = Url::parse(base_url).map_err(|_| bad())?;
        let host = base.host_str().ok_or_else(bad)?;
        let address: Option<IpAddr> = host.trim_matches(['[', ']']).parse().ok();
        let loopback = host == "localhost" || address.is_some_and(|address| address.is_loopback());
        if !matches!(base.scheme(), "http" | "https") || !base.username().is_empty() || base.password().is_some() {
            return Err(bad());
        }
        base.set_query(None);
        base.set_fragment(None);
        base.path_segments_mut().map_err(|()| bad())?.pop_if_empty().push("");
        // A redirect would carry a signed request to another origin.
        let mut http = reqwest::Client::builder()
            .redirect(redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT);
        if loopback {
            http = http.no_proxy();
        }
        for certificate in extra_authorities()? {
            http = http.add_root_certificate(certificate);
        }
        let market = base.origin().ascii_serialization();
        Ok(MarketClient {
            http: http.build().map_err(ClientError::Setup)?,
            base,
            market,
            signer,
            clock: wall_clock,
            not_before: Arc::default(),
        })
    }

    /// The same client with another clock, in milliseconds since 1970: for tests of what a wrong one does.
    #[must_use]
    pub fn with_clock(mut self, clock: fn() -> u64) -> Self {
        self.clock = clock;
        self
    }

    /// The key that this client signs with.
    pub fn key(&self) -> PublicKey {
        self.signer.public()
    }

    /// The market's root.
    pub fn address(&self) -> &str {
        self.base.as_str()
    }

    /// The calls about one ring.
    pub fn ring(&self, ring: &str) -> RingClient {
        RingClient {
            market: self.clone(),
            ring: ring.to_owned(),
        }
    }

    /// The market's clock.
    pub async fn time(&self) -> Result<Time, ClientError> {
        self.rested().await;
        let url = self.url(&["v1", "time"]);
        let answer = self.http.get(url).timeout(CALL_TIMEOUT).send().await;
        let answer = answer.map_err(|source| self.unreachable(source))?;
        if !answer.status().is_success() {
            return Err(self.refused(answer).await);
        }
        self.read(answer).await
    }

    /// Enrols this client's node with an invite; again is as good as once.
    pub async fn enrol(&self, invite: &SecretString, enrolment: &Enrolment) -> Result<Enrolled, ClientError> {
        let call = Request::new(Method::POST, &["v1", "nodes"]).body(enrolment)?;
        let answer = self.send(call.bearer(invite)).await?;
        self.read(answer).await
    }

    /// Makes an invite to a ring of this client's owner.
    pub async fn invite(&self, request: &InviteRequest) -> Result<InviteGranted, ClientError> {
        let call = Request::new(Method::POST, &["v1", "invites"]).body(request)?;
        let answer = self.send(call).await?;
        self.read(answer).await
    }

    /// The coverage and demand map: the rings that this node is enrolled for.
    pub async fn offers(&self) -> Result<Vec<Offer>, ClientError> {
        let answer = self.send(Request::new(Method::GET, &["v1", "rings"])).await?;
        self.read(answer).await
    }

    /// What this node has earned, or what this owner's rings have paid.
    pub async fn ledger(&self) -> Result<Ledger, ClientError> {
        let answer = self.send(Request::new(Method::GET, &["v1", "ledger"])).await?;
        self.read(answer).await
    }

    fn url(&self, path: &[&str]) -> Url {
        let mut url = self.base.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(path);
        }
        url
    }

    /// Waits until the market wants to be called again.
    async fn rested(&self) {
        let not_before = *self.not_before.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(not_before) = not_before {
            tokio::time::sleep_until(not_before.into()).await;
        }
    }

    async fn send(&self, request: Request<'_>) -> Result<Response, ClientError> {
        self.rested().await;
        let mut url = self.url(&request.path);
        if let Some(after) = request.after {
            url.query_pairs_mut().append_pair("after", &after.to_string());
        }
        // The market may be served under a path of its own, which it doesn't know.
        let under = self.base.path().len() - 1;
        let path = &url.path()[under..];
        let target = url
            .query()
            .map_or_else(|| path.to_owned(), |query| format!("{path}?{query}"));
        let call = Call {
            method: request.method.as_str(),
            target: &target,
            body: &request.body,
        };
        let mut nonce = [0; 16];
        getrandom::fill(&mut nonce).map_err(|error| ClientError::Request(error.into()))?;
        let credentials = Credentials::sign(&*self.signer, &call, (self.clock)(), nonce);
        let mut builder = self
            .http
            .request(request.method.clone(), url)
            .timeout(if request.after.is_some() {
                POLL_TIMEOUT
            } else {
                CALL_TIMEOUT
            })
            .headers(credentials.headers());
        if let Some(bearer) = request.bearer {
            builder = builder.bearer_auth(bearer.expose_secret());
        }
        if !request.body.is_empty() {
            builder = builder
                .header(header::CONTENT_TYPE, "application/json")
                .body(request.body);
        }
        let answer = builder.send().await.map_err(|source| self.unreachable(source))?;
        if answer.status().is_success() {
            return Ok(answer);
        }
        let error = self.refused(answer).await;
        if error.reason() == "ClockSkew" {
            return Err(self.skew().await.unwrap_or(error));
        }
        Err(error)
    }

    /// By how much this machine's clock is off, if the market says so.
    async fn skew(&self) -> Option<ClientError> {
        let asked = Instant::now();
        let market = self.time().await.ok()?.now;
        // The market read its clock half a round trip ago, more or less.
        let market = market + asked.elapsed().as_millis() as u64 / 2;
        let ours = (self.clock)();
        Some(ClientError::ClockSkew {
            market: self.market.clone(),
            by: Duration::from_millis(ours.abs_diff(market)),
            ahead: ours > market,
        })
    }

    async fn refused(&self, answer: Response) -> ClientError {
        let (market, status) = (self.market.clone(), answer.status());
        let retry_after = retry_after(&answer);
        if let Some(after) = retry_after.filter(|_| status == StatusCode::TOO_MANY_REQUESTS) {
            let not_before = Instant::now() + after.min(LONGEST_REST);
            *self.not_before.lock().unwrap_or_else(PoisonError::into_inner) = Some(not_before);
        }
        // Something between here and the market may answer with a page: only the market's own words are shown.
        let body = self.body(answer).await.unwrap_or_default();
        if status == StatusCode::CONFLICT
            && let Ok(TakenRefusal { reason, message, open }) = serde_json::from_slice(&body)
        {
            return ClientError::Taken {
                market,
                reason,
                message,
                open,
            };
        }
        let Refusal { reason, message } = serde_json::from_slice(&body).unwrap_or_else(|_| Refusal {
            reason: "MarketRefused".to_owned(),
            message: format!("HTTP status {status}"),
        });
        ClientError::Refused {
            market,
            status: status.as_u16(),
            reason,
            message,
            retry_after,
        }
    }

    async fn read<T: DeserializeOwned>(&self, answer: Response) -> Result<T, ClientError> {
        let body = self.body(answer).await?;
        serde_json::from_slice(&body).map_err(|source| ClientError::BadAnswer {
            market: self.market.clone(),
            source,
        })
    }

    async fn body(&self, mut answer: Response) -> Result<Vec<u8>, ClientError> {
        let mut body = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(|source| self.unreachable(source))? {
            if body.len() + chunk.len() > MAX_ANSWER {
                return Err(ClientError::TooLong {
                    market: self.market.clone(),
                });
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body)
    }

    fn unreachable(&self, source: reqwest::Error) -> ClientError {
        ClientError::Unreachable {
            market: self.market.clone(),
            source: source.without_url(),
        }
    }
}

/// One ring's market.
#[derive(Clone, Debug)]
pub struct RingClient {
    market: MarketClient,
    ring: String,
}

impl RingClient {
    /// The client of the whole market.
    pub fn market(&self) -> &MarketClient {
        &self.market
    }

    /// The ring's name.
    pub fn name(&self) -> &str {
        &self.ring
    }

    /// Owner: what the ring wants.
    pub async fn demand(&self, demand: &Demand) -> Result<(), ClientError> {
        self.put(&[], demand).await.map(drop)
    }

    /// Owner: the ring is no more.
    pub async fn withdraw(&self) -> Result<(), ClientError> {
        self.send(Method::DELETE, &[]).await.map(drop)
    }

    /// Claims a run of windows.
    pub async fn claim(&self, request: &ClaimRequest) -> Result<Claim, ClientError> {
        self.post("claims", request).await
    }

    /// Says how the stage that holds a claim stands, which renews the claim.
    pub async fn renew(&self, claim: u64, report: &StageReport) -> Result<Renewed, ClientError> {
        let answer = self.put(&["claims", &claim.to_string()], report).await?;
        self.market.read(answer).await
    }

    /// Gives a claim back.
    pub async fn leave(&self, claim: u64) -> Result<(), ClientError> {
        self.send(Method::DELETE, &["claims", &claim.to_string()])
            .await
            .map(drop)
    }

    /// The next manifest for rank 0 to sign, once there is one above `after`; none when nothing came up in 25 s.
    pub async fn proposal(&self, after: u64) -> Result<Option<Proposal>, ClientError> {
        self.poll("proposal", after).await
    }

    /// Publishes what rank 0 signed.
    pub async fn publish(&self, signed: &SignedManifest) -> Result<(), ClientError> {
        self.put(&["manifest"], signed).await.map(drop)
    }

    /// The published manifest, once there is one above `after`; none when nothing came up in 25 s. Not yet verified.
    pub async fn manifest(&self, after: u64) -> Result<Option<SignedManifest>, ClientError> {
        self.poll("manifest", after).await
    }

    /// Rank 0: how many positions came home in an epoch.
    pub async fn positions(&self, positions: &Positions) -> Result<Committed, ClientError> {
        self.post("positions", positions).await
    }

    /// A ticket for one end of a relayed edge.
    pub async fn ticket(&self, request: &TicketRequest) -> Result<TicketGranted, ClientError> {
        self.post("tickets", request).await
    }

    /// The ring as the market sees it.
    pub async fn status(&self) -> Result<RingStatus, ClientError> {
        let answer = self.send(Method::GET, &["status"]).await?;
        self.market.read(answer).await
    }

    async fn poll<T: DeserializeOwned>(&self, what: &str, after: u64) -> Result<Option<T>, ClientError> {
        let mut request = self.request(Method::GET, &[what]);
        request.after = Some(after);
        let answer = self.market.send(request).await?;
        if answer.status() == StatusCode::NO_CONTENT {
            return Ok(None);
        }
        self.market.read(answer).await.map(Some)
    }

    async fn post<T: DeserializeOwned>(&self, what: &str, body: &impl Serialize) -> Result<T, ClientError> {
        let request = self.request(Method::POST, &[what]).body(body)?;
        let answer = self.market.send(request).await?;
        self.market.read(answer).await
    }

    async fn put(&self, path: &[&str], body: &impl Serialize) -> Result<Response, ClientError> {
        self.market.send(self.request(Method::PUT, path).body(body)?).await
    }

    async fn send(&self, method: Method, path: &[&str]) -> Result<Response, ClientError> {
        self.market.send(self.request(method, path)).await
    }

    fn request<'a>(&'a self, method: Method, path: &[&'a str]) -> Request<'a> {
        let mut request = Request::new(method, &["v1", "rings", &self.ring]);
        request.path.extend(path);
        request
    }
}

struct Request<'a> {
    method: Method,
    path: Vec<&'a str>,
    /// a long poll, for what is newer than this epoch
    after: Option<u64>,
    bearer: Option<&'a SecretString>,
    body: Vec<u8>,
}

impl<'a> Request<'a> {
    fn new(method: Method, path: &[&'a str]) -> Self {
        Request {
            method,
            path: path.to_vec(),
            after: None,
            bearer: None,
            body: Vec::new(),
        }
    }

    fn body(mut self, body: &impl Serialize) -> Result<Self, ClientError> {
        self.body = serde_json::to_vec(body).map_err(|error| ClientError::Request(error.into()))?;
        Ok(self)
    }

    fn bearer(mut self, token: &'a SecretString) -> Self {
        self.bearer = Some(token);
        self
    }
}

/// `Retry-After` in seconds; as a date, which no market sends, it is passed over.
fn retry_after(answer: &Response) -> Option<Duration> {
    let value = answer.headers().get(header::RETRY_AFTER)?;
    value.to_str().ok()?.trim().parse().ok().map(Duration::from_secs)
}

fn wall_clock() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_millis() as u64)
}
/// Authorities beside the system's, in the PEM file that [`CA_FILE_VARIABLE`] names.
fn extra_authorities() -> Result<Vec<reqwest::Certificate>, ClientError> {
    let Some(path) = std::env::var_os(CA_FILE_VARIABLE).filter(|path| !path.is_empty()) else {
        return Ok(Vec::new());
    };
    let path = std::path::PathBuf::from(path);
    let pem = std::fs::read(&path).map_err(|source| ClientError::Authorities {
        path: path.clone(),
        source: source.into(),
    })?;
    reqwest::Certificate::from_pem_bundle(&pem).map_err(|source| ClientError::Authorities {
        path,
        source: source.into(),
    })
}
