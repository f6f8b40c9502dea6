//! Whether this host can look names up while all its traffic goes through a tunnel that sets no resolver.

use std::net::IpAddr;

use ipnet::IpNet;
use warren_host::dns::{self, DnsFacts, Servers};

/// What keeps names from being found, and what to do; none if nothing does.
///
/// `named` are the resolvers that stay in use, without those on this host itself. Where it `is_guarded`, no query gets outside.
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
            "the resolvers in [dns] of the profile are of an IP version that the exit does not give"
        }
    };
    Some(format!(
        "names may not be found: {why}, and through the tunnel this host's own, {}, cannot be reached; {ADVICE}",
        listed(named)
    ))
}

/// That the exit names resolvers that this host reaches on its own networks alone, where no query gets; none if it reaches one by
/// the tunnel.
///
/// `facts` have this host's own networks among the exclusions.
pub(super) fn exits_outside(facts: &DnsFacts<'_>, chosen: &[IpAddr]) -> Option<String> {
    if chosen.is_empty() || chosen.iter().any(|resolver| facts.is_inside(*resolver)) {
        return None;
    }
    Some(format!(
        "names may not be found: the exit names {}, which is on a network of this host, and no query leaves outside the tunnel; {ADVICE}",
        listed(chosen)
    ))
}

/// That a network of the LAN holds listed resolvers, which are reached by the tunnel nevertheless; none if it holds none.
pub(super) fn claimed_by_lan(claimed: &[IpAddr]) -> Option<String> {
    let first = claimed.first()?;
    Some(format!(
        "a network of the LAN holds the address of {}, which servers in [dns] of the profile lists; names are asked there through the \
         tunnel alone; if that resolver is on the LAN, add \"{}\" to exclude in [routes] of the profile and run `warren reload`",
        listed(claimed),
        IpNet::from(*first)
    ))
}

/// That names are asked outside a full tunnel although nobody wished for that, and what to do; none if they are not.
///
/// `asked` are the resolvers that this host asks while the tunnel is up, without those on itself; `facts` have the exclusions of the
/// profile alone.
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
        "names are asked outside the tunnel, of {}, since exclude in [routes] of the profile holds it; set servers = [\"9.9.9.9\"] in [dns] of \
         the profile, or take that network out of exclude, and run `warren reload`",
        outside.join(", ")
    ))
}

/// Whether a resolver is reached by the tunnel, or is outside of it. Through an exit only the internet is reached, unless the
/// profile includes a network by name.
fn is_reachable(facts: &DnsFacts<'_>, resolver: IpAddr, is_guarded: bool) -> bool {
    let is_named =
        facts.include.iter().any(|network| network.prefix_len() > 0 && network.contains(&resolver));
    let (has_lease, is_private) = match resolver {
        IpAddr::V4(address) => (facts.has_ipv4, address.is_private() || address.is_link_local()),
        // A link-local one is asked by its link, past any table.
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

const ADVICE: &str = "set servers = [\"9.9.9.9\"] in [dns] of the profile and run `warren reload`, or have it set in [dns] of the \
                      exit's exit.toml";

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
                "no query gets to {outside}"
            );
        }
        let without_ipv6 = DnsFacts { has_ipv6: false, ..facts.clone() };
        assert!(without_resolver(&without_ipv6, &addresses(&["2001:db8::53"]), false).is_some());
    }

    #[test]
    fn exit_that_names_a_resolver_of_the_lan_is_told_of() {
        let (full, lan) = (networks(&["0.0.0.0/0"]), networks(&["192.168.1.0/24"]));
        let facts = DnsFacts { exclude: &lan, ..facts(&Servers::Exit, &full) };

        let said = exits_outside(&facts, &addresses(&["192.168.1.1"])).unwrap();
        assert!(said.contains("the exit names 192.168.1.1,") && said.contains("set servers = "), "{said}");
        for reached in [&[][..], &["10.66.0.1"], &["192.168.1.1", "10.66.0.1"]] {
            assert_eq!(exits_outside(&facts, &addresses(reached)), None, "{reached:?}");
        }
    }

    #[test]
    fn resolver_that_the_profile_excludes_is_told_of_in_a_full_tunnel() {
        let (full, split) = (networks(&["0.0.0.0/1", "128.0.0.0/1"]), networks(&["10.0.0.0/8"]));
        let exclude = networks(&["203.0.113.0/24", "10.1.0.0/16"]);
        let asked = addresses(&["203.0.113.2", "9.9.9.9"]);
        let facts = facts(&Servers::Exit, &full);

        let said = asked_outside(&DnsFacts { exclude: &exclude, ..facts.clone() }, &asked).unwrap();
        assert!(said.contains("of 203.0.113.2, since exclude"), "{said}");
        assert_eq!(asked_outside(&facts, &asked), None);
        let by_name = networks(&["0.0.0.0/0", "203.0.113.2/32"]);
        let inside = DnsFacts { include: &by_name, exclude: &exclude, ..facts.clone() };
        assert_eq!(asked_outside(&inside, &asked), None);
        let of_split = DnsFacts { include: &split, exclude: &exclude, ..facts };
        assert_eq!(asked_outside(&of_split, &addresses(&["10.1.0.1"])), None);
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
        DnsFacts { wanted, of_exit: &[], include, exclude: &[], has_ipv4: true, has_ipv6: true }
    }

    fn addresses(list: &[&str]) -> Vec<IpAddr> {
        list.iter().map(|address| address.parse().unwrap()).collect()
    }

    fn networks(list: &[&str]) -> Vec<IpNet> {
        list.iter().map(|network| network.parse().unwrap()).collect()
    }
}
