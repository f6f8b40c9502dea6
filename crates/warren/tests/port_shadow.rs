//! A client whose source port is one of the exit's own ports does not get packets that others send to this port (port shadowing,
//! CVE-2021-3773).
//!
//! ICMP echo identifiers need no test, because they cannot be shadowed by any NAT. The kernel starts an ICMP flow only with a
//! request, and accepts only answers in the other direction (`valid_new`, `invmap` in `nf_conntrack_proto_icmp.c`).
#![allow(clippy::unwrap_used, reason = "test code")]

use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketType, ipproto};
use rustix::process::Signal;

use crate::support::counters::packets_of_one;
use crate::support::{Client, Exit, ExitOptions, Namespace, Net, eventually, seconds};

/// The number that row A6 of the scorecard (docs/torture.md) requires.
const PACKETS: u64 = 1_000;

#[test]
fn what_others_send_to_the_exit_reaches_it_whatever_port_a_client_sends_from() {
    let Some(net) = Net::new() else { return };
    let mut exit = Exit::init(&net, &ExitOptions::default());
    let attacker = net.second_client();
    let mallory = Client::on(&attacker, &exit.enrol("mallory"));
    count_at_the_exit(&net);
    // No answer comes from the victim's TCP port, so the attacker's connection stays half-open.
    let quiet = "type filter hook input priority 0; tcp dport 40000-49999 counter drop;";
    net.client.sh(&format!("nft 'table inet quiet {{ chain input {{ {quiet} }}; }}'")).ok();

    // The control: plain masquerading keeps the attacker's port, and the attack diverts every packet.
    exit.configure(|config| config.with("nat", "enabled", false));
    let plain =
        "type nat hook postrouting priority srcnat; ip saddr 10.66.0.0/16 oifname \"eth0\" masquerade;";
    net.exit.sh(&format!("nft 'table ip plain {{ chain post {{ {plain} }}; }}'")).ok();
    exit.run();
    mallory.up();
    let [listener, intercepted] = shadow_udp(&net, &attacker, 40_000, 443);
    assert!(listener == 0 && intercepted >= PACKETS, "the attack works: {listener}, {intercepted}");
    let [listener, intercepted] = shadow_tcp(&net, &attacker, 41_000);
    assert!(listener == 0 && intercepted > 0, "the attack works: {listener}, {intercepted}");
    mallory.down();
    exit.stop(Signal::TERM);
    net.exit.sh("nft delete table ip plain").ok();

    exit.configure(|config| config.with("nat", "enabled", true));
    exit.run();
    mallory.up();
    let [listener, intercepted] = shadow_udp(&net, &attacker, 42_000, 443);
    assert!(
        listener >= PACKETS && intercepted == 0,
        "{listener} reached the listener, {intercepted} the attacker"
    );
    let [listener, intercepted] = shadow_tcp(&net, &attacker, 43_000);
    assert!(listener > 0 && intercepted == 0, "{listener} reached the listener, {intercepted} the attacker");
    mallory.down();
}

#[test]
fn other_services_of_the_exits_host_get_what_is_sent_to_them_too() {
    let Some(net) = Net::new() else { return };
    let serve =
        |port: u16| net.exit.enter(move || UdpSocket::bind(("0.0.0.0", port)).unwrap()).join().unwrap();
    let _early = serve(51_820);
    let mut exit = Exit::init(&net, &ExitOptions::default());
    let attacker = net.second_client();
    let mallory = Client::on(&attacker, &exit.enrol("mallory"));
    count_at_the_exit(&net);
    exit.run();
    mallory.up();

    let [service, intercepted] = shadow_udp(&net, &attacker, 44_000, 51_820);
    assert!(service >= PACKETS && intercepted == 0, "{service} reached it, {intercepted} the attacker");
    // The control: a port without a service.
    let [service, intercepted] = shadow_udp(&net, &attacker, 45_000, 36_000);
    assert!(service == 0 && intercepted >= PACKETS, "the attack works: {service}, {intercepted}");

    let _late = serve(36_000);
    eventually(seconds(40), "the port range leaves out the new service", || {
        net.exit.sh("nft list chain inet warren_exit postrouting").ok().contains("to :20000-35999")
    });
    let [service, intercepted] = shadow_udp(&net, &attacker, 46_000, 36_000);
    assert!(service >= PACKETS && intercepted == 0, "{service} reached it, {intercepted} the attacker");
    mallory.down();
}

/// In this test, the container's address is one of the exit's own, so that packets to it are not forwarded.
#[test]
fn what_the_exits_host_publishes_by_its_own_rules_is_kept_too() {
    let Some(net) = Net::new() else { return };
    net.exit.sh("ip addr add 10.88.0.2/32 dev lo").ok();
    let publish = |table: &str, rule: &str| {
        let chain = "type nat hook prerouting priority dstnat;";
        net.exit.sh(&format!("nft 'table ip {table} {{ chain pre {{ {chain} {rule}; }}; }}'")).ok();
    };
    publish("early", "udp dport { 51000, 51820-51830 } dnat to 10.88.0.2:53");
    let mut exit = Exit::init(&net, &ExitOptions::default());
    let attacker = net.second_client();
    let mallory = Client::on(&attacker, &exit.enrol("mallory"));
    count_at_the_exit(&net);
    exit.run();
    mallory.up();

    let [service, intercepted] = shadow_udp(&net, &attacker, 44_000, 51_825);
    assert!(service >= PACKETS && intercepted == 0, "{service} reached it, {intercepted} the attacker");
    // The control: a port that nothing publishes yet.
    let [service, intercepted] = shadow_udp(&net, &attacker, 45_000, 36_000);
    assert!(service == 0 && intercepted >= PACKETS, "the attack works: {service}, {intercepted}");

    publish("late", "udp dport 36000 redirect to :53");
    eventually(seconds(40), "the published port is kept", || {
        net.exit.sh("nft list chain inet warren_exit postrouting").ok().contains("to :20000-35999")
    });
    let [service, intercepted] = shadow_udp(&net, &attacker, 46_000, 36_000);
    assert!(service >= PACKETS && intercepted == 0, "{service} reached it, {intercepted} the attacker");
    mallory.down();
}

