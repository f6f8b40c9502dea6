//! An exit of a fleet and its link under systemd, each as a user of its own, with a real etcd on the same host.
#![allow(clippy::unwrap_used, reason = "test code")]

use std::path::Path;

use crate::support::etcd::program;
use crate::support::{Net, Systemd, eventually, seconds};
use crate::systemd::{repository_file, units};

#[test]
fn the_units_link_an_exit_to_etcd_and_the_link_comes_back_when_killed() {
    let Some(net) = Net::new() else { return };
    let Some(etcd) = program("etcd").filter(|_| Systemd::is_here()) else { return };
    let files = units();
    for (from, to) in [
        ("warren-fleet.service", "etc/systemd/system/warren-fleet.service"),
        ("warren-fleet.sysusers", "usr/lib/sysusers.d/warren-fleet.conf"),
    ] {
        files.write(to, &std::fs::read_to_string(repository_file(from)).unwrap());
    }
    let link = Path::new(env!("CARGO_BIN_EXE_warren")).with_file_name("warren-fleet");
    for (program, name) in [(link, "warren-fleet"), (etcd, "etcd")] {
        files.write(&format!("usr/bin/{name}"), "");
        std::fs::copy(program, files.path(&format!("usr/bin/{name}"))).unwrap();
    }
    let exit = Systemd::boot(&net.exit, files);
    exit.sh("systemd-sysusers").ok();
    exit.sh("systemd-run --unit store --property StateDirectory=store etcd --data-dir /var/lib/store").ok();
    exit.sh(&format!("warren exit init --endpoint {}", Net::EXIT_V4)).ok();
    exit.sh("systemctl start warren-exit && warren exit invite laptop && systemctl stop warren-exit").ok();

    let begin = "warren fleet init --exit ams1 --store http://127.0.0.1:2379";
    eventually(seconds(20), "the store has answered", || exit.sh(begin).succeeded());
    exit.sh("printf '\n[fleet]\nname = \"ams1\"\n' >> /etc/warren/exit.toml").ok();
    exit.sh("systemctl start warren-exit warren-fleet").ok();

    let store = || exit.sh("warren status exit --json").stdout.contains("\"store\": \"reachable\"");
    eventually(seconds(20), "the exit is linked to the store", store);
    exit.sh("warren exit invite phone").ok();
    let status = exit.sh("warren fleet status").ok();
    assert!(status.contains("2 invitations") && status.contains("ams1"), "{status}");
    for (unit, user) in [("warren-exit", "warren"), ("warren-fleet", "warren-fleet")] {
        let pid = exit.property(unit, "MainPID");
        assert_eq!(exit.sh(&format!("ps -o user:20= -p {pid}")).ok().trim(), user);
    }

    let before = exit.property("warren-fleet", "MainPID");
    exit.sh("systemctl kill --signal KILL warren-fleet").ok();
    eventually(seconds(20), "the link is back", || {
        let now = exit.property("warren-fleet", "MainPID");
        now != before && exit.is_active("warren-fleet") && exit.sh("warren exit invite tablet").succeeded()
    });
}
