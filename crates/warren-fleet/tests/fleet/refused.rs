//! Commands with wrong keys, certificates or rosters: each is refused with one sentence, before anything has changed.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use warren_fleet_link::FleetMessage;
use warren_session::roster::FleetKey;

use crate::commands::Secure;
use crate::support::certificates::{make_authority, make_certificate};
use crate::support::exit::{Exit, key};
use crate::support::{fleet_at_once, fleet_fails, fleet_ok, wait_for};
use crate::{Fleet, three_exits};

/// What a refused command has said: one sentence, written as `warren` writes errors.
fn refused(directory: &Path, arguments: &[&str]) -> String {
    let said = fleet_fails(directory, arguments);
    assert!(said.starts_with("warren: ") && said.lines().count() == 1 && !said.contains('\u{1b}'), "{said}");
    said
}

impl Fleet {
    fn path(&self, name: &str) -> String {
        self.directory.path().join(name).display().to_string()
    }

    /// Signs a roster with an exit in it, and publishes it.
    fn admit(&self, exit: &str) {
        let a = &self.exits[0].directory;
        let (roster, fleet_key) = (self.path("roster"), self.path("fleet.key"));
        let (public_key, endpoint) = (key(exit.as_bytes()[0]).to_string(), format!("{exit}.example.net:443"));
        let sign = ["sign", &roster, "--fleet-key", &fleet_key, "--admit", exit];
        fleet_ok(a, &[&sign[..], &["--public-key", &public_key, "--endpoint", &endpoint]].concat());
        fleet_ok(a, &["publish", &roster]);
    }

    fn is_member(&self, exit: &str) -> bool {
        let found = |kind: &str| {
            let name = format!("/warren/fleet/{kind}/{exit}");
            self.store.etcdctl_ok(&["get", &name, "--keys-only"]).contains(&name)
        };
        assert!(found("mb") != found("xr"));
        found("mb")
    }
}

#[test]
fn a_remove_with_a_wrong_key_or_a_damaged_roster_leaves_the_exit_in_the_fleet() {
    let fleet = three_exits();
    let a = &fleet.exits[0].directory;
    fleet.admit("b");
    fleet.admit("c");
    let other = fleet.path("other.key");
    let public_key = key(b'x').to_string();
    let sign = ["sign", &fleet.path("other"), "--fleet-key", &other, "--admit", "x", "--endpoint", "x:443"];
    fleet_ok(a, &[&sign[..], &["--public-key", &public_key]].concat());

    let right = fleet.path("fleet.key");
    let remove = |fleet_key| ["remove", "b", "--force", "--fleet-key", fleet_key];
    assert!(refused(a, &remove(&other)).contains("take the right fleet.key"));
    assert!(fleet.is_member("b"));
    let roster = std::fs::read_to_string(fleet.path("roster")).unwrap();
    fleet.store.etcdctl_ok(&["put", "/warren/fleet/ro", "junk"]);
    assert!(refused(a, &remove(&right)).contains("publish"));
    assert!(fleet.is_member("b"));
    // Without a fleet key, the command would not change the roster.
    let said = fleet_ok(a, &["remove", "c", "--force"]);
    assert!(said.contains("c is removed") && said.contains("the roster in the store is damaged"), "{said}");
    assert!(said.contains("`warren fleet remove c --fleet-key FILE`") && !fleet.is_member("c"), "{said}");
    assert!(refused(a, &["remove", "x", "--force"]).contains("no exit x"));

    // An exit puts its own roster in the place of the damaged one.
    std::fs::create_dir_all(a.join("state/exit")).unwrap();
    std::fs::write(a.join("state/exit/roster"), roster).unwrap();
    fleet_ok(a, &["publish", &a.join("state/exit/roster").display().to_string()]);
    // The control: the right key.
    let said = fleet_ok(a, &remove(&right));
    assert!(said.contains("Roster 3 has c;") && !fleet.is_member("b"), "{said}");
}

