//! A stage's line to the market: reports, proposals, manifests. Retries are the caller's.

use std::{net::IpAddr, time::Duration};

use kvasir_wire::trust::SignedManifest;
use reqwest::{Method, RequestBuilder, Response, StatusCode, Url, redirect};
use secrecy::{ExposeSecret, SecretString};
use serde::de::DeserializeOwned;

use crate::types::{BoardStatus, Proposal, Refusal, StageReport};

/// The market answers polls within 25 s; a proxy or a slow link may add some.
const POLL_TIMEOUT: Duration = Duration::from_secs(40);
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Answers longer than this are refused: a manifest of a few hundred ranks is some 300 KiB.
const MAX_ANSWER: usize = 1 << 20;

/// Why a call to the market failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// the address is no http or https URL
    #[error("the market's address {address:?} is not an http or https URL")]
    BadAddress {
        /// address as given
        address: String,
    },
    /// the HTTP client can't be set up
    #[error("can't set up an HTTP client for the market")]
    Setup(#[source] reqwest::Error),
    /// no answer: worth another try
    #[error("the market at {market} does not answer")]
    Unreachable {
        /// scheme, host and port
        market: String,
        /// what failed
        #[source]
        source: reqwest::Error,
    },
    /// the market says no
    #[error("the market at {market} refuses ({reason}): {message}")]
    Refused {
        /// scheme, host and port
        market: String,
        /// HTTP status
        status: u16,
        /// the market's own word for it
        reason: String,
        /// the market's text
        message: String,
    },
    /// an answer longer than any real one
    #[error("the market at {market} answers with more than {MAX_ANSWER} bytes")]
    TooLong {
        /// scheme, host and port
        market: String,
    },
    /// the answer isn't what the call returns
    #[error("the market at {market} gives an answer that can't be read")]
    BadAnswer {
        /// scheme, host and port
        market: String,
        /// what is wrong with it
        #[source]
        source: serde_json::Error,
    },
}

impl ClientError {
    /// Stable `PascalCase` word for metrics, events and conditions; a refusal carries the market's own.
    pub fn reason(&self) -> &str {
        match self {
            ClientError::BadAddress { .. } => "BadMarketAddress",
            ClientError::Setup(_) => "ClientSetupFailed",
            ClientError::Unreachable { .. } => "MarketUnreachable",
            ClientError::Refused { reason, .. } => reason,
            ClientError::TooLong { .. } => "AnswerTooLong",
            ClientError::BadAnswer { .. } => "BadAnswer",
        }
    }

    /// Whether the same call may succeed later: the market was not reached, was busy or failed.
    pub fn retryable(&self) -> bool {
        match self {
            ClientError::Unreachable { .. } => true,
            ClientError::Refused { status, .. } => *status == 429 || *status >= 500,
            _ => false,
        }
    }
}

/// One ring's market, as its stages reach it.
#[derive(Clone, Debug)]
pub struct MarketClient {
    http: reqwest::Client,
    /// `…/v1/rings/{ring}`
    ring: Url,
    /// scheme, host and port, for errors
    market: String,
    token: Option<SecretString>,
}

impl MarketClient {
    /// A client for `ring` at the market whose root is `base_url`; `token` goes into each call's header.
    /// The process has installed a rustls provider before.
    pub fn new(base_url: &str, ring: &str, token: Option<SecretString>) -> Result<Self, ClientError> {
        let bad = || ClientError::BadAddress {
            address: base_url.to_owned(),
        };
        let mut url = Url::parse(base_url).map_err(|_| bad())?;
        let host = url.host_str().ok_or_else(bad)?;
        let address: Option<IpAddr> = host.trim_matches(['[', ']']).parse().ok();
        let loopback = host == "localhost" || address.is_some_and(|address| address.is_loopback());
        if !matches!(url.scheme(), "http" | "https") || !url.username().is_empty() || url.password().is_some() {
            return Err(bad());
        }
        url.set_query(None);
        url.path_segments_mut()
            .map_err(|()| bad())?
            .pop_if_empty()
            .extend(["v1", "rings", ring]);
        // A redirect would carry the token to another origin.
        let mut http = reqwest::Client::builder()
            .redirect(redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT);
        if loopback {
            http = http.no_proxy();
        }
        let market = url.origin().ascii_serialization();
        Ok(MarketClient {
            http: http.build().map_err(ClientError::Setup)?,
            ring: url,
            market,
            token,
        })
    }

    /// Says how the stage of `rank` stands.
    pub async fn report(&self, rank: u32, report: &StageReport) -> Result<(), ClientError> {
        let path = ["ranks", &rank.to_string()];
        self.send(self.request(Method::PUT, &path, CALL_TIMEOUT).json(report))
            .await
            .map(drop)
    }

    /// The next manifest for rank 0 to sign, once there is one above `after`; none when nothing came up in 25 s.
    pub async fn proposal(&self, after: u64) -> Result<Option<Proposal>, ClientError> {
        self.poll("proposal", after).await
    }

    /// Publishes what rank 0 signed.
    pub async fn publish(&self, signed: &SignedManifest) -> Result<(), ClientError> {
        self.send(self.request(Method::PUT, &["manifest"], CALL_TIMEOUT).json(signed))
            .await
            .map(drop)
    }

    /// The published manifest, once there is one above `after`; none when nothing came up in 25 s. Not yet verified.
    pub async fn manifest(&self, after: u64) -> Result<Option<SignedManifest>, ClientError> {
        self.poll("manifest", after).await
    }

    /// The ring as the market sees it.
    pub async fn status(&self) -> Result<BoardStatus, ClientError> {
        let response = self.send(self.request(Method::GET, &["status"], CALL_TIMEOUT)).await?;
        self.read(response).await
    }

    async fn poll<T: DeserializeOwned>(&self, what: &str, after: u64) -> Result<Option<T>, ClientError> {
        let request = self
            .request(Method::GET, &[what], POLL_TIMEOUT)
            .query(&[("after", after)]);
        let response = self.send(request).await?;
        if response.status() == StatusCode::NO_CONTENT {
            return Ok(None);
        }
        self.read(response).await.map(Some)
    }

    fn request(&self, method: Method, path: &[&str], timeout: Duration) -> RequestBuilder {
        let mut url = self.ring.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.extend(path);
        }
        let request = self.http.request(method, url).timeout(timeout);
        match &self.token {
            Some(token) => request.bearer_auth(token.expose_secret()),
            None => request,
        }
    }

    async fn send(&self, request: RequestBuilder) -> Result<Response, ClientError> {
        let response = request.send().await.map_err(|source| self.unreachable(source))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        // Something between here and the market may answer with a page: only the market's own words are shown.
        let refusal = self
            .body(response)
            .await
            .ok()
            .and_then(|body| serde_json::from_slice(&body).ok());
        let Refusal { reason, message } = refusal.unwrap_or_else(|| Refusal {
            reason: "MarketRefused".to_owned(),
            message: format!("HTTP status {status}"),
        });
        Err(ClientError::Refused {
            market: self.market.clone(),
            status: status.as_u16(),
            reason,
            message,
        })
    }

    async fn read<T: DeserializeOwned>(&self, response: Response) -> Result<T, ClientError> {
        let body = self.body(response).await?;
        serde_json::from_slice(&body).map_err(|source| ClientError::BadAnswer {
            market: self.market.clone(),
            source,
        })
    }

    async fn body(&self, mut response: Response) -> Result<Vec<u8>, ClientError> {
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|source| self.unreachable(source))? {
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
