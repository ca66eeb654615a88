//! The rules of the market: one ring's state, and what commands do to it. Pure: time is an argument, nothing is read or
//! written, so that the model checker, the property tests and every server run the very same code.
//!
//! A server loads a ring's [`RingState`], calls [`RingState::settle`] or a command (each settles first), and writes the
//! state back in one transaction before it answers. Refused commands may have changed the state too (leases that ran
//! out): write it back whatever the answer.
//!
//! - `ring`: the state, the demand, what time does to claims
//! - `claims`: claim, report, leave
//! - `epochs`: assembly, proposal, publication; `links` chooses how edges are reached
//! - `absence`: stages that hold a window and never come to their relay
//! - `ledger`: positions to credit; `reward`: what a window pays
//! - `map`: offers and status
//! - `choose`: a node's side: which run to claim
//! - `invariants`: what always holds, numbered

mod absence;
mod choose;
mod claims;
mod epochs;
mod invariants;
mod ledger;
mod links;
mod map;
mod refusal;
mod reward;
mod ring;

pub use choose::{Choice, choose, choose_run};
pub use ledger::{Credit, Earner, EpochAccount};
pub use refusal::RuleError;
pub use reward::{MAX_RATE, rate, scarcity, weight};
pub use ring::{Claimant, RingState};

/// The market's time in milliseconds. Only differences matter: a store hands in the clock of its choice.
pub type Millis = u64;

#[cfg(test)]
mod tests;
