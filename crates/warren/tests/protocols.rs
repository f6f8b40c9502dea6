//! Packets of every protocol pass unchanged, with any combination of offloads.
#![allow(clippy::print_stdout, reason = "test code")]

use crate::support::protocols::{ask, echo};
use crate::support::{Client, Exit, ExitOptions, Net, Preload, Profile};

#[test]
fn every_protocol_returns_byte_for_byte_with_every_offload() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    client.up();

    ask_for_all(&net, &exit, &client, true);

    client.down();
}

#[test]
fn every_protocol_returns_byte_for_byte_without_offload_of_the_tun() {
    without(&["tun_offload"]);
}

#[test]
fn every_protocol_returns_byte_for_byte_without_gso() {
    without(&["udp_gso"]);
}

#[test]
fn every_protocol_returns_byte_for_byte_without_gro() {
    without(&["udp_gro"]);
}

#[test]
fn every_protocol_returns_byte_for_byte_without_any_offload() {
    without(&["tun_offload", "udp_gso", "udp_gro"]);
}

#[test]
fn every_protocol_returns_byte_for_byte_where_the_kernel_has_no_udp_segmentation_for_a_tun() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    let no_uso = Preload::build("no_uso");
    let _daemon = client.run_under(&["env", &no_uso.variable], "info");

    ask_for_all(&net, &exit, &client, false);

    client.down();
}

#[test]
fn who_asks_hears_of_what_was_changed_and_of_what_was_lost() {
    let Some(net) = Net::new() else { return };
    let complaint = |kinds: &str| {
        let asked = ask(&net.client, kinds, Net::INTERNET_V4);
        assert!(!asked.succeeded(), "{}", asked.stdout);
        asked.stderr
    };
    {
        let _echo = echo(&net.internet.host, "spoil");
        for kind in ["udp", "udp-segments", "esp"] {
            let said = complaint(kind);
            assert!(said.contains("came back that nobody had sent"), "{kind}: {said}");
        }
        assert!(complaint("tcp").contains("TCP brought other bytes back"));
    }
    let _echo = echo(&net.internet.host, "serve");
    net.filter("ip protocol 47 drop;");
    assert!(complaint("gre").contains("gre to 203.0.113.2: lost: 1 of 1"));
}

/// Runs all protocols through a tunnel with these offloads off at both ends.
fn without(offloads: &[&str]) {
    let Some(net) = Net::new() else { return };
    let off = |profile: Profile, key: &&str| profile.with("transport", key, false);
    let mut exit = Exit::init(&net, &ExitOptions::default());
    exit.configure(|exit| offloads.iter().fold(exit, off));
    exit.run();
    let client = Client::with(&net, &offloads.iter().fold(exit.enrol("laptop"), off));
    client.up();

    ask_for_all(&net, &exit, &client, !offloads.contains(&"tun_offload"));

    client.down();
}

/// Sends every protocol over both IP versions through the running tunnel. `merges` is whether the client's TUN accepts
/// several UDP datagrams in one write.
fn ask_for_all(net: &Net, exit: &Exit<'_>, client: &Client<'_>, merges: bool) {
    const BOTH: [&str; 2] = [Net::INTERNET_V4, Net::INTERNET_V6];
    let _echo = echo(&net.internet.host, "serve");

    // UDP is tested first, because TCP packets may be merged even if UDP packets are not.
    for address in BOTH {
        ask(&net.client, "udp-segments", address).ok();
    }
    let (writes, packets) = client.status().writes_and_packets();
    assert_eq!(packets > writes, merges, "{packets} in {writes} writes");
    for address in BOTH {
        println!("{}", ask(&net.client, "all", address).ok());
    }

    for (role, status) in [("exit", exit.status()), ("client", client.status())] {
        assert!(
            status.number("/totals/tun_read_bytes") > 8_000_000,
            "{role}: the traffic bypassed the tunnel"
        );
        assert_eq!(status.drop("tun", "tun_write"), 0, "{role}");
    }
}
