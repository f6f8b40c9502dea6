//! A client and a server of noq-proto that exchange packets in memory, in time made of numbers.

use std::{
    net::SocketAddr,
    num::NonZeroUsize,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::BytesMut;
use noq_proto::{
    ClientConfig, Connection, ConnectionError, ConnectionHandle, DatagramEvent, Endpoint, EndpointConfig,
    Event, RandomConnectionIdGenerator, ServerConfig, Transmit, TransportConfig,
};

mod parameters;
mod tls;

pub use parameters::with_parameters;
pub use tls::{client_tls, quic_client, quic_server, server_tls};

pub const CLIENT: usize = 0;
pub const SERVER: usize = 1;
const MAX_DATAGRAMS: NonZeroUsize = NonZeroUsize::new(10).unwrap();

/// What both sides are made of.
pub struct Setup {
    pub client: ClientConfig,
    pub server: ServerConfig,
    pub server_endpoint: Arc<EndpointConfig>,
}

impl Setup {
    /// Two sides that get along, with what `change` does to the defaults of both.
    pub fn new(change: impl Fn(&mut TransportConfig)) -> Self {
        let transport = || {
            let mut transport = TransportConfig::default();
            change(&mut transport);
            Arc::new(transport)
        };
        let mut setup = Self {
            client: ClientConfig::new(quic_client(client_tls())),
            server: ServerConfig::with_crypto(quic_server(server_tls(300))),
            server_endpoint: restartable(),
        };
        setup.client.transport_config(transport());
        setup.server.transport_config(transport());
        setup
    }
}

/// An endpoint whose connection IDs its successor takes for its own.
fn restartable() -> Arc<EndpointConfig> {
    let mut config = EndpointConfig::default();
    config.cid_generator(Arc::new(|| Box::new(RandomConnectionIdGenerator::new(8))));
    Arc::new(config)
}

/// An endpoint with its only connection.
pub struct Side {
    pub endpoint: Endpoint,
    pub connection: Option<(ConnectionHandle, Connection)>,
    pub address: SocketAddr,
    pub lost: Option<ConnectionError>,
}

pub struct Pair {
    pub now: Instant,
    pub sides: [Side; 2],
    server: Arc<ServerConfig>,
    server_endpoint: Arc<EndpointConfig>,
}

impl Pair {
    /// A client that is about to say its first word to a server.
    pub fn new(setup: Setup) -> Self {
        let now = Instant::now();
        let addresses =
            ["192.0.2.1:1000", "192.0.2.2:443"].map(|address| address.parse::<SocketAddr>().unwrap());
        let server = Arc::new(setup.server);
        let mut endpoints = [
            Endpoint::new(Arc::default(), None, true),
            Endpoint::new(setup.server_endpoint.clone(), Some(server.clone()), true),
        ];
        let connection =
            endpoints[CLIENT].connect(now, setup.client, addresses[SERVER], "server.invalid").unwrap();
        let mut connections = [Some(connection), None].into_iter();
        let mut side = 0..;
        let sides = endpoints.map(|endpoint| Side {
            endpoint,
            connection: connections.next().unwrap(),
            address: addresses[side.next().unwrap()],
            lost: None,
        });
        Self { now, sides, server, server_endpoint: setup.server_endpoint }
    }

    /// A client and a server one second after their handshake.
    pub fn connected(setup: Setup) -> Self {
        let mut pair = Self::new(setup);
        pair.run(Duration::from_secs(1));
        assert!(!pair.quic(CLIENT).is_handshaking() && !pair.quic(SERVER).is_handshaking());
        pair
    }

    pub fn quic(&mut self, side: usize) -> &mut Connection {
        &mut self.sides[side].connection.as_mut().unwrap().1
    }

    /// A server that knows no connection, with the secrets of the one before.
    pub fn restart_server(&mut self) {
        let (config, server) = (self.server_endpoint.clone(), self.server.clone());
        self.sides[SERVER].endpoint = Endpoint::new(config, Some(server), true);
        self.sides[SERVER].connection = None;
    }

    /// Lets time pass on a path that delivers everything after a millisecond.
    pub fn run(&mut self, time: Duration) {
        self.run_with(time, |_, _| true);
    }

    /// Lets time pass on a path that delivers what `passes` lets through, which is given the sender and the packet.
    pub fn run_with(&mut self, time: Duration, mut passes: impl FnMut(usize, &[u8]) -> bool) {
        let end = self.now + time;
        while self.now < end {
            let packets = [CLIENT, SERVER].map(|from| self.transmit(from));
            self.now += Duration::from_millis(1);
            for (from, packets) in packets.into_iter().enumerate() {
                for packet in packets {
                    if passes(from, &packet) {
                        self.deliver(1 - from, &packet);
                    }
                }
            }
        }
    }

    /// All UDP datagrams that a side sends now, once it has looked at its timers.
    pub fn transmit(&mut self, from: usize) -> Vec<Vec<u8>> {
        let now = self.now;
        if let Some((_, quic)) = &mut self.sides[from].connection
            && quic.poll_timeout().is_some_and(|due| due <= now)
        {
            quic.handle_timeout(now);
        }
        self.transmit_without_timers(from)
    }

    /// All UDP datagrams that a side sends now, which has no time for its timers.
    pub fn transmit_without_timers(&mut self, from: usize) -> Vec<Vec<u8>> {
        let now = self.now;
        let mut packets = Vec::new();
        loop {
            self.settle(from);
            let Some((_, quic)) = &mut self.sides[from].connection else { return packets };
            let mut buffer = Vec::new();
            let Some(transmit) = quic.poll_transmit(now, MAX_DATAGRAMS, &mut buffer) else { return packets };
            packets.extend(datagrams(&transmit, &buffer));
        }
    }

    pub fn deliver(&mut self, to: usize, packet: &[u8]) {
        self.deliver_in(to, BytesMut::from(packet));
    }

    /// Has a side take in a datagram in the buffer that it was received into.
    pub fn deliver_in(&mut self, to: usize, packet: BytesMut) {
        let (now, remote) = (self.now, self.sides[1 - to].address);
        let (mut buffer, mut answer) = (Vec::new(), None);
        let side = &mut self.sides[to];
        match side.endpoint.handle(now, remote.into(), None, packet, &mut buffer) {
            Some(DatagramEvent::ConnectionEvent(_, event)) => {
                if let Some((_, quic)) = &mut side.connection {
                    quic.handle_event(event);
                }
            }
            Some(DatagramEvent::NewConnection(incoming)) => {
                match side.endpoint.accept(incoming, now, &mut buffer, None) {
                    Ok(connection) => side.connection = Some(connection),
                    Err(error) => answer = error.response,
                }
            }
            Some(DatagramEvent::Response(transmit)) => answer = Some(transmit),
            None => {}
        }
        self.settle(to);
        for packet in answer.iter().flat_map(|answer| datagrams(answer, &buffer)) {
            self.deliver(1 - to, &packet);
        }
    }

    /// Passes on what a connection and its endpoint have to tell each other.
    fn settle(&mut self, side: usize) {
        let Side { endpoint, connection, lost, .. } = &mut self.sides[side];
        let Some((handle, quic)) = connection else { return };
        while let Some(event) = quic.poll() {
            if let Event::ConnectionLost { reason } = event {
                *lost = Some(reason);
            }
        }
        while let Some(event) = quic.poll_endpoint_events() {
            if let Some(answer) = endpoint.handle_event(*handle, event) {
                quic.handle_event(answer);
            }
        }
    }
}

fn datagrams(transmit: &Transmit, buffer: &[u8]) -> Vec<Vec<u8>> {
    let size = transmit.segment_size.unwrap_or(transmit.size).max(1);
    buffer[..transmit.size].chunks(size).map(<[u8]>::to_vec).collect()
}
