use std::time::{Duration, SystemTime};

use proptest::prelude::*;
use warren_fleet_link::Pools;
use warren_session::clients::RemovedKey;
use warren_simulation::finds;

use super::*;
use crate::exits::Removal;
use crate::keys::Keys;
use crate::link::tests::{key, token};
use crate::meta::FORMAT;
use crate::returned::Returned;
use crate::rows::Unseen;
use crate::transaction::{Known, draft};

fn client(number: u8) -> Client {
    Client::new(format!("client{number}"), key(number), SystemTime::UNIX_EPOCH)
}

fn removed(number: u8) -> RowChange {
    RemovedKey { name: "x".to_owned(), public_key: key(number), removed: SystemTime::UNIX_EPOCH }.into()
}

pub(crate) fn invitation(number: u8, used_by: Option<PublicKey>) -> RowChange {
    let expires = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    Invitation {
        name: format!("guest{number}"),
        token_sha256: token(number),
        expires,
        used_by,
        upgrades: None,
    }
    .into()
}

/// Rows with the revisions of their latest changes.
pub(crate) fn rows(all: &[(i64, RowChange)]) -> Rows {
    let mut rows = Rows::default();
    all.iter().for_each(|(revision, row)| rows.put(row.clone(), *revision));
    rows
}

/// Stores groups as a transaction of etcd would.
fn store_all(store: &mut Rows, groups: Vec<Vec<RowChange>>, revision: &mut i64) {
    let (keys, unseen) = (Keys::new("home"), Unseen::default());
    for group in groups {
        let known = Known { keys: &keys, rows: store, unseen: &unseen, basis: i64::MAX };
        let Ok(draft) = draft(known, &group, &group) else { continue };
        *revision += 1;
        draft.rows.into_iter().for_each(|row| store.put(row, *revision));
    }
}

fn bring_back(copy: &Rows, store: &mut Rows, basis: Basis, revision: &mut i64) {
    let revoked = revocations(copy, store, basis);
    store_all(store, revoked, revision);
    let wanted = clients(copy, store, basis);
    store_all(store, wanted, revision);
}

fn keys_removed_since_the_backup_stay_out() {
    // Since the backup, client 1 was removed. The next key of client 2 was removed too, and is the key of client 3 now.
    let waiting = Client { next_public_key: Some(key(3)), ..client(2) };
    let mut store = rows(&[(1, client(1).into()), (2, waiting.into()), (3, client(4).into())]);
    let copy = rows(&[(5, removed(1)), (6, removed(3)), (6, client(2).into()), (3, client(4).into())]);
    bring_back(&copy, &mut store, Basis::of_command(Age::Same, 6, Some(3), true), &mut 3);
    assert!(store.client(key(1)).is_none(), "a removed client is back");
    assert!(store.has(RowId::Removed(key(1))) && store.has(RowId::Removed(key(3))));
    assert_eq!(store.client(key(2)), Some(&client(2)));
    assert_eq!(store.client(key(4)), Some(&client(4)));
}

#[test]
fn a_recovery_lets_no_removed_key_in() {
    keys_removed_since_the_backup_stay_out();
    assert!(finds(Bug::TombstoneForgotten, keys_removed_since_the_backup_stay_out));
}

#[test]
fn a_removed_key_is_stored_although_its_clients_row_cannot_be_read() {
    let copy = rows(&[(5, removed(1))]);
    let mut store = Rows::default();
    store.cannot_read(RowId::Client(key(1)), 3);
    bring_back(&copy, &mut store, Basis::of_command(Age::Same, 6, Some(3), true), &mut 3);
    assert!(store.has(RowId::Removed(key(1))), "the removed key may come in");
    assert!(!store.is_there(RowId::Client(key(1))));
}

#[test]
fn an_invitation_that_the_copy_cannot_read_is_not_withdrawn() {
    let mut copy = Rows::default();
    copy.cannot_read(RowId::Invitation(token(1)), 2);
    let mut store = rows(&[(1, invitation(1, None))]);
    bring_back(&copy, &mut store, Basis::of_command(Age::Same, 6, Some(3), true), &mut 3);
    assert!(store.has(RowId::Invitation(token(1))));
}

