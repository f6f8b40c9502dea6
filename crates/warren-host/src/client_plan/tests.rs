//! Tests of clients' plans, printed as the commands that a person would type.

use std::net::Ipv4Addr;

use super::*;
use crate::Band;

#[test]
fn full_tunnel_looks_up_its_table_before_main() {
    let plan = client(&host(&["0.0.0.0/0", "::/0"]));

    assert_eq!(
        plan.to_string(),
        "ip address add 10.66.0.2/32 dev warren0\n\
         ip address add fd66:6666::2/128 dev warren0\n\
         ip link set warren0 mtu 1380 addrgenmode none group 22369 up\n\
         ip -4 route add 0.0.0.0/0 dev warren0 table 22369 proto 87\n\
         ip -6 route add ::/0 dev warren0 table 22369 proto 87\n\
         ip -4 rule add priority 5505 iif warren0 lookup 254 protocol 87\n\
         ip -4 rule add priority 6017 not fwmark 0x5761 lookup 22369 protocol 87\n\
         ip -6 rule add priority 5505 iif warren0 lookup 254 protocol 87\n\
         ip -6 rule add priority 6017 not fwmark 0x5761 lookup 22369 protocol 87\n"
    );
}

#[test]
fn what_has_a_lease_goes_nowhere_while_the_device_is_away() {
    let void = Some(DeviceName::new("warren-void0").unwrap());
    let host = ClientPlanFacts { void, ipv6: None, ..host(&["0.0.0.0/0", "192.0.2.0/24", "::/0"]) };

    let plan = client(&host).to_string();

    let routes: Vec<&str> =
        plan.lines().filter(|line| line.contains("route") || line.contains("link")).collect();
    assert_eq!(
        routes,
        [
            "ip link set warren-void0 mtu 1380 addrgenmode none group 22369 up",
            "ip link set warren0 mtu 1380 addrgenmode none group 22369 up",
            "ip -4 route add 0.0.0.0/0 dev warren-void0 table 22369 proto 87 metric 22369",
            "ip -4 route add 0.0.0.0/0 dev warren0 table 22369 proto 87",
            "ip -4 route add 192.0.2.0/24 dev warren-void0 table 22369 proto 87 metric 22369",
            "ip -4 route add 192.0.2.0/24 dev warren0 table 22369 proto 87",
            "ip -6 route add unreachable ::/0 table 22369 proto 87",
        ]
    );
}

#[test]
fn default_route_without_a_lease_is_unreachable_and_covers_the_rest() {
    let host = ClientPlanFacts { ipv6: None, ..host(&["0.0.0.0/0", "fd00::/8", "::/0"]) };

    assert_eq!(
        client(&host).to_string(),
        "ip address add 10.66.0.2/32 dev warren0\n\
         ip link set warren0 mtu 1380 addrgenmode none group 22369 up\n\
         ip -4 route add 0.0.0.0/0 dev warren0 table 22369 proto 87\n\
         ip -6 route add unreachable ::/0 table 22369 proto 87\n\
         ip -4 rule add priority 5505 iif warren0 lookup 254 protocol 87\n\
         ip -4 rule add priority 6017 not fwmark 0x5761 lookup 22369 protocol 87\n\
         ip -6 rule add priority 5505 iif warren0 lookup 254 protocol 87\n\
         ip -6 rule add priority 6017 not fwmark 0x5761 lookup 22369 protocol 87\n"
    );
}

#[test]
fn ipv4_without_a_lease_is_unreachable_too() {
    let host = ClientPlanFacts { ipv4: None, ..host(&["0.0.0.0/0", "192.0.2.0/24"]) };

    let plan = client(&host).to_string();

    assert!(plan.starts_with("sysctl -w net.ipv4.conf.all.src_valid_mark=1\n"), "{plan}");
    assert!(plan.contains("ip -4 route add unreachable 0.0.0.0/0 table 22369 proto 87\n"), "{plan}");
    assert!(!plan.contains("192.0.2.0"), "{plan}");
}

