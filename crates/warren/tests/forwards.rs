//! Forwards: services of clients that are reached from outside, at ports of the exit's addresses.
#![allow(clippy::indexing_slicing, clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::support::counters::{packets_counted, packets_of_one};
use crate::support::visits::{Service, Visit, visit, visit_udp};
use crate::support::{Client, Exit, ExitOptions, LeakCounter, Namespace, Net, Profile, eventually, seconds};

/// The service's port, the exit's port that leads to it, and a port of UDP that keeps its number.
const SERVICE: u16 = 443;
const FORWARDED: u16 = 8_443;
const UDP: u16 = 5_000;

const EXIT: [&str; 2] = [Net::EXIT_V4, Net::EXIT_V6];

fn at_exit(family: usize, port: u16) -> SocketAddr {
    SocketAddr::new(EXIT[family].parse().unwrap(), port)
}

/// The profile with the service's ports allowed.
fn serving(profile: Profile) -> Profile {
    profile.with("forwards", "allow", vec!["tcp/443", "udp/5000"])
}

/// Makes the tunnel a split one, whose routes do not include the visitors' network.
fn split(profile: Profile) -> Profile {
    profile.with("routes", "include", Vec::<String>::new()).with("dns", "servers", Vec::<String>::new())
}

fn forward(exit: &Exit<'_>) {
    exit.warren.run("exit client forward add home tcp/8443 --to 443").ok();
    exit.warren.run("exit client forward add home udp/5000").ok();
}

/// Whether a visitor on the internet reaches the forwarded service over TCP and over UDP, both by IPv4 and IPv6.
fn reached(net: &Net) -> [bool; 4] {
    let host = &net.internet.host;
    let tcp = |family| visit(host, None, at_exit(family, FORWARDED)).is_answered();
    let udp = |family| visit_udp(host, at_exit(family, UDP)).is_some();
    [tcp(0), tcp(1), udp(0), udp(1)]
}

#[track_caller]
fn all_reached(net: &Net) {
    eventually(seconds(20), "visitors are served", || reached(net) == [true; 4]);
}

/// Gives the internet host `count` more addresses of each IP version.
fn more_addresses(net: &Net, count: usize) -> Vec<[IpAddr; 2]> {
    let addresses = (0..count).map(|number| {
        let (ipv4, ipv6) = (format!("203.0.113.{}", 10 + number), format!("2001:db8:3::1:{number}"));
        let host = &net.internet.host;
        host.sh(&format!("ip address add {ipv4}/24 dev eth0; ip address add {ipv6}/64 dev eth0 nodad")).ok();
        [ipv4.parse().unwrap(), ipv6.parse().unwrap()]
    });
    addresses.collect()
}

#[test]
fn a_thousand_visitors_reach_the_service_with_their_own_addresses() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(&net, &serving(exit.enrol("home")));
    client.up();
    let service = Service::start(&net.client, SERVICE, UDP);
    let visitors = more_addresses(&net, 50);
    // The control: without a forward, nothing answers at these ports of the exit.
    assert_eq!(reached(&net), [false; 4]);
    forward(&exit);

    let mut served = 0;
    for round in 0..10 {
        for addresses in &visitors {
            for (family, address) in addresses.iter().enumerate() {
                let seen = visit(&net.internet.host, Some(*address), at_exit(family, FORWARDED));
                let Visit::Answered { own, seen } = seen else {
                    panic!("round {round}: {address} was not served: {seen:?}")
                };
                assert_eq!((seen, seen.ip()), (own, *address), "the service saw another address");
                served += 1;
            }
        }
    }
    assert_eq!(served, 1_000);
    assert!(service.visitors() >= 1_000, "the service itself has counted {}", service.visitors());
    for family in [0, 1] {
        let (own, seen) = visit_udp(&net.internet.host, at_exit(family, UDP)).unwrap();
        assert_eq!(own, seen);
    }
    println!("measured: {served} visitors served, each seen with its own address");
    client.down();
}

