//! Tests which packets go through the tunnel, which bypass it, and which still reach the client's host and the hosts behind it.
#![allow(clippy::unwrap_used, reason = "test code")]

use rustix::process::Signal;

use crate::support::{Client, Exit, ExitOptions, LeakCounter, Namespace, Net, Running, eventually, seconds};

#[test]
fn connections_from_outside_are_answered_the_way_they_came() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    net.client.sh("sysctl -qw net.ipv4.conf.all.rp_filter=1").ok();
    let client = Client::with(&net, &exit.enrol("laptop"));
    let mut server = net.client.start(&["python3", "-u", "-c", ECHO_SERVER]);
    server.wait_for_output("ready");
    let mut older = session(&net, "192.0.2.2");
    older.wait_for_output("answered 2");

    client.up();

    let mut newer = [session(&net, "192.0.2.2"), session(&net, "2001:db8:1::2")];
    for session in newer.iter_mut().chain([&mut older]) {
        let so_far = session.output().lines().count();
        session.wait_for_output(&format!("answered {}", so_far + 10));
    }
    let asks = |address: &str| net.internet.host.sh(&format!("python3 -c '{UDP_ASK}' {address}")).succeeded();
    assert!(asks("192.0.2.2") && asks("2001:db8:1::2"));
    net.internet.host.sh("ping -c 1 -W 5 192.0.2.2 && ping -c 1 -W 5 2001:db8:1::2").ok();
    assert_eq!(client.sh("curl -sS --max-time 20 http://203.0.113.2/address"), Net::EXIT_V4);

    // A connection that conntrack already knew before the tunnel was up is treated in the same way.
    client.down();
    let track = "type filter hook input priority 0; ct state new accept;";
    net.client.sh(&format!("nft 'table inet mine {{ chain track {{ {track} }}; }}'")).ok();
    let mut tracked = session(&net, "192.0.2.2");
    tracked.wait_for_output("answered 2");
    client.warren.run("up home").ok();
    let so_far = tracked.output().lines().count();
    tracked.wait_for_output(&format!("answered {}", so_far + 10));
    client.warren.run("down home").ok();
    net.client.sh("nft delete table inet mine").ok();
    client.up();

    // The inner address is not reachable from the LAN, unlike the host's other addresses.
    let (inner, _) = client.inner_addresses();
    let inner = inner.as_str().unwrap().split('/').next().unwrap().to_owned();
    client.sh("ip address add 10.99.0.1/32 dev lo");
    net.router.sh(&format!("ip route add {inner} via 192.0.2.2; ip route add 10.99.0.1 via 192.0.2.2")).ok();
    net.router.sh("ping -c 1 -W 5 10.99.0.1").ok();
    assert!(!net.router.sh(&format!("ping -c 3 -i 0.2 -W 1 {inner}")).succeeded());
    client.sh("ip address delete 10.99.0.1/32 dev lo");
    client.down();
}

#[test]
fn exclusions_and_the_lan_go_around_the_tunnel_and_all_else_through_it() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    net.router
        .sh("ip address add 192.168.77.1/24 dev to-client; ip address add 192.168.78.1/24 dev to-client")
        .ok();
    net.client.sh("ip address add 192.168.77.2/24 dev eth0").ok();
    let profile = exit
        .enrol("laptop")
        .with("routes", "exclude", vec!["203.0.113.0/25"])
        .with("routes", "lan", true)
        .with("kill_switch", "enabled", true);
    let client = Client::with(&net, &profile);
    let reached = |address: &str| net.client.sh(&format!("ping -c 1 -W 2 {address}")).succeeded();

    client.up();

    assert_eq!(client.sh("curl -sS --max-time 20 http://203.0.113.2/address"), Net::CLIENT_V4);
    assert_eq!(client.sh("curl -sS --max-time 20 http://[2001:db8:3::2]/address"), Net::EXIT_V6);
    assert!(reached("192.168.77.1"));
    // Packets to a public network that the LAN claims as its own go through the tunnel.
    assert!(client.sh("ip route get 192.0.2.1").contains("warren0"));
    assert!(!reached("192.168.78.1"));
    client.sh("ip address add 192.168.78.2/24 dev eth0");
    eventually(seconds(10), "the client follows to another LAN", || reached("192.168.78.1"));
    let resolves = "dig +tries=1 +time=1 @192.168.77.1 www.internet.test";
    assert!(net.client.sh(resolves).stdout.contains("timed out") || !net.client.sh(resolves).succeeded());
    client.sh("ip address delete 192.168.78.2/24 dev eth0");
    client.down();
}

