//! On the exit's side, an enrolled client reaches only the internet and what the operator allows.
#![allow(clippy::indexing_slicing, clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use rustix::process::Signal;
use warren_quic::key::PrivateKey;

use crate::support::counters::packets_counted;
use crate::support::library_client::{LibraryClient, runtime, udp};
use crate::support::visits::{Held, Service, Visit};
use crate::support::{Client, Exit, ExitOptions, HostState, Net, eventually, seconds};

/// The exit's loopback, its public address and listen port, its inner address, the cloud's metadata service, and a LAN next to it.
const TARGETS: [(&str, u16); 6] = [
    ("127.0.0.1", 9_466),
    (Net::EXIT_V4, 443),
    (Net::EXIT_V4, 22),
    ("10.66.0.1", 53),
    ("169.254.169.254", 80),
    ("192.168.77.1", 53),
];
const PACKETS: u64 = 100;

/// Scorecard A5.
#[test]
fn a_client_reaches_nothing_of_the_exit_s_own_but_the_one_network_that_is_allowed() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let key = PrivateKey::generate().unwrap();
    exit.enrol_key("mallory", &key.public().to_string());
    let exit_key = exit.status().text("/public_key").parse().unwrap();
    net.exit.sh("ip address add 192.168.77.2/24 dev eth0; ip route add 169.254.169.254/32 dev eth0").ok();
    net.router.sh("ip address add 192.168.77.1/24 dev to-exit").ok();
    // These rules run after the exit's own rules.
    let accepted = |hook: &str, to: &str| {
        let rule = format!("iifname \"warren-exit\" {to} counter;");
        format!(
            "chain {hook} {{ type filter hook {} priority 10; {rule} }};",
            hook.split('_').next().unwrap()
        )
    };
    let table = [
        accepted("input", ""),
        accepted("forward_metadata", "ip daddr 169.254.0.0/16"),
        accepted("forward_lan", "ip daddr 192.168.77.0/24"),
    ];
    net.exit.sh(&format!("nft 'table inet accepted {{ {} }}'", table.concat())).ok();
    let accepted =
        || ["input", "forward_metadata", "forward_lan"].map(|chain| packets(&net, "accepted", chain));
    let refused = || packets(&net, "warren_exit", "input") + packets(&net, "warren_exit", "from_clients");

    let (to_test, sent) = std::sync::mpsc::channel();
    let (go_on, may_go_on) = std::sync::mpsc::channel();
    let client = net.client.enter(move || {
        runtime().block_on(async move {
            let mut client = LibraryClient::start(key, exit_key, 1);
            client.until("the client is up", |client| client.attached() == 1).await;
            let own = client.welcome().unwrap().ipv4.unwrap().0;
            loop {
                for (address, port) in TARGETS {
                    let target: Ipv4Addr = address.parse().unwrap();
                    for _ in 0..PACKETS {
                        client.send_whole(&udp(own, (target, port), 30_000, b"hello")).await;
                    }
                }
                to_test.send(()).unwrap();
                // The client must keep running until its queued packets have left.
                let mut answer = None;
                client
                    .until("the test goes on", |_| {
                        answer = may_go_on.try_recv().ok();
                        answer.is_some()
                    })
                    .await;
                if answer == Some(false) {
                    return;
                }
            }
        });
    });

    sent.recv().unwrap();
    // The kernel drops packets to its loopback addresses before any rule sees them.
    eventually(seconds(20), "every other packet is refused and counted", || refused() >= 5 * PACKETS);
    assert_eq!(accepted(), [0; 3]);

    exit.configure(|config| config.with("access", "allow", vec!["192.168.77.0/24"]));
    exit.warren.run("reload exit").ok();
    go_on.send(true).unwrap();
    sent.recv().unwrap();
    eventually(seconds(20), "the allowed network is reached", || accepted()[2] >= PACKETS);
    // The table was replaced, so its counters start at zero again.
    eventually(seconds(20), "packets to all other targets are refused", || refused() >= 4 * PACKETS);
    assert_eq!(accepted()[..2], [0; 2]);
    go_on.send(false).unwrap();
    client.join().unwrap();
}

