//! The simulated world: exit, hosts, network and operator, with the properties that must hold after each step.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::client::{ConnectionEnd, Stop};
use crate::clients::{Client, ClientRegistry};
use crate::exit::{ExitAction, ExitSessions, SessionConfig};
use crate::{Entropy, Goodbye, PublicKey};

use super::clients_model::{CLIENTS, ClientsModel, client_of, key_of, name_of};
use super::exit_model::ExitModel;
use super::host::{Host, lost};
use super::network::{Network, Packet, Wire};

/// The client of each host. The last host starts with the first host's key.
const HOSTS: [usize; 5] = [0, 1, 2, 3, SHARED];

/// The client that runs on two hosts.
const SHARED: usize = 0;

/// The outer network of all connections.
const NETWORK: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 0));

/// The wall clock when a world begins, in seconds since 1970.
const BEGINNING: i64 = 1_800_000_000;

/// Number of inner addresses: five, or two for four clients.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Room {
    Enough,
    Tight,
}

pub(super) struct World {
    pub(super) now: Instant,
    began: Instant,
    /// By how many seconds the wall clock was set forward.
    clock_offset: i64,
    pub(super) seed: u64,
    pub(super) room: Room,
    pub(super) exit: Option<ExitSessions>,
    pub(super) model: ExitModel,
    pub(super) clients: ClientsModel,
    /// The registry that the exit has persisted.
    pub(super) disk: ClientRegistry,
    pub(super) hosts: Vec<Host>,
    pub(super) network: Network,
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
        let mut world = Self {
            now,
            began: now,
            clock_offset: 0,
            seed,
            room,
            exit: None,
            model: ExitModel::default(),
            clients: ClientsModel::new(&disk),
            disk,
            hosts: Vec::new(),
            network: Network::default(),
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
                // A sticky address of one client could block another one.
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

    /// Which hosts are up.
    pub(super) fn up(&self) -> Vec<bool> {
        self.hosts.iter().map(|host| host.attached().count() > 0).collect()
    }

    pub(super) fn is_settled(&self) -> bool {
        let wanted: usize = self.hosts.iter().filter(|host| host.stopped.is_none()).map(|_| 3).sum();
        let attached: usize = self.hosts.iter().map(|host| host.attached().count()).sum();
        attached == if self.room == Room::Tight { wanted.min(6) } else { wanted }
    }

    pub(super) fn check_settled(&self) {
        let exit = self.exit.as_ref().unwrap();
        for host in &self.hosts {
            match &host.stopped {
                None if self.room == Room::Enough => {
                    assert_eq!(host.attached().count(), 3, "host {}: {:?}", host.number, host.session);
                    assert!(self.clients.by_key(host.key).is_some(), "host {} is up by no key", host.number);
                }
                None => {}
                Some(Stop::Goodbye(Goodbye::Replaced)) if client_of(host.key) == SHARED => {}
                Some(Stop::Goodbye(_)) => {
                    let was_shut_out = self.clients.was_shut_out(host.key);
                    assert!(was_shut_out, "host {} stopped: {:?}", host.number, host.stopped)
                }
                Some(stop) => panic!("host {} stopped: {stop}", host.number),
            }
            for (index, wire) in host.attached() {
                assert!(self.model.has_attached(wire, index), "host {} believes in {index}", host.number);
            }
        }
        let sharing: Vec<_> = self.hosts.iter().filter(|host| client_of(host.key) == SHARED).collect();
        if self.room == Room::Enough && sharing.iter().all(|host| !self.clients.was_shut_out(host.key)) {
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
                // The exit is down or does not know the connection. The only answer is a stateless reset.
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

    /// Tells the named sides that the connection is gone. Nothing else on it is delivered to them.
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
            ..SessionConfig::default()
        };
        // A restart reads the registry from its file, so it must survive a round trip.
        let file = toml::to_string(&self.disk).unwrap();
        let registry: ClientRegistry = toml::from_str(&file).unwrap();
        let entropy = random(self.next_seed());
        self.exit = Some(ExitSessions::new(config, registry, self.now, self.wall(), entropy).unwrap());
        self.model = self.model.restarted();
    }

    /// Carries out and checks every pending action, then checks the invariants.
    pub(super) fn act(&mut self) {
        if let Some(exit) = &mut self.exit {
            let left = self.clients.follow(exit.registry(), self.room, &self.network);
            while let Some(action) = exit.poll_action() {
                if action == ExitAction::Persist {
                    self.disk = exit.registry().clone();
                }
                self.model.take(self.now, &action, &self.clients, &self.disk);
                carry_out(action, &mut self.network, &self.model);
            }
            assert!(!left.into_iter().any(|key| self.network.has_shown(key)), "who has the old key is told");
            self.model.compare(exit, self.now);
            self.network.check_patience(self.now, &self.model);
        }
        for host in &mut self.hosts {
            host.act(&mut self.network, &self.model);
            self.clients.look_at(host.key);
        }
        self.network.sweep();
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
        | ExitAction::Persist => {}
    }
}

/// Random bytes that a seed repeats (SplitMix64).
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
