use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::time::{Duration, SystemTime};

use proptest::prelude::*;
use warren_session::PublicKey;
use warren_session::clients::{Client, Invitation, RemovedKey};

use super::*;

/// A store in a directory of its own.
struct Place {
    directory: tempfile::TempDir,
    path: PathBuf,
}

impl Place {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self { path: directory.path().join("clients.store"), directory }
    }

    fn open(&self) -> (ClientStore, ClientRegistry) {
        ClientStore::open(self.path.clone()).unwrap()
    }

    /// A store with these clients, one transaction each.
    fn with(numbers: std::ops::Range<u8>) -> (Self, ClientStore) {
        let place = Self::new();
        let (mut store, _) = place.open();
        for number in numbers {
            store.save(&[put(number, number)], no_rows).unwrap();
        }
        (place, store)
    }

    fn bytes(&self) -> Vec<u8> {
        fs::read(&self.path).unwrap()
    }

    fn refusal(&self) -> String {
        ClientStore::open(self.path.clone()).unwrap_err().to_string()
    }

    fn names(&self) -> Vec<String> {
        self.open().1.iter().map(|client| client.name.clone()).collect()
    }
}

fn no_rows() -> std::iter::Empty<RowChange> {
    std::iter::empty()
}

fn key(number: u8) -> PublicKey {
    PublicKey([number; 32])
}

fn put(key_number: u8, name: u8) -> RowChange {
    let seen = SystemTime::UNIX_EPOCH + Duration::from_secs(name.into());
    let mut client = Client::new(format!("client-{name}"), key(key_number), SystemTime::UNIX_EPOCH);
    client.last_seen = Some(seen);
    client.prefixes = vec![format!("10.{key_number}.0.0/16").parse().unwrap()];
    RowChange::Client { key: key(key_number), client: Some(client) }
}

fn take(number: u8) -> RowChange {
    RowChange::Client { key: key(number), client: None }
}

fn invite(number: u8, is_put: bool) -> RowChange {
    let token = warren_session::invite::InviteToken::new([number; 16]).digest();
    let invitation = is_put.then(|| Invitation {
        name: format!("guest-{number}"),
        token_sha256: token,
        expires: SystemTime::UNIX_EPOCH + Duration::from_secs(99),
        used_by: None,
        upgrades: None,
    });
    RowChange::Invitation { token, invitation }
}

fn remove(number: u8, is_put: bool) -> RowChange {
    let removed = is_put.then(|| RemovedKey {
        name: "gone".to_owned(),
        public_key: key(number),
        removed: SystemTime::UNIX_EPOCH,
    });
    RowChange::Removed { key: key(number), removed }
}

/// Rows that never conflict: client `n` has the name and prefix `n`, and the keys of removed clients belong to no
/// client.
fn change() -> impl Strategy<Value = RowChange> {
    (0_u8..20, any::<bool>(), 0..3).prop_map(|(number, is_put, kind)| match (kind, is_put) {
        (0, true) => put(number, number),
        (0, false) => take(number),
        (1, _) => invite(number, is_put),
        _ => remove(100 + number, is_put),
    })
}

/// The expected content of the store, as a map from a row's name to its last change.
#[derive(Clone, Default)]
struct Model(BTreeMap<String, RowChange>);

impl Model {
    fn apply(&mut self, changes: &[RowChange]) {
        for change in changes {
            let (name, is_put) = match change {
                RowChange::Client { key, client } => (format!("2 {key}"), client.is_some()),
                RowChange::Invitation { token, invitation } => (format!("3 {token:?}"), invitation.is_some()),
                RowChange::Removed { key, removed } => (format!("1 {key}"), removed.is_some()),
            };
            self.0.remove(&name);
            if is_put {
                self.0.insert(name, change.clone());
            }
        }
    }

    fn rows(&self) -> Vec<RowChange> {
        self.0.values().cloned().collect()
    }

    fn registry(&self) -> ClientRegistry {
        ClientRegistry::from_rows(self.rows()).unwrap()
    }
}

#[derive(Clone, Debug)]
enum Step {
    Save(Vec<RowChange>),
    /// The process dies after it has written a part of its line. The flag says whether zeros take the place of the missing part.
    Die(Vec<RowChange>, prop::sample::Index, bool),
    Reopen,
    /// The next change makes a snapshot.
    Snapshot,
    /// Somebody deletes the file.
    Delete,
}

fn step() -> impl Strategy<Value = Step> {
    let changes = || prop::collection::vec(change(), 1..5);
    prop_oneof![
        8 => changes().prop_map(Step::Save),
        3 => (changes(), any::<prop::sample::Index>(), any::<bool>()).prop_map(|(changes, at, zeros)| Step::Die(changes, at, zeros)),
        1 => Just(Step::Reopen),
        1 => Just(Step::Snapshot),
        1 => Just(Step::Delete),
    ]
}

