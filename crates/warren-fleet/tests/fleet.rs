//! Tests links with three real etcd processes.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::unwrap_in_result,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::wildcard_enum_match_arm,
    clippy::let_unit_value,
    clippy::unit_arg,
    reason = "helpers of tests"
)]

#[path = "fleet/at_once.rs"]
mod at_once;
#[path = "fleet/brings.rs"]
mod brings;
#[path = "fleet/check.rs"]
mod check;
#[path = "fleet/commands.rs"]
mod commands;
#[path = "fleet/endures.rs"]
mod endures;
#[path = "fleet/faults.rs"]
mod faults;
#[path = "fleet/history.rs"]
mod history;
#[path = "fleet/killed.rs"]
mod killed;
#[path = "fleet/many.rs"]
mod many;
#[path = "fleet/recovers.rs"]
mod recovers;
#[path = "fleet/refused.rs"]
mod refused;
#[path = "fleet/store_log.rs"]
mod store_log;
mod support;
#[path = "fleet/told.rs"]
mod told;
#[path = "fleet/workload.rs"]
mod workload;

use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use warren_fleet_link::{ExitMessage, FleetMessage, Outcome, StoreLink};
use warren_session::PublicKey;
use warren_session::clients::{Client, Invitation, RemovedKey, RowChange, RowId};

use self::support::etcd::{Store, etcdctl};
use self::support::exit::{Exit, key, valid};
use self::support::proxy::{CUT, CUT_TO_EXIT, CUT_TO_STORE, OPEN, Ways};
use self::support::{fleet, fleet_fails, fleet_ok, my_turn, wait_for};

fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000)
}

fn client(name: &str, key: PublicKey) -> Client {
    Client::new(name, key, now())
}

fn token(number: u16) -> warren_session::invite::TokenDigest {
    use base64::Engine as _;
    let mut bytes = [0; 32];
    bytes[..2].copy_from_slice(&number.to_be_bytes());
    serde_json::from_value(base64::engine::general_purpose::STANDARD.encode(bytes).into()).unwrap()
}

fn invitation(name: &str, number: u16, used_by: Option<PublicKey>) -> Invitation {
    let expires = now() + Duration::from_secs(1_000_000_000);
    Invitation { name: name.to_owned(), token_sha256: token(number), expires, used_by, upgrades: None }
}

fn removal(name: &str, key: PublicKey) -> Vec<RowChange> {
    let removed = RemovedKey { name: name.to_owned(), public_key: key, removed: now() };
    vec![RowChange::Client { key, client: None }, removed.into()]
}

/// A valid key made from a number. Each number gives another key.
fn number_key(number: usize) -> PublicKey {
    let mut bytes = [1; 31];
    bytes[..8].copy_from_slice(&u64::try_from(number).unwrap().to_be_bytes());
    valid(bytes)
}

struct Fleet {
    exits: Vec<Exit>,
    store: Store,
    directory: tempfile::TempDir,
    _turn: support::Turn,
}

/// Three exits at one store.
fn three_exits() -> Fleet {
    let turn = my_turn();
    let store = Store::start();
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let first = Exit::first(&at("a"), "a", &["--store", &store.urls()]).ready();
    let second = Exit::further(&first, &at("b"), "b", &[]).ready();
    let third = Exit::further(&first, &at("c"), "c", &[]).ready();
    Fleet { exits: vec![first, second, third], store, directory, _turn: turn }
}

#[test]
fn one_token_enrols_one_key_however_many_exits_are_asked() {
    let fleet = three_exits();
    let rounds = 60;
    for round in 0..rounds {
        let name = format!("client{round}");
        let open = invitation(&name, round.into(), None);
        fleet.exits[0].store(&[open.clone().into()]);
        for exit in &fleet.exits {
            exit.wait("the invitation is known", |seen| {
                seen.rows.values().any(|row| matches!(row, RowChange::Invitation { token, .. } if *token == open.token_sha256)).then_some(())
            });
        }
        // Each exit enrols another key with the same token, under another name and address, so that only the token decides.
        let answers: Vec<_> = (0..3_u8)
            .map(|index| {
                let key = number_key(usize::from(round) * 3 + usize::from(index));
                let mut enrolled = client(&format!("{name}-{index}"), key);
                enrolled.leased_ipv4 = Some([10, 0, round, index + 1].into());
                let used = invitation(&name, round.into(), Some(key));
                fleet.exits[usize::from(index)].send(vec![enrolled.into(), used.into()])
            })
            .collect();
        let outcomes: Vec<_> =
            answers.iter().map(|answer| answer.recv_timeout(Duration::from_secs(3)).unwrap().0).collect();
        let stored = outcomes.iter().filter(|outcome| matches!(outcome, Outcome::Stored { .. })).count();
        let refused = outcomes.iter().filter(|outcome| **outcome == Outcome::Conflict).count();
        assert_eq!((stored, refused), (1, 2), "round {round}: {outcomes:?}");
    }
    // All exits agree on who has been enrolled.
    let rows = fleet.exits[0].seen(|seen| seen.rows.clone());
    assert_eq!(
        rows.values().filter(|row| matches!(row, RowChange::Client { .. })).count(),
        usize::from(rounds)
    );
    for exit in &fleet.exits {
        exit.wait("the exits agree", |seen| (seen.rows == rows).then_some(()));
    }
}

