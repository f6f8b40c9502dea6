use ipnet::IpNet;

use super::*;
use crate::{
    ForwardedPorts, Forwarding, GuestNetwork, OnLink, Plan, Ports, Step, Surroundings, client_plan,
    client_plan::{ClientFirewall, ClientPlanFacts},
    dns,
    exec_groups::ExecRules,
    exit_hold,
    exit_plan::{self, Egress, ExitHost},
    kill_switch::{ExecLetOut, InboundPort, InboundProtocol, KillSwitchRules},
    plan::table_text,
};

#[test]
fn every_table_that_a_plan_makes_is_understood() {
    let hold = Step::Nftables {
        family: TableFamily::Inet,
        table: exit_hold::HOLD_TABLE.into(),
        ruleset: exit_hold::ruleset(&exit_host(Egress::Auto)),
        owned: false,
    };
    for (tables, plan) in [
        (OwnTables::of_profile("home"), client()),
        (OwnTables::of_exit(), Plan { steps: vec![hold] }),
        (OwnTables::of_exit(), exit(Egress::Auto)),
        (OwnTables::of_exit(), exit(Egress::Device("eth0".parse().unwrap()))),
    ] {
        for step in plan.steps {
            let Step::Nftables { family, table, ruleset, owned } = step else { continue };
            let text = table_text(family, &table, &ruleset, owned);
            let prepared = format!("add table {family} {table}\ndelete table {family} {table}\n{text}");
            let emptied = format!(
                "flush table {family} {table}\ndelete chain {family} {table} a\ndelete set {family} {table} b\n{text}"
            );
            for text in [text, prepared, emptied] {
                let read = Ruleset::parse(&text, &tables).unwrap_or_else(|error| panic!("{error}: {text}"));
                assert_eq!(Ruleset::parse(&read.to_string(), &tables).unwrap(), read);
            }
        }
    }
}

#[test]
fn what_is_loaded_is_what_was_read_with_single_spaces() {
    let text = "create table inet warren_exit {\n\tflags owner;\n}\ntable  inet\twarren_exit {\n\tchain a {\n\
                \t\toifname != {\"lo\",\"a@b\"} tcp dport != 1024-65535 jump b; counter drop\n}\n}\n";

    assert_eq!(
        Ruleset::parse(text, &OwnTables::of_exit()).unwrap().to_string(),
        "create table inet warren_exit {\nflags owner ;\n}\ntable inet warren_exit {\nchain a {\n\
         oifname != { \"lo\" , \"a@b\" } tcp dport != 1024-65535 jump b ; counter drop\n}\n}\n"
    );
}

#[test]
fn other_tables_are_out_of_reach() {
    for text in [
        "table inet filter {\n}\n",
        "table inet warren_work {\n}\n",
        "add table inet warren_work\n",
        "delete table inet warren-kill-switch_work",
        "table inet warren_home_dns {\n}\n",
    ] {
        assert!(matches!(home(text), Err(RulesetError::OtherTable(_))), "{text}");
    }
    for text in [
        "}; flush ruleset; table inet x {",
        "chain a {\n}; flush ruleset; table inet x {\n}",
        "}\nflush ruleset\ntable inet warren_home {",
        "} flush ruleset\ntable inet warren_home {",
        "chain a {\n}\n}\n}\nflush ruleset\n{ {",
        "chain a {\naccept } } ; flush ruleset ; table inet warren_home { chain a {\n}",
        "flush ruleset",
        "delete table inet filter",
        "flush table inet filter",
        "delete chain inet filter input",
        "chain a {\nflush ruleset\n}",
        "# {\n}\nflush ruleset\n# }",
        "comment \"{\"\n}\nflush ruleset\ncomment \"}\"",
        "chain a {\noifname \"lo}\nflush ruleset\n{\"\n}",
        "chain a {\naccept \\\n}\n}",
        "chain a {\naccept\r}\r}\rflush ruleset\n}",
        "chain \u{37e} {\n}",
        "chain include {\n}",
        "set include {\ntype ipv4_addr\n}",
        "chain a {\njump include\n}",
        "chain a {\nadd @flush { ip saddr } drop\n}",
    ] {
        let text = format!("table inet warren_home {{\n{text}\n}}\n");
        assert!(home(&text).is_err(), "{text}");
    }
    for text in [
        "flush ruleset",
        "table inet warren_home { }\nflush ruleset",
        "add table inet warren_home; flush ruleset",
        "table inet warren_home { } flush ruleset",
        "table inet warren_home {\n",
        "}\n",
        "table ip warren_home {\n}\n",
        "add rule inet filter input accept",
        "flush chain inet warren_home a",
        "flush set inet warren_home a",
        "delete rule inet warren_home a handle 1",
        "delete chain inet filter input",
        "delete set inet warren_home a { 10.0.0.1 }",
        "delete chain inet warren_home \"a\"",
        "reset counters",
        "monitor",
    ] {
        assert!(home(text).is_err(), "{text}");
    }
}

