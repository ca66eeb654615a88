//! Key pairs, their files, and signatures that can't be taken for one another.

use std::{
    fmt, fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
    str::FromStr,
};

use ed25519_dalek::{Signer as _, SigningKey, VerifyingKey};
use kvasir_plan::{Holder, Link};
use serde::{Deserialize, Serialize};
use x25519_dalek::StaticSecret;

use super::{Delegation, hex};

/// Context of a node's signature over its Noise key.
pub(super) const NOISE_KEY: &str = "kvasir noise key";
/// Context of an owner's signature over a delegation.
pub(super) const DELEGATION: &str = "kvasir delegation v1";
/// Context of rank 0's signature over a manifest.
pub(super) const MANIFEST: &str = "kvasir manifest v1";

/// Why a key can't be made, read or kept.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// the system gave no random bytes
    #[error("the system gave no random bytes for a new key")]
    Random(#[source] getrandom::Error),
    /// the file can't be read or written
    #[error("can't {action} the key file {}", path.display())]
    File {
        /// `read` or `write`
        action: &'static str,
        /// which file
        path: PathBuf,
        /// why
        #[source]
        source: io::Error,
    },
    /// the file holds something else
    #[error("{} is not a {expected} key file: make a new one or mount the right Secret", path.display())]
    Content {
        /// which file
        path: PathBuf,
        /// `node` or `owner`
        expected: &'static str,
    },
    /// text that should be a key or signature
    #[error("a {what} is {bytes} bytes in lower-case hex")]
    Hex {
        /// `public key` or `signature`
        what: &'static str,
        /// bytes it should have
        bytes: usize,
    },
}

impl KeyError {
    /// Stable `PascalCase` word for metrics, events and conditions.
    pub fn reason(&self) -> &'static str {
        match self {
            KeyError::Random(_) => "NoRandomness",
            KeyError::File { .. } => "KeyFileUnusable",
            KeyError::Content { .. } | KeyError::Hex { .. } => "MalformedKey",
        }
    }
}

macro_rules! hex_text {
    ($name:ident, $what:literal) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&hex::encode(&self.0))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({self})", stringify!($name))
            }
        }

        impl FromStr for $name {
            type Err = KeyError;

            fn from_str(text: &str) -> Result<Self, KeyError> {
                hex::decode(text).map($name).ok_or(KeyError::Hex {
                    what: $what,
                    bytes: size_of::<$name>(),
                })
            }
        }

        impl TryFrom<String> for $name {
            type Error = KeyError;

            fn try_from(text: String) -> Result<Self, KeyError> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(value: $name) -> String {
                value.to_string()
            }
        }
    };
}

/// An Ed25519 public key: a node's name, or an owner. As text, 64 digits of lower-case hex.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PublicKey(pub [u8; 32]);

/// An Ed25519 signature. As text, 128 digits of lower-case hex.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Signature(pub [u8; 64]);

hex_text!(PublicKey, "public key");
hex_text!(Signature, "signature");

impl PublicKey {
    /// Whether `signature` is this key's over `message` in `context`.
    pub fn verifies(&self, context: &str, message: &[u8], signature: &Signature) -> bool {
        let signature = ed25519_dalek::Signature::from_bytes(&signature.0);
        VerifyingKey::from_bytes(&self.0)
            .is_ok_and(|key| key.verify_strict(&in_context(context, message), &signature).is_ok())
    }

    /// 32 digits of hex that stand for the key in an invite: the first half of its BLAKE3 hash.
    pub fn fingerprint(&self) -> String {
        let hash = blake3::derive_key("kvasir key fingerprint v1", &self.0);
        hex::encode(&hash[..16])
    }
}

/// What is signed: the context, a zero byte that no context holds, the message.
fn in_context(context: &str, message: &[u8]) -> Vec<u8> {
    [context.as_bytes(), &[0], message].concat()
}

fn sign(key: &SigningKey, context: &str, message: &[u8]) -> Signature {
    Signature(key.sign(&in_context(context, message)).to_bytes())
}

