//! Clients that are cut off, ignore this, and connect again.
#![allow(clippy::indexing_slicing, clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use warren_quic::key::{PrivateKey, PublicKey};

use crate::support::counters::packets_counted;
use crate::support::library_client::{LibraryClient, runtime};
use crate::support::stubborn::{FIRST_PORT, StubbornClients, TRIES};
use crate::support::visits::{Service, Visit};
use crate::support::{Client, Exit, Namespace, Net, eventually, seconds};

/// The clients' names. All but the last are cut off, each in another way: three by commands, then three by a reload.
const NAMES: [&str; 7] =
    ["removed", "disabled", "rotated", "struck-out", "switched-off", "exchanged", "left-alone"];
const ROTATED: usize = 2;
const LEFT_ALONE: usize = 6;

/// The time after which no packet of a client that was cut off may pass.
const WITHIN: Duration = seconds(2);

/// For each client, the packets sent and the packets that had arrived at one moment.
#[derive(Clone, Debug)]
struct Sample {
    at: Instant,
    sent: Vec<u64>,
    arrived: Vec<u64>,
}

/// Scorecard A3.
#[test]
fn nothing_of_a_client_that_is_cut_off_gets_out_again_whatever_it_does() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let keys: Vec<PrivateKey> = NAMES.iter().map(|_| PrivateKey::generate().unwrap()).collect();
    for (name, key) in NAMES.iter().zip(&keys) {
        exit.enrol_key(name, &key.public().to_string());
    }
    let exit_key: PublicKey = exit.status().text("/public_key").parse().unwrap();
    count_arrivals(&net.internet.host);
    let clients = StubbornClients::start(&net.client, keys, exit_key);
    let sample = || Sample::take(&net, &clients);
    eventually(seconds(30), "packets of every client arrive", || {
        sample().arrived.iter().all(|count| *count > 10)
    });
    let inner: Vec<Ipv4Addr> = clients.accounts.iter().map(|account| account.inner().unwrap()).collect();
    let tracked = || inner.iter().map(|inner| flows_of(&net, *inner)).collect::<Vec<_>>();
    assert!(tracked().iter().all(|flows| *flows > 0), "{:?}", tracked());
    // From now on no client receives a Goodbye, a close or a reset.
    let deaf = "table inet deaf { chain in { type filter hook input priority 0; udp sport 443 drop; }; }";
    net.client.sh(&format!("nft '{deaf}'")).ok();
    let before = sample();
    std::thread::sleep(seconds(1));
    let mut samples = vec![sample()];
    let rates = samples[0].arrived_per_second_since(&before);

    let cuts = cut_off(&net, &exit, exit_key, || samples.push(sample()));
    let last_cut = cuts[cuts.len() - 1];
    while last_cut.elapsed() < WITHIN + seconds(4) {
        if last_cut.elapsed() > WITHIN + seconds(2) {
            clients.have_moved();
        }
        samples.push(sample());
        std::thread::sleep(Duration::from_millis(50));
    }

    let left = tracked();
    let end = samples[samples.len() - 1].clone();
    let settled = samples.iter().find(|sample| sample.at >= last_cut + WITHIN).unwrap();
    let took: Vec<Duration> =
        cuts.iter().enumerate().map(|(of, cut)| last_arrival(&samples, of, *cut)).collect();
    let sent = difference(&end.sent, &settled.sent);
    let passed = difference(&end.arrived, &settled.arrived);
    net.client.sh("nft delete table inet deaf").ok();
    let accounts = clients.come_again();
    let let_in: Vec<u64> = accounts.iter().map(|account| account.let_in.load(SeqCst)).collect();
    let arrived_again = difference(&arrivals(&net), &end.arrived);
    let left_at_last = tracked();
    println!(
        "measured: {rates:.0?} packets a second, cut off after {took:.0?} at the latest; of {sent:?} packets sent from {WITHIN:?} on, \
         {passed:?} arrived; {left:?} flows left; of {TRIES} attempts to connect again, {let_in:?} were let in, and {arrived_again:?} \
         packets arrived"
    );
    assert!(took.iter().all(|took| *took <= WITHIN), "{took:?}");
    for (of, name) in NAMES.iter().enumerate().take(LEFT_ALONE) {
        assert!(sent[of] > 100, "{name}: {sent:?}");
        assert_eq!((passed[of], let_in[of], arrived_again[of]), (0, 0, 0), "{name}");
        // No packets or flows are left, except for the client with a new key, which keeps its addresses and flows.
        assert!(of == ROTATED || (left[of], left_at_last[of]) == (0, 0), "{name}: {left:?} {left_at_last:?}");
    }
    // The control: a client that is not cut off.
    assert!(passed[LEFT_ALONE] > 100 && left[LEFT_ALONE] > 0, "{passed:?} {left:?}");
    assert!(let_in[LEFT_ALONE] == TRIES && arrived_again[LEFT_ALONE] > TRIES, "{let_in:?} {arrived_again:?}");
}

