//! Invites: a token that lets a node enrol for a ring, so many times and until then. The market keeps its hash alone.

use std::{fmt, str::FromStr};

use secrecy::{ExposeSecret, SecretString};
use subtle::ConstantTimeEq;

/// What the hash of a token is for.
const INVITE: &str = "kvasir invite v1";

/// A token in full, as its holder presents it: `kvi_` and 16 digits that name it, then 64 that are secret.
#[derive(Clone)]
pub struct InviteToken {
    id: String,
    secret: SecretString,
}

/// What the market keeps of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredInvite {
    /// its name
    pub id: String,
    /// hash of its secret part, hex
    pub hash: String,
}

impl fmt::Debug for InviteToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InviteToken")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl InviteToken {
    /// A token from 40 random bytes.
    pub fn new(random: [u8; 40]) -> Self {
        let (id, secret) = random.split_at(8);
        InviteToken {
            id: hex(id),
            secret: hex(secret).into(),
        }
    }

    /// The name of it, which is no secret.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// What the market keeps.
    pub fn stored(&self) -> StoredInvite {
        StoredInvite {
            id: self.id.clone(),
            hash: self.hash(),
        }
    }

    /// Whether `stored` was made from this token; takes the same time whatever the difference.
    pub fn matches(&self, stored: &StoredInvite) -> bool {
        bool::from(self.hash().as_bytes().ct_eq(stored.hash.as_bytes()))
    }

    /// The text to hand on: the secret itself.
    pub fn text(&self) -> String {
        format!("kvi_{}{}", self.id, self.secret.expose_secret())
    }

    fn hash(&self) -> String {
        hex(&blake3::derive_key(INVITE, self.secret.expose_secret().as_bytes()))
    }
}

impl FromStr for InviteToken {
    type Err = super::AuthError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits = text.strip_prefix("kvi_").filter(|digits| {
            let lower_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
            digits.len() == 80 && digits.bytes().all(lower_hex)
        });
        let (id, secret) = digits.ok_or(super::AuthError::UnknownInvite)?.split_at(16);
        Ok(InviteToken {
            id: id.to_owned(),
            secret: secret.into(),
        })
    }
}

fn hex(bytes: &[u8]) -> String {
    use fmt::Write as _;
    bytes
        .iter()
        .fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
            // a String takes whatever is written
            let _ = write!(text, "{byte:02x}");
            text
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random() -> [u8; 40] {
        std::array::from_fn(|i| i as u8)
    }

    #[test]
    fn a_token_matches_what_was_kept_of_it_and_no_other() {
        let token = InviteToken::new(random());
        let again: InviteToken = token.text().parse().unwrap();
        assert!(again.matches(&token.stored()));
        let mut other = random();
        other[39] ^= 1;
        let other = InviteToken::new(other);
        assert_eq!(other.id(), token.id());
        assert!(!other.matches(&token.stored()));
    }

    #[test]
    fn what_is_kept_and_logged_does_not_hold_the_secret() {
        let token = InviteToken::new(random());
        let text = token.text();
        let secret = &text[20..];
        assert!(!format!("{token:?} {:?}", token.stored()).contains(secret));
    }

    #[test]
    fn anything_else_is_no_invite() {
        for text in [
            "",
            "kvi_",
            "kvi_12",
            &"0".repeat(84),
            &format!("kvi_{}", "G".repeat(80)),
        ] {
            assert_eq!(text.parse::<InviteToken>().unwrap_err().reason(), "UnknownInvite");
        }
    }
}
