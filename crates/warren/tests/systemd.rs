//! The units under a real systemd.

mod support;

use support::{Files, Namespace, Systemd, root};

#[test]
fn host_boots_with_a_systemd_of_its_own() {
    if !root() || !Systemd::is_here() {
        return;
    }
    let host = Namespace::new("booted");
    let systemd = Systemd::boot(&host, Files::new());
    assert_eq!(systemd.run(&["systemctl", "is-system-running"]).ok(), "running");
    systemd.run(&["systemd-run", "--wait", "--property=DynamicUser=yes", "true"]).ok();
    systemd.run(&["warren", "--version"]).ok();
}
