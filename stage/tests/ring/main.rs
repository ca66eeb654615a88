//! Whole rings in this process: real TCP links, handshakes and manifests between stages that share nothing else.
#![allow(clippy::unwrap_used, missing_docs, unreachable_pub)]

mod circle;
mod equality;
mod failures;
mod protocol;
mod real;
mod relayed;
mod toy;
