//! Two exits of a fleet share their clients through their links to a store. The store is in the test's memory.
#![allow(clippy::indexing_slicing, clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

use std::path::Path;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use rustix::process::Signal;
use warren_fleet_link::{ExitMessage, FleetMessage, LINK_VERSION, StoreCertificate};
use warren_session::invite::Invite;

use crate::support::daemon::Warren;
use crate::support::fleet_store::{Behaviour, FleetStore};
use crate::support::open_metrics::{OpenMetrics, assert_configs_name_what_a_fleet_has};
use crate::support::{
    Client, Exit, ExitOptions, Namespace, Net, Profile, eventually, finished, flows, seconds,
};

/// Two exits of one fleet, and their store.
struct Fleet<'net> {
    store: FleetStore,
    exits: [Exit<'net>; 2],
    links: [usize; 2],
}

const SECOND_EXIT: &str = "192.0.10.2";

impl<'net> Fleet<'net> {
    fn start(net: &'net Net, second: &'net Namespace, staleness: &str) -> Self {
        let store = FleetStore::new();
        let options = ExitOptions::default();
        let other = ExitOptions { endpoint: format!("{SECOND_EXIT}:443"), ..ExitOptions::default() };
        let exits = [("ams1", &net.exit, options), ("ams2", second, other)].map(|(name, host, options)| {
            let mut exit = Exit::init_on(host, &options);
            let section = format!("\n[fleet]\nname = \"{name}\"\nmax_staleness = \"{staleness}\"\n");
            let config = exit.warren.config("exit.toml");
            std::fs::write(&config, std::fs::read_to_string(&config).unwrap() + &section).unwrap();
            exit.run();
            exit
        });
        let links = [0, 1].map(|number: usize| store.link(&socket_of(&exits[number])));
        let fleet = Self { store, exits, links };
        fleet.wait_until_linked();
        fleet
    }

    fn wait_until_linked(&self) {
        for exit in &self.exits {
            eventually(seconds(10), "the store is reachable", || store_of(exit) == "reachable");
        }
    }

    /// A profile for a client of the second exit, made from one of the first.
    fn profile_at_second(&self, profile: &Profile) -> Profile {
        let key = self.exits[1].status().text("/public_key").to_owned();
        let own = self.exits[0].status().text("/public_key").to_owned();
        let text = profile.text().replace(&own, &key).replace(Net::EXIT_V4, SECOND_EXIT);
        Profile::parse(&text)
    }
}

fn socket_of(exit: &Exit<'_>) -> std::path::PathBuf {
    exit.warren.config("../runtime/fleet/fleet.sock")
}

fn store_of(exit: &Exit<'_>) -> String {
    exit.status().text("/fleet/store").to_owned()
}

fn join(line: &str) -> String {
    format!("join {}", line.split_whitespace().last().unwrap_or_default())
}

#[test]
fn a_client_enrolled_at_one_exit_connects_at_the_other_and_is_cut_off_there() {
    let Some(net) = Net::new() else { return };
    let second = net.clients_beside(1).remove(0);
    let fleet = Fleet::start(&net, &second, "1h");
    let [first, other] = &fleet.exits;
    let profile = first.enrol("laptop");
    let kept = first.enrol("control");
    eventually(seconds(2), "the other exit knows both", || other.status().number("/clients/enrolled") == 2);
    let client = Client::with(&net, &fleet.profile_at_second(&profile));
    client.up();
    assert_eq!(flows::echo_from_each(&net.client, 20_000..20_001), 1);
    let host = net.second_client();
    let control = Client::on(&host, &fleet.profile_at_second(&kept));
    control.up();

    // An exit of a fleet never imports this file, so it must not hold up changes.
    std::fs::write(first.warren.state("exit/clients.toml"), "client = []\n").unwrap();
    let removed = first.warren.run("exit client remove laptop").ok();
    let since = Instant::now();

    assert!(removed.contains("Cut off at 2 of 2 exits"), "{removed}");
    eventually(seconds(2), "the client is cut off at the other exit", || {
        other.status().list("/sessions").len() == 1
    });
    println!("measured: cut off elsewhere {:?} after the command", since.elapsed());
    // The control: the other client is not affected.
    assert_eq!(flows::echo_from_each(&host, 20_000..20_001), 1);
    assert_eq!(flows::echo_from_each(&net.client, 20_001..20_002), 0, "nothing of a removed client passes");
    assert!(other.warren.run("exit client list --removed").ok().contains("laptop"));
}

