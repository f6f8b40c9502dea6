//! The simulated world: exit, hosts, network and operator, with the properties that must hold after each step.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::client::{ConnectionEnd, Stop};
use crate::clients::{Client, ClientRegistry, RowChange, RowId};
use crate::exit::{
    ExitAction, ExitSessions, FleetNews, SessionConfig, SessionId, StoreRefusal, StoreRequest,
    StoreRequestId, UnsentRow, WholeCopy,
};
use crate::invite::InviteToken;
use crate::key::tests_key;
use crate::roster::FollowedFleet;
use crate::{Entropy, Goodbye, PublicKey, ROSTER, UPDATES};

use super::clients_model::{CLIENTS, ClientsModel, client_of, key_of, name_of};
use super::exit_model::ExitModel;
use super::host::{Host, OLD_VERSION, announcement, lost};
use super::network::{Network, Packet, Wire};
use super::rosters::roster;
use super::store::{Mood, News, Store};

/// The client of each host. The last host starts with the first host's key.
const HOSTS: [usize; 5] = [0, 1, 2, 3, SHARED];

/// The client that runs on two hosts.
pub(super) const SHARED: usize = 0;

/// The outer network of all connections.
const NETWORK: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 0));

/// The wall clock when a world begins, in seconds since 1970.
const BEGINNING: i64 = 1_800_000_000;

/// Number of inner addresses.
const ADDRESSES: usize = 5;

/// How many of the inner addresses the four clients can have: all, or two.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Room {
    Enough,
    Tight,
}

/// What an exit of a fleet has on its own disk.
#[derive(Clone, Debug)]
pub(super) struct OwnCopy {
    pub(super) rows: ClientRegistry,
    /// The rows as they were before the latest write.
    pub(super) before: ClientRegistry,
    /// The rows that the store may lack, which are written before the rows themselves.
    pub(super) unsent: Vec<UnsentRow>,
}

/// A change of the model.
pub(super) type Intent = Box<dyn FnOnce(&mut ClientsModel)>;

pub(super) struct World {
    pub(super) now: Instant,
    began: Instant,
    /// The number of seconds by which the wall clock was set forward.
    clock_offset: i64,
    pub(super) seed: u64,
    pub(super) room: Room,
    pub(super) exit: Option<ExitSessions>,
    pub(super) model: ExitModel,
    pub(super) clients: ClientsModel,
    pub(super) store: Store,
    /// Until this time, the exit may have changes that the store lacks.
    pub(super) troubled_until: Instant,
    /// Clients that were disabled and not enabled since.
    pub(super) shut: BTreeSet<String>,
    /// Keys that this exit's operator has removed and that nobody has enrolled again since.
    pub(super) gone: BTreeSet<PublicKey>,
    /// The exit's own copy of a shared store.
    pub(super) copy: OwnCopy,
    /// The sessions whose clients have moved to another exit, and when these sessions end.
    pub(super) leaving: BTreeMap<SessionId, Instant>,
    /// Whether a host at another exit has taken the place of one of these hosts.
    pub(super) was_taken_elsewhere: bool,
    /// The changes of the model that follow when a request is stored.
    pub(super) intended: BTreeMap<StoreRequestId, Intent>,
    /// The token that each connection presented.
    pub(super) presented: BTreeMap<u64, InviteToken>,
    pub(super) hosts: Vec<Host>,
    pub(super) network: Network,
    /// The serial of the fleet's newest roster. 0 before the first.
    pub(super) roster: u64,
}

