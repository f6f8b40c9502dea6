//! While the tunnel is up, the client's programs ask only its resolver. After the tunnel is down, the resolver configuration is
//! byte for byte the same as before the tunnel.
//!
//! ```text
//!   client ----- router 192.0.2.1: the local network's resolver, which knows `router.test`
//!                  |
//!                internet host 203.0.113.2: the exit's resolver, which knows `internet.test`
//! ```
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

mod managers;
mod split;

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use rustix::process::Signal;
use toml::Value;

use crate::support::counters::packets_of_one;
use crate::support::{
    self, Client, Exit, ExitOptions, HostState, Namespace, Net, Running, eventually, seconds,
};

#[test]
fn full_tunnel_asks_the_exits_resolver_and_no_query_leaves_outside() {
    let Some(net) = Net::new() else { return };
    let _local = local_resolver(&net);
    let exit = exit_with_resolver(&net, Net::INTERNET_V4);
    let profile = exit.enrol("laptop");
    let untouched = profile.clone().with("dns", "servers", Value::Array(Vec::new()));
    // Negative control: if the tunnel sets no resolvers, the router sees queries outside the tunnel.
    let client = Client::with(&net, &untouched);
    assert!(asks(&net.client, "www.router.test"), "the local resolver answers");
    client.up();
    ask_every_way(&net.client, "192.0.2.1");
    client.down();
    let without = net.client_queries();
    assert!(without.udp >= 3 && without.tcp >= 1, "{without:?}");

    let client = Client::with(&net, &profile);
    let through_exit = net.exit_queries();
    client.up();
    assert!(asks(&net.client, "www.internet.test"), "the exit's resolver answers");
    assert!(!asks(&net.client, "www.router.test"), "the local resolver is not asked");
    ask_every_way(&net.client, "192.0.2.1");

    assert_eq!(net.client_queries(), without, "no query left outside");
    assert!(net.exit_queries().udp > through_exit.udp, "the exit's resolver was asked through the tunnel");
    client.down();
    assert!(asks(&net.client, "www.router.test"), "the local resolver is asked again");
}

#[test]
fn queries_of_containers_stay_inside_although_the_lan_with_its_resolver_is_reached() {
    let Some(net) = Net::new() else { return };
    let _local = local_resolver(&net);
    let exit = exit_with_resolver(&net, Net::INTERNET_V4);
    net.router.sh("ip address add 192.168.77.1/24 dev to-client").ok();
    net.client.sh("ip address add 192.168.77.2/24 dev eth0").ok();
    let container = net.container_behind_client();
    let ask = || {
        container.sh("dig +tries=1 +time=1 @192.168.77.1 www.router.test; \
             timeout 2 bash -c 'echo > /dev/tcp/192.168.77.1/853'; ping -c 1 -W 5 192.168.77.1")
    };
    let halves = vec!["0.0.0.0/1", "128.0.0.0/1", "::/1", "8000::/1"];
    let profile = exit.enrol("laptop").with("routes", "include", halves);
    let client = Client::with(&net, &profile);
    ask().ok();
    let without = net.client_queries();
    assert!(without.udp >= 1 && without.tcp >= 1, "{without:?}");

    client.up();
    client.warren.write("home.toml", 0o600, &profile.with("routes", "lan", true).text());
    client.warren.run("reload home").ok();

    // The LAN itself is reachable.
    ask().ok();
    assert_eq!(net.client_queries(), without);
    client.down();
}

#[test]
fn lan_that_takes_a_listed_resolvers_address_gets_no_query_and_status_says_so() {
    let Some(net) = Net::new() else { return };
    let _local = local_resolver(&net);
    let exit = exit_with_resolver(&net, Net::INTERNET_V4);
    let servers = Value::Array(vec!["10.77.0.53".into()]);
    let profile = exit.enrol("laptop").with("routes", "lan", true).with("dns", "servers", servers);
    let client = Client::with(&net, &profile);
    client.up();
    let way = || net.client.sh("ip route get 10.77.0.53").ok();
    let inside = way();
    let said = "a network of the LAN contains the address 10.77.0.53,";
    let status = || client.warren.run("status home").stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(!status().contains(said), "{}", status());

    net.router.sh("ip address add 10.77.0.53/8 dev to-client; ip address add 10.77.0.1/8 dev to-client").ok();
    net.client.sh("ip address add 10.77.0.2/8 dev eth0").ok();
    let reaches_lan = || net.client.sh("ping -c 1 -W 1 10.77.0.1").succeeded();
    eventually(seconds(10), "the LAN is reached", reaches_lan);

    let before = net.client_queries();
    ask_every_way(&net.client, "10.77.0.53");
    assert_eq!(net.client_queries(), before, "no query left outside");
    assert_eq!(way(), inside, "the resolver is still reached by the tunnel");
    eventually(seconds(5), "status says so", || status().contains(said));

    // Control: the profile itself may exclude the resolver from the tunnel.
    let excluded = profile.with("routes", "exclude", vec!["10.77.0.53/32"]);
    client.warren.write("home.toml", 0o600, &excluded.text());
    client.warren.run("reload home").ok();
    ask_every_way(&net.client, "10.77.0.53");
    assert!(net.client_queries().udp > before.udp);
    assert!(!status().contains(said), "{}", status());
    net.client.sh("ip address del 10.77.0.2/8 dev eth0").ok();
    client.down();
}

