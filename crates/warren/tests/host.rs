//! The daemons' changes to their hosts. The daemons undo them exactly.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

use std::os::unix::fs::PermissionsExt as _;

use rustix::process::Signal;

use crate::support::{Client, Exit, ExitOptions, HostState, Net, eventually, flows, seconds};

const NOT_RUNNING: i32 = 3;

#[test]
fn down_restores_a_host_that_has_settings_of_its_own() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    net.client.sh("ip rule add fwmark 0x99 table 99; ip route add 10.1.0.0/16 via 192.0.2.1 table 99").ok();
    net.client
        .sh("nft 'table inet mine { chain in { type filter hook input priority 0; tcp dport 22 accept; }; }'")
        .ok();
    net.client.sh("sysctl -qw net.ipv4.conf.all.rp_filter=1").ok();
    let before = HostState::of(&net.client);
    let client = Client::with(&net, &exit.enrol("laptop"));

    client.up();
    assert_ne!(before, HostState::of(&net.client), "up changes something");
    client.sh("ping -c 1 -W 5 203.0.113.2");

    client.down();
    before.assert_same(&HostState::of(&net.client));
    assert!(net.client.pids().is_empty(), "no process is left");
}

#[test]
fn sigterm_restores_the_client_s_host() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    client.up();

    client.signal(Signal::TERM);

    eventually(seconds(10), "the daemon ends", || net.client.pids().is_empty());
    client.assert_host_unchanged();
}

#[test]
fn sigterm_restores_the_exit_s_host() {
    let Some(net) = Net::new() else { return };
    let mut exit = Exit::init(&net, &ExitOptions::default());
    net.exit
        .sh("nft 'table inet mine { chain in { type filter hook input priority 0; tcp dport 22 accept; }; }'")
        .ok();
    let before = HostState::of(&net.exit);
    exit.run();
    assert_ne!(before, HostState::of(&net.exit), "the exit changes something");

    exit.daemon().signal(Signal::TERM);

    assert_eq!(exit.daemon().wait(seconds(10)), Some(0));
    // The hold table, which protects flows during a restart, stays for a moment.
    eventually(seconds(5), "the hold table is gone", || {
        !net.exit.sh("nft list tables").stdout.contains("warren_exit_hold")
    });
    before.assert_same(&HostState::of(&net.exit));
}

#[test]
fn the_exit_keeps_the_default_route_that_its_router_announces() {
    let Some(net) = Net::new() else { return };
    // As on many VPSs, the default route comes from router advertisements, which a forwarding host ignores by default.
    net.exit.sh("ip -6 route del default; sysctl -qw net.ipv6.conf.eth0.accept_ra=1").ok();
    let advertise = || {
        let link = "import socket, struct\n\
            s = socket.socket(socket.AF_INET6, socket.SOCK_RAW, 58)\n\
            s.setsockopt(41, socket.IPV6_MULTICAST_HOPS, 255)\n\
            s.setsockopt(41, socket.IPV6_MULTICAST_IF, socket.if_nametoindex(\"to-exit\"))\n\
            s.sendto(struct.pack(\"!BBHBBHII\", 134, 0, 0, 64, 0, 8, 0, 0), (\"ff02::1\", 0))\n";
        net.router.sh(&format!("python3 -c '{link}'")).ok();
    };
    let has_route = || net.exit.sh("ip -6 route show default").stdout.contains("expires");
    advertise();
    eventually(seconds(5), "the route is there without Warren", has_route);
    let exit = Exit::start(&net);

    // The route lives for 8 seconds. It survives only if the host still accepts advertisements.
    std::thread::sleep(seconds(5));
    advertise();
    std::thread::sleep(seconds(5));

    assert!(has_route(), "{}", net.exit.sh("ip -6 route").stdout);
    drop(exit);
}

