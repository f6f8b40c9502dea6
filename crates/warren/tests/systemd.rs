//! The units of `configs/` under a real systemd.
#![allow(clippy::unwrap_used, reason = "test code")]

use std::path::Path;

use rustix::process::Signal;

use crate::support::rights::{assert_rights_are_few, of_each_thread};
use crate::support::{
    self, Client, Files, HostState, LeakCounter, Net, Profile, Systemd, eventually, seconds,
};

#[test]
fn units_leave_little_to_attack() {
    if !Systemd::is_here() {
        return;
    }
    for (unit, most) in [
        ("warren-exit.service", "20"),
        ("warren@.service", "27"),
        ("warren-down@.service", "25"),
        ("warren-lockdown@.service", "20"),
    ] {
        let file = repository_file(unit);
        let line = format!("systemd-analyze security --offline=true --no-pager --threshold={most} {file}");
        let audit = support::finished(std::process::Command::new("sh").args(["-c", &line]));
        assert!(audit.succeeded(), "{unit} has an exposure above {most} tenths\n{}", audit.stdout);
    }
}

#[test]
fn exit_without_root_carries_traffic_and_comes_back_when_killed() {
    let Some(net) = Net::new() else { return };
    if !Systemd::is_here() {
        return;
    }
    let before = HostState::of(&net.exit);
    let exit = exit_on(&net);
    let client = Client::with(&net, &enrol(&exit, "laptop"));
    client.up();
    client.sh(&format!("curl --fail --silent --max-time 10 http://{}/", Net::INTERNET_V4));

    let killed = exit.main_pid("warren-exit").expect("the exit runs");
    assert_is_no_root_and_has_few_rights(killed);
    support::signal(killed, Signal::KILL);
    eventually(seconds(20), "systemd starts the exit again", || {
        exit.main_pid("warren-exit").is_some_and(|pid| pid != killed) && exit.is_active("warren-exit")
    });
    client.sh(&format!(
        "curl --fail --silent --retry 8 --retry-all-errors --max-time 40 http://{}/",
        Net::INTERNET_V4
    ));

    // An upgrade is a restart: the session and the flows inside it survive.
    let addresses = client.inner_addresses();
    let answers = support::flows::answers(client.warren.host, seconds(8));
    std::thread::sleep(seconds(1));
    exit.run(&["systemctl", "restart", "warren-exit"]).ok();
    let mut answers = answers.join().unwrap();
    answers.push(std::time::Instant::now());
    let outage = answers.windows(2).map(|pair| pair[1] - pair[0]).max().expect("there are answers");
    println!("a restart of the exit is an outage of {outage:?}");
    assert!(outage < seconds(6), "no answer for {outage:?}");
    assert_eq!(client.inner_addresses(), addresses);

    exit.run(&["systemctl", "stop", "warren-exit"]).ok();
    before.assert_same(&HostState::of(&net.exit));
    // Files that root writes for a stopped exit still belong to the exit's user.
    enrol(&exit, "phone");
    let owners = exit.sh("stat --format=%U /var/lib/warren/exit /var/lib/warren/exit/*").ok();
    assert!(owners.lines().all(|owner| owner == "warren"), "{owners}");
    exit.run(&["systemctl", "start", "warren-exit"]).ok();
    client.down();
}

