//! What the operator was installed with. Every setting is an environment variable, so that a chart needs no file.

use std::{net::SocketAddr, str::FromStr};

use k8s_openapi::api::core::v1::LocalObjectReference;
use kvasir_api::ImagePullPolicy;

/// Settings of `kvasir-operator run`.
#[derive(Clone, Debug, clap::Args)]
pub struct Settings {
    /// Image of stages whose Ring names none
    #[arg(long, env = "KVASIR_STAGE_IMAGE")]
    pub stage_image: String,
    /// When the kubelet pulls it: Always, `IfNotPresent` or Never
    #[arg(
        long,
        env = "KVASIR_STAGE_IMAGE_PULL_POLICY",
        default_value = "",
        hide_default_value = true
    )]
    pub stage_image_pull_policy: PullPolicy,
    /// Secrets to pull it with, in each Ring's namespace, separated by commas
    #[arg(long, env = "KVASIR_STAGE_IMAGE_PULL_SECRETS", value_delimiter = ',')]
    pub stage_image_pull_secrets: Vec<String>,
    /// Relay of Rings that name none, as the operator and the stages dial it: `http://kvasir-relay.kvasir-system.svc:8443`
    #[arg(long, env = "KVASIR_RELAY_URL")]
    pub relay_url: Option<String>,
    /// Namespaces whose Rings are served, separated by commas; all when empty
    #[arg(long, env = "KVASIR_WATCH_NAMESPACES", value_delimiter = ',')]
    pub watch_namespaces: Vec<String>,
    /// Where metrics and health are served
    #[arg(long, env = "KVASIR_HTTP_LISTEN", default_value = "0.0.0.0:8080")]
    pub http_listen: SocketAddr,
    /// Let one of several operators work, by a Lease
    #[arg(
        long,
        env = "KVASIR_LEADER_ELECTION",
        default_value_t = true,
        action = clap::ArgAction::Set,
        value_parser = clap::builder::BoolishValueParser::new()
    )]
    pub leader_election: bool,
    /// This pod's name, by which it holds the Lease
    #[arg(long, env = "POD_NAME", default_value = "kvasir-operator")]
    pub pod_name: String,
    /// Namespace of the Lease
    #[arg(long, env = "POD_NAMESPACE", default_value = "default")]
    pub pod_namespace: String,
    /// Name of the network in which stages of this cluster dial each other
    #[arg(long, env = "KVASIR_CLUSTER_NETWORK", default_value = "cluster")]
    pub cluster_network: String,
}

impl Settings {
    /// Namespaces to watch; none for all.
    pub fn namespaces(&self) -> Vec<&str> {
        named(&self.watch_namespaces).collect()
    }

    /// Whether this operator and its rights are still there when `namespace` is being deleted: not in its own, and not
    /// where its rights are a Role in there.
    pub fn outlives(&self, namespace: &str) -> bool {
        self.namespaces().is_empty() && namespace != self.pod_namespace
    }

    /// Secrets to pull the stages' image with.
    pub fn pull_secrets(&self) -> Vec<LocalObjectReference> {
        named(&self.stage_image_pull_secrets)
            .map(|name| LocalObjectReference { name: name.to_owned() })
            .collect()
    }

    /// The relay of Rings that name none; none when the operator was installed without.
    pub fn relay(&self) -> Option<&str> {
        self.relay_url.as_deref().map(str::trim).filter(|url| !url.is_empty())
    }
}

/// A list in the environment may be empty, which clap takes for one empty name.
fn named(list: &[String]) -> impl Iterator<Item = &str> {
    list.iter().map(|name| name.trim()).filter(|name| !name.is_empty())
}

/// When the kubelet pulls the image; nothing leaves it to Kubernetes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PullPolicy(pub Option<ImagePullPolicy>);

impl FromStr for PullPolicy {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "" => Ok(PullPolicy(None)),
            "Always" => Ok(PullPolicy(Some(ImagePullPolicy::Always))),
            "IfNotPresent" => Ok(PullPolicy(Some(ImagePullPolicy::IfNotPresent))),
            "Never" => Ok(PullPolicy(Some(ImagePullPolicy::Never))),
            _ => Err("it is Always, IfNotPresent or Never"),
        }
    }
}