#[test]
fn each_exit_shows_the_whole_fleet_and_its_metrics_are_those_of_rules_and_panels() {
    let Some(net) = Net::new() else { return };
    let second = net.clients_beside(1).remove(0);
    let fleet = Fleet::start(&net, &second, "1h");
    let (exit, link) = (&fleet.exits[0], fleet.links[0]);
    let certificate = |name: &str, days: i64| StoreCertificate {
        name: name.to_owned(),
        expires: i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()).unwrap()
            + days * 86_400
            + 9,
    };
    let certificates =
        vec![certificate("ca", 3_000), certificate("client", 13), certificate("server a.example:2379", -2)];
    fleet.store.say(link, FleetMessage::Certificates { certificates });
    let _profile = exit.enrol("laptop");

    eventually(seconds(5), "the status names both exits", || {
        let exits = exit.status().list("/fleet/exits").len();
        exits == 2 && OpenMetrics::scrape(&net).value("warren_fleet_exits{state=\"serving\"}") == 2.0
    });
    let scraped = OpenMetrics::scrape(&net);
    assert_configs_name_what_a_fleet_has(&scraped);
    let days =
        |name: &str| scraped.value(&format!("warren_fleet_certificate_days{{certificate=\"{name}\"}}"));
    assert!((2_999.0..3_001.0).contains(&days("ca")) && (12.9..13.1).contains(&days("client")));
    assert!(days("server a.example:2379") < -1.9);
    assert_eq!(scraped.value("warren_fleet_operations_total{operation=\"change\"}"), 1.0);
    assert!(scraped.value("warren_fleet_operation_seconds_total{operation=\"change\"}") > 0.0);
    let status = exit.warren.run("status exit").ok();
    assert!(status.contains("client of the fleet's store expires in 13 days"), "{status}");
    assert!(status.contains("server a.example:2379 of the fleet's store has expired"), "{status}");

    // If a link reports a name that would break the metrics, the exit closes the link and keeps running.
    let before = fleet.store.connections(link);
    let certificates = vec![certificate("a\"} 1\nwarren_x", 1)];
    fleet.store.say(link, FleetMessage::Certificates { certificates });
    eventually(seconds(5), "the link is given up", || fleet.store.connections(link) > before);
    assert_eq!(
        OpenMetrics::scrape(&net).value("warren_fleet_certificate_days{certificate=\"ca\"}").round(),
        3_000.0
    );
}

#[test]
fn an_exit_of_a_fleet_routes_no_network_with_the_fleets_store_to_a_client() {
    let Some(net) = Net::new() else { return };
    let second = net.clients_beside(1).remove(0);
    let mut fleet = Fleet::start(&net, &second, "1h");
    let _profiles = ["site --prefix 198.51.99.0/24", "lab --prefix 198.51.98.0/24"]
        .map(|client| fleet.exits[0].enrol(client));
    let has = |exit: &Exit<'_>| {
        let routes = exit.warren.host.sh("ip route show dev warren-exit").ok();
        [routes.contains("198.51.99.0/24"), routes.contains("198.51.98.0/24")]
    };
    // While the name of a member of the store was never looked up, any network may contain the member.
    for (exit, link) in fleet.exits.iter_mut().zip(fleet.links) {
        fleet.store.say(link, members(&[("a", Some("203.0.113.7")), ("b", None)]));
        eventually(seconds(10), "the log says why no network is routed", || {
            exit.daemon().output().contains("store are not all known yet")
        });
        assert_eq!(has(exit), [false, false]);
        fleet.store.say(link, members(&[("a", Some("203.0.113.7"))]));
        eventually(seconds(10), "both networks are routed", || has(exit) == [true, true]);
    }
    // The same holds for a member that is added later, until its name is looked up.
    fleet.store.say(fleet.links[0], members(&[("a", None), ("c", None)]));
    eventually(seconds(10), "no network is routed", || has(&fleet.exits[0]) == [false, false]);
    fleet.store.say(fleet.links[0], members(&[("a", Some("2001:db8::7")), ("c", Some("198.51.99.7"))]));
    eventually(seconds(10), "the network with the store is not routed to its client", || {
        has(&fleet.exits[0]) == [false, true]
    });
    assert_eq!(
        has(&fleet.exits[1]),
        [true, true],
        "the control: an exit that does not know of the new member"
    );

    // After a restart, the exit routes networks without its link, because the link might not reach the store.
    fleet.exits[0].stop(Signal::TERM);
    fleet.exits[0].run();
    eventually(seconds(10), "the other network is routed", || has(&fleet.exits[0])[1]);
    assert_eq!(has(&fleet.exits[0]), [false, true]);
}