#[test]
fn full_tunnel_that_leaves_no_resolver_says_so_and_what_to_set() {
    let Some(net) = Net::new() else { return };
    let _local = local_resolver(&net);
    std::fs::write(net.exit.etc().join("resolv.conf"), "nameserver 10.9.9.9\n").unwrap();
    let mut exit = Exit::init(&net, &ExitOptions::default());
    exit.configure(|config| config.with("dns", "servers", Value::Array(Vec::new())));
    exit.run();
    std::fs::write(net.client.etc().join("resolv.conf"), "nameserver 192.168.77.1\n").unwrap();
    let client = Client::with(&net, &exit.enrol("laptop"));

    let up = client.warren.run("up home");

    assert!(up.succeeded(), "{up:?}");
    let status = client.warren.run("status home").stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    let doctor = client.warren.run("doctor").stdout;
    for said in [&up.stderr, &status, &doctor] {
        assert!(said.contains("192.168.77.1") && said.contains("set servers = "), "{said}");
    }
    client.down();

    // On a host whose resolver is reachable, `up` says nothing about it.
    std::fs::write(net.client.etc().join("resolv.conf"), "nameserver 203.0.113.2\n").unwrap();
    let client = Client::with(&net, &exit.enrol("phone"));
    let up = client.warren.run("up home");
    assert!(up.succeeded() && up.stderr.is_empty(), "{up:?}");
    client.down();

    // No query goes to a resolver that is reached outside the tunnel, because every name would leak.
    let profile = exit.enrol("tablet").with("routes", "exclude", vec!["203.0.113.0/24"]);
    let client = Client::with(&net, &profile);
    let up = client.warren.run("up home");
    assert!(up.stderr.contains("names may not be found: the exit names no resolver"), "{up:?}");
    let before = net.client_queries();
    ask_every_way(&net.client, "192.0.2.1");
    assert_eq!(net.client_queries(), before);
    client.down();

    // The exception is a profile by which the host's resolvers stay.
    let profile = profile.with("dns", "servers", Value::Array(Vec::new()));
    let client = Client::with(&net, &profile);
    let up = client.warren.run("up home");
    assert!(up.stderr.contains("DNS queries leave outside the tunnel, to 203.0.113.2,"), "{up:?}");
    ask_every_way(&net.client, "192.0.2.1");
    assert!(net.client_queries().udp > before.udp);
    client.down();
}

#[test]
fn resolver_comes_back_when_the_network_changes_and_the_new_original_afterwards() {
    let Some(net) = Net::new() else { return };
    let exit = exit_with_resolver(&net, Net::INTERNET_V4);
    let client = Client::with(&net, &exit.enrol("laptop"));
    client.up();
    let host = &net.client;

    // Rewrites the file, as a DHCP client does after a change of network.
    host.sh("printf 'search lan\\nnameserver 192.0.2.1\\n' > /etc/resolv.conf").ok();
    let asked = || host.sh("cat /etc/resolv.conf").ok().contains(&format!("nameserver {}", Net::INTERNET_V4));
    let took = eventually(seconds(10), "the tunnel's resolver is back", || asked_lines(host) == 1 && asked());

    println!("the tunnel's resolver was back after {took:?}");
    client.warren.run("down home").ok();
    assert_eq!(host.sh("cat /etc/resolv.conf").ok(), "search lan\nnameserver 192.0.2.1");
}

