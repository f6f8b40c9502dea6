//! Commands: tickets that end, a store that has lost everything, a roster that is signed elsewhere, and a log that is not flooded.

use std::path::Path;
use std::time::Duration;

use warren_fleet_link::{Outcome, StoreLink};

use crate::support::etcd::{Store, etcdctl};
use crate::support::exit::{Exit, key};
use crate::support::{fleet_fails, fleet_ok, my_turn, wait_for};
use crate::{client, removal, three_exits};

/// An exit at a store with certificates and users, whose own user is root.
pub(crate) struct Secure {
    pub(crate) first: Exit,
    pub(crate) store: Store,
    pub(crate) directory: tempfile::TempDir,
    _turn: crate::support::Turn,
}

impl Secure {
    pub(crate) fn start() -> Self {
        let turn = my_turn();
        let store = Store::start_secure();
        let directory = tempfile::tempdir().unwrap();
        let (root, root_key) = store.certificate("root");
        for arguments in [
            &["user", "add", "root", "--no-password"][..],
            &["user", "grant-role", "root", "root"],
            &["auth", "enable"],
        ] {
            store.etcdctl_ok(arguments);
        }
        let [ca, root, root_key] = [store.ca(), root, root_key].map(|path| path.display().to_string());
        let urls = store.urls();
        let init = ["--store", &urls, "--ca", &ca, "--certificate", &root, "--key", &root_key];
        let first = Exit::first(&directory.path().join("a"), "a", &init).ready();
        Self { first, store, directory, _turn: turn }
    }

    /// A ticket for an exit, with a certificate of its own.
    pub(crate) fn ticket(&self, name: &str) -> String {
        let files = self.store.certificate(&format!("warren-fleet-{name}"));
        let [certificate, key] = [files.0, files.1].map(|path| path.display().to_string());
        fleet_ok(&self.first.directory, &["ticket", name, "--certificate", &certificate, "--key", &key])
    }

    /// Whether an exit's certificate opens the store.
    pub(crate) fn opens(&self, name: &str) -> bool {
        let file = |end: &str| self.store.directory.path().join(format!("warren-fleet-{name}.{end}"));
        let read = etcdctl()
            .args(["--endpoints", &self.store.urls(), "--cacert"])
            .arg(self.store.ca())
            .arg("--cert")
            .arg(file("pem"))
            .arg("--key")
            .arg(file("key"))
            .args(["get", "/warren/fleet/meta"])
            .output()
            .unwrap();
        read.status.success()
    }

    /// Ends all tickets, as their expiry would.
    pub(crate) fn end_tickets(&self) {
        let found = self.store.etcdctl_ok(&["get", "--prefix", "/warren/fleet/tk/", "--write-out", "json"]);
        let found: serde_json::Value = serde_json::from_str(&found).unwrap();
        for ticket in found["kvs"].as_array().unwrap() {
            let lease = format!("{:x}", ticket["lease"].as_i64().unwrap());
            self.store.etcdctl_ok(&["lease", "revoke", &lease]);
        }
    }
}

#[test]
fn a_ticket_has_only_the_new_exits_credentials_and_they_end_with_it() {
    let fleet = Secure::start();
    let a = &fleet.first.directory;
    let at = |name: &str| fleet.directory.path().join(name);
    // The holder of a ticket must not be able to pose as the exit that made it.
    assert!(fleet_fails(a, &["ticket", "b"]).contains("whose common name is warren-fleet-b"));
    let (root, root_key) = fleet.store.certificate("root");
    let [root, root_key] = [root, root_key].map(|path| path.display().to_string());
    let refused = fleet_fails(a, &["ticket", "b", "--certificate", &root, "--key", &root_key]);
    assert!(refused.contains("the etcd user \"root\""), "{refused}");

    let [_, joined, late] = ["b", "c", "d"].map(|name| fleet.ticket(name));
    fleet_ok(&at("c"), &["join", joined.trim()]);
    assert!(["b", "c", "d"].iter().all(|name| fleet.opens(name)), "the control");
    let status = fleet_ok(a, &["status"]);
    assert!(status.contains("d     has a ticket, and has not joined"), "{status}");
    fleet.end_tickets();
    wait_for("the users end with their tickets", Duration::from_secs(30), || {
        (!fleet.opens("b") && !fleet.opens("d")).then_some(())
    });
    assert!(fleet.opens("c"), "the exit that has joined keeps its user");
    assert!(fleet_fails(&at("d"), &["join", late.trim()]).contains("has expired or is void"));
    // A new ticket for the same exit works.
    let again = fleet.ticket("d");
    fleet_ok(&at("d"), &["join", again.trim()]);
    assert!(fleet.opens("d"));
}

