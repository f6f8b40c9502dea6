//! Tests of the exit's firewall and NAT with real traffic.
//!
//! ```text
//!  client                exit                          internet
//!  c0 10.66.0.2 -------- exit0 10.66.0.1
//!                        wan0 203.0.113.1 ------------ wan1 203.0.113.2, private network 192.168.77.1
//! ```
//! The link between client and exit stands for the tunnel. IPv6 addresses follow the same pattern.

use std::{
    io::{Read, Write},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    thread,
    time::Duration,
};

use ipnet::IpNet;
use rustix::net::{AddressFamily, SendFlags, SocketType};
use warren_host::{
    OnLink, Plan, Step, Surroundings,
    exit_plan::{Egress, ExitHost, exit},
};

use crate::{
    exit::exit_host_here,
    support::{Namespace, as_tunnel, device, is_root, join},
};

#[test]
fn ping_reaches_the_internet_and_the_gateway_over_both_families() {
    if !is_root() {
        return;
    }
    let net = Net::new();

    net.with_exit(&net.exit_host(), || {
        assert!(net.client.succeeds(&ping("203.0.113.2")));
        assert!(net.client.succeeds(&ping("2001:db8:1::2")));
        assert!(net.client.succeeds(&ping("10.66.0.1")));
        assert!(net.client.succeeds(&ping("fd66:6666::1")));
    });
}

#[test]
fn internet_sees_the_exits_address_and_answers_come_back() {
    if !is_root() {
        return;
    }
    let net = Net::new();

    net.with_exit(&net.exit_host(), || {
        for (server, seen) in [("203.0.113.2", "203.0.113.1"), ("2001:db8:1::2", "2001:db8:1::1")] {
            let (server, seen): (IpAddr, IpAddr) = (server.parse().unwrap(), seen.parse().unwrap());
            assert_eq!(net.source_seen(server, 5353).ip(), seen);
            assert_eq!(net.source_seen_by_tcp(server).ip(), seen);
        }
    });
}

#[test]
fn source_port_of_nat_is_never_a_listen_port() {
    if !is_root() {
        return;
    }
    let net = Net::new();
    let server = "203.0.113.2".parse().unwrap();
    let host = ExitHost { listen_ports: vec![443, 30_000], ..net.exit_host() };

    net.with_exit(&host, || {
        for port in [443, 30_000, 1, 20_000, 29_999, 30_001, 61_000, 65_535] {
            let seen = net.source_seen(server, port).port();
            assert!((30_001..=60_999).contains(&seen), "{port} became {seen}");
        }
    });
}

/// The control for the test above: shows that it can fail.
#[test]
fn source_port_that_is_no_listen_port_is_kept() {
    if !is_root() {
        return;
    }
    let net = Net::new();

    net.with_exit(&net.exit_host(), || {
        assert_eq!(net.source_seen("203.0.113.2".parse().unwrap(), 30_000).port(), 30_000);
    });
}

#[test]
fn private_networks_behind_the_exit_are_closed_unless_allowed() {
    if !is_root() {
        return;
    }
    let net = Net::new();

    net.with_exit(&net.exit_host(), || {
        assert!(!net.client.succeeds(&ping("192.168.77.1")));
        assert!(!net.client.succeeds(&ping("fd77::1")));
    });
    let allowed = ["192.168.77.0/24", "fd77::/64"].map(|network| network.parse().unwrap());
    net.with_exit(&ExitHost { allow: [internet(), allowed.to_vec()].concat(), ..net.exit_host() }, || {
        assert!(net.client.succeeds(&ping("192.168.77.1")));
        assert!(net.client.succeeds(&ping("fd77::1")));
    });
}

#[test]
fn services_of_the_exit_itself_are_closed_to_clients_only() {
    if !is_root() {
        return;
    }
    let net = Net::new();

    net.with_exit(&net.exit_host(), || {
        let listener = net.exit.inside(|| TcpListener::bind("0.0.0.0:8080").unwrap());
        let connect = |from: &Namespace, to: &str| {
            let to: SocketAddr = to.parse().unwrap();
            from.inside(|| TcpStream::connect_timeout(&to, Duration::from_millis(500)).is_ok())
        };
        assert!(!connect(&net.client, "10.66.0.1:8080"));
        assert!(!connect(&net.client, "203.0.113.1:8080"));
        assert!(!net.client.succeeds(&ping("203.0.113.1")));
        assert!(connect(&net.internet, "203.0.113.1:8080"));
        drop(listener);
    });
}

