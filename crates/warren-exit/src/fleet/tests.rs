//! Tests the exit's side of the fleet, without a socket.

use std::path::Path;
use std::time::UNIX_EPOCH;

use tokio::sync::mpsc::Receiver;
use warren_fleet_link::{ExitId, ExitState, LINK_VERSION, Pools, RemovedExit};
use warren_session::clients::{Client, RemovedKey};
use warren_session::exit::{ExitAction, SessionConfig, StoreRequestId};

use super::*;

const ALICE: PublicKey = PublicKey([1; 32]);
const BOB: PublicKey = PublicKey([2; 32]);

/// An exit of a fleet. The test plays its `warren-fleet`.
struct Member {
    fleet: Fleet,
    sessions: ExitSessions,
    store: ClientStore,
    directory: tempfile::TempDir,
    said: Option<Receiver<ExitMessage>>,
    links: u64,
}

impl Member {
    fn start() -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), Some(Duration::from_secs(3_600)))
    }

    fn start_in(directory: tempfile::TempDir, max_staleness: Option<Duration>) -> Self {
        let (store, registry) = ClientStore::open(directory.path().join("clients.store")).unwrap();
        let config =
            SessionConfig { ipv4: Some("10.66.0.0/24".parse().unwrap()), ..SessionConfig::default() };
        let entropy = Box::new(|bytes: &mut [u8]| bytes.fill(7));
        let mut sessions =
            ExitSessions::new(config, registry, Instant::now(), SystemTime::now(), entropy).unwrap();
        let settings = FleetSettings { name: "ams1".to_owned(), max_staleness };
        let fleet = Fleet::resume(settings, &store, &mut sessions).unwrap();
        Self { fleet, sessions, store, directory, said: None, links: 0 }
    }

    /// An exit that could not write this change to its disk.
    fn with_unsaved(change: Vec<RowChange>) -> Self {
        let mut exit = Self::start_in(tempfile::tempdir().unwrap(), None);
        exit.link(rows());
        exit.save();
        break_disk(&exit, true);
        exit.hear(FleetMessage::Changes { revision: 5, rows: change }).unwrap();
        exit.save();
        exit
    }

    fn save(&mut self) {
        (0..2).for_each(|_| self.fleet.copy(&mut self.store, &mut self.sessions));
    }

    /// What the exit does now.
    fn state(&mut self) -> ExitState {
        self.fleet.serve(Instant::now(), &mut self.sessions);
        self.fleet.serving.state()
    }

    /// Kills the exit and starts it again.
    fn restart(self) -> Self {
        let max_staleness = self.fleet.settings.max_staleness;
        Self::start_in(self.directory, max_staleness)
    }

    fn connect(&mut self) {
        let (link, said) = mpsc::channel(100);
        self.links += 1;
        let hello = ExitMessage::Hello {
            version: LINK_VERSION,
            release: String::new(),
            exit: ExitId::try_from("ams1".to_owned()).unwrap(),
            key: ALICE,
            endpoints: Vec::new(),
            pools: Pools { ipv4: None, ipv6: None },
            max_staleness: None,
        };
        self.fleet.connected(self.links, link, (hello, ALICE), &mut self.sessions);
        self.said = Some(said);
    }

    /// Connects a link to a store that has these clients.
    fn link(&mut self, rows: Vec<RowChange>) {
        self.connect();
        self.hear(FleetMessage::Answered { ago: Duration::ZERO }).unwrap();
        self.hear(FleetMessage::Store(StoreLink::Reachable)).unwrap();
        self.hear(FleetMessage::Whole { revision: 1, rows, is_last: true }).unwrap();
        self.act();
        self.requests();
    }

    fn hear(&mut self, message: FleetMessage) -> Result<Followed, String> {
        self.fleet.take(Instant::now(), message, &mut self.sessions)
    }

    /// Carries out the actions of the state machine that concern the store.
    fn act(&mut self) {
        while let Some(action) = self.sessions.poll_action() {
            if let ExitAction::Store(request) = action {
                self.fleet.ask(request, &mut self.store, &mut self.sessions);
            }
        }
    }

    fn said(&mut self) -> Vec<ExitMessage> {
        let said = self.said.as_mut().unwrap();
        std::iter::from_fn(|| said.try_recv().ok()).collect()
    }

    /// The requests that were made since the latest call.
    fn requests(&mut self) -> Vec<(u64, Vec<RowChange>)> {
        let said = self.said();
        let request = |message| {
            let ExitMessage::Request { id, rows } = message else { return None };
            Some((id, rows))
        };
        said.into_iter().filter_map(request).collect()
    }

    fn add(&mut self, name: &str, key: PublicKey) -> Verdict {
        let id = self.sessions.add_client(client(name, key), None).unwrap().unwrap();
        self.fleet.watch(id);
        self.act();
        self.fleet.verdict(id)
    }

    fn remove(&mut self, name: &str) {
        self.sessions.remove_client(Instant::now(), name).unwrap();
        self.act();
    }

    fn has(&self, key: PublicKey) -> bool {
        self.sessions.registry().by_key(key).is_some()
    }
}

