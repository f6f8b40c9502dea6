//! Sets the host's resolvers while a tunnel is up, sets them again if another program changes them, and puts the earlier ones
//! back.
//!
//! Hosts differ in how programs find their resolvers. systemd-resolved keeps resolvers for each link. resolvconf(8) writes
//! `/etc/resolv.conf` from entries. On other hosts, Warren writes this file itself. [`DnsPlan::of_host`] finds out which methods
//! a host needs.
//!
//! Each change is recorded in the state directory before it is made, because a changed file in `/etc` stays after the daemon and
//! the boot have ended. [`recover`] puts the resolvers back after a kill or a power cut.

mod command;
mod error;
mod guard;
mod held;
mod keeper;
mod method;
mod nameservers;
mod record;
mod replace;
mod resolv_conf;
mod servers;
mod split;
mod state;
mod watch;

use std::{
    fmt,
    net::IpAddr,
    path::{Path, PathBuf},
};

pub use error::DnsError;
pub use guard::{claimed, guard, guard_lan, guard_table, needs_guard};
pub use held::{owners, recover};
pub use keeper::Dns;
pub use nameservers::{nameserver_lines, nameservers};
pub use servers::{DnsFacts, Servers, choose, is_full};
pub use split::SplitDns;

use crate::DeviceName;
use method::{Method, RESOLVCONF, RESOLVECTL};

/// The file that programs read their resolvers from, resolv.conf(5).
pub const RESOLV_CONF: &str = "/etc/resolv.conf";

/// Whether this host needs a stub resolver to look up names by domain, because not all of its programs ask systemd-resolved,
/// which does this itself.
pub fn needs_stub() -> bool {
    !(method::resolved_runs() && method::leads_to_stub(Path::new(RESOLV_CONF)))
}

/// How the host's resolvers will be set. `Display` prints the commands that a person would type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsPlan {
    /// The profile that sets them.
    owner: String,
    /// The resolvers to set, in order.
    servers: Vec<IpAddr>,
    /// The domains to which the resolvers are limited. `None` if they are not limited.
    split: Option<SplitDns>,
    /// The state directory that records the change.
    state: PathBuf,
    methods: Vec<Method>,
}

impl DnsPlan {
    /// Finds out how this host's programs find their resolvers, and plans to make them ask `servers`.
    ///
    /// `state` is Warren's state directory, `owner` is the profile, and `device` is its TUN device. With a `split`, only names
    /// below its domains are looked up at `servers`.
    pub async fn of_host(
        state: &Path,
        owner: &str,
        device: &DeviceName,
        servers: Vec<IpAddr>,
        split: Option<SplitDns>,
    ) -> Self {
        let methods = method::of_host(Path::new(RESOLV_CONF), device).await;
        Self { owner: owner.to_owned(), servers, split, state: state.join(DIRECTORY), methods }
    }

    /// The resolvers to set.
    pub fn servers(&self) -> &[IpAddr] {
        &self.servers
    }

    /// The changes to this host, each in a few words.
    pub fn changes(&self) -> Vec<String> {
        let servers: Vec<String> = self.servers.iter().map(IpAddr::to_string).collect();
        let servers = servers.join(", ");
        let change = |method: &Method| match (&self.split, method) {
            (None, _) => format!("{method}: {servers}"),
            (Some(split), Method::Resolved { .. }) => {
                format!("{method}: {servers} for names below {}", split.domains.join(", "))
            }
            (Some(split), Method::Resolvconf { .. } | Method::File { .. }) => {
                let domains = split.domains.join(", ");
                format!("{method}: {}, where Warren asks {servers} for names below {domains}", split.stub)
            }
        };
        self.methods.iter().map(change).collect()
    }

    /// The resolvers for programs that do not ask systemd-resolved.
    fn in_files(&self) -> Vec<IpAddr> {
        self.split.as_ref().map_or_else(|| self.servers.clone(), |split| vec![split.stub])
    }

    /// The settings of the tunnel's link in systemd-resolved, as arguments of resolvectl(1) without the link.
    fn link_properties(&self) -> Vec<(&'static str, Vec<String>)> {
        let servers = self.servers.iter().map(IpAddr::to_string).collect();
        // A routing domain (`~`) only selects the resolvers for a query. Unlike a search domain, it does not complete short
        // names. `~.` stands for all names.
        let (domains, is_default) = match &self.split {
            Some(split) => (split.domains.iter().map(|domain| format!("~{domain}")).collect(), "no"),
            None => (vec!["~.".to_owned()], "yes"),
        };
        let plain = |value: &str| vec![value.to_owned()];
        vec![
            ("dns", servers),
            ("domain", domains),
            ("default-route", plain(is_default)),
            ("llmnr", plain("no")),
            ("mdns", plain("no")),
        ]
    }
}

impl fmt::Display for DnsPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = nameserver_lines(&self.in_files());
        for method in &self.methods {
            match method {
                Method::Resolved { device } => {
                    for (property, values) in self.link_properties() {
                        writeln!(f, "{RESOLVECTL} {property} {device} {}", values.join(" "))?;
                    }
                }
                Method::Resolvconf { entry, flavour } => {
                    let options = flavour.options().join(" ");
                    writeln!(f, "{RESOLVCONF} {options} {entry} <<'END'\n{lines}END")?;
                }
                Method::File { path } => {
                    let path = path.display();
                    writeln!(f, "cat > {path} <<'END'\n{lines}END")?;
                    if self.split.is_some() {
                        writeln!(f, "# its other settings, such as search and options, stay")?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// The directory below the state directory for records of changed resolvers.
const DIRECTORY: &str = "dns";
