//! The host's resolvers: set while a tunnel is up, kept that way, and put back exactly.
//!
//! Hosts differ in how programs find their resolvers. systemd-resolved keeps them per link, resolvconf(8) collects
//! them, and without either, the file itself is written. [`DnsPlan::of_host`] finds out which.
//!
//! Each change is recorded in the state directory before it is made, because a file in `/etc` outlives both the daemon
//! and the boot. [`recover`] puts the resolvers back after a kill or a power cut.

mod command;
mod error;
mod guard;
mod held;
mod keeper;
mod method;
mod nameservers;
mod record;
mod resolv_conf;
mod servers;
mod state;
mod watch;

use std::{
    fmt,
    net::IpAddr,
    path::{Path, PathBuf},
};

pub use error::DnsError;
pub use guard::{claimed, guard, guard_lan, guard_table, is_full, needs_guard};
pub use held::{owners, recover};
pub use keeper::Dns;
pub use nameservers::nameservers;
pub use servers::{DnsFacts, Servers, choose};

use crate::DeviceName;
use method::{Method, RESOLVCONF, RESOLVECTL};

/// The file that programs read their resolvers from, resolv.conf(5).
pub const RESOLV_CONF: &str = "/etc/resolv.conf";

/// How the host's resolvers will be set. `Display` prints the commands that a person would type for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsPlan {
    /// The profile that sets them.
    owner: String,
    /// The resolvers to set, in order.
    servers: Vec<IpAddr>,
    /// The state directory that records the change.
    state: PathBuf,
    methods: Vec<Method>,
}

impl DnsPlan {
    /// Finds out how this host's programs find their resolvers, and plans to send them to `servers`.
    ///
    /// `state` is Warren's state directory, `owner` the profile, `device` its tunnel.
    pub async fn of_host(state: &Path, owner: &str, device: &DeviceName, servers: Vec<IpAddr>) -> Self {
        let methods = method::of_host(Path::new(RESOLV_CONF), device).await;
        Self { owner: owner.to_owned(), servers, state: state.join(DIRECTORY), methods }
    }

    /// The resolvers to set.
    pub fn servers(&self) -> &[IpAddr] {
        &self.servers
    }

    /// The changes to this host, each in a few words.
    pub fn changes(&self) -> Vec<String> {
        let servers: Vec<String> = self.servers.iter().map(IpAddr::to_string).collect();
        let change = |method| format!("{method}: {}", servers.join(", "));
        self.methods.iter().map(change).collect()
    }
}

impl fmt::Display for DnsPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: String = self.servers.iter().map(|server| format!("nameserver {server}\n")).collect();
        for method in &self.methods {
            match method {
                Method::Resolved { device } => {
                    let servers: Vec<String> = self.servers.iter().map(IpAddr::to_string).collect();
                    writeln!(f, "{RESOLVECTL} dns {device} {}", servers.join(" "))?;
                    for (property, value) in method::LINK_PROPERTIES {
                        writeln!(f, "{RESOLVECTL} {property} {device} {value}")?;
                    }
                }
                Method::Resolvconf { entry, flavour } => {
                    let options = flavour.options().join(" ");
                    writeln!(f, "{RESOLVCONF} {options} {entry} <<'END'\n{lines}END")?;
                }
                Method::File { path } => {
                    let path = path.display();
                    writeln!(f, "cat > {path} <<'END'\n{lines}END")?;
                }
            }
        }
        Ok(())
    }
}

/// The part of the state directory that records resolvers.
const DIRECTORY: &str = "dns";
