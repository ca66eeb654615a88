//! The owner's delegation, and manifests signed under it.

use kvasir_plan::{Holder, RankManifest};
use serde::{Deserialize, Serialize};

use super::{
    NodeKeys, PublicKey, Signature, hex,
    keys::{DELEGATION, MANIFEST, NOISE_KEY},
};

/// Why a manifest is refused.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// there is no signature
    #[error("the manifest is unsigned")]
    Unsigned,
    /// signed by another key than the owner's delegate, or changed since
    #[error("the manifest isn't signed by {delegate}, to whom the ring's owner delegated, or was changed since")]
    ForeignSigner {
        /// the delegate
        delegate: PublicKey,
    },
    /// rank 0 is held by another node than the one that signs
    #[error("rank 0 is held by {holder}, but {signer} signed: the owner must delegate to the holder of rank 0")]
    SignerNotRank0 {
        /// node that holds rank 0
        holder: String,
        /// node that signed
        signer: PublicKey,
    },
    /// the delegation is another owner's
    #[error("the manifest belongs to owner {theirs}, not to {ours}: check the invite's fingerprint")]
    ForeignOwner {
        /// owner in the delegation
        theirs: PublicKey,
        /// owner that this stage trusts
        ours: PublicKey,
    },
    /// the delegation isn't signed by its owner
    #[error("the delegation to {delegate} isn't signed by the ring's owner")]
    BadDelegation {
        /// who would be the delegate
        delegate: PublicKey,
    },
    /// another ring's manifest or delegation
    #[error("this is ring {theirs:?}, not {ours:?}")]
    WrongRing {
        /// its ring
        theirs: String,
        /// the ring that this stage serves
        ours: String,
    },
    /// an older generation
    #[error("epoch {theirs} is over: epoch {last} was seen already")]
    LowerEpoch {
        /// the manifest's epoch
        theirs: u64,
        /// newest epoch that this stage has seen
        last: u64,
    },
    /// a rank without a holder
    #[error("nobody holds rank {rank} yet")]
    Unclaimed {
        /// which rank
        rank: usize,
    },
    /// a Noise key that its node didn't sign
    #[error("the Noise key listed for node {node} isn't signed by it: somebody swapped it on the way")]
    HolderKey {
        /// the node
        node: String,
    },
    /// not a manifest
    #[error("the signed text isn't a rank manifest that this version reads")]
    Malformed(#[source] serde_json::Error),
}

impl TrustError {
    /// Stable `PascalCase` word for metrics, events and conditions.
    pub fn reason(&self) -> &'static str {
        match self {
            TrustError::Unsigned => "ManifestUnsigned",
            TrustError::ForeignSigner { .. } | TrustError::SignerNotRank0 { .. } => "ForeignSigner",
            TrustError::ForeignOwner { .. } => "ForeignOwner",
            TrustError::BadDelegation { .. } => "BadDelegation",
            TrustError::WrongRing { .. } => "WrongRing",
            TrustError::LowerEpoch { .. } => "LowerEpoch",
            TrustError::Unclaimed { .. } => "RankUnclaimed",
            TrustError::HolderKey { .. } => "HolderKeySwapped",
            TrustError::Malformed(_) => "MalformedManifest",
        }
    }
}

/// Checks that the node of `holder` signed the Noise key listed with it.
///
/// # Errors
/// [`TrustError::HolderKey`], also for text that isn't a key or a signature.
pub fn verify_holder(holder: &Holder) -> Result<(), TrustError> {
    let signed = || {
        let node: PublicKey = holder.node.parse().ok()?;
        let noise_key: [u8; 32] = hex::decode(&holder.noise_key)?;
        let signature: Signature = holder.noise_key_signature.parse().ok()?;
        node.verifies(NOISE_KEY, &noise_key, &signature).then_some(())
    };
    signed().ok_or_else(|| TrustError::HolderKey {
        node: holder.node.clone(),
    })
}