#[test]
fn resolv_conf_of_every_kind_comes_back_exactly_after_a_kill_and_after_a_power_cut() {
    let Some(net) = Net::new() else { return };
    let exit = exit_with_resolver(&net, Net::INTERNET_V4);
    let host = &net.client;
    let etc = host.own_files().etc();
    let file = etc.join("resolv.conf");
    let kinds: [(&str, &dyn Fn()); 3] = [
        ("regular", &|| {
            std::fs::write(&file, "# mine\nnameserver 203.0.113.2\noptions edns0").unwrap();
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).unwrap();
            std::os::unix::fs::chown(&file, Some(7), Some(8)).unwrap();
        }),
        ("link", &|| {
            std::fs::write(etc.join("manager.conf"), "nameserver 203.0.113.2\n").unwrap();
            symlink("manager.conf", &file).unwrap();
        }),
        ("missing", &|| {}),
    ];
    for (number, (kind, make)) in kinds.into_iter().enumerate() {
        println!("{kind}");
        drop(std::fs::remove_file(&file));
        make();
        let client = Client::with(&net, &exit.enrol(&format!("laptop{number}")));
        client.up();
        assert!(asks(host, "www.internet.test"), "{kind}: the exit's resolver answers");
        client.down();

        // There are three ways to undo the changes of a killed daemon. Each restores the host.
        for after in ["cleanup", "down home", "up home"] {
            client.up();
            client.signal(Signal::KILL);
            eventually(seconds(5), "the daemon is gone", || client.warren.status().is_none());
            assert!(
                std::fs::read_to_string(&file).unwrap().contains("warren"),
                "{kind}: the killed daemon left its file behind"
            );
            client.warren.run(after).ok();
            if after == "up home" {
                client.warren.run("down home").ok();
            }
            client.assert_host_unchanged();
        }
    }

    // A power cut deletes the runtime directory and changes the boot ID. The file in /etc survives.
    let client = Client::with(&net, &exit.enrol("last"));
    client.up();
    client.signal(Signal::KILL);
    eventually(seconds(5), "the daemon is gone", || client.warren.status().is_none());
    let runtime = client.warren.config("").join("../runtime/home");
    let journal = std::fs::read_to_string(runtime.join("journal")).unwrap();
    std::fs::remove_dir_all(&runtime).unwrap();
    assert!(file.exists());
    client.warren.run("down").ok();
    assert!(!file.exists(), "the file did not exist before, and is gone again");
    // After a real boot, the daemon's other changes would be gone. In this test they are still in place.
    std::fs::create_dir(&runtime).unwrap();
    std::fs::write(runtime.join("journal"), journal).unwrap();
    std::fs::write(runtime.join("lock"), "").unwrap();
    client.warren.run("cleanup").ok();
    client.assert_host_unchanged();
}

#[test]
fn immutable_resolv_conf_is_refused_in_one_sentence_and_left_alone() {
    let Some(net) = Net::new() else { return };
    let exit = exit_with_resolver(&net, Net::INTERNET_V4);
    let file = net.client.own_files().etc().join("resolv.conf");
    let client = Client::with(&net, &exit.enrol("laptop"));
    if !support::namespace::finished(std::process::Command::new("chattr").arg("+i").arg(&file)).succeeded() {
        println!("skipped: this file system has no immutable files");
        return;
    }
    let _mutable = Mutable(&file);

    let refused = client.warren.run("up home");

    assert_eq!(refused.code, Some(1), "{}", refused.stderr);
    let sentence = refused.stderr.lines().last().unwrap_or_default();
    assert!(
        sentence.contains("/etc/resolv.conf is immutable") && sentence.contains("chattr -i"),
        "{sentence}"
    );
    client.assert_host_unchanged();
}

#[test]
fn two_profiles_come_down_in_any_order_and_the_original_stands_at_the_end() {
    let Some(net) = Net::new() else { return };
    let exit = exit_with_resolver(&net, Net::INTERNET_V4);
    let client = Client::with(&net, &exit.enrol("laptop"));
    let split = Value::Array(vec!["203.0.113.0/24".into(), "192.0.2.0/24".into()]);
    let work = exit.enrol("desk").with("tun", "name", "warren1").with("routes", "include", split).with(
        "dns",
        "servers",
        Value::Array(vec![Net::INTERNET_V4.into()]),
    );
    client.warren.write("work.toml", 0o600, &work.text());
    let host = &net.client;
    let writer = || host.sh("head -1 /etc/resolv.conf").ok();

    for (first, second) in [("home", "work"), ("work", "home")] {
        client.up();
        client.warren.run("up work").ok();
        assert!(writer().contains("profile work"), "{}", writer());
        assert!(asks(host, "www.internet.test"));
        client.warren.run(&format!("down {first}")).ok();
        assert!(writer().contains(&format!("profile {second}")), "{}", writer());
        assert!(asks(host, "www.internet.test"));
        host.sh("ping -c 1 -W 5 203.0.113.2").ok();
        client.warren.run(&format!("down {second}")).ok();
        client.assert_host_unchanged();
    }

    // Both daemons are killed. `down NAME` undoes NAME's changes and nothing else.
    client.up();
    client.warren.run("up work").ok();
    let both = HostState::of(host);
    for pid in host.pids() {
        support::namespace::signal(pid, Signal::KILL);
    }
    eventually(seconds(5), "both are gone", || host.pids().is_empty());
    client.warren.run("down work").ok();
    assert!(writer().contains("profile home"), "{}", writer());
    assert_ne!(both, HostState::of(host));
    client.warren.run("down home").ok();
    client.assert_host_unchanged();
}

