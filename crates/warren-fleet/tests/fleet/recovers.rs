//! `warren fleet recover`: nothing that any exit knows is lost, and nobody who was removed or disabled comes back.

use std::path::PathBuf;
use std::time::Duration;

use warren_fleet_link::{ExitMessage, FleetMessage, Outcome, StoreLink};
use warren_session::clients::{Client, RowChange};

use crate::commands::Secure;
use crate::support::exit::{Exit, key};
use crate::support::{fleet_fails, fleet_ok, wait_for};
use crate::{Fleet, client, invitation, removal, three_exits, token};

/// How long the links and the periodic removal of users need to react to a recovery.
const A_WHILE: Duration = Duration::from_secs(5);

fn is_refused(store: Option<&StoreLink>) -> bool {
    matches!(store, Some(StoreLink::Refused { .. }))
}

/// Restores a backup of etcd. Waits until these exits notice this and their links have saved their copies.
fn restore(fleet: &mut Fleet, backup: &std::path::Path, exits: &[usize]) {
    fleet.store.restore(backup);
    for index in exits {
        fleet.exits[*index]
            .wait("the backup is noticed", |seen| is_refused(seen.store.as_ref()).then_some(()));
    }
    std::thread::sleep(Duration::from_secs(1));
}

fn wait_until_reachable(exit: &Exit) {
    exit.wait("the store is used again", |seen| (seen.store == Some(StoreLink::Reachable)).then_some(()));
}

/// The names of the invitations that an exit knows.
fn invited(exit: &Exit) -> Vec<String> {
    exit.seen(|seen| {
        let invitations = seen.rows.values().filter_map(|row| match row {
            RowChange::Invitation { invitation, .. } => invitation.as_ref(),
            _ => None,
        });
        invitations.map(|invitation| invitation.name.clone()).collect()
    })
}

fn must_stop(exit: &Exit) -> bool {
    exit.seen(|seen| matches!(seen.store, Some(StoreLink::Refused { is_removed: true, .. })))
}

/// Asserts that an exit is out of the fleet and stays so, although its link runs.
fn is_out(fleet: &Fleet, index: usize, name: &str) {
    let exit = &fleet.exits[index];
    exit.wait("it learns that it is removed", |seen| match &seen.store {
        Some(StoreLink::Refused { reason, .. })
            if ["was removed from the fleet", "does not have this exit"]
                .iter()
                .any(|it| reason.contains(it)) =>
        {
            Some(())
        }
        _ => None,
    });
    std::thread::sleep(A_WHILE);
    let members = fleet.store.etcdctl_ok(&["get", "--prefix", "/warren/fleet/mb/", "--keys-only"]);
    assert!(!members.contains(&format!("mb/{name}")), "{name} is in the fleet again: {members}");
    assert!(exit.seen(|seen| is_refused(seen.store.as_ref())), "{name} uses the store again");
    let status = fleet_ok(&fleet.exits[0].directory, &["status"]);
    assert!(
        !status.lines().any(|line| line.starts_with(&format!("{name} ")) && line.contains("serving")),
        "{status}"
    );
    assert_eq!(exit.request(vec![client("zoe", key(99)).into()]), Outcome::Unavailable);
}

