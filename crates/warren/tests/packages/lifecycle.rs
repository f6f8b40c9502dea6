//! Tests what installing, reinstalling, upgrading under traffic, removing and purging leave on a host.

use std::collections::BTreeSet;

use super::debian::{self, Package, files_of, typed};
use crate::support::{HostState, Net, Systemd, asked, flows, seconds};

#[test]
#[ignore = "takes a minute and a download of Debian"]
fn purge_leaves_what_was_before_and_remove_only_what_is_the_users() {
    let Some(net) = Net::new() else { return };
    if !Systemd::is_here() {
        return;
    }
    let package = Package::of_this_build("1.0-1");
    let host = debian::boot(&net.exit, &[&package]);
    typed(&host, "apt-get -q install -y nftables").ok();
    // Many links were removed from this directory so that few units start. dpkg would remove it if it were empty.
    host.sh("touch /usr/lib/systemd/system/sysinit.target.wants/.keep").ok();
    let before = files_of(&host);
    let state = HostState::of(&net.exit);

    install(&host, &package);
    let installed = files_of(&host);
    install(&host, &package);
    assert_same(&installed, &files_of(&host), "installed twice");
    assert_eq!(
        host.sh("systemctl is-enabled warren-exit || true").ok(),
        "disabled",
        "nothing starts on its own"
    );
    assert_eq!(host.sh("systemctl list-units --failed --plain --no-legend 'warren*'").ok(), "");

    typed(&host, "warren exit init --endpoint exit.example.net && systemctl enable --now warren-exit").ok();
    typed(&host, "warren exit client add laptop --output laptop.toml").ok();
    typed(&host, "apt-get -q remove -y warren").ok();
    state.assert_same(&HostState::of(&net.exit));
    assert_eq!(host.main_pid("warren-exit"), None);
    let left: BTreeSet<String> = files_of(&host).difference(&before).map(|line| path_of(line)).collect();
    assert_eq!(Vec::from_iter(&left), LEFT_BY_REMOVE, "left by remove");

    // Installing again uses the files that were kept.
    install(&host, &package);
    host.sh("systemctl start warren-exit").ok();
    assert!(typed(&host, "warren exit client list").ok().contains("laptop"));

    typed(&host, "apt-get -q purge -y warren").ok();
    state.assert_same(&HostState::of(&net.exit));
    assert_same(&before, &files_of(&host), "purged");
    println!(
        "measured: {} files installed, {} left by remove, 0 by purge",
        installed.len() - before.len(),
        left.len()
    );
}

#[test]
#[ignore = "takes a minute and a download of Debian"]
fn the_package_of_a_fleet_starts_nothing_by_itself_and_purge_leaves_neither_a_secret_nor_an_enabled_unit() {
    let Some(net) = Net::new() else { return };
    if !Systemd::is_here() {
        return;
    }
    let Some(fleet) = Package::of_fleet("1.0-1") else { return };
    let warren = Package::of_this_build("1.0-1");
    let host = debian::boot(&net.exit, &[&warren, &fleet]);
    typed(&host, "apt-get -q install -y nftables").ok();
    host.sh("touch /usr/lib/systemd/system/sysinit.target.wants/.keep").ok();
    let before = files_of(&host);
    typed(&host, &format!("apt-get -q install -y ./{}", warren.name())).ok();
    let with_warren = files_of(&host);

    install(&host, &fleet);
    assert_eq!(host.sh("systemctl is-enabled warren-fleet || true").ok(), "disabled");
    assert_eq!(host.sh("id -nG warren").ok(), "warren warren-fleet", "the exit gives its socket to the link");
    assert!(
        host.sh("warren fleet --help").ok().contains("Usage: warren fleet"),
        "the command finds the program"
    );

    // The store cannot be reached. The link runs nevertheless, and keeps trying.
    let config = "fleet = \"fleet\"\nexit = \"ams1\"\n[store]\nendpoints = [\"http://127.0.0.1:1\"]\n";
    let set_up = format!(
        "mkdir /etc/warren/fleet && echo secret >/etc/warren/fleet/store.key && printf '{config}' >/etc/warren/fleet.toml && \
         systemctl enable --now warren-fleet"
    );
    typed(&host, &set_up).ok();
    let first = host.main_pid("warren-fleet").expect("the link runs");
    install(&host, &fleet);
    assert_ne!(host.main_pid("warren-fleet"), Some(first), "an upgrade restarts the link");

    typed(&host, "apt-get -q remove -y warren-fleet").ok();
    assert_eq!(host.main_pid("warren-fleet"), None);
    assert!(
        host.sh("ls /etc/warren/fleet/store.key /etc/warren/fleet.toml").succeeded(),
        "remove keeps what is the user's"
    );
    install(&host, &fleet);
    assert!(host.main_pid("warren-fleet").is_some(), "the unit is still enabled, so it runs again");
    typed(&host, "systemctl disable --now warren-fleet").ok();
    install(&host, &fleet);
    assert_eq!(host.main_pid("warren-fleet"), None, "the control: a unit that is not enabled");
    typed(&host, "systemctl enable --now warren-fleet").ok();
    typed(&host, "apt-get -q purge -y warren-fleet").ok();
    assert_same(&with_warren, &files_of(&host), "the link is purged");

    // The other way round: warren is purged while the link is removed but not purged.
    install(&host, &fleet);
    typed(&host, &set_up).ok();
    typed(&host, "apt-get -q remove -y warren-fleet && apt-get -q purge -y warren").ok();
    let left =
        host.sh("find /etc/systemd /etc/warren /var/lib/warren -name '*fleet*' 2>/dev/null || true").ok();
    assert_eq!(left, "", "purging warren leaves neither a secret nor an enabled unit");
    typed(&host, "dpkg --purge warren-fleet").ok();
    assert_same(&before, &files_of(&host), "both are purged");
}

