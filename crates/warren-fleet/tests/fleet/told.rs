//! What an exit is told while its link restarts, loses its lease, or finds something in the store that it cannot read.

use std::time::{Duration, Instant};

use warren_fleet_link::{ExitMessage, FleetMessage, Outcome, StoreLink};
use warren_session::PublicKey;
use warren_session::clients::Client;

use super::support::exit::{Exit, key};
use super::support::proxy::{CUT, CUT_TO_EXIT, OPEN};
use super::support::{fleet_ok, wait_for};
use super::{Fleet, client, number_key, removal, three_exits, three_exits_one_behind_a_way};

#[test]
fn a_drain_and_a_roster_that_came_while_the_link_was_down_reach_the_exit() {
    let (mut fleet, ways) = three_exits_one_behind_a_way();
    let a = fleet.exits[0].directory.clone();
    fleet_ok(&a, &["drain", "c"]);
    fleet.store.etcdctl_ok(&["put", "/warren/fleet/ro", "one"]);
    fleet.exits[2].wait("it is drained", |seen| {
        (seen.drain == Some(true) && seen.roster.as_deref() == Some(b"one")).then_some(())
    });
    // By then, the copy on disk contains them.
    std::thread::sleep(Duration::from_millis(1_500));
    fleet.exits[2].seen(|seen| seen.order.clear());
    let told = |exit: &Exit| {
        exit.seen(|seen| {
            let drains = seen.order.iter().filter_map(|message| match message {
                FleetMessage::Drain { on } => Some(*on),
                _ => None,
            });
            drains.collect::<Vec<_>>()
        })
    };
    // Each time, the link gives its exit the copy on its disk before it reads the store. The drain lasts, ends, and begins again.
    for (signal, roster, command) in [
        ("TERM", "two", None),
        ("KILL", "three", Some(&["drain", "c", "--end"][..])),
        ("KILL", "four", Some(&["drain", "c"])),
    ] {
        fleet.exits[2].stop_link(signal);
        if let Some(command) = command {
            fleet_ok(&a, command);
        }
        fleet.store.etcdctl_ok(&["put", "/warren/fleet/ro", roster]);
        ways.set(CUT);
        fleet.exits[2].seen(|seen| seen.wholes = 0);
        fleet.exits[2].start_link();
        fleet.exits[2].wait("it has the copy on the disk", |seen| (seen.wholes > 0).then_some(()));
        ways.set(OPEN);
        let drains = command.is_none_or(|command| !command.contains(&"--end"));
        fleet.exits[2].wait("the exit has the newer roster and knows of the drain", |seen| {
            (seen.roster.as_deref() == Some(roster.as_bytes()) && seen.drain == Some(drains)).then_some(())
        });
        if command.is_none() {
            assert!(told(&fleet.exits[2]).iter().all(|on| *on), "the restart has ended the drain");
        }
        // By then, the copy on disk contains this state.
        std::thread::sleep(Duration::from_millis(1_500));
    }
    // The control: nobody drains this exit.
    assert!(told(&fleet.exits[1]).iter().all(|on| !on));
}

#[test]
fn a_drain_and_a_roster_behind_a_compaction_reach_the_exit() {
    let (fleet, ways) = three_exits_one_behind_a_way();
    let [a, _, c] = &fleet.exits[..] else { panic!() };
    ways.set(CUT);
    c.wait("the store is away", |seen| matches!(seen.store, Some(StoreLink::Away { .. })).then_some(()));
    fleet_ok(&a.directory, &["drain", "c"]);
    fleet.store.etcdctl_ok(&["put", "/warren/fleet/ro", "one"]);
    a.store(&[client("anna", key(1)).into()]);
    fleet.store.etcdctl_ok(&["compact", &fleet.store.revision().to_string()]);
    ways.set(OPEN);
    c.wait("it is drained", |seen| (seen.drain == Some(true)).then_some(()));
    c.wait("it has the roster", |seen| (seen.roster.as_deref() == Some(b"one")).then_some(()));
    assert!(c.log().contains("has compacted"), "the link went on where it was");
}

/// How many sessions have a record in the store.
fn records(fleet: &Fleet) -> usize {
    let keys = fleet.store.etcdctl_ok(&["get", "--prefix", "/warren/fleet/se/", "--keys-only"]);
    keys.lines().filter(|line| !line.is_empty()).count()
}

