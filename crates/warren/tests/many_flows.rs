//! How many flows one client may have through an exit that is there for all.

use std::net::UdpSocket;
use std::time::Duration;

use crate::support::{Client, Exit, Net, eventually, flows, seconds};

/// Scorecard A10: one client opens 5,000 flows.
#[test]
fn a_client_with_thousands_of_flows_is_capped_and_takes_none_from_others() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let greedy = Client::with(&net, &exit.enrol("greedy"));
    let host = net.second_client();
    let other = Client::on(&host, &exit.enrol("other"));
    greedy.up();
    other.up();
    let tracked =
        || -> u64 { net.exit.sh("cat /proc/sys/net/netfilter/nf_conntrack_count").ok().parse().unwrap() };
    // Of flows that end in nothing, so that each stays for half a minute.
    net.internet.host.sh("nft 'table inet quiet { chain in { type filter hook input priority 0; udp dport 10000-15999 drop; }; }'").ok();
    let open = |ports: std::ops::Range<u16>| {
        let sending = net.client.enter(move || {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            for port in ports {
                socket.send_to(b"flow", (Net::INTERNET_V4, port)).unwrap();
                if port.is_multiple_of(50) {
                    std::thread::sleep(Duration::from_millis(2));
                }
            }
        });
        sending.join().unwrap();
    };

    let dropped = || {
        net.exit
            .sh("nft list chain inet warren_exit from_clients")
            .ok()
            .lines()
            .any(|line| line.contains("@flows_ip ") && !line.contains("packets 0 "))
    };
    assert!(!dropped());
    eventually(seconds(30), "flows beyond 4,096 are dropped", || {
        open(10_000..16_000);
        dropped()
    });

    let most = tracked();
    assert!(most <= 4_096 + 100, "{most}");
    assert_eq!(flows::echo_from_each(&host, 20_000..20_020), 20, "another client's new flows pass");
}