#[test]
fn in_a_split_tunnel_answers_go_back_through_the_tunnel() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let profile = split(exit.enrol("home"));
    let client = Client::with(&net, &profile);
    let leaks = LeakCounter::start(&net);
    // The service is bound to all addresses, so the kernel chooses the source address of its answers.
    let _service = Service::start(&net.client, SERVICE, UDP);
    let container = net.container_behind_client();
    let _in_container = Service::start(&container, 80, 81);
    let dnat = "dnat ip to 172.30.0.2:80";
    net.client
        .sh(&format!(
            "nft 'table inet docker {{ chain pre {{ type nat hook prerouting priority dstnat; \
             fib daddr type local tcp dport 8080 {dnat}; }}; }}'"
        ))
        .ok();
    forward(&exit);
    exit.warren.run("exit client forward add home tcp/8080").ok();
    client.up();
    let container_reached = || visit(&net.internet.host, None, at_exit(0, 8_080));

    // The control: visitors cannot reach a client that allows no port.
    let before = leaks.leaked();
    assert_eq!((reached(&net), container_reached().is_answered()), ([false; 4], false));

    let allowed = profile.with("forwards", "allow", vec!["tcp/443", "tcp/8080", "udp/5000"]);
    client.warren.write("home.toml", 0o600, &allowed.text());
    client.warren.run("reload home").ok();
    all_reached(&net);
    for family in [0, 1] {
        let Visit::Answered { own, seen } = visit(&net.internet.host, None, at_exit(family, FORWARDED))
        else {
            panic!("not served")
        };
        assert_eq!(own, seen);
    }
    let Visit::Answered { own, seen } = container_reached() else { panic!("the container is not reached") };
    assert_eq!(own, seen);
    assert_eq!(leaks.leaked(), before, "answers left outside the tunnel");
    // The rest of the host's traffic goes outside, as it does in a split tunnel.
    assert_eq!(client.sh("curl -sS --max-time 20 http://203.0.113.2/address"), Net::CLIENT_V4);

    let nothing = allowed.with("forwards", "allow", Vec::<String>::new());
    client.warren.write("home.toml", 0o600, &nothing.text());
    client.warren.run("reload home").ok();
    assert_eq!((reached(&net), container_reached().is_answered()), ([false; 4], false));
    net.client.sh("nft delete table inet docker").ok();
    client.warren.run("down home").ok();
    let left = net.client.sh("ip rule; ip -6 rule; ip route show table all; nft list tables").ok();
    assert!(!left.contains("warren") && !left.contains("22625"), "{left}");
}

/// For each port that the exit's host or another client uses, checks the refusal's text.
#[test]
fn ports_of_the_exits_host_and_of_other_clients_are_refused() {
    let Some(net) = Net::new() else { return };
    let mut exit = Exit::init(&net, &ExitOptions::default());
    exit.configure(|config| {
        config.with("web", "listen", "127.0.0.1:9467").with("wireguard", "listen", "0.0.0.0:51820")
    });
    exit.run();
    exit.warren.run("exit client add home").ok();
    exit.warren.run("exit client add other").ok();
    let _ssh = net.exit.start(&["python3", "-m", "http.server", "22"]);
    let rule = "type nat hook prerouting priority dstnat; tcp dport 8080 dnat to 172.30.0.2:80;";
    net.exit.sh(&format!("nft 'table ip docker {{ chain pre {{ {rule} }}; }}'")).ok();
    eventually(seconds(10), "the host's service listens", || {
        net.exit.sh("ss -Hltn | grep -q ':22 '").succeeded()
    });
    let add = |exit: &Exit<'_>, line: &str| exit.warren.run(&format!("exit client forward add {line}"));
    add(&exit, "other tcp/8443-8450").ok();
    let refusals = [
        ("home udp/443", "udp/443 cannot be forwarded: this exit listens there for its clients"),
        ("home udp/400-500 --to 400", "udp/443 cannot be forwarded"),
        ("home udp/51820", "udp/51820 cannot be forwarded: this exit listens there for its clients"),
        ("home tcp/9466", "this exit's metrics are there"),
        ("home tcp/9467", "this exit's page for operators is there"),
        ("home tcp/22", "tcp/22 cannot be forwarded: a program on this host listens there"),
        ("home tcp/20-30", "tcp/22 cannot be forwarded"),
        ("home tcp/8080", "tcp/8080 cannot be forwarded: a firewall rule of this host publishes it"),
        ("home tcp/8450", "tcp/8443-8450 leads to \"other\"; choose other ports of the exit"),
        ("home tcp/20000-60000", "clients' own traffic needs 4,096 ports in a row"),
        ("nobody tcp/80", "there is no client \"nobody\""),
        ("home tcp/0", "write a port such as tcp/8443"),
        ("home tcp/65000-65010 --to 65530", "ends above port 65535"),
    ];
    let check = |exit: &Exit<'_>, when: &str| {
        for (line, words) in refusals {
            let refused = add(exit, line);
            assert!(!refused.succeeded() && refused.stderr.contains(words), "{when}: {line}: {refused:?}");
        }
    };

    check(&exit, "running");
    // The same port number of TCP and of UDP can be forwarded separately.
    add(&exit, "home tcp/443").ok();
    exit.stop(Signal::TERM);
    check(&exit, "stopped");
    add(&exit, "home udp/22").ok();
    exit.run();
    let listed: Value =
        serde_json::from_str(&exit.warren.run("exit client forward list --json").ok()).unwrap();
    let ports: Vec<&str> =
        listed.as_array().unwrap().iter().map(|row| row["ports"].as_str().unwrap()).collect();
    assert_eq!(ports, ["tcp/443", "udp/22", "tcp/8443-8450"]);
}

