//! `kvasir invite`: a link and a QR code with which devices from outside join a ring.

use std::{io::Write, path::PathBuf, sync::Arc, time::Duration};

use anyhow::Context;
use kvasir_market::{MarketClient, types::InviteRequest};
use kvasir_wire::trust::PublicKey;
use qrcode::{QrCode, render::unicode::Dense1x2};
use secrecy::SecretString;
use serde::Serialize;

use crate::{
    failure::Usage,
    join::Link,
    local::Folder,
    planned::RingArgs,
    table::{Output, Table},
};

/// Invite devices from outside to a ring: print a link and a QR code for `kvasir join`. Whoever has the link may join.
#[derive(Debug, clap::Args)]
pub struct Invite {
    #[command(flatten)]
    ring: RingArgs,
    /// Devices that may join with it
    #[arg(long, env = "KVASIR_USES", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    uses: u32,
    /// How long it is good for
    #[arg(long, env = "KVASIR_EXPIRES", default_value = "1day", value_parser = humantime::parse_duration)]
    expires: Duration,
    /// Folder of the ring, which holds its owner's key; ~/.cache/kvasir/up/NAME when absent
    #[arg(long, env = "KVASIR_UP_DIR")]
    dir: Option<PathBuf>,
    /// Print the public half of the owner's key instead, which is made when there is none yet: a relay that serves only
    /// owners that it knows is started with `--owner` and this key
    #[arg(long, conflicts_with_all = ["uses", "expires"])]
    show_owner: bool,
    /// Form of the output
    #[arg(short, long, env = "KVASIR_OUTPUT", value_enum, default_value_t)]
    output: Output,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Printed {
    ring: String,
    link: String,
    uses: u32,
    expires_in_s: u32,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Owner {
    ring: String,
    owner: PublicKey,
}

impl Invite {
    /// Runs the command.
    pub async fn run(self) -> anyhow::Result<()> {
        let ring = self.ring.read()?;
        let name = ring.metadata.name.clone().unwrap_or_default();
        if self.show_owner {
            let owner = Folder::owner_to_be(self.dir.as_ref(), &name)?.public();
            if self.output == Output::Table {
                writeln!(std::io::stdout(), "{owner}")?;
                return Ok(());
            }
            return self.output.print(&Owner { ring: name, owner }, |_| Table::new([]));
        }
        let url = ring.spec.relay.as_ref().and_then(|relay| relay.url.clone());
        let url =
            url.ok_or_else(|| Usage("the Ring names no relay, where devices could join: set relay.url".to_owned()))?;
        let owner = Folder::known_owner(self.dir.as_ref(), &name)?.ok_or_else(|| {
            Usage(format!(
                "this machine never ran the Ring {name}: run it once with `kvasir up`, or name the folder where it did with --dir"
            ))
        })?;
        let owner = Arc::new(owner);
        let public = owner.public();
        let expires_in_s = u32::try_from(self.expires.as_secs()).unwrap_or(u32::MAX);
        let request = InviteRequest {
            ring: name.clone(),
            uses: self.uses,
            expires_in_s,
        };
        let granted = MarketClient::new(&url, owner)?.invite(&request).await?;
        let link = Link::invite(&url, SecretString::from(granted.token), public)?.reveal();
        let printed = Printed {
            ring: name,
            link,
            uses: self.uses,
            expires_in_s,
        };
        if self.output != Output::Table {
            return self.output.print(&printed, |_| Table::new([]));
        }
        let code = QrCode::new(printed.link.as_bytes()).context("the link is too long for a QR code")?;
        let code = code.render::<Dense1x2>().build();
        let lives = humantime::format_duration(Duration::from_secs(expires_in_s.into()));
        writeln!(
            std::io::stdout(),
            "{code}\n\nkvasir join '{}'\n\ngood for {} device(s), {lives}",
            printed.link,
            printed.uses
        )?;
        Ok(())
    }
}
