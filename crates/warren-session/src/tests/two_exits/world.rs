//! The two exits, their paths, the connections of the client, and the time.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant, UNIX_EPOCH};

use super::checks::Checks;
use super::client::{Client, random};
use super::store::Store;
use crate::client::{ConnectionEnd, Which};
use crate::clients::{Client as Enrolled, ClientRegistry};
use crate::exit::{EndReason, ExitAction, ExitSessions, SessionConfig};
use crate::message::encode;
use crate::{Goodbye, PublicKey, ROSTER};

const KEY: PublicKey = PublicKey([1; 32]);
const NETWORK: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 0));

/// An exit counts as silent if the client has not heard from it for this long.
const SILENT_AFTER: Duration = Duration::from_millis(400);
/// A connection that receives nothing for this long ends on both sides.
const IDLE_TIMEOUT: Duration = Duration::from_secs(20);

/// An exit and the path to it.
pub(super) struct Site {
    /// `None` while the exit is down.
    pub(super) sessions: Option<ExitSessions>,
    /// Since when the path carries nothing.
    pub(super) dead_since: Option<Instant>,
    /// Whether echoes through the exit are answered.
    pub(super) carries: bool,
    /// Whether the exit refuses new sessions.
    pub(super) refuses: bool,
    pub(super) is_drained: bool,
    starts: u64,
}

pub(super) enum Packet {
    Connected,
    Bytes(Vec<u8>),
    Closed(ConnectionEnd),
}

/// A connection.
pub(super) struct Wire {
    pub(super) exit: usize,
    /// The client's session and the index in it, while the client has the connection.
    pub(super) owner: Option<(u64, u32)>,
    pub(super) to_exit: VecDeque<Packet>,
    pub(super) to_client: VecDeque<Packet>,
    exit_has_it: bool,
}

