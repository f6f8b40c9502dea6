//! What a host on the exit's own link learns of the addresses inside: nothing.
#![allow(clippy::unwrap_used, reason = "test code")]

use crate::support::{Client, Exit, ExitOptions, Net, eventually, seconds};

/// Scorecard A11 but for ARP: echo, datagrams, SYN and SYN/ACK for inner addresses, by the exit's hardware address (CVE-2019-14899).
#[test]
fn whoever_asks_the_exit_for_an_inner_address_from_outside_hears_nothing() {
    let Some(net) = Net::new() else { return };
    let mut exit = Exit::init(&net, &ExitOptions::default());
    let neighbour = Neighbour::new(&net);
    let (gateway, first) = (["10.66.0.1", "fd66:6666::1"], ["10.66.0.2", "fd66:6666::2"]);

    // A host with these addresses and without an exit's rules answers to all of it.
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
    neighbour.forget();
    for addresses in [gateway, own] {
        neighbour.ask(addresses);
    }
    // What is asked of the exit itself, last, is answered.
    net.router.sh(&format!("ping -c 1 -W 10 {} && ping -c 1 -W 10 {}", Net::EXIT_V4, Net::EXIT_V6)).ok();
    assert_eq!(neighbour.heard(), [0; 4], "IPv4, IPv6, and unreachables of both");
    client.sh("ping -c 1 -W 5 10.66.0.1 && ping -c 1 -W 5 fd66:6666::1");
    client.down();
}

/// The router, on the exit's link.
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

    /// Counts from zero, and knows no hardware address any more.
    fn forget(&self) {
        let rules = "ip saddr 10.66.0.0/16 counter; \
                     ip6 saddr fd66:6666::/64 counter; ip daddr 198.51.100.1 icmp type destination-unreachable counter; \
                     ip6 daddr 2001:db8:2::1 icmpv6 type destination-unreachable counter;";
        let chain = format!("type filter hook ingress device \"to-exit\" priority 0; {rules}");
        let router = &self.0.router;
        router.sh("nft 'add table netdev heard; delete table netdev heard'").ok();
        router.sh(&format!("nft 'table netdev heard {{ chain in {{ {chain} }}; }}'")).ok();
        router.sh("ip neigh flush dev to-exit").ok();
    }

    /// Asks for an address of each version in every way, three times.
    fn ask(&self, [ipv4, ipv6]: [&str; 2]) {
        self.0.router.sh(&format!("python3 -c '{ASK}' {ipv4} {ipv6}")).ok();
    }

    /// Answers by kind.
    fn heard(&self) -> [u64; 4] {
        let listed = self.0.router.sh("nft list table netdev heard").ok();
        let counts = listed.lines().filter_map(|line| {
            let mut words = line.split_whitespace().skip_while(|word| *word != "packets");
            words.nth(1)?.parse().ok()
        });
        counts.collect::<Vec<u64>>().try_into().unwrap()
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

raw = lambda family, protocol: socket.socket(family, socket.SOCK_RAW, protocol)
for _ in range(3):
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