/// A forward also gives way to a service that the exit's host starts later.
#[test]
fn a_port_that_the_exits_host_begins_to_use_is_its_own_again() {
    let Some(net) = Net::new() else { return };
    let mut exit = Exit::start(&net);
    let client = Client::with(&net, &serving(exit.enrol("home")));
    client.up();
    let _service = Service::start(&net.client, SERVICE, UDP);
    forward(&exit);
    all_reached(&net);

    let own = Service::start(&net.exit, FORWARDED, 5_001);
    eventually(seconds(40), "the host's own service answers there", || {
        visit(&net.internet.host, None, at_exit(0, FORWARDED));
        own.visitors() > 0
    });
    assert!(exit.daemon().output().contains("the forward tcp/8443 to 443 of home is not in force"));
    let listed = || exit.warren.run("exit client forward list").ok();
    let taken = "not in force: tcp/8443: a program on this host listens there";
    assert!(listed().contains(taken), "{}", listed());
    let json = exit.warren.run("exit client forward list home --json").ok();
    let json: Value = serde_json::from_str(&json).unwrap();
    assert!(json[0]["not_in_force"].as_str().unwrap().starts_with("tcp/8443: "), "{json}");
    // The other forward stays in force.
    assert!(visit_udp(&net.internet.host, at_exit(0, UDP)).is_some());
    assert!(
        listed().lines().any(|line| line.starts_with("udp/5000 ") && line.ends_with(" in force")),
        "{}",
        listed()
    );
    exit.warren.run("exit client disable home").ok();
    assert!(listed().contains("not in force: the client is disabled"), "{}", listed());
    client.down();
}

#[test]
fn a_removed_forward_ends_within_two_seconds_with_its_connections() {
    let Some(net) = Net::new() else { return };
    let mut exit = Exit::start(&net);
    let client = Client::with(
        &net,
        &serving(exit.enrol("home")).with("forwards", "allow", vec!["tcp/443", "tcp/80", "udp/5000"]),
    );
    client.up();
    let _service = Service::start(&net.client, SERVICE, UDP);
    let _other = Service::start(&net.client, 80, 81);
    forward(&exit);
    exit.warren.run("exit client forward add home tcp/8080 --to 80").ok();
    all_reached(&net);
    let removed = [
        ("tcp/8443", Visit::hold(&net.internet.host, at_exit(0, FORWARDED))),
        ("udp/5000", Visit::hold_udp(&net.internet.host, at_exit(0, UDP))),
    ];
    let kept = Visit::hold(&net.internet.host, at_exit(1, 8_080));

    for (ports, held) in removed {
        assert!(held.is_answered(), "{ports}: the connection lives");
        exit.warren.run(&format!("exit client forward remove home {ports}")).ok();
        let since = Instant::now();
        eventually(seconds(2), "the connection is dead", || !held.is_answered());
        println!("measured: {ports} ended {} ms after its removal", since.elapsed().as_millis());
    }
    assert_eq!(reached(&net), [false; 4]);
    assert!(kept.is_answered(), "a connection of another forward goes on");
    let answers_before = kept.answers();
    eventually(seconds(10), "it carries data", || kept.answers() > answers_before);

    // The same on a stopped exit, where conntrack's entries stay after the forward was removed.
    exit.stop(Signal::KILL);
    exit.warren.run("exit client forward remove home tcp/8080").ok();
    exit.run();
    eventually(seconds(20), "the client is back", || client.status().text("/state") == "up");
    std::thread::sleep(seconds(2));
    assert!(!kept.is_answered(), "a removed forward's connection lives on after a restart");
    let missing = exit.warren.run("exit client forward remove home tcp/8080");
    assert!(missing.stderr.contains("no forward of exactly tcp/8080"), "{missing:?}");
    client.down();
}