#[test]
fn an_exit_that_was_removed_stays_out_and_one_that_has_joined_since_comes_back() {
    let mut fleet = three_exits();
    let a = fleet.exits[0].directory.clone();
    fleet.exits[0].store(&[client("anna", key(1)).into()]);
    let backup = fleet.store.back_up();
    fleet_ok(&a, &["remove", "c", "--force"]);
    fleet.exits[2].wait("c is removed", |seen| is_refused(seen.store.as_ref()).then_some(()));
    let fourth = Exit::further(&fleet.exits[0], &fleet.directory.path().join("d"), "d", &[]).ready();
    fleet.exits.push(fourth);
    fleet.exits[0].wait("d is known", |seen| (seen.exits.len() == 3).then_some(()));
    std::thread::sleep(Duration::from_secs(2));
    restore(&mut fleet, &backup, &[0, 1, 3]);

    let said = fleet_ok(&a, &["recover"]);

    assert!(said.contains("Exits: 1 put back (d), 1 removed again (c)."), "{said}");
    assert!(said.contains("The copy is of revision "), "{said}");
    for index in [0, 1, 3] {
        wait_until_reachable(&fleet.exits[index]);
    }
    is_out(&fleet, 2, "c");
    // It also stays out when its link starts again without the copy that it had.
    fleet.exits[2].stop_link("TERM");
    std::fs::remove_dir_all(fleet.exits[2].directory.join("state/fleet")).unwrap();
    fleet.exits[2].start_link();
    is_out(&fleet, 2, "c");
    assert!(must_stop(&fleet.exits[2]), "the recovery has repeated the removal without its force");
    // The control: a new ticket brings an exit of this name back.
    fleet.exits[2].stop_link("TERM");
    let again = Exit::further(&fleet.exits[0], &fleet.directory.path().join("e"), "c", &[]).ready();
    again.store(&[client("bert", key(2)).into()]);
}

#[test]
fn an_exit_that_is_not_in_the_backup_does_not_join_by_itself() {
    let mut fleet = three_exits();
    let backup = fleet.store.back_up();
    let fourth = Exit::further(&fleet.exits[0], &fleet.directory.path().join("d"), "d", &[]).ready();
    fleet.exits.push(fourth);
    fleet.exits[3].stop_link("TERM");
    // Removes the exit as an earlier release did, without a trace.
    fleet.store.etcdctl_ok(&["del", "/warren/fleet/mb/d"]);
    fleet.exits[0].store(&[client("anna", key(1)).into()]);
    std::thread::sleep(Duration::from_secs(2));
    restore(&mut fleet, &backup, &[0, 1, 2]);
    fleet_ok(&fleet.exits[0].directory, &["recover"]);
    fleet.exits[3].start_link();
    is_out(&fleet, 3, "d");
    assert!(!must_stop(&fleet.exits[3]), "nobody has removed it, but it sends its clients away");
}

/// A fleet of which exit c was removed and has confirmed it, the first exit's directory, and a backup.
fn without_c() -> (Fleet, PathBuf, PathBuf) {
    let mut fleet = three_exits();
    let a = fleet.exits[0].directory.clone();
    // An exit that has just been linked may still write its own key.
    fleet.exits[0].wait("all are known", |seen| (seen.exits.len() == 3).then_some(()));
    fleet_ok(&a, &["remove", "c", "--force"]);
    fleet.exits[2].wait("c is removed", |seen| is_refused(seen.store.as_ref()).then_some(()));
    fleet.exits[2].stop_link("TERM");
    let backup = fleet.store.back_up();
    (fleet, a, backup)
}

#[test]
fn a_removal_since_the_backup_still_stops_its_exit_and_one_before_an_exit_came_back_does_not() {
    let (mut fleet, a, backup) = without_c();
    let again = Exit::further(&fleet.exits[0], &fleet.directory.path().join("e"), "c", &[]).ready();
    fleet.exits.push(again);
    fleet.exits[0].wait("c is back", |seen| (seen.exits.len() == 3).then_some(()));
    // Exit b does not hear of its removal.
    fleet.exits[1].stop_link("KILL");
    let said = fleet_ok(&a, &["remove", "b", "--force"]);
    assert!(said.contains("has not confirmed"), "{said}");
    std::thread::sleep(Duration::from_secs(2));
    restore(&mut fleet, &backup, &[0, 3]);

    let said = fleet_ok(&a, &["recover"]);

    assert!(said.contains("1 put back (c), 1 removed again (b)"), "{said}");
    wait_until_reachable(&fleet.exits[0]);
    fleet.exits[0].wait("b may still serve", |seen| {
        seen.removed.iter().any(|removed| removed.exit.as_str() == "b").then_some(())
    });
    // The backup's removal is of c's earlier membership.
    wait_until_reachable(&fleet.exits[3]);
    let was_stopped = |message: &FleetMessage| {
        matches!(message, FleetMessage::Store(StoreLink::Refused { is_removed: true, .. }))
    };
    assert!(!fleet.exits[3].seen(|seen| seen.order.iter().any(was_stopped)), "c was told to stop");
    // The control: the earlier c is still out.
    fleet.exits[2].start_link();
    is_out(&fleet, 2, "c's first host");
    fleet.exits[2].stop_link("TERM");
    fleet.exits[1].start_link();
    is_out(&fleet, 1, "b");
    assert!(must_stop(&fleet.exits[1]), "b was removed, and serves on");
    fleet.exits[0].wait("b has confirmed", |seen| seen.removed.is_empty().then_some(()));
}