#[test]
fn nothing_unasked_reaches_a_client() {
    if !is_root() {
        return;
    }
    let net = Net::new();
    net.internet.run("ip route add 10.66.0.0/16 via 203.0.113.1");
    let closed = exit(&net.exit_host());
    let steps = closed.steps.iter().filter(|step| !matches!(step, Step::Nftables { .. })).cloned().collect();
    let open = Plan { steps };

    net.exit.with_plan(&closed, || assert!(!net.internet.succeeds(&ping("10.66.0.2"))));
    // As a control, the host can reach the client without the firewall, so only the firewall blocks it.
    net.exit.with_plan(&open, || assert!(net.internet.succeeds(&ping("10.66.0.2"))));
}

#[test]
fn named_egress_lets_nothing_out_elsewhere() {
    if !is_root() {
        return;
    }
    let net = Net::new();
    let through = |name| ExitHost { interface: Egress::Device(device(name)), ..net.exit_host() };

    net.with_exit(&through("wan0"), || assert!(net.client.succeeds(&ping("203.0.113.2"))));
    net.with_exit(&through("wan7"), || assert!(!net.client.succeeds(&ping("203.0.113.2"))));
}

#[test]
fn hosts_on_the_exits_own_links_are_closed_unless_allowed() {
    if !is_root() {
        return;
    }
    let net = Net::new();
    net.exit.run("ip address add 198.41.0.1/24 dev wan0");
    net.exit.run("ip address add 2a01:4f8::1/64 dev wan0 nodad");
    net.internet.run("ip address add 198.41.0.2/24 dev wan1");
    net.internet.run("ip address add 2a01:4f8::2/64 dev wan1 nodad");
    let neighbours = ["198.41.0.2", "2a01:4f8::2"];

    net.with_exit(&net.exit_host(), || {
        for neighbour in neighbours {
            assert!(!net.client.succeeds(&ping(neighbour)), "{neighbour}");
        }
        assert!(net.client.succeeds(&ping("203.0.113.2")), "an allowed address is reachable");
    });
    // As a control, the same exit without the list of on-link networks.
    net.with_exit(
        &ExitHost {
            surroundings: Surroundings { links: Vec::new(), ..net.exit_host().surroundings },
            ..net.exit_host()
        },
        || {
            for neighbour in neighbours {
                assert!(net.client.succeeds(&ping(neighbour)), "{neighbour}");
            }
        },
    );
}

#[test]
fn clients_ask_a_resolver_on_the_exits_own_link_for_names_and_for_nothing_else() {
    if !is_root() {
        return;
    }
    let net = Net::new();
    net.exit.run("ip address add 10.9.0.1/24 dev wan0");
    net.internet.run("ip address add 10.9.0.53/24 dev wan1");
    net.internet.run("nft add table inet seen");
    net.internet.run("nft add chain inet seen in { type filter hook input priority 0 ; }");
    net.internet.run("nft add rule inet seen in ip daddr 10.9.0.53 udp dport 53 counter");
    net.internet.run("nft add rule inet seen in ip daddr 10.9.0.53 udp dport 54 counter");
    let host = ExitHost { resolvers: vec!["10.9.0.53".parse().unwrap()], ..net.exit_host() };

    net.with_exit(&host, || {
        for port in [53, 54] {
            let from = net.client.inside(|| UdpSocket::bind("0.0.0.0:0").unwrap());
            from.send_to(b"hello", ("10.9.0.53", port)).unwrap();
        }
        assert!(net.client.succeeds(&ping("203.0.113.2")) && !net.client.succeeds(&ping("10.9.0.53")));
        let listed = net.internet.run("nft list chain inet seen in");
        assert!(
            listed.contains("dport 53 counter packets 1 ") && listed.contains("dport 54 counter packets 0 "),
            "{listed}"
        );
    });
}

