//! Tests several links and exits with a store that is a map, and with events in any order.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proptest::prelude::*;
use warren_fleet_link::{ExitId, RemovedExit};
use warren_session::PublicKey;
use warren_session::clients::{Client, Invitation, RemovedKey, RowId};
use warren_session::invite::TokenDigest;
use warren_simulation::finds;

use super::*;
use crate::simulation::store::MapStore;

/// An exit, its link, and the messages between them.
struct Side {
    link: Link,
    rows: BTreeMap<RowId, RowChange>,
    /// Transactions that the store has not received yet. Lost connections delay them for a while.
    to_store: VecDeque<Transaction>,
    to_exit: VecDeque<FleetMessage>,
    to_link: VecDeque<ExitMessage>,
    proposed: BTreeMap<u64, Vec<RowChange>>,
    next: u64,
    /// Whether the exit was last told that it is drained.
    drain: bool,
    roster: Option<Vec<u8>>,
    /// The link's copy on disk.
    disk: Option<(i64, Vec<Pair>)>,
    /// How many of the link's processes have ended.
    restarts: usize,
    /// The revision up to which the link has seen events.
    seen: i64,
    is_up: bool,
    stored: Vec<Vec<RowChange>>,
}

struct World {
    etcd: MapStore,
    sides: Vec<Side>,
    now: Instant,
}

fn exit(index: usize) -> ExitId {
    ExitId::try_from(format!("exit{index}")).unwrap()
}

pub(crate) fn meta() -> Meta {
    Meta {
        format: 1,
        id: "f".to_owned(),
        epoch: 1,
        pools: Pools { ipv4: None, ipv6: None },
        recoveries: Vec::new(),
    }
}

fn hello(index: usize) -> ExitMessage {
    ExitMessage::Hello {
        version: LINK_VERSION,
        release: "test".to_owned(),
        exit: exit(index),
        key: PublicKey([u8::try_from(index).unwrap(); 32]),
        endpoints: Vec::new(),
        pools: meta().pools,
        max_staleness: None,
    }
}

impl World {
    fn new(count: usize) -> Self {
        let now = Instant::now();
        let sides = (0..count).map(|index| {
            let mut link = Link::new(Keys::new("home"), exit(index), format!("process{index}"), now);
            link.exit_said(hello(index), now).unwrap();
            Side {
                link,
                drain: false,
                roster: None,
                disk: None,
                restarts: 0,
                rows: BTreeMap::new(),
                to_store: VecDeque::new(),
                to_exit: VecDeque::new(),
                to_link: VecDeque::new(),
                proposed: BTreeMap::new(),
                next: 0,
                seen: 0,
                is_up: false,
                stored: Vec::new(),
            }
        });
        Self { etcd: MapStore::new(1, 1), sides: sides.collect(), now }
    }

    fn pump(&mut self, index: usize) {
        let side = &mut self.sides[index];
        while let Some(transaction) = side.link.next_transaction() {
            side.to_store.push_back(transaction);
        }
        side.to_exit.extend(side.link.take_messages());
    }

    fn connect(&mut self, index: usize) {
        let side = &mut self.sides[index];
        if side.is_up {
            return;
        }
        side.is_up = true;
        side.link.store_up(meta(), self.etcd.revision, self.now);
        if side.seen == 0 || side.seen < self.etcd.compacted {
            side.link.whole(self.etcd.revision, &self.etcd.all_pairs());
            side.seen = self.etcd.revision.max(1);
        }
        self.pump(index);
    }

    fn disconnect(&mut self, index: usize) {
        let side = &mut self.sides[index];
        side.is_up = false;
        side.link.store_down("test".to_owned(), self.now);
        self.pump(index);
    }

    fn save(&mut self, index: usize) {
        let side = &mut self.sides[index];
        if side.link.revisions().0 > 0 {
            side.disk = Some((side.link.revisions().0, side.link.pairs()));
        }
    }

    /// Kills the link's process and starts another one with the copy on disk. Transactions under way may still arrive.
    fn restart(&mut self, index: usize) {
        let now = self.now;
        let side = &mut self.sides[index];
        side.restarts += 1;
        let process = format!("process{index}-{}", side.restarts);
        side.link = Link::new(Keys::new("home"), exit(index), process, now);
        if let Some((revision, pairs)) = &side.disk {
            side.link.resume(*revision, pairs);
        }
        side.link.exit_said(hello(index), now).unwrap();
        (side.seen, side.is_up) = (0, false);
        side.to_exit.clear();
        side.to_link.clear();
        side.proposed.clear();
        self.pump(index);
    }

    /// Writes or deletes a key, as an operator does.
    fn write(&mut self, key: &Key, value: Option<Vec<u8>>) {
        let then = BTreeMap::from([(Keys::new("home").name(key), value)]);
        self.etcd.apply(&Transaction { then, ..Transaction::default() });
    }

    /// Lets the store receive the link's oldest transaction.
    fn deliver_transaction(&mut self, index: usize) {
        if let Some(transaction) = self.sides[index].to_store.pop_front() {
            self.etcd.apply(&transaction);
        }
    }

    fn deliver_event(&mut self, index: usize) {
        let side = &mut self.sides[index];
        if !side.is_up {
            return;
        }
        if let Some((revision, pairs)) = self.etcd.log.iter().find(|(revision, _)| *revision > side.seen) {
            side.seen = *revision;
            side.link.events(*revision, pairs, SystemTime::UNIX_EPOCH);
        }
        self.pump(index);
    }

    fn deliver_to_exit(&mut self, index: usize) {
        let side = &mut self.sides[index];
        match side.to_exit.pop_front() {
            Some(FleetMessage::Drain { on }) => side.drain = on,
            Some(FleetMessage::Roster { bytes }) => side.roster = Some(bytes),
            Some(
                message @ (FleetMessage::Whole { revision, .. } | FleetMessage::Changes { revision, .. }),
            ) => {
                if matches!(message, FleetMessage::Whole { .. }) {
                    side.rows.clear();
                }
                let (FleetMessage::Whole { rows, .. } | FleetMessage::Changes { rows, .. }) = message else {
                    unreachable!()
                };
                rows.into_iter().for_each(|row| put(&mut side.rows, row));
                side.to_link.push_back(ExitMessage::Applied { revision });
            }
            Some(FleetMessage::Answer { id, outcome }) => {
                let rows = side.proposed.remove(&id).unwrap();
                if let Outcome::Stored { .. } = outcome {
                    rows.iter().for_each(|row| put(&mut side.rows, row.clone()));
                    side.stored.push(rows);
                }
            }
            _ => {}
        }
    }

