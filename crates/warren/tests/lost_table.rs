//! An exit that loses its firewall table, because the process that owns the table was killed. Other programs cannot remove it.

use rustix::process::Signal;

use crate::support::{Client, Exit, ExitOptions, Net, eventually, seconds, signal};

const FORWARDING: &str = "cat /proc/sys/net/ipv4/ip_forward /proc/sys/net/ipv6/conf/all/forwarding";

#[test]
fn an_exit_without_its_table_ends_and_forwards_no_more() {
    let Some(net) = Net::new() else { return };
    net.exit.sh("sysctl -qw net.ipv4.ip_forward=0 net.ipv6.conf.all.forwarding=0").ok();
    let before = net.exit.sh(FORWARDING).ok();
    let mut exit = Exit::init(&net, &ExitOptions::default());
    exit.run();
    let client = Client::with(&net, &exit.enrol("laptop"));
    client.up();
    // The controls: the exit forwards, and other programs' commands do not touch the table.
    let reaches = || client.warren.host.sh(&format!("ping -c 1 -W 1 {}", Net::INTERNET_V4)).succeeded();
    assert!(reaches());
    assert_ne!(net.exit.sh(FORWARDING).ok(), before);
    assert!(!net.exit.sh("nft delete table inet warren_exit").succeeded());
    assert!(reaches());

    let owners: Vec<i32> = net.exit.pids().into_iter().filter(|pid| is_nft(*pid)).collect();
    assert!(!owners.is_empty(), "a process owns the table");
    owners.iter().for_each(|owner| signal(*owner, Signal::KILL));

    assert_eq!(exit.daemon().wait(seconds(10)), Some(1), "{}", exit.daemon().output());
    assert!(exit.daemon().output().contains("nftables table is gone"), "{}", exit.daemon().output());
    eventually(seconds(10), "forwarding is as before", || net.exit.sh(FORWARDING).ok() == before);
    assert!(!reaches());
    client.down();
}

fn is_nft(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "nft")
}