/// If the rules accepted `ct state related`, an ICMP error that quotes another client's flow would pass.
#[test]
fn forged_errors_of_clients_reach_neither_the_exit_nor_its_neighbours() {
    if !is_root() {
        return;
    }
    let net = Net::new();
    let (exits, neighbours) =
        ((Ipv4Addr::new(203, 0, 113, 1), 5_400), (Ipv4Addr::new(203, 0, 113, 2), 5_401));
    let (gateway, clients) = ((Ipv4Addr::new(10, 66, 0, 1), 5_402), (Ipv4Addr::new(10, 66, 0, 2), 5_403));
    let host = ExitHost { allow: Vec::new(), ..net.exit_host() };
    let path_mtu_is_lowered =
        |of: &Namespace, to: Ipv4Addr| of.run(&format!("ip route get {to}")).contains("mtu 600");
    let forge = || {
        let exit = net.exit.inside(|| [exits, gateway].map(|end| UdpSocket::bind(end).unwrap()));
        let neighbour = net.internet.inside(|| UdpSocket::bind(neighbours).unwrap());
        let client = net.client.inside(|| UdpSocket::bind(clients).unwrap());
        // Flows that have been answered.
        for (from, to, answers) in [(&exit[0], neighbours, &neighbour), (&exit[1], clients, &client)] {
            from.send_to(b"hello", to).unwrap();
            let (_, back) = answers.recv_from(&mut [0; 16]).unwrap();
            answers.send_to(b"hello", back).unwrap();
            from.recv_from(&mut [0; 16]).unwrap();
        }
        too_big(&net.client, neighbours.0, (neighbours, exits));
        too_big(&net.client, exits.0, (exits, neighbours));
        too_big(&net.client, gateway.0, (gateway, clients));
        // The ping is sent after the forged errors on the same path, so they have arrived once it is answered.
        assert!(net.client.succeeds(&ping("10.66.0.1")));
        let lowered = [
            path_mtu_is_lowered(&net.internet, exits.0),
            path_mtu_is_lowered(&net.exit, neighbours.0),
            path_mtu_is_lowered(&net.exit, clients.0),
        ];
        for host in [&net.internet, &net.exit] {
            host.run("ip route flush cache");
        }
        lowered
    };

    net.with_exit(&host, || {
        assert_eq!(
            forge(),
            [false, false, true],
            "only the error about a flow to the client itself is accepted"
        );
    });

    // As a control, a ruleset that also accepts related packets.
    let mut open = exit(&host);
    let Some(Step::Nftables { ruleset, .. }) = open.steps.first_mut() else {
        panic!("the table comes first")
    };
    *ruleset = ruleset.replace("\tct state established accept\n", "\tct state established,related accept\n");
    net.exit.with_plan(&open, || assert_eq!(forge(), [true; 3]));
}

#[test]
fn addresses_of_a_network_behind_a_client_reach_the_exit_by_the_tunnel_alone() {
    if !is_root() {
        return;
    }
    let net = Net::new();
    for address in ["192.168.8.9/32", "192.168.9.9/32"] {
        net.internet.run(&format!("ip address add {address} dev lo"));
    }
    let link = |network: &str| OnLink { device: device("wan0"), network: network.parse().unwrap() };
    let mut host = net.exit_host();
    host.surroundings.links.push(link("192.168.9.0/24"));
    let arrives = |from: &str| {
        let exit = net.exit.inside(|| UdpSocket::bind("203.0.113.1:5310").unwrap());
        exit.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        let from = net.internet.inside(|| UdpSocket::bind((from, 0)).unwrap());
        from.send_to(b"hello", "203.0.113.1:5310").unwrap();
        exit.recv(&mut [0; 16]).is_ok()
    };

    net.with_exit(&host, || assert!(arrives("192.168.8.9") && arrives("192.168.9.9")));
    host.prefixes = vec!["192.168.8.0/23".parse().unwrap()];
    net.with_exit(&host, || assert!(!arrives("192.168.9.9"), "a network that somebody advertised"));
    host.surroundings.permanent.push(link("192.168.9.0/24"));
    net.with_exit(&host, || {
        assert!(!arrives("192.168.8.9"));
        assert!(arrives("192.168.9.9"), "a network on the exit's own link is reachable");
    });
}