#[test]
fn an_exit_recovers_from_a_backup_that_has_the_end_of_its_earlier_membership() {
    let mut fleet = three_exits();
    let a = fleet.exits[0].directory.clone();
    fleet.exits[0].wait("all are known", |seen| (seen.exits.len() == 3).then_some(()));
    let old = fleet.store.back_up();
    fleet_ok(&a, &["remove", "c", "--force"]);
    fleet.exits[2].wait("c is removed", |seen| is_refused(seen.store.as_ref()).then_some(()));
    fleet.exits[2].stop_link("TERM");
    let file = fleet.directory.path().join("fleet.backup");
    let file = file.to_str().unwrap();
    fleet_ok(&a, &["backup", file]);
    let again = Exit::further(&fleet.exits[0], &fleet.directory.path().join("e"), "c", &[]).ready();
    fleet.exits.push(again);
    fleet.exits[0].wait("c is back", |seen| (seen.exits.len() == 3).then_some(()));
    std::thread::sleep(Duration::from_secs(2));
    restore(&mut fleet, &old, &[0, 3]);

    fleet_ok(&fleet.exits[3].directory, &["recover", "--from", file]);

    wait_until_reachable(&fleet.exits[3]);
    wait_until_reachable(&fleet.exits[0]);
    std::thread::sleep(A_WHILE);
    assert!(fleet.exits[3].seen(|seen| !is_refused(seen.store.as_ref())), "c is out again");
    let members = fleet.store.etcdctl_ok(&["get", "--prefix", "/warren/fleet/mb/", "--keys-only"]);
    assert!(members.contains("mb/c"), "{members}");
    // The control: the earlier c is out.
    fleet.exits[2].start_link();
    fleet.exits[2].wait("it is refused", |seen| is_refused(seen.store.as_ref()).then_some(()));
}

#[test]
fn a_store_of_an_earlier_epoch_does_not_stop_an_exit_for_its_earlier_removal() {
    let (mut fleet, a, backup) = without_c();
    // A recovery, after which the copies are of a later epoch than the backup.
    fleet.exits[0].store(&[client("anna", key(1)).into()]);
    std::thread::sleep(Duration::from_secs(2));
    restore(&mut fleet, &backup, &[0, 1]);
    fleet_ok(&a, &["recover"]);
    wait_until_reachable(&fleet.exits[0]);
    let again = Exit::further(&fleet.exits[0], &fleet.directory.path().join("e"), "c", &[]).ready();
    fleet.exits.push(again);
    fleet.exits[0].wait("c is back", |seen| (seen.exits.len() == 3).then_some(()));
    std::thread::sleep(Duration::from_secs(2));
    restore(&mut fleet, &backup, &[0, 1, 3]);
    let was_stopped = |exit: &Exit| {
        exit.seen(|seen| {
            seen.order.iter().any(|message| {
                matches!(message, FleetMessage::Store(StoreLink::Refused { is_removed: true, .. }))
            })
        })
    };
    assert!(!was_stopped(&fleet.exits[3]), "before the recovery");

    let said = fleet_ok(&a, &["recover"]);

    assert!(said.contains("Exits: 1 put back (c), 0 removed again."), "{said}");
    for index in [0, 1, 3] {
        wait_until_reachable(&fleet.exits[index]);
    }
    assert!(!was_stopped(&fleet.exits[3]), "after the recovery");
    assert!(was_stopped(&fleet.exits[2]), "the control: the exit that was removed");
}

