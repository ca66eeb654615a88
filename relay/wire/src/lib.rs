//! What crosses an edge: frames, pieces, the handshake, transports, and the trust behind them.
//!
//! From the inside out: [`frame`] says what two ranks tell each other, [`codec`] turns frames into bytes within
//! [`Limits`], [`boundary`] does the same for hidden states, [`piece`] cuts frames so that urgent ones overtake,
//! [`noise`] seals each piece. These are sans-IO. [`edge`] is the thin tokio shell that runs them over a byte stream;
//! [`leg`] is what the ends of a relayed edge agree on with the relay; [`trust`] holds the keys and signatures that say whose stream it may be.

#[cfg(test)]
mod arbitrary;
pub mod boundary;
pub mod codec;
pub mod edge;
pub mod frame;
pub mod leg;
pub mod limits;
pub mod noise;
pub mod piece;
pub mod trust;

pub use limits::Limits;

/// First binary byte that a predecessor sends on a relayed leg.
pub const ROLE_PREDECESSOR: u8 = 0x01;
/// First binary byte that a successor sends on a relayed leg.
pub const ROLE_SUCCESSOR: u8 = 0x02;
