//! What a relay and the two ends of a relayed edge agree on: path, subprotocol, sizes, and the words that end a leg.
//!
//! ```text
//! stage → relay   GET /v1/edge, Upgrade: websocket, Authorization: Bearer TICKET, Sec-WebSocket-Protocol: kvasir.edge.v1
//! relay → stage   101, or a status with {reason, message} as JSON
//! stage → relay   one byte, the role; then binary messages
//! relay → stage   the peer's bytes as binary messages
//! relay → stage   close: a code of 4000 or more and its word (1009 for a message above the limit)
//! ```
//!
//! Where messages begin and end means nothing: the relay may cut and join them.

use std::time::Duration;

use crate::{ROLE_PREDECESSOR, ROLE_SUCCESSOR, noise::Role};

/// Where a relay takes legs, under its public URL.
pub const EDGE_PATH: &str = "/v1/edge";
/// The WebSocket subprotocol that both sides name.
pub const SUBPROTOCOL: &str = "kvasir.edge.v1";
/// Bytes of a message at most, both ways, and of a frame. A sealed piece fits; pings pass between two of them.
pub const MAX_MESSAGE: usize = 64 * 1024;

/// The first byte that a leg sends.
pub fn role_byte(role: Role) -> u8 {
    match role {
        Role::Predecessor => ROLE_PREDECESSOR,
        Role::Successor => ROLE_SUCCESSOR,
    }
}

/// Why a relay closes a leg.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Close {
    /// a new leg for the same epoch, edge and role
    #[error("a new leg took this edge: both ends dial again")]
    Replaced,
    /// the other end didn't come
    #[error("the other end of the edge did not come in time")]
    PeerTimeout,
    /// the relay goes down
    #[error("the relay is being shut down: dial again in {} ms", after.as_millis())]
    Draining {
        /// pause before the next dial, another for each leg
        after: Duration,
    },
    /// the first byte isn't the role of the ticket
    #[error("the first byte is not the role that the ticket is for")]
    RoleMismatch,
    /// this end took nothing for too long
    #[error("this end took nothing for too long")]
    Slow,
    /// this end said nothing and answered no ping
    #[error("this end answered no ping")]
    Silent,
    /// the other end closed, failed or fell silent
    #[error("the other end of the edge is gone")]
    PeerGone,
    /// a message above the limit
    #[error("a message of {size} bytes is above the limit of {limit}")]
    TooLarge {
        /// bytes of the message, as far as its frames announced them
        size: u64,
        /// bytes that a message may have
        limit: u64,
    },
    /// text, or a frame that the WebSocket standard forbids
    #[error("not a binary WebSocket message")]
    Malformed,
}

impl Close {
    /// Stable `PascalCase` word for metrics, events and conditions.
    pub fn reason(self) -> &'static str {
        match self {
            Close::Replaced => "Replaced",
            Close::PeerTimeout => "PeerTimeout",
            Close::Draining { .. } => "Draining",
            Close::RoleMismatch => "RoleMismatch",
            Close::Slow => "Slow",
            Close::Silent => "Silent",
            Close::PeerGone => "PeerGone",
            Close::TooLarge { .. } => "TooLarge",
            Close::Malformed => "Malformed",
        }
    }

    /// The WebSocket close code.
    pub fn code(self) -> u16 {
        match self {
            Close::Replaced => 4001,
            Close::PeerTimeout => 4002,
            Close::Draining { .. } => 4003,
            Close::RoleMismatch => 4004,
            Close::Slow => 4005,
            Close::Silent => 4006,
            Close::PeerGone => 4007,
            Close::TooLarge { .. } => 1009,
            Close::Malformed => 1002,
        }
    }

    /// The text of the close frame, at most 123 bytes: the word, and its numbers.
    pub fn text(self) -> String {
        let word = self.reason();
        match self {
            Close::Draining { after } => format!("{word} {}", after.as_millis()),
            Close::TooLarge { size, limit } => format!("{word} {size} {limit}"),
            _ => word.to_owned(),
        }
    }

    /// What a close frame says; none when it is no relay's.
    pub fn parse(code: u16, text: &str) -> Option<Close> {
        let mut words = text.split(' ').skip(1).map(|number| number.parse::<u64>().ok());
        let mut number = || words.next().flatten();
        Some(match code {
            4001 => Close::Replaced,
            4002 => Close::PeerTimeout,
            4003 => Close::Draining {
                after: Duration::from_millis(number().unwrap_or(0)),
            },
            4004 => Close::RoleMismatch,
            4005 => Close::Slow,
            4006 => Close::Silent,
            4007 => Close::PeerGone,
            1009 => Close::TooLarge {
                size: number()?,
                limit: number()?,
            },
            1002 if text == "Malformed" => Close::Malformed,
            _ => return None,
        })
    }

    /// Whether both ends may come together if this one dials again.
    pub fn retryable(self) -> bool {
        !matches!(self, Close::RoleMismatch | Close::TooLarge { .. } | Close::Malformed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_close_comes_back_from_its_frame() {
        let closes = [
            Close::Replaced,
            Close::PeerTimeout,
            Close::Draining {
                after: Duration::from_millis(1234),
            },
            Close::RoleMismatch,
            Close::Slow,
            Close::Silent,
            Close::PeerGone,
            Close::TooLarge {
                size: u64::MAX,
                limit: 65536,
            },
            Close::Malformed,
        ];
        for close in closes {
            assert!(close.text().len() <= 123);
            assert!(close.text().starts_with(close.reason()));
            assert_eq!(Close::parse(close.code(), &close.text()), Some(close));
        }
    }

    #[test]
    fn a_stranger_s_close_is_no_relay_s() {
        for (code, text) in [
            (1000, ""),
            (1009, "message too big"),
            (1002, "Protocol violation"),
            (4999, ""),
        ] {
            assert_eq!(Close::parse(code, text), None, "{code} {text:?}");
        }
    }

    #[test]
    fn only_faults_of_this_end_are_final() {
        assert!(Close::Replaced.retryable() && Close::PeerGone.retryable());
        assert!(!Close::RoleMismatch.retryable() && !Close::Malformed.retryable());
    }
}
