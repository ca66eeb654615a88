//! The Noise handshake of an edge, and the sealing of its pieces. Sans-IO.
//!
//! `Noise_KK_25519_ChaChaPoly_BLAKE2s`: both sides know each other's static key from the signed manifest. BLAKE2s
//! because phones without SHA instructions shake hands as fast; it plays no part afterwards. The predecessor begins.
//!
//! ```text
//! predecessor → successor   preamble, message 1     successor → predecessor   preamble, message 2
//! preamble: "KVSR", version u16, epoch u64, edge u32        message: length u16 (little-endian), Noise message
//! ```
//!
//! The preamble is in the clear and proves nothing: it lets a refusal say what differs. The prologue binds ring, epoch,
//! edge, version and model, so that a peer which means anything else can't finish the handshake. From then on each piece
//! is one message, numbered by both sides: one that is changed, dropped, repeated or moved is noticed.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize};
use snow::{HandshakeState, StatelessTransportState};

use crate::{frame::VERSION, trust::NodeKeys};

/// The protocol's name.
pub const PATTERN: &str = "Noise_KK_25519_ChaChaPoly_BLAKE2s";
/// Bytes that sealing adds to a piece, beside the length in front.
pub const TAG_BYTES: usize = 16;
/// Bytes of a preamble.
pub const PREAMBLE_BYTES: usize = 18;
/// Bytes of a handshake message: an ephemeral key and the tag of an empty payload.
pub const MESSAGE_BYTES: usize = 48;

const MAGIC: [u8; 4] = *b"KVSR";

/// Which end of an edge this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Role {
    /// rank r, whose laps go over the edge; it begins the handshake
    Predecessor,
    /// rank r + 1
    Successor,
}

/// What a handshake is bound to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// ring's name
    pub ring: String,
    /// membership's generation
    pub epoch: u64,
    /// the edge's index: the rank of its predecessor
    pub edge: u32,
    /// model identity, text form
    pub identity: String,
}

/// Why two ends don't come together.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum HandshakeError {
    /// something else dialled or was dialled
    #[error("the other end doesn't speak the edge protocol: check the address")]
    NotAnEdge,
    /// the peer speaks another version
    #[error("the peer speaks version {theirs} of the protocol and this stage {ours}: upgrade the older of the two")]
    Version {
        /// the peer's
        theirs: u16,
        /// [`VERSION`]
        ours: u16,
    },
    /// the peer is at another epoch
    #[error("the peer is at epoch {theirs}, this stage at {ours}: the older of the two must take the newer manifest")]
    Epoch {
        /// the peer's
        theirs: u64,
        /// this stage's
        ours: u64,
    },
    /// the peer means another edge
    #[error("the peer means edge {theirs}, this stage {ours}")]
    Edge {
        /// the peer's
        theirs: u32,
        /// this stage's
        ours: u32,
    },
    /// the peer couldn't prove what the manifest says of it
    #[error("the peer doesn't hold the key that the manifest lists for it, or means another ring or model")]
    Refused,
    /// the peer hung up in the middle
    #[error("the peer ended the handshake: it may not have this manifest yet, or refuses this stage's key")]
    HungUp,
    /// no answer
    #[error("the peer didn't finish the handshake in time")]
    TimedOut,
    /// the hello names something else than the manifest
    #[error("the peer's hello says {what} {theirs}, the manifest {ours}")]
    Hello {
        /// which field
        what: &'static str,
        /// its value in the peer's hello
        theirs: String,
        /// its value here
        ours: String,
    },
    /// the first frame wasn't a hello, or was malformed
    #[error("the peer's first frame is not a hello of this version")]
    FirstFrame(#[source] Option<crate::piece::PieceError>),
    /// the Noise library refused to go on
    #[error("the handshake can't go on")]
    Noise(#[source] Arc<snow::Error>),
}

impl HandshakeError {
    /// Stable `PascalCase` word for metrics, events and conditions.
    pub fn reason(&self) -> &'static str {
        match self {
            HandshakeError::NotAnEdge => "NotAnEdge",
            HandshakeError::Version { .. } => "UnsupportedVersion",
            HandshakeError::Epoch { .. } => "EpochMismatch",
            HandshakeError::Edge { .. } => "EdgeMismatch",
            HandshakeError::Refused => "PeerKeyRefused",
            HandshakeError::HungUp => "HandshakeEnded",
            HandshakeError::TimedOut => "HandshakeTimedOut",
            HandshakeError::Hello { .. } => "HelloMismatch",
            HandshakeError::FirstFrame(Some(error)) => error.reason(),
            HandshakeError::FirstFrame(None) => "HelloMissing",
            HandshakeError::Noise(_) => "HandshakeFailed",
        }
    }
}

