//! Networks behind clients: two LANs reach each other through the exit, as far as the operator allows.
#![allow(clippy::indexing_slicing, clippy::unwrap_used, reason = "test code")]

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};

use crate::support::{Client, Exit, ExitOptions, Namespace, Net, eventually, flows, seconds};

/// Two sites with one host behind each gateway. The hosts' only route is to their gateway.
struct Sites {
    net: Net,
    second: Namespace,
    hosts: [Namespace; 2],
}

const LAN_A: [&str; 2] = ["172.30.0.0/24", "fd30::/64"];
const LAN_B: [&str; 2] = ["172.31.0.0/24", "fd31::/64"];
const HOST_A: [&str; 2] = ["172.30.0.2", "fd30::2"];
const HOST_B: [&str; 2] = ["172.31.0.2", "fd31::2"];

impl Sites {
    fn new() -> Option<Self> {
        let net = Net::new()?;
        let second = net.second_client();
        let hosts = [
            Net::host_behind(&net.client, ["172.30.0.1/24", "fd30::1/64"], HOST_A),
            Net::host_behind(&second, ["172.31.0.1/24", "fd31::1/64"], HOST_B),
        ];
        Some(Self { net, second, hosts })
    }

    /// Whether a host of one LAN reaches the host of the other, per IP version.
    fn pings(&self, from: usize, to: [&str; 2]) -> [bool; 2] {
        to.map(|address| self.hosts[from].sh(&format!("ping -c 2 -i 0.2 -W 1 {address}")).succeeded())
    }

    /// Waits until a host of one LAN reaches the host of the other over both IP versions.
    #[track_caller]
    fn reaches(&self, from: usize, to: [&str; 2]) {
        eventually(seconds(15), "the other LAN is reached", || self.pings(from, to) == [true; 2]);
    }

    /// Sends `bytes` bytes over TCP from one LAN to the other. Returns how many arrived.
    fn transfer(&self, bytes: usize) -> usize {
        let listen = || TcpListener::bind((HOST_B[0], 7_000)).unwrap();
        let listener = self.hosts[1].enter(listen).join().unwrap();
        let receiving = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(seconds(20))).unwrap();
            let mut received = Vec::new();
            stream.read_to_end(&mut received).unwrap();
            received.len()
        });
        let sending = self.hosts[0].enter(move || {
            let mut stream = TcpStream::connect((HOST_B[0], 7_000)).unwrap();
            stream.write_all(&vec![7; bytes]).unwrap();
        });
        sending.join().unwrap();
        receiving.join().unwrap()
    }
}

#[test]
fn hosts_of_two_lans_reach_each_other_with_their_own_addresses_and_only_as_the_operator_allows() {
    let Some(sites) = Sites::new() else { return };
    let mut exit = Exit::init(&sites.net, &ExitOptions::default());
    exit.configure(|config| config.with("clients", "isolation", false));
    exit.run();
    let prefixes = |own: [&str; 2]| own.map(|prefix| format!("--prefix {prefix}")).join(" ");
    let enrol = |name: &str, own: [&str; 2], other: [&str; 2]| {
        exit.enrol(&format!("{name} {}", prefixes(own))).with("routes", "include", other.to_vec()).with(
            "routes",
            "prefixes",
            own.to_vec(),
        )
    };
    let a = Client::with(&sites.net, &enrol("berlin", LAN_A, LAN_B));
    let b = Client::on(&sites.second, &enrol("paris", LAN_B, LAN_A));
    a.up();
    b.up();

    let counters = format!("ip saddr {} counter; ip6 saddr {} counter;", HOST_A[0], HOST_A[1]);
    let input =
        format!("table inet seen {{ chain input {{ type filter hook input priority 0; {counters} }}; }}");
    sites.hosts[1].sh(&format!("nft '{input}'")).ok();
    sites.reaches(0, HOST_B);
    sites.reaches(1, HOST_A);
    let seen = sites.hosts[1].sh("nft list table inet seen").ok();
    assert!(!seen.contains("packets 0 "), "the packets' addresses were translated: {seen}");
    assert_eq!(sites.transfer(3_000_000), 3_000_000);
    let granted = &a.status().0["session"]["prefixes"];
    assert_eq!(granted.as_array().unwrap().len(), 2, "{granted}");
    let overlap = exit.warren.run("exit client add rome --prefix 172.30.0.128/25");
    assert!(overlap.stderr.contains("overlaps 172.30.0.0/24 of \"berlin\""), "{overlap:?}");

    // A prefix that the operator has revoked is unreachable. The tunnel itself stays up.
    exit.warren.run("exit client set paris --no-prefixes").ok();
    eventually(seconds(15), "the session has no prefixes", || {
        b.warren.status().is_some_and(|status| {
            status.text("/state") == "up" && status.0["session"]["prefixes"].as_array().unwrap().is_empty()
        })
    });
    assert_eq!(sites.pings(0, HOST_B), [false; 2]);
    assert!(!sites.net.exit.sh("ip route; ip -6 route").ok().contains("31::"));
    // The client may not send from the revoked prefix either. The rule bypasses NAT on the client's own host, which would replace
    // the source by the inner address.
    let bypass = "type filter hook output priority raw; ip saddr 172.31.0.1 notrack;";
    b.sh(&format!("nft 'table inet spoof {{ chain out {{ {bypass} }}; }}'"));
    let before = exit.status().drop("tun", "spoofed_source");
    assert!(!sites.second.sh("ping -I 172.31.0.1 -c 3 -i 0.2 -W 1 172.30.0.2").succeeded());
    eventually(seconds(10), "each packet is counted", || {
        exit.status().drop("tun", "spoofed_source") == before + 3
    });
    b.sh("nft delete table inet spoof");

    // With isolation no site reaches another site's network.
    exit.warren.run(&format!("exit client set paris {}", prefixes(LAN_B))).ok();
    sites.reaches(0, HOST_B);
    exit.configure(|config| config.with("clients", "isolation", true));
    exit.warren.run("reload exit").ok();
    assert_eq!(sites.pings(0, HOST_B), [false; 2]);
    assert!(exit.status().drop("tun", "isolated") >= 4);

    a.down();
    b.down();
    assert_eq!(flows::echo_from_each(&sites.net.client, 20_000..20_001), 1);
}