/// Ends all leases, as the store does if it has not heard of an exit for ten seconds.
fn end_leases(fleet: &Fleet) {
    let leases = fleet.store.etcdctl_ok(&["lease", "list"]);
    for lease in leases.lines().filter(|line| !line.contains("found")) {
        fleet.store.etcdctl_ok(&["lease", "revoke", lease]);
    }
}

#[test]
fn an_exit_whose_lease_has_ended_records_its_sessions_again() {
    let fleet = three_exits();
    let [a, b, _] = &fleet.exits[..] else { panic!() };
    let open = |number| {
        a.say(ExitMessage::Opened { key: number_key(number), nonce: vec![1; 16], claim: 1 });
    };
    (0..5).for_each(open);
    let recorded = |count, what: &str| {
        wait_for(what, Duration::from_secs(8), || (records(&fleet) == count).then_some(()));
    };
    recorded(5, "all are recorded");
    for round in 0..3 {
        end_leases(&fleet);
        recorded(5, "all are recorded again");
        // The control: later sessions are recorded, and moves are noticed.
        open(100 + round);
        recorded(6, "a later session is recorded");
        b.say(ExitMessage::Opened { key: number_key(100 + round), nonce: vec![2; 16], claim: 1 });
        let elsewhere = a.wait("the session has moved", |seen| seen.elsewhere.pop());
        assert_eq!((elsewhere.0, elsewhere.2.as_str()), (number_key(100 + round), "b"));
        b.say(ExitMessage::Closed { key: number_key(100 + round), nonce: vec![2; 16] });
        recorded(5, "the moved session is over");
    }
}

