//! The model of a Ring and where its file is.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::SecretKeyRef;

/// A model: the name that it is served under and where its GGUF is.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Model {
    /// Name that the API serves it under.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Where the GGUF is.
    #[x_kube(validation = Rule::new("self == oldSelf")
        .message("source is immutable; make another Ring for another model")
        .reason(Reason::FieldValueForbidden))]
    pub source: Source,
    /// Bearer token for a source that asks for one. Such a source can't be left to the market.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials_secret_ref: Option<SecretKeyRef>,
    /// Chat template (Jinja) in place of the model's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 131_072))]
    pub chat_template: Option<String>,
}

/// Where the GGUF is: exactly one member. A multi-part model is named by any of its parts.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new(
        "[has(self.huggingFace), has(self.http), has(self.persistentVolumeClaim), has(self.file)].exists_one(x, x)")
    .message("exactly one of huggingFace, http, persistentVolumeClaim and file must be set"))]
pub struct Source {
    /// A file in a Hugging Face repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hugging_face: Option<HuggingFaceSource>,
    /// A file on any server that honours Range.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<HttpSource>,
    /// A file on a volume in the Ring's namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim: Option<ClaimSource>,
    /// A file on this machine: for local runs, the operator refuses it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<FileSource>,
}

/// A file in a Hugging Face repository.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct HuggingFaceSource {
    /// `owner/name`.
    #[schemars(length(min = 3, max = 256))]
    #[x_kube(validation = Rule::new("self.matches('^[A-Za-z0-9._-]+/[A-Za-z0-9._-]+$')")
        .message("repo must be owner/name"))]
    pub repo: String,
    /// Path of the GGUF in the repository.
    #[schemars(length(min = 1, max = 1024))]
    #[x_kube(validation = Rule::new("!self.matches('(^|/)([.][.])?(/|$)')")
        .message("file must be a path inside the repository"))]
    pub file: String,
    /// Branch, tag or commit.
    #[serde(default = "default_revision")]
    #[schemars(length(min = 1, max = 256))]
    pub revision: String,
}

/// A file on any server that honours Range.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct HttpSource {
    /// Address of the GGUF, without credentials.
    #[schemars(length(min = 8, max = 2048))]
    #[x_kube(validation = Rule::new("self.matches('^https?://[^/?#@ ]+(/[^ ]*)?$')")
        .message("url must start with http:// or https:// and hold no user name, password or space"))]
    pub url: String,
}

/// A file on a volume in the Ring's namespace.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ClaimSource {
    /// Name of the `PersistentVolumeClaim`.
    #[schemars(length(min = 1, max = 253))]
    pub claim_name: String,
    /// Path of the GGUF from the volume's root.
    #[schemars(length(min = 1, max = 1024))]
    #[x_kube(validation = Rule::new("!self.matches('(^|/)([.][.])?(/|$)')")
        .message("path must be relative to the volume's root and stay inside it"))]
    pub path: String,
}

/// A file on this machine.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct FileSource {
    /// Path of the GGUF; a relative one starts at the working folder.
    #[schemars(length(min = 1, max = 4096))]
    pub path: String,
}

fn default_revision() -> String {
    "main".into()
}
