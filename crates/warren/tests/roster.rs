//! The roster of a fleet: clients learn exits from it, and accept no other rosters.
#![allow(clippy::indexing_slicing, clippy::unwrap_used, reason = "test code")]

use std::time::{Duration, UNIX_EPOCH};

use rustix::process::Signal;
use warren_quic::key::PrivateKey;
use warren_session::ROSTER;
use warren_session::message::{self, Message, Welcome, encode};
use warren_session::roster::{
    ExitState, FleetKey, RosterChange, RosterExit, SignedRoster, begin, change, rotate,
};

use crate::support::lying_exit::{Answers, LyingExit};
use crate::support::slow_wire::{SlowWire, Wire};
use crate::support::{Client, Exit, ExitOptions, Namespace, Net, Profile, Running, eventually, seconds};

const FIRST: &str = "198.51.100.2:443";
const SECOND: &str = "192.0.3.2:443";

#[test]
fn client_goes_to_an_exit_of_the_roster_when_its_own_dies() {
    let Some(net) = Net::new() else { return };
    let other_host = net.second_client();
    let (mut exits, key) = (Exits::start(&net, &other_host), FleetKey::generate().unwrap());
    let roster = exits.roster(&key);
    give(&exits.first, &roster);
    let client = Client::with(&net, &exits.profile);
    client.up();
    eventually(seconds(10), "the client has the roster", || serial(&client) == Some(1));
    let status = client.status();
    assert_eq!((status.text("/roster/name"), status.text("/roster/exit")), ("acme", "ams1"));
    assert_eq!(status.text("/roster/public_key"), key.public().to_string());
    let listed = client.warren.run("exits home").ok();
    let line = |name: &str| listed.lines().find(|line| line.contains(name)).unwrap_or_default().to_owned();
    assert!(line("ams1").starts_with(FIRST) && line("ams1").contains("profile"), "{listed}");
    assert!(line("ams2").starts_with(SECOND) && line("ams2").contains("roster ams2"), "{listed}");
    assert!(client.warren.run("status home").ok().contains("acme, roster 1, exit ams1"));

    let _traffic = traffic(&net);
    exits.first.stop(Signal::KILL);

    eventually(seconds(20), "the client is at the other exit", || is_at(&client, SECOND));
    client.sh("ping -c 1 -W 5 203.0.113.2");
    assert_eq!(client.status().text("/roster/exit"), "ams2");
    // The client still knows the exits after a restart, and if the exit that the profile pins does not run.
    client.down();
    client.up();
    assert!(is_at(&client, SECOND));
    client.down();

    exits.first.run();
    client.warren.run("up home --exit ams2").ok();
    assert!(is_at(&client, SECOND), "the user has asked for it");
    let unknown = client.warren.run("up home --exit ams3");
    assert!(unknown.code == Some(2) && unknown.stderr.contains("ams1, ams2"), "{unknown:?}");
    client.down();
}

/// The exit that the profile pins is 40 ms away, and the other is near.
#[test]
fn client_moves_to_an_exit_that_is_much_nearer_unless_its_user_has_chosen() {
    let Some(net) = Net::new() else { return };
    let other_host = net.second_client();
    let (exits, key) = (Exits::alike(&net, &other_host), FleetKey::generate().unwrap());
    let wire = Wire {
        megabits: 1_000,
        delay: Duration::from_millis(20),
        queue: Duration::from_millis(100),
        loss_per_mille: 0,
    };
    let _wire = SlowWire::start(&net, wire);
    let mut members = exits.roster(&key).content().exits.clone();
    members[0].endpoints = vec![SlowWire::ENDPOINT.parse().unwrap()];
    give(&exits.first, &begin("acme".parse().unwrap(), members, &key, UNIX_EPOCH).unwrap());
    let client = Client::with(&net, &exits.profile.with_exit("endpoint", SlowWire::ENDPOINT));
    client.up();
    assert!(is_at(&client, SlowWire::ENDPOINT), "the profile's exit is the one that surely answers");

    eventually(seconds(60), "the client is at the nearer exit", || is_at(&client, SECOND));
    client.sh("ping -c 1 -W 5 203.0.113.2");
    client.down();
    // The client has measured both exits, so it begins with the nearer one.
    let connected = client.warren.run("up home").ok();
    assert!(connected.contains(SECOND), "{connected}");
    client.down();
    // The control: the client stays with the user's choice, although it has had time for two measurements.
    client.warren.run(&format!("up home --exit {}", SlowWire::ENDPOINT)).ok();
    std::thread::sleep(seconds(35));
    assert!(is_at(&client, SlowWire::ENDPOINT) && serial(&client) == Some(1));
    client.down();
}

