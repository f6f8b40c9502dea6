//! Members of the group warren can read the status, and bring tunnels up and down through systemd. Other users cannot. The real
//! polkit decides by the rule in `configs/`.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

use std::path::Path;

use crate::support::{Exit, Finished, HostState, LeakCounter, Net, Profile, Systemd, eventually, seconds};
use crate::systemd::{repository_file, units};

#[test]
fn members_see_the_status_and_bring_tunnels_up_and_down_and_others_get_nothing() {
    let Some(net) = Net::new() else { return };
    if !is_polkit_here() {
        return;
    }
    let exit = Exit::start(&net);
    let before = HostState::of(&net.client);
    let client = boot(&net, &exit.enrol("laptop"));

    for line in ["warren up home", "warren status home", "warren down home", "systemctl start warren@home"] {
        let refused = run_as(&client, "stranger", line);
        assert!(refused.code != Some(0), "{refused:?}");
    }
    let refused = run_as(&client, "stranger", "warren up home").stderr;
    assert!(
        refused.contains("may not start warren@home") && refused.contains("usermod -aG warren"),
        "{refused}"
    );
    assert!(!client.is_active("warren@home"), "the control");

    let up = run_as(&client, "member", "warren up home").ok();
    assert!(up.starts_with("connected to home"), "{up}");
    client.sh(&format!("ping -c 1 -W 5 {}", Net::INTERNET_V4)).ok();
    let again = run_as(&client, "member", "warren up home");
    assert!(again.stderr.contains("home is up already"), "{again:?}");
    for line in ["warren status", "warren status home --json"] {
        let status = run_as(&client, "member", line).ok();
        assert!(status.contains("home") && status.contains("up"), "{status}");
        assert!(run_as(&client, "stranger", line).code != Some(0));
    }

    // A member can read the status, but cannot do anything else by the control socket.
    for line in [
        "warren set congestion cubic --profile home",
        "warren reload home",
        "systemctl stop warren@home",
        "systemctl restart warren@home",
        "systemctl start warren-cleanup",
        "cat /run/warren/home/journal",
        "ls /run/warren/home",
        "cat /etc/warren/home.toml",
        "warren up home --kill-switch",
        "warren down --all",
    ] {
        let refused = run_as(&client, "member", line);
        assert!(refused.code != Some(0), "{line}: {refused:?}");
    }
    assert!(client.is_active("warren@home"));
    // The exit's own user is also in the group.
    assert!(run_as(&client, "warren", "systemctl start warren-down@home").code != Some(0));

    run_as(&client, "member", "warren down home").ok();
    assert!(!client.is_active("warren@home"));
    before.assert_same(&HostState::of(&net.client));
    assert_eq!(run_as(&client, "member", "warren down home").code, Some(3));
}

#[test]
fn members_open_a_kill_switch_only_if_the_profile_lets_them() {
    let Some(net) = Net::new() else { return };
    if !is_polkit_here() {
        return;
    }
    let exit = Exit::start(&net);
    let profile = exit.enrol("laptop").with("kill_switch", "enabled", true);
    let client = boot(&net, &profile);
    let leaks = LeakCounter::start(&net);
    let ping = format!("ping -c 2 -i 0.2 -W 1 {}", Net::INTERNET_V4);

    run_as(&client, "member", "warren up home").ok();
    let refused = run_as(&client, "member", "warren down home");
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("only root may open it"), "{refused:?}");
    assert!(client.is_active("warren@home"));
    // The kill switch is also closed when no daemon runs.
    client.sh("systemctl stop warren@home").ok();
    let refused = run_as(&client, "member", "warren down home");
    assert!(refused.stderr.contains("only root may open it"), "{refused:?}");
    let before = leaks.leaked();
    assert!(!client.sh(&ping).succeeded());
    assert_eq!(leaks.leaked(), before, "nothing leaves");

    let profile = profile.with("kill_switch", "down", "group").text();
    client.sh(&format!("cat > /etc/warren/home.toml <<'END'\n{profile}\nEND")).ok();
    run_as(&client, "member", "warren down home").ok();
    assert!(client.sh(&ping).succeeded() && leaks.leaked() > before, "the control: it is open");
}

/// A host with the profile `home`, polkit, a member of the group and a stranger.
fn boot<'net>(net: &'net Net, profile: &Profile) -> Systemd<'net> {
    let files = units();
    files.write_private("etc/warren/home.toml", &profile.text());
    let rule = std::fs::read_to_string(repository_file("warren.rules")).unwrap();
    files.write("usr/share/polkit-1/rules.d/50-warren.rules", &rule);
    let client = Systemd::boot(&net.client, files);
    client.sh("systemd-sysusers").ok();
    client.sh("useradd -G warren member && useradd stranger").ok();
    // The test's multi-user.target starts neither D-Bus nor polkit.
    client.sh("systemctl start dbus.socket dbus.service && systemctl start polkit.service").ok();
    eventually(seconds(20), "polkit runs", || client.is_active("polkit"));
    client
}

fn run_as(host: &Systemd<'_>, user: &str, line: &str) -> Finished {
    host.sh(&format!("runuser -u {user} -- {line}"))
}

fn is_polkit_here() -> bool {
    if !Systemd::is_here() {
        return false;
    }
    let is_here = Path::new("/usr/lib/polkit-1/polkitd").exists()
        && Path::new("/usr/lib/systemd/system/dbus.service").exists();
    if !is_here {
        println!("skipped: this test needs polkitd and dbus-daemon");
    }
    is_here
}