/// The exit also removes the connections from conntrack. This test puts one back, as if that had failed.
#[test]
fn the_rules_drop_connections_of_the_last_forward_too() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(&net, &serving(exit.enrol("home")));
    client.up();
    let service = Service::start(&net.client, SERVICE, UDP);
    let inner = client.inner_ipv4();
    let add = || exit.warren.run("exit client forward add home udp/5000").ok();
    // Tracks a visitor's flow from this port, which DNAT has redirected to the client.
    let track = |port: u16| {
        let ends = format!("-s {} -d {} --sport {port} --dport {UDP}", Net::INTERNET_V4, Net::EXIT_V4);
        let state = "-t 100 -u SEEN_REPLY,ASSURED";
        net.exit.sh(&format!("conntrack -I -p udp {ends} --dst-nat {inner} {state}")).ok();
    };
    let is_answered = |port: u16| {
        let inside = move || {
            let socket = UdpSocket::bind((Net::INTERNET_V4, port)).unwrap();
            socket.connect((Net::EXIT_V4, UDP)).unwrap();
            socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
            (0..3).any(|_| socket.send(b"who").is_ok() && socket.recv(&mut [0; 64]).is_ok())
        };
        net.internet.host.enter(inside).join().unwrap()
    };
    let tracked = || net.exit.sh(&format!("conntrack -L -p udp --dport {UDP}")).ok().lines().count();

    // The control: with the forward, a flow that was tracked by hand is answered.
    add();
    track(7_001);
    assert!(is_answered(7_001));
    exit.warren.run("exit client forward remove home udp/5000").ok();
    eventually(seconds(5), "the exit has removed the forward's flows", || tracked() == 0);
    track(7_002);
    assert!(!is_answered(7_002));
    assert_eq!(tracked(), 1, "the rules dropped the packets of a flow that conntrack knows");
    let dropped = net.exit.sh("nft list chain inet warren_exit to_forwarded").ok();
    assert!(packets_of_one(&dropped) > 0, "{dropped}");
    drop(service);
    client.down();
}

#[test]
fn forwards_outlive_restarts_of_both_sides_and_follow_the_client_to_other_addresses() {
    let Some(net) = Net::new() else { return };
    let mut exit = Exit::init(&net, &ExitOptions::default());
    let client = Client::with(&net, &serving(exit.enrol("home")));
    // On an exit that does not run, for a client that has never connected.
    let added = exit.warren.run("exit client forward add home tcp/8443 --to 443").ok();
    assert!(added.contains("once home has connected for the first time"), "{added}");
    assert!(added.contains("allow = [\"tcp/443\"]"), "{added}");
    exit.run();
    exit.warren.run("exit client forward add home udp/5000").ok();
    client.up();
    let _service = Service::start(&net.client, SERVICE, UDP);
    all_reached(&net);
    assert!(exit.daemon().output().contains("forward udp/5000 added"), "the log has the change");

    let held = Visit::hold(&net.internet.host, at_exit(0, FORWARDED));
    for signal in [Signal::TERM, Signal::KILL] {
        exit.stop(signal);
        exit.run();
        eventually(seconds(20), "the client is back", || client.status().text("/state") == "up");
        all_reached(&net);
        eventually(seconds(20), "a visitor's connection lives on", || held.is_answered());
    }

    client.warren.run("down home").ok();
    assert_eq!(reached(&net), [false; 4]);
    client.up();
    all_reached(&net);

    exit.warren.run("exit client set home --ipv4 10.66.7.7 --ipv6 fd66:6666::77").ok();
    eventually(seconds(20), "the client has its new addresses", || {
        client.inner_addresses().0.as_str().is_some_and(|address| address.starts_with("10.66.7.7"))
    });
    all_reached(&net);

    // While a client is disabled, its forwards are not in force. They are in force again when it is enabled.
    exit.warren.run("exit client disable home").ok();
    assert_eq!(reached(&net), [false; 4]);
    exit.warren.run("exit client enable home").ok();
    client.warren.run("reload home");
    eventually(seconds(20), "the client is back", || client.status().text("/state") == "up");
    all_reached(&net);

    // Forwards can also be set in an edited file.
    exit.edit_clients(|clients| {
        let home = clients[0].as_table_mut().unwrap();
        assert_eq!(home["forwards"].to_string(), "[\"tcp/8443 to 443\", \"udp/5000\"]");
        home.insert("forwards".into(), vec!["udp/5000"].into());
    });
    exit.warren.run("reload exit").ok();
    assert_eq!(reached(&net), [false, false, true, true]);
    client.down();
}