#[test]
fn names_addresses_and_next_keys_belong_to_one_client() {
    let fleet = three_exits();
    let [a, b, _] = &fleet.exits[..] else { panic!() };
    let mut first = client("anna", key(1));
    first.leased_ipv4 = Some([10, 0, 0, 5].into());
    first.next_public_key = Some(key(9));
    a.store(&[first.clone().into()]);
    // The control: a client that has nothing in common with anna.
    let mut other = client("bert", key(2));
    other.ipv4 = Some([10, 0, 0, 6].into());
    b.store(&[other.clone().into()]);

    let same_name = client("anna", key(3));
    let mut same_address = client("carl", key(3));
    same_address.ipv4 = first.leased_ipv4;
    let mut same_next = client("carl", key(3));
    same_next.next_public_key = Some(key(9));
    let is_next = client("carl", key(9));
    for rival in [same_name, same_address, same_next, is_next] {
        assert_eq!(b.request(vec![rival.clone().into()]), Outcome::Conflict, "{rival:?}");
    }
    // Both exchange their names in one transaction.
    b.wait("both are known", |seen| (seen.rows.len() == 2).then_some(()));
    let renamed = Client { name: "bert".to_owned(), ..first };
    let swapped = Client { name: "anna".to_owned(), ..other };
    b.store(&[renamed.clone().into(), swapped.into()]);
    a.wait("the exchange is known", |seen| (seen.rows.len() == 2).then_some(()));
    wait_for("the exchange is known", Duration::from_secs(5), || {
        (a.client(key(1)) == Some(renamed.clone())).then_some(())
    });
}

#[test]
fn a_removed_key_is_known_everywhere_within_two_seconds_and_stays_out() {
    let fleet = three_exits();
    let [a, b, c] = &fleet.exits[..] else { panic!() };
    let mut latencies = Vec::new();
    for number in 0..50 {
        let (name, key) = (format!("client{number}"), number_key(number));
        a.store(&[client(&name, key).into()]);
        for exit in [b, c] {
            wait_for("the client is known", Duration::from_secs(5), || exit.client(key).map(drop));
        }
        let since = Instant::now();
        b.store(&removal(&name, key));
        for exit in [a, c] {
            wait_for("the removal is known", Duration::from_secs(2), || {
                exit.client(key).is_none().then_some(())
            });
        }
        latencies.push(since.elapsed());
        assert_eq!(a.request(vec![client(&name, key).into()]), Outcome::Conflict);
    }
    latencies.sort();
    println!("revocation known at all exits: median {:?}, longest {:?}", latencies[25], latencies[49]);
    // The operator can see which exits have applied the removal.
    let revision = b.store(&removal("client0", number_key(0)));
    b.wait_within("all have heard", Duration::from_secs(3), |seen| {
        (seen.exits.len() == 3 && seen.exits.iter().all(|exit| exit.applied >= revision)).then_some(())
    });
    // A key that is allowed explicitly may come back.
    a.wait("the removal is known", |seen| (seen.rows.len() == 50).then_some(()));
    a.store(&[
        RowChange::Removed { key: number_key(3), removed: None },
        client("client3", number_key(3)).into(),
    ]);
}