/// Makes a message that reports these members of the store.
fn members(members: &[(&str, Option<&str>)]) -> FleetMessage {
    let member = |&(endpoint, address): &(&str, Option<&str>)| {
        (endpoint.to_owned(), address.into_iter().map(|address| address.parse().unwrap()).collect())
    };
    FleetMessage::StoreAddresses { members: members.iter().map(member).collect() }
}

/// Needs Chromium and its driver.
#[test]
#[ignore = "needs Chromium"]
fn a_browser_shows_the_whole_fleet_on_the_page_of_any_exit() {
    let net = Net::new().expect("root can make a net");
    let second = net.clients_beside(1).remove(0);
    let fleet = Fleet::start(&net, &second, "1h");
    let rows = |number: usize| {
        let exit = &fleet.exits[number];
        exit.configure(|config| config.with("web", "listen", "127.0.0.1:9467"));
        exit.warren.run("reload exit").ok();
        let token = exit.warren.state("exit/web.token");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/web/fleet.py");
        let mut driver =
            exit.warren.host.command(&["python3", script.to_str().unwrap(), "http://127.0.0.1:9467"]);
        driver.env("WARREN_TOKEN", std::fs::read_to_string(token).unwrap().trim());
        let shown = finished(&mut driver).ok();
        serde_json::from_str::<Vec<[String; 6]>>(&shown).unwrap()
    };

    let [one, other] = [0, 1].map(&rows);
    for shown in [&one, &other] {
        let names: Vec<&str> = shown.iter().map(|row| row[0].as_str()).collect();
        assert_eq!(names, ["ams1", "ams2"], "{shown:?}");
        assert!(shown.iter().all(|row| row[2].starts_with("0 of ") && row[5] == "applied"), "{shown:?}");
    }
    assert_eq!((one[0][1].as_str(), one[1][1].as_str()), ("serves clients (this exit)", "serves clients"));
    assert_eq!(other[1][1], "serves clients (this exit)");

    fleet.store.set_behaviour(fleet.links[1], Behaviour::Dead);
    eventually(seconds(10), "the other exit is gone", || {
        fleet.exits[0].status().list("/fleet/exits").iter().any(|exit| exit["state"] == "gone")
    });
    assert_eq!(rows(0)[1][1], "not heard of for 10 s");
}

