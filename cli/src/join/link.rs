//! An invite as a link: where the market is, what to enrol with, and who the owner has to be.
//!
//! `https://relay.example/#token=…&owner=…`: the part after `#` never leaves the device that opens the link, so the token
//! is in no request line and in no server's log.

use std::{fmt, str::FromStr};

use anyhow::Context;
use kvasir_wire::trust::PublicKey;
use reqwest::Url;
use secrecy::{ExposeSecret, SecretString};

use crate::failure::Usage;

/// Address of a market, with what an invite adds to it.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    /// root of the market
    pub(crate) market: Url,
    /// what to enrol with
    pub(crate) token: Option<SecretString>,
    /// the owner whose rings the invite is for
    pub(crate) owner: Option<PublicKey>,
}

impl FromStr for Link {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        // The text may hold the token: it is in no message.
        let refused = |what: &str| Usage(format!("the link {what}: copy it as `kvasir invite` printed it"));
        let mut market = Url::parse(text).map_err(|_| refused("is no address"))?;
        if !matches!(market.scheme(), "http" | "https") || market.host().is_none() {
            return Err(refused("is no http or https address").into());
        }
        if !market.username().is_empty() || market.password().is_some() || market.query().is_some() {
            return Err(refused("holds a user name or a query").into());
        }
        let (mut token, mut owner) = (None, None);
        for part in market
            .fragment()
            .unwrap_or_default()
            .split('&')
            .filter(|part| !part.is_empty())
        {
            match part.split_once('=') {
                Some(("token", value)) if !value.is_empty() => token = Some(SecretString::from(value.to_owned())),
                Some(("owner", value)) => {
                    owner = Some(value.parse().map_err(|_| refused("names an owner by what is no key"))?);
                }
                // of a newer version
                _ => {}
            }
        }
        market.set_fragment(None);
        Ok(Link { market, token, owner })
    }
}

impl Link {
    /// An invite to the rings of `owner`.
    pub(crate) fn invite(market: &str, token: SecretString, owner: PublicKey) -> anyhow::Result<Self> {
        let market = Url::parse(market).context("the relay's address is none")?;
        Ok(Link {
            market,
            token: Some(token),
            owner: Some(owner),
        })
    }

    /// The link with its token, for the terminal of who invites.
    pub(crate) fn reveal(&self) -> String {
        let mut url = self.market.clone();
        let token = self
            .token
            .as_ref()
            .map(|token| format!("token={}", token.expose_secret()));
        let owner = self.owner.map(|owner| format!("owner={owner}"));
        let parts: Vec<String> = token.into_iter().chain(owner).collect();
        url.set_fragment((!parts.is_empty()).then(|| parts.join("&")).as_deref());
        url.into()
    }
}

impl fmt::Display for Link {
    /// Without the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.market.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: &str = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a";

    #[test]
    fn an_invite_is_read_as_it_was_printed() {
        let owner: PublicKey = OWNER.parse().unwrap();
        let link = Link::invite("https://relay.example", "s3cret".to_owned().into(), owner).unwrap();
        let text = link.reveal();
        assert_eq!(text, format!("https://relay.example/#token=s3cret&owner={OWNER}"));
        let read: Link = text.parse().unwrap();
        assert_eq!(read.market.as_str(), "https://relay.example/");
        assert_eq!(read.token.unwrap().expose_secret(), "s3cret");
        assert_eq!(read.owner, Some(owner));
    }

    #[test]
    fn a_plain_address_is_a_link_without_invite() {
        let link: Link = "http://127.0.0.1:8443".parse().unwrap();
        assert!(link.token.is_none() && link.owner.is_none());
        assert_eq!(link.to_string(), "http://127.0.0.1:8443/");
    }

    #[test]
    fn what_is_no_link_is_refused_without_its_secret() {
        for text in [
            "relay.example#token=s3cret",
            "ftp://relay.example/#token=s3cret",
            "https://me:s3cret@relay.example",
            "https://relay.example/?token=s3cret",
            "https://relay.example/#token=s3cret&owner=me",
        ] {
            let error = text.parse::<Link>().unwrap_err();
            assert!(error.is::<Usage>());
            let told = format!("{error:#}");
            assert!(!told.contains("s3cret"), "{told}");
        }
    }
}