#[test]
fn split_tunnel_has_routes_for_its_networks_only_each_once() {
    let host = ClientPlanFacts { slot: 3, ..host(&["192.0.2.7/24", "192.0.2.0/24", "198.51.100.0/24"]) };

    assert_eq!(
        client(&host).to_string(),
        "ip address add 10.66.0.2/32 dev warren0\n\
         ip address add fd66:6666::2/128 dev warren0\n\
         ip link set warren0 mtu 1380 addrgenmode none group 22369 up\n\
         ip -4 route add 192.0.2.0/24 dev warren0 table 22372 proto 87\n\
         ip -4 route add 198.51.100.0/24 dev warren0 table 22372 proto 87\n\
         ip -4 rule add priority 5508 iif warren0 lookup 254 protocol 87\n\
         ip -4 rule add priority 5764 not fwmark 0x5761 lookup 22372 suppress_prefixlength 0 protocol 87\n"
    );
}

#[test]
fn split_network_without_a_lease_is_unreachable() {
    let host = ClientPlanFacts { ipv6: None, ..host(&["2001:db8::/32"]) };

    let plan = client(&host).to_string();

    assert!(plan.contains("ip -6 route add unreachable 2001:db8::/32 table 22369 proto 87\n"), "{plan}");
    assert!(plan.contains("ip -6 rule add priority 5761 "), "{plan}");
}

#[test]
fn kernel_without_ipv6_gets_no_step_for_it() {
    let host = ClientPlanFacts { ipv6: None, kernel_has_ipv6: false, ..host(&["0.0.0.0/0", "::/0"]) };

    let plan = client(&host).to_string();

    assert!(!plan.contains("-6") && !plan.contains("::"), "{plan}");
}

#[test]
fn excluded_networks_are_left_to_the_next_rule() {
    let exclude = ["192.168.1.0/24", "10.0.0.0/8", "192.168.1.0/24", "fe80::/64"];
    let exclude = exclude.map(|network| network.parse().unwrap()).to_vec();
    let plan = client(&ClientPlanFacts { exclude, ..host(&["0.0.0.0/0", "10.0.0.0/8"]) }).to_string();

    assert!(plan.contains("ip -4 route add throw 192.168.1.0/24 table 22369 proto 87\n"), "{plan}");
    assert_eq!(plan.matches("throw").count(), 1, "{plan}");
}

#[test]
fn guests_are_reached_by_their_device_where_the_tunnel_would_take_them() {
    let guest = |device: &str, network: &str| GuestNetwork {
        device: DeviceName::new(device).unwrap(),
        network: network.parse().unwrap(),
    };
    let guests = vec![
        guest("docker0", "172.17.0.0/16"),
        guest("docker0", "fd17::/64"),
        guest("virbr0", "192.168.122.0/24"),
        guest("br-named", "10.20.0.0/16"),
    ];
    let exclude = ["172.17.0.0/16", "172.18.0.0/16"].map(|network| network.parse().unwrap()).to_vec();
    let firewall = Some(ClientFirewall { table: firewall_table("home"), listening: Vec::new() });
    let host = ClientPlanFacts { guests, exclude, firewall, ..host(&["0.0.0.0/0", "::/0", "10.20.0.0/16"]) };

    let plan = client(&ClientPlanFacts { ipv6: None, ..host.clone() }).to_string();

    for route in [
        "ip -4 route add 172.17.0.0/16 dev docker0 table 22369 proto 87\n",
        "ip -6 route add fd17::/64 dev docker0 table 22369 proto 87\n",
        "ip -4 route add 192.168.122.0/24 dev virbr0 table 22369 proto 87\n",
        "ip -4 route add 10.20.0.0/16 dev warren0 table 22369 proto 87\n",
        "ip -4 route add throw 172.18.0.0/16 table 22369 proto 87\n",
    ] {
        assert!(plan.contains(route), "{route} is not in {plan}");
    }
    assert!(!plan.contains("throw 172.17") && !plan.contains("dev br-named"), "{plan}");
    let marked = "ct state new ct mark 0 ip6 daddr { fd17::/64 } meta l4proto != tcp ct mark set 0x5761\n";
    assert!(plan.contains(marked), "{plan}");

    let split = client(&ClientPlanFacts { include: vec!["10.0.0.0/8".parse().unwrap()], ..host }).to_string();
    assert!(split.contains("10.20.0.0/16 dev br-named") && !split.contains("dev docker0"), "{split}");
}