#[test]
fn remove_takes_the_user_of_an_exit_that_has_not_joined_or_changes_nothing() {
    let fleet = Secure::start();
    let a = &fleet.first.directory;
    let at = |name: &str| fleet.directory.path().join(name);
    ["b", "c", "d"]
        .map(|name| (fleet.ticket(name), fleet.opens(name)))
        .iter()
        .for_each(|(_, opens)| assert!(opens));
    assert!(fleet_ok(a, &["remove", "b"]).contains("b is not in the fleet"));
    assert!(!fleet.opens("b"));

    // The etcd user of an exit that joined may not remove users. The command says so, and changes nothing.
    let ticket = fleet.ticket("e");
    fleet_ok(&at("e"), &["join", ticket.trim()]);
    for exit in ["a", "c"] {
        let refused = fleet_fails(&at("e"), &["remove", exit, "--force"]);
        assert!(refused.contains("nothing was changed") && refused.contains("--admin"), "{refused}");
    }
    // An exit's own user can see itself, but cannot remove itself.
    let refused = fleet_fails(&at("e"), &["remove", "e", "--force"]);
    assert!(refused.contains("nothing was changed") && refused.contains("`warren fleet leave`"), "{refused}");
    let status = fleet_ok(a, &["status"]);
    assert!(status.contains("serving") && status.contains("c     has a ticket"), "{status}");
    assert!(status.contains("e     has joined"), "{status}");
    fleet_ok(a, &["remove", "c"]);
    assert!(!fleet.opens("c") && fleet.opens("d"), "the controls");
    // If an exit leaves, an exit whose user has the right removes the user.
    let left = at("left.toml").display().to_string();
    let said = fleet_ok(&at("e"), &["leave", "--clients", &left]);
    assert!(said.contains("is removed within twenty seconds"), "{said}");
    wait_for("its user is removed", Duration::from_secs(30), || (!fleet.opens("e")).then_some(()));
}

#[test]
fn a_host_may_join_again_with_its_ticket_until_it_has_succeeded_and_another_host_may_not() {
    let fleet = three_exits();
    let a = &fleet.exits[0].directory;
    let at = |name: &str| fleet.directory.path().join(name);
    let ticket = fleet_ok(a, &["ticket", "d"]);
    let join = ["join", ticket.trim()];
    fleet_ok(&at("d"), &join);
    // The state after a lost answer of the store: the ticket is used, and the host has only its attempt's file.
    let left = || std::fs::read_dir(at("d/config/fleet")).unwrap().count();
    std::fs::remove_file(at("d/config/fleet.toml")).unwrap();
    assert_eq!(left(), 1, "this store has no credentials");
    fleet_ok(&at("d"), &join);
    // The join is repeated, as after a failure in setting up the exit.
    assert!(fleet_ok(&at("d"), &join).contains("This exit is d"));
    assert!(fleet_fails(&at("e"), &join).contains("used by another host"));
    assert!(!at("e/config/fleet").exists());

    fleet_ok(a, &["remove", "d"]);
    assert!(fleet_fails(&at("d"), &join).contains("used by another host"));
    assert!(at("d/config/fleet.toml").exists(), "what an exit has stays");
    // A newer ticket ends the earlier one.
    let [earlier, newer] = [(); 2].map(|()| fleet_ok(a, &["ticket", "f"]));
    assert!(fleet_fails(&at("f"), &["join", earlier.trim()]).contains("is void"));
    fleet_ok(&at("f"), &["join", newer.trim()]);
}

#[test]
fn a_beginning_that_failed_halfway_is_begun_again_and_a_fleet_that_lives_is_not() {
    let _turn = my_turn();
    let store = Store::start();
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let urls = store.urls();
    let clients = |directory: &Path, names: &[&str]| {
        std::fs::create_dir_all(directory).unwrap();
        let of = |name: &&str| {
            let key = key(name.as_bytes()[0]);
            format!(
                "[[client]]\nname = \"{name}\"\npublic_key = \"{key}\"\ncreated = \"2026-01-01T00:00:00Z\"\n"
            )
        };
        let text: String = names.iter().map(of).collect();
        std::fs::write(directory.join("clients.toml"), text).unwrap();
    };
    let begin = |directory: &Path, name: &str| {
        let clients = directory.join("clients.toml").display().to_string();
        let arguments =
            ["init", "--exit", name, "--clients", &clients, "--pool", "10.0.0.0/16", "--store", &urls];
        arguments.map(str::to_owned)
    };
    let words = |arguments: &[String]| arguments.iter().map(String::as_str).collect::<Vec<_>>().join("\n");
    let fails = |directory: &Path, name: &str| {
        let text = words(&begin(directory, name));
        fleet_fails(directory, &text.split('\n').collect::<Vec<_>>())
    };
    clients(&at("a"), &["anna", "bert"]);
    // A file has the name of the configuration directory. So all clients are stored, but fleet.toml cannot be written.
    std::fs::write(at("a").join("config"), "").unwrap();
    let refused = fails(&at("a"), "a");
    assert!(refused.contains("run this again"), "{refused}");
    std::fs::remove_file(at("a").join("config")).unwrap();
    // No other exit can complete the fleet.
    clients(&at("x"), &["xaver"]);
    assert!(fails(&at("x"), "x").contains("has a fleet \"fleet\" already"));
    // Anna was removed meanwhile.
    clients(&at("a"), &["bert"]);
    let a = Exit::first(&at("a"), "a", &["--store", &urls]).ready();
    assert!(a.client(key(b'b')).is_some() && a.client(key(b'a')).is_none());
    wait_for("it is linked", Duration::from_secs(5), || {
        fleet_ok(&at("a"), &["status"]).contains("serving").then_some(())
    });
    assert!(fails(&at("x"), "a").contains("has a fleet \"fleet\" already"));
    assert!(a.client(key(b'b')).is_some());
}