impl World {
    pub(super) fn new(seed: u64, room: Room) -> Self {
        let now = Instant::now();
        let mut disk = ClientRegistry::new();
        for number in 0..CLIENTS {
            disk.add(Client::new(name_of(number), key_of(number, 0), UNIX_EPOCH)).unwrap();
        }
        for number in 4..=6 {
            if room == Room::Tight {
                let ipv4 = Some(Ipv4Addr::new(10, 66, 0, number));
                disk.add(Client {
                    ipv4,
                    ..Client::new(format!("s{number}"), PublicKey([100 + number; 32]), UNIX_EPOCH)
                })
                .unwrap();
            }
        }
        let copy = OwnCopy { rows: disk.clone(), before: disk.clone(), unsent: Vec::new() };
        let mut world = Self {
            now,
            began: now,
            clock_offset: 0,
            seed,
            room,
            exit: None,
            model: ExitModel::default(),
            clients: ClientsModel::new(&disk),
            store: Store::new(disk, seed % 2 == 1),
            troubled_until: now,
            shut: BTreeSet::new(),
            gone: BTreeSet::new(),
            copy,
            leaving: BTreeMap::new(),
            was_taken_elsewhere: false,
            intended: BTreeMap::new(),
            presented: BTreeMap::new(),
            hosts: Vec::new(),
            network: Network::default(),
            roster: 0,
        };
        world.start_exit();
        for (number, client) in HOSTS.into_iter().enumerate() {
            let seed = world.next_seed();
            world.hosts.push(Host::new(number, key_of(client, 0), seed, now));
        }
        world.act();
        world
    }

    /// Ends the trouble and checks that every admitted host is connected in the end.
    pub(super) fn settle(&mut self) {
        self.start_exit();
        self.set_mood(Mood::Prompt);
        self.wait_until(self.now + Duration::from_secs(6));
        self.act();
        self.admit_everybody();
        let broken: Vec<_> = self.network.wires.keys().copied().collect();
        for number in broken {
            // Half-open and silent connections time out.
            let wire = self.network.wire(number);
            if wire.is_silent || wire.exit_is_done || wire.owner.is_none() {
                self.cut_wire(number, true, true);
            }
        }
        self.act();
        for _ in 0..2_000 {
            while !self.network.pending().is_empty() {
                self.deliver_oldest();
                self.act();
            }
            if self.is_settled() {
                break;
            }
            self.wait_until(self.next_timeout().unwrap());
            self.act();
        }
        self.check_settled();
    }

    /// Enrols and enables every client, and sets the keys that their machines have.
    fn admit_everybody(&mut self) {
        for number in 0..CLIENTS {
            self.add_client(number);
            self.set_disabled(number, false);
            if self.room == Room::Tight {
                // This removes static addresses, because a sticky address of one client could block another client's static one.
                self.set_client(number, true, |client| client.ipv4 = None);
            }
        }
        let going_on = self.hosts.iter().filter(|host| host.stopped.is_none());
        let keys: Vec<_> = going_on.map(|host| host.key).collect();
        for key in keys {
            if !self.clients.admits(key) {
                self.set_client(client_of(key), true, |client| client.next_public_key = Some(key));
            }
        }
    }

    /// For each host, whether it is connected.
    pub(super) fn up(&self) -> Vec<bool> {
        self.hosts.iter().map(|host| host.attached().count() > 0).collect()
    }

    pub(super) fn is_settled(&self) -> bool {
        let wanted: usize = self.hosts.iter().filter(|host| host.stopped.is_none()).map(|_| 3).sum();
        let attached: usize = self.hosts.iter().map(|host| host.attached().count()).sum();
        attached == if self.room == Room::Tight { wanted.min(6) } else { wanted }
    }

    /// The fleet as the exit has kept it.
    fn kept_fleet(&self) -> Option<FollowedFleet> {
        (self.roster > 0).then(|| FollowedFleet::begin(roster(self.roster).clone()))
    }