#[test]
fn tunnel_is_started_watched_and_stopped_by_systemd() {
    let Some(net) = Net::new() else { return };
    if !Systemd::is_here() {
        return;
    }
    let mut exit = support::Exit::start(&net);
    let profile = exit.enrol("laptop");
    let before = HostState::of(&net.client);
    let files = units();
    files.write_private("etc/warren/home.toml", &profile.text());
    files.write("etc/systemd/system/warren@.service.d/watchdog.conf", "[Service]\nWatchdogSec=3\n");
    let client = Systemd::boot(&net.client, files);
    let ping = format!("ping -c 1 -W 5 {}", Net::INTERNET_V4);

    client.sh("warren up home").ok();
    assert!(client.is_active("warren@home"));
    client.sh(&ping).ok();
    let again = client.sh("warren up home");
    assert!(again.code == Some(1) && again.stderr.contains("is up already"), "{again:?}");

    // systemd replaces both a killed and a hanging daemon. The old daemon's changes to the host do not prevent the new one from
    // starting.
    for with in [Signal::KILL, Signal::STOP] {
        let pid = client.main_pid("warren@home").expect("the daemon runs");
        support::signal(pid, with);
        eventually(seconds(30), "systemd starts the daemon again", || {
            client.main_pid("warren@home").is_some_and(|other| other != pid)
                && client.is_active("warren@home")
        });
        client.sh(&ping).ok();
    }

    client.sh("warren down home").ok();
    assert!(!client.is_active("warren@home"));
    before.assert_same(&HostState::of(&net.client));
    assert_eq!(client.sh("warren down home").code, Some(3));

    // The unit of a refused client stays active, and the tunnel's traffic stays blocked.
    client.sh("warren up home").ok();
    exit.warren.run("exit client disable laptop").ok();
    let says_refused = || client.property("warren@home", "StatusText").contains("has disabled this client");
    eventually(seconds(20), "the unit says why", says_refused);
    assert!(client.is_active("warren@home") && !client.sh(&ping).succeeded());
    assert_eq!(client.property("warren@home", "NRestarts"), "0");
    client.sh("warren down home").ok();
    before.assert_same(&HostState::of(&net.client));
    // The same for a client that is refused at boot. It connects once it is enabled.
    client.sh("systemctl start --no-block warren@home").ok();
    // Until the unit starts, its status is that of the previous run.
    let starts = || client.property("warren@home", "ActiveState") == "activating";
    eventually(seconds(20), "the unit starts", starts);
    eventually(seconds(20), "the unit says why", says_refused);
    assert!(starts());
    assert!(!client.sh(&ping).succeeded(), "nothing leaves");
    exit.warren.run("exit client enable laptop").ok();
    client.sh("warren up home").ok();
    client.sh(&ping).ok();
    assert!(client.is_active("warren@home"));
    assert_eq!(client.property("warren@home", "NRestarts"), "0");
    client.sh("warren down home").ok();
    before.assert_same(&HostState::of(&net.client));

    exit.warren.run("exit client remove laptop").ok();
    let refused = client.sh("warren up home");
    assert_eq!(refused.code, Some(4), "{refused:?}");
    assert!(refused.stderr.contains("does not know this client's key"), "{refused:?}");
    exit.stop(Signal::TERM);
    let silent = client.sh("warren up home --timeout 1s");
    assert_eq!(silent.code, Some(5), "{silent:?}");
    assert!(!client.is_active("warren@home"));
    before.assert_same(&HostState::of(&net.client));
}

#[test]
fn a_unit_with_the_drop_in_of_the_guide_is_inside_as_is_a_user_that_the_profile_names() {
    let Some(net) = Net::new() else { return };
    if !Systemd::is_here() {
        return;
    }
    let exit = support::Exit::start(&net);
    let profile = exit.enrol("laptop").with("routes", "include", vec!["10.9.0.0/16"]);
    let files = units();
    files.write_private("etc/warren/home.toml", &profile.with("exec", "users", vec!["nobody"]).text());
    let ask = "curl -sS --max-time 10 http://203.0.113.2/address";
    files.write(
        "etc/systemd/system/web.service",
        &format!(
            "[Service]\nExecStart=/bin/sh -c 'while :; do {ask} >>/run/web; echo >>/run/web; sleep 0.2; done'\n"
        ),
    );
    let drop_in = guide_drop_in();
    let client = Systemd::boot(&net.client, files);
    let seen = || client.sh("cat /run/web").stdout;
    let clear = || client.sh("true >/run/web").ok();

    // Control: without the drop-in, the unit is outside.
    client.sh("warren up home").ok();
    client.sh("systemctl start web").ok();
    eventually(seconds(20), "the unit has asked", || seen().contains(Net::CLIENT_V4));
    client.sh("systemctl stop web").ok();
    clear();

    let write =
        "mkdir -p /etc/systemd/system/web.service.d && cat >/etc/systemd/system/web.service.d/override.conf";
    client.sh(&format!("{write} <<'END'\n{drop_in}END\nsystemctl daemon-reload && systemctl start web")).ok();
    eventually(seconds(20), "the unit is inside", || seen().contains(Net::EXIT_V4));
    assert!(!seen().contains(Net::CLIENT_V4), "{}", seen());

    // The unit is inside again after the daemon was killed and started again, and it was never outside meanwhile.
    let pid = client.main_pid("warren@home").expect("the daemon runs");
    support::signal(pid, Signal::KILL);
    eventually(seconds(30), "systemd starts the daemon again", || {
        client.main_pid("warren@home").is_some_and(|other| other != pid) && client.is_active("warren@home")
    });
    client.sh("systemctl restart web").ok();
    clear();
    eventually(seconds(30), "the unit is inside again", || seen().contains(Net::EXIT_V4));
    assert!(!seen().contains(Net::CLIENT_V4), "{}", seen());

    // A daemon that is run by the unit may inspect other users' processes and move them into a cgroup.
    let user = format!("setpriv --reuid=65534 --regid=65534 --clear-groups warren exec home -- {ask}");
    assert_eq!(client.sh(&user).ok(), Net::EXIT_V4);

    // If the profile cannot come up, the unit does not start.
    client.sh("systemctl stop web && warren down home").ok();
    client.sh("mv /etc/warren/home.toml /etc/warren/none").ok();
    assert!(!client.sh("systemctl start web").succeeded());
    clear();
    std::thread::sleep(seconds(1));
    assert_eq!(seen(), "");
}