#[test]
fn a_store_that_is_intact_keeps_what_is_newer_than_the_copy() {
    let disabled = Client { disabled: true, ..client(1) };
    let renamed = Client { name: "renamed".to_owned(), ..client(2) };
    let before = [
        (11, disabled.clone().into()),
        (12, renamed.clone().into()),
        (13, invitation(1, None)),
        (14, client(3).into()),
        (15, removed(4)),
    ];
    let copy = rows(&[
        (1, client(1).into()),
        (2, client(2).into()),
        (3, removed(3)),
        (4, invitation(2, None)),
        (5, client(4).into()),
        (6, client(5).into()),
    ]);
    let mut store = rows(&before);
    bring_back(&copy, &mut store, Basis::of_command(Age::Same, 10, Some(15), false), &mut 15);
    let stored = |number| store.client(key(number));
    assert_eq!((stored(1), stored(2)), (Some(&disabled), Some(&renamed)));
    assert!(store.has(RowId::Invitation(token(1))), "a newer invitation is gone");
    assert!(!store.has(RowId::Invitation(token(2))), "an invitation that may have been withdrawn is back");
    assert!(stored(3).is_some(), "a client that was allowed again is removed");
    assert!(stored(4).is_none(), "a removed client is back");
    assert!(stored(5).is_some(), "a client that was lost is not put back");

    // The control: the same store, but restored from a backup and changed since.
    let mut store = rows(&before);
    bring_back(&copy, &mut store, Basis::of_command(Age::Same, 10, Some(15), true), &mut 15);
    assert!(store.client(key(3)).is_none() && store.client(key(1)).unwrap().disabled);
}

#[test]
fn a_client_that_either_side_calls_disabled_is_disabled() {
    let [one, two] = [1, 2].map(|number| Client { disabled: true, ..client(number) });
    let mut store = rows(&[(1, one.into()), (2, client(2).into())]);
    let copy = rows(&[(8, client(1).into()), (9, two.into())]);
    bring_back(&copy, &mut store, Basis::of_command(Age::Same, 9, Some(2), true), &mut 2);
    assert!([1, 2].iter().all(|number| store.client(key(*number)).unwrap().disabled));
}

fn left(at: i64) -> Removed {
    Removed { at, ..Removed::default() }
}

/// Exits of a fleet, as a copy has them.
fn of(names: &[&str]) -> BTreeMap<ExitId, Option<Member>> {
    names
        .iter()
        .map(|name| (ExitId::try_from((*name).to_owned()).unwrap(), Some(Member::default())))
        .collect()
}

/// Exits that are removed without having to stop.
fn leaving(exits: Vec<(ExitId, i64)>) -> Removals {
    exits.into_iter().map(|(exit, at)| (exit, left(at))).collect()
}

#[test]
fn an_exit_that_was_removed_does_not_come_back() {
    let id = |name: &str| ExitId::try_from(name.to_owned()).unwrap();
    let ids = |names: &[&str]| names.iter().map(|name| id(name)).collect::<Vec<_>>();
    let members = of(&["a", "d", "e", "f"]);
    let removals: BTreeMap<_, _> = [(id("c"), left(80))].into();
    let store = ExitsInStore {
        members: [("a", 1), ("b", 2), ("c", 3), ("g", 95), ("f", 4)].map(|(exit, at)| (id(exit), at)).into(),
        removed: [(id("e"), left(5)), (id("f"), left(6))].into(),
        ..ExitsInStore::default()
    };
    let changes = exits(&members, &removals, &store, Basis::of_command(Age::Same, 90, Some(50), true));
    // An earlier release has removed b. The copy does not know g, which is newer.
    let expected = ExitChanges {
        removed: leaving(vec![(id("c"), 80), (id("b"), 0)]),
        put_back: ids(&["d"]),
        left_out: ids(&["e", "f"]),
    };
    assert_eq!(changes, expected);
    // A store that was not restored may lack d for a good reason.
    let changes = exits(&members, &removals, &store, Basis::of_command(Age::Same, 90, Some(100), false));
    assert_eq!((changes.put_back, changes.left_out), (Vec::new(), ids(&["d", "e", "f"])));
    // The comparison is repeated. Exit c needs no further change.
    let again = ExitsInStore {
        members: [(id("a"), 1)].into(),
        removed: [(id("c"), left(51))].into(),
        ..ExitsInStore::default()
    };
    assert_eq!(
        removed_exits(&removals, &again, Basis::of_command(Age::Same, 90, Some(50), true)),
        Removals::default()
    );
    // The exit has joined again.
    let again = ExitsInStore { members: [(id("c"), 95)].into(), ..ExitsInStore::default() };
    assert_eq!(
        removed_exits(&removals, &again, Basis::of_command(Age::Same, 90, Some(100), true)),
        Removals::default()
    );
}

