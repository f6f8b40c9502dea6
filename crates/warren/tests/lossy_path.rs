//! Paths that lose: a path's MTU is what it was, and with congestion control off everything else arrives.

use crate::support::flows::{Flood, flood};
use crate::support::{Client, Exit, Net, eventually, seconds};

/// Mbit/s that a busy test machine carries without thinking, in packets as large as the TUN takes.
const OFFERED: u64 = 40;

#[test]
fn random_loss_leaves_the_mtu_alone_and_takes_only_its_share() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let profile = exit.enrol("laptop").with("transport", "congestion", "off");
    let client = Client::with(&net, &profile);
    client.up();
    single_datagrams(&net);
    wide(&client, &exit);
    for percent in [0, 5, 13, 15] {
        net.filter(&lose(percent));

        let Flood { sent, received } = flood(&net, OFFERED, 1352, seconds(3));

        let expected = sent * (100 - percent) / 100;
        assert!(received * 10 >= expected * 9, "{percent} %: {received} of {sent} arrived");
        assert!(percent == 0 || received < sent, "{percent} %: something was lost");
    }
    for status in [client.status(), exit.status()] {
        assert!(status.each("mtu").iter().all(|mtu| *mtu > 1400), "{:?}", status.each("mtu"));
        assert_eq!(status.sum("black_holes"), 0);
        assert_eq!(
            status.drop("carrier", "too_large") + status.number("/transport_drops/transport_too_large"),
            0
        );
    }

    // The same assertions would see a path that really shrank.
    net.narrow_path_silently(1300);
    flood(&net, OFFERED, 1352, seconds(1));
    eventually(seconds(10), "the narrow path is noticed", || {
        client.status().sum("black_holes") > 0 && client.status().each("mtu").iter().any(|mtu| *mtu < 1300)
    });
}

#[test]
fn a_path_that_shrinks_in_silence_is_noticed_while_nobody_speaks() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    client.up();
    wide(&client, &exit);

    net.narrow_path_silently(1400);

    eventually(seconds(25), "both sides know the narrow path", || {
        let known = |mtus: Vec<u64>| mtus.iter().all(|mtu| (1340..=1372).contains(mtu));
        known(client.status().each("mtu")) && known(exit.status().each("mtu"))
    });
}

fn wide(client: &Client<'_>, exit: &Exit<'_>) {
    eventually(seconds(10), "the wide path is found to be wide", || {
        client.status().each("mtu").into_iter().chain(exit.status().each("mtu")).all(|mtu| mtu > 1400)
    });
}

/// A GSO batch would pass the router, or be lost there, as one packet.
fn single_datagrams(net: &Net) {
    for host in [&net.client, &net.exit] {
        host.sh("ethtool -K eth0 tx-udp-segmentation off").ok();
    }
}

fn lose(percent: u64) -> String {
    format!(
        "udp dport 443 numgen random mod 100 < {percent} drop; udp sport 443 numgen random mod 100 < {percent} drop;"
    )
}
