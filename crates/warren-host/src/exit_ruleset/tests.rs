use super::reach::MOST_ON_LINK;
use super::*;
use crate::kill_switch::InboundProtocol;
use crate::{ForwardedPorts, Forwarding, OnLink, Ports, Surroundings};

#[test]
fn ruleset_reads_as_expected() {
    let text = ruleset(&host());

    assert_eq!(
        text,
        "set flows_ip {\n\
         \ttype ipv4_addr\n\
         \tsize 65535\n\
         \tflags dynamic\n\
         }\n\
         set flows_ip6 {\n\
         \ttype ipv6_addr\n\
         \tsize 65535\n\
         \tflags dynamic\n\
         }\n\
         chain input {\n\
         \ttype filter hook input priority filter; policy accept;\n\
         \tct state established accept\n\
         \tiifname != \"warren-exit\" ct state related accept\n\
         \tiifname != { \"lo\", \"warren-exit\" } ip daddr 10.66.0.1 counter drop\n\
         \tiifname != { \"lo\", \"warren-exit\" } ip6 daddr fd66:6666::1 counter drop\n\
         \tiifname != { \"lo\", \"warren-exit\" } ip saddr 10.66.0.0/16 counter drop\n\
         \tiifname != { \"lo\", \"warren-exit\" } ip6 saddr fd66:6666::/64 counter drop\n\
         \tiifname != \"warren-exit\" accept\n\
         \tct state related meta nfproto ipv4 ct original ip daddr { 10.66.0.0/16 } accept\n\
         \tct state related meta nfproto ipv6 ct original ip6 daddr { fd66:6666::/64 } accept\n\
         \tct state new jump new_flows\n\
         \tip daddr 10.66.0.1 icmp type echo-request accept\n\
         \tip6 daddr fd66:6666::1 icmpv6 type echo-request accept\n\
         \tcounter drop\n\
         }\n\
         chain forward {\n\
         \ttype filter hook forward priority filter; policy accept;\n\
         \tiifname \"warren-exit\" jump from_clients\n\
         \toifname \"warren-exit\" jump to_clients\n\
         \tip saddr 10.66.0.0/16 counter drop\n\
         \tip6 saddr fd66:6666::/64 counter drop\n\
         \tmeta nfproto ipv4 iifname { \"ens3\" } jump from_neighbours\n\
         \tmeta nfproto ipv6 jump from_neighbours\n\
         }\n\
         chain from_clients {\n\
         \tct status dnat jump from_forwarded\n\
         \toifname \"warren-exit\" counter drop\n\
         \tct state established accept\n\
         \tct state new jump new_flows\n\
         \tct state invalid counter drop\n\
         \tct state related meta nfproto ipv4 ct original ip saddr != { 10.66.0.0/16 } counter drop\n\
         \tct state related meta nfproto ipv6 ct original ip6 saddr != { fd66:6666::/64 } counter drop\n\
         \tip daddr 192.168.7.0/24 accept\n\
         \tip daddr != { 192.0.0.9/32, 192.0.0.10/32 } ip daddr { 0.0.0.0/8, 10.0.0.0/8, 100.64.0.0/10, 127.0.0.0/8, \
         168.63.129.16/32, 169.254.0.0/16, 172.16.0.0/12, 192.0.0.0/24, 192.0.2.0/24, 192.88.99.0/24, 192.168.0.0/16, \
         198.18.0.0/15, 198.51.100.0/24, 203.0.113.0/24, 224.0.0.0/3 } counter drop\n\
         \tip6 daddr != { 2001:1::1/128, 2001:1::2/128, 2001:1::3/128, 2001:3::/32, 2001:4:112::/48, 2001:20::/28, \
         2001:30::/28 } ip6 daddr { ::/3, 2001::/23, 2001:db8::/32, 2002::/16, 3fff::/20, 4000::/2, 8000::/1 } counter drop\n\
         \tip saddr 10.66.0.0/16 accept\n\
         \tip6 saddr fd66:6666::/64 accept\n\
         \tcounter drop\n\
         }\n\
         chain new_flows {\n\
         \tip saddr 10.66.0.0/16 add @flows_ip { ip saddr ct count over 4096 } counter drop\n\
         \tip saddr 10.66.0.0/16 ip saddr != @flows_ip counter drop\n\
         \tip6 saddr fd66:6666::/64 add @flows_ip6 { ip6 saddr ct count over 4096 } counter drop\n\
         \tip6 saddr fd66:6666::/64 ip6 saddr != @flows_ip6 counter drop\n\
         }\n\
         chain to_clients {\n\
         \tct status dnat ct direction original jump to_forwarded\n\
         \tct state established,related accept\n\
         \tcounter drop\n\
         }\n\
         chain from_neighbours {\n\
         \tct state established,related accept\n\
         \tct status dnat accept\n\
         \tcounter drop\n\
         }\n\
         chain to_forwarded {\n\
         \tct state related accept\n\
         \tcounter drop\n\
         }\n\
         chain from_forwarded {\n\
         \tct direction reply counter drop\n\
         \tct state new jump new_flows\n\
         }\n\
         chain postrouting {\n\
         \ttype nat hook postrouting priority srcnat; policy accept;\n\
         \toifname != \"warren-exit\" ip saddr 10.66.0.0/16 meta l4proto { tcp, udp, sctp, dccp, udplite } masquerade to :20000-60999\n\
         \toifname != \"warren-exit\" ip saddr 10.66.0.0/16 masquerade\n\
         \toifname != \"warren-exit\" ip6 saddr fd66:6666::/64 meta l4proto { tcp, udp, sctp, dccp, udplite } masquerade to :20000-60999\n\
         \toifname != \"warren-exit\" ip6 saddr fd66:6666::/64 masquerade\n\
         }\n"
    );
}

