//! Senders learn the tunnel's MTU from the MSS of a SYN and from ICMP, at both ends.

use crate::support::counters::packets_of_one;
use crate::support::flows::{answer_with_more, echo_sized};
use crate::support::{Client, Exit, Namespace, Net, eventually, seconds};

/// The approximate range of the inner MTU on the narrow path.
const NARROW: std::ops::Range<u64> = 1_190..1_300;

#[test]
fn packets_beyond_the_tunnels_mtu_are_answered_by_the_kernel_at_both_ends() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    client.up();

    for (version, address, size) in [(4, Net::INTERNET_V4, 1_400 - 28), (6, Net::INTERNET_V6, 1_400 - 48)] {
        let ping = net.client.sh(&format!("ping -{version} -M do -c 1 -W 1 -s {size} {address} 2>&1"));
        assert!(!ping.succeeded() && ping.stdout.contains("mtu"), "{}", ping.stdout);
        assert!(ping.stdout.contains("1380"), "{}", ping.stdout);
    }
    for (family, exit_outside) in [("-4", Net::EXIT_V4), ("-6", Net::EXIT_V6)] {
        assert_eq!(path_mtu(&net.internet.host, family, exit_outside), None);
        let inside = if family == "-4" { Net::INTERNET_V4 } else { Net::INTERNET_V6 };
        answer_with_more(&net, inside, 1_420);
        eventually(seconds(5), "the internet host knows the tunnel's MTU", || {
            path_mtu(&net.internet.host, family, exit_outside) == Some(1_380)
        });
    }
    assert_eq!(client.status().number("/totals/too_big_answers"), 0, "the tunnel itself sent no answer");
}

#[test]
fn on_a_path_that_stays_narrow_senders_are_told_and_syns_are_clamped() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    client.up();
    count_large_mss(&net.internet.host, "eth0");
    count_large_mss(&net.client, client.status().text("/device/name"));
    // On a wide path a SYN passes unchanged, and the counters see it.
    client.sh("curl -sS --max-time 10 -o /dev/null http://203.0.113.2/");
    assert!(large_mss(&net.internet.host) > 0 && large_mss(&net.client) > 0);
    net.client.sh("nft delete table netdev mss").ok();
    client.down();

    net.narrow_path(1_300);
    client.up();
    count_large_mss(&net.client, client.status().text("/device/name"));
    eventually(seconds(30), "both ends answer with ICMP", || {
        echo_sized(&net.client, Net::INTERNET_V4, 1_352);
        [client.status(), exit.status()].iter().all(|status| status.number("/totals/too_big_answers") > 0)
    });
    for (host, peer) in [(&net.client, Net::INTERNET_V4), (&net.internet.host, Net::EXIT_V4)] {
        eventually(seconds(15), "the kernel has learned the MTU", || {
            echo_sized(&net.client, Net::INTERNET_V4, 1_352);
            path_mtu(host, "-4", peer).is_some_and(|mtu| NARROW.contains(&mtu))
        });
    }
    net.client.sh("ip route flush cache").ok();
    net.internet.host.sh("ip route flush cache").ok();

    // The check is repeated, because each connection discovers the path MTU separately, and a flow may be on any connection.
    eventually(seconds(30), "every SYN is clamped", || {
        let before = (large_mss(&net.internet.host), large_mss(&net.client));
        for address in ["203.0.113.2", "[2001:db8:3::2]"].repeat(4) {
            client.sh(&format!("curl -sS --max-time 10 -o /dev/null http://{address}/bytes/100000"));
        }
        (large_mss(&net.internet.host), large_mss(&net.client)) == before
    });
}

/// The MTU towards an address that the host's kernel has learned, if any.
fn path_mtu(host: &Namespace, family: &str, address: &str) -> Option<u64> {
    let route = host.sh(&format!("ip {family} route get {address}")).ok();
    let mut words = route.split_whitespace();
    words.find(|word| *word == "mtu")?;
    words.next()?.parse().ok()
}

/// Counts SYNs that arrive on a device with an MSS too large for the narrow path.
fn count_large_mss(host: &Namespace, device: &str) {
    host.sh(&format!(
        "nft 'table netdev mss {{ counter large {{ }}; chain in {{ \
         type filter hook ingress device \"{device}\" priority 0; \
         tcp flags & syn == syn tcp option maxseg size > 1260 counter name large; }}; }}'"
    ))
    .ok();
}

fn large_mss(host: &Namespace) -> u64 {
    let counter = host.sh("nft list counter netdev mss large").ok();
    packets_of_one(&counter)
}