#[test]
fn a_fleet_key_that_was_made_by_an_attempt_that_failed_is_used_by_the_next_one() {
    let fleet = three_exits();
    let a = &fleet.exits[0].directory;
    let path = |name: &str| fleet.directory.path().join(name).display().to_string();
    let (old, new) = (path("fleet.key"), path("new.key"));
    let exit = ["--admit", "a", "--public-key", &key(7).to_string(), "--endpoint", "a.example.net:443"];
    let sign = |roster: &str, key: &str| {
        fleet_ok(a, &[&["sign", &path(roster), "--fleet-key", key], &exit[..]].concat())
    };
    sign("roster", &old);
    fleet_ok(a, &["publish", &path("roster")]);
    // The state after an attempt that made the key, but whose roster was not stored.
    sign("other", &new);
    let rotate =
        |from: &str, to: &str| ["rotate-key", "--fleet-key", from, "--new-key", to].map(str::to_owned);
    let run = |words: [String; 5]| {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let done = crate::support::fleet(a, &words);
        (done.status.success(), String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned())
    };
    assert!(run(rotate(&old, &old)).1.contains("is in use"));
    let (is_done, said) = run(rotate(&old, &new));
    assert!(is_done && said.contains("Roster 2 has a"), "{said}");
    let (is_done, said) = run(rotate(&old, &new));
    assert!(is_done && said.contains("already"), "{said}");
    let (is_done, said) = run(rotate(&old, &path("third.key")));
    assert!(!is_done && said.contains("does not contain the key"), "{said}");
    assert!(!Path::new(&path("third.key")).exists());
}

#[test]
fn leaving_a_fleet_touches_no_other_one_of_the_same_name() {
    let mut fleet = three_exits();
    fleet.exits[0].store(&[client("anna", key(1)).into()]);
    wait_for("she is known", Duration::from_secs(5), || fleet.exits[1].client(key(1)).map(drop));
    // The link saves its copy when it stops.
    fleet.exits[1].stop_link("TERM");
    let meta = fleet.store.etcdctl_ok(&["get", "/warren/fleet/meta", "--print-value-only"]);
    let mut meta: serde_json::Value = serde_json::from_str(meta.trim()).unwrap();
    meta["id"] = "another".into();
    fleet.store.etcdctl_ok(&["put", "/warren/fleet/meta", &meta.to_string()]);
    fleet.store.etcdctl_ok(&["del", "--prefix", "/warren/fleet/cl/"]);
    let left = fleet.directory.path().join("left.toml").display().to_string();
    let said = fleet_ok(&fleet.exits[1].directory, &["leave", "--clients", &left]);
    assert!(said.contains("left.toml has 1 client."), "{said}");
    assert!(std::fs::read_to_string(&left).unwrap().contains("anna"));
    assert!(
        fleet.store.etcdctl_ok(&["get", "/warren/fleet/mb/b"]).contains("mb/b"),
        "the other fleet has its exit"
    );
}

