//! The resolvers of the programs that `warren exec` puts inside or outside of the tunnel.

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

    /// The resolvers of programs inside. They can reach any resolver, because all their packets go into the tunnel.
    pub(super) fn inside(&self) -> Vec<IpAddr> {
        match &self.wanted {
            Servers::Listed(listed) if !listed.is_empty() => listed.clone(),
            // A profile that sets no resolvers leaves the host's resolvers alone. Programs inside still use
            // the exit's resolvers.
            Servers::Listed(_) | Servers::Exit => self.of_exit.clone(),
        }
    }
}

fn wanted(profile: &ClientProfile) -> Servers {
    profile.exec.servers.as_ref().unwrap_or(&profile.dns.servers).clone()
}