/// Otherwise the next client with the address would get the packets of the flows.
#[test]
fn flows_of_a_client_that_is_offline_are_forgotten_when_it_loses_its_address() {
    let Some(net) = Net::new() else { return };
    let mut exit = Exit::start(&net);
    let service: SocketAddr = (Ipv4Addr::from([203, 0, 113, 2]), 5_001).into();
    let _service = Service::start(&net.internet.host, 8_080, service.port());
    let second = net.second_client();
    let other = Client::on(&second, &exit.enrol("other"));
    other.up();
    let kept = Visit::hold_udp(&second, service);
    assert!(kept.is_answered());
    let others = other.inner_ipv4();
    // Each client opens a flow and disconnects. Its flow stays, because it may come back.
    let mut left_by = |name: &str| {
        let client = Client::with(&net, &exit.enrol(name));
        client.up();
        let inner = client.inner_ipv4();
        assert!(Visit::hold_udp(&net.client, service).is_answered());
        client.down();
        inner
    };
    let [removed, moved, robbed, removed_later] =
        ["removed", "moved", "robbed", "removed-later"].map(&mut left_by);
    let tracked = || [removed, moved, robbed, removed_later, others].map(|inner| flows_of(&net, inner) > 0);
    assert_eq!(tracked(), [true; 5]);

    exit.warren.run("exit client remove removed").ok();
    eventually(seconds(2), "the flows of a removed client are forgotten", || !tracked()[0]);
    exit.warren.run("exit client set moved --ipv4 10.66.7.7").ok();
    eventually(seconds(2), "the flows of the old address are forgotten", || !tracked()[1]);
    exit.warren.run("exit client add robber").ok();
    exit.warren.run(&format!("exit client set robber --ipv4 {robbed}")).ok();
    eventually(seconds(2), "the flows of an address that another client gets are forgotten", || {
        !tracked()[2]
    });
    assert_eq!(tracked(), [false, false, false, true, true]);
    exit.stop(Signal::KILL);
    exit.warren.run("exit client remove removed-later").ok();
    assert_eq!(tracked(), [false, false, false, false, true], "on a stopped exit");
    exit.run();

    // The control: the flow of a client that keeps its address goes on.
    eventually(seconds(20), "the other client's flow goes on", || kept.is_answered());
    other.down();
}