/// Hosts on the exit's link are behind its router's firewall, whatever addresses they have.
#[test]
fn a_client_reaches_no_neighbour_of_the_exits_by_any_address_unless_it_is_allowed() {
    let Some(net) = Net::new() else { return };
    let beside = |number: u8| {
        let (ipv4, ipv6) = (format!("198.41.{number}."), format!("2a01:4f8:{number}::"));
        let line = |host: u8, device: &str| {
            format!(
                "ip address add {ipv4}{host}/24 dev {device}; ip address add {ipv6}{host}/64 dev {device} nodad"
            )
        };
        (line(1, "to-exit"), line(2, "eth0"), [format!("{ipv4}1"), format!("{ipv6}1")])
    };
    let (neighbour, own, addresses) = beside(1);
    net.router.sh(&neighbour).ok();
    net.exit.sh(&own).ok();
    let exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop").with("transport", "connections", 4));
    client.up();
    eventually(seconds(10), "every connection is attached", || {
        client.status().list("/connections").len() == 4
    });
    let answers = |addresses: &[String; 2]| {
        [0, 1].map(|which| net.client.sh(&format!("ping -c 2 -i 0.2 -W 1 {}", addresses[which])).succeeded())
    };

    assert_eq!(answers(&addresses), [false; 2]);
    // The control: a network counts as part of the internet until the exit has an address in it.
    let (neighbour, own, later) = beside(2);
    net.router.sh(&neighbour).ok();
    assert_eq!(answers(&later), [true; 2]);
    net.exit.sh(&own).ok();
    let took = eventually(seconds(8), "the new network is refused", || answers(&later) == [false; 2]);
    println!("measured: refused {} ms after its address came", took.as_millis());
    assert_eq!(answers(&[Net::INTERNET_V4.into(), Net::INTERNET_V6.into()]), [true; 2]);
    assert_eq!(client.status().number("/totals/connections_ended"), 0);

    exit.configure(|config| config.with("access", "allow", vec!["198.41.1.0/24", "2a01:4f8:1::/64"]));
    exit.warren.run("reload exit").ok();
    assert_eq!((answers(&addresses), answers(&later)), ([true; 2], [false; 2]));
    // After the exit loses its address in the network, the network counts as part of the internet again.
    net.exit.sh("ip address del 198.41.2.2/24 dev eth0; ip address del 2a01:4f8:2::2/64 dev eth0").ok();
    eventually(seconds(8), "the network is reached", || answers(&later) == [true; 2]);
    client.down();
}

/// The rules accept packets of flows that conntrack knows, so such flows must end too.
#[test]
fn flows_to_a_network_end_when_it_is_no_longer_allowed_and_others_go_on() {
    let Some(net) = Net::new() else { return };
    net.router
        .sh("ip address add 192.168.77.1/24 dev to-exit; ip address add fd77::1/64 dev to-exit nodad")
        .ok();
    net.exit.sh("ip address add 192.168.77.2/24 dev eth0; ip address add fd77::2/64 dev eth0 nodad").ok();
    let mut exit = Exit::init(&net, &ExitOptions::default());
    let internet = ["198.18.0.0/15", "203.0.113.0/24", "2001:db8:3::/48"];
    let allow = |exit: &Exit<'_>, more: &[&str]| {
        let networks: Vec<&str> = internet.iter().chain(more).copied().collect();
        exit.configure(|config| config.with("access", "allow", networks));
    };
    let lan = ["192.168.77.0/24", "fd77::/64"];
    allow(&exit, &lan);
    let client = Client::with(&net, &exit.enrol("laptop"));
    exit.run();
    client.up();
    let _in_lan = Service::start(&net.router, 8_080, 5_001);
    let _on_internet = Service::start(&net.internet.host, 8_080, 5_001);
    let hold = |addresses: [&str; 2]| -> Vec<Held> {
        let ends = addresses.map(|address| address.parse::<IpAddr>().unwrap());
        let tcp = ends.map(|end| Visit::hold(&net.client, SocketAddr::new(end, 8_080)));
        let udp = ends.map(|end| Visit::hold_udp(&net.client, SocketAddr::new(end, 5_001)));
        tcp.into_iter().chain(udp).collect()
    };
    let answered = |flows: &[Held]| flows.iter().filter(|flow| flow.is_answered()).count();
    let to_internet = hold([Net::INTERNET_V4, Net::INTERNET_V6]);
    let to_lan = hold(["192.168.77.1", "fd77::1"]);
    assert_eq!((answered(&to_lan), answered(&to_internet)), (4, 4));

    allow(&exit, &[]);
    exit.warren.run("reload exit").ok();
    let took = eventually(seconds(10), "no flow to the network is left", || answered(&to_lan) == 0);
    println!("measured: the last flow to the network ended {} ms after the reload", took.as_millis());
    // The control: flows to networks that are still allowed.
    assert_eq!(answered(&to_internet), 4);

    // The same on a stopped exit, whose flows conntrack keeps.
    allow(&exit, &lan);
    exit.warren.run("reload exit").ok();
    let to_lan = hold(["192.168.77.1", "fd77::1"]);
    assert_eq!(answered(&to_lan), 4);
    exit.stop(Signal::KILL);
    allow(&exit, &[]);
    exit.run();
    eventually(seconds(30), "the client is back", || answered(&to_internet) == 4);
    assert_eq!(answered(&to_lan), 0);
    client.down();
}

