//! What a stage checks of a manifest before it trusts a dimension in it: the signature says who wrote it, not that it
//! makes sense.

use std::str::FromStr;

use kvasir_gguf::ModelIdentity;

use crate::{Holder, Link, RankManifest};

/// Layers of a model at most: llama.cpp's `LLAMA_MAX_LAYERS`.
pub const MAX_LAYERS: u32 = 512;
/// Values of a hidden state at most; the widest known model has 16,384.
const MAX_EMBEDDING: u32 = 1 << 17;
/// Tokens of a vocabulary at most; the largest known has 262,144.
const MAX_VOCABULARY: u32 = 1 << 22;
const MAX_CONTEXT: u32 = 1 << 24;
const MAX_SEQUENCES: u32 = 1024;
const MAX_LAPS: u16 = 1024;
/// Bytes of one lap in f32 at most: what an inbox may have to hold, times laps.
const MAX_LAP_BYTES: u64 = 1 << 28;
/// A DNS name's length, which names of rings, pools and architectures stay below.
const MAX_NAME: usize = 253;
const MAX_URL: usize = 2048;
const MAX_PARTS: usize = 1024;

/// Why a manifest can't be trusted with the dimensions that it states.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidManifest {
    /// a number outside its limits
    #[error("the manifest's {field} is {value}; it must be between {min} and {max}")]
    OutOfRange {
        /// which
        field: &'static str,
        /// what it says
        value: u64,
        /// least
        min: u64,
        /// most
        max: u64,
    },
    /// a text that is empty or too long
    #[error("the manifest's {field} has {length} bytes; it must have between 1 and {max}")]
    Text {
        /// which
        field: &'static str,
        /// its length
        length: usize,
        /// most
        max: usize,
    },
    /// an identity that is none
    #[error("the manifest's model identity is not 64 hexadecimal digits")]
    Identity,
    /// layers left out or held twice
    #[error("rank {rank} starts at layer {found}, and the layers before it end at {expected}")]
    NotContiguous {
        /// rank
        rank: usize,
        /// layer that it should start at
        expected: u32,
        /// layer that it starts at
        found: u32,
    },
    /// a window without layers
    #[error("rank {rank} has no layers")]
    Empty {
        /// rank
        rank: usize,
    },
    /// the last rank doesn't end with the model
    #[error("the ranks end at layer {end} of {layers}")]
    NotCovered {
        /// one past the last layer held
        end: u32,
        /// layers of the model
        layers: u32,
    },
    /// a key or signature that is none
    #[error("rank {rank}'s {field} is not {digits} lower-case hexadecimal digits")]
    Key {
        /// rank
        rank: usize,
        /// which
        field: &'static str,
        /// digits that it should have
        digits: usize,
    },
    /// an address that no stage may dial
    #[error("rank {rank}'s link is not a host and port or a relay's URL without user name or query")]
    Link {
        /// rank
        rank: usize,
    },
}

impl InvalidManifest {
    /// Stable `PascalCase` word for metrics, events and conditions.
    pub fn reason(&self) -> &'static str {
        "InvalidManifest"
    }
}

impl RankManifest {
    /// Checks every dimension: after it, sizes computed from the manifest fit in 64 bits and the windows cover the model
    /// exactly once, in order. Holders may be absent; those present are well-formed. Says nothing of who signed it.
    pub fn validate(&self) -> Result<(), InvalidManifest> {
        text("ring", &self.ring, MAX_NAME)?;
        text("model name", &self.model.name, MAX_NAME)?;
        text("architecture", &self.model.architecture, MAX_NAME)?;
        ModelIdentity::from_str(&self.model.identity).map_err(|_| InvalidManifest::Identity)?;
        let embedding = u64::from(self.model.embedding_length);
        range("embedding length", embedding, 1, MAX_EMBEDDING.into())?;
        range("layer count", self.model.layers.into(), 1, MAX_LAYERS.into())?;
        range("vocabulary", self.model.vocabulary.into(), 1, MAX_VOCABULARY.into())?;
        range("part count", self.model.prefix_bytes.len() as u64, 0, MAX_PARTS as u64)?;
        range("context length", self.context_length.into(), 1, MAX_CONTEXT.into())?;
        range("sequence count", self.sequences.into(), 1, MAX_SEQUENCES.into())?;
        range("lap count", self.max_laps.into(), 1, MAX_LAPS.into())?;
        let rows = u64::from(self.max_lap_tokens);
        range("lap size in tokens", rows, 1, MAX_LAP_BYTES / 4 / embedding)?;
        self.validate_ranks()
    }

