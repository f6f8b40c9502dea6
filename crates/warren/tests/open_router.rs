//! An exit forwards for its clients only, unless its host is a router anyway.
#![allow(clippy::unwrap_used, reason = "test code")]

use rustix::process::Signal;

use crate::support::counters::packets_of_one;
use crate::support::{Client, Exit, ExitOptions, HostState, Namespace, Net, Running, eventually, seconds};

const PACKETS: u64 = 1_000;
/// Destinations to which neighbours send packets by the exit's host as their gateway.
const TARGETS: [&str; 2] = ["203.0.113.7", "2001:db8:3::7"];
const OWN: [&str; 2] = ["198.51.100.1", "2001:db8:2::1"];
/// Unassigned addresses from the exit's pools.
const POOL: [&str; 2] = ["10.66.9.9", "fd66:6666::9:9"];

#[test]
fn neighbours_get_nothing_through_an_exit_with_their_own_sources_or_with_those_of_clients() {
    let Some(net) = Net::new() else { return };
    let neighbour = Neighbour::new(&net);
    let before = HostState::of(&net.exit);
    let mut exit = Exit::init(&net, &ExitOptions::default());

    // The control: a host that forwards for everybody lets every packet out.
    let switch = |to: u8| format!("sysctl -qw net.ipv4.ip_forward={to} net.ipv6.conf.all.forwarding={to}");
    net.exit.sh(&switch(1)).ok();
    for sources in [OWN, POOL] {
        assert_eq!(neighbour.came_out(sources), [PACKETS; 2], "{sources:?} through a router");
    }
    net.exit.sh(&switch(0)).ok();

    exit.run();
    let client = Client::with(&net, &exit.enrol("laptop"));
    client.up();
    for sources in [OWN, POOL] {
        assert_eq!(neighbour.came_out(sources), [0; 2], "{sources:?} through the exit");
    }
    // Packets may also come from a link that clients' packets never use.
    let lan = lan(&net);
    let passes =
        |version: u8, to: &str| lan.sh(&format!("ping -{version} -c 3 -i 0.2 -W 1 {to}")).succeeded();
    assert!(passes(4, "192.168.50.1") && passes(6, "fd50::1"), "the exit itself answers");
    assert!(!passes(4, Net::INTERNET_V4) && !passes(6, Net::INTERNET_V6));
    client.sh(&format!("ping -c 1 -W 5 {} && ping -c 1 -W 5 {}", Net::INTERNET_V4, Net::INTERNET_V6));
    let dropped = net
        .exit
        .sh("nft list chain inet warren_exit forward; nft list chain inet warren_exit from_neighbours")
        .ok();
    assert!(
        dropped.matches(&format!("packets {PACKETS} ")).count() >= 2,
        "each packet is counted: {dropped}"
    );

    client.down();
    exit.stop(Signal::TERM);
    exit.warren.run("cleanup exit").ok();
    net.exit.sh("ip link delete to-lan").ok();
    before.assert_same(&HostState::of(&net.exit));
}

/// After a kill, forwarding is still on and the exit's own table is gone.
#[test]
fn neighbours_get_nothing_through_a_host_whose_exit_was_killed() {
    let Some(net) = Net::new() else { return };
    let neighbour = Neighbour::new(&net);
    let mut exit = Exit::init(&net, &ExitOptions::default());
    exit.run();

    exit.stop(Signal::KILL);

    let forwarding = "cat /proc/sys/net/ipv4/conf/eth0/forwarding /proc/sys/net/ipv6/conf/all/forwarding";
    assert_eq!(net.exit.sh(forwarding).ok(), "1\n1");
    eventually(seconds(10), "the exit's own table is gone", || {
        !net.exit.sh("nft list table inet warren_exit").succeeded()
    });
    for sources in [OWN, POOL] {
        assert_eq!(neighbour.came_out(sources), [0; 2], "{sources:?}");
    }
    // The control: only the remaining hold table keeps them out.
    net.exit.sh("nft delete table inet warren_exit_hold").ok();
    assert_eq!(neighbour.came_out(OWN), [PACKETS; 2]);
    exit.run();
    assert_eq!(neighbour.came_out(OWN), [0; 2]);
}

#[test]
fn a_host_that_becomes_a_router_is_one_and_clients_addresses_stay_theirs() {
    let Some(net) = Net::new() else { return };
    let neighbour = Neighbour::new(&net);
    let lan = lan(&net);
    let mut exit = Exit::init(&net, &ExitOptions::default());
    exit.run();
    let reaches = |version: u8, to: &str| lan.sh(&format!("ping -{version} -c 1 -W 1 {to}")).succeeded();
    assert!(!reaches(4, Net::INTERNET_V4) && !reaches(6, Net::INTERNET_V6));

    net.exit.sh("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1").ok();

    eventually(seconds(10), "the host forwards for the LAN", || {
        reaches(4, Net::INTERNET_V4) && reaches(6, Net::INTERNET_V6)
    });
    assert_eq!(neighbour.came_out(OWN), [PACKETS; 2], "a router forwards for everybody");
    assert_eq!(neighbour.came_out(POOL), [0; 2], "packets with a client's source address are still dropped");
    assert!(exit.daemon().output().contains("forwarding is turned on for the whole host"));
    exit.stop(Signal::TERM);
    assert!(
        reaches(4, Net::INTERNET_V4) && reaches(6, Net::INTERNET_V6),
        "the host forwards without the exit too"
    );
    // The same steps in the other order.
    exit.run();
    assert!(reaches(4, Net::INTERNET_V4) && reaches(6, Net::INTERNET_V6));
    assert_eq!(neighbour.came_out(POOL), [0; 2]);
}

