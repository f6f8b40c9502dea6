//! An exit's QUIC library without a socket.

use std::{
    net::{Ipv4Addr, SocketAddr},
    num::NonZeroUsize,
    sync::Arc,
    time::Instant,
};

use aws_lc_rs::hmac;
use bytes::BytesMut;
use noq::crypto::rustls::QuicServerConfig;
use noq_proto::{
    Connection, ConnectionHandle, DatagramEvent, Endpoint, EndpointConfig, FourTuple, Incoming, ServerConfig,
};
use warren_quic::{key::PrivateKey, tls};

use crate::attacker::{Attacker, Retry};

const ATTACKER: (Ipv4Addr, u16) = (Ipv4Addr::new(192, 0, 2, 1), 4433);

/// The outcome of a connection attempt.
#[derive(Debug, Eq, PartialEq)]
pub(crate) enum Fate {
    /// The exit continued the handshake.
    Answered,
    /// The exit refused the attempt or closed the connection.
    Closed,
}

/// An exit that only answers packets.
pub(crate) struct Exit {
    endpoint: Endpoint,
    now: Instant,
    attempts: u64,
}

impl Exit {
    pub(crate) fn new() -> Self {
        let tls = tls::exit(&PrivateKey::generate().unwrap()).unwrap();
        let config = ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls).unwrap()));
        let reset_key = hmac::Key::new(hmac::HMAC_SHA256, &[7; 64]);
        let endpoint =
            Endpoint::new(Arc::new(EndpointConfig::new(Arc::new(reset_key))), Some(Arc::new(config)), true);
        Self { endpoint, now: Instant::now(), attempts: 0 }
    }

    pub(crate) fn connections(&self) -> usize {
        self.endpoint.open_connections()
    }

    /// Accepts an attempt, passes its other packets to the connection, and ends the connection.
    pub(crate) fn take_in(&mut self, packets: &[Vec<u8>]) -> Fate {
        let Some(incoming) = self.attempt(&packets[0]) else { return Fate::Closed };
        let accepted = self.endpoint.accept(incoming, self.now, &mut Vec::new(), None);
        let Ok((handle, mut connection)) = accepted else { return Fate::Closed };
        self.settle(handle, &mut connection);
        for packet in &packets[1..] {
            if let Some(DatagramEvent::ConnectionEvent(_, event)) = self.handle(packet) {
                connection.handle_event(event);
            }
            self.settle(handle, &mut connection);
        }
        let answered = !connection.is_closed() && connection.crypto_session().handshake_data().is_some();
        connection.close(self.now, 0_u32.into(), bytes::Bytes::new());
        while !connection.is_drained() {
            self.settle(handle, &mut connection);
            let Some(timeout) = connection.poll_timeout() else { break };
            self.now = self.now.max(timeout);
            connection.handle_timeout(self.now);
        }
        self.settle(handle, &mut connection);
        if answered { Fate::Answered } else { Fate::Closed }
    }

    /// Sends a Retry to the attacker, who sent this Initial.
    pub(crate) fn retry(&mut self, attacker: &Attacker, packet: &[u8]) -> Retry {
        let incoming = self.attempt(packet).unwrap();
        let mut answer = Vec::new();
        let transmit = self.endpoint.retry(incoming, &mut answer).unwrap();
        Retry::read(attacker, &answer[..transmit.size]).unwrap()
    }

    pub(crate) fn ignore(&mut self, packet: &[u8]) {
        if let Some(incoming) = self.attempt(packet) {
            self.endpoint.ignore(incoming);
        }
    }

    pub(crate) fn refuse(&mut self, packet: &[u8]) {
        if let Some(incoming) = self.attempt(packet) {
            let _close = self.endpoint.refuse(incoming, &mut Vec::new());
        }
    }

    pub(crate) fn assert_it_still_answers(&mut self) {
        self.attempts += 1;
        let attacker = Attacker::new(1 << 40 | self.attempts);
        assert_eq!(self.take_in(&attacker.hello(&attacker.usual_parameters())), Fate::Answered);
    }

    fn attempt(&mut self, packet: &[u8]) -> Option<Incoming> {
        match self.handle(packet) {
            Some(DatagramEvent::NewConnection(incoming)) => Some(incoming),
            _ => None,
        }
    }

    fn handle(&mut self, packet: &[u8]) -> Option<DatagramEvent> {
        let path = FourTuple::new(SocketAddr::from(ATTACKER), None);
        self.endpoint.handle(self.now, path, None, BytesMut::from(packet), &mut Vec::new())
    }

    /// Exchanges pending events between connection and endpoint, and lets the connection send.
    fn settle(&mut self, handle: ConnectionHandle, connection: &mut Connection) {
        while connection.poll_transmit(self.now, NonZeroUsize::MIN, &mut Vec::new()).is_some() {}
        while connection.poll().is_some() {}
        while let Some(event) = connection.poll_endpoint_events() {
            if let Some(event) = self.endpoint.handle_event(handle, event) {
                connection.handle_event(event);
            }
        }
    }
}
