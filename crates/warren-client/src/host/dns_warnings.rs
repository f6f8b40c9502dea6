//! Warnings about resolvers that a full tunnel does not reach, or that are asked outside the tunnel.

use std::net::IpAddr;

use ipnet::IpNet;
use warren_host::dns::{self, DnsFacts, Servers};

/// Warns that a full tunnel sets no resolver although it cannot reach this host's own ones. `None` if it can reach at least one.
///
/// `named` are the resolvers that stay in use, without those on this host itself. If `is_guarded`, no query leaves outside the
/// tunnel.
pub(super) fn without_resolver(facts: &DnsFacts<'_>, named: &[IpAddr], is_guarded: bool) -> Option<String> {
    if !dns::is_full(facts.include)
        || named.is_empty()
        || named.iter().any(|resolver| is_reachable(facts, *resolver, is_guarded))
    {
        return None;
    }
    let why = match facts.wanted {
        Servers::Exit if facts.of_exit.is_empty() => "the exit names no resolver",
        Servers::Exit => "the exit's resolvers are outside the tunnel",
        Servers::Listed(listed) if listed.is_empty() => {
            "servers = [] in [dns] of the profile sets no resolver"
        }
        Servers::Listed(_) => {
            "the resolvers in [dns] of the profile are of an IP version for which the exit assigns no address"
        }
    };
    Some(format!(
        "names may not be found: {why}, and this host's own resolvers, {}, cannot be reached through the tunnel; {ADVICE}",
        listed(named)
    ))
}

/// Warns that names below the profile's domains are not looked up through the tunnel. `None` if at least one resolver is reached
/// through the tunnel.
pub(super) fn without_resolver_of(
    domains: &[String],
    facts: &DnsFacts<'_>,
    chosen: &[IpAddr],
) -> Option<String> {
    if domains.is_empty() {
        return None;
    }
    let outside: Vec<IpAddr> =
        chosen.iter().copied().filter(|resolver| !facts.is_inside(*resolver)).collect();
    if !outside.is_empty() {
        return Some(format!(
            "names below {} are looked up outside the tunnel, at {}: add the resolver's address to include in [routes] of the profile and \
             run `warren reload`",
            domains.join(", "),
            listed(&outside)
        ));
    }
    if !chosen.is_empty() {
        return None;
    }
    let (why, advice) = match facts.wanted {
        Servers::Exit => (
            "the exit names no resolver that the tunnel leads to",
            "set servers in [dns] of the profile and run `warren reload`",
        ),
        Servers::Listed(_) => (
            "the resolvers in [dns] of the profile are of an IP version for which the exit assigns no address",
            "list others and run `warren reload`",
        ),
    };
    Some(format!("names below {} are not looked up through the tunnel: {why}; {advice}", domains.join(", ")))
}

/// Warns that the exit's resolvers are on this host's own networks, to which no query may be sent. `None` if the tunnel reaches
/// at least one.
///
/// The exclusions in `facts` include this host's own networks.
pub(super) fn exits_outside(facts: &DnsFacts<'_>, chosen: &[IpAddr]) -> Option<String> {
    if chosen.is_empty() || chosen.iter().any(|resolver| facts.is_inside(*resolver)) {
        return None;
    }
    Some(format!(
        "names may not be found: the exit names {}, which is on a network of this host, and DNS queries may not leave outside the tunnel; {ADVICE}",
        listed(chosen)
    ))
}

/// Warns that addresses of listed resolvers belong to a network of the LAN. They are reached through the tunnel nevertheless.
/// `None` if `claimed` is empty.
pub(super) fn claimed_by_lan(claimed: &[IpAddr]) -> Option<String> {
    let first = claimed.first()?;
    Some(format!(
        "a network of the LAN contains the address {}, which servers in [dns] of the profile lists; DNS queries to it go only \
         through the tunnel; if that resolver is on the LAN, add \"{}\" to exclude in [routes] of the profile and run `warren \
         reload`",
        listed(claimed),
        IpNet::from(*first)
    ))
}

/// Warns that queries leave outside a full tunnel although the profile does not ask for that. `None` if no query
/// leaves outside.
///
/// `asked` are the resolvers on other hosts to which this host sends queries while the tunnel is up. The exclusions in `facts`
/// are only those of the profile.
pub(super) fn asked_outside(facts: &DnsFacts<'_>, asked: &[IpAddr]) -> Option<String> {
    let is_excluded = |resolver: &&IpAddr| facts.exclude.iter().any(|network| network.contains(*resolver));
    let outside: Vec<String> = asked
        .iter()
        .filter(is_excluded)
        .filter(|resolver| !facts.is_inside(**resolver))
        .map(IpAddr::to_string)
        .collect();
    if !dns::is_full(facts.include) || outside.is_empty() {
        return None;
    }
    Some(format!(
        "DNS queries leave outside the tunnel, to {}, because exclude in [routes] of the profile covers it; set servers = [\"9.9.9.9\"] in [dns] of \
         the profile, or remove that network from exclude, and run `warren reload`",
        outside.join(", ")
    ))
}

/// Whether a resolver can be reached, through the tunnel or outside it. Through the tunnel, only addresses on the internet and private
/// networks that the profile lists can be reached.
fn is_reachable(facts: &DnsFacts<'_>, resolver: IpAddr, is_guarded: bool) -> bool {
    let is_named =
        facts.include.iter().any(|network| network.prefix_len() > 0 && network.contains(&resolver));
    let (has_lease, is_private) = match resolver {
        IpAddr::V4(address) => (facts.has_ipv4, address.is_private() || address.is_link_local()),
        // The kernel sends packets to a link-local address on its link and does not use the routing tables for them.
        IpAddr::V6(address) if address.is_unicast_link_local() => return !is_guarded,
        IpAddr::V6(address) => (facts.has_ipv6, address.is_unique_local()),
    };
    match facts.is_inside(resolver) {
        true => has_lease && (is_named || !is_private),
        false => !is_guarded,
    }
}