fn client(name: &str, key: PublicKey) -> Client {
    Client::new(name, key, UNIX_EPOCH)
}

fn rows() -> Vec<RowChange> {
    vec![client("alice", ALICE).into(), client("bob", BOB).into()]
}

fn stored(revision: i64) -> Outcome {
    Outcome::Stored { revision }
}

#[test]
fn a_change_is_in_force_once_the_store_has_it() {
    let mut exit = Member::start();
    exit.link(Vec::new());
    assert_eq!(exit.add("alice", ALICE), Verdict::Open);
    let requests = exit.requests();
    assert_eq!(requests.len(), 1);
    assert!(!exit.has(ALICE), "not before the store has answered");
    exit.hear(FleetMessage::Answer { id: requests[0].0, outcome: stored(2) }).unwrap();
    assert!(exit.has(ALICE));
    assert!(exit.said().contains(&ExitMessage::Applied { revision: 2 }));
    // The change is soon on disk. The exit then has it after a restart, even without a link.
    exit.fleet.handle_timeout(Instant::now() + COPY_WITHIN, &mut exit.store, &mut exit.sessions);
    assert!(exit.restart().has(ALICE));
}

#[test]
fn without_a_store_that_answers_a_proposal_is_refused_at_once_and_nothing_is_sent() {
    let away =
        || FleetMessage::Store(StoreLink::Away { silent: Duration::ZERO, reason: "no route".to_owned() });
    let mut exit = Member::start();
    assert_eq!(exit.add("alice", ALICE), Verdict::NotAsked, "no link");
    exit.connect();
    exit.hear(FleetMessage::Store(StoreLink::Reachable)).unwrap();
    assert_eq!(exit.add("alice", ALICE), Verdict::NotAsked, "no whole copy");
    exit.hear(FleetMessage::Whole { revision: 1, rows: Vec::new(), is_last: true }).unwrap();
    exit.hear(away()).unwrap();
    assert_eq!(exit.add("alice", ALICE), Verdict::NotAsked, "away");
    assert_eq!(exit.requests(), []);
    assert_eq!(exit.fleet.why_away(), "no route");
    // The control: the store can be reached.
    exit.hear(FleetMessage::Store(StoreLink::Reachable)).unwrap();
    assert_eq!(exit.add("alice", ALICE), Verdict::Open);
    assert_eq!(exit.requests().len(), 1);
}

#[test]
fn a_removal_without_the_store_acts_at_once_survives_a_restart_and_is_sent_in_the_end() {
    let mut exit = Member::start();
    exit.link(rows());
    exit.fleet.handle_timeout(Instant::now() + COPY_WITHIN, &mut exit.store, &mut exit.sessions);
    exit.fleet.lose("it was killed", &mut exit.sessions);
    exit.remove("alice");
    assert!(!exit.has(ALICE) && exit.sessions.owes());

    let mut exit = exit.restart();
    assert!(!exit.has(ALICE) && exit.has(BOB), "the removal is on disk");
    // The store still has the client, and another exit has added one.
    let carol = PublicKey([3; 32]);
    exit.connect();
    exit.hear(FleetMessage::Store(StoreLink::Reachable)).unwrap();
    let all = [rows(), vec![client("carol", carol).into()]].concat();
    exit.hear(FleetMessage::Whole { revision: 9, rows: all, is_last: true }).unwrap();
    assert!(!exit.has(ALICE) && exit.has(carol));
    exit.act();

    let requests = exit.requests();
    let sent: Vec<_> = requests.iter().flat_map(|(_, rows)| rows).collect();
    assert!(sent.contains(&&RowChange::Client { key: ALICE, client: None }), "{sent:?}");
    assert!(
        sent.iter().any(|row| matches!(row, RowChange::Removed { key: ALICE, removed: Some(_) })),
        "{sent:?}"
    );
    for (id, _) in requests {
        exit.hear(FleetMessage::Answer { id, outcome: stored(10) }).unwrap();
    }
    assert!(!exit.sessions.owes());
    // After another restart there is nothing left to send.
    exit.fleet.handle_timeout(Instant::now() + COPY_WITHIN, &mut exit.store, &mut exit.sessions);
    assert!(!exit.restart().sessions.owes());
}

