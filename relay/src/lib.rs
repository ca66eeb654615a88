//! The relay: one port that bridges the edges of those who can't be dialled, and serves the market beside it.
//!
//! From the socket inwards: `serve` takes connections (`tls`, `socket`), `upgrade` checks a ticket and makes a connection
//! a leg, `bridge` pairs legs (`pairs`, `places`), `edge` passes bytes between two (`leg`, `frames`). `store` opens
//! the market's database, `cli` is the program.
//!
//! The relay knows nothing of what passes: two stages shake hands through it with keys that it doesn't have.

mod bridge;
pub mod cli;
mod edge;
mod frames;
mod leg;
mod metrics;
mod pairs;
mod places;
mod serve;
mod socket;
mod store;
mod tls;
mod upgrade;

pub use bridge::{BridgeConfig, BridgeTimings};
pub use edge::MAX_HELD;
pub use serve::{RelayConfig, serve};
pub use tls::{RELOAD_EVERY, TlsError, TlsFiles};