    fn deliver_to_link(&mut self, index: usize) {
        let side = &mut self.sides[index];
        if let Some(message) = side.to_link.pop_front() {
            side.link.exit_said(message, self.now).unwrap();
        }
        self.pump(index);
    }

    /// Makes an exit ask for a change, unless it waits for the answer to a request about the same thing.
    fn propose(&mut self, index: usize, rows: Vec<RowChange>) {
        let side = &mut self.sides[index];
        let claims = |rows: &[RowChange]| rows.iter().flat_map(claims_of).collect::<BTreeSet<_>>();
        let wanted = claims(&rows);
        if side.proposed.values().any(|rows| !claims(rows).is_disjoint(&wanted)) {
            return;
        }
        side.next += 1;
        side.proposed.insert(side.next, rows.clone());
        side.to_link.push_back(ExitMessage::Request { id: side.next, rows });
    }

    /// Delivers all transactions, events and messages.
    fn settle(&mut self) {
        for _ in 0..10_000 {
            let mut is_quiet = true;
            for index in 0..self.sides.len() {
                self.connect(index);
                is_quiet &= self.is_quiet(index);
                self.deliver_to_link(index);
                self.deliver_transaction(index);
                self.deliver_event(index);
                self.deliver_to_exit(index);
            }
            if is_quiet {
                return;
            }
        }
        panic!("never quiet");
    }

    fn is_quiet(&self, index: usize) -> bool {
        let side = &self.sides[index];
        side.to_store.is_empty()
            && side.to_exit.is_empty()
            && side.to_link.is_empty()
            && side.seen >= self.etcd.log.last().map_or(0, |(revision, _)| *revision)
    }

    /// The rows of the store.
    fn rows(&self) -> BTreeMap<RowId, RowChange> {
        let all = self.etcd.all_pairs();
        rows_of(&Keys::new("home"), &all).iter().map(|(id, row)| (id, row.content.clone())).collect()
    }
}

fn claims_of(row: &RowChange) -> Vec<String> {
    match row {
        RowChange::Client { key, client: None } => vec![format!("{key}")],
        RowChange::Client { client: Some(client), .. } => {
            let next = client.next_public_key.map(|next| format!("{next}"));
            let prefixes = (!client.prefixes.is_empty()).then(|| "prefixes".to_owned());
            let all =
                [client.public_key.to_string(), client.name.clone(), format!("{:?}", client.leased_ipv4)];
            all.into_iter().chain(next).chain(prefixes).collect()
        }
        RowChange::Invitation { token, .. } => vec![token.label()],
        RowChange::Removed { key, .. } => vec![format!("{key}")],
    }
}

fn put(rows: &mut BTreeMap<RowId, RowChange>, row: RowChange) {
    if row.is_set() {
        rows.insert(row.id(), row);
    } else {
        rows.remove(&row.id());
    }
}

pub(crate) fn key(number: u8) -> PublicKey {
    PublicKey([number; 32])
}

pub(crate) fn token(number: u8) -> TokenDigest {
    use base64::Engine as _;
    serde_json::from_value(base64::engine::general_purpose::STANDARD.encode([number; 32]).into()).unwrap()
}

fn client(number: u8, name: u8, address: u8) -> Client {
    let mut client = Client::new(format!("client{name}"), key(number), SystemTime::UNIX_EPOCH);
    client.leased_ipv4 = Some([10, 0, 0, address].into());
    client
}

fn invitation(number: u8, used_by: Option<PublicKey>) -> Invitation {
    let expires = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
    Invitation {
        name: format!("client{number}"),
        token_sha256: token(number),
        expires,
        used_by,
        upgrades: None,
    }
}

/// One step of a run.
#[derive(Clone, Debug)]
enum Step {
    Enrol { exit: usize, token: u8, key: u8, name: u8 },
    Invite { exit: usize, token: u8 },
    Add { exit: usize, key: u8, name: u8, address: u8 },
    Date { exit: usize, key: u8, seconds: u8 },
    NextKey { exit: usize, key: u8, next: u8 },
    Rekey { exit: usize, key: u8 },
    Remove { exit: usize, key: u8 },
    Prefix { exit: usize, key: u8 },
    ToStore(usize),
    LoseToStore(usize),
    Event(usize),
    ToExit(usize),
    ToLink(usize),
    Connect(usize),
    Disconnect(usize),
    Drain { exit: usize, on: bool },
    Roster(u8),
    Save(usize),
    Restart(usize),
    Compact,
    Later,
}

const EXITS: usize = 3;

fn step() -> impl Strategy<Value = Step> {
    let exit = 0..EXITS;
    let small = 0..4_u8;
    prop_oneof![
        3 => (exit.clone(), small.clone(), small.clone(), small.clone())
            .prop_map(|(exit, token, key, name)| Step::Enrol { exit, token, key, name }),
        2 => (exit.clone(), small.clone()).prop_map(|(exit, token)| Step::Invite { exit, token }),
        3 => (exit.clone(), small.clone(), small.clone(), small.clone())
            .prop_map(|(exit, key, name, address)| Step::Add { exit, key, name, address }),
        2 => (exit.clone(), small.clone(), 0..50_u8).prop_map(|(exit, key, seconds)| Step::Date { exit, key, seconds }),
        1 => (exit.clone(), small.clone(), small.clone()).prop_map(|(exit, key, next)| Step::NextKey { exit, key, next }),
        1 => (exit.clone(), small.clone()).prop_map(|(exit, key)| Step::Rekey { exit, key }),
        1 => (exit.clone(), small.clone()).prop_map(|(exit, key)| Step::Remove { exit, key }),
        1 => (exit.clone(), small).prop_map(|(exit, key)| Step::Prefix { exit, key }),
        8 => exit.clone().prop_map(Step::ToStore),
        1 => exit.clone().prop_map(Step::LoseToStore),
        8 => exit.clone().prop_map(Step::Event),
        10 => exit.clone().prop_map(Step::ToExit),
        10 => exit.clone().prop_map(Step::ToLink),
        2 => exit.clone().prop_map(Step::Connect),
        1 => exit.prop_map(Step::Disconnect),
        1 => Just(Step::Compact),
        1 => Just(Step::Later),
    ]
}

