//! Who speaks: signed requests with a clock and a nonce, and invites. Pure: time and randomness are arguments.

mod granted;
mod invite;
mod request;

pub use granted::{InviteGranted, TicketGranted};
pub use invite::{InviteToken, StoredInvite};
pub use request::{AuthError, CLOCK_TOLERANCE, Call, Credentials, NONCE_KEPT, Signer};
