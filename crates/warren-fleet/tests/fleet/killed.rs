//! Commands that are killed halfway. Running them again finishes or undoes what they have begun, and no file has to be deleted by
//! hand.

use std::path::Path;
use std::time::Duration;

use crate::commands::Secure;
use crate::support::etcd::Store;
use crate::support::exit::{Exit, key};
use crate::support::{fleet_dies, fleet_fails, fleet_ok, my_turn, wait_for};
use crate::three_exits;

/// The steps of `join` before the ticket is used, and after that.
const BEFORE: [&str; 3] = ["attempt kept", "credentials written", "configuration pending"];
const AFTER: [&str; 2] = ["ticket used", "configuration named"];

/// The names in a directory, in order. Empty if it does not exist.
fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.sort_unstable();
    names
}

#[test]
fn a_killed_join_is_finished_by_the_same_ticket() {
    let fleet = Secure::start();
    for (number, step) in BEFORE.into_iter().chain(AFTER).enumerate() {
        let exit = format!("b{number}");
        let at = fleet.directory.path().join(&exit);
        let ticket = fleet.ticket(&exit);
        let join = ["join", ticket.trim()];
        fleet_dies(&at, step, &join);
        let is_whole = at.join("config/fleet.toml").exists();
        assert_eq!(is_whole, step == "configuration named", "{step}");

        assert!(fleet_ok(&at, &join).contains(&format!("This exit is {exit} ")), "{step}");

        assert_eq!(names(&at.join("config")), ["fleet", "fleet.toml"], "{step}");
        assert_eq!(
            names(&at.join("config/fleet")),
            ["join.json", "store-ca.pem", "store.key", "store.pem"],
            "{step}"
        );
        assert!(fleet_ok(&at, &["status"]).contains(&exit), "{step}: it reaches the store");
    }
}

#[test]
fn a_join_that_was_killed_before_it_used_a_ticket_that_has_ended_is_no_obstacle_to_another_ticket() {
    let fleet = Secure::start();
    let at = |exit: &str| fleet.directory.path().join(exit);
    let steps: Vec<(String, &str)> =
        BEFORE.into_iter().enumerate().map(|(number, step)| (format!("b{number}"), step)).collect();
    let ended: Vec<String> = steps.iter().map(|(exit, _)| fleet.ticket(exit)).collect();
    for ((exit, step), ticket) in steps.iter().zip(&ended) {
        fleet_dies(&at(exit), step, &["join", ticket.trim()]);
    }
    fleet.end_tickets();
    wait_for("the users end with their tickets", Duration::from_secs(30), || {
        steps.iter().all(|(exit, _)| !fleet.opens(exit)).then_some(())
    });
    for ((exit, step), ticket) in steps.iter().zip(&ended) {
        // The next ticket is for the same exit, whose certificate opens the store again, or for another exit.
        let name = if *step == "configuration pending" { format!("c{exit}") } else { exit.clone() };
        let other = fleet.ticket(&name);
        if *step == "attempt kept" {
            // A join with the void ticket undoes what the earlier join with it has begun.
            assert!(
                fleet_fails(&at(exit), &["join", ticket.trim()]).contains("used by another host"),
                "{step}"
            );
            assert_eq!(names(&at(exit).join("config")), Vec::<String>::new(), "{step}");
        } else {
            // Undoing is killed as well.
            fleet_dies(&at(exit), "credentials removed", &["join", other.trim()]);
        }
        assert!(fleet_ok(&at(exit), &["join", other.trim()]).contains("This exit is"), "{step}");
        assert_eq!(names(&at(exit).join("config")), ["fleet", "fleet.toml"], "{step}");
        assert!(fleet_ok(&at(exit), &["status"]).contains(&name), "{step}: it reaches the store");
    }
}

