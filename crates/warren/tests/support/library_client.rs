//! Clients without a TUN device. They use the real session and connections, and carry packets that tests make.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::future::poll_fn;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use warren_packet::datagram::{Datagram, Flags, write_packet};
use warren_quic::driver::{CloseReason, ConnectionId, ConnectionStats, Endpoint, Event, Inbox, SocketStats};
use warren_quic::key::{PrivateKey, PublicKey};
use warren_quic::settings::{Driver, TransportSettings};
use warren_session::ROSTER;
use warren_session::client::{
    ClientAction, ClientConfig, ClientSession, ConnectionEnd, SessionGrant, Vigil, VigilAction,
};
use warren_session::goodbye::Goodbye;
use warren_session::message::Roster;

use super::Net;

/// One client. It must be created and used inside a tokio runtime, on a thread of its host.
pub struct LibraryClient {
    endpoint: Endpoint,
    session: ClientSession,
    exit: (SocketAddr, PublicKey),
    connections: BTreeMap<u32, ConnectionId>,
    indices: HashMap<ConnectionId, u32>,
    attached: Vec<u32>,
    inbox: Inbox,
    packets: VecDeque<Bytes>,
    attempts: usize,
    silence: Vigil,
    /// The latest roster that the exit has sent.
    roster: Option<Roster>,
}

impl LibraryClient {
    /// A client that starts to connect to the net's exit.
    pub fn start(key: PrivateKey, exit_key: PublicKey, connections: u32) -> Self {
        // Warren's driver is used, because noq's driver closes its connections when it is dropped.
        let settings = TransportSettings { driver: Driver::Warren, ..TransportSettings::default() };
        Self::start_with(key, exit_key, connections, settings)
    }

    /// A client that starts to connect to the net's exit, with other settings for its connections.
    pub fn start_with(
        key: PrivateKey,
        exit_key: PublicKey,
        connections: u32,
        settings: TransportSettings,
    ) -> Self {
        let exit = (SocketAddr::new(Net::EXIT_V4.parse().unwrap(), 443), exit_key);
        Self::start_at(exit, key, ClientConfig { connections, ..ClientConfig::default() }, settings)
    }

    /// A client of a fleet that starts to connect to one of its exits.
    pub fn start_in_fleet(exit: (SocketAddr, PublicKey), key: PrivateKey, connections: u32) -> Self {
        let settings = TransportSettings { driver: Driver::Warren, ..TransportSettings::default() };
        let config = ClientConfig { connections, features: ROSTER, ..ClientConfig::default() };
        Self::start_at(exit, key, config, settings)
    }

    fn start_at(
        exit: (SocketAddr, PublicKey),
        key: PrivateKey,
        config: ClientConfig,
        settings: TransportSettings,
    ) -> Self {
        let config = ClientConfig { name: "library".into(), ..config };
        let entropy = Box::new(|bytes: &mut [u8]| getrandom::fill(bytes).unwrap());
        let mut session = ClientSession::new(config, entropy);
        session.start(Instant::now());
        let mut client = Self {
            endpoint: Endpoint::client(settings, key).unwrap(),
            session,
            exit,
            connections: BTreeMap::new(),
            indices: HashMap::new(),
            attached: Vec::new(),
            inbox: Inbox::new(),
            packets: VecDeque::new(),
            attempts: 0,
            silence: Vigil::default(),
            roster: None,
        };
        client.carry_out();
        client
    }

    /// The exit's grant, once the session is up.
    pub fn welcome(&self) -> Option<&SessionGrant> {
        self.session.welcome()
    }

    pub fn state(&self) -> &warren_session::client::ClientState {
        self.session.state()
    }

    /// Returns the latest roster that the exit has sent since the last call.
    pub fn take_roster(&mut self) -> Option<Roster> {
        self.roster.take()
    }

    /// Whether the exit has been silent on all connections for so long that a client looks for another one now.
    pub fn looks_for_another(&mut self) -> bool {
        self.silence.handle_timeout(Instant::now()).contains(&VigilAction::Scout)
    }

    /// Whether the exit is silent on all connections.
    pub fn is_silent(&self) -> bool {
        self.silence.is_silent()
    }