    fn validate_ranks(&self) -> Result<(), InvalidManifest> {
        range("rank count", self.ranks.len() as u64, 1, self.model.layers.into())?;
        let mut next = 0;
        for (number, rank) in self.ranks.iter().enumerate() {
            if rank.layers.start != next {
                return Err(InvalidManifest::NotContiguous {
                    rank: number,
                    expected: next,
                    found: rank.layers.start,
                });
            }
            if rank.layers.is_empty() {
                return Err(InvalidManifest::Empty { rank: number });
            }
            next = rank.layers.end;
            range("window size in bytes", rank.bytes, 1, i64::MAX as u64)?;
            range("memory of a rank in bytes", rank.memory, 1, i64::MAX as u64)?;
            if let Some(placement) = &rank.placement {
                text("placement", placement, MAX_NAME)?;
            }
            if let Some(holder) = &rank.holder {
                validate_holder(number, holder)?;
            }
        }
        if next != self.model.layers {
            return Err(InvalidManifest::NotCovered {
                end: next,
                layers: self.model.layers,
            });
        }
        Ok(())
    }
}

impl Link {
    /// Whether it is a `host:port`, or a relay's URL without user name or query.
    pub fn is_sound(&self) -> bool {
        match self {
            Link::Direct { address } => is_address(address),
            Link::Relayed { url } => is_relay(url),
        }
    }
}

fn validate_holder(rank: usize, holder: &Holder) -> Result<(), InvalidManifest> {
    for (field, value, digits) in [
        ("node key", &holder.node, 64),
        ("noise key", &holder.noise_key, 64),
        ("noise key signature", &holder.noise_key_signature, 128),
    ] {
        let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        if value.len() != digits || !value.bytes().all(hex) {
            return Err(InvalidManifest::Key { rank, field, digits });
        }
    }
    text("instance", &holder.instance, MAX_NAME)?;
    if holder.link.is_sound() {
        Ok(())
    } else {
        Err(InvalidManifest::Link { rank })
    }
}

/// `host:port`, where the host may be a bracketed IPv6 address.
fn is_address(address: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || ".-_:[]%".contains(c);
    let port = |port: &str| port.parse::<u16>().is_ok_and(|port| port > 0);
    address.len() <= MAX_NAME
        && address.chars().all(plain)
        && address
            .rsplit_once(':')
            .is_some_and(|(host, p)| !host.is_empty() && port(p))
}

/// A URL of a relay. Secrets have no place in URLs, so there is no room for a user name or a query.
fn is_relay(url: &str) -> bool {
    let rest = ["http://", "https://", "ws://", "wss://"]
        .iter()
        .find_map(|scheme| url.strip_prefix(scheme));
    let plain = |c: char| c.is_ascii_graphic() && !"@?#\"<>\\^`{|}".contains(c);
    url.len() <= MAX_URL
        && rest.is_some_and(|rest| !rest.is_empty() && !rest.starts_with('/') && rest.chars().all(plain))
}

fn range(field: &'static str, value: u64, min: u64, max: u64) -> Result<(), InvalidManifest> {
    if (min..=max).contains(&value) {
        Ok(())
    } else {
        Err(InvalidManifest::OutOfRange { field, value, min, max })
    }
}

fn text(field: &'static str, value: &str, max: usize) -> Result<(), InvalidManifest> {
    let length = value.len();
    if (1..=max).contains(&length) {
        Ok(())
    } else {
        Err(InvalidManifest::Text { field, length, max })
    }
}
