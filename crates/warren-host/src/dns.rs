//! The host's resolvers: set for as long as a tunnel is up, kept so, and put back exactly.
//!
//! How a host's programs find their resolvers differs: systemd-resolved keeps them per link, resolvconf(8) collects them,
//! and where there is neither the file itself is written. [`DnsPlan::of_host`] looks which it is. What is set is noted in the
//! state directory before, because a file in `/etc` outlives both the daemon and the boot; [`recover`] puts it back after
//! either was killed.

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
pub use guard::{claimed, guard, guard_table, is_full, needs_guard};
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
    /// Who sets them: a profile's name.
    owner: String,
    /// What they are set to, the first first.
    servers: Vec<IpAddr>,
    /// Where it is noted.
    state: PathBuf,
    methods: Vec<Method>,
}

impl DnsPlan {
    /// Looks how this host's programs find their resolvers, and plans to send them to `servers`.
    ///
    /// `state` is Warren's state directory, `owner` the profile, `device` its tunnel.
    pub async fn of_host(state: &Path, owner: &str, device: &DeviceName, servers: Vec<IpAddr>) -> Self {
        let methods = method::of_host(Path::new(RESOLV_CONF), device).await;
        Self { owner: owner.to_owned(), servers, state: state.join(DIRECTORY), methods }
    }

    /// What they are set to.
    pub fn servers(&self) -> &[IpAddr] {
        &self.servers
    }

    /// What it changes on this host, each in a few words.
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

/// The part of the state directory that is about resolvers.
const DIRECTORY: &str = "dns";