#[test]
fn what_is_not_the_internet_is_closed_and_what_is_within_it_is_open() {
    if !is_root() {
        return;
    }
    let net = Net::new();
    net.exit.run("ip route add default via 203.0.113.2");
    net.exit.run("ip -6 route add default via 2001:db8:1::2");
    net.internet.run("nft add table inet seen");
    net.internet.run("nft add chain inet seen in { type filter hook prerouting priority -300 ; }");
    net.internet.run("nft add rule inet seen in udp dport 5306 counter");
    let seen = || -> u64 {
        let listed = net.internet.run("nft list chain inet seen in");
        let words: Vec<&str> = listed.split_whitespace().collect();
        words.windows(2).find(|pair| pair[0] == "packets").unwrap()[1].parse().unwrap()
    };
    let send = |addresses: &[&str]| {
        for address in addresses {
            let to = SocketAddr::new(address.parse().unwrap(), 5306);
            let any: SocketAddr = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }.parse().unwrap();
            let from = net.client.inside(|| UdpSocket::bind(any).unwrap());
            from.send_to(b"hello", to).unwrap();
        }
        // The ping is sent after the packets on the same path, so they have arrived once it is answered.
        assert!(net.client.succeeds(&ping("203.0.113.2")) && net.client.succeeds(&ping("2001:db8:1::2")));
    };

    net.with_exit(&net.exit_host(), || {
        send(NOT_INTERNET);
        assert_eq!(seen(), 0);
        send(INTERNET);
        assert_eq!(seen(), u64::try_from(INTERNET.len()).unwrap());
    });
}

const NOT_INTERNET: &[&str] = &[
    "10.1.2.3",
    "100.64.0.1",
    "168.63.129.16",
    "169.254.169.254",
    "172.16.0.1",
    "192.0.0.8",
    "192.0.0.170",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.0.1",
    "198.18.0.1",
    "198.19.255.255",
    "198.51.100.1",
    "240.0.0.1",
    "::10.0.0.1",
    "64:ff9b::10.0.0.1",
    "64:ff9b:1::1",
    "100::1",
    "2001::1",
    "2001:2::1",
    "2001:10::1",
    "2001:db8:9::1",
    "2002:a00:1::1",
    "3fff::1",
    "4000::1",
    "5f00::1",
    "fc00::1",
    "fec0::1",
];
const INTERNET: &[&str] = &[
    "168.63.129.17",
    "192.0.0.9",
    "192.0.0.10",
    "192.31.196.1",
    "198.20.0.1",
    "2001:1::1",
    "2001:1::2",
    "2001:3::1",
    "2001:4:112::1",
    "2001:20::1",
    "2001:30::1",
    "2606:4700::1",
    "2620:4f:8000::1",
];

#[test]
fn addresses_that_find_no_place_among_those_whose_flows_are_counted_have_none() {
    if !is_root() {
        return;
    }
    let net = Net::new();
    let mut plan = exit(&net.exit_host());
    let Some(Step::Nftables { ruleset, .. }) = plan.steps.first_mut() else {
        panic!("the table comes first")
    };
    assert!(ruleset.contains("\tsize 65535\n"), "{ruleset}");
    *ruleset = ruleset.replace("\tsize 65535\n", "\tsize 2\n");
    net.client.run("ip address add 10.66.0.3/16 dev c0");
    net.client.run("ip address add 10.66.0.4/16 dev c0");
    let passes = |from: &str| net.client.succeeds(&format!("{} -I {from}", ping("203.0.113.2")));

    net.exit.with_plan(&plan, || {
        assert!(passes("10.66.0.2") && passes("10.66.0.3"));
        assert!(!passes("10.66.0.4"));
        assert!(passes("10.66.0.2"), "counted flows continue");
        let counted = net.exit.run("nft list chain inet warren_exit new_flows");
        let full = counted.lines().find(|line| line.contains("ip saddr != @flows_ip counter")).unwrap();
        assert!(!full.contains("packets 0 "), "{counted}");
    });
}

/// The addresses that stand for the internet in these tests.
fn internet() -> Vec<IpNet> {
    ["203.0.113.0/24", "2001:db8:1::/64"].map(|network| network.parse().unwrap()).to_vec()
}

struct Net {
    client: Namespace,
    exit: Namespace,
    internet: Namespace,
}

impl Net {
    fn new() -> Self {
        let net = Self {
            client: Namespace::new("client"),
            exit: Namespace::new("exit"),
            internet: Namespace::new("internet"),
        };
        join((&net.exit, "exit0"), (&net.client, "c0"));
        as_tunnel((&net.exit, "exit0"), (&net.client, "c0"));
        join((&net.exit, "wan0"), (&net.internet, "wan1"));
        net.client.run("ip address add 10.66.0.2/16 dev c0");
        net.client.run("ip address add fd66:6666::2/64 dev c0 nodad");
        net.client.run("ip route add default via 10.66.0.1");
        net.client.run("ip -6 route add default via fd66:6666::1");
        net.exit.run("ip address add 203.0.113.1/24 dev wan0");
        net.exit.run("ip address add 2001:db8:1::1/64 dev wan0 nodad");
        net.exit.run("ip route add 192.168.77.0/24 via 203.0.113.2");
        net.exit.run("ip -6 route add fd77::/64 via 2001:db8:1::2");
        net.internet.run("ip address add 203.0.113.2/24 dev wan1");
        net.internet.run("ip address add 2001:db8:1::2/64 dev wan1 nodad");
        net.internet.run("ip address add 192.168.77.1/24 dev lo");
        net.internet.run("ip address add fd77::1/64 dev lo");
        net
    }