#[test]
#[ignore = "takes minutes and a download of Debian"]
fn upgrade_restarts_the_exit_under_its_clients_and_leaves_a_client_alone() {
    let Some(net) = Net::new() else { return };
    if !Systemd::is_here() {
        return;
    }
    let packages = ["1.0-1", "1.0-2"].map(Package::of_this_build);
    let [exit, client] = [&net.exit, &net.client].map(|host| debian::boot(host, &packages.each_ref()));
    let before = HostState::of(&net.client);
    for host in [&exit, &client] {
        typed(host, &format!("apt-get -q install -y ./{}", packages[0].name())).ok();
    }
    typed(&exit, "warren exit init --endpoint exit.example.net && systemctl enable --now warren-exit").ok();
    debian::allow_internet(&exit);
    let invitation = typed(&exit, "warren exit invite laptop").ok();
    typed(&client, &invitation).ok();
    typed(&client, "warren up laptop --kill-switch").ok();

    // The upgrading user may be logged in through the client's tunnel.
    let daemon = client.main_pid("warren@laptop").expect("the client runs");
    let said = typed(&client, &format!("apt-get -q install -y ./{}", packages[1].name())).ok();
    assert!(said.contains("warren@laptop.service goes on with the earlier version"), "{said}");
    assert_eq!(client.main_pid("warren@laptop"), Some(daemon), "the client was not restarted");

    let count: usize = asked("WARREN_UPGRADES").unwrap_or(3);
    let mut outages = Vec::new();
    let tcp = flows::TcpFlows::open(&net, 20);
    let mut alive = 20;
    for round in 0..count {
        let earlier = exit.main_pid("warren-exit").expect("the exit runs");
        let answers = flows::answers(&net.client, seconds(10));
        std::thread::sleep(seconds(1));
        typed(&exit, &format!("dpkg -i {}", packages[(round + 1) % 2].name())).ok();
        assert_ne!(exit.main_pid("warren-exit"), Some(earlier), "the exit was restarted");
        outages.push(flows::longest_gap(&answers.join().unwrap()));
        alive = alive.min(tcp.alive());
    }
    outages.sort_unstable();
    let nearly_worst = outages[(count * 95).div_ceil(100) - 1];
    println!(
        "measured: {count} upgrades of the exit, outage {nearly_worst:?} at the 95th percentile of {outages:?}, \
         {alive} of 20 TCP flows alive"
    );
    assert!(nearly_worst < seconds(if count >= 20 { 3 } else { 6 }), "{outages:?}");
    assert!(alive >= 19, "only {alive} of 20 TCP flows survive");

    // Removing the package opens the kill switch, because no program could open it afterwards.
    typed(&client, "apt-get -q remove -y warren").ok();
    before.assert_same(&HostState::of(&net.client));
    let seen =
        client.sh(&format!("curl -sS --retry 3 --max-time 10 http://{}/address", Net::INTERNET_V4)).ok();
    assert_eq!(seen, Net::CLIENT_V4, "the internet is reached without the tunnel");
}

fn install(host: &Systemd<'_>, package: &Package) {
    typed(host, &format!("apt-get -q install -y --reinstall ./{}", package.name())).ok();
}

#[track_caller]
fn assert_same(before: &BTreeSet<String>, after: &BTreeSet<String>, when: &str) {
    let more: Vec<_> = after.difference(before).collect();
    let fewer: Vec<_> = before.difference(after).collect();
    assert!(more.is_empty() && fewer.is_empty(), "{when}: more {more:#?}, fewer {fewer:#?}");
}

/// The path in a line of [`files_of`].
fn path_of(line: &str) -> String {
    line.split(' ').nth(2).unwrap_or_default().to_owned()
}

/// Configuration, key, clients, and the link that starts the exit at boot.
const LEFT_BY_REMOVE: [&str; 10] = [
    "/etc/systemd/system/multi-user.target.wants",
    "/etc/systemd/system/multi-user.target.wants/warren-exit.service",
    "/etc/warren",
    "/etc/warren/exit.key",
    "/etc/warren/exit.toml",
    "/var/lib/warren",
    "/var/lib/warren/exit",
    "/var/lib/warren/exit/clients.store",
    "/var/lib/warren/exit/clients.toml.lock",
    "/var/lib/warren/exit/reset.key",
];