#[test]
fn containers_of_an_exits_host_are_forwarded_whichever_was_first() {
    let Some(net) = Net::new() else { return };
    let mut exit = Exit::init(&net, &ExitOptions::default());
    let client = Client::with(&net, &exit.enrol("laptop"));

    for is_first in [true, false] {
        let early = is_first.then(|| Containers::start(&net, DOCKER));
        exit.run();
        client.up();
        let containers = early.unwrap_or_else(|| Containers::start(&net, DOCKER));
        eventually(seconds(10), "containers are forwarded", || containers.work());
        client.sh(&format!("ping -c 1 -W 5 {} && ping -c 1 -W 5 {}", Net::INTERNET_V4, Net::INTERNET_V6));
        client.down();
        exit.stop(Signal::TERM);
        exit.warren.run("cleanup exit").ok();
        assert!(containers.work(), "containers work after the exit has ended");
        drop(containers);
        net.exit.sh("sysctl -qw net.ipv4.ip_forward=0 net.ipv6.conf.all.forwarding=0").ok();
    }
}

/// Podman and other programs do not change a forwarding setting that is already on.
#[test]
fn containers_are_forwarded_also_where_nobody_turned_ipv6_on_for_them() {
    let Some(net) = Net::new() else { return };
    let mut exit = Exit::init(&net, &ExitOptions::default());
    exit.run();

    let containers = Containers::start(&net, PODMAN);

    eventually(seconds(10), "containers are forwarded", || containers.work());
    assert_eq!(net.exit.sh("cat /proc/sys/net/ipv6/conf/default/forwarding").ok(), "0");
    exit.stop(Signal::KILL);
    assert!(containers.work(), "containers work after the exit was killed");
}

#[test]
fn another_way_to_the_internet_is_followed_and_neighbours_there_get_nothing_either() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    client.up();

    let link = format!("ip link add to-exit2 type veth peer name eth2 netns {}", net.exit.name());
    let addresses = |host: u8, device: &str| {
        format!(
            "ip address add 198.51.101.{host}/24 dev {device}; ip address add 2001:db8:22::{host}/64 dev {device}; ip link set {device} up"
        )
    };
    net.router.sh(&format!("{link}; {}", addresses(1, "to-exit2"))).ok();
    net.exit.sh(&addresses(2, "eth2")).ok();
    net.exit
        .sh("ip route replace default via 198.51.101.1; ip -6 route replace default via 2001:db8:22::1")
        .ok();

    let pings = |address: &str| net.client.sh(&format!("ping -c 1 -W 1 {address}")).succeeded();
    eventually(seconds(10), "clients leave by the other route", || {
        pings(Net::INTERNET_V4) && pings(Net::INTERNET_V6)
    });
    assert_eq!(net.exit.sh("cat /proc/sys/net/ipv4/conf/eth2/forwarding").ok(), "1");
    let chain = "type filter hook postrouting priority 0; oifname eth2 udp dport 5305 counter;";
    net.exit.sh(&format!("nft 'table inet out {{ chain out {{ {chain} }}; }}'")).ok();
    for (target, exit) in TARGETS.into_iter().zip(["198.51.101.2", "2001:db8:22::2"]) {
        net.router.sh(&format!("ip route add {target} via {exit}")).ok();
        let source = exit.replace("101.2", "101.1").replace("::2", "::1");
        net.router.sh(&format!("python3 -c '{SEND}' {source} {target} {PACKETS}")).ok();
        net.router.sh(&format!("ping -c 1 -W 10 {exit}")).ok();
    }
    assert_eq!(packets_of_one(&net.exit.sh("nft list chain inet out out").ok()), 0);
    client.down();
}

/// A host on its own LAN behind the exit's host.
fn lan(net: &Net) -> Namespace {
    let addresses = [["192.168.50.1/24", "fd50::1/64"], ["192.168.50.2", "fd50::2"]];
    let lan = Net::host_behind(&net.exit, addresses[0], addresses[1]);
    net.router
        .sh("ip route add 192.168.50.0/24 via 198.51.100.2; ip -6 route add fd50::/64 via 2001:db8:2::2")
        .ok();
    lan
}

/// The router as a host on the exit's link.
struct Neighbour<'net>(&'net Net);

