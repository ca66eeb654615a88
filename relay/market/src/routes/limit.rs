//! How often one caller may call: so many calls at once, and one every so often after them, by key for signed calls, and by
//! address for those that nobody has signed or that turn out to be nobody's here. A long poll is one call.
//!
//! A signature is checked before it counts, so nobody uses up another's calls. Whoever makes up keys without end has
//! one address, and there only keys that were let in before are heard once its calls are used up.

use std::{
    collections::{HashMap, HashSet},
    hash::Hash,
    net::{IpAddr, SocketAddr},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use axum::{
    extract::ConnectInfo,
    http::{Extensions, HeaderMap},
};
use kvasir_wire::trust::PublicKey;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};

/// Callers whose calls are remembered, of each kind. Those who called long ago aren't.
const REMEMBERED: usize = 100_000;
/// Below so many it is no use to look for those who called long ago.
const FEW: usize = 1024;
/// Told to a new caller where as many as are remembered call all the time.
const CROWDED: Duration = Duration::from_secs(1);

/// So many calls at once, and one every so often after them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// calls at once, after a while without any; at least 1
    pub burst: u32,
    /// time until there is another
    pub every: Duration,
}

/// The rates of a market.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimits {
    /// of one key. A stage calls every few seconds, and some hundred times while it fetches a small window
    pub key: Rate,
    /// of one address, for calls that nobody let in has signed
    pub address: Rate,
}

impl Default for RateLimits {
    fn default() -> Self {
        RateLimits {
            key: Rate {
                burst: 500,
                every: Duration::from_millis(10),
            },
            address: Rate {
                burst: 200,
                every: Duration::from_millis(50),
            },
        }
    }
}

/// Too many calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Limited {
    #[error("this key may make {} calls at once, and then one every {:?}: call again in {} s",
        rate.burst, rate.every, seconds(*retry_after))]
    Key { rate: Rate, retry_after: Duration },
    #[error("this address may make {} calls at once that no member has signed, and then one every {:?}: \
        call again in {} s", rate.burst, rate.every, seconds(*retry_after))]
    Address { rate: Rate, retry_after: Duration },
}

impl Limited {
    pub(super) fn reason(self) -> &'static str {
        match self {
            Limited::Key { .. } => "TooManyCallsOfKey",
            Limited::Address { .. } => "TooManyCallsOfAddress",
        }
    }

    /// Whole seconds for the header `Retry-After`.
    pub(super) fn retry_after_s(self) -> u64 {
        let (Limited::Key { retry_after, .. } | Limited::Address { retry_after, .. }) = self;
        seconds(retry_after)
    }
}

/// Rounded up: who comes a little early is refused again.
fn seconds(duration: Duration) -> u64 {
    duration.as_secs() + u64::from(duration.subsec_nanos() > 0)
}

/// Calls by caller. Pure: time is an argument.
#[derive(Debug)]
struct Buckets<K> {
    rate: Rate,
    /// by caller: when all its calls are there again
    full_at: HashMap<K, Instant>,
    /// callers who called long ago are looked for at this number
    sweep_at: usize,
}

impl<K: Copy + Eq + Hash> Buckets<K> {
    fn new(rate: Rate) -> Self {
        Buckets {
            rate: Rate {
                burst: rate.burst.max(1),
                ..rate
            },
            full_at: HashMap::new(),
            sweep_at: FEW,
        }
    }

    /// Time until the next call; none when there is one now.
    fn missing(&self, caller: &K, now: Instant) -> Option<Duration> {
        let full_at = self.full_at.get(caller)?;
        let Rate { burst, every } = self.rate;
        let spent = full_at.saturating_duration_since(now) + every;
        spent.checked_sub(every * burst).filter(|left| !left.is_zero())
    }

    /// Takes a call, or says when there is one.
    fn take(&mut self, caller: K, now: Instant) -> Result<(), Duration> {
        if let Some(left) = self.missing(&caller, now) {
            return Err(left);
        }
        if !self.full_at.contains_key(&caller) && self.full_at.len() >= self.sweep_at {
            self.full_at.retain(|_, full_at| *full_at > now);
            self.sweep_at = (2 * self.full_at.len()).clamp(FEW, REMEMBERED);
            if self.full_at.len() >= REMEMBERED {
                return Err(CROWDED);
            }
        }
        let full_at = self.full_at.entry(caller).or_insert(now);
        *full_at = (*full_at).max(now) + self.rate.every;
        Ok(())
    }
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
}