#[test]
fn the_etcd_user_of_a_removed_exit_ends_again_after_a_recovery() {
    let mut fleet = Secure::start();
    let a = fleet.directory.path().join("a");
    let ticket = fleet.ticket("b");
    let (other, kept) = (fleet.directory.path().join("b"), fleet.ticket("c"));
    fleet_ok(&other, &["join", ticket.trim()]);
    fleet_ok(&fleet.directory.path().join("c"), &["join", kept.trim()]);
    let backup = fleet.store.back_up();
    fleet_ok(&a, &["remove", "b"]);
    assert!(!fleet.opens("b"));
    std::thread::sleep(Duration::from_secs(2));
    fleet.store.restore(&backup);
    fleet.first.wait("the backup is noticed", |seen| is_refused(seen.store.as_ref()).then_some(()));
    std::thread::sleep(Duration::from_secs(1));
    assert!(fleet.opens("b"), "the control: the backup has the user");

    fleet_ok(&a, &["recover"]);

    wait_for("its user is removed", Duration::from_secs(30), || (!fleet.opens("b")).then_some(()));
    assert!(fleet.opens("c"), "the control: another exit keeps its user");
}

#[test]
fn a_ticket_that_a_backup_brings_back_is_void_after_a_recovery() {
    let mut fleet = Secure::start();
    let [a, b] = ["a", "b"].map(|name| fleet.directory.path().join(name));
    let ticket = fleet.ticket("b");
    let backup = fleet.store.back_up();
    // This voids the ticket.
    fleet_ok(&a, &["remove", "b"]);
    std::thread::sleep(Duration::from_secs(2));
    fleet.store.restore(&backup);
    fleet.first.wait("the backup is noticed", |seen| is_refused(seen.store.as_ref()).then_some(()));
    std::thread::sleep(Duration::from_secs(1));
    let tickets = fleet.store.etcdctl_ok(&["get", "--prefix", "/warren/fleet/tk/", "--keys-only"]);
    assert!(tickets.contains("/tk/"), "the control: the backup has the ticket");

    let said = fleet_ok(&a, &["recover"]);

    assert!(said.contains("Tickets that nobody has used are void"), "{said}");
    let refused = fleet_fails(&b, &["join", ticket.trim()]);
    assert!(refused.contains("is void"), "{refused}");
    // The control: a new ticket.
    fleet_ok(&b, &["join", fleet.ticket("b").trim()]);
}

#[test]
fn a_client_that_has_started_again_since_the_backup_stays_online_in_a_recovery() {
    let mut fleet = three_exits();
    let a = fleet.exits[0].directory.clone();
    let name = format!("/warren/fleet/se/{}", key(1).to_string().replace('+', "-").replace('/', "_"));
    let name = name.trim_end_matches('=').to_owned();
    let open = |exit: &Exit, nonce: u8| {
        exit.say(ExitMessage::Opened { key: key(1), nonce: vec![nonce; 16], claim: 1 });
    };
    let wait_for_record = |fleet: &Fleet, exit: Option<&str>| {
        wait_for("the record is as expected", Duration::from_secs(5), || {
            let record = fleet.store.etcdctl_ok(&["get", &name, "--print-value-only"]);
            exit.map_or(record.is_empty(), |exit| record.contains(&format!("\"exit\":\"{exit}\"")))
                .then_some(())
        });
    };
    open(&fleet.exits[1], 1);
    wait_for_record(&fleet, Some("b"));
    let backup = fleet.store.back_up();
    fleet.exits[1].stop_link("TERM");
    wait_for_record(&fleet, None);
    std::thread::sleep(Duration::from_millis(500));
    // The client's next process comes to the other exit.
    open(&fleet.exits[0], 2);
    wait_for_record(&fleet, Some("a"));
    std::thread::sleep(Duration::from_secs(2));
    restore(&mut fleet, &backup, &[0]);
    wait_for_record(&fleet, Some("b"));

    fleet_ok(&a, &["recover"]);

    wait_until_reachable(&fleet.exits[0]);
    wait_for_record(&fleet, Some("a"));
    std::thread::sleep(A_WHILE);
    let elsewhere = fleet.exits[0].seen(|seen| seen.elsewhere.clone());
    assert!(elsewhere.is_empty(), "the client is sent away: {elsewhere:?}");
}