/// Like [`step`], with drains, rosters and links that restart.
fn any_step() -> impl Strategy<Value = Step> {
    let exit = 0..EXITS;
    prop_oneof![
        20 => step(),
        1 => (exit.clone(), any::<bool>()).prop_map(|(exit, on)| Step::Drain { exit, on }),
        1 => (0..4_u8).prop_map(Step::Roster),
        1 => exit.clone().prop_map(Step::Save),
        1 => exit.prop_map(Step::Restart),
    ]
}

impl World {
    fn client(&self, exit: usize, number: u8) -> Option<Client> {
        match self.sides[exit].rows.get(&RowId::Client(key(number))) {
            Some(RowChange::Client { client, .. }) => client.clone(),
            _ => None,
        }
    }

    fn has(&self, exit: usize, id: RowId) -> bool {
        self.sides[exit].rows.contains_key(&id)
    }

    /// Carries out a step. An exit proposes only what its own registry allows.
    fn take(&mut self, step: &Step) {
        match *step {
            Step::Invite { exit, token: number } if !self.has(exit, RowId::Invitation(token(number))) => {
                self.propose(exit, vec![invitation(number, None).into()]);
            }
            Step::Enrol { exit, token: number, key: key_number, name } => {
                let open = invitation(number, None);
                let is_open =
                    self.sides[exit].rows.get(&RowId::Invitation(token(number))) == Some(&open.into());
                if is_open && self.is_free(exit, key_number, name, key_number) {
                    let used = invitation(number, Some(key(key_number)));
                    self.propose(exit, vec![client(key_number, name, key_number).into(), used.into()]);
                }
            }
            Step::Add { exit, key: number, name, address } if self.is_free(exit, number, name, address) => {
                self.propose(exit, vec![client(number, name, address).into()]);
            }
            Step::Date { exit, key: number, seconds } => {
                if let Some(client) = self.client(exit, number) {
                    let last_seen = Some(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds.into()));
                    let dated = Client { last_seen, ..client };
                    self.propose(exit, vec![dated.into()]);
                }
            }
            Step::NextKey { exit, key: number, next } => {
                let is_unused =
                    !self.has(exit, RowId::Client(key(next))) && !self.has(exit, RowId::Removed(key(next)));
                if let Some(client) = self.client(exit, number).filter(|_| is_unused) {
                    self.propose(exit, vec![Client { next_public_key: Some(key(next)), ..client }.into()]);
                }
            }
            Step::Rekey { exit, key: number } => {
                let client = self.client(exit, number);
                if let Some((client, next)) =
                    client.and_then(|client| client.next_public_key.map(|next| (client, next)))
                {
                    let renewed = Client { public_key: next, next_public_key: None, ..client.clone() };
                    let removed = RemovedKey {
                        name: client.name,
                        public_key: key(number),
                        removed: SystemTime::UNIX_EPOCH,
                    };
                    let gone = RowChange::Client { key: key(number), client: None };
                    self.propose(exit, vec![gone, renewed.into(), removed.into()]);
                }
            }
            Step::Remove { exit, key: number } => {
                if let Some(client) = self.client(exit, number) {
                    let keys = [Some(key(number)), client.next_public_key];
                    let removed = keys.into_iter().flatten().map(|public_key| {
                        RemovedKey { name: client.name.clone(), public_key, removed: SystemTime::UNIX_EPOCH }
                            .into()
                    });
                    let gone = RowChange::Client { key: key(number), client: None };
                    self.propose(exit, removed.chain([gone]).collect());
                }
            }
            Step::Prefix { exit, key: number } => {
                let is_taken = (0..4)
                    .any(|other| self.client(exit, other).is_some_and(|other| !other.prefixes.is_empty()));
                if let Some(client) = self.client(exit, number).filter(|_| !is_taken) {
                    let prefixes = vec!["192.168.0.0/24".parse().unwrap()];
                    self.propose(exit, vec![Client { prefixes, ..client }.into()]);
                }
            }
            Step::ToStore(exit) => self.deliver_transaction(exit),
            Step::LoseToStore(exit) => {
                self.sides[exit].to_store.pop_front();
                self.disconnect(exit);
            }
            Step::Event(exit) => self.deliver_event(exit),
            Step::ToExit(exit) => self.deliver_to_exit(exit),
            Step::ToLink(exit) => self.deliver_to_link(exit),
            Step::Connect(exit) => self.connect(exit),
            Step::Disconnect(exit) => self.disconnect(exit),
            Step::Drain { exit: number, on } => {
                self.write(&Key::Drain(exit(number)), on.then(|| b"1".to_vec()));
            }
            Step::Roster(number) => self.write(&Key::Roster, Some(vec![number])),
            Step::Save(exit) => self.save(exit),
            Step::Restart(exit) => self.restart(exit),
            Step::Compact => {
                self.etcd.compacted = self.etcd.revision;
                // A watch that is too far behind ends.
                for exit in 0..EXITS {
                    if self.sides[exit].seen < self.etcd.compacted {
                        self.disconnect(exit);
                    }
                }
            }
            Step::Later => {
                self.now += Duration::from_millis(700);
                for exit in 0..EXITS {
                    self.sides[exit].link.expire(self.now);
                    self.pump(exit);
                }
            }
            Step::Invite { .. } | Step::Add { .. } => {}
        }
        self.check();
    }

    fn is_free(&self, exit: usize, number: u8, name: u8, address: u8) -> bool {
        let wanted = client(number, name, address);
        let others = (0..4).filter_map(|other| self.client(exit, other));
        !self.has(exit, RowId::Client(key(number)))
            && !self.has(exit, RowId::Removed(key(number)))
            && others.into_iter().all(|other| {
                other.name != wanted.name
                    && other.leased_ipv4 != wanted.leased_ipv4
                    && other.next_public_key != Some(key(number))
            })
    }

    /// Checks the rules that must hold at any time.
    fn check(&self) {
        let rows = self.rows();
        let clients: Vec<_> = rows
            .values()
            .filter_map(|row| match row {
                RowChange::Client { client, .. } => client.clone(),
                RowChange::Invitation { .. } | RowChange::Removed { .. } => None,
            })
            .collect();
        for (index, one) in clients.iter().enumerate() {
            for other in &clients[index + 1..] {
                assert_ne!(one.name, other.name, "one name, two keys");
                assert_ne!(one.leased_ipv4, other.leased_ipv4, "one address, two keys");
                assert!(one.prefixes.is_empty() || other.prefixes.is_empty(), "one prefix, two keys");
                assert!(one.next_public_key.is_none() || one.next_public_key != other.next_public_key);
                assert_ne!(one.next_public_key, Some(other.public_key));
            }
            assert!(!rows.contains_key(&RowId::Removed(one.public_key)), "a removed key is back");
            let next = one.next_public_key.map(RowId::Removed);
            assert!(next.is_none_or(|next| !rows.contains_key(&next)), "a removed key is a next key");
        }
    }

    /// If an answer says that a token has enrolled a key, the token has enrolled no other key.
    fn check_tokens(&self) {
        let mut used: BTreeMap<TokenDigest, PublicKey> = BTreeMap::new();
        for rows in self.sides.iter().flat_map(|side| &side.stored) {
            for row in rows {
                if let RowChange::Invitation {
                    token,
                    invitation: Some(Invitation { used_by: Some(key), .. }),
                } = row
                {
                    assert_eq!(*used.entry(*token).or_insert(*key), *key, "one token, two keys");
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_given_twice_and_all_exits_agree_in_the_end(steps in steps()) {
        run(&steps);
    }

    #[test]
    fn nothing_is_lost_if_links_start_again(steps in prop::collection::vec(any_step(), 1..250)) {
        run(&steps);
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(step(), 1..250)
}

fn run(steps: &[Step]) {
    let mut world = World::new(EXITS);
    world.settle();
    for step in steps {
        world.take(step);
    }
    world.settle();
    world.check();
    world.check_tokens();
    let rows = world.rows();
    let value =
        |key: &Key| world.etcd.pairs.get(&Keys::new("home").name(key)).map(|(value, _)| value.clone());
    for (index, side) in world.sides.iter().enumerate() {
        assert!(side.proposed.is_empty(), "requests without an answer: {:?}", side.proposed);
        assert_eq!(side.rows, rows);
        assert_eq!(side.drain, value(&Key::Drain(exit(index))).is_some());
        assert_eq!(side.roster, value(&Key::Roster));
    }
}

#[test]
fn planted_bugs_are_found() {
    use proptest::strategy::ValueTree as _;
    for bug in [Bug::ReadThenPut, Bug::NewestBasis, Bug::CompactionIgnored, Bug::LateTransactionMissed] {
        let mut runner = proptest::test_runner::TestRunner::deterministic();
        let strategy = steps();
        let is_found = (0..3000).any(|_| {
            let steps = strategy.new_tree(&mut runner).unwrap().current();
            finds(bug, || run(&steps))
        });
        assert!(is_found, "{bug:?} is not found");
    }
}

/// A world in which all links have read the store.
fn settled() -> World {
    let mut world = World::new(EXITS);
    world.settle();
    world
}

#[test]
fn a_request_that_was_made_before_a_change_was_seen_conflicts_although_the_link_knows_it() {
    let mut world = settled();
    world.propose(0, vec![client(1, 1, 1).into()]);
    world.settle();
    // Exit 1 renames the client. Before exit 0 learns of that, it disables the client under its old name.
    world.propose(1, vec![client(1, 2, 1).into()]);
    world.deliver_to_link(1);
    world.deliver_transaction(1);
    world.deliver_event(0);
    let disabled = Client { disabled: true, ..client(1, 1, 1) };
    world.propose(0, vec![disabled.into()]);
    world.settle();
    assert_eq!(world.client(0, 1), Some(client(1, 2, 1)));
}

#[test]
fn a_lost_answer_is_found_out_from_the_watch() {
    let mut world = settled();
    world.propose(0, vec![client(1, 1, 1).into()]);
    world.deliver_to_link(0);
    world.disconnect(0);
    // The store receives the transaction after all.
    world.deliver_transaction(0);
    world.settle();
    assert_eq!(world.sides[0].stored, [[RowChange::from(client(1, 1, 1))]]);
}

#[test]
fn an_exit_that_starts_anew_gets_no_answer_to_its_predecessors_request() {
    an_answer_is_for_its_request();
    assert!(finds(Bug::NumbersConfused, an_answer_is_for_its_request));
}

fn an_answer_is_for_its_request() {
    let mut world = settled();
    world.propose(0, vec![client(1, 1, 1).into()]);
    world.deliver_to_link(0);
    // The exit restarts, and makes a request with the same number.
    let side = &mut world.sides[0];
    (side.next, side.proposed) = (0, BTreeMap::new());
    side.to_exit.clear();
    side.to_link.push_back(hello(0));
    for _ in 0..10 {
        world.deliver_to_link(0);
        world.deliver_to_exit(0);
    }
    world.propose(0, vec![client(2, 2, 2).into()]);
    world.deliver_to_link(0);
    world.settle();
    for number in [1, 2] {
        assert_eq!(world.client(0, number), Some(client(number, number, number)));
        assert_eq!(world.client(1, number), world.client(0, number));
    }
}

#[test]
fn a_transaction_that_was_given_up_comes_as_a_change() {
    let mut world = settled();
    world.propose(0, vec![client(1, 1, 1).into()]);
    world.deliver_to_link(0);
    world.disconnect(0);
    world.now += Duration::from_secs(3);
    world.sides[0].link.expire(world.now);
    world.pump(0);
    world.deliver_to_exit(0);
    assert!(world.sides[0].proposed.is_empty() && world.sides[0].rows.is_empty());
    world.settle();
    assert_eq!(world.client(0, 1), Some(client(1, 1, 1)));
}

/// Writes the records that are due. Returns them, and the messages for the exit.
fn write(sessions: &mut Sessions, now: Instant) -> (SessionBatch, Vec<FleetMessage>) {
    let (batch, lost) = sessions.batch(&exit(0), &Keys::new("home"), now);
    sessions.stored(&batch, now);
    (batch, lost)
}

/// Returns the number of a client's record in a batch.
fn claim_in(batch: &SessionBatch, key: PublicKey) -> Option<u64> {
    let written = batch.operations.get(&Keys::new("home").name(&Key::Session(key)))?.as_deref()?;
    Some(serde_json::from_slice::<crate::keys::SessionRecord>(written).unwrap().claim)
}

#[test]
fn sessions_that_waited_for_the_store_yield_to_newer_records() {
    a_waiting_session_yields();
    assert!(finds(Bug::QueuedClaimOverwrites, a_waiting_session_yields));
}

fn a_waiting_session_yields() {
    let (me, other) = (exit(0), exit(1));
    let keys = Keys::new("home");
    let start = Instant::now();
    let mut sessions = Sessions::default();
    sessions.open(key(1), (vec![1], 0), start);
    // The store was unreachable for a while. In that time, the client has moved to the other exit.
    assert_eq!(sessions.record(&me, key(1), 5, Some(crate::keys::SessionRecord::new(&other, &[2], 0))), None);
    let late = start + Duration::from_secs(60);
    let (batch, lost) = sessions.batch(&me, &keys, late);
    assert!(batch.sessions.is_empty());
    assert_eq!(lost, [FleetMessage::Elsewhere { key: key(1), nonce: vec![2], claim: 0, exit: other }]);
    // A fresh session takes the record.
    sessions.open(key(1), (vec![3], 0), late);
    let (batch, lost) = sessions.batch(&me, &keys, late);
    assert!(lost.is_empty());
    assert_eq!(batch.expected.values().collect::<Vec<_>>(), [&Expected::Modified(5)]);
}

#[test]
fn a_record_that_a_session_has_replaced_does_not_take_the_client_back_when_a_backup_brings_it_back() {
    let (me, start) = (exit(0), Instant::now());
    let record = |nonce| Some(crate::keys::SessionRecord::new(&exit(1), &[nonce], 1));
    let late = start + Duration::from_secs(60);
    let mut sessions = Sessions::default();
    assert_eq!(sessions.record(&me, key(1), 50, record(1)), None);
    sessions.open(key(1), (vec![2], 1), start);
    assert_eq!(write(&mut sessions, start).1, []);
    // The store is restored and has more changes since, or fewer.
    for modified in [60, 40] {
        sessions.replace(&me, [(key(1), (modified, record(1)))].into());
        sessions.send_all_again();
        let (batch, lost) = write(&mut sessions, late);
        assert_eq!((batch.operations.len(), lost), (1, vec![]), "{modified}");
    }
    // The control: the client has started again at the other exit.
    sessions.replace(&me, [(key(1), (45, record(3)))].into());
    sessions.send_all_again();
    let (batch, lost) = write(&mut sessions, late);
    assert_eq!((batch.operations.len(), lost.len()), (0, 1));
}

#[test]
fn of_two_sessions_of_one_process_the_later_one_has_the_record_whenever_the_store_hears_of_it() {
    the_later_session_has_the_record();
    assert!(finds(Bug::ClaimsIgnored, the_later_session_has_the_record));
}

fn the_later_session_has_the_record() {
    let (me, other) = (exit(0), exit(1));
    let start = Instant::now();
    let record = |claim| Some(crate::keys::SessionRecord::new(&other, &[1], claim));
    let mut sessions = Sessions::default();
    let writes = |sessions: &mut Sessions| {
        let (batch, lost) = write(sessions, start);
        (batch.operations.len(), lost.len())
    };

    // The client has moved to the other exit (2), and then has stayed here after all (3). The store gets the move last.
    sessions.open(key(1), (vec![1], 1), start);
    assert_eq!(writes(&mut sessions), (1, 0));
    sessions.open(key(1), (vec![1], 3), start);
    assert_eq!(writes(&mut sessions), (1, 0));
    assert_eq!(sessions.record(&me, key(1), 7, record(2)), None, "nobody is elsewhere");
    assert_eq!(writes(&mut sessions), (1, 0), "the record comes back");
    // The control: a later session at the other exit counts, and this exit is told only once.
    let said = sessions.record(&me, key(1), 9, record(4));
    let elsewhere = FleetMessage::Elsewhere { key: key(1), nonce: vec![1], claim: 4, exit: other.clone() };
    assert_eq!(said, Some(elsewhere));
    // The link restarts, and the exit lists all of its sessions. The session here is about to end.
    sessions.open(key(1), (vec![1], 3), start);
    assert_eq!(writes(&mut sessions), (0, 1), "the client is not thrown off the other exit");
}

#[test]
fn a_session_that_changes_while_its_record_is_written_is_written_again() {
    changes_are_written_again();
    assert!(finds(Bug::LaterChangeForgotten, changes_are_written_again));
}

fn changes_are_written_again() {
    let me = exit(0);
    let (keys, start) = (Keys::new("home"), Instant::now());
    let mut sessions = Sessions::default();
    sessions.open(key(1), (vec![1], 1), start);
    sessions.open(key(2), (vec![1], 1), start);
    let (first, _) = sessions.batch(&me, &keys, start);

    // The client of the first key stays: its process and nonce are the same, and its number is new. The other key has the same
    // nonce.
    sessions.open(key(1), (vec![1], 3), start);
    sessions.stored(&first, start);

    let (second, _) = sessions.batch(&me, &keys, start);
    assert_eq!(claim_in(&second, key(1)), Some(3));
    assert_eq!(claim_in(&second, key(2)), None, "the control: this one has not changed");
    // A session of the same process replaces the one that has ended.
    sessions.close(key(1), vec![1]);
    sessions.open(key(1), (vec![1], 3), start);
    sessions.stored(&second, start);
    assert!(sessions.has_unsent());
    // The lease changes while the record with the old lease is being written.
    let (third, _) = sessions.batch(&me, &keys, start);
    sessions.send_all_again();
    sessions.stored(&third, start);
    let (fourth, _) = sessions.batch(&me, &keys, start);
    assert_eq!([1, 2].map(|number| claim_in(&fourth, key(number))), [Some(3), Some(1)]);
    sessions.stored(&fourth, start);
    assert!(!sessions.has_unsent());
}

#[test]
fn records_of_sessions_that_are_over_are_deleted_when_an_old_backup_brings_them_back() {
    let (me, keys, start) = (exit(0), Keys::new("home"), Instant::now());
    let mut sessions = Sessions::default();
    sessions.open(key(1), (vec![1], 1), start);
    write(&mut sessions, start);
    let record = |exit| Some(crate::keys::SessionRecord::new(&exit, &[1], 1));
    // The first two records belong to this exit: one session is open, and one is over. The third record belongs to another exit.
    let records = [(1, me.clone()), (2, me.clone()), (3, exit(1))];
    sessions.replace(&me, records.map(|(number, exit)| (key(number), (5, record(exit)))).into());
    let (batch, _) = sessions.batch(&me, &keys, start);
    assert_eq!(batch.operations, [(keys.name(&Key::Session(key(2))), None)].into());
}

#[test]
fn a_client_whose_session_changes_all_the_time_costs_the_store_few_writes_and_its_last_word_is_written() {
    a_restless_client_is_paced();
    assert!(finds(Bug::RecordsWithoutPace, a_restless_client_is_paced));
}

fn a_restless_client_is_paced() {
    let start = Instant::now();
    let mut sessions = Sessions::default();
    let mut written = 0;
    // There are twenty batches a second, for nine seconds.
    for turn in 0..180 {
        let now = start + Duration::from_millis(50 * turn);
        sessions.open(key(1), (vec![1], turn + 1), now);
        // The control: another client does not have to wait.
        if turn % 40 == 39 {
            sessions.open(key(2), (vec![2], turn + 1), now);
        }
        let is_other = turn % 40 == 39;
        let count = write(&mut sessions, now).0.operations.len();
        assert!(!is_other || count > 0, "turn {turn}");
        written += count - usize::from(is_other);
    }
    assert_eq!(written, 8);
    let (last, _) = write(&mut sessions, start + Duration::from_secs(11));
    assert_eq!(claim_in(&last, key(1)), Some(180));
    assert!(!sessions.has_unsent());
}

#[test]
fn a_record_that_the_store_refuses_holds_up_no_other() {
    let (me, keys, start) = (exit(0), Keys::new("home"), Instant::now());
    let mut sessions = Sessions::default();
    (0..200).for_each(|number| sessions.open(key(number), (vec![1], 1), start));
    let refused = keys.name(&Key::Session(key(77)));
    let mut recorded = BTreeSet::new();
    let mut attempts = 0;
    // There are twenty batches a second, for two seconds.
    for turn in 0..40 {
        let now = start + Duration::from_millis(50 * turn);
        let (batch, _) = sessions.batch(&me, &keys, now);
        if batch.operations.contains_key(&refused) {
            sessions.refused(&batch, now);
            attempts += usize::from(batch.sessions.len() == 1);
        } else {
            recorded.extend(batch.operations.keys().cloned());
            sessions.stored(&batch, now);
        }
    }
    assert_eq!(recorded.len(), 199);
    assert!((1..=3).contains(&attempts), "{attempts} attempts with it alone");
    // Once the link knows the stored record, it writes its own at once.
    let now = start + Duration::from_secs(5);
    let (again, _) = sessions.batch(&me, &keys, now);
    sessions.refused(&again, now);
    assert!(sessions.batch(&me, &keys, now).0.sessions.is_empty(), "it waits");
    sessions.cannot_read(key(77), 5);
    let (batch, _) = sessions.batch(&me, &keys, now);
    assert_eq!(batch.expected.get(&refused), Some(&Expected::Modified(5)));
}

#[test]
fn a_row_that_cannot_be_read_is_kept_as_it_was_and_can_be_changed() {
    let mut world = settled();
    world.propose(0, vec![client(1, 1, 1).into()]);
    world.propose(0, vec![client(2, 2, 2).into()]);
    world.settle();
    world.save(1);
    for number in [1, 2] {
        world.write(&Key::Row(RowId::Client(key(number))), Some(b"{".to_vec()));
    }
    world.settle();
    // One link reads everything again, and one restarts with the copy on its disk.
    world.disconnect(0);
    world.etcd.compacted = world.etcd.revision;
    world.sides[0].seen = 0;
    world.restart(1);
    world.settle();
    for index in [0, 1] {
        assert_eq!(world.client(index, 1), Some(client(1, 1, 1)), "exit {index}");
    }
    // Exit 1 changes the client, and exit 2 removes the other client.
    let disabled = Client { disabled: true, ..client(1, 1, 1) };
    world.propose(1, vec![disabled.clone().into()]);
    world.take(&Step::Remove { exit: 2, key: 2 });
    world.settle();
    for index in 0..EXITS {
        assert_eq!(world.client(index, 1), Some(disabled.clone()), "exit {index}");
        assert!(world.has(index, RowId::Removed(key(2))) && !world.has(index, RowId::Client(key(2))));
    }
    assert!(!world.etcd.pairs.contains_key(&Keys::new("home").name(&Key::Row(RowId::Client(key(2))))));
}

#[test]
fn a_removed_key_that_cannot_be_read_stays_out() {
    let mut world = settled();
    world.write(&Key::Row(RowId::Removed(key(1))), Some(b"{".to_vec()));
    world.settle();
    world.propose(0, vec![client(1, 1, 1).into()]);
    // The control: a request about another key.
    world.propose(1, vec![client(2, 2, 2).into()]);
    world.settle();
    assert_eq!((world.client(0, 1), world.client(0, 2)), (None, Some(client(2, 2, 2))));
}

#[test]
fn an_exit_whose_value_cannot_be_read_stays_in_the_fleet() {
    let keys = Keys::new("home");
    let mut link = Link::new(keys.clone(), exit(1), "process".to_owned(), Instant::now());
    link.exit_said(hello(1), Instant::now()).unwrap();
    let name = |index| keys.name(&Key::Member(exit(index)));
    let member = |index: u8| Member {
        key: Some(PublicKey([1; 32])),
        endpoints: vec!["b.example.net:443".to_owned(); usize::from(index - 1)],
        membership: Some(index.into()),
        ..Member::default()
    };
    let pair = |index: u8, revision| {
        Pair::new(name(index.into()), serde_json::to_vec(&member(index)).unwrap(), revision)
    };
    let damaged = |index, revision| Pair::new(name(index), "{", revision);
    let kept = |link: &Link| read(&keys, None, &link.pairs()).members;
    let [own, known] = [1, 2].map(|index: u8| (exit(index.into()), Some(member(index))));
    // The value of exit 3 could never be read.
    let expected: BTreeMap<_, _> = [own, known, (exit(3), Some(Member::default()))].into();
    link.whole(5, &[pair(1, 1), pair(2, 2), damaged(3, 3)]);
    assert_eq!(kept(&link), expected);
    // Later, two values are damaged, and one of these values is the exit's own. The exit writes its own value again.
    let writes_own = |link: &Link| link.heartbeat(SystemTime::now()).unwrap().0.then.contains_key(&name(1));
    assert!(!writes_own(&link));
    link.events(6, &[damaged(1, 6), damaged(2, 6)], SystemTime::now());
    assert_eq!((kept(&link), writes_own(&link)), (expected.clone(), true));
    link.whole(7, &[damaged(1, 6), damaged(2, 6), damaged(3, 3)]);
    assert_eq!((kept(&link), writes_own(&link)), (expected, true));
    // The controls: a value that can be read again, and exits that have left.
    link.events(8, &[pair(1, 8), Pair { value: None, ..pair(2, 8) }], SystemTime::now());
    assert_eq!((kept(&link).len(), writes_own(&link)), (2, false));
    link.whole(9, &[pair(1, 8)]);
    assert_eq!(kept(&link).into_keys().collect::<Vec<_>>(), [exit(1)]);
}

#[test]
fn an_exit_gets_a_full_copy_if_the_stores_revisions_count_from_an_old_backup_again() {
    let keys = Keys::new("home");
    let start = Instant::now();
    let mut link = Link::new(keys.clone(), exit(0), "process".to_owned(), start);
    link.exit_said(hello(0), start).unwrap();
    link.store_up(meta(), 90, start);
    let row = RowChange::from(client(1, 1, 1));
    let name = keys.name(&Key::Row(row.id()));
    let pair = |revision| Pair::new(name.as_str(), serde_json::to_vec(&row).unwrap(), revision);
    let told = |link: &mut Link| -> Vec<FleetMessage> {
        let is_about_rows = |message: &FleetMessage| {
            matches!(message, FleetMessage::Whole { .. } | FleetMessage::Changes { .. })
        };
        link.take_messages().into_iter().filter(is_about_rows).collect()
    };
    link.whole(90, &[]);
    assert_eq!(told(&mut link), [FleetMessage::Whole { revision: 90, rows: Vec::new(), is_last: true }]);
    link.exit_said(ExitMessage::Applied { revision: 90 }, start).unwrap();
    // The control: in one history, the exit gets only changes.
    link.whole(95, &[pair(93)]);
    assert_eq!(told(&mut link), [FleetMessage::Changes { revision: 95, rows: vec![row.clone()] }]);
    link.exit_said(ExitMessage::Applied { revision: 95 }, start).unwrap();

    link.whole(40, &[pair(39)]);

    assert_eq!(
        told(&mut link),
        [FleetMessage::Whole { revision: 40, rows: vec![row.clone()], is_last: true }]
    );
    // A request made before the exit applied that copy is refused, because the exit had not seen the store's present rows.
    link.exit_said(ExitMessage::Request { id: 1, rows: vec![row] }, start).unwrap();
    let refused = FleetMessage::Answer { id: 1, outcome: Outcome::Unavailable };
    assert!(link.take_messages().contains(&refused));
}

#[test]
fn an_exit_with_a_copy_from_the_disk_waits_until_the_store_is_read() {
    let keys = Keys::new("home");
    let now = Instant::now();
    let row = RowChange::from(client(1, 1, 1));
    let pair = Pair::new(keys.name(&Key::Row(row.id())), serde_json::to_vec(&row).unwrap(), 8);
    let reachable = FleetMessage::Store(StoreLink::Reachable);
    let whole = |revision, rows| FleetMessage::Whole { revision, rows, is_last: true };
    let told = |link: &mut Link| -> Vec<FleetMessage> {
        let messages = link.take_messages().into_iter();
        let is_about_rows = |message: &FleetMessage| {
            *message == reachable
                || matches!(message, FleetMessage::Whole { .. } | FleetMessage::Changes { .. })
        };
        messages.filter(is_about_rows).collect()
    };
    // Whether the exit has confirmed the copy from the disk, and what it is told once the store is read.
    let changes = FleetMessage::Changes { revision: 9, rows: vec![row.clone()] };
    for (has_confirmed, expected) in
        [(true, [changes, reachable.clone()]), (false, [reachable.clone(), whole(9, vec![row])])]
    {
        let mut link = Link::new(keys.clone(), exit(1), "process".to_owned(), now);
        link.resume(5, &[]);
        link.exit_said(hello(1), now).unwrap();
        link.store_up(meta(), 9, now);
        assert_eq!(told(&mut link), [whole(5, Vec::new())], "the exit would take it for the store's content");
        link.store_down("cut".to_owned(), now);
        assert!(matches!(link.store_link(now), StoreLink::Away { .. }));
        link.store_up(meta(), 9, now);
        if has_confirmed {
            link.exit_said(ExitMessage::Applied { revision: 5 }, now).unwrap();
        }
        assert!(told(&mut link).is_empty());

        link.whole(9, std::slice::from_ref(&pair));

        assert_eq!(told(&mut link), expected, "{has_confirmed}");
        link.tell_store(now);
        assert_eq!(told(&mut link), std::slice::from_ref(&reachable));
    }
    // The control: without a copy, the exit cannot mistake anything for the store's content.
    let mut link = Link::new(keys, exit(1), "process".to_owned(), now);
    link.exit_said(hello(1), now).unwrap();
    link.store_up(meta(), 9, now);
    assert_eq!(told(&mut link), std::slice::from_ref(&reachable));
}

#[test]
fn the_copy_on_disk_says_which_removed_exits_must_stop() {
    let keys = Keys::new("home");
    let pair = |index, value: &str, at| Pair::new(keys.name(&Key::RemovedExit(exit(index))), value, at);
    let serving = r#"{"until":7,"has_stopped":false}"#;
    let stopped = r#"{"until":null,"has_stopped":true}"#;
    let mut link = Link::new(keys.clone(), exit(0), "process".to_owned(), Instant::now());
    link.whole(5, &[pair(1, serving, 3), pair(2, "1", 4)]);
    link.events(6, &[pair(3, stopped, 6)], SystemTime::now());
    let saved = link.pairs();
    assert_eq!(saved, [pair(1, serving, 3), pair(2, "1", 4), pair(3, stopped, 6)]);
    // A link that continues with this copy knows the same.
    let mut next = Link::new(keys.clone(), exit(0), "process2".to_owned(), Instant::now());
    next.resume(6, &saved);
    assert_eq!((next.pairs(), next.exits.lingering()), (saved, link.exits.lingering()));
    assert_eq!(next.exits.lingering(), [RemovedExit { exit: exit(1), until: Some(7) }]);
    // The control: an exit that comes back.
    next.events(7, &[Pair { value: None, ..pair(1, "", 7) }], SystemTime::now());
    assert_eq!((next.pairs().len(), next.exits.lingering().len()), (2, 0));
}

#[test]
fn a_link_keeps_the_number_of_its_exits_membership_and_a_new_exit_gets_no_clients_before_its_key_is_stored() {
    let keys = Keys::new("home");
    let now = Instant::now();
    let mut link = Link::new(keys.clone(), exit(1), "process".to_owned(), now);
    link.exit_said(hello(1), now).unwrap();
    link.store_up(meta(), 5, now);
    let name = keys.name(&Key::Member(exit(1)));
    let written = |link: &Link| {
        let (transaction, _) = link.heartbeat(SystemTime::UNIX_EPOCH).unwrap();
        let value = transaction.then.get(&name).cloned().flatten();
        value.map(|value| serde_json::from_slice::<Member>(&value).unwrap())
    };
    let has_copy = |link: &mut Link| {
        let messages = link.take_messages();
        messages.iter().any(|message| matches!(message, FleetMessage::Whole { .. }))
    };
    assert_eq!(written(&link), None, "the number is not known yet");
    let joining = Member { membership: Some(7), ..Member::default() };
    link.whole(5, &[Pair::new(name.clone(), serde_json::to_vec(&joining).unwrap(), 4)]);
    link.tell_store(now);
    assert!(!has_copy(&mut link), "an operator who removes the exit would be told that it has never served");
    let own = written(&link).unwrap();
    assert!(own.key.is_some() && own.membership == Some(7));
    let removal = |link: &mut Link| {
        let removed = Removed { membership: Some(7), ..Removed::default() };
        let ended = Pair::new(keys.name(&Key::RemovedExit(exit(1))), removed.value().unwrap(), 6);
        let deleted = Pair { key: name.clone().into_bytes(), value: None, modified: 6 };
        link.events(6, &[deleted, ended], SystemTime::UNIX_EPOCH);
    };
    let mut other = Link::new(keys.clone(), exit(1), "other".to_owned(), now);
    other.exit_said(hello(1), now).unwrap();
    other.store_up(meta(), 5, now);
    other.whole(5, &[Pair::new(name.clone(), serde_json::to_vec(&joining).unwrap(), 4)]);
    removal(&mut other);
    assert!(!has_copy(&mut other), "it was removed before the store had its key");
    link.events(6, &[Pair::new(name.clone(), serde_json::to_vec(&own).unwrap(), 6)], SystemTime::UNIX_EPOCH);
    assert!(has_copy(&mut link));
    assert_eq!(written(&link), None);
}

#[test]
fn a_removed_exit_is_told_to_stop_although_its_pools_do_not_fit() {
    let now = Instant::now();
    let mut link = Link::new(Keys::new("home"), exit(1), "process".to_owned(), now);
    link.exit_said(hello(1), now).unwrap();
    let other = Pools { ipv4: Some("10.9.0.0/16".parse().unwrap()), ipv6: None };
    link.store_up(Meta { pools: other, ..meta() }, 5, now);
    let told = |link: &mut Link, is_removed| {
        link.take_messages();
        link.store_refused(("refused".to_owned(), is_removed), now);
        match link.take_messages().pop() {
            Some(FleetMessage::Store(StoreLink::Refused { reason, is_removed })) => (reason, is_removed),
            other => panic!("{other:?}"),
        }
    };
    // The control: the exit is not removed, so its pools are the reason.
    let (reason, is_removed) = told(&mut link, false);
    assert!(reason.contains("pools") && !is_removed, "{reason}");
    assert_eq!(told(&mut link, true), ("refused".to_owned(), true));
}

#[test]
fn a_link_that_starts_again_tells_its_exit_of_its_removal_before_the_store_answers() {
    let keys = Keys::new("home");
    let now = Instant::now();
    let told = |removal: Option<(u64, bool)>, position: &Position| {
        let mut link = Link::new(keys.clone(), exit(1), "process".to_owned(), now);
        let pairs = removal.map(|(membership, must_stop)| {
            let removal = must_stop.then(crate::exits::Removal::default);
            let removed = Removed { at: 3, removal, membership: Some(membership) };
            Pair::new(keys.name(&Key::RemovedExit(exit(1))), removed.value().unwrap(), 3)
        });
        link.resume(5, &pairs.into_iter().collect::<Vec<_>>());
        link.stay_removed(position);
        link.store_down("no route".to_owned(), now);
        link.exit_said(hello(1), now).unwrap();
        let messages = link.take_messages();
        messages.iter().any(|message| {
            matches!(message, FleetMessage::Store(StoreLink::Refused { is_removed: true, .. }))
        })
    };
    let position = |is_removed| Position { membership: Some(2), is_removed, ..Position::default() };
    assert!(told(Some((2, true)), &position(false)), "its copy has the removal");
    assert!(told(None, &position(true)), "it was told before it had read the store");
    // The controls: a member, one that has left by itself, and the end of an earlier membership.
    for removal in [None, Some((2, false)), Some((1, true))] {
        assert!(!told(removal, &position(false)), "{removal:?}");
    }
}

#[test]
fn a_link_notices_that_its_hosts_clock_is_a_minute_wrong() {
    let keys = Keys::new("home");
    let start = SystemTime::UNIX_EPOCH + Duration::from_secs(10_000);
    let mut link = Link::new(keys.clone(), exit(0), "process".to_owned(), Instant::now());
    link.store_up(meta(), 5, Instant::now());
    // Of three exits, the others agree.
    let mut is_right = |revision, ahead| {
        let heartbeat = |index| {
            let (load, state) = (Load::default(), ExitState::Serving);
            let clock = milliseconds(start);
            let beat = Heartbeat { load, state, roster: 0, applied: 0, clock, release: "1".to_owned() };
            Pair::new(keys.name(&Key::Heartbeat(exit(index))), serde_json::to_vec(&beat).unwrap(), revision)
        };
        link.events(revision, &[heartbeat(1), heartbeat(2)], start + Duration::from_secs(ahead));
        link.is_clock_right()
    };
    assert_eq!([is_right(6, 0), is_right(7, 60), is_right(8, 61), is_right(9, 0)], [true, true, false, true]);
}