    /// The number of attached connections.
    pub fn attached(&self) -> usize {
        self.attached.len()
    }

    /// How many connection attempts the client has started in total.
    pub fn attempts(&self) -> usize {
        self.attempts
    }

    /// The counters of its first connection.
    pub fn stats(&self) -> ConnectionStats {
        self.endpoint.stats(self.connections[&self.attached[0]]).unwrap()
    }

    /// The counters of its sockets.
    pub fn socket_stats(&self) -> SocketStats {
        self.endpoint.socket_stats()
    }

    /// Ends the session, and returns once the Goodbye was sent. Dropping the client instead acts like a crashed host.
    pub async fn leave(mut self) {
        self.session.stop(Instant::now());
        self.carry_out();
        for _ in 0..3 {
            self.run(Duration::from_millis(2)).await;
        }
    }

    /// The next inner packet received from the exit.
    pub fn received(&mut self) -> Option<Bytes> {
        self.packets.pop_front()
    }

    /// Sends an inner packet over one of its connections. Returns false if none accepts it now.
    pub fn send(&mut self, packet: &[u8]) -> bool {
        let Some(connection) = self.attached.first().and_then(|index| self.connections.get(index)) else {
            return false;
        };
        let mut framed = BytesMut::new();
        write_packet(Flags::default(), &[packet], &mut framed);
        self.endpoint.send_datagram(*connection, framed.freeze()).is_ok()
    }

    /// Sends a datagram with any content, once there is room for it.
    pub async fn say_whole(&mut self, datagram: &[u8]) {
        let connection = self.connections[&self.attached[0]];
        while self.endpoint.send_datagram(connection, Bytes::copy_from_slice(datagram)).is_err() {
            self.run(Duration::from_millis(5)).await;
        }
    }

    /// Sends an inner packet once there is room for it.
    pub async fn send_whole(&mut self, packet: &[u8]) {
        while !self.send(packet) {
            self.run(Duration::from_millis(5)).await;
        }
    }

    /// Lets the client work until something happens, or for at most `within`.
    pub async fn run(&mut self, within: Duration) {
        let until = Instant::now() + within;
        let due = self.session.timeout().map_or(until, |due| due.min(until));
        let Self { endpoint, inbox, .. } = self;
        tokio::select! {
            () = poll_fn(|context| endpoint.poll(context, inbox)) => self.take(),
            () = tokio::time::sleep_until(due.into()) => {}
        }
        let now = Instant::now();
        if self.session.timeout().is_some_and(|due| due <= now) {
            self.session.handle_timeout(now);
        }
        self.carry_out();
    }