#[test]
fn requests_without_an_answer_are_unavailable_once_when_the_link_is_lost() {
    let mut exit = Member::start();
    exit.link(rows());
    exit.remove("alice");
    let id = exit.sessions.add_client(client("carol", PublicKey([3; 32])), None).unwrap().unwrap();
    exit.fleet.watch(id);
    exit.act();
    assert_eq!(exit.requests().len(), 2);
    exit.fleet.lose("it was killed", &mut exit.sessions);
    assert!(matches!(exit.fleet.verdict(id), Verdict::Given(Outcome::Unavailable)));
    exit.fleet.lose("again", &mut exit.sessions);
    assert_eq!(exit.fleet.counts.unavailable, 2, "each once");
    // On the next link, the exit sends again the changes that are in force, but not the proposal.
    exit.connect();
    exit.hear(FleetMessage::Store(StoreLink::Reachable)).unwrap();
    exit.hear(FleetMessage::Whole { revision: 1, rows: rows(), is_last: true }).unwrap();
    exit.act();
    let requests = exit.requests();
    assert_eq!(requests.len(), 1);
    assert!(requests[0].1.contains(&RowChange::Client { key: ALICE, client: None }));
}

#[test]
fn a_removal_that_failed_is_sent_again_as_soon_as_the_link_says_that_the_store_answers() {
    let mut exit = Member::start();
    exit.link(rows());
    exit.remove("alice");
    let [(id, _)] = exit.requests()[..] else { panic!() };
    let again = |exit: &mut Member| {
        exit.hear(FleetMessage::Store(StoreLink::Reachable)).unwrap();
        exit.act();
        exit.requests().len()
    };
    // The control: an unanswered request is sent only once.
    assert_eq!(again(&mut exit), 0);
    // Another member of the store takes over. During that time the link reports that the store is reachable.
    exit.hear(FleetMessage::Answer { id, outcome: Outcome::Unavailable }).unwrap();
    exit.act();
    assert_eq!(exit.requests().len(), 0);
    assert_eq!(again(&mut exit), 1);
    assert_eq!(again(&mut exit), 0, "once");
}

#[test]
fn a_link_that_answers_nothing_is_given_up_before_its_requests_fill_the_memory() {
    let mut exit = Member::start();
    exit.link(rows());
    let now = Instant::now();
    for number in 0..requests::MOST_OPEN as u64 {
        exit.fleet.requests.asked(StoreRequestId(1_000_000 + number), Vec::new(), now);
    }
    // Requests that were given up count too, because their answers could still come.
    exit.fleet.requests.give_up(now + Duration::from_secs(4));
    assert!(exit.fleet.link.is_some());
    exit.add("carol", PublicKey([3; 32]));
    assert!(exit.fleet.link.is_none() && exit.fleet.requests.open() == 0);
    // The control: the next link is used.
    exit.link(rows());
    assert_eq!(exit.add("carol", PublicKey([3; 32])), Verdict::Open);
}

#[test]
fn a_request_that_is_stored_after_it_was_given_up_is_taken_over_all_the_same() {
    let mut exit = Member::start();
    exit.link(Vec::new());
    exit.add("alice", ALICE);
    let id = exit.requests()[0].0;
    let late = Instant::now() + Duration::from_secs(4);
    exit.fleet.handle_timeout(late, &mut exit.store, &mut exit.sessions);
    assert_eq!(exit.fleet.requests.open(), 0);
    assert!(!exit.has(ALICE));
    exit.hear(FleetMessage::Answer { id, outcome: stored(2) }).unwrap();
    assert!(exit.has(ALICE));
}

#[test]
fn what_cannot_be_meant_is_refused_and_a_new_link_puts_it_right() {
    let change = |revision| FleetMessage::Changes { revision, rows: Vec::new() };
    let whole = |revision, is_last| FleetMessage::Whole { revision, rows: rows(), is_last };
    let mut exit = Member::start();
    exit.connect();
    assert!(exit.hear(change(1)).is_err(), "before the whole copy");
    exit.link(rows());
    assert!(exit.hear(change(0)).is_err(), "out of order");
    assert!(exit.hear(FleetMessage::Answer { id: 99, outcome: stored(5) }).is_err(), "to no request");
    let many = vec![RowChange::Client { key: ALICE, client: None }; MAX_ROWS + 1];
    assert!(exit.hear(FleetMessage::Changes { revision: 2, rows: many }).is_err(), "too many rows");
    let twice = [rows(), rows()].concat();
    assert!(
        exit.hear(FleetMessage::Whole { revision: 2, rows: twice, is_last: true }).is_err(),
        "a row twice"
    );
    exit.link(rows());
    assert!(exit.hear(FleetMessage::Whole { revision: 2, rows: Vec::new(), is_last: false }).is_ok());
    assert!(exit.hear(change(3)).is_err(), "within a whole copy");
    assert!(exit.hear(whole(3, true)).is_err(), "another copy within a whole copy");
    let gone = vec![RowChange::Client { key: ALICE, client: None }];
    exit.link(rows());
    assert!(exit.hear(FleetMessage::Whole { revision: 2, rows: gone, is_last: true }).is_err(), "a deletion");
    let roster = FleetMessage::Roster { bytes: vec![0; MAX_ROSTER_LENGTH + 1] };
    assert!(exit.hear(roster).is_err(), "a roster that is too long");
    // The control: no client was lost, and a new link works.
    exit.link(rows());
    assert!(exit.has(ALICE) && exit.has(BOB));
    assert!(exit.hear(change(2)).is_ok());
}