#[test]
fn a_ticket_has_an_end_and_can_be_voided_and_a_refused_join_leaves_nothing() {
    let fleet = three_exits();
    let a = &fleet.exits[0].directory;
    let at = |name: &str| fleet.directory.path().join(name);
    let void = fleet_ok(a, &["ticket", "e"]);
    let lease = fleet.store.etcdctl_ok(&["get", "--prefix", "/warren/fleet/tk/", "--write-out", "json"]);
    assert!(lease.contains("\"lease\":"), "the store ends it: {lease}");
    assert!(fleet_ok(a, &["remove", "e"]).contains("e is not in the fleet"));
    assert!(fleet_fails(&at("e"), &["join", void.trim()]).contains("is void"));
    assert!(!at("e/config/fleet.toml").exists() && !at("e/config/fleet").exists());
    assert!(fleet_fails(a, &["remove", "e"]).contains("no exit e"), "there is nothing left");

    for (wrong, why) in [("5s", "must be"), ("31d", "must be"), ("24", "needs a unit")] {
        assert!(fleet_fails(a, &["ticket", "e", "--expires", wrong]).contains(why), "{wrong}");
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
    // The copy on disk contains this a second later.
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
    // These rosters are signed with another key.
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
    // The link checks the store again every two seconds.
    std::thread::sleep(Duration::from_secs(7));
    let log = fleet.exits[2].log();
    assert_eq!(log.matches("the store is not used").count(), 1, "{log}");
}

/// Whether an exit's host has a copy of its fleet.
fn has_copy(exit: &Exit) -> bool {
    ["copy.snapshot", "position.json"]
        .iter()
        .any(|name| exit.directory.join("state/fleet").join(name).exists())
}

#[test]
fn an_exit_that_has_left_keeps_no_copy_even_if_its_link_still_runs_and_it_can_join_again() {
    let mut fleet = three_exits();
    fleet.exits[1].store(&[client("anna", key(1)).into()]);
    let a = fleet.exits[0].directory.clone();
    let b = &mut fleet.exits[1];
    wait_for("the control", Duration::from_secs(5), || has_copy(b).then_some(()));
    let roster = b.directory.join("state/exit/roster");
    std::fs::create_dir_all(roster.parent().unwrap()).unwrap();
    std::fs::write(&roster, "").unwrap();
    let left = fleet.directory.path().join("left.toml").display().to_string();
    let said = fleet_ok(&b.directory, &["leave", "--clients", &left]);
    assert!(said.contains("has 1 client"), "{said}");
    assert!(!roster.exists());
    wait_for("its link ends by itself", Duration::from_secs(10), || {
        b.log().contains("this link ends").then_some(())
    });
    b.stop_link("TERM");
    assert!(!has_copy(b), "the link has written nothing more");

    let ticket = fleet_ok(&a, &["ticket", "b"]);
    fleet_ok(&b.directory, &["join", ticket.trim()]);
    let wholes = b.seen(|seen| seen.wholes);
    b.start_link();
    b.wait("it uses the store", |seen| {
        (seen.wholes > wholes && seen.store == Some(StoreLink::Reachable)).then_some(())
    });
    assert!(b.client(key(1)).is_some());
}

#[test]
fn a_link_refuses_the_copy_of_another_fleet_and_its_exit_loses_no_client() {
    let mut fleet = three_exits();
    fleet.exits[1].store(&[client("anna", key(1)).into()]);
    let b = &mut fleet.exits[1];
    wait_for("its copy is saved", Duration::from_secs(5), || has_copy(b).then_some(()));
    b.stop_link("TERM");
    let config = b.directory.join("config/fleet.toml");
    let right = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, right.replace("fleet = \"fleet\"", "fleet = \"flete\"")).unwrap();
    let left = fleet.directory.path().join("left.toml").display().to_string();
    for command in [&["run"][..], &["leave", "--clients", &left]] {
        let refused = fleet_fails(&b.directory, command);
        assert!(refused.contains("the copy of the exit b of fleet \"fleet\""), "{refused}");
    }
    assert!(b.client(key(1)).is_some() && !Path::new(&left).exists());
    // The control.
    std::fs::write(&config, right).unwrap();
    b.start_link();
    let wholes = b.seen(|seen| seen.wholes);
    b.wait("it is linked again", |seen| (seen.wholes > wholes).then_some(()));
    assert!(b.client(key(1)).is_some());
}

#[test]
fn a_removed_exit_stops_before_its_user_is_gone_and_one_that_does_not_hear_is_reported() {
    let mut fleet = three_exits();
    let a = fleet.exits[0].directory.clone();
    let said = fleet_ok(&a, &["remove", "c", "--force"]);
    assert!(said.contains("c is removed from the fleet.\n"), "{said}");
    let is_removed =
        |store: &Option<StoreLink>| matches!(store, Some(StoreLink::Refused { is_removed: true, .. }));
    fleet.exits[2].wait("it must stop", |seen| is_removed(&seen.store).then_some(()));
    assert!(fleet.exits[0].seen(|seen| seen.removed.is_empty()));

    // The other one hears nothing.
    fleet.exits[1].stop_link("KILL");
    let said = fleet_ok(&a, &["remove", "b", "--force"]);
    assert!(
        said.contains("has not confirmed that it stops serving") && said.contains("for another 60 min"),
        "{said}"
    );
    let until = fleet.exits[0].wait("its name is known", |seen| {
        seen.removed.iter().find(|removed| removed.exit.as_str() == "b").map(|removed| removed.until)
    });
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    assert!(until.unwrap().abs_diff(now as i64 + 3_600) < 60, "{until:?}");
    // It hears of it later.
    fleet.exits[1].start_link();
    fleet.exits[1].wait("it must stop", |seen| is_removed(&seen.store).then_some(()));
    fleet.exits[0].wait("it has confirmed", |seen| seen.removed.is_empty().then_some(()));
}