#[test]
fn neither_files_nor_names_are_looked_up() {
    for rule in [
        "include \"/etc/shadow\"",
        "define a = 1",
        "ip daddr $a accept",
        "ip daddr exit.example accept",
        "ip daddr \"exit.example\" accept",
        "ip daddr local accept",
        "ip daddr { 10.0.0.1, local } accept",
        "ip daddr . tcp dport { local . 443 } accept",
        "ip daddr != local accept",
        "arp daddr ip local drop",
        "add @flows_ip { local } drop",
        "tcp dport https accept",
        "tcp dport 22-ssh accept",
        "meta skuid root accept",
        "ip daddr 10.0.0.1 | local accept",
        "tcp dport 22 | local accept",
        "ip daddr 10.0.0.1 & local accept",
        "ip daddr & (10.0.0.1 | local) == 10.0.0.1 accept",
        "ip daddr 10.0.0.1 - local accept",
        "ip daddr 10.0.0.1 + local accept",
        "ip daddr 10.0.0.1, local accept",
        "ip daddr . local accept",
        "ip daddr 10.0.0.1 . local accept",
        "add @flows_ip { ip saddr 10.0.0.1, local } drop",
        "add @flows_ip { ip saddr 10.0.0.1 | local } drop",
        "dnat to 10.0.0.1 | local",
        "tcp flags & (syn | local) == syn accept",
        "tcp flags & local == syn accept",
        "tcp flags & (syn | ack) == local accept",
        "tcp dport 22 (local)",
        "meta mark local accept",
        "meta mark { 1, local } accept",
        "ct mark set local accept",
        "meta iifgroup local accept",
        "meta l4proto local accept",
        "meta l4proto { tcp, local } accept",
        "ip protocol local accept",
        "type filter hook output priority local; policy accept;",
        "oifname { \"lo\", local } accept",
        "ip saddr 10.0.0.1/evil accept",
        "ip saddr 10.0.0.1-a.b accept",
        "comment \"x\"",
        "log prefix \"x\"",
        // Values that belong in another place.
        "ip daddr 5s accept",
        "ip daddr 4294967296 accept",
        "ip daddr 7 accept",
        "ip daddr 10.0.0.1-7h accept",
        "ip daddr { 10.0.0.1, 7h } accept",
        "ip daddr ::1 accept",
        "ip6 daddr 10m accept",
        "ip6 daddr 10.0.0.1 accept",
        "ip daddr 5/second accept",
        "tcp dport 5s accept",
        "tcp dport 08 accept",
        "tcp dport 65536 accept",
        "tcp dport { 22, 5m } accept",
        "tcp dport 10.0.0.1 accept",
        "ip daddr . udp dport { 443 . 10.0.0.1 } accept",
        "ip daddr . udp dport { 10.0.0.1 . 5s } accept",
        "ip daddr . udp dport { 10.0.0.1 } accept",
        "ip daddr . udp dport 5s accept",
        "masquerade to 5s",
        "masquerade to :5s",
        "meta mark 5s accept",
        "meta mark 4294967296 accept",
        "meta l4proto 5s accept",
        "meta length 5s accept",
        "add @flows_ip { ip saddr & 5s ct count over 9 } drop",
        "ip daddr & 255.0.0.0 local accept",
        "meta nfproto ipv4 dnat local",
        "meta nfproto ipv4 snat local",
        "dnat 1",
        "dnat ip to local",
        "dnat ip to ::1",
        "dnat ip to 10.0.0.1:local",
        "dnat ip to 10.0.0.1-10.0.0.9",
        "socket cgroupv2 level 2 \"user.slice/a.slice\" accept",
        "socket cgroupv2 level 2 \"warren.slice/../user.slice\" accept",
        "socket cgroupv2 level local \"warren.slice/a.slice\" accept",
        "socket mark local accept",
        "oifname \"warren.slice/a.slice\" accept",
        "iifname status dnat local",
        "ip daddr & 255.0.0.0 == local accept",
        "dnat ip to local",
        "dnat to tcp dport map { 1 : 10.0.0.1 }",
        "dnat ip to tcp dport map { 1 : local }",
        "dnat ip to tcp dport map { 1 : ::1 }",
        "dnat ip to tcp dport map { ssh : 10.0.0.1 }",
        "dnat ip to tcp dport map { 1 : 10.0.0.1, local }",
        "dnat ip to tcp dport map @local",
        "dnat ip addr . port to tcp dport map { 1 : 10.0.0.1 }",
        "dnat ip addr . port to tcp dport map { 1 : 10.0.0.1 . ssh }",
        "update @visitors { local }",
        "update @visitors { ip saddr local }",
        "update @visitors { ip saddr . local }",
        "update @visitors { ip saddr . udp local }",
        "update @visitors { ip saddr 10.0.0.1 }",
        "ip saddr set local",
        "ip saddr set ::1",
    ] {
        let text = format!("table inet warren_home {{\nchain a {{\n{rule}\n}}\n}}\n");
        assert!(home(&text).is_err(), "{rule}");
    }
    // The controls: Warren's own rules join values in each of these ways.
    for rule in [
        "type filter hook output priority filter - 10; policy accept;",
        "type filter hook output priority srcnat + 100; policy accept;",
        "tcp flags & (syn | ack) == syn accept",
        "ct state established,related accept",
        "ip daddr . udp dport { 10.0.0.1 . 443 } accept",
        "meta l4proto { tcp, udp } th dport { 53, 853 } drop",
        "meta mark 1 ct mark set 0x2",
        "ip daddr { 10.0.0.1-10.0.0.9, 10.1.0.0/16 } accept",
        "ip6 daddr { ::1, fd00::/8 } accept",
        "masquerade to :20000-60999",
        "limit rate over 100/second burst 100 packets counter drop",
        "add @flows_ip { ip saddr & 255.255.255.0 ct count over 9 } drop",
        "dnat ip to tcp dport map { 1-9 : 10.0.0.1, 10 : 10.0.0.2 }",
        "dnat ip6 addr . port to udp dport map { 1 : fd00::1 . 443 }",
        "update @visitors { ip saddr . udp sport . udp dport }",
        "ip saddr set 10.0.0.1",
    ] {
        let text = format!("table inet warren_home {{\nchain a {{\n{rule}\n}}\n}}\n");
        home(&text).unwrap_or_else(|error| panic!("{error}: {rule}"));
    }
    for element in ["local", "10.0.0.1", "80", "80 timeout local", "local timeout 9s", "80 timeout 9s, local"]
    {
        let set = format!(
            "table inet warren_home {{\nset a {{\ntype ipv4_addr\nelements = {{ {element} }}\n}}\n}}\n"
        );
        assert!(home(&set).is_err(), "a set has ports for a time from the start, and nothing else: {set}");
    }
}

