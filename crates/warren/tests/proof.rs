//! `warren up` and the status report that traffic flows once an echo has proven it. Without a proof, they report this.
#![allow(clippy::unwrap_used, reason = "test code")]

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::support::{Client, Exit, Net, Running, eventually, seconds};

/// The warning for users.
const UNPROVEN: &str = "the exit does not answer pings to 10.66.0.1, so it is not proven that traffic flows";

#[test]
fn an_exit_that_answers_no_pings_is_used_and_users_hear_that_nothing_is_proven() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    let answers = |are_on: bool| {
        let off = u8::from(!are_on);
        net.exit.sh(&format!("sysctl -qw net.ipv4.icmp_echo_ignore_all={off}")).ok();
    };
    let up = || {
        let start = Instant::now();
        let said = client.warren.run("up home");
        assert!(said.succeeded(), "{}", said.stderr);
        assert!(said.stdout.starts_with("connected to home"), "{}", said.stdout);
        (said.stderr, start.elapsed())
    };
    let is_told = || client.status().0["warnings"].to_string().contains("not proven");
    // The control: an exit that answers.
    let (warned, _) = up();
    assert!(!warned.contains("proven") && !is_told(), "{warned}");
    client.down();

    answers(false);
    let (warned, unproven_in) = up();

    assert!(warned.contains(UNPROVEN), "{warned}");
    assert!(is_told());
    assert!(unproven_in >= Duration::from_secs(2), "it is waited for: {unproven_in:?}");
    assert_eq!(client.sh("curl -sS --max-time 20 http://203.0.113.2/address"), Net::EXIT_V4);

    answers(true);
    eventually(seconds(5), "the echo is answered after all", || !is_told());
    client.down();
}

#[test]
fn replies_that_a_host_on_the_lan_forges_prove_nothing() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    net.exit.sh("sysctl -qw net.ipv4.icmp_echo_ignore_all=1").ok();
    let mut forger = net.router.start(&["python3", "-c", FORGE]);
    // The control: a program on the client's host receives the forged replies, so no rule drops them.
    let heard = client.sh(&format!("python3 -c '{HEAR}'"));
    assert_eq!(heard.trim(), "heard");

    let said = client.warren.run("up home");

    assert!(said.succeeded() && said.stderr.contains(UNPROVEN), "{}", said.stderr);
    let rounds = |forger: &Running| forger.output().matches("round").count();
    let before = rounds(&forger);
    eventually(seconds(20), "each identifier was used several times", || rounds(&forger) >= before + 4);
    assert!(client.status().0["warnings"].to_string().contains("not proven"));
    assert!(forger.is_running());
    // The control: the exit's own reply.
    net.exit.sh("sysctl -qw net.ipv4.icmp_echo_ignore_all=0").ok();
    eventually(seconds(10), "the echo is answered", || {
        !client.status().0["warnings"].to_string().contains("not proven")
    });
    client.down();
}

/// Sends the client echo replies of the exit's inner address, with every identifier in turn.
const FORGE: &str = r#"
import socket, struct, time
raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
source, destination = socket.inet_aton("10.66.0.1"), socket.inet_aton("192.0.2.2")
header = struct.pack("!BBHHHBBH", 0x45, 0, 28, 0, 0, 64, 1, 0) + source + destination
while True:
    for identifier in range(1 << 16):
        raw.sendto(header + struct.pack("!BBHHH", 0, 0, 0xffff - identifier, identifier, 0), ("192.0.2.2", 0))
        if identifier % 64 == 0:
            time.sleep(0.001)
    print("round", flush=True)
"#;

/// Waits for one of those replies.
const HEAR: &str = r#"
import socket
raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
raw.settimeout(10)
while raw.recvfrom(100)[1][0] != "10.66.0.1":
    pass
print("heard")
"#;

#[test]
fn a_refusal_before_the_proof_is_over_stays_one() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    net.exit.sh("sysctl -qw net.ipv4.icmp_echo_ignore_all=1").ok();
    let client = Client::with(&net, &exit.enrol("laptop"));
    let state = || client.warren.status().map(|status| status.text("/state").to_owned());
    // The daemon is started without `up`, as at boot. If an `up` waited, the refusal would end the daemon.
    let running = client.warren.start(&format!("client run {}", client.warren.config("home.toml").display()));
    eventually(seconds(10), "the exit has a session", || exit.status().list("/sessions").len() == 1);

    exit.warren.run("exit client disable laptop").ok();

    eventually(seconds(1), "the client is refused", || state().as_deref() == Some("refused"));
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(state().as_deref(), Some("refused"));
    client.down();
    drop(running);
}

#[test]
fn a_daemon_proves_its_sessions_however_many_devices_it_has_had() {
    let Some(net) = Net::new() else { return };
    let mut exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    client.up();
    let index = || client.sh("cat /sys/class/net/warren0/ifindex");
    for _ in 0..6 {
        let before = index();
        client.sh("ip link delete warren0");
        eventually(seconds(10), "there is another device", || {
            let now = net.client.sh("cat /sys/class/net/warren0/ifindex");
            now.succeeded() && now.stdout != before
        });
        restart(&mut exit, &client);
    }
    // The control: if the exit does not answer, the proof is missing. A daemon that cannot send echo requests would not report
    // the missing proof.
    net.exit.sh("sysctl -qw net.ipv4.icmp_echo_ignore_all=1").ok();
    restart(&mut exit, &client);
    eventually(seconds(10), "users are told", || {
        client.status().0["warnings"].to_string().contains("not proven")
    });
    client.down();
}

fn restart(exit: &mut Exit<'_>, client: &Client<'_>) {
    let before = client.status().number("/reconnects");
    exit.stop(Signal::TERM);
    exit.run();
    eventually(seconds(20), "the client is back", || {
        client
            .warren
            .status()
            .is_some_and(|status| status.text("/state") == "up" && status.number("/reconnects") > before)
    });
}
