//! Sets the host's resolvers while the tunnel is up, and checks whether they can be reached.

use std::net::IpAddr;

use ipnet::IpNet;
use warren_host::dns::{self, DnsFacts, Servers, SplitDns};
use warren_session::client::SessionGrant;

use super::standing::is_guarded;
use super::{HostSetup, dns_warnings};
use crate::stub::{self, Stub};

impl HostSetup {
    /// Makes the host's programs ask the tunnel's resolvers. Call it once the tunnel's routes lead to them.
    ///
    /// If `anew`, sets the resolvers even if they are set already, because systemd-resolved forgets the resolvers of a deleted
    /// device.
    pub(super) async fn set_dns(&mut self, servers: Vec<IpAddr>, anew: bool) -> anyhow::Result<()> {
        if servers.is_empty() {
            self.restore_dns().await?;
            if self.settings.servers == Servers::Exit && dns::is_full(&self.settings.include) {
                tracing::info!(
                    "the exit names no resolver that the tunnel leads to; the host's DNS is left as it is"
                );
            }
            return Ok(());
        }
        let Some(standing) = &self.standing else { return Ok(()) };
        let Some(helper) = &self.helper else { return Ok(()) };
        // The stub learns the tunnel's resolvers before any program is told to ask the stub. Without them, it would ask the
        // host's own resolvers for the tunnel's names too.
        if let Some(stub) = &self.stub {
            stub.ask(&servers, &self.settings.domains);
        }
        let device = standing.device.name().clone();
        self.dns = Some(helper.set_resolvers(device, servers, self.split(), anew).await?);
        Ok(())
    }

    pub(super) async fn restore_dns(&mut self) -> anyhow::Result<()> {
        match (self.dns.take(), &self.helper) {
            (Some(_), Some(helper)) => helper.restore_resolvers().await,
            _ => Ok(()),
        }
    }

    /// Returns the stub's address and the domains to which the profile limits the tunnel's resolvers. `None` if the profile names
    /// no domains.
    pub(super) fn split(&self) -> Option<SplitDns> {
        let domains = self.settings.domains.clone();
        // A dry run has no stub, so it shows the address that a stub would try first.
        let stub = self.stub.as_ref().map_or(stub::FIRST, Stub::address);
        (!domains.is_empty()).then_some(SplitDns { domains, stub })
    }

    pub(super) fn servers(&self, welcome: &SessionGrant) -> Vec<IpAddr> {
        dns::choose(&self.dns_facts(welcome, &self.settings.exclude))
    }

    pub(super) fn dns_facts<'a>(&'a self, welcome: &'a SessionGrant, exclude: &'a [IpNet]) -> DnsFacts<'a> {
        DnsFacts {
            wanted: &self.settings.servers,
            of_exit: &welcome.dns,
            include: &self.settings.include,
            exclude,
            has_domains: !self.settings.domains.is_empty(),
            has_ipv4: welcome.ipv4.is_some(),
            has_ipv6: welcome.ipv6.is_some(),
        }
    }

    /// Checks whether names can be looked up, and whether that happens inside the tunnel. Warns if there is a new problem.
    pub(super) async fn check_resolvers(&mut self, welcome: &SessionGrant) {
        self.check_claimed_resolvers();
        let listed = match &self.helper {
            Some(helper) => helper.list_resolvers().await,
            None => Vec::new(),
        };
        if self.dns.is_none() {
            self.exec.outside_resolvers.clone_from(&listed);
        }
        let lan =
            self.standing.as_ref().map(|standing| standing.facts.exclude.as_slice()).unwrap_or_default();
        let servers = self.servers(welcome);
        let asked = if servers.is_empty() { &listed } else { &servers };
        let standing = self.standing.as_ref();
        let is_guarded = standing.is_some_and(|standing| is_guarded(&self.settings, &standing.facts));
        let include = standing.map_or(&self.settings.include, |standing| &standing.facts.include);
        let with_lan = DnsFacts { include, ..self.dns_facts(welcome, lan) };
        // The rules that keep queries inside the tunnel also block queries to a resolver on the LAN that could otherwise be
        // reached.
        let unreached = match servers.is_empty() {
            true => dns_warnings::without_resolver(&with_lan, &listed, is_guarded),
            false if is_guarded => dns_warnings::exits_outside(&with_lan, &servers),
            false => None,
        };
        let outside = || dns_warnings::asked_outside(&self.dns_facts(welcome, &self.settings.exclude), asked);
        let of_domains = dns_warnings::without_resolver_of(&self.settings.domains, &with_lan, &servers);
        let trouble = if is_guarded { unreached } else { outside().or(unreached).or(of_domains) };
        if let Some(sentence) = trouble.as_ref().filter(|_| trouble != self.warnings.trouble) {
            tracing::warn!("{sentence}");
        }
        self.warnings.trouble = trouble;
    }

    /// Checks whether the address of a listed resolver belongs to a network of the LAN. Warns if there is a new problem.
    pub(super) fn check_claimed_resolvers(&mut self) {
        // The plan lists claimed resolvers after the profile's own networks.
        let listed = self.settings.include.len();
        let include = self.standing.iter().flat_map(|standing| &standing.facts.include);
        let claimed: Vec<IpAddr> = include.skip(listed).map(IpNet::addr).collect();
        let claimed = dns_warnings::claimed_by_lan(&claimed);
        if let Some(sentence) = claimed.as_ref().filter(|_| claimed != self.warnings.claimed) {
            tracing::warn!("{sentence}");
        }
        self.warnings.claimed = claimed;
    }
}