/// Only the client's profile decides which ports can be reached, for visitors and for other clients alike.
#[test]
fn a_client_is_reached_only_at_ports_that_its_profile_allows_by_visitors_and_by_other_clients() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let profile = exit.enrol("home");
    let client = Client::with(&net, &profile);
    let host = net.second_client();
    let other = Client::on(&host, &exit.enrol("other"));
    client.up();
    other.up();
    let _service = Service::start(&net.client, SERVICE, UDP);
    let _second = Service::start(&net.client, 80, 81);
    for ports in ["tcp/8443 --to 443", "tcp/8080 --to 80", "udp/5000"] {
        exit.warren.run(&format!("exit client forward add home {ports}")).ok();
    }
    let inner = || -> Vec<IpAddr> {
        let (ipv4, ipv6) = client.inner_addresses();
        [ipv4, ipv6]
            .iter()
            .map(|address| address.as_str().unwrap().split('/').next().unwrap().parse().unwrap())
            .collect()
    };
    // Returns which of the two services `from` reaches at these addresses and ports.
    let reaches = |from: &Namespace, to: &[IpAddr], ports: [u16; 2]| -> Vec<bool> {
        let ends = to.iter().flat_map(|address| ports.map(|port| SocketAddr::new(*address, port)));
        ends.map(|end| visit(from, None, end).is_answered()).collect()
    };
    let exit_addresses: Vec<IpAddr> = EXIT.iter().map(|address| address.parse().unwrap()).collect();
    let by_exit = |from: &Namespace| reaches(from, &exit_addresses, [FORWARDED, 8_080]);
    let directly = |from: &Namespace| reaches(from, &inner(), [SERVICE, 80]);

    assert_eq!(by_exit(&net.internet.host), [false; 4], "a profile without the setting allows nothing");
    assert_eq!(by_exit(&host), [false; 4]);
    let dropped = client.sh("nft list chain inet warren_home from_tunnel");
    assert!(
        !dropped.contains("counter packets 0 "),
        "the packets came, and the client refused them: {dropped}"
    );

    client.warren.write("home.toml", 0o600, &serving(profile.clone()).text());
    client.warren.run("reload home").ok();
    assert_eq!(by_exit(&net.internet.host), [true, false, true, false]);
    // Clients reach the service at the exit's addresses, even the client that has the service. The service sees them
    // with the exit's inner address.
    assert_eq!(by_exit(&host), [true, false, true, false]);
    assert_eq!(by_exit(&net.client), [true, false, true, false]);
    let Visit::Answered { seen, .. } = visit(&host, None, at_exit(0, FORWARDED)) else {
        panic!("not served")
    };
    assert_eq!(seen.ip(), "10.66.0.1".parse::<IpAddr>().unwrap());
    // Isolation still applies: clients do not reach each other at their own addresses.
    assert_eq!(directly(&host), [false; 4]);

    exit.configure(|config| config.with("clients", "isolation", false));
    exit.warren.run("reload exit").ok();
    assert_eq!(directly(&host), [true, false, true, false]);
    assert!(host.sh(&format!("ping -c 1 -W 5 {}", inner()[0])).succeeded(), "an echo is answered");
    // The control: only the profile's setting keeps the other service from being reached.
    let both = profile.with("forwards", "allow", vec!["tcp/443", "tcp/80"]);
    client.warren.write("home.toml", 0o600, &both.text());
    client.warren.run("reload home").ok();
    assert_eq!((directly(&host), by_exit(&net.internet.host)), (vec![true; 4], vec![true; 4]));
    client.down();
    other.down();
}

