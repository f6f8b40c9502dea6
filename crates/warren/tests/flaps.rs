//! A link that goes down and comes back.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

use std::time::{Duration, Instant};

use crate::support::{Client, Exit, Net, asked, eventually, seconds};

/// For row F9 of the scorecard (docs/torture.md), run this test with `WARREN_FLAPS=102 WARREN_FLAP_SECONDS=2`. The first two
/// flaps are not measured.
#[test]
fn a_link_that_comes_and_goes_costs_no_connection_no_memory_and_no_descriptor() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop").with("transport", "connections", 4));
    client.up();
    client.sh("ping -c 3 -i 0.2 -W 2 203.0.113.2");
    eventually(seconds(10), "every connection is attached", || {
        client.status().list("/connections").len() == 4
    });
    let uses = || {
        let status = client.status();
        (status.number("/process/rss_kib"), status.number("/process/fds"))
    };
    let flaps = asked("WARREN_FLAPS");
    let count = flaps.unwrap_or(6);
    // The test suite allows more time, because the machine may be busy.
    let within = if flaps.is_some() { seconds(3) } else { seconds(11) };
    let away: u64 = asked("WARREN_FLAP_SECONDS").unwrap_or(1);
    // Each kind runs once before measuring starts, because first-time allocations stay.
    let ways = ["carrier", "administrator"].into_iter().cycle().take(count);
    let mut before = (0, 0);
    let mut slowest = Duration::ZERO;
    for (number, by) in ways.enumerate() {
        if number == 2 {
            before = uses();
        }
        // The link must be down for longer than the time after which the client notices missing packets.
        if by == "carrier" {
            net.router
                .sh(&format!("ip link set to-client down && sleep {away} && ip link set to-client up"))
                .ok();
        } else {
            // Setting a link down removes its default routes and IPv6 addresses, so they are added again. The IPv4 route
            // names no device, but its gateway is on this link and not behind the tunnel.
            client.sh(&format!(
                "ip link set eth0 down && sleep {away} && ip link set eth0 up && ip route add default via 192.0.2.1 && \
                 ip -6 address add 2001:db8:1::2/64 dev eth0 && ip -6 route add default via 2001:db8:1::1 dev eth0",
            ));
        }
        // No traffic is sent, so the client must notice the link's return by itself.
        let back = Instant::now();
        std::thread::sleep(seconds(1));
        let ping = "ping -c 1 -W 1 203.0.113.2";
        eventually(within, by, || net.client.sh(ping).succeeded());
        let took = back.elapsed();
        println!("{by}: answered {took:?} after the link came back, including a second of rest");
        assert!(took <= within, "{by}: {took:?}");
        slowest = slowest.max(took);
    }
    let after = uses();
    println!(
        "measured: {count} flaps, answered at most {slowest:.1?} after the link came back, including a second of rest; KiB and \
         descriptors: {before:?} before, {after:?} after"
    );
    assert!(after.0 <= before.0 + before.0 / 10, "{before:?} KiB, {after:?} KiB");
    assert_eq!(after.1, before.1, "descriptors");
    assert_eq!(client.status().number("/totals/connections_ended"), 0);
    client.warren.run("down home").ok();
}