/// The client with the network is offline all the time. Conntrack gets a flow of each network by hand.
#[test]
fn flows_of_a_network_behind_a_client_are_forgotten_when_it_loses_the_network() {
    let Some(net) = Net::new() else { return };
    let mut exit = Exit::start(&net);
    exit.warren.run("exit client add office --prefix 192.168.8.0/24 --prefix 192.168.9.0/24").ok();
    exit.warren.run("exit client add branch --prefix 192.168.10.0/24").ok();
    let inside = [8, 9, 10].map(|network| Ipv4Addr::from([192, 168, network, 5]));
    let tracked = || inside.map(|inside| flows_of(&net, inside) > 0);
    for (port, source) in (7_001..).zip(inside) {
        let (to, from) = (Net::INTERNET_V4, Net::EXIT_V4);
        let ends = format!("-s {source} -d {to} --sport {port} --dport 9 --src-nat {from}");
        net.exit.sh(&format!("conntrack -I -p udp {ends} -t 100 -u SEEN_REPLY,ASSURED")).ok();
    }
    assert_eq!(tracked(), [true; 3]);

    exit.warren.run("exit client set office --prefix 192.168.9.0/24").ok();
    eventually(seconds(2), "the network's flow is forgotten", || !tracked()[0]);
    assert_eq!(tracked(), [false, true, true], "the other networks' flows stay");
    exit.stop(Signal::KILL);
    exit.warren.run("exit client remove office").ok();
    assert_eq!(tracked(), [false, false, true]);
}

/// The second part of scorecard A3, about the exit's own key.
#[test]
fn nothing_of_a_client_that_pins_a_retired_key_gets_out_again_if_sessions_are_to_end() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let key = PrivateKey::generate().unwrap();
    exit.enrol_key("stubborn", &key.public().to_string());
    let profile = exit.enrol("told");
    let pins_the_old_one = exit.enrol("untold");
    let old_key = exit.status().text("/public_key").to_owned();
    count_arrivals(&net.internet.host);
    let stubborn = StubbornClients::start(&net.client, vec![key], old_key.parse().unwrap());
    eventually(seconds(10), "the client's packets arrive", || arrivals(&net)[0] > 10);
    exit.warren.run("exit rotate-key").ok();
    let both = vec![exit.status().text("/public_key").to_owned(), old_key];
    let host = net.second_client();
    let told = Client::on(&host, &profile.with_exit("public_key", both));
    told.up();
    let addresses = told.inner_addresses();
    // The client receives no Goodbye, no close and no reset.
    let deaf = "table inet deaf { chain in { type filter hook input priority 0; udp sport 443 drop; }; }";
    net.client.sh(&format!("nft '{deaf}'")).ok();
    let before = arrivals(&net)[0];
    eventually(seconds(10), "the client's packets arrive although it hears nothing", || {
        arrivals(&net)[0] > before + 50
    });

    exit.warren.run("exit rotate-key --retire --end-sessions").ok();

    std::thread::sleep(WITHIN);
    let (sent, settled) = (stubborn.accounts[0].sent.load(SeqCst), arrivals(&net)[0]);
    std::thread::sleep(seconds(2));
    stubborn.have_moved();
    std::thread::sleep(seconds(2));
    let (sent, passed) = (stubborn.accounts[0].sent.load(SeqCst) - sent, arrivals(&net)[0] - settled);
    net.client.sh("nft delete table inet deaf").ok();
    told.sh(&format!("ping -c 1 -W 5 {}", Net::INTERNET_V4));
    assert_eq!(told.status().text("/state"), "up", "the client that pins the new key is back");
    assert!(told.status().number("/reconnects") > 0, "its session was ended too");
    assert_eq!(told.inner_addresses(), addresses);
    println!("measured: of {sent} packets sent from {WITHIN:?} on {passed} arrived");
    assert!(sent > 100, "{sent}");
    assert_eq!(passed, 0);
    stubborn.leave();
    let untold = Client::with(&net, &pins_the_old_one);
    let refused = untold.warren.run("up home --timeout 3s");
    assert!(!refused.succeeded(), "{refused:?}");
    untold.assert_host_unchanged();
    let new_key = exit.status().text("/public_key").to_owned();
    untold.warren.write("home.toml", 0o600, &pins_the_old_one.with_exit("public_key", new_key).text());
    untold.up();
    // The old key is retired already. With the same option, the sessions, which use the new key, can still be ended.
    let again = exit.warren.run("exit rotate-key --retire --end-sessions").ok();
    assert!(again.contains("ended 2 sessions"), "{again:?}");
    untold.down();
    told.down();
}

