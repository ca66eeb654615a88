//! Signed requests: four headers that say who asks, when, with which nonce, and prove it.
//!
//! ```text
//! Kvasir-Key        the asker's Ed25519 public key, hex
//! Kvasir-Time       its clock, milliseconds since 1970
//! Kvasir-Nonce      16 random bytes, hex
//! Kvasir-Signature  over method, path and query, BLAKE3 of the body, time and nonce, each with its length
//! ```
//!
//! A signature counts while its time is within [`CLOCK_TOLERANCE`] of the market's, and its nonce is remembered for
//! longer than that, so that nothing counts twice.

use std::{fmt, str::FromStr, time::Duration};

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use kvasir_wire::trust::{NodeKeys, OwnerKey, PublicKey, Signature};

/// Context of signatures over requests.
const REQUEST: &str = "kvasir request v1";

/// A clock may be this far from the market's, either way.
pub const CLOCK_TOLERANCE: Duration = Duration::from_secs(60);

/// Nonces are remembered so long: a request that is early by the tolerance stays valid for twice that.
pub const NONCE_KEPT: Duration = Duration::from_secs(150);

const KEY: HeaderName = HeaderName::from_static("kvasir-key");
const TIME: HeaderName = HeaderName::from_static("kvasir-time");
const NONCE: HeaderName = HeaderName::from_static("kvasir-nonce");
const SIGNATURE: HeaderName = HeaderName::from_static("kvasir-signature");

/// Why a request is not taken for its sender's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    /// a header is missing
    #[error("this call must be signed: the header {header} is missing")]
    Unsigned {
        /// which
        header: &'static str,
    },
    /// a header holds something else
    #[error("the header {header} is malformed")]
    Malformed {
        /// which
        header: &'static str,
    },
    /// the sender's clock is too far from the market's
    #[error("the sender's clock is {} s {}: set it, at most {} s are tolerated",
        by_ms.unsigned_abs().div_ceil(1000), if *by_ms > 0 { "ahead" } else { "behind" }, CLOCK_TOLERANCE.as_secs())]
    ClockSkew {
        /// milliseconds that the sender is ahead; negative when it is behind
        by_ms: i64,
    },
    /// another key's signature, or the request was changed on the way
    #[error("the signature does not belong to this request and key: something on the way may have changed the request")]
    BadSignature,
    /// the same signed request came before
    #[error("this request was received before: sign each one anew")]
    Replayed,
    /// the key has not enrolled for the ring
    #[error("node {node} is not enrolled for ring {ring:?}: enrol with an invite of its owner")]
    NotEnrolled {
        /// who asks
        node: PublicKey,
        /// for what
        ring: String,
    },
    /// the key has not enrolled at all
    #[error("key {key} is not enrolled here: enrol with an invite of a ring's owner")]
    Stranger {
        /// who asks
        key: PublicKey,
    },
    /// another key owns the ring
    #[error("ring {ring:?} belongs to another owner")]
    NotOwner {
        /// which ring
        ring: String,
    },
    /// no such invite
    #[error("the invite is not one of this market's: ask the ring's owner for one")]
    UnknownInvite,
    /// it was good once
    #[error("the invite is used up or has expired: ask the ring's owner for another")]
    InviteSpent,
}

impl AuthError {
    /// Stable `PascalCase` word for metrics, events and answers.
    pub fn reason(&self) -> &'static str {
        match self {
            AuthError::Unsigned { .. } => "Unsigned",
            AuthError::Malformed { .. } => "MalformedHeader",
            AuthError::ClockSkew { .. } => "ClockSkew",
            AuthError::BadSignature => "BadSignature",
            AuthError::Replayed => "Replayed",
            AuthError::NotEnrolled { .. } | AuthError::Stranger { .. } => "NotEnrolled",
            AuthError::NotOwner { .. } => "NotOwner",
            AuthError::UnknownInvite => "UnknownInvite",
            AuthError::InviteSpent => "InviteSpent",
        }
    }
}

/// Something that signs: a node or an owner.
pub trait Signer: Send + Sync + fmt::Debug {
    /// The key that the market knows it by.
    fn public(&self) -> PublicKey;
    /// Signs `message` in `context`.
    fn sign(&self, context: &str, message: &[u8]) -> Signature;
}