pub(super) struct World {
    pub(super) now: Instant,
    /// Length of a step in milliseconds.
    pub(super) tick: u64,
    pub(super) sites: [Site; 2],
    pub(super) store: Store,
    pub(super) client: Client,
    pub(super) wires: BTreeMap<u64, Wire>,
    pub(super) checks: Checks,
    next_wire: u64,
    seed: u64,
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        let now = Instant::now();
        let site = || Site {
            sessions: None,
            dead_since: None,
            carries: true,
            refuses: false,
            is_drained: false,
            starts: 0,
        };
        let mut world = Self {
            now,
            tick: 50,
            sites: [site(), site()],
            store: Store::default(),
            client: Client::new(seed, now),
            wires: BTreeMap::new(),
            checks: Checks::default(),
            next_wire: 0,
            seed,
        };
        world.start(0);
        world.start(1);
        world.act();
        world
    }

    /// Starts an exit that is down.
    pub(super) fn start(&mut self, exit: usize) {
        let site = &mut self.sites[exit];
        if site.sessions.is_some() {
            return;
        }
        site.starts += 1;
        // In every fourth world, the exits give the client different addresses.
        let network = if exit == 1 && self.seed % 4 == 3 { "10.67.0.0/24" } else { "10.66.0.0/24" };
        let config = SessionConfig {
            ipv4: Some(network.parse().unwrap()),
            features: ROSTER,
            max_connections: 2,
            ..SessionConfig::default()
        };
        let mut registry = ClientRegistry::new();
        registry.add(Enrolled::new("laptop", KEY, UNIX_EPOCH)).unwrap();
        let entropy = random(self.seed * 1_000 + site.starts * 2 + exit as u64);
        let mut sessions = ExitSessions::new(config, registry, self.now, UNIX_EPOCH, entropy).unwrap();
        if site.is_drained {
            sessions.drain(self.now);
        }
        site.sessions = Some(sessions);
    }

    /// Ends an exit without a message to anybody.
    pub(super) fn crash(&mut self, exit: usize) {
        self.sites[exit].sessions = None;
        self.store.crashed(exit);
        for wire in self.wires.values_mut().filter(|wire| wire.exit == exit) {
            (wire.exit_has_it, wire.to_client) = (false, VecDeque::new());
            wire.to_client.push_back(Packet::Closed(ConnectionEnd::Lost("a stateless reset".into())));
        }
    }

    /// Drains an exit, or lets it serve again.
    pub(super) fn drain(&mut self, exit: usize, is_drained: bool) {
        self.sites[exit].is_drained = is_drained;
        let now = self.now;
        if let Some(sessions) = &mut self.sites[exit].sessions {
            if is_drained { sessions.drain(now) } else { sessions.serve_again() }
        }
        self.act();
    }

    pub(super) fn set_path(&mut self, exit: usize, is_dead: bool) {
        let site = &mut self.sites[exit];
        site.dead_since = is_dead.then(|| site.dead_since.unwrap_or(self.now));
    }

    /// Whether a handshake with an exit succeeds.
    pub(super) fn is_reachable(&self, exit: usize) -> bool {
        let Site { sessions, dead_since, .. } = &self.sites[exit];
        sessions.is_some() && dead_since.is_none()
    }

    /// Since when an exit counts as silent. `None` if it does not.
    pub(super) fn silent_since(&self, exit: usize) -> Option<Instant> {
        self.sites[exit].dead_since.map(|since| since + SILENT_AFTER).filter(|at| *at <= self.now)
    }

    /// Begins a connection. With `is_done`, its handshake is complete already.
    pub(super) fn dial(&mut self, exit: usize, owner: (u64, u32), is_done: bool) {
        let to_exit = if is_done { VecDeque::new() } else { [Packet::Connected].into() };
        let wire =
            Wire { exit, owner: Some(owner), to_exit, to_client: VecDeque::new(), exit_has_it: is_done };
        self.wires.insert(self.next_wire, wire);
        if let Some(sessions) = self.sites[exit].sessions.as_mut().filter(|_| is_done) {
            sessions.connected(self.now, self.next_wire, KEY, NETWORK);
        }
        self.next_wire += 1;
    }

    /// The client's connection with an index in a session.
    pub(super) fn wire_of(&mut self, owner: (u64, u32)) -> Option<&mut Wire> {
        self.wires.values_mut().find(|wire| wire.owner == Some(owner))
    }

    pub(super) fn wait(&mut self, milliseconds: u64) {
        let until = self.now + Duration::from_millis(milliseconds);
        // Steps are longer in a long pause, because little happens.
        let tick = Duration::from_millis(if milliseconds > 6_000 { self.tick.max(400) } else { self.tick });
        while self.now < until {
            self.now += tick;
            self.step();
        }
    }

    /// Ends the trouble, and checks the state that the world reaches.
    pub(super) fn settle(&mut self) {
        for exit in 0..2 {
            (self.sites[exit].carries, self.sites[exit].refuses) = (true, false);
            self.set_path(exit, false);
            self.start(exit);
            self.drain(exit, false);
        }
        (self.store.is_away, self.client.has_device, self.client.flows) = (false, true, 0);
        self.wait(140_000);
        self.check_settled();
    }

    /// The total size of the state that the exits, the client, the store and the network keep.
    pub(super) fn size(&self) -> usize {
        let exits = self.sites.iter().filter_map(|site| site.sessions.as_ref());
        exits.map(ExitSessions::kept).sum::<usize>()
            + self.wires.len()
            + self.store.size()
            + self.client.probing.len()
    }

    fn step(&mut self) {
        let now = self.now;
        self.end_idle();
        self.deliver();
        for exit in 0..2 {
            if let Some(sessions) = &mut self.sites[exit].sessions {
                sessions.handle_timeout(now);
            }
            if let Some((nonce, claim)) = self.store.work(now, exit)
                && let Some(sessions) = &mut self.sites[exit].sessions
            {
                sessions.elsewhere(now, KEY, &nonce, claim);
            }
        }
        self.client.handle_timeout(now);
        self.echo();
        self.act();
        self.scout();
        self.act();
        self.wires.retain(|_, wire| wire.owner.is_some() || wire.exit_has_it || !wire.to_exit.is_empty());
        self.check();
    }

    /// Carries out the actions of the exits and the client, until none is left.
    pub(super) fn act(&mut self) {
        loop {
            let mut is_idle = true;
            for exit in 0..2 {
                while let Some(action) =
                    self.sites[exit].sessions.as_mut().and_then(ExitSessions::poll_action)
                {
                    is_idle = false;
                    self.carry_out_at(exit, action);
                }
            }
            if !self.follow_client() && is_idle {
                return;
            }
        }
    }

    fn carry_out_at(&mut self, exit: usize, action: ExitAction) {
        let now = self.now;
        let Some(sessions) = &mut self.sites[exit].sessions else { return };
        match action {
            ExitAction::Send { connection, bytes } => {
                if let Some(wire) = self.wires.get_mut(&connection) {
                    wire.to_client.push_back(Packet::Bytes(bytes));
                }
            }
            ExitAction::Close { connection, reason } => {
                if let Some(wire) = self.wires.get_mut(&connection) {
                    wire.exit_has_it = false;
                    wire.to_client.push_back(Packet::Closed(ConnectionEnd::Goodbye(reason)));
                }
            }
            ExitAction::Open { session, .. } | ExitAction::Stays { session, .. } => {
                if let Some(opened) = sessions.session(session) {
                    let claim = (opened.nonce().to_vec(), opened.claim());
                    self.store.opened(now, exit, claim);
                }
            }
            ExitAction::End { session, reason } => {
                // Every session of the client process has the same nonce.
                self.store.closed(exit, self.client.nonce.to_vec());
                self.check_end(exit, session, reason == EndReason::Superseded);
            }
            ExitAction::Store(request) => sessions.stored(now, request.id, Ok(())),
            ExitAction::Attach { .. }
            | ExitAction::Detach { .. }
            | ExitAction::Enrolled { .. }
            | ExitAction::SetWireGuard { .. } => {}
        }
    }

    /// Delivers every packet whose path works.
    fn deliver(&mut self) {
        for number in self.wires.keys().copied().collect::<Vec<_>>() {
            let exit = self.wires[&number].exit;
            if self.sites[exit].dead_since.is_some() {
                continue;
            }
            let wire = self.wires.get_mut(&number).unwrap();
            let (to_exit, to_client) =
                (std::mem::take(&mut wire.to_exit), std::mem::take(&mut wire.to_client));
            to_exit.into_iter().for_each(|packet| self.deliver_to_exit(number, packet));
            to_client.into_iter().for_each(|packet| self.deliver_to_client(number, packet));
        }
    }

    fn deliver_to_exit(&mut self, number: u64, packet: Packet) {
        let now = self.now;
        let Some(wire) = self.wires.get_mut(&number) else { return };
        let site = &mut self.sites[wire.exit];
        let Some(sessions) = &mut site.sessions else {
            wire.to_client.push_back(Packet::Closed(ConnectionEnd::Lost("nobody listens".into())));
            return;
        };
        match packet {
            Packet::Connected => {
                wire.exit_has_it = true;
                wire.to_client.push_back(Packet::Connected);
                sessions.connected(now, number, KEY, NETWORK);
            }
            Packet::Bytes(_) if site.refuses && sessions.sessions().next().is_none() => {
                wire.to_client.push_back(Packet::Bytes(encode(&Goodbye::Full.to_message())));
                wire.to_client.push_back(Packet::Closed(ConnectionEnd::Goodbye(Goodbye::Full)));
                wire.exit_has_it = false;
                sessions.closed(now, number);
            }
            Packet::Bytes(bytes) if wire.exit_has_it => sessions.received(now, number, &bytes),
            Packet::Bytes(_) => {}
            Packet::Closed(_) => {
                wire.exit_has_it = false;
                sessions.closed(now, number);
            }
        }
    }

    fn deliver_to_client(&mut self, number: u64, packet: Packet) {
        let now = self.now;
        let Some((session, index)) = self.wires.get(&number).and_then(|wire| wire.owner) else { return };
        let is_end = matches!(packet, Packet::Closed(_));
        if let Some(side) = self.client.with_number(session) {
            match packet {
                Packet::Connected => side.machine.connected(now, index),
                Packet::Bytes(bytes) => side.machine.received(now, index, &bytes),
                Packet::Closed(why) => side.machine.closed(now, index, why),
            }
        }
        // The actions that this packet causes come before the next packet.
        if let Some(wire) = self.wires.get_mut(&number).filter(|_| is_end) {
            wire.owner = None;
        }
        self.act();
    }

    /// Ends connections whose path has been dead for too long.
    fn end_idle(&mut self) {
        let now = self.now;
        for exit in 0..2 {
            if self.sites[exit].dead_since.is_none_or(|since| now < since + IDLE_TIMEOUT) {
                continue;
            }
            let of_exit = |(number, wire): (&u64, &Wire)| (wire.exit == exit).then_some(*number);
            for number in self.wires.iter().filter_map(of_exit).collect::<Vec<_>>() {
                self.cut(number);
            }
        }
    }

    /// Ends a connection on both sides, without a message.
    pub(super) fn cut(&mut self, number: u64) {
        let now = self.now;
        let Some(wire) = self.wires.remove(&number) else { return };
        if let Some(sessions) = self.sites[wire.exit].sessions.as_mut().filter(|_| wire.exit_has_it) {
            sessions.timed_out(now, number);
        }
        if let Some((side, index)) =
            wire.owner.and_then(|(session, index)| Some((self.client.with_number(session)?, index)))
        {
            side.machine.closed(now, index, ConnectionEnd::Lost("silent".into()));
        }
        self.act();
    }

    /// Answers the echoes of the client that get through.
    fn echo(&mut self) {
        for number in self.client.probing.iter().copied().collect::<Vec<_>>() {
            let which = if self.client.in_use.number == number { Which::InUse } else { Which::Beside };
            let Some(side) = self.client.with_number(number) else { continue };
            let (exit, is_up) = (side.exit, side.is_up());
            let gets_through = is_up && self.is_reachable(exit) && self.sites[exit].carries;
            if gets_through {
                self.client.answered(self.now, which);
            }
        }
    }
}
