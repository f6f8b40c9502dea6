//! A fleet of three real exits with a real etcd and many clients. The clients are spread evenly over the exits, and an exit with
//! 100,000 clients answers its operator at once, and catches up with a compacted store.
#![allow(clippy::indexing_slicing, clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use warren_control::{NewClient, Request};
use warren_quic::key::{PrivateKey, PublicKey};

use crate::support::faulty_fleet::{EXITS, Faulty, Guest};
use crate::support::fleet_clients::{FleetCrowd, KnownFleet};
use crate::support::library_client::{LibraryClient, runtime};
use crate::support::memory::rss_kib;
use crate::support::real_fleet::{RealFleet, endpoint, store_of};
use crate::support::{Exit, Net, asked, eventually, seconds, timed};

/// The fleet's inner addresses, of which there are enough for 100,000 clients.
const POOL: &str = "10.64.0.0/14";

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
    let registry = registry_of(count, key.public());
    let hosts = net.clients_beside(3);
    let start = Instant::now();
    let Some(mut fleet) = RealFleet::start(&hosts, POOL, &registry) else { return };
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
    println!("measured: memory of exits and links in KiB {:?}", memory(&fleet));

    let times: Vec<Duration> = (0..20).map(|number| until_known_elsewhere(&fleet, number)).collect();
    println!("measured: from the command's end at one exit until the other knows {:?}", sorted(times));

    starts_from_its_disk(&mut fleet, &net, key, count);
    assert!(list < seconds(20) && one_page < Duration::from_millis(500), "{list:?} {one_page:?}");
    assert!(page.len() < 4 << 20, "a scrape has {} bytes", page.len());
}

/// The number of clients that are removed, and of those that are added, while an exit is cut off.
const CHANGES: usize = 40;

/// The third exit is cut off from the store while clients are removed and added. When it is back, it has to read everything again.
#[test]
#[ignore = "measures a fleet with 100,000 clients; docs/fleet.md has its figures"]
fn an_exit_of_a_fleet_with_a_hundred_thousand_clients_catches_up_with_a_compacted_store() {
    let Some(net) = Net::new() else { return };
    let count: usize = asked("WARREN_CLIENTS").unwrap_or(100_000);
    let registry = registry_of(count, PrivateKey::generate().unwrap().public());
    let hosts = net.clients_beside(10);
    let Some(faulty) = Faulty::start_with(&net, &hosts, POOL, &registry) else { return };
    eventually(seconds(120), "every exit knows every client", || {
        faulty.enrolled().iter().all(|enrolled| *enrolled >= count as u64)
    });
    // In this time, the allocator returns the memory that the full copy of the store took.
    std::thread::sleep(seconds(25));
    let (revision, since) = (faulty.etcd.revision(), Instant::now());
    std::thread::sleep(seconds(20));
    let writes = (faulty.etcd.revision() - revision) as f64 / since.elapsed().as_secs_f64() / EXITS as f64;
    println!(
        "measured: {writes:.2} writes a second by each idle exit; memory in KiB {:?}",
        memory(&faulty.fleet)
    );
    assert!(writes <= 2.0, "{writes}");

    // The control: if the store still has the changes, the exit reads only these.
    catches_up(&faulty, 0, false);
    catches_up(&faulty, 1, true);
    std::thread::sleep(seconds(25));
    println!("measured: afterwards, memory in KiB {:?}", memory(&faulty.fleet));
}

/// Changes clients while the third exit is cut off, and waits until this exit has all changes.
fn catches_up(faulty: &Faulty<'_>, round: usize, is_compacted: bool) {
    let (exit, link, keeper) = (faulty.exit(2), &faulty.fleet.links[2], &faulty.keepers[2].steady);
    let revoked = Guest::arrive(exit, &faulty.others[0], &format!("revoked-{round}"));
    let (marks, mark, logged) = (faulty.marks(), keeper.mark(), link.output().len());
    let added = PrivateKey::generate().unwrap();
    let revision = |exit: &Exit<'_>| exit.status().number("/fleet/revision");

    faulty.cut_off();
    eventually(seconds(6), "the exit is cut off", || store_of(exit) == "away");
    change_elsewhere(faulty, round, added.public());
    faulty.remove(&revoked.name);
    if is_compacted {
        faulty.etcd.compact();
    }
    // The control: this exit still serves the removed client and refuses the new one, so it is really cut off.
    revoked.assert_served();
    assert!(!admits(faulty, &added, seconds(2)), "an exit that is cut off does not know the client");
    let latest = revision(faulty.exit(0));
    assert!(revision(exit) < latest);
    let healed = faulty.heal();

    eventually(seconds(60), "the exit has all changes", || revision(exit) >= latest);
    let caught_up = healed.elapsed();
    assert!(admits(faulty, &added, seconds(2)));
    let admitted = healed.elapsed();
    let stopped = revoked.stops(healed, seconds(10));
    println!(
        "measured: compacted {is_compacted}: all changes after {caught_up:.2?}, an added client admitted after {admitted:.2?}, a \
         removed client's last packet after {stopped:.2?}; at the exit, at most {:.0?} between two answers",
        keeper.longest_gap_since(mark)
    );
    assert!(admitted <= seconds(10), "{admitted:?}");
    assert_eq!(link.output()[logged..].contains("the store has compacted changes"), is_compacted);
    let [own, elsewhere] = [exit, faulty.exit(0)].map(rows_of);
    let only = |one: &BTreeSet<String>, other: &BTreeSet<String>| -> Vec<String> {
        one.difference(other).take(3).cloned().collect()
    };
    let differing = [only(&own, &elsewhere), only(&elsewhere, &own)];
    assert!(differing.iter().all(Vec::is_empty), "the exits know different clients: {differing:#?}");
    let fault = if is_compacted { "compaction" } else { "no compaction" };
    faulty.assert_kept(fault, &marks, &[0, 1, 2]);
    revoked.leave();
}