#[test]
fn a_removal_keeps_its_force_in_a_recovery() {
    let id = |name: &str| ExitId::try_from(name.to_owned()).unwrap();
    let removed =
        |at, has_stopped| Removed { removal: Some(Removal { until: Some(at), has_stopped }), ..left(at) };
    // Exit b has left by itself. Exit e came back after its removal in the backup, and was removed again. Exit f has left since.
    let copied: BTreeMap<_, _> = [
        (id("b"), left(70)),
        (id("c"), removed(71, false)),
        (id("d"), removed(30, true)),
        (id("e"), removed(80, false)),
        (id("f"), left(81)),
    ]
    .into();
    let store = ExitsInStore {
        members: [("b", 2), ("c", 3)].map(|(exit, at)| (id(exit), at)).into(),
        removed: [(id("d"), removed(30, true)), (id("e"), removed(31, true)), (id("f"), removed(32, true))]
            .into(),
        ..ExitsInStore::default()
    };
    let basis = Basis::of_command(Age::Same, 90, Some(50), true);
    let changes = exits(&BTreeMap::new(), &copied, &store, basis);
    let expected = [
        (id("b"), left(70)),
        (id("c"), removed(71, false)),
        (id("e"), removed(80, false)),
        (id("f"), left(81)),
    ];
    assert_eq!(changes.removed, expected.into_iter().collect());
    // Exit e has no time at which it stops by itself. Only the membership distinguishes its removals.
    let never = |at, membership| Removed { membership, removal: Some(Removal::default()), ..left(at) };
    let earlier = ExitsInStore { removed: [(id("e"), never(31, Some(1)))].into(), ..ExitsInStore::default() };
    let of = |membership| removed_exits(&[(id("e"), never(80, membership))].into(), &earlier, basis);
    assert!(of(Some(2)).contains(&id("e")) && of(Some(1)).is_empty());
    // The control: the store was not restored, and its removals are newer.
    let newer = ExitsInStore { removed: [(id("e"), removed(85, true))].into(), ..store };
    let changes = removed_exits(&copied, &newer, Basis::of_command(Age::Same, 90, Some(90), false));
    assert!(!changes.contains(&id("e")));
}

/// The basis of a link whose copy is of revision 130, after a recovery with a copy of revision 100 and a backup of revision 50.
fn of_a_returning_link() -> Basis {
    let meta = Meta {
        recoveries: vec![Recovery { epoch: 1, revision: 100, store: 50 }],
        epoch: 2,
        ..crate::link::tests::meta()
    };
    let position = Position { epoch: 1, revision: 130, ..Position::default() };
    Basis::of_link(&position, &meta, &Found { began: 60, ..crate::returned::tests::found() })
}

#[test]
fn an_exit_that_has_confirmed_its_removal_counts_as_stopped_whichever_copy_returns_last() {
    let e = || ExitId::try_from("e".to_owned()).unwrap();
    let removed = |at, membership, has_stopped| {
        let removal = Some(Removal { until: None, has_stopped });
        Removed { removal, membership: Some(membership), ..left(at) }
    };
    let basis = of_a_returning_link();
    let is_written = |copied: Removed, stored: Removed| {
        let store = ExitsInStore { removed: [(e(), stored)].into(), ..ExitsInStore::default() };
        !removed_exits(&[(e(), copied)].into(), &store, basis).is_empty()
    };
    // Another link has already repeated the removal, after the recovery.
    assert!(is_written(removed(120, 1, true), removed(70, 1, false)));
    // The recovery itself has written the confirmation.
    assert!(!is_written(removed(120, 1, false), removed(55, 1, true)));
    // The controls: these are removals of two memberships, and the later value counts.
    assert!(!is_written(removed(120, 2, true), removed(70, 1, false)));
    assert!(is_written(removed(120, 2, false), removed(55, 1, true)));
}