/// The calls of a market's callers, and what was refused.
#[derive(Debug)]
pub(super) struct Limiter {
    keys: Mutex<Buckets<PublicKey>>,
    addresses: Mutex<Buckets<IpAddr>>,
    /// keys that were let in
    known: Mutex<HashSet<PublicKey>>,
    refused: Family<Reason, Counter>,
}

impl Limiter {
    pub(super) fn new(limits: RateLimits) -> Self {
        Limiter {
            keys: Mutex::new(Buckets::new(limits.key)),
            addresses: Mutex::new(Buckets::new(limits.address)),
            known: Mutex::default(),
            refused: Family::default(),
        }
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        let market = registry.sub_registry_with_prefix("kvasir_market");
        market.register("limited_calls", "Calls above a rate, by reason", self.refused.clone());
    }

    /// Takes a call of a key whose signature was found right.
    pub(super) fn signed(&self, key: PublicKey) -> Result<(), Limited> {
        let mut keys = lock(&self.keys);
        let rate = keys.rate;
        let taken = keys.take(key, Instant::now());
        taken.map_err(|retry_after| self.count(Limited::Key { rate, retry_after }))
    }

    /// Takes a call that nobody let in has signed.
    pub(super) fn strange(&self, address: IpAddr) -> Result<(), Limited> {
        let mut addresses = lock(&self.addresses);
        let rate = addresses.rate;
        let taken = addresses.take(address, Instant::now());
        taken.map_err(|retry_after| self.count(Limited::Address { rate, retry_after }))
    }

    /// Whether a caller that signs as `key` is heard: there is no use in checking the signatures of strangers when their
    /// address has no calls left.
    pub(super) fn heard(&self, key: PublicKey, address: IpAddr) -> Result<(), Limited> {
        if lock(&self.known).contains(&key) {
            return Ok(());
        }
        let addresses = lock(&self.addresses);
        let rate = addresses.rate;
        match addresses.missing(&address, Instant::now()) {
            Some(retry_after) => Err(self.count(Limited::Address { rate, retry_after })),
            None => Ok(()),
        }
    }

    /// A call of the key was let in.
    pub(super) fn let_in(&self, key: PublicKey) {
        let mut known = lock(&self.known);
        if known.len() >= REMEMBERED && !known.contains(&key) {
            known.clear();
        }
        known.insert(key);
    }

