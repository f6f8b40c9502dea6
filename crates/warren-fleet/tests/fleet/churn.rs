//! Three exits that enrol, invite and remove at once while the store has faults. Then the recorded history is checked.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use warren_fleet_link::Outcome;
use warren_session::PublicKey;
use warren_session::clients::RowChange;

use super::support::etcd::Store;
use super::support::exit::{Exit, Seen, id};
use super::support::proxy::{CUT, CUT_TO_EXIT, CUT_TO_STORE, OPEN, Ways};
use super::support::wait_for;
use super::{client, invitation, number_key, removal, three_exits_one_behind_a_way};

const TOKENS: u16 = 6000;

/// An operation that has ended.
struct Done {
    what: What,
    outcome: Outcome,
}

enum What {
    Enrol { token: u16, key: PublicKey },
    Remove { key: PublicKey },
}

#[test]
fn a_history_with_faults_has_nothing_twice_and_loses_nothing() {
    let (fleet, ways) = three_exits_one_behind_a_way();
    let seconds = std::env::var("WARREN_CHURN_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(20);
    let open: Vec<RowChange> = (0..TOKENS).map(|token| invitation("churn", token, None).into()).collect();
    for part in open.chunks(500) {
        fleet.exits[0].store(part);
    }
    for exit in &fleet.exits {
        exit.wait("the invitations are known", |seen| (seen.rows.len() == open.len()).then_some(()));
    }
    let history = Mutex::new(Vec::new());
    let (is_over, keys) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for (index, exit) in fleet.exits.iter().enumerate() {
            let (history, is_over, keys) = (&history, &is_over, &keys);
            scope.spawn(move || work(exit, index, history, is_over, keys));
        }
        disturb(&fleet.store, &ways, Duration::from_secs(seconds));
        is_over.store(true, Ordering::SeqCst);
    });
    let history = history.into_inner().unwrap();
    // The last request may have been given up and land later.
    std::thread::sleep(Duration::from_secs(3));
    let last = number_key(1_000_000);
    fleet.exits[1].store(&[client("last", last).into()]);
    for exit in &fleet.exits {
        wait_for("all exits are level", Duration::from_secs(10), || exit.client(last).map(drop));
    }
    let rows = fleet.exits[0].seen(|seen| seen.rows.clone());
    for exit in &fleet.exits {
        exit.wait("the exits agree", |seen| (seen.rows == rows).then_some(()));
    }
    check(&history, &rows);
    check_claims(&fleet.store, &rows);
}

/// Enrols and removes, as fast as the answers come.
fn work(exit: &Exit, index: usize, history: &Mutex<Vec<Done>>, is_over: &AtomicBool, keys: &AtomicUsize) {
    let mut random = u64::try_from(index).unwrap() + 1;
    while !is_over.load(Ordering::SeqCst) {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let dice = usize::try_from(random >> 33).unwrap();
        let mut what = None;
        let answer = exit.propose(|seen| {
            if dice % 4 == 0 {
                let (name, key) = any_client(seen, dice / 4)?;
                what = Some(What::Remove { key });
                return Some(removal(&name, key));
            }
            // Tokens are used up one after the other, so that all exits want the same ones.
            let token = (0..TOKENS).find(|token| is_open(seen, *token))?;
            let key = number_key(keys.fetch_add(1, Ordering::SeqCst));
            // Few names and addresses, for the same reason.
            let mut enrolled = client(&format!("client{}", dice / 7 % 100), key);
            enrolled.leased_ipv4 = Some([10, 0, 0, u8::try_from(dice / 11 % 100).unwrap()].into());
            what = Some(What::Enrol { token, key });
            Some(vec![enrolled.into(), invitation("churn", token, Some(key)).into()])
        });
        let Some((answer, what)) = answer.zip(what) else {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        };
        let outcome = answer.recv_timeout(Duration::from_secs(3)).expect("no answer within 3 s").0;
        history.lock().unwrap().push(Done { what, outcome });
    }
}

