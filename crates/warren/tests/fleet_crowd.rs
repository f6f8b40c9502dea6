//! A fleet of three real exits with a real etcd and many clients. The clients are spread evenly over the exits, and an exit with
//! 100,000 clients answers its operator at once.
#![allow(clippy::indexing_slicing, clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

use std::fmt::Write as _;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use warren_control::Request;
use warren_quic::key::{PrivateKey, PublicKey};

use crate::support::fleet_clients::{FleetCrowd, KnownFleet};
use crate::support::library_client::{LibraryClient, runtime};
use crate::support::real_fleet::{RealFleet, endpoint};
use crate::support::{Exit, Net, asked, eventually, seconds, timed};

/// `WARREN_FLEET_CROWD` is the number of clients, and `WARREN_FLEET_CONNECTIONS` how many connections each has.
#[test]
#[ignore = "measures three exits with a thousand clients; docs/fleet.md has its figures"]
fn clients_whose_exit_is_killed_are_soon_back_and_share_the_others_evenly() {
    let Some(net) = Net::new() else { return };
    let count = asked("WARREN_FLEET_CROWD").unwrap_or(1_000);
    let connections = asked("WARREN_FLEET_CONNECTIONS").unwrap_or(1);
    let mut clients: Vec<(PrivateKey, Ipv4Addr)> =
        (0..=count).map(|number| (PrivateKey::generate().unwrap(), leased(number).0)).collect();
    let mut registry = String::new();
    (0..).zip(&clients).for_each(|(number, (key, _))| enrol(&mut registry, number, key.public()));
    let hosts = net.clients_beside(3);
    let Some(mut fleet) = RealFleet::start(&hosts, "10.66.0.0/16", &registry) else { return };
    fleet.sign();
    let first = (endpoint(0), fleet.exits[0].status().text("/public_key").parse().unwrap());
    let (scout, _) = clients.pop().unwrap();
    let known = KnownFleet::learn(&net.client, scout, first);
    println!("round-trip times {:?}", known.round_trips());

    let start = Instant::now();
    let crowd = FleetCrowd::start(&net.client, clients, connections, known);
    eventually(seconds(90), "every client has all of its connections", || {
        crowd.shares().iter().sum::<usize>() == count
    });
    let (up, at_start) = (start.elapsed(), crowd.shares());
    assert_near(at_start, count, 3);
    // In this time, the exits learn each other's load.
    std::thread::sleep(seconds(6));
    let sessions = |exit: &Exit<'_>| exit.status().number("/clients/connected");
    let of_exits: Vec<u64> = fleet.exits.iter().map(sessions).collect();
    let (sent_before, answered_before) = crowd.packets();

    fleet.kill(2);
    let back = eventually(seconds(90), "every client is back", || {
        let [one, other, _] = crowd.shares();
        one + other == count
    });
    // After this time, no client should move again.
    std::thread::sleep(seconds(5));
    let after = crowd.shares();
    let living: Vec<u64> = fleet.exits[..2].iter().map(sessions).collect();
    let ((sent, answered), moves) = (crowd.packets(), crowd.moves());
    crowd.end();

    println!(
        "measured: {count} clients with {connections} connections each up in {up:.1?} at {at_start:?} (the exits say {of_exits:?}); one \
         exit killed: all back in {back:.1?} at {after:?} (the exits say {living:?}) after {moves} moves; {} of {} packets answered \
         from then on",
        answered - answered_before,
        sent - sent_before
    );
    assert!(back <= seconds(30), "{back:?}");
    assert_near(after, count, 2);
    assert_eq!(moves, at_start[2], "only clients of the dead exit have moved");
}