/// The control for the first test: without the roster, the client finds no other exit.
#[test]
fn client_that_does_not_follow_stays_with_the_exits_of_its_profile() {
    let Some(net) = Net::new() else { return };
    let other_host = net.second_client();
    let (mut exits, key) = (Exits::start(&net, &other_host), FleetKey::generate().unwrap());
    give(&exits.first, &exits.roster(&key));
    let client = Client::with(&net, &exits.profile.clone().with("fleet", "follow", false));
    client.up();

    let _traffic = traffic(&net);
    exits.first.stop(Signal::KILL);

    std::thread::sleep(seconds(20));
    let status = client.status();
    assert_eq!((&status.0["roster"], status.text("/exit/endpoint")), (&serde_json::Value::Null, FIRST));
    assert!(!client.warren.host.sh("ping -c 1 -W 2 203.0.113.2").succeeded(), "there is no other exit");
    assert!(!client.warren.state("fleets/home.json").exists());
    client.down();
}

#[test]
fn client_leaves_an_exit_that_the_roster_no_longer_has_and_follows_a_new_fleet_key() {
    let Some(net) = Net::new() else { return };
    let other_host = net.second_client();
    let (mut exits, key) = (Exits::start(&net, &other_host), FleetKey::generate().unwrap());
    let roster = exits.roster(&key);
    give(&exits.first, &roster);
    give(&exits.second, &roster);
    let client = Client::with(&net, &exits.profile);
    client.up();
    eventually(seconds(10), "the client has the roster", || serial(&client) == Some(1));
    let _traffic = traffic(&net);
    exits.first.stop(Signal::KILL);
    eventually(seconds(20), "the client is at the other exit", || is_at(&client, SECOND));
    exits.first.run();

    let new_key = FleetKey::generate().unwrap();
    let rotated = rotate(&roster, &key, &new_key, UNIX_EPOCH).unwrap();
    give(&exits.second, &rotated);
    eventually(seconds(10), "the client follows the new key", || {
        client.status().text("/roster/public_key") == new_key.public().to_string()
    });
    // An exit refuses a roster of the old key, as the client would.
    let stale = change(&roster, weight(9), &key, UNIX_EPOCH).unwrap();
    std::fs::write(exits.second.warren.state("exit/roster"), stale.to_line()).unwrap();
    let refused = exits.second.warren.run("reload exit");
    assert!(refused.stderr.contains("the roster is refused"), "{refused:?}");
    assert!(is_at(&client, SECOND), "the roster still has it");

    let without = RosterChange::Remove { name: "ams2".to_owned() };
    give(&exits.second, &change(&rotated, without, &new_key, UNIX_EPOCH).unwrap());

    eventually(seconds(20), "the client has left", || is_at(&client, FIRST));
    assert_eq!(serial(&client), Some(3));
    let gone = client.warren.run("up home --exit ams2");
    assert!(!gone.succeeded(), "{gone:?}");
    client.down();
}

/// A pinned exit lies. It can neither make the client accept an older roster nor one of another key.
#[test]
fn older_rosters_and_those_of_other_keys_are_refused() {
    let Some(net) = Net::new() else { return };
    let [key, other] = [(); 2].map(|()| FleetKey::generate().unwrap());
    let pinned = PrivateKey::generate().unwrap();
    let member = |name: &str, endpoint: &str| exit_of(name, endpoint, &pinned.public().to_string());
    let first = begin("acme".parse().unwrap(), vec![member("ams1", FIRST)], &key, UNIX_EPOCH).unwrap();
    let second = change(&first, weight_of("ams1", 2), &key, UNIX_EPOCH).unwrap();
    let conflicting = change(&first, weight_of("ams1", 3), &key, UNIX_EPOCH).unwrap();
    let third = change(&second, weight_of("ams1", 3), &key, UNIX_EPOCH).unwrap();
    let forged = begin("acme".parse().unwrap(), vec![member("ams1", SECOND)], &other, UNIX_EPOCH).unwrap();
    let forged = change(&forged, weight_of("ams1", 9), &other, UNIX_EPOCH).unwrap();
    let forged = change(&forged, weight_of("ams1", 8), &other, UNIX_EPOCH).unwrap();
    let mut damaged = third.as_bytes().to_vec();
    *damaged.last_mut().unwrap() ^= 1;
    for (lie, why) in [
        (first.as_bytes(), "its serial is 1, but 2 is known already"),
        (conflicting.as_bytes(), "the same serial as another roster"),
        (forged.as_bytes(), "has signed it, but the fleet's key is"),
        (&damaged, "its signature is not that of the key"),
    ] {
        hand_over(&net, &pinned, [second.as_bytes(), lie], |client| {
            let warnings = client.status().list("/warnings").to_vec();
            serial(client) == Some(2) && warnings.iter().any(|warning| warning.to_string().contains(why))
        });
    }
    // The control: the next roster that the fleet's key has signed is accepted.
    hand_over(&net, &pinned, [second.as_bytes(), third.as_bytes()], |client| {
        serial(client) == Some(3) && client.status().list("/warnings").is_empty()
    });
}