fn home(text: &str) -> Result<Ruleset<'_>, RulesetError> {
    Ruleset::parse(text, &OwnTables::of_profile("home"))
}

/// All tables of a client that uses everything.
fn client() -> Plan {
    let guests = vec![GuestNetwork {
        device: "br-1_a.b@c".parse().unwrap(),
        network: "172.17.0.0/16".parse().unwrap(),
    }];
    let host = ClientPlanFacts {
        device: "warren0".parse().unwrap(),
        void: None,
        mtu: 1_380,
        ipv4: Some("10.66.0.2".parse().unwrap()),
        ipv6: Some("fd66::2".parse().unwrap()),
        kernel_has_ipv6: true,
        include: networks(&["10.0.0.0/8", "::/0"]),
        exclude: Vec::new(),
        guests: guests.clone(),
        prefixes: networks(&["192.168.7.0/24", "fd07::/64"]),
        allowed_forwards: [InboundProtocol::Tcp, InboundProtocol::Udp]
            .map(|protocol| Ports { protocol, first: 443, last: 445 })
            .to_vec(),
        router_advertisements: Vec::new(),
        firewall: Some(ClientFirewall {
            table: client_plan::firewall_table("home"),
            listening: vec![22, 80],
        }),
        mark: crate::CARRIER_MARK,
        slot: 0,
        band: crate::Band::USUAL,
        strict_reverse_path: Vec::new(),
    };
    let rules = KillSwitchRules {
        portal: true,
        include: networks(&["10.0.0.0/8", "fd00::/8"]),
        exclude: networks(&["10.1.0.0/16"]),
        lan: networks(&["192.168.1.0/24", "fe80::/64"]),
        guests: guests.clone(),
        prefixes: host.prefixes.clone(),
        allow_inbound: [InboundProtocol::Tcp, InboundProtocol::Udp]
            .map(|protocol| InboundPort { protocol, port: 22 })
            .to_vec(),
        on_link: networks(&["192.168.1.0/24", "fe80::/64"]),
        carriers: ["198.51.100.2:443", "[2001:db8::2]:443"].map(|end| end.parse().unwrap()).to_vec(),
        resolvers: ["192.168.1.1:53", "[fd01::1]:53"].map(|end| end.parse().unwrap()).to_vec(),
        query_mark: Some(0x1234_5678),
        exec: Some(ExecLetOut { inside: 0x5762, outside: Some(0x5763) }),
    };
    let (inside, outside) = (r"unified/warren.slice/warren-my\x2dhome.slice", "warren_outside.slice/b.slice");
    let cut_off = ExecRules::cut_off(inside.into(), outside.into());
    let exec = ExecRules {
        slot: Some(7),
        device: Some(12),
        resolvers: ["10.66.0.1", "fd66::1"].map(|server| server.parse().unwrap()).to_vec(),
        outside_resolvers: Some(vec!["192.168.1.1".parse().unwrap()]),
        ..cut_off.clone()
    };
    let mut plan = client_plan::client(&host);
    plan.steps.push(rules.step("home"));
    plan.steps.extend([exec, cut_off].map(|exec| exec.step("home")));
    plan.steps.push(dns::guard("home", crate::CARRIER_MARK, true, &guests));
    plan.steps.push(dns::guard("home", crate::CARRIER_MARK, false, &[]));
    let lan = networks(&["192.168.1.0/24", "fd00::/64", "172.30.0.0/24"]);
    let exclude = networks(&["192.168.1.5/32"]);
    plan.steps.push(dns::guard_lan("home", crate::CARRIER_MARK, &lan, &exclude, &guests));
    plan
}

