//! A client that its exit has refused for good keeps the tunnel's traffic blocked, reports the reason, and does not take the
//! session back by itself.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

use std::net::UdpSocket;

use crate::support::counters::packets_of_one;
use crate::support::{Client, Exit, ExitOptions, Net, Profile, eventually, seconds};

/// How many packets are sent to each destination.
const EACH: u32 = 50;

/// Counts at the router the packets that [`Outside::leaving`] sends.
struct Outside<'net> {
    net: &'net Net,
}

impl<'net> Outside<'net> {
    fn of(net: &'net Net) -> Self {
        let received = "type filter hook ingress device to-client priority -500;";
        let rules = "udp dport 7777 counter name traffic; udp dport 53 counter name queries;";
        net.router
            .sh(&format!(
                "nft 'table netdev outside {{ counter traffic {{ }}; counter queries {{ }}; \
                 chain received {{ {received} {rules} }}; }}'"
            ))
            .ok();
        Self { net }
    }

    /// Sends packets to the internet over IPv4 and IPv6, and queries to the LAN's resolver. Returns how many of each left.
    fn leaving(&self) -> (u64, u64) {
        let before = self.counted();
        let send = || {
            for (target, port) in [(Net::INTERNET_V4, 7777), (Net::INTERNET_V6, 7777), ("192.0.2.1", 53)] {
                for number in 0..EACH {
                    let any = if target.contains(':') { "[::]:0" } else { "0.0.0.0:0" };
                    // Sending fails if there is no route. The counters show the result.
                    drop(UdpSocket::bind(any).unwrap().send_to(&number.to_be_bytes(), (target, port)));
                }
            }
        };
        self.net.client.enter(send).join().unwrap();
        std::thread::sleep(seconds(1) / 5);
        let after = self.counted();
        (after.0 - before.0, after.1 - before.1)
    }

    fn counted(&self) -> (u64, u64) {
        let of = |name| {
            packets_of_one(&self.net.router.sh(&format!("nft list counter netdev outside {name}")).ok())
        };
        (of("traffic"), of("queries"))
    }

    /// Fails unless all packets leave the host. This is the control, which shows that the counters work.
    #[track_caller]
    fn assert_open(&self) {
        // Fills the neighbour cache first, because packets are dropped during neighbour discovery.
        self.net.client.sh("ping -c 1 -W 5 192.0.2.1 && ping -c 1 -W 5 2001:db8:1::1").ok();
        assert_eq!(self.leaving(), (2 * u64::from(EACH), u64::from(EACH)));
    }

    #[track_caller]
    fn assert_closed(&self, when: &str) {
        assert_eq!(self.leaving(), (0, 0), "{when}");
        println!("measured: {when}: 0 of {} packets left", 3 * EACH);
    }
}

/// Adds a resolver, so that DNS queries stay inside the tunnel too.
fn with_resolver(profile: Profile) -> Profile {
    profile.with("dns", "servers", vec![Net::INTERNET_V4])
}

#[track_caller]
fn wait_for(client: &Client<'_>, state: &str) {
    eventually(seconds(20), &format!("the client is {state}"), || {
        client.warren.status().is_some_and(|status| status.text("/state") == state)
    });
}

#[test]
fn nothing_leaves_a_client_that_the_operator_disables_until_it_is_taken_down() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(&net, &with_resolver(exit.enrol("laptop")));
    let outside = Outside::of(&net);
    outside.assert_open();
    client.up();
    outside.assert_closed("up");
    let dropped = client.status().drop("carrier", "no_connection");

    exit.warren.run("exit client disable laptop").ok();

    wait_for(&client, "refused");
    outside.assert_closed("refused");
    let status = client.status();
    assert!(status.drop("carrier", "no_connection") >= dropped + 2 * u64::from(EACH), "{:#}", status.0);
    assert_eq!(status.text("/refused/reason"), "disabled");
    assert!(status.text("/refused/message").contains("has disabled this client"));
    assert!(status.0["refused"]["asked_again_in_seconds"].as_f64().is_some_and(|seconds| seconds > 200.0));
    assert!(status.0["session"].is_null());
    let report = client.warren.run("status home").ok();
    let report = report.split_whitespace().collect::<Vec<_>>().join(" ");
    for says in ["home: refused for", "has disabled this client", "warren down home"] {
        assert!(report.contains(says), "{says:?} is not in {report}");
    }
    let doctor = client.warren.run("doctor").stdout;
    let doctor = doctor.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(doctor.contains("has disabled this client") && doctor.contains("warren down home"), "{doctor}");

    // A new `up` gets the same answer, and the traffic stays blocked.
    let refused = client.warren.run("up home");
    assert_eq!(refused.code, Some(4), "{refused:?}");
    assert!(
        refused.stderr.contains("disabled") && refused.stderr.contains("warren down home"),
        "{refused:?}"
    );
    outside.assert_closed("`up` was refused");
    assert_eq!(client.warren.run("up home --kill-switch").code, Some(1), "the open kill switch stays open");

    // After the operator has enabled the client again, a reload or `up` connects.
    exit.warren.run("exit client enable laptop").ok();
    client.warren.run("reload home").ok();
    wait_for(&client, "up");
    client.sh("ping -c 1 -W 5 203.0.113.2");
    exit.warren.run("exit client remove laptop").ok();
    wait_for(&client, "refused");
    outside.assert_closed("removed");
    client.down();
    outside.assert_open();
}