#[test]
fn an_older_copy_of_warren_fleet_takes_nothing_back_while_the_store_is_away() {
    let removed = RemovedKey { name: "alice".to_owned(), public_key: ALICE, removed: UNIX_EPOCH };
    let removal = vec![RowChange::Client { key: ALICE, client: None }, removed.into()];
    let away = StoreLink::Away { silent: Duration::ZERO, reason: String::new() };
    for (store, is_taken_back) in [(away, false), (StoreLink::Reachable, true)] {
        let mut exit = Member::start();
        exit.link(rows());
        exit.hear(FleetMessage::Changes { revision: 5, rows: removal.clone() }).unwrap();
        assert!(!exit.has(ALICE));
        exit.fleet.copy(&mut exit.store, &mut exit.sessions);
        exit.fleet.copy(&mut exit.store, &mut exit.sessions);
        let mut exit = exit.restart();
        exit.connect();
        exit.hear(FleetMessage::Store(store.clone())).unwrap();
        exit.hear(FleetMessage::Whole { revision: 4, rows: rows(), is_last: true }).unwrap();
        // The control: the store itself is always right.
        assert_eq!(exit.has(ALICE), is_taken_back);
        // The link may come back with the same copy.
        exit.fleet.lose("it was killed", &mut exit.sessions);
        exit.connect();
        exit.hear(FleetMessage::Store(store)).unwrap();
        exit.hear(FleetMessage::Whole { revision: 4, rows: rows(), is_last: true }).unwrap();
        assert_eq!(exit.has(ALICE), is_taken_back, "the copy came a second time");
        assert!(exit.has(BOB));
        // The link must not take its old copy for the exit's copy.
        assert_eq!(exit.said().contains(&ExitMessage::Applied { revision: 4 }), is_taken_back);
    }
}

#[test]
fn a_stale_exit_sends_clients_away_and_takes_them_again_when_it_follows_the_store() {
    let mut exit = Member::start_in(tempfile::tempdir().unwrap(), Some(Duration::from_secs(60)));
    exit.link(rows());
    exit.fleet.lose("it was killed", &mut exit.sessions);
    let now = Instant::now();
    let at = |seconds| now + Duration::from_secs(seconds);
    let state = |exit: &Member| exit.fleet.serving.state();
    assert!(!exit.fleet.serve(at(58), &mut exit.sessions));
    assert_eq!(state(&exit), ExitState::Serving);
    assert!(exit.fleet.due().is_some_and(|due| due <= at(61)), "it looks again in time");
    assert!(exit.fleet.serve(at(61), &mut exit.sessions));
    assert_eq!(state(&exit), ExitState::Draining);
    // A link alone is not enough. A reachable store is not enough either, before the exit has read its clients.
    exit.connect();
    exit.hear(FleetMessage::Answered { ago: Duration::ZERO }).unwrap();
    exit.hear(FleetMessage::Store(StoreLink::Reachable)).unwrap();
    exit.fleet.serve(at(3), &mut exit.sessions);
    assert_eq!(state(&exit), ExitState::Draining);
    exit.hear(FleetMessage::Whole { revision: 2, rows: rows(), is_last: true }).unwrap();
    exit.fleet.serve(at(3), &mut exit.sessions);
    assert_eq!(state(&exit), ExitState::Serving);
    // An operator drains the exit from another exit, and then stops the draining.
    exit.hear(FleetMessage::Drain { on: true }).unwrap();
    exit.fleet.serve(at(3), &mut exit.sessions);
    assert_eq!(state(&exit), ExitState::Draining);
    exit.hear(FleetMessage::Drain { on: false }).unwrap();
    exit.fleet.serve(at(3), &mut exit.sessions);
    assert_eq!(state(&exit), ExitState::Serving);
}

