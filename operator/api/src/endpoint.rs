//! How a Ring is reached: its API's Service, its relay, and the Secrets and image that they need.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The OpenAI-compatible Service in front of rank 0.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Endpoint {
    /// Type of the Service.
    #[serde(default)]
    pub service_type: ServiceType,
    /// Port of the Service.
    #[serde(default = "default_port")]
    #[schemars(range(min = 1, max = 65_535))]
    pub port: i32,
    /// Key that clients must present as a bearer token; without it the API asks for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key_secret_ref: Option<SecretKeyRef>,
}

impl Default for Endpoint {
    fn default() -> Self {
        Self {
            service_type: ServiceType::default(),
            port: default_port(),
            api_key_secret_ref: None,
        }
    }
}

/// Type of a Service.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "Kubernetes' own words")]
pub enum ServiceType {
    #[default]
    ClusterIP,
    NodePort,
    LoadBalancer,
}

/// When the kubelet pulls an image.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "Kubernetes' own words")]
pub enum ImagePullPolicy {
    Always,
    IfNotPresent,
    Never,
}

/// The relay that bridges edges and hosts the market: exactly one of `url` and `serviceRef`.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.url) != has(self.serviceRef)")
    .message("exactly one of url and serviceRef must be set"))]
pub struct Relay {
    /// Public address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 8, max = 2048))]
    #[x_kube(validation = Rule::new("self.matches('^https?://[^/?#@ ]+(/[^?# ]*)?$')")
        .message("url must start with http:// or https:// and hold no user name, query or space"))]
    pub url: Option<String>,
    /// A Service in this cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_ref: Option<ServiceRef>,
    /// Token that the operator presents to the relay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_secret_ref: Option<SecretKeyRef>,
}

/// A Service in this cluster.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ServiceRef {
    /// Name.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Namespace; the Ring's without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub namespace: Option<String>,
    /// Port.
    #[schemars(range(min = 1, max = 65_535))]
    pub port: i32,
}

/// One key of a Secret in the Ring's namespace.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct SecretKeyRef {
    /// Name of the Secret.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Key in it.
    #[schemars(length(min = 1, max = 253))]
    pub key: String,
}

fn default_port() -> i32 {
    8080
}