#[test]
#[ignore = "measures a fleet with 100,000 clients; docs/fleet.md has its figures"]
fn an_exit_of_a_fleet_with_a_hundred_thousand_clients_answers_at_once() {
    let Some(net) = Net::new() else { return };
    let count: usize = asked("WARREN_CLIENTS").unwrap_or(100_000);
    let key = PrivateKey::generate().unwrap();
    let mut registry = String::new();
    enrol(&mut registry, 0, key.public());
    (1..count).for_each(|number| enrol(&mut registry, number, number_key(number)));
    let hosts = net.clients_beside(3);
    let start = Instant::now();
    let Some(mut fleet) = RealFleet::start(&hosts, "10.64.0.0/14", &registry) else { return };
    let knows_all = |exit: &Exit<'_>| exit.status().number("/clients/enrolled") >= count as u64;
    eventually(seconds(120), "every exit knows every client", || fleet.exits.iter().all(knows_all));
    println!("measured: {count} clients at three exits {:.1?} after the first command", start.elapsed());

    let exit = &fleet.exits[1];
    let mut sizes = Vec::new();
    let mut ask = |line: &str| timed(|| sizes.push(exit.warren.run(line).ok().len()));
    let list = ask("exit client list --json");
    let one_page = ask("exit client list --json --limit 1000");
    let named = ask("exit client list --json --name client-012345");
    let status = ask("status exit --json");
    let mut page = String::new();
    let scrape = timed(|| page = hosts[1].sh("curl --silent --fail 127.0.0.1:9466/metrics").ok());
    let token = std::fs::read_to_string(exit.warren.state("exit/web.token")).unwrap();
    let token = token.trim();
    let page_of = |api: &str, query: Option<&str>| {
        let data = query.map(|query| format!("--header 'Content-Type: application/json' --data '{query}'"));
        let line = format!(
            "curl --silent --fail --header 'Authorization: Bearer {token}' {} 127.0.0.1:9467/api/{api}",
            data.unwrap_or_default()
        );
        let mut answer = String::new();
        let took = timed(|| answer = hosts[1].sh(&line).ok());
        assert!(answer.len() < 64 * 1024, "{api}: {} bytes", answer.len());
        took
    };
    let queries = [None, Some("{}"), Some(r#"{"search":"client-0123"}"#), Some(r#"{"sort":"seen"}"#)];
    let pages = queries.map(|query| page_of(if query.is_some() { "clients" } else { "overview" }, query));
    println!(
        "measured: list --json {list:.2?}, 1,000 of it {one_page:.2?}, ten by name {named:.2?}, status {status:.2?} ({sizes:?} bytes); \
         scrape {scrape:.2?} ({} bytes); page: overview, clients, search, by time {pages:.2?}",
        page.len()
    );
    // In this time, the allocator returns the memory that the full copy of the store took.
    std::thread::sleep(seconds(25));
    let memory: Vec<(u64, u64)> = fleet
        .exits
        .iter()
        .zip(&fleet.links)
        .map(|(exit, link)| (exit.status().number("/process/rss_kib"), resident_kib(link.pid())))
        .collect();
    println!("measured: memory of exits and links in KiB {memory:?}");

    let times: Vec<Duration> = (0..20).map(|number| until_known_elsewhere(&fleet, number)).collect();
    println!("measured: from the command's end at one exit until the other knows {:?}", sorted(times));

    starts_from_its_disk(&mut fleet, &net, key, count);
    assert!(list < seconds(20) && one_page < Duration::from_millis(500), "{list:?} {one_page:?}");
    assert!(page.len() < 4 << 20, "a scrape has {} bytes", page.len());
}

/// Restarts an exit without its link, and lets it admit a client.
fn starts_from_its_disk(fleet: &mut RealFleet<'_>, net: &Net, key: PrivateKey, count: usize) {
    let knows = |exit: &Exit<'_>| exit.status().number("/clients/enrolled") >= count as u64;
    fleet.links[1].signal(Signal::TERM);
    fleet.links[1].wait(seconds(10));
    fleet.exits[1].stop(Signal::TERM);
    let from_disk = timed(|| fleet.exits[1].run());
    assert!(knows(&fleet.exits[1]));
    let way = (endpoint(1), fleet.exits[1].status().text("/public_key").parse().unwrap());
    let admitting = net.client.enter(move || {
        runtime().block_on(async {
            let mut client = LibraryClient::start_in_fleet(way, key, 1);
            client.until("a client is admitted", |client| client.attached() == 1).await;
            client.leave().await;
        });
    });
    let admitted = timed(|| admitting.join().unwrap());
    let link = fleet.exits[1].warren.start("fleet run");
    let linked = timed(|| {
        eventually(seconds(60), "the exit has the store again", || {
            fleet.exits[1].status().text("/fleet/store") == "reachable"
        });
    });
    fleet.links[1] = link;
    println!(
        "measured: an exit starts from its disk in {from_disk:.2?} without the store, admits a client {admitted:.2?} later, and follows \
         the store {linked:.2?} after its link has started"
    );
    assert!(from_disk < seconds(5), "{from_disk:?}");
}

/// Enrols a client at the first exit. Returns how long it takes from the answer until the second exit has it.
fn until_known_elsewhere(fleet: &RealFleet<'_>, number: usize) -> Duration {
    let name = format!("late-{number}");
    let key = PrivateKey::generate().unwrap().public();
    let socket = fleet.exits[1].warren.config("../runtime/exit/control.sock");
    let asking = runtime();
    fleet.exits[0].warren.run(&format!("exit client add {name} --public-key {key}")).ok();
    let start = Instant::now();
    let request = Request::ClientShow { name };
    while asking.block_on(warren_control::ask(&socket, &request)).is_err() {
        assert!(start.elapsed() < seconds(10), "the other exit does not know of the client");
    }
    start.elapsed()
}

/// Adds a client to a `clients.toml`. It has been connected before, so it has addresses.
fn enrol(registry: &mut String, number: usize, key: PublicKey) {
    let (ipv4, ipv6) = leased(number);
    writeln!(
        registry,
        "[[client]]\nname = \"client-{number:06}\"\npublic_key = \"{key}\"\nleased_ipv4 = \"{ipv4}\"\nleased_ipv6 = \"{ipv6}\"\n\
         created = \"2026-01-01T00:00:00Z\"\nlast_seen = \"2026-11-01T00:00:00Z\""
    )
    .unwrap();
}

fn leased(number: usize) -> (Ipv4Addr, Ipv6Addr) {
    let number = u32::try_from(number).unwrap() + 2;
    let ipv4 = Ipv4Addr::from(0x0a42_0000 + number);
    (ipv4, Ipv6Addr::from(0xfd66_6666_0000_0000_0000_0000_0000_0000 + u128::from(number)))
}

/// Makes a key from a number. No client can use it, because nobody has the private half.
fn number_key(number: usize) -> PublicKey {
    let mut key = [7; 32];
    key[..8].copy_from_slice(&number.to_be_bytes());
    PublicKey(key)
}

/// Fails unless the first `exits` exits have shares within a tenth of even.
#[track_caller]
fn assert_near(shares: [usize; 3], count: usize, exits: usize) {
    let even = count / exits;
    let is_near = shares[..exits].iter().all(|share| share.abs_diff(even) <= even.div_ceil(10));
    assert!(is_near && shares.iter().sum::<usize>() == count, "{shares:?}");
}

fn resident_kib(process: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim_end_matches("kB").trim().parse().unwrap()
}

fn sorted(mut times: Vec<Duration>) -> Vec<Duration> {
    times.sort_unstable();
    times
}