fn listed(resolvers: &[IpAddr]) -> String {
    resolvers.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(", ")
}

const ADVICE: &str = "set servers = [\"9.9.9.9\"] in [dns] of the profile and run `warren reload`, or have the exit's operator set it in \
                      [dns] of exit.toml";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_tunnel_without_a_resolver_that_is_reached_says_so() {
        let full = networks(&["0.0.0.0/0", "::/0"]);
        let facts = facts(&Servers::Exit, &full);

        for named in [&["192.168.1.1"][..], &["10.0.0.2", "fd00::53"], &["169.254.169.253"]] {
            let said = without_resolver(&facts, &addresses(named), false).unwrap();
            assert!(said.contains(named[0]) && said.contains("set servers = "), "{said}");
        }
        for named in [&[][..], &["9.9.9.9"], &["192.168.1.1", "9.9.9.9"], &["fe80::1"]] {
            assert_eq!(without_resolver(&facts, &addresses(named), false), None, "{named:?}");
        }
        let lan = networks(&["192.168.0.0/16"]);
        let excluded = DnsFacts { exclude: &lan, ..facts.clone() };
        for (facts, outside) in [(&excluded, "192.168.1.1"), (&facts, "fe80::1")] {
            assert_eq!(without_resolver(facts, &addresses(&[outside]), false), None);
            assert!(
                without_resolver(facts, &addresses(&[outside]), true).is_some(),
                "no query reaches {outside}"
            );
        }
        let without_ipv6 = DnsFacts { has_ipv6: false, ..facts.clone() };
        assert!(without_resolver(&without_ipv6, &addresses(&["2001:db8::53"]), false).is_some());
    }

    #[test]
    fn exit_that_names_a_resolver_of_the_lan_causes_a_warning() {
        let (full, lan) = (networks(&["0.0.0.0/0"]), networks(&["192.168.1.0/24"]));
        let facts = DnsFacts { exclude: &lan, ..facts(&Servers::Exit, &full) };

        let said = exits_outside(&facts, &addresses(&["192.168.1.1"])).unwrap();
        assert!(said.contains("the exit names 192.168.1.1,") && said.contains("set servers = "), "{said}");
        for reached in [&[][..], &["10.66.0.1"], &["192.168.1.1", "10.66.0.1"]] {
            assert_eq!(exits_outside(&facts, &addresses(reached)), None, "{reached:?}");
        }
    }

    #[test]
    fn resolver_that_the_profile_excludes_causes_a_warning_in_a_full_tunnel() {
        let (full, split) = (networks(&["0.0.0.0/1", "128.0.0.0/1"]), networks(&["10.0.0.0/8"]));
        let exclude = networks(&["203.0.113.0/24", "10.1.0.0/16"]);
        let asked = addresses(&["203.0.113.2", "9.9.9.9"]);
        let facts = facts(&Servers::Exit, &full);

        let said = asked_outside(&DnsFacts { exclude: &exclude, ..facts.clone() }, &asked).unwrap();
        assert!(said.contains("to 203.0.113.2, because exclude"), "{said}");
        assert_eq!(asked_outside(&facts, &asked), None);
        let by_name = networks(&["0.0.0.0/0", "203.0.113.2/32"]);
        let inside = DnsFacts { include: &by_name, exclude: &exclude, ..facts.clone() };
        assert_eq!(asked_outside(&inside, &asked), None);
        let of_split = DnsFacts { include: &split, exclude: &exclude, ..facts };
        assert_eq!(asked_outside(&of_split, &addresses(&["10.1.0.1"])), None);
    }

    #[test]
    fn names_of_the_tunnel_that_are_asked_outside_cause_a_warning() {
        let (split, servers) = (networks(&["10.0.0.0/8"]), Servers::Listed(addresses(&["11.0.0.54"])));
        let facts = facts(&servers, &split);
        let domains = ["corp.example".to_owned()];
        let said = |chosen: &[&str]| without_resolver_of(&domains, &facts, &addresses(chosen));

        assert!(said(&["10.0.0.53", "11.0.0.54"]).unwrap().contains("outside the tunnel, at 11.0.0.54:"));
        assert!(said(&[]).unwrap().contains("are not looked up through the tunnel"));
        assert_eq!(said(&["10.0.0.53"]), None);
        assert_eq!(without_resolver_of(&[], &facts, &addresses(&["11.0.0.54"])), None);
    }

    #[test]
    fn resolver_that_is_excluded_or_included_by_name_is_reached() {
        let (full, lan) = (networks(&["0.0.0.0/0"]), networks(&["192.168.0.0/16"]));
        let servers = Servers::Listed(Vec::new());
        let named = addresses(&["192.168.1.1"]);

        assert!(
            without_resolver(&facts(&servers, &full), &named, false)
                .unwrap()
                .contains("servers = [] in [dns]")
        );
        assert_eq!(
            without_resolver(&DnsFacts { exclude: &lan, ..facts(&servers, &full) }, &named, false),
            None
        );
        assert_eq!(
            without_resolver(&facts(&servers, &[full.as_slice(), &lan].concat()), &named, false),
            None
        );
        assert_eq!(without_resolver(&facts(&servers, &lan), &named, false), None, "a split tunnel");
    }

    fn facts<'a>(wanted: &'a Servers, include: &'a [IpNet]) -> DnsFacts<'a> {
        DnsFacts {
            wanted,
            of_exit: &[],
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
