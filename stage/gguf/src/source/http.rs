//! Reads ranges over HTTP from servers as they are.
//!
//! Redirects are followed here, not by the client: the token stays with the origin (scheme, host and port), Range is
//! kept, and TLS is never given up. Where an origin redirects, the address that it led to (often signed, and good for
//! minutes) is kept in memory and used until it is refused; then the origin is asked again.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use reqwest::header::{
    ACCEPT_ENCODING, AUTHORIZATION, CONTENT_ENCODING, CONTENT_RANGE, ETAG, HeaderMap, HeaderName, HeaderValue,
    IF_RANGE, LOCATION, RANGE, RETRY_AFTER,
};
use reqwest::redirect::Policy;
use reqwest::{Client, Response, StatusCode, Url};
use secrecy::{ExposeSecret, SecretString};

use super::retry::{Patience, Tries, retry_after};
use super::{Access, Error, RangeBody, RangeReader};
use crate::parts::part_names;

/// Redirects followed for one request.
const MOST_HOPS: usize = 8;
/// Time for a connection to come about.
const CONNECT: Duration = Duration::from_secs(15);
/// Time without a byte after which an answer is given up.
const SILENCE: Duration = Duration::from_secs(30);
/// A broken answer that brought this much is progress, not a failed try.
const PROGRESS: u64 = 1 << 20;
/// Commit that a hub's answer is of.
const COMMIT: HeaderName = HeaderName::from_static("x-repo-commit");

/// The parts of a model on a server.
#[derive(Debug)]
pub(super) struct HttpReader {
    client: Client,
    parts: Vec<HttpPart>,
    token: Option<SecretString>,
    patience: Patience,
    revision: Mutex<String>,
}

#[derive(Debug)]
struct HttpPart {
    url: Url,
    seen: Mutex<Seen>,
}

/// What earlier answers taught.
#[derive(Clone, Debug, Default)]
struct Seen {
    size: Option<u64>,
    validator: Option<HeaderValue>,
    /// where the origin redirected to; may carry a signature, so it is neither stored nor shown
    led_to: Option<Url>,
}

/// An answer that holds bytes from the start of the range that was asked for.
struct Answer {
    response: Response,
    size: u64,
    /// one past the last byte that it should bring
    end: u64,
}

/// Why a request brought nothing.
enum Failure {
    Final(Error),
    /// worth another try, after the pause that the server told
    Again(Option<Duration>, Cause),
}

enum Cause {
    Network(reqwest::Error),
    Truncated,
    Status(StatusCode),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Final(error)
    }
}

impl HttpReader {
    pub(super) fn new(url: &str, access: &Access) -> Result<HttpReader, Error> {
        let url = parse(url)?;
        let urls = part_names(url.path()).into_iter().map(|path| {
            let mut part = url.clone();
            part.set_path(&path);
            part
        });
        HttpReader::with_parts(urls.collect(), String::new(), access)
    }

    pub(super) fn hugging_face(repo: &str, file: &str, revision: &str, access: &Access) -> Result<HttpReader, Error> {
        let hub = parse(&access.hub)?;
        let urls = part_names(file).into_iter().map(|file| {
            let mut url = hub.clone();
            let no_base = || Error::Address {
                url: shown(&hub),
                problem: "it can't have a path".into(),
            };
            let mut path = url.path_segments_mut().map_err(|()| no_base())?;
            path.pop_if_empty()
                .extend(repo.split('/'))
                .push("resolve")
                .push(revision)
                .extend(file.split('/'));
            drop(path);
            Ok(url)
        });
        HttpReader::with_parts(urls.collect::<Result<_, Error>>()?, revision.into(), access)
    }