    pub(super) fn check_settled(&self) {
        let exit = self.exit.as_ref().unwrap();
        for host in &self.hosts {
            match &host.stopped {
                None if self.room == Room::Enough => {
                    let heard = announcement(&exit.announced().dns);
                    assert!(
                        host.announced == heard || host.number == OLD_VERSION,
                        "an announcement was not heard"
                    );
                    assert!(
                        host.serial() == self.roster || host.number == OLD_VERSION,
                        "host {} has the roster {}, and not {}",
                        host.number,
                        host.serial(),
                        self.roster
                    );
                    assert_eq!(host.attached().count(), 3, "host {}: {:?}", host.number, host.session);
                    assert!(self.clients.by_key(host.key).is_some(), "host {} is up by no key", host.number);
                }
                None => {}
                Some(Stop::Goodbye(Goodbye::Replaced)) if client_of(host.key) == SHARED => {}
                Some(Stop::Goodbye(_)) => {
                    let was_shut_out = self.clients.was_shut_out(host.key);
                    assert!(
                        was_shut_out,
                        "host {} with {} stopped: {:?}, {:?}",
                        host.number, host.key, host.stopped, self.clients
                    )
                }
                Some(stop) => panic!("host {} stopped: {stop}", host.number),
            }
            for (index, wire) in host.attached() {
                assert!(self.model.has_attached(wire, index), "host {} believes in {index}", host.number);
            }
        }
        let sharing: Vec<_> = self.hosts.iter().filter(|host| client_of(host.key) == SHARED).collect();
        if self.room == Room::Enough
            && !self.was_taken_elsewhere
            && sharing.iter().all(|host| !self.clients.was_shut_out(host.key))
        {
            let going_on = sharing.iter().filter(|host| host.stopped.is_none()).count();
            assert_eq!(going_on, 1, "of two hosts of one client one goes on");
        }
        assert!(self.is_settled(), "{:?} {:?}", self.up(), exit);
    }

    pub(super) fn deliver_oldest(&mut self) {
        if let Some(&(number, to_exit)) = self.network.pending().first() {
            self.deliver(number, to_exit);
            self.act();
        }
    }

    pub(super) fn deliver(&mut self, number: u64, to_exit: bool) {
        let now = self.now;
        let wire = self.network.wire(number);
        if to_exit {
            let packet = wire.to_exit.pop_front().unwrap();
            match &mut self.exit {
                // The exit is down or does not know the connection, and it answers only with a stateless reset.
                None => wire.is_silent = true,
                Some(_) if wire.exit_is_done => {
                    wire.to_exit.clear();
                    if wire.owner.is_some() && wire.to_client.is_empty() {
                        wire.to_client.push_back(Packet::Closed(lost()));
                    }
                }
                Some(exit) => match packet {
                    Packet::Connected => {
                        wire.exit_has_it = true;
                        wire.connected = Some(now);
                        wire.to_client.push_back(Packet::Connected);
                        exit.connected(now, number, wire.key, NETWORK);
                    }
                    Packet::Bytes(bytes) => exit.received(now, number, &bytes),
                    Packet::Closed(_) => {
                        (wire.exit_has_it, wire.exit_is_done) = (false, true);
                        exit.closed(now, number);
                    }
                },
            }
        } else {
            let packet = wire.to_client.pop_front().unwrap();
            let Some((host, index)) = wire.owner else { return wire.to_client.clear() };
            let host = &mut self.hosts[host];
            match packet {
                Packet::Connected => host.session.connected(now, index),
                Packet::Bytes(bytes) => host.session.received(now, index, &bytes),
                Packet::Closed(why) => {
                    wire.owner = None;
                    host.wires.remove(&index);
                    host.session.closed(now, index, why);
                }
            }
        }
    }

    /// Tells the named sides that the connection is gone. No further packet on the connection is delivered to them.
    pub(super) fn cut_wire(&mut self, number: u64, client_side: bool, exit_side: bool) {
        let now = self.now;
        let wire = self.network.wire(number);
        if client_side {
            wire.to_client.clear();
            if let Some((host, index)) = wire.owner.take() {
                self.hosts[host].wires.remove(&index);
                self.hosts[host].session.closed(now, index, lost());
            }
        }
        let wire = self.network.wire(number);
        if exit_side {
            wire.to_exit.clear();
            wire.exit_is_done = true;
            if std::mem::take(&mut wire.exit_has_it)
                && let Some(exit) = &mut self.exit
            {
                if number.is_multiple_of(2) {
                    exit.closed(now, number);
                } else {
                    exit.timed_out(now, number);
                }
            }
        }
    }

