//! A client: its session, and for each connection an endpoint behind an address of its own.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::Arc,
    time::Instant,
};

use bytes::BytesMut;
use noq_proto::{DatagramEvent, Endpoint, FourTuple};
use warren_session::client::{ClientAction, ClientConfig, ClientSession, ClientState, ConnectionEnd};

use warren_simulation::Random;

use super::{CONNECTIONS, EXIT, node::Node, speech::Speech, wire::Wire};
use crate::{
    attempt::{SERVER_NAME, introduce},
    boundary::{CloseReason, ConnectionId, Event, SendError},
    key::{PrivateKey, PublicKey},
    quic_config,
    settings::TransportSettings,
    tls,
    warren_driver::connection::WarrenConnection,
};

/// A limit of kept bytes that is soon reached.
const LITTLE: usize = 1_500;

pub(super) struct Client {
    number: usize,
    random: Random,
    settings: TransportSettings,
    key: PrivateKey,
    exit_key: PublicKey,
    session: ClientSession,
    links: BTreeMap<u32, Link>,
    /// Links that the session has closed. They stay here until the exit knows of the close.
    fading: Vec<Link>,
    attached: BTreeSet<u32>,
    heard: BTreeMap<u32, u64>,
    /// The answers that arrived. None may arrive again.
    answers: BTreeSet<u64>,
    next_speech: u64,
    made: u64,
    next_port: u16,
}

struct Link {
    address: SocketAddr,
    endpoint: Endpoint,
    node: Node,
    /// Whether the connection refused a datagram and has not become writable since.
    is_blocked: bool,
}

impl Client {
    pub(super) fn new(
        number: usize,
        now: Instant,
        settings: &TransportSettings,
        key: &PrivateKey,
        exit_key: PublicKey,
        seed: u64,
    ) -> Self {
        let config = ClientConfig { connections: CONNECTIONS, ..ClientConfig::default() };
        let random = Random::new(seed);
        let mut entropy = random.clone();
        let entropy = move |bytes: &mut [u8]| entropy.fill(bytes);
        let mut session = ClientSession::new(config, Box::new(entropy));
        session.start(now);
        Self {
            number,
            random,
            settings: settings.clone(),
            key: key.clone(),
            exit_key,
            session,
            links: BTreeMap::new(),
            fading: Vec::new(),
            attached: BTreeSet::new(),
            heard: BTreeMap::new(),
            answers: BTreeSet::new(),
            next_speech: 0,
            made: 0,
            next_port: 1_024,
        }
    }

    pub(super) fn state(&self) -> &ClientState {
        self.session.state()
    }

    pub(super) fn is_up(&self) -> bool {
        *self.session.state() == ClientState::Up { attached: CONNECTIONS }
    }

    /// How many answers came on each connection.
    pub(super) fn heard(&self) -> impl Iterator<Item = u64> {
        (0..CONNECTIONS).map(|index| self.heard.get(&index).copied().unwrap_or(0))
    }

    pub(super) fn connections_made(&self) -> u64 {
        self.made
    }

    /// How many datagrams the client has sent, on all of its connections.
    pub(super) fn said(&self) -> u64 {
        self.next_speech
    }

    /// Whether the answer to this datagram has arrived.
    pub(super) fn has_heard(&self, speech: Speech) -> bool {
        self.answers.contains(&speech.number)
    }

    /// Checks that each kept datagram that did not arrive came back or was counted.
    pub(super) fn settle(&self, is_heard: impl Fn(Speech) -> bool) {
        self.links.values().for_each(|link| link.node.settle(&is_heard));
    }

    /// Updates the keys of every connection.
    pub(super) fn change_keys(&mut self) {
        for link in self.links.values_mut() {
            link.node.stir().quic().force_key_update();
        }
    }

    /// Gives each connection another port, as a NAT does without telling either side.
    pub(super) fn move_away(&mut self) {
        let indices: Vec<u32> = self.links.keys().copied().collect();
        for index in indices {
            let address = self.new_address();
            if let Some(link) = self.links.get_mut(&index) {
                link.address = address;
            }
        }
    }

    pub(super) fn has(&self, address: SocketAddr) -> bool {
        self.all_links().any(|link| link.address == address)
    }

    pub(super) fn receive(&mut self, now: Instant, to: SocketAddr, bytes: Vec<u8>) {
        let mut links = self.links.values_mut().chain(&mut self.fading);
        let Some(link) = links.find(|link| link.address == to) else { return };
        let path = FourTuple::new(EXIT, None);
        let mut datagram = BytesMut::from(&*bytes);
        if let Some(route) = link.endpoint.route_short(&datagram) {
            let Some(rest) = link.node.receive_short(now, path, route, datagram) else { return };
            datagram = rest;
        }
        let event = link.endpoint.handle(now, path, None, datagram, &mut Vec::new());
        if let Some(DatagramEvent::ConnectionEvent(_, event)) = event {
            link.node.receive(event);
        }
    }

    pub(super) fn act(&mut self, now: Instant, speaks: bool, wire: &mut Wire) {
        for index in 0..CONNECTIONS {
            self.look_at(now, index);
        }
        if self.session.timeout().is_some_and(|due| due <= now) {
            self.session.handle_timeout(now);
        }
        while let Some(action) = self.session.poll_action() {
            self.carry_out(now, action);
        }
        if speaks {
            self.speak();
        }
        for link in &mut self.fading {
            if link.node.is_due(now) {
                link.node.take(now, &mut link.endpoint);
            }
        }
        for link in self.links.values_mut().chain(&mut self.fading) {
            if link.node.is_due(now) {
                link.node.send(now, &mut link.endpoint, link.address, wire);
            }
        }
        self.fading.retain(|link| !link.node.is_gone());
    }

