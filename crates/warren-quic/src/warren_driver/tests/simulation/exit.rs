//! The exit: its sessions, the endpoint of its socket, and what is kept over a restart.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::Arc,
    time::{Instant, SystemTime},
};

use bytes::BytesMut;
use noq_proto::{ConnectionHandle, DatagramEvent, Endpoint, FourTuple, Incoming};
use warren_session::{
    clients::{Client as Enrolled, ClientRegistry},
    exit::{ExitAction, ExitSessions, SessionConfig},
};

use warren_simulation::Random;

use super::{EXIT, node::Node, speech::Speech, wire::Wire};
use crate::{
    boundary::{CloseReason, ConnectionId, Event},
    key::{PrivateKey, PublicKey},
    planted::{Bug, is_planted},
    quic_config::{self, ListenerPlace},
    settings::TransportSettings,
    strangers::{ExitSecrets, Gate, Network, Strangers},
    tls,
    warren_driver::connection::WarrenConnection,
};

pub(super) struct Exit {
    settings: TransportSettings,
    key: PrivateKey,
    random: Random,
    reset_key: [u8; 32],
    clients: Vec<PublicKey>,
    /// The state on disk, which a restart finds.
    disk: ClientRegistry,
    life: Life,
    /// The datagrams received from each client. None may arrive again.
    heard: BTreeSet<(usize, u64)>,
}

/// The state that is lost with the process.
struct Life {
    gate: Gate,
    endpoint: Endpoint,
    connections: BTreeMap<u64, Node>,
    numbers: BTreeMap<usize, u64>,
    peers: BTreeMap<u64, PublicKey>,
    attached: BTreeSet<u64>,
    sessions: ExitSessions,
    next: u64,
}

impl Exit {
    pub(super) fn new(
        now: Instant,
        settings: &TransportSettings,
        key: &PrivateKey,
        clients: &[PrivateKey],
        seed: u64,
    ) -> Self {
        let settings = TransportSettings { strangers: Strangers::new(true), ..settings.clone() };
        let clients: Vec<PublicKey> = clients.iter().map(PrivateKey::public).collect();
        let mut disk = ClientRegistry::new();
        for (number, key) in clients.iter().enumerate() {
            let client = Enrolled::new(format!("c{number}"), *key, SystemTime::UNIX_EPOCH);
            disk.add(client).unwrap();
        }
        let mut random = Random::new(seed);
        let reset_key = random.bytes();
        let life = Life::new(now, &settings, key, &reset_key, disk.clone(), &mut random);
        Self { settings, key: key.clone(), random, reset_key, clients, disk, life, heard: BTreeSet::new() }
    }

    pub(super) fn connections(&self) -> usize {
        self.life.connections.len()
    }

    pub(super) fn sessions(&self) -> usize {
        self.life.sessions.sessions().count()
    }

    /// Whether this datagram of a client arrived.
    pub(super) fn has_heard(&self, speech: Speech) -> bool {
        self.heard.contains(&(speech.client, speech.number))
    }

    /// Checks that each kept datagram that did not arrive came back or was counted.
    pub(super) fn settle(&self, is_heard: impl Fn(Speech) -> bool) {
        self.life.connections.values().for_each(|node| node.settle(&is_heard));
    }

    /// Kills the exit without any notice. Another process starts with the state on disk.
    pub(super) fn restart(&mut self, now: Instant) {
        if is_planted(Bug::ResetKeyLost) {
            self.reset_key = self.random.bytes();
        }
        self.settings.strangers = Strangers::new(true);
        let (key, disk) = (&self.reset_key, self.disk.clone());
        self.life = Life::new(now, &self.settings, &self.key, key, disk, &mut self.random);
    }

