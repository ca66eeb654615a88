//! Credit: what a counter of positions that came home is worth to the claims of its epoch.
//!
//! A token that comes home has passed every rank, so every claim of the manifest earns when the epoch's counter goes
//! from a to b: floor(b·rate/10⁶) − floor(a·rate/10⁶) µcredit. Summed up that is floor(counter·rate/10⁶), however often,
//! late or in whatever order the counter is reported.

use kvasir_wire::trust::PublicKey;
use serde::{Deserialize, Serialize};

use super::{Millis, RingState, RuleError};
use crate::types::Positions;

/// Positions that one epoch may commit: at 10,000 a second they last for 800 years, and with the highest rate what they
/// are worth fits in 63 bits.
const MAX_COMMITTED: u64 = 1 << 48;

/// A rate is per so many tokens.
const TOKENS: u128 = 1_000_000;

/// What one epoch has committed, and who earns by it. Kept for as long as reports of the epoch are taken.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EpochAccount {
    /// the epoch
    pub epoch: u64,
    /// node that reports its positions
    pub rank0: PublicKey,
    /// positions so far
    pub committed: u64,
    /// whether it earns at all: both ends are the owner's
    pub trusted: bool,
    /// the claims of its manifest, in ring order
    pub earners: Vec<Earner>,
}

/// A claim in an epoch's manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Earner {
    /// the claim
    pub claim: u64,
    /// who is paid
    pub node: PublicKey,
    /// µcredit per million tokens, frozen when it was claimed
    pub rate: u64,
}

/// What a claim earned by one report. Claims that earned nothing by it are left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Credit {
    /// the epoch
    pub epoch: u64,
    /// the claim
    pub claim: u64,
    /// who is paid
    pub node: PublicKey,
    /// µcredit per million tokens
    pub rate: u64,
    /// counter before
    pub from: u64,
    /// counter after
    pub to: u64,
    /// µcredit
    pub amount: u64,
}

impl EpochAccount {
    /// Moves the counter up to `committed` and gives what that is worth. A counter that is not higher than what is known
    /// adds nothing.
    fn commit(&mut self, committed: u64) -> Vec<Credit> {
        let (from, to) = (self.committed, committed.max(self.committed));
        self.committed = to;
        if !self.trusted {
            return Vec::new();
        }
        let credit = |earner: &Earner| Credit {
            epoch: self.epoch,
            claim: earner.claim,
            node: earner.node,
            rate: earner.rate,
            from,
            to,
            amount: worth(to, earner.rate) - worth(from, earner.rate),
        };
        let credits = self.earners.iter().map(credit);
        credits.filter(|credit| credit.amount > 0).collect()
    }
}

/// µcredit that so many positions are worth.
pub(super) fn worth(committed: u64, rate: u64) -> u64 {
    let worth = u128::from(committed) * u128::from(rate) / TOKENS;
    u64::try_from(worth).unwrap_or(u64::MAX)
}

impl RingState {
    /// Takes rank 0's counter for the epoch of `account`, and what waits there: the first report of an epoch, whatever it
    /// counts, says that a lap went round in it. Gives what is earned by it: keep it with the account, in one transaction.
    /// The same counter again, or a lower one that comes late, earns nothing and is
    /// no error: `account.committed` is the answer.
    ///
    /// # Errors
    /// [`RuleError::UnknownEpoch`], [`RuleError::NotRank0`], [`RuleError::BadCounter`].
    pub fn positions(
        &mut self,
        now: Millis,
        node: PublicKey,
        account: &mut EpochAccount,
        report: Positions,
    ) -> Result<Vec<Credit>, RuleError> {
        if report.epoch != account.epoch || account.epoch > self.epoch {
            return Err(RuleError::UnknownEpoch { epoch: report.epoch });
        }
        if node != account.rank0 {
            return Err(RuleError::NotRank0);
        }
        if report.committed > MAX_COMMITTED {
            let committed = report.committed;
            return Err(RuleError::BadCounter { committed });
        }
        let current = self.published.as_ref().map(|published| published.manifest.epoch);
        if current == Some(report.epoch) {
            self.take_queued(now, Some(report.queued));
            self.note_closed(report.epoch);
        }
        if current == Some(report.epoch) && report.committed > account.committed {
            self.note_home();
        }
        let credits = account.commit(report.committed);
        debug_assert_eq!(super::invariants::check_credits(account, &credits), Ok(()));
        Ok(credits)
    }
}