#[test]
fn dates_of_two_exits_do_not_conflict_and_other_changes_do() {
    let fleet = three_exits();
    let [a, b, _] = &fleet.exits[..] else { panic!() };
    let anna = client("anna", key(1));
    a.store(&[anna.into()]);
    wait_for("she is known", Duration::from_secs(5), || b.client(key(1)).map(drop));
    // Both exits change the client at the same time, so neither exit has learned of the other exit's change. Each exit proposes
    // while it holds the lock under which it applies changes. So it sends the row that it has just read.
    let propose = |exit: &Exit, change: &dyn Fn(Client) -> Client| {
        let proposed = exit.propose(|seen| match seen.rows.get(&RowId::Client(key(1))) {
            Some(RowChange::Client { client: Some(client), .. }) => Some(vec![change(client.clone()).into()]),
            _ => None,
        });
        proposed.unwrap()
    };
    for round in 0..20 {
        let last_seen = Some(now() + Duration::from_secs(1000 + round));
        let one = propose(a, &|client| Client { disabled: round % 2 == 0, ..client });
        let two = propose(b, &|client| Client { last_seen, ..client });
        for answer in [one, two] {
            let (outcome, _) = answer.recv_timeout(Duration::from_secs(3)).unwrap();
            assert!(matches!(outcome, Outcome::Stored { .. }), "round {round}: {outcome:?}");
        }
        // Each exit has its own change before the answer, and may not have learned of the other exit's change yet.
        let merged = |exit: &Exit| {
            let client = exit.client(key(1)).unwrap();
            (client.last_seen, client.disabled) == (last_seen, round % 2 == 0)
        };
        wait_for("both have both changes", Duration::from_secs(3), || (merged(a) && merged(b)).then_some(()));
    }
    // The control: changes of more than dates at both.
    let mut conflicts = 0;
    for round in 0..20 {
        let answers = [
            propose(a, &|client| Client { disabled: round % 2 == 0, ..client }),
            propose(b, &|client| Client { ipv4: Some([10, 0, 1, round].into()), ..client }),
        ];
        let outcomes = answers.map(|answer| answer.recv_timeout(Duration::from_secs(3)).unwrap().0);
        conflicts += outcomes.iter().filter(|outcome| **outcome == Outcome::Conflict).count();
        wait_for("both agree", Duration::from_secs(3), || {
            (a.client(key(1)) == b.client(key(1))).then_some(())
        });
    }
    assert!(conflicts > 0);
}

#[test]
fn a_stopped_leader_holds_up_nothing_for_long() {
    let fleet = three_exits();
    let [a, b, _] = &fleet.exits[..] else { panic!() };
    a.store(&[client("anna", key(1)).into()]);
    wait_for("she is known", Duration::from_secs(5), || b.client(key(1)).map(drop));
    let leader = fleet.store.leader();
    fleet.store.signal(leader, "STOP");
    let since = Instant::now();
    a.store(&removal("anna", key(1)));
    wait_for("the removal is known", Duration::from_secs(5), || b.client(key(1)).is_none().then_some(()));
    println!("removed {:?} after the leader was stopped", since.elapsed());
    assert!(since.elapsed() < Duration::from_secs(5), "{:?}", since.elapsed());
    fleet.store.signal(leader, "CONT");
    b.store(&[client("bert", key(2)).into()]);
    wait_for("he is known", Duration::from_secs(5), || a.client(key(2)).map(drop));
}

#[test]
fn while_the_store_is_away_requests_are_refused_in_time_and_then_everything_is_caught_up() {
    let mut fleet = three_exits();
    fleet.exits[0].store(&[client("anna", key(1)).into()]);
    for exit in &fleet.exits {
        wait_for("she is known", Duration::from_secs(5), || exit.client(key(1)).map(drop));
    }
    // By then, the copy on disk contains the client.
    fleet.exits[1].stop_link("TERM");
    fleet.store.signal_all("STOP");
    for _ in 0..3 {
        let since = Instant::now();
        assert_eq!(fleet.exits[0].request(vec![client("bert", key(2)).into()]), Outcome::Unavailable);
        assert!(since.elapsed() < Duration::from_millis(2500), "{:?}", since.elapsed());
    }
    fleet.exits[0]
        .wait("the exit is told", |seen| matches!(seen.store, Some(StoreLink::Away { .. })).then_some(()));
    // A link that starts now gives its exit the copy on disk.
    fleet.exits[1].seen(|seen| (seen.wholes, seen.rows) = (0, Default::default()));
    fleet.exits[1].start_link();
    fleet.exits[1].wait("the copy on disk is there", |seen| (seen.wholes == 1).then_some(()));
    assert!(fleet.exits[1].client(key(1)).is_some());
    assert!(fleet.exits[1].seen(|seen| matches!(seen.store, Some(StoreLink::Away { .. }))));

    fleet.store.signal_all("CONT");
    let since = Instant::now();
    for exit in &fleet.exits {
        exit.wait_within("the store is back", Duration::from_secs(5), |seen| {
            (seen.store == Some(StoreLink::Reachable)).then_some(())
        });
    }
    fleet.exits[1].store(&[client("carl", key(3)).into()]);
    for exit in &fleet.exits {
        wait_for("he is known", Duration::from_secs(5), || exit.client(key(3)).map(drop));
    }
    println!("caught up {:?} after the store came back", since.elapsed());
    // A request that was given up may have been stored nevertheless. In that case every exit has the client.
    let has_bert = fleet.exits.iter().map(|exit| exit.client(key(2)).is_some()).collect::<Vec<_>>();
    assert!(has_bert.iter().all(|has| *has == has_bert[0]), "{has_bert:?}");
}