    pub(super) fn receive(&mut self, now: Instant, from: SocketAddr, bytes: Vec<u8>, wire: &mut Wire) {
        let life = &mut self.life;
        if !life.gate.lets_in(from, &bytes) {
            return;
        }
        let mut answer = Vec::new();
        let path = FourTuple::new(from, None);
        let mut datagram = BytesMut::from(&*bytes);
        if let Some(route) = life.endpoint.route_short(&datagram)
            && let Some(number) = life.numbers.get(&route.connection.0)
            && let Some(connection) = life.connections.get_mut(number)
        {
            let Some(rest) = connection.receive_short(now, path, route, datagram) else { return };
            datagram = rest;
        }
        match life.endpoint.handle(now, path, None, datagram, &mut answer) {
            Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                let number = life.numbers.get(&handle.0);
                if let Some(connection) = number.and_then(|number| life.connections.get_mut(number)) {
                    connection.receive(event);
                }
            }
            Some(DatagramEvent::NewConnection(incoming)) => life.accept(now, incoming, wire),
            Some(DatagramEvent::Response(transmit)) => {
                wire.send(now, EXIT, transmit.destination, &answer[..transmit.size]);
            }
            None => {}
        }
    }

    pub(super) fn act(&mut self, now: Instant, wire: &mut Wire) {
        let numbers: Vec<u64> = self.life.connections.keys().copied().collect();
        for number in &numbers {
            self.look_at(now, *number);
        }
        let life = &mut self.life;
        let mut changed = false;
        if life.sessions.timeout().is_some_and(|due| due <= now) {
            life.sessions.handle_timeout(now);
        }
        while let Some(action) = life.sessions.poll_action() {
            if let ExitAction::Store(request) = &action {
                life.sessions.stored(now, request.id, Ok(()));
                self.disk = life.sessions.registry().clone();
            }
            life.carry_out(now, action);
            changed = true;
        }
        let due = |node: &&mut Node| node.is_due(now);
        for number in numbers {
            let Some(node) = life.connections.get_mut(&number).filter(due) else { continue };
            node.send(now, &mut life.endpoint, EXIT, wire);
            if node.is_gone() {
                life.numbers.retain(|_, of| *of != number);
                life.connections.remove(&number);
            }
        }
        if changed {
            life.check_leases();
        }
    }

    pub(super) fn timeout(&self, now: Instant) -> Option<Instant> {
        let connections = self.life.connections.values().filter_map(|node| node.due(now));
        connections.chain(self.life.sessions.timeout()).min()
    }

    fn look_at(&mut self, now: Instant, number: u64) {
        let life = &mut self.life;
        let due = |node: &&mut Node| node.is_due(now);
        let Some(node) = life.connections.get_mut(&number).filter(due) else { return };
        let inbox = node.take(now, &mut life.endpoint);
        for event in inbox.events {
            match event {
                Event::Connected { peer, remote, .. } => {
                    assert!(self.clients.contains(&peer));
                    life.peers.insert(number, peer);
                    let network = Network::of(remote).address();
                    life.sessions.connected(now, number, peer, network);
                }
                Event::Control { data, .. } => life.sessions.received(now, number, &data),
                Event::Closed { reason: CloseReason::TimedOut, .. } => life.sessions.timed_out(now, number),
                Event::Closed { .. } => life.sessions.closed(now, number),
                Event::Writable { .. } | Event::Answers { .. } => {}
            }
        }
        for (_, datagram) in inbox.datagrams {
            let speech = Speech::read(&datagram);
            assert_eq!(life.peers.get(&number), self.clients.get(speech.client), "somebody else's words");
            assert!(self.heard.insert((speech.client, speech.number)), "the same came twice");
            life.answer(number, speech);
        }
    }
}

impl Life {
    fn new(
        now: Instant,
        settings: &TransportSettings,
        key: &PrivateKey,
        reset_key: &[u8],
        registry: ClientRegistry,
        random: &mut Random,
    ) -> Self {
        let secrets = ExitSecrets::new(reset_key);
        let server = quic_config::exit(settings, EXIT, tls::exit(key).unwrap(), &secrets);
        let mut config = quic_config::endpoint(settings, reset_key, ListenerPlace::all(1).next());
        config.rng_seed(Some(random.bytes()));
        let sessions = SessionConfig {
            ipv4: Some("10.66.0.0/29".parse().unwrap()),
            ipv6: Some("fd66::/64".parse().unwrap()),
            ..SessionConfig::default()
        };
        let mut entropy = Random::new(random.draw());
        let entropy = move |bytes: &mut [u8]| entropy.fill(bytes);
        let wall = SystemTime::UNIX_EPOCH;
        Self {
            gate: Gate::new(&settings.strangers, &[key.public()], &secrets),
            endpoint: Endpoint::new(Arc::new(config), Some(Arc::new(server)), true),
            connections: BTreeMap::new(),
            numbers: BTreeMap::new(),
            peers: BTreeMap::new(),
            attached: BTreeSet::new(),
            sessions: ExitSessions::new(sessions, registry, now, wall, Box::new(entropy)).unwrap(),
            next: 0,
        }
    }

    fn accept(&mut self, now: Instant, incoming: Incoming, wire: &mut Wire) {
        let (remote, mut answer) = (incoming.remote_address(), Vec::new());
        match self.endpoint.accept(incoming, now, &mut answer, None) {
            Ok(made) => {
                let ConnectionHandle(handle) = made.0;
                self.next += 1;
                self.numbers.insert(handle, self.next);
                let connection = WarrenConnection::new(ConnectionId(self.next), 0, made, remote, None, now);
                self.connections.insert(self.next, Node::new(connection));
            }
            Err(error) => {
                if let Some(transmit) = error.response {
                    wire.send(now, EXIT, transmit.destination, &answer[..transmit.size]);
                }
            }
        }
    }

    fn check_leases(&self) {
        let mut leases = BTreeSet::new();
        for address in self.sessions.sessions().flat_map(|session| session.lease().addresses()) {
            assert!(leases.insert(address), "an address of two sessions");
        }
    }

    fn carry_out(&mut self, now: Instant, action: ExitAction) {
        match action {
            ExitAction::Send { connection, bytes } => {
                if let Some(connection) = self.connections.get_mut(&connection) {
                    let _ended = connection.stir().send_control(now, &bytes);
                }
            }
            ExitAction::Close { connection, reason } => {
                if let Some(connection) = self.connections.get_mut(&connection) {
                    connection.stir().close(now, reason.code(), "");
                }
            }
            ExitAction::Attach { connection, .. } => assert!(self.attached.insert(connection)),
            ExitAction::Detach { connection, .. } => assert!(self.attached.remove(&connection)),
            ExitAction::Open { .. }
            | ExitAction::End { .. }
            | ExitAction::Stays { .. }
            | ExitAction::Enrolled { .. }
            | ExitAction::SetWireGuard { .. }
            | ExitAction::Store(_) => {}
        }
    }

    /// Echoes a datagram, as long as the connection carries traffic.
    fn answer(&mut self, number: u64, speech: Speech) {
        if let Some(connection) = self.connections.get_mut(&number)
            && self.attached.contains(&number)
        {
            let _full = connection.say(speech);
        }
    }
}