impl From<snow::Error> for HandshakeError {
    fn from(error: snow::Error) -> Self {
        HandshakeError::Noise(Arc::new(error))
    }
}

/// A message that wasn't sealed by the peer as the next one: changed, dropped, repeated or moved on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("message {number} was changed, dropped or repeated on the way")]
pub struct Tampered {
    /// messages that came before it
    pub number: u64,
}

impl Binding {
    /// What goes ahead in the clear.
    pub fn preamble(&self) -> [u8; PREAMBLE_BYTES] {
        let mut bytes = [0; PREAMBLE_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        bytes[6..14].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[14..].copy_from_slice(&self.edge.to_le_bytes());
        bytes
    }

    /// Checks the peer's preamble.
    ///
    /// # Errors
    /// [`HandshakeError`] names what differs.
    pub fn check(&self, preamble: &[u8; PREAMBLE_BYTES]) -> Result<(), HandshakeError> {
        let [m0, m1, m2, m3, v0, v1, epoch @ .., e0, e1, e2, e3] = *preamble;
        if [m0, m1, m2, m3] != MAGIC {
            return Err(HandshakeError::NotAnEdge);
        }
        let (version, epoch) = (u16::from_le_bytes([v0, v1]), u64::from_le_bytes(epoch));
        let edge = u32::from_le_bytes([e0, e1, e2, e3]);
        if version != VERSION {
            return Err(HandshakeError::Version {
                theirs: version,
                ours: VERSION,
            });
        }
        if epoch != self.epoch {
            return Err(HandshakeError::Epoch {
                theirs: epoch,
                ours: self.epoch,
            });
        }
        if edge != self.edge {
            return Err(HandshakeError::Edge {
                theirs: edge,
                ours: self.edge,
            });
        }
        Ok(())
    }

    /// The preamble, and ring and identity with their lengths: no two bindings share one.
    fn prologue(&self) -> Vec<u8> {
        let mut prologue = self.preamble().to_vec();
        for text in [&self.ring, &self.identity] {
            prologue.extend((text.len() as u64).to_le_bytes());
            prologue.extend(text.as_bytes());
        }
        prologue
    }
}

/// A handshake under way. The predecessor writes, then reads; the successor reads, then writes.
pub struct Handshake(HandshakeState);

impl fmt::Debug for Handshake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handshake").finish_non_exhaustive()
    }
}

impl Handshake {
    /// Begins one with the peer that holds `peer_noise_key`.
    ///
    /// # Errors
    /// [`HandshakeError::Noise`] for a key that is none.
    pub fn new(
        role: Role,
        binding: &Binding,
        own: &NodeKeys,
        peer_noise_key: &[u8; 32],
    ) -> Result<Handshake, HandshakeError> {
        let prologue = binding.prologue();
        let builder = snow::Builder::new(PATTERN.parse()?)
            .prologue(&prologue)?
            .local_private_key(own.noise_secret())?
            .remote_public_key(peer_noise_key)?;
        Ok(Handshake(match role {
            Role::Predecessor => builder.build_initiator()?,
            Role::Successor => builder.build_responder()?,
        }))
    }

    /// Appends this side's message, its length in front.
    ///
    /// # Errors
    /// [`HandshakeError::Noise`] when it isn't this side's turn or the peer's key is weak.
    pub fn write(&mut self, out: &mut Vec<u8>) -> Result<(), HandshakeError> {
        let mut message = [0; MESSAGE_BYTES];
        let length = self.0.write_message(&[], &mut message)?;
        out.extend((length as u16).to_le_bytes());
        out.extend_from_slice(&message[..length]);
        Ok(())
    }

    /// Reads the peer's message, without the length.
    ///
    /// # Errors
    /// [`HandshakeError::Refused`] when its key, ring, epoch, edge or model isn't what this side expects.
    pub fn read(&mut self, message: &[u8]) -> Result<(), HandshakeError> {
        self.0
            .read_message(message, &mut [0; MESSAGE_BYTES])
            .map(drop)
            .map_err(|_| HandshakeError::Refused)
    }

