//! The market: where windows are offered, claimed, renewed and released, a ring's membership is proposed and published,
//! and what everybody carried is credited.
//!
//! `rules` is the state machine of one ring and pure; `store` keeps rings in SQLite or PostgreSQL; `routes` serves them
//! over HTTP; `client` is the callers' side; `auth` says who calls; `ticket` is the leave to bring one end of an edge to
//! a relay; `types` is what all of them say.

pub mod auth;
pub mod client;
pub mod routes;
pub mod rules;
pub mod store;
pub mod ticket;
pub mod types;

pub use client::{ClientError, MarketClient, RingClient};
pub use routes::{Admission, Market, Rate, RateLimits, router};
pub use store::{Limits, Store, StoreError};
pub use ticket::{Ticket, TicketError, TicketKey};
