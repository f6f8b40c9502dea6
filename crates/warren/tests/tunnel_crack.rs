//! TunnelCrack: a network that claims internet addresses for its LAN (CVE-2023-36672), and programs that send to the exit's own
//! address, which is also the carrier's destination (CVE-2023-36673).
#![allow(clippy::unwrap_used, reason = "test code")]

use crate::support::{Client, Exit, LeakCounter, Net, eventually, seconds};

#[test]
fn a_lan_with_the_internet_s_addresses_and_the_exit_s_own_take_nothing_outside() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    // The hotspot claims the internet host's networks and answers for them.
    let router = net.router.sh("cat /sys/class/net/to-client/address").ok();
    net.client
        .sh(&format!(
            "ip address add 203.0.113.77/24 dev eth0; ip address add 2001:db8:3::77/64 dev eth0
             for claimed in {} {}; do ip neighbour replace $claimed lladdr {router} dev eth0; done",
            Net::INTERNET_V4,
            Net::INTERNET_V6
        ))
        .ok();
    let profile = exit.enrol("laptop").with("routes", "lan", true);
    let client = Client::with(&net, &profile);
    let leaks = LeakCounter::start(&net);
    let leaves = |device: &str| {
        let before = leaks.leaked();
        let targets = [Net::INTERNET_V4, Net::INTERNET_V6, Net::EXIT_V4, Net::EXIT_V6].join(" ");
        let made = net.client.sh(&format!("python3 -c '{ATTEMPTS}' {device} {targets}")).ok();
        (made.parse::<usize>().unwrap(), leaks.leaked() - before)
    };
    let sees = |address: &str| {
        net.client.sh(&format!("{AS_NOBODY} curl -sS --max-time 20 http://{address}/address")).ok()
    };
    net.client.sh("ping -c 1 -W 5 192.0.2.1 && ping -c 1 -W 5 2001:db8:1::1").ok();
    let (made, left) = leaves("any");
    assert!(left >= made && made >= 100, "without a tunnel packets leave outside: {left} of {made}");

    client.up();
    let (made, left) = leaves("any");
    assert_eq!(left, 0, "packets left of {made} attempts, as routed, without a kill switch");
    let (made, left) = leaves("eth0");
    // Only DNS queries do not leave outside, because the DNS guard keeps them inside.
    assert!(
        left >= made / 5 * 4,
        "sockets bound to the device leave without a kill switch: {left} of {made}"
    );
    client.down();

    client.warren.run("up home --kill-switch").ok();
    for device in ["any", "eth0"] {
        assert_eq!(leaves(device).1, 0, "packets left with a kill switch, bound to {device}");
    }
    assert_eq!(sees("203.0.113.2"), Net::EXIT_V4);
    assert_eq!(sees("[2001:db8:3::2]"), Net::EXIT_V6);
    // Programs reach the exit's own address through the tunnel, like any other internet address.
    eventually(seconds(10), "the tunnel carries packets to the exit's address", || {
        let route = net.client.sh(&format!("ip route get {}", Net::EXIT_V4)).ok();
        route.contains("dev warren0")
    });
    client.down();
}

const AS_NOBODY: &str = "setpriv --reuid=65534 --regid=65534 --clear-groups";

/// Connects as another user over TCP and UDP: to web servers, to the carrier's port and to DNS, five times each. Prints how many.
const ATTEMPTS: &str = "
import itertools, os, socket, sys
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
device, *addresses = sys.argv[1:]
kinds = [(socket.SOCK_STREAM, 80), (socket.SOCK_STREAM, 443), (socket.SOCK_DGRAM, 80), (socket.SOCK_DGRAM, 443),
         (socket.SOCK_DGRAM, 53)]
number = 0
for number, (_, address, (kind, port)) in enumerate(itertools.product(range(5), addresses, kinds), 1):
    family = socket.AF_INET6 if \":\" in address else socket.AF_INET
    with socket.socket(family, kind) as sender:
        sender.setblocking(False)
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if device != \"any\":
            sender.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode())
        sender.bind((\"\", 40000 + number))
        try:
            sender.connect((address, port))
            if kind == socket.SOCK_DGRAM:
                sender.send(b\"probe\")
        except OSError:
            pass
print(number)
";