/// The owner's word that `delegate` may sign the manifests of `ring`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Delegation {
    /// the ring's name
    pub ring: String,
    /// the owner's key
    pub owner: PublicKey,
    /// rank 0's node
    pub delegate: PublicKey,
    /// the owner's signature over the three
    pub signature: Signature,
}

impl Delegation {
    /// What the owner signs: the ring's length and name, both keys.
    pub(super) fn message(ring: &str, owner: &PublicKey, delegate: &PublicKey) -> Vec<u8> {
        [
            &(ring.len() as u64).to_le_bytes(),
            ring.as_bytes(),
            &owner.0,
            &delegate.0,
        ]
        .concat()
    }

    /// Checks that `owner` gave it for `ring`.
    ///
    /// # Errors
    /// [`TrustError::ForeignOwner`], [`TrustError::WrongRing`] or [`TrustError::BadDelegation`].
    pub fn verify(&self, owner: &PublicKey, ring: &str) -> Result<(), TrustError> {
        if self.owner != *owner {
            return Err(TrustError::ForeignOwner {
                theirs: self.owner,
                ours: *owner,
            });
        }
        if self.ring != ring {
            return Err(TrustError::WrongRing {
                theirs: self.ring.clone(),
                ours: ring.to_owned(),
            });
        }
        let message = Delegation::message(&self.ring, &self.owner, &self.delegate);
        if !owner.verifies(DELEGATION, &message, &self.signature) {
            return Err(TrustError::BadDelegation {
                delegate: self.delegate,
            });
        }
        Ok(())
    }
}

/// A rank manifest as it travels: the exact bytes that rank 0 signed, and by whose leave it signs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SignedManifest {
    /// the [`RankManifest`], exact JSON text
    pub manifest: String,
    /// the delegate's signature over that text; none while it's only proposed
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<Signature>,
    /// the owner's delegation to the signer
    pub delegation: Delegation,
}

impl SignedManifest {
    /// Signs `manifest` with rank 0's `keys`, to whom `delegation` was given.
    ///
    /// # Errors
    /// [`TrustError::Malformed`] when the manifest can't be written as JSON.
    pub fn sign(
        manifest: &RankManifest,
        keys: &NodeKeys,
        delegation: Delegation,
    ) -> Result<SignedManifest, TrustError> {
        let manifest = serde_json::to_string(manifest).map_err(TrustError::Malformed)?;
        let signature = keys.sign(MANIFEST, manifest.as_bytes());
        Ok(SignedManifest {
            manifest,
            signature: Some(signature),
            delegation,
        })
    }

    /// The manifest, once every signature from `owner` down to the holders' Noise keys was checked.
    ///
    /// `last_epoch` is the newest epoch that the caller has accepted; the same epoch may come again.
    ///
    /// # Errors
    /// [`TrustError`] names what doesn't hold. Nothing of an unsigned text is parsed.
    pub fn verify(&self, owner: &PublicKey, ring: &str, last_epoch: u64) -> Result<RankManifest, TrustError> {
        let signature = self.signature.as_ref().ok_or(TrustError::Unsigned)?;
        self.delegation.verify(owner, ring)?;
        let signer = self.delegation.delegate;
        if !signer.verifies(MANIFEST, self.manifest.as_bytes(), signature) {
            return Err(TrustError::ForeignSigner { delegate: signer });
        }
        let manifest: RankManifest = serde_json::from_str(&self.manifest).map_err(TrustError::Malformed)?;
        if manifest.ring != ring {
            return Err(TrustError::WrongRing {
                theirs: manifest.ring,
                ours: ring.to_owned(),
            });
        }
        if manifest.epoch < last_epoch {
            return Err(TrustError::LowerEpoch {
                theirs: manifest.epoch,
                last: last_epoch,
            });
        }
        for (rank, planned) in manifest.ranks.iter().enumerate() {
            let holder = planned.holder.as_ref().ok_or(TrustError::Unclaimed { rank })?;
            if rank == 0 && holder.node != signer.to_string() {
                return Err(TrustError::SignerNotRank0 {
                    holder: holder.node.clone(),
                    signer,
                });
            }
            verify_holder(holder)?;
        }
        Ok(manifest)
    }
}
