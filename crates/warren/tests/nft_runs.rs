//! Tests how often a client starts nft, that a client works with an nft without interactive mode, and that it does not wait for
//! nft processes to end.

#![allow(clippy::unwrap_used, reason = "test code")]

use std::time::{Duration, Instant};

use crate::support::{Client, Exit, Namespace, Net};

/// An nft that records each run with its options, and then runs the real nft.
const COUNTED: &str = "#!/bin/sh\necho \"$@\" >> /run/nft-runs\nexec /usr/sbin/nft \"$@\"\n";

/// An nft that was built without an interactive mode.
const NOT_INTERACTIVE: &str = "#!/bin/sh\ncase \" $* \" in *' -i '*) echo 'This binary was built without it.'; exit 1;; esac\n\
                               exec /usr/sbin/nft \"$@\"\n";

/// An nft that takes long to end, unless it only lists tables. A real nft that has deleted a table also ends late: it waits until
/// the kernel has freed the table.
const SLOW_END: &str = "#!/bin/sh\ncase \"$*\" in *list*) exec /usr/sbin/nft \"$@\";; esac\n/usr/sbin/nft \"$@\"; code=$?\nsleep 2\nexit $code\n";

const GUARD: &str = "nft list table inet warren-dns_home";

#[test]
fn a_client_starts_one_nft_for_all_that_it_changes() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    std::fs::write(net.client.own_files().run().join("nft-runs"), "").unwrap();
    net.client.own_files().program("nft", COUNTED);
    let client = Client::with(&net, &exit.enrol("laptop"));
    let host = &client.warren.host;

    client.up();
    let at_start = runs(host);
    client.sh(GUARD);
    client.warren.run("down home").ok();
    let after = runs(host);

    assert_eq!(at_start, ["-s -i"]);
    // There was no further run, because the nft process that owns the DNS guard's table has deleted all tables.
    assert_eq!(after, at_start);
    client.assert_host_unchanged();
}

#[test]
fn without_an_interactive_nft_a_client_comes_up_and_leaves_no_trace() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    net.client.own_files().program("nft", NOT_INTERACTIVE);
    let client = Client::with(&net, &exit.enrol("laptop").with("kill_switch", "enabled", true));

    client.up();
    client.sh("curl -sS --retry 3 --retry-all-errors --max-time 20 http://203.0.113.2/address");
    for table in
        ["inet warren_home", "arp warren_home", "inet warren-dns_home", "inet warren-kill-switch_home"]
    {
        client.sh(&format!("/usr/sbin/nft list table {table}"));
    }
    client.down();
    client.assert_host_unchanged();
}

#[test]
fn nobody_waits_for_the_end_of_an_nft_and_the_next_start_succeeds_at_once() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    net.client.own_files().program("nft", SLOW_END);
    let client = Client::with(&net, &exit.enrol("laptop"));
    let host = &client.warren.host;
    client.up();

    let began = Instant::now();
    client.warren.run("down home").ok();
    let took = began.elapsed();
    assert!(took < Duration::from_secs(2), "down took {took:?}");
    assert!(!host.sh("/usr/sbin/nft list tables").stdout.contains("warren"), "nothing is left");
    client.up();
    client.sh("curl -sS --retry 3 --retry-all-errors --max-time 20 http://203.0.113.2/address");
    client.down();
    client.assert_host_unchanged();
}

/// The runs of nft so far, without those that only listed tables, which are the client's checks of the host.
fn runs(host: &Namespace) -> Vec<String> {
    let noted = std::fs::read_to_string(host.own_files().run().join("nft-runs")).unwrap();
    noted.lines().filter(|line| !line.contains("list")).map(str::to_owned).collect()
}
