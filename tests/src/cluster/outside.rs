//! A device outside the cluster: in a network namespace of its own, behind a router that masquerades and lets nothing in.
//!
//! ```text
//! the cluster's bridge 172.30.0.0/24 ── router 172.30.0.200 / 192.168.8.1 ── device 192.168.8.20
//! ```

use std::ffi::OsStr;
use std::process::Command;

use super::run;

/// The only address that the cluster sees of the device.
pub const SEEN_AS: &str = "172.30.0.200";

const BRIDGE: &str = "kvasir-cluster";
/// The router's end on the bridge.
const CABLE: &str = "kvasir-outside";

const ROUTER_RULES: &str = "
    table inet outside {
        chain translate {
            type nat hook postrouting priority 100;
            oifname wan0 masquerade
        }
        chain pass {
            type filter hook forward priority 0; policy drop;
            ct state established,related accept
            iifname lan0 accept
        }
        chain enter {
            type filter hook input priority 0; policy drop;
            ct state established,related accept
            iifname lan0 accept
        }
    }";

/// The device and its router; dropping it takes both away.
#[derive(Debug)]
pub struct Outside {
    router: &'static str,
    device: &'static str,
}

impl Outside {
    /// Plugs the router into the bridge of the cluster of `tests/cluster/`.
    pub fn new() -> Result<Self, String> {
        let outside = Outside {
            router: "kvasir-outside-router",
            device: "kvasir-outside-device",
        };
        // what a test that was killed has left
        outside.remove();
        let (router, device) = (outside.router, outside.device);
        for namespace in [router, device] {
            ip(&["netns", "add", namespace])?;
            ip(&["-n", namespace, "link", "set", "lo", "up"])?;
        }
        ip(&[
            "link", "add", CABLE, "type", "veth", "peer", "name", "wan0", "netns", router,
        ])?;
        ip(&["link", "set", CABLE, "master", BRIDGE, "up"])?;
        ip(&[
            "-n", router, "link", "add", "lan0", "type", "veth", "peer", "name", "lan0", "netns", device,
        ])?;
        for (namespace, link, address) in [
            (router, "wan0", SEEN_AS),
            (router, "lan0", "192.168.8.1"),
            (device, "lan0", "192.168.8.20"),
        ] {
            let address = format!("{address}/24");
            ip(&["-n", namespace, "address", "add", &address, "dev", link])?;
            ip(&["-n", namespace, "link", "set", link, "up"])?;
        }
        ip(&["-n", device, "route", "add", "default", "via", "192.168.8.1"])?;
        ip(&["netns", "exec", router, "sysctl", "-qw", "net.ipv4.ip_forward=1"])?;
        ip(&["netns", "exec", router, "nft", ROUTER_RULES])?;
        Ok(outside)
    }

    /// A command on the device.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", self.device]).arg(program);
        command
    }

    fn remove(&self) {
        for namespace in [self.router, self.device] {
            let _ = ip(&["netns", "del", namespace]);
        }
        // goes with the router's end, but a moment later
        let _ = ip(&["link", "del", CABLE]);
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        self.remove();
    }
}

fn ip(arguments: &[&str]) -> Result<String, String> {
    run(Command::new("ip").args(arguments))
}