#[test]
fn the_time_without_the_store_counts_from_its_answer_whatever_the_link_says_meanwhile() {
    let mut exit = Member::start_in(tempfile::tempdir().unwrap(), Some(Duration::from_secs(60)));
    exit.link(rows());
    let now = Instant::now();
    let at = |seconds| now + Duration::from_secs(seconds);
    // The link is cut off from the store, and counts the store as reachable for a while.
    for seconds in 1..=58 {
        let store = match seconds {
            ..=4 => StoreLink::Reachable,
            _ => StoreLink::Away { silent: Duration::from_secs(seconds), reason: String::new() },
        };
        // At 30 s, the link has just restarted and knows only an earlier answer.
        let ago = Duration::from_secs(if seconds == 30 { 45 } else { seconds });
        for message in [FleetMessage::Store(store), FleetMessage::Answered { ago }] {
            exit.fleet.take(at(seconds), message, &mut exit.sessions).unwrap();
        }
        assert!(!exit.fleet.serve(at(seconds), &mut exit.sessions), "after {seconds} s");
    }
    assert!(exit.fleet.due().is_some_and(|due| due <= at(60)), "it looks again in time");
    assert!(exit.fleet.serve(at(60), &mut exit.sessions));
    // The control: a later answer.
    exit.fleet
        .take(at(70), FleetMessage::Answered { ago: Duration::from_secs(2) }, &mut exit.sessions)
        .unwrap();
    assert_eq!(exit.fleet.serving.silent(at(70)), Duration::from_secs(2));
}

#[test]
fn an_exit_that_ends_takes_no_clients_again_although_nobody_drains_it_from_elsewhere() {
    let mut exit = Member::start();
    exit.link(rows());
    exit.fleet.drain();
    exit.fleet.serve(Instant::now(), &mut exit.sessions);
    exit.hear(FleetMessage::Drain { on: false }).unwrap();
    exit.fleet.serve(Instant::now(), &mut exit.sessions);
    assert_eq!(exit.fleet.serving.state(), ExitState::Draining);
    assert!(!exit.fleet.serving.is_drained(), "nobody has drained it from another exit");
}

#[test]
fn the_time_of_an_answer_gets_to_the_disk_although_nothing_changes() {
    let mut exit = Member::start_in(tempfile::tempdir().unwrap(), Some(Duration::from_secs(60)));
    exit.link(rows());
    exit.fleet.copy(&mut exit.store, &mut exit.sessions);
    exit.fleet.copy(&mut exit.store, &mut exit.sessions);
    assert_eq!(exit.fleet.copy_due, None);
    std::thread::sleep(Duration::from_millis(100));
    exit.hear(FleetMessage::Answered { ago: Duration::ZERO }).unwrap();
    let within = Instant::now() + exit.fleet.file.lag();
    assert!(exit.fleet.due().is_some_and(|due| due <= within));
}

#[test]
fn a_reason_is_one_line_of_bounded_length() {
    let reason = format!("no leader\nforged line \u{1b}[31m{}", "x".repeat(10_000));
    let shown = one_line(&reason);
    assert!(shown.starts_with("no leader forged line ") && shown.len() < 600, "{shown}");
    assert!(!shown.contains(['\n', '\u{1b}']));
}

#[test]
fn a_restart_does_not_make_an_exit_fresh_again() {
    let mut exit = Member::start_in(tempfile::tempdir().unwrap(), Some(Duration::from_secs(60)));
    let now = Instant::now();
    exit.link(rows());
    exit.fleet.end(&mut exit.store, &mut exit.sessions);
    let path = exit.directory.path().join("fleet.json");
    age(&path, 45);
    let mut exit = exit.restart();
    assert!(!exit.fleet.serve(now + Duration::from_secs(10), &mut exit.sessions));
    assert!(exit.fleet.serve(now + Duration::from_secs(20), &mut exit.sessions));
    // The control: an exit without a limit serves forever.
    let mut exit = Member::start_in(tempfile::tempdir().unwrap(), None);
    assert!(!exit.fleet.serve(now + Duration::from_secs(1 << 20), &mut exit.sessions));
}

/// Makes the store's last answer older.
fn age(file: &Path, seconds: u64) {
    let mut kept: Kept = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    kept.answered = kept.answered.map(|answered| answered - seconds);
    std::fs::write(file, serde_json::to_vec(&kept).unwrap()).unwrap();
}

#[test]
fn a_clock_that_is_a_minute_wrong_redeems_nothing() {
    let mut exit = Member::start();
    exit.link(rows());
    for (offset, is_wrong) in [(60_000, false), (60_001, true), (-60_001, true), (0, false)] {
        exit.hear(FleetMessage::Exits {
            own_clock_offset_ms: offset,
            changed: 0,
            exits: Vec::new(),
            removed: Vec::new(),
        })
        .unwrap();
        assert_eq!(exit.fleet.is_clock_wrong(), is_wrong, "{offset}");
        assert_eq!(exit.fleet.status(0).is_clock_wrong, is_wrong);
    }
}