impl Signer for NodeKeys {
    fn public(&self) -> PublicKey {
        self.public()
    }

    fn sign(&self, context: &str, message: &[u8]) -> Signature {
        self.sign(context, message)
    }
}

impl Signer for OwnerKey {
    fn public(&self) -> PublicKey {
        self.public()
    }

    fn sign(&self, context: &str, message: &[u8]) -> Signature {
        self.sign(context, message)
    }
}

/// What is signed of a request.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// `GET`, `PUT`…
    pub method: &'a str,
    /// path and query, from `/v1/` on: a proxy may serve the market under a path of its own
    pub target: &'a str,
    /// the body, empty when there is none
    pub body: &'a [u8],
}

impl Call<'_> {
    fn message(&self, time: u64, nonce: &[u8; 16]) -> Vec<u8> {
        let body = blake3::hash(self.body);
        let parts: [&[u8]; 5] = [
            self.method.as_bytes(),
            self.target.as_bytes(),
            body.as_bytes(),
            &time.to_le_bytes(),
            nonce,
        ];
        let mut message = Vec::with_capacity(160 + self.target.len());
        for part in parts {
            message.extend_from_slice(&(part.len() as u64).to_le_bytes());
            message.extend_from_slice(part);
        }
        message
    }
}

/// The four headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// who asks
    pub key: PublicKey,
    /// its clock, milliseconds since 1970
    pub time: u64,
    /// never the same twice
    pub nonce: [u8; 16],
    /// proof of it all
    pub signature: Signature,
}

impl Credentials {
    /// Signs `call` at `time`, in milliseconds since 1970; `nonce` is random.
    pub fn sign(signer: &dyn Signer, call: &Call<'_>, time: u64, nonce: [u8; 16]) -> Self {
        Credentials {
            key: signer.public(),
            time,
            nonce,
            signature: signer.sign(REQUEST, &call.message(time, &nonce)),
        }
    }

    /// Reads them, without a look at what they say.
    ///
    /// # Errors
    /// [`AuthError::Unsigned`] or [`AuthError::Malformed`].
    pub fn read(headers: &HeaderMap) -> Result<Self, AuthError> {
        Ok(Credentials {
            key: field(headers, &KEY, "Kvasir-Key")?,
            time: field(headers, &TIME, "Kvasir-Time")?,
            nonce: {
                let Nonce(nonce) = field(headers, &NONCE, "Kvasir-Nonce")?;
                nonce
            },
            signature: field(headers, &SIGNATURE, "Kvasir-Signature")?,
        })
    }

    /// As headers.
    pub fn headers(&self) -> HeaderMap {
        let fields = [
            (KEY, self.key.to_string()),
            (TIME, self.time.to_string()),
            (NONCE, self.nonce_text()),
            (SIGNATURE, self.signature.to_string()),
        ];
        // hex and digits: nothing that a header can't hold
        fields
            .into_iter()
            .filter_map(|(name, value)| Some((name, HeaderValue::try_from(value).ok()?)))
            .collect()
    }

    /// The nonce in hex.
    pub fn nonce_text(&self) -> String {
        use fmt::Write as _;
        self.nonce.iter().fold(String::with_capacity(32), |mut text, byte| {
            // a String takes whatever is written
            let _ = write!(text, "{byte:02x}");
            text
        })
    }

    /// Checks the clock against `now` and the signature against `call`. Whether the nonce is new, the store knows.
    ///
    /// # Errors
    /// [`AuthError::ClockSkew`] or [`AuthError::BadSignature`].
    pub fn check(&self, call: &Call<'_>, now: u64) -> Result<(), AuthError> {
        let tolerated = CLOCK_TOLERANCE.as_millis() as u64;
        if self.time.abs_diff(now) > tolerated {
            let by_ms = i64::try_from(i128::from(self.time) - i128::from(now)).unwrap_or(i64::MAX);
            return Err(AuthError::ClockSkew { by_ms });
        }
        let message = call.message(self.time, &self.nonce);
        if self.key.verifies(REQUEST, &message, &self.signature) {
            Ok(())
        } else {
            Err(AuthError::BadSignature)
        }
    }
}

struct Nonce([u8; 16]);

impl FromStr for Nonce {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let lower_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if text.len() != 32 || !text.bytes().all(lower_hex) {
            return Err(());
        }
        u128::from_str_radix(text, 16)
            .map(|number| Nonce(number.to_be_bytes()))
            .map_err(|_| ())
    }
}