#[test]
fn a_ticket_whose_user_the_store_no_longer_knows_undoes_what_its_killed_join_has_begun() {
    let fleet = Secure::start();
    let at = fleet.directory.path().join("b");
    let ticket = fleet.ticket("b");
    let join = ["join", ticket.trim()];
    fleet_dies(&at, "configuration pending", &join);
    fleet.end_tickets();
    wait_for("the user ends with its ticket", Duration::from_secs(30), || (!fleet.opens("b")).then_some(()));

    // Undoing is killed as well.
    fleet_dies(&at, "credentials removed", &join);
    assert_eq!(names(&at.join("config/fleet")), ["join.json"]);

    let refused = fleet_fails(&at, &join);
    assert!(refused.contains("does not know this ticket's user any more"), "{refused}");
    assert_eq!(names(&at.join("config")), Vec::<String>::new());
}

#[test]
fn a_join_that_was_interrupted_and_another_fleet_keep_out_of_each_others_way() {
    let fleet = three_exits();
    let (a, d) = (fleet.exits[0].directory.clone(), fleet.directory.path().join("d"));
    let ticket = fleet_ok(&a, &["ticket", "d"]);
    let join = ["join", ticket.trim()];
    fleet_dies(&d, "configuration pending", &join);
    let begun = ["fleet", "fleet.toml.joining"];

    // No other fleet can be begun on this host.
    let clients = d.join("clients.toml");
    std::fs::write(&clients, "client = []\n").unwrap();
    let (urls, clients) = (fleet.store.urls(), clients.display().to_string());
    let init = ["init", "--fleet", "other", "--exit", "d", "--pool", "10.0.0.0/16"];
    let init = [&init[..], &["--clients", &clients, "--store", &urls]].concat();
    let refused = fleet_fails(&d, &init);
    assert!(refused.contains("was interrupted") && refused.contains("join.json"), "{refused}");
    assert_eq!(names(&d.join("config")), begun);
    assert_eq!(fleet.store.etcdctl_ok(&["get", "--prefix", "/warren/other/", "--keys-only"]).trim(), "");

    // An operator has set up another fleet by hand. The join does not use the ticket.
    let other = std::fs::read_to_string(d.join("config/fleet.toml.joining")).unwrap();
    let other = other.replace("fleet = \"fleet\"", "fleet = \"other\"");
    std::fs::write(d.join("config/fleet.toml"), &other).unwrap();
    let refused = fleet_fails(&d, &join);
    assert!(refused.contains("belongs to a fleet already; leave it with"), "{refused}");
    assert_eq!(std::fs::read_to_string(d.join("config/fleet.toml")).unwrap(), other);
    let status = fleet_ok(&a, &["status"]);
    assert!(status.contains("d     has a ticket, and has not joined"), "{status}");

    // The control: without that file, the ticket is still valid.
    std::fs::remove_file(d.join("config/fleet.toml")).unwrap();
    assert!(fleet_ok(&d, &join).contains("This exit is d "));
}

#[test]
fn a_join_that_was_killed_after_it_used_its_ticket_is_not_undone_by_another_ticket() {
    let mut fleet = three_exits();
    let a = fleet.exits[0].directory.clone();
    let at = |exit: &str| fleet.directory.path().join(exit);
    let [first, second] = ["d", "e"].map(|exit| fleet_ok(&a, &["ticket", exit]));
    fleet_dies(&at("d"), "ticket used", &["join", first.trim()]);
    assert!(!at("d").join("config/fleet.toml").exists());

    let refused = fleet_fails(&at("d"), &["join", second.trim()]);

    assert!(refused.contains("has made this host the exit d of fleet"), "{refused}");
    let status = fleet_ok(&at("d"), &["status"]);
    assert!(status.lines().any(|line| line.starts_with("d ")), "fleet.toml is written now: {status}");
    assert!(fleet_fails(&at("d"), &["join", second.trim()]).contains("belongs to a fleet already"));
    // The control: the second ticket is good.
    fleet_ok(&at("f"), &["join", second.trim()]);

    // While the store does not answer, nobody knows whether the ticket was used.
    let [third, fourth] = ["g", "h"].map(|exit| fleet_ok(&a, &["ticket", exit]));
    let g = at("g");
    fleet_dies(&g, "configuration pending", &["join", third.trim()]);
    (0..3).for_each(|member| fleet.store.stop_member(member));
    let refused = fleet_fails(&g, &["join", fourth.trim()]);
    assert!(
        refused.contains("may have made this host the exit g") && refused.contains("fleet.toml.joining"),
        "{refused}"
    );
    assert_eq!(names(&g.join("config")), ["fleet", "fleet.toml.joining"]);
}

