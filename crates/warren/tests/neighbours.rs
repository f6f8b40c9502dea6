//! A host on the same link learns nothing about inner addresses.
#![allow(clippy::unwrap_used, reason = "test code")]

use crate::support::counters::packets_counted;
use crate::support::{Client, Exit, ExitOptions, Net, eventually, seconds};

/// Scorecard A11: ARP, echo, datagrams, SYN and SYN/ACK to inner addresses, sent to the exit's hardware address (CVE-2019-14899).
#[test]
fn whoever_asks_the_exit_for_an_inner_address_from_outside_hears_nothing() {
    let Some(net) = Net::new() else { return };
    let mut exit = Exit::init(&net, &ExitOptions::default());
    let neighbour = Neighbour::new(&net);
    let (gateway, first) = (["10.66.0.1", "fd66:6666::1"], ["10.66.0.2", "fd66:6666::2"]);

    // The control: a host that has these addresses, but not an exit's rules, answers all kinds of requests.
    let local = |what: &str| {
        format!("ip route {what} local 10.66.0.0/16 dev lo; ip -6 route {what} local fd66:6666::/64 dev lo")
    };
    net.exit.sh(&local("add")).ok();
    for addresses in [gateway, first] {
        neighbour.forget();
        neighbour.ask(addresses);
        eventually(seconds(10), "a host without an exit answers", || {
            neighbour.heard().iter().all(|count| *count > 0)
        });
    }
    net.exit.sh(&local("del")).ok();

    exit.run();
    let client = Client::with(&net, &exit.enrol("laptop"));
    client.up();
    let own = client.inner_addresses();
    let own = [&own.0, &own.1].map(|address| address.as_str().unwrap().split('/').next().unwrap());
    // A firewall service that restarts flushes all rules first.
    for happens in ["true", "nft flush ruleset"] {
        net.exit.sh(happens).ok();
        neighbour.forget();
        for addresses in [gateway, own] {
            neighbour.ask(addresses);
        }
        // Pings the exit's own addresses last. Once it has replied, all earlier answers would have arrived too.
        net.router.sh(&format!("ping -c 1 -W 10 {} && ping -c 1 -W 10 {}", Net::EXIT_V4, Net::EXIT_V6)).ok();
        assert_eq!(
            neighbour.heard(),
            [0; 5],
            "answers by ARP, IPv4, IPv6, and unreachables of both, after {happens}"
        );
    }
    client.sh("ping -c 1 -W 5 10.66.0.1 && ping -c 1 -W 5 fd66:6666::1");
    client.down();
}

/// A client's answer would reveal its inner address to others on the LAN (MLLVD-CR-24-03).
#[test]
fn a_client_answers_nobody_on_its_lan_who_asks_for_its_inner_address() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    let answers = |address: &str| {
        let asked = net.router.sh(&format!("python3 -c '{ASK_ARP}' to-client {address}"));
        asked.ok().trim() == "answered"
    };
    // The control: a host that has the address on another device, but not a client's rules, answers.
    net.client.sh("ip address add 10.66.0.2/32 dev lo").ok();
    assert!(answers("10.66.0.2"));
    net.client.sh("ip address del 10.66.0.2/32 dev lo").ok();

    client.up();

    assert_eq!(client.inner_addresses().0.as_str(), Some("10.66.0.2/16"));
    assert!(!answers("10.66.0.2"));
    assert!(answers(Net::CLIENT_V4), "the client's own address still answers");
    client.down();
}

/// This also applies to networks behind clients. Otherwise a service on the exit's host would mistake a neighbour with such an
/// address for the client.
#[test]
fn a_neighbour_that_advertises_the_networks_of_clients_gets_no_address_of_theirs() {
    let Some(net) = Net::new() else { return };
    net.exit.sh("sysctl -qw net.ipv6.conf.eth0.accept_ra=1").ok();
    let exit = Exit::start(&net);
    exit.enrol("site --prefix fd66:7::/64");
    let mut service = net.exit.start(&["python3", "-u", "-c", SERVICE]);
    service.wait_for_output("ready");
    let (client, site, own) = ("fd66:6666::2", "fd66:7::9", "2001:db8:2::1");
    let send = |source: &str, word: &str| net.router.sh(&format!("python3 -c '{SEND}' {source} {word}")).ok();
    send(own, "early");
    service.wait_for_output("early");

    net.router.sh(&format!("python3 -c '{ADVERTISE}' fd66::/16 fd66:7::/64 2a01:4f8:77::/64")).ok();

    let rules = || net.exit.sh("nft list chain inet warren_exit from_clients").ok();
    eventually(seconds(15), "the exit has seen what is on its link now", || {
        rules().contains("2a01:4f8:77::/64")
    });
    let routes = net.exit.sh("ip -6 route show dev eth0").ok();
    assert!(routes.contains("fd66::/16") && routes.contains("fd66:7::/64"), "{routes}");
    send(client, "as-client");
    send(site, "as-site");
    send(own, "late");
    service.wait_for_output("late");
    assert!(!service.output().contains("as-"), "{}", service.output());

    // The control: if the exit's host has a permanent address in a network, hosts of that network reach it.
    net.exit.sh("ip address add fd66:7::1/64 dev eth0").ok();
    eventually(seconds(15), "hosts of the host's own network reach it", || {
        send(site, "as-site");
        service.output().contains("as-site")
    });
    send(client, "as-client");
    send(own, "last");
    service.wait_for_output("last");
    assert!(!service.output().contains("as-client"), "{}", service.output());
}

/// A service that prints what it receives.
const SERVICE: &str = r#"
import socket
with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as s:
    s.bind(("::", 7777))
    print("ready")
    while True:
        print(s.recv(99).decode())