    pub(super) fn timeout(&self, now: Instant) -> Option<Instant> {
        let links = self.all_links().filter_map(|link| link.node.due(now));
        links.chain(self.session.timeout()).min()
    }

    fn all_links(&self) -> impl Iterator<Item = &Link> {
        self.links.values().chain(&self.fading)
    }

    fn new_address(&mut self) -> SocketAddr {
        self.next_port += 1;
        SocketAddr::from(([10, 0, 0, u8::try_from(self.number).unwrap()], self.next_port))
    }

    /// Takes a connection's events and datagrams.
    fn look_at(&mut self, now: Instant, index: u32) {
        let Some(link) = self.links.get_mut(&index).filter(|link| link.node.is_due(now)) else { return };
        let inbox = link.node.take(now, &mut link.endpoint);
        for (_, datagram) in inbox.datagrams {
            let speech = Speech::read(&datagram);
            assert_eq!((speech.client, speech.index), (self.number, index), "an answer to somebody else");
            assert!(self.answers.insert(speech.number), "an answer came twice");
            *self.heard.entry(index).or_default() += 1;
        }
        for event in inbox.events {
            match event {
                Event::Connected { .. } => self.session.connected(now, index),
                Event::Control { data, .. } => self.session.received(now, index, &data),
                Event::Closed { reason, .. } => {
                    let was_attached = self.attached.contains(&index);
                    let heard_nothing = reason == CloseReason::TimedOut;
                    assert!(!was_attached || !heard_nothing, "the end of the connection was not reported");
                    self.fading.extend(self.links.remove(&index));
                    self.session.closed(now, index, end(&reason));
                }
                Event::Writable { .. } => {
                    if let Some(link) = self.links.get_mut(&index) {
                        link.is_blocked = false;
                    }
                }
                Event::Answers { .. } => {}
            }
            // The event may make the session close the connection, and later begin another one with this index.
            while let Some(action) = self.session.poll_action() {
                self.carry_out(now, action);
            }
        }
    }

    fn carry_out(&mut self, now: Instant, action: ClientAction) {
        match action {
            ClientAction::Connect { index } => {
                let link = self.connect(now);
                assert!(self.links.insert(index, link).is_none(), "an index with a connection");
            }
            ClientAction::Send { index, bytes } => {
                if let Some(link) = self.links.get_mut(&index) {
                    // A connection may have ended a moment ago. The report of its end follows.
                    let _ended = link.node.stir().send_control(now, &bytes);
                }
            }
            ClientAction::Close { index, reason } => {
                if let Some(mut link) = self.links.remove(&index) {
                    link.node.stir().close(now, reason.code(), "");
                    self.fading.push(link);
                }
            }
            ClientAction::Attach { index } => assert!(self.attached.insert(index)),
            ClientAction::Detach { index } => assert!(self.attached.remove(&index)),
            ClientAction::Welcome(_) | ClientAction::Down { .. } => {}
            ClientAction::Changed(_)
            | ClientAction::ExitKeys { .. }
            | ClientAction::Roster { .. }
            | ClientAction::AskedToLeave => {}
            ClientAction::Stopped { reason } => panic!("it stopped: {reason}"),
        }
    }

    fn connect(&mut self, now: Instant) -> Link {
        self.made += 1;
        let keys = [self.exit_key];
        let tls = tls::client(&self.key, &keys, tls::PresentedKey::default(), None).unwrap();
        let mut config = quic_config::client(&self.settings, EXIT, tls);
        introduce(&mut config, &keys).unwrap();
        let address = self.new_address();
        let mut own = quic_config::endpoint(&self.settings, &self.random.bytes(), None);
        own.rng_seed(Some(self.random.bytes()));
        let mut endpoint = Endpoint::new(Arc::new(own), None, true);
        let made = endpoint.connect(now, config, EXIT, SERVER_NAME).unwrap();
        let presented = Some(tls::PresentedKey::default());
        let connection = WarrenConnection::new(ConnectionId(1), 0, made, EXIT, presented, now);
        let mut node = Node::new(connection);
        if self.random.once_in(2) {
            node.stir().quic().datagrams().set_kept_limit(LITTLE);
        }
        Link { address, endpoint, node, is_blocked: false }
    }

    /// Sends the next datagrams on each connection that carries traffic.
    fn speak(&mut self) {
        for index in &self.attached {
            let Some(link) = self.links.get_mut(index).filter(|link| !link.is_blocked) else { continue };
            let mut goes_on = true;
            while goes_on && !link.is_blocked {
                self.next_speech += 1;
                let speech = Speech { client: self.number, index: *index, number: self.next_speech };
                let sent = link.node.say(speech);
                link.is_blocked = matches!(sent, Err(SendError::Blocked(_)));
                goes_on = speech.is_in_burst();
            }
        }
    }
}

fn end(reason: &CloseReason) -> ConnectionEnd {
    let mut goodbye = None;
    if let CloseReason::Peer { code, .. } = reason {
        goodbye = u32::try_from(*code).ok().and_then(warren_session::Goodbye::from_code);
    }
    goodbye.map_or_else(|| ConnectionEnd::Lost(reason.to_string()), ConnectionEnd::Goodbye)
}