    fn with_parts(urls: Vec<Url>, revision: String, access: &Access) -> Result<HttpReader, Error> {
        let client = Client::builder()
            .redirect(Policy::none())
            .connect_timeout(CONNECT)
            .read_timeout(SILENCE)
            .user_agent(concat!("kvasir/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(Error::Client)?;
        let parts = urls
            .into_iter()
            .map(|url| HttpPart {
                url,
                seen: Mutex::default(),
            })
            .collect();
        let (token, patience) = (access.token.clone(), access.patience);
        Ok(HttpReader {
            client,
            parts,
            token,
            patience,
            revision: Mutex::new(revision),
        })
    }

    /// Asks until there is an answer or no try is left.
    async fn request(&self, part: &HttpPart, range: &Range<u64>, tries: &mut Tries) -> Result<Answer, Error> {
        loop {
            match self.attempt(part, range).await {
                Ok(answer) => return Ok(answer),
                Err(Failure::Final(error)) => return Err(error),
                Err(Failure::Again(told, cause)) => part.wait(tries, told, cause).await?,
            }
        }
    }

    /// One request, with all redirects.
    async fn attempt(&self, part: &HttpPart, range: &Range<u64>) -> Result<Answer, Failure> {
        let led_to = part.seen().led_to.clone();
        if let Some(url) = led_to {
            let followed = self.follow(part, url, Some(range), false).await;
            let refused = |status: StatusCode| status.is_client_error() && status != StatusCode::TOO_MANY_REQUESTS;
            match followed {
                Ok((response, _)) if !refused(response.status()) => return self.judge(part, response, range).await,
                // the signature ran out, or the server is gone: the origin knows another
                _ => part.seen().led_to = None,
            }
        }
        let (response, url) = self.follow(part, part.url.clone(), Some(range), true).await?;
        let answer = self.judge(part, response, range).await?;
        if url != part.url {
            part.seen().led_to = Some(url);
        }
        Ok(answer)
    }

    /// Sends a request and goes where it is redirected to. `trusted`: `url` is the origin's own, which gets the token.
    async fn follow(
        &self,
        part: &HttpPart,
        mut url: Url,
        range: Option<&Range<u64>>,
        mut trusted: bool,
    ) -> Result<(Response, Url), Failure> {
        let validator = part.seen().validator.clone();
        for _ in 0..=MOST_HOPS {
            let mut request = self.client.get(url.clone()).header(ACCEPT_ENCODING, "identity");
            if let Some(range) = range {
                request = request.header(RANGE, format!("bytes={}-{}", range.start, range.end.saturating_sub(1)));
                if let Some(validator) = &validator {
                    request = request.header(IF_RANGE, validator);
                }
            }
            if let Some(token) = self.token.as_ref().filter(|_| trusted) {
                let bearer = HeaderValue::try_from(format!("Bearer {}", token.expose_secret()));
                let mut bearer = bearer.map_err(|_| Error::TokenRefused { url: part.shown() })?;
                bearer.set_sensitive(true);
                request = request.header(AUTHORIZATION, bearer);
            }
            let response = request
                .send()
                .await
                .map_err(|error| Failure::Again(None, Cause::Network(error)))?;
            if let Some(commit) = text(response.headers(), &COMMIT) {
                commit.clone_into(&mut lock(&self.revision));
            }
            if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
                return Ok((response, url));
            }
            let next = redirected(&url, text(response.headers(), &LOCATION)).map_err(|problem| Error::Redirect {
                url: part.shown(),
                problem,
            })?;
            trusted &= next.origin() == part.url.origin();
            url = next;
        }
        Err(Error::Redirect {
            url: part.shown(),
            problem: format!("more than {MOST_HOPS} times"),
        }
        .into())
    }

    /// Decides what an answer is good for.
    async fn judge(&self, part: &HttpPart, response: Response, range: &Range<u64>) -> Result<Answer, Failure> {
        let url = part.shown();
        let status = response.status();
        match status.as_u16() {
            206 => part.accept(response, range).map_err(Failure::Final),
            200 => part.accept_whole(response, range).map_err(Failure::Final),
            416 => self.unsatisfiable(part, response, range).await,
            401 if self.token.is_some() => Err(Error::TokenRefused { url }.into()),
            401 => Err(Error::TokenMissing { url }.into()),
            403 => Err(Error::Forbidden { url }.into()),
            404 | 410 => Err(Error::NotFound { url }.into()),
            408 | 425 | 429 | 500 | 502..=504 => {
                let told = text(response.headers(), &RETRY_AFTER)
                    .and_then(|header| retry_after(header, jiff::Timestamp::now()));
                Err(Failure::Again(told, Cause::Status(status)))
            }
            status => Err(Error::Status { url, status }.into()),
        }
    }

    /// 416: some servers answer so when a range only reaches past the end of a short file.
    async fn unsatisfiable(&self, part: &HttpPart, response: Response, range: &Range<u64>) -> Result<Answer, Failure> {
        let url = part.shown();
        let size = text(response.headers(), &CONTENT_RANGE)
            .and_then(|value| value.trim().strip_prefix("bytes */")?.trim().parse::<u64>().ok());
        match size {
            Some(size) if range.start >= size => Err(Error::Incomplete {
                url,
                size,
                needed: range.end,
            }
            .into()),
            Some(size) if range.end > size => {
                let within = range.start..size;
                let (response, _) = self.follow(part, part.url.clone(), Some(&within), true).await?;
                if response.status() == StatusCode::PARTIAL_CONTENT {
                    return part.accept(response, &within).map_err(Failure::Final);
                }
                Err(Error::Status {
                    url,
                    status: response.status().as_u16(),
                }
                .into())
            }
            None if range.start == 0 => {
                let (response, _) = self.follow(part, part.url.clone(), None, true).await?;
                if response.status() == StatusCode::OK {
                    return part.accept_whole(response, range).map_err(Failure::Final);
                }
                Err(Error::Status {
                    url,
                    status: response.status().as_u16(),
                }
                .into())
            }
            _ => Err(Error::Status { url, status: 416 }.into()),
        }
    }
}

impl HttpPart {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        lock(&self.seen)
    }