/// Three exits. The third exit's path to the store can be cut.
fn three_exits_one_behind_a_way() -> (Fleet, Ways) {
    let turn = my_turn();
    let store = Store::start();
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let first = Exit::first(&at("a"), "a", &["--store", &store.urls()]).ready();
    let second = Exit::further(&first, &at("b"), "b", &[]).ready();
    let (third, ways) = Exit::behind(&first, &at("c"), "c", &store.members());
    let exits = vec![first, second, third.ready()];
    (Fleet { exits, store, directory, _turn: turn }, ways)
}

#[test]
fn after_a_compaction_everything_is_read_again_and_compared() {
    let (fleet, ways) = three_exits_one_behind_a_way();
    let [a, _, c] = &fleet.exits[..] else { panic!() };
    a.store(&[client("anna", key(1)).into()]);
    a.store(&[client("bert", key(2)).into()]);
    c.wait("both are known", |seen| (seen.rows.len() == 2).then_some(()));
    ways.set(CUT);
    c.wait("the store is away", |seen| matches!(seen.store, Some(StoreLink::Away { .. })).then_some(()));
    a.store(&removal("anna", key(1)));
    a.store(&[client("carl", key(3)).into()]);
    let revision = fleet.store.revision();
    fleet.store.etcdctl_ok(&["compact", &revision.to_string()]);
    ways.set(OPEN);
    c.wait_within("the changes are known", Duration::from_secs(10), |seen| {
        (seen.rows.len() == 3).then_some(())
    });
    assert!(c.client(key(1)).is_none() && c.client(key(2)).is_some() && c.client(key(3)).is_some());
    assert!(c.log().contains("has compacted"), "the link went on where it was");
    assert_eq!(c.seen(|seen| seen.wholes), 1, "the exit gets differences, not everything again");
    c.store(&[client("dora", key(4)).into()]);
}

#[test]
fn an_exit_that_is_cut_off_one_way_is_told_and_catches_up_within_two_seconds() {
    let (fleet, ways) = three_exits_one_behind_a_way();
    let [a, _, c] = &fleet.exits[..] else { panic!() };
    for (round, cut) in [CUT_TO_STORE, CUT_TO_EXIT, CUT].into_iter().enumerate() {
        let number = u8::try_from(round).unwrap() * 10;
        a.store(&[client(&format!("anna{round}"), key(number + 1)).into()]);
        wait_for("she is known", Duration::from_secs(5), || c.client(key(number + 1)).map(drop));
        c.say(ExitMessage::Opened { key: key(number + 1), nonce: vec![1; 16], claim: 0 });
        // The record is stored before the path is cut.
        std::thread::sleep(Duration::from_millis(500));
        ways.set(cut);
        let answer = c.send(vec![client(&format!("bert{round}"), key(number + 2)).into()]);
        let outcome = answer.recv_timeout(Duration::from_millis(2500)).expect("no answer within 2.5 s").0;
        assert_eq!(outcome, Outcome::Unavailable, "cut {cut}");
        c.wait("the exit is told", |seen| matches!(seen.store, Some(StoreLink::Away { .. })).then_some(()));
        a.store(&removal(&format!("anna{round}"), key(number + 1)));
        // Another exit gets the client's session meanwhile.
        a.say(ExitMessage::Opened { key: key(number + 1), nonce: vec![2; 16], claim: 0 });
        std::thread::sleep(Duration::from_secs(11));
        assert!(c.client(key(number + 1)).is_some(), "the way is not cut");
        ways.set(OPEN);
        let since = Instant::now();
        wait_for("the removal is known", Duration::from_secs(4), || {
            c.client(key(number + 1)).is_none().then_some(())
        });
        println!("cut {cut}: caught up {:?} after the way was open again", since.elapsed());
        let elsewhere = c.wait("the session has moved", |seen| seen.elsewhere.pop());
        assert_eq!((elsewhere.0, elsewhere.2.as_str()), (key(number + 1), "a"));
        c.wait("the store is reachable", |seen| (seen.store == Some(StoreLink::Reachable)).then_some(()));
    }
}