#[test]
fn an_exit_that_joined_again_after_the_removal_in_the_backup_is_put_back() {
    let id = |name: &str| ExitId::try_from(name.to_owned()).unwrap();
    let member = |membership| Some(Member { membership, ..Member::default() });
    let ended = |membership, at| Removed { removal: Some(Removal::default()), membership, ..left(at) };
    // Exit d was removed from its present membership. The numbers of e's and f's memberships are not all known.
    let members = [("b", Some(2)), ("c", Some(2)), ("d", Some(2)), ("e", None), ("f", Some(2))]
        .map(|(exit, own)| (id(exit), member(own)));
    let (one, two) = (ended(Some(1), 30), ended(Some(2), 31));
    let removed = [("b", one), ("c", one), ("d", two), ("e", one), ("f", ended(None, 32))];
    let store = ExitsInStore {
        members: [(id("c"), 20)].into(),
        removed: removed.map(|(exit, removed)| (id(exit), removed)).into(),
        ..ExitsInStore::default()
    };
    for (copy, epoch) in [(1, 1), (3, 1)] {
        let basis = Basis::of_command(Age::of(copy, epoch), 90, Some(50), true);
        let changes = exits(&members.clone().into(), &BTreeMap::new(), &store, basis);
        assert_eq!(
            (changes.put_back, changes.left_out),
            (vec![id("b"), id("c")], vec![id("d"), id("e"), id("f")])
        );
    }
    // The control: the store was not restored, or is newer than the copy.
    for (age, newest, is_restored) in
        [(Age::Same, 50, false), (Age::Same, 95, true), (Age::Earlier, 50, true)]
    {
        let basis = Basis::of_command(age, 90, Some(newest), is_restored);
        assert!(exits(&members.clone().into(), &BTreeMap::new(), &store, basis).put_back.is_empty());
    }
}

#[test]
fn an_exit_whose_own_copy_lacks_its_removal_is_removed_by_another_copy() {
    let id = |name: &str| ExitId::try_from(name.to_owned()).unwrap();
    let copied = |membership| {
        [(id("b"), Removed { removal: Some(Removal::default()), membership, ..left(120) })].into()
    };
    let basis = of_a_returning_link();
    // The exit has come back after the recovery began.
    let mut store = ExitsInStore::default();
    let joined_again = Some(Member { membership: Some(2), ..Member::default() });
    store.add(id("b"), (70, 70), joined_again.clone());
    assert!(removed_exits(&copied(Some(2)), &store, basis).contains(&id("b")));
    // The control: it has joined again since.
    assert!(removed_exits(&copied(Some(1)), &store, basis).is_empty());
    // It had an earlier membership in the backup, and its own copy has put the present one in that one's place.
    store.add(id("b"), (40, 70), joined_again.clone());
    assert!(removed_exits(&copied(Some(1)), &store, basis).is_empty());
    assert!(removed_exits(&copied(Some(2)), &store, basis).contains(&id("b")));
    // It has not come back yet, so the backup's membership may be any earlier one.
    store.add(id("b"), (40, 45), joined_again);
    assert!(removed_exits(&copied(Some(1)), &store, basis).contains(&id("b")));
}

#[test]
fn an_exit_that_is_not_in_a_recovered_store_stops_only_if_its_copy_has_its_removal() {
    let me = ExitId::try_from("a".to_owned()).unwrap();
    let absence_of = |removed: Option<Removed>, own| {
        let removed = removed.map(|removed| (me.clone(), removed)).into_iter().collect();
        BesideRows { removed, ..BesideRows::default() }.absence(&me, own)
    };
    let absence = |removed| absence_of(removed, Some(2));
    assert_eq!(absence(None), Mismatch::NotMember);
    assert_eq!(absence(Some(left(5))), Mismatch::Removed { must_stop: false });
    let removed = Removed { removal: Some(Removal::default()), ..left(5) };
    assert_eq!(absence(Some(removed)), Mismatch::Removed { must_stop: true });
    // The copy has the end of another membership.
    let of = |membership| Some(Removed { membership: Some(membership), ..removed });
    assert_eq!(absence(of(1)), Mismatch::NotMember);
    assert_eq!(absence(of(2)), Mismatch::Removed { must_stop: true });
    assert_eq!(absence_of(of(1), None), Mismatch::Removed { must_stop: true });
}

