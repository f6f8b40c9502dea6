//! `warren fleet join --bring-clients`: a second exit that has clients already joins a fleet, and nobody enrols again.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use warren_session::clients::{Client, ClientRegistry, RowChange, RowId};
use warren_session::exit::{EndReason, ExitAction, ExitSessions, SessionConfig, WholeCopy};
use warren_session::message::{Hello, Message, encode};
use warren_session::{PROTOCOL_VERSION, PublicKey};

use crate::commands::set_up_exit;
use crate::support::exit::{Exit, key, pools};
use crate::support::{fleet_dies, fleet_fails, fleet_ok, wait_for};
use crate::{client, removal, three_exits};

/// The clients of the exit that joins. `set_up_exit` gives them the keys from 100 on.
const OWN: [&str; 3] = [
    "name = \"own\"\nleased_ipv4 = \"10.0.7.7\"\nprefixes = [\"192.168.7.0/24\"]",
    "name = \"late\"\nleased_ipv4 = \"10.0.0.5\"",
    "name = \"off\"\ndisabled = true",
];

/// Adds a removed key and an open invitation to the exit's clients.
fn add_removed_and_invited(at: &Path) {
    let path = at.join("state/exit/clients.toml");
    let removed = format!(
        "[[removed]]\nname = \"gone\"\npublic_key = \"{}\"\nremoved = \"2026-01-01T00:00:00Z\"\n",
        key(90)
    );
    let token = serde_json::to_value(crate::token(9)).unwrap();
    let invitation = format!(
        "[[invitation]]\nname = \"guest\"\ntoken_sha256 = {token}\nexpires = \"2036-01-01T00:00:00Z\"\n"
    );
    std::fs::write(&path, std::fs::read_to_string(&path).unwrap() + &removed + &invitation).unwrap();
}

/// The exit's clients on its own disk.
fn registry_of(at: &Path) -> ClientRegistry {
    let text = std::fs::read_to_string(at.join("state/exit/clients.toml")).unwrap();
    toml::from_str(&text).unwrap()
}

/// The reasons for which the sessions of these clients end when the exit gets a whole copy of the store.
fn ends(registry: ClientRegistry, keys: &[PublicKey], rows: &BTreeMap<RowId, RowChange>) -> Vec<EndReason> {
    let now = Instant::now();
    let settings = SessionConfig { ipv4: pools().ipv4, ..SessionConfig::default() };
    let entropy = Box::new(|bytes: &mut [u8]| bytes.fill(7));
    let mut exit = ExitSessions::new(settings, registry, now, SystemTime::now(), entropy).unwrap();
    for (number, key) in (0_u8..).zip(keys) {
        let hello = Message::Hello(Hello {
            version: PROTOCOL_VERSION,
            connections_wanted: 1,
            nonce: vec![number; 16],
            has_other_exit: Some(false),
            ..Hello::default()
        });
        exit.connected(now, number.into(), *key, [192, 0, 2, 0].into());
        exit.received(now, number.into(), &encode(&hello));
    }
    while exit.poll_action().is_some() {}
    assert_eq!(exit.sessions().count(), keys.len(), "all are connected");
    let mut whole = WholeCopy::default();
    whole.add(&exit, rows.values().cloned().collect()).unwrap();
    assert_eq!(exit.take_whole(now, whole).len(), 0, "every client fits");
    let actions = std::iter::from_fn(|| exit.poll_action());
    actions
        .filter_map(|action| match action {
            ExitAction::End { reason, .. } => Some(reason),
            _ => None,
        })
        .collect()
}

#[test]
fn an_exit_brings_its_clients_and_no_session_ends_for_good() {
    let fleet = three_exits();
    let (first, at) = (&fleet.exits[0], fleet.directory.path().join("d"));
    first.store(&[Client { leased_ipv4: Some([10, 0, 0, 5].into()), ..client("anna", key(1)) }.into()]);
    set_up_exit(&at, &OWN);
    add_removed_and_invited(&at);
    let own = registry_of(&at);
    let ticket = fleet_ok(&first.directory, &["ticket", "d"]);

    let said = fleet_ok(&at, &["join", ticket.trim(), "--bring-clients"]);

    assert!(said.contains("The fleet has its 3 clients and 1 open invitation now."), "{said}");
    // Both exits have all clients. Dates and free sticky addresses are kept.
    let joined = Exit::start(&at, "d").ready();
    for exit in [first, &joined] {
        let rows = exit.wait("all are known", |seen| (seen.rows.len() == 6).then(|| seen.rows.clone()));
        let all = ClientRegistry::from_rows(rows.into_values()).unwrap();
        let names: Vec<&str> = all.iter().map(|client| client.name.as_str()).collect();
        assert_eq!(names, ["anna", "late", "off", "own"]);
        assert_eq!(all.by_name("own"), own.by_name("own"));
        assert_eq!(all.by_name("late").unwrap().leased_ipv4, None, "anna has it in the fleet");
        assert!(all.by_name("off").unwrap().disabled && !all.by_name("own").unwrap().disabled);
        assert!(all.is_invited("guest", SystemTime::now()));
        assert!(all.removed_after(None).any(|removed| removed.public_key == key(90)));
    }
    // Running clients stay, or reconnect by themselves.
    let keys = ["own", "late"].map(|name| own.by_name(name).unwrap().public_key);
    let rows = joined.seen(|seen| seen.rows.clone());
    assert_eq!(ends(own.clone(), &keys, &rows), [EndReason::Changed]);
    // The control: an exit that does not bring its clients strands them.
    let others = rows.into_iter().filter(|(_, row)| *row == client_of("anna", &fleet.exits[0])).collect();
    assert_eq!(ends(own, &keys, &others), [EndReason::Revoked; 2]);

    // The command is repeated once the link runs, and changes nothing. A client that was removed stays out.
    joined.store(&removal("own", keys[0]));
    assert!(fleet_ok(&at, &["join", ticket.trim(), "--bring-clients"]).contains("This exit is d"));
    wait_for("the removal is known", Duration::from_secs(5), || {
        first.client(keys[0]).is_none().then_some(())
    });
}

