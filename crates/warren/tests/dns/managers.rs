//! Hosts whose resolvers are managed by a program: the real systemd-resolved with its own bus, and the real openresolv.
//!
//! They are not installed on the machine, because each would take over its `/etc/resolv.conf`. `scripts/setup` unpacks them
//! instead.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use toml::Value;

use super::{CountsQueries as _, ask_every_way, asks, exit_with_resolver, local_resolver};
use crate::support::daemon::repository;
use crate::support::{Client, Namespace, Net, Running, eventually, seconds};

#[test]
fn systemd_resolved_asks_the_tunnels_resolver_alone_and_is_left_as_it_was() {
    let Some(package) = unpacked("systemd-resolved") else { return };
    let Some(net) = Net::new() else { return };
    let _local = local_resolver(&net);
    let exit = exit_with_resolver(&net, Net::INTERNET_V4);
    let host = &net.client;
    let mut resolved = Resolved::start(&net, package);
    // The link has its own domain. For names in it, systemd-resolved asks that link's resolver through a socket that is bound to
    // the link.
    host.sh("resolvectl dns eth0 192.0.2.1 && resolvectl domain eth0 router.test").ok();
    assert!(asks(host, "www.router.test"), "the local resolver answers");
    let untouched = exit.enrol("untouched").with("dns", "servers", Value::Array(Vec::new()));
    let client = Client::with(&net, &untouched);
    client.up();
    ask_every_way(host, "192.0.2.1");
    client.down();
    let without = net.client_queries();
    assert!(without.udp >= 3, "negative control: queries are seen, {without:?}");

    let client = Client::with(&net, &exit.enrol("laptop"));
    let before = host.sh("resolvectl dns; resolvectl domain").ok();
    client.up();
    let tunnels = || host.sh("resolvectl dns warren0").stdout.contains(Net::INTERNET_V4);
    assert!(tunnels());
    assert!(asks(host, "www.internet.test"), "{}", host.sh("resolvectl status").stdout);
    ask_every_way(host, "192.0.2.1");
    assert_eq!(net.client_queries(), without, "no query left outside");

    host.sh("resolvectl revert warren0").ok();
    let took = eventually(seconds(10), "the tunnel's resolver is back after a revert", tunnels);
    resolved.restart(&net);
    let restart = eventually(seconds(10), "the tunnel's resolver is back after a restart", tunnels);
    println!("back {took:?} after a revert and {restart:?} after a restart");
    assert!(asks(host, "www.internet.test"));

    client.down();
    assert_eq!(host.sh("resolvectl dns; resolvectl domain").ok(), before);
    assert!(asks(host, "www.router.test"), "the local resolver is asked again");
}

#[test]
fn openresolv_names_the_tunnels_resolver_alone_and_is_left_as_it_was() {
    let Some(package) = unpacked("openresolv") else { return };
    let Some(net) = Net::new() else { return };
    let _local = local_resolver(&net);
    let exit = exit_with_resolver(&net, Net::INTERNET_V4);
    let host = &net.client;
    give_openresolv(host, &package);
    let client = Client::with(&net, &exit.enrol("laptop"));

    client.up();
    assert!(asks(host, "www.internet.test") && !asks(host, "www.router.test"));
    // A DHCP client that reports to resolvconf does not disturb the tunnel.
    host.sh("echo nameserver 192.0.2.1 | resolvconf -a eth0").ok();
    assert!(asks(host, "www.internet.test") && !asks(host, "www.router.test"));
    client.down();
    assert!(asks(host, "www.router.test"), "the local resolver is asked again");

    client.up();
    client.signal(rustix::process::Signal::KILL);
    eventually(seconds(5), "the daemon is gone", || client.warren.status().is_none());
    client.warren.run("cleanup").ok();
    client.assert_host_unchanged();
}

/// Gives a host the program of the unpacked package, and the local network's resolver.
pub(super) fn give_openresolv(host: &Namespace, package: &Path) {
    let own = host.own_files();
    std::fs::copy(package.join("etc/resolvconf.conf"), own.etc().join("resolvconf.conf")).unwrap();
    // The program looks for its parts at the package's installation paths.
    let program = std::fs::read_to_string(package.join("sbin/resolvconf")).unwrap();
    let program = program.replace("/lib/resolvconf", package.join("lib/resolvconf").to_str().unwrap());
    own.program("resolvconf", &program);
    host.sh("echo nameserver 192.0.2.1 | resolvconf -a eth0").ok();
}

/// systemd-resolved and the bus that controls it.
pub(super) struct Resolved {
    package: PathBuf,
    _bus: Running,
    daemon: Running,
}

impl Resolved {
    /// Starts both on the net's client. The client's programs then ask systemd-resolved's stub.
    pub(super) fn start(net: &Net, package: PathBuf) -> Self {
        const BUS: &str = "<busconfig><type>system</type><listen>unix:path=/run/dbus/system_bus_socket</listen>\
            <auth>EXTERNAL</auth><policy context=\"default\"><allow user=\"*\"/><allow own=\"*\"/>\
            <allow send_destination=\"*\"/><allow eavesdrop=\"true\"/></policy></busconfig>";
        let own = net.client.own_files();
        let account = "systemd-resolve:x:64991:64991::/:/usr/sbin/nologin\n";
        append(own.etc().join("passwd"), account);
        append(own.etc().join("group"), "systemd-resolve:x:64991:\n");
        std::fs::write(own.etc().join("bus.conf"), BUS).unwrap();
        std::fs::create_dir_all(own.run().join("dbus")).unwrap();
        std::fs::create_dir_all(own.run().join("systemd/resolve")).unwrap();
        for directory in ["systemd", "systemd/resolve"] {
            std::os::unix::fs::chown(own.run().join(directory), Some(64991), Some(64991)).unwrap();
        }
        let path = package.join("usr/bin/resolvectl");
        own.program("resolvectl", &format!("#!/bin/sh\nexec {} \"$@\"\n", path.display()));
        let bus =
            net.client.start(&["dbus-daemon", "--config-file=/etc/bus.conf", "--nofork", "--nopidfile"]);
        let socket = own.run().join("dbus/system_bus_socket");
        eventually(seconds(10), "the bus is there", || socket.exists());
        // The file is changed before the start, because systemd-resolved would adopt the resolvers in it.
        let file = own.etc().join("resolv.conf");
        std::fs::remove_file(&file).unwrap();
        symlink("/run/systemd/resolve/stub-resolv.conf", &file).unwrap();
        let daemon = run(net, &package);
        Self { package, _bus: bus, daemon }
    }

    fn restart(&mut self, net: &Net) {
        self.daemon.signal(rustix::process::Signal::TERM);
        self.daemon.wait(seconds(10));
        self.daemon = run(net, &self.package);
    }
}

/// Starts systemd-resolved and waits until it answers.
fn run(net: &Net, package: &Path) -> Running {
    let program = package.join("lib/systemd/systemd-resolved");
    let daemon = net.client.start(&[program.to_str().unwrap()]);
    eventually(seconds(10), "systemd-resolved answers", || net.client.sh("resolvectl dns").succeeded());
    daemon
}

fn append(path: PathBuf, line: &str) {
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(path, text + line).unwrap();
}

/// The directory into which `scripts/setup` unpacked a package.
pub(super) fn unpacked(package: &str) -> Option<PathBuf> {
    let directory = repository().join("target/packages").join(package);
    if directory.exists() {
        return Some(directory);
    }
    println!("skipped: {} is missing; scripts/setup unpacks it", directory.display());
    None
}