/// Recovers a store whose backup has b's removal, with b's user confined, although b has joined again since. `by`: the exit that
/// recovers. Returns what it says.
fn recovered_with_a_confined_user(fleet: &mut Secure, by: &str) -> String {
    let at = |name: &str| fleet.directory.path().join(name);
    let [a, b] = ["a", "b"].map(at);
    let join = |name: &str, host: &str| fleet_ok(&at(host), &["join", fleet.ticket(name).trim()]);
    join("e", "e");
    let other = Exit::start(&at("e"), "e").ready();
    join("b", "b");
    let mut exit = Exit::start(&b, "b").ready();
    fleet.first.wait("the exits are known", |seen| (seen.exits.len() == 3).then_some(()));
    exit.stop_link("KILL");
    fleet_ok(&a, &["remove", "b", "--force"]);
    assert!(!fleet.opens("b"));
    let backup = fleet.store.back_up();
    fleet_ok(&a, &["remove", "b", "--stopped"]);
    join("b", "b2");
    assert!(fleet.opens("b"), "the control: it has joined again");
    let again = Exit::start(&at("b2"), "b").ready();
    for exit in [&fleet.first, &other] {
        exit.wait("b is back", |seen| (seen.exits.len() == 3).then_some(()));
    }
    std::thread::sleep(Duration::from_secs(2));
    fleet.store.restore(&backup);
    for exit in [&fleet.first, &other] {
        exit.wait("the backup is noticed", |seen| is_refused(seen.store.as_ref()).then_some(()));
    }
    std::thread::sleep(Duration::from_secs(1));
    assert!(!fleet.opens("b"), "the control: the backup has the confined user");

    let said = fleet_ok(&fleet.directory.path().join(by), &["recover"]);

    assert!(said.contains("1 put back (b)"), "{said}");
    let granting = said.lines().find_map(|line| line.trim().strip_prefix("etcdctl "));
    if let Some(arguments) = granting {
        assert!(!fleet.opens("b"), "it has its rights already");
        fleet.store.etcdctl_ok(&arguments.split(' ').collect::<Vec<_>>());
    }
    assert!(fleet.opens("b"), "{said}");
    wait_until_reachable(&again);
    said
}

#[test]
fn a_recovery_gives_an_exit_that_has_joined_again_its_rights_in_etcd() {
    let said = recovered_with_a_confined_user(&mut Secure::start(), "a");
    assert!(!said.contains("grant-permission"), "{said}");
}

#[test]
fn a_recovery_that_may_not_grant_rights_says_which_command_does() {
    let said = recovered_with_a_confined_user(&mut Secure::start(), "e");
    assert!(
        said.contains("grant-permission warren-fleet-b --prefix=true readwrite /warren/fleet/\n"),
        "{said}"
    );
}