/// Scorecard K1 and K2, with forwards.
#[test]
fn the_kill_switch_holds_with_forwards() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let _service = Service::start(&net.client, SERVICE, UDP);
    for (what, profile) in [("full", exit.enrol("home")), ("split", split(exit.enrol("garden")))] {
        let name = if what == "full" { "home" } else { "garden" };
        let client = Client::with(&net, &serving(profile).with("kill_switch", "enabled", true));
        let add = |ports: &str| exit.warren.run(&format!("exit client forward add {name} {ports}")).ok();
        add("tcp/8443 --to 443");
        add("udp/5000");
        // The counter starts before the client. Otherwise the client's carrier could use a port by which the counter recognises
        // attempts.
        let leaks = LeakCounter::start(&net);
        client.up();
        all_reached(&net);
        let held = Visit::hold(&net.internet.host, at_exit(0, FORWARDED));
        let held_udp = Visit::hold_udp(&net.internet.host, at_exit(1, UDP));
        let outside = "ip daddr 203.0.113.0/24 counter; ip6 daddr 2001:db8:3::/48 counter;";
        let hook = "type filter hook ingress device to-client priority -600;";
        net.router.sh(&format!("nft 'table netdev answers {{ chain seen {{ {hook} {outside} }}; }}'")).ok();
        let answered_outside =
            || -> u64 { packets_counted(&net.router.sh("nft list table netdev answers").ok()).iter().sum() };

        assert!(held.is_answered() && held_udp.is_answered());
        assert_eq!(answered_outside(), 0, "{what}: answers to visitors left outside");
        if what == "full" {
            leaks.assert_none("up, with visitors");
        }
        client.signal(Signal::KILL);
        eventually(seconds(5), "the daemon is gone", || net.client.pids().is_empty());
        if what == "full" {
            leaks.assert_none("the daemon was killed, with visitors");
        }
        // The service keeps sending on the connections that are still open.
        std::thread::sleep(seconds(2));
        assert_eq!(answered_outside(), 0, "{what}: answers to visitors left outside");
        assert!(!held.is_answered() && !held_udp.is_answered());
        // The control: with a split tunnel, the host's own packets to the same addresses leave outside.
        if what == "split" {
            client.sh(&format!("ping -c 1 -W 5 {}", Net::INTERNET_V4));
            assert_eq!(answered_outside(), 1);
        }
        net.router.sh("nft delete table netdev answers").ok();
        net.router.sh("nft delete table netdev leaks").ok();
        client.warren.run("cleanup").ok();
        for ports in ["tcp/8443", "udp/5000"] {
            exit.warren.run(&format!("exit client forward remove {name} {ports}")).ok();
        }
    }
}

#[test]
fn the_page_lists_adds_and_removes_forwards() {
    let Some(net) = Net::new() else { return };
    let mut exit = Exit::init(&net, &ExitOptions::default());
    exit.configure(|config| config.with("web", "listen", "127.0.0.1:9467"));
    exit.run();
    let client = Client::with(&net, &serving(exit.enrol("home")));
    client.up();
    let _service = Service::start(&net.client, SERVICE, UDP);
    let token = std::fs::read_to_string(exit.warren.state("exit/web.token")).unwrap();
    let ask = |path: &str, body: Value| {
        let header = format!(
            "--header 'Authorization: Bearer {}' --header 'Content-Type: application/json'",
            token.trim()
        );
        net.exit
            .sh(&format!(
                "curl --silent --max-time 20 {header} --data '{body}' http://127.0.0.1:9467/api/{path}"
            ))
            .ok()
    };
    let forwards = || -> Value {
        serde_json::from_str::<Value>(&ask("clients", serde_json::json!({}))).unwrap()["rows"][0]["forwards"]
            .clone()
    };
    assert_eq!(forwards(), serde_json::json!([]));

    ask("forward", serde_json::json!({ "name": "home", "ports": "tcp/8443", "to": 443 }));
    ask("forward", serde_json::json!({ "name": "home", "ports": "udp/5000" }));
    assert_eq!(forwards(), serde_json::json!(["tcp/8443 to 443", "udp/5000"]));
    all_reached(&net);
    for (body, words) in [
        (serde_json::json!({ "name": "home", "ports": "udp/443" }), "this exit listens there"),
        (serde_json::json!({ "name": "home", "ports": "443" }), "write a port such as"),
        (serde_json::json!({ "name": "home", "ports": "tcp/8443" }), "already"),
        (serde_json::json!({ "name": "none", "ports": "tcp/80" }), "no client"),
    ] {
        let refused = ask("forward", body);
        assert!(refused.contains("error") && refused.contains(words), "{refused}");
    }

    ask("unforward", serde_json::json!({ "name": "home", "ports": "tcp/8443" }));
    assert_eq!(forwards(), serde_json::json!(["udp/5000"]));
    assert_eq!(reached(&net), [false, false, true, true]);
    let log = exit.daemon().output();
    for line in ["forward tcp/8443 to 443 added", "forward tcp/8443 removed"] {
        assert!(log.lines().any(|logged| logged.contains(line) && logged.contains("page")), "{line}: {log}");
    }
    client.down();
}