proptest! {
    #[test]
    fn store_holds_what_a_map_would_through_kills_at_any_byte(steps in prop::collection::vec(step(), 1..30)) {
        let place = Place::new();
        let (mut store, _) = place.open();
        let mut model = Model::default();
        for step in steps {
            match step {
                Step::Save(changes) => {
                    store.save(&changes, || model.rows().into_iter()).unwrap();
                    model.apply(&changes);
                }
                Step::Die(changes, at, zeros) => {
                    let file = || fs::metadata(&place.path).ok().map(|file| file.ino());
                    let (before, file_before) = (fs::read(&place.path).unwrap_or_default(), file());
                    store.save(&changes, || model.rows().into_iter()).unwrap();
                    let after = place.bytes();
                    // After a snapshot, the store is another file, even if it has the same beginning as the old one.
                    let is_appended = file_before.is_some() && file() == file_before;
                    if let Some(line) = after.strip_prefix(&*before).filter(|_| is_appended) {
                        let kept = at.index(line.len());
                        let file = fs::OpenOptions::new().write(true).open(&place.path).unwrap();
                        file.set_len((before.len() + kept) as u64).unwrap();
                        if zeros {
                            file.set_len(after.len() as u64).unwrap();
                        }
                    } else {
                        // A snapshot replaces the file as a whole, so the process died before the change or after it.
                        model.apply(&changes);
                    }
                    let (again, registry) = place.open();
                    prop_assert_eq!(registry, model.registry());
                    store = again;
                }
                Step::Reopen => store = place.open().0,
                Step::Snapshot => store.snapshot_at = 0,
                Step::Delete => drop(fs::remove_file(&place.path)),
            }
        }
        store.save(&[put(50, 50)], || model.rows().into_iter()).unwrap();
        model.apply(&[put(50, 50)]);
        prop_assert_eq!(place.open().1, model.registry());
        let names: Vec<_> = fs::read_dir(place.directory.path()).unwrap().collect();
        prop_assert_eq!(names.len(), 1, "nothing is left beside it");
    }

    #[test]
    fn a_change_of_any_byte_is_noticed(at in any::<prop::sample::Index>(), bit in 0_u32..8) {
        let (place, _) = Place::with(0..4);
        let mut bytes = place.bytes();
        let at = at.index(bytes.len() - 1);
        bytes[at] ^= 1 << bit;
        fs::write(&place.path, &bytes).unwrap();
        // The import's mark in the first line has no checksum, so a change of the mark is not noticed.
        let is_mark = bytes.iter().position(|byte| *byte == b'\n').is_some_and(|end| at + 1 == end);
        match ClientStore::open(place.path) {
            Err(error) => prop_assert!(error.to_string().contains("; restore the file from a backup") || error.to_string().contains("newer version"), "{error}"),
            Ok((_, registry)) => prop_assert!(is_mark || bytes[at] == 0 || registry.len() == 4, "{at}"),
        }
    }

    #[test]
    fn any_bytes_are_read_or_refused_in_one_sentence(bytes in prop::collection::vec(any::<u8>(), 0..200), is_ours in any::<bool>()) {
        let place = Place::new();
        let head: &[u8] = if is_ours { b"warren-clients 1 -\n" } else { b"" };
        fs::write(&place.path, [head, &bytes].concat()).unwrap();
        if let Err(error) = ClientStore::open(place.path) {
            prop_assert!(!error.to_string().contains('\n'));
        }
    }
}

#[test]
fn change_of_one_row_appends_one_line() {
    let (place, mut store) = Place::with(0..3);
    let before = place.bytes();
    store.save(&[put(1, 1), take(2), invite(7, true)], no_rows).unwrap();
    let after = place.bytes();
    let line = std::str::from_utf8(after.strip_prefix(&*before).unwrap()).unwrap();
    assert_eq!(line.matches('\n').count(), 1);
    assert!(line.contains("\"name\":\"client-1\"") && line.contains("no_client"), "{line}");
    assert_eq!(place.names(), ["client-0", "client-1"]);
}

#[test]
fn outdated_rows_make_room_for_a_snapshot() {
    let (place, mut store) = Place::with(0..3);
    for _ in 0..OUTDATED + 1 {
        store.save(&[put(1, 1)], || [put(0, 0), put(1, 1)].into_iter()).unwrap();
    }
    assert!(place.bytes().len() < 2_000, "{} bytes", place.bytes().len());
    assert_eq!(place.names(), ["client-0", "client-1"]);
}

#[test]
fn large_transaction_is_a_snapshot() {
    let (place, mut store) = Place::with(0..3);
    let many: Vec<_> = (0..LONGEST / 100).map(|_| put(9, 9)).collect();
    store.save(&many, || [put(4, 4)].into_iter()).unwrap();
    assert_eq!(place.names(), ["client-4", "client-9"]);
}

