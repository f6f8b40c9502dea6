//! How many flows one client may have through a shared exit.
#![allow(clippy::unwrap_used, reason = "test code")]

use std::net::{Ipv4Addr, UdpSocket};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};

use crate::support::{Client, Exit, ExitOptions, Namespace, Net, eventually, flows, seconds};

/// The limit that `exit_ruleset.rs` sets.
const CAP: u64 = 4_096;
/// The exit's own flows, and those of the browsing client.
const OTHERS: u64 = 100;
/// Flows from each address when several addresses open flows.
const EACH: u16 = 1_500;

/// Scorecard A10: one client opens 5,000 flows, to the internet, to the exit itself and to another client.
#[test]
fn a_client_with_thousands_of_flows_is_capped_and_takes_none_from_others() {
    let Some(net) = Net::new() else { return };
    let mut exit = Exit::init(&net, &ExitOptions::default());
    exit.configure(|config| config.with("clients", "isolation", false));
    exit.run();
    let greedy = Client::with(&net, &exit.enrol("greedy"));
    let host = net.second_client();
    let other = Client::on(&host, &exit.enrol("other"));
    greedy.up();
    other.up();
    stay_quiet(&net);
    let (v4, v6) = other.inner_addresses();
    let [v4, v6] = [v4, v6].map(|address| address.as_str().unwrap().split('/').next().unwrap().to_owned());

    for (to, set) in [
        (To::Ports(Net::INTERNET_V4.to_owned()), "@flows_ip "),
        (To::Ports(Net::INTERNET_V6.to_owned()), "@flows_ip6 "),
        (To::Ports(v4), "@flows_ip "),
        (To::Ports(v6), "@flows_ip6 "),
        (To::Gateway(Ipv4Addr::new(10, 66, 0, 1)), "@flows_ip "),
    ] {
        forget(&net);
        let before = dropped(&net, set);
        eventually(seconds(30), "flows beyond 4,096 are dropped", || {
            open(&net.client, &["any"], &to, 6_000);
            // The check is repeated, because for some seconds the kernel still counts flows that were removed.
            dropped(&net, set) > before && tracked(&net) >= CAP * 9 / 10
        });

        let most = tracked(&net);
        assert!(most <= CAP + OTHERS, "{most} to {to:?}");
        assert_eq!(flows::echo_from_each(&host, 20_000..20_020), 20, "another client's new flows pass");
    }
}

/// The rules change when a prefix is granted, a service starts or a router advertisement arrives. The counts of flows must
/// survive this.
#[test]
fn a_change_of_the_exits_rules_lets_no_client_begin_its_flows_anew() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("greedy"));
    client.up();
    stay_quiet(&net);
    let begin = || open(&net.client, &["any"], &To::Ports(Net::INTERNET_V4.to_owned()), 6_000);
    eventually(seconds(30), "flows beyond 4,096 are dropped", || {
        begin();
        dropped(&net, "@flows_ip ") > 0 && tracked(&net) >= CAP * 9 / 10
    });

    exit.warren.run("exit client add site --prefix 172.30.0.0/24").ok();
    assert_eq!(dropped(&net, "172.30.0.0/24"), 0, "the rules have been replaced");
    begin();

    let most = tracked(&net);
    assert!(most <= CAP + OTHERS, "{most}");
    assert!(dropped(&net, "@flows_ip ") > 0);
}