#[test]
fn rules_stand_in_the_band_that_was_chosen() {
    let band = Band::all().last().unwrap();
    let plan = client(&ClientPlanFacts { band, ..host(&["0.0.0.0/0", "192.0.2.0/24"]) }).to_string();

    for rule in ["priority 1 iif warren0", "priority 2 not fwmark 0x5761", "priority 3 not fwmark 0x5761"] {
        assert!(plan.contains(&format!("ip -4 rule add {rule} ")), "{plan}");
    }
}

#[test]
fn firewall_stands_before_anything_is_routed() {
    let firewall = ClientFirewall { table: firewall_table("home"), listening: vec![22] };
    let plan =
        client(&ClientPlanFacts { firewall: Some(firewall), ipv6: None, ..host(&["0.0.0.0/0"]) }).to_string();

    assert!(
        plan.starts_with(
            "nft -f - <<'END'\n\
             table inet warren_home {\n\
             \tchain outside {\n\
             \t\ttype filter hook prerouting priority raw; policy accept;\n\
             \t\tmeta iifgroup != 22369 ip daddr 10.66.0.2 fib saddr type != local counter drop\n"
        ),
        "{plan}"
    );
    assert!(plan.contains("oifname \"warren0\" ip saddr != 10.66.0.2 masquerade\n"), "{plan}");
    assert!(plan.contains("table arp warren_home {\n"), "{plan}");
    assert!(plan.contains("\t\tarp daddr ip 10.66.0.2 counter drop\n"), "{plan}");
    assert!(!plan.contains("ip6"), "{plan}");
}

#[test]
fn networks_behind_the_host_are_forwarded_for_keep_their_addresses_and_stay_out_of_the_tunnel() {
    let firewall = ClientFirewall { table: firewall_table("office"), listening: Vec::new() };
    let prefixes = ["192.168.7.0/24", "fd07::/64"].map(|prefix| prefix.parse().unwrap()).to_vec();
    let host = ClientPlanFacts { firewall: Some(firewall), prefixes, ..host(&["0.0.0.0/0", "::/0"]) };

    let plan = client(&host).to_string();

    assert!(
        plan.starts_with(
            "sysctl -w net.ipv6.conf.eth0.accept_ra=2\n\
             sysctl -w net.ipv6.conf.all.forwarding=1\n\
             sysctl -w net.ipv4.ip_forward=1\n"
        ),
        "{plan}"
    );
    assert!(
        plan.contains("oifname \"warren0\" ip saddr != { 10.66.0.2, 192.168.7.0/24 } masquerade\n"),
        "{plan}"
    );
    assert!(
        plan.contains("oifname \"warren0\" ip6 saddr != { fd66:6666::2, fd07::/64 } masquerade\n"),
        "{plan}"
    );
    assert!(plan.contains("ip -4 route add throw 192.168.7.0/24 table 22369 proto 87\n"), "{plan}");
    assert!(plan.contains("ip -6 route add throw fd07::/64 table 22369 proto 87\n"), "{plan}");
}

#[test]
fn strict_reverse_path_check_is_loosened_first() {
    let eth = DeviceName::new("eth0.7").unwrap();
    let host = ClientPlanFacts { strict_reverse_path: vec![eth], ..host(&[]) };

    let plan = client(&host).to_string();

    assert!(plan.starts_with("sysctl -w net.ipv4.conf.eth0/7.rp_filter=2\n"), "{plan}");
}

pub(crate) fn host(include: &[&str]) -> ClientPlanFacts {
    ClientPlanFacts {
        device: DeviceName::new("warren0").unwrap(),
        void: None,
        mtu: 1380,
        ipv4: Some(Ipv4Addr::new(10, 66, 0, 2)),
        ipv6: Some("fd66:6666::2".parse().unwrap()),
        kernel_has_ipv6: true,
        include: include.iter().map(|network| network.parse().unwrap()).collect(),
        exclude: Vec::new(),
        guests: Vec::new(),
        prefixes: Vec::new(),
        allowed_forwards: Vec::new(),
        router_advertisements: vec![DeviceName::new("eth0").unwrap()],
        firewall: None,
        mark: crate::CARRIER_MARK,
        slot: 0,
        band: Band::USUAL,
        strict_reverse_path: Vec::new(),
    }
}