#[test]
fn a_killed_init_is_finished_by_the_same_command() {
    let _turn = my_turn();
    let store = Store::start();
    let directory = tempfile::tempdir().unwrap();
    let urls = store.urls();
    for (number, step) in ["fleet begun", "clients stored", "configuration written"].into_iter().enumerate() {
        let (at, name) = (directory.path().join(format!("a{number}")), format!("f{number}"));
        std::fs::create_dir_all(&at).unwrap();
        let clients = at.join("clients.toml");
        let enrolled = |names: &[&str]| {
            let of = |name: &&str| {
                let key = key(name.as_bytes()[0]);
                format!(
                    "[[client]]\nname = \"{name}\"\npublic_key = \"{key}\"\ncreated = \"2026-01-01T00:00:00Z\"\n"
                )
            };
            std::fs::write(&clients, names.iter().map(of).collect::<String>()).unwrap();
        };
        let file = clients.display().to_string();
        let init = |name: &str| {
            [
                "init",
                "--fleet",
                name,
                "--exit",
                "a",
                "--clients",
                &file,
                "--pool",
                "10.0.0.0/16",
                "--store",
                &urls,
            ]
            .map(str::to_owned)
        };
        let words = init(&name);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        enrolled(&["anna", "bert"]);
        fleet_dies(&at, step, &words);
        // A command for another fleet is refused, because it did not begin that fleet.
        if step == "configuration written" {
            let other = init("other");
            let other: Vec<&str> = other.iter().map(String::as_str).collect();
            assert!(fleet_fails(&at, &other).contains("belongs to a fleet already"));
        }
        enrolled(&["bert"]);

        assert!(fleet_ok(&at, &words).contains("has begun with 1 client"), "{step}");

        let found = store.etcdctl_ok(&["get", "--prefix", &format!("/warren/{name}/na/"), "--keys-only"]);
        assert!(found.contains("bert") && !found.contains("anna"), "{step}: {found}");
        assert_eq!(names(&at.join("config")), ["fleet.toml"], "{step}");
        // The control: a fleet that exists is not begun again.
        assert!(fleet_fails(&at, &words).contains("belongs to a fleet already"), "{step}");
    }

    // A link has used the fleet before the command could end.
    let at = directory.path().join("a");
    std::fs::create_dir_all(&at).unwrap();
    let clients = at.join("clients.toml").display().to_string();
    std::fs::write(&clients, "client = []\n").unwrap();
    let init = ["init", "--exit", "a", "--clients", &clients, "--pool", "10.0.0.0/16", "--store", &urls];
    fleet_dies(&at, "configuration written", &init);
    let exit = Exit::start(&at, "a").ready();
    wait_for("it is linked", Duration::from_secs(5), || {
        fleet_ok(&at, &["status"]).contains("serving").then_some(())
    });
    let refused = fleet_fails(&at, &init);
    assert!(refused.contains("belongs to a fleet already"), "{refused}");
    drop((exit, store));
}

