//! A client moves from one exit of its fleet to another without a gap. The store is in the test's memory.
#![allow(clippy::indexing_slicing, clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

use std::time::{Duration, UNIX_EPOCH};

use rustix::process::Signal;
use warren_fleet_link::FleetMessage;
use warren_session::roster::{ExitState, FleetKey, RosterExit, begin};

use crate::support::download::Download;
use crate::support::fleet_store::FleetStore;
use crate::support::{Client, Exit, ExitOptions, Namespace, Net, Profile, eventually, flows, seconds};

const FIRST_HOST: &str = Net::EXIT_V4;
const SECOND_HOST: &str = "192.0.10.2";

#[test]
fn draining_an_exit_loses_no_ping_and_old_flows_finish_where_they_began() {
    let Some(net) = Net::new() else { return };
    let second = net.clients_beside(1).remove(0);
    let mut fleet = Fleet::start(&net, &second);
    // With a kill switch, the carrier may leave to both exits while the client moves.
    let profile = fleet.exits[0].enrol("laptop").with("kill_switch", "enabled", true);
    let client = Client::with(&net, &profile);
    come_up(&client);
    let before = client.status();
    assert_eq!(before.text("/roster/exit"), "ams1");
    assert_eq!(address_seen(&net), FIRST_HOST);
    let pings = Pings::start(&net, 3_000);
    let download = Download::start(&net);
    std::thread::sleep(seconds(1));

    fleet.drain(0);

    let took = eventually(seconds(5), "the client is at the other exit", || is_at(&client, SECOND_HOST));
    println!("measured: at the other exit {took:?} after the drain");
    // New flows use the new exit at once, and the old flow stays at the old one.
    assert_eq!(address_seen(&net), SECOND_HOST);
    assert_eq!(
        flows::seen_from(&net.client, Net::INTERNET_V4, 20_000).unwrap().ip().to_string(),
        SECOND_HOST
    );
    let line = || client.warren.run("status home").ok();
    eventually(seconds(3), "the status tells of the move", || {
        line().contains("to ams2; 1 flow finishes at ams1")
    });
    assert_eq!(fleet.exits[0].status().list("/sessions").len(), 1, "the exit keeps the session");
    std::thread::sleep(seconds(3));
    println!("measured: {} bytes of the old flow", download.end());
    let after = client.status();
    for same in ["/session/ipv4", "/session/ipv6"] {
        assert_eq!(
            before.text(same),
            after.text(same),
            "an inner address is the same at every exit of a fleet"
        );
    }
    assert_eq!(after.number("/reconnects"), 0);
    eventually(seconds(30), "the old session is over", || {
        fleet.exits[0].status().list("/sessions").is_empty() && client.status().0["moving"].is_null()
    });
    assert_eq!(address_seen(&net), SECOND_HOST);
    let lost = pings.lost();
    assert_eq!(lost, 0, "pings every 10 ms, before, during and after the move");
    assert!(!fleet.exits[0].daemon().output().contains("replaced"), "it is the same client process");
    assert!(!line().contains("moving"));
    client.down();
}

/// The control: a client that knows both exits, but does not follow the fleet, leaves the old exit before it has a
/// session at the new one.
#[test]
fn without_the_fleet_a_drain_costs_pings_and_old_flows() {
    let Some(net) = Net::new() else { return };
    let second = net.clients_beside(1).remove(0);
    let fleet = Fleet::start(&net, &second);
    let profile = fleet.exits[0].enrol("laptop").with("fleet", "follow", false);
    let key = fleet.exits[1].status().text("/public_key").to_owned();
    let text =
        format!("{}\n[[exit]]\nendpoint = \"{SECOND_HOST}:443\"\npublic_key = \"{key}\"\n", profile.text());
    let client = Client::with(&net, &Profile::parse(&text));
    client.up();
    let pings = Pings::start(&net, 800);
    let old = flows::TcpFlows::open(&net, 1);
    assert_eq!(old.alive(), 1);
    std::thread::sleep(seconds(1));

    fleet.drain(0);

    eventually(seconds(20), "the client is at the other exit", || is_at(&client, SECOND_HOST));
    assert_eq!(old.alive(), 0, "the old flow cannot go on with another public address");
    let lost = pings.lost();
    println!("measured: {lost} of 800 pings lost");
    assert!(lost > 0);
    client.down();
}