/// An exit that tells its clients to use `resolver`.
pub(crate) fn exit_with_resolver<'net>(net: &'net Net, resolver: &str) -> Exit<'net> {
    let mut exit = Exit::init(net, &ExitOptions::default());
    exit.configure(|config| config.with("dns", "servers", Value::Array(vec![resolver.into()])));
    exit.run();
    exit
}

/// The local network's resolver on the router, which the client uses until a tunnel is up. The router counts the queries from
/// each side.
pub(crate) fn local_resolver(net: &Net) -> Running {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/internet_host.py");
    let mut resolver = net.router.start(&["python3", "-u", script, "192.0.2.1", "2001:db8:1::1", "router"]);
    resolver.wait_for_output("ready");
    net.client.sh("echo nameserver 192.0.2.1 > /etc/resolv.conf").ok();
    let side = |side: &str| {
        format!(
            "chain {side} {{ type filter hook ingress device \"to-{side}\" priority 0; \
             udp dport {{ 53, 853 }} counter name {side}_udp; tcp dport {{ 53, 853 }} counter name {side}_tcp; }};"
        )
    };
    let counters =
        ["client_udp", "client_tcp", "exit_udp", "exit_tcp"].map(|name| format!("counter {name} {{}};"));
    let table =
        format!("table netdev queries {{ {} {} {} }}", counters.concat(), side("client"), side("exit"));
    net.router.sh(&format!("nft '{table}'")).ok();
    resolver
}

/// Queries that the router saw.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Queries {
    pub(crate) udp: u64,
    pub(crate) tcp: u64,
}

pub(crate) trait CountsQueries {
    /// Counts queries from the client outside the tunnel.
    fn client_queries(&self) -> Queries;
    /// Counts queries from the exit on behalf of its clients.
    fn exit_queries(&self) -> Queries;
}

impl CountsQueries for Net {
    fn client_queries(&self) -> Queries {
        queries(self, "client")
    }

    fn exit_queries(&self) -> Queries {
        queries(self, "exit")
    }
}

fn queries(net: &Net, side: &str) -> Queries {
    let count = |protocol: &str| {
        let listed = net.router.sh(&format!("nft list counter netdev queries {side}_{protocol}")).ok();
        packets_of_one(&listed)
    };
    Queries { udp: count("udp"), tcp: count("tcp") }
}

/// Whether the host's resolver finds a name.
pub(crate) fn asks(host: &Namespace, name: &str) -> bool {
    host.sh(&format!("RES_OPTIONS=timeout:2 timeout 10 getent ahostsv4 {name}")).succeeded()
}

/// Asks in every way that programs use: through the host's resolver, directly at `resolver` over UDP and TCP, at the port of DNS
/// over TLS, and from a socket that is bound to the network's device and so bypasses the routes.
pub(crate) fn ask_every_way(host: &Namespace, resolver: &str) {
    const SCRIPT: &str = r#"
import socket, sys
query = b"\1\2\1\0\0\1\0\0\0\0\0\0\3www\6router\4test\0\0\1\0\1"
try:
    socket.getaddrinfo("www.router.test", 80)
except OSError:
    pass
for kind in socket.SOCK_DGRAM, socket.SOCK_STREAM:
    for device in b"", b"eth0":
        for port in 53, 853:
            with socket.socket(socket.AF_INET, kind) as s:
                s.settimeout(0.3)
                if device:
                    s.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device)
                try:
                    s.connect((sys.argv[1], port))
                    s.send(query)
                    s.recv(512)
                except OSError:
                    pass
"#;
    host.sh(&format!("RES_OPTIONS='timeout:1 attempts:1' timeout 30 python3 -c '{SCRIPT}' {resolver}")).ok();
}

/// The number of resolvers in the host's file.
fn asked_lines(host: &Namespace) -> usize {
    host.sh("cat /etc/resolv.conf").ok().lines().filter(|line| line.starts_with("nameserver")).count()
}

/// Makes an immutable file deletable again on drop.
struct Mutable<'a>(&'a Path);

impl Drop for Mutable<'_> {
    fn drop(&mut self) {
        support::namespace::finished(std::process::Command::new("chattr").arg("-i").arg(self.0));
    }
}