#[test]
fn while_the_store_is_away_removals_act_and_nobody_is_enrolled() {
    let Some(net) = Net::new() else { return };
    let second = net.clients_beside(1).remove(0);
    let mut fleet = Fleet::start(&net, &second, "1h");
    let profile = fleet.exits[0].enrol("laptop");
    let line = fleet.exits[0].warren.run("exit invite phone").ok();
    let client = Client::with(&net, &profile);
    client.up();
    fleet.store.set_away(true);
    eventually(seconds(3), "both exits know", || fleet.exits.iter().all(|exit| store_of(exit) == "away"));

    let refused = fleet.exits[0].warren.run("exit client add tablet");
    let machine = net.second_client();
    let joining = Client::bare(&machine);
    let unjoined = joining.warren.run(&format!("{} --timeout 4s", join(&line)));
    let removed = fleet.exits[0].warren.run("exit client remove laptop").ok();

    assert!(refused.stderr.contains("the fleet's store does not answer"), "{refused:?}");
    assert!(refused.stderr.contains("nothing was changed"), "{refused:?}");
    assert!(!unjoined.succeeded() && !joining.warren.config("phone.toml").exists(), "{unjoined:?}");
    assert!(removed.contains("Cut off here"), "{removed}");
    assert_eq!(fleet.exits[0].status().list("/sessions").len(), 0);
    assert_eq!(flows::echo_from_each(&net.client, 20_000..20_001), 0);
    assert!(fleet.store.registry().by_name("laptop").is_some(), "the store does not know yet");
    // The removal survives the exit's death.
    fleet.exits[0].stop(Signal::KILL);
    fleet.exits[0].run();
    eventually(seconds(10), "the exit is linked again", || store_of(&fleet.exits[0]) == "away");
    assert_eq!(fleet.exits[0].status().number("/clients/enrolled"), 0);

    fleet.store.set_away(false);
    eventually(seconds(5), "the store and the other exit know", || {
        fleet.store.registry().by_name("laptop").is_none()
            && fleet.exits[1].status().number("/clients/enrolled") == 0
    });
    // The control: the invitation still works.
    joining.warren.run(&join(&line)).ok();
    eventually(seconds(2), "it is enrolled everywhere", || {
        fleet.exits[1].status().number("/clients/enrolled") == 1
    });
}

#[test]
fn of_two_machines_that_race_for_one_invitation_at_two_exits_one_is_enrolled() {
    let Some(net) = Net::new() else { return };
    let second = net.clients_beside(1).remove(0);
    let fleet = Fleet::start(&net, &second, "1h");
    let line = fleet.exits[0].warren.run("exit invite phone").ok();
    eventually(seconds(2), "the other exit knows it", || {
        fleet.exits[1].warren.run("exit client list").ok().contains("phone")
    });
    let mut invite: Invite = join(&line).trim_start_matches("join ").parse().unwrap();
    invite.endpoint = format!("{SECOND_EXIT}:443");
    invite.exit_key = fleet.exits[1].status().text("/public_key").parse().unwrap();
    let at_second = invite.to_string();
    // The delay makes sure that both requests are sent before either is answered.
    fleet.store.set_delay(std::time::Duration::from_millis(500));
    let host = net.second_client();
    let machines = [Client::bare(&net.client), Client::bare(&host)];

    let racing: Vec<_> = machines
        .iter()
        .zip([&line, &at_second])
        .map(|(machine, line)| machine.warren.start(&join(line)))
        .collect();
    let codes: Vec<Option<i32>> = racing.into_iter().map(|mut running| running.wait(seconds(20))).collect();

    assert_eq!(codes.iter().filter(|code| **code == Some(0)).count(), 1, "{codes:?}");
    assert!(codes.contains(&Some(4)), "the other client is told that the invitation is used: {codes:?}");
    assert_eq!(fleet.store.registry().iter().count(), 1);
    assert!(fleet.store.conflicts() > 0, "they have raced");
}

