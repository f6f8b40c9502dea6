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

/// An nft that gives no answer after it has loaded the table that `/run/nft-silent` names.
const SILENT: &str = r#"#!/bin/sh
case " $* " in *' -i '*) echo 'This binary was built without it.'; exit 1;; esac
case " $* " in *' -f '*) ;; *) exec /usr/sbin/nft "$@";; esac
what=$(cat /run/nft-silent)
input=$(cat)
printf '%s
' "$input" | /usr/sbin/nft "$@" || exit 1
case "$input" in *"$what"*) touch /run/nft-loaded; exec sleep 60;; esac
"#;

/// An nft that gives no answer to anything once it has loaded a kill switch.
const DYING: &str = r#"#!/bin/sh
case " $* " in *' -i '*) echo 'This binary was built without it.'; exit 1;; esac
if [ -e /run/nft-dead ]; then exec sleep 60; fi
case " $* " in *' -f '*) ;; *) exec /usr/sbin/nft "$@";; esac
input=$(cat)
printf '%s
' "$input" | /usr/sbin/nft "$@" || exit 1
case "$input" in *'warren-kill-switch_'*) touch /run/nft-dead; exec sleep 60;; esac
"#;

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

/// nft has loaded the table, but gives no answer.
#[test]
fn a_table_that_the_kernel_has_although_nft_gave_no_answer_is_deleted() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let files = net.client.own_files();
    files.program("nft", SILENT);
    let silent_at = |what: &str| std::fs::write(files.run().join("nft-silent"), what).unwrap();
    let tables = || net.client.sh("/usr/sbin/nft list tables").ok();
    let guarded = exit.enrol("guarded").with("kill_switch", "enabled", true);
    // This client makes only one table, because it sets no resolvers.
    let split = exit.enrol("split").with("routes", "include", vec!["10.9.0.0/16"]);
    let split = split.with("dns", "servers", Vec::<String>::new());
    for (profile, table) in [(&guarded, "warren-kill-switch_home"), (&split, "warren_home")] {
        let client = Client::with(&net, profile);
        silent_at(&format!("table inet {table} {{"));
        let failed = client.warren.run("up home");
        let loaded = files.run().join("nft-loaded");
        assert!(!failed.succeeded() && loaded.exists(), "the control: {table} was loaded: {failed:?}");
        assert_eq!(tables(), "", "{table} is left behind: {failed:?}");
        std::fs::remove_file(loaded).unwrap();
        silent_at("nothing");
        client.up();
        assert!(tables().contains(table), "{}", tables());
        client.down();
    }
}

/// From the moment on at which the kill switch is closed, nft does nothing more.
#[test]
fn a_kill_switch_that_failed_to_close_and_cannot_be_deleted_either_counts_as_closed() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let files = net.client.own_files();
    files.program("nft", DYING);
    let client = Client::with(&net, &exit.enrol("laptop").with("kill_switch", "enabled", true));
    let tables = || client.sh("/usr/sbin/nft list tables");

    let failed = client.warren.run("up home");
    assert!(!failed.succeeded() && tables().contains("warren-kill-switch_home"), "the control: {failed:?}");
    files.program("nft", "#!/bin/sh\nexec /usr/sbin/nft \"$@\"\n");
    let opened = client.warren.run("down home");

    assert!(opened.succeeded() && tables().is_empty(), "{opened:?} {}", tables());
    client.assert_host_unchanged();
}

/// The runs of nft so far, without those that only listed tables, which are the client's checks of the host.
fn runs(host: &Namespace) -> Vec<String> {
    let noted = std::fs::read_to_string(host.own_files().run().join("nft-runs")).unwrap();
    noted.lines().filter(|line| !line.contains("list")).map(str::to_owned).collect()
}