#[test]
fn containers_go_through_the_tunnel_with_the_inner_addresses() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let container = net.container_behind_client();
    let client = Client::with(&net, &exit.enrol("laptop").with("kill_switch", "enabled", true));
    let leaks = LeakCounter::start(&net);
    let sees =
        |address: &str| container.sh(&format!("curl -sS --max-time 20 http://{address}/address")).stdout;
    assert_eq!(sees("203.0.113.2").trim(), "172.30.0.2", "without a tunnel the source is unchanged");

    client.up();

    let before = leaks.leaked();
    assert_eq!(sees("203.0.113.2").trim(), Net::EXIT_V4);
    assert_eq!(sees("[2001:db8:3::2]").trim(), Net::EXIT_V6);
    client.sh("ip link set warren0 down");
    container.sh("ping -c 3 -i 0.2 -W 1 203.0.113.2; ping -c 3 -i 0.2 -W 1 2001:db8:3::2");
    assert_eq!(leaks.leaked(), before);
    client.down();
}

#[test]
fn containers_are_reached_as_without_a_tunnel_and_hear_of_packets_that_are_too_big_for_it() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let container = net.container_behind_client();
    let _server = container.start(&["python3", "-u", "-m", "http.server", "--bind", "::", "80"]);
    // Publishes two ports as `docker run -p` does.
    let publish = "type nat hook prerouting priority dstnat; \
                   fib daddr type local tcp dport { 8080, 8081 } dnat to 172.30.0.2:80;";
    net.client.sh(&format!("nft 'table ip docker {{ chain publish {{ {publish} }}; }}'")).ok();
    let answers = |host: &Namespace, address: &str| {
        host.sh(&format!("curl -sS -o /dev/null --max-time 5 http://{address}/")).succeeded()
    };
    let profile = exit.enrol("laptop").with("kill_switch", "allow_inbound", vec!["tcp/8080"]);
    let client = Client::with(&net, &profile);
    eventually(seconds(10), "the container's server listens", || answers(&net.client, "172.30.0.2"));

    for up in ["up home", "up home --kill-switch"] {
        client.warren.run(up).ok();
        for host in [&net.internet.host, &net.router] {
            assert!(
                answers(host, "192.0.2.2:8080"),
                "{up}: a published port does not answer from {}",
                host.name()
            );
        }
        assert!(answers(&net.client, "172.30.0.2") && answers(&net.client, "[fd30::2]"), "{up}");
        for (version, address, told) in
            [(4, "203.0.113.2", "Frag needed"), (6, "2001:db8:3::2", "Packet too big")]
        {
            let line = format!("ping -{version} -c 2 -W 5 -M do -s 1400 {address} 2>&1");
            let said = container.sh(&line).stdout.to_lowercase();
            assert!(said.contains(&told.to_lowercase()) || said.contains("message too long"), "{up}: {said}");
        }
        let is_closed = up.ends_with("--kill-switch");
        // A LAN that claims the container's network does not get the container's packets, even once the daemon has seen it.
        client.sh("ip address add 172.30.0.77/25 dev eth0; ip address add 192.168.99.77/24 dev eth0");
        if !is_closed {
            eventually(seconds(10), "the LAN is outside the tunnel", || {
                client.sh("ip route show table all").contains("throw 192.168.99.0/24")
            });
        }
        assert!(client.sh("ip route get 172.30.0.2").contains("dev to-container"));
        client.sh("ip address delete 172.30.0.77/25 dev eth0; ip address delete 192.168.99.77/24 dev eth0");
        assert_eq!(
            answers(&net.internet.host, "192.0.2.2:8081"),
            !is_closed,
            "{up}: a port that is not allowed"
        );
        client.down();
    }
}