#[test]
fn an_old_backup_is_refused_until_recovered_and_no_removed_key_comes_back() {
    let mut fleet = three_exits();
    fleet.exits[0].store(&[client("anna", key(1)).into()]);
    fleet.exits[0].store(&[client("bert", key(2)).into()]);
    fleet.exits[0].store(&[invitation("carl", 1, None).into()]);
    let backup = fleet.store.back_up();
    fleet.exits[1].wait("all is known", |seen| (seen.rows.len() == 3).then_some(()));
    fleet.exits[1].store(&removal("anna", key(1)));
    fleet.exits[2].wait("the removal is known", |seen| {
        (seen.rows.len() == 3 && seen.rows.values().any(|row| matches!(row, RowChange::Removed { .. })))
            .then_some(())
    });
    fleet.exits[2].store(&[invitation("carl", 1, Some(key(3))).into(), client("carl", key(3)).into()]);
    for exit in &fleet.exits {
        exit.wait("carl is known", |seen| (seen.rows.len() == 4).then_some(()));
    }
    // Meanwhile, one exit's link is down and has only its copy on disk.
    fleet.exits[2].stop_link("TERM");

    fleet.store.restore(&backup);
    for exit in &fleet.exits[..2] {
        exit.wait("the backup is noticed", |seen| match &seen.store {
            Some(StoreLink::Refused { reason, .. }) => {
                Some(assert!(reason.contains("restored from"), "{reason}"))
            }
            _ => None,
        });
        assert!(exit.client(key(1)).is_none(), "anna is back");
        assert_eq!(exit.request(vec![client("dora", key(4)).into()]), Outcome::Unavailable);
    }
    fleet.exits[2].start_link();
    fleet.exits[2].wait("the backup is noticed after a restart", |seen| {
        matches!(seen.store, Some(StoreLink::Refused { .. })).then_some(())
    });

    let said = fleet_ok(&fleet.exits[0].directory, &["recover"]);
    println!("{said}");
    for exit in &fleet.exits {
        exit.wait("the store is used again", |seen| (seen.store == Some(StoreLink::Reachable)).then_some(()));
        wait_for("nothing is lost", Duration::from_secs(5), || {
            (exit.client(key(2)).is_some() && exit.client(key(3)).is_some()).then_some(())
        });
        assert!(exit.client(key(1)).is_none(), "anna is back");
        assert_eq!(exit.request(vec![client("anna", key(1)).into()]), Outcome::Conflict);
    }
    // The token stays used, which the backup did not know.
    for exit in &fleet.exits {
        let used = RowChange::from(invitation("carl", 1, Some(key(3))));
        exit.wait("the token stays used", |seen| (seen.rows.get(&used.id()) == Some(&used)).then_some(()));
    }
    fleet.exits[0].store(&[client("dora", key(4)).into()]);
}

#[test]
fn a_client_has_its_session_at_the_exit_that_it_has_come_to_last() {
    let fleet = three_exits();
    let [a, b, c] = &fleet.exits[..] else { panic!() };
    let open = |exit: &Exit, nonce: u8| {
        exit.say(ExitMessage::Opened { key: key(1), nonce: vec![nonce; 16], claim: 0 })
    };
    open(a, 1);
    std::thread::sleep(Duration::from_millis(500));
    open(b, 1);
    let elsewhere = a.wait_within("a hears of it", Duration::from_secs(2), |seen| seen.elsewhere.pop());
    assert_eq!((elsewhere.0, elsewhere.1, elsewhere.2.as_str()), (key(1), vec![1; 16], "b"));
    // The client comes back to a at once.
    open(a, 2);
    b.wait_within("b hears of it", Duration::from_secs(2), |seen| seen.elsewhere.pop());
    assert_eq!(c.seen(|seen| seen.elsewhere.len()), 0);
    // Many clients at once are recorded in batches.
    for number in 0..1000 {
        b.say(ExitMessage::Opened { key: number_key(number), nonce: vec![3; 16], claim: 0 });
    }
    let records = || {
        fleet
            .store
            .etcdctl_ok(&["get", "--prefix", "/warren/fleet/se/", "--keys-only"])
            .lines()
            .filter(|line| !line.is_empty())
            .count()
    };
    wait_for("all are recorded", Duration::from_secs(10), || (records() == 1001).then_some(()));
    for number in 0..1000 {
        b.say(ExitMessage::Closed { key: number_key(number), nonce: vec![3; 16] });
    }
    wait_for("all records are gone", Duration::from_secs(10), || (records() == 1).then_some(()));
}