#[test]
fn the_key_of_an_exit_or_a_key_that_others_may_use_signs_nothing() {
    let fleet = three_exits();
    let a = &fleet.exits[0].directory;
    // The file of an exit's key has the same form as a fleet key's. The store has its public half for the exit x.
    let exit_key = FleetKey::generate().unwrap();
    let (file, public_key) = (fleet.path("exit.key"), exit_key.public().to_string());
    std::fs::write(&file, exit_key.to_line().as_bytes()).unwrap();
    std::fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    let member = format!("{{\"key\":\"{public_key}\",\"endpoints\":[\"x.example.net:443\"]}}");
    fleet.store.etcdctl_ok(&["put", "/warren/fleet/mb/x", &member]);

    let admit = |fleet_key: &str| {
        let words = ["admit", "x", "--public-key", &public_key, "--fleet-key", fleet_key];
        words.map(str::to_owned)
    };
    let words = |words: &[String]| words.iter().map(String::as_str).collect::<Vec<_>>().join("\n");
    let fails = |fleet_key: &str| refused(a, &words(&admit(fleet_key)).split('\n').collect::<Vec<_>>());
    assert!(fails(&file).contains("has the key of the exit x, not a fleet key"));
    // Without a store, the roster itself says whose key it is.
    let roster = fleet.path("own");
    let sign = ["sign", &roster, "--fleet-key", &file, "--admit", "x", "--endpoint", "x.example.net:443"];
    let said = refused(a, &[&sign[..], &["--public-key", &public_key]].concat());
    assert!(said.contains("the fleet key is the key of the exit x"), "{said}");
    assert!(!Path::new(&roster).exists());

    fleet.admit("b");
    let right = fleet.path("fleet.key");
    let said = refused(a, &["rotate-key", "--fleet-key", &right, "--new-key", &file]);
    assert!(said.contains("has the key of the exit x, not a fleet key"), "{said}");
    std::fs::set_permissions(&right, Permissions::from_mode(0o644)).unwrap();
    assert!(fails(&right).contains("run `chmod 600 "));
    // The control: the right key, which only its owner may use.
    std::fs::set_permissions(&right, Permissions::from_mode(0o400)).unwrap();
    let weightless = [admit(&right).to_vec(), vec!["--weight".to_owned(), "0".to_owned()]].concat();
    let said = refused(a, &words(&weightless).split('\n').collect::<Vec<_>>());
    assert_eq!(said.matches("must be 1 to 1000").count(), 1, "{said}");
    let said = fleet_ok(a, &words(&admit(&right)).split('\n').collect::<Vec<_>>());
    assert!(said.contains("Roster 2 has b, x;"), "{said}");
}

#[test]
fn a_certificate_that_the_store_would_refuse_makes_no_ticket_and_no_user() {
    let fleet = Secure::start();
    let a = &fleet.first.directory;
    let ticket = |certificate: &Path, key: &Path| {
        let [certificate, key] = [certificate, key].map(|path| path.display().to_string());
        refused(a, &["ticket", "b", "--certificate", &certificate, "--key", &key])
    };
    let (own, own_key) = fleet.store.certificate("warren-fleet-b");
    let (_, other_key) = fleet.store.certificate("warren-fleet-c");
    let elsewhere = fleet.directory.path();
    make_authority(elsewhere);
    make_certificate(elsewhere, ("b", "warren-fleet-b"), 2, &["127.0.0.1".to_owned()]);

    let said = ticket(&own, &other_key);
    assert!(
        said.contains("warren-fleet-c.key is not the private key of") && said.contains("fleet-b.pem"),
        "{said}"
    );
    let said = ticket(&own_key, &own);
    assert!(said.contains("warren-fleet-b.key does not have a certificate in PEM"), "{said}");
    let said = ticket(&elsewhere.join("b.pem"), &elsewhere.join("b.key"));
    assert!(said.contains("it refuses") && said.contains("b.pem"), "{said}");
    let said = ticket(Path::new("/dev/zero"), &own_key);
    assert!(said.contains("/dev/zero has more than"), "{said}");
    assert!(refused(a, &["publish", "/dev/zero"]).contains("/dev/zero has more than"));
    assert!(!fleet.store.etcdctl_ok(&["user", "list"]).contains("warren-fleet-b"));
    assert_eq!(fleet.store.etcdctl_ok(&["get", "--prefix", "/warren/fleet/tk/", "--keys-only"]).trim(), "");

    // Other commands name the files too.
    let config = a.join("config/fleet.toml");
    let right = std::fs::read_to_string(&config).unwrap();
    let ca = fleet.store.ca().display().to_string();
    let other_ca = elsewhere.join("ca.pem").display().to_string();
    std::fs::write(&config, right.replace(&ca, &other_ca)).unwrap();
    let said = refused(a, &["status"]);
    assert!(said.contains(&format!("its certificate is not signed by {other_ca}")), "{said}");
    // The controls.
    std::fs::write(&config, right).unwrap();
    fleet.ticket("b");
    assert!(fleet.opens("b"));
}