#[test]
fn ipv6_fails_at_once_when_the_tunnel_has_none() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let container = net.container_behind_client();
    net.client.sh("sysctl -qw net.ipv6.conf.default.disable_ipv6=1").ok();
    let client = Client::with(&net, &exit.enrol("laptop"));
    let leaks = LeakCounter::start(&net);
    assert_eq!(client.sh("curl -sS --max-time 20 http://[2001:db8:3::2]/address"), Net::CLIENT_V6);

    client.up();

    let before = leaks.leaked();
    let milliseconds: f64 = client.sh(&format!("python3 -c '{FAILS_WITHIN}'")).parse().unwrap();
    assert!(milliseconds <= 100.0, "{milliseconds} ms");
    let failed = container.sh("curl -sS --max-time 20 http://[2001:db8:3::2]/address");
    assert_eq!(failed.code, Some(CANNOT_CONNECT), "{failed:?}");
    assert_eq!(leaks.leaked(), before);
    assert_eq!(client.sh("curl -sS --max-time 20 http://203.0.113.2/address"), Net::EXIT_V4);
    client.down();
}

#[test]
fn ipv4_fails_at_once_when_the_tunnel_has_none_and_the_carrier_s_answers_pass_the_check_of_their_way_back() {
    let Some(net) = Net::new() else { return };
    let mut exit = Exit::init(&net, &ExitOptions::default());
    let file = exit.warren.config("exit.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let ipv6_only: String =
        text.lines().filter(|line| !line.starts_with("ipv4")).map(|line| format!("{line}\n")).collect();
    std::fs::write(&file, ipv6_only).unwrap();
    exit.run();
    for check in [1, 2] {
        net.client.sh(&format!("sysctl -qw net.ipv4.conf.all.rp_filter={check}")).ok();
        let client = Client::with(&net, &exit.enrol(&format!("laptop{check}")));
        let leaks = LeakCounter::start(&net);

        client.up();

        let before = leaks.leaked();
        assert!(!net.client.sh("ping -c 1 -W 1 203.0.113.2").succeeded());
        assert_eq!(leaks.leaked(), before);
        assert_eq!(client.sh("curl -sS --max-time 20 http://[2001:db8:3::2]/address"), Net::EXIT_V6);
        client.down();
        net.router.sh("nft delete table netdev leaks").ok();
    }
}

#[test]
fn after_the_daemon_nothing_is_sent_with_an_inner_address_however_it_ended() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let container = net.container_behind_client();
    let client = Client::with(&net, &exit.enrol("laptop"));
    let chain = "type filter hook ingress device to-client priority -500; \
                 ip saddr 10.66.0.0/16 counter; ip6 saddr fd66:6666::/64 counter;";
    net.router.sh(&format!("nft 'table netdev sources {{ chain received {{ {chain} }}; }}'")).ok();
    let inner = || net.router.sh("nft list table netdev sources").ok();
    let none = inner();
    let senders = [(&net.client, "203.0.113.2"), (&net.client, "2001:db8:3::2"), (&container, "203.0.113.2")];
    // Each round starts another server, because a server that does not notice the end of its client serves no other one.
    let mut servers = Vec::new();
    let ends: [(&str, &dyn Fn()); 3] = [
        ("down", &|| drop(client.warren.run("down home").ok())),
        ("SIGTERM", &|| client.signal(Signal::TERM)),
        ("SIGKILL", &|| client.signal(Signal::KILL)),
    ];
    for (how, end) in ends {
        client.up();
        let mut uploads = Vec::new();
        for (host, to) in senders {
            let port = 5201 + u16::try_from(servers.len()).unwrap();
            servers.push(net.internet.iperf3(port));
            let rate = ["-b", "2M", "-t", "60", "--forceflush", "-i", "0.2"];
            uploads.push(host.start(&[&["iperf3", "-c", to, "-p", &port.to_string()], &rate[..]].concat()));
        }
        uploads.iter_mut().for_each(|upload| upload.wait_for_output("1.00-"));

        end();
        eventually(seconds(10), "the daemon has ended", || client.warren.status().is_none());

        // In this time, unacknowledged segments are retransmitted several times.
        std::thread::sleep(seconds(2));
        assert_eq!(inner(), none, "after {how}");
    }
    client.down();
    client.sh("ip address add 10.66.0.2/32 dev lo && ping -c 1 -W 1 -I 10.66.0.2 203.0.113.2 || true");
    assert_ne!(inner(), none, "the control: the counter sees inner addresses");
}

