//! Keys and signatures: who owns a ring, who may sign its manifests, and whose Noise key is whose.
//!
//! The owner's Ed25519 key signs a [`Delegation`] to rank 0's node key, rank 0 signs each epoch's manifest, and every
//! node signs its own X25519 key. A stage trusts the owner's public key alone and checks the chain down from it, so a
//! relay that swaps keys or manifests is caught. Every signature covers a context that no other kind of message shares.

mod hex;
mod keys;
mod manifest;

pub use keys::{KeyError, NodeKeys, OwnerKey, PublicKey, Signature, noise_key};
pub use manifest::{Delegation, SignedManifest, TrustError, verify_holder};