#[test]
fn in_an_idle_fleet_nobody_is_behind_and_an_exit_that_does_not_apply_a_change_is() {
    let mut fleet = three_exits();
    fleet.exits[0].store(&[client("anna", key(1)).into()]);
    // Live exits that have not applied the latest change are behind. The page, the status and the alert show them.
    let behind = |exit: &Exit| {
        exit.seen(|seen| {
            let behind = seen.exits.iter().filter(|exit| exit.is_alive && exit.applied < seen.changed);
            behind.map(|exit| exit.exit.to_string()).collect::<Vec<_>>()
        })
    };
    let is_told = |exit: &Exit| exit.seen(|seen| seen.exits.len() == 3 && seen.changed > 0);
    let nobody_is_behind = |fleet: &Fleet| {
        let is_level = |exit: &Exit| is_told(exit) && behind(exit).is_empty();
        wait_for("nobody is behind", Duration::from_secs(5), || {
            fleet.exits.iter().all(is_level).then_some(())
        });
    };
    nobody_is_behind(&fleet);
    // Heartbeats continue, so the store's revision grows.
    let revision = fleet.store.revision();
    let since = Instant::now();
    while since.elapsed() < Duration::from_secs(12) {
        for exit in &fleet.exits {
            assert_eq!(behind(exit), Vec::<String>::new(), "{:?} after the change", since.elapsed());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(fleet.store.revision() > revision + 10, "no heartbeats");
    // A link that starts again reads the store at a later revision than that of the latest change.
    fleet.exits[1].stop_link("TERM");
    fleet.exits[1].start_link();
    std::thread::sleep(Duration::from_secs(3));
    nobody_is_behind(&fleet);

    // The control: an exit that applies no more changes, while its link continues.
    fleet.exits[2].hang(true);
    fleet.exits[0].store(&[client("bert", key(2)).into()]);
    std::thread::sleep(Duration::from_secs(5));
    assert_eq!(behind(&fleet.exits[0]), ["c"]);
    fleet.exits[2].hang(false);
    fleet.exits[0].store(&[client("carl", key(3)).into()]);
    nobody_is_behind(&fleet);
    let report = fleet_ok(&fleet.exits[0].directory, &["status"]);
    assert_eq!(report.matches(" applied").count(), 3, "{report}");
}

/// The name of a key in the store.
fn name(kind: &str, key: PublicKey) -> String {
    let text = key.to_string().replace('+', "-").replace('/', "_");
    format!("/warren/fleet/{kind}/{}", text.trim_end_matches('='))
}

#[test]
fn a_value_that_cannot_be_read_holds_up_nothing_else() {
    let mut fleet = three_exits();
    for number in [1, 2, 3] {
        fleet.exits[0].store(&[client(&format!("client{number}"), key(number)).into()]);
    }
    for exit in &fleet.exits {
        exit.wait("all are known", |seen| (seen.rows.len() == 3).then_some(()));
    }
    // By then, the copy on disk contains them.
    std::thread::sleep(Duration::from_millis(1_500));
    let bad = number_key(500);
    fleet.store.etcdctl_ok(&["put", &name("se", bad), r#"{"exit":"b","nonce":"AA==","claim":"x"}"#]);
    fleet.store.etcdctl_ok(&["put", &name("cl", key(1)), "{"]);
    fleet.store.etcdctl_ok(&["put", &name("cl", key(2)), "{"]);
    // A link that starts now reads both in the store.
    fleet.exits[1].stop_link("TERM");
    fleet.exits[1].start_link();
    let [a, b, c] = &fleet.exits[..] else { panic!() };

    for exit in [a, b] {
        exit.say(ExitMessage::Opened { key: bad, nonce: vec![1; 16], claim: 1 });
    }
    (0..10).for_each(|number| {
        a.say(ExitMessage::Opened { key: number_key(number), nonce: vec![1; 16], claim: 1 });
    });
    wait_for("all sessions are recorded", Duration::from_secs(8), || {
        let is_healed =
            fleet.store.etcdctl_ok(&["get", "--print-value-only", &name("se", bad)]).contains(r#""claim":1"#);
        (records(&fleet) == 11 && is_healed).then_some(())
    });

    std::thread::sleep(Duration::from_secs(2));
    for exit in [a, b, c] {
        assert!(exit.client(key(1)).is_some() && exit.client(key(2)).is_some(), "a client is lost");
    }
    // Each exit can change these clients, also together with others.
    let disabled = Client { disabled: true, ..b.client(key(1)).unwrap() };
    let last_seen = Some(super::now());
    let other = Client { last_seen, ..b.client(key(3)).unwrap() };
    assert!(matches!(b.request(vec![disabled.clone().into(), other.into()]), Outcome::Stored { .. }));
    assert!(matches!(c.request(removal("client2", key(2))), Outcome::Stored { .. }));
    for exit in [a, b, c] {
        wait_for("the changes are known", Duration::from_secs(5), || {
            (exit.client(key(1)) == Some(disabled.clone()) && exit.client(key(2)).is_none()).then_some(())
        });
    }
    let told = a.log().lines().filter(|line| line.contains("cannot be read")).count();
    assert_eq!(told, 3, "each once: {}", a.log());
}

#[test]
fn an_exit_whose_link_is_cut_off_knows_when_the_store_has_answered_last() {
    let (fleet, ways) = three_exits_one_behind_a_way();
    let [a, _, c] = &fleet.exits[..] else { panic!() };
    let answered = |exit: &Exit| exit.seen(|seen| seen.answered).unwrap();
    for (round, cut) in [CUT, CUT_TO_EXIT, CUT].into_iter().enumerate() {
        // In each round, the cut comes at another moment between two answers.
        std::thread::sleep(Duration::from_millis(1_500 + 350 * u64::try_from(round).unwrap()));
        ways.set(cut);
        let since = Instant::now();
        while since.elapsed() < Duration::from_secs(7) {
            let late = answered(c).saturating_duration_since(since);
            assert!(late < Duration::from_millis(200), "an answer {late:?} after the cut");
            std::thread::sleep(Duration::from_millis(20));
        }
        let before = since.duration_since(answered(c));
        println!("the last answer came {before:?} before the cut");
        assert!(before < Duration::from_millis(1_500), "the last answer is unknown");
        assert!(matches!(c.seen(|seen| seen.store.clone()), Some(StoreLink::Away { .. })));
        // The control: an exit that is not cut off.
        assert!(answered(a).elapsed() < Duration::from_millis(2_500));
        ways.set(OPEN);
        c.wait("the store has answered again", |seen| {
            seen.answered.filter(|answered| *answered > since + Duration::from_secs(7))
        });
        c.wait("it is reachable", |seen| (seen.store == Some(StoreLink::Reachable)).then_some(()));
    }
}
