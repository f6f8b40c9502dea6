//! The resolvers of single programs inside or outside of the tunnel.

use std::net::IpAddr;

use warren_host::dns::Servers;
use warren_session::client::SessionGrant;

use warren_config::ClientProfile;

/// The resolvers of programs inside or outside of the tunnel.
pub(super) struct ExecResolvers {
    wanted: Servers,
    of_exit: Vec<IpAddr>,
    /// The resolvers that the host's files named before the tunnel set its own.
    pub(super) outside_resolvers: Vec<IpAddr>,
}

impl ExecResolvers {
    pub(super) fn of(profile: &ClientProfile) -> Self {
        Self { wanted: wanted(profile), of_exit: Vec::new(), outside_resolvers: Vec::new() }
    }

    pub(super) fn follow(&mut self, profile: &ClientProfile) {
        self.wanted = wanted(profile);
    }

    /// Records the resolvers that the exit names.
    pub(super) fn note(&mut self, welcome: &SessionGrant) {
        self.of_exit.clone_from(&welcome.dns);
    }

    /// The resolvers inside: all of a program's packets go into the tunnel, so any of them can be reached.
    pub(super) fn inside(&self) -> Vec<IpAddr> {
        match &self.wanted {
            Servers::Listed(listed) if !listed.is_empty() => listed.clone(),
            // A profile that sets no resolvers leaves the host's alone. Programs inside still use the exit's.
            Servers::Listed(_) | Servers::Exit => self.of_exit.clone(),
        }
    }
}

fn wanted(profile: &ClientProfile) -> Servers {
    profile.exec.servers.as_ref().unwrap_or(&profile.dns.servers).clone()
}