#[test]
fn named_egress_takes_the_nat_and_keeps_the_rest_from_leaving_elsewhere() {
    let host = ExitHost { interface: Egress::Device(DeviceName::new("ens3").unwrap()), ..host() };

    let both = ruleset(&host);
    let text = ruleset(&ExitHost { ipv6: None, ..host });

    // Flows that exist already are checked too, except those to networks that the operator allows.
    let elsewhere = "\toifname != { \"ens3\", \"warren-exit\" }";
    let before = format!(
        "{elsewhere} ip daddr != {{ 192.168.7.0/24 }} counter drop\n{elsewhere} meta nfproto ipv6 counter drop\n\tct state established accept\n"
    );
    assert!(both.contains(&before), "{both}");
    assert!(text.contains("\toifname != \"ens3\" counter drop\n\tip saddr 10.66.0.0/16 accept\n"), "{text}");
    assert!(text.contains("\toifname \"ens3\" ip saddr 10.66.0.0/16 masquerade\n"), "{text}");
}

#[test]
fn without_nat_there_is_no_nat_chain() {
    let text = ruleset(&ExitHost { nat_ipv4: false, ipv6: None, ..host() });

    assert!(!text.contains("masquerade"), "{text}");
}

#[test]
fn routed_prefix_leaves_with_its_own_addresses_beside_a_translated_one() {
    let ipv6 = "2001:db8:66::1/64".parse().ok();

    let text = ruleset(&ExitHost { nat_ipv6: false, ipv6, ..host() });

    assert!(text.contains("ip saddr 10.66.0.0/16 masquerade\n"), "{text}");
    assert!(text.contains("\tip6 saddr 2001:db8:66::/64 accept\n"), "{text}");
    assert!(!text.contains("ip6 saddr 2001:db8:66::/64 m"), "{text}");
}

#[test]
fn hosts_behind_clients_may_send_what_clients_may() {
    let prefixes = ["192.168.8.0/24", "fd08::/64"].map(|prefix| prefix.parse().unwrap()).to_vec();

    let text = ruleset(&ExitHost { prefixes, ipv6: None, ..host() });

    assert!(text.contains("\tip saddr 10.66.0.0/16 accept\n\tip saddr 192.168.8.0/24 accept\n"), "{text}");
    assert!(text.contains("oifname != \"warren-exit\" ip saddr 192.168.8.0/24 masquerade\n"), "{text}");
    assert!(!text.contains("fd08"), "there is no pool of that version: {text}");
}

