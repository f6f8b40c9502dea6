//! Tests which packets programs with few privileges can send through the exceptions of a closed kill switch, which are DHCP and
//! the marks.
#![allow(clippy::unwrap_used, reason = "test code")]

use std::time::Duration;

use crate::support::counters::packets_of_one;
use crate::support::{Client, Exit, ExitOptions, Namespace, Net, eventually, seconds};

/// Sends one datagram with a mark: MARK SOURCE_PORT ADDRESS PORT.
const SEND: &str = "import socket, sys\n\
                    mark, source, address, port = int(sys.argv[1], 0), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])\n\
                    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n\
                    sender.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)\n\
                    if mark: sender.setsockopt(socket.SOL_SOCKET, 36, mark)\n\
                    sender.bind(('', source))\n\
                    if address == '255.255.255.255': sender.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b'eth0')\n\
                    try: sender.sendto(b'x', (address, port))\n\
                    except PermissionError: pass";
const SO_MARK_OF_CARRIER: &str = "0x5761";
const SO_MARK_OF_WHAT_IS_LET_OUT: &str = "0x15761";

/// Counts datagrams at the router from given source ports of the client.
struct Arrivals<'net>(&'net Net);

impl<'net> Arrivals<'net> {
    fn count_on(net: &'net Net) -> Self {
        let table = "table netdev edges { counter arrived { }; chain received { \
                     type filter hook ingress device to-client priority -400; \
                     udp sport { 68, 546, 20000-20999 } counter name arrived; }; }";
        net.router.sh(&format!("nft '{table}'")).ok();
        Self(net)
    }

    fn count(&self) -> u64 {
        packets_of_one(&self.0.router.sh("nft list counter netdev edges arrived").ok())
    }

    /// Whether a datagram arrives at the router. The sending program has only CAP_NET_RAW and CAP_NET_BIND_SERVICE.
    fn arrives(&self, mark: &str, source: &str, address: &str, port: &str) -> bool {
        let before = self.count();
        let rights = "--bounding-set=-all,+net_raw,+net_bind_service";
        let sent = crate::support::finished(
            &mut self
                .0
                .client
                .command(&["setpriv", rights, "python3", "-c", SEND, mark, source, address, port]),
        );
        assert!(sent.succeeded(), "{sent:?}");
        // A short wait is enough, because the delay between namespaces is some microseconds.
        (0..20).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            self.count() > before
        })
    }
}

#[test]
fn dhcp_reaches_everybody_on_the_link_and_nobody_beyond_it() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::init(&net, &ExitOptions::default());
    let client = Client::with(&net, &exit.enrol("laptop").with("kill_switch", "enabled", true));
    let arrivals = Arrivals::count_on(&net);
    net.client.sh("ping -c 1 -W 5 192.0.2.1").ok();
    let asks = |address: &str| arrivals.arrives("0", "68", address, "67");
    assert!(asks(Net::INTERNET_V4), "an open host sends DHCP to any address");

    client.warren.run("client close home").ok();

    assert!(asks("255.255.255.255"), "a lease can be requested");
    assert!(asks("192.0.2.1"), "a lease can be renewed at a server on this link");
    for beyond in [Net::INTERNET_V4, Net::EXIT_V4] {
        assert!(!asks(beyond), "{beyond}");
    }
    assert!(!arrivals.arrives("0", "20000", "192.0.2.1", "67"), "DHCP from another port");

    // After the host has changed its network, the guard updates the table without a daemon.
    let mut guard = client.warren.start("--log info client close home --watch");
    guard.wait_for_output("the kill switch");
    net.router.sh("ip address add 10.9.9.1/24 dev to-client").ok();
    net.client.sh("ip address add 10.9.9.2/24 dev eth0 && ping -c 1 -W 1 10.9.9.1");
    eventually(seconds(5), "the new network's server is reachable", || asks("10.9.9.1"));
    net.client.sh("ip address delete 10.9.9.2/24 dev eth0 && ip route add 10.9.9.0/24 via 192.0.2.1").ok();
    eventually(seconds(5), "the former network's server is no longer reachable", || !asks("10.9.9.1"));
    net.client.sh("ip route delete 10.9.9.0/24").ok();
    drop(guard);
    client.down();
}