#[test]
fn names_stay_inside_a_refused_client_whose_lan_is_reachable() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let profile = with_resolver(exit.enrol("laptop")).with("routes", "lan", true);
    let client = Client::with(&net, &profile);
    // The client's LAN has public addresses in this test, so a private one is added.
    client.sh("ip address add 10.9.0.2/24 dev eth0");
    net.router.sh("ip address add 10.9.0.1/24 dev to-client").ok();
    let outside = Outside::of(&net);
    let queries = |client: &Client<'_>| {
        let before = outside.counted().1;
        client.sh("ping -c 1 -W 5 10.9.0.1");
        let ask = "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\nfor n in range(50):\n try: s.sendto(b\"?\", (\"10.9.0.1\", 53))\n except OSError: pass";
        client.sh(&format!("python3 -c '{ask}'"));
        outside.counted().1 - before
    };
    assert_eq!(queries(&client), 50, "negative control");
    client.warren.run("up home").ok();
    assert_eq!(queries(&client), 0, "up");

    exit.warren.run("exit client disable laptop").ok();
    wait_for(&client, "refused");
    assert_eq!(queries(&client), 0, "refused");
    client.warren.run("down home").ok();

    // A client that is refused before it ever had a session.
    let mut daemon = start(&client);
    wait_for(&client, "refused");
    assert_eq!(queries(&client), 0, "refused before the first session");
    client.warren.run("down home").ok();
    assert_eq!(daemon.wait(seconds(10)), Some(0));
    assert_eq!(queries(&client), 50, "down");
}

#[test]
fn of_two_hosts_with_one_key_the_older_stays_closed_and_leaves_the_newer_alone() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let profile = with_resolver(exit.enrol("laptop"));
    let older = Client::with(&net, &profile);
    let host = net.second_client();
    let newer = Client::on(&host, &profile);
    let outside = Outside::of(&net);
    older.up();

    newer.up();

    wait_for(&older, "refused");
    assert_eq!(older.status().text("/refused/reason"), "replaced");
    assert!(
        older.status().0["refused"]["asked_again_in_seconds"].is_null(),
        "the older client does not ask again"
    );
    outside.assert_closed("replaced");
    // A reload does not ask the exit again either.
    older.warren.run("reload home").ok();
    std::thread::sleep(seconds(2));
    assert_eq!(newer.status().text("/state"), "up");
    assert_eq!(newer.status().number("/reconnects"), 0);

    // `up` takes the session back, as the message says.
    older.up();
    older.sh("ping -c 1 -W 5 203.0.113.2");
    wait_for(&newer, "refused");
    newer.down();
    older.down();
}

#[test]
fn a_profile_may_have_a_refused_client_open_its_host() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let profile = with_resolver(exit.enrol("laptop"));
    let client = Client::with(&net, &profile.clone().with("routes", "when_refused", "open"));
    let outside = Outside::of(&net);
    let mut daemon = client.run("info");
    outside.assert_closed("up");

    exit.warren.run("exit client disable laptop").ok();

    assert_eq!(daemon.wait(seconds(10)), Some(4), "{}", daemon.output());
    client.assert_host_unchanged();
    outside.assert_open();

    // A reload has the same effect.
    client.warren.write("home.toml", 0o600, &profile.text());
    let mut daemon = start(&client);
    wait_for(&client, "refused");
    outside.assert_closed("refused");
    client.warren.write("home.toml", 0o600, &profile.with("routes", "when_refused", "open").text());
    client.warren.run("reload home").ok();
    assert_eq!(daemon.wait(seconds(10)), Some(4), "{}", daemon.output());
    client.assert_host_unchanged();
}

#[test]
fn a_daemon_that_is_refused_at_first_closes_its_host_and_an_up_leaves_it_as_it_was() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(&net, &with_resolver(exit.enrol("laptop")));
    let outside = Outside::of(&net);
    exit.warren.run("exit client disable laptop").ok();

    let refused = client.warren.run("up home");
    assert_eq!(refused.code, Some(4), "{refused:?}");
    client.assert_host_unchanged();
    outside.assert_open();

    // Starts the daemon as a boot does.
    let mut daemon = start(&client);
    wait_for(&client, "refused");
    outside.assert_closed("refused before the first session");
    assert!(daemon.is_running());
    exit.warren.run("exit client enable laptop").ok();
    client.up();
    client.sh("ping -c 1 -W 5 203.0.113.2 && ping -c 1 -W 5 2001:db8:3::2");
    outside.assert_closed("the client is up again");
    client.down();
    assert_eq!(daemon.wait(seconds(10)), Some(0), "{}", daemon.output());
    outside.assert_open();
}

#[test]
fn another_exit_of_the_profile_takes_a_client_that_the_first_refuses() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let host = net.second_client();
    let mut other = Exit::init_on(&host, &ExitOptions::second());
    other.run();
    let first = exit.enrol("laptop");
    let key = exit.warren.public_key(first.value("client", "private_key"));
    let second = other.enrol_key("laptop", &key);
    let client = Client::with(&net, &first.with_failover_to(&second));
    client.up();

    exit.warren.run("exit client disable laptop").ok();

    eventually(seconds(20), "the client moves to the other exit", || {
        client.status().text("/exit/endpoint") == "192.0.3.2:443" && client.status().text("/state") == "up"
    });
    other.warren.run("exit client disable laptop").ok();
    wait_for(&client, "refused");
    // The next `up` begins with the first exit.
    exit.warren.run("exit client enable laptop").ok();
    client.up();
    assert_eq!(client.status().text("/exit/endpoint"), format!("{}:443", Net::EXIT_V4));
    client.down();
}

/// Starts the daemon as a boot does: nobody waits for the tunnel.
fn start(client: &Client<'_>) -> crate::support::Running {
    client.warren.start(&format!("--log info client run {}", client.warren.config("home.toml").display()))
}