#[test]
fn addresses_of_a_network_behind_a_client_have_flows_together_also_beside_that_of_another_client() {
    let prefixes = ["192.168.8.0/24", "192.168.9.0/24", "fd08::/64"].map(|prefix| prefix.parse().unwrap());

    let text = ruleset(&ExitHost { prefixes: prefixes.to_vec(), ..host() });

    for (prefix, set, key) in [
        ("ip saddr 192.168.8.0/24", "flows_ip_24", "ip saddr & 255.255.255.0"),
        ("ip saddr 192.168.9.0/24", "flows_ip_24", "ip saddr & 255.255.255.0"),
        ("ip6 saddr fd08::/64", "flows_ip6_64", "ip6 saddr & ffff:ffff:ffff:ffff::"),
    ] {
        let rule = format!("\t{prefix} add @{set} {{ {key} ct count over 4096 }} counter drop\n");
        assert!(text.contains(&rule), "{text}");
        assert_eq!(text.matches(&format!("set {set} {{\n")).count(), 1, "{text}");
    }
    assert!(text.contains("\tip saddr 192.168.8.0/23 accept\n"), "both are let through at once: {text}");
}

#[test]
fn without_isolation_clients_reach_each_other_with_as_many_flows_as_they_have_elsewhere() {
    let text = ruleset(&ExitHost { isolation: false, ipv6: None, ..host() });

    assert!(text.contains("\tct state new jump new_flows\n\toifname \"warren-exit\" accept\n"), "{text}");
}

#[test]
fn nat_ports_never_hold_a_listen_port() {
    assert_eq!(nat_ports(&[], &[]), 20_000..=60_999);
    assert_eq!(nat_ports(&[443, 65_535], &[]), 20_000..=60_999);
    assert_eq!(nat_ports(&[51_820], &[]), 20_000..=51_819);
    assert_eq!(nat_ports(&[30_000, 40_000, 30_000], &[]), 40_001..=60_999);
    assert_eq!(nat_ports(&[20_000, 60_999], &[]), 20_001..=60_998);
}

#[test]
fn nat_ports_hold_no_port_of_another_service_unless_clients_would_have_too_few() {
    let of = |ports: &[u16], is_system| {
        ports.iter().map(|&port| ServicePort { port, is_system }).collect::<Vec<_>>()
    };
    assert_eq!(nat_ports(&[30_000], &of(&[22, 51_820], false)), 30_001..=51_819);
    let everywhere: Vec<u16> = (20_000..61_000).step_by(2_000).collect();
    assert_eq!(nat_ports(&[20_000], &of(&everywhere, true)), 20_001..=60_999);
    // Even if ordinary users' sockets take many ports, system services stay protected.
    let both = [of(&everywhere, false), of(&[51_820], true)].concat();
    assert_eq!(nat_ports(&[20_000], &both), 20_001..=51_819);
}

#[test]
fn addresses_of_networks_behind_clients_come_from_the_tunnel_alone_but_those_of_the_hosts_own_links() {
    let prefixes = ["192.168.8.0/24", "10.0.0.0/8"].map(|prefix| prefix.parse().unwrap()).to_vec();
    let surroundings = surroundings(&["10.1.0.0/24", "192.0.2.0/24"], Some(Vec::new()));

    let text = ruleset(&ExitHost { prefixes, surroundings, ipv6: None, ..host() });

    let [own, spoofed] =
        ["\tiifname \"ens3\" ip saddr 10.1.0.0/24 accept\n", "ip saddr 10.0.0.0/8 counter drop\n"]
            .map(|rule| text.find(rule).unwrap_or_else(|| panic!("{rule}{text}")));
    assert!(own < spoofed, "{text}");
    assert!(
        text.contains("\tiifname != { \"lo\", \"warren-exit\" } ip saddr 192.168.8.0/24 counter drop\n"),
        "{text}"
    );
    assert!(!text.contains("192.0.2.0/24 accept"), "{text}");
}

