//! Edge tickets: the market's word that one node may bring one end of one edge to one relay, for a short time.
//!
//! A ticket is text for an `Authorization` header: what it grants and a keyed BLAKE3 hash over it, in base64url. Market and
//! bridge share the [`TicketKey`], since they are one process, or several on one store. Pure: time is an argument, and
//! tickets and key are never shown by `Debug`.

use std::fmt;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use blake3::{Hash, Hasher, OUT_LEN};
use kvasir_wire::{edge::Role, trust::PublicKey};
use serde::{Deserialize, Serialize};

/// A ticket is good for this long: enough to dial, too short to be worth stealing.
pub const TICKET_LIFE_MS: u64 = 60_000;

/// Text longer than this is refused before it is decoded: names are at most 1 KiB each.
const MAX_TEXT: usize = 4096;

/// Goes into the hash ahead of the grant, so that no other hash under the same key passes for a ticket's.
const CONTEXT: &[u8] = b"kvasir edge ticket v1\0";

/// What a ticket grants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ticket {
    /// ring's name
    pub ring: String,
    /// membership's generation
    pub epoch: u64,
    /// the edge's index: the rank of its predecessor
    pub edge: u32,
    /// which end of the edge
    pub role: Role,
    /// node that may bring it
    pub node: PublicKey,
    /// public URL of the one relay that serves the edge
    pub relay_url: String,
    /// when it runs out, in milliseconds since 1970
    pub expires_ms: u64,
}

/// Why a ticket is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TicketError {
    /// no ticket at all
    #[error("this is no edge ticket")]
    Malformed,
    /// made with another key, or changed since
    #[error("the ticket was not made by this relay's market, or was changed since")]
    Forged,
    /// too old
    #[error("the ticket ran out {} s ago: get a new one", late_ms.div_ceil(1000))]
    Expired {
        /// by how much
        late_ms: u64,
    },
    /// good, but for another relay
    #[error("the ticket is for the relay at {theirs}, and this one is {ours}")]
    OtherRelay {
        /// relay that the ticket names
        theirs: String,
        /// this relay's public URL
        ours: String,
    },
}

impl TicketError {
    /// Stable `PascalCase` word for metrics, events and conditions.
    pub fn reason(&self) -> &'static str {
        match self {
            TicketError::Malformed => "MalformedTicket",
            TicketError::Forged => "ForgedTicket",
            TicketError::Expired { .. } => "TicketExpired",
            TicketError::OtherRelay { .. } => "WrongRelay",
        }
    }
}

/// The secret that signs tickets.
#[derive(Clone, PartialEq, Eq)]
pub struct TicketKey([u8; 32]);

impl fmt::Debug for TicketKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TicketKey")
    }
}

