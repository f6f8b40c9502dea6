//! Tests of the test network itself, without a tunnel.

use crate::support::{self, Family, HostState, Net, seconds};

#[test]
fn the_client_reaches_every_service_from_its_own_address() {
    let Some(net) = Net::new() else { return };

    assert_eq!(net.client.sh("curl -sS http://203.0.113.2/address").ok(), Net::CLIENT_V4);
    assert_eq!(net.client.sh("curl -sS http://[2001:db8:3::2]/address").ok(), Net::CLIENT_V6);
    assert_eq!(net.client.sh("dig +short www.internet.test A").ok(), Net::INTERNET_V4);
    assert_eq!(net.client.sh("dig +short www.internet.test AAAA").ok(), Net::INTERNET_V6);
    net.client.sh("ping -c 1 -W 2 198.51.100.2 && ping -c 1 -W 2 2001:db8:2::2").ok();
}

#[test]
fn a_narrow_path_says_so_to_who_sends_more() {
    let Some(net) = Net::new() else { return };
    let whole = |family, bytes| ping_exit(&net, family, bytes);
    assert!(whole(Family::V4, 1500).contains("1 received") && whole(Family::V6, 1500).contains("1 received"));

    net.narrow_path(1300);
    for family in [Family::V4, Family::V6] {
        assert!(whole(family, 1300).contains("1 received"));
        let answer = whole(family, 1301);
        assert!(answer.contains("Frag needed") || answer.contains("Packet too big"), "{answer}");
    }
    net.narrow_path(1228);
    assert!(whole(Family::V4, 1228).contains("1 received"));
    assert!(!whole(Family::V4, 1229).contains("1 received"));
}

#[test]
fn a_black_hole_takes_the_carrier_alone_and_only_while_it_is_there() {
    let Some(net) = Net::new() else { return };
    let mut echo = net.exit.start(&["python3", "-u", "-c", ECHO_ON_443]);
    echo.wait_for_output("ready");
    let reached = || net.client.sh(&format!("python3 -c '{ASK_443}'")).succeeded();
    assert!(reached());

    net.black_hole();
    assert!(!reached());
    net.client.sh("ping -c 1 -W 2 198.51.100.2").ok();

    net.unfilter();
    assert!(reached());
}

#[test]
fn a_change_of_the_host_shows_in_its_state_and_is_gone_when_undone() {
    let Some(net) = Net::new() else { return };
    let before = HostState::of(&net.client);

    for (make, undo) in [
        ("ip addr add 10.1.1.1/32 dev lo", "ip addr del 10.1.1.1/32 dev lo"),
        ("ip -6 route add fd00::/8 dev eth0 table 77", "ip -6 route del fd00::/8 dev eth0 table 77"),
        ("ip rule add fwmark 7 table 77", "ip rule del fwmark 7 table 77"),
        ("nft add table inet other", "nft delete table inet other"),
        ("sysctl -qw net.ipv6.conf.eth0.accept_ra=2", "sysctl -qw net.ipv6.conf.eth0.accept_ra=1"),
    ] {
        net.client.sh(make).ok();
        assert_ne!(before, HostState::of(&net.client), "{make}");
        net.client.sh(undo).ok();
        before.assert_same(&HostState::of(&net.client));
    }
}

#[test]
fn dropping_the_net_ends_its_programs_and_removes_its_hosts() {
    let Some(net) = Net::new() else { return };
    let name = net.client.name().to_owned();
    // A process that has detached from its parent, as the daemon of `warren up` does.
    net.client.sh("setsid -f sleep 1000 >/dev/null 2>&1").ok();
    let pids = net.client.pids();
    assert!(!pids.is_empty());

    drop(net);

    support::eventually(seconds(5), "its programs end", || {
        pids.iter().all(|pid| !std::path::Path::new(&format!("/proc/{pid}")).exists())
    });
    assert!(!std::path::Path::new(&format!("/run/netns/{name}")).exists());
    assert!(!std::path::Path::new(&format!("/etc/netns/{name}")).exists());
}

/// Sends one unfragmented echo request, `bytes` bytes long including the IP header, from the client to the exit.
fn ping_exit(net: &Net, family: Family, bytes: usize) -> String {
    let (version, headers, address) = match family {
        Family::V4 => (4, 28, Net::EXIT_V4),
        Family::V6 => (6, 48, Net::EXIT_V6),
    };
    net.client.sh("ip route flush cache; ip -6 route flush cache").ok();
    let finished =
        net.client.sh(&format!("ping -{version} -M do -c 1 -W 1 -s {} {address} 2>&1", bytes - headers));
    finished.stdout
}

const ECHO_ON_443: &str = "
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind((\"198.51.100.2\", 443))
print(\"ready\")
while True:
    data, peer = s.recvfrom(2048)
    s.sendto(data, peer)
";

const ASK_443: &str = "
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(0.5)
s.sendto(b\"hello\", (\"198.51.100.2\", 443))
assert s.recv(2048) == b\"hello\"
";