/// The key of a fleet comes only from an exit that the profile pins. An exit that is only in the roster cannot set it.
#[test]
fn exit_of_the_roster_cannot_bring_another_fleet() {
    let Some(net) = Net::new() else { return };
    let other_host = net.second_client();
    let [key, evil] = [(); 2].map(|()| FleetKey::generate().unwrap());
    let mut honest = Exit::init_on(&other_host, &ExitOptions::second());
    honest.run();
    let own = honest.enrol("laptop");
    let liar = PrivateKey::generate().unwrap();
    // The profile pins only the honest exit. The liar is in the roster.
    let honest_key = honest.status().text("/public_key").to_owned();
    let members =
        vec![exit_of("ams2", SECOND, &honest_key), exit_of("liar", FIRST, &liar.public().to_string())];
    let roster = begin("acme".parse().unwrap(), members.clone(), &key, UNIX_EPOCH).unwrap();
    give(&honest, &roster);
    let answers = Answers::default();
    let welcome = Welcome { features: ROSTER, ..answers.welcome };
    let lie = begin("evil".parse().unwrap(), members, &evil, UNIX_EPOCH).unwrap();
    let lying = LyingExit::lying(&net, liar, Answers { welcome, ..answers }, roster_message(lie.as_bytes()));
    let client = Client::with(&net, &own);
    client.up();
    eventually(seconds(10), "the client has the roster", || serial(&client) == Some(1));
    let _traffic = traffic(&net);
    honest.stop(Signal::KILL);
    eventually(seconds(20), "the client is at the liar", || is_at(&client, FIRST));

    lying.lie(seconds(10));

    eventually(seconds(10), "the client complains", || {
        let warnings = client.status().list("/warnings").to_vec();
        warnings
            .iter()
            .any(|warning| warning.to_string().contains("it is a roster of the fleet evil, not of acme"))
    });
    assert_eq!(client.status().text("/roster/public_key"), key.public().to_string());
    client.down();
}

#[test]
fn kill_switch_lets_out_the_carrier_to_exits_of_the_roster_only() {
    let Some(net) = Net::new() else { return };
    let other_host = net.second_client();
    let (exits, key) = (Exits::start(&net, &other_host), FleetKey::generate().unwrap());
    let roster = exits.roster(&key);
    let client = Client::with(&net, &exits.profile.clone().with("kill_switch", "enabled", true));
    // The control: without a kill switch, all packets with the carrier's mark leave.
    let (of_roster, elsewhere) = (["192.0.3.2", "443"], [["192.0.3.2", "444"], ["203.0.113.2", "443"]]);
    assert!(leaves(&net.client, of_roster) && elsewhere.iter().all(|other| leaves(&net.client, *other)));
    client.up();
    assert!(!leaves(&net.client, of_roster), "the client does not know of an exit there yet");

    give(&exits.first, &roster);

    let is_let_out = || leaves(&net.client, of_roster);
    let is_closed = || elsewhere.iter().all(|other| !leaves(&net.client, *other));
    eventually(seconds(10), "the kill switch follows the roster", is_let_out);
    assert!(is_closed(), "only exits of the roster");
    // A daemon that was killed leaves the kill switch closed. The next daemon has the roster from the start, although it reaches
    // no exit.
    client.signal(Signal::KILL);
    assert!(is_closed() && is_let_out());
    net.filter("udp dport 443 drop; udp sport 443 drop;");
    let mut daemon =
        client.warren.start(&format!("client run {}", client.warren.config("home.toml").display()));
    eventually(seconds(10), "the daemon runs", || client.warren.status().is_some());
    assert!(is_closed() && is_let_out(), "after a restart");
    net.unfilter();
    eventually(seconds(30), "the client is up", || client.status().text("/state") == "up");

    let without = RosterChange::Remove { name: "ams2".to_owned() };
    give(&exits.first, &change(&roster, without, &key, UNIX_EPOCH).unwrap());
    if is_at(&client, SECOND) {
        give(
            &exits.second,
            &change(&roster, RosterChange::Remove { name: "ams2".to_owned() }, &key, UNIX_EPOCH).unwrap(),
        );
    }

    eventually(seconds(20), "the kill switch forgets the exit", || !is_let_out());
    assert!(is_closed());
    client.warren.run("down home").ok();
    assert_eq!(daemon.wait(seconds(10)), Some(0));
}