    /// The two directions, once both messages are through.
    ///
    /// # Errors
    /// [`HandshakeError::Noise`] when they aren't.
    pub fn finish(self) -> Result<(Sealer, Opener), HandshakeError> {
        let state = Arc::new(self.0.into_stateless_transport_mode()?);
        Ok((
            Sealer {
                state: Arc::clone(&state),
                number: 0,
            },
            Opener { state, number: 0 },
        ))
    }
}

/// Seals what this side sends.
pub struct Sealer {
    state: Arc<StatelessTransportState>,
    number: u64,
}

/// Opens what the peer sealed.
pub struct Opener {
    state: Arc<StatelessTransportState>,
    number: u64,
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealer")
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Opener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opener")
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}

impl Sealer {
    /// Appends `piece` as one message, its length in front.
    ///
    /// # Errors
    /// [`HandshakeError::Noise`] for a piece past 65,519 bytes, or after 2⁶⁴ − 1 messages.
    pub fn seal(&mut self, piece: &[u8], out: &mut Vec<u8>) -> Result<(), HandshakeError> {
        let start = out.len();
        out.resize(start + 2 + piece.len() + TAG_BYTES, 0);
        let length = self.state.write_message(self.number, piece, &mut out[start + 2..])?;
        out[start..start + 2].copy_from_slice(&(length as u16).to_le_bytes());
        self.number += 1;
        Ok(())
    }
}

