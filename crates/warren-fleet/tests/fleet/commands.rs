//! Commands: tickets that end, a store that has lost everything, a roster that is signed elsewhere, and a log that is not flooded.

use std::time::Duration;

use warren_fleet_link::{Outcome, StoreLink};

use crate::support::exit::key;
use crate::support::{fleet_fails, fleet_ok, wait_for};
use crate::{client, removal, three_exits};

#[test]
fn a_ticket_has_an_end_and_can_be_voided_and_a_refused_join_leaves_nothing() {
    let fleet = three_exits();
    let a = &fleet.exits[0].directory;
    let at = |name: &str| fleet.directory.path().join(name);
    let void = fleet_ok(a, &["ticket", "e"]);
    let lease = fleet.store.etcdctl_ok(&["get", "--prefix", "/warren/fleet/tk/", "--write-out", "json"]);
    assert!(lease.contains("\"lease\":"), "the store ends it: {lease}");
    assert!(fleet_ok(a, &["remove", "e"]).contains("tickets of e are void"));
    assert!(fleet_fails(&at("e"), &["join", void.trim()]).contains("is void"));
    assert!(!at("e/config/fleet.toml").exists() && !at("e/config/fleet").exists());
    assert!(fleet_fails(a, &["remove", "e"]).contains("no exit e"), "there is nothing left");

    for wrong in ["5s", "31d", "24"] {
        assert!(fleet_fails(a, &["ticket", "e", "--expires", wrong]).contains("must be"), "{wrong}");
    }
    let file = at("ticket").display().to_string();
    std::fs::write(&file, fleet_ok(a, &["ticket", "e", "--expires", "1min"])).unwrap();
    fleet_ok(&at("e"), &["join", &format!("@{file}")]);
}

#[test]
fn a_store_that_has_lost_everything_is_filled_by_an_exit_and_no_removed_key_comes_back() {
    let fleet = three_exits();
    let a = fleet.exits[0].directory.clone();
    fleet.exits[0].store(&[client("anna", key(1)).into()]);
    fleet.exits[0].store(&[client("bert", key(2)).into()]);
    fleet.exits[0].store(&removal("anna", key(1)));
    for exit in &fleet.exits {
        exit.wait("all is known", |seen| (seen.rows.len() == 2).then_some(()));
    }
    // The disk has it a second later.
    std::thread::sleep(Duration::from_secs(3));
    let backup = fleet.directory.path().join("backup").display().to_string();
    fleet_ok(&a, &["backup", &backup]);
    fleet.store.etcdctl_ok(&["del", "--prefix", "/warren/"]);
    for exit in &fleet.exits {
        exit.wait("the loss is noticed", |seen| {
            matches!(seen.store, Some(StoreLink::Refused { .. })).then_some(())
        });
    }

    fleet_ok(&a, &["recover", "--from", &backup]);
    for exit in &fleet.exits {
        exit.wait("the store is used again", |seen| (seen.store == Some(StoreLink::Reachable)).then_some(()));
        wait_for("bert is there", Duration::from_secs(5), || exit.client(key(2)).map(|_| ()));
        assert_eq!(exit.request(vec![client("anna", key(1)).into()]), Outcome::Conflict, "anna stays out");
    }
    fleet.exits[1].store(&[client("dora", key(4)).into()]);
    wait_for("all exits are in it", Duration::from_secs(10), || {
        (fleet_ok(&a, &["status"]).matches("applied").count() == 3).then_some(())
    });
}

#[test]
fn a_roster_that_was_signed_elsewhere_is_published_if_clients_would_follow_it() {
    let fleet = three_exits();
    let a = &fleet.exits[0].directory;
    let path = |name: &str| fleet.directory.path().join(name).display().to_string();
    let (roster, old) = (path("roster"), path("old"));
    let sign = |file: &str, key_file: &str, name: &str| {
        let (public_key, endpoint) = (key(name.as_bytes()[0]).to_string(), format!("{name}.example.net:443"));
        let exit = ["--public-key", &public_key, "--endpoint", &endpoint];
        fleet_ok(a, &[&["sign", file, "--fleet-key", key_file, "--admit", name], &exit[..]].concat());
    };
    sign(&roster, &path("fleet.key"), "a");
    assert!(fleet_ok(a, &["publish", &roster]).contains("Roster 1 has a"));
    std::fs::copy(&roster, &old).unwrap();
    sign(&roster, &path("fleet.key"), "b");
    assert!(fleet_ok(a, &["publish", &roster]).contains("Roster 2 has a, b"));
    assert!(fleet_ok(a, &["publish", &roster]).contains("already"));
    assert!(fleet_fails(a, &["publish", &old]).contains("clients would refuse"));
    // Another key.
    let forged = path("forged");
    for name in ["a", "b", "c"] {
        sign(&forged, &path("other.key"), name);
    }
    assert!(fleet_fails(a, &["publish", &forged]).contains("clients would refuse"));
    for exit in &fleet.exits {
        exit.wait("the exits have the roster", |seen| seen.roster.is_some().then_some(()));
    }
}

#[test]
fn the_log_says_once_why_the_store_is_not_used() {
    let fleet = three_exits();
    fleet_ok(&fleet.exits[0].directory, &["remove", "c", "--force"]);
    fleet.exits[2]
        .wait("it learns of it", |seen| matches!(seen.store, Some(StoreLink::Refused { .. })).then_some(()));
    // The link looks again every two seconds.
    std::thread::sleep(Duration::from_secs(7));
    let log = fleet.exits[2].log();
    assert_eq!(log.matches("the store is not used").count(), 1, "{log}");
}