impl TicketKey {
    /// A new key from the system's randomness.
    ///
    /// # Errors
    /// When the system gives none.
    pub fn generate() -> Result<TicketKey, getrandom::Error> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes)?;
        Ok(TicketKey(bytes))
    }

    /// A key that [`TicketKey::to_bytes`] gave.
    pub fn from_bytes(bytes: [u8; 32]) -> TicketKey {
        TicketKey(bytes)
    }

    /// The secret, for the store.
    pub fn to_bytes(&self) -> [u8; 32] {
        self.0
    }

    /// The ticket as text: letters, digits, `-` and `_`.
    pub fn sign(&self, ticket: &Ticket) -> String {
        // Writing to memory can't fail, and every field has a text form.
        let grant = serde_json::to_vec(ticket).unwrap_or_default();
        let mut bytes = self.hash(&grant).as_bytes().to_vec();
        bytes.extend(grant);
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// What `text` grants at the relay whose public URL is `relay_url`, at `now_ms` milliseconds since 1970.
    ///
    /// # Errors
    /// Why it grants nothing. Nothing in a ticket is looked at before its hash is found right, in constant time.
    pub fn verify(&self, text: &str, relay_url: &str, now_ms: u64) -> Result<Ticket, TicketError> {
        if text.len() > MAX_TEXT {
            return Err(TicketError::Malformed);
        }
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| TicketError::Malformed)?;
        let (hash, grant) = bytes.split_first_chunk::<OUT_LEN>().ok_or(TicketError::Malformed)?;
        // `Hash` compares in constant time.
        if Hash::from_bytes(*hash) != self.hash(grant) {
            return Err(TicketError::Forged);
        }
        let ticket: Ticket = serde_json::from_slice(grant).map_err(|_| TicketError::Malformed)?;
        if now_ms >= ticket.expires_ms {
            let late_ms = now_ms - ticket.expires_ms;
            return Err(TicketError::Expired { late_ms });
        }
        let [theirs, ours] = [&ticket.relay_url, relay_url].map(|url| url.trim_end_matches('/'));
        if theirs != ours {
            return Err(TicketError::OtherRelay {
                theirs: theirs.to_owned(),
                ours: ours.to_owned(),
            });
        }
        Ok(ticket)
    }

    fn hash(&self, grant: &[u8]) -> Hash {
        let mut hasher = Hasher::new_keyed(&self.0);
        hasher.update(CONTEXT).update(grant);
        hasher.finalize()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RELAY: &str = "https://relay.example";

    fn ticket() -> Ticket {
        Ticket {
            ring: "ring".into(),
            epoch: 7,
            edge: 2,
            role: Role::Successor,
            node: PublicKey([5; 32]),
            relay_url: RELAY.into(),
            expires_ms: 1000,
        }
    }

    #[test]
    fn a_ticket_comes_back_as_it_was_signed() {
        let key = TicketKey::from_bytes([1; 32]);
        let text = key.sign(&ticket());
        assert_eq!(key.verify(&text, "https://relay.example/", 999), Ok(ticket()));
        let kept = TicketKey::from_bytes(key.to_bytes());
        assert_eq!(kept.verify(&text, RELAY, 0), Ok(ticket()));
    }

    #[test]
    fn another_key_s_ticket_is_forged() {
        let text = TicketKey::generate().unwrap().sign(&ticket());
        let other = TicketKey::generate().unwrap();
        assert_eq!(other.verify(&text, RELAY, 0), Err(TicketError::Forged));
    }

    #[test]
    fn an_old_ticket_says_how_old() {
        let key = TicketKey::from_bytes([1; 32]);
        let text = key.sign(&ticket());
        assert_eq!(key.verify(&text, RELAY, 1000), Err(TicketError::Expired { late_ms: 0 }));
        let error = key.verify(&text, RELAY, 3500).unwrap_err();
        assert_eq!(error, TicketError::Expired { late_ms: 2500 });
        assert_eq!(error.to_string(), "the ticket ran out 3 s ago: get a new one");
    }

    #[test]
    fn a_ticket_serves_at_one_relay_only() {
        let key = TicketKey::from_bytes([1; 32]);
        let error = key
            .verify(&key.sign(&ticket()), "https://other.example", 0)
            .unwrap_err();
        assert_eq!(error.reason(), "WrongRelay");
    }

    #[test]
    fn what_is_no_ticket_is_refused_before_it_is_read() {
        let key = TicketKey::from_bytes([1; 32]);
        for text in ["", "short", "not base64!", &"A".repeat(MAX_TEXT + 1)] {
            assert_eq!(key.verify(text, RELAY, 0), Err(TicketError::Malformed), "{text:.20}");
        }
    }

    #[test]
    fn the_key_is_not_shown() {
        assert_eq!(format!("{:?}", TicketKey::from_bytes([1; 32])), "TicketKey");
    }

    proptest! {
        #[test]
        fn a_changed_ticket_grants_nothing(at in 0usize..400, flip in 1u8..64) {
            const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
            let key = TicketKey::from_bytes([1; 32]);
            let mut text = key.sign(&ticket()).into_bytes();
            let at = at % text.len();
            let old = ALPHABET.iter().position(|letter| *letter == text[at]).unwrap();
            text[at] = ALPHABET[(old + usize::from(flip)) % 64];
            let text = String::from_utf8(text).unwrap();
            prop_assert!(key.verify(&text, RELAY, 0).is_err());
        }

        #[test]
        fn no_text_makes_it_panic(text in ".{0,200}") {
            let key = TicketKey::from_bytes([1; 32]);
            prop_assert!(key.verify(&text, RELAY, 0).is_err());
        }
    }
}