impl Opener {
    /// Puts the piece that `message` (without its length) holds into `piece`.
    ///
    /// # Errors
    /// [`Tampered`] unless it is the next message that the peer sealed, unchanged.
    pub fn open(&mut self, message: &[u8], piece: &mut Vec<u8>) -> Result<(), Tampered> {
        piece.resize(message.len(), 0);
        let tampered = |_| Tampered { number: self.number };
        let length = self.state.read_message(self.number, message, piece).map_err(tampered)?;
        piece.truncate(length);
        self.number += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn binding() -> Binding {
        Binding {
            ring: "r".into(),
            epoch: 3,
            edge: 1,
            identity: "m".into(),
        }
    }

    struct Ends {
        predecessor: Handshake,
        successor: Handshake,
    }

    /// Two ends that mean the same, unless `theirs` says otherwise.
    fn ends(theirs: &Binding) -> Ends {
        let (own, peer) = (NodeKeys::generate().unwrap(), NodeKeys::generate().unwrap());
        Ends {
            predecessor: Handshake::new(Role::Predecessor, &binding(), &own, &peer.noise_public()).unwrap(),
            successor: Handshake::new(Role::Successor, theirs, &peer, &own.noise_public()).unwrap(),
        }
    }

    fn message(handshake: &mut Handshake) -> Vec<u8> {
        let mut framed = Vec::new();
        handshake.write(&mut framed).unwrap();
        framed.split_off(2)
    }

    fn shake_hands(mut ends: Ends) -> Result<[(Sealer, Opener); 2], HandshakeError> {
        ends.successor.read(&message(&mut ends.predecessor))?;
        ends.predecessor.read(&message(&mut ends.successor))?;
        Ok([ends.predecessor.finish()?, ends.successor.finish()?])
    }

    fn seal(sealer: &mut Sealer, piece: &[u8]) -> Vec<u8> {
        let mut sealed = Vec::new();
        sealer.seal(piece, &mut sealed).unwrap();
        let message = sealed.split_off(2);
        assert_eq!(sealed, (message.len() as u16).to_le_bytes());
        message
    }

    #[test]
    fn pieces_come_out_as_they_went_in_both_ways() {
        let [(mut sealer, mut opener), (mut back_sealer, mut back_opener)] = shake_hands(ends(&binding())).unwrap();
        let mut piece = Vec::new();
        for text in [&b"one"[..], &vec![7; 32 * 1024 + 5], b""] {
            back_opener.open(&seal(&mut sealer, text), &mut piece).unwrap();
            assert_eq!(piece, text);
            opener.open(&seal(&mut back_sealer, text), &mut piece).unwrap();
            assert_eq!(piece, text);
        }
    }

    #[test]
    fn a_changed_repeated_dropped_or_moved_message_is_noticed() {
        let [(mut sealer, _), (_, mut opener)] = shake_hands(ends(&binding())).unwrap();
        let mut piece = Vec::new();
        let (first, second) = (seal(&mut sealer, b"first"), seal(&mut sealer, b"second"));
        for at in 0..first.len() {
            let mut changed = first.clone();
            changed[at] ^= 1;
            assert_eq!(opener.open(&changed, &mut piece), Err(Tampered { number: 0 }));
        }
        assert_eq!(opener.open(&second, &mut piece), Err(Tampered { number: 0 }));
        assert_eq!(opener.open(&first[..9], &mut piece), Err(Tampered { number: 0 }));
        opener.open(&first, &mut piece).unwrap();
        assert_eq!(opener.open(&first, &mut piece), Err(Tampered { number: 1 }));
        opener.open(&second, &mut piece).unwrap();
        assert_eq!(piece, b"second");
    }

    #[test]
    fn a_message_of_another_direction_is_not_taken() {
        let [(mut sealer, mut opener), _] = shake_hands(ends(&binding())).unwrap();
        assert_eq!(
            opener.open(&seal(&mut sealer, b"mine"), &mut Vec::new()),
            Err(Tampered { number: 0 })
        );
    }

    #[test]
    fn ends_that_mean_something_else_never_finish() {
        let others = [
            Binding {
                ring: "s".into(),
                ..binding()
            },
            Binding { epoch: 4, ..binding() },
            Binding { edge: 2, ..binding() },
            Binding {
                identity: "n".into(),
                ..binding()
            },
            Binding {
                ring: "rm".into(),
                identity: String::new(),
                ..binding()
            },
        ];
        for theirs in others {
            assert_eq!(
                shake_hands(ends(&theirs)).unwrap_err(),
                HandshakeError::Refused,
                "{theirs:?}"
            );
        }
    }

    #[test]
    fn a_peer_without_the_listed_key_is_refused_by_either_side() {
        let stranger = NodeKeys::generate().unwrap();
        let mut swapped = ends(&binding());
        swapped.predecessor =
            Handshake::new(Role::Predecessor, &binding(), &stranger, &stranger.noise_public()).unwrap();
        assert_eq!(shake_hands(swapped).unwrap_err(), HandshakeError::Refused);
    }

    #[test]
    fn a_first_message_played_again_leads_nowhere() {
        let (own, peer) = (NodeKeys::generate().unwrap(), NodeKeys::generate().unwrap());
        let successor = || Handshake::new(Role::Successor, &binding(), &peer, &own.noise_public()).unwrap();
        let mut predecessor = Handshake::new(Role::Predecessor, &binding(), &own, &peer.noise_public()).unwrap();
        let recorded = message(&mut predecessor);
        let mut first = successor();
        first.read(&recorded).unwrap();
        predecessor.read(&message(&mut first)).unwrap();
        let (mut sealer, _) = predecessor.finish().unwrap();
        let sealed = seal(&mut sealer, b"hello");
        // The same two messages again, to a successor that starts afresh.
        let mut second = successor();
        second.read(&recorded).unwrap();
        message(&mut second);
        let (_, mut opener) = second.finish().unwrap();
        assert_eq!(opener.open(&sealed, &mut Vec::new()), Err(Tampered { number: 0 }));
    }

    #[test]
    fn one_node_can_hold_both_ends() {
        let keys = NodeKeys::generate().unwrap();
        let end = |role| Handshake::new(role, &binding(), &keys, &keys.noise_public()).unwrap();
        let both = Ends {
            predecessor: end(Role::Predecessor),
            successor: end(Role::Successor),
        };
        assert!(shake_hands(both).is_ok());
    }

    #[test]
    fn the_preamble_names_what_differs() {
        let ours = binding();
        assert_eq!(ours.check(&ours.preamble()), Ok(()));
        let newer = Binding { epoch: 9, ..binding() };
        assert_eq!(
            ours.check(&newer.preamble()),
            Err(HandshakeError::Epoch { theirs: 9, ours: 3 })
        );
        let other = Binding { edge: 0, ..binding() };
        assert_eq!(
            ours.check(&other.preamble()),
            Err(HandshakeError::Edge { theirs: 0, ours: 1 })
        );
        let mut later = ours.preamble();
        later[4] = 2;
        assert_eq!(
            ours.check(&later),
            Err(HandshakeError::Version {
                theirs: 2,
                ours: VERSION
            })
        );
        assert_eq!(ours.check(b"GET / HTTP/1.1\r\nHo"), Err(HandshakeError::NotAnEdge));
    }
}