"#;

/// Sends a word to the service from an address that need not be this host's.
const SEND: &str = r#"
import socket, sys
source, word = sys.argv[1:]
with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as s:
    s.setsockopt(socket.IPPROTO_IPV6, 75, 1)
    s.bind((source, 0))
    s.sendto(word.encode(), ("2001:db8:2::2", 7777))
"#;

/// Sends a router advertisement (RFC 4861) of on-link networks from which hosts choose an address.
const ADVERTISE: &str = r#"
import socket, struct, sys
device = socket.if_nametoindex("to-exit")
message = struct.pack("!BBHBBHII", 134, 0, 0, 64, 0, 0, 0, 0)
for network in sys.argv[1:]:
    prefix, length = network.split("/")
    message += struct.pack("!BBBBIII", 3, 4, int(length), 0xc0, 1800, 1800, 0) + socket.inet_pton(socket.AF_INET6, prefix)
with socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6) as s:
    s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
    s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, device)
    s.sendto(message, ("ff02::1", 0, 0, device))
"#;

/// Sends three ARP requests, and prints whether anybody answers within two seconds.
const ASK_ARP: &str = r#"
import socket, struct, sys, time
device, address = sys.argv[1:]
link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0806))
link.bind((device, 0))
mac, wanted = link.getsockname()[4], socket.inet_aton(address)
ask = b"\xff" * 6 + mac + struct.pack("!HHHBBH", 0x0806, 1, 0x0800, 6, 4, 1) + mac + socket.inet_aton("192.0.2.1") + bytes(6) + wanted
for _ in range(3):
    link.send(ask)
end = time.monotonic() + 2
while (left := end - time.monotonic()) > 0:
    link.settimeout(left)
    try:
        heard = link.recv(64)
    except TimeoutError:
        break
    if heard[20:22] == b"\0\2" and heard[28:32] == wanted:
        sys.exit(print("answered"))
print("silent")
"#;

/// The router as a host on the exit's link.
struct Neighbour<'net>(&'net Net);

impl<'net> Neighbour<'net> {
    fn new(net: &'net Net) -> Self {
        let routes = [
            format!("ip route add 10.66.0.0/16 via {}", Net::EXIT_V4),
            format!("ip -6 route add fd66:6666::/64 via {}", Net::EXIT_V6),
        ];
        net.router.sh(&routes.join("; ")).ok();
        Self(net)
    }

    /// Resets the counters and the neighbour cache.
    fn forget(&self) {
        let rules = "arp operation reply arp saddr ip 10.66.0.0/16 counter; ip saddr 10.66.0.0/16 counter; \
                     ip6 saddr fd66:6666::/64 counter; ip daddr 198.51.100.1 icmp type destination-unreachable counter; \
                     ip6 daddr 2001:db8:2::1 icmpv6 type destination-unreachable counter;";
        let chain = format!("type filter hook ingress device \"to-exit\" priority 0; {rules}");
        let router = &self.0.router;
        router.sh("nft 'add table netdev heard; delete table netdev heard'").ok();
        router.sh(&format!("nft 'table netdev heard {{ chain in {{ {chain} }}; }}'")).ok();
        router.sh("ip neigh flush dev to-exit").ok();
    }

    /// Sends every kind of request to one address per IP version, three times.
    fn ask(&self, [ipv4, ipv6]: [&str; 2]) {
        self.0.router.sh(&format!("python3 -c '{ASK}' {ipv4} {ipv6}")).ok();
    }

    /// Returns the number of answers of each kind.
    fn heard(&self) -> [u64; 5] {
        let listed = self.0.router.sh("nft list table netdev heard").ok();
        packets_counted(&listed).try_into().unwrap()
    }
}

const ASK: &str = r#"
import socket, struct, sys
ipv4, ipv6 = sys.argv[1:]
own, theirs = socket.inet_aton("198.51.100.1"), socket.inet_aton(ipv4)

def checksum(data):
    data += bytes(len(data) % 2)
    total = sum(struct.unpack("!%dH" % (len(data) // 2), data))
    total = (total & 0xffff) + (total >> 16)
    return ~((total & 0xffff) + (total >> 16)) & 0xffff

def tcp(flags):
    segment = lambda check: struct.pack("!HHIIBBHHH", 443, 40000, 1, 1, 0x50, flags, 1000, check, 0)
    pseudo = own + theirs + struct.pack("!BBH", 0, 6, 20)
    return segment(checksum(pseudo + segment(0)))

def echo(check):
    return struct.pack("!BBHHH", 8, 0, check, 7, 7)

link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0806))
link.bind(("to-exit", 0))
mac = link.getsockname()[4]
arp = b"\xff" * 6 + mac + struct.pack("!HHHBBH", 0x0806, 1, 0x0800, 6, 4, 1) + mac + own + bytes(6) + theirs
raw = lambda family, protocol: socket.socket(family, socket.SOCK_RAW, protocol)
for _ in range(3):
    link.send(arp)
    raw(socket.AF_INET, socket.IPPROTO_ICMP).sendto(echo(checksum(echo(0))), (ipv4, 0))
    for flags in (0x02, 0x12):
        raw(socket.AF_INET, socket.IPPROTO_TCP).sendto(tcp(flags), (ipv4, 0))
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"hello", (ipv4, 9))
    raw(socket.AF_INET6, socket.IPPROTO_ICMPV6).sendto(struct.pack("!BBHHH", 128, 0, 0, 7, 7), (ipv6, 0))
    socket.socket(socket.AF_INET6, socket.SOCK_DGRAM).sendto(b"hello", (ipv6, 9))
    syn = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
    syn.setblocking(False)
    syn.connect_ex((ipv6, 22))
"#;