#[test]
fn a_link_that_dies_hangs_or_talks_nonsense_costs_no_packet_and_comes_back() {
    let Some(net) = Net::new() else { return };
    let second = net.clients_beside(1).remove(0);
    let mut fleet = Fleet::start(&net, &second, "1h");
    let client = Client::with(&net, &fleet.exits[0].enrol("laptop"));
    client.up();
    let link = fleet.links[0];
    let pid = fleet.exits[0].status().number("/pid");
    let too_long = vec![0xff; 64];
    let unknown = br#"{"type":"unknown"}"#;
    let unknown = [&u32::try_from(unknown.len()).unwrap().to_be_bytes(), unknown.as_slice()].concat();
    let troubles: [(&str, &dyn Fn()); 6] = [
        ("a message that is too long", &|| fleet.store.say_bytes(link, too_long.clone())),
        ("an unknown message", &|| fleet.store.say_bytes(link, unknown.clone())),
        ("a change that is out of order", &|| {
            fleet.store.say(link, FleetMessage::Changes { revision: -1, rows: Vec::new() });
        }),
        ("an answer to no request", &|| {
            let outcome = warren_fleet_link::Outcome::Conflict;
            fleet.store.say(link, FleetMessage::Answer { id: 1 << 60, outcome });
        }),
        ("a death", &|| {
            fleet.store.set_behaviour(link, Behaviour::Dead);
            std::thread::sleep(seconds(1));
            fleet.store.set_behaviour(link, Behaviour::Works);
        }),
        ("a hanging", &|| {
            fleet.store.set_behaviour(link, Behaviour::Hangs);
            // Commands are refused in time, and status is answered at once.
            let begun = Instant::now();
            let refused = fleet.exits[0].warren.run("exit client add late");
            assert!(refused.stderr.contains("the fleet's store did not answer in time"), "{refused:?}");
            assert!(begun.elapsed() < seconds(5), "{:?}", begun.elapsed());
            eventually(seconds(14), "the link is given up", || store_of(&fleet.exits[0]) != "reachable");
            fleet.store.set_behaviour(link, Behaviour::Works);
        }),
    ];

    for (trouble, cause) in troubles {
        let before = fleet.store.connections(link);
        cause();
        eventually(seconds(15), trouble, || {
            fleet.store.connections(link) > before && store_of(&fleet.exits[0]) == "reachable"
        });
        assert_eq!(flows::echo_from_each(&net.client, 20_000..20_001), 1, "after {trouble}");
    }

    assert_eq!(fleet.exits[0].status().number("/pid"), pid);
    // The control: after this, changes succeed again. The request that the hung link had received has also taken effect at both
    // exits.
    fleet.exits[0].enrol("tablet");
    for exit in &fleet.exits {
        eventually(seconds(2), "both exits have the same clients", || {
            let list = exit.warren.run("exit client list").ok();
            ["laptop", "late", "tablet"].iter().all(|name| list.contains(name))
        });
    }
    assert!(fleet.exits[0].daemon().output().contains("warren-fleet sent an invalid message"));
}

#[test]
fn an_exit_that_has_been_without_the_store_for_too_long_sends_its_clients_away_until_it_is_back() {
    let Some(net) = Net::new() else { return };
    let second = net.clients_beside(1).remove(0);
    let fleet = Fleet::start(&net, &second, "6s");
    let client = Client::with(&net, &fleet.exits[0].enrol("laptop"));
    client.up();
    // The link is killed, or cut off from the store, which it does not notice for a while.
    for behaviour in [Behaviour::Dead, Behaviour::Cut] {
        fleet.store.set_behaviour(fleet.links[0], behaviour);
        let since = Instant::now();

        std::thread::sleep(seconds(4));
        assert_eq!(flows::echo_from_each(&net.client, 20_000..20_001), 1, "served until then");
        eventually(seconds(6), "nobody is served", || fleet.exits[0].status().list("/sessions").is_empty());
        let took = since.elapsed();
        println!(
            "measured: the last session ended {took:?} after the store had gone ({behaviour:?}), with max_staleness = 6s"
        );
        // The limit allows two seconds in either direction, plus the time that the test takes to notice.
        assert!(took > seconds(4) && took < seconds(8) + seconds(1) / 2, "{behaviour:?}: {took:?}");
        // The control: the other exit, whose link works, keeps serving.
        assert_eq!(fleet.exits[1].status().0["fleet"]["is_stale"], false);
        let status = fleet.exits[0].warren.run("status exit").ok();
        assert!(status.contains("clients are sent away"), "{status}");

        fleet.store.set_behaviour(fleet.links[0], Behaviour::Works);
        eventually(seconds(60), "the client is back", || {
            fleet.exits[0].status().list("/sessions").len() == 1
        });
        assert_eq!(flows::echo_from_each(&net.client, 20_001..20_002), 1);
    }
}