impl<'net> Neighbour<'net> {
    fn new(net: &'net Net) -> Self {
        let routes = [
            format!("ip route add {} via {}", TARGETS[0], Net::EXIT_V4),
            format!("ip -6 route add {} via {}", TARGETS[1], Net::EXIT_V6),
            // The router needs the pool's addresses as source addresses, and no reverse path filtering on that link.
            "sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.to-exit.rp_filter=0".to_owned(),
            format!("ip address add {}/32 dev lo; ip address add {}/128 dev lo", POOL[0], POOL[1]),
        ];
        net.router.sh(&routes.join("; ")).ok();
        Self(net)
    }

    /// Sends packets to both targets. Returns how many of them the exit forwarded.
    fn came_out(&self, sources: [&str; 2]) -> [u64; 2] {
        let router = &self.0.router;
        let chain = |version: &str, target: &str| {
            let header = "type filter hook ingress device \"to-exit\" priority 0;";
            format!(
                "chain to_{version} {{ {header} {version} daddr {target} udp dport 5305 counter drop; }};"
            )
        };
        router.sh("nft 'add table netdev out; delete table netdev out'").ok();
        let chains = chain("ip", TARGETS[0]) + &chain("ip6", TARGETS[1]);
        router.sh(&format!("nft 'table netdev out {{ {chains} }}'")).ok();
        for (source, target) in sources.into_iter().zip(TARGETS) {
            router.sh(&format!("python3 -c '{SEND}' {source} {target} {PACKETS}")).ok();
        }
        // The ping is sent after the last packet on the same link, so all packets have arrived once it is answered.
        router.sh(&format!("ping -c 1 -W 10 {} && ping -c 1 -W 10 {}", Net::EXIT_V4, Net::EXIT_V6)).ok();
        ["ip", "ip6"].map(|version| {
            packets_of_one(&router.sh(&format!("nft list chain netdev out to_{version}")).ok())
        })
    }
}

const SEND: &str = r#"
import socket, sys, time
source, target, count = sys.argv[1:]
family = socket.AF_INET6 if ":" in source else socket.AF_INET
sender = socket.socket(family, socket.SOCK_DGRAM)
sender.bind((source, 0))
for number in range(int(count)):
    sender.sendto(b"hello", (target, 5305))
    if number % 50 == 49:
        time.sleep(0.005)
"#;

/// A container behind a bridge on the exit's host, as container programs set it up.
struct Containers<'net> {
    net: &'net Net,
    container: Namespace,
    _server: Running,
}

/// Turns on each forwarding setting that is off. For IPv6 this includes the default for new devices.
const DOCKER: &str = "for key in ipv4/ip_forward ipv6/conf/default/forwarding ipv6/conf/all/forwarding; do \
     test $(cat /proc/sys/net/$key) = 1 || echo 1 > /proc/sys/net/$key; done";
const PODMAN: &str = "for key in ipv4/ip_forward ipv6/conf/all/forwarding; do \
     test $(cat /proc/sys/net/$key) = 1 || echo 1 > /proc/sys/net/$key; done";

impl<'net> Containers<'net> {
    fn start(net: &'net Net, turn_on: &str) -> Self {
        let container = Namespace::new("container");
        let exit = &net.exit;
        exit.sh(turn_on).ok();
        exit.sh("ip link add br-test type bridge; ip address add 172.31.0.1/24 dev br-test; ip address add fd31::1/64 dev br-test nodad; ip link set br-test up").ok();
        exit.sh(&format!(
            "ip link add port type veth peer name eth0 netns {}; ip link set port master br-test up",
            container.name()
        ))
        .ok();
        container.sh("ip address add 172.31.0.2/24 dev eth0; ip address add fd31::2/64 dev eth0 nodad; ip link set eth0 up").ok();
        container.sh("ip route add default via 172.31.0.1; ip -6 route add default via fd31::1").ok();
        let published = "type nat hook prerouting priority dstnat; iifname eth0 tcp dport 8080 dnat ip to 172.31.0.2:80; iifname eth0 tcp dport 8086 dnat ip6 to [fd31::2]:80;";
        let translated = "type nat hook postrouting priority srcnat; ip saddr 172.31.0.0/24 oifname != br-test masquerade; ip6 saddr fd31::/64 oifname != br-test masquerade;";
        exit.sh(&format!("nft 'table inet containers {{ chain published {{ {published} }}; chain translated {{ {translated} }}; }}'")).ok();
        let server = container.start(&["python3", "-u", "-m", "http.server", "--bind", "::", "80"]);
        Self { net, container, _server: server }
    }

    /// Whether the container reaches the internet and is reachable at its published ports.
    fn work(&self) -> bool {
        let out = format!("ping -c 1 -W 1 {} && ping -c 1 -W 1 {}", Net::INTERNET_V4, Net::INTERNET_V6);
        let to = |url: &str| format!("curl -sS --max-time 2 --output /dev/null {url}");
        let ports = [format!("http://{}:8080/", Net::EXIT_V4), format!("http://[{}]:8086/", Net::EXIT_V6)];
        self.container.sh(&out).succeeded()
            && ports.iter().all(|url| self.net.router.sh(&to(url)).succeeded())
    }
}

impl Drop for Containers<'_> {
    fn drop(&mut self) {
        self.net.exit.sh("nft delete table inet containers; ip link delete br-test; ip link delete port");
    }
}