#[test]
fn where_the_store_is_outlasts_a_restart() {
    let mut member = Member::start();
    member.link(Vec::new());
    let known = |member: &Member| member.fleet.store_addresses().all();
    member.hear(members(&[("a", &["192.0.2.1"]), ("b", &[])])).unwrap();
    assert_eq!(known(&member), None, "a name was never looked up");
    let both = addresses(&["192.0.2.1", "2001:db8::1"]);
    member.hear(members(&[("a", &["192.0.2.1"]), ("b", &["2001:db8::1"])])).unwrap();
    assert_eq!(known(&member), Some(both.clone()));
    member.fleet.copy(&mut member.store, &mut member.sessions);
    let mut member = member.restart();
    assert_eq!(known(&member), Some(both));
    member.connect();
    // The link has restarted, and has found one member so far.
    member.hear(members(&[("a", &["192.0.2.9"]), ("b", &[])])).unwrap();
    assert_eq!(known(&member), Some(addresses(&["192.0.2.9", "2001:db8::1"])), "they were known once");
    let full: Vec<String> = (0..MAX_ADDRESSES).map(|last| format!("192.0.2.{last}")).collect();
    let full: Vec<&str> = full.iter().map(String::as_str).collect();
    member.hear(members(&[("a", &full)])).unwrap();
    assert!(
        member.hear(members(&[("a", &full), ("b", &["192.0.3.1"])])).is_err(),
        "more addresses than a message may have"
    );
}

#[test]
fn a_member_that_the_store_gets_later_is_unknown_until_its_name_was_looked_up() {
    let mut member = Member::start();
    member.link(Vec::new());
    let known = |member: &Member| member.fleet.store_addresses().all();
    let before: [(&str, &[&str]); 2] = [("a", &["192.0.2.1"]), ("b", &["192.0.2.2"])];
    let changes: [&[(&str, &[&str])]; 2] =
        [&[("a", &["192.0.2.1"]), ("b", &["192.0.2.2"]), ("c", &[])], &[("a", &[]), ("c", &[])]];
    for change in changes {
        member.hear(members(&before)).unwrap();
        assert_eq!(known(&member), Some(addresses(&["192.0.2.1", "192.0.2.2"])));
        member.hear(members(change)).unwrap();
        assert_eq!(known(&member), None, "{change:?}");
        // A restart does not count as a look-up.
        member.fleet.copy(&mut member.store, &mut member.sessions);
        member = member.restart();
        member.connect();
        assert_eq!(known(&member), None, "{change:?}");
        member.hear(members(change)).unwrap();
        assert_eq!(known(&member), None, "{change:?}");
    }
    member.hear(members(&[("a", &[]), ("c", &["192.0.2.3"])])).unwrap();
    assert_eq!(known(&member), Some(addresses(&["192.0.2.1", "192.0.2.3"])), "the address of b is forgotten");
    // The controls: the same members while their addresses cannot be found, and a list with one member fewer.
    member.hear(members(&[("a", &[]), ("c", &[])])).unwrap();
    assert_eq!(known(&member), Some(addresses(&["192.0.2.1", "192.0.2.3"])));
    member.hear(members(&[("a", &[])])).unwrap();
    assert_eq!(known(&member), Some(addresses(&["192.0.2.1"])));
}

/// The message with these members of the store.
fn members(members: &[(&str, &[&str])]) -> FleetMessage {
    let member =
        |&(endpoint, known): &(&str, &[&str])| (endpoint.to_owned(), addresses(known).into_iter().collect());
    FleetMessage::StoreAddresses { members: members.iter().map(member).collect() }
}

fn addresses(all: &[&str]) -> Vec<IpAddr> {
    all.iter().map(|address| address.parse().unwrap()).collect()
}

#[test]
fn the_load_is_the_fuller_of_pool_and_cores_and_only_a_full_pool_leaves_no_room() {
    let load = |sessions, max_sessions, busy_permille| {
        load_of(&FleetExit {
            exit: ExitId::try_from("ams1".to_owned()).unwrap(),
            key: ALICE,
            endpoints: Vec::new(),
            load: Load { sessions, max_sessions, busy_permille, ..Load::default() },
            state: ExitState::Serving,
            applied: 0,
            is_alive: true,
            clock_offset_ms: 0,
        })
        .permille
    };
    // A thousand clients in a /14 fill almost nothing of the pool.
    assert_eq!((load(1_000, 131_072, 0), load(1_000, 131_072, 640)), (7, 640));
    assert_eq!(load(200, 253, 640), 790);
    assert_eq!((load(0, 253, 1_000), load(253, 253, 1_000)), (900, 1_000));
    assert_eq!((load(5, 0, 0), load(u32::MAX, 0, 0)), (5_000, u32::MAX), "a nonsensical report does no harm");
}

