//! Encapsulated packets: an inner checksum that a kernel has left to the device is correct on arrival behind two NATs.
//!
//! The sender is a container behind the client. The links beyond both ends of the tunnel compute checksums in software. So the
//! receiving kernels verify the checksums, which kernels otherwise do not do between namespaces.
#![allow(clippy::print_stdout, reason = "test code")]

use crate::support::protocols::{ask, echo};
use crate::support::{Client, Exit, Namespace, Net, eventually, seconds};

const PARTIAL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/partial.py");

const CONTAINER_V4: &str = "172.30.0.2";
const CONTAINER_V6: &str = "fd30::2";

/// The overlay's addresses of the container and of the internet host.
const OVERLAY: [[&str; 2]; 2] = [["10.9.0.1", "fd09::1"], ["10.9.0.2", "fd09::2"]];

#[test]
fn what_runs_in_vxlan_over_ipv4_arrives_with_checksums_that_kernels_verify() {
    overlay(CONTAINER_V4, Net::INTERNET_V4, Net::EXIT_V4, "noudpcsum");
}

#[test]
fn what_runs_in_vxlan_over_ipv4_with_a_checksum_of_its_own_arrives_whole_too() {
    overlay(CONTAINER_V4, Net::INTERNET_V4, Net::EXIT_V4, "udpcsum");
}

#[test]
fn what_runs_in_vxlan_over_ipv6_arrives_with_checksums_that_kernels_verify() {
    overlay(CONTAINER_V6, Net::INTERNET_V6, Net::EXIT_V6, "noudp6zerocsumtx");
}

#[test]
fn a_checksum_left_to_the_device_is_right_behind_the_tunnel_also_inside_of_ip() {
    const COUNT: usize = 400;
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let container = net.container_behind_client();
    let client = Client::with(&net, &exit.enrol("laptop"));
    let counting = |host: &Namespace, version: &str| {
        let mut counter = host.start(&["python3", "-u", PARTIAL, "count", version, &COUNT.to_string(), "15"]);
        counter.wait_for_output("ready");
        counter
    };
    let send = |host: &Namespace, from: &str, to: &str| {
        host.sh(&format!("python3 {PARTIAL} send eth0 {from} {to} {COUNT}")).ok();
    };
    // The control: without a tunnel, no device completes the checksums that the sender left to it.
    let mut counter = counting(&net.client, "4");
    send(&container, CONTAINER_V4, "172.30.0.1");
    counter.wait_for_output(&format!("0 right, {COUNT} wrong"));
    client.up();

    for (version, inside, internet, exit) in [
        ("4", CONTAINER_V4, Net::INTERNET_V4, Net::EXIT_V4),
        ("6", CONTAINER_V6, Net::INTERNET_V6, Net::EXIT_V6),
    ] {
        let mut counter = counting(&net.internet.host, version);
        send(&container, inside, internet);
        counter.wait_for_output(&format!("{COUNT} right, 0 wrong"));
        // By now the NATs have an entry for the flow and let the answer in.
        let mut counter = counting(&container, version);
        send(&net.internet.host, internet, exit);
        counter.wait_for_output(&format!("{COUNT} right, 0 wrong"));
    }
}

/// TCP, UDP and echoes over a VXLAN between a container and the internet host. The VXLAN's packets go through the tunnel.
fn overlay(container_address: &str, internet_address: &str, exit_address: &str, checksum: &str) {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let container = net.container_behind_client();
    let client = Client::with(&net, &exit.enrol("laptop"));
    net.exit.sh("ethtool -K eth0 tx off").ok();
    net.client.sh("ethtool -K to-container tx off").ok();
    client.up();
    let internet = &net.internet.host;
    if checksum != "noudpcsum" {
        // Even without a tunnel, Linux's NAT corrupts the outer checksum of a packet whose inner checksum is left to the device.
        // Between real machines this does not happen, because the inner checksum is complete before the packet reaches a NAT.
        for end in [&container, internet] {
            end.sh("ethtool -K eth0 tx off").ok();
        }
    }

    // Both ends use the same port, which NAT does not change. The container must send the first packet, so that the NATs have an
    // entry for the flow.
    let vxlan = |host: &Namespace, [own_v4, own_v6]: [&str; 2], local: &str, remote: &str| {
        host.sh(&format!(
            "ip link add overlay mtu 1280 type vxlan id 5 dstport 40789 srcport 40789 40790 local {local} remote {remote} {checksum}; \
             ip address add {own_v4}/24 dev overlay; ip address add {own_v6}/64 dev overlay; ip link set overlay up"
        ))
        .ok();
    };
    vxlan(&container, OVERLAY[0], container_address, internet_address);
    container.sh("ping -c 1 -W 1 10.9.0.2");
    vxlan(internet, OVERLAY[1], internet_address, exit_address);
    let _echo = echo(internet, "serve");
    for address in OVERLAY[1] {
        eventually(seconds(10), "the overlay works", || {
            container.sh(&format!("ping -c 1 -W 1 {address}")).succeeded()
        });
    }

    for address in OVERLAY[1] {
        println!("{}", ask(&container, "tcp,udp,udp-segments,icmp", address).ok());
    }

    assert!(client.status().number("/totals/tun_read_bytes") > 8_000_000, "the traffic bypassed the tunnel");
    for host in [&container, internet] {
        assert_eq!(wrong_checksums(host), 0, "{}", host.name());
    }
    // The control: both kernels verify checksums, also inside the overlay.
    for (host, other, [address, _]) in
        [(&container, internet, OVERLAY[1]), (internet, &container, OVERLAY[0])]
    {
        host.sh(&format!("python3 -c '{SPOILT}' {address}")).ok();
        eventually(seconds(5), "a wrong checksum is seen", || wrong_checksums(other) == 1);
    }
}

fn wrong_checksums(host: &Namespace) -> usize {
    let counted = host
        .sh("nstat -asz TcpInCsumErrors UdpInCsumErrors Udp6InCsumErrors Icmp6InCsumErrors IcmpInCsumErrors")
        .ok();
    let numbers = counted.lines().filter_map(|line| line.split_whitespace().nth(1)?.parse::<usize>().ok());
    numbers.sum()
}

/// Sends a UDP datagram over IPv4 with a wrong checksum to the echo's port.
const SPOILT: &str = r#"
import socket, struct, sys
with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP) as sender:
    sender.sendto(struct.pack("!HHHH", 4000, 5400, 12, 0x5757) + b"data", (sys.argv[1], 0))
"#;