    fn shown(&self) -> String {
        shown(&self.url)
    }

    /// Counts a failure and waits before the next try; an error when it was the last.
    async fn wait(&self, tries: &mut Tries, told: Option<Duration>, cause: Cause) -> Result<(), Error> {
        let pause = tries.failed(told);
        let (url, tries) = (self.shown(), tries.made());
        let error = match cause {
            Cause::Network(source) => Error::Unreachable {
                url,
                tries,
                source: source.without_url(),
            },
            Cause::Truncated => Error::Truncated { url, tries },
            Cause::Status(status) => Error::Busy {
                url,
                status: status.as_u16(),
                tries,
            },
        };
        let Some(pause) = pause else { return Err(error) };
        tracing::warn!(%error, ?pause, "trying again");
        tokio::time::sleep(pause).await;
        Ok(())
    }

    /// A 206 with the bytes that were asked for, or the first of them.
    fn accept(&self, response: Response, range: &Range<u64>) -> Result<Answer, Error> {
        let wrong = |problem: &str| Error::Protocol {
            url: self.shown(),
            problem: problem.into(),
        };
        if response.headers().contains_key(CONTENT_ENCODING) {
            return Err(wrong("the body is encoded"));
        }
        let content = text(response.headers(), &CONTENT_RANGE).ok_or_else(|| wrong("there is no Content-Range"))?;
        let (found, size) = content_range(content).ok_or_else(|| wrong("the Content-Range can't be read"))?;
        let size = size
            .or(self.seen().size)
            .ok_or_else(|| wrong("the Content-Range doesn't tell the file's size"))?;
        if found.start != range.start || found.end > range.end.min(size) || found.is_empty() {
            return Err(wrong("it sends another range than it was asked for"));
        }
        self.check_version(response.headers(), size)?;
        Ok(Answer {
            response,
            size,
            end: found.end,
        })
    }

    /// A 200: good only where the range is the whole file anyhow.
    fn accept_whole(&self, response: Response, range: &Range<u64>) -> Result<Answer, Error> {
        let url = self.shown();
        let (before, now) = (self.seen().validator.clone(), strong_validator(response.headers()));
        if before.is_some() && now.is_some() && before != now {
            return Err(Error::Changed { url });
        }
        match response.content_length() {
            Some(size)
                if range.start == 0 && size <= range.end && !response.headers().contains_key(CONTENT_ENCODING) =>
            {
                self.check_version(response.headers(), size)?;
                Ok(Answer {
                    response,
                    size,
                    end: size,
                })
            }
            _ => Err(Error::NoRanges { url }),
        }
    }

    /// All answers of one download must be of one version of the file.
    fn check_version(&self, headers: &HeaderMap, size: u64) -> Result<(), Error> {
        let mut seen = self.seen();
        let validator = strong_validator(headers);
        let other = |a: &Option<HeaderValue>, b: &Option<HeaderValue>| a.is_some() && b.is_some() && a != b;
        if seen.size.is_some_and(|before| before != size) || other(&seen.validator, &validator) {
            return Err(Error::Changed { url: self.shown() });
        }
        seen.size = Some(size);
        seen.validator = seen.validator.take().or(validator);
        Ok(())
    }
}

#[async_trait]
impl RangeReader for HttpReader {
    fn parts(&self) -> Vec<String> {
        self.parts.iter().map(HttpPart::shown).collect()
    }

    async fn open(&self, part: usize, range: Range<u64>) -> Result<Box<dyn RangeBody + '_>, Error> {
        let part = &self.parts[part];
        let mut tries = Tries::new(self.patience);
        let answer = self.request(part, &range, &mut tries).await?;
        let (at, end, size) = (range.start, range.end.min(answer.size), answer.size);
        Ok(Box::new(HttpBody {
            reader: self,
            part,
            at,
            end,
            size,
            brought: 0,
            answer: Some(answer),
            tries,
        }))
    }

    fn validator(&self, part: usize) -> Option<String> {
        let seen = self.parts[part].seen();
        Some(seen.validator.as_ref()?.to_str().ok()?.to_owned())
    }

    fn revision(&self) -> String {
        lock(&self.revision).clone()
    }
}

/// A range that goes on after broken answers from the last good byte.
struct HttpBody<'a> {
    reader: &'a HttpReader,
    part: &'a HttpPart,
    at: u64,
    end: u64,
    size: u64,
    /// bytes of the running answer
    brought: u64,
    answer: Option<Answer>,
    tries: Tries,
}