#[test]
fn a_host_learns_after_a_recovery_that_another_one_has_its_name() {
    let me = ExitId::try_from("a".to_owned()).unwrap();
    let replacement_of = |removed: Option<Removed>, own, revision, joined| {
        let recoveries = vec![Recovery { epoch: 1, revision: 100, store: 50 }];
        let meta = Meta { recoveries, epoch: 2, ..crate::link::tests::meta() };
        let position = Position { epoch: 1, revision, ..Position::default() };
        let found = Found { began: 60, membership: Some(9), joined, ..crate::returned::tests::found() };
        let basis = Basis::of_link(&position, &meta, &found);
        let removed = removed.map(|removed| (me.clone(), removed)).into_iter().collect();
        BesideRows { removed, ..BesideRows::default() }.replacement(&me, own, &found, basis)
    };
    let replacement = |removed, own, revision| replacement_of(removed, own, revision, 0);
    let ended = |membership| Removed { membership, removal: Some(Removal::default()), ..left(80) };
    // Its own copy has its removal.
    let stops = Some(Mismatch::Replaced { must_stop: true });
    assert_eq!(replacement(Some(ended(Some(1))), Some(1), 130), stops);
    // The recovery knew more than this copy.
    let is_refused = Some(Mismatch::Replaced { must_stop: false });
    assert_eq!(replacement(None, Some(1), 90), is_refused);
    // The controls: only this copy knows its membership; it is not known; the removal is of an earlier one.
    assert_eq!(replacement(None, Some(1), 130), None);
    assert_eq!(replacement(None, None, 90), None);
    assert_eq!(replacement(Some(ended(Some(1))), Some(2), 130), None);
    // The other host has joined since the recovery. The control: it had joined before.
    assert_eq!(replacement_of(None, Some(1), 130, 70), stops);
    assert_eq!(replacement_of(None, Some(1), 130, 50), None);
}

#[test]
fn a_copy_of_an_earlier_epoch_removes_no_exit_and_replaces_no_row() {
    // The store had lost everything after the copy was made, so it counts from the beginning again.
    let age = Age::of(1, 2);
    let id = |name: &str| ExitId::try_from(name.to_owned()).unwrap();
    let members = of(&["a", "d"]);
    let removals: BTreeMap<_, _> = [(id("c"), left(8000)), (id("r"), left(9000))].into();
    let store = ExitsInStore {
        members: [("a", 100), ("e", 500), ("r", 510)].map(|(exit, at)| (id(exit), at)).into(),
        ..ExitsInStore::default()
    };
    let renamed = Client { name: "renamed".to_owned(), ..client(1) };
    for is_restored in [false, true] {
        let basis = Basis::of_command(age, 10_000, Some(700), is_restored);
        let changes = exits(&members, &removals, &store, basis);
        // The store has no exit c, so only its removal is noted.
        let expected = ExitChanges {
            removed: leaving(vec![(id("c"), 8000)]),
            put_back: Vec::new(),
            left_out: vec![id("d")],
        };
        assert_eq!(changes, expected);

        let mut stored = rows(&[(600, renamed.clone().into()), (610, invitation(1, None))]);
        let copy = rows(&[(9000, client(1).into()), (9100, client(2).into()), (9200, removed(3))]);
        bring_back(&copy, &mut stored, basis, &mut 700);
        assert_eq!(stored.client(key(1)), Some(&renamed), "an older row has replaced a newer one");
        assert!(stored.has(RowId::Invitation(token(1))), "a newer invitation is withdrawn");
        assert!(stored.client(key(2)).is_some() && stored.has(RowId::Removed(key(3))));
    }
}

#[test]
fn a_copy_of_a_later_epoch_is_newer_than_all_that_the_store_has() {
    let age = Age::of(3, 2);
    let basis = Basis::of_command(age, 300, Some(9000), true);
    let id = |name: &str| ExitId::try_from(name.to_owned()).unwrap();
    let members = of(&["a", "d"]);
    let removals: BTreeMap<_, _> = [(id("c"), left(250))].into();
    // Exit e was not linked since the later epoch began.
    let joined = [("a", 100), ("c", 8000), ("e", 500)].map(|(exit, at)| (id(exit), at));
    let store = ExitsInStore { members: joined.into(), ..ExitsInStore::default() };
    let expected =
        ExitChanges { removed: leaving(vec![(id("c"), 250)]), put_back: vec![id("d")], left_out: Vec::new() };
    assert_eq!(exits(&members, &removals, &store, basis), expected);

    let renamed = Client { name: "renamed".to_owned(), ..client(1) };
    let mut stored = rows(&[(8000, client(1).into()), (8100, invitation(1, None))]);
    bring_back(&rows(&[(200, renamed.clone().into())]), &mut stored, basis, &mut 9000);
    assert_eq!(stored.client(key(1)), Some(&renamed));
    assert!(!stored.has(RowId::Invitation(token(1))), "an invitation that was withdrawn is open again");
    // A store that has lost everything has epoch 0, and accepts everything.
    assert_eq!([Age::of(3, 0), Age::of(3, 3)], [Age::Same; 2]);
}