#[test]
fn damage_is_refused_and_a_torn_end_is_not() {
    let (place, _) = Place::with(0..3);
    let good = String::from_utf8(place.bytes()).unwrap();
    let lines: Vec<&str> = good.lines().collect();
    let with = |text: &str| fs::write(&place.path, text).unwrap();

    with(&good.replacen("client-1", "client-7", 1));
    assert!(
        place.refusal().contains("clients.store:3: is damaged or was edited by hand; restore"),
        "{}",
        place.refusal()
    );
    with(&good.replacen("client-2", "client-7", 1));
    assert!(place.refusal().contains("clients.store:4: is damaged"), "the last line too");
    with(&format!("{good}{}", &lines[2][..30]));
    assert_eq!(place.names().len(), 3);
    with(&format!("{good}{}\n{}\n", "\0".repeat(30), lines[2]));
    assert!(place.refusal().contains(":5: is damaged"), "a torn line is the last");
    with("");
    assert!(place.refusal().contains(":1: is damaged or not an exit's clients"));
    with(&good.replacen("warren-clients 1", "warren-clients 3", 1));
    assert!(
        place.refusal().contains("newer version of Warren (format 3, this one reads 2)"),
        "{}",
        place.refusal()
    );
}

#[test]
fn what_somebody_else_wrote_is_not_overwritten_until_it_is_read() {
    let (place, mut store) = Place::with(0..3);
    let edited = [place.bytes(), b"half a line".to_vec()].concat();
    for is_replaced in [false, true] {
        if is_replaced {
            fs::remove_file(&place.path).unwrap();
        }
        fs::write(&place.path, &edited).unwrap();
        let refused = store.save(&[put(5, 5)], no_rows).unwrap_err().to_string();
        assert!(refused.contains("run `warren reload exit` first"), "{refused}");
        assert_eq!(place.bytes(), edited);
    }
    let (mut store, _) = place.open();
    store.save(&[put(5, 5)], no_rows).unwrap();
    fs::remove_file(&place.path).unwrap();
    store.save(&[put(6, 6)], || [put(5, 5)].into_iter()).unwrap();
    assert_eq!(place.names(), ["client-5", "client-6"], "a deleted file is written again");
}

#[test]
fn failed_snapshot_leaves_the_store_as_it_was() {
    let (place, mut store) = Place::with(0..3);
    let before = place.bytes();
    // A directory at this path makes the rename fail, even for root.
    let aside = place.directory.path().join("aside");
    fs::rename(&place.path, &aside).unwrap();
    fs::create_dir(&place.path).unwrap();
    assert!(store.save(&[put(5, 5)], no_rows).is_err());
    fs::remove_dir(&place.path).unwrap();
    fs::rename(&aside, &place.path).unwrap();
    assert_eq!(place.bytes(), before);
    store.save(&[put(5, 5)], no_rows).unwrap();
    assert_eq!(place.names().len(), 4);
}

#[test]
fn torn_end_is_cut_off_by_the_next_change() {
    let (place, _) = Place::with(0..3);
    let length = place.bytes().len() as u64;
    let file = fs::OpenOptions::new().write(true).open(&place.path).unwrap();
    file.write_all_at(&[b'x'; 10_000], length).unwrap();
    let (mut store, registry) = place.open();
    assert_eq!(registry.len(), 3);
    store.save(&[put(5, 5)], no_rows).unwrap();
    assert!((place.bytes().len() as u64) < length + 1_000);
    assert_eq!(place.names().len(), 4);
}

#[test]
fn only_a_store_with_a_wireguard_client_is_too_new_for_earlier_versions() {
    let (place, mut store) = Place::with(1..3);
    let format = |place: &Place| String::from_utf8(place.bytes()).unwrap()[..17].to_owned();
    assert_eq!(format(&place), "warren-clients 1 ");
    let mut phone = Client::new("phone", key(9), SystemTime::UNIX_EPOCH);
    let preshared_key = Some(warren_session::clients::PresharedKey::new([7; 32]));
    phone.wireguard = Some(warren_session::clients::WireGuardClient { preshared_key });
    let (_, before) = place.open();

    store.save(&[phone.clone().into()], || before.rows()).unwrap();

    assert_eq!(format(&place), "warren-clients 2 ");
    let (mut store, registry) = place.open();
    assert_eq!(registry.by_name("phone"), Some(&phone));
    assert_eq!(registry.len(), 3);
    store.save(&[put(4, 4)], || registry.rows()).unwrap();
    assert_eq!(place.open().1.len(), 4, "later changes are appended");
    assert_eq!(format(&place), "warren-clients 2 ");
    fs::write(&place.path, "warren-clients 3 -\n").unwrap();
    assert!(place.refusal().contains("format 3, this one reads 2"), "{}", place.refusal());
}