#[test]
fn records_of_an_exit_whose_link_was_killed_are_gone_in_twelve_seconds() {
    let mut fleet = three_exits();
    fleet.exits[0].say(ExitMessage::Opened { key: key(1), nonce: vec![1; 16], claim: 0 });
    let records = |fleet: &Fleet| {
        fleet.store.etcdctl_ok(&["get", "--prefix", "/warren/fleet/se/", "--keys-only"]).trim().len()
    };
    wait_for("it is recorded", Duration::from_secs(5), || (records(&fleet) > 0).then_some(()));
    fleet.exits[1].wait("all are alive", |seen| {
        (seen.exits.iter().filter(|exit| exit.is_alive).count() == 3).then_some(())
    });
    fleet.exits[0].stop_link("KILL");
    wait_for("it is gone", Duration::from_secs(12), || (records(&fleet) == 0).then_some(()));
    fleet.exits[1].wait("the exit counts as dead", |seen| {
        (seen.exits.iter().filter(|exit| exit.is_alive).count() == 2).then_some(())
    });
    // A link that is stopped by SIGTERM deletes its records at once.
    fleet.exits[1].say(ExitMessage::Opened { key: key(2), nonce: vec![1; 16], claim: 0 });
    wait_for("it is recorded", Duration::from_secs(5), || (records(&fleet) > 0).then_some(()));
    fleet.exits[1].stop_link("TERM");
    wait_for("it is gone", Duration::from_secs(2), || (records(&fleet) == 0).then_some(()));
}

#[test]
fn answers_and_changes_come_in_the_order_of_revisions() {
    let fleet = three_exits();
    let [a, b, c] = &fleet.exits[..] else { panic!() };
    let answers: Vec<_> = (0..300)
        .map(|number| {
            let exit = [a, b, c][number % 3];
            exit.send(vec![client(&format!("client{number}"), number_key(number)).into()])
        })
        .collect();
    for answer in answers {
        assert!(matches!(answer.recv_timeout(Duration::from_secs(10)).unwrap().0, Outcome::Stored { .. }));
    }
    for exit in [a, b, c] {
        exit.wait("all are known", |seen| (seen.rows.len() == 300).then_some(()));
        exit.seen(|seen| {
            let mut last = 0;
            for message in &seen.order {
                let revision = match message {
                    FleetMessage::Changes { revision, .. } | FleetMessage::Whole { revision, .. } => {
                        *revision
                    }
                    FleetMessage::Answer { outcome: Outcome::Stored { revision }, .. } => *revision,
                    _ => continue,
                };
                assert!(revision >= last, "{revision} after {last}");
                last = revision;
            }
        });
    }
}

#[test]
fn a_large_request_is_stored_in_parts() {
    let fleet = three_exits();
    let [a, b, _] = &fleet.exits[..] else { panic!() };
    let many: Vec<RowChange> =
        (0..1000).map(|number| client(&format!("client{number}"), number_key(number)).into()).collect();
    a.store(&many);
    b.wait("all are known", |seen| (seen.rows.len() == 1000).then_some(()));
}

#[test]
fn status_drain_and_remove_do_what_they_say() {
    let mut fleet = three_exits();
    let a = fleet.exits[0].directory.clone();
    fleet.exits[0].store(&[client("anna", key(1)).into()]);
    let report =
        || -> serde_json::Value { serde_json::from_str(&fleet_ok(&a, &["status", "--json"])).unwrap() };
    wait_for("all have heard", Duration::from_secs(5), || {
        let report = report();
        let exits = report["exits"].as_array().unwrap().clone();
        let all = exits.len() == 3
            && exits.iter().all(|exit| exit["is_alive"] == true && exit["has_heard"] == true);
        (all && report["clients"] == 1).then_some(())
    });
    // The exit learns the store's addresses, which no network behind a client may contain.
    fleet.exits[0].wait("it hears where the store is", |seen| {
        let here = ["127.0.0.1".parse().unwrap()].into();
        (!seen.members.is_empty() && seen.members.iter().all(|addresses| *addresses == here)).then_some(())
    });
    let text = fleet_ok(&a, &["status"]);
    assert!(text.contains("Fleet fleet: 1 client,") && text.matches("applied").count() == 3, "{text}");

    fleet_ok(&a, &["drain", "b"]);
    fleet.exits[1].wait("it is drained", |seen| (seen.drain == Some(true)).then_some(()));
    fleet_ok(&a, &["drain", "b", "--end"]);
    fleet.exits[1].wait("it is no longer drained", |seen| (seen.drain == Some(false)).then_some(()));
    assert!(fleet_fails(&a, &["drain", "x"]).contains("no exit x"));

    assert!(fleet_fails(&a, &["remove", "c"]).contains("serves clients now"));
    fleet_ok(&a, &["remove", "c", "--force"]);
    fleet.exits[2].wait("it learns that it is removed", |seen| match &seen.store {
        Some(StoreLink::Refused { reason, .. }) => Some(assert!(reason.contains("removed from"), "{reason}")),
        _ => None,
    });
    assert_eq!(fleet.exits[2].request(vec![client("bert", key(2)).into()]), Outcome::Unavailable);
    // The same holds after a restart of the link.
    fleet.exits[2].stop_link("TERM");
    fleet.exits[2].start_link();
    std::thread::sleep(Duration::from_secs(1));
    fleet.exits[2].wait("it is still removed", |seen| {
        matches!(seen.store, Some(StoreLink::Refused { .. })).then_some(())
    });
    assert!(fleet_fails(&a, &["remove", "c"]).contains("no exit c"));
}