#[test]
fn neighbours_have_no_address_of_clients_whatever_network_is_on_the_link() {
    let prefixes: Vec<IpNet> = ["10.7.0.0/16", "fd07:0:7::/64"].map(|prefix| prefix.parse().unwrap()).into();
    let accepted = |surroundings| {
        let text = ruleset(&ExitHost { prefixes: prefixes.clone(), surroundings, ..host() });
        let input = text.split("chain ").find(|chain| chain.starts_with("input ")).unwrap().to_owned();
        let own = |line: &&str| line.contains("iifname \"ens3\"") && line.ends_with("accept");
        let accepted: Vec<String> = input.lines().filter(own).map(|line| line.trim().to_owned()).collect();
        (accepted, input)
    };

    // The first host is in a network that is wider than the granted networks and the pool. The second got its network from a
    // router advertisement.
    assert!(accepted(surroundings(&["10.0.0.0/8", "fd00::/8"], None)).0.is_empty());
    let advertised = Surroundings { permanent: Vec::new(), ..surroundings(&["fd07:0:7::/64"], None) };
    assert!(accepted(advertised).0.is_empty());

    // As a control, a permanent network of the host that is part of a granted one is accepted, after the rules about pools.
    let (own, input) = accepted(surroundings(&["10.7.1.0/24"], None));
    assert_eq!(own, ["iifname \"ens3\" ip saddr 10.7.1.0/24 accept"]);
    let places = [
        "ip6 saddr fd66:6666::/64 counter drop",
        "ip saddr 10.7.1.0/24 accept",
        "ip saddr 10.7.0.0/16 counter drop",
    ]
    .map(|rule| input.find(rule).unwrap());
    assert!(places.is_sorted(), "{input}");
}

#[test]
fn networks_on_the_hosts_links_are_refused_unless_they_are_refused_anyway_or_allowed() {
    let links = ["198.41.0.0/24", "198.41.1.0/24", "192.168.9.0/24", "2a01:4f8::/64", "fe80::/64"];
    let surroundings = surroundings(&links, Some(Vec::new()));
    let allow = vec!["2a01:4f8::5/128".parse().unwrap()];

    let text = ruleset(&ExitHost { surroundings, allow, ..host() });

    assert!(text.contains("\tip daddr { 198.41.0.0/23 } counter drop\n"), "{text}");
    assert!(text.contains("\tip6 daddr { 2a01:4f8::/64 } counter drop\n"), "{text}");
    let [allowed, refused] =
        ["2a01:4f8::5/128 accept", "{ 2a01:4f8::/64 }"].map(|part| text.find(part).unwrap());
    assert!(allowed < refused, "{text}");
    assert!(!text.contains("192.168.9.0") && !text.contains("fe80"), "{text}");
}

#[test]
fn wider_networks_stand_for_more_on_the_links_than_rules_name() {
    let on = |count: u32| {
        let device = DeviceName::new("ens3").unwrap();
        let network =
            |number: u32| format!("2a01:{:x}:{:x}:1::/64", number >> 8, number & 0xff).parse().unwrap();
        let links = (0..count).map(|number| OnLink { device: device.clone(), network: network(number) });
        let links = links.collect();
        ExitHost { surroundings: Surroundings { links, ..surroundings(&[], None) }, ..host() }
    };
    let many = on(100_000);

    assert!(has_too_many_links(&many));
    let networks = on_link(&many);
    assert!(networks.len() <= MOST_ON_LINK, "{}", networks.len());
    let is_refused = |link: &OnLink| networks.iter().any(|network| network.contains(&link.network));
    assert!(many.surroundings.links.iter().step_by(997).all(is_refused));
    assert!(!networks.iter().any(|network| network.contains(&"2b00::1/128".parse::<IpNet>().unwrap())));
    assert!(ruleset(&many).len() < 1024 * 1024);

    // As a control, as many networks as the rules can list are not widened.
    let few = on(4_096);
    assert!(!has_too_many_links(&few));
    assert_eq!(on_link(&few).len(), 4_096);
}

#[test]
fn clients_may_ask_the_resolvers_that_they_are_told_of_wherever_these_are_and_nothing_else_there() {
    let resolvers =
        ["9.9.9.9", "10.0.0.53", "198.41.0.53", "fd00::53"].map(|resolver| resolver.parse().unwrap());
    let surroundings = surroundings(&["198.41.0.0/24"], Some(Vec::new()));

    let host = ExitHost { surroundings, resolvers: resolvers.to_vec(), ..host() };
    let text = ruleset(&ExitHost { ipv6: None, ..host });

    for resolver in ["10.0.0.53", "198.41.0.53"] {
        let rule = format!("\tip daddr {resolver} meta l4proto {{ tcp, udp }} th dport 53 accept\n");
        assert!(text.contains(&rule), "{text}");
    }
    assert!(!text.contains("9.9.9.9"), "it is on the internet: {text}");
    assert!(!text.contains("fd00::53"), "there is no pool of that version: {text}");
}