#[test]
fn a_removed_exit_sends_its_clients_away_until_the_store_has_it_again() {
    let mut exit = Member::start_in(tempfile::tempdir().unwrap(), None);
    exit.link(rows());
    let refused =
        |is_removed| FleetMessage::Store(StoreLink::Refused { reason: "no".to_owned(), is_removed });
    // The control: a store that must not be used says nothing about this exit.
    exit.hear(refused(false)).unwrap();
    assert!(!exit.fleet.serve(Instant::now(), &mut exit.sessions));
    assert!(exit.fleet.without_store().contains("clients are still served"));
    exit.hear(refused(true)).unwrap();
    assert!(exit.fleet.serve(Instant::now(), &mut exit.sessions));
    assert_eq!(exit.fleet.serving.state(), ExitState::Draining);
    assert!(exit.fleet.due().is_some_and(|due| due <= Instant::now() + Duration::from_secs(2)));
    exit.fleet.handle_timeout(Instant::now(), &mut exit.store, &mut exit.sessions);
    // Without an answer of the store, this stays so, even after a restart.
    let mut exit = exit.restart();
    exit.connect();
    let away = StoreLink::Away { silent: Duration::ZERO, reason: "permission denied".to_owned() };
    exit.hear(FleetMessage::Store(away)).unwrap();
    assert!(exit.fleet.without_store().contains("this exit serves nobody"));
    assert!(exit.fleet.serve(Instant::now(), &mut exit.sessions));
    assert!(exit.has(ALICE), "nobody has to enrol again");
    exit.link(rows());
    assert!(exit.fleet.serve(Instant::now(), &mut exit.sessions));
    assert_eq!(exit.fleet.serving.state(), ExitState::Serving);
}

