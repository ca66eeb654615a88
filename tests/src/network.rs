//! A small internet of network namespaces: a public side, and a device behind a router that masquerades and lets
//! nothing in.
//!
//! ```text
//! public 198.51.100.1 ── wan ── router 198.51.100.2 / 192.168.7.1 ── lan ── device 192.168.7.20
//! ```

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Address of the public side.
pub const PUBLIC: &str = "198.51.100.1";

/// Router rules: the device's connections go out under the router's address, and only their answers come in.
const ROUTER_RULES: &str = "
    table ip nat {
        chain post {
            type nat hook postrouting priority 100;
            oifname wan0 masquerade
        }
    }
    table inet filter {
        chain forward {
            type filter hook forward priority 0; policy drop;
            ct state established,related accept
            iifname lan0 accept
        }
        chain input {
            type filter hook input priority 0; policy drop;
            ct state established,related accept
            iifname lan0 accept
        }
    }";

/// Device rules: no inbound connection.
const DEVICE_RULES: &str = "
    table inet filter {
        chain input {
            type filter hook input priority 0; policy drop;
            ct state established,related accept
            iifname lo accept
        }
    }";

/// The namespaces; dropping them takes them away.
#[derive(Debug)]
pub struct Network {
    names: [String; 3],
}

impl Network {
    /// Sets them up, or says why that can't be done here: it takes root's rights over networks, `ip` and `nft`.
    pub fn new() -> Result<Self, String> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = |what: &str| format!("kvasir-{}-{number}-{what}", std::process::id());
        let network = Network {
            names: [name("public"), name("router"), name("device")],
        };
        let [public, router, device] = &network.names;
        for name in &network.names {
            run(&["ip", "netns", "add", name])?;
            run(&["ip", "-n", name, "link", "set", "lo", "up"])?;
        }
        cable(public, "wan0", router, "wan0")?;
        cable(router, "lan0", device, "lan0")?;
        let addresses = [
            (public, "wan0", "198.51.100.1/24"),
            (router, "wan0", "198.51.100.2/24"),
            (router, "lan0", "192.168.7.1/24"),
            (device, "lan0", "192.168.7.20/24"),
        ];
        for (name, link, address) in addresses {
            run(&["ip", "-n", name, "address", "add", address, "dev", link])?;
            run(&["ip", "-n", name, "link", "set", link, "up"])?;
        }
        run(&["ip", "-n", device, "route", "add", "default", "via", "192.168.7.1"])?;
        run(&["ip", "netns", "exec", router, "sysctl", "-qw", "net.ipv4.ip_forward=1"])?;
        for (name, rules) in [(router, ROUTER_RULES), (device, DEVICE_RULES)] {
            run(&["ip", "netns", "exec", name, "nft", rules])?;
        }
        Ok(network)
    }

    /// A command on the public side.
    pub fn public(&self, program: impl AsRef<OsStr>) -> Command {
        within(&self.names[0], program.as_ref())
    }

    /// A command on the device.
    pub fn device(&self, program: impl AsRef<OsStr>) -> Command {
        within(&self.names[2], program.as_ref())
    }

    /// Runs `job` on the public side, on a thread of its own.
    pub fn publicly<T: Send>(&self, job: impl FnOnce() -> T + Send) -> T {
        let namespace = File::open(Path::new("/run/netns").join(&self.names[0])).unwrap();
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
                job()
            });
            thread.join().unwrap()
        })
    }

    /// Pulls the device's cable, or puts it back.
    pub fn set_cable(&self, plugged: bool) {
        let state = if plugged { "up" } else { "down" };
        run(&["ip", "-n", &self.names[1], "link", "set", "lan0", state]).unwrap();
    }

    /// Gives the device another address, and makes the router forget the connections of the old one.
    pub fn move_device(&self, address: &str) {
        let [_, router, device] = &self.names;
        run(&["ip", "-n", device, "address", "flush", "dev", "lan0"]).unwrap();
        run(&[
            "ip",
            "-n",
            device,
            "address",
            "add",
            &format!("{address}/24"),
            "dev",
            "lan0",
        ])
        .unwrap();
        run(&["ip", "-n", device, "route", "replace", "default", "via", "192.168.7.1"]).unwrap();
        // A router that starts anew knows no connection.
        run(&["ip", "netns", "exec", router, "nft", "flush", "ruleset"]).unwrap();
        run(&["ip", "netns", "exec", router, "nft", ROUTER_RULES]).unwrap();
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = run(&["ip", "netns", "del", name]);
        }
    }
}

fn cable(a: &str, link_a: &str, b: &str, link_b: &str) -> Result<(), String> {
    run(&[
        "ip", "link", "add", link_a, "netns", a, "type", "veth", "peer", "name", link_b, "netns", b,
    ])
}

fn within(name: &str, program: &OsStr) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", name]).arg(program);
    command
}

fn run(command: &[&str]) -> Result<(), String> {
    let done = Command::new(command[0])
        .args(&command[1..])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{}: {error}", command[0]))?;
    if done.status.success() {
        return Ok(());
    }
    Err(format!(
        "{}: {}",
        command.join(" "),
        String::from_utf8_lossy(&done.stderr).trim()
    ))
}