#[test]
fn a_recovery_with_a_copy_that_lags_loses_nothing_that_another_exit_knows() {
    let mut fleet = three_exits();
    let [a, b] = [0, 1].map(|index: usize| fleet.exits[index].directory.clone());
    for (name, number) in [("anna", 1), ("bert", 2), ("carl", 3)] {
        fleet.exits[0].store(&[client(name, key(number)).into()]);
    }
    fleet.exits[0].store(&[invitation("gast", 1, None).into()]);
    fleet.exits[1].wait("all is known", |seen| (seen.rows.len() == 4).then_some(()));
    let backup = fleet.store.back_up();
    // The exit has a change that the backup lacks, and then falls behind.
    fleet.exits[0].store(&[client("eva", key(5)).into()]);
    std::thread::sleep(Duration::from_secs(3));
    fleet.exits[0].stop_link("TERM");
    let disabled = Client { disabled: true, ..client("bert", key(2)) };
    let renamed = Client { name: "karl".to_owned(), ..client("carl", key(3)) };
    let withdrawn = RowChange::Invitation { token: token(1), invitation: None };
    fleet.exits[1].store(&[client("dora", key(4)).into()]);
    fleet.exits[1].store(&[invitation("neu", 2, None).into()]);
    fleet.exits[1].store(&removal("anna", key(1)));
    fleet.exits[1].store(&[disabled.clone().into(), renamed.clone().into(), withdrawn]);
    fleet_ok(&b, &["remove", "c", "--force"]);
    fleet.exits[1].wait("c is gone", |seen| (seen.exits.len() == 2).then_some(()));
    fleet.store.restore(&backup);
    fleet.exits[0].start_link();
    for exit in &fleet.exits[..2] {
        exit.wait("the backup is noticed", |seen| is_refused(seen.store.as_ref()).then_some(()));
    }
    std::thread::sleep(Duration::from_secs(1));

    let said = fleet_ok(&a, &["recover"]);

    println!("{said}");
    for exit in &fleet.exits[..2] {
        wait_until_reachable(exit);
        wait_for("what only b knew is there", Duration::from_secs(10), || {
            (exit.client(key(4)).is_some() && exit.client(key(1)).is_none()).then_some(())
        });
        wait_for("all changes are there", Duration::from_secs(10), || {
            (exit.client(key(2)) == Some(disabled.clone()) && exit.client(key(3)) == Some(renamed.clone()))
                .then_some(())
        });
        // Both exits have come back. One invitation was withdrawn, and only b knew the other one.
        wait_for("one invitation is left", Duration::from_secs(10), || {
            (invited(exit) == ["neu"]).then_some(())
        });
        assert_eq!(exit.request(vec![client("anna", key(1)).into()]), Outcome::Conflict);
    }
    // The exit that knew dora has served her all the time.
    assert!(fleet.exits[1].seen(|seen| !seen.gone.contains_key(&key(4))), "dora was cut off");
    is_out(&fleet, 2, "c");
    for exit in &fleet.exits[..2] {
        assert_eq!(invited(exit), ["neu"], "a withdrawn invitation is open again");
    }
}