/// Removes clients, spread over all of them, and adds others at the first exit.
fn change_elsewhere(faulty: &Faulty<'_>, round: usize, key: PublicKey) {
    let exit = faulty.exit(0);
    let enrolled = usize::try_from(faulty.enrolled()[0]).unwrap();
    let step = enrolled / CHANGES;
    let new = |number: usize| {
        let mut between = number_key(number * step);
        between.0[31] = u8::try_from(round).unwrap();
        let key = if number == 0 { key } else { between };
        NewClient::new(format!("added-{round}-{number}"), key, None, None)
    };
    let mut requests = vec![Request::ClientAddAll { clients: (0..CHANGES).map(new).collect() }];
    let removed = (0..CHANGES).map(|number| number * step + 1 + round);
    requests.extend(removed.map(|number| Request::ClientRemove { name: format!("client-{number:06}") }));
    let socket = exit.warren.config("../runtime/exit/control.sock");
    let tasks = tokio::task::LocalSet::new();
    // All at once, because a removal waits for an exit whose lease is still valid.
    tasks.block_on(&runtime(), async {
        let ask = |request| {
            let socket = socket.clone();
            tokio::task::spawn_local(async move { warren_control::ask(&socket, &request).await.unwrap() })
        };
        for asking in requests.into_iter().map(ask).collect::<Vec<_>>() {
            asking.await.unwrap();
        }
    });
    assert_eq!(faulty.enrolled()[0], enrolled as u64, "as many clients were added as removed");
}

/// Whether the third exit admits a client within a time.
fn admits(faulty: &Faulty<'_>, key: &PrivateKey, within: Duration) -> bool {
    let (way, key) = (faulty.way(2), key.clone());
    let asking = faulty.net.client.enter(move || {
        runtime().block_on(async {
            let start = Instant::now();
            let mut client = LibraryClient::start_in_fleet(way, key, 1);
            while client.attached() == 0 && start.elapsed() < within {
                client.run(Duration::from_millis(20)).await;
            }
            let is_admitted = client.attached() == 1;
            client.leave().await;
            is_admitted
        })
    });
    asking.join().unwrap()
}

/// The name, key and addresses of each client that an exit knows, and the keys that were removed.
fn rows_of(exit: &Exit<'_>) -> BTreeSet<String> {
    let listed = |options: &str| -> Vec<serde_json::Value> {
        serde_json::from_str(&exit.warren.run(&format!("exit client list --json {options}")).ok()).unwrap()
    };
    let row = |client: &serde_json::Value| {
        ["name", "public_key", "ipv4", "ipv6"].map(|field| client[field].to_string()).join(" ")
    };
    let (clients, removed) = (listed(""), listed("--removed"));
    clients.iter().chain(&removed).map(row).collect()
}

/// The resident memory of each exit and its link in KiB.
fn memory(fleet: &RealFleet<'_>) -> Vec<(u64, u64)> {
    let exits = fleet.exits.iter().zip(&fleet.links);
    exits.map(|(exit, link)| (exit.status().number("/process/rss_kib"), rss_kib(link.pid()))).collect()
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

/// A `clients.toml` of many clients, of whom only the first can connect.
fn registry_of(count: usize, first: PublicKey) -> String {
    let mut registry = String::new();
    enrol(&mut registry, 0, first);
    (1..count).for_each(|number| enrol(&mut registry, number, number_key(number)));
    registry
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

fn sorted(mut times: Vec<Duration>) -> Vec<Duration> {
    times.sort_unstable();
    times
}