#[test]
fn host_without_nft_is_told_what_breaks_before_an_ssh_session_does() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    let without_nft = "mount -t tmpfs none /usr/sbin && exec \"$@\"";
    let session = "SSH_CONNECTION=203.0.113.2 50022 192.0.2.2 22";
    let command = ["env", session, "unshare", "-m", "sh", "-c", without_nft, "sh"];

    let mut up = client.warren.start_under(&command, "up home");

    assert_eq!(up.wait(seconds(60)), Some(0), "{}", up.output());
    let said = up.output();
    assert!(
        said.contains("this SSH session would go to 203.0.113.2") && said.contains("within 5 s"),
        "{said}"
    );
    let warnings = client.status().0["warnings"].to_string();
    for said in [said, warnings] {
        assert!(said.contains("nft is missing: connections from outside"), "{said}");
    }
    client.down();

    assert!(!client.warren.run("up home").stderr.contains("nft"));
    client.down();
}

/// A session from the internet host to the client. It sends requests over and over, and prints how often they were answered.
fn session(net: &Net, client: &str) -> Running {
    net.internet.host.start(&["python3", "-u", "-c", SESSION, client])
}

const ECHO_SERVER: &str = "
import socket, threading
def serve(connection):
    while data := connection.recv(100):
        connection.sendall(data)
listener = socket.create_server((\"::\", 2222), family=socket.AF_INET6, dualstack_ipv6=True)
datagrams = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
datagrams.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
datagrams.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
datagrams.bind((\"::\", 2222))
def answer():
    while True:
        data, control, flags, peer = datagrams.recvmsg(100, 100)
        datagrams.sendmsg([data], control, 0, peer)
threading.Thread(target=answer, daemon=True).start()
print(\"ready\")
while True:
    threading.Thread(target=serve, args=[listener.accept()[0]], daemon=True).start()
";

const SESSION: &str = "
import socket, sys, time
connection = socket.create_connection((sys.argv[1], 2222), 20)
count = 0
while True:
    connection.sendall(b\"hello\")
    assert connection.recv(100)
    count += 1
    print(\"answered\", count)
    time.sleep(0.1)
";

const UDP_ASK: &str = "
import socket, sys
family = socket.AF_INET6 if \":\" in sys.argv[1] else socket.AF_INET
asker = socket.socket(family, socket.SOCK_DGRAM)
asker.settimeout(1)
asker.connect((sys.argv[1], 2222))
for attempt in range(5):
    asker.send(b\"hello\")
    try:
        assert asker.recv(100) == b\"hello\"
        sys.exit(0)
    except TimeoutError:
        pass
sys.exit(1)
";

/// An exit code of curl(1). curl uses another code for a connection that times out.
const CANNOT_CONNECT: i32 = 7;

const FAILS_WITHIN: &str = "
import socket, time
best = 1e9
for attempt in range(3):
    start = time.monotonic()
    try:
        socket.create_connection((\"2001:db8:3::2\", 80), 5)
        raise SystemExit(1)
    except OSError as error:
        best = min(best, (time.monotonic() - start) * 1000)
print(best)
";