/// A client that cannot reach the new exit stays at the old one.
#[test]
fn a_move_to_an_exit_that_cannot_be_reached_changes_nothing() {
    let Some(net) = Net::new() else { return };
    let second = net.clients_beside(1).remove(0);
    let fleet = Fleet::start(&net, &second);
    let client = Client::with(&net, &fleet.exits[0].enrol("laptop"));
    come_up(&client);
    second.sh("nft 'table inet shut { chain in { type filter hook input priority -300; udp dport 443 drop; }; }'").ok();
    let pings = Pings::start(&net, 2_500);
    let download = Download::start(&net);

    fleet.drain(0);
    std::thread::sleep(seconds(7));

    assert!(is_at(&client, FIRST_HOST));
    assert_eq!(address_seen(&net), FIRST_HOST);
    // Once the exit can be reached, the client leaves after all.
    second.sh("nft delete table inet shut").ok();
    eventually(seconds(20), "the client is at the other exit", || is_at(&client, SECOND_HOST));
    assert_eq!(address_seen(&net), SECOND_HOST);
    download.end();
    assert_eq!(pings.lost(), 0);
    client.down();
}

/// The exit in use learns of the new session from the store, and would end its own session 30 s later.
#[test]
fn a_client_whose_new_session_carries_nothing_stays_and_is_not_thrown_off_later() {
    let Some(net) = Net::new() else { return };
    let second = net.clients_beside(1).remove(0);
    let fleet = Fleet::start(&net, &second);
    let client = Client::with(&net, &fleet.exits[0].enrol("laptop"));
    come_up(&client);
    second.sh("nft 'table inet mute { chain in { type filter hook input priority -300; icmp type echo-request drop; }; }'").ok();
    let pings = Pings::start(&net, 5_000);

    fleet.drain(0);

    eventually(seconds(5), "a session at the other exit", || {
        !fleet.exits[1].status().list("/sessions").is_empty()
    });
    std::thread::sleep(seconds(42));
    let status = client.status();
    assert!(is_at(&client, FIRST_HOST));
    assert_eq!(status.number("/reconnects"), 0);
    assert_eq!(pings.lost(), 0);
    // The control: once the new session carries packets, the client leaves after all.
    second.sh("nft delete table inet mute").ok();
    eventually(seconds(20), "the client is at the other exit", || is_at(&client, SECOND_HOST));
    assert_eq!(client.status().number("/reconnects"), 0);
    client.down();
}

/// If the old session ends, this does not prove that the session in use carries packets.
#[test]
fn a_client_that_loses_both_sessions_of_a_move_does_not_say_that_it_is_up() {
    let Some(net) = Net::new() else { return };
    let second = net.clients_beside(1).remove(0);
    let mut fleet = Fleet::start(&net, &second);
    let client = Client::with(&net, &fleet.exits[0].enrol("laptop"));
    come_up(&client);
    let download = Download::start(&net);
    std::thread::sleep(seconds(1));
    fleet.drain(0);
    eventually(seconds(5), "the client is at the other exit", || is_at(&client, SECOND_HOST));
    // The download keeps the session at the first exit.
    assert!(!client.status().0["moving"].is_null());

    fleet.exits[1].stop(Signal::TERM);
    eventually(seconds(10), "the session in use is lost", || client.status().text("/state") != "up");
    fleet.exits[0].stop(Signal::TERM);

    eventually(seconds(10), "the old session is lost, too", || client.status().0["moving"].is_null());
    // Two seconds later, a session without a connection must still not count as up.
    for _ in 0..40 {
        assert_ne!(client.status().text("/state"), "up");
        std::thread::sleep(Duration::from_millis(100));
    }
    drop(download);
    // The control: it comes up again.
    fleet.exits[1].run();
    eventually(seconds(30), "the client is back", || is_at(&client, SECOND_HOST));
    client.down();
}

