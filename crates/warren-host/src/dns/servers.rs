//! Which resolvers a tunnel sets.

use std::net::IpAddr;

use ipnet::IpNet;

/// A profile's setting for resolvers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Servers {
    /// The exit's resolvers.
    Exit,
    /// Exactly these resolvers. If the list is empty, the host's resolvers stay as they are.
    Listed(Vec<IpAddr>),
}

/// The facts that the choice depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsFacts<'a> {
    /// The profile's setting.
    pub wanted: &'a Servers,
    /// The resolvers that the exit grants.
    pub of_exit: &'a [IpAddr],
    /// Networks that go through the tunnel.
    pub include: &'a [IpNet],
    /// Networks that stay outside the tunnel.
    pub exclude: &'a [IpNet],
    /// Whether only names below some domains are looked up at the resolvers.
    pub has_domains: bool,
    /// Whether the tunnel has an inner address of IPv4.
    pub has_ipv4: bool,
    /// Whether the tunnel has an inner address of IPv6.
    pub has_ipv6: bool,
}

/// The resolvers to set, in order. If the list is empty, the host's resolvers stay as they are.
///
/// A split tunnel uses the exit's resolvers only for the domains that the profile lists. If the profile lists no domains, the
/// host's own resolvers stay.
///
/// An exit's resolver is used only if the tunnel routes to it. Otherwise a split tunnel would send all queries outside the
/// tunnel, to a resolver that the host did not use before. Resolvers that a profile lists are used as listed, unless the tunnel
/// makes them unreachable.
pub fn choose(facts: &DnsFacts<'_>) -> Vec<IpAddr> {
    match facts.wanted {
        Servers::Exit if !is_full(facts.include) && !facts.has_domains => Vec::new(),
        Servers::Exit => facts
            .of_exit
            .iter()
            .copied()
            .filter(|server| facts.is_inside(*server) && facts.has_lease(*server))
            .collect(),
        Servers::Listed(listed) => listed
            .iter()
            .copied()
            .filter(|server| !facts.is_inside(*server) || facts.has_lease(*server))
            .collect(),
    }
}

/// Whether a tunnel carries all of an IP version, even if `include` lists it in several pieces.
pub fn is_full(include: &[IpNet]) -> bool {
    IpNet::aggregate(&include.to_vec()).iter().any(|network| network.prefix_len() == 0)
}

impl DnsFacts<'_> {
    /// Whether the tunnel's routes take packets to `address`.
    pub fn is_inside(&self, address: IpAddr) -> bool {
        Self::leads_to(self.include, self.exclude, address)
    }

    /// Whether a tunnel to `include` but not to `exclude` takes packets to `address`. If networks of both lists contain the
    /// address, the longer prefix decides.
    pub(super) fn leads_to(include: &[IpNet], exclude: &[IpNet], address: IpAddr) -> bool {
        let longest = |networks: &[IpNet]| {
            networks.iter().filter(|network| network.contains(&address)).map(IpNet::prefix_len).max()
        };
        longest(include) > longest(exclude)
    }

    fn has_lease(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(_) => self.has_ipv4,
            IpAddr::V6(_) => self.has_ipv6,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_tunnel_takes_the_exits_resolvers_of_versions_it_carries() {
        let of_exit = addresses(&["10.66.0.1", "2001:db8::1"]);
        let full = networks(&["0.0.0.0/0", "::/0"]);
        let facts = facts(&Servers::Exit, &of_exit, &full);

        assert_eq!(choose(&facts), of_exit);
        assert_eq!(choose(&DnsFacts { has_ipv6: false, ..facts }), addresses(&["10.66.0.1"]));
    }

    #[test]
    fn split_tunnel_takes_the_exits_resolvers_for_its_domains_and_only_if_it_leads_there() {
        let of_exit = addresses(&["9.9.9.9", "10.1.0.53"]);
        let split = networks(&["10.1.0.0/16"]);

        let facts = facts(&Servers::Exit, &of_exit, &split);
        assert_eq!(choose(&DnsFacts { has_domains: true, ..facts.clone() }), addresses(&["10.1.0.53"]));
        assert!(choose(&facts).is_empty(), "all other names would go there too");
    }

    #[test]
    fn excluded_resolver_of_the_exit_is_not_taken() {
        let of_exit = addresses(&["10.1.0.53"]);
        let full = networks(&["0.0.0.0/0"]);
        let excluded = networks(&["10.0.0.0/8"]);
        let facts = DnsFacts { exclude: &excluded, ..facts(&Servers::Exit, &of_exit, &full) };

        assert!(choose(&facts).is_empty());
    }

    #[test]
    fn listed_resolvers_are_taken_unless_the_tunnel_makes_them_unreachable() {
        let listed = Servers::Listed(addresses(&["192.168.1.1", "fd00::53"]));
        let full = networks(&["0.0.0.0/0", "::/0"]);
        let split = networks(&["10.0.0.0/8"]);

        let without_ipv6 = DnsFacts { has_ipv6: false, ..facts(&listed, &[], &full) };
        assert_eq!(choose(&without_ipv6), addresses(&["192.168.1.1"]));
        let outside = DnsFacts { has_ipv6: false, ..facts(&listed, &[], &split) };
        assert_eq!(choose(&outside), addresses(&["192.168.1.1", "fd00::53"]));
        assert!(choose(&facts(&Servers::Listed(Vec::new()), &[], &full)).is_empty());
    }

    fn facts<'a>(wanted: &'a Servers, of_exit: &'a [IpAddr], include: &'a [IpNet]) -> DnsFacts<'a> {
        DnsFacts {
            wanted,
            of_exit,
            include,
            exclude: &[],
            has_domains: false,
            has_ipv4: true,
            has_ipv6: true,
        }
    }

    fn addresses(list: &[&str]) -> Vec<IpAddr> {
        list.iter().map(|address| address.parse().unwrap()).collect()
    }

    fn networks(list: &[&str]) -> Vec<IpNet> {
        list.iter().map(|network| network.parse().unwrap()).collect()
    }
}