fn exit(interface: Egress) -> Plan {
    exit_plan::exit(&exit_host(interface))
}

fn exit_host(interface: Egress) -> ExitHost {
    ExitHost {
        device: "warren-exit".parse().unwrap(),
        mtu: 1_380,
        ipv4: Some("10.66.0.1/16".parse().unwrap()),
        ipv6: Some("fd66::1/64".parse().unwrap()),
        nat_ipv4: true,
        nat_ipv6: true,
        interface,
        listen_ports: vec![443],
        service_ports: Vec::new(),
        allow: networks(&["192.168.9.0/24", "fd09::/64"]),
        prefixes: networks(&["192.168.7.0/24", "fd07::/64"]),
        forwards: forwards(),
        isolation: true,
        resolvers: ["192.168.9.1", "fd09::1"].map(|address| address.parse().unwrap()).to_vec(),
        surroundings: surroundings(),
        router_advertisements: Vec::new(),
    }
}

/// Forwards of both kinds, protocols and IP versions.
fn forwards() -> Vec<ForwardedPorts> {
    let (ipv4, ipv6) = ("10.66.0.2".parse().ok(), "fd66::2".parse().ok());
    let forward = |(protocol, to)| ForwardedPorts {
        ports: Ports { protocol, first: 8_000, last: 8_010 },
        to,
        ipv4,
        ipv6,
    };
    [InboundProtocol::Tcp, InboundProtocol::Udp]
        .into_iter()
        .flat_map(|protocol| [(protocol, 8_000), (protocol, 443)])
        .map(forward)
        .collect()
}

/// An exit's links, and devices of which some forward for others.
fn surroundings() -> Surroundings {
    let device = |name: &str| name.parse().unwrap();
    let link = |network: &str| OnLink { device: device("ens3"), network: network.parse().unwrap() };
    Surroundings {
        links: vec![link("192.0.2.0/24"), link("2001:db8::/64")],
        permanent: vec![link("192.0.2.0/24")],
        routers: vec![device("ens3")],
        forwarding: Forwarding {
            ipv4_off: vec![device("ens4")],
            ipv4_own: vec![device("ens3")],
            ipv6_others: Some(vec![device("br-1_a.b@c")]),
        },
    }
}

fn networks(networks: &[&str]) -> Vec<IpNet> {
    networks.iter().map(|network| network.parse().unwrap()).collect()
}