#[test]
fn another_host_with_the_key_at_another_exit_replaces_the_session() {
    let Some(net) = Net::new() else { return };
    let mut beside = net.clients_beside(2);
    let (third, second) = (beside.remove(1), beside.remove(0));
    let fleet = Fleet::start(&net, &second, "1h");
    let profile = fleet.exits[0].enrol("laptop");
    let other = fleet.exits[0].enrol("control");
    let client = Client::with(&net, &profile);
    client.up();
    let host = net.second_client();
    eventually(seconds(2), "the fleet knows the session", || fleet.store.opened(fleet.links[0]) == 1);
    let control = Client::on(&third, &other);
    control.up();

    // Another host with the same key, at the other exit.
    let taker = Client::on(&host, &fleet.profile_at_second(&profile));
    taker.up();

    eventually(seconds(2), "the session at the first exit ends", || {
        fleet.exits[0].status().list("/sessions").len() == 1
    });
    eventually(seconds(5), "the first host is told why", || {
        client.warren.run("status --json").stdout.contains("replaced")
            || client.warren.status().is_none_or(|status| status.text("/state") == "refused")
    });
    // The control: the other client at the first exit and the newest session are not affected.
    assert_eq!(flows::echo_from_each(&third, 20_000..20_001), 1);
    assert_eq!(flows::echo_from_each(&host, 20_000..20_001), 1);
    let said = || fleet.store.said(fleet.links[0]);
    eventually(seconds(5), "the exit says how busy it is", || said().0.max_sessions > 10_000);
    let (_, _, hello) = said();
    assert!(matches!(hello, Some(ExitMessage::Hello { version: LINK_VERSION, .. })), "{hello:?}");
}

#[test]
fn commands_of_a_fleet_are_those_of_warren_fleet_and_a_ticket_sets_up_an_exit() {
    let Some(net) = Net::new() else { return };
    let script = "#!/bin/sh\n\
                  if [ \"$1\" = join ]; then echo '{\"fleet\":\"ams\",\"exit\":\"ams2\",\"pools\":{\"ipv4\":\"10.70.0.0/16\",\"ipv6\":null}}'\n\
                  else echo \"$@\"; fi\n";
    // A copy of warren in a directory where a script replaces the real `warren-fleet`.
    let warren = Warren::copied(&net.exit, &[("warren-fleet", script)]);

    warren.run("exit init --endpoint a.example.net --fleet warrenfleet1:x").ok();

    let config = std::fs::read_to_string(warren.config("exit.toml")).unwrap();
    assert!(
        config.contains("[fleet]\nname = \"ams2\"\n") && config.contains("ipv4 = \"10.70.0.0/16\""),
        "{config}"
    );
    assert!(!config.contains("ipv6 ="), "{config}");
    assert_eq!(warren.run("fleet status --json").ok().trim(), "status --json");
    // If there is an exit on this host already, the ticket is not used up.
    let again = warren.run("exit init --endpoint a.example.net --fleet warrenfleet1:y");
    assert!(again.stderr.contains("exists already"), "{again:?}");
    // A stopped exit refuses changes, because it cannot report them to the store.
    let refused = warren.run("exit client add laptop");
    assert!(refused.stderr.contains("belongs to a fleet and is not running"), "{refused:?}");
    // A fleet may have no IPv4.
    let script =
        script.replace("\"10.70.0.0/16\"", "null").replace("\"ipv6\":null", "\"ipv6\":\"fd70::/64\"");
    let only_ipv6 = Warren::copied(&net.client, &[("warren-fleet", &script)]);
    only_ipv6.run("exit init --endpoint a.example.net --fleet warrenfleet1:x").ok();
    let config = std::fs::read_to_string(only_ipv6.config("exit.toml")).unwrap();
    assert!(config.contains("ipv6 = \"fd70::/64\"") && !config.contains("ipv4 ="), "{config}");
    // Without the program, the error is one sentence.
    let without = Warren::copied(&net.exit, &[]);
    let missing = without.run("fleet status");
    assert!(missing.stderr.contains("warren-fleet is not installed"), "{missing:?}");
}