#[test]
fn a_killed_change_of_the_fleet_key_is_finished_by_the_same_command() {
    let fleet = three_exits();
    let a = &fleet.exits[0].directory;
    let path = |name: &str| fleet.directory.path().join(name).display().to_string();
    let exit = ["--admit", "a", "--public-key", &key(7).to_string(), "--endpoint", "a.example.net:443"];
    fleet_ok(a, &[&["sign", &path("roster"), "--fleet-key", &path("0.key")], &exit[..]].concat());
    fleet_ok(a, &["publish", &path("roster")]);
    for (number, step) in ["key made", "key changed"].into_iter().enumerate() {
        let (old, new) = (path(&format!("{number}.key")), path(&format!("{}.key", number + 1)));
        let rotate = ["rotate-key", "--fleet-key", &old, "--new-key", &new];
        fleet_dies(a, step, &rotate);
        let made = std::fs::read_to_string(&new).unwrap();

        let said = fleet_ok(a, &rotate);

        assert!(said.contains(&format!("Roster {} has a", number + 2)), "{step}: {said}");
        assert_eq!(std::fs::read_to_string(&new).unwrap(), made, "{step}: the key that was made first");
    }
}

#[test]
fn a_killed_leave_is_finished_by_the_same_command() {
    let fleet = Secure::start();
    let steps = [
        "leaving begun",
        "clients written",
        "out of the fleet",
        "configuration renamed",
        "copy removed",
        "credentials forgotten",
        "configuration left",
    ];
    for (number, step) in steps.into_iter().enumerate() {
        let exit = format!("b{number}");
        let at = fleet.directory.path().join(&exit);
        fleet_ok(&at, &["join", fleet.ticket(&exit).trim()]);
        // A link has run on this host.
        let linked = Exit::start(&at, &exit).ready();
        wait_for("it has a copy", Duration::from_secs(5), || {
            at.join("state/fleet/copy.snapshot").exists().then_some(())
        });
        let enrolled = crate::client(&exit, key(u8::try_from(number).unwrap() + 1));
        linked.store(&[enrolled.into()]);
        drop(linked);
        let clients = at.join("clients.toml").display().to_string();
        let leave = ["leave", "--clients", &clients];
        fleet_dies(&at, step, &leave);
        let is_out = !["leaving begun", "clients written"].contains(&step);
        if is_out {
            // The exit's credentials no longer open the store.
            wait_for("its user is removed", Duration::from_secs(30), || (!fleet.opens(&exit)).then_some(()));
        }
        if !at.join("config/fleet.toml").exists() && at.join("config/fleet.toml.leaving").exists() {
            let other = fleet.ticket(&format!("c{number}"));
            let refused = fleet_fails(&at, &["join", other.trim()]);
            assert!(refused.contains("`warren fleet leave` was interrupted"), "{step}: {refused}");
        }

        let said = fleet_ok(&at, &leave);

        let count = format!("{} client", number + 1);
        assert!(said.contains(&format!("{exit} has left fleet")) && said.contains(&count), "{step}: {said}");
        assert!(std::fs::read_to_string(&clients).unwrap().contains(&exit), "{step}");
        assert_eq!(names(&at.join("config")), ["fleet.toml.left"], "{step}");
        assert_eq!(names(&at.join("state/fleet")), ["lock"], "{step}");
        let members = fleet.store.etcdctl_ok(&["get", "--prefix", "/warren/fleet/mb/", "--keys-only"]);
        assert!(!members.contains(&exit), "{step}: {members}");
        // The controls: leaving is over, and a file that the command has not written stays.
        assert!(fleet_fails(&at, &leave).contains("belongs to no fleet"), "{step}");
        fleet_ok(&at, &["join", fleet.ticket(&format!("d{number}")).trim()]);
        std::fs::write(&clients, "mine").unwrap();
        assert!(fleet_fails(&at, &leave).contains("cannot be written"), "{step}");
        assert_eq!(std::fs::read_to_string(&clients).unwrap(), "mine");
        assert!(!at.join("config/leave.json").exists(), "{step}");
        fleet_ok(&at, &["leave", "--clients", &format!("{clients}.2")]);
    }
}
