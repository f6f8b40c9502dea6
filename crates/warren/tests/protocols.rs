//! Every protocol passes as it is, whatever is offloaded.
#![allow(clippy::print_stdout, reason = "test code")]

use std::process::Command;

use crate::support::{Client, Exit, ExitOptions, Net, Profile, Running, finished};

/// Who echoes, and who asks and compares; says more at its beginning.
const PROTOCOLS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/protocols.py");

#[test]
fn every_protocol_returns_byte_for_byte_with_every_offload() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    client.up();

    ask_for_all(&net, &exit, &client, Merged::Yes);

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
    let directory = tempfile::Builder::new().prefix("wt-").tempdir().unwrap();
    let library = directory.path().join("no_uso.so");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/no_uso.c");
    finished(Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).args([source, "-ldl"])).ok();
    let _daemon = client.run_under(&["env", &format!("LD_PRELOAD={}", library.display())], "info");

    ask_for_all(&net, &exit, &client, Merged::No);

    client.down();
}

#[test]
fn who_asks_hears_of_what_was_changed_and_of_what_was_lost() {
    let Some(net) = Net::new() else { return };
    let ask = |kinds: &str| {
        let finished = net.client.sh(&format!("python3 {PROTOCOLS} ask {kinds} 203.0.113.2"));
        assert!(!finished.succeeded(), "{}", finished.stdout);
        finished.stderr
    };
    {
        let _echo = echo(&net, "spoil");
        for kind in ["udp", "udp-segments", "esp"] {
            let said = ask(kind);
            assert!(said.contains("came back that nobody had sent"), "{kind}: {said}");
        }
        assert!(ask("tcp").contains("TCP brought other bytes back"));
    }
    let _echo = echo(&net, "serve");
    net.filter("ip protocol 47 drop;");
    assert!(ask("gre").contains("gre to 203.0.113.2: lost: 1 of 1"));
}

/// Asks through a tunnel both of whose ends do without these.
fn without(offloads: &[&str]) {
    let Some(net) = Net::new() else { return };
    let off = |profile: Profile, key: &&str| profile.with("transport", key, false);
    let mut exit = Exit::init(&net, &ExitOptions::default());
    exit.configure(|exit| offloads.iter().fold(exit, off));
    exit.run();
    let client = Client::with(&net, &offloads.iter().fold(exit.enrol("laptop"), off));
    client.up();

    ask_for_all(
        &net,
        &exit,
        &client,
        if offloads.contains(&"tun_offload") { Merged::No } else { Merged::Yes },
    );

    client.down();
}

/// Whether the client's TUN takes several UDP datagrams in one write.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Merged {
    Yes,
    No,
}

/// Asks by every protocol over both versions, through the tunnel that is up.
fn ask_for_all(net: &Net, exit: &Exit<'_>, client: &Client<'_>, merged: Merged) {
    let _echo = echo(net, "serve");
    let ask = |kinds: &str, address: &str| {
        println!("{}", client.sh(&format!("python3 {PROTOCOLS} ask {kinds} {address}")));
    };

    // Before TCP, which may be merged with both.
    for address in [Net::INTERNET_V4, Net::INTERNET_V6] {
        ask("udp-segments", address);
    }
    let status = client.status();
    let (writes, packets) =
        (status.number("/totals/tun_writes"), status.number("/totals/tun_written_packets"));
    assert_eq!(
        if packets > writes { Merged::Yes } else { Merged::No },
        merged,
        "{packets} in {writes} writes"
    );
    for address in [Net::INTERNET_V4, Net::INTERNET_V6] {
        ask("all", address);
    }

    for (role, status) in [("exit", exit.status()), ("client", client.status())] {
        assert!(status.number("/totals/tun_read_bytes") > 8_000_000, "{role}: it went around the tunnel");
        assert_eq!(status.drop("tun", "tun_write"), 0, "{role}");
    }
}

fn echo(net: &Net, how: &str) -> Running {
    let mut echo = net.internet.host.start(&["python3", "-u", PROTOCOLS, how]);
    echo.wait_for_output("ready");
    echo
}