fn client_of(name: &str, exit: &Exit) -> RowChange {
    let is_named = |row: &RowChange| matches!(row, RowChange::Client { client: Some(client), .. } if client.name == name);
    exit.seen(|seen| seen.rows.values().find(|row| is_named(row)).cloned()).unwrap()
}

#[test]
fn a_collision_changes_nothing_and_the_ticket_is_still_good() {
    let fleet = three_exits();
    let (first, at) = (&fleet.exits[0], fleet.directory.path().join("d"));
    first.store(&[
        Client { prefixes: vec!["192.168.0.0/16".parse().unwrap()], ..client("off", key(1)) }.into()
    ]);
    set_up_exit(&at, &OWN);
    let ticket = fleet_ok(&first.directory, &["ticket", "d"]);
    let before = fleet.store.etcdctl_ok(&["get", "--prefix", "/warren/fleet/cl/"]);

    let refused = fleet_fails(&at, &["join", ticket.trim(), "--bring-clients"]);

    for part in [
        "client off: the fleet's client of this name has another key",
        "client own: its network 192.168.7.0/24 overlaps 192.168.0.0/16 of the fleet's client off",
        "2 collisions between this exit's clients and the fleet's",
    ] {
        assert!(refused.contains(part), "{part}: {refused}");
    }
    assert_eq!(fleet.store.etcdctl_ok(&["get", "--prefix", "/warren/fleet/cl/"]), before);
    assert!(!at.join("config/fleet.toml").exists() && !at.join("config/fleet").exists());
    assert!(fleet_ok(&first.directory, &["status"]).contains("has a ticket, and has not joined"));
    let both = fleet_fails(&at, &["join", ticket.trim(), "--bring-clients", "--replace-clients"]);
    assert!(both.contains("cannot be used with"), "{both}");
    // The operator resolves it.
    set_up_exit(&at, &[OWN[0].replace("192.168", "172.16").as_str(), "name = \"on\""]);
    let said = fleet_ok(&at, &["join", ticket.trim(), "--bring-clients"]);
    assert!(said.contains("The fleet has its 2 clients and 0 open invitations now."), "{said}");
    first.wait("all are known", |seen| (seen.rows.len() == 3).then_some(()));
}

#[test]
fn a_join_that_was_killed_while_it_brought_clients_is_finished_by_the_same_command() {
    let fleet = three_exits();
    let first = &fleet.exits[0];
    let steps = [
        "configuration pending",
        "ticket used",
        "removed keys stored",
        "clients brought",
        "configuration named",
    ];
    for (number, step) in (1_u8..).zip(steps) {
        let exit = format!("d{number}");
        let at = fleet.directory.path().join(&exit);
        // Each exit has clients of its own.
        set_up_exit(&at, &[format!("name = \"own{number}\"").as_str()]);
        add_removed_and_invited(&at);
        let path = at.join("state/exit/clients.toml");
        let text = std::fs::read_to_string(&path).unwrap();
        let text = text.replace(&key(100).to_string(), &key(100 + number).to_string());
        let text = text.replace(&key(90).to_string(), &key(90 + number).to_string());
        let token = |number: u16| serde_json::to_value(crate::token(number)).unwrap().to_string();
        let text = text
            .replace(&token(9), &token(9 + u16::from(number)))
            .replace("guest", &format!("guest{number}"));
        std::fs::write(&path, text).unwrap();
        let ticket = fleet_ok(&first.directory, &["ticket", &exit]);
        let join = ["join", ticket.trim(), "--bring-clients"];

        // An operator may decide only after the ticket is used that the exit brings its clients.
        let first_option = if step == "ticket used" { "--replace-clients" } else { "--bring-clients" };
        fleet_dies(&at, step, &[join[0], join[1], first_option]);

        let is_named = at.join("config/fleet.toml").exists();
        assert_eq!(
            is_named,
            step == "configuration named",
            "{step}: no link can start before the clients are there"
        );
        let stored = || {
            ["rv", "cl", "in"].map(|kind| {
                let prefix = format!("/warren/fleet/{kind}/");
                let keys = fleet.store.etcdctl_ok(&["get", "--prefix", "--keys-only", &prefix]);
                keys.lines().filter(|line| !line.is_empty()).count()
            })
        };
        let earlier = usize::from(number) - 1;
        let whole = [earlier + 1; 3];
        assert_eq!(
            stored(),
            match step {
                "configuration pending" | "ticket used" => [earlier; 3],
                "removed keys stored" => [earlier + 1, earlier, earlier],
                _ => whole,
            },
            "{step}"
        );
        if !is_named {
            let refused = fleet_fails(&at, &join[..2]);
            assert!(refused.contains("--bring-clients"), "{step}: {refused}");
        }
        assert!(fleet_ok(&at, &join).contains(&format!("This exit is {exit} ")), "{step}");
        assert_eq!(stored(), whole, "{step}");
        let member = fleet.store.etcdctl_ok(&["get", &format!("/warren/fleet/mb/{exit}")]);
        assert!(
            member.contains(r#""brings":true"#),
            "{step}: it serves its clients before it is linked: {member}"
        );
    }
    first.wait("all are known", |seen| (seen.rows.len() == 15).then_some(()));
}
