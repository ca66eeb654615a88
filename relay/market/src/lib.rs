//! The market: where the windows of a ring are reported, its membership is proposed, and its manifest is published.
//!
//! `board` is the state machine of one ring and pure; `routes` serves it over HTTP, `client` is a stage's side of it,
//! `types` is what the two say;
//! `ticket` is the leave to bring one end of an edge to a relay.

pub mod board;
pub mod client;
pub mod routes;
pub mod ticket;
pub mod types;

pub use board::{Board, BoardError};
pub use client::{ClientError, MarketClient};
pub use routes::{Market, router};
pub use ticket::{Ticket, TicketError, TicketKey};
pub use types::{BoardStatus, Proposal, SlotStatus, StageReport, StageState};