/// Cuts off all clients but the last. Returns when each was cut off, in order.
fn cut_off(net: &Net, exit: &Exit<'_>, exit_key: PublicKey, mut looking: impl FnMut()) -> Vec<Instant> {
    let mut cuts = Vec::new();
    for command in ["remove removed", "disable disabled"] {
        cuts.push(Instant::now());
        exit.warren.run(&format!("exit client {command}")).ok();
        looking();
    }
    let next = PrivateKey::generate().unwrap();
    exit.warren.run(&format!("exit client set rotated --public-key {}", next.public())).ok();
    looking();
    // The client with a new key counts as cut off from this moment on, because its old key stays valid until now.
    cuts.push(Instant::now());
    connect_once(&net.second_client(), next, exit_key);
    looking();
    exit.edit_clients(edit);
    cuts.extend([Instant::now(); 3]);
    exit.warren.run("reload exit").ok();
    looking();
    cuts
}

/// Opens a session with a key and ends it.
fn connect_once(host: &Namespace, key: PrivateKey, exit_key: PublicKey) {
    let inside = move || {
        runtime().block_on(async move {
            let mut client = LibraryClient::start(key, exit_key, 1);
            client.until("the client is up", |client| client.attached() == 1).await;
            client.leave().await;
        });
    };
    host.enter(inside).join().unwrap();
}

/// Removes one client from the file, disables one, and replaces the key of one.
fn edit(clients: &mut Vec<toml::Value>) {
    clients.retain(|client| client["name"].as_str() != Some("struck-out"));
    for client in clients.iter_mut().filter_map(toml::Value::as_table_mut) {
        if client["name"].as_str() == Some("switched-off") {
            client.insert("disabled".into(), true.into());
        }
        if client["name"].as_str() == Some("exchanged") {
            let key = PrivateKey::generate().unwrap().public().to_string();
            client.insert("public_key".into(), key.into());
        }
    }
}

impl Sample {
    fn take(net: &Net, clients: &StubbornClients) -> Self {
        let sent = clients.accounts.iter().map(|account| account.sent.load(SeqCst)).collect();
        let arrived = arrivals(net);
        // The time is taken after counting, so all counted packets arrived before it.
        Self { at: Instant::now(), sent, arrived }
    }

    fn arrived_per_second_since(&self, before: &Self) -> Vec<f64> {
        let time = (self.at - before.at).as_secs_f64();
        let arrived = difference(&self.arrived, &before.arrived);
        arrived.into_iter().map(|count| count as f64 / time).collect()
    }
}

/// The time from `since` until a client's last packet arrived.
fn last_arrival(samples: &[Sample], of: usize, since: Instant) -> Duration {
    let grown = samples.windows(2).rfind(|pair| pair[0].arrived[of] < pair[1].arrived[of]);
    grown.map(|pair| pair[1].at.saturating_duration_since(since)).unwrap_or_default()
}

fn difference(after: &[u64], before: &[u64]) -> Vec<u64> {
    after.iter().zip(before).map(|(after, before)| after - before).collect()
}

/// Counts packets to each client's port, and answers none of them.
fn count_arrivals(internet: &Namespace) {
    let ports = (FIRST_PORT..).take(NAMES.len());
    let rules: String = ports.map(|port| format!("udp dport {port} counter drop; ")).collect();
    let chain = format!("chain in {{ type filter hook prerouting priority raw; {rules}}}");
    internet.sh(&format!("nft 'table inet seen {{ {chain}; }}'")).ok();
}

fn arrivals(net: &Net) -> Vec<u64> {
    packets_counted(&net.internet.host.sh("nft list table inet seen").ok())
}

/// The number of flows from an inner address in the exit's connection tracking.
fn flows_of(net: &Net, inner: Ipv4Addr) -> usize {
    let tracked = net.exit.sh("cat /proc/net/nf_conntrack").ok();
    tracked.lines().filter(|line| line.contains(&format!("src={inner} "))).count()
}