#[test]
fn flows_end_that_leave_by_another_interface_than_the_one_that_is_set_now() {
    let Some(net) = Net::new() else { return };
    // An address on the internet that the exit does not allow on its own.
    net.internet.host.sh("ip address add 198.41.9.1/32 dev lo").ok();
    net.router.sh("ip route add 198.41.9.0/24 via 203.0.113.2").ok();
    let exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    client.up();
    let _on_internet = Service::start(&net.internet.host, 8_080, 5_001);
    let hold = |address: &str| Visit::hold(&net.client, SocketAddr::new(address.parse().unwrap(), 8_080));
    let (elsewhere, allowed) = (hold("198.41.9.1"), hold(Net::INTERNET_V4));
    assert!(elsewhere.is_answered() && allowed.is_answered());
    net.exit.sh("ip link add other type veth peer name far; ip link set other up").ok();

    exit.configure(|config| config.with("nat", "interface", "other"));
    exit.warren.run("reload exit").ok();

    // The service sends without being asked, until it notices that the client acknowledges nothing.
    eventually(seconds(10), "the flow is dead", || !elsewhere.is_answered());
    // The control: clients reach allowed networks by any interface.
    assert!(allowed.is_answered());
    client.down();
}

/// The sum of a chain's counters.
fn packets(net: &Net, table: &str, chain: &str) -> u64 {
    let listed = net.exit.sh(&format!("nft list chain inet {table} {chain}")).ok();
    packets_counted(&listed).iter().sum()
}

/// With a prefix that is routed to the exit, no NAT66 is needed: the internet sees the clients' own IPv6 addresses. IPv4 is still
/// translated.
#[test]
fn clients_of_a_routed_prefix_have_their_own_addresses_on_the_internet() {
    let Some(net) = Net::new() else { return };
    let prefix = "2001:db8:66::/64";
    net.router.sh(&format!("ip -6 route add {prefix} via {}", Net::EXIT_V6)).ok();
    let seen = "type filter hook input priority 0; ip6 saddr 2001:db8:66::/64 counter;";
    let translated = format!("type filter hook input priority 0; ip6 saddr {} counter;", Net::EXIT_V6);
    net.internet
        .host
        .sh(&format!("nft 'table inet seen {{ chain own {{ {seen} }}; chain exits {{ {translated} }}; }}'"))
        .ok();
    let counted = || {
        ["own", "exits"].map(|chain| {
            let listed = net.internet.host.sh(&format!("nft list chain inet seen {chain}")).ok();
            packets_counted(&listed).iter().sum::<u64>()
        })
    };
    let mut exit = Exit::init(&net, &ExitOptions { ipv6: prefix.into(), ..ExitOptions::default() });
    exit.run();
    let client = Client::with(&net, &exit.enrol("laptop"));
    client.up();
    let ping = |address: &str| client.warren.host.sh(&format!("ping -c 5 -i 0.1 -W 5 {address}")).ok();

    ping(Net::INTERNET_V6);
    ping(Net::INTERNET_V4);
    let [own, exits] = counted();
    assert!(own >= 5 && exits == 0, "{own} {exits}");

    // The control: with NAT66, the addresses are translated. It also shows that a running exit applies this setting.
    let file = exit.warren.config("exit.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.contains("[nat]"), "{text}");
    std::fs::write(&file, text.replace("[nat]", "[nat]\nipv6 = true")).unwrap();
    exit.warren.run("reload exit").ok();
    eventually(seconds(10), "the internet sees the exit's address", || {
        ping(Net::INTERNET_V6);
        counted()[1] >= 5
    });
    client.down();
}

/// The problem "connected but no internet": another program changes settings that the exit needs while it runs.
#[test]
fn forwarding_and_the_exits_addresses_are_its_own_while_it_runs() {
    let Some(net) = Net::new() else { return };
    let before = HostState::of(&net.exit);
    let mut exit = Exit::init(&net, &ExitOptions::default());
    exit.run();
    let client = Client::with(&net, &exit.enrol("laptop"));
    client.up();
    let reaches = || {
        [Net::INTERNET_V4, Net::INTERNET_V6, "10.66.0.1"]
            .iter()
            .all(|address| client.warren.host.sh(&format!("ping -c 1 -W 1 {address}")).succeeded())
    };
    assert!(reaches());

    for line in [
        "sysctl -qw net.ipv4.ip_forward=0 net.ipv6.conf.all.forwarding=0",
        "ip address flush dev warren-exit",
        "ip link set warren-exit mtu 1300",
    ] {
        net.exit.sh(line).ok();
        eventually(seconds(30), line, || {
            let mtu = net.exit.sh("cat /sys/class/net/warren-exit/mtu").ok();
            reaches() && mtu == "1380"
        });
    }
    client.down();
    exit.stop(Signal::TERM);
    exit.warren.run("cleanup exit").ok();
    before.assert_same(&HostState::of(&net.exit));
}
