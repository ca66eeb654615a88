//! Holding a claim: claimed, renewed by reports, claimed again when it was lost, given back in the end.

use std::time::Duration;

use kvasir_market::client::{Backoff, ClientError, RingClient};
use kvasir_market::types::{Claim, ClaimRequest, LostEnd, OfferedWindow, Reach, Run, StageReport, StageState};
use kvasir_plan::{Holder, LayerRange, Link, RankManifest};
use kvasir_process::chain;
use kvasir_wire::trust::NodeKeys;
use secrecy::SecretString;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::{enrolment, resident_bytes};

/// A stage says where it stands at least this often, and three times in each lease.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// Time to give a claim back: a market that is gone already needs no farewell.
const FAREWELL: Duration = Duration::from_secs(1);

/// Who wants which windows.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// where they are claimed
    pub market: RingClient,
    /// the process; the market fills in the link
    pub holder: Holder,
    /// how its predecessor could reach it
    pub reach: Reach,
    /// windows of the ring, neighbours
    pub windows: Run,
    /// their layers
    pub layers: LayerRange,
    /// identity of the model, text form
    pub identity: String,
    /// what to enrol with before the first claim, and when the market has forgotten the node; none when it is enrolled
    pub invite: Option<SecretString>,
}

impl Wanted {
    /// Windows of `plan` for a new process of a node; none when the plan has no such windows.
    pub fn of(market: RingClient, plan: &RankManifest, windows: Run, keys: &NodeKeys, reach: Reach) -> Option<Self> {
        let ranks = plan.ranks.get(windows.start as usize..windows.end as usize)?;
        let layers = LayerRange {
            start: ranks.first()?.layers.start,
            end: ranks.last()?.layers.end,
        };
        // The market writes the link into manifests; a report has to hold one.
        let link = match &reach.address {
            Some(address) => Link::Direct {
                address: address.clone(),
            },
            None => Link::Relayed { url: String::new() },
        };
        Some(Wanted {
            market,
            holder: keys.holder(uuid::Uuid::new_v4().to_string(), link),
            reach,
            windows,
            layers,
            identity: plan.model.identity.clone(),
            invite: None,
        })
    }

    /// The same, to be enrolled first.
    #[must_use]
    pub fn with_invite(mut self, invite: Option<SecretString>) -> Self {
        self.invite = invite;
        self
    }
}

/// Where a claim stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// it is being claimed; with what the market said last
    Seeking(String),
    /// it is held
    Held(Claim),
    /// a newer process of this node took over, for good
    Fenced,
}

/// Keeps a claim while it lives; dropping it lets the claim run out.
#[derive(Debug)]
pub struct Keeper {
    wanted: Wanted,
    reports: watch::Sender<StageReport>,
    standing: watch::Receiver<Standing>,
    task: JoinHandle<()>,
}

impl Keeper {
    /// Claims, and goes on until it is dropped, given back or fenced. A `claim` that was granted already is renewed.
    pub fn start(wanted: Wanted, state: StageState, claim: Option<Claim>) -> Self {
        let report = StageReport {
            holder: wanted.holder.clone(),
            reach: wanted.reach.clone(),
            layers: wanted.layers,
            identity: wanted.identity.clone(),
            state,
            epoch: 0,
            lost_epoch: None,
            lost_reason: None,
            lost_edge: None,
            lost_end: None,
        };
        let (reports, watched) = watch::channel(report);
        let (standing, told) = watch::channel(Standing::Seeking("not claimed yet".to_owned()));
        let task = tokio::spawn(keep(wanted.clone(), claim, watched, standing));
        Keeper {
            wanted,
            reports,
            standing: told,
            task,
        }
    }

    /// Who wants what.
    pub fn wanted(&self) -> &Wanted {
        &self.wanted
    }

    /// Says how far the stage is.
    pub fn say(&self, state: StageState) {
        self.reports.send_modify(|report| report.state = state);
    }

    /// Says which epoch is the newest that this stage knows of.
    pub fn knows(&self, epoch: u64) {
        self.reports
            .send_if_modified(|report| std::mem::replace(&mut report.epoch, epoch) != epoch);
    }

    /// Says that the links of an epoch are lost; which edge never came up, if that was it, and which end of it never came
    /// to its relay, as far as this stage can tell.
    pub fn lost(&self, epoch: Option<u64>, reason: String, edge: Option<u32>, end: Option<LostEnd>) {
        self.reports.send_modify(|report| {
            (report.lost_epoch, report.lost_reason) = (epoch, Some(reason));
            (report.lost_edge, report.lost_end) = (edge, end);
        });
    }

    /// Where the claim stands, now and after every change.
    pub fn standing(&self) -> watch::Receiver<Standing> {
        self.standing.clone()
    }

    /// Returns once a newer process took over.
    pub async fn fenced(&self) {
        let mut standing = self.standing.clone();
        if standing
            .wait_for(|standing| *standing == Standing::Fenced)
            .await
            .is_err()
        {
            // Only a panic ends the task otherwise; the claim runs out then.
            std::future::pending::<()>().await;
        }
    }