#[test]
fn a_ticket_is_for_one_exit_and_one_use() {
    let fleet = three_exits();
    let a = &fleet.exits[0].directory;
    let ticket = fleet_ok(a, &["ticket", "d"]);
    let at = |name: &str| fleet.directory.path().join(name);
    let said = fleet_ok(&at("d"), &["join", ticket.trim(), "--json"]);
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!((&said["exit"], &said["pools"]["ipv4"]), (&"d".into(), &"10.0.0.0/16".into()));
    assert!(fleet_fails(&at("e"), &["join", ticket.trim()]).contains("used by another host"));
    assert!(!at("e").join("config/fleet.toml").exists());
    let other = fleet_ok(a, &["ticket", "f"]);
    assert!(fleet_fails(&at("d"), &["join", other.trim()]).contains("belongs to a fleet already"));
    assert!(fleet_fails(a, &["ticket", "d"]).contains("has an exit d already"));
    let (urls, clients) = (fleet.store.urls(), at("clients.toml").display().to_string());
    std::fs::write(&clients, "client = []\n").unwrap();
    let init = ["init", "--exit", "x", "--store", &urls, "--clients", &clients, "--pool", "10.0.0.0/16"];
    assert!(fleet_fails(&at("x"), &init).contains("has a fleet \"fleet\" already"));
}

#[test]
fn an_exit_brings_its_clients_and_takes_them_along_when_it_leaves() {
    let turn = my_turn();
    let store = Store::start();
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    std::fs::create_dir_all(at("a")).unwrap();
    let clients = "[[client]]\nname = \"anna\"\npublic_key = \"11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=\"\n\
                   leased_ipv4 = \"10.0.0.2\"\ncreated = \"2026-01-01T00:00:00Z\"\n";
    std::fs::write(at("a").join("clients.toml"), clients).unwrap();
    let a = Exit::first(&at("a"), "a", &["--store", &store.urls()]).ready();
    let anna = "11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=".parse().unwrap();
    assert!(a.client(anna).is_some());
    a.store(&[client("bert", key(2)).into()]);
    let left = at("left.toml").display().to_string();
    let said = fleet_ok(&at("a"), &["leave", "--clients", &left]);
    assert!(said.contains("2 clients"), "{said}");
    let text = std::fs::read_to_string(at("left.toml")).unwrap();
    assert!(text.contains("anna") && text.contains("bert"), "{text}");
    assert!(fleet(&at("a"), &["status"]).status.code() == Some(1));
    drop(turn);
}