fn field<T: FromStr>(headers: &HeaderMap, name: &HeaderName, header: &'static str) -> Result<T, AuthError> {
    let mut values = headers.get_all(name).iter();
    let value = values.next().ok_or(AuthError::Unsigned { header })?;
    // Two of a kind: somebody added one.
    let single = values.next().is_none().then_some(value);
    single
        .and_then(|value| value.to_str().ok()?.parse().ok())
        .ok_or(AuthError::Malformed { header })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_800_000_000_000;
    const CALL: Call<'static> = Call {
        method: "PUT",
        target: "/v1/rings/tea/claims/1?x=1",
        body: b"{}",
    };

    fn signed(time: u64) -> Credentials {
        Credentials::sign(&NodeKeys::generate().unwrap(), &CALL, time, [7; 16])
    }

    #[test]
    fn a_signed_request_is_its_senders_and_survives_the_headers() {
        let credentials = signed(NOW);
        assert_eq!(credentials.check(&CALL, NOW), Ok(()));
        assert_eq!(Credentials::read(&credentials.headers()), Ok(credentials));
    }

    #[test]
    fn whatever_is_changed_breaks_the_signature() {
        let credentials = signed(NOW);
        let calls = [
            Call { method: "POST", ..CALL },
            Call {
                target: "/v1/rings/tea/claims/1?x=2",
                ..CALL
            },
            Call { body: b"{} ", ..CALL },
        ];
        for call in calls {
            assert_eq!(credentials.check(&call, NOW), Err(AuthError::BadSignature), "{call:?}");
        }
        let other = NodeKeys::generate().unwrap().public();
        let changed = [
            Credentials {
                time: NOW + 1,
                ..credentials.clone()
            },
            Credentials {
                nonce: [8; 16],
                ..credentials.clone()
            },
            Credentials {
                key: other,
                ..credentials
            },
        ];
        for credentials in changed {
            assert_eq!(credentials.check(&CALL, NOW), Err(AuthError::BadSignature));
        }
    }

    #[test]
    fn a_clock_45_s_off_is_accepted_and_one_10_min_off_is_told_by_how_much() {
        for off in [45_000, 60_000] {
            assert_eq!(signed(NOW + off).check(&CALL, NOW), Ok(()));
            assert_eq!(signed(NOW - off).check(&CALL, NOW), Ok(()));
        }
        let ahead = signed(NOW + 600_000).check(&CALL, NOW).unwrap_err();
        assert_eq!(
            ahead.to_string(),
            "the sender's clock is 600 s ahead: set it, at most 60 s are tolerated"
        );
        let behind = signed(NOW - 60_001).check(&CALL, NOW).unwrap_err();
        assert_eq!(behind, AuthError::ClockSkew { by_ms: -60_001 });
        assert_eq!(
            behind.to_string(),
            "the sender's clock is 61 s behind: set it, at most 60 s are tolerated"
        );
        for absurd in [0, u64::MAX] {
            assert_eq!(signed(absurd).check(&CALL, NOW).unwrap_err().reason(), "ClockSkew");
        }
    }

    #[test]
    fn missing_doubled_and_malformed_headers_are_named() {
        let whole = signed(NOW).headers();
        for name in ["Kvasir-Key", "Kvasir-Time", "Kvasir-Nonce", "Kvasir-Signature"] {
            let mut missing = whole.clone();
            missing.remove(name);
            assert_eq!(Credentials::read(&missing), Err(AuthError::Unsigned { header: name }));
            let mut doubled = whole.clone();
            doubled.append(HeaderName::from_str(name).unwrap(), whole[name].clone());
            assert_eq!(Credentials::read(&doubled), Err(AuthError::Malformed { header: name }));
            for text in ["", "x", "+1", "-1", &"F".repeat(128)] {
                let mut malformed = whole.clone();
                malformed.insert(HeaderName::from_str(name).unwrap(), text.parse().unwrap());
                // "+1" is how Rust may write a number, so a time may be written so
                if (name, text) != ("Kvasir-Time", "+1") {
                    assert_eq!(
                        Credentials::read(&malformed),
                        Err(AuthError::Malformed { header: name }),
                        "{text}"
                    );
                }
            }
        }
    }
}