    /// Gives the claim back.
    pub async fn leave(self) {
        self.task.abort();
        let standing = self.standing.borrow().clone();
        if let Standing::Held(claim) = standing {
            let left = tokio::time::timeout(FAREWELL, self.wanted.market.leave(claim.id)).await;
            if let Ok(Err(e)) = left {
                tracing::debug!(error = %chain(&e), "the market did not take the claim back");
            }
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn keep(
    wanted: Wanted,
    mut claim: Option<Claim>,
    mut reports: watch::Receiver<StageReport>,
    standing: watch::Sender<Standing>,
) {
    let mut request = ClaimRequest {
        windows: wanted.windows,
        instance: wanted.holder.instance.clone(),
    };
    let mut backoff = Backoff::default();
    let mut enrolled = false;
    loop {
        let granted = match claim.take() {
            Some(claim) => Ok(claim),
            None => claim_enrolled(&wanted, &mut enrolled, &request).await,
        };
        let lost = match granted {
            Ok(claim) => {
                tracing::info!(claim = claim.id, windows = %claim.windows, rate = claim.rate, "claimed");
                standing.send_replace(Standing::Held(claim.clone()));
                backoff.reset();
                renew(&wanted.market, &claim, &mut reports).await
            }
            Err(e) => e,
        };
        if lost.reason() == "Fenced" {
            tracing::error!(error = %chain(&lost), "this process was replaced");
            standing.send_replace(Standing::Fenced);
            return;
        }
        // A market that lost its database has forgotten the node, too.
        enrolled &= lost.reason() != "NotEnrolled";
        let text = chain(&lost);
        // A market that can't be reached yet is nothing to shout about.
        if lost.retryable() {
            tracing::debug!(error = text, "the windows are not claimed");
        } else {
            tracing::warn!(reason = lost.reason(), error = text, "the windows are not claimed");
        }
        standing.send_replace(Standing::Seeking(text));
        tokio::time::sleep(backoff.pause()).await;
        if MOVED.contains(&lost.reason())
            && let Ok(status) = wanted.market.status().await
            && let Some(windows) = windows_of(wanted.layers, &status.windows)
        {
            request.windows = windows;
        }
    }
}

/// What a market says to a claim on windows that are no longer at their old place in the ring.
const MOVED: [&str; 3] = ["Taken", "UnknownWindows", "WrongWindow"];

/// Where in the ring the windows of `layers` are: the ring may have been cut anew since they were planned.
fn windows_of(layers: LayerRange, windows: &[OfferedWindow]) -> Option<Run> {
    let first = windows.iter().find(|window| window.layers.start == layers.start)?;
    let last = windows.iter().find(|window| window.layers.end == layers.end)?;
    Some(Run {
        start: first.index,
        end: last.index + 1,
    })
}

async fn claim_enrolled(wanted: &Wanted, enrolled: &mut bool, request: &ClaimRequest) -> Result<Claim, ClientError> {
    if let Some(invite) = wanted.invite.as_ref().filter(|_| !*enrolled) {
        wanted.market.market().enrol(invite, &enrolment()).await?;
        *enrolled = true;
    }
    wanted.market.claim(request).await
}

/// Renews a claim, when there is something to say and as a heartbeat, until the market says that it is over.
async fn renew(market: &RingClient, claim: &Claim, reports: &mut watch::Receiver<StageReport>) -> ClientError {
    let heartbeat = HEARTBEAT.min(Duration::from_secs(claim.lease_s.into()) / 3);
    let mut backoff = Backoff::default();
    loop {
        let mut report = reports.borrow_and_update().clone();
        if let StageState::Ready { resident_bytes: r, .. } = &mut report.state {
            *r = resident_bytes();
        }
        let pause = match market.renew(claim.id, &report).await {
            Ok(_) => {
                backoff.reset();
                heartbeat
            }
            Err(e) if is_over(&e) => return e,
            Err(e) => {
                tracing::debug!(reason = e.reason(), error = %chain(&e), "the market did not take the report");
                backoff.pause()
            }
        };
        // A change ends the pause; so does the end of the stage, which drops this.
        if let Ok(Err(_)) = tokio::time::timeout(pause, reports.changed()).await {
            std::future::pending::<()>().await;
        }
    }
}

/// Whether the market knows the claim no more, or not even the node.
fn is_over(error: &ClientError) -> bool {
    [
        "Fenced",
        "Expired",
        "Stalled",
        "Absent",
        "UnknownClaim",
        "UnknownRing",
        "NotEnrolled",
        "ForeignClaim",
    ]
    .contains(&error.reason())
}

#[cfg(test)]
mod tests {
    use kvasir_market::types::WindowState;

    use super::*;

    #[test]
    fn windows_are_found_again_by_their_layers() {
        let ring = |cuts: &[(u32, u32)]| -> Vec<OfferedWindow> {
            let window = |(index, (start, end)): (usize, &(u32, u32))| OfferedWindow {
                index: index as u32,
                layers: LayerRange {
                    start: *start,
                    end: *end,
                },
                bytes: 1,
                memory: 1,
                state: WindowState::Open,
                rate: 1,
                uncovered_since: None,
            };
            cuts.iter().enumerate().map(window).collect()
        };
        let layers = LayerRange { start: 6, end: 12 };
        let found = |cuts: &[(u32, u32)]| windows_of(layers, &ring(cuts));
        assert_eq!(found(&[(0, 6), (6, 12), (12, 18)]), Some(Run { start: 1, end: 2 }));
        assert_eq!(
            found(&[(0, 3), (3, 6), (6, 12), (12, 18)]),
            Some(Run { start: 2, end: 3 })
        );
        assert_eq!(
            found(&[(0, 6), (6, 9), (9, 12), (12, 18)]),
            Some(Run { start: 1, end: 3 })
        );
        assert_eq!(found(&[(0, 8), (8, 18)]), None, "cut elsewhere");
    }
}