    /// The internet host has documentation addresses and is on the exit's link.
    fn exit_host(&self) -> ExitHost {
        ExitHost { mtu: 1400, allow: internet(), ..self.exit.inside(exit_host_here) }
    }

    fn with_exit(&self, host: &ExitHost, meanwhile: impl FnOnce() + Send) {
        self.exit.with_plan(&exit(host), meanwhile);
    }

    /// Exchanges a datagram between the client's `port` and a server. Returns the source address that the server saw.
    fn source_seen(&self, server: IpAddr, port: u16) -> SocketAddr {
        let patience = Some(Duration::from_secs(2));
        let server = self.internet.inside(|| UdpSocket::bind((server, 0)).unwrap());
        server.set_read_timeout(patience).unwrap();
        let address = server.local_addr().unwrap();
        let any: IpAddr = if address.is_ipv4() { "0.0.0.0" } else { "::" }.parse().unwrap();
        let client = self.client.inside(|| UdpSocket::bind((any, port)).unwrap());
        client.set_read_timeout(patience).unwrap();

        client.send_to(b"question", address).unwrap();
        let mut buffer = [0; 16];
        let (_, seen) = server.recv_from(&mut buffer).unwrap();
        server.send_to(b"answer", seen).unwrap();
        let (length, from) = client.recv_from(&mut buffer).unwrap();

        assert_eq!((&buffer[..length], from), (&b"answer"[..], address));
        seen
    }

    /// Like [`Self::source_seen`], but over TCP and from any port.
    fn source_seen_by_tcp(&self, server: IpAddr) -> SocketAddr {
        let listener = self.internet.inside(|| TcpListener::bind((server, 0)).unwrap());
        let address = listener.local_addr().unwrap();
        let answering = thread::spawn(move || {
            let (mut stream, seen) = listener.accept().unwrap();
            stream.write_all(b"answer").unwrap();
            seen
        });

        let mut stream =
            self.client.inside(|| TcpStream::connect_timeout(&address, Duration::from_secs(2)).unwrap());
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();

        assert_eq!(answer, "answer");
        answering.join().unwrap()
    }
}

/// Sends an ICMP error from `host`, which says that a packet of the flow was too big for a path MTU of 600 bytes (RFC 1191).
fn too_big(host: &Namespace, to: Ipv4Addr, flow: ((Ipv4Addr, u16), (Ipv4Addr, u16))) {
    let ((source, source_port), (destination, destination_port)) = flow;
    let mut quoted = vec![0x45, 0, 5, 220, 0, 0, 0x40, 0, 64, 17, 0, 0];
    quoted.extend([source.octets(), destination.octets()].concat());
    let sum = checksum(&quoted);
    quoted[10..12].copy_from_slice(&sum);
    for field in [source_port, destination_port, 1_480, 0] {
        quoted.extend(field.to_be_bytes());
    }
    let mut message = vec![3, 4, 0, 0, 0, 0];
    message.extend(600_u16.to_be_bytes());
    message.extend(quoted);
    let sum = checksum(&message);
    message[2..4].copy_from_slice(&sum);
    host.inside(|| {
        let socket =
            rustix::net::socket(AddressFamily::INET, SocketType::RAW, Some(rustix::net::ipproto::ICMP))
                .unwrap();
        rustix::net::sendto(&socket, &message, SendFlags::empty(), &SocketAddr::from((to, 0))).unwrap();
    });
}

/// The internet checksum of RFC 1071.
fn checksum(bytes: &[u8]) -> [u8; 2] {
    let sum: u32 = bytes.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    (!u16::try_from((folded & 0xffff) + (folded >> 16)).unwrap()).to_be_bytes()
}

fn ping(address: &str) -> String {
    format!("ping -c 1 -W 1 {address}")
}