fn any_client(seen: &Seen, number: usize) -> Option<(String, PublicKey)> {
    let clients = seen.rows.values().filter_map(|row| match row {
        RowChange::Client { client: Some(client), key } => Some((client.name.clone(), *key)),
        _ => None,
    });
    clients.clone().nth(number % clients.count().max(1))
}

fn is_open(seen: &Seen, token: u16) -> bool {
    let open = RowChange::from(invitation("churn", token, None));
    seen.rows.get(&id(&open)) == Some(&open)
}

/// Stops leaders, cuts ways and compacts, one fault after the other.
fn disturb(store: &Store, ways: &Ways, time: Duration) {
    let since = Instant::now();
    for round in 0.. {
        if since.elapsed() > time {
            return;
        }
        std::thread::sleep(Duration::from_millis(1500));
        match round % 5 {
            0 => ways.set(CUT_TO_STORE),
            1 => ways.set(CUT_TO_EXIT),
            2 => ways.set(CUT),
            3 => {
                let leader = store.leader();
                store.signal(leader, "STOP");
                std::thread::sleep(Duration::from_millis(3000));
                store.signal(leader, "CONT");
            }
            _ => drop(store.etcdctl(&["compact", &store.revision().to_string()])),
        }
        std::thread::sleep(Duration::from_millis(2500));
        ways.set(OPEN);
    }
}

fn check(history: &[Done], rows: &BTreeMap<String, RowChange>) {
    let is_stored = |done: &&Done| matches!(done.outcome, Outcome::Stored { .. });
    let has = |name: String| rows.contains_key(&name);
    // Tried, not only stored: a removal without an answer may hold.
    let tried_to_remove: BTreeSet<PublicKey> = history
        .iter()
        .filter(|done| done.outcome != Outcome::Conflict)
        .filter_map(|done| match done.what {
            What::Remove { key } => Some(key),
            What::Enrol { .. } => None,
        })
        .collect();
    let mut used: BTreeMap<u16, PublicKey> = BTreeMap::new();
    let (mut enrolled, mut removed) = (0, 0);
    for done in history.iter().filter(is_stored) {
        match done.what {
            What::Enrol { token, key } => {
                enrolled += 1;
                assert_eq!(used.insert(token, key), None, "token {token} has enrolled two keys");
                let mark = RowChange::from(invitation("churn", token, Some(key)));
                assert_eq!(rows.get(&id(&mark)), Some(&mark), "token {token}");
                assert!(
                    has(format!("client {key}")) || tried_to_remove.contains(&key),
                    "token {token}: an enrolment is lost"
                );
            }
            What::Remove { key } => {
                removed += 1;
                assert!(!has(format!("client {key}")), "a removed client is back");
                assert!(has(format!("removed {key}")), "a removed key is forgotten");
            }
        }
    }
    let conflicts = history.iter().filter(|done| done.outcome == Outcome::Conflict).count();
    let away = history.iter().filter(|done| done.outcome == Outcome::Unavailable).count();
    println!(
        "{} operations: {enrolled} enrolled, {removed} removed, {conflicts} conflicts, {away} unavailable",
        history.len()
    );
    assert!(enrolled > 0 && removed > 0 && conflicts > 0 && away > 0, "the test does not test");
}

/// Each name, address and next key in the store is that of one client, and each client has its own.
fn check_claims(store: &Store, rows: &BTreeMap<String, RowChange>) {
    let keys = store.etcdctl_ok(&["get", "--prefix", "/warren/fleet/", "--keys-only"]);
    let claimed: BTreeSet<_> = keys
        .lines()
        .filter_map(|key| key.strip_prefix("/warren/fleet/"))
        .filter(|key| key.starts_with("na/") || key.starts_with("ad/") || key.starts_with("nk/"))
        .map(str::to_owned)
        .collect();
    let mut wanted = BTreeSet::new();
    for row in rows.values() {
        if let RowChange::Client { client: Some(client), .. } = row {
            assert!(wanted.insert(format!("na/{}", client.name)), "two clients are called {}", client.name);
            if let Some(address) = client.leased_ipv4 {
                assert!(wanted.insert(format!("ad/{address}")), "two clients have {address}");
            }
        }
    }
    assert_eq!(claimed, wanted);
}