    pub(super) fn wait_until(&mut self, then: Instant) {
        self.now = self.now.max(then);
        if let Some(exit) = &mut self.exit {
            exit.handle_timeout(self.now);
            assert!(exit.timeout().is_none_or(|next| next > self.now), "a timeout that is past is not done");
        }
        for host in &mut self.hosts {
            host.session.handle_timeout(self.now);
        }
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let exit = self.exit.iter().filter_map(ExitSessions::timeout);
        exit.chain(self.hosts.iter().filter_map(|host| host.session.timeout())).min()
    }

    pub(super) fn start_exit(&mut self) {
        if self.exit.is_some() {
            return;
        }
        let config = SessionConfig {
            ipv4: Some("10.66.0.0/29".parse().unwrap()),
            ipv6: Some("fd66::/64".parse().unwrap()),
            features: UPDATES | ROSTER,
            fleet: FleetNews { fleet: self.kept_fleet(), loads: Vec::new() },
            exit_keys: vec![tests_key(0)],
            ..SessionConfig::default()
        };
        // A restart reads the registry from its file, so the registry must survive a round trip. The file stores times in whole
        // seconds.
        let registry = read_again(&self.store.registry);
        self.store.restart(registry.clone());
        let own = if self.store.is_shared { read_again(&self.copy.rows) } else { registry };
        (self.copy.rows, self.copy.before) = (own.clone(), own.clone());
        let entropy = random(self.next_seed());
        let mut exit = ExitSessions::new(config, own, self.now, self.wall(), entropy).unwrap();
        if self.store.is_shared {
            exit.keep_copy();
            exit.resume(self.copy.unsent.clone());
            self.store.is_linked = false;
        }
        self.exit = Some(exit);
        self.model = self.model.restarted();
        self.leaving.clear();
        self.link();
        // A change that the exit had in force and could not store is no longer in force.
        self.resync();
    }

    /// Gives the exit a whole copy of a shared store, if the store answers and the exit has no copy.
    fn link(&mut self) {
        let Some(exit) = self.exit.as_mut().filter(|_| !self.store.is_linked) else { return };
        if self.store.mood == Mood::Down {
            return;
        }
        let (rows, mut whole) = (self.store.link(), WholeCopy::default());
        for part in rows.chunks(3) {
            whole.add(exit, part.to_vec()).unwrap();
        }
        // The errors are ignored, as those of `apply` are.
        exit.take_whole(self.now, whole);
        exit.store_answers();
        self.troubled_until = self.now + Duration::from_secs(6);
        self.resync();
        self.model.excuse();
    }

    /// Cuts the exit's link to a shared store and gives it another one.
    pub(super) fn relink(&mut self) {
        if !self.store.is_shared || self.exit.is_none() {
            return;
        }
        let loses = self.next_seed().is_multiple_of(2);
        let unanswered = self.store.unlink(loses);
        self.intended.clear();
        for id in unanswered {
            let exit = self.exit.as_mut();
            exit.into_iter().for_each(|exit| exit.stored(self.now, id, Err(StoreRefusal::Unavailable)));
        }
        self.act();
        self.link();
        self.resync();
    }

    /// Writes the exit's own copy: first the rows that the store may lack, then all rows.
    fn write_copy(&mut self) {
        let Some(exit) = self.exit.as_mut().filter(|_| self.store.is_shared) else { return };
        let rows = exit.take_uncopied();
        self.copy.unsent = exit.unsent();
        if rows.is_empty() {
            return;
        }
        let rows: Vec<_> = self.copy.rows.rows().chain(rows).collect();
        let written = ClientRegistry::from_rows(rows).expect("rows that do not contradict each other");
        self.copy.before = std::mem::replace(&mut self.copy.rows, written);
        assert_eq!(self.copy.rows, *exit.registry(), "the copy is what the exit has");
    }