/// A client with a network behind it has more addresses than an exit can count one by one.
#[test]
fn addresses_of_a_network_behind_a_client_have_no_more_flows_together_than_one_address() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let host = Net::host_behind(&net.client, ["172.30.0.1/24", "fd30::1/64"], ["172.30.0.2", "fd30::2"]);
    // The test opens flows from four addresses of a granted network. The control does so from four addresses that are granted one
    // by one.
    let numbers = 2..6_u8;
    let [mut granted, mut lines] = [vec!["172.30.0.0/24".to_owned(), "fd30::/64".to_owned()], Vec::new()];
    for number in numbers.clone() {
        granted.extend([format!("172.31.0.{number}/32"), format!("fd31::{number}/128")]);
        for address in ["172.30.0.", "172.31.0.", "fd30::", "fd31::"] {
            let length = if address.contains(':') { 128 } else { 32 };
            lines.push(format!("ip addr add {address}{number}/{length} dev eth0 2>/dev/null"));
        }
    }
    host.sh(&lines.join("; "));
    net.client.sh("ip route add 172.31.0.0/24 dev to-lan; ip route add fd31::/64 dev to-lan").ok();
    let options: String = granted.iter().map(|prefix| format!(" --prefix {prefix}")).collect();
    let profile = exit.enrol(&format!("office{options}")).with("routes", "prefixes", granted.clone());
    let office = Client::with(&net, &profile);
    office.up();
    eventually(seconds(15), "every network is granted", || {
        office.status().list("/session/prefixes").len() == granted.len()
    });
    stay_quiet(&net);

    for (network, alone, to, rule, another) in [
        ("172.30.0.", "172.31.0.", Net::INTERNET_V4, "172.30.0.0/24 add", "four --prefix 172.29.0.0/24"),
        ("fd30::", "fd31::", Net::INTERNET_V6, "fd30::/64 add", "six --prefix fd29::/64"),
    ] {
        let to = To::Ports(to.to_owned());
        let from =
            |network: &str| numbers.clone().map(|number| format!("{network}{number}")).collect::<Vec<_>>();
        let begin = |addresses: Vec<String>| {
            let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
            open(&host, &addresses, &to, EACH);
        };
        forget(&net);
        eventually(seconds(30), "flows beyond 4,096 are dropped", || {
            begin(from(network));
            dropped(&net, rule) > 0 && tracked(&net) >= CAP * 9 / 10
        });
        let most = tracked(&net);
        assert!(most <= CAP + OTHERS, "{most} of {network}");
        exit.warren.run(&format!("exit client add {another}")).ok();
        begin(from(network));
        let most = tracked(&net);
        assert!(most <= CAP + OTHERS, "{most} of {network} after a change of the rules");

        forget(&net);
        eventually(
            seconds(30),
            "flows from the same addresses are all tracked if each address is granted",
            || {
                begin(from(alone));
                tracked(&net) >= u64::from(EACH) * 4
            },
        );
    }
}

/// The destination of flows.
#[derive(Clone, Debug)]
enum To {
    /// Ports of this address that never answer.
    Ports(String),
    /// ICMP echo at the exit's own address, each flow with another identifier.
    Gateway(Ipv4Addr),
}

/// Opens `each` flows from each of these addresses of a host (or from `any`).
fn open(host: &Namespace, from: &[&str], to: &To, each: u16) {
    let from: Vec<String> = from.iter().map(|&address| address.to_owned()).collect();
    let to = to.clone();
    let sending = host.enter(move || {
        for address in from {
            let send = sender(&address, &to);
            for number in 0..each {
                send(number);
                if number.is_multiple_of(50) {
                    std::thread::sleep(Duration::from_millis(2));
                }
            }
        }
    });
    sending.join().unwrap();
}

/// A function that opens the flow with a given number.
fn sender(from: &str, to: &To) -> Box<dyn Fn(u16)> {
    match to.clone() {
        To::Ports(to) => {
            let any = if to.contains(':') { "::" } else { "0.0.0.0" };
            let socket = UdpSocket::bind((if from == "any" { any } else { from }, 0)).unwrap();
            // Errors are ignored, because a call may return the "port unreachable" error of an earlier datagram.
            Box::new(move |number| drop(socket.send_to(b"flow", (to.as_str(), FIRST_PORT + number))))
        }
        To::Gateway(gateway) => {
            let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::ICMPV4)).unwrap();
            let to = std::net::SocketAddrV4::new(gateway, 0).into();
            Box::new(move |number| {
                // An empty echo request (RFC 792). Its checksum is computed from the only two words that are not zero.
                let kind = 0x0800_u16;
                let [kind, checksum, number] = [kind, !(kind + number), number].map(u16::to_be_bytes);
                drop(socket.send_to(&[kind, checksum, number, [0; 2]].concat(), &to));
            })
        }
    }
}

/// The first port that never answers.
const FIRST_PORT: u16 = 10_000;

/// Makes the internet host drop packets to those ports, so that each flow stays for half a minute.
fn stay_quiet(net: &Net) {
    let quiet = "type filter hook input priority 0; udp dport 10000-15999 drop;";
    net.internet.host.sh(&format!("nft 'table inet quiet {{ chain in {{ {quiet} }}; }}'")).ok();
}

/// The number of flows that the exit's host tracks.
fn tracked(net: &Net) -> u64 {
    net.exit.sh("cat /proc/sys/net/netfilter/nf_conntrack_count").ok().parse().unwrap()
}

/// Makes the exit's host forget all flows, including those of packets that are still on their way.
fn forget(net: &Net) {
    eventually(seconds(10), "no flow is left", || {
        net.exit.sh("conntrack -F").ok();
        std::thread::sleep(Duration::from_millis(200));
        tracked(net) <= OTHERS
    });
}

/// The packets dropped by the exit's rule that contains `rule`.
fn dropped(net: &Net, rule: &str) -> u64 {
    let listed = net.exit.sh("nft list chain inet warren_exit new_flows").ok();
    let line = listed.lines().find(|line| line.contains(rule)).unwrap_or_else(|| panic!("{listed}"));
    crate::support::counters::packets_of_one(line)
}