#[test]
fn a_roster_that_exits_would_refuse_is_not_signed_until_an_exit_has_put_its_own_back() {
    let fleet = three_exits();
    let a = &fleet.exits[0].directory;
    fleet.admit("a");
    fleet.admit("b");
    let reported = || fleet.store.etcdctl_ok(&["get", "/warren/fleet/ex/c"]).contains("\"roster\":2");
    wait_for("the exits report their roster", Duration::from_secs(10), || reported().then_some(()));
    let newest = std::fs::read_to_string(fleet.path("roster")).unwrap();
    fleet.store.etcdctl_ok(&["del", "/warren/fleet/ro"]);

    // A machine without an exit.
    let (mine, right) = (fleet.directory.path().join("mine"), fleet.path("fleet.key"));
    std::fs::create_dir_all(mine.join("config")).unwrap();
    std::fs::copy(a.join("config/fleet.toml"), mine.join("config/fleet.toml")).unwrap();
    let public_key = key(b'c').to_string();
    let admit = ["admit", "c", "--fleet-key", &right, "--public-key", &public_key];
    let said = refused(&mine, &admit);
    assert!(said.contains("has roster 2, which the store has lost") && said.contains("publish"), "{said}");
    assert_eq!(fleet.store.etcdctl_ok(&["get", "/warren/fleet/ro"]), "");
    // The control: an exit puts its roster back.
    std::fs::create_dir_all(a.join("state/exit")).unwrap();
    std::fs::write(a.join("state/exit/roster"), newest).unwrap();
    fleet_ok(a, &["publish", &a.join("state/exit/roster").display().to_string()]);
    assert!(fleet_ok(&mine, &admit).contains("Roster 3 has a, b, c;"));
}

#[test]
fn an_exit_with_a_false_claim_prevents_neither_its_removal_nor_that_of_others_once_it_is_out() {
    let mut fleet = three_exits();
    let a = fleet.exits[0].directory.clone();
    ["a", "b", "c"].iter().for_each(|exit| fleet.admit(exit));
    let get = ["get", "/warren/fleet/ex/c", "--print-value-only"];
    let mut heartbeat: serde_json::Value = serde_json::from_str(&fleet.store.etcdctl_ok(&get)).unwrap();
    heartbeat["roster"] = 99.into();
    let (roster, right) = (fleet.path("roster"), fleet.path("fleet.key"));
    fleet.exits.iter_mut().skip(1).for_each(|exit| exit.stop_link("TERM"));
    let claims = |exit: &str| {
        fleet.store.etcdctl_ok(&["put", &format!("/warren/fleet/ex/{exit}"), &heartbeat.to_string()]);
    };
    let remove = ["remove", "b", "--force", "--fleet-key", &right];
    claims("c");
    let said = refused(&a, &remove);
    assert!(said.contains("has roster 99") && said.contains("`etcdctl del /warren/fleet/ex/c`"), "{said}");
    assert!(fleet.is_member("b"));
    // A roster that leaves the exit out.
    fleet_ok(&a, &["sign", &roster, "--fleet-key", &right, "--remove", "c"]);
    assert!(fleet_ok(&a, &["publish", &roster]).contains("Roster 4 has a, b;"));
    // The exit is out of the fleet, and claims the same.
    fleet.store.etcdctl_ok(&["del", "/warren/fleet/mb/c"]);
    claims("b");
    let said = fleet_ok(&a, &remove);
    assert!(said.contains("Roster 5 has a;") && !fleet.is_member("b"), "{said}");
}

#[test]
fn a_removal_that_fails_halfway_still_says_that_the_exit_may_serve() {
    let mut fleet = three_exits();
    let a = fleet.exits[0].directory.clone();
    fleet.admit("b");
    let right = fleet.path("fleet.key");
    let remove = ["remove", "b", "--force", "--fleet-key", &right];
    fleet.exits[1].stop_link("KILL");
    let output = std::thread::scope(|scope| {
        let removal = scope.spawn(|| fleet_at_once(&[(&a, remove.to_vec())]).remove(0));
        let removed = || fleet.store.etcdctl_ok(&["get", "/warren/fleet/xr/b"]);
        wait_for("it is out", Duration::from_secs(5), || (!removed().is_empty()).then_some(()));
        // While the command waits for b, somebody else signs a roster.
        fleet.admit("c");
        removal.join().unwrap()
    });
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && said.contains("somebody else has just signed"), "{said}");
    assert!(said.contains("has not confirmed that it stops serving") && said.contains("--stopped"), "{said}");
    let said = fleet_ok(&a, &remove);
    assert!(said.contains("has not confirmed that it stops serving"), "{said}");
    assert!(said.contains("Roster 3 has c;"), "{said}");
}

#[test]
fn an_exit_learns_why_its_link_does_not_serve_it() {
    let mut fleet = three_exits();
    let (mut other, c) = (fleet.exits.pop().unwrap(), fleet.directory.path().join("c"));
    other.stop_link("TERM");
    let wrong = Exit::start(&c, "d");
    let why = "the exit is called d in exit.toml and c in fleet.toml";
    wrong.wait("it is told", |seen| {
        let is_told = |message: &FleetMessage| matches!(message, FleetMessage::Refused { reason } if reason.contains(why));
        seen.order.iter().any(is_told).then_some(())
    });
    assert_eq!(wrong.log().matches(why).count(), 1);
    assert!(!wrong.log().contains("the exit is served now"));
    // The exit has the right name now. Its own link ends at once, because the first one still runs.
    let right = Exit::start(&c, "c").ready();
    wait_for("the log says so", Duration::from_secs(10), || {
        right.log().contains("the exit is served now").then_some(())
    });
}