/// Brings the tunnel up, and waits for the roster.
#[track_caller]
fn come_up(client: &Client) {
    client.up();
    eventually(seconds(10), "the client has the roster", || {
        client.status().0["roster"]["serial"].as_u64() == Some(1)
    });
}

/// Two exits of one fleet with a roster.
struct Fleet<'net> {
    store: FleetStore,
    exits: [Exit<'net>; 2],
    links: [usize; 2],
}

impl<'net> Fleet<'net> {
    fn start(net: &'net Net, second: &'net Namespace) -> Self {
        let store = FleetStore::new();
        let options = ExitOptions::default();
        let other = ExitOptions { endpoint: format!("{SECOND_HOST}:443"), ..ExitOptions::default() };
        let exits = [("ams1", &net.exit, options), ("ams2", second, other)].map(|(name, host, options)| {
            let mut exit = Exit::init_on(host, &options);
            let config = exit.warren.config("exit.toml");
            let section = format!("\n[fleet]\nname = \"{name}\"\n");
            std::fs::write(&config, std::fs::read_to_string(&config).unwrap() + &section).unwrap();
            exit.run();
            exit
        });
        let links = [0, 1]
            .map(|number: usize| store.link(&exits[number].warren.config("../runtime/fleet/fleet.sock")));
        for exit in &exits {
            let is_linked = || exit.status().text("/fleet/store") == "reachable";
            eventually(seconds(10), "the store is reachable", is_linked);
        }
        let fleet = Self { store, exits, links };
        fleet.sign_roster();
        fleet
    }

    fn sign_roster(&self) {
        let members =
            [("ams1", FIRST_HOST, 0), ("ams2", SECOND_HOST, 1)].map(|(name, host, number)| RosterExit {
                name: name.to_owned(),
                public_keys: vec![self.exits[number].status().text("/public_key").parse().unwrap()],
                endpoints: vec![format!("{host}:443").parse().unwrap()],
                region: String::new(),
                weight: 1,
                state: ExitState::Serving,
            });
        let key = FleetKey::generate().unwrap();
        let signed = begin("fleet".parse().unwrap(), members.to_vec(), &key, UNIX_EPOCH).unwrap();
        for link in self.links {
            self.store.say(link, FleetMessage::Roster { bytes: signed.as_bytes().to_vec() });
        }
    }

    /// Does what `warren fleet drain` does.
    fn drain(&self, exit: usize) {
        self.store.say(self.links[exit], FleetMessage::Drain { on: true });
    }
}

/// Echo requests every 10 ms.
struct Pings(std::thread::JoinHandle<u64>);

impl Pings {
    fn start(net: &Net, count: u64) -> Self {
        let mut command = net.client.command(&[
            "ping",
            "-i",
            "0.01",
            "-W",
            "5",
            "-c",
            &count.to_string(),
            Net::INTERNET_V4,
        ]);
        Self(std::thread::spawn(move || {
            let output = String::from_utf8(command.output().unwrap().stdout).unwrap();
            let line = output.lines().find(|line| line.contains("packets transmitted")).unwrap().to_owned();
            let numbers: Vec<u64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
            println!("measured: {line}");
            assert_eq!(numbers[0], count);
            numbers[0] - numbers[1]
        }))
    }

    /// How many were lost. Waits for the last one.
    fn lost(self) -> u64 {
        self.0.join().unwrap()
    }
}

/// The address that a web server sees for a new TCP connection.
fn address_seen(net: &Net) -> String {
    let page = format!("curl -sS --max-time 10 http://{}/address", Net::INTERNET_V4);
    net.client.sh(&page).ok().trim().to_owned()
}

fn is_at(client: &Client<'_>, host: &str) -> bool {
    let status = client.status();
    status.text("/exit/endpoint") == format!("{host}:443") && status.text("/state") == "up"
}
