//! What crosses an edge: frames, pieces, the handshake, transports, and the trust behind them.
//!
//! `frame`, `boundary` and `piece` are sans-IO; `edge` is the thin shell over a byte stream.

pub mod frame;