/// Checksum verification in connection tracking must be turned off for this test. With it, the kernel treats every UDP-Lite
/// packet from another host as broken (seen with Linux 6.18).
#[test]
fn udp_lite_leaves_from_the_same_ports() {
    let Some(net) = Net::new() else { return };
    net.exit.sh("sysctl -qw net.netfilter.nf_conntrack_checksum=0").ok();
    let mut exit = Exit::init(&net, &ExitOptions::default());
    let attacker = net.second_client();
    let mallory = Client::on(&attacker, &exit.enrol("mallory"));
    exit.run();
    mallory.up();
    let victim = net.client.enter(|| udp_lite(40_000)).join().unwrap();
    let service = attacker.enter(|| udp_lite(443)).join().unwrap();
    victim.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let mut from = 0;
    eventually(seconds(20), "a packet has arrived", || {
        service.send_to(b"shadow", (Net::CLIENT_V4, 40_000)).unwrap();
        victim.recv_from(&mut [0; 16]).is_ok_and(|(_, sender)| {
            from = sender.port();
            true
        })
    });
    assert!((20_000..=60_999).contains(&from), "{from}");
    mallory.down();
}

fn udp_lite(port: u16) -> UdpSocket {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, Some(ipproto::UDPLITE)).unwrap();
    rustix::net::bind(&socket, &SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port)).unwrap();
    socket.into()
}

/// The attacker sends a packet from the number of the exit's port to the victim's port. Then the victim sends packets from this
/// port to the exit's port. Returns how many of the victim's packets reached the exit's listener, and how many were forwarded to
/// the attacker.
fn shadow_udp(net: &Net, attacker: &Namespace, port: u16, service: u16) -> [u64; 2] {
    let victim = net.client.enter(move || UdpSocket::bind((Net::CLIENT_V4, port)).unwrap()).join().unwrap();
    let mallory = attacker.enter(move || UdpSocket::bind(("0.0.0.0", service)).unwrap()).join().unwrap();
    victim.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    eventually(seconds(20), "the attacker's packet has created its flow", || {
        mallory.send_to(b"shadow", (Net::CLIENT_V4, port)).unwrap();
        victim.recv(&mut [0; 16]).is_ok()
    });
    let before = counted(net);
    let mut seen = [0; 2];
    eventually(seconds(30), "the victim's packets have arrived", || {
        for _ in 0..100 {
            victim.send_to(b"carrier", (Net::EXIT_V4, service)).unwrap();
        }
        let now = counted(net);
        seen = [now[0] - before[0], now[1] - before[1]];
        seen[0] + seen[1] >= PACKETS
    });
    seen
}

/// Does what [`shadow_udp`] does with one TCP connection to the exit's SSH port.
fn shadow_tcp(net: &Net, attacker: &Namespace, port: u16) -> [u64; 2] {
    let connect = |host: &Namespace, from: u16, to: &str, port: u16| {
        let line = format!(
            "import socket; s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); \
             s.bind((\"\", {from})); s.settimeout(0.5); s.connect_ex((\"{to}\", {port}))"
        );
        host.sh(&format!("python3 -c '{line}'")).ok();
    };
    let arrived = || packets(&net.client, "quiet", "input");
    let before = arrived();
    eventually(seconds(30), "the attacker's packet has created its flow", || {
        connect(attacker, 22, Net::CLIENT_V4, port);
        arrived() > before
    });
    let before = counted(net);
    let mut seen = [0; 2];
    eventually(seconds(30), "the victim's connection has arrived", || {
        connect(&net.client, port, Net::EXIT_V4, 22);
        let now = counted(net);
        seen = [now[0] - before[0], now[1] - before[1]];
        seen[0] + seen[1] > 0
    });
    seen
}

/// Counts packets from the victim's ports at the exit: separately for the exit itself and forwarded.
fn count_at_the_exit(net: &Net) {
    let from = format!("ip saddr {} th sport 40000-49999 counter;", Net::CLIENT_V4);
    let chain = |hook: &str| format!("chain {hook} {{ type filter hook {hook} priority -200; {from} }};");
    let table = format!("table inet seen {{ {} {} }}", chain("input"), chain("forward"));
    net.exit.sh(&format!("nft '{table}'")).ok();
}

fn counted(net: &Net) -> [u64; 2] {
    ["input", "forward"].map(|hook| packets(&net.exit, "seen", hook))
}

/// The value of a chain's only counter.
fn packets(host: &Namespace, table: &str, chain: &str) -> u64 {
    let listed = host.sh(&format!("nft list chain inet {table} {chain}")).ok();
    packets_of_one(&listed)
}