#[test]
fn a_removed_exit_that_was_cut_off_learns_of_its_removal_and_its_user_can_do_nothing_else() {
    let fleet = Secure::start();
    let [a, other] = ["a", "b"].map(|name| fleet.directory.path().join(name));
    let ticket = fleet.ticket("b");
    fleet_ok(&other, &["join", ticket.trim()]);
    let mut exit = Exit::start(&other, "b").ready();
    fleet.first.store(&[client("anna", key(1)).into()]);
    exit.wait("the client is known", |seen| (seen.rows.len() == 1).then_some(()));
    fleet.first.wait("the exit is known", |seen| (seen.exits.len() == 2).then_some(()));
    exit.stop_link("KILL");

    let said = fleet_ok(&a, &["remove", "b", "--force"]);

    assert!(said.contains("has not confirmed that it stops serving"), "{said}");
    let listed = fleet_ok(&a, &["status"]);
    assert!(listed.contains("b     was removed and has not confirmed"), "{listed}");
    assert!(!listed.contains("authentication is off"), "{listed}");
    let role = || fleet.store.etcdctl_ok(&["role", "get", "warren-fleet-b"]);
    // Longer than other links take to look for users that must end.
    for _ in 0..25 {
        let rights = role();
        assert!(rights.contains("/warren/fleet/xr/b") && !rights.contains("prefix"), "{rights}");
        std::thread::sleep(Duration::from_secs(1));
    }
    assert!(!fleet.opens("b"), "it may still read the fleet");
    exit.start_link();
    exit.wait("it must stop", |seen| match &seen.store {
        Some(StoreLink::Refused { is_removed: true, .. }) => Some(()),
        _ => None,
    });
    // Once it has confirmed that, it needs its user no longer.
    let is_gone = || !fleet.store.etcdctl_ok(&["user", "list"]).contains("warren-fleet-b");
    wait_for("its user is removed", Duration::from_secs(40), || is_gone().then_some(()));
    assert!(!fleet_ok(&a, &["status"]).contains("was removed"));
    let refused = "the store refuses this exit's user; if this exit was removed from the fleet, run `warren fleet leave`";
    wait_for("its log says so", Duration::from_secs(10), || exit.log().contains(refused).then_some(()));
}

/// A small file system of its own, which the test can fill.
struct SmallDisk(std::path::PathBuf);

impl SmallDisk {
    fn mounted_at(path: &Path) -> Self {
        std::fs::create_dir_all(path).unwrap();
        let mounted = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=512k", "none"])
            .arg(path)
            .status()
            .unwrap();
        assert!(mounted.success());
        Self(path.to_owned())
    }

    fn fill(&self) {
        use std::io::Write as _;
        let mut file = std::fs::File::create(self.0.join("filler")).unwrap();
        while file.write_all(&[1; 512]).is_ok() {}
    }