#[test]
fn a_store_with_certificates_and_users_lets_each_exit_write_its_own_fleet_only() {
    let _turn = my_turn();
    let store = Store::start_secure();
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let text = |path: &Path| path.display().to_string();
    store.certificate("root");
    for arguments in [
        &["user", "add", "root", "--no-password"][..],
        &["user", "grant-role", "root", "root"],
        &["auth", "enable"],
    ] {
        store.etcdctl_ok(arguments);
    }
    let (root, root_key) = store.certificate("root");
    let (ca, urls) = (text(&store.ca()), store.urls());
    let (root, root_key) = (text(&root), text(&root_key));
    let init = ["--store", &urls, "--ca", &ca, "--certificate", &root, "--key", &root_key];
    let a = Exit::first(&at("a"), "a", &init).ready();
    let (certificate, key_file) = store.certificate("warren-fleet-b");
    let (certificate, key_file) = (text(&certificate), text(&key_file));
    let b = Exit::further(&a, &at("b"), "b", &["--certificate", &certificate, "--key", &key_file]).ready();
    b.store(&[client("anna", key(1)).into()]);
    // The authority's certificate, this exit's own, and that of each member.
    let status = fleet_ok(&at("b"), &["status"]);
    let line =
        status.lines().find(|line| line.starts_with("Days until the store's certificates expire: ca "));
    let line = line.unwrap_or_else(|| panic!("no certificates: {status}"));
    assert!(line.contains(", client ") && line.matches("server 127.0.0.1:").count() == 3, "{line}");
    wait_for("she is known", Duration::from_secs(5), || a.client(key(1)).map(drop));
    // b's user may write nothing else.
    let refused = etcdctl()
        .args(["--endpoints", &urls, "--cacert", &ca, "--cert", &certificate, "--key", &key_file])
        .args(["put", "/warren/other/meta", "x"])
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&refused.stderr).contains("permission denied"), "{refused:?}");

    // A store with certificates of another authority is never used.
    let other = Store::start_secure();
    let clients = text(&at("a").join("clients.toml"));
    let wrong = ["init", "--exit", "x", "--clients", &clients, "--pool", "10.0.0.0/16"];
    let others = other.urls();
    let wrong = [&wrong[..], &["--store", &others, "--ca", &ca]].concat();
    let said = fleet_fails(&at("x"), &wrong);
    assert!(said.contains("certificate") || said.contains("UnknownIssuer"), "{said}");
}

/// Prints figures. `--ignored` runs it, on a machine that does nothing else.
#[test]
#[ignore = "measures"]
fn figures() {
    let fleet = three_exits();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let url = fleet.store.url(fleet.store.leader());
    let mut puts: Vec<Duration> = runtime.block_on(async {
        let mut store = etcd_client::Client::connect([url], None).await.unwrap();
        let mut puts = Vec::new();
        for number in 0..500_u32 {
            let since = Instant::now();
            store.put("figures", number.to_be_bytes(), None).await.unwrap();
            puts.push(since.elapsed());
        }
        puts
    });
    puts.sort();
    println!(
        "etcd: one put after the other takes {:?} (median), {:?} (99th percentile)",
        puts[250], puts[495]
    );
    let (seconds, window) = (Duration::from_secs(5), 64);
    let since = Instant::now();
    let enrolled: usize = std::thread::scope(|scope| {
        let workers: Vec<_> = fleet
            .exits
            .iter()
            .enumerate()
            .map(|(index, exit)| {
                scope.spawn(move || {
                    let mut waiting = std::collections::VecDeque::new();
                    let mut count = 0;
                    for number in 0.. {
                        if since.elapsed() < seconds {
                            let mut enrolled =
                                client(&format!("e{index}-{number}"), number_key(index * 1_000_000 + number));
                            let [high, low, ..] =
                                u16::try_from(index * 20_000 + number).unwrap().to_be_bytes();
                            enrolled.leased_ipv4 = Some([10, 0, high, low].into());
                            waiting.push_back(exit.send(vec![enrolled.into()]));
                        }
                        if waiting.len() >= window || since.elapsed() >= seconds {
                            let Some(answer) = waiting.pop_front() else { break };
                            let (outcome, _) = answer.recv_timeout(Duration::from_secs(3)).unwrap();
                            assert!(matches!(outcome, Outcome::Stored { .. }), "{outcome:?}");
                            count += 1;
                        }
                    }
                    count
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).sum()
    });
    let rate = f64::from(u32::try_from(enrolled).unwrap()) / since.elapsed().as_secs_f64();
    println!("{enrolled} enrolments at three exits, {window} under way at each: {rate:.0} a second");
    let [a, b, c] = &fleet.exits[..] else { panic!() };
    for exit in [a, b, c] {
        exit.wait("all are known", |seen| (seen.rows.len() == enrolled).then_some(()));
    }
    let mut latencies: Vec<Duration> = (0..1000)
        .map(|number| {
            let name = format!("revoked{number}");
            let revoked = number_key(5_000_000 + number);
            a.store(&[client(&name, revoked).into()]);
            for exit in [b, c] {
                wait_for("it is known", Duration::from_secs(5), || exit.client(revoked).map(drop));
            }
            let since = Instant::now();
            a.store(&removal(&name, revoked));
            for exit in [b, c] {
                while exit.client(revoked).is_some() {
                    std::thread::sleep(Duration::from_micros(200));
                }
            }
            since.elapsed()
        })
        .collect();
    latencies.sort();
    println!(
        "1000 revocations until both other exits know: median {:?}, 99th percentile {:?}",
        latencies[500], latencies[990]
    );
}