/// Two exits, and a profile that pins the first.
struct Exits<'net> {
    first: Exit<'net>,
    second: Exit<'net>,
    profile: Profile,
}

impl<'net> Exits<'net> {
    fn start(net: &'net Net, other_host: &'net Namespace) -> Self {
        Self::start_with(net, other_host, ExitOptions::second())
    }

    /// Two exits that give clients the same addresses, as those of a fleet do.
    fn alike(net: &'net Net, other_host: &'net Namespace) -> Self {
        let endpoint = ExitOptions::second().endpoint;
        Self::start_with(net, other_host, ExitOptions { endpoint, ..ExitOptions::default() })
    }

    fn start_with(net: &'net Net, other_host: &'net Namespace, options: ExitOptions) -> Self {
        let first = Exit::start(net);
        let mut second = Exit::init_on(other_host, &options);
        second.run();
        let profile = first.enrol("laptop");
        let public = first.warren.public_key(profile.value("client", "private_key"));
        second.enrol_key("laptop", public.trim());
        Self { first, second, profile }
    }

    /// The first roster, with both exits.
    fn roster(&self, key: &FleetKey) -> SignedRoster {
        let key_of = |exit: &Exit<'_>| exit.status().text("/public_key").to_owned();
        let exits = vec![
            exit_of("ams1", FIRST, &key_of(&self.first)),
            exit_of("ams2", SECOND, &key_of(&self.second)),
        ];
        begin("acme".parse().unwrap(), exits, key, UNIX_EPOCH).unwrap()
    }
}

fn exit_of(name: &str, endpoint: &str, key: &str) -> RosterExit {
    RosterExit {
        name: name.to_owned(),
        public_keys: vec![key.parse().unwrap()],
        endpoints: vec![endpoint.parse().unwrap()],
        region: String::new(),
        weight: 1,
        state: ExitState::Serving,
    }
}

fn weight(weight: u32) -> RosterChange {
    weight_of("ams1", weight)
}

fn weight_of(name: &str, weight: u32) -> RosterChange {
    RosterChange::Weight { name: name.to_owned(), weight }
}

/// Gives the exit a signed roster, as an operator does.
#[track_caller]
fn give(exit: &Exit<'_>, roster: &SignedRoster) {
    std::fs::write(exit.warren.state("exit/roster"), roster.to_line()).unwrap();
    exit.warren.run("reload exit").ok();
}

/// Sends pings, because an idle client would take a while to notice that its exit is dead.
fn traffic(net: &Net) -> Running {
    net.client.start(&["ping", "-i", "0.2", Net::INTERNET_V4])
}

fn serial(client: &Client<'_>) -> Option<u64> {
    client.status().0["roster"]["serial"].as_u64()
}

fn is_at(client: &Client<'_>, endpoint: &str) -> bool {
    let status = client.status();
    status.text("/exit/endpoint") == endpoint && status.text("/state") == "up"
}

fn roster_message(signed: &[u8]) -> Vec<u8> {
    encode(&Message::Roster(message::Roster { signed: signed.to_vec(), loads: Vec::new() }))
}

/// Connects to an exit with the pinned key, which hands over rosters, and waits for the consequence.
#[track_caller]
fn hand_over(net: &Net, key: &PrivateKey, rosters: [&[u8]; 2], consequence: impl Fn(&Client<'_>) -> bool) {
    let own = PrivateKey::generate().unwrap();
    let profile = Profile::parse(&format!(
        "[client]\nprivate_key = \"{}\"\n[[exit]]\nendpoint = \"{FIRST}\"\npublic_key = \"{}\"\n[transport]\nconnections = 1\n",
        own.to_base64().as_str(),
        key.public()
    ));
    let client = Client::with(net, &profile);
    let honest = Answers::default();
    let welcome = Welcome { features: ROSTER, ..honest.welcome.clone() };
    // The rosters are sent one after the other, because of several that arrive together only the latest would count.
    for roster in rosters {
        let lying = LyingExit::lying(
            net,
            key.clone(),
            Answers { welcome: welcome.clone(), ..honest.clone() },
            roster_message(roster),
        );
        client.up();
        lying.lie(seconds(10));
        if roster == rosters[1] {
            eventually(seconds(10), "the client has reacted", || consequence(&client));
        } else {
            eventually(seconds(10), "the client has the roster", || serial(&client) == Some(2));
        }
        client.down();
    }
}

/// Whether a datagram with the carrier's mark leaves for an address.
fn leaves(host: &Namespace, [address, port]: [&str; 2]) -> bool {
    let script = format!(
        "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.setsockopt(1, 36, 0x5761); \
         s.sendto(b\"x\", (\"{address}\", {port}))"
    );
    host.sh(&format!("python3 -c '{script}'")).succeeded()
}