#[test]
fn an_exit_that_has_joined_serves_nobody_before_it_has_read_the_store() {
    let mut exit = Member::start_in(tempfile::tempdir().unwrap(), None);
    exit.link(rows());
    exit.fleet.end(&mut exit.store, &mut exit.sessions);
    assert!(!exit.fleet.serve(Instant::now(), &mut exit.sessions), "the control");
    let path = exit.directory.path().join("fleet.json");
    // What `warren fleet join` writes. The exit still runs, and writes the file again when it ends.
    std::fs::write(&path, r#"{"answered":null,"revision":0,"unsent":[],"must_hear":true}"#).unwrap();
    exit.fleet.end(&mut exit.store, &mut exit.sessions);
    assert!(std::fs::read_to_string(&path).unwrap().contains(r#""revision":1"#), "the control");

    let mut exit = exit.restart();

    assert!(exit.has(ALICE), "the clients of the earlier fleet are still there");
    assert_eq!(exit.state(), ExitState::Draining);
    exit.connect();
    let away = StoreLink::Away { silent: Duration::ZERO, reason: "no route".to_owned() };
    exit.hear(FleetMessage::Store(away)).unwrap();
    assert_eq!(exit.state(), ExitState::Draining);
    // A restart does not make it forget.
    exit.fleet.end(&mut exit.store, &mut exit.sessions);
    let mut exit = exit.restart();
    assert_eq!(exit.state(), ExitState::Draining);
    exit.connect();
    exit.hear(FleetMessage::Store(StoreLink::Reachable)).unwrap();
    assert_eq!(exit.state(), ExitState::Draining, "it has no whole copy");
    let bob = vec![client("bob", BOB).into()];
    exit.hear(FleetMessage::Whole { revision: 9, rows: bob, is_last: true }).unwrap();
    assert_eq!(exit.state(), ExitState::Serving);
    let kept = || FleetFile::read(&path, None).unwrap().1;
    exit.fleet.copy(&mut exit.store, &mut exit.sessions);
    assert!(kept().must_hear, "the rows come to the disk first");
    assert!(exit.fleet.copy_due.is_some());
    exit.fleet.copy(&mut exit.store, &mut exit.sessions);
    assert!(!kept().must_hear);
    let mut exit = exit.restart();
    assert!(!exit.has(ALICE) && exit.state() == ExitState::Serving);
}

/// Makes the clients' store one that cannot be written, or puts it back.
fn break_disk(exit: &Member, is_broken: bool) {
    let file = |name: &str| exit.directory.path().join(name);
    if is_broken {
        std::fs::rename(file("clients.store"), file("away")).unwrap();
        std::fs::create_dir(file("clients.store")).unwrap();
    } else {
        std::fs::remove_dir(file("clients.store")).unwrap();
        std::fs::rename(file("away"), file("clients.store")).unwrap();
    }
}

#[test]
fn an_exit_whose_disk_lacks_a_removal_serves_nobody_after_a_restart_before_it_has_read_the_store() {
    let removal = vec![RowChange::Client { key: ALICE, client: None }];
    let carol = vec![client("carol", PublicKey([3; 32])).into()];
    for (change, expected) in [(removal.clone(), ExitState::Draining), (carol, ExitState::Serving)] {
        let mut exit = Member::with_unsaved(change);
        assert!(exit.fleet.is_disk_failing() && exit.state() == ExitState::Serving);
        break_disk(&exit, false);

        let mut exit = exit.restart();

        assert!(exit.has(ALICE), "the removal is not on the disk");
        assert_eq!(exit.state(), expected);
        // Another restart changes nothing.
        exit.save();
        let mut exit = exit.restart();
        assert_eq!(exit.state(), expected);
        exit.link(vec![client("bob", BOB).into()]);
        assert_eq!(exit.state(), ExitState::Serving);
        exit.save();
        let mut exit = exit.restart();
        assert!(!exit.has(ALICE) && exit.state() == ExitState::Serving);
    }
    // If the disk works again before the exit restarts, the disk has the removal.
    let mut exit = Member::with_unsaved(removal);
    std::fs::remove_dir(exit.directory.path().join("clients.store")).unwrap();
    exit.save();
    let mut exit = exit.restart();
    assert!(!exit.has(ALICE) && exit.has(BOB) && exit.state() == ExitState::Serving);
}

#[test]
fn an_operator_hears_why_a_change_is_refused_at_a_removed_exit_and_with_a_wrong_store() {
    let mut exit = Member::start();
    exit.link(rows());
    let refused =
        |is_removed| FleetMessage::Store(StoreLink::Refused { reason: "it is old".to_owned(), is_removed });
    let away = StoreLink::Away { silent: Duration::ZERO, reason: "permission denied".to_owned() };
    for (message, part, is_removed) in [
        (
            FleetMessage::Store(away.clone()),
            "does not answer (permission denied); nothing was changed",
            false,
        ),
        (refused(false), "must not be used (it is old); nothing was changed", false),
        (refused(true), "removed from its fleet; nothing was changed; run `warren fleet leave`", true),
        // After a restart of the link, the store refuses the exit's user.
        (
            FleetMessage::Store(away),
            "removed from its fleet; nothing was changed; run `warren fleet leave`",
            true,
        ),
    ] {
        exit.hear(message).unwrap();
        let said = exit.fleet.refusal();
        assert!(said.contains(part), "{said}");
        assert_eq!(
            (exit.fleet.is_removed(), said.contains("the other exits when")),
            (is_removed, !is_removed)
        );
        assert_eq!(exit.fleet.why_away().contains("was removed"), is_removed);
    }
}

#[test]
fn only_the_store_itself_can_empty_an_exit() {
    let mut exit = Member::start();
    exit.link(rows());
    let empty = || FleetMessage::Whole { revision: 9, rows: Vec::new(), is_last: true };
    let away = StoreLink::Away { silent: Duration::ZERO, reason: "no route".to_owned() };
    let refused = StoreLink::Refused { reason: "another fleet".to_owned(), is_removed: false };
    for store in [away, refused] {
        exit.connect();
        exit.hear(FleetMessage::Store(store)).unwrap();
        exit.hear(empty()).unwrap();
        assert!(exit.has(ALICE) && exit.has(BOB));
    }
    // The controls: a copy from the disk that has clients, and the store's own empty copy.
    exit.connect();
    let alone = vec![client("alice", ALICE).into()];
    exit.hear(FleetMessage::Whole { revision: 10, rows: alone, is_last: true }).unwrap();
    assert!(exit.has(ALICE) && !exit.has(BOB));
    exit.hear(FleetMessage::Store(StoreLink::Reachable)).unwrap();
    exit.hear(empty()).unwrap();
    assert!(!exit.has(ALICE));
}

#[test]
fn a_removed_exit_that_may_still_serve_has_not_heard_of_a_change() {
    let mut exit = Member::start();
    exit.link(rows());
    let now = i64::try_from(UNIX_EPOCH.elapsed().unwrap().as_secs()).unwrap();
    let hour = 3_600;
    let removed = [
        ("fra1", Some(now + 90)),
        ("nyc1", None),
        ("old1", Some(now - hour)),
        ("older1", Some(now - 3 * hour)),
    ]
    .map(|(name, until)| RemovedExit { exit: ExitId::try_from(name.to_owned()).unwrap(), until });
    let mut dead = |ahead: i64| {
        let exits = FleetMessage::Exits {
            own_clock_offset_ms: ahead * 1_000,
            changed: 0,
            exits: Vec::new(),
            removed: removed.to_vec(),
        };
        exit.hear(exits).unwrap();
        exit.fleet.heard(1).dead
    };
    // A clock that is behind gives an exit more time, never less.
    for ahead in [0, -hour] {
        let dead = dead(ahead);
        let [fra1, nyc1] = dead.as_slice() else { panic!("{dead:?}") };
        assert!(fra1.starts_with("fra1 (removed") && fra1.contains("for another 2 min"), "{fra1}");
        assert!(nyc1.starts_with("nyc1 (removed") && nyc1.contains("for good"), "{nyc1}");
    }
    // If this host's clock is an hour ahead of two exits' median, it may be two hours ahead of the other exit's.
    let dead = dead(hour);
    let [_, nyc1, old1] = dead.as_slice() else { panic!("{dead:?}") };
    assert!(nyc1.contains("for good") && old1.contains("for another 60 min"), "{nyc1} {old1}");
}