#[test]
fn what_others_forward_is_not_looked_at() {
    let with = |surroundings| ruleset(&ExitHost { surroundings, ..host() });

    // The host forwards both IP versions for others. It does not matter whether it did so before the exit started.
    let others = Surroundings { forwarding: Forwarding::default(), ..surroundings(&[], None) };
    let text = with(others);
    assert!(!text.contains("jump from_neighbours"), "{text}");
    assert!(
        text.contains("\tip saddr 10.66.0.0/16 counter drop\n"),
        "only clients may use clients' addresses: {text}"
    );

    let text = with(surroundings(&[], Some(vec![DeviceName::new("br0").unwrap()])));
    assert!(text.contains("\tmeta nfproto ipv6 iifname != { \"br0\" } jump from_neighbours\n"), "{text}");
}

#[test]
fn without_isolation_nobody_outside_joins_a_flow_between_clients() {
    let text = ruleset(&ExitHost { isolation: false, ipv6: None, ..host() });

    let spoofed = "\tip saddr 10.66.0.0/16 counter drop\n\toifname \"warren-exit\" jump to_clients\n";
    assert!(text.contains(spoofed), "{text}");
}

#[test]
fn forwarded_ports_lead_to_their_clients_and_back_and_are_no_ports_of_clients_own_flows() {
    let forward = |protocol, first, last, to, ipv6: Option<&str>| ForwardedPorts {
        ports: Ports { protocol, first, last },
        to,
        ipv4: "10.66.0.2".parse().ok(),
        ipv6: ipv6.map(|address| address.parse().unwrap()),
    };
    let forwards = vec![
        forward(InboundProtocol::Tcp, 8_443, 8_443, 443, Some("fd66:6666::2")),
        forward(InboundProtocol::Tcp, 21_000, 21_009, 21_000, None),
        forward(InboundProtocol::Udp, 9_000, 9_001, 443, None),
    ];
    let host = ExitHost { forwards, ..host() };

    let text = ruleset(&host);

    let services = "10.66.0.2 . tcp . 443, 10.66.0.2 . tcp . 21000-21009, 10.66.0.2 . udp . 443-444";
    let services6 = "fd66:6666::2 . tcp . 443";
    let chains = format!(
        "chain prerouting {{\n\
         \ttype nat hook prerouting priority dstnat; policy accept;\n\
         \tiifname != \"warren-exit\" ip saddr 10.66.0.0/16 return\n\
         \tiifname != \"warren-exit\" ip6 saddr fd66:6666::/64 return\n\
         \tfib daddr type != local return\n\
         \tdnat ip to tcp dport map {{ 21000-21009 : 10.66.0.2 }}\n\
         \tdnat ip addr . port to tcp dport map {{ 8443 : 10.66.0.2 . 443 }}\n\
         \tdnat ip addr . port to udp dport map {{ 9000 : 10.66.0.2 . 443, 9001 : 10.66.0.2 . 444 }}\n\
         \tdnat ip6 addr . port to tcp dport map {{ 8443 : fd66:6666::2 . 443 }}\n\
         }}\n\
         chain to_forwarded {{\n\
         \tip daddr . meta l4proto . th dport {{ {services} }} accept\n\
         \tip6 daddr . meta l4proto . th dport {{ {services6} }} accept\n\
         \tct state related accept\n\
         \tcounter drop\n\
         }}\n\
         chain from_forwarded {{\n\
         \tct direction reply ip saddr . meta l4proto . th sport {{ {services} }} accept\n\
         \tct direction reply ip6 saddr . meta l4proto . th sport {{ {services6} }} accept\n\
         \tct direction reply counter drop\n\
         \tct state new jump new_flows\n\
         \toifname \"warren-exit\" ip daddr . meta l4proto . th dport {{ {services} }} accept\n\
         \toifname \"warren-exit\" ip6 daddr . meta l4proto . th dport {{ {services6} }} accept\n\
         }}\n\
         chain visits {{\n\
         \ttype nat hook postrouting priority srcnat; policy accept;\n\
         \toifname \"warren-exit\" ip saddr 10.66.0.0/16 ct status dnat masquerade\n\
         \toifname \"warren-exit\" ip6 saddr fd66:6666::/64 ct status dnat masquerade\n\
         }}\n"
    );
    assert!(text.contains(&chains), "{text}");
    let first = "chain to_clients {\n\tct status dnat ct direction original jump to_forwarded\n";
    assert!(text.contains(first), "{text}");
    assert!(text.contains("chain from_clients {\n\tct status dnat jump from_forwarded\n"), "{text}");
    // The port range of clients' flows ends before the forwarded ports or begins after them.
    assert!(text.contains("masquerade to :21010-60999"), "{text}");
}