    fn empty(&self) {
        std::fs::remove_file(self.0.join("filler")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_link_with_a_full_disk_starts_and_its_exit_hears_of_removed_clients() {
    let fleet = three_exits();
    let at = fleet.directory.path().join("d");
    let disk = SmallDisk::mounted_at(&at.join("state"));
    let mut exit = Exit::further(&fleet.exits[0], &at, "d", &[]).ready();
    fleet.exits[0].store(&[client("anna", key(1)).into()]);
    exit.wait("the client is known", |seen| (seen.rows.len() == 1).then_some(()));
    exit.stop_link("KILL");
    disk.fill();
    let full = std::fs::write(at.join("state/probe"), [1; 4096]);
    assert!(full.is_err(), "the control: nothing can be written");
    fleet.exits[0].store(&removal("anna", key(1)));

    exit.start_link();

    exit.wait("the removal is known", |seen| {
        seen.rows.iter().all(|(id, _)| !matches!(id, warren_session::clients::RowId::Client(_))).then_some(())
    });
}

#[test]
fn a_removal_is_confirmed_once_the_disk_has_it_and_the_exit_hears_of_it_again_without_the_store() {
    let fleet = three_exits();
    let at = fleet.directory.path().join("d");
    let disk = SmallDisk::mounted_at(&at.join("state"));
    let mut exit = Exit::further(&fleet.exits[0], &at, "d", &[]).ready();
    wait_for("its copy is saved", Duration::from_secs(5), || has_copy(&exit).then_some(()));
    fleet.exits[0].wait("its key is stored", |seen| (seen.exits.len() == 4).then_some(()));
    exit.stop_link("KILL");
    disk.fill();
    let must_stop = |exit: &Exit| {
        exit.wait("it must stop", |seen| match &seen.store {
            Some(StoreLink::Refused { is_removed: true, .. }) => Some(()),
            _ => None,
        });
    };
    let said = std::thread::scope(|scope| {
        let removal = scope.spawn(|| fleet_ok(&fleet.exits[0].directory, &["remove", "d", "--force"]));
        let removed = || fleet.store.etcdctl_ok(&["get", "/warren/fleet/xr/d"]);
        wait_for("it is out", Duration::from_secs(5), || (!removed().is_empty()).then_some(()));
        exit.start_link();
        must_stop(&exit);
        removal.join().unwrap()
    });

    // The command has waited for eight seconds.
    assert!(said.contains("has not confirmed that it stops serving"), "{said}");
    assert!(exit.log().contains("make room on the disk"), "the control: {}", exit.log());
    std::thread::sleep(Duration::from_secs(5));
    let is_known = || fleet.exits[0].seen(|seen| seen.removed.is_empty());
    assert!(!is_known(), "it has confirmed, and the disk does not have it");
    disk.empty();
    wait_for("it has confirmed", Duration::from_secs(20), || is_known().then_some(()));

    exit.stop_link("KILL");
    fleet.store.signal_all("STOP");
    exit.seen(|seen| seen.store = None);
    exit.start_link();
    must_stop(&exit);
    fleet.store.signal_all("CONT");
}

/// Sets up an exit that belongs to no fleet. Each client is given as the lines of its table, without a key.
pub(crate) fn set_up_exit(at: &Path, clients: &[&str]) {
    std::fs::create_dir_all(at.join("config")).unwrap();
    std::fs::create_dir_all(at.join("state/exit")).unwrap();
    let exit = "[exit]\nprivate_key_file = \"exit.key\"\nendpoint = \"d.example.net\"\n[addresses]\nipv4 = \"10.0.0.0/16\"\n";
    std::fs::write(at.join("config/exit.toml"), exit).unwrap();
    std::fs::write(at.join("config/exit.key"), format!("{}\n", key(8))).unwrap();
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(at.join("config/exit.key"), private).unwrap();
    let table = |(number, lines): (usize, &&str)| {
        let (key, created) = (key(u8::try_from(number).unwrap() + 100), "2026-01-01T00:00:00Z");
        format!("[[client]]\npublic_key = \"{key}\"\ncreated = \"{created}\"\n{lines}\n")
    };
    let clients: String = clients.iter().enumerate().map(table).collect();
    std::fs::write(at.join("state/exit/clients.toml"), clients).unwrap();
}

#[test]
fn an_exit_with_clients_of_its_own_joins_only_if_the_operator_says_so() {
    let fleet = three_exits();
    let at = fleet.directory.path().join("d");
    set_up_exit(&at, &["name = \"own\""]);
    let ticket = fleet_ok(&fleet.exits[0].directory, &["ticket", "d"]);

    let refused = fleet_fails(&at, &["join", ticket.trim()]);

    assert!(refused.contains("this exit has 1 client and 0 open invitations of its own"), "{refused}");
    assert!(!at.join("config/fleet.toml").exists() && !at.join("config/fleet").exists());
    // The control: the ticket is still good.
    fleet_ok(&at, &["join", ticket.trim(), "--replace-clients"]);
    // The operator repeats the command, as after a failure in setting up the exit.
    assert!(fleet_ok(&at, &["join", ticket.trim()]).contains("This exit is d"));
    let listed = fleet_ok(&fleet.exits[0].directory, &["status"]);
    assert!(listed.contains("d     has joined") && listed.contains("user authentication is off"), "{listed}");
}

#[test]
fn an_exit_that_is_removed_while_a_ticket_for_its_name_is_made_does_not_get_its_rights_back() {
    let mut fleet = three_exits();
    let a = fleet.exits[0].directory.clone();
    fleet.exits[1].stop_link("KILL");
    // While the earlier user is being removed, the new ticket waits.
    let put =
        |key: &str, value: &str| fleet.store.etcdctl_ok(&["put", &format!("/warren/fleet/{key}"), value]);
    put("us/b", "{\"ticket\":\"\",\"is_ending\":true}");
    let leases = || fleet.store.etcdctl_ok(&["lease", "list"]).lines().count();
    let of_links = leases();
    let output = std::thread::scope(|scope| {
        let making = scope.spawn(|| super::fleet(&a, &["ticket", "b"]));
        // The command first checks the name. Then it makes the lease of the ticket, and waits.
        wait_for("it waits", Duration::from_secs(5), || (leases() > of_links).then_some(()));
        // What `remove` writes.
        put("xr/b", "{\"until\":null,\"has_stopped\":false}");
        fleet.store.etcdctl_ok(&["del", "/warren/fleet/mb/b"]);
        put("us/b", "{\"ticket\":\"\"}");
        making.join().unwrap()
    });
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && said.contains("b was removed and has not confirmed"), "{said}");
    assert_eq!(fleet.store.etcdctl_ok(&["get", "--prefix", "/warren/fleet/tk/"]), "");
    // The control: once it has stopped, its name is free.
    fleet_ok(&a, &["remove", "b", "--stopped"]);
    fleet_ok(&a, &["ticket", "b"]);
}

#[test]
fn a_ticket_that_may_not_be_made_leaves_the_mark_of_an_earlier_user_and_the_earlier_ticket() {
    let mut fleet = Secure::start();
    let directory = fleet.directory.path().to_owned();
    let at = |name: &str| directory.join(name);
    for name in ["b", "c"] {
        fleet_ok(&at(name), &["join", fleet.ticket(name).trim()]);
    }
    let earlier = fleet.ticket("d");
    // While the link of a does not run, nobody removes the user of an exit that has left.
    fleet.first.stop_link("TERM");
    fleet_ok(&at("b"), &["leave", "--clients", &at("left.toml").display().to_string()]);
    for name in ["b", "d"] {
        let file = |end: &str| fleet.store.directory.path().join(format!("warren-fleet-{name}.{end}"));
        let [certificate, key] = ["pem", "key"].map(|end| file(end).display().to_string());
        let refused = fleet_fails(&at("c"), &["ticket", name, "--certificate", &certificate, "--key", &key]);
        assert!(refused.contains("use --admin to name a user who may make users"), "{refused}");
    }
    assert!(fleet.opens("b"), "the control");
    let listed = fleet_ok(&at("c"), &["status"]);
    assert!(listed.contains("is not in the fleet, but its etcd user still exists"), "{listed}");
    fleet_ok(&at("d"), &["join", earlier.trim()]);
    fleet.first.start_link();
    wait_for("the user is removed", Duration::from_secs(40), || (!fleet.opens("b")).then_some(()));
}

#[test]
fn a_removal_says_what_has_become_of_the_user() {
    let fleet = Secure::start();
    let a = fleet.first.directory.clone();
    let at = |name: &str| fleet.directory.path().join(name);
    // Somebody has deleted the exit's entry.
    fleet_ok(&at("b"), &["join", fleet.ticket("b").trim()]);
    fleet.store.etcdctl_ok(&["del", "/warren/fleet/mb/b"]);
    let said = fleet_ok(&a, &["remove", "b"]);
    assert!(said.contains("b is not in the fleet. Any tickets and etcd user that it still had"), "{said}");
    assert!(!fleet.opens("b"), "the user is removed, as the command says");

    // While the command waits for an exit that was removed, a host joins under its name.
    fleet_ok(&at("c"), &["join", fleet.ticket("c").trim()]);
    let mut exit = Exit::start(&at("c"), "c").ready();
    fleet.first.wait("the exit is known", |seen| (seen.exits.len() == 2).then_some(()));
    exit.stop_link("KILL");
    let get =
        |key: &str| fleet.store.etcdctl_ok(&["get", &format!("/warren/fleet/{key}"), "--print-value-only"]);
    let put = |key: &str, value: &str| {
        fleet.store.etcdctl_ok(&["put", &format!("/warren/fleet/{key}"), value.trim()]);
    };
    let (member, grant) = (get("mb/c"), get("us/c"));
    let said = std::thread::scope(|scope| {
        let removing = scope.spawn(|| fleet_ok(&a, &["remove", "c", "--force"]));
        wait_for("it is out", Duration::from_secs(5), || get("xr/c").contains("has_stopped").then_some(()));
        wait_for("its user is confined", Duration::from_secs(5), || {
            (!fleet.store.etcdctl_ok(&["role", "get", "warren-fleet-c"]).contains("prefix")).then_some(())
        });
        // What `ticket` and `join` write.
        put("us/c", &grant);
        put("mb/c", &member);
        fleet.store.etcdctl_ok(&["del", "/warren/fleet/xr/c"]);
        removing.join().unwrap()
    });
    assert!(said.contains("c is removed from the fleet. In the meantime, a host has joined"), "{said}");
    assert!(fleet.store.etcdctl_ok(&["user", "list"]).contains("warren-fleet-c"), "its user stays");
}

#[test]
fn a_removed_exit_that_hears_nothing_counts_as_stopped_only_if_the_operator_says_so() {
    let mut fleet = three_exits();
    let a = fleet.exits[0].directory.clone();
    fleet.exits[1].stop_link("KILL");
    let refused = fleet_fails(&a, &["remove", "b", "--stopped"]);
    assert!(refused.contains("serves clients now"), "{refused}");
    assert!(fleet_fails(&a, &["remove", "b", "--stopped", "--force"]).contains("cannot be used with"));
    let unconfirmed = "has not confirmed that it stops serving";
    // An operator repeats a command that has failed or was interrupted.
    for state in ["b is removed from the fleet", "b is not in the fleet"] {
        let said = fleet_ok(&a, &["remove", "b", "--force"]);
        assert!(said.contains(state) && said.contains(unconfirmed), "{said}");
        assert!(said.contains("`warren fleet remove b --stopped`"), "{said}");
    }
    fleet.exits[0].wait("it may still serve", |seen| (seen.removed.len() == 1).then_some(()));
    let said = fleet_ok(&a, &["remove", "b", "--stopped"]);
    assert!(said.contains("b is not in the fleet, and counts as stopped from now on."), "{said}");
    fleet.exits[0].wait("it counts as stopped", |seen| seen.removed.is_empty().then_some(()));

    // A member whose value cannot be read may serve.
    fleet.exits[2].stop_link("TERM");
    fleet.store.etcdctl_ok(&["put", "/warren/fleet/mb/c", "junk"]);
    let said = fleet_ok(&a, &["remove", "c", "--force"]);
    assert!(said.contains(unconfirmed) && said.contains("for good"), "{said}");
}

#[test]
fn a_host_whose_name_another_host_has_taken_stops_when_it_hears_of_that() {
    let mut fleet = three_exits();
    fleet.exits[0].wait("all are known", |seen| (seen.exits.len() == 3).then_some(()));
    // Host c is away while it is removed and another host joins by its name.
    fleet.exits[2].stop_link("KILL");
    let first = fleet.exits[0].directory.clone();
    fleet_ok(&first, &["remove", "c", "--force"]);
    let refused = fleet_fails(&first, &["ticket", "c"]);
    assert!(refused.contains("c was removed and has not confirmed that it stops"), "{refused}");
    fleet_ok(&first, &["remove", "c", "--stopped"]);
    let other = fleet.directory.path().join("e");
    fleet_ok(&other, &["join", fleet_ok(&first, &["ticket", "c"]).trim()]);
    // The other host's link has not written anything yet.
    fleet.exits[2].start_link();
    fleet.exits[2].wait("it hears of that", |seen| match &seen.store {
        Some(StoreLink::Refused { reason, is_removed: true })
            if reason.contains("another host has joined") =>
        {
            Some(())
        }
        _ => None,
    });
    let earlier = fleet.exits[2].directory.clone();
    for arguments in [&["recover"][..], &["recover", "--force"]] {
        let refused = fleet_fails(&earlier, arguments);
        assert!(refused.contains("another host has joined"), "{refused}");
    }
    let again = Exit::start(&other, "c").ready();
    again.store(&[client("anna", key(1)).into()]);
    let left = fleet.directory.path().join("left.toml").display().to_string();
    let said = fleet_ok(&earlier, &["leave", "--clients", &left]);
    assert!(said.contains("Another host has joined the fleet under this name"), "{said}");
    again.store(&[client("bert", key(2)).into()]);
    assert!(matches!(again.seen(|seen| seen.store.clone()), Some(StoreLink::Reachable)), "the control");
}

#[test]
fn a_host_that_was_removed_before_its_link_ran_does_not_take_part_under_another_hosts_number() {
    let fleet = three_exits();
    let first = &fleet.exits[0].directory;
    fleet.exits[0].store(&[client("anna", key(1)).into()]);
    let at = |name: &str| fleet.directory.path().join(name);
    let join = |host: &str| {
        let ticket = fleet_ok(first, &["ticket", "d"]);
        fleet_ok(&at(host), &["join", ticket.trim()]);
    };
    join("x");
    let said = fleet_ok(first, &["remove", "d"]);
    assert!(said.contains("d is removed from the fleet.\n"), "it was never linked: {said}");
    join("y");

    let earlier = Exit::start(&at("x"), "d");
    earlier.wait("it hears of that", |seen| match &seen.store {
        Some(StoreLink::Refused { reason, is_removed: true })
            if reason.contains("another host has joined") =>
        {
            Some(())
        }
        _ => None,
    });

    let later = Exit::start(&at("y"), "d").ready();
    assert!(later.client(key(1)).is_some(), "the control");
    assert_eq!(earlier.seen(|seen| (seen.wholes, seen.rows.len())), (0, 0));
    assert_eq!(later.seen(|seen| seen.store.clone()), Some(StoreLink::Reachable));
}

#[test]
fn a_name_that_is_used_again_makes_its_earlier_certificates_valid_and_the_operator_is_told() {
    let fleet = Secure::start();
    let (a, b) = (&fleet.first.directory, fleet.directory.path().join("b"));
    let warning = |name: &str| {
        let (certificate, key) = fleet.store.certificate(&format!("warren-fleet-{name}"));
        let [certificate, key] = [certificate, key].map(|path| path.display().to_string());
        let output = super::fleet(a, &["ticket", name, "--certificate", &certificate, "--key", &key]);
        assert!(output.status.success());
        let said = String::from_utf8(output.stderr).unwrap();
        (String::from_utf8(output.stdout).unwrap(), said.contains("opens the store again"))
    };
    let (ticket, is_told) = warning("b");
    assert!(!is_told, "the control");
    // The next ticket has another certificate and key.
    for end in ["pem", "key"] {
        let file = |name: &str| fleet.store.directory.path().join(format!("warren-fleet-{name}.{end}"));
        std::fs::copy(file("b"), file("earlier")).unwrap();
    }
    fleet_ok(&b, &["join", ticket.trim()]);
    fleet_ok(a, &["remove", "b"]);
    assert!(!fleet.opens("earlier"), "the certificate of a removed exit is worthless");
    let (_, is_told) = warning("b");
    assert!(is_told && fleet.opens("b") && fleet.opens("earlier"));
    // A certificate of a ticket that was voided is like that of an exit that was removed.
    let (_, is_told) = warning("b");
    assert!(is_told);
}

#[test]
fn a_fleet_without_exits_is_replaced_only_if_the_operator_asks() {
    let _turn = my_turn();
    let store = Store::start();
    let directory = tempfile::tempdir().unwrap();
    let (at, urls) = (|name: &str| directory.path().join(name), store.urls());
    let first = Exit::first(&at("a"), "a", &["--store", &urls]).ready();
    first.store(&[client("anna", key(1)).into()]);
    let clients = at("a/clients.toml").display().to_string();
    let init = ["init", "--exit", "x", "--clients", &clients, "--pool", "10.0.0.0/16", "--store", &urls];
    let replacing = [&init[..], &["--replace"]].concat();
    assert!(fleet_fails(&at("x"), &replacing).contains("still has an exit"));
    let left = at("left.toml").display().to_string();
    let said = fleet_ok(&at("a"), &["leave", "--clients", &left]);
    assert!(said.contains("It was the last exit") && said.contains("--replace"), "{said}");
    let refused = fleet_fails(&at("x"), &init);
    assert!(refused.contains("has no exit any more") && refused.contains("--replace"), "{refused}");
    assert!(store.etcdctl_ok(&["get", "--prefix", "/warren/fleet/cl/"]).contains("anna"), "the control");
    fleet_ok(&at("x"), &replacing);
    assert!(!store.etcdctl_ok(&["get", "--prefix", "/warren/fleet/"]).contains("anna"));
    assert!(fleet_ok(&at("x"), &["status"]).contains("x     has joined"));
}