    /// Carries out and checks every pending action, then checks the invariants.
    pub(super) fn act(&mut self) {
        let mut left = self.follow();
        while let Some(action) = self.exit.as_mut().and_then(ExitSessions::poll_action) {
            self.check_action(&action);
            if let ExitAction::Store(request) = action {
                // The exit's own disk is written first, so that a crash loses nothing that others may already know.
                self.write_copy();
                if !self.store.is_linked {
                    let exit = self.exit.as_mut();
                    let refused = Err(StoreRefusal::Unavailable);
                    exit.into_iter().for_each(|exit| exit.stored(self.now, request.id, refused));
                    continue;
                }
                self.store.ask(request);
                if self.store.mood == Mood::Prompt {
                    self.store_works();
                    left.extend(self.follow());
                }
            } else {
                carry_out(action, &mut self.network, &self.model);
            }
        }
        assert!(!left.into_iter().any(|key| self.network.has_shown(key)), "who has the old key is told");
        self.write_copy();
        if let Some(exit) = &self.exit {
            if self.store.mood != Mood::Prompt || self.now < self.troubled_until {
                self.model.excuse();
            }
            self.model.compare(exit, self.now);
            self.network.check_patience(self.now, &self.model);
            self.check_rows(exit);
        }
        for host in &mut self.hosts {
            host.act(&mut self.network, &self.model);
            self.clients.look_at(host.key);
        }
        self.network.sweep();
    }

    fn follow(&mut self) -> Vec<PublicKey> {
        let Some(exit) = &self.exit else { return Vec::new() };
        // In a fleet, a client has addresses as soon as it is enrolled, even if it never connects.
        let is_full = self.store.is_shared && exit.registry().iter().count() > ADDRESSES;
        let room = if is_full { Room::Tight } else { self.room };
        self.clients.follow(exit.registry(), room, &self.network)
    }

    fn check_action(&mut self, action: &ExitAction) {
        let Some(exit) = &self.exit else { return };
        // Rows that the store has refused are sent again after a while.
        let is_troubled = self.store.mood != Mood::Prompt || self.now < self.troubled_until;
        let lacks = |key| is_troubled && exit.lacks(RowId::Client(key));
        self.model.take(self.now, action, &self.clients, &self.store.registry, lacks);
        if let ExitAction::Open { name, lease, .. } = action
            && self.store.is_shared
        {
            let is_stored = lease.addresses().all(|address| self.store.has_leased(address, name));
            assert!(is_stored, "a lease that another exit could have given as well");
        }
        if let ExitAction::Send { connection, .. } = action
            && self.model.enrolled.contains_key(connection)
            && let Some(token) = self.presented.remove(connection)
        {
            self.store.acknowledge(token.digest(), self.network.wire(*connection).key);
        }
    }

    /// Checks that the exit's rows equal the store's rows, except rows that are under way.
    fn check_rows(&self, exit: &ExitSessions) {
        let (here, there) = (exit.registry(), &self.store.registry);
        let is_shut = |name: &String| here.by_name(name).is_none_or(|client| client.disabled);
        assert!(self.shut.iter().all(is_shut), "{:?} are disabled", self.shut);
        assert!(self.gone.iter().all(|key| here.by_key(*key).is_none()), "{:?} are removed", self.gone);
        for (session, until) in &self.leaving {
            assert!(
                exit.session(*session).is_none() || self.now < *until,
                "a session goes on after its client has left"
            );
        }
        for id in here.rows().chain(there.rows()).map(|row| row.id()) {
            let is_on_its_way = !self.store.is_linked || exit.lacks(id) || self.store.is_unheard(id);
            let (here, there) = (here.row(id), there.row(id));
            assert!(is_on_its_way || here == there, "{here:?} is {there:?} in the store");
        }
    }

    /// Lets the store carry out one request, and the exit receive one change. Returns false if there was neither.
    pub(super) fn store_works(&mut self) -> bool {
        if self.store.is_idle() {
            return false;
        }
        if let Some(written) = self.store.work() {
            let intent = self.intended.remove(&written.id);
            if self.store.mood == Mood::Prompt {
                // The model must change before `follow` compares it with the exit.
                intent.into_iter().for_each(|intent| intent(&mut self.clients));
                self.note_enrolment(&written);
            }
        }
        self.hear();
        true
    }