#[test]
fn without_forwards_nothing_is_translated_and_connections_of_removed_forwards_are_still_dropped() {
    let text = ruleset(&host());

    assert!(!text.contains("dnat to") && !text.contains("dstnat"), "{text}");
    let to = "chain to_clients {\n\tct status dnat ct direction original jump to_forwarded\n";
    let from = "chain from_clients {\n\tct status dnat jump from_forwarded\n";
    assert!(text.contains(to) && text.contains(from), "{text}");
}

#[test]
fn earlier_flows_are_refused_where_the_rules_refuse_new_ones() {
    let resolvers = ["10.0.0.53", "9.9.9.9"].map(|resolver| resolver.parse().unwrap()).to_vec();
    let surroundings = surroundings(&["198.41.0.0/24", "2a01:4f8::/64"], None);
    let reach = Reach::of(&ExitHost { resolvers, surroundings, ..host() });
    let refuses = |to: &str, port| reach.refuses(to.parse().unwrap(), port);

    for (to, port) in [
        ("10.0.0.5", Some(80)),
        ("10.0.0.53", Some(80)),
        ("10.0.0.53", None),
        ("10.0.0.54", Some(53)),
        ("192.168.8.1", None),
        ("169.254.169.254", Some(80)),
        ("198.41.0.7", Some(443)),
        ("2a01:4f8::7", None),
        ("fd00::1", Some(53)),
        ("64:ff9b::a00:5", Some(80)),
    ] {
        assert!(refuses(to, port), "{to} {port:?}");
    }
    for (to, port) in [
        ("192.168.7.200", Some(80)),
        ("192.168.7.200", None),
        ("10.0.0.53", Some(53)),
        ("9.9.9.9", Some(443)),
        ("198.41.1.7", None),
        ("192.0.0.9", None),
        ("2a01:4f8:0:1::7", Some(443)),
    ] {
        assert!(!refuses(to, port), "{to} {port:?}");
    }
}

fn surroundings(links: &[&str], ipv6_others: Option<Vec<DeviceName>>) -> Surroundings {
    let device = DeviceName::new("ens3").unwrap();
    let link = |network: &&str| OnLink { device: device.clone(), network: network.parse().unwrap() };
    Surroundings {
        links: links.iter().map(link).collect(),
        permanent: links.iter().map(link).collect(),
        routers: vec![device.clone()],
        forwarding: Forwarding { ipv4_off: vec![device.clone()], ipv4_own: Vec::new(), ipv6_others },
    }
}

fn host() -> ExitHost {
    ExitHost {
        device: DeviceName::new("warren-exit").unwrap(),
        mtu: 1380,
        ipv4: "10.66.0.1/16".parse().ok(),
        ipv6: "fd66:6666::1/64".parse().ok(),
        nat_ipv4: true,
        nat_ipv6: true,
        interface: Egress::Auto,
        listen_ports: vec![443],
        service_ports: Vec::new(),
        allow: vec!["192.168.7.9/24".parse().unwrap()],
        prefixes: Vec::new(),
        forwards: Vec::new(),
        isolation: true,
        resolvers: Vec::new(),
        surroundings: surroundings(&[], Some(Vec::new())),
        router_advertisements: Vec::new(),
    }
}