/// An action of an operator or a client.
#[derive(Clone, Copy, Debug)]
enum Act {
    Enrol(u8),
    Remove(u8),
    Disable(u8, bool),
    Rename(u8),
    Invite(u8),
    Use(u8),
    Withdraw(u8),
}

fn act() -> impl Strategy<Value = Act> {
    let number = 1..6_u8;
    prop_oneof![
        3 => number.clone().prop_map(Act::Enrol),
        1 => number.clone().prop_map(Act::Remove),
        1 => (number.clone(), any::<bool>()).prop_map(|(number, on)| Act::Disable(number, on)),
        1 => number.clone().prop_map(Act::Rename),
        2 => number.clone().prop_map(Act::Invite),
        1 => number.clone().prop_map(Act::Use),
        1 => number.prop_map(Act::Withdraw),
    ]
}

fn carry_out(store: &mut Rows, act: Act, revision: i64) {
    let of = |store: &Rows, number| store.client(key(number)).cloned();
    let is_open = |store: &Rows, number| {
        let row = store.content(RowId::Invitation(token(number)));
        row.is_set() && !is_used(&row)
    };
    let rows: Vec<RowChange> = match act {
        Act::Enrol(number) if of(store, number).is_none() && !store.has(RowId::Removed(key(number))) => {
            vec![client(number).into()]
        }
        Act::Remove(number) if of(store, number).is_some() => {
            vec![RowId::Client(key(number)).deletion(), removed(number)]
        }
        Act::Disable(number, disabled) => {
            of(store, number).map(|client| Client { disabled, ..client }.into()).into_iter().collect()
        }
        Act::Rename(number) => of(store, number)
            .map(|client| Client { name: format!("c{number}r{revision}"), ..client }.into())
            .into_iter()
            .collect(),
        Act::Invite(number) if !store.has(RowId::Invitation(token(number + 100))) => {
            vec![invitation(number, None)]
        }
        Act::Use(number) if is_open(store, number) => vec![invitation(number, Some(key(number)))],
        Act::Withdraw(number) if is_open(store, number) => vec![RowId::Invitation(token(number)).deletion()],
        Act::Enrol(_) | Act::Remove(_) | Act::Invite(_) | Act::Use(_) | Act::Withdraw(_) => Vec::new(),
    };
    rows.into_iter().for_each(|row| store.put(row, revision));
}