fn random_key() -> Result<[u8; 32], KeyError> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(KeyError::Random)?;
    Ok(bytes)
}

/// A node's two key pairs: Ed25519 to sign with, X25519 for the Noise handshake.
#[derive(Clone)]
pub struct NodeKeys {
    signing: SigningKey,
    noise: StaticSecret,
}

impl fmt::Debug for NodeKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeKeys")
            .field("public", &self.public())
            .finish_non_exhaustive()
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct NodeFile {
    ed25519: String,
    x25519: String,
}

impl NodeKeys {
    /// New keys from the system's randomness.
    ///
    /// # Errors
    /// [`KeyError::Random`].
    pub fn generate() -> Result<NodeKeys, KeyError> {
        Ok(NodeKeys {
            signing: SigningKey::from_bytes(&random_key()?),
            noise: StaticSecret::from(random_key()?),
        })
    }

    /// Reads what [`NodeKeys::save`] wrote. Modes aren't judged: Kubernetes mounts Secrets readable by a group.
    ///
    /// # Errors
    /// [`KeyError::File`] or [`KeyError::Content`].
    pub fn load(path: &Path) -> Result<NodeKeys, KeyError> {
        let malformed = || KeyError::Content {
            path: path.to_owned(),
            expected: "node",
        };
        NodeKeys::from_text(&read(path)?).ok_or_else(malformed)
    }

    /// Writes the keys to `path` with mode 0600, whole or not at all.
    ///
    /// # Errors
    /// [`KeyError::File`].
    pub fn save(&self, path: &Path) -> Result<(), KeyError> {
        write(path, &self.to_text())
    }

    /// Loads `path`, or makes new keys and saves them there when there is no such file.
    ///
    /// # Errors
    /// As [`NodeKeys::load`], [`NodeKeys::generate`] and [`NodeKeys::save`].
    pub fn load_or_generate(path: &Path) -> Result<NodeKeys, KeyError> {
        match NodeKeys::load(path) {
            Err(KeyError::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                let keys = NodeKeys::generate()?;
                keys.save(path)?;
                Ok(keys)
            }
            loaded => loaded,
        }
    }

    /// The secret text of a key file, for a Kubernetes Secret.
    pub fn to_text(&self) -> String {
        let [ed25519, x25519] = [hex::encode(self.signing.as_bytes()), hex::encode(self.noise.as_bytes())];
        format!("{{\"ed25519\":\"{ed25519}\",\"x25519\":\"{x25519}\"}}\n")
    }

    /// The keys in a key file's text, if it is one.
    pub fn from_text(text: &str) -> Option<NodeKeys> {
        let file: NodeFile = serde_json::from_str(text).ok()?;
        Some(NodeKeys {
            signing: SigningKey::from_bytes(&hex::decode(&file.ed25519)?),
            noise: StaticSecret::from(hex::decode::<32>(&file.x25519)?),
        })
    }

    /// The Ed25519 public key: the node's name.
    pub fn public(&self) -> PublicKey {
        PublicKey(self.signing.verifying_key().to_bytes())
    }

    /// The X25519 public key of the Noise handshake.
    pub fn noise_public(&self) -> [u8; 32] {
        x25519_dalek::PublicKey::from(&self.noise).to_bytes()
    }

    pub(crate) fn noise_secret(&self) -> &[u8; 32] {
        self.noise.as_bytes()
    }

    /// Signs `message`; `context` says what kind of message it is, holds no zero byte, and is shared by no other kind.
    pub fn sign(&self, context: &str, message: &[u8]) -> Signature {
        sign(&self.signing, context, message)
    }

    /// This node as the holder of a rank, its Noise key signed.
    pub fn holder(&self, instance: impl Into<String>, link: Link) -> Holder {
        let noise_key = self.noise_public();
        Holder {
            node: self.public().to_string(),
            noise_key: hex::encode(&noise_key),
            noise_key_signature: self.sign(NOISE_KEY, &noise_key).to_string(),
            instance: instance.into(),
            link,
        }
    }
}