    /// Lets the client run until a condition holds, for at most 30 seconds.
    #[track_caller]
    pub fn until<'a>(
        &'a mut self,
        what: &'a str,
        mut holds: impl FnMut(&mut Self) -> bool + 'a,
    ) -> impl Future<Output = ()> + 'a {
        let place = std::panic::Location::caller();
        async move {
            let start = Instant::now();
            while !holds(self) {
                assert!(start.elapsed() < Duration::from_secs(30), "{place}: timed out after 30 s: {what}");
                self.run(Duration::from_millis(50)).await;
            }
        }
    }

    fn take(&mut self) {
        let now = Instant::now();
        let mut inbox = std::mem::take(&mut self.inbox);
        for event in inbox.events.drain(..) {
            match event {
                Event::Connected { connection, .. } => {
                    let Some(index) = self.indices.get(&connection) else { continue };
                    self.session.connected(now, *index);
                }
                Event::Control { connection, data } => {
                    let Some(index) = self.indices.get(&connection) else { continue };
                    self.session.received(now, *index, &data);
                }
                Event::Closed { connection, reason } => {
                    let Some(index) = self.indices.remove(&connection) else { continue };
                    self.connections.remove(&index);
                    self.session.closed(now, index, end_of(&reason));
                }
                Event::Answers { connection, answers } => {
                    let Some(index) = self.indices.get(&connection) else { continue };
                    if !answers && !self.silence.has_silent() {
                        // Pings the exit, as a daemon does, because an idle connection does not notice by itself that nobody
                        // answers.
                        self.endpoint.rouse();
                    }
                    self.silence.answers(now, *index, answers);
                }
                Event::Writable { .. } => {}
            }
            self.carry_out();
        }
        for (_, datagram) in inbox.datagrams.drain(..) {
            if let Ok(Datagram::Packet { packet, .. }) = Datagram::parse(&datagram) {
                self.packets.push_back(Bytes::copy_from_slice(packet));
            }
        }
        self.inbox = inbox;
    }

    fn carry_out(&mut self) {
        while let Some(action) = self.session.poll_action() {
            match action {
                ClientAction::Connect { index } => {
                    self.attempts += 1;
                    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
                    socket.set_nonblocking(true).unwrap();
                    let (remote, key) = self.exit;
                    let connection = self.endpoint.connect(socket, remote, &[key]).unwrap();
                    self.connections.insert(index, connection);
                    self.indices.insert(connection, index);
                }
                ClientAction::Send { index, bytes } => {
                    if let Some(connection) = self.connections.get(&index) {
                        drop(self.endpoint.send_control(*connection, &bytes));
                    }
                }
                ClientAction::Close { index, reason } => {
                    if let Some(connection) = self.connections.remove(&index) {
                        self.indices.remove(&connection);
                        self.endpoint.close(connection, reason.code(), &reason.to_string());
                    }
                }
                ClientAction::Attach { index } => {
                    self.attached.push(index);
                    self.silence.attached(index);
                }
                ClientAction::Detach { index } => {
                    self.attached.retain(|attached| *attached != index);
                    self.silence.detached(Instant::now(), index);
                }
                ClientAction::Roster { roster, .. } => self.roster = Some(*roster),
                ClientAction::Welcome(_)
                | ClientAction::Changed(_)
                | ClientAction::ExitKeys { .. }
                | ClientAction::AskedToLeave
                | ClientAction::Down { .. }
                | ClientAction::Stopped { .. } => {}
            }
        }
    }
}

fn end_of(reason: &CloseReason) -> ConnectionEnd {
    match reason {
        CloseReason::Peer { code, .. } => {
            let goodbye = u32::try_from(*code).ok().and_then(Goodbye::from_code);
            goodbye.map_or_else(|| ConnectionEnd::Lost(reason.to_string()), ConnectionEnd::Goodbye)
        }
        CloseReason::Local
        | CloseReason::TimedOut
        | CloseReason::Reset
        | CloseReason::WrongPeerKey { .. }
        | CloseReason::NoCommonProtocol
        | CloseReason::Transport(_) => ConnectionEnd::Lost(reason.to_string()),
    }
}

/// An inner UDP packet over IPv4.
pub fn udp(source: Ipv4Addr, destination: (Ipv4Addr, u16), source_port: u16, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(28 + payload.len()).unwrap();
    let mut packet = vec![0x45, 0];
    packet.extend(length.to_be_bytes());
    packet.extend([0, 0, 0x40, 0, 64, 17, 0, 0]);
    packet.extend(source.octets());
    packet.extend(destination.0.octets());
    let sum: u32 = packet.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let checksum = !u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap();
    packet[10..12].copy_from_slice(&checksum.to_be_bytes());
    packet.extend(source_port.to_be_bytes());
    packet.extend(destination.1.to_be_bytes());
    packet.extend((length - 20).to_be_bytes());
    // A checksum of 0, which IPv4 allows.
    packet.extend([0, 0]);
    packet.extend(payload);
    packet
}

/// An inner UDP packet over IPv6. Its checksum is wrong, but nobody on the path verifies it.
pub fn udp6(source: &str, destination: &str, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(8 + payload.len()).unwrap();
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend(length.to_be_bytes());
    packet.extend([17, 64]);
    for address in [source, destination] {
        let IpAddr::V6(address) = address.parse().unwrap() else { panic!("{address} is not IPv6") };
        packet.extend(address.octets());
    }
    packet.extend([0x13, 0x88, 0, 7]);
    packet.extend(length.to_be_bytes());
    packet.extend([0xab, 0xcd]);
    packet.extend(payload);
    packet
}

/// A runtime for the clients of one thread.
pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}