proptest! {
    /// A copy of an earlier epoch adds what the store lacks, and changes nothing else.
    #[test]
    fn a_copy_of_an_earlier_epoch_only_adds(
        earlier in proptest::collection::vec(act(), 1..40),
        later in proptest::collection::vec(act(), 1..40),
        is_restored: bool,
    ) {
        let [copy, before] = [(earlier, 10_000), (later, 100)].map(|(acts, first)| {
            let mut rows = Rows::default();
            (first..).zip(acts).for_each(|(revision, act)| carry_out(&mut rows, act, revision));
            rows
        });
        let mut store = before.clone();
        bring_back(&copy, &mut store, Basis::of_command(Age::of(1, 2), 10_050, Some(150), is_restored), &mut 150);
        for number in 1..6 {
            let [copied, was, is] = [&copy, &before, &store].map(|rows| rows.client(key(number)));
            let is_removed = [&copy, &before].map(|rows| rows.has(RowId::Removed(key(number))));
            match was {
                Some(_) if is_restored && is_removed[0] => prop_assert_eq!(is, None),
                Some(was) => {
                    let disabled = was.disabled || (is_restored && copied.is_some_and(|copied| copied.disabled));
                    prop_assert_eq!(is, Some(&Client { disabled, ..was.clone() }));
                }
                None if is_removed == [false, false] => prop_assert_eq!(is, copied),
                None => prop_assert_eq!(is, None),
            }
            let id = RowId::Invitation(token(number));
            let [copied, was] = [&copy, &before].map(|rows| rows.content(id));
            // A token that was used stays used. The store may have lost that fact, or the whole row.
            let is_spent = is_used(&copied) && !is_used(&was) && (is_restored || !was.is_set());
            prop_assert_eq!(store.content(id), if is_spent { copied } else { was });
        }
    }

    /// The following holds no matter with which copy an operator recovers, and in which order the links connect. A key that any
    /// copy lists as removed stays removed. A row of the newest copy exists in the store. No client is enabled and no invitation
    /// is open that was not so before.
    #[test]
    fn all_copies_together_lose_nothing_and_let_nobody_in(
        acts in proptest::collection::vec(act(), 1..40),
        backup in 0..40_usize,
        copies in proptest::collection::vec(0..40_usize, 1..4),
        is_lost: bool,
    ) {
        let mut history = vec![Rows::default()];
        for (at, act) in acts.iter().enumerate() {
            let mut next = history[at].clone();
            // A token belongs to only one invitation.
            let was_invited = matches!(act, Act::Invite(number)
                if history.iter().any(|rows| rows.has(RowId::Invitation(token(*number)))));
            if !was_invited {
                carry_out(&mut next, *act, i64::try_from(at + 1).unwrap());
            }
            history.push(next);
        }
        let at = |wanted: usize| wanted.min(acts.len());
        let mut store = if is_lost { Rows::default() } else { history[at(backup)].clone() };
        let mut revision = if is_lost { 0 } else { i64::try_from(at(backup)).unwrap() };
        let copies: Vec<(i64, &Rows)> =
            copies.iter().map(|copy| (i64::try_from(at(*copy)).unwrap(), &history[at(*copy)])).collect();

        let (first, began) = (copies[0], revision);
        let basis = Basis::of_command(Age::Same, first.0, (!is_lost).then_some(began), true);
        bring_back(first.1, &mut store, basis, &mut revision);
        revision += 1;
        let recovery = Recovery { epoch: 1, revision: first.0, store: began };
        let pools = Pools { ipv4: None, ipv6: None };
        let meta = Meta { format: FORMAT, id: "f".to_owned(), epoch: 2, pools, recoveries: vec![recovery] };
        let found =
            Found { revision, began: revision, ..crate::returned::tests::found() };
        let mut returned = Returned::default();
        let exits: Vec<_> =
            (0..copies.len()).map(|index| ExitId::try_from(format!("exit{index}")).unwrap()).collect();
        for (index, (copied, rows)) in copies.iter().enumerate() {
            let position = Position { epoch: 1, revision: *copied, own: 1, ..Position::default() };
            let basis = Basis::of_link(&position, &meta, &found);
            bring_back(rows, &mut store, basis, &mut revision);
            let text = serde_json::to_string(&returned).unwrap();
            returned = serde_json::from_str(&text).unwrap();
            returned.come_back((&exits[index], meta.epoch), (&position, rows), &store, basis);
            prop_assert_eq!(returned.missing(exits.iter()).len(), exits.len() - index - 1);
        }
        // Every exit has come back.
        let groups = returned.open().map(|row| vec![row.clone()]).collect();
        store_all(&mut store, groups, &mut revision);

        let restored = if is_lost { Rows::default() } else { history[at(backup)].clone() };
        let mut known: Vec<(i64, &Rows)> = copies.clone();
        if !is_lost {
            known.push((began, &restored));
        }
        let newest = known.iter().max_by_key(|(revision, _)| *revision).unwrap().1;
        for number in 1..6 {
            let is_removed = known.iter().any(|(_, rows)| rows.has(RowId::Removed(key(number))));
            let stored = store.client(key(number));
            prop_assert!(!is_removed || stored.is_none(), "{number} is back");
            let expected = newest.client(key(number));
            prop_assert_eq!(stored.is_some(), expected.is_some(), "client {}", number);
            prop_assert!(stored.is_none_or(|stored| stored.disabled) || !expected.is_some_and(|it| it.disabled));
            // A row that one link has put back counts as newer than a later link's row.
            if let (Some(stored), Some(expected), ..=2) = (stored, expected, copies.len()) {
                prop_assert_eq!(&stored.name, &expected.name);
            }
            let id = RowId::Invitation(token(number));
            let (stored, expected) = (store.content(id), newest.content(id));
            prop_assert!(!stored.is_set() || is_used(&stored) || expected == stored, "{:?} is open again", stored);
            prop_assert!(!is_used(&expected) || is_used(&stored), "{:?} may be used again", expected);
            prop_assert!(!is_open_invitation(&expected) || stored == expected, "{:?} is lost", expected);
        }
    }
}
