//! Rules of programs that people run together with a VPN, and whether these rules bypass it.

use super::{
    seen::{LOCAL_TABLE, MAIN_TABLE},
    *,
};
use crate::FirewallMark;

#[test]
fn rules_that_take_everything_past_a_full_tunnel_are_found() {
    for (rule, routes) in [
        (lookup(100, MAIN_TABLE), &[(MAIN_TABLE, "0.0.0.0/0")][..]),
        (lookup(5504, 51_820), &[(51_820, "0.0.0.0/0")]),
        (lookup(5504, 51_820), &[(51_820, "128.0.0.0/1"), (51_820, "10.0.0.0/8")]),
        (SeenRule { mark: marked(0x51), inverted: true, ..lookup(100, 7) }, &[(7, "0.0.0.0/0")]),
        (
            SeenRule { mark: Some(FirewallMark { mark: 0, mask: 0xff }), ..lookup(100, 7) },
            &[(7, "0.0.0.0/0")],
        ),
        (SeenRule { source: network("10.66.0.0/16"), ..lookup(100, 7) }, &[(7, "0.0.0.0/0")]),
        (SeenRule { source: network("192.168.0.0/16"), inverted: true, ..lookup(9, 7) }, &[(7, "0.0.0.0/0")]),
        (SeenRule { from_device: Some("lo".into()), ..lookup(100, 7) }, &[(7, "0.0.0.0/0")]),
        (SeenRule { destination: network("0.0.0.0/1"), ..lookup(100, 7) }, &[(7, "0.0.0.0/0")]),
        // The local network can push routes into the main table, so they count.
        (SeenRule { suppressed: Some(0), ..lookup(100, MAIN_TABLE) }, &[(MAIN_TABLE, "192.168.7.0/24")]),
    ] {
        assert!(leads(&rule, routes, &full()), "{rule} {routes:?}");
    }
}

#[test]
fn rules_that_were_made_for_something_else_cause_no_alarm() {
    let everything = [(7, "0.0.0.0/0"), (MAIN_TABLE, "0.0.0.0/0")];
    let devices = |from: Option<&str>, to: Option<&str>| SeenRule {
        from_device: from.map(str::to_owned),
        to_device: to.map(str::to_owned),
        ..lookup(1000, 7)
    };
    for rule in [
        // These rules are for VRFs, users and ports.
        SeenRule { picks: true, ..lookup(1000, 0) },
        SeenRule { mark: Some(FirewallMark { mark: 0x8_0000, mask: 0xff_0000 }), ..lookup(5210, MAIN_TABLE) },
        SeenRule { mark: marked(crate::CARRIER_MARK), ..lookup(100, 7) },
        devices(Some("docker0"), None),
        devices(None, Some("eth1")),
        SeenRule { source: network("192.168.1.7/32"), ..lookup(100, 7) },
        SeenRule { destination: network("10.42.0.9/32"), ..lookup(512, MAIN_TABLE) },
        SeenRule { is_warrens: true, ..lookup(5505, MAIN_TABLE) },
        SeenRule { action: Action::Other, ..lookup(100, 7) },
        lookup(0, LOCAL_TABLE),
        lookup(100, 8),
    ] {
        assert!(!leads(&rule, &everything, &full()), "{rule}");
    }
    // Tailscale's rule to its own networks, and a rule that suppresses the default route.
    assert!(!leads(&lookup(5270, 52), &[(52, "100.100.100.100/32"), (52, "10.0.0.0/8")], &full()));
    assert!(!leads(&SeenRule { suppressed: Some(0), ..lookup(9, 7) }, &everything, &full()));
}

#[test]
fn split_tunnel_minds_its_own_networks_alone() {
    let split = Tunnel { include: networks(&["10.20.0.0/16"]), ..Tunnel::default() };

    for (route, around) in [("0.0.0.0/0", true), ("10.0.0.0/8", true), ("10.20.0.0/16", true)] {
        assert_eq!(leads(&lookup(100, 7), &[(7, route)], &split), around, "{route}");
    }
    for route in ["10.20.5.0/24", "10.30.0.0/16", "::/0"] {
        assert!(!leads(&lookup(100, 7), &[(7, route)], &split), "{route}");
    }
    assert!(leads(&lookup(100, MAIN_TABLE), &[(MAIN_TABLE, "10.20.5.0/24")], &split));
    let without = Tunnel { exclude: networks(&["10.20.5.0/24"]), ..split };
    assert!(!leads(&lookup(100, MAIN_TABLE), &[(MAIN_TABLE, "10.20.5.0/24")], &without));
}

#[test]
fn a_band_is_in_front_of_a_bypass_or_beyond_what_it_skips() {
    let bypass = |priority, how| Bypass { family: Family::Ipv4, priority, listed: String::new(), how };
    let leads = |priority| bypass(priority, How::Leads("0.0.0.0/0".parse().unwrap()));
    let skips = |priority, target| bypass(priority, How::Skips(target));

    assert!(!leads(Band::USUAL.last()).is_behind(Band::USUAL));
    assert!(leads(Band::USUAL.last() + 1).is_behind(Band::USUAL));
    assert!(!skips(100, 32_766).is_behind(Band::USUAL));
    assert!(skips(100, 200).is_behind(Band::USUAL));
    assert!(skips(100, 32_766).is_behind(Band::all().last().unwrap()));
}

#[test]
fn a_bypass_names_the_rule_what_it_does_and_what_to_do() {
    let listed = SeenRule { suppressed: Some(0), mark: marked(7), inverted: true, ..lookup(100, MAIN_TABLE) };
    let bypass = Bypass {
        family: Family::Ipv4,
        priority: 100,
        listed: listed.to_string(),
        how: How::Leads("0.0.0.0/1".parse().unwrap()),
    };

    assert_eq!(
        format!("{bypass}; {}", bypass.remedy()),
        "the IPv4 policy rule `100: not from all fwmark 0x7 lookup main suppress_prefixlength 0` of another program leads \
         0.0.0.0/1 around the tunnel; delete it with `ip -4 rule delete priority 100`, or give it a priority above 6272"
    );
}

fn leads(rule: &SeenRule, routes: &[(u32, &str)], tunnel: &Tunnel) -> bool {
    let route = |(table, destination): &(u32, &str)| SeenRoute {
        table: *table,
        destination: destination.parse().unwrap(),
    };
    rule.action == Action::Lookup
        && rule.takes_ordinary(tunnel)
        && routes.iter().map(route).any(|route| rule.leads_around(&route, tunnel).is_some())
}

fn lookup(priority: u32, table: u32) -> SeenRule {
    SeenRule {
        priority,
        inverted: false,
        action: Action::Lookup,
        table,
        mark: None,
        source: None,
        destination: None,
        from_device: None,
        to_device: None,
        picks: false,
        suppressed: None,
        is_warrens: false,
    }
}

fn full() -> Tunnel {
    Tunnel {
        include: networks(&["0.0.0.0/0", "::/0"]),
        exclude: Vec::new(),
        inner: vec!["10.66.0.2".parse().unwrap()],
    }
}

fn marked(mark: u32) -> Option<FirewallMark> {
    Some(FirewallMark::exactly(mark))
}

fn network(text: &str) -> Option<IpNet> {
    text.parse().ok()
}

fn networks(list: &[&str]) -> Vec<IpNet> {
    list.iter().map(|network| network.parse().unwrap()).collect()
}