/// The X25519 key that a holder lists, for the handshake with it.
///
/// # Errors
/// [`KeyError::Hex`]; a verified manifest has none such.
pub fn noise_key(holder: &Holder) -> Result<[u8; 32], KeyError> {
    hex::decode(&holder.noise_key).ok_or(KeyError::Hex {
        what: "Noise key",
        bytes: 32,
    })
}

/// The key of a ring's owner, which delegates the signing of manifests to rank 0's node.
#[derive(Clone)]
pub struct OwnerKey(SigningKey);

impl fmt::Debug for OwnerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnerKey")
            .field("public", &self.public())
            .finish_non_exhaustive()
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OwnerFile {
    owner: String,
}

impl OwnerKey {
    /// A new key from the system's randomness.
    ///
    /// # Errors
    /// [`KeyError::Random`].
    pub fn generate() -> Result<OwnerKey, KeyError> {
        Ok(OwnerKey(SigningKey::from_bytes(&random_key()?)))
    }

    /// Reads what [`OwnerKey::save`] wrote.
    ///
    /// # Errors
    /// [`KeyError::File`] or [`KeyError::Content`].
    pub fn load(path: &Path) -> Result<OwnerKey, KeyError> {
        let malformed = || KeyError::Content {
            path: path.to_owned(),
            expected: "owner",
        };
        OwnerKey::from_text(&read(path)?).ok_or_else(malformed)
    }

    /// Writes the key to `path` with mode 0600, whole or not at all.
    ///
    /// # Errors
    /// [`KeyError::File`].
    pub fn save(&self, path: &Path) -> Result<(), KeyError> {
        write(path, &self.to_text())
    }

    /// The secret text of a key file, for a Kubernetes Secret.
    pub fn to_text(&self) -> String {
        format!("{{\"owner\":\"{}\"}}\n", hex::encode(self.0.as_bytes()))
    }

    /// The key in a key file's text, if it is one.
    pub fn from_text(text: &str) -> Option<OwnerKey> {
        let file: OwnerFile = serde_json::from_str(text).ok()?;
        Some(OwnerKey(SigningKey::from_bytes(&hex::decode(&file.owner)?)))
    }

    /// The public key, which stages trust.
    pub fn public(&self) -> PublicKey {
        PublicKey(self.0.verifying_key().to_bytes())
    }

    /// Signs `message`; `context` is as for [`NodeKeys::sign`].
    pub fn sign(&self, context: &str, message: &[u8]) -> Signature {
        sign(&self.0, context, message)
    }

    /// Lets `delegate` sign the manifests of `ring`.
    pub fn delegate(&self, ring: impl Into<String>, delegate: PublicKey) -> Delegation {
        let (ring, owner) = (ring.into(), self.public());
        let signature = sign(&self.0, DELEGATION, &Delegation::message(&ring, &owner, &delegate));
        Delegation {
            ring,
            owner,
            delegate,
            signature,
        }
    }
}

fn read(path: &Path) -> Result<String, KeyError> {
    fs::read_to_string(path).map_err(|source| KeyError::File {
        action: "read",
        path: path.to_owned(),
        source,
    })
}

/// Beside the target first, then renamed over it, so that a crash leaves the old file or the new one.
fn write(path: &Path, text: &str) -> Result<(), KeyError> {
    let failed = |source| KeyError::File {
        action: "write",
        path: path.to_owned(),
        source,
    };
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(KeyError::Random)?;
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}", hex::encode(&random)));
    let temporary = path.with_file_name(name);
    let written = write_new(&temporary, text).and_then(|()| fs::rename(&temporary, path));
    written.map_err(|error| {
        // Nothing more can be done about a temporary file that won't go.
        let _ = fs::remove_file(&temporary);
        failed(error)
    })
}

fn write_new(path: &Path, text: &str) -> io::Result<()> {
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}