#[test]
fn a_program_that_sets_marks_itself_gets_nothing_out() {
    let Some(net) = Net::new() else { return };
    let mut exit =
        Exit::init(&net, &ExitOptions { endpoint: "exit.test:443".into(), ..ExitOptions::default() });
    let client = Client::with(&net, &exit.enrol("laptop").with("kill_switch", "enabled", true));
    let arrivals = Arrivals::count_on(&net);
    net.client.sh("ping -c 1 -W 5 192.0.2.1").ok();
    let resolver = || arrivals.arrives(SO_MARK_OF_CARRIER, "20001", Net::INTERNET_V4, "53");
    let anywhere = |mark| arrivals.arrives(mark, "20002", Net::INTERNET_V4, "4444");
    assert!(
        resolver() && anywhere(SO_MARK_OF_CARRIER) && anywhere(SO_MARK_OF_WHAT_IS_LET_OUT),
        "before the kill switch is closed"
    );

    // The daemon's own queries resolve the exit's name. The client connects once the exit runs.
    let daemon = client.warren.start("--log info client run home");
    eventually(seconds(15), "the daemon has looked the name up", || {
        net.client.sh("nft list table inet warren-kill-switch_home").stdout.contains("198.51.100.2 . 443")
    });
    let rules = client.sh("nft list table inet warren-kill-switch_home");
    assert!(rules.contains("203.0.113.2 . 53"), "the daemon's resolver is let out: {rules}");
    let shut_in = |when: &str| {
        assert!(!resolver(), "the host's resolver is reachable, {when}");
        for mark in [SO_MARK_OF_CARRIER, SO_MARK_OF_WHAT_IS_LET_OUT, "0x25761", "1"] {
            assert!(!anywhere(mark), "{mark}, {when}");
        }
    };
    shut_in("connecting");
    exit.run();
    eventually(seconds(30), "the tunnel is up", || {
        client.warren.status().is_some_and(|status| status.text("/state") == "up")
    });
    shut_in("up");
    drop(daemon);
    shut_in("the daemon was killed");
    client.down();
}

/// What docs/kill-switch.md says about guests that are separate hosts on the LAN, and its rule against bridged guests.
#[test]
fn guests_on_the_lan_s_bridge_leave_as_documented_until_bridging_is_shut() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::init(&net, &ExitOptions::default());
    let client = Client::with(&net, &exit.enrol("laptop").with("kill_switch", "enabled", true));
    let guests = [Namespace::new("bridged"), Namespace::new("macvlan")];
    let host = &net.client;
    host.sh("ip link add lan0 type bridge && ip link set lan0 up && ip link set eth0 master lan0 && \
             ip address flush dev eth0 scope global && ip address add 192.0.2.2/24 dev lan0")
        .ok();
    let [bridged, macvlan] = &guests;
    host.sh(&format!(
        "ip link add tap0 type veth peer name eth0 netns {} && ip link set tap0 master lan0 up && \
         ip link add mv0 link lan0 type macvlan mode bridge && ip link set mv0 netns {} name eth0",
        bridged.name(),
        macvlan.name()
    ))
    .ok();
    for (guest, address) in guests.iter().zip(["192.0.2.30", "192.0.2.31"]) {
        guest.sh(&format!("ip address add {address}/24 dev eth0 && ip link set eth0 up")).ok();
    }
    let passes = |from: &Namespace| from.sh("ping -c 2 -i 0.2 -W 1 192.0.2.1").succeeded();
    let bridged_to_firewall = |value: &str| {
        host.sh(&format!(
            "test ! -e /proc/sys/net/bridge || sysctl -qw net.bridge.bridge-nf-call-iptables={value}"
        ))
        .ok();
    };
    bridged_to_firewall("0");
    eventually(seconds(10), "all leave while it is open", || {
        passes(host) && passes(bridged) && passes(macvlan)
    });

    client.warren.run("client close home").ok();
    assert!(!passes(host) && passes(bridged) && passes(macvlan), "closed");
    if host.sh("test -e /proc/sys/net/bridge").succeeded() {
        bridged_to_firewall("1");
        assert!(!passes(bridged) && passes(macvlan), "the firewall sees bridged packets");
        bridged_to_firewall("0");
    }
    let documented = include_str!("../../../docs/kill-switch.md");
    let (_, line) = documented.split_once("This command drops every bridged packet").unwrap();
    let (_, line) = line.split_once(":\n`").unwrap();
    host.sh(&line.split_once('`').unwrap().0.replace('\n', " ")).ok();
    assert!(!passes(bridged) && passes(macvlan), "bridging is blocked");
}