    /// Enrols in the model the clients that were enrolled in the store.
    fn note_enrolment(&mut self, written: &StoreRequest) {
        for change in &written.changes {
            let RowChange::Invitation { token, invitation: Some(invitation) } = change else { continue };
            let Some(key) = invitation.used_by else { continue };
            let known = self.clients.tokens().iter().find(|(known, _)| known.digest() == *token);
            let (known, _) = *known.expect("a token that was given out");
            let is_new = self.clients.by_key(key).is_none();
            if is_new {
                let wall = self.wall();
                assert!(
                    self.clients.redeem(known, key, wall).is_some(),
                    "a token that does not admit the key"
                );
            }
        }
    }

    /// Delivers the store's oldest news to the exit.
    fn hear(&mut self) {
        let Some(news) = self.store.hear() else { return };
        let Some(exit) = &mut self.exit else { return };
        let is_known = self.store.mood == Mood::Prompt && matches!(news, News::Stored(..));
        match news {
            News::Stored(id, outcome) => exit.stored(self.now, id, outcome),
            News::Changed(changes) => drop(exit.apply(self.now, changes)),
        }
        if !is_known {
            self.resync();
            self.model.excuse();
        }
    }

    /// Makes the model follow the store's content.
    pub(super) fn resync(&mut self) {
        if let Some(exit) = &self.exit {
            self.clients.resync(exit.registry());
        }
    }

    pub(super) fn set_mood(&mut self, mood: Mood) {
        if mood == Mood::Prompt && self.store.mood != Mood::Prompt {
            self.store.mood = Mood::Slow;
            // An answer may lead to new requests.
            while self.store_works() {
                self.act();
            }
            self.troubled_until = self.now + Duration::from_secs(6);
        }
        self.store.mood = mood;
        self.link();
        self.act();
    }

    pub(super) fn wall(&self) -> SystemTime {
        let set = u64::try_from(BEGINNING + self.clock_offset).unwrap();
        UNIX_EPOCH + Duration::from_secs(set) + (self.now - self.began)
    }

    /// Sets the wall clock forward or back by some seconds, within 1970 and 2096.
    pub(super) fn set_clock(&mut self, seconds: i64) {
        self.clock_offset =
            self.clock_offset.saturating_add(seconds).clamp(-BEGINNING, BEGINNING + 400_000_000);
    }

    pub(super) fn next_seed(&mut self) -> u64 {
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.seed
    }
}

/// Returns the registry as it is after it was written to a file and read again.
fn read_again(registry: &ClientRegistry) -> ClientRegistry {
    toml::from_str(&toml::to_string(registry).unwrap()).unwrap()
}

fn carry_out(action: ExitAction, network: &mut Network, model: &ExitModel) {
    match action {
        ExitAction::Send { connection, bytes } => Wire::send(&mut network.wire(connection).to_client, &bytes),
        ExitAction::Close { connection, reason } => {
            let wire = network.wire(connection);
            (wire.exit_has_it, wire.exit_is_done) = (false, true);
            let reason = Goodbye::from_code(reason.code()).expect("codes lead back to reasons");
            wire.to_client.push_back(Packet::Closed(ConnectionEnd::Goodbye(reason)));
            wire.to_exit.clear();
        }
        ExitAction::Attach { session, connection, .. } => {
            let wire = network.wire(connection);
            let is_own = Some(wire.key) == model.key_of(session);
            assert!(is_own && !wire.is_forger, "attached with another's token or key");
        }
        ExitAction::Open { .. }
        | ExitAction::Detach { .. }
        | ExitAction::End { .. }
        | ExitAction::Enrolled { .. }
        | ExitAction::Stays { .. }
        | ExitAction::SetWireGuard { .. }
        | ExitAction::Store(_) => {}
    }
}

/// A source of random bytes that are the same for each run of a seed (SplitMix64).
pub(super) fn random(seed: u64) -> Entropy {
    let mut state = seed;
    Box::new(move |bytes| {
        for byte in bytes {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            *byte = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb).to_be_bytes()[0];
        }
    })
}