#[test]
fn commands_without_a_daemon_say_that_none_runs() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::init(&net, &ExitOptions::default());
    let client = Client::with(&net, &exit.enrol("laptop"));

    for command in ["status", "status home", "status --json", "down home"] {
        let finished = client.warren.run(command);
        assert_eq!(finished.code, Some(NOT_RUNNING), "{command}: {}", finished.stderr);
        assert_eq!(finished.stderr.trim_end().lines().count(), 1, "{}", finished.stderr);
    }
    let nameless = client.warren.run("status .");
    assert!(nameless.stderr.contains("cannot be a profile"), "{}", nameless.stderr);
    client.sh(&format!("chmod 700 {}", client.warren.config("").display()));
    for command in ["up home", "up"] {
        let of_nobody = client.warren.run_as_nobody(command);
        assert!(of_nobody.stderr.contains("permission denied; run it as root"), "{}", of_nobody.stderr);
    }
    assert_eq!(exit.warren.run("status").code, Some(NOT_RUNNING));
    client.assert_host_unchanged();
}

#[test]
fn a_second_up_of_the_same_profile_is_refused_and_the_first_goes_on() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    client.up();
    let pid = client.status().number("/pid");

    let again = client.warren.run("up home");
    let dry = client.warren.run("up home --dry-run");

    assert_eq!(again.code, Some(1), "{}", again.stderr);
    assert!(dry.stderr.contains("home is up, so `up` would be refused now"), "{}", dry.stderr);
    assert_eq!(client.status().number("/pid"), pid);
    assert_eq!(flows::echo_from_each(&net.client, 20_000..20_001), 1);
    client.down();
}

#[test]
fn the_control_socket_is_its_owner_s_alone() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    client.up();

    for warren in [&client.warren, &exit.warren] {
        let sockets = sockets_below(&warren.config("").join("../runtime"));
        assert!(!sockets.is_empty());
        for socket in sockets {
            let mode = std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777;
            assert_eq!(mode, 0o600, "{}", socket.display());
        }
        // Users other than root are refused, whatever the file's mode.
        warren.host.sh(&format!("chmod -R a+rwX {}", warren.config("..").display())).ok();
        let status = warren.run_as_nobody("status --json");
        assert!(!status.succeeded(), "{}", status.stdout);
        assert!(warren.status().is_some(), "root still gets an answer");
    }
}

#[test]
fn private_keys_are_in_no_argument_log_or_status() {
    let Some(net) = Net::new() else { return };
    let mut exit = Exit::init(&net, &ExitOptions::default());
    exit.run();
    let profile = exit.enrol("laptop");
    let client = Client::with(&net, &profile);
    let mut daemon = client.run("trace");
    let text = profile.text();
    let secret =
        text.lines().find(|line| line.starts_with("private_key")).unwrap().split('"').nth(1).unwrap();
    let exit_secret = std::fs::read_to_string(exit.warren.config("exit.key")).unwrap();
    let exit_secret = exit_secret.trim();

    let mut seen = daemon.output() + &exit.daemon().output();
    seen += &format!("{:#}{:#}", client.status().0, exit.status().0);
    seen += &[client.warren.run("doctor --json"), exit.warren.run("doctor --json")]
        .map(|said| said.stdout)
        .concat();
    for pid in net.client.pids().into_iter().chain(net.exit.pids()) {
        seen += &std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        seen += &String::from_utf8_lossy(&std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default());
    }

    assert!(seen.len() > 1_000 && seen.contains("client"), "there is output to search");
    assert!(!seen.contains(secret) && !seen.contains(exit_secret));
    daemon.signal(Signal::TERM);
    daemon.wait(seconds(10));
}

fn sockets_below(directory: &std::path::Path) -> Vec<std::path::PathBuf> {
    use std::os::unix::fs::FileTypeExt as _;
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            found.extend(sockets_below(&entry.path()));
        } else if kind.is_socket() {
            found.push(entry.path());
        }
    }
    found
}