    fn count(&self, limited: Limited) -> Limited {
        let reason = limited.reason();
        self.refused.get_or_create(&Reason { reason }).inc();
        limited
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is kept is whole after every step, so a lock that a panic poisoned still guards it.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where a call comes from: the peer, or whom a proxy on this machine says that it has it from. None where the server
/// doesn't say.
pub(super) fn address(extensions: &Extensions, headers: &HeaderMap) -> Option<IpAddr> {
    let ConnectInfo(peer) = extensions.get::<ConnectInfo<SocketAddr>>()?;
    let peer = peer.ip().to_canonical();
    if !peer.is_loopback() {
        return Some(peer);
    }
    // The last one is the proxy's own word; those before it are its client's.
    let forwarded = headers.get_all("x-forwarded-for").iter().next_back();
    let last = forwarded.and_then(|value| value.to_str().ok()?.rsplit(',').next()?.trim().parse().ok());
    Some(last.unwrap_or(peer))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Rate = Rate {
        burst: 3,
        every: Duration::from_millis(100),
    };

    #[test]
    fn a_burst_and_then_so_many_a_second() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut buckets = Buckets::new(RATE);
        for _ in 0..3 {
            assert_eq!(buckets.take("a", at(0)), Ok(()));
        }
        assert_eq!(buckets.take("a", at(0)), Err(Duration::from_millis(100)));
        assert_eq!(buckets.take("b", at(0)), Ok(()), "each caller has its own");
        assert_eq!(buckets.take("a", at(60)), Err(Duration::from_millis(40)));
        assert_eq!(buckets.take("a", at(100)), Ok(()));
        assert_eq!(buckets.take("a", at(100)), Err(Duration::from_millis(100)));
        let taken = (0..100).filter(|n| buckets.take("a", at(200 + 20 * n)).is_ok());
        assert_eq!(taken.count(), 20, "two seconds");
        for _ in 0..3 {
            assert_eq!(
                buckets.take("a", at(10_000)),
                Ok(()),
                "no more than a burst is saved up"
            );
        }
        assert!(buckets.take("a", at(10_000)).is_err());
    }

    #[test]
    fn callers_of_long_ago_are_forgotten_and_a_crowd_is_bounded() {
        let start = Instant::now();
        let mut buckets = Buckets::new(RATE);
        for caller in 0..3 * FEW {
            let now = start + Duration::from_secs(caller as u64);
            assert_eq!(buckets.take(caller, now), Ok(()));
        }
        assert!(buckets.full_at.len() <= FEW + 1, "{}", buckets.full_at.len());
        let now = start + Duration::from_secs(100_000);
        for caller in 0..REMEMBERED {
            assert_eq!(buckets.take(caller, now), Ok(()));
        }
        assert_eq!(buckets.take(REMEMBERED, now), Err(CROWDED));
        assert_eq!(buckets.take(0, now), Ok(()), "who is remembered is heard");
        assert_eq!(buckets.take(REMEMBERED, now + Duration::from_secs(1)), Ok(()));
    }

    #[test]
    fn a_refusal_says_which_limit_and_when_to_come_again() {
        let rate = Rate {
            burst: 1,
            every: Duration::from_secs(3600),
        };
        let limiter = Limiter::new(RateLimits {
            key: rate,
            address: rate,
        });
        let (key, address) = (PublicKey([7; 32]), IpAddr::from([192, 0, 2, 1]));
        assert_eq!(limiter.signed(key), Ok(()));
        let limited = limiter.signed(key).unwrap_err();
        assert_eq!(
            limited.to_string(),
            "this key may make 1 calls at once, and then one every 3600s: call again in 3600 s"
        );
        assert_eq!((limited.reason(), limited.retry_after_s()), ("TooManyCallsOfKey", 3600));
        assert_eq!(limiter.signed(PublicKey([8; 32])), Ok(()));

        assert_eq!(limiter.heard(key, address), Ok(()));
        assert_eq!(limiter.strange(address), Ok(()));
        for limited in [limiter.strange(address), limiter.heard(key, address)] {
            assert_eq!(limited.unwrap_err().reason(), "TooManyCallsOfAddress");
        }
        limiter.let_in(key);
        assert_eq!(limiter.heard(key, address), Ok(()), "whatever its neighbours do");

        let mut registry = Registry::default();
        limiter.register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for (reason, count) in [("TooManyCallsOfKey", 1), ("TooManyCallsOfAddress", 2)] {
            let line = format!("kvasir_market_limited_calls_total{{reason=\"{reason}\"}} {count}");
            assert!(text.contains(&line), "{text}");
        }
    }

    #[test]
    fn only_a_proxy_on_this_machine_says_whom_it_speaks_for() {
        let from = |peer: &str, forwarded: &[&str]| {
            let mut extensions = Extensions::new();
            extensions.insert(ConnectInfo(peer.parse::<SocketAddr>().unwrap()));
            let mut headers = HeaderMap::new();
            for value in forwarded {
                headers.append("x-forwarded-for", value.parse().unwrap());
            }
            address(&extensions, &headers).unwrap().to_string()
        };
        assert_eq!(from("192.0.2.1:5", &["198.51.100.7"]), "192.0.2.1");
        assert_eq!(from("[::ffff:192.0.2.1]:5", &[]), "192.0.2.1");
        assert_eq!(from("127.0.0.1:5", &[]), "127.0.0.1");
        assert_eq!(from("127.0.0.1:5", &["10.1.1.1, 198.51.100.7"]), "198.51.100.7");
        assert_eq!(from("[::1]:5", &["10.1.1.1", "198.51.100.7"]), "198.51.100.7");
        assert_eq!(from("127.0.0.1:5", &["unknown"]), "127.0.0.1");
        assert_eq!(address(&Extensions::new(), &HeaderMap::new()), None);
    }
}
