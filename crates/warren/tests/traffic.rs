//! Usual traffic through the tunnel: ping, names, web pages, datagrams.

use std::collections::BTreeSet;

use crate::support::{Client, Exit, Net, flows};

#[test]
fn what_a_client_sends_leaves_from_the_exit_while_the_tunnel_is_up() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    let seen = || {
        let v4 = client.sh("curl -sS --max-time 20 http://203.0.113.2/address");
        (v4, client.sh("curl -sS --max-time 20 http://[2001:db8:3::2]/address"))
    };
    assert_eq!(seen(), (Net::CLIENT_V4.into(), Net::CLIENT_V6.into()));

    client.up();
    assert_eq!(seen(), (Net::EXIT_V4.into(), Net::EXIT_V6.into()));

    client.down();
    assert_eq!(seen(), (Net::CLIENT_V4.into(), Net::CLIENT_V6.into()));
}

#[test]
fn ping_names_pages_and_datagrams_pass() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    let page = client.sh("curl -sS http://203.0.113.2/");
    client.up();

    client.sh("ping -4 -c 3 -i 0.2 -W 5 203.0.113.2");
    client.sh("ping -6 -c 3 -i 0.2 -W 5 2001:db8:3::2");
    assert_eq!(client.sh("dig +short @203.0.113.2 www.internet.test A"), Net::INTERNET_V4);
    assert_eq!(client.sh("dig +short @2001:db8:3::2 www.internet.test AAAA"), Net::INTERNET_V6);
    assert_eq!(client.sh("curl -sS http://203.0.113.2/"), page);
    assert_eq!(client.sh("curl -sS http://[2001:db8:3::2]/"), page);
    assert_eq!(
        flows::seen_from(&net.client, Net::INTERNET_V4, 40_000).unwrap().ip().to_string(),
        Net::EXIT_V4
    );
    assert_eq!(
        flows::seen_from(&net.client, Net::INTERNET_V6, 40_000).unwrap().ip().to_string(),
        Net::EXIT_V6
    );
}

#[test]
fn a_large_download_arrives_unchanged_over_both_versions() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    let digest =
        |host| client.sh(&format!("curl -sS --max-time 60 http://{host}/bytes/50000000 | sha256sum"));
    let direct = digest("203.0.113.2");

    client.up();

    assert_eq!(digest("203.0.113.2"), direct);
    assert_eq!(digest("[2001:db8:3::2]"), direct);
    assert!(
        client.status().number("/totals/tun_written_bytes") > 100_000_000,
        "the traffic bypassed the tunnel"
    );
}

#[test]
fn datagrams_of_every_size_come_back_as_they_were() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    client.up();

    // The sizes are below, at and above one packet. The largest are sent as IP fragments. The first answer of a size may be lost
    // while the path MTU is discovered.
    for bytes in [0, 1, 1000, 1252, 1352, 1353, 2000, 8000, 60_000] {
        client.sh(&format!("ping -4 -c 3 -i 0.2 -W 5 -s {bytes} 203.0.113.2"));
        client.sh(&format!("ping -6 -c 3 -i 0.2 -W 5 -s {bytes} 2001:db8:3::2"));
    }
}

#[test]
fn the_exit_masquerades_to_ports_that_cannot_shadow_its_own() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    assert_eq!(flows::seen_from(&net.client, Net::INTERNET_V4, 443).unwrap().port(), 443, "without a tunnel");

    client.up();

    for internet in [Net::INTERNET_V4, Net::INTERNET_V6] {
        let ports: BTreeSet<_> = [443, 1024, 40_000]
            .map(|port| flows::seen_from(&net.client, internet, port).expect("an answer").port())
            .into();
        assert!(!ports.contains(&443), "{internet} saw {ports:?}");
    }
    // The listener still accepts other clients.
    client.down();
    client.up();
}