#[async_trait]
impl RangeBody for HttpBody<'_> {
    fn file_size(&self) -> u64 {
        self.size
    }

    async fn chunk(&mut self) -> Result<Option<Bytes>, Error> {
        while self.at < self.end {
            let answer = match &mut self.answer {
                Some(answer) => answer,
                None => {
                    let answer = self
                        .reader
                        .request(self.part, &(self.at..self.end), &mut self.tries)
                        .await?;
                    self.brought = 0;
                    self.answer.insert(answer)
                }
            };
            let cause = match answer.response.chunk().await {
                Ok(Some(mut bytes)) => {
                    // a server that sends more than it announced is cut short
                    bytes.truncate((answer.end - self.at).min(bytes.len() as u64) as usize);
                    self.at += bytes.len() as u64;
                    self.brought += bytes.len() as u64;
                    if self.at == answer.end {
                        self.answer = None;
                    }
                    return Ok(Some(bytes));
                }
                Ok(None) => Cause::Truncated,
                Err(error) => Cause::Network(error),
            };
            self.answer = None;
            if self.brought >= PROGRESS {
                self.tries.forgive();
            }
            self.part.wait(&mut self.tries, None, cause).await?;
        }
        Ok(None)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn parse(url: &str) -> Result<Url, Error> {
    let wrong = |problem: String| Error::Address {
        url: url.split(['?', '#']).next().unwrap_or("").into(),
        problem,
    };
    let parsed = Url::parse(url).map_err(|error| wrong(error.to_string()))?;
    if !matches!(parsed.scheme(), "http" | "https") {
        return Err(wrong(format!("{} is neither http nor https", parsed.scheme())));
    }
    if !parsed.username().is_empty() || parsed.password().is_some() {
        let problem = "it holds a user or password; give a token instead".into();
        return Err(Error::Address {
            url: shown(&parsed),
            problem,
        });
    }
    Ok(parsed)
}

/// An address without what may be secret in it.
fn shown(url: &Url) -> String {
    format!("{}{}", url.origin().ascii_serialization(), url.path())
}

/// Where a redirect leads, if it may be followed; else why not.
fn redirected(from: &Url, location: Option<&str>) -> Result<Url, String> {
    let location = location.ok_or("without saying where")?;
    let next = from.join(location).map_err(|_| "to something that is no address")?;
    match (from.scheme(), next.scheme()) {
        ("https", "http") => Err(format!("from https to http, to {}: not followed", shown(&next))),
        (_, "http" | "https") => Ok(next),
        (_, scheme) => Err(format!("to {scheme}: not followed")),
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// An `ETag` that promises equal bytes.
fn strong_validator(headers: &HeaderMap) -> Option<HeaderValue> {
    headers
        .get(ETAG)
        .filter(|tag| !tag.as_bytes().starts_with(b"W/"))
        .cloned()
}

/// Bytes and file size of `bytes FIRST-LAST/SIZE`, where the size may be `*`.
fn content_range(value: &str) -> Option<(Range<u64>, Option<u64>)> {
    let (range, size) = value.trim().strip_prefix("bytes ")?.trim().split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let end = last.trim().parse::<u64>().ok()?.checked_add(1)?;
    let size = if size.trim() == "*" {
        None
    } else {
        Some(size.trim().parse().ok()?)
    };
    Some((first.trim().parse().ok()?..end, size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b6_tls_is_never_given_up() {
        let from = Url::parse("https://host/a/m.gguf?token=secret").unwrap();
        let leads = |location| redirected(&from, Some(location)).map(String::from);
        for location in ["http://host/m.gguf?s=secret", "http://host:443/m.gguf", "HTTP://other/"] {
            let problem = leads(location).unwrap_err();
            assert!(
                problem.contains("from https to http") && !problem.contains("secret"),
                "{problem}"
            );
        }
        assert_eq!(leads("https://cdn/x?s=1").unwrap(), "https://cdn/x?s=1");
        assert_eq!(leads("//cdn/x").unwrap(), "https://cdn/x");
        assert_eq!(leads("../b").unwrap(), "https://host/b");
        assert!(leads("file:///etc/passwd").is_err());
        assert!(redirected(&from, None).is_err());
    }

    #[test]
    fn content_ranges_are_read_exactly() {
        assert_eq!(content_range("bytes 0-9/100"), Some((0..10, Some(100))));
        assert_eq!(content_range("bytes 5-5/*"), Some((5..6, None)));
        for wrong in [
            "bytes 0-9",
            "0-9/100",
            "bytes */100",
            "bytes 0-18446744073709551615/5",
            "bytes a-b/c",
            "",
        ] {
            assert_eq!(content_range(wrong), None, "{wrong}");
        }
    }
}