/// The drop-in in docs/exec.md.
fn guide_drop_in() -> String {
    let guide = support::daemon::repository().join("docs/exec.md");
    let guide = std::fs::read_to_string(guide).unwrap();
    let (_, behind) = guide.split_once("```ini\n[Unit]\n").expect("the guide has a drop-in");
    let (drop_in, _) = behind.split_once("```").unwrap();
    format!("[Unit]\n{drop_in}")
}

#[test]
fn a_restarted_journal_hears_the_daemon_again() {
    let Some(net) = Net::new() else { return };
    if !Systemd::is_here() {
        return;
    }
    let exit = exit_on(&net);
    // Each reload writes one log line.
    let lines = || exit.journal("warren-exit").matches("configuration read again").count();
    let logs = |how: &str| {
        let before = lines();
        exit.sh("warren reload exit").ok();
        eventually(seconds(20), &format!("the exit's log is in the journal {how}"), || lines() > before);
    };
    logs("as ever");

    exit.sh("systemctl restart systemd-journald").ok();
    logs("after a restart");

    // A journal that is stopped drops all its connections. Later log lines reach the new journal.
    let before = lines();
    exit.sh("systemctl stop systemd-journald.socket systemd-journald-dev-log.socket systemd-journald").ok();
    exit.sh("warren reload exit").ok();
    exit.sh("systemctl start systemd-journald.socket systemd-journald").ok();
    eventually(seconds(20), "lines logged meanwhile are in the new journal", || lines() > before);
    logs("after a stop and a start");

    // The service manager has received the daemon's notifications all along, and still does at the end.
    assert_eq!(exit.property("warren-exit", "StatusText"), "serving clients");
    exit.run(&["systemctl", "stop", "warren-exit"]).ok();
    assert_eq!(exit.property("warren-exit", "Result"), "success");
}

#[test]
fn kill_switch_is_closed_before_the_network_and_opened_by_down() {
    let Some(net) = Net::new() else { return };
    if !Systemd::is_here() {
        return;
    }
    let exit = support::Exit::start(&net);
    let profile = exit.enrol("laptop").with("kill_switch", "enabled", true);
    let ping = format!("ping -c 1 -W 2 {}", Net::INTERNET_V4);
    net.client.sh(&ping).ok();
    let files = units();
    files.write_private("etc/warren/home.toml", &profile.text());
    files.enable("warren-lockdown", "home", "sysinit.target");
    let client = Systemd::boot(&net.client, files);

    let active_since = |unit| {
        let since = client.property(unit, "ActiveEnterTimestampMonotonic");
        since.parse::<u64>().ok().filter(|since| *since > 0).expect("the unit is active")
    };
    assert!(active_since("warren-lockdown@home") < active_since("network-pre.target"));
    assert!(!client.sh(&ping).succeeded(), "nothing leaves after boot");
    client.sh("warren up home").ok();
    client.sh(&ping).ok();

    // Stopping the units does not open the kill switch.
    client.run(&["systemctl", "stop", "warren@home", "warren-lockdown@home"]).ok();
    assert!(!client.sh(&ping).succeeded(), "nothing leaves once the unit has stopped");
    client.sh("warren down home").ok();
    client.sh(&ping).ok();
}

#[test]
fn kill_switch_outlives_restarts_of_the_firewall_and_of_its_own_service() {
    let Some(net) = Net::new() else { return };
    if !Systemd::is_here() || !Path::new(NFTABLES_SERVICE).exists() {
        return;
    }
    let exit = support::Exit::start(&net);
    let profile = exit.enrol("laptop").with("kill_switch", "enabled", true);
    let files = units();
    files.write_private("etc/warren/home.toml", &profile.text());
    files.write("etc/systemd/system/nftables.service", &std::fs::read_to_string(NFTABLES_SERVICE).unwrap());
    files.write("etc/nftables.conf", "#!/usr/sbin/nft -f\n\nflush ruleset\n");
    files.enable("warren-lockdown", "home", "sysinit.target");
    files.enable_plain("nftables", "sysinit.target");
    let client = Systemd::boot(&net.client, files);
    let leaks = LeakCounter::start(&net);
    let table = "nft list table inet warren-kill-switch_home";
    leaks.assert_none("after boot");

    for line in ["systemctl restart nftables", "systemctl reload nftables", "nft flush ruleset"] {
        client.sh(line).ok();
        eventually(seconds(2), line, || client.sh(table).succeeded());
        leaks.assert_none(line);
    }
    let killed = client.main_pid("warren-lockdown@home").expect("the service runs");
    support::signal(killed, Signal::KILL);
    client.sh("nft flush ruleset").ok();
    eventually(seconds(20), "systemd starts the service again", || client.sh(table).succeeded());
    leaks.assert_none("the service was killed");

    // The same while a daemon runs, which also restores the table.
    client.sh("warren up home").ok();
    client.sh("systemctl restart nftables").ok();
    eventually(seconds(2), "it is closed again", || client.sh(table).succeeded());
    leaks.assert_none("with a daemon as well");
    assert!(!client.journal("warren@home").contains("cannot"), "{}", client.journal("warren@home"));

    client.sh("systemctl stop warren@home warren-lockdown@home").ok();
    leaks.assert_none("both units have stopped");
    client.sh("systemctl start warren-lockdown@home").ok();
    client.sh("warren down home").ok();
    // The lockdown service is notified of this change, but does not close the kill switch, because it was opened by a command.
    client.sh("systemctl restart nftables").ok();
    leaks.assert_all("opened by `down`, which the service knows");
    let before = client.main_pid("warren-lockdown@home").expect("the service runs on");
    support::signal(before, Signal::KILL);
    eventually(seconds(20), "systemd starts the service again", || {
        client.main_pid("warren-lockdown@home").is_some_and(|pid| pid != before)
            && client.is_active("warren-lockdown@home")
    });
    leaks.assert_all("the open kill switch stays open");
}