#[test]
fn a_store_that_was_not_restored_is_left_alone_and_never_set_back() {
    let fleet = three_exits();
    let a = &fleet.exits[0];
    for (name, number) in [("anna", 1), ("bert", 2), ("carl", 3), ("dora", 4)] {
        a.store(&[client(name, key(number)).into()]);
    }
    let backup = fleet.directory.path().join("backup").display().to_string();
    fleet_ok(&a.directory, &["backup", &backup]);
    let disabled = Client { disabled: true, ..client("anna", key(1)) };
    let renamed = Client { name: "bernd".to_owned(), ..client("bert", key(2)) };
    a.store(&[disabled.clone().into(), renamed.into()]);
    a.store(&removal("carl", key(3)));
    a.store(&[invitation("neu", 1, None).into()]);
    // The copy on disk contains this a second later.
    std::thread::sleep(Duration::from_secs(3));
    let rows = || {
        let all = ["cl", "in", "rv"]
            .map(|kind| fleet.store.etcdctl_ok(&["get", "--prefix", &format!("/warren/fleet/{kind}/")]));
        all.concat()
    };
    let before = rows();
    for arguments in [&["recover", "--from", &backup][..], &["recover"]] {
        let refused = fleet_fails(&a.directory, arguments);
        assert!(
            refused.contains("was not restored from an old backup") && refused.contains("--force"),
            "{refused}"
        );
        assert_eq!(rows(), before);
    }

    fleet_ok(&a.directory, &["recover", "--force", "--from", &backup]);

    assert_eq!(rows(), before);
    for exit in &fleet.exits {
        wait_until_reachable(exit);
    }
    // The control: rows that were lost by mistake come back.
    let dora = key(4).to_string().replace('+', "-").replace('/', "_");
    for name in [format!("cl/{}", dora.trim_end_matches('=')), "na/dora".to_owned()] {
        assert_eq!(fleet.store.etcdctl_ok(&["del", &format!("/warren/fleet/{name}")]).trim(), "1");
    }
    wait_for("she is gone", A_WHILE, || a.client(key(4)).is_none().then_some(()));
    let said = fleet_ok(&a.directory, &["recover", "--force", "--from", &backup]);
    assert!(said.contains("Clients: 1 put back"), "{said}");
    for exit in &fleet.exits {
        wait_for("she is back", A_WHILE, || exit.client(key(4)).map(drop));
        assert_eq!(exit.client(key(1)), Some(disabled.clone()));
    }
}

#[test]
fn a_newer_roster_wins_in_a_recovery_and_at_the_next_signature() {
    let mut fleet = three_exits();
    let a = fleet.exits[0].directory.clone();
    let directory = fleet.directory.path().to_owned();
    let path = |name: &str| directory.join(name).display().to_string();
    let (roster, fleet_key) = (path("roster"), path("fleet.key"));
    let own = key(b'a').to_string();
    let sign = |weight: &str| {
        let exit =
            ["--admit", "a", "--public-key", &own, "--endpoint", "a.example.net:443", "--weight", weight];
        fleet_ok(&a, &[&["sign", &roster, "--fleet-key", &fleet_key], &exit[..]].concat())
    };
    sign("1");
    fleet_ok(&a, &["publish", &roster]);
    let backup = fleet.store.back_up();
    for weight in ["2", "3"] {
        sign(weight);
        fleet_ok(&a, &["publish", &roster]);
    }
    for exit in &fleet.exits {
        exit.wait("the roster is known", |seen| seen.roster.is_some().then_some(()));
    }
    std::thread::sleep(Duration::from_secs(2));
    restore(&mut fleet, &backup, &[0, 1, 2]);
    let said = fleet_ok(&a, &["recover"]);
    assert!(said.contains("Roster: 3 is put back."), "{said}");
    let admit = ["admit", "a", "--fleet-key", &fleet_key, "--public-key", &own];
    assert!(fleet_ok(&a, &admit).contains("Roster 4 has a"));

    // Only the exit itself has a newer roster.
    for weight in ["4", "5", "6"] {
        sign(weight);
    }
    std::fs::create_dir_all(a.join("state/exit")).unwrap();
    std::fs::copy(&roster, a.join("state/exit/roster")).unwrap();
    assert!(fleet_ok(&a, &admit).contains("Roster 7 has a"), "the exits and clients have roster 6");
    // The control: an exit's roster that is older than the store's is no obstacle.
    assert!(fleet_ok(&a, &admit).contains("Roster 8 has a"));
    let remove = ["remove", "a", "--force", "--fleet-key", &fleet_key];
    let refused = fleet_fails(&a, &remove);
    assert!(refused.contains("nothing was changed") && refused.contains("is a itself"), "{refused}");
    let removed = fleet_ok(&fleet.exits[1].directory, &remove);
    assert!(removed.contains("Roster 9 has"), "{removed}");
}