/// The unit that Debian's nftables package installs.
const NFTABLES_SERVICE: &str = "/usr/lib/systemd/system/nftables.service";

#[test]
fn what_a_power_cut_left_in_etc_is_put_right_at_boot_and_the_kill_switch_closes() {
    let Some(net) = Net::new() else { return };
    if !Systemd::is_here() {
        return;
    }
    let exit = support::Exit::start(&net);
    let profile =
        exit.enrol("laptop").with("kill_switch", "enabled", true).with("dns", "servers", vec!["203.0.113.2"]);
    let ping = format!("ping -c 3 -i 0.2 -W 2 {}", Net::INTERNET_V4);
    let files = units();
    files.write("etc/resolv.conf", "# mine\nnameserver 203.0.113.2\n");
    files.write_private("etc/warren/home.toml", &profile.text());
    files.enable("warren-lockdown", "home", "sysinit.target");
    files.enable_plain("warren-cleanup", "sysinit.target");
    let client = Systemd::boot(&net.client, files);
    client.sh("warren up home").ok();
    client.sh(&ping).ok();

    let files = client.cut_power();
    let left = std::fs::read_to_string(files.path("etc/resolv.conf")).unwrap();
    assert!(left.contains("warren"), "the daemon left this behind: {left}");
    net.client.sh(&ping).ok();
    let client = Systemd::boot(&net.client, files);

    assert_eq!(client.sh("cat /etc/resolv.conf").stdout, "# mine\nnameserver 203.0.113.2\n");
    assert!(!client.sh(&ping).succeeded(), "nothing leaves after boot");
    client.sh("warren up home").ok();
    client.sh(&ping).ok();
    client.sh("warren down home").ok();
    client.sh(&ping).ok();
}

/// A host with Warren's units, none of them enabled.
pub(crate) fn units() -> Files {
    let files = Files::new();
    for unit in [
        "warren-exit.service",
        "warren@.service",
        "warren-down@.service",
        "warren-lockdown@.service",
        "warren-cleanup.service",
    ] {
        let text = std::fs::read_to_string(repository_file(unit)).unwrap();
        files.write(&format!("etc/systemd/system/{unit}"), &text);
    }
    let user = std::fs::read_to_string(repository_file("warren.sysusers")).unwrap();
    files.write("usr/lib/sysusers.d/warren.conf", &user);
    files
}

/// The net's exit, run by its unit.
fn exit_on(net: &Net) -> Systemd<'_> {
    let exit = Systemd::boot(&net.exit, units());
    exit.sh("systemd-sysusers").ok();
    exit.sh(&format!("warren exit init --endpoint {}", Net::EXIT_V4)).ok();
    exit.sh(&format!("echo '{}' >> /etc/warren/exit.toml", Net::ALLOW_INTERNET)).ok();
    exit.sh("systemctl start warren-exit").ok();
    exit
}

fn enrol(exit: &Systemd<'_>, name: &str) -> Profile {
    Profile::parse(&exit.sh(&format!("warren exit client add {name}")).ok())
}

/// Checks that a process does not run as root, has few capabilities and cannot gain others.
fn assert_is_no_root_and_has_few_rights(pid: i32) {
    assert_rights_are_few(pid);
    for user in of_each_thread(pid, "Uid:") {
        assert_ne!(user, "0");
    }
}

pub(crate) fn repository_file(name: &str) -> String {
    support::daemon::repository().join("configs").join(name).to_str().unwrap().to_owned()
}
